"""The results of a run of benchmarks.libraries.peers, whatever its system is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.libraries.peers.energy import Energy, metered
from benchmarks.libraries.peers.process import Outcome, run_tree
from benchmarks.libraries.peers.tasks import Task
from benchmarks.reached import first_reached


@dataclass(frozen=True)
class Evaluation:
    """seconds: since the start of the command. took_s: how long learning stood still for the evaluation."""

    seconds: float
    environment_steps: int
    mean_return: float
    took_s: float = 0.0


def measured(
    command: Sequence[str],
    given: str,
    task: Task,
    folder: Path,
    on_line: Callable[[float, str], bool],
    variables: Mapping[str, str] | None = None,
) -> tuple[Outcome, Energy | None]:
    """Run a command until a line is enough or the task's time limit is over (run_tree), and measure the energy."""
    with metered() as energy:
        outcome = run_tree(command, given, task.limit_s, _errors(folder), on_line, variables)
        return outcome, energy()


def has_reached(evaluations: Sequence[Evaluation], task: Task) -> bool:
    """Whether the evaluations so far have reached the task's target."""
    return first_reached([one.mean_return for one in evaluations], task.target) is not None


def result(
    task: Task,
    evaluations: Sequence[Evaluation],
    started_s: float | None,
    outcome: Outcome,
    energy: Energy | None = None,
) -> dict[str, Any]:
    """The results of a run.

    reached: whether the run has reached the target (benchmarks.reached). seconds: until the evaluation that reached it,
    else the time limit. environment_steps: until then.
    start_s: seconds until learning began; None if it did not.
    steps_per_s: environment steps per second from then to the last counted evaluation; None without one.
    energy: the machine's watt-hours in these seconds, by its mean power in the whole run; None if not measured.
    evaluations: to the one that confirms the target.
    """
    evaluations = [one for one in evaluations if one.seconds < task.limit_s]
    first = first_reached([one.mean_return for one in evaluations], task.target)
    counted = evaluations if first is None else evaluations[: first + 1]
    last = counted[-1] if counted else Evaluation(task.limit_s, 0, 0.0)
    learning_s = last.seconds - (started_s or 0.0)
    seconds = task.limit_s if first is None else last.seconds
    return {
        "reached": first is not None,
        "seconds": round(seconds, 2),
        "start_s": None if started_s is None else round(started_s, 2),
        "environment_steps": last.environment_steps,
        "steps_per_s": round(last.environment_steps / learning_s, 1) if counted else None,
        "evaluation_s": round(sum(one.took_s for one in counted), 2),
        "peak_memory_mb": round(outcome.peak_memory_mb, 1),
        "energy": None
        if energy is None
        else {
            "wh": round(energy.watt_hours * seconds / outcome.seconds, 4),
            "method": energy.method,
        },
        "evaluations": [
            {"seconds": round(one.seconds, 2), "environment_steps": one.environment_steps, "return": one.mean_return}
            for one in evaluations[: len(counted) + (first is not None)]
        ],
    }


def require_end(found: dict[str, Any], system: str, task: Task, folder: Path, outcome: Outcome) -> None:
    """Raise SystemExit for a run that ended by itself before its limit, but without its target."""
    if not found["reached"] and outcome.seconds < task.limit_s:
        raise SystemExit(
            f"{system} on {task.name} failed with exit code {outcome.returncode}: {_last_line(_errors(folder))}"
        )


def _errors(folder: Path) -> Path:
    return folder / "stderr.log"


def _last_line(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"
