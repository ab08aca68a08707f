"""Opens the buffer of a run's transitions: a replay for off-policy algorithms, a one-pass queue for on-policy ones."""

import math
import time
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
from learner_service.algorithms.base import Algorithm, AnyAlgorithm, is_on_policy
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
    replay, moments = config.replay, None
    if config.normalize_observations and spec.vector is not None:
        moments = ObservationMoments(spec.vector.shape)
    # Called after all checks of the settings, so that they raise before there are files.
    opened = partial(open_store, config, spec, directory, sampled=is_on_policy(algorithm))
    if is_on_policy(algorithm):
        if stored is not None:
            raise UserError(f"dataset: expected an algorithm with a replay, got {config.algorithm}, which is on-policy")
        check_told(config, algorithm)
        size = algorithm.rollout_size
        try:
            config.check_rollouts(size, algorithm.batch_size, spec.frame_stack)
        except ValueError as error:
            raise UserError(str(error)) from None
        ahead = math.ceil(config.queue.waiting_rollouts * size)
        if config.queue.synchronous:
            # An actor that waits for the next policy keeps its credits. The other actors' credits must not wait for it.
            ahead += config.actors * WINDOW * config.actor.segment_length * config.environments_per_actor
        return RolloutQueue(
            opened(earlier_transitions=earlier_transitions),
            RateLimiter.of_queue(algorithm.epochs, size, ahead, time.monotonic),
            size,
            PublishedVersions(config.queue.max_policy_lag),
            replay.clip_rewards,
            RewardScale(algorithm.discount) if config.queue.normalize_rewards else None,
            moments,
        )
    off_policy = cast(Algorithm, algorithm)
    check_one_step(config, spec, off_policy)
    returns = _returns(config, off_policy)
    config.dynamic_capacity_of(spec)
    bound = getattr(off_policy, "reward_bound", None)
    scale = None if bound is None else RewardScale(off_policy.discount, bound)
    if stored is not None and config.offline:
        batch_size = off_policy.batch_size
        updates = UpdateLimiter(config.max_updates * batch_size, time.monotonic)
        return OfflineReplay(stored, rng, updates, returns, batch_size, directory.parent, moments, scale)
    store = opened(earlier_transitions=earlier_transitions)
    sampler = (
        PrioritizedSampler(
            *(store, rng, replay.priority_exponent),
            (replay.importance_exponent, replay.importance_exponent_end),
            config.max_environment_steps,
        )
        if replay.prioritized
        else UniformSampler(store, rng, replay.age_decay)
    )
    pace = config.rate_limiter
    limiter = RateLimiter(pace.samples_per_insert, replay.min_size, pace.error_buffer, time.monotonic)
    names, goals = HindsightColumns(config.copies_of(spec)), None
    if spec.goal is not None and names.copies:
        goals = OtherGoals(spec.goal, names, rng)
    parts = (store, sampler, limiter, returns, moments, goals, scale)
    if stored is None:
        return ReplayBuffer(*parts)
    minibatch = off_policy.batch_size
    return MixedReplay(
        *parts, stored=StoredRows(stored, rng), minibatch=minibatch, rows=config.dataset.rows_of(minibatch)
    )


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
    return DelayedReturns(first, longest, multi_step.after * config.budget)


def check_one_step(config: RunConfig, spec: EnvironmentSpec, algorithm: Algorithm) -> None:
    """Raise UserError for an algorithm of the user whose returns have several steps, with hindsight."""
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
        raise UserError(
            f"a segment of one step needs {environments * step_bytes(spec, further)} bytes with {environments} "
            f"environments per actor, but has at most {MAX_SEGMENT_BYTES}; give --environments-per-actor {most}"
        )
    rows = _segment_rows(config, spec)
    if 2 * rows > config.replay.capacity:
        raise UserError(
            f"replay.capacity must be at least twice the {rows} rows of a segment, (actor.segment_length + frame stack "
            f"{spec.frame_stack}) * environments_per_actor, got {config.replay.capacity}"
        )


def _segment_rows(config: RunConfig, spec: EnvironmentSpec) -> int:
    return segment_rows(config.actor.segment_length, config.environments_per_actor, spec.frame_stack)
