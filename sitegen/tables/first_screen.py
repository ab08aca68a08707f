"""Tables of README and home page: the gain from quantized actors, and the gain of the whole system."""

import re
from statistics import median
from typing import Any

from sitegen import results
from sitegen.markdown import interval, number, spread, table

QUANTIZED = ("int8", "int4")
_GAINS = ("actorq", "actorq_balance")
_OURS, _OURS_XQC, _THEIRS = "actorq", "actorq-xqc", ("stable-baselines3", "rllib")
# Tasks of the comparison with other libraries, and ActorQ's system on them.
_TASKS = (
    *((task, _OURS) for task in ("dqn/CartPole-v1", "ppo/CartPole-v1", "dqn/LunarLander-v3", "sac/Pendulum-v1")),
    *((f"sac/{robot}-v5", system) for robot in ("HalfCheetah", "Hopper") for system in (_OURS, _OURS_XQC)),
)
_PEERS = "benchmarks.libraries.peers"
_BASELINES = {"torch": "PyTorch", "fp32": "ONNX Runtime FP32"}

Task = dict[str, Any]
Ratio = dict[str, float]
Run = dict[str, Any]


def tasks_of_gain() -> list[Task]:
    """The comparisons of actors. The widest policies of each algorithm come first."""
    return [task for name in _GAINS for task in results.figures(name)["tasks"]]


def megabytes(task: Task) -> str:
    """The size of the FP32 policy of a comparison of actors."""
    return f"{task['variants'][0]['runs'][0]['fp32_bytes'] / 1e6:.2g}"


def quantization_gain() -> str:
    """Speedup to the target return with quantized actors, over both kinds of FP32 actors."""
    head = [f"{name} over {_BASELINES[baseline]}" for name in QUANTIZED for baseline in _BASELINES]
    rows = []
    for task in tasks_of_gain():
        ratios = _ratios(task)
        gains = (_gain(ratios.get((name, baseline))) for name in QUANTIZED for baseline in _BASELINES)
        size = f"3 x {task['width']} units, {megabytes(task)} MB"
        seeds = min(len(variant["runs"]) for variant in task["variants"])
        rows.append((f"{task['algorithm'].upper()} on {_short(task['environment'])}, {size}", *gains, seeds))
    return table(("task and policy", *head, "seeds"), rows)


def _ratios(task: Task) -> dict[tuple[str, str], Ratio | None]:
    """Speedups to the target, by the names of the actors and of the baseline actors."""
    return {
        (variant["name"], ratio["baseline"]): ratio["time_to_target"]
        for variant in task["variants"]
        for ratio in variant["ratios"]
    }


def _gain(ratio: Ratio | None) -> str:
    """A ratio with its interval. A ratio without an interval, or whose interval contains 1, is no clear gain."""
    if ratio is None:
        return "not reached"
    text = interval(ratio, "value")
    value, _, rest = text.partition(" ")
    return f"**{value}** {rest}" if _is_clear(ratio) else f"{text}, no clear gain"


def _is_clear(ratio: Ratio | None) -> bool:
    return ratio is not None and ratio.get("low") is not None and ratio["low"] > 1


def limits_of_gain() -> str:
    """Limits of the gain from quantized actors, as a list."""
    tasks = tasks_of_gain()
    widest, narrowest = (of(tasks, key=lambda task: int(task["width"])) for of in (max, min))
    size = f"A policy of {megabytes(widest)} MB for {_short(widest['environment']).partition('-')[0]}"
    found = [f"{size} is a stress test. The task needs no policy of that size."]
    gains = _ratios(narrowest)
    if not any(_is_clear(gains.get((name, "fp32"))) for name in QUANTIZED):
        found.append(
            f"Policies of {narrowest['width']} units gain from ONNX Runtime, and not clearly from quantization."
        )
    for name in _GAINS:
        for target in results.load(name)["targets"]:
            what = re.fullmatch(r"(\w+)/(?:\w+/)?([\w-]+)/\d+: (\w+), time to the target over torch", target["name"])
            if target["met"] is False and what:
                missed = f"{what[1].upper()} on {what[2]} **misses its target**, a gain of {number(target['bound'])}."
                found.append(
                    f"{missed} With {what[3]} actors the gain over PyTorch actors is {number(target['measured'])}."
                )
    return "\n".join(f"- {each}" for each in found)


def peers_seconds() -> str:
    """Seconds of the whole command to the same return, of each library."""
    head = ("task", "times faster than SB3", "ActorQ, s", "Stable-Baselines3 (SB3), s", "RLlib, s", "memory over SB3")
    return table((*head, "seeds"), (_peers_row(task, system) for task, system in _TASKS))


def _peers_row(task: str, system: str) -> tuple[object, ...]:
    algorithm, _, environment = task.partition("/")
    runs = _peer_runs(task)
    cells = [_seconds(runs.get(each)) for each in (system, *_THEIRS)]
    name = f"{'XQC' if system == _OURS_XQC else algorithm.upper()} on {environment}"
    if system not in runs or _THEIRS[0] not in runs:
        return (name, None, *cells, None, None)
    ours, theirs = ([run["seconds"] for run in runs[each]] for each in (system, _THEIRS[0]))
    # A seed of the other library that misses the target counts with its time limit.
    least = "" if all(run["reached"] for run in runs[_THEIRS[0]]) else "more than "
    times = f"{least}{median(theirs) / median(ours):.1f}"
    overlap = max(ours) >= min(theirs) and max(theirs) >= min(ours)
    memory = [median(run["peak_memory_mb"] for run in runs[each]) for each in (system, _THEIRS[0])]
    gain = f"{times}, ranges overlap" if overlap else f"**{times}**"
    return (name, gain, *cells, f"{memory[0] / memory[1]:.1f}", min(map(len, runs.values())))


def _seconds(runs: list[Run] | None) -> str:
    """Median and range. Seeds that miss the target count with their time limit."""
    if not runs:
        return "not measured"
    seconds, reached = [run["seconds"] for run in runs], sum(run["reached"] for run in runs)
    if reached == len(runs):
        return spread(seconds)
    soonest = f", the first after {number(min(seconds))}" if reached else ""
    return f"more than {number(median(seconds))} ({reached} of {len(runs)} seeds reached it{soonest})"


def _peer_runs(task: str) -> dict[str, list[Run]]:
    """The runs of the newest result that has the task, by library."""
    for name in reversed(results.of_module(_PEERS)):
        found: dict[str, list[Run]] = {}
        for run in results.figures(name)["runs"]:
            if run["task"] == task:
                found.setdefault(run["system"], []).append(run)
        if found:
            return found
    return {}


def commands() -> str:
    """The command of each result behind these tables, with its machine."""
    rows = []
    for name in (*_GAINS, *sorted(results.of_module(_PEERS))):
        machine = results.load(name)["machine"]
        rows.append((f"`{name}.json`", f"`{results.command(name)}`", f"{machine['cpu']}, {machine['cores']} cores"))
    return table(("result", "command", "machine"), rows)


def _short(environment: str) -> str:
    return environment.rpartition("/")[2]
