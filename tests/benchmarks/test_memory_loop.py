"""The benchmark of the acting loop with memory measures the same policy in both schemes."""

import re

import numpy as np
import pytest

from actor_service.environments import describe_environment
from actor_service.policies.policy import load_policy
from benchmarks.harness import Target
from benchmarks.processor import DOT_PRODUCT
from benchmarks.speedup.memory import ENVIRONMENT, MEANINGS, measure, policies_of, targets


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_both_schemes_have_the_same_policy(kind: str) -> None:
    spec = describe_environment(ENVIRONMENT)
    int8, fp32 = (load_policy(policy, spec, 4) for policy in policies_of(kind, 32).values())  # type: ignore[arg-type]
    assert int8.descriptor.size_bytes < fp32.descriptor.size_bytes
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((4, 2)).astype(np.float32)
    for policy in (int8, fp32):
        policy(observations)
    assert int8.state_size == fp32.state_size > 0
    np.testing.assert_allclose(int8.next_state, fp32.next_state, atol=0.05)


def test_the_ratio_is_that_of_the_rates() -> None:
    found = measure("gru", 16, 2, repeats=4, slice_s=0.01)
    assert set(found.steps_per_second) == {"int8", "fp32"}
    assert found.quartiles[0] <= found.ratio <= found.quartiles[1]
    assert 0.2 < found.ratio < 5.0


def test_the_gru_has_targets_and_the_lstm_has_none() -> None:
    results = [
        {"kind": kind, "units": 512, "environments": count, "ratio": 1.6}
        for kind in ("gru", "lstm")
        for count in (1, 32)
    ]
    found = targets({"results": results})
    name = "gru of 512 units, 1 environment: steps/s in int8 over those in fp32"
    assert found[0] == Target(name, 1.6, 1.5, at_most=False, needs=DOT_PRODUCT)
    assert len(found) == 2
    assert all(re.fullmatch(MEANINGS[0].pattern, target.name) for target in found)
