"""Environments with several agents: the row of an agent ends where it leaves, and begins where it comes back."""

import importlib.util
from typing import Any

import numpy as np
import pytest
from environment_doubles import copied
from numpy.typing import NDArray
from team_environments import AGENTS, CODED_STEPS, codes_of, life_of

from actor_service.environments import Environments, Step, make_environments
from actor_service.environments.trial import first_step, play, random_actions
from actorq.domain.environments import EnvironmentArguments
from actorq.domain.leaves import views
from actorq.domain.trajectory import Episode
from actorq.errors import ActorQError, UserError

HAS_PETTINGZOO = importlib.util.find_spec("mpe2") is not None
PLAIN, ONE_HOT = EnvironmentArguments(), EnvironmentArguments(agent_identity="one-hot")
NONE: NDArray[np.int64] = np.zeros(6, np.int64)


def team(name: str, count: int = 2, arguments: EnvironmentArguments = PLAIN) -> Environments:
    return make_environments(f"team_environments:{name}", count, arguments=arguments)


def played(environments: Environments, steps: int) -> tuple[NDArray[Any], NDArray[np.bool_], list[Step]]:
    """Observations and presence before each step, and the steps."""
    seen, present, taken = [environments.reset(3).copy()], [environments.present.copy()], list[Step]()
    for _ in range(steps):
        taken.append(copied(environments.step(np.zeros(environments.rows, np.int64))))
        seen.append(taken[-1].observations)
        present.append(environments.present.copy())
    return np.array(seen), np.array(present), taken


def test_the_agents_of_an_environment_are_neighboring_rows() -> None:
    environments = team("Targets")
    assert environments.spec.agents == AGENTS
    assert (environments.count, environments.rows) == (2, 6)
    assert environments.reset(1).shape == (6, 4)
    step = environments.step(NONE)
    assert all(getattr(step, name).shape == (6,) for name in ("rewards", "terminated", "truncated", "valid"))


def test_a_row_ends_where_its_agent_leaves_and_begins_where_it_comes_back() -> None:
    environments = team("Coded")
    seen, present, taken = played(environments, 4 * (CODED_STEPS + 1))
    codes = codes_of(seen)
    for t, step in enumerate(taken):
        for row in range(environments.rows):
            agent, at = row % 3, int(codes[t, row - row % 3, 3])
            life = life_of(agent, at)
            # At the last step all agents leave at once, and the next step only resets.
            assert step.valid[row] == (life is not None and at < CODED_STEPS)
            if life is None or at == CODED_STEPS:
                assert step.rewards[row] == 0.0
                assert not step.terminated[row]
                assert not step.truncated[row]
                continue
            first, last, terminal = life
            assert codes[t, row].tolist()[0::3] == [agent, at]
            assert step.terminated[row] == (at == last and terminal)
            assert step.truncated[row] == (at == last and not terminal)
            # The observation after the last action is still the agent's own.
            assert codes[t + 1, row].tolist()[0::3] == [agent, at + 1]
            assert present[t, row]
            assert present[t + 1, row]
            assert first <= at


def test_the_row_of_an_absent_agent_repeats_an_agent_that_takes_part() -> None:
    environments = team("Coded")
    seen, present, _ = played(environments, 30)
    codes = codes_of(seen)
    assert 0 < present.mean() < 1
    for t, row in np.argwhere(~present):
        first = row - row % 3
        others = [codes[t, each].tolist() for each in range(first, first + 3) if present[t, each]]
        assert codes[t, row].tolist() in others


def test_lengths_count_from_the_step_at_which_an_agent_comes() -> None:
    environments = team("Coded", 1)
    environments.reset(0)
    lengths = [environments.lengths.copy()]
    for _ in range(CODED_STEPS):
        environments.step(NONE[:3])
        lengths.append(environments.lengths.copy())
    assert [each.tolist() for each in np.array(lengths).T] == [
        list(range(13)),
        [0, 1, 2, 3, 4, 0, 0, 0, 1, 2, 3, 4, 5],
        [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2],
    ]


def test_all_agents_that_leave_on_one_step_end_the_episode() -> None:
    environments = team("Coded", 1)
    environments.reset(0)
    steps = [copied(environments.step(NONE[:3])) for _ in range(CODED_STEPS + 2)]
    (episode,) = steps[CODED_STEPS - 1].episodes
    assert (episode.length, episode.environment) == (CODED_STEPS, 0)
    assert not steps[CODED_STEPS].valid.any()
    assert steps[CODED_STEPS + 1].valid.tolist() == [True, True, False]
    assert all(not step.episodes for step in steps[: CODED_STEPS - 1])


def test_the_return_of_an_episode_is_the_sum_of_its_agents_returns() -> None:
    environments = team("Coded", 1)
    environments.reset(0)
    rewards = np.zeros(3)
    for _ in range(CODED_STEPS):
        step = environments.step(NONE[:3])
        rewards += step.rewards
    (episode,) = step.episodes
    assert episode.agent_returns == pytest.approx(tuple(rewards))
    assert episode.episode_return == pytest.approx(rewards.sum())


def test_a_limit_truncates_all_agents() -> None:
    environments = team("Targets", 1, EnvironmentArguments(keywords={"max_episode_steps": 3}))
    assert environments.spec.max_episode_steps == 3
    environments.reset(0)
    steps = [copied(environments.step(NONE[:3])) for _ in range(5)]
    assert [step.truncated.all() for step in steps] == [False, False, True, False, False]
    assert [step.valid.all() for step in steps] == [True, True, True, False, True]
    assert [each.length for step in steps for each in step.episodes] == [3]


def test_the_same_seed_gives_the_same_steps() -> None:
    one, other, third = (played(team("Targets"), 25)[0] for _ in range(3))
    np.testing.assert_array_equal(one, other)
    environments = team("Targets")
    assert not np.array_equal(environments.reset(4), third[0])


def test_observations_name_the_agent_if_the_run_asks_for_it() -> None:
    environments = team("OwnNumber", arguments=ONE_HOT)
    assert environments.spec.observations.shape == (7,)
    assert environments.spec.indicators == (0, 3)
    np.testing.assert_array_equal(environments.reset(0)[:, :3], np.tile(np.eye(3), (2, 1)))
    assert environments.spec.environment_arguments == ONE_HOT
    assert EnvironmentArguments.from_text(ONE_HOT.to_text()) == ONE_HOT


@pytest.mark.parametrize("name", ["Masked", "MaskedByInfo"])
@pytest.mark.parametrize("arguments", [PLAIN, ONE_HOT], ids=["none", "one-hot"])
def test_each_agent_has_its_own_mask(name: str, arguments: EnvironmentArguments) -> None:
    environments, rng = team(name, arguments=arguments), np.random.default_rng(0)
    spec = environments.spec
    assert spec.mask is not None
    observations = environments.reset(0)
    masks = set()
    for _ in range(40):
        allowed = views(spec.leaves, observations)["action_mask"]
        masks |= {tuple(each) for each in allowed.tolist()}
        # The environment refuses an action that its mask forbids.
        step = environments.step(random_actions(spec, observations, rng))
        assert not step.faults
        observations = step.observations
    assert {sum(mask) for mask in masks} == {2, 4}


def test_continuous_actions_reach_their_agents() -> None:
    environments = team("ContinuousTargets")
    observations = environments.reset(0)
    step = environments.step(observations.astype(np.float32))
    assert (step.rewards[step.valid] == 1.0).all()


@pytest.mark.parametrize(("action", "restarted"), [(2, True), (3, False)])
def test_a_failure_of_one_agent_is_a_fault_of_its_environment_only(action: int, restarted: bool) -> None:
    environments = team("Failing")
    environments.reset(0)
    environments.step(NONE)
    wrong = NONE.copy()
    wrong[4] = action
    step = environments.step(wrong)
    assert [(fault.environment, fault.restarted) for fault in step.faults] == [(1, restarted)]
    assert step.valid.tolist() == [True] * 3 + [False] * 3
    assert (step.rewards == step.valid).all()
    assert environments.lengths.tolist() == [2, 2, 2, 0, 0, 0]
    assert environments.step(NONE).valid.all()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("OtherSpaces", r"observations Box\(.*\(4,\).*\) of red and Box\(.*\(6,\).*\) of blue; pad them"),
        ("OtherActions", r"actions Discrete\(4\) of red and Discrete\(5\) of blue; pad them"),
        ("Turns", r"act in turns \(AEC\).*pettingzoo.utils.aec_to_parallel"),
    ],
)
def test_agents_that_cannot_share_a_policy_are_refused_in_one_line(name: str, text: str) -> None:
    with pytest.raises(UserError, match=text) as found:
        team(name)
    assert "\n" not in str(found.value)


def test_another_agent_in_a_later_episode_ends_the_actor() -> None:
    environments = team("Changing")
    environments.reset(0)
    for _ in range(10):
        environments.step(NONE)
    with pytest.raises(ActorQError, match=r"possible_agents were \['red', 'green', 'blue'\] and are .*'yellow'"):
        environments.step(NONE)


def test_a_missing_reward_names_its_agent() -> None:
    environments = team("Silent")
    environments.reset(0)
    for _ in range(4):
        assert len(environments.step(NONE).faults) == 2
    with pytest.raises(UserError, match="rewards of each agent that takes part, got none of 'green'"):
        environments.step(NONE)


@pytest.mark.parametrize("environment_id", ["CartPole-v1", "team_environments:Alone"])
def test_an_identity_needs_several_agents(environment_id: str) -> None:
    with pytest.raises(UserError, match=r"agents\.identity one-hot: expected an environment with several agents"):
        make_environments(environment_id, 1, arguments=ONE_HOT)


def test_wrappers_are_refused() -> None:
    wrapped = EnvironmentArguments(wrappers=(("gymnasium.wrappers:ClipReward", {}),))
    with pytest.raises(UserError, match="wrappers need a Gymnasium environment"):
        team("Targets", arguments=wrapped)


def test_a_trial_tells_the_returns_of_the_team() -> None:
    environments = team("Targets", 1)
    first_step(environments)
    figures = play(environments, 55, 60.0, lambda: None)
    assert figures["repeats"]
    assert figures["lengths"] == [10] * 5
    assert figures["truncated"] == 5
    assert figures["faults"] == {}


def test_a_picture_and_the_speed_of_a_video_come_from_the_environment() -> None:
    environments = make_environments("team_environments:Targets", 1, rendered=True)
    environments.reset(0)
    assert environments.render(0).shape == (5, 7, 3)
    assert environments.steps_per_second == 10


@pytest.mark.skipif(not HAS_PETTINGZOO, reason="needs the extra pettingzoo")
@pytest.mark.parametrize("name", ["mpe2/simple_spread_v3", "mpe2/simple_line_v1"])
def test_an_environment_of_pettingzoo_is_made_by_its_id(name: str) -> None:
    environments = make_environments(f"pettingzoo/{name}", 2, arguments=EnvironmentArguments({"max_cycles": 5}))
    environments.reset(0)
    agents = environments.spec.agent_count
    rng = np.random.default_rng(0)
    observations = environments.reset(0)
    episodes: list[Episode] = []
    for _ in range(12):
        step = environments.step(random_actions(environments.spec, observations, rng))
        observations, episodes = step.observations, [*episodes, *step.episodes]
    assert [each.length for each in episodes] == [5] * 4
    assert all(len(each.agent_returns) == agents for each in episodes)


@pytest.mark.skipif(not HAS_PETTINGZOO, reason="needs the extra pettingzoo")
def test_agents_of_two_kinds_are_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"of adversary_0 and .* of agent_0; pad them"):
        make_environments("pettingzoo/mpe2/simple_adversary_v3", 1)


@pytest.mark.parametrize("name", ["mpe2", "os/path", "mpe2/simple.spread", "nothing/here_v0"])
def test_an_unknown_family_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(UserError, match="give pettingzoo/FAMILY/NAME with a family of"):
        make_environments(f"pettingzoo/{name}", 1)


@pytest.mark.skipif(not HAS_PETTINGZOO, reason="needs the extra pettingzoo")
def test_an_unknown_name_is_answered_with_those_of_the_family() -> None:
    with pytest.raises(UserError, match=r"the family mpe2 has .*simple_spread_v3"):
        make_environments("pettingzoo/mpe2/simple_spread_v99", 1)


@pytest.mark.skipif(not HAS_PETTINGZOO, reason="needs the extra pettingzoo")
def test_an_environment_with_turns_works_as_its_error_says() -> None:
    with pytest.raises(UserError, match=r"pettingzoo\.utils\.aec_to_parallel"):
        make_environments("team_environments:in_turns", 1)
    environments = make_environments("team_environments:no_longer_in_turns", 2)
    environments.reset(0)
    assert environments.step(NONE).valid.all()
