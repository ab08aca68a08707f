"""Values of environments with several agents: counts of steps, checks of segments, and returns of agents."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actorq.config.run_config import RunConfig
from actorq.config.segments import most_environments
from actorq.config.unread import given_in_vain
from actorq.domain.columns import PRESENT, columns_of, own_columns
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import Exploration
from actorq.domain.trajectory import Episode, Evaluation, PolicySpan, Segment
from actorq.errors import InvalidInputError
from tests.builders.segments import changed, without

ALONE = EnvironmentSpec("Team-v0", ArraySpec((4,), "float32"), ArraySpec((), "int64"), (2,))
TEAM = replace(ALONE, agents=("red", "green", "blue"))
# Three steps of two environments. Green of the first is absent at the second step, and the second environment resets.
VALID = np.array([[1, 1, 1, 1, 1, 1], [1, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]], np.bool_)


def segment(**changes: Any) -> Segment:
    shape = VALID.shape
    columns: dict[str, Any] = {
        "observations": np.zeros((4, 6, 4), np.float32),
        "actions": np.ones(shape, np.int64),
        "rewards": np.ones(shape, np.float32),
        "terminated": np.zeros(shape, np.bool_),
        "truncated": np.zeros(shape, np.bool_),
        "valid": VALID,
        "ages": np.zeros(6, np.uint8),
        PRESENT: np.ones(shape, np.bool_),
    }
    return changed(Segment(1, columns, (PolicySpan(0, 4, "int8"),)), **changes)


def test_only_environments_with_several_agents_have_the_column() -> None:
    assert [each.name for each in own_columns(TEAM)] == [PRESENT]
    assert own_columns(ALONE) == ()
    assert [each.name for each in columns_of(TEAM, ("state_4",))][-2:] == [PRESENT, "state_4"]
    with pytest.raises(InvalidInputError, match=r"columns must be .*present"):
        without(segment(), PRESENT).check(TEAM)


def test_the_agents_of_an_environment_take_a_step_together() -> None:
    sound = segment()
    sound.check(TEAM)
    assert sound.transitions == 14
    assert sound.environment_steps(3) == 5
    assert sound.environment_steps(3, first=1, stop=2) == 1
    assert sound.environment_steps(1) == 14


def test_a_step_of_an_absent_agent_is_refused() -> None:
    present = VALID.copy()
    segment(present=present).check(TEAM)
    present[2, 4] = False
    with pytest.raises(InvalidInputError, match="agent is absent"):
        segment(present=present).check(TEAM)


def test_rows_that_are_no_whole_environments_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="a multiple of 4 rows, one for each agent, got 6"):
        segment().check(replace(TEAM, agents=("a", "b", "c", "d")))


@pytest.mark.parametrize(
    ("episode", "text"),
    [
        (Episode(3.0, 4, 2, agent_returns=(1.0, 1.0, 1.0)), "environments below 2"),
        (Episode(3.0, 4, 1, agent_returns=(1.0, 2.0)), "each of 3 agents, got 2"),
        (Episode(3.0, 4, 1), "each of 3 agents, got 0"),
    ],
)
def test_an_episode_belongs_to_an_environment_and_has_all_returns(episode: Episode, text: str) -> None:
    segment(episodes=(Episode(3.0, 4, 1, agent_returns=(1.0, 1.0, 1.0)),)).check(TEAM)
    with pytest.raises(InvalidInputError, match=text):
        segment(episodes=(episode,)).check(TEAM)


def test_an_evaluation_has_the_mean_return_of_each_agent() -> None:
    evaluation = Evaluation(1, 2, 3, "int8", (6.0, 12.0), (10, 10), 1.0, (), TEAM.agents, (1, 2, 3, 3, 4, 5))
    assert evaluation.mean_return == 9.0
    assert evaluation.mean_agent_returns == {"red": 2.0, "green": 3.0, "blue": 4.0}
    assert replace(evaluation, agents=(), agent_returns=()).mean_agent_returns == {}


def test_the_agents_of_an_environment_share_its_rate_of_exploration() -> None:
    exploration = Exploration((0.5, 0.25), (0.1, 0.2))
    assert exploration.by_agent(1) is exploration
    assert exploration.by_agent(2).epsilons == (0.5, 0.5, 0.25, 0.25)
    assert exploration.by_agent(2).noise == (0.1, 0.1, 0.2, 0.2)


def test_agents_share_the_bytes_of_a_message() -> None:
    assert most_environments(TEAM) == pytest.approx(most_environments(ALONE) / 3, rel=0.05)


def test_a_rollout_of_several_agents_needs_more_rows() -> None:
    config = RunConfig.model_validate({"algorithm": "ppo", "ppo": {"rollout_size": 1024}})
    capacity = config.queue.waiting_rows(config.actor.segment_length, config.environments_per_actor, 1024, 1)
    tight = config.model_copy(update={"replay": config.replay.model_copy(update={"capacity": 2 * capacity})})
    tight.check_rollouts(1024, 64, agents=2)
    with pytest.raises(ValueError, match=f"replay.capacity must be at least {3 * capacity} rows"):
        tight.check_rollouts(1024, 64, agents=3)


def test_the_identity_is_a_part_of_the_environment() -> None:
    config = RunConfig.model_validate({"agents": {"identity": "one-hot"}})
    assert config.environment_arguments.agent_identity == "one-hot"
    assert config.fixed["agents.identity"] == "one-hot"
    given = {"agents": {"identity": "one-hot"}}
    assert given_in_vain(given, config, ALONE) == {"agents": "the environment has one agent"}
    assert given_in_vain(given, config, TEAM) == {}


def test_the_agents_are_a_part_of_the_spec() -> None:
    assert EnvironmentSpec.from_json(TEAM.to_json()) == TEAM
    assert "agents" in TEAM.differences(replace(TEAM, agents=("red", "green", "black")))
    assert TEAM.agents_text == "3: red, green, blue"
    many = replace(TEAM, agents=tuple(f"agent_{number}" for number in range(200)))
    assert len(many.agents_text) <= 100
