"""The launcher's trial of an environment, in its own process."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from actor_service.environments import describe_environment
from actorq.domain.spaces import EnvironmentSpec

TIMEOUT_S = 60.0


def told(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "actor_service.environments", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_the_spec_is_printed_as_json() -> None:
    ended = told("Pendulum-v1")
    assert ended.returncode == 0, ended.stderr
    assert EnvironmentSpec.from_json(json.loads(ended.stdout)) == describe_environment("Pendulum-v1")


@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [
        (("Foo-v9",), "'Foo-v9'"),
        (("CartPole-v1", "--backend", "quick"), "'quick'"),
        ((), "required: id"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], mistake: str) -> None:
    ended = told(*arguments)
    assert ended.returncode == 2
    assert mistake in ended.stderr.splitlines()[-1]


HANGING = """
import signal
import gymnasium

def hang(**_):
    print("made", flush=True)
    signal.pause()

gymnasium.register("Hanging-v0", entry_point=hang)
"""


def test_an_environment_that_hangs_while_it_is_made_ends_with_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging.py").write_text(HANGING, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    command = [sys.executable, "-m", "actor_service.environments", "hanging:Hanging-v0", "--lifeline"]
    held, lifeline = socket.socketpair()
    with held, lifeline, subprocess.Popen(command, stdin=lifeline.fileno(), stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"made\n"
        held.close()
        try:
            assert process.wait(TIMEOUT_S) == 1
        finally:
            process.kill()


def test_it_imports_none_of_the_modules_for_acting() -> None:
    heavy = "{'onnxruntime', 'grpc', 'pydantic'}"
    script = f"import sys, actor_service.environments.__main__; print(sorted({heavy} & set(sys.modules)))"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert ended.stdout.strip() == "[]"
