"""A learner names the environment; whether its module is imported is for the actor's own configuration to say."""

import os
import re
from pathlib import Path

import pytest

from actor_service.environments import check_modules
from actorq.domain.environments import NO_ARGUMENTS, EnvironmentArguments, modules_of
from actorq.errors import UserError
from actorq.process import EXIT_USER_ERROR
from tests.actor_service.actor_peers import ScriptedLearner, ScriptedQuantizer, membership, serving
from tests.builders.forked_commands import run

ROOT = Path(__file__).parents[2]
DEADLINE_S = 90.0
# Leaves a file behind when it is imported, and has no environment.
INTRUDER = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
"""


def told_of_the_intruder(folder: Path, *flags: str) -> tuple[int, str, bool]:
    """Exit code and log of an actor whose learner names the module, and whether the actor imported it."""
    (folder / "intruder.py").write_text(INTRUDER)
    learner, quantizer = ScriptedLearner(), ScriptedQuantizer()
    learner.membership = membership(environment_id="intruder:Door-v0")
    with serving(learner) as learner_address, serving(quantizer) as quantizer_address:
        peers = ["--learner", learner_address, "--quantizer", quantizer_address]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
        ended = run("actor_service", *peers, *flags, environment=environment, cwd=ROOT, timeout=DEADLINE_S)
    return ended.returncode, ended.stderr, (folder / "imported").exists()


def test_an_actor_does_not_import_a_module_that_only_its_learner_names(tmp_path: Path) -> None:
    code, log, imported = told_of_the_intruder(tmp_path)
    assert not imported
    assert code == EXIT_USER_ERROR
    assert re.match(r"error: .*'intruder:Door-v0': .*--actor\.allow-modules intruder", log.splitlines()[-1])


@pytest.mark.parametrize(
    "flags", [("--actor.allow-modules", "other,intruder"), ("--environment", "intruder:Window-v0")]
)
def test_an_actor_imports_the_modules_that_its_own_configuration_names(flags: tuple[str, ...], tmp_path: Path) -> None:
    _, log, imported = told_of_the_intruder(tmp_path, *flags)
    assert imported
    assert "'intruder:Door-v0' cannot be made" in log


@pytest.mark.parametrize(
    ("environment_id", "module"),
    [
        ("CartPole-v1", ""),
        ("ALE/Pong-v5", ""),
        ("dm_control/cheetah-run", ""),
        ("own:Mine-v0", "own"),
        ("own.deep:Mine-v0", "own.deep"),
        ("os:own:Mine-v0", "os:own"),
    ],
)
def test_the_module_of_an_environment(environment_id: str, module: str) -> None:
    assert modules_of(environment_id) == ({module} if module else set())
    check_modules(environment_id, NO_ARGUMENTS, {module})
    if module:
        for allowed in ((), {"ow"}, {"own.other"}, {""}):
            with pytest.raises(UserError, match=f"--actor.allow-modules {module}"):
                check_modules(environment_id, NO_ARGUMENTS, allowed)


def test_the_modules_of_wrappers_must_be_allowed_too() -> None:
    wrapped = EnvironmentArguments(wrappers=(("own.deep:Scaled", {"factor": 2}), ("other:Shifted", {})))
    assert modules_of("own:Mine-v0", wrapped) == {"own", "own.deep", "other"}
    check_modules("CartPole-v1", wrapped, {"own.deep", "other"})
    with pytest.raises(UserError, match=r"--actor\.allow-modules own\.deep"):
        check_modules("CartPole-v1", wrapped, {"own", "other"})
