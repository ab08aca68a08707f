"""The overhead of a short run: CartPole-v1 with one command, over several seeds.

The benchmark measures the wall clock of the whole command and each service's share of the energy. From the actors' logs
it takes the seconds until the first int8 action. A run without measured energy gives no share.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.harness import ONE_SEED, Meaning, Target, run_benchmark, without_verdict
from benchmarks.runs import refusal, train

_FIRST_ACTION = re.compile(r"^(\S+) \S+ INFO .*first action, with policy version \d+ int8$", re.MULTILINE)
_EVALUATOR_SHARE = 0.03


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 1 to N (default: 5)")
    parser.add_argument("rest", nargs="*", help="more flags for actorq train, after --")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    runs = []
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(1, arguments.seeds + 1):
            folder = Path(directory) / f"seed-{seed}"
            began = time.time()
            summary = train(folder, ["--environment", "CartPole-v1", "--seed", str(seed), *arguments.rest])
            runs.append(figures(summary, first_action(folder / "logs", began)))
            print(json.dumps({name: runs[-1][name] for name in runs[-1] if name != "conditions"}), flush=True)
    return {"runs": runs}, without_verdict(targets(runs), refusal(runs))


def first_action(logs: Path, began: float) -> float:
    """Seconds from `began`, in Unix time, to the first int8 action in the logs."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(logs.glob("actor-*.log"))]
    found = [datetime.fromisoformat(moment) for text in texts for moment in _FIRST_ACTION.findall(text)]
    if not found:
        raise SystemExit(f"no log in {logs} has an int8 action")
    # The services log local time.
    return min(moment.timestamp() for moment in found) - began


def figures(summary: dict[str, Any], first_action_s: float) -> dict[str, Any]:
    """The stored figures of a run."""
    energy = summary["energy"]
    return {
        **{name: summary[name] for name in ("seed", "solved", "command_s", "updates", "evaluations_taken")},
        "first_action_s": round(first_action_s, 3),
        "wh": energy["kwh"] and energy["kwh"] * 1e3,
        "energy_method": energy["method"],
        "energy_shares": {
            name: round(of["kwh"] / energy["kwh"], 4) for name, of in energy["per_service"].items() if energy["kwh"]
        },
        "conditions": summary["conditions"],
    }


MEANINGS = (
    Meaning(
        "median seconds of the command",
        "How long does one command take to solve CartPole?",
        "A short run takes longer than planned.",
        unit=" s",
    ),
    Meaning(
        "median seconds to the first int8 action",
        "How long does it take until an actor acts in int8?",
        "The start of a run takes longer than planned. This matters only for short runs.",
        unit=" s",
    ),
    Meaning(
        "median share of the evaluator in the energy",
        "What share of a short run's energy does the evaluator use?",
        "In short runs, evaluation uses more energy than planned.",
        unit="%",
        scale=100,
    ),
)


def targets(runs: Sequence[dict[str, Any]]) -> list[Target]:
    """Medians over the seeds, against the largest allowed overhead."""
    shares = [run["energy_shares"]["evaluator"] for run in runs if "evaluator" in run["energy_shares"]]
    found = [
        Target("seeds solved", sum(run["solved"] for run in runs), len(runs), at_most=False),
        Target("median seconds of the command", statistics.median(run["command_s"] for run in runs), 6.0),
        Target(
            "median seconds to the first int8 action", statistics.median(run["first_action_s"] for run in runs), 3.0
        ),
        Target("runs whose energy was measured", len(shares), len(runs), at_most=False),
        Target(
            "median share of the evaluator in the energy",
            statistics.median(shares) if shares else 1.0,
            _EVALUATOR_SHARE,
        ),
    ]
    return without_verdict(found, ONE_SEED if len(runs) == 1 else "")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
