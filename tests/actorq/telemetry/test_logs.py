"""The content of log lines, for any quoted text."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable

import pytest

from actorq.telemetry.logs import FloodFilter, JsonFormatter, LineFormatter

FORGED = "actor\n2026-01-01T00:00:00.000 learner INFO learner_service.run.run: the run ends: solved"


def formatted(message: str, *arguments: object, exc_info: object = None) -> str:
    record = logging.LogRecord("module", logging.WARNING, __file__, 1, message, arguments, exc_info)  # type: ignore[arg-type]
    return LineFormatter("learner").format(record)


def caught(error: Exception) -> object:
    try:
        raise error
    except Exception:
        return sys.exc_info()


@pytest.mark.parametrize(
    "text", [FORGED, "\x1b]0;title\x07\x1b[31m", "a\rb", "a\u2028b", "a\u202eb", "a\x85b", "a\x00b"]
)
def test_text_of_a_peer_stays_on_its_line_without_control_characters(text: str) -> None:
    line = formatted("%s joined", text)
    assert line.isprintable()
    assert " learner WARNING module: a" in line or "\\x1b]0;title" in line


def test_a_line_has_at_most_two_kilobytes() -> None:
    line = formatted("refused: %s", "ä" * 10**6)
    assert len(line.encode()) <= 2_000
    assert line.endswith("ä ...")


def test_a_traceback_follows_indented_and_cannot_forge_a_line() -> None:
    lines = formatted("failed", exc_info=caught(ValueError(FORGED + "\x1b[31m"))).splitlines()
    assert lines[0].endswith("learner WARNING module: failed")
    assert lines[1] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") and line.isprintable() for line in lines[1:])
    assert any("ValueError: actor" in line for line in lines)


def test_a_long_traceback_is_shortened_in_the_middle() -> None:
    lines = formatted("failed", exc_info=caught(ValueError("\n".join(map(str, range(5000)))))).splitlines()
    assert len(lines) == 102
    assert lines[-1] == "  4999"
    assert any(line.endswith(" lines ...") for line in lines)


def test_a_percent_sign_in_a_name_is_kept() -> None:
    assert " 50%done WARNING " in LineFormatter("50%done").format(
        logging.LogRecord("module", logging.WARNING, __file__, 1, "message", (), None)
    )


def test_a_process_logs_to_standard_error_in_this_form() -> None:
    program = (
        "import logging; from actorq.telemetry.logs import configure_logging; configure_logging('learner');"
        "logging.getLogger('x').info('a\\nb'); logging.getLogger('grpc').info('c')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == ""
    assert result.stderr.endswith(" learner INFO x: a\\nb\n")
    assert result.stderr.count("\n") == 1


def json_of(message: str, *arguments: object, exc_info: object = None) -> dict[str, str]:
    record = logging.LogRecord("module", logging.WARNING, __file__, 1, message, arguments, exc_info)  # type: ignore[arg-type]
    record.created, record.msecs = 1_767_225_600.25, 250.0
    line = JsonFormatter("actor-0", "actor", "mine").format(record)
    assert line.isprintable()
    values: dict[str, str] = json.loads(line)
    return values


def test_a_json_line_has_time_level_logger_message_and_the_process() -> None:
    assert json_of("%d joined", 3) == {
        "time": "2026-01-01T00:00:00.250Z",
        "level": "WARNING",
        "logger": "module",
        "message": "3 joined",
        "name": "actor-0",
        "role": "actor",
        "run": "mine",
    }


def test_a_json_line_is_bounded_and_no_text_can_forge_another() -> None:
    assert len(json_of("refused: %s", "a" * 10**6)["message"]) <= 2_000
    assert json_of("%s", FORGED)["message"].startswith("actor\\n2026")


def test_a_traceback_is_one_value_of_its_json_line() -> None:
    traceback = json_of("failed", exc_info=caught(ValueError("\n".join(map(str, range(5000))))))["traceback"]
    assert len(traceback.splitlines()) == 101
    assert traceback.startswith("Traceback (most recent call last):")


class Lines(logging.Handler):
    """The lines that pass a filter."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.addFilter(FloodFilter(clock))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_limits_a_flood_of_one_line_and_counts_the_rest() -> None:
    now = 0.0
    handler, log = Lines(lambda: now), logging.Logger("flood")
    log.addHandler(handler)
    for number in range(1000):
        log.warning("%s refused", number)
    assert handler.lines == [f"{number} refused" for number in range(100)]
    log.warning("another place")
    assert handler.lines[-1] == "another place"
    now = 2.0
    for number in range(1000):
        if number == 999:
            now = 1000.0
        log.info("%s joined", number)
    assert "899" in handler.lines[-1]
    assert handler.lines[-1].endswith(" 999 joined")
    assert len(handler.lines) == 100 + 1 + 100 + 1


def test_errors_are_always_written() -> None:
    handler, log = Lines(lambda: 0.0), logging.Logger("flood")
    log.addHandler(handler)
    for number in range(300):
        log.error("fault %d", number)
    assert len(handler.lines) == 300
