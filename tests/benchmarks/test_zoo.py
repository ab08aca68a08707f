"""The stored policies of the zoo load as in an actor and reach their thresholds. Its settings are complete."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from actorq.config.run_config import RunConfig
from actorq.errors import UserError
from actorq.inference import description_file
from actorq.process import Sources, argument_parser
from actorq_apps.cli.train import TrainSettings
from benchmarks.training.zoo.policies import digests, evaluate
from benchmarks.training.zoo.settings import RESULTS, Setting, command_of, settings_of
from benchmarks.training.zoo.tasks import POLICIES, TASKS
from sitegen.results import figures
from sitegen.tables.runs import RETURNS

RUNS: list[dict[str, Any]] = figures("zoo")["runs"]
EPISODES, SEED = 10, 77
# The modules that some environments need, by a part of their ids.
_MODULES = {"LunarLander": "Box2D"}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run["task"]))
def test_a_stored_policy_reaches_its_threshold(run: dict[str, Any]) -> None:
    for part, module in _MODULES.items():
        if part in run["task"]:
            pytest.importorskip(module, reason=f"{run['task']} needs {module}")
    found = evaluate(POLICIES / run["policy"]["file"], EPISODES, SEED)
    assert len(found.returns) == EPISODES
    assert found.scheme == run["confirmed"]["scheme"]
    assert sum(found.returns) / EPISODES >= run["policy"]["threshold"]


def test_every_task_has_a_stored_policy_with_its_digests() -> None:
    assert [(run["task"], run["policy"]["threshold"]) for run in RUNS] == [
        (task.name, task.threshold) for task in TASKS
    ]
    files = [POLICIES / task.file for task in TASKS]
    assert {*POLICIES.iterdir()} == {*files, *map(description_file, files)}
    for run, file in zip(RUNS, files, strict=True):
        assert digests(file).items() <= run["policy"].items()


def test_a_damaged_policy_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policy.onnx"
    stored = POLICIES / TASKS[0].file
    shutil.copy(description_file(stored), description_file(file))
    data = bytearray(stored.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match="the file is not the one that"):
        evaluate(file, 1, SEED)


def test_the_settings_have_the_newest_result_of_each_preset() -> None:
    assert ("presets", *RETURNS) == RESULTS
    old, new, other = (
        {"task": "dqn/a/b", "seed": seed, **more} for seed, more in ((1, {}), (2, {}), (3, {"preset": "x"}))
    )
    assert settings_of([[old, old], [new], [other]]) == {
        Setting("dqn", "a/b", "standard"): [new],
        Setting("dqn", "a/b", "x"): [other],
    }


@pytest.mark.parametrize("name", RESULTS)
def test_the_commands_of_the_settings_are_those_of_the_runs(name: str) -> None:
    runs = json.loads((POLICIES.parent / f"{name}.json").read_text(encoding="utf-8"))["figures"]["runs"]
    models = (TrainSettings, RunConfig)
    for setting, (run, *_) in settings_of([runs]).items():
        words = shlex.split(command_of(setting, run["target_return"]))[2:]
        given = argument_parser("actorq train", "", models).parse_args(words)
        config = Sources.read(models, given).resolve(RunConfig)
        assert (config.algorithm, config.environment) == (setting.algorithm, setting.environment)
        assert config.target_return == run["target_return"]
