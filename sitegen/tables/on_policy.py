"""Tables of on-policy training: returns and speed compared with another library, throughput."""

from itertools import groupby
from statistics import fmean, median, stdev
from typing import Any

from benchmarks.libraries.parity import OURS, THEIRS, verdict
from sitegen.markdown import percent, table
from sitegen.results import NEWER, Run, beside, figures, newest_runs, older_tables

_PPO = ("on_policy_ppo", *NEWER["on_policy_ppo"])


def on_policy_ppo() -> str:
    """Returns and steps per second of PPO in both libraries, by task, of the newest result."""
    return _both_libraries(newest_runs(_PPO))


def older_on_policy_ppo() -> str:
    """The same of older results."""
    return older_tables(_PPO, _both_libraries)


def _both_libraries(runs: list[Run]) -> str:
    returned, speeds = [], []
    for task in dict.fromkeys(run["task"] for run in runs):
        ours, theirs = ([run for run in runs if (run["task"], run["side"]) == (task, side)] for side in (OURS, THEIRS))
        rates = [median(run["environment_steps"] / run["seconds"] for run in side) for side in (ours, theirs)]
        returns = (_mean_and_deviation(side) for side in (ours, theirs))
        mismatch = fmean(run["rollout_queue"]["mismatch"] for run in ours)
        returned.append((task, len(ours), *returns, beside(verdict(task, ours, theirs))))
        speeds.append((task, *(f"{rate:,.0f}" for rate in rates), rates[0] / rates[1], f"{mismatch:.4f}"))
    head = (
        "task",
        "seeds",
        "return, ActorQ int8",
        "return, Stable-Baselines3 fp32",
        "ActorQ's mean compared with the other",
    )
    by_speed = (
        "task",
        "steps/s, ActorQ int8",
        "steps/s, Stable-Baselines3 fp32",
        "steps/s vs Stable-Baselines3",
        "mismatch",
    )
    return f"{table(head, returned)}\n\n{table(by_speed, speeds)}"


def on_policy_steps() -> str:
    """Steps per second of whole runs."""
    runs = figures("on_policy_steps")["runs"]
    rows = [(each, f"{run['steps_per_s']:,.0f}", percent(run["starved_share"])) for each, run in enumerate(runs, 1)]
    return table(("run", "environment steps per second", "learner starved"), rows)


def on_policy_layouts() -> str:
    """Steps per second of synchronous and asynchronous runs."""
    rows = []
    for each in figures("on_policy_layouts")["layouts"]:
        rates = [each["steps_per_s"][mode] for mode in ("synchronous", "asynchronous")]
        rows.append((each["actors"], each["segments"], *rates, percent(rates[0] / rates[1])))
    head = ("actors", "segments of each in a rollout", "steps/s, synchronous", "steps/s, asynchronous")
    return table((*head, "synchronous, of asynchronous"), rows)


def on_policy_missing_actor() -> str:
    """Steps per second before and after one actor stops."""
    rows = [
        (each["actors"], each["all"], each["without"], percent(each["without"] / each["all"]))
        for each in figures("on_policy_missing_actor")["rows"]
    ]
    return table(("actors", "steps/s of all", "steps/s without one of them", "share"), rows)


def on_policy_lag() -> str:
    """Returns of IMPALA without lag, with lag, and with lag but without V-trace's weights."""
    rows = [
        (run["side"], run["seed"], run["mean_return"], run["rollout_queue"]["policy_lag"])
        for run in sorted(figures("on_policy_lag")["runs"], key=lambda run: str(run["side"]))
    ]
    return table(("run", "seed", "return", "mean lag, versions"), rows)


def on_policy_correction() -> str:
    """Returns of PPO with FP32 actors, and with int4 actors with and without importance weights, by task."""
    rows = []
    for (task, side), runs in groupby(
        sorted(figures("on_policy_correction")["runs"], key=_task_and_side), key=_task_and_side
    ):
        found = list(runs)
        mismatch = fmean(run["rollout_queue"]["mismatch"] for run in found)
        rows.append((task, side, *(run["mean_return"] for run in found), f"{mismatch:.4f}"))
    seeds = len({run["seed"] for run in figures("on_policy_correction")["runs"]})
    return table(("task", "runs", *(f"return, seed {seed}" for seed in range(1, seeds + 1)), "mismatch"), rows)


def _task_and_side(run: dict[str, Any]) -> tuple[str, str]:
    return run["task"], run["side"]


def _mean_and_deviation(runs: list[dict[str, Any]]) -> str:
    returns = [run["final"]["mean_return"] for run in runs]
    spread = f" ± {stdev(returns):,.1f}" if len(returns) > 1 else ""
    return f"{fmean(returns):,.1f}{spread}"
