"""Environments that are made with keyword arguments and wrappers."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from actor_service.environments import Backend, describe_environment, make_environments
from actor_service.environments.keywords import fitting_keywords
from actorq.domain.environments import EnvironmentArguments
from actorq.domain.leaves import Image
from actorq.errors import InvalidInputError, UserError


def made_with(*wrappers: tuple[str, dict[str, Any]], **keywords: Any) -> EnvironmentArguments:
    return EnvironmentArguments(keywords, wrappers)


@pytest.mark.parametrize(
    ("environment_id", "backend", "arguments", "steps"),
    [
        ("Pendulum-v1", "python", made_with(max_episode_steps=7), 7),
        ("Pendulum-v1", "envpool", made_with(max_episode_steps=7), 7),
        ("dm_control/cartpole-balance", "python", made_with(time_limit=0.05), 5),
        ("Pendulum-v1", "python", made_with(("gymnasium.wrappers:TimeAwareObservation", {})), 200),
        ("Pendulum-v1", "python", made_with(("gymnasium.wrappers:TimeLimit", {"max_episode_steps": 3})), 3),
    ],
)
def test_the_length_of_episodes_is_an_argument(
    environment_id: str, backend: Backend, arguments: EnvironmentArguments, steps: int
) -> None:
    batch = make_environments(environment_id, 2, backend, arguments)
    assert (batch.spec.max_episode_steps, batch.spec.environment_arguments) == (steps, arguments)
    batch.reset(1)
    actions = np.zeros((2, 1), np.float32)
    taken = [batch.step(actions) for _ in range(steps - 1)]
    assert not any(step.truncated.any() for step in taken[-1:])
    assert batch.step(actions).truncated.all()
    batch.close()


def test_a_keyword_argument_changes_the_environment() -> None:
    plain, light = (
        make_environments("Pendulum-v1", 1, "python", arguments) for arguments in (made_with(), made_with(g=1.0))
    )
    np.testing.assert_array_equal(plain.reset(3), light.reset(3))
    push = np.ones((1, 1), np.float32)
    assert not np.array_equal(plain.step(push).observations, light.step(push).observations)
    alone = gymnasium.make("Pendulum-v1", g=1.0)
    alone.reset(seed=3)
    np.testing.assert_array_equal(light.reset(3)[0], alone.reset(seed=3)[0])
    np.testing.assert_array_equal(light.step(push).observations[0], alone.step(push[0])[0])


def test_lists_become_tuples_and_arrays_where_signatures_say_so() -> None:
    reshaped = made_with(("gymnasium.wrappers:ReshapeObservation", {"shape": [4, 4, 1]}))
    spec = describe_environment("environment_doubles:TinyImages-v0", arguments=reshaped)
    assert spec.observations.shape == (4, 4, 1)
    rescaled = made_with(("gymnasium.wrappers:RescaleAction", {"min_action": [-0.5], "max_action": [0.25]}))
    assert describe_environment("Pendulum-v1", arguments=rescaled).actions.high == (0.25,)
    sized = describe_environment("environment_doubles:Sized-v0", arguments=made_with(size=[2, 3], gains=[2.0]))
    assert sized.observations.shape == (2 * 3 * 2,)


def test_tuples_and_arrays_can_be_written() -> None:
    keywords = {"a": {"tuple": [1, [2, 3]]}, "b": {"array": [1, 2], "dtype": "int8"}, "c": {"array": [[0.5]]}, "d": [1]}
    given = fitting_keywords(dict, keywords)
    assert (given["a"], given["d"]) == ((1, (2, 3)), [1])
    assert (given["b"].dtype, given["b"].tolist()) == (np.int8, [1, 2])
    assert (given["c"].dtype, given["c"].tolist()) == (np.float32, [[0.5]])


def test_wrappers_apply_in_order_the_innermost_first() -> None:
    wide, narrow = (
        ("gymnasium.wrappers:RescaleAction", {"min_action": -bound, "max_action": bound}) for bound in (8.0, 0.5)
    )
    for wrappers, bound in (((wide, narrow), 0.5), ((narrow, wide), 8.0)):
        assert describe_environment("Pendulum-v1", arguments=made_with(*wrappers)).actions.high == (bound,)


def test_a_game_has_other_moves_and_modes_when_asked_for() -> None:
    arguments = made_with(full_action_space=True, repeat_action_probability=0.0, mode=1, difficulty=1)
    assert describe_environment("ALE/Pong-v5", arguments=arguments).acting_size == 18
    assert describe_environment("ALE/Pong-v5").acting_size == 6


@pytest.mark.parametrize(
    ("environment_id", "backend", "arguments", "fact"),
    [
        ("CartPole-v1", "python", made_with(gravty=5), "'gravty'"),
        ("CartPole-v1", "python", made_with(disable_env_checker=False), "disable_env_checker"),
        ("CartPole-v1", "python", made_with(max_episode_steps=0), "max_episode_steps .*0"),
        ("CartPole-v1", "python", made_with(max_episode_steps=10**10), "max_episode_steps .*10000000000"),
        ("CartPole-v1", "python", made_with(max_episode_steps="long"), "max_episode_steps .*'long'"),
        ("dm_control/walker-walk", "python", made_with(gravty=5), "'gravty'"),
        ("dm_control/walker-walk", "python", made_with(random=5), "'random'"),
        ("ALE/Pong-v5", "python", made_with(frameskip=2), "'frameskip'"),
        ("ALE/Pong-v5", "python", made_with(mode=99), "mode"),
        ("Pendulum-v1", "envpool", made_with(g=5.0), "'g'"),
        ("HalfCheetah-v5", "envpool", made_with(frame_skip="four"), "TypeError"),
        ("CartPole-v1", "python", made_with(("no_such_module:Wrap", {})), "no_such_module"),
        ("needing_environments:Any-v0", "python", made_with(), "no_such_package"),
        ("CartPole-v1", "python", made_with(("gymnasium.wrappers:NoSuch", {})), "NoSuch"),
        ("CartPole-v1", "python", made_with(("math:pi", {})), "callable"),
        ("CartPole-v1", "python", made_with(("math:sqrt", {})), "real number"),
        ("Pendulum-v1", "python", made_with(("gymnasium.wrappers:RescaleAction", {"lowest": 1})), "'lowest'"),
        ("dm_control/walker-walk", "python", made_with(("m:W", {})), "wrappers .*Gymnasium"),
        ("ALE/Pong-v5", "python", made_with(("m:W", {})), "wrappers .*Gymnasium"),
        ("CartPole-v1", "envpool", made_with(("m:W", {})), "wrappers .*envpool"),
    ],
)
def test_wrong_arguments_are_one_line_for_the_user(
    environment_id: str, backend: Backend, arguments: EnvironmentArguments, fact: str
) -> None:
    with pytest.raises(UserError, match=fact) as refused:
        describe_environment(environment_id, backend, arguments)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1200


def test_the_layout_of_images_is_a_part_of_the_arguments() -> None:
    arguments = EnvironmentArguments(image_layout="channels-first")
    assert EnvironmentArguments.from_text(arguments.to_text()) == arguments
    assert describe_environment("environment_doubles:Planes-v0", arguments=arguments).image == Image(10, 10, 4)
    with pytest.raises(InvalidInputError, match="environment_arguments"):
        EnvironmentArguments.from_text(arguments.to_text().replace("first", "between"))


def test_the_text_of_arguments_gives_them_back() -> None:
    arguments = made_with(("a:B", {}), ("a:B", {"x": [1, None, "ü\n"]}), gravity=5.0, nested={"on": True})
    text = arguments.to_text()
    assert text.isascii()
    assert text.isprintable()
    assert EnvironmentArguments.from_text(text) == arguments
    assert EnvironmentArguments.from_text(made_with().to_text()) == made_with()


@pytest.mark.parametrize(
    "text",
    [
        *("x", "{}", "[]", '{"keywords": {}}', '{"keywords": 3, "wrappers": []}', '{"keywords": {}, "wrappers": {}}'),
        *('{"keywords": {}, "wrappers": [["a:B"]]}', '{"keywords": {}, "wrappers": [[{}, "a:B"]]}', "[" * 8000),
        '{"keywords": {"a": -1e999}, "wrappers": []}',
        *('{"keywords": {"a": NaN}, "wrappers": []}', '{"keywords": {"a": 1' + "0" * 6000 + '}, "wrappers": []}'),
    ],
)
def test_an_invalid_text_of_arguments_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="environment_arguments"):
        EnvironmentArguments.from_text(text)
