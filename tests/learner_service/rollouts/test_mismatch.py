"""How far the data are from the policy: rounding alone, with staleness, and in versions."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from learner_service.batch import Batch
from learner_service.rollouts import Mismatch, PublishedVersions

PRESENT = 5.0


def of_parameters(
    observations: NDArray[Any], actions: NDArray[Any], parameters: Mapping[str, Tensor]
) -> NDArray[np.float32]:
    """The log probability of each action is the policy's one parameter plus the observation."""
    parameter = float(parameters["w"]) if parameters else PRESENT
    return (parameter + observations[:, 0]).astype(np.float32)


def trajectories(versions: list[int], observation: float = 0.0, drawn: float = 0.0, valid: bool = True) -> Batch:
    """One environment; each step acted by one version."""
    steps, shape = len(versions), (len(versions), 1)
    return Batch(
        observations=np.full((steps + 1, 1, 1), observation, np.float32),
        actions=np.zeros(shape, np.int64),
        rewards=np.zeros(shape, np.float32),
        terminated=np.zeros(shape, np.bool_),
        truncated=np.zeros(shape, np.bool_),
        valid=np.full(shape, valid),
        log_probabilities=np.full(shape, drawn, np.float32),
        policy_versions=np.array(versions, np.int64)[:, None],
        senders=np.zeros(shape, np.uint64),
    )


def a_mismatch(*versions: int, max_lag: int = 2) -> Mismatch:
    """With these published versions, whose parameter is the version's number."""
    published = PublishedVersions(max_lag)
    mismatch = Mismatch(of_parameters, published, torch.device("cpu"))
    for version in versions:
        published.add(version)
        mismatch.published(version, {"w": np.array(version, np.float32)})
    return mismatch


def test_nothing_is_known_before_the_first_rollout() -> None:
    mismatch = a_mismatch(1)
    assert [mismatch.mean(name) for name in ("mismatch", "divergence", "policy_lag")] == [None] * 3


def test_rounding_is_measured_with_the_version_that_acted_and_divergence_with_the_newest() -> None:
    mismatch = a_mismatch(1, 2, 3)
    mismatch.measure([trajectories([1, 1], drawn=1.5), trajectories([3, 3], observation=1.0, drawn=3.0)])
    # |1 - 1.5| and |3 + 1 - 3|; |5 - 1.5| and |5 + 1 - 3|; lags of 2 and 0.
    assert mismatch.mean("mismatch") == pytest.approx(0.75)
    assert mismatch.mean("divergence") == pytest.approx(3.25)
    assert mismatch.mean("policy_lag") == pytest.approx(1.0)


def test_the_means_go_over_all_rollouts_and_restarts() -> None:
    mismatch = a_mismatch(1)
    mismatch.measure([trajectories([1], drawn=1.5)])
    again = a_mismatch(1025)
    again.load_state(json.loads(json.dumps(mismatch.state())))
    again.measure([trajectories([1025, 1025, 1025], drawn=1025.0)])
    assert again.mean("mismatch") == pytest.approx(0.125)


def test_a_raised_version_number_belongs_to_the_previous_snapshot() -> None:
    mismatch = a_mismatch(1, 2)
    mismatch.measure([trajectories([9], drawn=2.25)])
    assert mismatch.mean("mismatch") == pytest.approx(0.25)


def test_few_versions_are_kept_for_any_lag() -> None:
    mismatch = a_mismatch(*range(1, 101), max_lag=1_000_000)
    mismatch.measure([trajectories([1, 100], drawn=99.5)])
    assert mismatch.mean("mismatch") == pytest.approx(0.5)
    assert mismatch.mean("policy_lag") == pytest.approx(49.5)


def test_versions_from_before_a_restart_count_for_divergence_only() -> None:
    mismatch = a_mismatch(1025)
    mismatch.measure([trajectories([7], drawn=4.0)])
    assert mismatch.mean("mismatch") is None
    assert mismatch.mean("divergence") == pytest.approx(1.0)


def test_steps_that_only_reset_do_not_count() -> None:
    mismatch = a_mismatch(1)
    mismatch.measure([trajectories([1], valid=False)])
    assert mismatch.mean("divergence") is None
    mismatch.measure([trajectories([1] * 1000, valid=False), trajectories([1], drawn=1.5)])
    assert mismatch.mean("mismatch") == pytest.approx(0.5)
    assert mismatch.mean("policy_lag") == 0.0


def test_small_rollouts_are_measured_once_in_2048_transitions_and_the_lag_of_all_counts() -> None:
    mismatch, alone = a_mismatch(1, 2), a_mismatch(1, 2)
    for version, drawn in ((2, 1.0), (2, 2.0), (2, 3.0), (1, 4.0)):
        mismatch.measure([trajectories([version] * 1024, drawn=drawn)])
    for drawn in (1.0, 3.0):
        alone.measure([trajectories([2] * 2048, drawn=drawn)])
    assert mismatch.mean("divergence") == alone.mean("divergence")
    assert mismatch.mean("policy_lag") == pytest.approx(0.25)


def test_samples_of_a_large_rollout_are_spread_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[NDArray[Any]] = []

    def remember(observations: NDArray[Any], actions: NDArray[Any], parameters: Any) -> NDArray[np.float32]:
        seen.append(observations[:, 0])
        return np.zeros(len(observations), np.float32)

    mismatch = Mismatch(remember, PublishedVersions(2), torch.device("cpu"))
    rollout = trajectories([1] * 2560)
    rollout.observations[:, 0, 0] = np.arange(2561)
    mismatch.measure([rollout])
    np.testing.assert_array_equal(seen[0], np.arange(0, 2560, 10))


def test_a_probability_of_0_does_not_spoil_the_mean() -> None:
    mismatch = a_mismatch(1)
    mismatch.measure([trajectories([1], drawn=-np.inf), trajectories([1], drawn=1.5)])
    assert mismatch.mean("mismatch") == pytest.approx(0.5)
