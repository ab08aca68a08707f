"""PPO and IMPALA with memory: updates over sequences, and a task that no policy without memory can solve."""

import math
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from learner_service.algorithms.policy_gradient import PolicyGradient
from learner_service.rollouts.sequences import Cut, rows_of
from tests.learner_service.algorithms.algorithm_parts import BOUNDED, DISCRETE
from tests.learner_service.algorithms.on_policy_parts import CLASSES, assert_equal_states
from tests.learner_service.algorithms.recurrent_parts import (
    CUE,
    Acting,
    Cue,
    make_recurrent,
    random_recurrent,
    state_size,
    with_states,
)

SPECS = {"discrete": DISCRETE, "continuous": BOUNDED}
KINDS = ("gru", "lstm")


@pytest.fixture(params=[(name, kind) for name in CLASSES for kind in KINDS], ids=" with a ".join)
def chosen(request: pytest.FixtureRequest) -> tuple[str, str]:
    name, kind = request.param
    return name, kind


DELAY, ENVIRONMENTS, STEPS = 12, 32, 28
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"learning_rate": 1e-2, "batch_size": 224, "epochs": 6, "entropy_cost": 0.003},
    "impala": {"learning_rate": 1e-2, "batch_size": 448, "max_gradient_norm": 1.0, "entropy_cost": 0.003},
}
ROLLOUTS = {"ppo": 30, "impala": 120}


def share_of_right_answers(algorithm: PolicyGradient, rollouts: int) -> float:
    """The best share in five successive rollouts, while it trains on all of them. Ends once it is above 0.95.

    The step sizes are large, so that a test is short. A policy may therefore become worse later.
    """
    rng = np.random.default_rng(0)
    acting = Acting(Cue(ENVIRONMENTS, DELAY, rng), ENVIRONMENTS, rng, state_size(algorithm))
    right, best = deque[float](maxlen=5), 0.0
    for _ in range(rollouts):
        steps = acting.collect(algorithm, STEPS)
        algorithm.learn([steps], 0.0)
        right.append(float((steps.rewards[steps.terminated] > 0).mean()))
        best = max(best, float(np.mean(right)) if len(right) == 5 else 0.0)
        if best > 0.95:
            break
    return best


def test_a_cue_is_remembered(chosen: tuple[str, str]) -> None:
    name, kind = chosen
    algorithm = make_recurrent(name, CUE, kind, **SETTINGS[name])
    assert share_of_right_answers(algorithm, ROLLOUTS[name]) > 0.95


@pytest.mark.parametrize("name", CLASSES)
def test_a_policy_without_memory_can_only_guess(name: str) -> None:
    algorithm = make_recurrent(name, CUE, "none", **SETTINGS[name])
    assert 0.3 < share_of_right_answers(algorithm, ROLLOUTS[name]) < 0.7


def test_a_cue_is_remembered_across_sequences() -> None:
    """Each delay crosses the border of two sequences: the second one begins with a state that the policy computes."""
    memory = {"kind": "gru", "sequence_length": 14}
    algorithm = make_recurrent("ppo", CUE, memory, **SETTINGS["ppo"])
    assert share_of_right_answers(algorithm, ROLLOUTS["ppo"]) > 0.95


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_resets_have_no_effect_on_updates(chosen: tuple[str, str], spec: Any) -> None:
    learned, others = (make_recurrent(chosen[0], spec, chosen[1]) for _ in range(2))
    rollout = random_recurrent(learned, spec, 16, 16)
    expected = learned.learn(rollout, 0.0)
    assert expected.updates == learned.updates > 0
    changed = [
        steps.with_columns(
            rewards=np.where(steps.valid, steps.rewards, 100).astype(np.float32),
            log_probabilities=np.where(steps.valid, steps.log_probabilities, -50).astype(np.float32),
        )
        for steps in rollout
    ]
    assert others.learn(changed, 0.0).loss == pytest.approx(expected.loss, rel=1e-5)
    torch.testing.assert_close(others.state(), learned.state(), rtol=1e-5, atol=1e-6)


def test_what_came_before_an_episode_does_not_change_its_updates(chosen: tuple[str, str]) -> None:
    """All environments begin an episode with step 3, so earlier observations and stored states change nothing later."""
    algorithm = make_recurrent(chosen[0], DISCRETE, chosen[1])
    (steps,) = random_recurrent(algorithm, DISCRETE, 12)
    steps.valid[2], steps.valid[3:] = False, True
    before = algorithm.states(steps)
    other = with_states(algorithm, steps, np.random.default_rng(9))
    other = other.with_columns(observations=np.where(np.arange(13)[:, None, None] < 3, 5.0, steps.observations))
    other = other.with_columns(observations=other.observations.astype(np.float32))
    after = algorithm.states(other)
    assert np.abs(before[1:3] - after[1:3]).max() > 0.01
    np.testing.assert_array_equal(before[3:], after[3:])
    assert not before[3].any()


@pytest.mark.filterwarnings("error")
def test_segments_of_different_lengths_are_learned_together(chosen: tuple[str, str]) -> None:
    algorithm = make_recurrent(chosen[0], BOUNDED, {"kind": chosen[1], "sequence_length": 7})
    rollout = random_recurrent(algorithm, BOUNDED, 16, 5, 16, 1)
    for steps in rollout:
        for column in steps.columns.values():
            column.flags.writeable = False
    learned = algorithm.learn(rollout, 0.0)
    assert learned.updates > 0
    assert all(math.isfinite(value) for value in (learned.loss, *learned.figures.values()))
    assert all(bool(value.isfinite().all()) for value in algorithm.state().values() if value.is_floating_point())


def test_a_rollout_of_resets_only_makes_no_update(chosen: tuple[str, str]) -> None:
    algorithm = make_recurrent(chosen[0], DISCRETE, chosen[1])
    (steps,) = random_recurrent(algorithm, DISCRETE, 1)
    learned = algorithm.learn([steps.with_columns(valid=np.zeros_like(steps.valid))], 0.0)
    assert (learned.loss, learned.updates) == (0.0, 0)


def test_a_restored_algorithm_learns_the_same(chosen: tuple[str, str]) -> None:
    one, other = (make_recurrent(chosen[0], DISCRETE, chosen[1]) for _ in range(2))
    one.learn(random_recurrent(one, DISCRETE, 16), 0.0)
    other.load_state(one.state())
    for algorithm in (one, other):
        algorithm.learn(random_recurrent(algorithm, DISCRETE, 16, seed=1), 0.0)
    assert_equal_states(other, one)


def test_the_first_ratios_are_one_in_every_sequence() -> None:
    """The unrolled sequences compute the probabilities of the whole trajectories."""
    memory = {"kind": "lstm", "sequence_length": 5}
    ppo = make_recurrent("ppo", DISCRETE, memory, batch_size=10_000, epochs=1, learning_rate=1e-9)
    (steps,) = random_recurrent(ppo, DISCRETE, 17)
    figures = ppo.learn([steps], 0.0).figures
    assert figures["approximate_kl"] == pytest.approx(0.0, abs=1e-6)
    assert figures["clipped_share"] == 0.0


def test_trajectories_are_cut_into_sequences_of_equal_lengths() -> None:
    cut = Cut(10, 4)
    column = torch.arange(20).view(10, 2)
    sequences = cut.steps(column)
    assert sequences.shape == (4, 6)
    assert sequences[:, 0].tolist() == [0, 2, 4, 6]
    assert sequences[:, 3].tolist() == [9, 11, 13, 15]
    assert sequences[:, 4].tolist() == [16, 18, 0, 0]
    states = torch.arange(22.0).view(11, 2, 1)
    assert cut.starts(states).flatten().tolist() == [0, 1, 8, 9, 16, 17]
    assert Cut(10, 10).steps(column).shape == (10, 2)
    assert Cut(1, 40).steps(column[:1]).shape == (1, 2)


def test_rows_of_sequences_are_their_transitions() -> None:
    from learner_service.batch import Batch

    valid = torch.tensor([[True, False], [True, True]])
    sequences = Batch(values=torch.arange(4).view(2, 2), valid=valid, begins=valid, states=torch.zeros(1, 2, 3))
    assert rows_of(sequences).columns.keys() == {"values"}
    assert rows_of(sequences).values.tolist() == [0, 2, 3]
