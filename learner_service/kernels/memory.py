"""Lets a process keep the memory that it frees, so that updates do not wait for new pages."""

import ctypes
from contextlib import suppress

# Parameters of mallopt (malloc.h): trim the heap above, map blocks of their own from.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_UNTRIMMED_BYTES = 2**30
# The largest that glibc would come to by itself. Blocks of this size are replay buffers, not intermediate results.
_OWN_MAPPING = 32 * 2**20


def keep_memory() -> None:
    """Keep freed memory for the next update, up to 1 GiB, instead of returning it to the system. Only with glibc.

    By default glibc returns the intermediate results of an update, and the next update waits until the system has
    zeroed new pages: thousands of page faults per update, depending on the order of allocations. An update of D4PG with
    a policy of 3 x 2048 units then took 35 ms instead of 24.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _OWN_MAPPING)
        mallopt(_TRIM_THRESHOLD, _UNTRIMMED_BYTES)
