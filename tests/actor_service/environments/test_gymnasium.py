"""Gymnasium's environments as one batch, compared with plain loops over the same seeds and actions."""

import json
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml
from environment_doubles import copied
from gymnasium import spaces

from actor_service.environments import Step, describe_environment, make_environments
from actor_service.environments.spaces.observations import UnsupportedObservationsError, observation_spec
from actorq import wire
from actorq.config.run_config import RunConfig
from actorq.domain.environments import EnvironmentArguments
from actorq.domain.leaves import Image
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import Episode
from actorq.errors import UserError


class Words(spaces.Space[str]):
    """A space of another package that does not say whether it can be flattened."""

    @property
    def is_np_flattenable(self) -> bool:
        raise NotImplementedError


def test_a_space_that_does_not_say_whether_it_is_flat_is_refused_with_the_wrappers_that_help() -> None:
    space = spaces.Dict({"image": spaces.Box(0, 1, (7,)), "mission": Words()})
    with pytest.raises(UnsupportedObservationsError, match=r"mission: .*Words") as caught:
        observation_spec("Mission-v0", space)
    assert (caught.value.keys, caught.value.flattened) == (("image",), 7)


IDS = ["CartPole-v1", "MountainCar-v0", "Acrobot-v1"]


@pytest.mark.parametrize(
    ("environment_id", "size", "actions", "limit", "threshold"),
    [("CartPole-v1", 4, 2, 500, 475.0), ("MountainCar-v0", 2, 3, 200, -110.0), ("Acrobot-v1", 6, 3, 500, -100.0)],
)
def test_the_spec_tells_spaces_limit_and_threshold(
    environment_id: str, size: int, actions: int, limit: int, threshold: float
) -> None:
    spec = describe_environment(environment_id)
    assert (spec.observations.shape, spec.observations.dtype) == ((size,), "float32")
    assert spec.actions == ArraySpec((), "int64")
    assert (spec.acting_size, spec.max_episode_steps) == (actions, limit)
    assert (spec.environment_id, spec.reward_threshold) == (environment_id, threshold)


def test_continuous_actions_have_bounds_and_no_count() -> None:
    spec = describe_environment("Pendulum-v1")
    assert spec.actions == ArraySpec((1,), "float32", (-2.0,), (2.0,))
    assert spec.sizes == ()
    assert spec.reward_threshold is None


def test_images_of_bits_are_observations() -> None:
    spec = describe_environment("environment_doubles:Planes-v0")
    assert spec.observations == ArraySpec((10, 10, 4), "bool")
    assert spec.image == Image(4, 10, 10, "channels-last")
    assert re.search("10 x 10 .*4 .*channels last", spec.observations_text)


def test_images_of_a_family_need_an_axis_for_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = tmp_path / "planes-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: planes\nVersion: 1.0\n", "utf-8")
    entry = "[actorq.environments]\nplanes = environment_doubles:make_planes\n"
    (information / "entry_points.txt").write_text(entry, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert make_environments("planes/stacked", 1).spec.image == Image(4, 5, 6)
    with pytest.raises(UserError, match=r"images .*uint8\[5, 6\]"):
        make_environments("planes/single", 1)


def test_images_without_an_axis_for_channels_have_one_channel() -> None:
    batch = make_environments("environment_doubles:Frames-v0", 2)
    assert batch.spec.observations == ArraySpec((2, 2, 1), "uint8")
    assert batch.spec.image == Image(1, 2, 2, "channels-last")
    np.testing.assert_array_equal(batch.reset(0), np.full((2, 2, 2, 1), 20))
    np.testing.assert_array_equal(batch.step(np.zeros(2, np.int64)).observations, np.full((2, 2, 2, 1), 21))
    batch.close()


@pytest.mark.parametrize(
    ("dtype", "carried"),
    [
        *(("bool", "bool"), ("int8", "int8"), ("uint8", "uint8"), ("int16", "int32"), ("uint16", "int32")),
        *(("int32", "int32"), ("uint32", "float32"), ("int64", "float32"), ("uint64", "float32")),
        *(("float16", "float32"), ("float32", "float32"), ("float64", "float32"), ("longdouble", "float32")),
    ],
)
def test_a_vector_gets_a_dtype_that_represents_its_numbers(dtype: str, carried: str) -> None:
    spec = observation_spec("Any-v0", spaces.Box(0, 1, (3,), np.dtype(dtype).type))
    assert spec == ArraySpec((3,), carried)
    assert np.can_cast(np.dtype(dtype), spec.dtype, "same_kind")
    described = EnvironmentSpec("Any-v0", spec, ArraySpec((), "int64"), sizes=(2,))
    assert wire.environment_from_proto(wire.environment_to_proto(described)) == described


@pytest.mark.parametrize("highest", [2**24, 2**24 + 1])
def test_integers_of_64_bits_are_floats_where_those_are_exact(highest: int) -> None:
    spec = observation_spec("Any-v0", spaces.Box(0, np.array([highest, 1]), dtype=np.int64))
    assert spec.dtype == ("float32" if highest == 2**24 else "int64")


@pytest.mark.parametrize(
    "environment_id", ["NoSuch-v1", "CartPole-v99", "no such id", "nomodule:Env-v0", "", ":CartPole-v1"]
)
def test_an_unknown_id_is_one_line_for_the_user(environment_id: str) -> None:
    for make in (describe_environment, lambda name: make_environments(name, 1)):
        with pytest.raises(UserError) as refused:
            make(environment_id)
        assert repr(environment_id) in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("TextObservations", r"observations .*Text\("),
        ("PartlyTextObservations", r"observations .*words: Sequence\("),
        ("ImageAndText", r"observations .*words: Sequence\("),
        ("ManyObservations", "observations .*65 parts"),
        ("EndlessActions", r"actions .*Box\("),
        ("LargeActions", r"actions .*Box\("),
        ("HugeObservations", r"observations .*Discrete\("),
        ("HugeActions", r"actions .*Discrete\("),
        ("EmptyObservations", r"observations .*at least one .*Box\("),
        ("EmptyActions", r"actions .*at least one .*Box\("),
        ("UnboundedActions", r"actions .*Box\("),
        ("IntegerActions", r"actions .*Box\("),
    ],
)
def test_unsupported_spaces_are_refused_in_one_line(name: str, fact: str) -> None:
    environment_id = f"environment_doubles:{name}-v0"
    with pytest.raises(UserError, match=f"{environment_id}: {fact}") as refused:
        describe_environment(environment_id)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "numbers", "parts"),
    [
        ("DictObservations", 2, ("goal (2 numbers)",)),
        ("MatrixObservations", 4, ("4 numbers",)),
        ("ScalarObservations", 1, ("1 number",)),
        ("UnevenObservations", 81, ("81 numbers",)),
        ("DiscreteObservations", 16, ("one of 16",)),
        ("MultiDiscreteObservations", 8, ("3 of 2/3",)),
        ("MultiBinaryObservations", 6, ("6 bits",)),
        (
            "NestedObservations",
            17,
            ("arm/0 (2 numbers)", "arm/1 (6 numbers)", "arm/2 (3 bits)", "flag (2 numbers)", "way (one of 4)"),
        ),
    ],
)
def test_observations_of_several_parts_become_one_vector(name: str, numbers: int, parts: tuple[str, ...]) -> None:
    environments = make_environments(f"environment_doubles:{name}-v0", 2)
    spec, single = environments.spec, gymnasium.make(f"environment_doubles:{name}-v0").unwrapped
    assert spec.parts == parts
    whole, _, told = spec.observations_text.partition(": ")
    assert re.search(rf"\b{numbers}\b", whole)
    # A single part says no more than the whole.
    alone = parts in ((f"{numbers} numbers",), ("1 number",))
    assert told == ("" if alone else ", ".join(parts))
    assert EnvironmentSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    space = single.observation_space
    flat = np.asarray(gymnasium.spaces.flatten(space, single.reset()[0]))
    expected = np.broadcast_to(flat, (2, *spec.observations.shape))
    np.testing.assert_array_equal(environments.reset(1), expected)
    np.testing.assert_array_equal(environments.step(np.zeros(2, np.int64)).observations, expected)
    assert not environments.step(np.zeros(2, np.int64)).faults


@pytest.mark.parametrize(
    ("name", "rewards", "text"),
    [
        ("LateActions", [1, 2], "1 to 2"),
        ("MultiDiscreteActions", [0, 1, 10, 11], "2 x 2"),
        ("BitActions", [0, 1, 10, 11], "2 x 2"),
        ("TwoActions", [4, 5, 14, 15], "2 x 2"),
    ],
)
def test_discrete_actions_of_several_parts_become_one(name: str, rewards: list[float], text: str) -> None:
    environments = make_environments(f"environment_doubles:{name}-v0", len(rewards))
    assert environments.spec.acting_size == len(rewards)
    assert environments.spec.actions_text.startswith(f"discrete, {len(rewards)}, ")
    assert text in environments.spec.actions_text
    environments.reset(1)
    for _ in range(2):
        step = environments.step(np.arange(len(rewards)))
        assert (step.rewards.tolist(), step.faults) == (rewards, ())


@pytest.mark.parametrize(
    ("name", "bounds", "text"),
    [
        ("ArmActions", ((0.0,), (4.0, 9.0)), r"2 numbers .*0 to 9, .*1 \+ 1"),
        ("MatrixActions", ((-1.0,), (1.0,)), "4 numbers .*-1 to 1, .*4"),
    ],
)
def test_boxes_become_one_vector_of_actions(name: str, bounds: tuple[tuple[float, ...], ...], text: str) -> None:
    environments = make_environments(f"environment_doubles:{name}-v0", 1)
    spec = environments.spec
    assert (spec.actions.low, spec.actions.high) == bounds
    assert re.search(text, spec.actions_text)
    environments.reset(1)
    action = np.linspace(0, 1, spec.actions.shape[0], dtype=np.float32)
    step = environments.step(action[None])
    expected = sum(10.0 ** (len(action) - 1 - index) * part for index, part in enumerate(action))
    np.testing.assert_allclose(step.rewards, [expected], rtol=1e-5)
    assert not step.faults


@pytest.mark.parametrize(("name", "numbers"), [("PartlyTextObservations", 6), ("ImageAndText", 194)])
def test_the_refusal_of_a_space_suggests_a_working_flag(name: str, numbers: int) -> None:
    environment_id = f"environment_doubles:{name}-v0"
    with pytest.raises(UserError, match=f"{numbers} numbers.*--environment-wrappers ") as refused:
        describe_environment(environment_id)
    wrappers = yaml.safe_load(str(refused.value).partition("--environment-wrappers ")[2].strip("'"))
    spec = describe_environment(
        environment_id, arguments=RunConfig(environment_wrappers=wrappers).environment_arguments
    )
    assert spec.observations == ArraySpec((numbers,), "float32")


def test_the_suggested_flag_keeps_the_given_wrappers() -> None:
    given = EnvironmentArguments({}, (("gymnasium.wrappers:TimeLimit", {"max_episode_steps": 9}),))
    with pytest.raises(
        UserError, match=r"\[\{\"gymnasium.wrappers:TimeLimit.*: 9\}\}, .*, gymnasium.wrappers:FlattenObservation\]"
    ):
        describe_environment("environment_doubles:ImageAndText-v0", arguments=given)


def test_actions_without_bounds_get_those_of_the_flag_that_the_refusal_names() -> None:
    environment_id = "environment_doubles:UnboundedActions-v0"
    with pytest.raises(UserError, match="--environment-wrappers") as refused:
        describe_environment(environment_id)
    wrappers = yaml.safe_load(str(refused.value).partition("--environment-wrappers ")[2].strip("'"))
    given = RunConfig(environment_wrappers=wrappers).environment_arguments
    assert describe_environment(environment_id, arguments=given).actions == ArraySpec((2,), "float32", (-1.0,), (1.0,))


def test_the_package_of_an_id_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grids").mkdir()
    (tmp_path / "grids" / "__init__.py").write_text('import nothing_here\nregister(id="Grid-Empty-v0")\n')
    metadata = tmp_path / "grids_for_all-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: grids-for-all\nVersion: 1.0\nRequires-Dist: gymnasium>=1\n"
    )
    (metadata / "RECORD").write_text("grids/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"grids:Grid-Empty-v0$"):
        describe_environment("Grid-Empty-v0")


def test_float64_observations_travel_as_float32() -> None:
    batch = make_environments("Hopper-v5", 2)
    environment = gymnasium.make("Hopper-v5")
    assert environment.reset(seed=4)[0].dtype == np.float64
    assert batch.spec.observations == ArraySpec((11,), "float32")
    np.testing.assert_array_equal(batch.reset(4)[0], environment.reset(seed=4)[0].astype(np.float32))
    batch.close()


def test_pictures_are_drawn_without_a_display() -> None:
    batch = make_environments("environment_doubles:Counting-v0", 2, rendered=True)
    batch.reset(0)
    batch.step(np.zeros(2, np.int64))
    np.testing.assert_array_equal(batch.render(0), np.full((5, 7, 3), 1, np.uint8))
    assert batch.steps_per_second == 10
    batch.close()
    given = EnvironmentArguments({"render_mode": "rgb_array"})
    make_environments("environment_doubles:Counting-v0", 2, arguments=given, rendered=True).close()
    with pytest.raises(UserError, match=r"NoPictures-v0.*pictures"):
        make_environments("environment_doubles:NoPictures-v0", 1, rendered=True)


def plain_loop(environment_id: str, seed: int, actions: list[int]) -> tuple[list[Any], list[Step], list[Episode]]:
    """One environment, reset by hand with the step after its end, as rows of a batch of one."""
    environment = gymnasium.make(environment_id)
    observation, _ = environment.reset(seed=seed)
    observations, rows, episodes = [observation], [], []
    ended, total, length = False, 0.0, 0
    for action in actions:
        reward, terminated, truncated = 0.0, False, False
        valid = not ended
        if ended:
            observation, _ = environment.reset()
            ended = False
        else:
            observation, step_reward, terminated, truncated, _ = environment.step(action)
            reward = float(step_reward)
            total, length, ended = total + reward, length + 1, terminated or truncated
            if ended:
                episodes.append(Episode(total, length, 0))
                total, length = 0.0, 0
        observations.append(observation)
        rows.append(
            Step(
                observation,
                np.array([reward], np.float32),
                np.array([terminated]),
                np.array([truncated]),
                np.array([valid]),
                (),
            )
        )
    environment.close()
    return observations, rows, episodes


@pytest.mark.parametrize("environment_id", IDS)
def test_a_batch_is_the_plain_loops_side_by_side(environment_id: str) -> None:
    count, steps, seed = 3, 650, 11
    spec = describe_environment(environment_id)
    actions = np.random.default_rng(0).integers(spec.acting_size, size=(steps, count))
    batch = make_environments(environment_id, count)
    observations = [batch.reset(seed).copy()]
    taken = [copied(batch.step(row)) for row in actions]
    batch.close()
    observations += [step.observations for step in taken]
    endings = 0
    for index in range(count):
        expected_observations, rows, expected_episodes = plain_loop(
            environment_id, seed + index, [int(action) for action in actions[:, index]]
        )
        np.testing.assert_array_equal([row[index] for row in observations], expected_observations)
        for column in ("rewards", "terminated", "truncated", "valid"):
            actual = [getattr(step, column)[index] for step in taken]
            np.testing.assert_array_equal(actual, [getattr(row, column)[0] for row in rows], err_msg=column)
        episodes = [(e.episode_return, e.length) for step in taken for e in step.episodes if e.environment == index]
        assert episodes == [(e.episode_return, e.length) for e in expected_episodes]
        endings += len(episodes)
    assert endings >= count
    assert taken[0].rewards.dtype == np.float32


def test_the_row_after_an_end_holds_the_final_observation_and_only_resets() -> None:
    batch = make_environments("CartPole-v1", 1)
    observations = [batch.reset(3).copy()]
    steps: list[Step] = []
    while not (steps and steps[-1].terminated[0]):
        steps.append(copied(batch.step(np.array([1]))))
        observations.append(steps[-1].observations)
    reset = batch.step(np.array([1]))
    assert not reset.valid[0]
    assert not reset.terminated[0]
    # Terminal: the pole leans too far. The observation of the reset row is that one, the next is near upright again.
    assert abs(observations[-1][0, 2]) > 0.2
    assert abs(reset.observations[0, 2]) <= 0.05
    assert steps[-1].episodes == (Episode(float(len(steps)), len(steps), 0),)
    assert batch.step(np.array([1])).valid[0]
    batch.close()


def test_a_reset_starts_counting_again() -> None:
    batch = make_environments("CartPole-v1", 1)
    batch.reset(3)
    for _ in range(5):
        batch.step(np.array([1]))
    batch.reset(3)
    length = 0
    episodes: tuple[Episode, ...] = ()
    while not episodes:
        episodes = batch.step(np.array([1])).episodes
        length += 1
    assert episodes == (Episode(float(length), length, 0),)
    batch.close()


@pytest.mark.parametrize(
    ("name", "ranges"),
    [
        ("MatrixObservations", ()),
        ("DiscreteObservations", (0, 16)),
        ("MultiDiscreteObservations", (0, 8)),
        ("MultiBinaryObservations", (0, 6)),
        ("NestedObservations", (8, 11, 13, 17)),
    ],
)
def test_bits_and_categories_of_a_vector_are_told_by_their_components(name: str, ranges: tuple[int, ...]) -> None:
    assert describe_environment(f"environment_doubles:{name}-v0").indicators == ranges
