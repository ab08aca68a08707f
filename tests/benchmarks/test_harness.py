"""The frame that all benchmarks share."""

import pytest

from actorq.errors import UserError
from actorq.process import EXIT_USER_ERROR
from benchmarks.harness import run_benchmark


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (
            UserError("-n: expected a namespace, got 'moves'"),
            EXIT_USER_ERROR,
            "error: -n: expected a namespace, got 'moves'\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_mistakes_and_ctrl_c_get_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    told: str,
) -> None:
    def measure(_: object) -> tuple[dict[str, object], list[object]]:
        raise error

    monkeypatch.setattr("sys.argv", ["benchmark", "--check"])
    assert run_benchmark("A benchmark.", lambda parser: None, measure) == code  # type: ignore[arg-type]
    assert capsys.readouterr().err == told
