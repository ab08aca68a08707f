"""Batches of any size run in sessions of a few sizes, with the same actions as in a session of their own."""

import numpy as np
import pytest

from actor_service.external.acting.sizes import SIZES, SizedLoader, chunks, padded
from actor_service.policies.policy import OnnxPolicy, load_policy
from actorq.domain.policy import Policy
from actorq.domain.spaces import EnvironmentSpec
from tests.actor_service.actor_policies import random_policy, recurrent_policy
from tests.actor_service.external.simulators import SPEC


@pytest.mark.parametrize(
    ("count", "sessions"),
    [
        (1, [(0, 1, 1)]),
        (2, [(0, 2, 8)]),
        (8, [(0, 8, 8)]),
        (9, [(0, 9, 32)]),
        (100, [(0, 100, 128)]),
        (129, [(0, 128, 128), (128, 129, 1)]),
        (300, [(0, 128, 128), (128, 256, 128), (256, 300, 128)]),
        (0, []),
    ],
)
def test_a_batch_uses_the_smallest_session_that_holds_it(count: int, sessions: list[tuple[int, int, int]]) -> None:
    assert list(chunks(count)) == sessions


def test_missing_rows_are_copies_of_the_first_row() -> None:
    rows = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    np.testing.assert_array_equal(padded(rows, 4), [[1, 2], [3, 4], [1, 2], [1, 2]])
    assert padded(rows, 2) is rows


def test_all_sizes_give_the_same_actions() -> None:
    policy = SizedLoader()(random_policy(4, 2), SPEC, 1)
    rows = np.random.default_rng(0).standard_normal((128, 4)).astype(np.float32)
    expected = load_policy(random_policy(4, 2), SPEC, 128)(rows).copy()
    np.testing.assert_allclose(policy(rows[:1]), expected[:1], rtol=1e-6)
    for size in SIZES:
        np.testing.assert_allclose(policy.of_size(size)(rows[:size]), expected[:size], rtol=1e-6)


def test_later_versions_have_sessions_for_the_sizes_in_use_before_they_act() -> None:
    opened: list[tuple[int, int]] = []

    def load(policy: Policy, spec: EnvironmentSpec, batch: int, needs: object = ()) -> OnnxPolicy:
        opened.append((policy.descriptor.version, batch))
        return load_policy(policy, spec, batch)

    loader = SizedLoader(load)
    first = loader(random_policy(4, 2, version=1), SPEC, 1)
    assert opened == []
    first.of_size(8)
    first.of_size(8)
    assert opened == [(1, 8)]
    second = loader(random_policy(4, 2, version=2), SPEC, 1)
    assert opened == [(1, 8), (2, 8)]
    second.of_size(8)
    assert len(opened) == 2


def test_a_watcher_gets_single_rows_with_their_states_until_it_has_enough() -> None:
    policy = SizedLoader()(recurrent_policy(2), SPEC, 1)
    seen: list[tuple[list[float], list[float]]] = []

    def watch(given: OnnxPolicy, observations: np.ndarray) -> None:
        assert observations.shape == (1, 4)
        seen.append((observations[0].tolist(), given.state[0].tolist()))
        if len(seen) == 2:
            given.on_observations = None

    policy.on_observations = watch
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    policy.observed(rows, np.array([[0, 1], [2, 3], [4, 5]], np.float32))
    assert seen == [([0, 1, 2, 3], [0, 1]), ([4, 5, 6, 7], [2, 3])]
