"""With learner.compile every algorithm makes the updates that it makes without."""

import functools
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.learner_service.algorithms import on_policy_parts
from tests.learner_service.algorithms.algorithm_parts import ALGORITHMS, BATCH, make, ones, random_batch, spec_of
from tests.learner_service.algorithms.on_policy_parts import SPECS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_compiled_updates_are_the_eager_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as for any compiler, and then run by torch itself: generating machine code is not ours to test."""
    compiled = Mock(wraps=functools.partial(torch.compile, backend="eager", fullgraph=True))
    monkeypatch.setattr(torch, "compile", compiled)
    eager, traced = make(name), make(name, learner={"compile": True})
    # TD3 computes the targets of several updates apart from the losses.
    assert compiled.call_count == (2 if name == "td3" else 1)
    rng = np.random.default_rng(0)
    for _ in range(3):
        batch = random_batch(rng, spec_of(name), 2 * BATCH)
        expected, losses = (algorithm.update(batch, ones(2 * BATCH)) for algorithm in (eager, traced))
        assert losses.loss == pytest.approx(expected.loss, rel=1e-4)
        np.testing.assert_allclose(losses.priorities, expected.priorities, rtol=1e-3, atol=1e-4)
    expected_state = eager.state()
    for key, value in traced.state().items():
        torch.testing.assert_close(value, expected_state[key], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", SPECS)
def test_compiled_updates_of_ppo_are_the_eager_ones(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Mock(wraps=functools.partial(torch.compile, backend="eager", fullgraph=True))
    monkeypatch.setattr(torch, "compile", compiled)
    spec = SPECS[kind]
    options: dict[str, Any] = {"value_clip": 0.2, "entropy_cost": 0.01}
    eager, traced = (
        on_policy_parts.make("ppo", spec, **options, learner={"compile": compile}) for compile in (False, True)
    )
    compiled.assert_called_once()
    rng = np.random.default_rng(0)
    for _ in range(2):
        rollout = on_policy_parts.random_rollout(rng, spec)
        expected, learned = (algorithm.learn(rollout, 0.0) for algorithm in (eager, traced))
        assert learned.loss == pytest.approx(expected.loss, rel=1e-4)
    torch.testing.assert_close(traced.state(), eager.state(), rtol=1e-3, atol=1e-4)
