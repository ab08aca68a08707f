"""The run configuration: one typed tree, from YAML, environment variables and flags.

Each field's description is its help text. The run directory's `config.yaml` holds the resolved tree.
"""

import json
import math
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, model_validator

from actorq.config import algorithms, sections
from actorq.config.algorithms import ALGORITHMS, AlgorithmConfig, IMPALAConfig, PPOConfig
from actorq.config.memory import MemoryConfig
from actorq.config.numbers import PositiveInt, Seed, Whole
from actorq.config.presets import with_preset
from actorq.config.schemes import CHOICES_HELP, SchemeChoice
from actorq.config.settings import ESSENTIAL, DefaultText, Settings, in_full
from actorq.config.sparsity import DynamicCapacityConfig, MultiStepConfig, SparsityConfig
from actorq.domain.columns import GREEDY_ACTIONS, LOG_PROBABILITIES
from actorq.domain.environments import MAX_ARGUMENTS_BYTES, EnvironmentArguments, Group, ImageLayout, is_external
from actorq.domain.goals import HindsightColumns
from actorq.domain.policy import FALLBACK
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration, Sampling
from actorq.errors import UserError

ANY_BITS = (FALLBACK, "int8")
"""Schemes whose rounding training can simulate with fewer bits: `learner.quantization_aware_bits`."""


class RunConfig(Settings):
    """The settings of a whole run."""

    environment: Annotated[str, Field(min_length=1, max_length=128), ESSENTIAL] = Field(
        "CartPole-v1", description="environment id"
    )
    environment_args: dict[str, JsonValue] = Field(
        {}, description="keyword arguments of the environment: NAME=VALUE,NAME=VALUE or a mapping in YAML or JSON"
    )
    environment_wrappers: tuple[sections.Wrapper, ...] = Field(
        (),
        description="wrappers of a Gymnasium environment, the innermost first: MODULE:CLASS,MODULE:CLASS, or with "
        "keyword arguments a list in YAML or JSON: [{MODULE:CLASS: {NAME: VALUE}}]",
    )
    image_layout: ImageLayout = Field(
        "auto",
        description="order of an image's axes; auto: channels last, unless the last two axes are equal and the first "
        "is not, or the first is the shortest",
    )
    critic_leaves: tuple[str, ...] = Field(
        (),
        description="paths of the parts of an observation that only critics and value networks see, such as "
        "robot/velocity; the policy acts without them",
    )
    environment_backend: Literal["python", "envpool"] = Field(
        "python", description="library that steps the environments: python (their own) or EnvPool"
    )
    algorithm: Annotated[str, Field(min_length=1), DefaultText("by the environment"), ESSENTIAL] = Field(
        "dqn", description="dqn, d4pg, td3, sac, xqc, ppo, impala, td3bc, iql, an installed one, or MODULE:CLASS"
    )
    algorithm_args: dict[str, Any] = Field(
        {}, description="settings of an algorithm that is not built in: NAME=VALUE,NAME=VALUE or a YAML or JSON mapping"
    )
    preset: Annotated[Literal["standard", "data-rich", "auto"], ESSENTIAL] = Field(
        "standard",
        description="standard needs few steps, data-rich little time; auto measures this machine first",
    )
    like: Annotated[str | None, Field(max_length=128), DefaultText("the environment itself")] = Field(
        None, description="id of a known environment, such as CartPole-v1, whose preset this environment uses"
    )
    network: str | None = Field(
        None, description="MODULE:FUNCTION that makes the hidden layers of policy and critics; none: built-in layers"
    )
    encoders: dict[str, str] = Field(
        {}, description="own layers for single arrays of an observation: ARRAY=MODULE:FUNCTION,... or a mapping"
    )
    policies: sections.Policies = Field(
        {},
        description="groups of agents, each with networks of its own: --policies.GROUP AGENT,AGENT for each group, or "
        "a mapping",
    )
    normalize_observations: bool = Field(
        False, description="scale observations by their running mean and standard deviation, inside the policy"
    )
    multi_step: bool | None = Field(
        None, description="learn from multi-step targets later in the run; none: only if sparsity.method is rlx2"
    )
    seed: Annotated[Seed, ESSENTIAL] = Field(1, description="seed of all random numbers of the run")
    actors: Annotated[PositiveInt, ESSENTIAL] = Field(2, description="actor processes")
    environments_per_actor: Annotated[Whole, Field(gt=0, le=65_536), ESSENTIAL] = Field(
        8, description="environments that an actor steps at once"
    )
    scheme: Annotated[SchemeChoice, ESSENTIAL] = Field(
        "int8", description=f"{CHOICES_HELP}; auto: each actor's fastest"
    )
    target_return: Annotated[Annotated[float, Field(ge=-1e30, le=1e30)] | None, ESSENTIAL] = Field(
        None, description="mean evaluation return that ends the run; none: the environment's reward threshold"
    )
    target_success: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="success rate of an evaluation that ends the run, instead of a return"
    )
    max_environment_steps: Annotated[Whole, Field(gt=0, le=10**18), ESSENTIAL] = Field(
        100_000, description="environment steps that end the run"
    )
    max_seconds: Annotated[float, Field(gt=0, le=1e10)] | None = Field(
        None, description="seconds that end the run, over all its learners; pauses of a minute or more do not count"
    )
    init_from: sections.RunSource | None = Field(
        None,
        description="begin with the networks of another run: its folder, one of its checkpoints, or its URL of "
        "checkpoint.object_storage; none: new networks",
    )
    init_replay: bool = Field(False, description="begin with the replay of the run of init_from, too")
    offline: bool = Field(
        False, description="train without actors, from the data set alone; the evaluator runs as in other runs"
    )
    max_updates: PositiveInt = Field(1_000_000, description="gradient updates that end an offline run")

    dqn: algorithms.DQNConfig = algorithms.DQNConfig()
    d4pg: algorithms.D4PGConfig = algorithms.D4PGConfig()
    td3: algorithms.TD3Config = algorithms.TD3Config()
    sac: algorithms.SACConfig = algorithms.SACConfig()
    xqc: algorithms.XQCConfig = algorithms.XQCConfig()
    ppo: PPOConfig = PPOConfig()
    impala: IMPALAConfig = IMPALAConfig()
    td3bc: algorithms.TD3BCConfig = algorithms.TD3BCConfig()
    iql: algorithms.IQLConfig = algorithms.IQLConfig()
    memory: MemoryConfig = MemoryConfig()
    agents: sections.AgentsConfig = sections.AgentsConfig()
    sparsity: SparsityConfig = SparsityConfig()
    multi_step_returns: MultiStepConfig = MultiStepConfig()
    dynamic_capacity: DynamicCapacityConfig = DynamicCapacityConfig()
    dataset: sections.DatasetConfig = sections.DatasetConfig()
    hindsight: sections.HindsightConfig = sections.HindsightConfig()
    replay: sections.ReplayConfig = sections.ReplayConfig()
    queue: sections.QueueConfig = sections.QueueConfig()
    rate_limiter: sections.RateLimiterConfig = sections.RateLimiterConfig()
    exploration: sections.ExplorationConfig = sections.ExplorationConfig()
    publication: sections.PublicationConfig = sections.PublicationConfig()
    evaluation: sections.EvaluationConfig = sections.EvaluationConfig()
    actor: sections.ActorConfig = sections.ActorConfig()
    external: sections.ExternalConfig = sections.ExternalConfig()
    quantizer: sections.QuantizerConfig = sections.QuantizerConfig()
    checkpoint: sections.CheckpointConfig = sections.CheckpointConfig()
    policy_export: sections.PolicyExportConfig = sections.PolicyExportConfig()
    learner: sections.LearnerConfig = sections.LearnerConfig()
    energy: sections.EnergyConfig = sections.EnergyConfig()
    telemetry: sections.TelemetryConfig = sections.TelemetryConfig()
    transport: sections.TransportConfig = sections.TransportConfig()

    @property
    def preset_environment(self) -> str:
        """The environment id that chooses the preset."""
        return self.environment if self.like is None else self.like

    @model_validator(mode="before")
    @classmethod
    def _over_its_preset(cls, given: Any) -> Any:
        return with_preset(in_full(cls, given)) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "RunConfig":
        rows = (self.actor.segment_length + 1) * self.environments_per_actor
        if rows * 2 > self.replay.capacity:
            raise ValueError(
                f"replay.capacity must be at least twice the {rows} rows of a segment, (actor.segment_length + 1) * "
                f"environments_per_actor, got {self.replay.capacity}"
            )
        most, length = self.actor.max_steps_per_policy, self.actor.segment_length
        if 0 < most <= length:
            raise ValueError(
                f"actor.max_steps_per_policy must be above actor.segment_length ({length}), or 0, got {most}: "
                "otherwise the learner waits for the segment, and the actor waits for a policy trained on it"
            )
        if len(self.environment_arguments.to_text()) > MAX_ARGUMENTS_BYTES:
            raise ValueError(
                f"environment_args, environment_wrappers, critic_leaves and policies must have at most "
                f"{MAX_ARGUMENTS_BYTES} bytes as JSON, got {len(self.environment_arguments.to_text())}"
            )
        if self.init_replay and self.init_from is None:
            raise ValueError("init_replay needs init_from: give the run whose replay it is")
        if self.target_success is not None and self.target_return is not None:
            raise ValueError("target_success and target_return exclude each other: set only one of them")
        if self.learner.quantization_aware_bits is not None and self.scheme not in ANY_BITS:
            raise ValueError(
                f"learner.quantization_aware_bits needs scheme {' or '.join(ANY_BITS)}, got {self.scheme}: the kernels "
                "of other schemes fix the number of bits"
            )
        if self.algorithm in ALGORITHMS and self.algorithm_args:
            raise ValueError(f"algorithm_args: the settings of algorithm {self.algorithm} are --{self.algorithm}.NAME")
        self.memory.check_algorithm(self.algorithm)
        self.memory.check_compiled(self.learner.compile)
        if self.algorithm == "sac":
            self._check_sac()
        self._check_groups()
        self._check_dataset()
        if (own := self.on_policy) is not None:
            self.check_rollouts(own.rollout_size, own.batch_size)
        else:
            self._check_replay()
        return self

    def _check_sac(self) -> None:
        """Raise ValueError for settings that exclude variants of SAC."""
        for name in ("layer_norm", "random_shift", "shared_encoder"):
            if self.memory and getattr(self.sac, name):
                raise ValueError(f"sac.{name}: expected a policy without memory; leave it out, or give --memory none")
        for other, is_given, reason in (
            ("sparsity.method", self.sparsity.methods != {"dense"}, "masks of policy and critics differ"),
            (
                "learner.quantization_aware_after",
                self.learner.quantization_aware_after is not None,
                "the policy's loss does not train the encoder",
            ),
            (self.sight_of_critics, bool(self.sight_of_critics), "policy and critics see different observations"),
        ):
            if self.sac.shared_encoder and is_given:
                raise ValueError(
                    f"sac.shared_encoder and {other} exclude each other: {reason}; leave one of them out "
                    "(--no-sac.shared-encoder)"
                )

    def _check_groups(self) -> None:
        """Raise ValueError for groups of agents that do not fit each other, or other settings."""
        sections.check_policies(self.policies)
        if not self.policies:
            return
        known = [name for name, settings in ALGORITHMS.items() if settings.has_groups and not settings.for_stored_data]
        if self.algorithm in ALGORITHMS and self.algorithm not in known:
            raise ValueError(
                f"policies: expected an algorithm of {', '.join(known)}, got {self.algorithm}; choose one of them, or "
                "leave policies out"
            )
        for name, is_given in (
            (f"memory.kind {self.memory.kind}", self.memory),
            (f"sparsity.method {self.sparsity.method}", self.sparsity.methods != {"dense"}),
            ("network", self.network),
            ("encoders", self.encoders),
            ("learner.compile", self.learner.compile),
            ("sac.layer_norm", self.algorithm == "sac" and self.sac.layer_norm),
            ("sac.shared_encoder", self.algorithm == "sac" and self.sac.shared_encoder),
        ):
            if is_given:
                raise ValueError(f"policies and {name} exclude each other; leave one of them out")

    def _check_dataset(self) -> None:
        """Raise ValueError for settings that exclude stored data."""
        if self.offline and not self.dataset:
            raise ValueError("offline needs dataset: give the stored data, or leave offline out")
        if self.offline and is_external(self.environment):
            raise ValueError(f"offline: no simulator connects without actors, so {self.environment} is never evaluated")
        if not self.dataset:
            return
        name = "offline" if self.offline else "dataset"
        if self.on_policy is not None:
            raise ValueError(f"{name}: expected an algorithm with a replay, got {self.algorithm}, which is on-policy")
        if self.memory:
            raise ValueError(f"{name}: expected a policy without memory, got memory.kind {self.memory.kind}")
        if not self.offline:
            if self.own is not None:
                self.dataset.rows_of(self.own.batch_size)
            return
        for other, is_given in (("init_replay", self.init_replay), ("dynamic_capacity", self.dynamic_capacity.enabled)):
            if is_given:
                raise ValueError(f"offline and {other} exclude each other: an offline run has no replay of its own")

    def check_rollouts(self, rollout_size: int, batch_size: int, frame_stack: int = 1, agents: int = 1) -> None:
        """Raise ValueError for a queue that could never deliver a rollout or would block actors.

        Raise it also for settings that need a replay. rollout_size, batch_size: of the run's on-policy algorithm.
        agents: of the environment. Each has a row in each environment step.
        """
        algorithm, queue, actor = self.algorithm, self.queue, self.actor
        for name, used in (
            ("dataset", self.dataset),
            ("sparsity.method rlx2", self.sparsity.method == "rlx2"),
            ("dynamic_capacity.enabled", self.dynamic_capacity.enabled),
            ("multi_step", self.multi_step),
            ("init_replay", self.init_replay),
        ):
            if used:
                raise ValueError(f"{name}: expected an algorithm with a replay, got {algorithm}, which is on-policy")
        actors, environments, capacity = self.actors, self.environments_per_actor, self.replay.capacity
        segment = actor.segment_length * environments
        if segment > rollout_size:
            raise ValueError(
                f"actor.segment_length * environments_per_actor must be at most {algorithm}.rollout_size "
                f"({rollout_size}), got {actor.segment_length} * {environments}: a rollout consists of whole segments"
            )
        if batch_size > rollout_size:
            raise ValueError(
                f"{algorithm}.batch_size must be at most {algorithm}.rollout_size ({rollout_size}), got {batch_size}"
            )
        if queue.synchronous:
            if rollout_size % (actors * segment):
                raise ValueError(
                    f"queue.synchronous: {algorithm}.rollout_size must be a multiple of {actors * segment}, actors * "
                    f"environments_per_actor * actor.segment_length, got {rollout_size}"
                )
            if actor.max_steps_per_policy:
                raise ValueError(
                    f"actor.max_steps_per_policy must be 0 with queue.synchronous, got {actor.max_steps_per_policy}: "
                    "each actor waits after its share of a rollout"
                )
        least, most = -(-rollout_size // (actors * environments)), actor.max_steps_per_policy
        if 0 < most < least:
            raise ValueError(
                f"actor.max_steps_per_policy must be at least {least}, or 0, got {most}: the learner publishes after "
                "each rollout, which takes this many steps of each environment"
            )
        needed = agents * queue.waiting_rows(actor.segment_length, environments, rollout_size, frame_stack)
        if capacity < needed:
            raise ValueError(
                f"replay.capacity must be at least {needed} rows, for queue.waiting_rollouts "
                f"({queue.waiting_rollouts:g}) and the rollout in use with {rollout_size} environment steps each, got "
                f"{capacity}"
            )

    def _check_replay(self) -> None:
        replay, limiter = self.replay, self.rate_limiter
        if replay.min_size * 2 > replay.capacity:
            raise ValueError(
                f"replay.capacity must be at least twice replay.min_size ({replay.min_size}), got {replay.capacity}"
            )
        smallest_buffer = 2 * max(1.0, limiter.samples_per_insert)
        if limiter.error_buffer < smallest_buffer:
            raise ValueError(
                f"rate_limiter.error_buffer must be at least {smallest_buffer:g}, twice samples_per_insert, got "
                f"{limiter.error_buffer:g}; with a smaller buffer, learner and actors would wait for each other"
            )
        section = self.own if isinstance(self.own, AlgorithmConfig) else None
        environments, length = self.actors * self.environments_per_actor, self.actor.segment_length
        n_step = 1 if section is None else section.n_step
        self.memory.check_replay(replay.capacity, environments, length, n_step)
        if self.memory and self.asks_for_greedy_actions:
            raise ValueError(
                f"memory.kind {self.memory.kind} and a replay of dynamic capacity exclude each other, because it "
                "compares single steps; give --no-dynamic-capacity.enabled"
            )
        if section is not None and (most := self.actor.max_steps_per_policy):
            updates = self.publication.period_updates
            steps = updates * section.batch_size / limiter.samples_per_insert
            each = math.ceil(steps / (self.actors * self.environments_per_actor))
            if most < each:
                raise ValueError(
                    f"actor.max_steps_per_policy must be at least {each}, or 0, got {most}: the learner publishes "
                    f"after publication.period_updates={updates} updates, which take these steps of each environment"
                )
        if section is not None:
            try:
                self.multi_step_of(section.n_step)
            except UserError as error:
                raise ValueError(str(error)) from None
        if self.algorithm == "dqn" and self.sparsity.method == "rlx2":
            raise ValueError(
                "sparsity.method: rlx2 is rigl with longer targets and a replay of dynamic capacity, and dqn supports "
                "neither: its returns already span several steps, and its actions are discrete; set rigl"
            )
        if self.algorithm == "dqn" and self.dynamic_capacity.enabled:
            raise ValueError(_needs_continuous("dqn, which has discrete actions"))

    def planned_updates(self, batch_size: int, epochs: int | None = None, agents: int = 1) -> float:
        """Gradient updates of the whole run, for an algorithm with this batch size.

        epochs: passes of an on-policy algorithm over each transition; None uses the rate limiter's pace. agents: of the
        environment. A rollout has a row for each agent. The rate limiter counts environment steps.
        """
        if self.offline:
            return self.max_updates
        uses = self.rate_limiter.samples_per_insert if epochs is None else epochs * agents
        return self.max_environment_steps * uses / batch_size

    @property
    def budget(self) -> int:
        """Length of all schedules of the run: environment steps, or updates of an offline run."""
        return self.max_updates if self.offline else self.max_environment_steps

    @property
    def own(self) -> AlgorithmConfig | PPOConfig | IMPALAConfig | None:
        """The settings of the run's algorithm if it is built-in."""
        return getattr(self, self.algorithm) if self.algorithm in ALGORITHMS else None

    @property
    def on_policy(self) -> PPOConfig | IMPALAConfig | None:
        """The settings of the run's algorithm if it is built-in and on-policy."""
        return self.own if isinstance(self.own, PPOConfig | IMPALAConfig) else None

    @property
    def object_storage_urls(self) -> dict[str, str]:
        """The URLs of the run's folders in object storage, by setting."""
        urls = {name: attrgetter(name)(self) for name in ("checkpoint.object_storage", "policy_export.url")}
        return {setting: url for setting, url in urls.items() if url}

    @property
    def horizon(self) -> dict[str, Any]:
        """Settings that a resumed run of a built-in on-policy algorithm cannot change; empty for other algorithms."""
        own = self.on_policy
        if own is None:
            return {}
        # These settings determine the meaning of the algorithm's state and of stored rollouts.
        names = ("rollout_size", "epochs", "discount", "gae_lambda", "trace_lambda")
        kept = {f"{self.algorithm}.{name}": getattr(own, name) for name in names if hasattr(own, name)}
        return {"actor.segment_length": self.actor.segment_length, **kept}

    @property
    def fixed(self) -> dict[str, Any]:
        """Settings that a resumed run cannot change, with their values or the values derived from other settings."""
        values = {name: attrgetter(name)(self) for name in algorithms.FIXED}
        masks = {f"sparsity.{name}": value for name, value in self.sparsity.topology.items()}
        return {**values, **masks, **self.horizon, "dynamic_capacity.enabled": self.asks_for_greedy_actions}

    @property
    def network_settings(self) -> dict[str, Any]:
        """Settings that the networks in a checkpoint depend on, as JSON values. Sparsity has settings of its own."""
        fixed = () if self.own is None else self.own.fixed
        own = (f"{self.algorithm}.{name}" for name in fixed)
        names = ("network", "encoders", "normalize_observations", "memory.kind", "memory.units", *own)
        # Checkpoints of other runs stay as those of earlier versions.
        names += ("policies",) if self.policies else ()
        found: dict[str, Any] = json.loads(json.dumps({name: attrgetter(name)(self) for name in names}))
        return found

    @property
    def environment_arguments(self) -> EnvironmentArguments:
        """Keyword arguments, wrappers, critic leaves and groups of agents of the environment."""
        wrappers = tuple(each for wrapper in self.environment_wrappers for each in wrapper.items())
        return EnvironmentArguments(
            *(self.environment_args, wrappers, self.image_layout, self.critic_leaves),
            *(self.agents.identity, self.agents.critic, tuple(self.policies.items())),
        )

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of agents, without their bits."""
        return tuple(Group(name, agents) for name, agents in self.policies.items())

    @property
    def sight_of_critics(self) -> str:
        """The setting by which critics see more than the policy; empty if there is none."""
        if self.critic_leaves:
            return "critic_leaves"
        return "" if self.agents.critic == "own" else f"agents.critic {self.agents.critic}"

    def resolved_quantizer(self) -> sections.QuantizerConfig:
        """The quantizer's settings with `compensate` resolved.

        Quantization-aware training matches the actors only if weights are rounded to nearest and biases are unchanged
        (learner_service.quantization). It therefore turns corrections off, unless they are set explicitly.
        """
        quantizer = self.quantizer
        if quantizer.compensate is not None:
            return quantizer
        return quantizer.model_copy(update={"compensate": self.learner.quantization_aware_after is None})

    def with_certificates(self, directory: Path) -> "RunConfig":
        """The same run with mutual TLS. directory: the folder of the certificates."""
        transport = self.transport.model_copy(update={"certificates": directory.absolute()})
        return self.model_copy(update={"transport": transport})

    @property
    def sampling(self) -> Sampling:
        """The sampler of the actors in a run of a built-in on-policy algorithm; empty for other algorithms."""
        if (own := self.on_policy) is None:
            return ""
        return "squashed" if own.squash else "clipped"

    def exploration_of(self, actor_index: int, environment_steps: int) -> Exploration:
        """The exploration of an actor that joins after `environment_steps` environment steps of the run.

        Each actor gets every `actors`-th rate, so its rates cover the whole range. Actors beyond the configured number
        share the rates of others.
        """
        base, alpha = self.exploration.epsilon, self.exploration.alpha
        count = self.actors * self.environments_per_actor
        mine = range(actor_index % self.actors, count, self.actors)
        # The networks of another run act better than random ones from the first step on.
        random_steps = self.exploration.random_steps if self.init_from is None else 0
        return Exploration(
            epsilons=tuple(base ** (1 + alpha * index / max(1, count - 1)) for index in mine),
            noise=(self.exploration.noise,) * self.environments_per_actor,
            correlation=self.exploration.correlation,
            random_steps=max(0, -(-(random_steps - environment_steps) // count)),
        )

    def multi_step_of(self, n_step: int) -> MultiStepConfig | None:
        """The multi-step targets of this run; None without them. n_step: steps of the algorithm's returns.

        With rlx2 and `multi_step` not set, algorithms whose returns span several steps keep these returns. Raises
        UserError when `multi_step` is set with such an algorithm.
        """
        if not self._has(self.multi_step):
            return None
        name = self.algorithm
        has_steps = getattr(ALGORITHMS.get(name), "has_steps", False)
        if has_steps or n_step > 1:
            if self.multi_step is None:
                return None
            raise UserError(
                f"multi_step: expected an algorithm with initial one-step returns, got {name} with n_step {n_step}: "
                + ("leave --multi-step out" if has_steps else f"set {name}.n_step to 1")
            )
        return self.multi_step_returns

    def dynamic_capacity_of(self, spec: EnvironmentSpec) -> DynamicCapacityConfig | None:
        """The dynamic capacity of this run's replay; None for a fixed capacity.

        With rlx2 and `dynamic_capacity.enabled` not set, runs with continuous actions use it. Raises UserError when it
        is set with discrete actions, or when a large `dynamic_capacity.min_size` would prevent every drop.
        """
        if not self.asks_for_greedy_actions:
            return None
        if spec.sizes:
            if self.dynamic_capacity.enabled is None:
                return None
            raise UserError(_needs_continuous(f"{spec.environment_id} with {sum(spec.sizes)} discrete ones"))
        settings, steps = self.dynamic_capacity, self.actor.segment_length
        # For each environment, a segment needs a few more rows than it has steps.
        room = self.replay.capacity * steps // ((steps + spec.frame_stack) * spec.agent_count)
        if settings.min_size >= room:
            raise UserError(
                f"dynamic_capacity.min_size must be below the about {room} transitions that replay.capacity "
                f"({self.replay.capacity} rows) has room for, got {settings.min_size}: nothing would ever be "
                "dropped; change one of them, or give --no-dynamic-capacity.enabled"
            )
        if settings.min_size >= self.max_environment_steps:
            raise UserError(
                f"dynamic_capacity.min_size must be below max_environment_steps ({self.max_environment_steps}), got "
                f"{settings.min_size}: nothing would ever be dropped; a fifth of the steps is common, or give "
                "--no-dynamic-capacity.enabled"
            )
        return settings

    @property
    def asks_for_greedy_actions(self) -> bool:
        """Whether actors send the policy's actions without noise. Actors with discrete actions never do."""
        # The store of an offline run never changes.
        return not self.offline and self._has(self.dynamic_capacity.enabled)

    def further_columns(self, sampled: bool) -> tuple[str, ...]:
        """Names of the segment columns that not every run has. sampled: whether actions are drawn."""
        greedy, hindsight = self.asks_for_greedy_actions, HindsightColumns(self.hindsight.copies).names
        own = (LOG_PROBABILITIES,) if sampled else (*((GREEDY_ACTIONS,) if greedy else ()), *hindsight)
        return (*own, *self.memory.columns)

    def large_columns(self, spec: EnvironmentSpec) -> tuple[str, ...]:
        """Names of the segment columns with other goals and with states, whose size depends on the settings."""
        return (*HindsightColumns(self.copies_of(spec)).names, *self.memory.columns)

    def copies_of(self, spec: EnvironmentSpec) -> int:
        """Number of other goals for each step; 0 without hindsight."""
        return 0 if spec.goal is None or self.on_policy is not None else self.hindsight.copies

    def _has(self, mechanism: bool | None) -> bool:
        """Whether the run uses one of RLx2's mechanisms besides sparse networks (arXiv 2205.15043, sec. 4.2)."""
        return self.sparsity.method == "rlx2" if mechanism is None else mechanism


def _needs_continuous(got: str) -> str:
    return f"dynamic_capacity.enabled: expected continuous actions, which have distances, got {got}: leave it out"
