"""Allocates exploration indexes: a preferred number if it is free, else the lowest free one, in O(log n)."""

import heapq


class Indexes:
    """The held and free numbers from 0. Not thread-safe."""

    def __init__(self) -> None:
        self._held: set[int] = set()
        # All numbers below `_next` are held or in the heap. The heap has each number once, perhaps a held one.
        self._next = 0
        self._heap: list[int] = []
        self._in_heap: set[int] = set()

    def take(self, *wishes: int) -> int:
        """Hold the first of `wishes` that is free, else the lowest free number."""
        index = next((wish for wish in wishes if wish not in self._held), None)
        if index is None:
            index = self._lowest()
        self._held.add(index)
        return index

    def free(self, index: int) -> None:
        """Release a held number."""
        self._held.discard(index)
        if index < self._next and index not in self._in_heap:
            self._in_heap.add(index)
            heapq.heappush(self._heap, index)

    def _lowest(self) -> int:
        while self._heap:
            index = heapq.heappop(self._heap)
            self._in_heap.discard(index)
            if index not in self._held:
                return index
        while self._next in self._held:
            self._next += 1
        self._next += 1
        return self._next - 1
