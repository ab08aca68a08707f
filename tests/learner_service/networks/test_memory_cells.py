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
    cell, reference = GRU(F, U, T), nn.GRUCell(F, U)
    copy(cell, reference, [0, 1, 2])
    features, state = torch.randn(B, F), torch.randn(B, U)
    output, following = cell.step(features, state)
    assert output is following
    torch.testing.assert_close(output, reference(features, state))


def test_the_lstm_computes_as_pytorch() -> None:
    torch.manual_seed(0)
    cell, reference = LSTM(F, U, T), nn.LSTMCell(F, U)
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


def test_a_new_cell_forgets_within_1_step_to_a_whole_sequence(cell: Cell) -> None:
    torch.manual_seed(0)
    made = type(cell)(F, 512, horizon=50)
    before = made.input.bias.detach().clone()
    made.input.bias.data.zero_()
    made.favor_memory()
    bias = made.input.bias.detach()
    lifetimes = 1 / (1 - torch.sigmoid(made.rows(bias, made.keeps)))
    torch.testing.assert_close(
        lifetimes.quantile(torch.tensor([0.0, 0.5, 1.0])), torch.tensor([2.0, 26, 50]), atol=2, rtol=0
    )
    for gate in set(range(made.gates)) - {made.keeps}:
        sign = -1.0 if gate in made.writes else 0.0
        torch.testing.assert_close(made.rows(bias, gate), sign * made.rows(bias, made.keeps))
    assert made.rows(before, made.keeps).mean() > 2


def test_memory_for_a_single_step_changes_nothing(cell: Cell) -> None:
    made = type(cell)(F, U, horizon=1)
    made.input.bias.data.zero_()
    made.favor_memory()
    assert not made.input.bias.any()
