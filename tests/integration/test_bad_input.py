"""A user's mistake is one line that says what was expected and what to do, exit code 2, and changes nothing."""

import os
import socket
from pathlib import Path

import pytest

from tests.integration.training_run import actorq

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "--environment", "Nowhere-v0"], "Nowhere-v0"),
        (["train", "--dqn.batch-size", "many"], "dqn.batch_size"),
        (["train", "--environment", "Pendulum-v1", "--algorithm", "dqn"], "discrete"),
        (["train", "--network", "typo:foo"], "network: typo cannot be imported"),
        (["train", "--algorithm", "typo:Foo"], "typo cannot be imported"),
        (["train", "--learner.device", "cuda:7"], "learner.device is cuda:7"),
        (["learner", "--listen", "127.0.0.1"], "HOST:PORT"),
        (["quantizer", "--listen", "127.0.0.1:99999999"], "HOST:PORT"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_told_in_one_line(arguments: list[str], expected: str, tmp_path: Path) -> None:
    result = actorq(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert expected in result.stderr
    # A folder of the first try would stand in the way of the corrected one.
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_images_too_small_for_our_networks_name_the_setting_before_any_service_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "user_modules")]))
    result = actorq("train", "--environment", "environment_doubles:TinyImages-v0", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "error: environment environment_doubles:TinyImages-v0: expected images of at least 3 x 3 pixels, got 2 x 8; "
        "give --network MODULE:FUNCTION for layers of your own\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("Uneven-v0",), "achieved_goal and desired_goal must have one shape, got [1] and [2]"),
        (("Failing-v0",), "compute_reward has failed: KeyError: 'speed'; --hindsight.copies 0 trains without it"),
        (("NotANumber-v0",), "compute_reward must return finite numbers, got nan"),
        (("Endless-v0",), "has goals, but no time limit, which hindsight needs: give --environment-args"),
        (("Line-v0", "--dqn.n-step", "3"), "setting 'dqn.n_step': hindsight needs returns of one step, got 3: leave"),
        (("Line-v0", "--target-success", "0.9", "--target-return", "1"), "target_success and target_return exclude"),
        (("Line-v0", "--hindsight.copies", "17"), "hindsight.copies"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_goals_that_hindsight_cannot_use_are_told_before_any_service_starts(
    arguments: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "user_modules")]))
    environment, *flags = arguments
    result = actorq("train", "--environment", f"goal_environments:{environment}", *flags, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert expected in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("service", ["learner", "quantizer"])
def test_a_port_in_use_is_told_in_one_line(service: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        address = f"127.0.0.1:{occupied.getsockname()[1]}"
        result = actorq(service, "--listen", address, cwd=tmp_path)
    assert result.returncode == 2
    errors = [line for line in result.stderr.strip().splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert address in errors[0]
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []
