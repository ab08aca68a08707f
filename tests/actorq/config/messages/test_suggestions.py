"""Suggestions for unknown names: by meaning first, then by spelling."""

import pytest

from actorq.config import settings
from actorq.config.messages.suggestions import SYNONYMS, suggestion
from actorq.config.run_config import RunConfig
from actorq_apps.cli.train import TrainSettings

LEAVES = [leaf for model in (RunConfig, TrainSettings) for leaf in settings.leaves(model)]
NAMES = [".".join(leaf.path) for leaf in LEAVES]
FLAGS = [leaf.flag for leaf in LEAVES]


@pytest.mark.parametrize("synonym", SYNONYMS)
def test_each_synonym_refers_to_a_setting_and_is_no_setting(synonym: str) -> None:
    assert not [name for name in NAMES if name.rpartition(".")[2] == synonym]
    for meaning in SYNONYMS[synonym]:
        assert [name for name in NAMES if f".{name}".endswith(f".{meaning}")], meaning


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("dqn.lr", "dqn.learning_rate"),
        ("d4pg.lr", "d4pg.policy_learning_rate"),
        ("sac.gamma", "sac.discount"),
        ("td3.tau", "td3.target_rate"),
        ("ppo.batch", "ppo.batch_size"),
        ("ppo.n_steps", "ppo.rollout_size"),
        ("ppo.clip_range", "ppo.clip"),
        ("n_envs", "environments_per_actor"),
        ("random_seed", "seed"),
        ("buffer_size", "replay.capacity"),
        ("replay.buffer_size", "replay.capacity"),
        ("dqn.learning-rate", "dqn.learning_rate"),
        ("replay.capcity", "replay.capacity"),
        ("capacity", "replay.capacity"),
    ],
)
def test_a_name_of_another_library_suggests_the_setting(name: str, meant: str) -> None:
    assert suggestion(name, NAMES) == f"; did you mean {meant!r}?"


@pytest.mark.parametrize(
    ("flag", "preferred", "meant"),
    [
        ("--lr", "--dqn.", "--dqn.learning-rate"),
        ("--lr", "--sac.", "--sac.learning-rate"),
        ("--gamma", "--ppo.", "--ppo.discount"),
        ("--tau", "--dqn.", "--sac.target-rate"),
        ("--total-timesteps", "--dqn.", "--max-environment-steps"),
        ("--env-id", "--dqn.", "--environment"),
        ("--dqn.learning_rate", "--dqn.", "--dqn.learning-rate"),
        ("--dqn.lr", "--dqn.", "--dqn.learning-rate"),
    ],
)
def test_a_flag_of_another_library_suggests_the_algorithms_flag(flag: str, preferred: str, meant: str) -> None:
    assert suggestion(flag, FLAGS, preferred) == f"; did you mean {meant!r}?"


def test_a_variable_of_another_library_suggests_the_variable() -> None:
    variables = [leaf.variable for leaf in LEAVES]
    assert suggestion("ACTORQ_DQN__LR", variables) == "; did you mean 'ACTORQ_DQN__LEARNING_RATE'?"
    assert suggestion("ACTORQ_N_ENVS", variables) == "; did you mean 'ACTORQ_ENVIRONMENTS_PER_ACTOR'?"


def test_a_name_that_resembles_none_gets_no_suggestion() -> None:
    assert suggestion("--xyzzy", FLAGS) == ""
    assert suggestion("--no-resum", [*FLAGS, "--no-resume"]) == "; did you mean '--no-resume'?"
