"""ActorQ's table: whole runs with actors in PyTorch FP32, ONNX Runtime FP32, int8 and int4.

Each task is one comparison (`actorq compare`). Its runs differ only in their actors, and take turns. As in the paper,
one actor steps one environment. The learner updates so rarely that the actor is the bottleneck. Time to the target
starts at the first stored transition. The target is fixed in advance. At the end the last policy of each run plays new
episodes, in the form that actors use.

The runs of the short form end after 60,000 steps, with `--device cuda` after 300,000. Its verdict is about steps per
second, which vary little between seeds. The long form has three seeds. Its verdict is about seconds to the target,
energy and returns.

Runs are kept in --directory. Finished runs are not repeated, so the long form can be made in parts. All must come from
one commit on one machine.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import ONE_SEED, Meaning, Target, run_benchmark, without_verdict
from benchmarks.processor import DOT_PRODUCT, NO_DOT_PRODUCT
from benchmarks.runs import begin, cached, chosen, confirm, in_order, recorded, refusal
from benchmarks.speedup.actorq_plot import plot

SCHEMES = ("torch", "fp32", "int8", "int4")
_BASELINES, _QUANTIZED = SCHEMES[:2], SCHEMES[2:]
_WIDE = 2048
# The paper's best results over the same actor in PyTorch: 5.41 in time and 3.76 in carbon.
_OVER_TORCH, _OVER_FP32, _CARBON_OVER_TORCH, _STARVED = 8.0, 4.0, 4.0, 0.5
# Without an int8 dot product integer products take about twice as long.
_OVER_TORCH_WITHOUT, _OVER_FP32_WITHOUT = 5.0, 3.0
_CONFIDENCE = 0.95
# Length of a run of the short form, by the learner's device. With many actors the same seconds take more steps.
_SHORT_STEPS = {"cpu": 60_000, "cuda": 300_000}


@dataclass(frozen=True)
class Task:
    """An environment, an algorithm with a width, and the target return.

    form: "short" for tasks of both forms, "long" for tasks of the long form only, "" for tasks only in --task.
    to_target: more flags for runs that end at the target.
    """

    environment: str
    algorithm: str
    width: int
    target: float
    steps: int
    flags: tuple[str, ...]
    form: str = ""
    episodes: int = 100
    to_target: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name that the patterns of --task match."""
        return f"{self.algorithm}/{self.environment}/{self.width}"

    @property
    def schemes(self) -> tuple[str, ...]:
        """The actors' schemes. Narrow policies also have auto, which chooses fp32 if int8 gains nothing."""
        return SCHEMES if self.width >= _WIDE else (*SCHEMES, "auto")

    @property
    def folder(self) -> str:
        """The name of the task in file names."""
        return self.name.replace("/", "-")


# The learner makes one update of 64 samples per 400 steps, and at most 8 updates in advance. The actor is therefore the
# bottleneck, even a fast one. Work of the learner and the quantizer slows an actor on the same machine, through the
# shared memory bandwidth. Short segments and a pool of EnvPool would cost a single environment more than they save.
_ONE_BY_ONE = (
    *("--actors", "1", "--environments-per-actor", "1", "--actor.segment-length", "128"),
    *("--publication.period-updates", "16", "--evaluation.period-updates", "20", "--learner.precision", "auto"),
    *("--rate-limiter.samples-per-insert", "0.16", "--rate-limiter.error-buffer", "512"),
)


def _dqn(environment: str, width: int, target: float, steps: int, *flags: str, form: str = "") -> Task:
    sizes = ("--dqn.hidden-sizes", ",".join([str(width)] * 3), "--dqn.batch-size", "64")
    # The change of a network's outputs in one update grows with its width.
    rate = ("--dqn.learning-rate", f"{0.512 / width:g}", "--dqn.target-update-period", "20")
    explore = ("--exploration.epsilon", "0.7", "--evaluation.episodes", "10")
    return Task(environment, "dqn", width, target, steps, (*_ONE_BY_ONE, *sizes, *rate, *explore, *flags), form)


def _d4pg(name: str, width: int, target: float, steps: int, *flags: str, form: str = "") -> Task:
    sizes = ("--d4pg.policy-sizes", ",".join([str(width)] * 3), "--d4pg.critic-sizes", "256,256")
    rates = ("--d4pg.policy-learning-rate", f"{0.0512 / width:g}", "--d4pg.critic-learning-rate", "1e-3")
    values = ("--d4pg.batch-size", "64", "--d4pg.value-min", "0", "--d4pg.value-max", "100")
    explore = ("--d4pg.target-update-period", "10", "--exploration.noise", "1", "--evaluation.episodes", "5")
    flags = (*_ONE_BY_ONE, *sizes, *rates, *values, *explore, *flags)
    # With the default share of the machine, a run of a minute has only a few evaluations. An update of the critic costs
    # little compared with one of the wide policy, which then makes larger steps. The actor has most of the memory
    # bandwidth.
    often = ("--evaluation.episodes", "3", "--evaluation.share", "0.1", "--d4pg.target-update-period", "20")
    critic = ("--d4pg.policy-delay", "8", "--d4pg.policy-learning-rate", f"{0.1024 / width:g}")
    rarely = ("--rate-limiter.samples-per-insert", "0.32", "--publication.period-updates", "32")
    to_target = (*often, *critic, *rarely)
    return Task(f"dm_control/{name}", "d4pg", width, target, steps, flags, form, episodes=50, to_target=to_target)


_SHORT_MEMORY = ("--replay.capacity", "20000", "--no-replay.prioritized")
# CartPole-v0 is the paper's CartPole, with at most 200 steps. The settings of the first two tasks were tuned for few
# updates at width 2048. Tasks without a form were not tuned.
TASKS = (
    _dqn("CartPole-v0", 2048, 195.0, 300_000, *_SHORT_MEMORY, form="short"),
    _d4pg("cartpole-balance", 2048, 800.0, 300_000, form="short"),
    _dqn("CartPole-v0", 256, 195.0, 300_000, *_SHORT_MEMORY, form="long"),
    _d4pg("cartpole-balance", 256, 800.0, 300_000, form="long"),
    *(_dqn("Acrobot-v1", width, -100.0, 500_000) for width in (256, 2048)),
    *(_dqn("MountainCar-v0", width, -120.0, 1_000_000) for width in (256, 2048)),
    *(_d4pg("walker-stand", width, 900.0, 2_000_000) for width in (256, 2048)),
    *(_d4pg("reacher-easy", width, 900.0, 2_000_000) for width in (256, 2048)),
    *(_d4pg("reacher-hard", width, 900.0, 2_000_000) for width in (256, 2048)),
    *(_d4pg("finger-spin", width, 800.0, 2_000_000) for width in (256, 2048)),
    *(_d4pg("cheetah-run", width, 300.0, 5_000_000) for width in (256, 2048)),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--form",
        choices=("short", "long"),
        default="short",
        help="short runs of one seed, or three seeds to the target (default: short)",
    )
    parser.add_argument(
        "--task",
        action="append",
        metavar="PATTERN",
        help="ALGORITHM/ENVIRONMENT/WIDTH, shell patterns (default: the tasks of the form)",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds 1 to N of each task (default: the form's)")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="the learner's device; cuda: an actor for each core"
    )
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the table to FILE, such as a PNG")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    tasks = tasks_of(arguments.form, arguments.task)
    seeds = arguments.seeds or (3 if arguments.form == "long" else 1)
    results, targets = [], []
    with tempfile.TemporaryDirectory() as nowhere:
        for task in (of_form(task, arguments) for task in tasks):
            result = compare(task, seeds, arguments.device, arguments.directory or Path(nowhere))
            results.append(result)
            print("\n".join(rows(result)), flush=True)
            targets += without_verdict(verdicts(task, result, arguments.form), refusal([result]))
    if arguments.plot:
        plot(results, arguments.plot, "throughput" if arguments.form == "short" else "time_to_target")
    return {"tasks": results}, targets


def tasks_of(form: str, patterns: Sequence[str] | None) -> list[Task]:
    """The tasks that match the patterns; without patterns the tasks of the form."""
    if patterns:
        return chosen(TASKS, patterns)
    return [task for task in TASKS if task.form == "short" or task.form == form]


def of_form(task: Task, arguments: argparse.Namespace) -> Task:
    """The task with the length and the flags of the form."""
    if arguments.form == "short":
        return replace(task, steps=min(task.steps, _SHORT_STEPS[arguments.device]))
    return replace(task, flags=(*task.flags, *task.to_target))


def compare(task: Task, seeds: int, device: str, directory: Path) -> dict[str, Any]:
    """Make the task's missing runs. Returns the comparison, with the `confirmed` return of each run.

    Raises SystemExit if the comparison fails, or if runs in `directory` have another commit or machine.
    """
    folder = directory / task.folder
    begin(folder)
    command = [sys.executable, "-m", "actorq_apps.cli.main", "compare", "--directory", str(folder)]
    command += ["--schemes", *task.schemes, "--seeds", str(seeds), *flags_of(task, device)]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"actorq compare failed for {task.name}")
    comparison: dict[str, Any] = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    # The benchmark has its own command line.
    del comparison["command"]
    runs = [run for variant in comparison["variants"] for run in variant["runs"]]
    # No speed is measured any more, so all cores are used.
    confirmed = in_order(lambda run: _confirmed(folder, run["directory"], task.episodes), runs, os.cpu_count() or 1)
    for run, confirmation in zip(runs, confirmed, strict=True):
        run["confirmed"] = confirmation
    return {"task": task.name, "width": task.width, "conditions": recorded(folder), **comparison}


def flags_of(task: Task, device: str) -> list[str]:
    """The task's flags for `actorq compare`, without schemes and seeds."""
    flags = ["--environment", task.environment, "--algorithm", task.algorithm, *task.flags]
    flags += [f"--target-return={task.target:g}", "--max-environment-steps", str(task.steps)]
    flags += ["--learner.device", device]
    if device == "cuda":
        # The paper's layout: the learner on the GPU, and one core per actor. Two cores are left for the other services.
        flags[flags.index("--actors") + 1] = str(max(1, (os.cpu_count() or 1) - 2))
    return flags


def _confirmed(folder: Path, run: str, episodes: int) -> dict[str, Any]:
    file = folder / "confirmed" / f"{Path(run).name}.json"
    file.parent.mkdir(exist_ok=True)
    return cached(file, {"episodes": episodes}, lambda: asdict(confirm(folder / run, episodes)))


MEANINGS = (
    Meaning(
        r"(?P<task>.+): (?P<scheme>\w+), time to the target over (?P<baseline>\w+)",
        "How many times sooner do runs with quantized actors reach the target return?",
        "Expect the measured gain. It is smaller where the environment or the learner takes much of the time.",
        unit=" times",
        case="{task}, {scheme} over {baseline}",
    ),
    Meaning(
        r"(?P<task>.+): (?P<scheme>\w+), steps/s over (?P<baseline>\w+)",
        "How many times more steps per second do quantized actors make?",
        "Expect the measured gain. It is smaller where the learner or the memory is the limit.",
        unit=" times",
        case="{task}, {scheme} over {baseline}",
    ),
    Meaning(
        r"(?P<task>.+): (?P<scheme>\w+), carbon over torch",
        "How many times less carbon do runs with quantized actors emit?",
        "Expect the measured saving. It is smaller where the learner takes much of the energy.",
        unit=" times",
        case="{task}, {scheme} over PyTorch",
    ),
)


def verdicts(task: Task, result: dict[str, Any], form: str) -> list[Target]:
    """Targets of a task in a form. Narrow policies have none: their gains are only reported."""
    if task.width < _WIDE:
        return []
    measure, what = ("throughput", "steps/s") if form == "short" else ("time_to_target", "time to the target")
    best = max(_QUANTIZED, key=lambda scheme: value_of(result, scheme, "torch", measure))
    starved = statistics.median(run["starved_share"] for run in variant_of(result, "fp32")["runs"])
    targets = [
        Target(
            f"{task.name}: {best}, {what} over {baseline}",
            value_of(result, best, baseline, measure),
            bound,
            at_most=False,
            needs=needs,
        )
        for needs, bounds in (
            (DOT_PRODUCT, (_OVER_TORCH, _OVER_FP32)),
            (NO_DOT_PRODUCT, (_OVER_TORCH_WITHOUT, _OVER_FP32_WITHOUT)),
        )
        for baseline, bound in zip(_BASELINES, bounds, strict=True)
    ]
    targets.append(Target(f"{task.name}: share of time in which the learner of fp32 starved", starved, _STARVED, False))
    if form == "short":
        return targets
    targets += _over_seeds(task, result, best)
    return without_verdict(targets, ONE_SEED if len(result["seeds"]) == 1 else "")


def _over_seeds(task: Task, result: dict[str, Any], best: str) -> list[Target]:
    measured = ratio_of(result, best, "torch", "carbon") is not None
    returns, reference = returns_of(result, best), returns_of(result, "fp32")
    return [
        Target(
            f"{task.name}: {best}, carbon over torch",
            value_of(result, best, "torch", "carbon"),
            _CARBON_OVER_TORCH,
            at_most=False,
            refused="" if measured else "no energy was measured",
            needs=DOT_PRODUCT,
        ),
        Target(
            f"{task.name}: {best}, return on new episodes",
            statistics.fmean(returns),
            interval(reference)[0],
            at_most=False,
            baseline=statistics.fmean(reference),
        ),
    ]


def variant_of(result: dict[str, Any], scheme: str) -> dict[str, Any]:
    """A scheme's side of the comparison."""
    found: dict[str, Any] = next(variant for variant in result["variants"] if variant["scheme"] == scheme)
    return found


def ratio_of(result: dict[str, Any], scheme: str, baseline: str, measure: str) -> dict[str, Any] | None:
    """Value, low and high of a ratio. None if no seed has both sides."""
    ratios = variant_of(result, scheme)["ratios"]
    found: dict[str, Any] | None = next(ratio[measure] for ratio in ratios if ratio["baseline"] == baseline)
    return found


def value_of(result: dict[str, Any], scheme: str, baseline: str, measure: str) -> float:
    """A ratio's value. 0 if a side has none, for example because no seed reached the target."""
    found = ratio_of(result, scheme, baseline, measure)
    return found["value"] if found and found["seeds"] == found["runs"] else 0.0


def returns_of(result: dict[str, Any], scheme: str) -> list[float]:
    """Each seed's return on new episodes."""
    return [run["confirmed"]["mean_return"] for run in variant_of(result, scheme)["runs"]]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's t interval of the mean over seeds. A single value has no interval and is returned twice."""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, mean
    # Imported here, because only the interval needs it.
    from scipy import stats

    quantile = float(stats.t.ppf((1 + _CONFIDENCE) / 2, len(values) - 1))
    half = quantile * statistics.stdev(values) / len(values) ** 0.5
    return mean - half, mean + half


def rows(result: dict[str, Any]) -> list[str]:
    """The task's table."""
    lines = [
        f"{result['task']}, target {result['target_return']:g}, seeds {len(result['seeds'])}",
        f"  {'actors':6} {'steps/s':>9} {'seconds':>8} {'over torch':>22} {'over fp32':>22} {'Wh':>7} {'starved':>8} "
        f"{'return':>8}",
    ]
    for variant in result["variants"]:
        scheme, runs = variant["scheme"], variant["runs"]
        seconds = [run["to_target"]["seconds"] for run in runs if run["to_target"]]
        energy = [run["wh"] for run in runs if run["wh"] is not None]
        against = " ".join(f"{_against(result, scheme, baseline):>22}" for baseline in _BASELINES)
        lines.append(
            f"  {scheme:6} {statistics.median(run['steps_per_s'] for run in runs):>9,.0f} {_median(seconds):>8.1f} "
            f"{against} {_median(energy):>7.3f} {statistics.median(run['starved_share'] for run in runs):>8.0%} "
            f"{statistics.fmean(returns_of(result, scheme)):>8.1f}"
            f"{'  acted with ' + variant['acted_with'] if scheme == 'auto' else ''}"
        )
    return lines


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan


def _against(result: dict[str, Any], scheme: str, baseline: str) -> str:
    """Speed of a scheme relative to a baseline, in time to the target."""
    if scheme in (baseline, "torch"):
        return ""
    ratio = ratio_of(result, scheme, baseline, "time_to_target")
    if ratio is None:
        return "not reached"
    spread = "" if ratio["low"] is None else f" ({ratio['low']:.1f} to {ratio['high']:.1f})"
    part = "" if ratio["seeds"] == ratio["runs"] else f" [{ratio['seeds']} of {ratio['runs']}]"
    return f"{ratio['value']:.1f}{spread}{part}"


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
