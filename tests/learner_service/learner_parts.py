"""Small environments, batches and segments for the tests of the learner's room."""

import asyncio
import functools
import resource
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import Episode, Evaluation, PolicySpan, Segment
from learner_service.actors.credits import ActorStream
from learner_service.actors.intake import Intake
from learner_service.actors.members import Member
from learner_service.batch import Batch
from learner_service.quantization.fake_quantization import FakeQuantization
from learner_service.quantization.quantization_aware import QuantizationAware
from learner_service.replay import RateLimiter, ReplayBuffer, ReplayStore, Returns, UniformSampler
from learner_service.run.run import Run
from tests.builders.clocks import ManualClock
from tests.builders.graphs import graph_of
from tests.builders.segments import changed

# The default of a learner's process. More threads only wait for each other on networks this small.
torch.set_num_threads(1)

P = ParamSpec("P")
DEADLINE_S = 30.0

SPEC = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), sizes=(2,))


def config(**changes: Any) -> RunConfig:
    """A small run of two CartPoles per actor; `changes` replace whole sections."""
    tree: dict[str, Any] = {
        "environments_per_actor": 2,
        "actors": 4,
        "dqn": {"hidden_sizes": (8,), "batch_size": 8, "n_step": 3},
        "replay": {"capacity": 2_000, "min_size": 64},
        "rate_limiter": {"samples_per_insert": 4.0},
        "actor": {"segment_length": 4, "max_steps_per_policy": 13, "report_period_s": 0.5},
        "checkpoint": {"period_s": 1_000.0},
    }
    return RunConfig.model_validate({**tree, **changes})


def reinforce(**changes: Any) -> RunConfig:
    """A run of `own_on_policy.Reinforce`: rollouts of 16 steps, which are two segments, for two epochs."""
    tree: dict[str, Any] = {
        "algorithm": "own_on_policy:Reinforce",
        "actor": {"segment_length": 4, "report_period_s": 0.5},
        "max_environment_steps": 320,
        "publication": {"calibration_size": 4},
    }
    return config(**{**tree, **changes})


def evaluation(sequence: int, version: int, *returns: float) -> Evaluation:
    """An int8 evaluation with these returns, in episodes of 200 steps."""
    return Evaluation(sequence, version, 0, "int8", returns, (200,) * len(returns), 0.5)


def random_batch(rng: np.random.Generator, size: int, spec: EnvironmentSpec = SPEC) -> Batch:
    """Random n-step transitions; about a third of them end in a terminal state."""
    shape = (size, *spec.observations.shape)
    return Batch(
        observations=rng.standard_normal(shape, np.float32),
        actions=rng.integers(spec.acting_size, size=size),
        returns=rng.standard_normal(size, np.float32),
        bootstrap_discounts=np.where(rng.random(size) < 0.3, 0.0, 0.9).astype(np.float32),
        bootstrap_observations=rng.standard_normal(shape, np.float32),
        policy_versions=np.ones(size, np.int64),
    )


def segment(sequence: int, steps: int = 4, environments: int = 2, **changes: Any) -> Segment:
    """Random steps of SPEC without ends, acted by version 1 of int8; `changes` replace columns."""
    rng = np.random.default_rng(sequence)
    shape = (steps, environments)
    columns: dict[str, Any] = {
        "observations": rng.standard_normal((steps + 1, environments, 4), np.float32),
        "actions": rng.integers(2, size=shape),
        "rewards": np.ones(shape, np.float32),
        "terminated": np.zeros(shape, np.bool_),
        "truncated": np.zeros(shape, np.bool_),
        "valid": np.ones(shape, np.bool_),
        "ages": np.zeros(environments, np.uint8),
    }
    return changed(Segment(sequence, columns, (PolicySpan(0, 1, "int8"),)), **changes)


def drawn_segment(sequence: int, version: int = 1) -> Segment:
    """A segment with the log probabilities of its actions."""
    probabilities = np.random.default_rng(sequence).uniform(-1, 0, (4, 2)).astype(np.float32)
    return segment(sequence, spans=(PolicySpan(0, version, "int8"),), log_probabilities=probabilities)


def with_an_episode_end(sequence: int) -> Segment:
    """Four steps of two environments; the first one's episode ends at step 1, so that step 2 only resets it."""
    terminated, valid = np.zeros((4, 2), np.bool_), np.ones((4, 2), np.bool_)
    terminated[1, 0], valid[2, 0] = True, False
    return segment(sequence, terminated=terminated, valid=valid, episodes=(Episode(21.0, 21, 0),))


def store_segment(intake: Intake, member: Member, arrived: Segment, reserved: int) -> None:
    """Give an arrived segment of a member to the intake."""
    intake.store(ActorStream(member, 0), lambda: arrived, reserved)


async def store(run: Run, stream: ActorStream, *segments: Segment) -> None:
    """Give a stream's segments to the run and wait until they are acknowledged."""
    for each in segments:
        run.streams.receive(stream, each.sequence, lambda: 0, partial(lambda arrived: arrived, each))
    await acknowledged(stream, segments[-1].sequence)


async def until(stream: ActorStream, holds: Callable[[], bool]) -> None:
    """Wait until the condition holds. The stream reports each change."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            stream.changed.clear()
            await stream.changed.wait()


async def acknowledged(stream: ActorStream, sequence: int) -> None:
    """Wait until so much of a stream is acknowledged."""
    await until(stream, lambda: stream.acknowledged >= sequence)


def open_replay(
    directory: Path,
    samples_per_insert: float = 4.0,
    min_size: int = 8,
    error_buffer: float = 1000.0,
    capacity: int = 1000,
    spec: EnvironmentSpec = SPEC,
) -> ReplayBuffer:
    """A real replay buffer with uniform sampling."""
    store = ReplayStore.open(directory, spec, capacity)
    limiter = RateLimiter(samples_per_insert, min_size, error_buffer, ManualClock())
    return ReplayBuffer(
        store, UniformSampler(store, np.random.default_rng(0)), limiter, Returns(n_step=3, discount=0.9)
    )


def await_samples(limiter: RateLimiter, samples: int) -> None:
    """Wait until this number of transitions was sampled. The limiter reports each sampling."""
    sampled = threading.Event()
    limiter.on_inserts_possible(sampled.set)
    while limiter.samples < samples:
        assert sampled.wait(DEADLINE_S)
        sampled.clear()


@contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """No file of this process may grow beyond this number of bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores the signal, so that a write raises OSError.
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def never_quantization_aware() -> QuantizationAware:
    """Training in float, with a policy and a graph that are never used."""
    return QuantizationAware(FakeQuantization(nn.Identity(), graph_of(b"")), None)


def ones(size: int) -> NDArray[np.float32]:
    """Importance weights that change nothing."""
    return np.ones(size, np.float32)


def on_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a coroutine test on its own event loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
