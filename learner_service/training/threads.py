"""Chooses the number of torch's threads for operations on the CPU (`learner.torch_threads`).

`auto` chooses the smallest number within 10% of the fastest. It measures updates of a second algorithm with the run's
configuration, on random data. For large networks and on-policy algorithms, it measures passes through the policy. The
run's own algorithm is not changed.

A sum over several threads adds numbers in another order than a sum on one thread. Therefore updates are reproducible
only with a fixed number. A checkpoint contains the measured number, and a learner that resumes uses it again. It
measures again only when the limit of cores has changed.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from actorq.telemetry.machine import usable_cores
from learner_service.algorithms import make_algorithm
from learner_service.algorithms.base import Algorithm, AnyAlgorithm, is_on_policy
from learner_service.batch import Batch
from learner_service.policy.policy_graph import state_size_of
from learner_service.replay import Returns, empty_batch

_log = logging.getLogger(__name__)

AUTO: Literal["auto"] = "auto"
Measure = Callable[[RunConfig, EnvironmentSpec, Sequence[int]], dict[int, float]]
# A number of threads is good enough above this share of the best speed.
_GOOD_ENOUGH = 0.9
# Time for the turns after the first one of each number of threads.
_BUDGET_S = 0.3
_MOST_ROUNDS = 30
# If a short operation is this many times as slow, its threads wait for a core that another program uses.
_BUSY = 5.0
_PROBES, _PROBED_NUMBERS = 20, 2**18
# Number of minibatches of one call. It is small, so that calls of large networks are short.
_MINIBATCHES = 2
# With more parameters, only passes through the policy are measured. Updates would need seconds, mostly for products.
_LARGEST_UPDATED = 1_000_000


@dataclass(frozen=True)
class Threads:
    """The number of threads that `auto` has chosen, and the limit of cores that it was measured under."""

    chosen: int
    limit: int


def set_configured(config: RunConfig, limit: int | None = None) -> None:
    """Set the configured number of threads for all threads that start later. With `auto` it is 1 until `choose`.

    limit: the cores of this process; by default the number that the system reports. A larger number only gives a
        warning. The updates are still correct, and the run can continue on a machine with fewer cores.
    """
    configured, limit = config.learner.torch_threads, limit or usable_cores()
    asked = 1 if configured == AUTO else configured
    if asked > limit:
        _log.warning(
            "learner.torch_threads is %d, but this process may use %d cores: the threads wait for each other, and "
            "updates are slower than with %d; set it to %d or auto",
            *(asked, limit, limit, limit),
        )
    torch.set_num_threads(asked)


def choose(
    config: RunConfig,
    spec: EnvironmentSpec,
    device: torch.device,
    saved: Mapping[str, int] | None = None,
    limit: int | None = None,
    measure: Measure | None = None,
) -> Threads | None:
    """Choose and set the number of threads if `learner.torch_threads` is auto; None for a fixed number.

    config: with the precision that the run's algorithm has chosen. saved: from the checkpoint of a resumed run.
    limit: the cores of this process; by default the number that the system reports.
    measure: returns seconds of an update by number of threads.
    """
    if config.learner.torch_threads != AUTO:
        return None
    limit = limit or usable_cores()
    if device.type != "cpu":
        threads, reason = Threads(1, limit), "updates are on a GPU"
    elif saved and saved.get("limit") == limit:
        threads, reason = Threads(saved["chosen"], limit), "as before in this run, with the same limit of cores"
    elif limit == 1:
        threads, reason = Threads(1, limit), "this process may use one core"
    else:
        threads, reason = _measured(config, spec, limit, measure or update_seconds)
    _log.info("learner.torch_threads auto: %d of %d; %s", threads.chosen, limit, reason)
    torch.set_num_threads(threads.chosen)
    return threads


def smallest_good(seconds: Mapping[int, float]) -> int:
    """The smallest number of threads within 10% of the best speed. seconds: of an update, by number of threads."""
    best = min(seconds.values())
    return min(threads for threads, each in seconds.items() if best >= _GOOD_ENOUGH * each)


def numbers_of_threads(limit: int) -> list[int]:
    """The numbers to measure: powers of two up to the limit, and the limit."""
    return sorted({2**power for power in range(limit.bit_length()) if 2**power <= limit} | {limit})


def free_numbers(
    numbers: Sequence[int],
    clock: Callable[[], float] = time.perf_counter,
    set_threads: Callable[[int], None] = torch.set_num_threads,
    probe: Callable[[], object] | None = None,
) -> list[int]:
    """The numbers of threads, up to the first number without enough free cores.

    An update has hundreds of operations. On busy cores it could last seconds. A probe has few operations.
    """
    if probe is None:
        x = torch.ones(_PROBED_NUMBERS)

        def probe() -> None:
            for _ in range(_PROBES):
                x.mul_(1.0)

    found: list[int] = []
    alone = 0.0
    for number in sorted(numbers):
        set_threads(number)
        # Threads start in the first call.
        probe()
        started = clock()
        probe()
        took = clock() - started
        alone = alone or took
        if took > _BUSY * alone:
            break
        found.append(number)
    return found


def time_threads(
    call: Callable[[], object],
    numbers: Sequence[int],
    clock: Callable[[], float] = time.perf_counter,
    set_threads: Callable[[int], None] = torch.set_num_threads,
    budget_s: float = _BUDGET_S,
) -> dict[int, float]:
    """Median seconds of a call with each number of threads. The numbers alternate.

    The turns end after the budget, but each number has at least one turn. If there are more, the first turn does not
    count, because threads start in it.
    """
    call()
    seconds: dict[int, list[float]] = {number: [] for number in numbers}
    deadline = clock() + budget_s
    for _ in range(_MOST_ROUNDS):
        for number, turns in seconds.items():
            set_threads(number)
            started = clock()
            call()
            turns.append(clock() - started)
        if clock() >= deadline:
            break
    return {number: median(turns[1:] or turns) for number, turns in seconds.items()}


def update_seconds(config: RunConfig, spec: EnvironmentSpec, numbers: Sequence[int]) -> dict[int, float]:
    """Seconds of updates on random data by number of threads. Changes the number of threads of this process."""
    torch.set_num_threads(1)
    algorithm: AnyAlgorithm = make_algorithm(config, spec, torch.device("cpu"))
    is_large = sum(each.numel() for each in algorithm.policy.parameters()) > _LARGEST_UPDATED
    alone = is_large or is_on_policy(algorithm) or bool(config.memory)
    measured = _passes if alone else _updates
    return time_threads(measured(algorithm, spec), free_numbers(numbers))


def _measured(config: RunConfig, spec: EnvironmentSpec, limit: int, measure: Measure) -> tuple[Threads, str]:
    try:
        seconds = measure(config, spec, numbers_of_threads(limit))
    except Exception as error:
        # A user's algorithm may refuse random data.
        return Threads(1, limit), f"the measurement has failed: {type(error).__name__}: {error}".splitlines()[0]
    rates = ", ".join(f"{1 / each:.4g} with {number}" for number, each in seconds.items())
    return Threads(smallest_good(seconds), limit), f"calls per second by number of threads: {rates}"


def _updates(algorithm: AnyAlgorithm, spec: EnvironmentSpec) -> Callable[[], object]:
    """A call that makes some updates of an off-policy algorithm without memory."""
    algorithm = cast(Algorithm, algorithm)
    windows = bool(getattr(algorithm, "needs_windows", False))
    rows = _MINIBATCHES * algorithm.batch_size
    batch = random_batch(spec, rows, Returns(algorithm.n_step, algorithm.discount, windows=windows))
    weights = np.ones(rows, np.float32)
    return lambda: algorithm.update(batch, weights)


def _passes(algorithm: AnyAlgorithm, spec: EnvironmentSpec) -> Callable[[], object]:
    """A pass forward and backward through the policy: for on-policy algorithms, and for large networks."""
    batch = random_batch(spec, algorithm.batch_size, Returns(1, 1.0))
    inputs = [torch.from_numpy(batch.observations)]
    if size := state_size_of(algorithm.policy):
        inputs.append(torch.zeros((len(inputs[0]), size)))

    def run() -> None:
        outputs = algorithm.policy(*inputs)
        parts = (outputs,) if isinstance(outputs, Tensor) else outputs
        torch.autograd.backward([each.float().sum() for each in parts])

    return run


def random_batch(spec: EnvironmentSpec, rows: int, returns: Returns) -> Batch:
    """A batch of random transitions."""
    rng, batch = np.random.default_rng(0), empty_batch(spec, rows, returns)
    for column in batch.columns.values():
        is_float = np.issubdtype(column.dtype, np.floating)
        column[...] = rng.random(column.shape) if is_float else rng.integers(100, size=column.shape)
    if spec.sizes:
        batch.actions[...] = rng.integers(spec.sizes if spec.has_parts else spec.sizes[0], size=batch.actions.shape)
    else:
        low, high = spec.actions.bounds()
        batch.actions[...] = rng.uniform(low, high, batch.actions.shape)
    return batch
