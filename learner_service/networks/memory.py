"""Recurrent cells of policies with memory. A cell is one step, so the same parameters act and learn.

A step has two linear layers, one of the features and one of the state, and elementwise operations. Every scheme
therefore quantizes its products as those of any layer, and the state stays float32. ONNX's own GRU and LSTM operators
would hide the products from most schemes.
"""

import math
from abc import abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from actorq.config.memory import MemoryConfig
from learner_service.kernels.linear import Linear
from learner_service.kernels.unrolled import GRUSteps, LSTMSteps, can_unroll


class Unrolled(NamedTuple):
    """The outputs of a cell float32[T, B, U], and without gradient the states before each step and after the last one,
    float32[T + 1, B, S].
    """

    outputs: Tensor
    states: Tensor


class Cell(nn.Module):
    """One step of a recurrent network.

    features: number of inputs. units: number of outputs, U. state_size: numbers in a state, S. A state of zeros begins
    an episode.
    """

    gates: ClassVar[int]
    """Gates, each with U rows in both layers."""
    parts: ClassVar[int]
    """Arrays of U numbers in a state."""
    keeps: ClassVar[int]
    """The gate that keeps the state."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.units, self.state_size = units, self.parts * units
        self.input, self.recurrent = Linear(features, self.gates * units), Linear(units, self.gates * units)
        self.favor_memory()

    def favor_memory(self) -> None:
        """Add 1 to the bias of the gate that keeps the state, so that a new cell forgets slowly.

        Jozefowicz et al., "An Empirical Exploration of Recurrent Network Architectures", ICML 2015, section 5.
        """
        with torch.no_grad():
            self.rows(self.input.bias, self.keeps).add_(1.0)

    def spread_memory(self, horizon: int) -> None:
        """Add log(u - 1) to the same bias in every second unit, which then forgets within about u steps; 1 in others.

        log(u - 1) is uniform, from u = 2 to `horizon` steps. Such biases are from Tallec and Ollivier 2018 (arXiv
        1804.11188), section 2.1. There, u itself is uniform, and all units have them. Here, the others follow fast
        changes.
        """
        self.favor_memory()
        with torch.no_grad():
            kept = torch.empty((self.units + 1) // 2).uniform_(0.0, math.log(max(1, horizon - 1)))
            self.rows(self.input.bias, self.keeps)[::2].add_(kept - 1.0)

    def rows(self, values: Tensor, gate: int) -> Tensor:
        """The values of one gate, of a bias or weight with the rows of all gates."""
        return values[gate * self.units : (gate + 1) * self.units]

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Make one step: float32[B, features], float32[B, S] -> the output float32[B, U], the next state [B, S]."""
        return self.combine(self.input(features), state)

    def unrolled(self, features: Tensor, state: Tensor, begins: Tensor) -> Unrolled:
        """Make T steps: float32[T, B, features], float32[B, S], bool[T, B] -> the outputs and all states.

        begins: where an episode begins with a step. The state before that step is then zero.
        """
        products = self.input(features.flatten(0, 1)).view(*features.shape[:2], -1)
        keeps = begins.logical_not().unsqueeze(-1).to(products.dtype)
        if can_unroll(self.recurrent, products):
            return Unrolled(*self.fused(products, state, keeps))
        outputs, states = [], []
        for t in range(len(products)):
            states.append(state * keeps[t])
            output, state = self.combine(products[t], states[-1])
            outputs.append(output)
        return Unrolled(torch.stack(outputs), torch.stack((*states, state)).detach())

    @abstractmethod
    def combine(self, product: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The output and the next state, from the product of the features float32[B, gates * U]."""

    @abstractmethod
    def fused(self, products: Tensor, state: Tensor, keeps: Tensor) -> tuple[Tensor, Tensor]:
        """`unrolled` with a written gradient. keeps: float32[T, B, 1], 0 where an episode begins, else 1."""


class GRU(Cell):
    """Gated recurrent unit (Cho et al. 2014, arXiv 1406.1078). The reset gate applies after the recurrent product.

        r = sigmoid(W_r x + b_r + U_r h + c_r)
        z = sigmoid(W_z x + b_z + U_z h + c_z)
        n = tanh(W_n x + b_n + r (U_n h + c_n))
        h' = n + z (h - n)

    as torch.nn.GRUCell. The layers have the rows r, z, n. Output and state are h'.
    """

    gates, parts, keeps = 3, 1, 1

    def combine(self, product: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `Cell`."""
        sizes = [2 * self.units, self.units]
        of_input, candidate = torch.split(product, sizes, 1)
        of_state, remembered = torch.split(self.recurrent(state), sizes, 1)
        reset, update = torch.sigmoid(of_input + of_state).chunk(2, dim=1)
        new = torch.tanh(candidate + reset * remembered)
        following = new + update * (state - new)
        return following, following

    def fused(self, products: Tensor, state: Tensor, keeps: Tensor) -> tuple[Tensor, Tensor]:
        """See `Cell`."""
        return GRUSteps.apply(products, state, keeps, *_parameters(self.recurrent))  # type: ignore[no-any-return, no-untyped-call]


class LSTM(Cell):
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with forget gates).

        i, f, o = sigmoid(W x + b + U h + c),  g = tanh(W_g x + b_g + U_g h + c_g)
        c' = f c + i g,  h' = o tanh(c')

    The layers have the rows i, f, o, g. The output is h'. The state is h' followed by c'.
    """

    gates, parts, keeps = 4, 2, 1

    def combine(self, product: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `Cell`."""
        hidden, kept = state.chunk(2, dim=1)
        of_gates, of_new = torch.split(product + self.recurrent(hidden), [3 * self.units, self.units], 1)
        opens, forgets, shows = torch.sigmoid(of_gates).chunk(3, dim=1)
        kept = forgets * kept + opens * torch.tanh(of_new)
        hidden = shows * torch.tanh(kept)
        return hidden, torch.cat((hidden, kept), 1)

    def fused(self, products: Tensor, state: Tensor, keeps: Tensor) -> tuple[Tensor, Tensor]:
        """See `Cell`."""
        return LSTMSteps.apply(products, state, keeps, *_parameters(self.recurrent))  # type: ignore[no-any-return, no-untyped-call]


def make_cell(memory: MemoryConfig, features: int) -> Cell | None:
    """The cell that the settings ask for, after layers with this number of features; None without memory."""
    if not memory:
        return None
    kinds: dict[str, type[Cell]] = {"gru": GRU, "lstm": LSTM}
    return kinds[memory.kind](features, memory.units)


def _parameters(layer: nn.Linear) -> tuple[Tensor, Tensor]:
    return layer.weight, layer.bias
