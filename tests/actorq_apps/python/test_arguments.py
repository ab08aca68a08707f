"""Arguments of `actorq.train` match the settings of the command. Mistakes give one line before anything starts."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import actorq
from actorq.errors import ActorQError, UserError
from actorq_apps.python.arguments import as_tree, with_arguments


@pytest.mark.parametrize(
    ("given", "tree"),
    [
        ({"seed": np.int64(3)}, {"seed": 3}),
        ({"dqn": {"batch_size": 64}}, {"dqn": {"batch_size": 64}}),
        ({"dqn__batch_size": 64, "dqn__tau": 1.0}, {"dqn": {"batch_size": 64, "tau": 1.0}}),
        ({"quantizer__gate__min_agreement": 0.9}, {"quantizer": {"gate": {"min_agreement": 0.9}}}),
        ({"dqn": {"hidden_sizes": (64, 64)}, "dqn__tau": 1.0}, {"dqn": {"hidden_sizes": [64, 64], "tau": 1.0}}),
        ({"telemetry": {"mlflow": Path("a/b")}}, {"telemetry": {"mlflow": "a/b"}}),
        ({"network": json.dumps}, {"network": "json:dumps"}),
    ],
)
def test_keywords_become_the_tree_of_a_settings_file(given: dict[str, Any], tree: dict[str, Any]) -> None:
    assert as_tree(given) == tree


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sede": 3}, "sede.*seed"),
        ({"dqn__batch_sizes": 3}, "batch_sizes.*batch_size"),
        ({"seed": "one"}, "seed"),
        ({"algorithm": "dqm"}, "algorithm"),
        ({"resume": True}, "resume needs directory, the folder of the run to continue"),
    ],
)
def test_reports_a_wrong_setting_in_one_line(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        actorq.train("CartPole-v1", directory=None if "resume" in given else tmp_path / "run", **given)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"actors": 4}, "actors: expected 1 for this run, got 4: its environment is a single object"),
        ({"environments_per_actor": 8}, "environments_per_actor: expected 1 for this run, got 8"),
        ({"environment_backend": "envpool"}, "environment_backend: expected python for this run, got envpool"),
    ],
)
def test_refuses_settings_that_one_environment_object_cannot_support(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"{message}.*a class or a function that makes one"):
        actorq.train(gymnasium.make("CartPole-v1"), **given)


def test_a_function_that_the_learner_cannot_import_is_refused() -> None:
    with pytest.raises(UserError, match="expected a class or function of a module that Python can import"):
        actorq.train("CartPole-v1", network=lambda: None)


def test_an_open_environment_is_free_again_after_a_refused_setting() -> None:
    environment = gymnasium.make("CartPole-v1")
    for _ in range(2):
        with pytest.raises(UserError, match="settings must be numbers, texts, lists and dicts"):
            actorq.train(environment, algorithm="courier:Own", algorithm_args={"seen": object()})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("--resume: expected seed 1: give another --run-directory", "resume: expected seed 1: give another directory"),
        ("give --resume to continue its run", "give resume=True to continue its run"),
        ("give a larger --dqn.batch-size.", "give a larger dqn__batch_size."),
        ("run actorq verify --resume runs/a, or give --seed", "run actorq verify --resume runs/a, or give seed"),
    ],
)
def test_errors_of_the_command_name_arguments(text: str, shown: str) -> None:
    error = with_arguments(UserError(text))
    assert isinstance(error, UserError)
    assert str(error) == shown


def test_other_errors_keep_their_text() -> None:
    error = ActorQError("--resume failed")
    assert with_arguments(error) is error
