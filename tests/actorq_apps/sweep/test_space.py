"""Search spaces: ranges and values become proposals. A mistake gives one line that names the setting."""

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
        ("xqc.learning_rate=log:1e-4..1e-2", FloatDistribution(1e-4, 1e-2, log=True)),
        ("xqc.critic_sizes=64,64|256,256", CategoricalDistribution(("64,64", "256,256"))),
        ("dqn.double=true|false", CategoricalDistribution(("true", "false"))),
    ],
)
def test_reads_a_range_with_the_type_of_its_setting(text: str, expected: object) -> None:
    (found,) = read_space((text,), None).distributions().values()
    assert found == expected


def test_a_file_supports_the_same_ranges_and_lists(tmp_path: Path) -> None:
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
    ("text", "fact"),
    [
        ("dqn.learning_rat=1..2", r"'dqn\.learning_rat'.*'dqn\.learning_rate'"),
        ("dqn.learning_rate", r"NAME=LOW\.\.HIGH.*dqn\.learning_rate"),
        ("dqn.learning_rate=2..1", r"dqn\.learning_rate.* 2 to 1\b"),
        ("dqn.learning_rate=a..b", r"dqn\.learning_rate.*'low'.*number.*'a'"),
        ("dqn.learning_rate=log:0..1", r"dqn\.learning_rate.* above 0 .*log"),
        ("dqn.learning_rate=0..1..2", r"dqn\.learning_rate.* step .*high - low"),
        ("dqn.learning_rate=1", r"dqn\.learning_rate.* two "),
        ("dqn.batch_size=1.5..8", r"dqn\.batch_size.* whole .* 1\.5 to 8"),
        ("dqn.hidden_sizes=16..64", r"dqn\.hidden_sizes.* A\|B"),
        ("dqn.batch_size=0..8", r"dqn\.batch_size: 0 .*'dqn\.batch_size'"),
        ("dqn.double=true|perhaps", r"dqn\.double: perhaps .*'dqn\.double'"),
        ("ppo.learning_rate=0.1..0.2", r"ppo\.learning_rate.* effect.* dqn"),
        ("exploration.noise=0.1..0.2", r"exploration\.noise.* effect.* dqn"),
        ("queue.max_policy_lag=1..2", r"queue\.max_policy_lag.* effect.* dqn"),
        ("target_return=1..2", "target_return.* compared"),
        ("dqn.n_step=1..3", r"dqn\.n_step.* also given"),
    ],
)
def test_a_wrong_search_is_refused_in_one_line(text: str, fact: str) -> None:
    with pytest.raises(UserError, match=f"--search.*{fact}") as found:
        read_space((text,), None).check(config_of, {"dqn": {"n_step": 3}}, "dqn")
    assert "\n" not in str(found.value)


def test_a_file_with_a_mistake_gets_one_line(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    for text, fact in (
        ("3: {type: int, low: 1, high: 2}", "'3'"),
        ("dqn.batch_size: 3", r"dqn\.batch_size.*type.* 3$"),
        ("dqn.batch_size: {type: real}", r"dqn\.batch_size.*'type'.*float, log.*'real'"),
        ("dqn.batch_size: {type: int, low: 1}", r"dqn\.batch_size.*low and high .*int"),
        ("dqn.batch_size: {type: float, low: 1, high: 2}", r"dqn\.batch_size.*int or log"),
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=f"--search.*{fact}"):
            read_space((), file)
    with pytest.raises(UserError, match=r"--search-file.*missing\.yaml"):
        read_space((), tmp_path / "missing.yaml")
    with pytest.raises(UserError, match="--search: "):
        read_space((), None)


def test_a_setting_is_searched_once() -> None:
    with pytest.raises(UserError, match=r"dqn\.batch-size.*twice"):
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
    with pytest.raises(UserError, match=r"--sampler grid.*dqn\.learning_rate .*step"):
        read_space(("dqn.learning_rate=log:1e-4..1e-2",), None).grid()
    with pytest.raises(UserError, match=r"--sampler grid.*dqn\.learning_rate .* 10000 "):
        read_space(("dqn.learning_rate=1e-9..1e-2..1e-9",), None).grid()
    with pytest.raises(UserError, match=r"--sampler grid.* 10000 cells.* 40000\b"):
        read_space(("dqn.n_step=1..200..1", "dqn.batch_size=1..200..1"), None).grid()
