"""`--preset auto`: measures this machine, chooses the run's regime, and prints it with a forecast."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actorq.config import settings
from actorq.config.algorithms import ON_POLICY
from actorq.config.run_config import RunConfig
from actorq.errors import UserError
from actorq_apps.cli.display.numbers import duration
from actorq_apps.local.forkserver import ForkServers
from actorq_apps.profile.measure import Figures, measure
from actorq_apps.profile.model import Limit
from actorq_apps.profile.regime import Regime, choose

# Of each of five parts. With the starts of processes it takes about 12 s.
_SECONDS = 1.0
_SAMPLES = ("rate_limiter", "samples_per_insert")
_WAITING = {
    Limit.ACTORS: "the learner waits for the actors",
    Limit.LEARNER: "the actors wait for the learner",
    Limit.PROCESSORS: "learner and actors share the cores",
}


@dataclass(frozen=True)
class Fitted:
    """Settings that suit this machine, and the forecast of their gradient updates per second; None without one."""

    config: RunConfig
    updates_per_s: float | None = None


def fit_regime(
    config: RunConfig, given: Mapping[str, Any], profile: Path | None, servers: ForkServers | None, is_measurable: bool
) -> Fitted:
    """The settings with the samples per insert and actors that suit this machine. Keeps those of an on-policy run.

    given: the settings that the user has given. They are kept, and their forecast is printed.
    profile: a file of `actorq profile --json`; None to measure. is_measurable: whether processes can make the
    environment. Raises UserError if the file is unreadable or belongs to another run.
    """
    if config.algorithm in ON_POLICY or config.offline:
        return Fitted(config)
    kept = config.rate_limiter.samples_per_insert if settings.has(given, _SAMPLES) else None
    actors = config.actors if "actors" in given else None
    if profile is not None:
        figures = _read(profile, config)
    elif kept is not None and actors is not None:
        _say("preset auto: samples per insert and actors are given, so nothing is measured")
        return Fitted(_with(config, given, kept, actors))
    elif is_measurable:
        _say("preset auto: measuring this machine for about 12 s")
        figures = measure(config, _SECONDS, lambda part: None, servers, is_brief=True)
    else:
        own = config.rate_limiter.samples_per_insert
        _say(f"preset auto: {own:g} samples per insert; an environment of this process cannot be measured in others")
        return Fitted(config)
    if figures.learner["rollout"]:
        _say(f"preset auto: {config.algorithm} is on-policy, so nothing was chosen")
        return Fitted(config)
    scheme = _acting(config.scheme, figures)
    batch, cores = figures.learner["batch_size"], len(os.sched_getaffinity(0))
    regime = choose(figures.costs(scheme), figures.workload, batch, cores, kept, actors)
    for line in _lines(regime, config, scheme):
        _say(line)
    fitting = _with(config, given, regime.samples_per_insert, regime.prediction.actors)
    return Fitted(fitting, regime.prediction.steps_per_s / regime.steps_per_update)


def _read(file: Path, config: RunConfig) -> Figures:
    remedy = "write the file with actorq profile --json and the settings of this run"
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
        own = {"environment": config.environment, "algorithm": config.algorithm}
        for name, expected in own.items():
            if tree[name] != expected:
                raise UserError(f"--profile: expected figures of {name} {expected}, got {tree[name]}: {remedy}")
        figures = Figures.from_json(config, tree["measured"])
        if config.environments_per_actor not in figures.environments:
            measured = ", ".join(map(str, figures.environments))
            raise UserError(
                f"--profile: expected figures of {config.environments_per_actor} environments per actor, got "
                f"{measured}: {remedy}"
            )
    except OSError as error:
        raise UserError(f"--profile: cannot read {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"--profile: expected figures of actorq profile, got {file}: {remedy}") from None
    return figures


def _acting(asked: str, figures: Figures) -> str:
    """The scheme that the actors use: the fastest for `auto`, and where the processor lacks the given one."""
    if asked in figures.schemes:
        return asked
    return min(figures.schemes, key=lambda each: figures.costs(each).actor.step_s)


def _with(config: RunConfig, given: Mapping[str, Any], samples: float, actors: int) -> RunConfig:
    """The settings with these numbers, and with room in the rate limiter for some segments of all environments."""
    limiter: dict[str, Any] = {"samples_per_insert": samples}
    if not settings.has(given, ("rate_limiter", "error_buffer")):
        steps = actors * config.environments_per_actor * config.actor.segment_length
        limiter["error_buffer"] = max(config.rate_limiter.error_buffer, 4.0 * steps * samples)
    return settings.build(RunConfig, config.model_dump(mode="json"), {"actors": actors, "rate_limiter": limiter})


def _lines(regime: Regime, config: RunConfig, scheme: str) -> list[str]:
    found, steps = regime.prediction, config.max_environment_steps
    rate = found.steps_per_s
    actors = f"{found.actors} actor{'s' * (found.actors > 1)}"
    return [
        f"alone: {regime.updates_per_s:,.0f} updates/s; {actors}: {regime.steps_per_s:,.0f} steps/s ({scheme})",
        f"regime: an update of {regime.batch_size} samples every {regime.steps_per_update:.3g} steps "
        f"({regime.samples_per_insert:g} samples per insert), {actors}",
        f"forecast: {rate / regime.steps_per_update:,.0f} updates/s, {rate:,.0f} steps/s; {_WAITING[found.limit]}; "
        f"{steps:,} steps in {duration(steps / rate)}",
    ]


def _say(text: str) -> None:
    print(text, flush=True)
