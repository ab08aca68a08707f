"""The frame that all benchmarks share."""

import pytest

from actorq.errors import UserError
from actorq.process import EXIT_USER_ERROR
from benchmarks.harness import run_benchmark


def test_a_users_mistake_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(_: object) -> tuple[dict[str, object], list[object]]:
        raise UserError("-n: expected a namespace with a run, got 'moves'")

    monkeypatch.setattr("sys.argv", ["benchmark", "--check"])
    assert run_benchmark("A benchmark.", lambda parser: None, measure) == EXIT_USER_ERROR  # type: ignore[arg-type]
    assert capsys.readouterr().err == "error: -n: expected a namespace with a run, got 'moves'\n"
