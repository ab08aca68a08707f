"""Groups of agents: each observation has the bits of its agent's group."""

from typing import Any

import numpy as np
import pytest
from team_environments import AGENTS, SHARED, Roles

from actor_service.environments import Environments, make_environments
from actorq.domain.environments import EnvironmentArguments, Group
from actorq.domain.leaves import VECTOR, views
from actorq.errors import UserError
from actorq.wire.trajectories import environment_from_proto, environment_to_proto

GROUPS = (("pair", ("blue", "green")), ("solo", ("red",)))


def team(name: str, groups: Any = GROUPS, count: int = 2, **arguments: Any) -> Environments:
    made = EnvironmentArguments(agent_groups=groups, **arguments)
    return make_environments(f"team_environments:{name}", count, arguments=made)


def test_each_row_has_the_bit_of_its_agents_group() -> None:
    environments = team("Targets")
    spec = environments.spec
    # The agents of a group are in the order of their rows.
    assert spec.groups == (Group("pair", ("green", "blue"), 0), Group("solo", ("red",), 1))
    assert (spec.first_bit, spec.indicators, spec.observations.shape) == (0, (0, 2), (6,))
    assert environment_from_proto(environment_to_proto(spec)) == spec
    rows = environments.reset(1)
    expected = np.tile([[0, 1], [1, 0], [1, 0]], (2, 1))
    assert np.array_equal(rows[:, :2], expected)
    assert (rows[:, 2:].sum(axis=1) == 1).all()
    for _ in range(12):
        step = environments.step(np.zeros(6, np.int64))
        # An absent agent's row repeats the observation of another one.
        present = environments.present
        assert np.array_equal(step.observations[present, :2], expected[present])


@pytest.mark.parametrize(("identity", "first"), [("none", 0), ("one-hot", 3)])
def test_the_bits_and_the_identity_are_parts_of_their_own(identity: Any, first: int) -> None:
    environments = team("Targets", agent_identity=identity)
    assert [group.bit for group in environments.spec.groups] == [first, first + 1]
    rows = environments.reset(1)
    assert np.array_equal(rows[:3, first : first + 2], [[0, 1], [1, 0], [1, 0]])
    if first:
        assert np.array_equal(rows[:3, :3], np.eye(3))
    without = environments.spec.without_groups
    assert without == team("Targets", (), agent_identity=identity).spec


def test_masks_and_critics_keep_their_own_parts() -> None:
    environments = team("Masked", agent_critic="joint")
    spec = environments.spec
    assert [leaf.name for leaf in spec.leaves] == ["vector", "critic_vector", "action_mask"]
    assert [group.bit for group in spec.groups] == [0, 1]
    rows = views(spec.leaves, environments.reset(1))
    assert np.array_equal(rows[VECTOR][:3, :2], [[0, 1], [1, 0], [1, 0]])
    assert spec.for_policy.without_groups.leaves == team("Masked", ()).spec.for_policy.leaves


def test_evaluated_environments_lack_only_the_critics_part() -> None:
    made = EnvironmentArguments(agent_groups=GROUPS, agent_critic="joint")
    environments = make_environments("team_environments:Targets", 1, arguments=made, evaluated=True)
    assert environments.spec.groups == team("Targets", agent_critic="joint").spec.groups
    rows = views(environments.spec.leaves, environments.reset(1))
    assert np.array_equal(rows[VECTOR][:, :2], [[0, 1], [1, 0], [1, 0]])


def test_a_shared_policy_cannot_reach_the_best_return_of_roles() -> None:
    # The reward is linear in a policy's probabilities, so the best policy is deterministic. Observations are equal.
    environment = Roles()
    environment.reset(seed=3)
    for _ in range(5):
        rewards = [sum(environment.reward(agent, action) for agent in AGENTS) for action in range(4)]
        assert max(rewards) * environment.steps_of_episode == SHARED
        seen = {environment.observation(agent).tobytes() for agent in AGENTS}
        assert len(seen) == 1
        environment.begin()


@pytest.mark.parametrize(
    ("name", "groups", "arguments", "text"),
    [
        (
            "Targets",
            (("a", ("red",)), ("b", ("green",))),
            {},
            r"expected each agent of .* in a group, got none with blue",
        ),
        ("Targets", (("a", ("red", "pink")), ("b", AGENTS[1:])), {}, r"policies.a: expected agents of .*got pink"),
        ("NamedGroup", GROUPS, {}, r"policies adds the key 'group' to observations, .*leave policies out"),
        ("Pictures", GROUPS, {}, "policies: groups need observations that are one vector of numbers"),
        ("WithPicture", GROUPS, {"agent_critic": "state"}, "policies: groups need observations that are one vector"),
        ("Alone", GROUPS, {}, r"policies: expected an environment with several agents, got .*Alone, which has one"),
    ],
)
def test_a_mistake_is_one_line(name: str, groups: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text) as error:
        team(name, groups, **arguments)
    assert "\n" not in str(error.value)
