"""Records the conditions of a benchmark (machine, time, commit, load), and checks which runs may share a verdict."""

import datetime
import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from actorq.telemetry.machine import this_machine
from benchmarks.processor import features, told

# Conditions in the form of JSON: date (UTC), commit, changes, load_average (1, 5 and 15 minutes) and machine. The
# `features` of the machine are names of benchmarks.processor: operations that its processor computes fast.
Conditions = dict[str, Any]

NOT_RECORDED = "not recorded"
_ROOT = Path(__file__).parents[1]
# Benchmarks write results and images into the tree. These do not affect measurements.
_CODE = (".", ":(exclude)docs", ":(exclude)benchmarks/results")


def conditions() -> Conditions:
    """The current conditions.

    commit: of the working tree, NOT_RECORDED outside of one. changes: None, or a digest of what differs from the
    commit in tracked files other than documents and results.
    """
    commit, difference = _git("rev-parse", "HEAD"), _git("diff", "HEAD", "--", *_CODE)
    machine = asdict(this_machine())
    processor = {"cpu": told(machine["cpu"]), "features": list(features())}
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit.decode().strip() or NOT_RECORDED,
        "changes": hashlib.sha256(difference).hexdigest()[:12] if difference else None,
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "machine": {**machine, **processor, "system": platform.platform()},
    }


def refuse_mixed(runs: Mapping[str, Conditions | None]) -> None:
    """Raise SystemExit unless all runs, by name, have the same commit and machine, or none has recorded ones."""
    (first, expected), *others = ((name, _origin(found)) for name, found in runs.items())
    for name, got in others:
        for part in dict.fromkeys([*expected, *got]):
            wanted, found = (each.get(part, NOT_RECORDED) for each in (expected, got))
            if wanted != found:
                raise SystemExit(
                    f"runs of one verdict share commit and machine: expected {part} {wanted} as of {first}, "
                    f"got {found} of {name}; make all of them anew with another --directory"
                )


def without_verdict(runs: Mapping[str, Conditions | None]) -> str:
    """Why these runs, by name, give no verdict; "" if they do. Raises SystemExit if their conditions differ."""
    refuse_mixed(runs)
    commits = {(each or {}).get("commit", NOT_RECORDED) for each in runs.values()}
    return "runs without a recorded commit give no verdict" if NOT_RECORDED in commits else ""


def _origin(found: Conditions | None) -> dict[str, Any]:
    """The conditions that runs of one verdict must share."""
    return {"commit": found["commit"], "changes": found["changes"], **found["machine"]} if found else {}


def _git(*arguments: str) -> bytes:
    try:
        command = ["git", "-C", str(_ROOT), *arguments]
        return subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return b""
