"""The ten most important questions about ActorQ, with the stored results in words."""

import re
from collections.abc import Callable, Sequence
from dataclasses import astuple
from statistics import median
from typing import Any

from benchmarks.harness import Target
from benchmarks.libraries import parity as libraries
from benchmarks.processor import DOT_PRODUCT
from benchmarks.training import rlx2
from sitegen import verdicts
from sitegen.markdown import number, percent, table
from sitegen.results import NEWER, figures, load, newest_runs, of_module, target_of
from sitegen.tables.runs import RLX2
from sitegen.verdicts import plain

# Names of the targets that two answers use.
_SOONER, _CARBON = r".+, time to the target over torch", r".+, carbon over torch"
_PARITY = ("parity", *NEWER["parity"])
_PPO = ("on_policy_ppo", *NEWER["on_policy_ppo"])
_SIDES = (libraries.OURS, libraries.THEIRS)


def answers() -> str:
    """Each question with its answer. The questions are links to their pages."""
    asked: tuple[tuple[str, Callable[[], list[str]], str], ...] = (
        ("Do runs with quantized actors reach the target return sooner?", _sooner, "speedup.md"),
        ("Do they save energy?", _energy, "energy.md"),
        ("Do int8 runs return as much as runs of Stable-Baselines3?", _returns, "parity.md"),
        ("How often does an int8 policy act like its FP32 form?", _fidelity, "fidelity.md"),
        ("Does int8 make a policy answer faster?", _inference, "inference.md"),
        ("How soon does an actor act with a new policy?", _publication, "swap.md"),
        ("How long do other libraries take to the same return?", _peers, "peers.md"),
        ("How long does one command take to solve CartPole?", _start, "start.md"),
        ("What is lost when processes are killed?", _faults, "faults.md"),
        ("What does training with sparse networks reach?", _sparse, "rlx2.md"),
    )
    return table(("question", "result"), [(f"[{ask}]({page})", "<br>".join(say())) for ask, say, page in asked])


def _sooner() -> list[str]:
    return [
        f"{_task(each)}: **{number(each.measured)} times** sooner than PyTorch actors{_missed(each)}."
        for each in _targets(("actorq", "actorq_balance"), _SOONER)
    ]


def _energy() -> list[str]:
    return [
        f"{_task(each)}: **{number(each.measured)} times** less carbon than with PyTorch actors{_missed(each)}."
        for each in _targets(("actorq", "actorq_balance"), _CARBON)
    ]


def _returns() -> list[str]:
    """Numbers of tasks, by the comparison of their mean with the other library's."""
    runs = [*newest_runs(_PARITY), *newest_runs(_PPO)]
    found = {}
    for task in dict.fromkeys(run["task"] for run in runs):
        sides = ([run for run in runs if (run["task"], run["side"]) == (task, side)] for side in _SIDES)
        found[task] = libraries.verdict(task, *sides)
    lower = [plain(task) for task, each in found.items() if each.met_by_spread]
    missed = [plain(task) for task, each in found.items() if not each.met]
    lines = [f"Not clearly lower on **{len(found) - len(lower) - len(missed)} of {len(found)}** tasks."]
    if lower:
        lines.append(f"Clearly lower, within the wide spread of the other library's seeds: {', '.join(lower)}.")
    if missed:
        lines.append(f"Lower: {', '.join(missed)}.")
    return [*lines, "[PPO](on-policy.md) has a separate page."]


def _fidelity() -> list[str]:
    policies = figures("fidelity")["policies"]
    errors = [variants["int8"]["errors"]["32"] for variants in policies.values()]
    agreements = [each["agreement"] for each in errors if each["agreement"] is not None]
    continuous = max(each["mean_error"] for each in errors if each["agreement"] is None)
    return [
        f"Discrete actions: the same action in **{percent(min(agreements), 1)}** of the observations or more.",
        f"Continuous actions: a mean error of {percent(continuous, 2)} of their range.",
    ]


def _inference() -> list[str]:
    cells = [each for each in figures("inference")["cells"] if each["batch"] == 1 and each["network"].startswith("mlp")]
    times = {each["network"]: each["timings"]["fp32"]["median"] / each["timings"]["int8"]["median"] for each in cells}
    most = max(times, key=lambda network: times[network])
    lines = [f"{_network(most)}: **{number(times[most])} times** faster than ONNX Runtime in FP32."]
    slower = [network for network, value in times.items() if value < 1]
    return [*lines, *(f"{_network(each)}: {number(times[each])} times, so slower." for each in slower)]


def _publication() -> list[str]:
    runs = figures("publication")["runs"]
    return [f"**{number(median(run['activation_ms'] for run in runs))} ms** after the learner's snapshot (median)."]


def _peers() -> list[str]:
    results = of_module("benchmarks.libraries.peers")
    runs = newest_runs(results)
    lines = []
    for system, name in {"stable-baselines3": "Stable-Baselines3", "rllib": "RLlib"}.items():
        times = sorted(each.measured for each in _targets(results, rf".+: median seconds of {system} over .+"))
        # A run that misses the target counts with its time limit.
        least = "" if all(run["reached"] for run in runs if run["system"] == system) else "at least "
        lines.append(f"{name}: **{least}{number(times[0])} to {number(times[-1])} times** as long, by task.")
    return lines


def _start() -> list[str]:
    runs = figures("start")["runs"]
    seconds = median(run["command_s"] for run in runs)
    return [
        f"**{number(seconds)} s** from the command to its end (median).",
        f"{sum(run['solved'] for run in runs)} of {len(runs)} seeds solve it.",
    ]


def _faults() -> list[str]:
    found = figures("chaos")
    counts = found["transitions"]
    slowest = max(each["longest_s"] for each in found["recovery"].values())
    return [
        f"**{number(counts['lost'])}** of {number(counts['acknowledged'])} acknowledged transitions, "
        f"in {found['faults']} faults.",
        f"{number(counts['twice'])} transitions are stored twice.",
        f"Steps grow again after {number(slowest)} s at most.",
    ]


def _sparse() -> list[str]:
    every = [each for name in RLX2 for each in verdicts.of(name) if ": rlx2 over control, return" in each.target.name]
    found = [each.target for each in every if each.newest is each and not each.target.refused]
    sizes = sorted(each.measured for each in _targets(("sparse_policy",), r".+: times fewer bytes \(.+"))
    shares = sorted(each.measured for each in found)
    over_tasks = rlx2.comparisons(newest_runs(RLX2))[rlx2.CONTROL]
    middle, low, high = (percent(float(each)) for each in astuple(over_tasks.share))
    return [
        f"**{percent(shares[0])} to {percent(shares[-1])}** of a dense network's return, by task.",
        f"Interquartile mean over {over_tasks.tasks} tasks: {middle} ({low} to {high}).",
        f"The target of {percent(found[0].bound)} is met on {sum(each.met for each in found)} of {len(found)} tasks.",
        f"The policies have {number(sizes[0])} to {number(sizes[-1])} times fewer bytes.",
    ]


def _targets(names: Sequence[str], pattern: str) -> list[Target]:
    """Targets of these results whose full names match, except those for processors without an int8 dot product."""
    stored: list[dict[str, Any]] = [each for name in names for each in load(name)["targets"]]
    found = [target_of(each) for each in stored if re.fullmatch(pattern, each["name"])]
    return [each for each in found if each.needs in ("", DOT_PRODUCT)]


def _task(target: Target) -> str:
    """The task and the scheme in the name of a target of the comparison with PyTorch actors."""
    task, _, rest = target.name.partition(": ")
    return f"{plain(task)}, {rest.partition(',')[0]}"


def _missed(target: Target) -> str:
    return "" if target.met else f" (the target of {number(target.bound)} is missed)"


def _network(name: str) -> str:
    width = name.rpartition(" ")[2]
    return f"Layers of {number(int(width))} units, batch of one"
