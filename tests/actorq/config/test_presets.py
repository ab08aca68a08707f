"""Presets: lower precedence than given settings, valid in every combination, shown in help and documentation."""

from typing import Any

import pytest

from actorq.config import settings
from actorq.config.algorithms import ALGORITHMS, DQNConfig
from actorq.config.presets import FAMILIES, descriptions, family_of, preset
from actorq.config.run_config import RunConfig
from actorq.config.sections import ReplayConfig
from actorq.errors import UserError

# An example id of each family.
IDS = {
    "CartPole": "CartPole-v1",
    "Acrobot": "Acrobot-v1",
    "MountainCar": "MountainCar-v0",
    "LunarLander": "LunarLander-v3",
    "Atari": "ALE/Pong-v5",
    "DM Control": "dm_control/cheetah-run",
    "DM Control pixels": "dm_control_pixels/cheetah-run",
    "Pendulum": "Pendulum-v1",
    "MuJoCo": "HalfCheetah-v5",
    "MountainCarContinuous": "MountainCarContinuous-v0",
    "Box2D": "BipedalWalker-v3",
    "MPE": "pettingzoo/mpe2/simple_spread_v3",
    "others": "Mine-v0",
}


def test_every_family_has_an_example_in_this_test() -> None:
    assert {name: family_of(environment).name for name, environment in IDS.items()} == {name: name for name in IDS}
    assert list(IDS) == [family.name for family in FAMILIES]


@pytest.mark.parametrize(
    ("environment", "family"),
    [
        ("MountainCarContinuous-v0", "MountainCarContinuous"),
        ("LunarLanderContinuous-v3", "Box2D"),
        ("BipedalWalkerHardcore-v3", "Box2D"),
        ("HumanoidStandup-v5", "MuJoCo"),
        ("my_package:CartPole-v1", "others"),
        ("dm_control/humanoid-run_pure_state", "DM Control"),
    ],
)
def test_similar_ids_belong_to_the_right_families(environment: str, family: str) -> None:
    assert family_of(environment).name == family


@pytest.mark.parametrize("environment", IDS.values(), ids=IDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_preset_is_a_valid_run_and_survives_being_written(algorithm: str, environment: str) -> None:
    config = RunConfig(environment=environment, algorithm=algorithm)
    tree = settings.build(RunConfig, {"environment": environment, "algorithm": algorithm})
    assert tree == config
    # Like config.yaml: every setting is given, so the preset has no effect.
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize("environment", IDS.values(), ids=IDS)
def test_uses_the_familys_algorithm_and_preset_if_none_is_given(environment: str) -> None:
    config = RunConfig(environment=environment)
    assert config.algorithm == family_of(environment).algorithm
    assert config == RunConfig(environment=environment, algorithm=config.algorithm)


@pytest.mark.parametrize(
    ("given", "algorithm"),
    [
        ({}, "xqc"),
        ({"preset": "standard"}, "sac"),
        ({"environment": "Pendulum-v1"}, "sac"),
        ({"environment": "Mine-v0", "like": "Ant-v5"}, "xqc"),
        ({"replay": {"capacity": 50_000}, "target_return": 5_000.0}, "xqc"),
        ({"algorithm": "td3"}, "td3"),
        ({"sac": {"batch_size": 128}}, "sac"),
        ({"memory": {"kind": "gru"}}, "sac"),
        ({"sparsity": {"method": "rlx2"}}, "sac"),
        ({"network": "package:make"}, "sac"),
        ({"dataset": {"source": "D4RL/pen/human-v2"}}, "sac"),
    ],
)
def test_the_preset_auto_uses_xqc_on_mujoco_unless_settings_exclude_it(given: dict[str, Any], algorithm: str) -> None:
    tree = {"environment": "HalfCheetah-v5", "preset": "auto", **given}
    assert settings.build(RunConfig, tree).algorithm == algorithm


def test_the_default_run_is_cartpole_with_default_settings() -> None:
    config = RunConfig()
    assert (config.environment, config.algorithm) == ("CartPole-v1", "dqn")
    assert config.dqn == DQNConfig()
    assert config.replay == ReplayConfig()


def test_given_settings_override_the_preset() -> None:
    below = RunConfig(environment="dm_control/walker-walk")
    given = {"environment": "dm_control/walker-walk", "d4pg": {"n_step": 3}, "replay": {"capacity": 50_000}}
    config = settings.build(RunConfig, given)
    assert (config.d4pg.n_step, config.replay.capacity) == (3, 50_000)
    assert config.replay == below.replay.model_copy(update={"capacity": 50_000})
    assert config.rate_limiter == below.rate_limiter != RunConfig().rate_limiter
    assert config.d4pg == below.d4pg.model_copy(update={"n_step": 3})


def test_a_section_given_as_an_object_replaces_the_whole_preset_section() -> None:
    config = RunConfig(environment="dm_control/walker-walk", replay=ReplayConfig(min_size=7))
    assert config.replay == ReplayConfig(min_size=7)


def test_a_users_algorithm_gets_the_default_settings() -> None:
    config = RunConfig(environment="dm_control/walker-walk", algorithm="mine:Mine")
    assert config == RunConfig().model_copy(update={"environment": config.environment, "algorithm": "mine:Mine"})


def test_changing_one_preset_leaves_the_others_unchanged() -> None:
    before = preset("sac", "HalfCheetah-v5")
    preset("sac", "Pendulum-v1")["replay"]["capacity"] = 5
    assert preset("sac", "HalfCheetah-v5") == before
    assert preset("sac", "Pendulum-v1")["replay"]["capacity"] == 50_000


def test_reports_a_wrong_value_of_a_setting_that_chooses_the_preset() -> None:
    with pytest.raises(UserError, match=r"'environment'.* 5"):
        settings.build(RunConfig, {"environment": 5})
    with pytest.raises(UserError, match=r"'replay'.* 5"):
        settings.build(RunConfig, {"environment": "Acrobot-v1", "replay": 5})
    with pytest.raises(UserError, match=r"'algorithm'.* 5"):
        settings.build(RunConfig, {"algorithm": 5})


def test_the_descriptions_name_settings_by_their_flags() -> None:
    flags = {leaf.flag.removeprefix("--") for leaf in settings.leaves(RunConfig)}
    described = dict(descriptions())
    assert set(ALGORITHMS) < set(described)
    for name, text in described.items():
        if name != "dqn on CartPole":
            assert {part.split(" ")[0] for part in text.split(", ")} <= flags, name
    assert "replay.clip-rewards 1" in described["dqn on Atari"]


def test_a_policy_with_memory_has_a_preset_of_its_own() -> None:
    plain, remembering = RunConfig(), RunConfig.model_validate({"memory": "gru"})
    assert plain.dqn.learning_rate == 1e-2
    assert remembering.dqn.learning_rate == 1e-3
    assert remembering.dqn.batch_size > plain.dqn.batch_size
    assert RunConfig.model_validate({"memory": "none"}).dqn == plain.dqn
    given = RunConfig.model_validate({"memory": "gru", "dqn": {"learning_rate": 0.5}})
    assert given.dqn.learning_rate == 0.5
    assert given.dqn.batch_size == remembering.dqn.batch_size


def test_sac_and_td3_with_memory_learn_from_short_sequences() -> None:
    for name, rate in (("sac", 5e-4), ("td3", 1e-3)):
        config = RunConfig.model_validate({"environment": "Pendulum-v1", "algorithm": name, "memory": "gru"})
        assert config.memory.kind == "gru"
        # A batch has many sequences, and a new one begins with each segment.
        assert config.memory.sequences(getattr(config, name).batch_size) == 16
        assert config.actor.segment_length == config.memory.sequence_length
        assert getattr(config, name).learning_rate == rate
    td3 = {"environment": "Pendulum-v1", "algorithm": "td3"}
    assert RunConfig.model_validate({**td3, "memory": "gru"}).td3.policy_delay == 1
    assert RunConfig.model_validate(td3).td3.policy_delay == 2
    given = {"kind": "gru", "sequence_length": 40}
    config = RunConfig.model_validate({"environment": "Pendulum-v1", "algorithm": "sac", "memory": given})
    assert (config.memory.sequence_length, config.memory.burn_in) == (40, 4)


@pytest.mark.parametrize("algorithm", ["dqn", "sac", "td3", "d4pg", "xqc"])
def test_a_run_with_a_data_set_begins_to_learn_at_once(algorithm: str) -> None:
    def made(**given: object) -> RunConfig:
        environment = "CartPole-v1" if algorithm == "dqn" else "MountainCarContinuous-v0"
        return RunConfig.model_validate({"environment": environment, "algorithm": algorithm, **given})

    config = made(dataset={"source": "cars"})
    assert (config.exploration.random_steps, config.replay.min_size) == (0, 256)
    assert config.sac.layer_norm == (algorithm == "sac")
    own = made(dataset={"source": "cars"}, exploration={"random_steps": 50}, replay={"min_size": 500})
    assert (own.exploration.random_steps, own.replay.min_size) == (50, 500)
    plain = made()
    assert plain.replay.min_size > 256
    assert not plain.sac.layer_norm
