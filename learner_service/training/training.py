"""Builds the objects of a run that need the environment's spec: replay, algorithm, publisher, trainer, intake."""

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from actorq import wire
from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.policy import PolicyGraph
from actorq.domain.spaces import EnvironmentSpec, check_goals
from actorq.domain.status import Receipt, RolloutQueueStatus, StorageStatus
from actorq.errors import ConflictError, ExhaustedError, UserError
from actorq.statefiles.highwater import HighWaterMark
from actorq.statefiles.tolerance import Tolerated
from learner_service.actors.intake import Intake
from learner_service.algorithms import make_algorithm
from learner_service.algorithms.base import Algorithm, AnyAlgorithm, is_on_policy
from learner_service.datasets.of_run import open_dataset
from learner_service.files import GRAPH_CACHE
from learner_service.networks.precision import FP32
from learner_service.policy.graph_cache import cached_policy_graph
from learner_service.quantization.fake_quantization import FakeQuantization
from learner_service.quantization.quantization_aware import QuantizationAware
from learner_service.replay import DiskWatch, DynamicCapacity, Flusher, ReadOnlyStore, ReplayBuffer, SegmentBuffer
from learner_service.rollouts import RolloutQueue
from learner_service.training.batches import Batches, RolloutBatches, SampledBatches, dynamic_capacity
from learner_service.training.buffers import check_sizes, open_buffer, open_store
from learner_service.training.checkpoint import LearnerState
from learner_service.training.device import choose_device
from learner_service.training.drawing import sampling_of
from learner_service.training.publisher import Publisher
from learner_service.training.source import Source
from learner_service.training.threads import Threads, choose
from learner_service.training.trainer import Trainer, takes_noise
from learner_service.training.warm_start import begin_replay, begin_training, check_fits

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Training:
    """The objects of a run that depend on its environment: networks, replay, publisher, trainer."""

    config: RunConfig
    spec: EnvironmentSpec
    algorithm: AnyAlgorithm
    replay: SegmentBuffer
    intake: Intake
    publisher: Publisher
    trainer: Trainer
    batches: Batches
    quantization_aware: QuantizationAware
    flusher: Flusher
    rng: np.random.Generator
    dynamic_capacity: DynamicCapacity | None = None
    threads: Threads | None = None
    """The measured number of torch's threads; None for a configured one."""
    dataset: str = ""
    """Digest of the run's stored data; empty without."""

    def start(self, graph: PolicyGraph) -> None:
        """Publish the first policy and start training."""
        self.flusher.start()
        self.trainer.start()
        self.publisher.start(graph)

    def state(self, updates: int, values: dict[str, Any]) -> LearnerState:
        """The state for a checkpoint, with the run's `values`. Flushes the replay; raises OSError when that fails."""
        state = LearnerState(
            updates,
            self.algorithm.state(),
            {
                **values,
                "environment": self.spec.environment_id,
                "environment_arguments": self.spec.environment_arguments.to_text(),
                # The configured name is saved, because the `name` of a user's class is not a valid value of the flag.
                "algorithm": self.config.algorithm,
                "sparsity": self.config.sparsity.topology,
                # Runs that begin with these networks need these values (training.warm_start).
                "spec": self.spec.to_json(),
                "network_settings": self.config.network_settings,
                "horizon": self.config.horizon,
                "version": self.publisher.version,
                "limiter": self.replay.state_dict(),
                "batches": self.batches.state(),
                "rng": self.rng.bit_generator.state,
                "intake": self.intake.state(),
                "quantization_aware": self.quantization_aware.state(),
                **({} if self.threads is None else {"torch_threads": asdict(self.threads)}),
                **({"dataset": self.dataset} if self.dataset else {}),
            },
        )
        # The checkpoint's transitions must be on the disk.
        self.replay.flush()
        return state

    @property
    def multi_step_since(self) -> int | None:
        """See `ReplayBuffer.multi_step_since`; None without a replay."""
        return self.replay.multi_step_since if isinstance(self.replay, ReplayBuffer) else None

    @property
    def is_collecting(self) -> bool:
        """Whether updates wait for data: at the start, after a loss of transitions, or before the first rollout."""
        if isinstance(self.replay, RolloutQueue):
            return self.trainer.updates == 0
        return self.replay.limiter.missing > 0

    def rollout_queue(self) -> RolloutQueueStatus | None:
        """The state of an on-policy algorithm's queue; None for others."""
        if not isinstance(self.batches, RolloutBatches):
            return None
        queue, mismatch = self.batches.queue, self.batches.mismatch
        means = {name: mismatch.mean(name) for name in ("mismatch", "divergence", "policy_lag")}
        return RolloutQueueStatus(queue.waiting_transitions, queue.dropped_transitions, **means)

    def storage(self) -> StorageStatus:
        """The present state of the replay's storage."""
        return self.replay.storage(self.flusher.disk, self.intake.statistics().lost_segments)

    def close(self) -> None:
        """End all threads, then close the replay."""
        self.trainer.stop()
        self.publisher.close()
        self.flusher.close()
        Tolerated("the replay", "the next learner finds what the last flush has written").attempt(self.replay.close)


def build_training(
    config: RunConfig,
    spec: EnvironmentSpec,
    directory: Path,
    opening: wire.Opening,
    client: QuantizerClient,
    state: LearnerState | None,
    save: Callable[[int], Path],
    on_receipt: Callable[[Receipt], None],
    published: int = 0,
    source: Source | None = None,
) -> tuple[Training, PolicyGraph]:
    """Build the training, from a checkpoint's `state` when there is one. Blocks for a second or two.

    published: the newest known version of the run. Later versions are above it. source: a checkpoint of another run. A
    run without `state` begins with its networks. Returns the training, not yet started, and the graph for its start.
    Raises UserError, and leaves nothing open, when algorithm, environment, replay or checkpoint do not fit.
    """
    check_sizes(config, spec)
    config = with_goals(config, spec)
    device = choose_device(config.learner.device)
    algorithm = _algorithm(config, spec, device, source)
    rng = np.random.default_rng(config.seed)
    values = state.values if state else {}
    threads = _choose_threads(config, spec, algorithm, device, values)
    stored = open_dataset(config, spec, values)
    replay = _open_replay(config, spec, directory / "replay", algorithm, rng, values, source, stored)
    with ExitStack() as opened:
        opened.callback(replay.close)
        newest = max(published, values.get("version", 0))
        publisher = _publisher(client, opening, on_receipt, directory / "published.json", newest)
        intake = Intake(spec, replay, config.scheme, lambda: publisher.known_version)
        if state is not None:
            _restore(state, algorithm, replay, intake, rng)
        elif source is not None:
            begin_training(source, config, algorithm, replay)
        intake.account_for(replay.total_transitions)
        batches, dynamic = _batches(config, algorithm, replay, device, values)
        graph = _graph(directory / GRAPH_CACHE, algorithm, spec, greedy=dynamic is not None)
        aware = _quantization_aware(config, algorithm, graph, values)
        updates = state.updates if state else 0
        trainer = Trainer(
            *(config, algorithm, batches, publisher, aware, save, updates),
            on_published=intake.published,
            kept=intake.calibration_rows,
        )
        disk = DiskWatch(replay.directory, config.replay.min_free_bytes, replay.machine)
        flusher = Flusher(replay, disk, config.replay.flush_s)
        opened.pop_all()
    _log.info(
        "replay: %d rows, %.1f MB on disk; batches: %.1f MB, for %s",
        *(replay.capacity, replay.nbytes / 1e6, batches.nbytes / 1e6, device),
    )
    training = Training(
        *(config, spec, algorithm, replay, intake, publisher, trainer, batches, aware, flusher, rng, dynamic),
        threads=threads,
        dataset=stored.digest if stored else "",
    )
    return training, graph


def with_goals(config: RunConfig, spec: EnvironmentSpec) -> RunConfig:
    """The settings of the run in its environment: with hindsight, returns have one step.

    The launcher decides this before it starts the learner. On a cluster only the learner knows the environment. Raises
    UserError where hindsight is not possible.
    """
    if not config.copies_of(spec) or sampling_of(config):
        return config
    check_goals(spec)
    changed: dict[str, Any] = {}
    own = config.own
    if own is not None and getattr(own, "n_step", 1) > 1:
        _log.warning("%s.n_step: 1 instead of %d, because of hindsight", config.algorithm, getattr(own, "n_step", 1))
        changed[config.algorithm] = own.model_copy(update={"n_step": 1})
    if config.multi_step_of(1) is not None:
        _log.warning("multi_step: off, because of hindsight")
        changed["multi_step"] = False
    return config.model_copy(update=changed)


def _algorithm(config: RunConfig, spec: EnvironmentSpec, device: torch.device, source: Source | None) -> AnyAlgorithm:
    """The run's algorithm. Raises UserError if the networks of `source` do not fit it."""
    algorithm: AnyAlgorithm = make_algorithm(config, spec, device)
    if config.learner.precision != FP32 and not hasattr(algorithm, "precision"):
        _log.warning("learner.precision %s: algorithm %s uses fp32", config.learner.precision, config.algorithm)
    if source is not None:
        check_fits(source, config, spec, algorithm)
    return algorithm


def _choose_threads(
    config: RunConfig, spec: EnvironmentSpec, algorithm: AnyAlgorithm, device: torch.device, values: Mapping[str, Any]
) -> Threads | None:
    """Set the number of torch's threads, for the algorithm's real precision. values: of the checkpoint, if any."""
    # The trainer's thread starts later, with the number of threads that was set last.
    learner = config.learner.model_copy(update={"precision": getattr(algorithm, "precision", FP32)})
    return choose(config.model_copy(update={"learner": learner}), spec, device, values.get("torch_threads"))


def _open_replay(
    config: RunConfig,
    spec: EnvironmentSpec,
    directory: Path,
    algorithm: AnyAlgorithm,
    rng: np.random.Generator,
    values: Mapping[str, Any],
    source: Source | None,
    stored: ReadOnlyStore | None,
) -> RolloutQueue | ReplayBuffer:
    """The replay or queue. A new run may begin with the transitions of `source`. values: of the checkpoint, if any."""
    try:
        if source is not None and config.init_replay:
            begin_replay(source, directory, partial(open_store, config, spec))
        return open_buffer(config, spec, directory, algorithm, rng, values.get("limiter", {}).get("stored", 0), stored)
    except (ConflictError, ExhaustedError) as error:
        raise UserError(str(error)) from error


def _publisher(
    client: QuantizerClient, opening: wire.Opening, on_receipt: Callable[[Receipt], None], file: Path, newest: int
) -> Publisher:
    """A publisher of versions above `newest`, and above the versions that `file` records."""
    mark = HighWaterMark(file, newest)
    # The file exists from the start, so a missing file is a lost one.
    mark.reserve(mark.floor)
    return Publisher(client, opening, on_receipt, first_version=mark.floor + 1, mark=mark)


def _quantization_aware(
    config: RunConfig, algorithm: AnyAlgorithm, graph: PolicyGraph, values: Mapping[str, Any]
) -> QuantizationAware:
    """The run's quantization-aware training, off if the run does not use it. values: of the checkpoint, if any."""
    after = config.learner.quantization_aware_after
    starts_at = None if after is None else after * config.budget
    fake = FakeQuantization(algorithm.policy, graph, config.learner.quantization_aware_bits)
    aware = QuantizationAware(fake, starts_at)
    # Older checkpoints do not have this state.
    if "quantization_aware" in values:
        aware.load_state(values["quantization_aware"])
    return aware


def _batches(
    config: RunConfig,
    algorithm: AnyAlgorithm,
    replay: RolloutQueue | ReplayBuffer,
    device: torch.device,
    values: Mapping[str, Any],
) -> tuple[Batches, DynamicCapacity | None]:
    """The trainer's batches, and the replay's dynamic capacity if it has one. values: of the checkpoint, if any."""
    if isinstance(replay, RolloutQueue):
        assert is_on_policy(algorithm)
        rollouts = RolloutBatches(config, algorithm, replay, device)
        if values:
            rollouts.load_state(values["batches"])
        return rollouts, None
    algorithm = cast(Algorithm, algorithm)
    dynamic = dynamic_capacity(config, algorithm, replay, device)
    return SampledBatches(config, algorithm, replay, device, dynamic), dynamic


def _graph(path: Path, algorithm: AnyAlgorithm, spec: EnvironmentSpec, greedy: bool) -> PolicyGraph:
    try:
        return cached_policy_graph(path, algorithm.policy, spec, takes_noise(algorithm), greedy)
    except UserError:
        raise
    except Exception as error:
        # The exporter wraps the cause in advice on how to report it.
        reason = error.__cause__ or error
        first = next(iter(str(reason).strip().splitlines()), "")
        raise UserError(f"the policy cannot be exported to ONNX: {type(reason).__name__}: {first}") from error


def _restore(
    state: LearnerState, algorithm: AnyAlgorithm, replay: SegmentBuffer, intake: Intake, rng: np.random.Generator
) -> None:
    try:
        algorithm.load_state(state.tensors)
        replay.load_state_dict(state.values["limiter"])
    except Exception as error:
        # A user's algorithm may raise anything.
        raise UserError(
            f"the checkpoint does not fit the configured networks: {' '.join(str(error).split())}; resume with the "
            "settings in the run's config.yaml"
        ) from error
    rng.bit_generator.state = state.values["rng"]
    intake.load_state(state.values["intake"])
