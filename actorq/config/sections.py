"""Sections of a run's configuration, one for each part of the system."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from actorq.config.messages.expected import Expected
from actorq.config.numbers import (
    CountOrAuto,
    Episodes,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Whole,
)
from actorq.config.schemes import SchemeName
from actorq.config.settings import DefaultText, Settings
from actorq.domain.environments import AgentCritic, AgentIdentity
from actorq.domain.limits import MAX_GOAL_COPIES, MAX_SEGMENT_BYTES, USUAL_SEGMENT_BYTES
from actorq.text import one_line
from actorq.transport.options import Certificates, ServerLimits
from actorq.transport.security.access import Access
from actorq.transport.security.identity import DEFAULT_RUN, RUN_EXPECTED, RUN_PATTERN

# On the wire, a status has this URL plus a file name: at most 1024 printable bytes.
EXPORT_URL, MAX_EXPORT_URL = r"^(s3://[!-.0-~]+/[!-~]+|file:///[!-~]+)?$", 1000

_URL = re.compile(r"s3://|file:///")
DATASETS = Path("datasets")
"""The folder of stored data sets, relative to the working directory."""


FOLDER_URL = Expected("the URL of a folder, s3://BUCKET/PREFIX or file:///FOLDER, with at most 1,000 characters")


def _wrapper(given: object) -> object:
    """A wrapper from its name, or from a mapping of its name to its keyword arguments."""
    match {given: {}} if isinstance(given, str) else given:
        case dict(wrapper) if len(wrapper) == 1 and all(str(name).count(":") == 1 for name in wrapper):
            return {name: arguments or {} for name, arguments in wrapper.items()}
    raise ValueError("expected a wrapper MODULE:CLASS, or {MODULE:CLASS: {NAME: VALUE}}")


def _source(given: str) -> str:
    """A folder or file as an absolute path, so that it stays the same for a command in another folder."""
    return given if _URL.match(given) else str(Path(given).expanduser().absolute())


def dataset_folder(given: str) -> str:
    """The absolute folder of a data set: the given folder if it exists, otherwise the data set of this name."""
    path = Path(given).expanduser()
    try:
        is_folder = path.is_dir()
    except OSError:
        # A name may be too long for a file system.
        is_folder = False
    return str((path if is_folder or path.is_absolute() else DATASETS / path).absolute())


RunSource = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_source)]
"""Another run, or one of its checkpoints: a path, or a URL of object storage."""
DatasetSource = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(dataset_folder)]
"""A data set: its name or its folder."""
Wrapper = Annotated[dict[str, dict[str, JsonValue]], BeforeValidator(_wrapper)]


class DatasetConfig(Settings):
    """Stored data of `actorq dataset`, in each batch (RLPD, arXiv 2302.02948). `--dataset NAME` sets the source."""

    short: ClassVar[str] = "source"

    source: DatasetSource | None = Field(
        None, description=f"name of a data set below {DATASETS}/, or its folder; none: no stored data"
    )
    share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5, description="share of each batch that is drawn from the data set; offline runs draw all from it"
    )

    def __bool__(self) -> bool:
        """Whether the run has stored data."""
        return self.source is not None

    def rows_of(self, batch_size: int) -> int:
        """Rows of a batch from the data set. Raises ValueError if the batch is too small for both parts."""
        rows = round(self.share * batch_size)
        if not 0 < rows < batch_size:
            raise ValueError(
                f"dataset.share {self.share:g} of a batch of {batch_size} transitions is {rows}; give a larger batch "
                "or another share, so that both parts have a transition"
            )
        return rows


class HindsightConfig(Settings):
    """Goals for hindsight: other goals for the steps of ended episodes (HER, arXiv 1707.01495)."""

    copies: Annotated[Whole, Field(ge=0, le=MAX_GOAL_COPIES)] = Field(
        4,
        description="extra goals per step, which its episode achieved later; the learner draws one of these and the "
        "step's own goal; 0: no hindsight; environments with goals, algorithms with a replay",
    )


class ReplayConfig(Settings):
    """Replay: memory-mapped. Every acknowledged transition therefore survives the learner."""

    capacity: PositiveInt = Field(
        5_000, description="number of rows to keep: one per transition, and a few per segment"
    )
    min_size: PositiveInt = Field(1_000, description="transitions stored before the first update")
    prioritized: bool = Field(True, description="sample in proportion to TD errors instead of uniformly")
    priority_exponent: Fraction = Field(0.6, description="alpha: 0 is uniform, 1 fully proportional")
    importance_exponent: Fraction = Field(0.4, description="beta of the importance weights at the start of the run")
    importance_exponent_end: Fraction = Field(
        1.0, description="beta after max_environment_steps, reached linearly; 1 corrects the bias of the sampling fully"
    )
    age_decay: PositiveInt | None = Field(
        None,
        description="transitions after which a stored transition is sampled a tenth as often as a new one; none: all "
        "are equally likely; without replay.prioritized",
    )
    clip_rewards: PositiveFloat | None = Field(
        None, description="rewards are clipped to [-value, value] for learning; none: no clipping"
    )
    flush_s: Annotated[float, Field(ge=0.05, le=60)] = Field(
        1.0, description="seconds between flushes to the disk; a power failure loses at most the data since the last"
    )
    min_free_bytes: NonNegativeInt = Field(
        64 * 2**20, description="free bytes on the disk below which actors pause until space is free"
    )


class QueueConfig(Settings):
    """The queue of an on-policy algorithm, read once: on disk like the replay, with `replay.capacity` rows."""

    max_policy_lag: PositiveInt = Field(
        8, description="largest number of versions that a transition's policy may lag behind; staler ones are dropped"
    )
    waiting_rollouts: Annotated[float, Field(ge=1, le=1_000_000)] = Field(
        1.0, description="rollouts that may wait for the learner before actors wait; at least 1"
    )
    synchronous: bool = Field(
        False, description="actors wait for the policy trained on their last rollout, so no transition is stale"
    )
    normalize_rewards: bool = Field(
        False, description="divide rewards by the running deviation of the discounted return, then clip to [-10, 10]"
    )

    def waiting_rows(self, segment_length: int, environments: int, rollout_size: int, frame_stack: int) -> int:
        """Rows of the waiting rollouts, the one in use, and a segment that does not fit at the end of the ring."""
        steps = math.ceil(self.waiting_rollouts * rollout_size) + rollout_size
        segments = math.ceil(steps / (segment_length * environments)) + 1
        return segments * environments * (segment_length + frame_stack)


class AgentsConfig(Settings):
    """Several agents in one environment, which share the policy."""

    identity: AgentIdentity = Field(
        "none", description="what observations also say of the agent: none, or its number as a one-hot vector: one-hot"
    )
    critic: AgentCritic = Field(
        "own", description="what critics also see: own: nothing; joint: all agents' observations; state: state()"
    )


_GROUP = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)


def _listed(given: object) -> object:
    """A list of agents from a text such as "red,green"."""
    return [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given


def _in_order(groups: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The groups in one order, so that equal groups are equal settings."""
    return {name: tuple(sorted(groups[name])) for name in sorted(groups)}


Policies = Annotated[
    dict[str, Annotated[tuple[str, ...], BeforeValidator(_listed)]],
    AfterValidator(_in_order),
]
"""The agents of each group with a policy of its own, by the group's name."""


def check_policies(groups: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError unless there are no groups, or at least two with different agents."""
    if not groups:
        return
    for name, agents in groups.items():
        # As a flag's text, "none" is no name.
        if not _GROUP.fullmatch(name) or name.lower() == "none":
            raise ValueError(
                f"policies: a group's name must have 1 to 64 letters, digits, - and _, begin with a letter, and not be "
                f"none, got {one_line(repr(name), 100)}"
            )
        if not all(agents):
            raise ValueError(f"policies.{name}: expected names of agents, got an empty name")
        if not agents:
            raise ValueError(f"policies.{name}: expected at least one agent, got none; leave the group out")
    if len(groups) == 1:
        raise ValueError(
            f"policies: expected at least two groups, got only {next(iter(groups))}; leave policies out if all agents "
            "share one policy"
        )
    seen: dict[str, str] = {}
    for name, agents in groups.items():
        for agent in agents:
            if agent in seen:
                raise ValueError(
                    f"policies: expected each agent in one group, got {one_line(agent, 100)} in {seen[agent]} and in "
                    f"{name}"
                )
            seen[agent] = name


class RateLimiterConfig(Settings):
    """Keeps updates and environment steps at a fixed ratio, at any speed of the machine."""

    samples_per_insert: PositiveFloat = Field(
        16.0, description="mean number of times that each transition is sampled; higher means more updates per step"
    )
    error_buffer: PositiveFloat = Field(
        10_000.0, description="samples that learner or actors may be ahead before they wait"
    )


class ExplorationConfig(Settings):
    """Epsilon-greedy with one rate per environment (Ape-X, arXiv 1803.00933), or Gaussian noise on actions."""

    epsilon: Fraction = Field(
        0.8, description="epsilon of the rates epsilon ** (1 + alpha * i / (n - 1)); discrete actions"
    )
    alpha: NonNegativeFloat = Field(7.0, description="alpha: how steeply the rates fall over the run's n environments")
    noise: Annotated[float, Field(ge=0, le=1e9)] = Field(
        0.2, description="standard deviation of the noise (actions scaled to [-1, 1]); continuous actions"
    )
    correlation: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="correlation of the noise of successive steps, below 1; raise it if actions must persist to have "
        "an effect; continuous actions",
    )
    random_steps: Annotated[Whole, Field(ge=0, le=10**18)] = Field(
        0, description="number of environment steps at the start of the run with uniformly random actions"
    )


class PublicationConfig(Settings):
    """When the learner publishes its policy."""

    period_updates: PositiveInt = Field(
        50,
        description="gradient updates between published policies; on-policy algorithms ignore it and publish after "
        "each rollout",
    )
    calibration_size: PositiveInt = Field(256, description="recent observations sent with a policy to measure fidelity")


class EvaluationConfig(Settings):
    """Episodes of the served policy, greedy by default. The evaluator runs them."""

    episodes: Episodes = Field(20, description="number of episodes per evaluation")
    period_updates: Annotated[Whole, Field(gt=0, le=10**18)] = Field(
        250, description="minimum number of gradient updates between two evaluations"
    )
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.03,
        description="maximum share of the machine's CPU time for the evaluator; evaluations always run in its first "
        "0.5 s, near the target and at the end",
    )
    sampled: bool = Field(
        False, description="draw actions from the policy's distribution instead of greedy actions; on-policy algorithms"
    )


class ActorConfig(Settings):
    """How actors collect and queue their transitions."""

    segment_length: Whole = Field(16, gt=0, le=2**20, description="maximum number of environment steps per segment")
    max_segment_bytes: Annotated[Whole, Field(ge=1024, le=MAX_SEGMENT_BYTES)] = Field(
        USUAL_SEGMENT_BYTES,
        description="maximum size of a segment in bytes; segments are shortened to fit, down to one step",
    )
    max_steps_per_policy: Annotated[Whole, Field(ge=0, lt=2**32)] = Field(
        0, description="steps with one policy after which the actor waits up to a second for a newer one; 0: no limit"
    )
    queue_segments: Annotated[Whole, Field(gt=0, le=65_536)] = Field(
        2, description="segments that may wait for credit before the environments pause"
    )
    report_period_s: float = Field(1.0, gt=0, le=86_400, description="seconds between two reports to the learner")
    environment_timeout_s: PositiveFloat = Field(
        60.0, description="maximum seconds for a step of the environments; a slower actor process ends and is restarted"
    )
    allow_modules: tuple[str, ...] = Field(
        (),
        description="modules that this actor may import for a learner's environments MODULE:NAME, besides the module "
        "of the actor's own --environment",
    )


class ExternalConfig(Settings):
    """Simulators that connect to an actor with --external."""

    listen: Annotated[str, Field(max_length=256)] = Field(
        "127.0.0.1:50053",
        description="HOST:PORT at which the first actor of actorq train serves simulators; each further actor has the "
        "next port",
    )
    batch_wait_ms: Annotated[float, Field(ge=0, le=1_000)] = Field(
        1.0, description="milliseconds that a step waits for the steps of other quick simulators; 0: no wait"
    )
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = Field(
        60.0, description="maximum seconds from an action to the next step; a slower simulator is disconnected"
    )
    max_streams: Annotated[Whole, Field(ge=1, le=4_096)] = Field(256, description="maximum open streams of an actor")
    max_environments: Annotated[Whole, Field(ge=1, le=65_536)] = Field(
        128, description="maximum environments of one stream"
    )
    evaluate: bool = Field(True, description="evaluate policies in episodes of the same streams")
    evaluation_share: Annotated[float, Field(gt=0, le=0.5)] = Field(
        0.2, description="maximum share of all steps for evaluations; they always run near the target and at the start"
    )


class GateConfig(Settings):
    """Limits for a quantized policy. If it exceeds them, more layers stay in float, the most sensitive first."""

    max_mean_error: PositiveFloat = Field(
        0.02, description="mean action error on recent observations, relative to the action range; continuous actions"
    )
    max_error: PositiveFloat = Field(
        0.25, description="largest action error on these observations, relative to the range; continuous actions"
    )
    min_agreement: Fraction = Field(
        0.95, description="share of recent observations with the same best action as FP32; discrete actions"
    )
    max_mean_kl: PositiveFloat = Field(
        0.005,
        description="mean KL divergence from FP32 on recent observations, in nats; replaces the limits above for "
        "policies that output a distribution",
    )
    max_kl: PositiveFloat = Field(
        0.1, description="largest KL divergence from FP32 on them, in nats; policies that output a distribution"
    )
    max_value_loss: NonNegativeFloat = Field(
        0.003,
        description="loss of FP32 value where best actions differ, relative to the loss with the worst actions; below "
        "it any agreement is accepted; discrete actions",
    )
    max_state_drift: PositiveFloat = Field(
        0.02,
        description="drift of the state over stored sequences of steps, relative to the state's range; policies with "
        "memory",
    )


_INFINITE: dict[str, Any] = dict.fromkeys(GateConfig.model_fields, math.inf)
NO_LIMITS = GateConfig.model_construct(**{**_INFINITE, "min_agreement": 0.0})
"""A gate that accepts every policy that runs."""


class QuantizerConfig(Settings):
    """How the quantizer emits policies, and which policies it keeps."""

    quantize_ends: bool = Field(
        False, description="also quantize the first and last layers, which stay in float by default"
    )
    per_tensor_error: NonNegativeFloat = Field(
        0.01, description="largest relative error of a layer's weights at which all its channels share one scale"
    )
    compensate: bool | None = Field(
        None,
        description="correct the rounding of weights with recent observations; none: yes, unless "
        "learner.quantization_aware_after is set, because that training assumes plain rounding",
    )
    gate: GateConfig = GateConfig()
    retain_newest: PositiveInt = Field(32, description="newest versions kept on disk")
    retain_best: NonNegativeInt = Field(3, description="further versions kept on disk: those with the best evaluations")
    retain_every: NonNegativeInt = Field(0, description="keep every N-th version on disk forever; 0: none")
    work_limit_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        60.0,
        description="maximum seconds for work on one graph or version; if the work cannot be interrupted, the "
        "quantizer ends after twice this time and is restarted",
    )


class CheckpointConfig(Settings):
    """When the learner's state is saved."""

    period_s: PositiveFloat = Field(10.0, description="seconds between two checkpoints")
    keep: PositiveInt = Field(3, description="newest checkpoints kept on disk")
    new_networks: bool = Field(
        False, description="continue with new networks and the stored replay if every checkpoint is damaged"
    )
    object_storage: Annotated[str, Field(pattern=r"^(s3://[^/]+/.+|file:///.+)?$", max_length=1024), FOLDER_URL] = (
        Field(
            "",
            description="URL for copies of the newest checkpoints, s3://BUCKET/PREFIX or file:///FOLDER, one for "
            "each run; a run on an empty volume continues from it; empty: none; credentials are AWS_* variables",
        )
    )
    object_storage_endpoint: Annotated[
        str,
        Field(pattern=r"^(https?://.+)?$", max_length=1024),
        Expected("a URL such as http://minio:9000, of at most 1,024 characters, or nothing"),
    ] = Field("", description="URL of another S3-compatible service, such as http://minio:9000; empty: AWS")
    object_storage_replay: bool = Field(False, description="copy the replay too; changed parts are sent repeatedly")


class PolicyExportConfig(Settings):
    """Destination of the best policy at the end of the run. The endpoint is `checkpoint.object_storage_endpoint`."""

    url: Annotated[str, Field(pattern=EXPORT_URL, max_length=MAX_EXPORT_URL), FOLDER_URL] = Field(
        "",
        description="URL of a folder for policy.onnx and policy.json, s3://BUCKET/PREFIX or file:///FOLDER, a separate "
        "one for each run; empty: none; credentials are AWS_* variables",
    )
    scheme: Annotated[SchemeName | None, DefaultText("the scheme of the evaluation")] = Field(
        None, description="number format of the policy"
    )


class LearnerConfig(Settings):
    """Resources of the learner."""

    torch_threads: CountOrAuto = Field(
        1,
        description="threads per torch operation on the CPU: a number, or auto; auto measures at the start, within the "
        "CPU limit, and uses the fewest threads within 10% of the fastest; use auto only with dedicated cores",
    )
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$"), Expected("one of auto, cpu, cuda, cuda:N")] = (
        Field("auto", description="device that trains: cpu, cuda, cuda:N, or auto for a GPU if there is one")
    )
    compile: bool = Field(
        False,
        description="compile losses with torch.compile; takes a minute at the start; on a CPU faster only for dqn",
    )
    precision: Literal["fp32", "bf16", "auto"] = Field(
        "fp32",
        description="number format for products in wide hidden layers and convolutions: fp32, bf16, or auto; auto is "
        "bf16 if the hardware supports it and a measurement shows that it is faster; weights, losses and policies stay "
        "fp32",
    )
    quantization_aware_after: Fraction | None = Field(
        None,
        description="share of the environment steps after which training simulates the actors' quantization; "
        "none: never",
    )
    quantization_aware_bits: Annotated[Whole, Field(ge=2, le=8)] | None = Field(
        None,
        description="bits of weights and activations in quantization-aware training, for the schemes int8-weights and "
        "int8; actors use 8 bits; none: as the actors",
    )

    @model_validator(mode="after")
    def _compiled_layers_stay(self) -> "LearnerConfig":
        if self.compile and self.quantization_aware_after is not None:
            raise ValueError(
                "learner.compile and learner.quantization_aware_after exclude each other: quantization-aware training "
                "replaces layers, and a compiled update would ignore the replacements"
            )
        if self.compile and self.precision != "fp32":
            raise ValueError(
                f"learner.compile and learner.precision {self.precision} exclude each other: compiled code does not "
                "use the learner's products in bf16"
            )
        return self


class EnergyConfig(Settings):
    """Energy and carbon, measured by one meter per node."""

    enabled: bool = Field(True, description="measure energy and carbon")
    country: Annotated[
        str, Field(pattern="^[A-Z]{3}$"), Expected("an ISO 3166 code of three capital letters, such as USA")
    ] = Field("USA", description="ISO 3166 alpha-3 code of the country whose electricity has the carbon intensity")
    tdp_watts: PositiveFloat | None = Field(
        None, description="thermal design power of the processors in W; none: codecarbon's estimate"
    )
    ram_watts: PositiveFloat | None = Field(None, description="power of the memory in W; none: codecarbon's estimate")
    period_s: PositiveFloat = Field(2.0, description="seconds between two readings")


class TelemetryConfig(Settings):
    """Logs, and experiment trackers in addition to TensorBoard."""

    log_format: Literal["text", "json"] = Field("text", description="format of log lines: text, or a JSON object each")
    mlflow: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="tracking URI of MLflow for the run's scalars; none: without MLflow"
    )
    wandb: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="project of Weights & Biases for the run's scalars; none: without Weights & Biases"
    )


CERTIFICATES_HELP = (
    "folder for mutual TLS on every connection: ca.crt, tls.crt and tls.key, or a folder of actorq certificates init"
)


class TransportConfig(Settings):
    """Connections between the services."""

    certificates: Path | None = Field(None, description=CERTIFICATES_HELP)
    run: Annotated[str, Field(pattern=RUN_PATTERN), Expected(RUN_EXPECTED)] = Field(
        DEFAULT_RUN, description="name of the run in certificates; services refuse certificates of other runs"
    )
    deny: Annotated[Path | None, DefaultText("the file `denied` in the folder of the certificates")] = Field(
        None, description="file with serial numbers of refused certificates, one per line; read again when it changes"
    )
    connection_age_s: Annotated[float, Field(ge=1, le=30 * 86400)] = Field(
        3600.0,
        description="maximum age of a TLS connection in seconds; the next connection checks the certificates again",
    )
    allow_readable_keys: bool = Field(
        False, description="accept a private key that other users of the machine may read"
    )
    max_calls: Annotated[Whole, Field(ge=16, le=65_536)] = Field(4096, description="maximum open calls of a service")
    max_calls_per_address: Annotated[Whole | None, Field(ge=8, le=65_536), DefaultText("half of max_calls")] = Field(
        None, description="maximum open calls from one address; raise it if many clients share a gateway's address"
    )
    drain_s: PositiveFloat = Field(20.0, description="seconds that a service has to end after it is asked to end")

    def certificates_of(self, member: str) -> Certificates | None:
        """The certificates of a role; None without TLS. Raises UserError when they are unusable."""
        return Certificates.of(self.certificates, member, self.allow_readable_keys)

    @property
    def limits(self) -> ServerLimits:
        """The limits on a service's peers."""
        connections = max(self.max_calls, ServerLimits.connections)
        return ServerLimits(connections, open_calls=self.max_calls, calls_of_address=self.max_calls_per_address)

    @property
    def access(self) -> Access:
        """The peers that may call a service with TLS."""
        deny = self.deny or (self.certificates and self.certificates / "denied")
        return Access(self.run, deny, self.connection_age_s)
