"""Observations of several arrays: the position of each array, and the values that learners refuse."""

import json
from dataclasses import replace

import numpy as np
import pytest

from actorq.domain.leaves import Leaf, fault_of, places, views
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import PolicySpan, Segment
from actorq.errors import InvalidInputError
from tests.builders.structured import ALL, CATEGORY, IMAGE, NUMBERS, discrete, mask, mixed, random_observations

MASKED = discrete(*ALL, masked=True)


def test_each_array_has_its_own_bytes_aligned_to_eight() -> None:
    found = places(MASKED.leaves)
    assert [place.start % 8 for place in found.values()] == [0] * 5
    assert [place.stop - place.start for place in found.values()] == [12, 240, 50, 4, 5]
    taken = np.zeros(MASKED.observations.shape, np.int64)
    for place in found.values():
        taken[place] += 1
    assert taken.max() == 1


def test_values_written_to_a_view_change_the_bytes_of_its_array_only() -> None:
    packed = np.zeros((4, 2, *MASKED.observations.shape), np.uint8)
    for name, values in views(MASKED.leaves, packed).items():
        before = packed.copy()
        values[1, 0] = 1
        changed = np.argwhere(before != packed)
        assert (changed[:, :2] == [1, 0]).all()
        place = places(MASKED.leaves)[name]
        assert ((changed[:, 2] >= place.start) & (changed[:, 2] < place.stop)).all()


def test_a_policy_gets_all_stacked_images_and_the_newest_of_other_arrays() -> None:
    spec = replace(MASKED, frame_stack=3)
    stacks = random_observations(np.random.default_rng(0), replace(spec, frame_stack=1), 4, 3)
    seen = spec.policy_observations.split(stacks)
    assert {name: values.shape[1:] for name, values in seen.items()} == {
        name: each.shape for name, each in spec.policy_observations.inputs.items()
    }
    newest = views(spec.leaves, stacks[:, -1])
    np.testing.assert_array_equal(seen["observations/vector"], newest["vector"])
    np.testing.assert_array_equal(seen["mask"], newest["action_mask"])
    np.testing.assert_array_equal(seen["observations/camera/left"], views(spec.leaves, stacks)["camera/left"])


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("vector", (0, 1), np.nan),
        ("vector", (0, 1), 2e9),
        ("item", (0,), 100),
        ("item", (0,), -1),
        ("action_mask", (0, slice(None)), False),
    ],
)
def test_names_the_array_of_a_value_that_learners_refuse(name: str, place: tuple[int, ...], value: float) -> None:
    packed = random_observations(np.random.default_rng(0), MASKED, 2)
    assert fault_of(MASKED.leaves, packed) == ""
    views(MASKED.leaves, packed)[name][place] = value
    assert fault_of(MASKED.leaves, packed).startswith(f"{name}: ")


def test_a_flag_is_0_or_1() -> None:
    packed = random_observations(np.random.default_rng(0), MASKED, 2)
    packed[0, places(MASKED.leaves)["planes"].start] = 2
    assert fault_of(MASKED.leaves, packed).startswith("planes: ")


@pytest.mark.parametrize("spec", [MASKED, discrete(choices=(2, 3)), mixed(NUMBERS, IMAGE)])
def test_a_spec_survives_json(spec: EnvironmentSpec) -> None:
    assert EnvironmentSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_the_description_names_each_array() -> None:
    for leaf in (NUMBERS, IMAGE, CATEGORY):
        assert leaf.name in MASKED.observations_text
    assert "5 choices" in MASKED.observations_text


@pytest.mark.parametrize(
    "leaf",
    [
        Leaf("a", "image", (4, 4), "uint8"),
        Leaf("a", "image", (4, 4, 1), "float32"),
        Leaf("a", "numbers", (4, 4), "float32"),
        Leaf("a", "category", (), "int32"),
        Leaf("a", "numbers", (4,), "float32", 3),
        Leaf("a", "mask", (4,), "uint8"),
    ],
)
def test_a_leaf_must_fit_its_kind(leaf: Leaf) -> None:
    assert leaf.fault
    assert not any(each.fault for each in (*ALL, mask(3)))


def _segment(spec: EnvironmentSpec) -> Segment:
    rng, shape = np.random.default_rng(0), (4, 2)
    columns = {
        "observations": random_observations(rng, spec, 5, 2),
        "actions": np.zeros((*shape, *spec.actions.shape), spec.actions.dtype),
        "rewards": np.zeros(shape, np.float32),
        "terminated": np.zeros(shape, np.bool_),
        "truncated": np.zeros(shape, np.bool_),
        "valid": np.ones(shape, np.bool_),
        "ages": np.zeros(2, np.uint8),
    }
    return Segment(1, columns, (PolicySpan(0, 1, "int8"),))


def test_refuses_a_segment_with_nan_and_names_the_array() -> None:
    segment = _segment(MASKED)
    segment.check(MASKED)
    observations = segment.observations.copy()
    views(MASKED.leaves, observations)["vector"][2, 1, 0] = np.nan
    with pytest.raises(InvalidInputError, match="vector: nan"):
        segment.with_columns(observations=observations).check(MASKED)


@pytest.mark.parametrize(("part", "value"), [(0, 2), (1, -1), (1, 3)])
def test_refuses_a_segment_with_a_choice_out_of_range(part: int, value: int) -> None:
    spec = discrete(NUMBERS, choices=(2, 3))
    segment = _segment(spec)
    segment.check(spec)
    actions = segment.actions.copy()
    actions[1, 1, part] = value
    with pytest.raises(InvalidInputError, match=r"\[0, 2\) and \[0, 3\)"):
        segment.with_columns(actions=actions).check(spec)


def test_a_choice_in_a_mixed_action_is_a_whole_number() -> None:
    spec = mixed(NUMBERS)
    segment = _segment(spec)
    segment.check(spec)
    actions = segment.actions.copy()
    actions[1, 1, 0] = 0.5
    with pytest.raises(InvalidInputError, match=r"\[0, 2\)"):
        segment.with_columns(actions=actions).check(spec)
