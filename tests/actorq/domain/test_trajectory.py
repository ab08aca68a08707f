"""The checks of a segment."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actorq.domain.environments import EnvironmentArguments, ImageLayout
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import Evaluation, PolicySpan, Segment
from actorq.errors import InvalidInputError
from tests.builders.segments import changed

STEPS, ENVIRONMENTS = 3, 2
DISCRETE = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), (2,))
CONTINUOUS = EnvironmentSpec("Pendulum-v1", ArraySpec((3,), "float32"), ArraySpec((1,), "float32", (-2,), (2,)), ())


def segment(spec: EnvironmentSpec = DISCRETE, /, **changes: Any) -> Segment:
    batch = (STEPS, ENVIRONMENTS)
    sound = Segment(
        sequence=1,
        spans=(PolicySpan(0, 4, "int8"), PolicySpan(2, 5, "int8")),
        columns={
            "observations": np.zeros((STEPS + 1, ENVIRONMENTS, *spec.observations.shape), spec.observations.dtype),
            "actions": np.ones((*batch, *spec.actions.shape), spec.actions.dtype),
            "rewards": np.ones(batch, np.float32),
            "terminated": np.zeros(batch, np.bool_),
            "truncated": np.zeros(batch, np.bool_),
            "valid": np.array([[True, True], [False, True], [True, True]]),
            "ages": np.zeros(ENVIRONMENTS, np.uint8),
        },
    )
    return changed(sound, **changes)


@pytest.mark.parametrize(
    ("shape", "layout", "image"),
    [
        ((84, 84, 3), "auto", (3, 84, 84)),
        ((3, 84, 96), "auto", (3, 84, 96)),
        ((4, 4, 16), "auto", (16, 4, 4)),
        ((16, 4, 4), "auto", (16, 4, 4)),
        ((8, 8, 8), "auto", (8, 8, 8)),
        ((10, 20, 16), "auto", (10, 20, 16)),
        ((10, 20, 16), "channels-last", (16, 10, 20)),
        ((84, 84, 3), "channels-first", (84, 84, 3)),
    ],
)
def test_the_layout_of_an_image_is_guessed_or_given(
    shape: tuple[int, ...], layout: ImageLayout, image: tuple[int, int, int]
) -> None:
    arguments = EnvironmentArguments(image_layout=layout)
    spec = replace(DISCRETE, observations=ArraySpec(shape, "uint8"), environment_arguments=arguments)
    assert spec.image
    assert (spec.image.channels, spec.image.height, spec.image.width) == image
    assert spec.image.shape == shape
    assert spec.observations_text.endswith("last" if image != shape or shape == (8, 8, 8) else "first")
    assert EnvironmentSpec.from_json(spec.to_json()) == spec


def with_value(column: np.ndarray[Any, Any], value: float) -> np.ndarray[Any, Any]:
    column.flat[-1] = value
    return column


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_accepts_a_valid_segment(spec: EnvironmentSpec) -> None:
    segment(spec).check(spec)


def test_a_segment_has_its_size_and_the_policy_version_of_each_step() -> None:
    sound = segment()
    assert (sound.steps, sound.environments, sound.transitions) == (3, 2, 5)
    assert sound.policy_versions().tolist() == [4, 4, 5]


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (3, 0), (3, 2, 1)])
def test_rewards_must_be_steps_by_environments(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError, match=rf"rewards.* {re.escape(str(list(shape)))}"):
        segment(rewards=np.zeros(shape, np.float32)).check(DISCRETE)


@pytest.mark.parametrize(
    ("name", "expected", "wrong"),
    [
        ("observations", "float32[4, 2, 4]", np.zeros((3, 2, 4), np.float32)),
        ("observations", "float32[4, 2, 4]", np.zeros((4, 2, 5), np.float32)),
        ("observations", "float32[4, 2, 4]", np.zeros((4, 2, 4), np.float64)),
        ("actions", "int64[3, 2]", np.zeros((3, 1), np.int64)),
        ("actions", "int64[3, 2]", np.zeros((3, 2), np.int32)),
        ("actions", "int64[3, 2]", np.zeros((3, 2, 1), np.int64)),
        ("rewards", "float32[3, 2]", np.zeros((3, 2), np.float64)),
        ("terminated", "bool[3, 2]", np.zeros((2, 3), np.bool_)),
        ("truncated", "bool[3, 2]", np.zeros((3, 2), np.uint8)),
        ("valid", "bool[3, 2]", np.zeros((3,), np.bool_)),
    ],
)
def test_a_column_of_another_shape_or_dtype_is_refused(name: str, expected: str, wrong: np.ndarray[Any, Any]) -> None:
    both = f"{re.escape(expected)}.*{re.escape(f'{wrong.dtype}{list(wrong.shape)}')}"
    with pytest.raises(InvalidInputError, match=f"{name}.*{both}"):
        segment(DISCRETE, **{name: wrong}).check(DISCRETE)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1.1e9, -3e38])
@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "log_probabilities"])
def test_a_number_out_of_range_is_refused(name: str, value: float) -> None:
    # Segments with probabilities have drawn values, so actions have no bounds.
    drawn = segment(CONTINUOUS, log_probabilities=np.zeros((3, 2), np.float32))
    drawn.check(CONTINUOUS)
    with_value(drawn.columns[name], value)
    with pytest.raises(InvalidInputError, match=rf"{name}.* 1e\+09.* {re.escape(f'{np.float32(value):g}')}"):
        drawn.check(CONTINUOUS)


@pytest.mark.parametrize("action", [-1, 2, 2**40])
def test_refuses_an_action_outside_the_environments_actions(action: int) -> None:
    actions = with_value(np.zeros((STEPS, ENVIRONMENTS), np.int64), action)
    with pytest.raises(InvalidInputError, match=r"actions.*\[0, 2\)"):
        segment(actions=actions).check(DISCRETE)


@pytest.mark.parametrize(
    ("column", "fact"),
    [
        (np.zeros((3, 2), np.float32), r"float32\[3, 2, 1\].*float32\[3, 2\]"),
        (np.zeros((3, 2, 1)), r"float32\[3, 2, 1\].*float64\[3, 2, 1\]"),
        (np.full((3, 2, 1), np.nan, np.float32), r" 1e\+09.* nan"),
    ],
)
def test_greedy_actions_must_have_the_form_of_actions(column: np.ndarray[Any, Any], fact: str) -> None:
    segment(CONTINUOUS, greedy_actions=np.zeros((3, 2, 1), np.float32)).check(CONTINUOUS)
    with pytest.raises(InvalidInputError, match=f"greedy_actions.*{fact}"):
        segment(CONTINUOUS, greedy_actions=column).check(CONTINUOUS)


def test_greedy_actions_of_discrete_actions_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"columns.* got .*greedy_actions$"):
        segment(DISCRETE, greedy_actions=np.zeros((3, 2), np.int64)).check(DISCRETE)


@pytest.mark.parametrize("starts", [(), (1,), (0, 0), (0, 2, 1), (0, 3), (2, 0)])
def test_policy_spans_must_cover_the_steps_in_order(starts: tuple[int, ...]) -> None:
    spans = tuple(PolicySpan(start, 1, "int8") for start in starts)
    with pytest.raises(InvalidInputError, match=f"policy spans.* 3 .* {re.escape(str(list(starts)))}"):
        segment(spans=spans).check(DISCRETE)


def test_a_spec_knows_the_bytes_of_one_element() -> None:
    assert ArraySpec((84, 84, 4), "uint8").nbytes == 84 * 84 * 4
    assert ArraySpec((), "int64").nbytes == 8


def test_the_mean_return_of_an_evaluation_is_that_of_its_episodes() -> None:
    assert Evaluation(1, 2, 3, "int8", (1.0, 2.0, 6.0), (1, 2, 6), 0.5).mean_return == 3.0


@pytest.mark.parametrize("action", [1.01, -1.01, 1e9])
def test_actions_outside_of_the_bounds_are_refused(action: float) -> None:
    bounded = replace(CONTINUOUS, actions=replace(CONTINUOUS.actions, low=(-1.0,), high=(1.0,)))
    actions = np.zeros((3, 2, 1), np.float32)
    actions[0, 0], actions[2, 1] = 1.0005, -1.0005
    segment(bounded, actions=actions).check(bounded)
    actions[1, 1] = action
    with pytest.raises(InvalidInputError, match=r"actions.*bounds"):
        segment(bounded, actions=actions).check(bounded)
    # Drawn values may exceed the bounds before they are clipped.
    segment(bounded, actions=actions, log_probabilities=np.zeros((3, 2), np.float32)).check(bounded)


@pytest.mark.parametrize("largest", [3e38, 1e300])
def test_actions_without_a_finite_range_are_not_bounded(largest: float) -> None:
    assert ArraySpec((2,), "float32", (-1.0,), (1.0, 2.0)).bounded
    assert not ArraySpec((2,), "float32", (-largest,), (1.0, largest)).bounded
    assert not ArraySpec((2,), "float32", (largest,), (largest,)).bounded
    assert not ArraySpec((2,), "float32", (), (1.0,)).bounded
    assert not ArraySpec((0,), "float32").bounded
