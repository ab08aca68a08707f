"""Starts the services' own measurements in processes, and combines their figures."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.policy import FP32
from actorq.profiling import Folder
from actorq.start import command_of
from actorq_apps.local.child import run_to_end
from actorq_apps.local.forkserver import ForkServers
from actorq_apps.profile.links import Counters, LinkFigures, measure_links
from actorq_apps.profile.model import ActorCosts, Costs, LearnerCosts, Workload

_DEFAULT_EPISODE_STEPS = 1000


@dataclass(frozen=True)
class Figures:
    """The services' measurements. `links` is measured in fp32 with the configured actors and environments."""

    config: RunConfig
    actor: dict[str, Any]
    learner: dict[str, Any]
    quantizer: dict[str, Any]
    links: LinkFigures
    max_episode_steps: int

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes that work on this processor."""
        return tuple(_size(self.actor, self.config.environments_per_actor)["loop_s"])

    @property
    def environments(self) -> tuple[int, ...]:
        """The measured numbers of environments per actor."""
        return tuple(size["environments"] for size in self.actor["sizes"])

    @property
    def dropped(self) -> dict[str, str]:
        """The reasons why other schemes were not measured."""
        return {**self.quantizer["failed"], **self.actor["dropped"]}

    @property
    def workload(self) -> Workload:
        """The work that the run's settings require."""
        config, evaluation = self.config, self.config.evaluation.period_updates
        if rollout := self.learner.get("rollout"):
            updates = rollout["updates"]
            return Workload(updates / rollout["transitions"], updates, evaluation, config.queue.synchronous)
        updates_per_step = config.rate_limiter.samples_per_insert / self.learner["batch_size"]
        return Workload(updates_per_step, config.publication.period_updates, evaluation)

    def costs(self, scheme: str, environments: int | None = None) -> Costs:
        """The costs of each part with a scheme. environments: number per actor; None for the configured number."""
        config, valid = self.config, self.actor["valid"]
        count = environments or config.environments_per_actor
        loop = _size(self.actor, count)["loop_s"][scheme] / (count * valid)
        episodes = config.evaluation.episodes * (self.max_episode_steps or _DEFAULT_EPISODE_STEPS)
        # A segment's cost is mostly the cost of its message. A segment of more environments therefore costs no more.
        fewer = config.environments_per_actor / count
        # An update takes longer while actors run. The extra time blocks the interpreter for the trainer.
        versions = self.learner["version_s"] / self.workload.updates_per_version
        alone_s, alone_cpu_s = self.learner["update_s"], self.learner["update_cpu_s"]
        update_cpu_s = max(alone_cpu_s, self.links.update_s - versions)
        learner_share = 1.0
        if self.learner["device"] == "cpu":
            learner_share = self.links.learner_share
            # Other programs increase wall-clock times. A trainer that never waits for data is never idle.
            alone_s = min(alone_s, alone_cpu_s)
        return Costs(
            ActorCosts(
                step_s=(loop + self.upload_s * fewer) * self.links.slowdown(self.actor["load_s"][FP32]),
                version_s=_on_the_way(self.links.actor_version_s, self.actor["load_s"], scheme),
                evaluation_s=loop * episodes,
            ),
            LearnerCosts(
                update_s=alone_s + max(0.0, update_cpu_s - alone_cpu_s),
                update_cpu_s=update_cpu_s,
                step_s=self.links.learner_s * fewer,
                version_s=self.learner["version_s"],
                share=learner_share,
            ),
            _on_the_way(self.links.quantizer_version_s, self.quantizer["version_s"], scheme),
        )

    @property
    def upload_s(self) -> float:
        """Processor seconds of an actor per transition outside its loop, with the configured environments."""
        return max(0.0, self.links.actor_s - _loop_s(self.config, self.actor))

    def environment_s(self, environments: int) -> float:
        """Seconds of a step of one environment."""
        return float(_size(self.actor, environments)["environment_s"]) / environments

    def call_s(self, scheme: str, environments: int) -> float:
        """Seconds of a call of the policy for all environments."""
        return float(_size(self.actor, environments)["call_s"][scheme])

    def rest_s(self, scheme: str) -> float:
        """Seconds of an actor's step of all its environments, without the environments and the policy."""
        size = _size(self.actor, self.config.environments_per_actor)
        return max(0.0, float(size["loop_cpu_s"][scheme] - size["call_s"][scheme] - size["environment_s"]))

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {name: value for name, value in asdict(self).items() if name != "config"}

    @classmethod
    def from_json(cls, config: RunConfig, tree: dict[str, Any]) -> "Figures":
        """The figures from `to_json`, for a run with these settings."""
        windows = {name: Counters(**tree["links"][name]) for name in ("paused", "training")}
        links = LinkFigures(tree["links"]["actors"], **windows)
        steps = int(tree.get("max_episode_steps", 0))
        return cls(config, tree["actor"], tree["learner"], tree["quantizer"], links, steps)


def _on_the_way(fp32_s: float | None, seconds: dict[str, float], scheme: str) -> float:
    """A version's cost in a service during a run: `fp32_s` plus the scheme's extra cost over fp32, measured alone."""
    return seconds[scheme] if fp32_s is None else max(seconds[scheme], fp32_s + seconds[scheme] - seconds[FP32])


def _loop_s(config: RunConfig, actor: dict[str, Any]) -> float:
    """Seconds of a transition in the loop of an actor, in fp32."""
    count = config.environments_per_actor
    return float(_size(actor, count)["loop_cpu_s"][FP32] / (count * actor["valid"]))


def _size(actor: dict[str, Any], environments: int) -> dict[str, Any]:
    """An actor's figures with this number of environments."""
    size: dict[str, Any] = next(each for each in actor["sizes"] if each["environments"] == environments)
    return size


def measure(
    config: RunConfig,
    seconds: float,
    say: Callable[[str], None],
    servers: ForkServers | None = None,
    is_brief: bool = False,
) -> Figures:
    """Measure each part for about `seconds`. Calls `say` with its name before. Raises UserError if a part fails.

    is_brief: measure only the run's own scheme and FP32, with the configured number of environments.
    """
    # The run that may follow needs the servers too.
    servers = servers and servers.forking()

    def run(function: str, *more: str) -> None:
        run_to_end((*command_of(function), *flags, *more), servers, f"{function} failed")

    with TemporaryDirectory(prefix="actorq-profile-") as name:
        folder = Folder(Path(name))
        path = folder.path / "config.yaml"
        path.write_text(settings.to_yaml(config), encoding="utf-8")
        flags = ("--config", str(path), "--folder", name, "--seconds", f"{seconds:g}", *("--brief",) * is_brief)
        say("the environment")
        run("actor_service.profile:run", "--record")
        say("the learner's updates")
        run("learner_service.profile:run")
        say("the quantizer, for each scheme")
        run("quantizer_service.profile:run")
        say("the actor, for each scheme")
        run("actor_service.profile:run")
        say("the path of transitions to the replay")
        parts = {part: folder.read(part) for part in ("actor", "learner", "quantizer")}
        spec, rollout = folder.spec(), parts["learner"]["rollout"] or {}
        size, step_s = rollout.get("environment_steps"), _loop_s(config, parts["actor"])
        links = measure_links(config, folder.path, seconds, step_s, size, spec.frame_stack, servers, spec.agent_count)
        return Figures(config, **parts, links=links, max_episode_steps=spec.max_episode_steps)
