"""Products of very sparse layers that skip the zeros, with MKL's compressed sparse rows.

A dense product makes several times as many multiplications per second, so only very sparse layers gain. The table has
microseconds for 256 rows and 256 x 256 weights on one thread of a Zen 5 EPYC. The parameters are whole matrices: the
times include gathering the active weights and scattering their gradients.

    density                               dense     3%     7%    14%
    values, or gradients of the inputs      150     45     90    160
    gradients of the weights                170     35     65    140

The weights' gradient is a sampled product of the active weights only. It gains at higher densities than the others.
"""

import warnings

import torch
from torch import Tensor

# Layers with fewer weights use dense products.
_SMALLEST = 2**14
DENSEST_PRODUCT, DENSEST_GRADIENT = 0.10, 0.15
"""Densities up to which sparse products and sampled gradients are faster (measured, see above)."""


def worth_leaving_out(active: int, weights: int) -> bool:
    """Whether a linear layer with `active` of `weights` weights gains from skipping zeros."""
    return weights >= _SMALLEST and active <= DENSEST_GRADIENT * weights


class ActiveWeights:
    """The active weights of a matrix [N, K] in a form for products. A layer shares it with its target network.

    Activations are transposed, [units, B], as sparse products need them. Not thread-safe.

    multiplies: `product` and `transposed_product` are faster than dense products.
    whole_gradient: inactive weights get gradients too, to grow some of them.
    """

    multiplies = False
    whole_gradient = False

    def __deepcopy__(self, memo: dict[int, object]) -> "ActiveWeights":
        """Return self: a copied network shares the active weights of its original."""
        return self

    def set(self, mask: Tensor) -> None:
        """Make the weights active where `mask`, [N, K], is not 0."""
        rows, columns = mask.nonzero(as_tuple=True)
        by_column = torch.argsort(columns, stable=True)
        self._shape = mask.shape
        self._places = rows * mask.shape[1] + columns
        self._places_by_column = self._places[by_column]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            self._matrix = _compressed(rows, columns, mask.shape[0], mask.shape[1])
            self._transposed = _compressed(columns[by_column], rows[by_column], mask.shape[1], mask.shape[0])
        self.multiplies = len(rows) <= DENSEST_PRODUCT * mask.numel()

    def product(self, weight: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """W x + b: float32[N, K], [K, B], [N] -> [N, B]."""
        torch.index_select(weight.flatten(), 0, self._places, out=self._matrix.values())
        return self._matrix @ x if bias is None else torch.addmm(bias.unsqueeze(1), self._matrix, x)

    def transposed_product(self, weight: Tensor, y: Tensor) -> Tensor:
        """W^T y: float32[N, K], [N, B] -> [K, B]."""
        torch.index_select(weight.flatten(), 0, self._places_by_column, out=self._transposed.values())
        return self._transposed @ y

    def gradient(self, to_y: Tensor, x: Tensor) -> Tensor:
        """dL/dW, [N, K], 0 for inactive weights. to_y: dL/dy, [N, B]; x: [K, B]."""
        sampled = torch.sparse.sampled_addmm(self._matrix, to_y, x.t(), beta=0.0)
        whole = to_y.new_zeros(self._shape.numel())
        return whole.index_copy_(0, self._places, sampled.values()).view(self._shape)


def _compressed(rows: Tensor, columns: Tensor, height: int, width: int) -> Tensor:
    """A matrix of zeros in compressed rows, with the 32-bit indices that MKL needs. The positions are sorted by row."""
    starts = torch.zeros(height + 1, dtype=torch.int32)
    starts[1:] = torch.bincount(rows, minlength=height).cumsum(0)
    values = torch.zeros(len(rows))
    return torch.sparse_csr_tensor(starts, columns.to(torch.int32), values, (height, width), check_invariants=False)
