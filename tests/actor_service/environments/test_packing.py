"""Observations of several arrays and masks at the environment's door."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from actor_service.environments.failures import MisfitError
from actor_service.environments.spaces.actions import JointActions, with_one_action
from actor_service.environments.spaces.packing import PackedObservations, Source, mask_source, needs_packing
from actorq.domain.leaves import views
from actorq.errors import UserError

IMAGE = spaces.Box(0, 255, (4, 4, 1), np.uint8)
VECTOR = spaces.Box(-1.0, 1.0, (2,), np.float32)
BOTH = spaces.Dict({"image": IMAGE, "arm": VECTOR, "way": spaces.Discrete(3, start=1)})


class Told(gymnasium.Env[Any, Any]):
    """Returns given observations and records the actions."""

    def __init__(self, observations: spaces.Space[Any], actions: spaces.Space[Any] | None = None) -> None:
        self.observation_space, self.action_space = observations, actions or spaces.Discrete(3)
        self.next: Any = observations.sample()
        self.info: dict[str, Any] = {}
        self.ends = False
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.next, self.info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken.append(action)
        return self.next, 0.0, self.ends, False, self.info


class WithMethod(Told):
    """Tells its mask by sb3-contrib's method."""

    def action_masks(self) -> NDArray[np.int8]:
        return np.array([0, 1, 1], np.int8)


def packed(environment: Told, source: Source = "", sizes: tuple[int, ...] = (3,), combined: bool = True) -> Any:
    return PackedObservations(environment, source, sizes, combined)


def told(environment: PackedObservations) -> dict[str, NDArray[Any]]:
    observation, _ = environment.reset()
    return views(environment.leaves, observation.copy())


def test_images_are_arrays_of_their_own_and_all_else_is_one_vector() -> None:
    environment = Told(BOTH)
    environment.next = {"image": np.full((4, 4, 1), 7, np.uint8), "arm": np.array([0.5, -1], np.float32), "way": 3}
    found = told(packed(environment))
    assert list(found) == ["vector", "image"]
    np.testing.assert_array_equal(found["image"], environment.next["image"])
    # In the order of the keys; a category is one-hot.
    np.testing.assert_array_equal(found["vector"], [0.5, -1, 0, 0, 1])
    assert packed(environment).indicators == (2, 5)


def test_a_large_category_begins_at_0() -> None:
    environment = Told(spaces.Discrete(100, start=-5))
    environment.next = 94
    found = told(packed(environment))
    assert found["observation"].tolist() == 99
    environment.next = 95
    with pytest.raises(MisfitError, match="observation"):
        packed(environment).reset()


def test_an_image_without_an_axis_for_channels_gets_one() -> None:
    environment = Told(spaces.Dict({"a": spaces.Box(0, 255, (4, 5), np.uint8), "b": VECTOR}))
    assert [leaf.shape for leaf in packed(environment).leaves] == [(2,), (4, 5, 1)]


@pytest.mark.parametrize(
    ("space", "source", "needed"),
    [
        (BOTH, "", True),
        (VECTOR, "info", True),
        (IMAGE, "method", True),
        (spaces.Dict({"only": IMAGE}), "", True),
        (spaces.Discrete(64), "", True),
        (spaces.Discrete(63), "", False),
        (VECTOR, "", False),
        (IMAGE, "", False),
        (spaces.Dict({"a": VECTOR, "b": spaces.Discrete(4)}), "", False),
        (spaces.Dict({"a": IMAGE, "b": spaces.Text(4)}), "", False),
        (spaces.Tuple([IMAGE] * 65), "", False),
    ],
)
def test_images_with_other_parts_large_categories_and_masks_need_packing(
    space: spaces.Space[Any], source: Source, needed: bool
) -> None:
    assert needs_packing(space, source) == needed


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"image": np.zeros((4, 5, 1), np.uint8)}, "image"),
        ({"image": np.zeros((4, 4, 1), np.float32)}, "image"),
        ({"arm": np.zeros(3, np.float32)}, "arm"),
        ({"arm": np.array([0, np.nan], np.float32)}, "arm: NaN"),
        ({"arm": "left"}, "arm"),
        ({"way": 9}, "way"),
    ],
)
def test_a_part_that_does_not_fit_its_space_is_named(change: dict[str, Any], fact: str) -> None:
    environment = Told(BOTH)
    environment.next = {**BOTH.sample(), **change}
    with pytest.raises(MisfitError, match=fact):
        packed(environment).reset()


def test_a_forgotten_key_is_named() -> None:
    environment = Told(spaces.Dict({"deep": BOTH}))
    environment.next = {"deep": {key: value for key, value in BOTH.sample().items() if key != "arm"}}
    with pytest.raises(MisfitError, match="deep/arm"):
        packed(environment).reset()


@pytest.mark.parametrize(
    ("space", "fact"),
    [
        (spaces.Dict({"": IMAGE, "b": VECTOR}), "empty"),
        (spaces.Dict({"vector": IMAGE, "b": VECTOR}), "vector"),
        (spaces.Dict({1: IMAGE, "1": IMAGE}), "two parts .*1"),  # type: ignore[dict-item]
        (spaces.Tuple([IMAGE] * 65), "64"),
        (spaces.Dict({"a": IMAGE, "b": spaces.Text(4)}), "b: "),
    ],
)
def test_arrays_that_have_no_name_of_their_own_are_refused(space: spaces.Space[Any], fact: str) -> None:
    with pytest.raises(UserError, match=fact):
        packed(Told(space))


def test_a_key_with_a_slash_is_no_path() -> None:
    environment = Told(spaces.Dict({"../x": IMAGE, "b": VECTOR}))
    assert packed(environment).leaves[1].name == "..%2Fx"
    told(packed(environment))


# Masks


def test_a_mask_is_found_in_all_three_places() -> None:
    asked: list[int] = []
    observed = Told(spaces.Dict({"observation": VECTOR, "action_mask": spaces.MultiBinary(3)}))
    informed = Told(VECTOR)
    informed.info = {"action_mask": [1, 0, 0]}
    sources = [
        mask_source(each, (3,), lambda: asked.append(1))
        for each in (observed, informed, WithMethod(VECTOR), Told(VECTOR))
    ]
    assert sources == ["observation", "info", "method", ""]
    # The key and the lack of discrete actions need no reset.
    assert mask_source(informed, (), lambda: asked.append(1)) == ""
    assert len(asked) == 3


def test_the_mask_of_each_place_is_in_the_observation() -> None:
    observed = Told(spaces.Dict({"observation": VECTOR, "action_mask": spaces.MultiBinary(3)}))
    observed.next = {"observation": np.zeros(2, np.float32), "action_mask": np.array([0, 0, 1], np.int8)}
    informed = Told(VECTOR)
    informed.info = {"action_mask": np.array([True, False, True])}
    sources: tuple[tuple[Told, Source], ...] = (
        (observed, "observation"),
        (informed, "info"),
        (WithMethod(VECTOR), "method"),
    )
    masks = [told(packed(*each))["action_mask"].tolist() for each in sources]
    assert masks == [[False, False, True], [True, False, True], [False, True, True]]
    # The key is no part of the vector.
    assert [leaf.name for leaf in packed(observed, "observation").leaves] == ["vector", "action_mask"]


def test_a_mask_of_parts_becomes_one_of_their_combinations() -> None:
    environment = Told(VECTOR)
    environment.info = {"action_mask": [1, 0, 1, 1, 0]}
    combined = told(packed(environment, "info", (2, 3)))["action_mask"]
    assert combined.reshape(2, 3).tolist() == [[True, True, False], [False, False, False]]
    apart = told(packed(environment, "info", (2, 3), combined=False))["action_mask"]
    assert apart.tolist() == [True, False, True, True, False]


@pytest.mark.parametrize(
    ("mask", "combined", "fact"),
    [
        ([0, 0, 0, 0, 0], True, "at least one"),
        ([1, 1, 0, 0, 0], False, "at least one"),
        ([1, 1, 1, 1], False, "got 4"),
        (None, False, "info .*action_mask"),
    ],
)
def test_a_mask_that_does_not_fit_is_a_fault_of_the_environment(mask: Any, combined: bool, fact: str) -> None:
    environment = Told(VECTOR)
    environment.info = {} if mask is None else {"action_mask": mask}
    with pytest.raises(MisfitError, match=fact):
        packed(environment, "info", (2, 3), combined).reset()


def test_a_mask_after_an_end_may_forbid_everything() -> None:
    environment = Told(VECTOR)
    environment.info = {"action_mask": [1, 1, 1, 1, 1]}
    door = packed(environment, "info", (2, 3), combined=False)
    door.reset()
    environment.info, environment.ends = {"action_mask": [0, 1, 0, 0, 0]}, True
    observation, *_ = door.step(np.zeros(2))
    assert views(door.leaves, observation)["action_mask"].tolist() == [False, True, True, True, True]
    environment.ends = False
    with pytest.raises(MisfitError, match="at least one"):
        door.step(np.zeros(2))


# Actions of several parts


def test_many_combinations_stay_parts() -> None:
    space = spaces.Dict({"a": spaces.MultiDiscrete([5, 6]), "b": spaces.Tuple((spaces.Discrete(7, start=2),))})
    environment = Told(VECTOR, space)
    joint = with_one_action(environment)
    assert isinstance(joint, JointActions)
    assert (joint.sizes, joint.combined) == ((5, 6, 7), False)
    joint.step(np.array([4, 0, 6]))
    taken = environment.taken[0]
    assert taken["a"].tolist() == [4, 0]
    assert taken["b"] == (8,)
    assert space.contains(taken)


def test_continuous_components_follow_the_choices() -> None:
    space = spaces.Dict({"arm": spaces.Box(-2.0, 3.0, (2, 1), np.float32), "grip": spaces.MultiBinary(2)})
    environment = Told(VECTOR, space)
    joint = with_one_action(environment)
    assert isinstance(joint, JointActions)
    assert (joint.sizes, joint.combined) == ((2, 2), False)
    joint.step(np.array([1, 0, -1.5, 2.5], np.float32))
    taken = environment.taken[0]
    assert taken["grip"].tolist() == [1, 0]
    assert taken["arm"].tolist() == [[-1.5], [2.5]]
    assert space.contains(taken)
