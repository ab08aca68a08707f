"""Sections of a run's configuration, each for a part of the system."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from actorq.config.numbers import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from actorq.config.settings import DefaultText, Settings
from actorq.transport.options import MAX_SEGMENT_BYTES, Certificates
from actorq.transport.security.access import Access
from actorq.transport.security.identity import DEFAULT_RUN, RUN_PATTERN


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
