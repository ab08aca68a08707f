"""Search spaces: ranges and values become proposals, and a mistake gets one line that names the setting."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.errors import UserError
from actorq_apps.sweep.space import changes_tree, read_space


def config_of(changes: Mapping[str, Any]) -> RunConfig:
    return settings.build(RunConfig, changes_tree(changes))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dqn.learning_rate=log:1e-4..1e-2", FloatDistribution(1e-4, 1e-2, log=True)),
        ("--dqn.learning-rate=0.1..0.3", FloatDistribution(0.1, 0.3)),
        ("replay.priority_exponent=0.1..0.3..0.1", FloatDistribution(0.1, 0.3, step=0.1)),
        ("dqn.batch_size=16..64", IntDistribution(16, 64)),
        ("dqn.batch_size=16..60..16", IntDistribution(16, 48, step=16)),
        ("dqn.batch_size=log:16..256", IntDistribution(16, 256, log=True)),
        ("dqn.hidden_sizes=64,64|256,256", CategoricalDistribution(("64,64", "256,256"))),
        ("dqn.double=true|false", CategoricalDistribution(("true", "false"))),
    ],
)
def test_a_range_is_read_as_the_setting_has_it(text: str, expected: object) -> None:
    (found,) = read_space((text,), None).distributions().values()
    assert found == expected


def test_a_file_has_the_same_and_lists(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(
        "dqn.learning_rate: {type: log, low: 1e-4, high: 1e-2}\n"
        "dqn.hidden_sizes: {type: categorical, values: [[64, 64], '256,256']}\n"
        "replay.clip_rewards: {type: categorical, values: [none, 1.0]}\n"
    )
    space = read_space(("dqn.batch_size=16..64",), file)
    assert space.distributions()["dqn.hidden_sizes"] == CategoricalDistribution(("64,64", "256,256"))
    assert list(space.dimensions) == ["dqn.learning_rate", "dqn.hidden_sizes", "replay.clip_rewards", "dqn.batch_size"]
    space.check(config_of, {}, "dqn")
    config = config_of({"dqn.hidden_sizes": "64,64", "replay.clip_rewards": "none", "dqn.batch_size": 20})
    assert (config.dqn.hidden_sizes, config.replay.clip_rewards, config.dqn.batch_size) == ((64, 64), None, 20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dqn.learning_rat=1..2", "--search: unknown setting 'dqn.learning_rat'; did you mean 'dqn.learning_rate'?"),
        ("dqn.learning_rate", "--search: expected NAME=LOW..HIGH, "),
        ("dqn.learning_rate=2..1", "--search dqn.learning_rate: expected low below high, got 2 to 1"),
        ("dqn.learning_rate=a..b", "--search dqn.learning_rate: setting 'low': value should be a valid number"),
        ("dqn.learning_rate=log:0..1", "--search dqn.learning_rate: expected low above 0 and no step for type log"),
        ("dqn.learning_rate=0..1..2", "--search dqn.learning_rate: expected a step above 0 and at most high - low"),
        ("dqn.learning_rate=1", "--search dqn.learning_rate: expected at least two different values"),
        ("dqn.batch_size=1.5..8", "--search dqn.batch_size: expected whole numbers, got 1.5 to 8"),
        ("dqn.hidden_sizes=16..64", "--search dqn.hidden_sizes: expected values, such as A|B"),
        ("dqn.batch_size=0..8", "--search dqn.batch_size: 0 does not fit: setting 'dqn.batch_size': value should be"),
        ("dqn.double=true|perhaps", "--search dqn.double: perhaps does not fit: setting 'dqn.double': value should"),
        ("ppo.learning_rate=0.1..0.2", "--search ppo.learning_rate: it has no effect, because the algorithm is dqn"),
        ("exploration.noise=0.1..0.2", "--search exploration.noise: it has no effect, because the algorithm is dqn"),
        ("queue.max_policy_lag=1..2", "--search queue.max_policy_lag: it has no effect, because the algorithm is dqn"),
        ("target_return=1..2", "--search target_return: trials that differ in it cannot be compared"),
        ("dqn.n_step=1..3", "--search dqn.n_step: the setting is also given; leave one of them out"),
    ],
)
def test_a_mistake_gets_one_line(text: str, expected: str) -> None:
    with pytest.raises(UserError) as found:
        read_space((text,), None).check(config_of, {"dqn": {"n_step": 3}}, "dqn")
    assert str(found.value).startswith(expected)
    assert "\n" not in str(found.value)


def test_a_file_with_a_mistake_gets_one_line(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    for text, expected in (
        ("3: {type: int, low: 1, high: 2}", "--search: unknown setting '3'"),
        ("dqn.batch_size: 3", "--search dqn.batch_size: expected type with low and high, or with values, got 3"),
        ("dqn.batch_size: {type: real}", "--search dqn.batch_size: setting 'type': value should be 'float', 'log'"),
        ("dqn.batch_size: {type: int, low: 1}", "--search dqn.batch_size: expected low and high for type int"),
        ("dqn.batch_size: {type: float, low: 1, high: 2}", "--search dqn.batch_size: expected type int or log"),
    ):
        file.write_text(text)
        with pytest.raises(UserError) as found:
            read_space((), file)
        assert str(found.value).startswith(expected)
    with pytest.raises(UserError, match="--search-file: cannot read"):
        read_space((), tmp_path / "missing.yaml")
    with pytest.raises(UserError, match="--search: expected at least one setting"):
        read_space((), None)


def test_a_setting_is_searched_once() -> None:
    with pytest.raises(UserError, match=r"--search dqn\.batch-size: the setting is given twice"):
        read_space(("dqn.batch_size=1..2", "dqn.batch-size=3..4"), None)


def test_the_algorithm_can_be_searched_with_its_settings() -> None:
    space = read_space(("algorithm=dqn|ppo", "ppo.epochs=2..4"), None)
    space.check(config_of, {}, "dqn")
    assert config_of({"algorithm": "ppo", "ppo.epochs": 3}).ppo.epochs == 3


def test_an_algorithm_from_outside_may_read_the_settings_of_a_built_in_one() -> None:
    read_space(("dqn.learning_rate=0.1..0.2",), None).check(config_of, {}, "own_algorithms:PatientDQN")


def test_a_grid_needs_steps_or_values() -> None:
    texts = ("replay.priority_exponent=0.1..0.3..0.1", "dqn.batch_size=16..18", "dqn.double=true|false")
    grid = read_space(texts, None).grid()
    assert [len(values) for values in grid.values()] == [3, 3, 2]
    assert grid["replay.priority_exponent"] == (0.1, 0.2, 0.3)
    with pytest.raises(UserError, match=r"--sampler grid: dqn\.learning_rate needs values, or a range with a step"):
        read_space(("dqn.learning_rate=log:1e-4..1e-2",), None).grid()
    with pytest.raises(UserError, match=r"--sampler grid: dqn\.learning_rate has more than 10000 values"):
        read_space(("dqn.learning_rate=1e-9..1e-2..1e-9",), None).grid()
    with pytest.raises(UserError, match=r"--sampler grid: expected at most 10000 cells, got 40000; give larger steps"):
        read_space(("dqn.n_step=1..200..1", "dqn.batch_size=1..200..1"), None).grid()
