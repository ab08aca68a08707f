"""Settings of the learning algorithms."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from actorq.config.numbers import Fraction, LayerSizes, NonNegativeFloat, PositiveFloat, PositiveInt, Whole
from actorq.config.settings import DefaultText, Settings
from actorq.errors import UserError

ActionSpace = Literal["discrete", "continuous"]

# An installed package declares an algorithm in this entry-point group: `name = "module:Class"`.
ALGORITHM_ENTRY_POINTS = "actorq.algorithms"
# Rows whose mean and variance are still useful for a normalization.
_FEWEST_NORMALIZED = 8
# Descriptions of settings that several algorithms share.
_N_STEP = "environment steps of the return before bootstrapping; the newest steps use fewer"
_ROLLOUT_SIZE = "environment steps per rollout, over all environments; a policy is published after each"
_RATE_END = "final Adam step size, reached linearly after learning_rate_updates; none: constant"
_RATE_UPDATES = "gradient updates until the step size reaches its final value"
_TARGET_RATE = "tau: share of the way that each update moves the target networks toward the online networks"
_MAX_NORM = "global norm to which the gradients of policy and value network are clipped"


class AlgorithmConfig(Settings):
    """Settings of every algorithm with a replay.

    actions: the action spaces that the algorithm supports.
    fixed: settings that a run cannot change, because its networks and checkpoints depend on them.
    ignored: settings of other sections that the algorithm ignores, besides those for other kinds of algorithms or
        actions.
    has_steps: whether returns span several steps from the first update on.
    has_memory: whether the policy may have a memory.
    has_critic: whether a critic or value network apart from the policy may see more than the policy.
    has_groups: whether groups of agents may have networks of their own.
    for_stored_data: whether the algorithm is made for stored data, so that it is not suggested for other runs.
    """

    actions: ClassVar[tuple[ActionSpace, ...]] = ("continuous",)
    fixed: ClassVar[tuple[str, ...]] = ("hidden_sizes",)
    ignored: ClassVar[tuple[str, ...]] = ()
    has_steps: ClassVar[bool] = False
    has_memory: ClassVar[bool] = False
    has_critic: ClassVar[bool] = True
    has_groups: ClassVar[bool] = False
    for_stored_data: ClassVar[bool] = False

    batch_size: PositiveInt = Field(256, description="transitions per gradient update")
    discount: Fraction = Field(0.99, description="discount factor gamma per environment step")
    n_step: PositiveInt = Field(1, description=_N_STEP)


class DQNConfig(AlgorithmConfig):
    """DQN: double, dueling, n-step, Huber loss, hard target updates."""

    actions = ("discrete",)
    fixed = ("hidden_sizes", "dueling")
    ignored = ("sparsity.critic", "sparsity.critic_method")
    has_steps = True
    has_memory = True
    has_critic = False
    has_groups = True

    hidden_sizes: LayerSizes = Field((64, 64), description="units of each hidden layer")
    learning_rate: PositiveFloat = Field(1e-2, description="Adam step size")
    learning_rate_end: NonNegativeFloat | None = Field(None, description=_RATE_END)
    learning_rate_updates: PositiveInt = Field(20_000, description=_RATE_UPDATES)
    batch_size: PositiveInt = Field(128, description="transitions per gradient update")
    n_step: PositiveInt = Field(5, description=_N_STEP)
    target_update_period: PositiveInt = Field(20, description="gradient updates between copies to the target network")
    max_gradient_norm: PositiveFloat = Field(10.0, description="global norm to which gradients are clipped")
    huber_delta: PositiveFloat = Field(1.0, description="TD error from which the loss grows linearly")
    double: bool = Field(True, description="select the bootstrap action with the online network (double DQN)")
    dueling: bool = Field(True, description="separate value and advantage heads")
    value_rescaling: bool = Field(
        False, description="learn values on the scale of a square root (arXiv 1805.11593), for rewards of any size"
    )


class D4PGConfig(AlgorithmConfig):
    """D4PG: deterministic policy, categorical critic, n-step returns (arXiv 1804.08617), with Acme's networks."""

    fixed = ("policy_sizes", "critic_sizes", "atoms")
    has_steps = True

    policy_sizes: LayerSizes = Field((256, 256, 256), description="units of each hidden layer of the policy")
    critic_sizes: LayerSizes = Field((512, 512, 256), description="units of each hidden layer of the critic")
    policy_learning_rate: PositiveFloat = Field(1e-4, description="Adam step size of the policy")
    critic_learning_rate: PositiveFloat = Field(1e-4, description="Adam step size of the critic")
    n_step: PositiveInt = Field(5, description=_N_STEP)
    target_update_period: PositiveInt = Field(100, description="gradient updates between copies to the targets")
    policy_delay: PositiveInt = Field(1, description="critic updates per update of the policy (more than 1: as in TD3)")
    max_gradient_norm: PositiveFloat = Field(40.0, description="global norm to which each gradient is clipped")
    atoms: Annotated[Whole, Field(ge=2)] = Field(51, description="number of values of the critic's return distribution")
    value_min: float = Field(-150.0, description="lowest value of the return distribution")
    value_max: float = Field(150.0, description="highest value of the return distribution")

    @model_validator(mode="after")
    def _values_ascend(self) -> "D4PGConfig":
        if self.value_min >= self.value_max:
            raise ValueError(
                f"d4pg.value_min must be below d4pg.value_max ({self.value_max:g}), got {self.value_min:g}"
            )
        return self


class TD3Config(AlgorithmConfig):
    """TD3: twin critics, delayed policy updates, smoothed targets (arXiv 1802.09477)."""

    has_memory = True
    has_groups = True

    hidden_sizes: LayerSizes = Field((256, 256), description="units of each hidden layer of policy and critics")
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size of policy and critics")
    target_rate: Annotated[float, Field(gt=0, le=1)] = Field(0.005, description=_TARGET_RATE)
    policy_delay: PositiveInt = Field(2, description="critic updates per update of the policy")
    target_noise: NonNegativeFloat = Field(
        0.2, description="standard deviation of the noise on target actions (actions scaled to [-1, 1])"
    )
    target_noise_clip: NonNegativeFloat = Field(0.5, description="bound of that noise (actions scaled to [-1, 1])")


class SACConfig(AlgorithmConfig):
    """SAC: maximum-entropy policy, twin critics, automatic temperature (arXiv 1812.05905)."""

    fixed = ("hidden_sizes", "layer_norm", "shared_encoder")
    ignored = ("exploration.noise",)
    has_memory = True
    has_groups = True

    hidden_sizes: LayerSizes = Field((256, 256), description="units of each hidden layer of policy and critics")
    random_shift: Annotated[Whole, Field(ge=0, le=1_000)] = Field(
        0, description="largest shift of images in updates, in pixels (arXiv 2004.13649); 0: none; images"
    )
    shared_encoder: bool = Field(
        False,
        description="policy and critics share the layers for images, which only the critics' loss trains (arXiv "
        "2107.09645); images",
    )
    layer_norm: Annotated[bool, DefaultText("with a data set")] = Field(
        False, description="normalize the hidden layers of the critics (arXiv 1607.06450), as for stored data"
    )
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size of policy, critics and temperature")
    target_rate: Annotated[float, Field(gt=0, le=1)] = Field(0.005, description=_TARGET_RATE)
    temperature: PositiveFloat | None = Field(
        None, description="weight alpha of the entropy; none: adjusted until the entropy reaches target_entropy"
    )
    initial_temperature: PositiveFloat = Field(1.0, description="alpha before the first update, if it is adjusted")
    target_entropy: float | None = Field(
        None,
        description="entropy in nats that alpha is adjusted to, below 0.693 per action component; none: minus the "
        "number of components",
    )


class XQCConfig(AlgorithmConfig):
    """XQC: SAC with batch normalization, unit rows and categorical critics (arXiv 2509.25174), in a small size."""

    fixed = ("policy_sizes", "critic_sizes", "atoms")
    ignored = ("exploration.noise", "learner.compile")

    policy_sizes: LayerSizes = Field((128, 128), description="units of each hidden layer of the policy")
    critic_sizes: LayerSizes = Field((256, 256), description="units of each hidden layer of both critics")
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size of policy, critics and temperature")
    learning_rate_end: NonNegativeFloat | None = Field(None, description=_RATE_END)
    learning_rate_updates: PositiveInt = Field(100_000, description=_RATE_UPDATES)
    target_rate: Annotated[float, Field(gt=0, le=1)] = Field(0.01, description=_TARGET_RATE)
    policy_delay: PositiveInt = Field(2, description="critic updates per update of the policy")
    unit_rows: bool = Field(True, description="divide each row of a hidden weight by its norm after each update")
    atoms: Annotated[Whole, Field(ge=2)] = Field(
        101, description="number of values of the critics' return distributions"
    )
    value_min: float | None = Field(
        None,
        description="lowest value of the return distributions, given together with value_max; none: rewards are "
        "divided by the running deviation of the discounted return, and values lie between -5 and 5",
    )
    value_max: float | None = Field(None, description="highest value of the return distributions; see value_min")
    temperature: PositiveFloat | None = Field(
        None,
        description="weight alpha of the entropy, in units of scaled rewards or of (value_max - value_min) / 10; none: "
        "adjusted until the entropy reaches target_entropy",
    )
    initial_temperature: PositiveFloat = Field(0.01, description="alpha before the first update, if it is adjusted")
    target_entropy: float | None = Field(
        None,
        description="entropy in nats that alpha is adjusted to, below 0.693 per action component; none: minus half the "
        "number of components",
    )

    @model_validator(mode="after")
    def _batch_has_statistics(self) -> "XQCConfig":
        if self.batch_size < _FEWEST_NORMALIZED:
            raise ValueError(
                f"xqc.batch_size must be at least {_FEWEST_NORMALIZED}, because layers are normalized with the "
                f"statistics of a batch, got {self.batch_size}"
            )
        return self

    @model_validator(mode="after")
    def _values_ascend(self) -> "XQCConfig":
        if (self.value_min is None) != (self.value_max is None):
            raise ValueError("xqc.value_min and xqc.value_max must be given together, or neither of them")
        if self.value_min is not None and self.value_max is not None and self.value_min >= self.value_max:
            raise ValueError(f"xqc.value_min must be below xqc.value_max ({self.value_max:g}), got {self.value_min:g}")
        return self


class TD3BCConfig(TD3Config):
    """TD3+BC: TD3 whose policy stays near the actions of stored data (arXiv 2106.06860)."""

    for_stored_data = True
    has_memory = False

    alpha: PositiveFloat = Field(2.5, description="weight of the values beside the distance to the stored actions")


class IQLConfig(AlgorithmConfig):
    """IQL: expectile regression of values, advantage-weighted regression of the policy (arXiv 2110.06169)."""

    for_stored_data = True

    hidden_sizes: LayerSizes = Field((256, 256), description="units of each hidden layer of policy, critics and value")
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size of policy, critics and value")
    target_rate: Annotated[float, Field(gt=0, le=1)] = Field(0.005, description=_TARGET_RATE)
    expectile: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.7, description="tau: 0.5 is the mean of the stored actions' values, near 1 their maximum"
    )
    inverse_temperature: NonNegativeFloat = Field(
        3.0, description="beta: the weight of a stored action is exp(beta advantage)"
    )
    max_weight: PositiveFloat = Field(100.0, description="upper bound of these weights")


class OnPolicyConfig(Settings):
    """Settings of every on-policy algorithm. It has a queue instead of the replay. See also AlgorithmConfig."""

    actions: ClassVar[tuple[ActionSpace, ...]] = ("discrete", "continuous")
    fixed: ClassVar[tuple[str, ...]] = ("hidden_sizes", "value_sizes", "activation", "squash")
    ignored: ClassVar[tuple[str, ...]] = ()
    has_memory: ClassVar[bool] = True
    has_critic: ClassVar[bool] = True
    has_groups: ClassVar[bool] = True
    for_stored_data: ClassVar[bool] = False

    hidden_sizes: LayerSizes = Field((64, 64), description="units of each hidden layer of the policy")
    value_sizes: LayerSizes = Field((64, 64), description="units of each hidden layer of the value network")
    activation: Literal["tanh", "relu"] = Field("tanh", description="activation of the hidden layers: tanh or relu")
    orthogonal: bool = Field(
        True, description="orthogonal initial weights (gain 0.01 for the policy's last layer); else PyTorch's own"
    )
    log_std: Annotated[float, Field(ge=-20, le=2)] = Field(
        0.0, description="initial log standard deviation of actions (actions scaled to [-1, 1]); continuous actions"
    )
    squash: bool = Field(
        False, description="squash continuous actions into their bounds with tanh, instead of clipping them"
    )
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size")
    value_learning_rate: PositiveFloat | None = Field(
        None, description="Adam step size of the value network, annealed like learning_rate; none: learning_rate"
    )
    learning_rate_end: NonNegativeFloat | None = Field(
        None, description="Adam step size at the end of the budget, reached linearly; none: constant"
    )
    adam_epsilon: PositiveFloat = Field(1e-5, description="epsilon of Adam")
    rollout_size: PositiveInt = Field(2048, description=_ROLLOUT_SIZE)
    discount: Fraction = Field(0.99, description="discount factor gamma per environment step")
    value_cost: NonNegativeFloat = Field(
        0.5, description="weight of the value loss, half the squared error; Stable-Baselines3 weights the full error"
    )
    entropy_cost: NonNegativeFloat = Field(0.0, description="weight of the policy's entropy")
    max_gradient_norm: PositiveFloat = Field(0.5, description=_MAX_NORM)


class PPOConfig(OnPolicyConfig):
    """PPO (arXiv 1707.06347) in its decoupled form (arXiv 2110.00641), with truncated importance weights."""

    batch_size: PositiveInt = Field(64, description="transitions per gradient update")
    epochs: PositiveInt = Field(10, description="passes over each rollout")
    gae_lambda: Fraction = Field(0.95, description="lambda of generalized advantage estimation")
    clip: PositiveFloat = Field(0.2, description="epsilon: bound of the policy's ratio around 1")
    clip_end: NonNegativeFloat | None = Field(
        None, description="epsilon at the end of the budget, reached linearly; none: constant"
    )
    value_clip: PositiveFloat | None = Field(
        None, description="bound on the change of a value by one rollout's updates; none: no bound"
    )
    normalize_advantages: bool = Field(True, description="scale the advantages of each minibatch to mean 0 and std 1")
    target_kl: PositiveFloat | None = Field(
        None, description="KL divergence from the rollout's policy that ends the rollout's epochs early; none: never"
    )
    correct: bool = Field(True, description="weight transitions by pi / mu to correct for staleness and rounding")
    max_weight: PositiveFloat = Field(2.0, description="truncation of the importance weight pi / mu")


class IMPALAConfig(OnPolicyConfig):
    """IMPALA (arXiv 1802.01561): V-trace targets from one pass over each rollout."""

    ignored = ("learner.compile", "memory.sequence_length")

    batch_size: PositiveInt = Field(512, description="transitions per gradient update; whole segments")
    rollout_size: PositiveInt = Field(512, description=_ROLLOUT_SIZE)
    trace_lambda: Fraction = Field(1.0, description="lambda of V-trace")
    entropy_cost: NonNegativeFloat = Field(0.01, description="weight of the policy's entropy")
    max_gradient_norm: PositiveFloat = Field(40.0, description=_MAX_NORM)
    correct: bool = Field(True, description="use V-trace weights pi / mu; otherwise all weights are 1")
    max_rho: PositiveFloat = Field(1.0, description="rho bar: truncation of the weights in the V-trace target")
    max_c: PositiveFloat = Field(1.0, description="c bar: truncation of the weights of the trace")


# The built-in algorithms.
ALGORITHMS: dict[str, type[AlgorithmConfig] | type[OnPolicyConfig]] = {
    "dqn": DQNConfig,
    "d4pg": D4PGConfig,
    "td3": TD3Config,
    "sac": SACConfig,
    "xqc": XQCConfig,
    "ppo": PPOConfig,
    "impala": IMPALAConfig,
    "td3bc": TD3BCConfig,
    "iql": IQLConfig,
}
ON_POLICY = tuple(name for name, settings in ALGORITHMS.items() if issubclass(settings, OnPolicyConfig))
# A run cannot change these settings. Its networks, replay files and checkpoints depend on them.
FIXED = (
    *("environment", "environment_args", "environment_wrappers", "image_layout", "critic_leaves"),
    *("algorithm", "algorithm_args"),
    *("network", "normalize_observations", "replay.capacity", "hindsight.copies", "init_from", "init_replay"),
    *("memory.kind", "memory.units", "agents.identity", "agents.critic", "policies", "offline"),
    *(f"{name}.{setting}" for name, settings in ALGORITHMS.items() for setting in settings.fixed),
)


def taking(*kinds: str) -> list[str]:
    """The built-in algorithms that support actions of these kinds, without those for stored data."""
    fitting = {name: each for name, each in ALGORITHMS.items() if {*kinds} <= {*each.actions}}
    return [name for name, settings in fitting.items() if not settings.for_stored_data]


def no_critic(name: str, kinds: Sequence[str], setting: str) -> UserError:
    """The error for critics that see more, with an algorithm without a critic.

    kinds: of the actions. setting: by which critics would see more.
    """
    others = [each for each in taking(*kinds) if ALGORITHMS[each].has_critic]
    return UserError(
        f"{setting}: algorithm {name} has no critic apart from the policy, which would see the same; choose "
        f"{' or '.join(others)}, or leave {setting.split()[0]} out"
    )
