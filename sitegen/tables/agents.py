"""Tables of runs with several agents: tasks, seconds beside other libraries, returns of agents, policies by group."""

from collections.abc import Iterable
from dataclasses import asdict
from statistics import fmean, median

from benchmarks.environments.lift import best_return, best_shared_return, random_return
from benchmarks.training.agents.groups import ONE
from benchmarks.training.agents.systems import OURS
from benchmarks.training.agents.tasks import TASKS
from sitegen.markdown import number, spread, table
from sitegen.results import by, figures

_RESULT = "agents"


def agents_tasks() -> str:
    """The tasks with their returns and time limits."""
    rows = (
        (
            f"`{task.environment}`",
            *(task.agents, task.leave, number(task.random), number(task.best), number(task.target), task.episodes),
            task.limit_s,
        )
        for task in TASKS
    )
    head = ("environment", "agents", "they leave and have masks", "random actions", "best known", "target", "episodes")
    return table((*head, "time limit, s"), rows)


def agents_settings() -> str:
    """The settings that all systems share, by task."""
    given = {task.name: asdict(task.settings) for task in TASKS if task.settings}
    names = dict.fromkeys(name for each in given.values() for name in each)
    rows = ((name.replace("_", " "), *(_shown(each[name]) for each in given.values())) for name in names)
    return table(("setting", *given), rows)


def agents_seconds() -> str:
    """Seconds and environment steps to the target, by task and system."""
    rows = []
    for task, of_task in by("task", figures(_RESULT)["runs"]).items():
        for system, runs in by("system", of_task).items():
            seconds, reached = [run["seconds"] for run in runs], sum(run["reached"] for run in runs)
            # A run that misses the target counts with its time limit.
            least = "" if reached == len(runs) else "at least "
            steps, rates = (_known(run[key] for run in runs) for key in ("environment_steps", "steps_per_s"))
            rows.append((task, system, f"{least}{spread(seconds)}", f"{reached} of {len(runs)}", steps, rates))
    head = ("task", "system", "seconds to the target", "seeds that reached it", "environment steps")
    return table((*head, "environment steps/s"), rows)


def agents_returns() -> str:
    """Returns of the last int8 policies on new episodes, of the team and of each agent."""
    rows = []
    for task, of_task in by("task", figures(_RESULT)["runs"]).items():
        for system, runs in by("system", of_task).items():
            if system not in OURS:
                continue
            returns = ", ".join(number(run["confirmed"]["mean_return"]) for run in runs)
            agents = ", ".join(
                f"{agent} {number(fmean(run['agent_returns'][agent] for run in runs))}"
                for agent in runs[0]["agent_returns"]
            )
            rows.append((task, system, returns, agents))
    return table(("task", "system", "return of each seed", "mean return of each agent"), rows)


def agents_groups() -> str:
    """Returns of one policy and of policies by group, beside the computed bounds."""
    rows: list[tuple[object, ...]] = [("", "random actions", None, number(random_return()), None, None)]
    for algorithm, of_algorithm in by("algorithm", figures("groups")["runs"]).items():
        for side, runs in by("side", of_algorithm).items():
            returns = ", ".join(number(run["confirmed"]["mean_return"]) for run in runs)
            steps = round(median(run["environment_steps"] for run in runs))
            seconds = spread(run["wall_clock_s"] for run in runs)
            rows.append((algorithm, side, returns, number(_bound_of(side)), steps, seconds))
    head = ("algorithm", "policy", "return of each seed", "highest possible return", "environment steps", "seconds")
    return table(head, rows)


def _bound_of(side: str) -> float:
    return best_shared_return() if side == ONE else best_return()


def _known(values: Iterable[float | None]) -> float | None:
    """The median of the measured values; None without one."""
    found = [value for value in values if value is not None]
    return median(found) if found else None


def _shown(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
