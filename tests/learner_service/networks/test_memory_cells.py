"""Recurrent cells: one step equals PyTorch's cells, and many steps equal single ones, with their gradients."""

import pytest
import torch
from torch import Tensor, nn

from actorq.config.memory import MemoryConfig
from learner_service.networks import memory as cells
from learner_service.networks.memory import GRU, LSTM, Cell, make_cell

T, B, F, U = 9, 4, 5, 8
KINDS = {"gru": GRU, "lstm": LSTM}


@pytest.fixture(params=KINDS)
def cell(request: pytest.FixtureRequest) -> Cell:
    torch.manual_seed(0)
    made = make_cell(MemoryConfig(kind=request.param, units=U), F)
    assert type(made) is KINDS[request.param]
    return made


def sequence(cell: Cell) -> tuple[Tensor, Tensor, Tensor]:
    """Features, a state, and begins of episodes."""
    generator = torch.Generator().manual_seed(1)
    features, state = torch.randn(T, B, F, generator=generator), torch.rand(B, cell.state_size, generator=generator)
    return features, state, torch.rand(T, B, generator=generator) < 0.3


def test_the_gru_computes_as_pytorch() -> None:
    torch.manual_seed(0)
    cell, reference = GRU(F, U), nn.GRUCell(F, U)
    copy(cell, reference, [0, 1, 2])
    features, state = torch.randn(B, F), torch.randn(B, U)
    output, following = cell.step(features, state)
    assert output is following
    torch.testing.assert_close(output, reference(features, state))


def test_the_lstm_computes_as_pytorch() -> None:
    torch.manual_seed(0)
    cell, reference = LSTM(F, U), nn.LSTMCell(F, U)
    # PyTorch's rows are i, f, g, o.
    copy(cell, reference, [0, 1, 3, 2])
    features, hidden, kept = torch.randn(B, F), torch.randn(B, U), torch.randn(B, U)
    output, following = cell.step(features, torch.cat((hidden, kept), 1))
    expected = reference(features, (hidden, kept))
    torch.testing.assert_close(output, expected[0])
    torch.testing.assert_close(following, torch.cat(expected, 1))


def copy(cell: Cell, reference: nn.RNNCellBase, order: list[int]) -> None:
    """Give a cell the parameters of PyTorch's. order: its gates among PyTorch's."""
    with torch.no_grad():
        for layer, weight, bias in (
            (cell.input, reference.weight_ih, reference.bias_ih),
            (cell.recurrent, reference.weight_hh, reference.bias_hh),
        ):
            layer.weight.copy_(weight.view(-1, U, weight.shape[1])[order].flatten(0, 1))
            layer.bias.copy_(bias.view(-1, U)[order].flatten())


@pytest.mark.parametrize("written", [True, False], ids=["written gradient", "autograd"])
def test_unrolling_makes_single_steps_from_states_of_zeros_where_episodes_begin(
    cell: Cell, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "can_unroll", lambda *_: written)
    features, state, begins = sequence(cell)
    outputs, states = cell.unrolled(features, state, begins)
    for t in range(T):
        state = torch.where(begins[t, :, None], 0.0, state)
        torch.testing.assert_close(states[t], state)
        output, state = cell.step(features[t], state)
        torch.testing.assert_close(outputs[t], output)
    torch.testing.assert_close(states[-1], state)
    assert not states.requires_grad


def test_the_written_gradient_is_that_of_autograd(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for written in (True, False):
        monkeypatch.setattr(cells, "can_unroll", lambda *_, written=written: written)
        features, state, begins = sequence(cell)
        features.requires_grad_(), state.requires_grad_()
        outputs, _ = cell.unrolled(features, state, begins)
        cell.zero_grad()
        (outputs * torch.arange(outputs.numel()).view(outputs.shape).cos()).sum().backward()  # type: ignore[no-untyped-call]
        found.append([features.grad, state.grad, *(each.grad for each in cell.parameters())])
    for actual, expected in zip(*found, strict=True):
        assert expected is not None
        assert expected.abs().max() > 0
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_no_gradient_passes_the_begin_of_an_episode(cell: Cell) -> None:
    features, state, begins = sequence(cell)
    begins[:], begins[4] = False, True
    features.requires_grad_(), state.requires_grad_()
    outputs, _ = cell.unrolled(features, state, begins)
    outputs[4:].sum().backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None
    assert state.grad is not None
    assert not features.grad[:4].any()
    assert not state.grad.any()
    assert features.grad[4:].abs().sum(2).min() > 0


def test_a_replaced_layer_is_called_at_each_step(cell: Cell) -> None:
    """As when training simulates the actors' rounded layers."""
    features, state, begins = sequence(cell)
    expected, _ = cell.unrolled(features, state, begins)
    calls = []
    original = cell.recurrent.forward

    def counted(x: Tensor) -> Tensor:
        calls.append(x)
        return original(x)

    cell.recurrent.forward = counted  # type: ignore[method-assign, assignment]
    torch.testing.assert_close(cell.unrolled(features, state, begins)[0], expected)
    assert len(calls) == T


def test_a_new_cell_keeps_its_state(cell: Cell) -> None:
    means = [float(cell.rows(cell.input.bias, gate).mean()) for gate in range(cell.gates)]
    kept = means.pop(cell.keeps)
    assert all(kept > other + 0.5 for other in means)


@pytest.mark.parametrize("kind", KINDS.values())
def test_half_of_the_units_forget_within_2_steps_to_a_whole_sequence(kind: type[Cell]) -> None:
    torch.manual_seed(0)
    cell = kind(F, 4_001)
    bias = cell.input.bias.detach().zero_()
    cell.spread_memory(101)
    kept = cell.rows(bias, cell.keeps)
    steps = 1 / (1 - torch.sigmoid(kept[::2]))
    found = steps.quantile(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    torch.testing.assert_close(found, torch.tensor([2.0, 4.2, 11.0, 32.6, 101.0]), atol=0.0, rtol=0.1)
    assert (kept[1::2] == 1.0).all()
    for gate in set(range(cell.gates)) - {cell.keeps}:
        assert not cell.rows(bias, gate).any()


@pytest.mark.parametrize("horizon", [1, 2])
def test_such_units_have_no_bias_with_single_steps(horizon: int) -> None:
    cell = GRU(F, U)
    bias = cell.input.bias.detach().zero_()
    cell.spread_memory(horizon)
    assert not cell.rows(bias, cell.keeps)[::2].any()
