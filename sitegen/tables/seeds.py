"""Tables of statistics over tasks and seeds: interquartile means, probabilities of improvement and their intervals."""

from collections.abc import Mapping

from benchmarks.comparison import Comparison, Returns, compare, returns_by_task
from benchmarks.environments.random_returns import random_returns
from benchmarks.harness import Target
from benchmarks.libraries.parity import OURS, THEIRS
from benchmarks.statistics import Estimate, estimate, interquartile_mean, performance_profile
from benchmarks.training import rlx2
from benchmarks.training.returns import scores
from sitegen.markdown import interval, number, percent, table
from sitegen.results import NEWER, Run, figures, newest_runs, older_tables
from sitegen.tables.runs import PARITY, RETURNS, RLX2

_PPO = ("on_policy_ppo", *NEWER["on_policy_ppo"])
# Runs of these results end at the target.
_SPEEDUPS = ("actorq", "actorq_balance")
_QUANTIZED, _BASELINES = ("int8", "int4"), ("torch", "fp32")
_SHARES_OF_TARGET = (0.5, 0.9, 0.99)
_STATISTICS = ("tasks", "runs", "fewest seeds", "interquartile mean, relative", "probability of improvement")


def returns_over_tasks() -> str:
    """The scores of all tasks together: 0 for random actions, 1 at the target."""
    found = scores(newest_runs(RETURNS))
    middle = _interval(estimate(interquartile_mean, found))
    profile = estimate(performance_profile(_SHARES_OF_TARGET), found)
    above = [_percent(profile, index) for index in range(len(_SHARES_OF_TARGET))]
    head = ("tasks", "runs", "interquartile mean of the scores")
    of_targets = (f"runs with a score above {number(share)}" for share in _SHARES_OF_TARGET)
    row = (len(found), sum(map(len, found.values())), middle, *above)
    return table((*head, *of_targets), [row])


def rlx2_over_tasks() -> str:
    """RLx2 compared with each other method, by the newest results."""
    return _rlx2_over_tasks(newest_runs(RLX2))


def older_rlx2_over_tasks() -> str:
    """The same by older results."""
    return older_tables(RLX2, _rlx2_over_tasks)


def _rlx2_over_tasks(runs: list[Run]) -> str:
    found = rlx2.comparisons(runs)
    rows = [
        (f"RLx2 over {other}", *_row(each), _verdict(rlx2.target_over(other, each) if each.tasks > 1 else None))
        for other, each in found.items()
    ]
    return table(("compared", *_STATISTICS, "target"), rows)


def parity_over_tasks() -> str:
    """SAC and TD3 compared with Stable-Baselines3."""
    return _libraries("SAC and TD3", newest_runs(PARITY))


def on_policy_over_tasks() -> str:
    """PPO compared with Stable-Baselines3."""
    return _libraries("PPO", newest_runs(_PPO))


def _libraries(algorithms: str, runs: list[Run]) -> str:
    ours, theirs = (
        returns_by_task((run for run in runs if run["side"] == side), lambda run: float(run["final"]["mean_return"]))
        for side in (OURS, THEIRS)
    )
    environments = {task: task.partition("/")[2] for task in ours}
    rows = _rows({f"{algorithms}, ActorQ over Stable-Baselines3": (ours, theirs)}, environments)
    return table(("compared", *_STATISTICS), rows)


def speedup_over_tasks() -> str:
    """Returns of quantized actors compared with FP32 actors, of the runs to the target."""
    return _quantized(_SPEEDUPS)


def on_policy_wide_over_tasks() -> str:
    """The same for PPO."""
    return _quantized(("on_policy_wide",))


def _quantized(names: tuple[str, ...]) -> str:
    tasks = [task for name in names for task in figures(name)["tasks"]]
    runs = [
        {**run, "task": task["task"], "actors": variant["name"]}
        for task in tasks
        for variant in task["variants"]
        for run in variant["runs"]
    ]
    by_actors = {
        actors: returns_by_task(run for run in runs if run["actors"] == actors) for actors in (*_QUANTIZED, *_BASELINES)
    }
    pairs = {
        f"{scheme} over {baseline}": (by_actors[scheme], by_actors[baseline])
        for scheme in _QUANTIZED
        for baseline in _BASELINES
    }
    return table(("actors", *_STATISTICS), _rows(pairs, {task["task"]: task["environment"] for task in tasks}))


def _rows(pairs: Mapping[str, tuple[Returns, Returns]], environments: Mapping[str, str]) -> list[tuple[object, ...]]:
    """A row for each pair of kinds of runs. Scores are 0 for random actions. environments: of each task."""
    known = random_returns()
    floors = {task: known[environment] for task, environment in environments.items()}
    compared = {name: compare(*sides, floors) for name, sides in pairs.items()}
    return [(name, *_row(each)) for name, each in compared.items() if each is not None]


def _row(found: Comparison) -> tuple[object, ...]:
    return found.tasks, found.runs, found.seeds, _percent(found.share), _percent(found.improvement)


def _verdict(target: Target | None) -> str:
    if target is None:
        return ""
    found = f"**none**: {target.refused}" if target.refused else "met" if target.met else "**missed**"
    return f"lower end at least {percent(target.bound)}: {found}"


def _percent(found: Estimate, index: int | None = None) -> str:
    """An estimate in percent. index: of an estimate with several values."""
    parts = (found.value, found.low, found.high)
    value, low, high = (percent(float(part if index is None else part[index])) for part in parts)
    return f"{value} ({low} to {high})"


def _interval(found: Estimate) -> str:
    """An estimate with its interval."""
    return interval({"value": float(found.value), "low": float(found.low), "high": float(found.high)}, "value")
