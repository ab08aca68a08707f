"""CPU time of an update of TD3 and SAC with sparse networks, at the sparsities of RLx2's paper.

dense:    the ordinary update, 256-256 or --widths, batch 256.
masked:   the same, with gradients and weights kept at 0 by masks. Products use whole matrices.
training: masked, with products that skip zeros where this is faster. The learner trains in this way.
csr:      parameters are the active weights only, multiplied by MKL's sparse products. Adam and the target copies then
          do less work too, but masks cannot change.
shrunk:   dense networks without the units from which no path leads to an output. No gradient reaches these units.
          Masks are random, as at the start of training. With --run they come from a trained run.

All take turns on one thread. Figures are medians over the repeats, and ratios are relative to dense. Batches are drawn
once, so sampling is not included. Targets: training is never slower than dense. With sparse critics it is faster, which
masks alone cannot achieve.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from actorq.rundirectory import RunDirectory
from actorq.statefiles.documents import read_document
from benchmarks.harness import Target, run_benchmark
from benchmarks.learner.sparse_learner_csr import CriticMaker, PolicyMaker, networks_with, sparse_networks
from benchmarks.policy.inference_timing import Timing, tight
from benchmarks.runs import add_task_flag
from benchmarks.training.rlx2_sparsities import PAPER, Sparsity, spec_of
from learner_service.algorithms import make_algorithm
from learner_service.kernels.parameters import FlatParameters
from learner_service.networks import DeterministicPolicy, GaussianPolicy, TwinCritic
from learner_service.replay import Returns, empty_batch
from learner_service.sparsity.weights import maskable_weights

_BATCH, _UPDATES = 256, 4
_SPARSE_CRITICS = 0.95
DENSE, MASKED, TRAINING, CSR, SHRUNK = CONTENDERS = ("dense", "masked", "training", "csr", "shrunk")


@dataclass(frozen=True)
class Masks:
    """The active weights of the policy and of both critics: bool[N, K] for each layer."""

    actor: Sequence[Tensor]
    critics: tuple[Sequence[Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class Case:
    """Networks with two hidden layers of `width` units, and their task."""

    name: str
    algorithm: str
    spec: EnvironmentSpec
    sparsity: Sparsity
    width: int
    masks: Masks


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="masks of a run (default: the paper's tasks)",
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 1024], metavar="N", help="default: 256 1024")
    add_task_flag(parser)
    parser.add_argument("--repeats", type=int, default=9, metavar="N", help="turns of each contender (default: 9)")
    parser.add_argument("--slice", type=float, default=0.3, metavar="S", help="seconds per turn (default: 0.3)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    torch.set_num_threads(1)
    cells = []
    for case in [*_of_paper(arguments), *map(of_run, arguments.run)]:
        cells.append(_cell(case, arguments.repeats, arguments.slice))
        print(_row(cells[-1]), flush=True)
    return {"cells": cells}, targets(cells)


def targets(cells: Sequence[Mapping[str, Any]]) -> list[Target]:
    """The worst of all cells, and the worst with critics sparse enough for compressed products."""
    ratios = [float(cell["ratios"][TRAINING]) for cell in cells]
    found = [Target("training with masks over dense, the worst of all", max(ratios), 1.05)]
    sparsest = [ratio for ratio, cell in zip(ratios, cells, strict=True) if cell["sparsity"][1] >= _SPARSE_CRITICS]
    if sparsest:
        name = f"training over dense, critics at least {_SPARSE_CRITICS:.0%} sparse, the worst of all"
        found.append(Target(name, max(sparsest), 0.75))
    return found


def _of_paper(arguments: argparse.Namespace) -> Iterator[Case]:
    patterns = arguments.task or ([] if arguments.run else ["*"])
    chosen = [names for names in PAPER if any(fnmatchcase("/".join(names), pattern) for pattern in patterns)]
    if patterns and not chosen:
        raise SystemExit(f"--task: expected a pattern of {', '.join(map('/'.join, PAPER))}, got {patterns}")
    for algorithm, environment in chosen:
        for width in arguments.widths:
            sparsity, spec = PAPER[algorithm, environment], spec_of(environment)
            made = make_algorithm(_config(algorithm, width, sparsity), spec)
            masks = masks_in(made.state(), algorithm, spec, width)
            yield Case(f"{algorithm}/{environment}", algorithm, spec, sparsity, width, masks)


def of_run(directory: Path) -> Case:
    """The networks of a run's newest checkpoint. Raises SystemExit unless they are sparse with two equal layers."""
    config = settings.build(RunConfig, RunDirectory(directory).config_tree())
    sizes = {"td3": config.td3.hidden_sizes, "sac": config.sac.hidden_sizes}.get(config.algorithm, ())
    if len(sizes) != 2 or len(set(sizes)) != 1 or config.sparsity.method not in ("static", "set", "rigl", "rlx2"):
        raise SystemExit(
            f"--run {directory}: expected sparse TD3 or SAC with two hidden layers of one width, got "
            f"{config.sparsity.method} {config.algorithm} with {list(sizes)}"
        )
    spec = EnvironmentSpec.from_json(read_document(directory / "environment.json"))
    newest = max(directory.glob("checkpoints/[0-9]*/tensors.safetensors"))
    masks = masks_in(load_file(newest), config.algorithm, spec, sizes[0])
    sparsity = Sparsity(config.sparsity.actor, config.sparsity.critic)
    return Case(directory.name, config.algorithm, spec, sparsity, sizes[0], masks)


def _cell(case: Case, repeats: int, slice_s: float) -> dict[str, Any]:
    masks = case.masks
    actor = surviving(masks.actor)
    # The stacked critics have equal widths.
    critic = [max(units) for units in zip(*map(surviving, masks.critics), strict=True)]
    networks = {
        CSR: sparse_networks(masks.actor, masks.critics),
        SHRUNK: _narrow(actor, critic),
    }
    contenders: dict[str, Callable[[], object]] = {}
    for name in CONTENDERS:
        sparse = name in (MASKED, TRAINING)
        config = _config(case.algorithm, case.width, case.sparsity if sparse else None, compressed=name == TRAINING)
        with networks_with(*networks[name]) if name in networks else nullcontext():
            contenders[name] = updates(config, case.spec)
    timings = tight(contenders, repeats, slice_s, time.thread_time)
    return {
        "case": case.name,
        "sparsity": [case.sparsity.actor, case.sparsity.critic],
        "width": case.width,
        "surviving": {"actor": actor, "critic": critic},
        "us_per_update": {name: _per_update(timing) for name, timing in timings.items()},
        "ratios": {name: round(timing.median / timings[DENSE].median, 3) for name, timing in timings.items()},
    }


def _config(algorithm: str, width: int, sparsity: Sparsity | None, compressed: bool = True) -> RunConfig:
    section = {"hidden_sizes": (width, width), "batch_size": _BATCH, "n_step": 1}
    method = {} if sparsity is None else {"method": "static", "actor": sparsity.actor, "critic": sparsity.critic}
    method |= {"compressed_products": compressed}
    tree = {"algorithm": algorithm, "environment": "HalfCheetah-v5", algorithm: section, "sparsity": method}
    return RunConfig.model_validate(tree)


def updates(config: RunConfig, spec: EnvironmentSpec) -> Callable[[], object]:
    """`_UPDATES` updates of a new algorithm on the same random batches."""
    algorithm = make_algorithm(config, spec)
    rng = np.random.default_rng(1)
    batch = empty_batch(spec, _UPDATES * _BATCH, Returns(1, 0.99))
    for column in (batch.observations, batch.bootstrap_observations):
        column[:] = rng.standard_normal(column.shape)
    batch.actions[:] = rng.uniform(-1, 1, batch.actions.shape)
    batch.returns[:] = rng.standard_normal(batch.returns.shape)
    batch.bootstrap_discounts[:] = algorithm.discount
    batch.policy_versions[:] = 1
    weights = np.ones(_UPDATES * _BATCH, np.float32)
    return lambda: algorithm.update(batch, weights)


def masks_in(state: Mapping[str, Tensor], algorithm: str, spec: EnvironmentSpec, width: int) -> Masks:
    """The masks in an algorithm's saved state, for two hidden layers of `width` units."""
    policy = DeterministicPolicy if algorithm == "td3" else GaussianPolicy
    actor = _layers(FlatParameters(policy(spec, (width, width))), state["policy.topology.mask"])
    critics = _layers(FlatParameters(TwinCritic(spec, (width, width))), state["critic.topology.mask"])
    return Masks(actor, (critics[::2], critics[1::2]))


def _layers(parameters: FlatParameters, mask: Tensor) -> list[Tensor]:
    return [weight.of(mask) for weight in maskable_weights(*parameters.modules)]


def surviving(masks: Sequence[Tensor]) -> tuple[int, ...]:
    """Units of each hidden layer that have a path to an output."""
    reaches = torch.ones(len(masks[-1]), dtype=torch.bool)
    counts = []
    for mask in reversed(masks[1:]):
        reaches = mask[reaches].any(0)
        counts.append(int(reaches.sum()))
    return tuple(reversed(counts))


def _narrow(actor: Sequence[int], critic: Sequence[int]) -> tuple[PolicyMaker, CriticMaker]:
    return (lambda kind, spec: kind(spec, actor)), (lambda spec: TwinCritic(spec, critic))


def _per_update(timing: Timing) -> dict[str, float]:
    return {name: round(getattr(timing, name) / _UPDATES, 1) for name in ("median", "low", "high")}


def _row(cell: dict[str, Any]) -> str:
    figures = ", ".join(
        f"{name} {cell['us_per_update'][name]['median'] / 1e3:.2f} ms ({ratio:.2f})"
        for name, ratio in cell["ratios"].items()
    )
    actor, critic = ("-".join(map(str, widths)) for widths in cell["surviving"].values())
    zeros = "/".join(f"{100 * share:.0f}" for share in cell["sparsity"])
    return f"{cell['case']} {zeros}% width {cell['width']}: {figures}; left: policy {actor}, critics {critic}"


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
