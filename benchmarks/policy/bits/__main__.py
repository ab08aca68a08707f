"""With how few bits do trained policies still act well?

`actorq train` trains policies of DQN, PPO, D4PG and SAC with a fixed number of environment steps. The best version of
each run's second half counts, by the run's own evaluations. The benchmark rounds this policy to 2, 3, 4, 6 and 8 bits.
Each rounded form plays the same episodes as the FP32 form. These parts are rounded:

- weights by QuaRL's quantizer (arXiv 1910.01055): affine, one step for each linear layer
- weights to nearest by this project's quantizer: symmetric, one scale for each output channel
- these weights with the quantizer's corrections: error feedback and corrected biases
- corrected weights and inner activations, together called the core
- one part alone: observations, core or continuous actions. The other parts have 8 bits (arXiv 2511.07046).

Further runs of the same length learn with simulated rounding of weights after half of their steps
(`learner.quantization_aware_bits`), one run for each number of bits. Policies compute in float32 with rounded numbers,
because most numbers of bits have no kernel.

The result is the fewest bits such that these and all larger ones keep 95% of the difference between FP32's return and
that of random actions. Returns are means over seeds. Runs are kept in --directory, and complete runs are not repeated.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actorq.domain.policy import FALLBACK
from benchmarks.harness import ONE_SEED, Meaning, Target, run_benchmark, without_verdict
from benchmarks.policy.bits.evaluation import Evaluation, evaluated
from benchmarks.policy.bits.forms import FORMS, OURS, WEIGHTS
from benchmarks.policy.bits.summary import KEPT, summarized
from benchmarks.runs import LearningTask, add_task_flag, cached, chosen, forget_incomplete, refusal, train

Run = dict[str, Any]

BITS = (2, 3, 4, 6, 8)
AWARE = "weights, quantization-aware"
# The bits of the target.
_MOST = 8
_WITHOUT_TARGET = 1e9
# Share of the steps after which training simulates rounding, as in QuaRL.
_AWARE_AFTER = 0.5


@dataclass(frozen=True)
class Task(LearningTask):
    """A task to learn, the environment steps of its runs, and further flags."""

    steps: int
    flags: tuple[str, ...] = ()


def _falling(updates: int) -> tuple[str, ...]:
    """Flags for a step size that falls until the run's end. DQN's policy otherwise changes much."""
    return "--dqn.learning-rate-end=1e-4", f"--dqn.learning-rate-updates={updates}"


# The shortest runs first.
TASKS = (
    Task("dqn", "CartPole-v1", 40_000, _falling(5_000)),
    Task("dqn", "Acrobot-v1", 40_000, _falling(10_000)),
    Task("ppo", "CartPole-v1", 100_000),
    Task("sac", "Pendulum-v1", 6_000),
    Task("d4pg", "Pendulum-v1", 60_000),
    Task("sac", "MountainCarContinuous-v0", 40_000),
    Task("dqn", "LunarLander-v3", 200_000),
    Task("ppo", "LunarLander-v3", 1_000_000),
)

MEANINGS = (
    Meaning(
        rf"(?P<task>.+): share of the return with {_MOST} bits",
        f"Do {_MOST} bits for weights and activations keep the return?",
        "A rounded policy of this task returns less than its FP32 form. Check its returns with `actorq evaluate`.",
        unit="%",
        scale=100,
        case="{task}",
    ),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flag(parser)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 1 to N of each task (default: 3)")
    parser.add_argument("--episodes", type=int, default=20, metavar="N", help="episodes of each form (default: 20)")
    parser.add_argument(
        "--quantization-aware",
        nargs="*",
        type=int,
        choices=BITS,
        default=BITS,
        metavar="BITS",
        help="bits of runs with quantization-aware training (default: all; without a value none)",
    )
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    tasks = chosen(TASKS, arguments.task)
    with tempfile.TemporaryDirectory() as nowhere:
        directory = arguments.directory or Path(nowhere)
        wanted = (arguments.seeds, arguments.episodes, arguments.quantization_aware)
        runs = [run for task in tasks for run in _runs(task, *wanted, directory)]
    figures: dict[str, Any] = {"bits": BITS, "episodes": arguments.episodes, "runs": runs, "summary": summarized(runs)}
    for row in figures["summary"]:
        print(line(row))
    return figures, targets(figures)


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """Targets: the most bits for weights and activations keep the return of each task."""
    found = []
    for row in summarized(figures["runs"]):
        if row["form"] == OURS:
            useless = "" if row["kept"] else "FP32 is no better than random actions"
            refused = useless or (ONE_SEED if row["seeds"] == 1 else "")
            name = f"{row['task']}: share of the return with {_MOST} bits"
            found.append(Target(name, row["kept"].get(_MOST, 0.0), KEPT, at_most=False, refused=refused))
    return without_verdict(found, refusal(figures["runs"]))


def line(row: Mapping[str, Any]) -> str:
    """A row of the summary in one line."""
    kept = "  ".join(f"{bits}: {share:5.0%}" for bits, share in row["kept"].items())
    fewest = f"at least {row['fewest']} bits" if row["fewest"] else "no number of bits"
    return (
        f"{row['task']:32} FP32 {row['fp32']:7.1f}, random {row['random']:7.1f}  {row['form']:28} {kept}  "
        f"{KEPT:.0%} with {fewest}"
    )


def _runs(task: Task, seeds: int, episodes: int, aware: Sequence[int], directory: Path) -> Iterator[Run]:
    for seed in range(1, seeds + 1):
        for bits in (None, *aware):
            run = _run(task, seed, bits, episodes, directory)
            print(_told(run), flush=True)
            yield run


def _run(task: Task, seed: int, aware: int | None, episodes: int, directory: Path) -> Run:
    """Train, and evaluate the rounded forms. aware: bits of quantization-aware training; None without."""
    name = f"{task.name.replace('/', '-')}-{seed}{'' if aware is None else f'-aware-{aware}'}"
    folder = directory / name
    flags = [
        *(f"--algorithm={task.algorithm}", f"--environment={task.environment}", f"--seed={seed}"),
        *(f"--max-environment-steps={task.steps}", f"--target-return={_WITHOUT_TARGET}", *task.flags),
        # All runs of a task act alike: the scheme supports all bits, and its small error hardly affects training.
        f"--scheme={FALLBACK}",
    ]
    if aware is not None:
        flags.append(f"--learner.quantization-aware-after={_AWARE_AFTER}")
        flags.append(f"--learner.quantization-aware-bits={aware}")

    def make() -> Run:
        forget_incomplete(folder)
        made = train(folder, flags)
        kept = {key: made[key] for key in ("environment_steps", "updates", "wall_clock_s", "quantization_aware_since")}
        since = made["updates"] // 2
        if aware is None:
            return {**kept, **evaluated(folder, task.environment, episodes, BITS, since)}
        since = max(since, made["quantization_aware_since"] or 0)
        with closing(Evaluation(folder, task.environment, episodes, since)) as evaluation:
            mean_return = evaluation.mean_return(FORMS[WEIGHTS](aware))
        return {**kept, "returns": {AWARE: {str(aware): mean_return}}}

    settings = {**asdict(task), "episodes": episodes, "quantization_aware": aware}
    made = cached(directory / f"{name}.json", settings, make)
    return {**made, "task": task.name, "seed": seed, "quantization_aware": aware}


def _told(run: Run) -> str:
    returns = [f"{form} {bits}: {value:.1f}" for form, of in run["returns"].items() for bits, value in of.items()]
    fp32 = f"FP32 {run['fp32']:.1f}, random {run['random']:.1f}; " if "random" in run else ""
    return (
        f"{run['task']} seed {run['seed']}, {run['environment_steps']:,} steps, {run['updates']:,} updates, "
        f"{run['wall_clock_s']:.0f} s: {fp32}{', '.join(returns)}"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
