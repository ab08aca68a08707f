"""Lets a process keep the memory that it frees, so that updates do not wait for new pages."""

import ctypes
from contextlib import suppress

# Parameters of mallopt (malloc.h): free size above which the heap is trimmed, and block size above which memory is
# mapped.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_UNTRIMMED_BYTES = 2**30
# The largest value that glibc would choose by itself. Larger blocks are replay buffers, not intermediate results.
_OWN_MAPPING = 32 * 2**20


def keep_memory() -> None:
    """Keep freed memory for the next update, up to 1 GiB, instead of returning it to the system. Only with glibc.

    By default glibc returns the memory of an update's intermediate results. The next update then waits for new zeroed
    pages, with thousands of page faults. An update of D4PG with a policy of 3 x 2048 units took 35 ms instead of 24.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _OWN_MAPPING)
        mallopt(_TRIM_THRESHOLD, _UNTRIMMED_BYTES)
