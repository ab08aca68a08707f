"""Critics that see the whole team: the observations of all agents, or the state. Policies see their own agent's."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from team_environments import CODED_STEPS, codes_of, life_of

from actor_service.environments import Environments, make_environments
from actorq.domain.environments import AgentCritic, EnvironmentArguments
from actorq.domain.leaves import Leaf, views
from actorq.errors import UserError

OWN = Leaf("vector", "numbers", (4,), "float32")
NONE: NDArray[np.int64] = np.zeros(6, np.int64)


def team(name: str, critic: AgentCritic, evaluated: bool = False, **changed: Any) -> Environments:
    arguments = EnvironmentArguments(agent_critic=critic, **changed)
    return make_environments(f"team_environments:{name}", 2, arguments=arguments, evaluated=evaluated)


def critic_vector(size: int) -> Leaf:
    return Leaf("critic_vector", "numbers", (size,), "float32", critic=True)


def test_a_joint_critic_sees_all_agents_and_zeros_for_an_absent_one() -> None:
    environments = team("Coded", "joint")
    assert environments.spec.leaves == (OWN, critic_vector(3 * 4 + 3))
    seen = [environments.reset(3).copy()]
    present = [environments.present.copy()]
    for _ in range(3 * (CODED_STEPS + 1)):
        seen.append(environments.step(NONE).observations.copy())
        present.append(environments.present.copy())
    found = views(environments.spec.leaves, np.array(seen))
    absent = 0
    for t, row in np.ndindex(len(seen), environments.rows):
        first, others = row - row % 3, found["critic_vector"][t, row]
        joined, flags = others[:12].reshape(3, 4), others[12:]
        if not present[t][row]:
            absent += 1
            continue
        np.testing.assert_array_equal(found["vector"][t, row], joined[row % 3])
        np.testing.assert_array_equal(flags, present[t][first : first + 3])
        for agent in range(3):
            if flags[agent]:
                assert codes_of(joined[agent])[0] == agent
                assert codes_of(joined[agent])[1:].tolist() == codes_of(joined[row % 3])[1:].tolist()
            else:
                assert not joined[agent].any()
    assert absent
    # Bits are not normalized, and belong to the vector of critics.
    assert environments.spec.indicators == (4 + 12, 4 + 15)


def test_an_agent_that_leaves_sees_its_team_once_more() -> None:
    environments = team("Coded", "joint")
    environments.reset(0)
    for _ in range(4):
        taken = environments.step(NONE)
    # Green has left at the end of step 3, with an observation of its own.
    assert life_of(1, 3) is not None
    assert life_of(1, 4) is None
    assert taken.terminated[1]
    flags = views(environments.spec.leaves, taken.observations)["critic_vector"][:3, 12:]
    np.testing.assert_array_equal(flags, [[1, 1, 1]] * 3)


@pytest.mark.parametrize("name", ["Targets", "WithState"])
def test_an_evaluated_environment_needs_no_state_and_shows_only_the_policys_parts(name: str) -> None:
    learned, evaluated = team("WithState", "state"), team(name, "state", evaluated=True)
    assert evaluated.spec.leaves == (OWN,) == learned.spec.for_policy.leaves
    np.testing.assert_array_equal(
        views((OWN,), evaluated.reset(5))["vector"], views(learned.spec.leaves, learned.reset(5))["vector"]
    )


def test_a_state_without_a_named_space_is_a_vector_of_critics() -> None:
    environments = team("WithState", "state")
    assert environments.spec.leaves == (OWN, critic_vector(3))
    seen = views(environments.spec.leaves, environments.reset(1))
    targets = seen["vector"].argmax(1).reshape(2, 3)
    np.testing.assert_array_equal(seen["critic_vector"].reshape(2, 3, 3), np.repeat(targets[:, None], 3, axis=1))


def test_a_picture_of_the_state_is_an_image_of_critics() -> None:
    environments = team("WithPicture", "state")
    assert environments.spec.leaves == (OWN, Leaf("team", "image", (8, 9, 3), "uint8", critic=True))
    environments.reset(0)
    assert (views(environments.spec.leaves, environments.step(NONE).observations)["team"] == 1).all()


def test_identity_and_masks_stay_with_the_policy() -> None:
    environments = team("Masked", "joint", agent_identity="one-hot")
    assert [(leaf.name, leaf.shape, leaf.critic) for leaf in environments.spec.leaves] == [
        ("vector", (5,), False),
        ("critic_vector", (3 * 2 + 3,), True),
        ("action_mask", (4,), False),
    ]
    np.testing.assert_array_equal(
        views(environments.spec.leaves, environments.reset(0))["vector"][:, :3], np.tile(np.eye(3), (2, 1))
    )


def test_the_arguments_survive_their_text() -> None:
    arguments = EnvironmentArguments(agent_critic="joint", critic_leaves=("a/b",))
    assert EnvironmentArguments.from_text(arguments.to_text()) == arguments
    assert "agent_critic" not in EnvironmentArguments({"a": 1}).to_text()


@pytest.mark.parametrize(
    ("environment_id", "critic", "text"),
    [
        (
            "team_environments:Targets",
            "state",
            r"critic state needs an environment whose state\(\) works.*joint",
        ),
        ("team_environments:Pictures", "joint", r"joint needs observations of numbers and categories, got .*uint8"),
        ("team_environments:Alone", "joint", r"agents\.critic joint: expected an environment with several agents"),
        ("CartPole-v1", "state", r"agents\.critic state: expected an environment with several agents"),
        ("team_environments:NamedTeam", "joint", "agents.critic adds the key 'team' to observations"),
    ],
)
def test_a_team_that_critics_cannot_see_is_refused_in_one_line(
    environment_id: str, critic: AgentCritic, text: str
) -> None:
    with pytest.raises(UserError, match=text) as found:
        make_environments(environment_id, 1, arguments=EnvironmentArguments(agent_critic=critic))
    assert "\n" not in str(found.value)
