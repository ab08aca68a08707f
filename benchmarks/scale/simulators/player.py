"""One simulator as a process: plays until it is killed, and counts its answers in a file.

Its arguments are ADDRESS FILE INDEX PAUSE_S. It counts in the int64 at INDEX of FILE. PAUSE_S is the time that the
simulator needs for a step. It reads its messages as a line of JSON on stdin.
"""

import json
import mmap
import queue
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import grpc

from benchmarks.scale.simulators.load import EPISODE_STEPS, PLAY

_AGAIN_S = 0.1


def _play(address: str, counts: memoryview, index: int, pause_s: float, sent: dict[str, bytes]) -> None:
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    requests.put(sent["opening"])
    given: Iterator[bytes] = iter(requests.get, None)
    try:
        with grpc.insecure_channel(address) as channel:
            stream = channel.stream_stream(PLAY)(given)
            next(stream)
            for number in count(1):
                requests.put(sent["step" if number % EPISODE_STEPS else "end"])
                next(stream)
                counts[index] += 1
                if pause_s:
                    time.sleep(pause_s)
    finally:
        # Ends the thread that sends.
        requests.put(None)


def _main(address: str, file: str, index: str, pause_s: str) -> None:
    sent = {name: bytes.fromhex(message) for name, message in json.loads(sys.stdin.readline()).items()}
    with Path(file).open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as shared:
        counts = memoryview(shared).cast("q")
        while True:
            try:
                _play(address, counts, int(index), float(pause_s), sent)
            except grpc.RpcError as error:
                # The actor has not joined its run yet.
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                time.sleep(_AGAIN_S)


if __name__ == "__main__":
    _main(*sys.argv[1:])
