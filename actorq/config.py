"""The run configuration: one typed tree, from YAML, environment variables and flags.

Each field's description is its help text. The resolved tree is written to `config.yaml` in the run directory.
"""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from actorq.errors import UserError
from actorq.mechanisms import check_mechanisms
from actorq.presets import with_preset
from actorq.settings import DefaultText, Settings
from actorq.status import Exploration
from actorq.transport.access import Access
from actorq.transport.identity import DEFAULT_RUN, RUN_PATTERN
from actorq.transport.options import MAX_SEGMENT_BYTES, Certificates

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
# Those that come with the learner, and the actions that they take; others are given as MODULE:CLASS.
ALGORITHMS = {"dqn": "discrete", "d4pg": "continuous", "td3": "continuous", "sac": "continuous"}
# The group in which an installed package declares an algorithm: `name = "module:Class"`.
ALGORITHM_ENTRY_POINTS = "actorq.algorithms"
# Those of actorq.policy.SCHEMES; a test holds them together.
SchemeName = Literal["fp32", "int8-weights", "int8", "int8-static", "int4"]
SparsityMethod = Literal["dense", "tiny", "static", "set", "rigl", "rlx2"]


class DQNConfig(Settings):
    """DQN: double, dueling, n-step, Huber loss, hard target updates."""

    hidden_sizes: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = Field(
        (64, 64), description="units of each hidden layer"
    )
    learning_rate: PositiveFloat = Field(1e-2, description="Adam step size")
    learning_rate_end: NonNegativeFloat | None = Field(
        None, description="Adam step size that is reached linearly after learning_rate_updates; constant when none"
    )
    learning_rate_updates: PositiveInt = Field(20_000, description="gradient updates of the learning rate's way down")
    batch_size: PositiveInt = Field(128, description="transitions per gradient update")
    discount: Fraction = Field(0.99, description="discount factor gamma per environment step")
    n_step: PositiveInt = Field(
        5, description="environment steps of the return before bootstrapping; fewer at the end of a segment"
    )
    target_update_period: PositiveInt = Field(20, description="gradient updates between copies to the target network")
    max_gradient_norm: PositiveFloat = Field(10.0, description="global norm to which gradients are clipped")
    huber_delta: PositiveFloat = Field(1.0, description="TD error from which the loss grows linearly")
    double: bool = Field(True, description="select the bootstrap action with the online network (double DQN)")
    dueling: bool = Field(True, description="separate value and advantage heads")


class D4PGConfig(Settings):
    """D4PG: deterministic policy, categorical critic, n-step returns (arXiv 1804.08617), with Acme's networks."""

    policy_sizes: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = Field(
        (256, 256, 256), description="units of each hidden layer of the policy"
    )
    critic_sizes: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = Field(
        (512, 512, 256), description="units of each hidden layer of the critic"
    )
    policy_learning_rate: PositiveFloat = Field(1e-4, description="Adam step size of the policy")
    critic_learning_rate: PositiveFloat = Field(1e-4, description="Adam step size of the critic")
    batch_size: PositiveInt = Field(256, description="transitions per gradient update")
    discount: Fraction = Field(0.99, description="discount factor gamma per environment step")
    n_step: PositiveInt = Field(5, description="environment steps of the return before bootstrapping")
    target_update_period: PositiveInt = Field(100, description="gradient updates between copies to the targets")
    max_gradient_norm: PositiveFloat = Field(40.0, description="global norm to which each gradient is clipped")
    atoms: Annotated[int, Field(ge=2)] = Field(51, description="values that the distribution of returns is over")
    value_min: float = Field(-150.0, description="lowest of them")
    value_max: float = Field(150.0, description="highest of them")

    @model_validator(mode="after")
    def _values_ascend(self) -> "D4PGConfig":
        if self.value_min >= self.value_max:
            raise ValueError(
                f"d4pg.value_min must be below d4pg.value_max ({self.value_max:g}), got {self.value_min:g}"
            )
        return self


class TD3Config(Settings):
    """TD3: twin critics, delayed policy updates, smoothed targets (arXiv 1802.09477)."""

    hidden_sizes: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = Field(
        (256, 256), description="units of each hidden layer of policy and critics"
    )
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size of policy and critics")
    batch_size: PositiveInt = Field(256, description="transitions per gradient update")
    discount: Fraction = Field(0.99, description="discount factor gamma per environment step")
    n_step: PositiveInt = Field(1, description="environment steps of the return before bootstrapping")
    target_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        0.005, description="tau: share of the online networks that the targets take over with each update"
    )
    policy_delay: PositiveInt = Field(2, description="critic updates between two updates of the policy")
    target_noise: NonNegativeFloat = Field(
        0.2, description="standard deviation of the noise on target actions, in halves of the action range"
    )
    target_noise_clip: NonNegativeFloat = Field(0.5, description="largest such noise, in halves of the action range")


class SACConfig(Settings):
    """SAC: maximum-entropy policy, twin critics, automatic temperature (arXiv 1812.05905)."""

    hidden_sizes: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = Field(
        (256, 256), description="units of each hidden layer of policy and critics"
    )
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size of policy, critics and temperature")
    batch_size: PositiveInt = Field(256, description="transitions per gradient update")
    discount: Fraction = Field(0.99, description="discount factor gamma per environment step")
    n_step: PositiveInt = Field(1, description="environment steps of the return before bootstrapping")
    target_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        0.005, description="tau: share of the online critics that the targets take over with each update"
    )
    temperature: PositiveFloat | None = Field(
        None, description="weight alpha of the entropy; adjusted to the target entropy when none"
    )
    target_entropy: float | None = Field(
        None, description="entropy in nats that alpha is adjusted to; minus the number of action components when none"
    )


class SparsityConfig(Settings):
    """Training with sparse networks from the first update on (RLx2, arXiv 2205.15043)."""

    method: SparsityMethod = Field(
        "dense",
        description="dense; tiny (dense, as narrow as the sparse networks are small); static (random masks that stay); "
        "set (weights grow at random); rigl (they grow where gradients are largest); rlx2 (rigl, with multi-step "
        "targets and a replay of dynamic capacity)",
    )
    actor: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="share of the policy's weights that are 0; of DQN's network too, which is both"
    )
    critic: Annotated[float, Field(ge=0, lt=1)] = Field(0.85, description="share of the critics' weights that are 0")
    period_updates: PositiveInt = Field(10_000, description="gradient updates between two changes of the masks")
    replaced: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="zeta_0: share of a layer's weights that the first change replaces; falls to 0 as a cosine"
    )
    until: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="share of the run's updates after which masks stay"
    )
    structured: bool = Field(
        False,
        description="give all units of a policy's layer as many inputs and let units that matter little go, so that "
        "the emitted policy becomes narrower; with set, rigl or rlx2",
    )

    compressed_products: bool = Field(
        True,
        description="leave zeros out of the learner's products where that is faster: on a CPU with MKL, in large "
        "layers of which 10 % or less is active, and up to 15 % in gradients of weights",
    )

    @model_validator(mode="after")
    def _sparsities_need_a_method(self) -> "SparsityConfig":
        given = [name for name in ("actor", "critic") if name in self.model_fields_set]
        if given and "method" not in self.model_fields_set:
            raise ValueError(
                f"sparsity.{given[0]} needs sparsity.method, without which networks are dense: give one, such as rlx2"
            )
        return self

    @model_validator(mode="after")
    def _structure_needs_changes(self) -> "SparsityConfig":
        if self.structured and self.method not in ("set", "rigl", "rlx2"):
            raise ValueError(
                f"sparsity.structured needs sparsity.method set, rigl or rlx2, whose masks change, got {self.method}"
            )
        return self


class MultiStepConfig(Settings):
    """Targets that begin with one step and become longer (RLx2, arXiv 2205.15043, sec. 4.2)."""

    n_step: Annotated[int, Field(ge=2)] = Field(3, description="environment steps of the return, later on")
    after: Fraction = Field(0.1, description="share of the run's environment steps after which that is so")


class DynamicCapacityConfig(Settings):
    """A replay that forgets what is too far from the policy (RLx2, arXiv 2205.15043, sec. 4.2)."""

    threshold: PositiveFloat = Field(
        0.2,
        description="half the mean square of what the policy is off the oldest actions, in halves of their range, to "
        "forget from",
    )
    min_size: PositiveInt = Field(100_000, description="transitions that are kept whatever the distance")
    period_steps: PositiveInt = Field(10_000, description="environment steps between two looks at the oldest")
    oldest: PositiveInt = Field(2_048, description="transitions that are looked at")
    dropped: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="share of the replay that is forgotten at once"
    )


class ReplayConfig(Settings):
    """Replay: memory-mapped, so that every acknowledged transition outlives the learner."""

    capacity: PositiveInt = Field(5_000, description="rows kept; one row per transition and a few per segment")
    min_size: PositiveInt = Field(1_000, description="transitions stored before the first update")
    prioritized: bool = Field(True, description="sample in proportion to TD errors instead of uniformly")
    priority_exponent: Fraction = Field(0.6, description="alpha: 0 is uniform, 1 fully proportional")
    importance_exponent: Fraction = Field(0.4, description="beta of the importance weights")
    clip_rewards: PositiveFloat | None = Field(
        None, description="rewards are learned from as if within this of 0, and stored as they were; not when none"
    )
    flush_s: Annotated[float, Field(ge=0.05, le=60)] = Field(
        1.0, description="seconds between two flushes to the disk: a power cut takes at most what came since the last"
    )
    min_free_bytes: NonNegativeInt = Field(
        64 * 2**20, description="free bytes on the disk below which actors wait until there is more room"
    )


class RateLimiterConfig(Settings):
    """How updates and environment steps keep pace, whatever the machine's speed."""

    samples_per_insert: PositiveFloat = Field(
        16.0, description="how often each transition is sampled, on average; higher is more updates per step"
    )
    error_buffer: PositiveFloat = Field(
        10_000.0, description="how many samples either side may run ahead before it waits"
    )


class ExplorationConfig(Settings):
    """Epsilon-greedy with a rate for every environment (Ape-X, arXiv 1803.00933), or Gaussian noise on actions."""

    epsilon: Fraction = Field(
        0.8, description="base of the ladder epsilon ** (1 + alpha * i / (n - 1)); discrete actions"
    )
    alpha: NonNegativeFloat = Field(7.0, description="how steeply the rates fall over the n environments of the run")
    noise: NonNegativeFloat = Field(
        0.2, description="standard deviation of the noise on actions, in halves of their range; continuous actions"
    )
    random_steps: NonNegativeInt = Field(
        0, description="environment steps at the beginning of the run with uniformly random actions"
    )


class PublicationConfig(Settings):
    """When the learner's policy goes out."""

    period_updates: PositiveInt = Field(50, description="gradient updates between two published policies")
    calibration_size: PositiveInt = Field(256, description="recent observations sent along to measure fidelity")


class EvaluationConfig(Settings):
    """Greedy episodes of the served policy, run by an evaluator."""

    episodes: Annotated[int, Field(gt=0, le=10_000)] = Field(
        20, description="episodes whose mean return is one evaluation"
    )
    period_updates: PositiveInt = Field(250, description="gradient updates between two evaluations, at least")
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.03,
        description="of the machine's CPU time that the evaluator takes, at most; its first 5 s, evaluations near "
        "the target and the last one are always run",
    )


class ActorConfig(Settings):
    """How actors cut and queue what they experience."""

    segment_length: Annotated[int, Field(gt=0, le=2**20)] = Field(
        16, description="environment steps per segment, at most"
    )
    max_segment_bytes: Annotated[int, Field(ge=1024, le=MAX_SEGMENT_BYTES)] = Field(
        MAX_SEGMENT_BYTES, description="limit of one segment in bytes; segments are shortened to fit"
    )
    max_steps_per_policy: NonNegativeInt = Field(
        0,
        description="steps of a policy after which the actor waits for a newer one, a second at most; 0: any number",
    )
    queue_segments: Annotated[int, Field(gt=0, le=65_536)] = Field(
        2, description="segments that may wait for credit before the environments do"
    )
    report_period_s: Annotated[float, Field(gt=0, le=86_400)] = Field(
        1.0, description="seconds between two reports to the learner"
    )
    environment_timeout_s: PositiveFloat = Field(
        60.0, description="seconds that a step of the environments may take; then the actor ends, to be restarted"
    )
    allow_modules: tuple[str, ...] = Field(
        (),
        description="modules that a learner may have this actor import for environments MODULE:NAME, besides that of "
        "the actor's own --environment",
    )


class GateConfig(Settings):
    """What a quantized policy must keep to; past it more layers stay in float, the most sensitive first, then all."""

    max_mean_error: PositiveFloat = Field(
        0.02, description="mean action error on recent observations, relative to the action range; continuous actions"
    )
    max_error: PositiveFloat = Field(
        0.25, description="largest action error there, relative to the action range; continuous actions"
    )
    min_agreement: Fraction = Field(
        0.95, description="share of recent observations with the same best action as FP32; discrete actions"
    )


class QuantizerConfig(Settings):
    """How the quantizer emits policies, and what it keeps."""

    quantize_ends: bool = Field(
        False, description="quantize the first and last layers too, which stay in float otherwise"
    )
    per_tensor_error: NonNegativeFloat = Field(
        0.01, description="relative error of a layer's weights up to which one scale serves all of its channels"
    )
    compensate: bool | None = Field(
        None,
        description="make up for the rounding of weights by what recent observations tell; on when none, unless "
        "learner.quantization_aware_after is set: training reproduces plain rounding",
    )
    gate: GateConfig = GateConfig()
    retain_newest: PositiveInt = Field(32, description="newest versions kept on disk")
    retain_best: NonNegativeInt = Field(3, description="versions with the best evaluations kept on disk besides")
    retain_every: NonNegativeInt = Field(0, description="every so many versions one is kept on disk for good; 0: none")
    work_limit_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        60.0,
        description="seconds after which work on one graph or version is ended; where it cannot be, the quantizer ends "
        "after twice as many, to be started again",
    )


class CheckpointConfig(Settings):
    """When the learner's state is saved."""

    period_s: PositiveFloat = Field(10.0, description="seconds between two checkpoints")
    keep: PositiveInt = Field(3, description="newest checkpoints kept on disk")


class LearnerConfig(Settings):
    """Resources of the learner."""

    torch_threads: PositiveInt = Field(1, description="threads of a torch operation")
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = Field(
        "auto", description="where networks are trained: cpu, cuda, cuda:N, or auto for a GPU if there is one"
    )
    compile: bool = Field(
        False,
        description="compile losses with torch.compile: takes a minute at the start; on a CPU faster for dqn only",
    )
    precision: Literal["fp32", "bf16", "auto"] = Field(
        "fp32",
        description="numbers in the products of wide hidden layers: fp32, bf16 (weights, losses and published policies "
        "stay fp32), or auto: bf16 where the processor or GPU has it and a measurement at the start says it is faster",
    )
    quantization_aware_after: Fraction | None = Field(
        None,
        description="share of the environment steps from which the policy is trained as actors run it, with fake "
        "quantization; never when none",
    )

    @model_validator(mode="after")
    def _compiled_layers_stay(self) -> "LearnerConfig":
        if self.compile and self.quantization_aware_after is not None:
            raise ValueError(
                "learner.compile and learner.quantization_aware_after exclude each other: quantization-aware training "
                "replaces layers, which a compiled update would not see"
            )
        if self.compile and self.precision != "fp32":
            raise ValueError(
                f"learner.compile and learner.precision {self.precision} exclude each other: compiled code has "
                "products of its own"
            )
        return self


class EnergyConfig(Settings):
    """Energy and carbon, measured by one meter per node."""

    enabled: bool = Field(True, description="measure energy and carbon")
    country: Annotated[str, Field(pattern="^[A-Z]{3}$")] = Field(
        "USA", description="ISO 3166 alpha-3 code of the country whose power mix counts"
    )
    tdp_watts: PositiveFloat | None = Field(
        None, description="thermal design power of the processors in W; codecarbon's guess when none"
    )
    ram_watts: PositiveFloat | None = Field(None, description="power of the memory in W; codecarbon's guess when none")
    period_s: PositiveFloat = Field(2.0, description="seconds between two readings")


CERTIFICATES_HELP = (
    "folder for mutual TLS on every connection: ca.crt, tls.crt and tls.key, or what actorq certificates init made"
)


class TransportConfig(Settings):
    """How the services connect."""

    certificates: Path | None = Field(None, description=CERTIFICATES_HELP)
    run: Annotated[str, Field(pattern=RUN_PATTERN)] = Field(
        DEFAULT_RUN, description="name of the run in certificates; a service refuses the certificates of other runs"
    )
    deny: Annotated[Path | None, DefaultText("the file `denied` in the folder of the certificates")] = Field(
        None, description="file with serial numbers of certificates to refuse, one per line; read again when it changes"
    )
    connection_age_s: Annotated[float, Field(ge=1, le=30 * 86400)] = Field(
        3600.0,
        description="seconds until a connection with TLS has to be opened again, with the certificates of that time",
    )
    allow_readable_keys: bool = Field(
        False, description="accept a private key that other users of the machine may read"
    )
    drain_s: PositiveFloat = Field(20.0, description="seconds that a service may take to end when told to")

    def certificates_of(self, member: str) -> Certificates | None:
        """The certificates of a role, None without TLS; raises UserError when they cannot be used."""
        return Certificates.of(self.certificates, member, self.allow_readable_keys)

    @property
    def access(self) -> Access:
        """Who is let in to a service with TLS."""
        deny = self.deny or (self.certificates and self.certificates / "denied")
        return Access(self.run, deny, self.connection_age_s)


class RunConfig(Settings):
    """A whole run."""

    environment: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        "CartPole-v1", description="environment id"
    )
    environment_backend: Literal["python", "envpool"] = Field(
        "python", description="who steps the environments: their own library, or EnvPool's version of them"
    )
    algorithm: Annotated[str, Field(min_length=1), DefaultText("that of the environment's family")] = Field(
        "dqn",
        description="learning algorithm: dqn, d4pg, td3, sac, one that an installed package has, or MODULE:CLASS",
    )
    preset: Literal["standard", "data-rich"] = Field(
        "standard",
        description="settings below those that are given: standard needs few environment steps; data-rich needs few "
        "seconds where steps are cheap, with many environments and few updates per step",
    )
    network: str | None = Field(
        None, description="MODULE:FUNCTION that makes the hidden layers of policy and critics; our own when none"
    )
    normalize_observations: bool = Field(
        False, description="scale observations by their running mean and deviation, inside the policy"
    )
    multi_step: bool | None = Field(
        None, description="learn from multi-step targets later in the run; whether sparsity.method is rlx2 when none"
    )
    dynamic_buffer: bool | None = Field(
        None, description="let the replay forget what is far from the policy; whether sparsity.method is rlx2 when none"
    )
    seed: NonNegativeInt = Field(1, description="seed of networks, sampling, environments and exploration")
    actors: PositiveInt = Field(2, description="actor processes")
    environments_per_actor: Annotated[int, Field(gt=0, le=65_536)] = Field(
        8, description="environments that each actor steps as one batch"
    )
    scheme: Literal[SchemeName, "auto"] = Field(
        "int8", description="how actors' policies are quantized; auto: each actor measures and takes the fastest"
    )
    target_return: Annotated[float, Field(ge=-1e30, le=1e30)] | None = Field(
        None, description="mean evaluation return that ends the run; the environment's own threshold when none"
    )
    max_environment_steps: PositiveInt = Field(100_000, description="environment steps that end the run")

    dqn: DQNConfig = DQNConfig()
    d4pg: D4PGConfig = D4PGConfig()
    td3: TD3Config = TD3Config()
    sac: SACConfig = SACConfig()
    sparsity: SparsityConfig = SparsityConfig()
    multi_step_returns: MultiStepConfig = MultiStepConfig()
    dynamic_capacity: DynamicCapacityConfig = DynamicCapacityConfig()
    replay: ReplayConfig = ReplayConfig()
    rate_limiter: RateLimiterConfig = RateLimiterConfig()
    exploration: ExplorationConfig = ExplorationConfig()
    publication: PublicationConfig = PublicationConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    actor: ActorConfig = ActorConfig()
    quantizer: QuantizerConfig = QuantizerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    learner: LearnerConfig = LearnerConfig()
    energy: EnergyConfig = EnergyConfig()
    transport: TransportConfig = TransportConfig()

    @model_validator(mode="before")
    @classmethod
    def _over_its_preset(cls, given: Any) -> Any:
        return with_preset(given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "RunConfig":
        replay, limiter = self.replay, self.rate_limiter
        if replay.min_size * 2 > replay.capacity:
            raise ValueError(
                f"replay.capacity must be at least twice replay.min_size ({replay.min_size}), got {replay.capacity}"
            )
        rows = (self.actor.segment_length + 1) * self.environments_per_actor
        if rows * 2 > replay.capacity:
            raise ValueError(
                f"replay.capacity must be at least twice the {rows} rows of a segment, (actor.segment_length + 1) * "
                f"environments_per_actor, got {replay.capacity}"
            )
        smallest_buffer = 2 * max(1.0, limiter.samples_per_insert)
        if limiter.error_buffer < smallest_buffer:
            raise ValueError(
                f"rate_limiter.error_buffer must be at least {smallest_buffer:g}, twice samples_per_insert, got "
                f"{limiter.error_buffer:g}; a smaller one would make learner and actors wait for each other"
            )
        most, length = self.actor.max_steps_per_policy, self.actor.segment_length
        if 0 < most <= length:
            raise ValueError(
                f"actor.max_steps_per_policy must be above actor.segment_length ({length}), or 0, got {most}: the "
                "learner would wait for the segment, and the actor for the policy that comes of it"
            )
        section = getattr(self, self.algorithm, None) if self.algorithm in ALGORITHMS else None
        if section is not None and self.actor.segment_length < section.n_step:
            raise ValueError(
                f"actor.segment_length must be at least {self.algorithm}.n_step ({section.n_step}), got "
                f"{self.actor.segment_length}: returns end with their segment"
            )
        if section is not None and most:
            updates = self.publication.period_updates
            steps = updates * section.batch_size / limiter.samples_per_insert
            each = math.ceil(steps / (self.actors * self.environments_per_actor))
            if most < each:
                raise ValueError(
                    f"actor.max_steps_per_policy must be at least {each}, or 0, got {most}: the learner publishes "
                    f"after publication.period_updates={updates} updates, which take so many steps of each environment"
                )
        if section is not None:
            try:
                check_mechanisms(self, section.n_step)
            except UserError as error:
                raise ValueError(str(error)) from None
        return self

    def resolved_quantizer(self) -> QuantizerConfig:
        """The quantizer's settings with `compensate` decided.

        Quantization-aware training computes what actors compute only where weights are rounded to nearest and biases
        are left alone (learner_service.fake_quantization), so with it corrections are off unless they are asked for.
        """
        quantizer = self.quantizer
        if quantizer.compensate is not None:
            return quantizer
        return quantizer.model_copy(update={"compensate": self.learner.quantization_aware_after is None})

    def with_certificates(self, directory: Path) -> "RunConfig":
        """The same run with mutual TLS from that folder."""
        transport = self.transport.model_copy(update={"certificates": directory.absolute()})
        return self.model_copy(update={"transport": transport})

    def exploration_of(self, actor_index: int, environment_steps: int) -> Exploration:
        """How an actor explores that joins after so many environment steps of the run.

        Of the ladder of epsilons over all environments each actor gets every `actors`-th rung, so that it has rates
        from the whole ladder. Actors beyond the configured number share the others' rungs.
        """
        base, alpha = self.exploration.epsilon, self.exploration.alpha
        rungs = self.actors * self.environments_per_actor
        mine = range(actor_index % self.actors, rungs, self.actors)
        return Exploration(
            epsilons=tuple(base ** (1 + alpha * rung / max(1, rungs - 1)) for rung in mine),
            noise=(self.exploration.noise,) * self.environments_per_actor,
            random_steps=max(0, -(-(self.exploration.random_steps - environment_steps) // rungs)),
        )
