"""The fuzzer at work on real services, for a few messages."""

import json
import random
from pathlib import Path

from benchmarks.faults.fuzz.__main__ import _log_faults, _publishing
from benchmarks.faults.fuzz.targets import Member, all_targets
from benchmarks.processes import ServiceProcess
from tests.builders.forked_commands import run

ROOT = Path(__file__).parents[3]


def test_a_few_hundred_hostile_messages_do_no_harm(tmp_path: Path) -> None:
    result = tmp_path / "fuzz.json"
    flags = ("--messages", "400", "--seed", "7", "--json", str(result))
    process = run("benchmarks.faults.fuzz", *flags, cwd=ROOT, timeout=220)
    assert process.returncode == 0, process.stderr
    figures = json.loads(result.read_text(encoding="utf-8"))["figures"]
    assert figures["messages"] >= 400
    assert figures["undocumented"] == []
    assert figures["log_faults"] == []
    assert {status.partition(" ")[0] for status in figures["statuses"]} == {"learner", "quantizer", "relay", "actor"}


def test_what_ends_something_is_never_asked_for() -> None:
    rng = random.Random(1)
    ending = [target for target in all_targets(_publishing()) if target.ends_something]
    assert {target.path.rpartition("/")[2] for target in ending} >= {"StopRun", "Drain"}
    for target in ending:
        for _ in range(200):
            assert not target.parses(target.messages(rng, Member("", 0))[-1])


def test_a_traceback_and_an_unprintable_line_are_faults() -> None:
    log = ["fine\n", "  Traceback (most recent call last):\n", "a\x1b[2Jb\n", "x" * 3000 + "\n"]
    service = ServiceProcess("", None, log)  # type: ignore[arg-type]
    assert len(_log_faults({"learner": service})) == 3
