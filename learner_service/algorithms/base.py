"""The interface between the trainer and an algorithm, and the copy of batches to its device."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeGuard, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actorq.config import settings
from actorq.config.algorithms import ActionSpace
from actorq.config.run_config import RunConfig
from actorq.config.settings import Settings
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Sampling
from actorq.errors import UserError
from learner_service.batch import Batch

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Losses:
    """The outcome of several updates.

    loss: mean over the updates.
    priorities: float32[updates * batch_size], the new |TD error| of each sampled transition.
    figures: further means by name, such as "policy_loss", for status, TensorBoard, W&B and MLflow.
    """

    loss: float
    priorities: NDArray[np.float32]
    figures: Mapping[str, float] = field(default_factory=dict)


class AnyAlgorithm(Protocol):
    """What the trainer needs of every algorithm. Not thread-safe: one trainer owns it.

    The registry calls the class with the run's configuration, the environment's spec, and the device of networks and
    optimizers. `config.seed` is the seed. `config.learner.compile` asks for torch.compile.
    `config.normalize_observations` asks for networks with a Normalizer.

    action_spaces: kinds of actions that the algorithm supports; continuous actions have finite bounds.
    batch_size: transitions per gradient update.

    Optional attributes:
    settings: a subclass of actorq.config.settings.Settings. Users give its values as `algorithm_args`.
        `settings_of(config, settings)` returns the values of a run. Without it the algorithm has no settings.
    sparsity_methods: the supported values of `config.sparsity.method`, such as learner_service.sparsity.METHODS.
        Without it only dense networks are accepted.
    flops: learner_service.sparsity.Flops of the present networks. Without it the status shows none.
    begin_from: a method whose argument is the `state()` of another run. The algorithm begins with that run's networks
        and normalizer. Optimizers, counters and generators stay new. It raises as `load_state`. Without this method a
        run refuses `init_from`.
    has_memory: whether the class supports `config.memory`; False without it. In a run with memory, the algorithm has
        the method of `RecurrentAlgorithm`. Its policy then has the attribute `state_size`, which equals
        `config.memory.state_size`. The policy's forward pass has the state, float32[B, state_size], as its second
        input, and the next state as its last output.
    has_groups: whether the class supports `config.policies`; False without it. Its networks then have layers for each
        of `EnvironmentSpec.groups`.
    has_critic: whether the class supports `config.critic_leaves`; False without it. Its critics then see the
        environment `spec.for_critics`. Its policy sees `spec`, without `spec.critic_leaves`.
    precision: of wide hidden layers and convolutions (networks.precision.use_precision). Without it the status shows
        fp32.
    """

    name: str
    action_spaces: ClassVar[tuple[ActionSpace, ...]]
    batch_size: int
    discount: float

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None: ...

    @property
    def policy(self) -> nn.Module:
        """The module that is published. Maps observations [B, *policy_observations] to the output that actors use."""
        ...

    def normalize(self, mean: NDArray[np.float64], std: NDArray[np.float64]) -> None:
        """Normalize observations with this mean and std, [*observation] each. No effect without normalization."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, by name: networks, optimizers, counters, normalizer, generators."""
        ...

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned; raises KeyError or RuntimeError when names or shapes differ."""
        ...


class Algorithm(AnyAlgorithm, Protocol):
    """Trains on batches of n-step transitions. See `AnyAlgorithm` for the other members.

    policy: its output is q_values float32[B, actions], or actions float32[B, *action] within their bounds.
    takes_noise: the policy has standard normal noise, float32[B, actions], as its second input, and acts
        deterministically without it. For a replay of dynamic capacity the policy has a method `with_greedy`. That
        method has the same inputs and returns two outputs: the actions with noise and the actions without noise.

    Optional attribute:
    needs_windows: the targets have a term for each step of a window. With n > 1 batches have observations in between.
    reward_bound: the replay divides rewards by the running deviation of the discounted return, or by more, so that no
        discounted return of a stored episode exceeds this bound. Without it, or with None, rewards are unchanged.
    """

    takes_noise: bool
    n_step: int

    def update(self, batch: Batch, weights: NDArray[np.float32]) -> Losses:
        """One gradient update for each `batch_size` rows of `batch`; `weights` float32[rows] scale the losses.

        batch: of n-step transitions, as `replay.assemble` makes it.
        """
        ...


@dataclass(frozen=True)
class Learned:
    """The outcome of all updates on one rollout: the mean loss, the number of updates, and figures as in `Losses`."""

    loss: float
    updates: int
    figures: Mapping[str, float]


class OnPolicyAlgorithm(AnyAlgorithm, Protocol):
    """Trains on rollouts of the newest policies. See `AnyAlgorithm` for the other members.

    Its policy maps observations to logits float32[B, actions] of discrete actions. For continuous actions it returns
    actions without noise float32[B, *action] within their bounds, mean float32[B, components] and log standard
    deviation float32[B, components]; see `actorq.domain.policy`.

    policy: its attribute `output_names` has the names of its graph's outputs.
    rollout_size: environment steps per rollout, over all environments.
    epochs: number of passes over each rollout.
    """

    rollout_size: int
    epochs: int

    @property
    def sampling(self) -> Sampling:
        """How actors draw actions: the name of one of their samplers, such as "clipped" or "squashed"."""
        ...

    def learn(self, rollout: Sequence[Batch], progress: float) -> Learned:
        """Make all updates on one rollout. progress: used share of the run's environment steps, in [0, 1].

        rollout: as `RolloutQueue.next_rollout` returns it: batches of T steps of N environments, with different T.
        """
        ...

    def log_probabilities(
        self, observations: NDArray[np.generic], actions: NDArray[np.generic], parameters: Mapping[str, Tensor]
    ) -> NDArray[np.float32]:
        """log pi(a | s), float32[B], of the policy with these parameters. Empty parameters mean the present ones.

        observations: [B, *policy_observation]. actions: [B, *action], as in the rollout. With memory the states before
        these observations, float32[B, S], are a fourth argument.
        """
        ...


class RecurrentAlgorithm(Protocol):
    """An algorithm in a run with memory, in addition to its other protocol.

    With a replay, its batches consist of sequences (see `replay.recurrent.assemble_sequences`). One update trains on
    `config.memory.sequences(batch_size)` of them. `Losses.priorities` has one priority for each sequence.
    """

    def states(self, steps: Batch) -> NDArray[np.float32]:
        """The present policy's states before each step of trajectories, float32[T, N, S].

        For a batch of sequences: before each observation, float32[B, L + 1, S].
        """
        ...


def is_on_policy(algorithm: object) -> TypeGuard[OnPolicyAlgorithm]:
    """Whether an algorithm or its class is on-policy: it learns from rollouts, and does not update from batches."""
    return hasattr(algorithm, "learn")


def settings_of(config: RunConfig, model: type[S]) -> S:
    """The settings of an algorithm with `settings = model`. Raises UserError if it refuses `config.algorithm_args`."""
    section = next((name for name, field in RunConfig.model_fields.items() if field.annotation is model), None)
    if section is None:
        return settings.build(model, config.algorithm_args, section="algorithm_args")
    if config.algorithm_args:
        raise UserError(f"algorithm_args: the settings of algorithm {config.algorithm} are --{section}.NAME")
    return cast(S, getattr(config, section))


def minibatches(batch: Batch, weights: NDArray[np.float32], size: int, device: torch.device) -> Iterator[Batch]:
    """Cut a batch into minibatches of `size` rows on `device`; see `on_device`."""
    return on_device(batch, weights, size, device).split(size)


def on_device(batch: Batch, weights: NDArray[np.float32], size: int, device: torch.device) -> Batch:
    """All rows of n-step transitions on `device`, with the column `weights`, float32[B], and without versions.

    On the CPU they are views. On a GPU each column needs one asynchronous copy. Raises ValueError unless the rows are a
    multiple of `size`.
    """
    if len(weights) % size:
        raise ValueError(f"expected a multiple of {size} rows, got {len(weights)}")
    rows = batch.without("policy_versions").with_columns(weights=weights)
    return rows.map(lambda column: torch.from_numpy(column).to(device, non_blocking=True))
