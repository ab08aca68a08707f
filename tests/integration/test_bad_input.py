"""A user's mistake is one line that says what was expected and what to do, exit code 2, and changes nothing."""

import os
import re
import socket
from pathlib import Path

import pytest

from tests.integration.training_run import actorq

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["train", "--environment", "Nowhere-v0"], "Nowhere-v0"),
        (["train", "--dqn.batch-size", "many"], "dqn.batch_size"),
        (["train", "--environment", "Pendulum-v1", "--algorithm", "dqn"], "discrete"),
        (["train", "--network", "typo:foo"], "network: typo "),
        (["train", "--algorithm", "typo:Foo"], "algorithm typo:Foo"),
        (["train", "--learner.device", "cuda:7"], "cuda:7"),
        (["learner", "--listen", "127.0.0.1"], "HOST:PORT"),
        (["quantizer", "--listen", "127.0.0.1:99999999"], "HOST:PORT"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_ends_with_one_line(arguments: list[str], fact: str, tmp_path: Path) -> None:
    result = actorq(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert fact in result.stderr
    # A folder of the first command would block the corrected command.
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_images_too_small_for_our_networks_name_the_setting_before_any_service_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "user_modules")]))
    result = actorq("train", "--environment", "environment_doubles:TinyImages-v0", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch("error: .*TinyImages-v0.*3 x 3 .*2 x 8.*--network.*\n", result.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("Uneven-v0",), r"achieved_goal .*desired_goal .*\[1\] .*\[2\]"),
        (("Failing-v0",), r"compute_reward .*KeyError: 'speed'.*--hindsight\.copies 0"),
        (("NotANumber-v0",), "compute_reward .*nan"),
        (("Endless-v0",), "time limit.*--environment-args"),
        (("Line-v0", "--dqn.n-step", "3"), r"'dqn\.n_step': .*hindsight .*3"),
        (("Line-v0", "--target-success", "0.9", "--target-return", "1"), "target_success .*target_return"),
        (("Line-v0", "--hindsight.copies", "17"), r"hindsight\.copies.*16"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_goals_that_hindsight_cannot_use_are_refused_before_any_service_starts(
    arguments: tuple[str, ...], fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "user_modules")]))
    environment, *flags = arguments
    result = actorq("train", "--environment", f"goal_environments:{environment}", *flags, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert re.search(fact, result.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("service", ["learner", "quantizer"])
def test_a_port_in_use_ends_with_one_line(service: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        address = f"127.0.0.1:{occupied.getsockname()[1]}"
        result = actorq(service, "--listen", address, cwd=tmp_path)
    assert result.returncode == 2
    assert re.fullmatch(f"error: .*{address}.*\n", result.stderr)
    assert list(tmp_path.iterdir()) == []
