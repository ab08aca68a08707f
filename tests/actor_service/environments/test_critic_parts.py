"""Parts of an observation for critics: how environments pack them, leave them out, and refuse wrong paths."""

import re
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import onnx
import pytest
from gymnasium import spaces

from actor_service.environments import Environments, make_environments
from actor_service.environments.spaces.critics import CriticParts
from actor_service.environments.spaces.packing import PackedObservations
from actor_service.policies.policy import OnnxPolicy
from actorq.domain.environments import EnvironmentArguments
from actorq.domain.leaves import ACTION_MASK, CRITIC_VECTOR, VECTOR, views
from actorq.domain.policy import Policy
from actorq.errors import UserError
from tests.actor_service.actor_policies import linear_policy
from tests.actor_service.environments.test_packing import IMAGE, Told
from tests.actor_service.environments.test_packing import VECTOR as PAIR

NESTED = spaces.Dict(
    {
        "arm": PAIR,
        "camera": IMAGE,
        "robot": spaces.Dict({"mode": spaces.Discrete(3), "speed": PAIR, "view": IMAGE}),
        "a/b": spaces.MultiBinary(2),
    }
)
BONUS = "hidden_parts:Bonus"


def packed(space: spaces.Space[Any], *paths: str, left_out: bool = False) -> PackedObservations:
    environment = Told(space)
    environment.observation_space.seed(0)
    environment.next = space.sample()
    return PackedObservations(environment, "", (3,), True, CriticParts(paths, left_out))


def test_a_path_names_a_part_or_all_parts_below_it() -> None:
    for paths, critics in (
        (("robot",), {CRITIC_VECTOR, "robot/view"}),
        (("robot/speed", "camera"), {CRITIC_VECTOR, "camera"}),
        (("a%2Fb",), {CRITIC_VECTOR}),
        (("camera",), {"camera"}),
    ):
        leaves = packed(NESTED, *paths).leaves
        assert {leaf.name for leaf in leaves if leaf.critic} == critics


def test_numbers_for_critics_are_a_vector_of_their_own() -> None:
    environment = packed(NESTED, "robot")
    observation, _ = environment.reset()
    given: Any = environment.get_wrapper_attr("next")
    found = views(environment.leaves, observation)
    assert [leaf.name for leaf in environment.leaves][:2] == [VECTOR, CRITIC_VECTOR]
    np.testing.assert_array_equal(found[VECTOR], [*given["a/b"], *given["arm"]])
    one_hot = np.eye(3)[given["robot"]["mode"]]
    np.testing.assert_array_equal(found[CRITIC_VECTOR], np.array([*one_hot, *given["robot"]["speed"]], np.float32))
    np.testing.assert_array_equal(found["robot/view"], given["robot"]["view"])
    # Components of both vectors: the two bits, and the category behind the two numbers.
    assert environment.indicators == (0, 2, 4, 7)


def test_the_observations_of_evaluations_lack_the_parts() -> None:
    environment = packed(NESTED, "robot", left_out=True)
    assert [leaf.name for leaf in environment.leaves] == [VECTOR, "camera"]
    del environment.get_wrapper_attr("next")["robot"]
    environment.reset()


def made(environment: str, *paths: str, evaluated: bool = False) -> Environments:
    arguments = EnvironmentArguments(critic_leaves=paths)
    return make_environments(environment, 2, arguments=arguments, evaluated=evaluated)


def policy_of_the_bit() -> Policy:
    """Its outputs are the policy's vector, which has one number."""
    policy = linear_policy(np.ones((1, 2), np.float32), np.zeros(2, np.float32))
    model = onnx.load_from_string(policy.model)
    model.graph.input[0].name = model.graph.node[0].input[0] = "observations/vector"
    return replace(policy, model=model.SerializeToString())


def test_an_environment_without_the_parts_can_be_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = made(BONUS, "hidden").spec
    policy = policy_of_the_bit()
    for without in ("", "yes"):
        monkeypatch.setenv("WITHOUT_HIDDEN_PARTS", without)
        environments = made(BONUS, "hidden", evaluated=True)
        assert environments.spec.policy_observations.inputs == trained.policy_observations.inputs
        observations = environments.reset(0)
        assert environments.spec.observations == trained.for_policy.observations
        assert set(OnnxPolicy(policy, environments.spec.policy_observations, 2)(observations).ravel()) <= {-1.0, 1.0}
    with pytest.raises(UserError, match="expected parts of an observation"):
        made(BONUS, "hidden")


def test_a_vector_without_parts_can_be_evaluated() -> None:
    assert made("CartPole-v1", "hidden", evaluated=True).spec.leaves == ()


def test_a_policy_acts_without_the_parts() -> None:
    spec = made(BONUS, "hidden").spec
    policy = OnnxPolicy(policy_of_the_bit(), spec.policy_observations, 2)
    observations = made(BONUS, "hidden").reset(0).copy()
    before = policy(observations).copy()
    views(spec.leaves, observations)[CRITIC_VECTOR][...] = 1e6
    np.testing.assert_array_equal(policy(observations), before)


class Goals(Told):
    """Has goals."""

    def __init__(self) -> None:
        super().__init__(spaces.Dict(observation=PAIR, achieved_goal=PAIR, desired_goal=PAIR))

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -np.abs(achieved - desired).sum(-1)


class Masked(Told):
    """Has a mask among its observations."""

    def __init__(self) -> None:
        super().__init__(spaces.Dict({ACTION_MASK: spaces.MultiBinary(3), "arm": PAIR, "speed": PAIR}))
        self.next[ACTION_MASK][:] = 1


class Wide(Told):
    """Has parts that only critics see."""

    def __init__(self) -> None:
        super().__init__(NESTED)


HERE = __name__


@pytest.mark.parametrize(
    ("environment", "paths", "fact"),
    [
        (
            f"{HERE}:Wide",
            ("robot", "wheels"),
            "(a%2Fb, arm, camera, robot/mode, robot/speed, robot/view), got 'wheels'",
        ),
        (f"{HERE}:Wide", ("robot/speed/",), "got 'robot/speed/'"),
        (f"{HERE}:Wide", ("robot", "arm", "camera", "a%2Fb"), "at least one part for the policy"),
        (f"{HERE}:Masked", (ACTION_MASK,), "(arm, speed), got 'action_mask'"),
        (f"{HERE}:Masked", ("arm", "speed"), "at least one part for the policy"),
        (f"{HERE}:Goals", ("observation",), "has goals"),
        ("CartPole-v1", ("velocity",), "observations must be a Dict or Tuple"),
        ("dm_control/cartpole-swingup", ("velocity",), "need a Gymnasium or PettingZoo environment"),
        ("ALE/Pong-v5", ("velocity",), "need a Gymnasium or PettingZoo environment"),
    ],
)
def test_paths_that_do_not_fit_give_one_line(environment: str, paths: tuple[str, ...], fact: str) -> None:
    with pytest.raises(UserError, match=re.escape(fact)) as refused:
        made(environment, *paths)
    text = str(refused.value)
    assert "critic_leaves" in text
    assert "\n" not in text


def test_a_stack_within_a_part_is_numbers() -> None:
    def stacked(environment: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.FrameStackObservation(environment, 3)

    environment = stacked(Told(spaces.Dict({"arm": PAIR, "speed": PAIR})))
    leaves = PackedObservations(environment, "", (3,), True, CriticParts(("speed",))).leaves
    assert [(leaf.shape, leaf.critic) for leaf in leaves] == [((6,), False), ((6,), True)]
