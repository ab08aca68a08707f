"""Tables of the comparison with other libraries."""

from collections.abc import Iterable
from statistics import median

from benchmarks.libraries.peers.systems import LIBRARIES
from benchmarks.libraries.peers.table import watt_hours
from benchmarks.libraries.peers.tasks import TASKS
from sitegen.markdown import number, spread, table
from sitegen.results import by, newest_runs, of_module


def peers() -> str:
    """Seconds to the target of each library, by the newest result of each task."""
    rows = []
    for task, of_task in by("task", newest_runs(of_module("benchmarks.libraries.peers"))).items():
        ours = median(run["seconds"] for run in of_task if run["system"] == "actorq")
        for system, found in by("system", of_task).items():
            seconds, reached = [run["seconds"] for run in found], sum(run["reached"] for run in found)
            # A run that misses the target counts with its time limit.
            least = "" if reached == len(found) else "at least "
            learning = median(run["seconds"] - (run["start_s"] or 0.0) for run in found)
            of_runs = [_known(run[key] for run in found) for key in ("environment_steps", "steps_per_s")]
            costs = [_known(run["peak_memory_mb"] for run in found), _known(map(watt_hours, found))]
            times = f"{least}{number(median(seconds) / ours)}"
            shown = (task, system, f"{least}{spread(seconds)}", f"{reached} of {len(found)}", learning)
            rows.append((*shown, *of_runs, *costs, times))
    head = ("task", "system", "seconds to the target", "seeds that reached it", "seconds of learning")
    more = ("steps", "steps/s", "MB of all processes", "Wh of the machine", "times as long as ActorQ")
    return table((*head, *more), rows)


def peer_tasks() -> str:
    """The tasks of the comparison with other libraries, and the libraries with settings for them."""
    head = ("task", "target return", "time limit in s", "preset of ActorQ", "other libraries")
    rows = (
        (
            *(task.name, task.target, task.limit_s, f"`{task.preset}`"),
            ", ".join(system for system, library in LIBRARIES.items() if task.name in library.tasks),
        )
        for task in TASKS
    )
    return table(head, rows)


def _known(values: Iterable[float | None]) -> float | None:
    """The median of the measured values; None without one."""
    found = [value for value in values if value is not None]
    return median(found) if found else None
