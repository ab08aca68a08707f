"""Evaluations compared with the actors' data: honest evaluations pass, impossible ones are flagged with the reason."""

import json
import re
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from actorq.domain.trajectory import Episode, Evaluation
from learner_service.actors.plausibility import Plausibility
from tests.learner_service.learner_parts import evaluation, segment


def after(rewards: float, *returns: float, step_limit: int = 0) -> Plausibility:
    """The record after actors had these rewards in each step, and episodes with these returns."""
    record = Plausibility(step_limit)
    episodes = tuple(Episode(each, 10, 0) for each in returns)
    record.update(segment(1, rewards=np.full((4, 2), rewards, np.float32), episodes=episodes))
    return record


def judged(mean_return: float, length: int) -> Evaluation:
    return replace(evaluation(1, 1, mean_return), lengths=(length,))


def test_an_evaluation_before_any_actor_data_is_flagged() -> None:
    assert "nothing to compare" in Plausibility(500).doubt(judged(500.0, 500))


def test_nothing_is_flagged_if_actors_have_other_rewards_than_evaluations() -> None:
    record = Plausibility(500, compares=False)
    record.update(segment(1, rewards=np.full((4, 2), 1e-3, np.float32), episodes=(Episode(0.1, 100, 0),)))
    assert record.doubt(judged(500.0, 500)) == ""
    assert record.agrees(judged(500.0, 500))


def test_a_policy_may_be_good_before_any_exploring_episode_has_ended() -> None:
    """As on Acrobot: the policy reached the goal, whose reward is 0, before any actor did."""
    record = after(-1.0, step_limit=500)
    assert record.doubt(judged(-83.0, 84)) == ""
    assert "above -84.0" in record.doubt(judged(-1.0, 84))


def test_a_return_above_the_largest_reward_in_each_step_is_flagged() -> None:
    record = after(1.0, 20.0, 300.0, step_limit=500)
    assert record.doubt(judged(500.0, 500)) == ""
    assert record.doubt(judged(514.0, 500)) == ""
    assert re.search(r"600\.0 .*above 500\.0, .*\(1\)", record.doubt(judged(600.0, 500)))
    # It reports episodes that are longer than the environment allows.
    assert "above 500.0" in record.doubt(judged(600.0, 100_000))


def test_the_return_of_a_team_may_have_the_largest_reward_for_each_agent() -> None:
    record, alone = Plausibility(500, agents=3), Plausibility(500)
    for each in (record, alone):
        each.update(segment(1, rewards=np.full((4, 2), 1.0, np.float32)))
    assert record.doubt(judged(1500.0, 500)) == ""
    assert "above 500.0" in alone.doubt(judged(1500.0, 500))
    assert "above 1,500.0" in record.doubt(judged(1600.0, 500))
    negative = Plausibility(500, agents=3)
    negative.update(segment(1, rewards=np.full((4, 2), -1.0, np.float32)))
    # Most agents may be absent.
    assert negative.doubt(judged(-100.0, 100)) == ""


def test_without_a_limit_of_steps_the_lengths_count() -> None:
    record = after(1.0, 20.0, 300.0)
    assert record.doubt(judged(1500.0, 1500)) == ""
    assert "above 1,000.0" in record.doubt(judged(1500.0, 1000))


def test_with_negative_rewards_the_bound_of_a_return_follows_its_steps() -> None:
    record = after(-1.0, -200.0, -150.0, step_limit=200)
    assert record.doubt(judged(-110.0, 110)) == ""
    assert "above -110.0" in record.doubt(judged(-50.0, 110))


def test_a_return_far_above_all_exploring_episodes_is_flagged() -> None:
    record = after(1.0, 9.0, 12.0, 50.0, step_limit=500)
    assert record.doubt(judged(450.0, 500)) == ""
    assert re.search(r"475\.0 .*9\.0 to 50\.0", record.doubt(judged(475.0, 500)))


def test_rewards_of_steps_that_only_reset_do_not_count() -> None:
    record = Plausibility(0)
    valid = np.ones((4, 2), np.bool_)
    valid[2, 0] = False
    rewards = np.ones((4, 2), np.float32)
    rewards[2, 0] = 1e6
    record.update(segment(1, rewards=rewards, valid=valid, episodes=(Episode(50.0, 50, 0),)))
    assert "above 200.0" in record.doubt(judged(250.0, 200))


def test_the_record_is_the_same_after_a_restart() -> None:
    record, restored = after(1.0, 9.0, 60.0), Plausibility(0)
    restored.load_state(json.loads(json.dumps(record.state())))
    for mean_return in (50.0, 400.0, 1e6):
        assert restored.doubt(judged(mean_return, 500)) == record.doubt(judged(mean_return, 500))
    empty = Plausibility(0)
    empty.load_state(json.loads(json.dumps(Plausibility(0).state())))
    assert "nothing to compare" in empty.doubt(judged(1.0, 1))


def test_a_run_without_a_record_flags_nothing() -> None:
    restored = Plausibility(500)
    restored.load_state(None)
    restored.update(segment(1, episodes=(Episode(9.0, 9, 0),)))
    assert restored.doubt(judged(1e9, 1)) == ""


@settings(deadline=None)
@given(
    exploring=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    above=st.floats(0.0, 1.0),
)
def test_a_policy_up_to_four_spreads_above_the_best_passes(exploring: list[float], above: float) -> None:
    highest = max(exploring)
    spread = max(highest - min(exploring), abs(highest))
    assert after(1e9, *exploring).doubt(judged(highest + 4 * above * spread, 100)) == ""
