"""A binary sum tree, vectorized over indices: a batch costs a few array operations per level."""

import numpy as np
from numpy.typing import NDArray

# Levels up to this size are recomputed completely and searched with one cumulative sum. For a small level this is
# faster than gathering the nodes of a batch.
_DENSE_NODES = 1024
# Fewer nodes than this are added one by one, because one array operation is as slow as twenty additions.
_FEW_NODES = 16


class SumTree:
    """Keeps finite, non-negative masses float64[size] and their sum, and draws indices in proportion to their masses.

    Nodes are stored as a heap: node 1 is the root, the children of k are 2k and 2k + 1, the leaves come last. Every
    inner node is recomputed from its children, so rounding errors do not accumulate.
    """

    def __init__(self, size: int) -> None:
        """Start with masses of zero. size: number of leaves, at least one."""
        self._leaves = 1 << (size - 1).bit_length()
        self._nodes = np.zeros(2 * self._leaves, np.float64)
        # A view of the same memory that accesses one node three times as fast.
        self._single = self._nodes.data

    @property
    def total(self) -> float:
        """Sum of all masses."""
        return float(self._nodes[1])

    def get(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Masses float64[B] of the leaves int64[B]."""
        return self._nodes[indices + self._leaves]

    def set(self, indices: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Give leaf indices[i] the mass values[i], at least one. For a repeated index, the last value counts."""
        nodes, touched = self._nodes, indices + self._leaves
        nodes[touched] = values
        level = self._leaves >> 1
        while level > _DENSE_NODES:
            touched >>= 1
            left = touched << 1
            nodes[touched] = nodes[left] + nodes[left + 1]
            level >>= 1
        while level >= 1:
            children = nodes[2 * level : 4 * level]
            np.add(children[0::2], children[1::2], out=nodes[level : 2 * level])
            level >>= 1

    def set_range(self, start: int, stop: int, values: NDArray[np.float64] | float) -> None:
        """Give the leaves [start, stop) the masses `values`: an array of this length, or one number for all."""
        if start >= stop:
            return
        nodes, single, low, high = self._nodes, self._single, start + self._leaves, stop - 1 + self._leaves
        nodes[low : high + 1] = values
        while low > 1:
            low, high = low >> 1, high >> 1
            if high - low >= _FEW_NODES:
                children = nodes[2 * low : 2 * high + 2]
                np.add(children[0::2], children[1::2], out=nodes[low : high + 1])
                continue
            for node in range(low, high + 1):
                single[node] = single[2 * node] + single[2 * node + 1]

    def sample(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Leaves int64[B] where the cumulative mass passes uniforms[i] * total, for uniforms float64[B] in [0, 1).

        At least one leaf must have mass. Never returns a leaf without mass, even if sums are rounded.
        """
        nodes = self._nodes
        level = min(self._leaves, _DENSE_NODES)
        bounds = np.concatenate(([0.0], np.cumsum(nodes[level : 2 * level])))
        # u * total may round up to the total, which is beyond the last leaf.
        mass = np.minimum(uniforms * bounds[-1], np.nextafter(bounds[-1], 0.0))
        found = np.searchsorted(bounds[1:], mass, side="right")
        mass -= bounds[found]
        node = found.astype(np.int64) + level
        while level < self._leaves:
            node <<= 1
            left = nodes[node]
            # A node with mass has a child with mass. Rounding may leave more mass than the left child has while the
            # right child is empty. Then the left child is chosen.
            right_turn = (mass >= left) & (nodes[node + 1] > 0)
            mass -= left * right_turn
            node += right_turn
            level <<= 1
        leaves: NDArray[np.int64] = node - self._leaves
        return leaves
