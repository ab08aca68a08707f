"""Opens the buffer of a run's transitions: a replay for off-policy algorithms, a one-pass queue for on-policy ones."""

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from actorq.config.run_config import RunConfig
from actorq.config.segments import most_environments, step_bytes
from actorq.domain.goals import HindsightColumns
from actorq.domain.limits import MAX_SEGMENT_BYTES
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from learner_service.actors.credits import WINDOW
from learner_service.algorithms.base import Algorithm, AnyAlgorithm, OnPolicyAlgorithm, is_on_policy
from learner_service.replay import (
    DelayedReturns,
    MixedReplay,
    ObservationMoments,
    OfflineReplay,
    OtherGoals,
    PrioritizedSampler,
    RateLimiter,
    ReadOnlyStore,
    ReplayBuffer,
    ReplayStore,
    Returns,
    SequenceReplay,
    SequenceSampler,
    SequenceShape,
    StoredRows,
    UniformSampler,
    UpdateLimiter,
)
from learner_service.replay.storage.rows import segment_rows
from learner_service.rollouts import PublishedVersions, RewardScale, RolloutQueue
from learner_service.training.drawing import check_told


def open_buffer(
    config: RunConfig,
    spec: EnvironmentSpec,
    directory: Path,
    algorithm: AnyAlgorithm,
    rng: np.random.Generator,
    earlier_transitions: int,
    stored: ReadOnlyStore | None = None,
) -> RolloutQueue | ReplayBuffer:
    """The buffer below `directory`. earlier_transitions: total of the run, if its buffer was lost. stored: data set.

    Raises UserError when the settings do not fit the algorithm, and the errors of `ReplayStore.open`.
    """
    moments = None
    if config.normalize_observations and (numbers := spec.for_critics.vector) is not None:
        moments = ObservationMoments(numbers.shape)
    # Called after all checks of the settings, so that they raise before there are files.
    sampled = is_on_policy(algorithm)
    opened = partial(open_store, config, spec, directory, sampled=sampled, earlier_transitions=earlier_transitions)
    if is_on_policy(algorithm):
        if stored is not None:
            raise UserError(f"dataset: expected an algorithm with a replay, got {config.algorithm}, which is on-policy")
        return _open_queue(config, spec, algorithm, opened, moments)
    return _open_replay(config, spec, directory, cast(Algorithm, algorithm), opened, moments, rng, stored)


def _open_queue(
    config: RunConfig,
    spec: EnvironmentSpec,
    algorithm: OnPolicyAlgorithm,
    opened: Callable[[], ReplayStore],
    moments: ObservationMoments | None,
) -> RolloutQueue:
    check_told(config, algorithm)
    size = algorithm.rollout_size
    try:
        config.check_rollouts(size, algorithm.batch_size, spec.frame_stack, spec.agent_count)
    except ValueError as error:
        raise UserError(str(error)) from None
    ahead = math.ceil(config.queue.waiting_rollouts * size)
    if config.queue.synchronous:
        # An actor that waits for the next policy keeps its credits. The other actors' credits must not wait for it.
        ahead += config.actors * WINDOW * config.actor.segment_length * config.environments_per_actor
    return RolloutQueue(
        opened(),
        RateLimiter.of_queue(algorithm.epochs, size, ahead, time.monotonic),
        size,
        PublishedVersions(config.queue.max_policy_lag),
        config.replay.clip_rewards,
        RewardScale(algorithm.discount) if config.queue.normalize_rewards else None,
        moments,
    )


def _open_replay(
    config: RunConfig,
    spec: EnvironmentSpec,
    directory: Path,
    algorithm: Algorithm,
    opened: Callable[[], ReplayStore],
    moments: ObservationMoments | None,
    rng: np.random.Generator,
    stored: ReadOnlyStore | None,
) -> ReplayBuffer:
    check_one_step(config, spec, algorithm)
    environments = config.actors * config.environments_per_actor
    sizes = (config.replay.capacity, environments, config.actor.segment_length, algorithm.n_step, spec.agent_count)
    try:
        config.memory.check_replay(*sizes)
    except ValueError as error:
        raise UserError(str(error)) from None
    returns, replay, pace = _returns(config, algorithm), config.replay, config.rate_limiter
    config.dynamic_capacity_of(spec)
    bound, batch_size = getattr(algorithm, "reward_bound", None), algorithm.batch_size
    scale = None if bound is None else RewardScale(algorithm.discount, bound)
    if stored is not None and config.offline:
        updates = UpdateLimiter(config.max_updates * batch_size, time.monotonic)
        return OfflineReplay(stored, rng, updates, returns, batch_size, directory.parent, moments, scale)
    store = opened()
    limiter = RateLimiter(pace.samples_per_insert, replay.min_size, pace.error_buffer, time.monotonic)
    betas = (replay.importance_exponent, replay.importance_exponent_end)
    if memory := config.memory:
        shape = SequenceShape(memory.burn_in, memory.sequence_length, returns.longest.n_step - 1, memory.state_size)
        alpha = replay.priority_exponent if replay.prioritized else 0.0
        starts = SequenceSampler(store, rng, memory.burn_in, alpha, betas, config.max_environment_steps)
        return SequenceReplay(store, starts, limiter, returns, shape, moments, scale)
    sampler = (
        PrioritizedSampler(store, rng, replay.priority_exponent, betas, config.max_environment_steps)
        if replay.prioritized
        else UniformSampler(store, rng, replay.age_decay)
    )
    names, goals = HindsightColumns(config.copies_of(spec)), None
    if spec.goal is not None and names.copies:
        goals = OtherGoals(spec.goal, names, rng)
    parts = (store, sampler, limiter, returns, moments, goals, scale)
    if stored is None:
        return ReplayBuffer(*parts)
    rows = config.dataset.rows_of(batch_size)
    return MixedReplay(*parts, stored=StoredRows(stored, rng), minibatch=batch_size, rows=rows)


def open_store(
    config: RunConfig, spec: EnvironmentSpec, directory: Path, sampled: bool = False, earlier_transitions: int = 0
) -> ReplayStore:
    """The store of a run in this folder. sampled: whether actions are drawn. Raises as `ReplayStore.open`."""
    return ReplayStore.open(
        *(directory, spec, config.replay.capacity, config.further_columns(sampled), _segment_rows(config, spec)),
        earlier_transitions=earlier_transitions,
    )


def _returns(config: RunConfig, algorithm: Algorithm) -> Returns | DelayedReturns:
    """The returns of a run of `algorithm`. Raises UserError as `RunConfig.multi_step_of` does."""
    windows, clip = getattr(algorithm, "needs_windows", False), config.replay.clip_rewards
    first = Returns(algorithm.n_step, algorithm.discount, clip, windows)
    multi_step = config.multi_step_of(algorithm.n_step)
    if multi_step is None:
        return first
    longest = Returns(multi_step.n_step, algorithm.discount, clip, windows)
    unit = "update" if config.offline else "environment step"
    return DelayedReturns(first, longest, multi_step.after * config.budget, unit=unit)


def check_one_step(config: RunConfig, spec: EnvironmentSpec, algorithm: Algorithm) -> None:
    """Raise UserError for hindsight with an algorithm of the user whose returns have several steps, or with memory."""
    if config.copies_of(spec) and config.memory:
        raise UserError(
            f"memory.kind {config.memory.kind} and hindsight exclude each other: a state belongs to the goal of its "
            "episode; give --hindsight.copies 0"
        )
    if config.copies_of(spec) and algorithm.n_step > 1:
        raise UserError(
            f"algorithm {config.algorithm}: n_step must be 1 with hindsight, got {algorithm.n_step}; change it, or "
            "give --hindsight.copies 0"
        )


def check_sizes(config: RunConfig, spec: EnvironmentSpec) -> None:
    """Raise UserError when a segment is too large for a message or for the ring."""
    environments, further = config.environments_per_actor, config.large_columns(spec)
    most = most_environments(spec, further)
    if environments > most:
        nbytes = environments * spec.agent_count * step_bytes(spec, further)
        raise UserError(
            f"a segment of one step needs {nbytes} bytes with {environments} environments per actor, but has at most "
            f"{MAX_SEGMENT_BYTES}; give --environments-per-actor {most}"
        )
    rows = _segment_rows(config, spec)
    if 2 * rows > config.replay.capacity:
        agents = f" * {spec.agent_count} agents" if spec.agents else ""
        raise UserError(
            f"replay.capacity must be at least twice the {rows} rows of a segment, (actor.segment_length + frame stack "
            f"{spec.frame_stack}) * environments_per_actor{agents}, got {config.replay.capacity}"
        )
    needed = 2 * config.replay.min_size * spec.agent_count
    if spec.agents and config.on_policy is None and needed > config.replay.capacity:
        raise UserError(
            f"replay.capacity must be at least {needed} rows, twice replay.min_size ({config.replay.min_size}) for "
            f"each of {spec.agent_count} agents, got {config.replay.capacity}"
        )


def _segment_rows(config: RunConfig, spec: EnvironmentSpec) -> int:
    rows = config.environments_per_actor * spec.agent_count
    return segment_rows(config.actor.segment_length, rows, spec.frame_stack)
