"""Leaves that only critics see: what policies and critics see, and how a spec is written."""

from dataclasses import replace

import numpy as np
import pytest

from actorq.domain.environments import NO_ARGUMENTS, EnvironmentArguments
from actorq.domain.leaves import CRITIC_VECTOR, Leaf
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import InvalidInputError
from tests.builders.structured import CATEGORY, IMAGE, NUMBERS, critics, discrete, random_observations

HIDDEN = Leaf(CRITIC_VECTOR, "numbers", (2,), "float32", critic=True)
SPEC = discrete(NUMBERS, HIDDEN, critics(IMAGE), CATEGORY, masked=True)


def test_a_policy_has_no_inputs_for_them() -> None:
    assert [*SPEC.policy_observations.inputs] == ["observations/vector", "observations/item", "mask"]
    observations = random_observations(np.random.default_rng(0), SPEC, 3)
    assert SPEC.observations.split(observations).keys() == SPEC.observations.inputs.keys()
    assert [leaf.name for leaf in SPEC.encoded] == ["vector", "item"]


def test_critics_see_all_leaves_in_the_same_places() -> None:
    seen = SPEC.for_critics
    assert seen.observations.shape == SPEC.observations.shape
    assert [leaf.name for leaf in seen.encoded] == ["vector", CRITIC_VECTOR, "camera/left", "item"]
    assert seen.critic_leaves == ()


def test_without_them_critics_see_the_same_spec() -> None:
    plain = discrete(NUMBERS, IMAGE)
    assert plain.for_critics is plain
    assert plain.for_policy is plain


def test_an_exported_policy_has_only_its_own_leaves() -> None:
    spec = replace(SPEC, indicators=(1, 4)).for_policy
    assert spec.leaves == (NUMBERS, CATEGORY, SPEC.leaves[-1])
    assert spec.observations == discrete(NUMBERS, CATEGORY, masked=True).observations
    # Of the indicators, only those of the policy's numbers are left.
    assert spec.indicators == (1, 3)


def test_the_vector_of_critics_has_all_numbers() -> None:
    spec = replace(SPEC, indicators=(0, 1, 4, 5))
    assert spec.vector is not None
    assert spec.for_critics.vector is not None
    assert spec.vector.shape == (3,)
    assert spec.for_critics.vector.shape == (5,)
    assert spec.sees_number.tolist() == [True] * 3 + [False] * 2
    assert spec.is_indicator.tolist() == [True, False, False]
    assert spec.for_critics.is_indicator.tolist() == [True, False, False, False, True]
    only = discrete(critics(NUMBERS), IMAGE)
    assert only.vector is None
    assert only.for_critics.vector is not None


def test_words_about_observations_separate_them() -> None:
    seen, _, hidden = SPEC.observations_text.partition("; for critics only: ")
    assert "camera" not in seen
    assert hidden.startswith("a vector of 2 numbers; camera/left: an image")


def test_a_spec_survives_json_which_names_them_only_if_there_are_any() -> None:
    assert EnvironmentSpec.from_json(SPEC.to_json()) == SPEC
    leaves = SPEC.to_json()["observations"]["leaves"]
    assert [leaf["name"] for leaf in leaves if "critic" in leaf] == [CRITIC_VECTOR, "camera/left"]


def test_a_mask_is_never_for_critics_only() -> None:
    assert "mask" in critics(SPEC.leaves[-1]).fault


def test_their_paths_survive_the_text_of_the_arguments() -> None:
    arguments = EnvironmentArguments(critic_leaves=("robot/speed", "a%2Fb"))
    assert EnvironmentArguments.from_text(arguments.to_text()) == arguments
    assert "critic_leaves" not in EnvironmentArguments({"a": 1}).to_text()
    assert NO_ARGUMENTS.to_text() == ""


@pytest.mark.parametrize("paths", ['"speed"', "[1]", "null", "{}"])
def test_other_paths_are_refused(paths: str) -> None:
    with pytest.raises(InvalidInputError, match="environment_arguments"):
        EnvironmentArguments.from_text(f'{{"keywords": {{}}, "wrappers": [], "critic_leaves": {paths}}}')
