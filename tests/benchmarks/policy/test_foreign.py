"""The benchmark of foreign policies tells a printed figure that is not the measured one."""

import pytest
import torch

from benchmarks.policy.foreign.__main__ import compare, targets
from benchmarks.policy.foreign.models import cleanrl, rllib


@pytest.mark.parametrize("form", ["values", "actions"])
def test_the_printed_agreement_is_the_measured_one(form: str) -> None:
    torch.manual_seed(0)
    policy = next(policy for policy in cleanrl() if policy.name == "ppo")
    rows = compare(policy, form)
    assert {row["scheme"] for row in rows} == {"int8-static", "int4"}
    assert min(row["measured"] for row in rows) < 100
    assert all(row["printed"] == pytest.approx(row["measured"], abs=0.051) for row in rows)


def test_recurrent_policies_have_states_among_their_inputs() -> None:
    policy = next(policy for policy in rllib() if policy.name == "PPO, LSTM")
    shapes = [output.shape for output in policy.values(*map(torch.from_numpy, policy.rows(3, 0)))]
    assert shapes == [(3, 6), (3, 1, 128), (3, 1, 128)]


def test_a_difference_and_a_comparison_that_shows_nothing_are_missed_targets() -> None:
    row = {"library": "a", "policy": "b", "scheme": "int4", "measured": 95.75}
    rows = [{**row, "form": form, "printed": printed} for form, printed in (("values", 95.8), ("actions", 100.0))]
    by_values, by_actions, count, lowest = targets(rows)
    assert (by_values.met, by_actions.met, count.met, lowest.met) == (True, False, False, True)
    assert not targets([{**each, "measured": 100.0} for each in rows])[-1].met
