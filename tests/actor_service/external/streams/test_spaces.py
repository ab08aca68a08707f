"""The spaces of simulators: which ones are accepted, and the form of their observations."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actor_service.external.streams.spaces import SimulatorSpaces
from actorq.domain.environments import NO_ARGUMENTS
from actorq.domain.leaves import Leaf, views
from actorq.domain.spaces import ArraySpec
from actorq.errors import ActorQError, InvalidInputError
from tests.actor_service.external.simulators import NAME, NUMBERS, SPEC, opening, step

CAMERA = Leaf("camera", "image", (8, 8, 3), "uint8")
ITEM = Leaf("item", "category", (), "int32", 100)
MASK = Leaf("legal", "mask", (5,), "bool")
JOINTS = Leaf("joints", "numbers", (3,), "int32")
BOX = ArraySpec((2,), "float32", (-1.0,), (1.0,))
HIDDEN = Leaf("mass", "numbers", (1,), "float32", critic=True)
UNUSED, USED = np.ones(2, np.bool_), np.zeros(2, np.bool_)


def spaces(**changed: Any) -> SimulatorSpaces:
    return SimulatorSpaces.of(opening(2, **changed), NAME, NO_ARGUMENTS)


def test_one_array_of_numbers_is_the_observation_itself() -> None:
    found = spaces()
    assert found.spec == SPEC
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(found.packed(step(values), 2, USED), values)


def test_one_image_is_the_observation_itself() -> None:
    assert spaces(observations=(CAMERA,)).spec.image is not None


def test_several_arrays_are_packed_with_all_numbers_first_and_the_mask_last() -> None:
    found = spaces(
        observations=(Leaf("speed", "numbers", (2,), "float32"), MASK, CAMERA, JOINTS, ITEM),
        actions=ArraySpec((2,), "int64"),
        sizes=(2, 3),
    )
    assert [(leaf.name, leaf.kind) for leaf in found.spec.leaves] == [
        ("vector", "numbers"),
        ("camera", "image"),
        ("item", "category"),
        ("action_mask", "mask"),
    ]
    image = np.random.default_rng(0).integers(255, size=(2, 8, 8, 3)).astype(np.uint8)
    legal = np.array([[1, 0, 0, 1, 1], [1, 1, 1, 0, 0]], np.bool_)
    speed, joints = np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 6, 7], [8, 9, 10]], np.int32)
    packed = found.packed(step(speed, legal, image, joints, np.array([7, 99], np.int32)), 2, USED)
    values = views(found.spec.leaves, packed)
    np.testing.assert_array_equal(values["vector"], [[1, 2, 5, 6, 7], [3, 4, 8, 9, 10]])
    np.testing.assert_array_equal(values["camera"], image)
    np.testing.assert_array_equal(values["item"], [7, 99])
    np.testing.assert_array_equal(values["action_mask"], legal)


def test_parts_for_critics_are_a_vector_of_their_own() -> None:
    found = spaces(observations=(Leaf("speed", "numbers", (2,), "float32"), HIDDEN, JOINTS))
    assert [(leaf.name, leaf.shape, leaf.critic) for leaf in found.spec.leaves] == [
        ("vector", (5,), False),
        ("critic_vector", (1,), True),
    ]
    speed, joints = np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 6, 7], [8, 9, 10]], np.int32)
    packed = found.packed(step(speed, np.array([[11], [12]], np.float32), joints), 2, USED)
    values = views(found.spec.leaves, packed)
    np.testing.assert_array_equal(values["vector"], [[1, 2, 5, 6, 7], [3, 4, 8, 9, 10]])
    np.testing.assert_array_equal(values["critic_vector"], [[11], [12]])


@pytest.mark.parametrize(
    ("actions", "sizes", "kinds"),
    [
        (ArraySpec((), "int64"), (3,), ("discrete",)),
        (ArraySpec((2,), "int64"), (3, 4), ("discrete",)),
        (BOX, (), ("continuous",)),
        (ArraySpec((3,), "float32", (0.0, -1.0, -1.0), (2.0, 1.0, 1.0)), (3,), ("discrete", "continuous")),
    ],
)
def test_all_kinds_of_actions_are_accepted(actions: ArraySpec, sizes: tuple[int, ...], kinds: tuple[str, ...]) -> None:
    assert spaces(actions=actions, sizes=sizes).spec.action_kinds == kinds


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"observations": ()}, "at least one array, got none"),
        ({"observations": (NUMBERS, CAMERA)}, "each of several arrays needs a name of its own.*got '', 'camera'"),
        ({"observations": (JOINTS, JOINTS)}, "a name of its own"),
        (
            {"observations": (Leaf("vector", "image", (8, 8, 3), "uint8"), JOINTS)},
            "than vector, critic_vector and action_mask",
        ),
        ({"observations": (MASK,), "sizes": (5,)}, "an array for the policy"),
        ({"observations": (HIDDEN,)}, "an array for the policy"),
        ({"observations": (JOINTS, replace(MASK, critic=True))}, "but the policy needs it"),
        ({"observations": (JOINTS, MASK)}, "a mask must have 2 choices, got .5."),
        ({"actions": ArraySpec((), "int64"), "sizes": ()}, "open.actions: expected int64.*got int64.. with 0 sizes"),
        ({"actions": ArraySpec((2,), "float32"), "sizes": ()}, "with 0 sizes, 0 low and 0 high"),
        ({"actions": ArraySpec((2,), "float32", (-1e10,), (1e10,)), "sizes": ()}, "from -1e.09 to 1e.09"),
        ({"actions": ArraySpec((2, 2), "float32", (-1.0,), (1.0,)), "sizes": ()}, "float32 of one axis"),
        ({"actions": ArraySpec((2,), "int32"), "sizes": (2, 2)}, "got int32"),
        ({"actions": ArraySpec((3,), "int64"), "sizes": (2, 2)}, "expected int64 of shape"),
        ({"observations": (Leaf("", "numbers", (300_000,), "float32"),)}, "make observations smaller"),
    ],
)
def test_spaces_that_no_policy_supports_are_refused(changed: dict[str, Any], error: str) -> None:
    with pytest.raises(ActorQError, match=error) as caught:
        spaces(**changed)
    assert "\n" not in str(caught.value)


def test_a_stream_with_more_environments_than_a_message_holds_is_refused() -> None:
    large = Leaf("", "numbers", (100_000,), "float32")
    with pytest.raises(InvalidInputError, match="holds the observations of 2 environments, got 3; open more streams"):
        SimulatorSpaces.of(opening(3, observations=(large,)), NAME, NO_ARGUMENTS)


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        ([], "expected 1 arrays as in `open`, got 0"),
        ([np.zeros((2, 4), np.float32)] * 2, "expected 1 arrays as in `open`, got 2"),
        ([np.zeros((2, 5), np.float32)], r"the array must be float32\[2, 4\], got float32\[2, 5\]"),
        ([np.zeros((1, 4), np.float32)], r"must be float32\[2, 4\], got float32\[1, 4\]"),
        ([np.zeros((2, 4))], r"must be float32\[2, 4\], got float64\[2, 4\]"),
        ([np.array([[0, 0, 0, 0], [0, np.nan, 0, 0]], np.float32)], "got nan in environment 1"),
        ([np.array([[2e9, 0, 0, 0], [0, 0, 0, 0]], np.float32)], r"to 1e\+09, got 2e\+09 in environment 0"),
    ],
)
def test_observations_that_do_not_fit_are_refused(arrays: list[Any], error: str) -> None:
    given = step(np.zeros((2, 4), np.float32))._replace(observations=tuple(arrays))
    with pytest.raises(InvalidInputError, match=error):
        spaces().packed(given, 2, USED)


def test_a_mask_without_a_choice_is_refused_unless_no_action_follows() -> None:
    found = spaces(observations=(JOINTS, MASK), actions=ArraySpec((2,), "int64"), sizes=(2, 3))
    legal = np.array([[1, 0, 1, 0, 0], [1, 1, 0, 0, 0]], np.bool_)
    given = step(np.zeros((2, 3), np.int32), legal)
    with pytest.raises(InvalidInputError, match="at least one choice of each part, got none in environment 1"):
        found.packed(given, 2, USED)
    packed = found.packed(given, 2, np.array([False, True]))
    np.testing.assert_array_equal(views(found.spec.leaves, packed)["action_mask"][1], [1, 1, 1, 1, 1])


def test_a_category_out_of_range_is_refused() -> None:
    found = spaces(observations=(JOINTS, ITEM))
    with pytest.raises(InvalidInputError, match="item: a category outside 0 to 99"):
        found.packed(step(np.zeros((2, 3), np.int32), np.array([0, 100], np.int32)), 2, UNUSED)
