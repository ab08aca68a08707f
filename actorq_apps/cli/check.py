"""`actorq check`: tries an environment and shows suitable settings and possible problems of a run."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from actorq.config.algorithms import ALGORITHMS, taking
from actorq.config.messages.positional import add_environment
from actorq.config.parser import number
from actorq.config.presets import OTHERS, family_of
from actorq.config.run_config import RunConfig
from actorq.config.segments import most_environments
from actorq.domain.spaces import EnvironmentSpec
from actorq.process import EXIT_OK, Sources, argument_parser
from actorq.text import return_text
from actorq_apps.local.algorithm import about_wrappers, fit_algorithm, fit_environments
from actorq_apps.local.environment import try_environment
from actorq_apps.local.events import sigterm_as_exit

_DESCRIPTION = """Try an environment with random actions for at most ten seconds. Print its spaces as policies see them,
its episodes, rewards and speed, and whether a seed repeats an episode. Also print which algorithms support its actions,
and which settings a run would use. Each possible problem is a warning with a remedy. Accepts all settings of actorq
train. Exit codes: 0, 2 for an environment that does not work."""
_READS = (
    *("environment", "environment_args", "environment_wrappers", "environment_backend", "image_layout", "algorithm"),
    *("preset", "environments_per_actor", "target_return", "target_success", "normalize_observations", "network"),
    *("critic_leaves", "agents", "policies", "hindsight"),
    *("actor.environment_timeout_s", "actor.segment_length", "actor.max_segment_bytes"),
)

Figures = Mapping[str, Any]

STEPS, _MOST_STEPS = 2_000, 1_000_000
# Observations beyond this range train slowly without normalization. Larger rewards make values large.
_LARGE_OBSERVATION, _LARGE_REWARD = 10.0, 100.0
# Speed of random actions. A slower environment limits a run with a learner of average speed.
_SLOW_STEPS_PER_S = 200.0
_SHOWN = 8


def run(arguments: Sequence[str]) -> int:
    """Try the environment and print the findings."""
    parser = argument_parser("actorq check", _DESCRIPTION, (RunConfig,), _READS)
    add_environment(parser)
    steps = number(1, _MOST_STEPS, f"1 to {_MOST_STEPS:,} steps", int)
    parser.add_argument(
        "--steps", type=steps, default=STEPS, metavar="N", help=f"random steps, at most (default: {STEPS})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    namespace = parser.parse_args(arguments)
    sources = Sources.read((RunConfig,), namespace)
    config = sources.resolve(RunConfig)
    found: list[Figures] = []

    def describe(of: RunConfig) -> EnvironmentSpec:
        spec, figures = try_environment(of, namespace.steps)
        found.append(figures)
        return spec

    with sigterm_as_exit():
        config, spec = fit_algorithm(config, sources, may_choose=True, describe=describe)
    notes: list[str] = []
    config = fit_environments(config, spec, notes.append)
    notes += about_wrappers(config.environment_arguments)
    warnings = [*notes, *warnings_of(spec, found[0], config)]
    if namespace.json:
        content = {"spec": spec.to_json(), "algorithm": config.algorithm, "figures": found[0], "warnings": warnings}
        print(json.dumps(content, indent=1))
        return EXIT_OK
    print(config.environment)
    for name, text in lines_of(spec, found[0], config):
        print(f"  {name:<13} {text}")
    for text in warnings:
        print(f"warning: {text}")
    sys.stdout.flush()
    return EXIT_OK


def lines_of(spec: EnvironmentSpec, figures: Figures, config: RunConfig) -> Iterator[tuple[str, str]]:
    """The printed lines about an environment: a word and a text each."""
    seen = spec.observations_text if spec.leaves else f"{spec.observations_text} ({spec.observations.dtype})"
    if figures["observations"]:
        low, high = figures["observations"]
        seen += f"; {'numbers ' * bool(spec.leaves)}from {low:.3g} to {high:.3g} in {figures['steps']:,} random steps"
    yield "observations", seen
    yield "actions", spec.actions_text
    if spec.agents:
        shared = "each group has its own policy" if spec.groups else "they share one policy"
        yield "agents", f"{spec.agents_text}; {shared}, and returns are sums over agents"
    if spec.groups:
        yield "groups", spec.groups_text
    yield "episodes", _episodes(spec, figures)
    if returns := figures["returns"]:
        target = _target(spec, config)
        solved = "" if target is None else f"; solved at {return_text(target)}"
        mean, low, high = (return_text(each) for each in (fmean(returns), min(returns), max(returns)))
        yield "returns", f"{mean} on average, from {low} to {high}{solved}"
    if rewards := figures["rewards"]:
        yield "rewards", f"from {rewards[0]:.4g} to {rewards[1]:.4g}"
    same = "the same seed repeats an episode" if figures["repeats"] else "the same seed does not repeat an episode"
    yield "seeds", f"{same}; another seed {'gives another' if figures['seeds_differ'] else 'gives the same one'}"
    yield "speed", f"{_rate(figures):,.0f} steps per second of one environment, with random actions"
    takes, refuses = _algorithms(spec)
    if spec.critic_leaves:
        takes = [name for name in takes if ALGORITHMS[name].has_critic]
    if spec.groups:
        takes = [name for name in takes if ALGORITHMS[name].has_groups]
    kinds = " and ".join(spec.action_kinds)
    other = {"discrete": "continuous only", "continuous": "discrete only"}.get(kinds, "not both")
    yield "algorithms", f"{config.algorithm} unless you choose: {', '.join(takes)}; {', '.join(refuses)}: {other}"
    yield "settings", ", ".join(_settings(spec, config))


def warnings_of(spec: EnvironmentSpec, figures: Figures, config: RunConfig) -> Iterator[str]:
    """Possible problems of a run, each with its remedy."""
    for reason, count in figures["faults"].items():
        yield f"{count} of {figures['steps']:,} steps failed: {reason}; a run drops such steps, so mend the environment"
    if not figures["repeats"]:
        yield "the same seed gives another episode: runs cannot be repeated; seed all randomness in reset(seed=...)"
    if not figures["lengths"] and not spec.max_episode_steps:
        yield (
            f"no episode ended in {figures['steps']:,} steps, and there is no time limit: give --environment-args "
            "max_episode_steps=1000, or returns are never known"
        )
    image, (low, high) = spec.image, figures["observations"] or (0, 0)
    if image is None and not config.normalize_observations and max(-low, high) > _LARGE_OBSERVATION:
        yield f"observations reach {max(-low, high, key=abs):.4g}: give --normalize-observations"
    if image is None and figures["constant"]:
        names = ", ".join(map(str, figures["constant"][:_SHOWN])) + ", ..." * (len(figures["constant"]) > _SHOWN)
        yield (
            f"{len(figures['constant'])} of {figures['components']} numbers of an observation never changed ({names}): "
            "leave them out if they never do"
        )
    rewards = figures["rewards"]
    if rewards and rewards[0] == rewards[1] == 0:
        yield "no random step had a reward: exploration may never find one; reward progress, or train much longer"
    elif rewards and max(-rewards[0], rewards[1]) > _LARGE_REWARD:
        yield f"rewards reach {max(rewards, key=abs):.4g}: scale them in the environment, to about 1"
    if _rate(figures) < _SLOW_STEPS_PER_S:
        milliseconds = 1000 / _rate(figures)
        yield f"the environment takes {milliseconds:.3g} ms per step: give more --actors, as far as cores suffice"


def _episodes(spec: EnvironmentSpec, figures: Figures) -> str:
    limit = f"limit {spec.max_episode_steps:,} steps" if spec.max_episode_steps else "no limit of steps"
    lengths = figures["lengths"]
    if not lengths:
        return f"none ended in {figures['steps']:,} steps; {limit}"
    ends = f"{figures['terminated']} terminated, {figures['truncated']} truncated"
    return f"{len(lengths)} ended ({ends}), {fmean(lengths):,.0f} steps on average; {limit}"


def _algorithms(spec: EnvironmentSpec) -> tuple[list[str], list[str]]:
    """The built-in algorithms that support the actions, and the others; without those for stored data."""
    takes = taking(*spec.action_kinds)
    return takes, [name for name, each in ALGORITHMS.items() if name not in takes and not each.for_stored_data]


def _settings(spec: EnvironmentSpec, config: RunConfig) -> Iterator[str]:
    family = family_of(config.preset_environment)
    yield "no preset for this environment" if family is OTHERS else f"preset for {family.name}"
    copies, most = config.copies_of(spec), most_environments(spec, config.large_columns(spec))
    yield f"{config.environments_per_actor} environments per actor (at most {most:,})"
    if config.agents.identity != "none":
        yield f"--agents.identity {config.agents.identity}"
    if config.policies:
        yield f"--policies with {len(config.policies)} groups"
    if config.agents.critic != "own":
        yield f"--agents.critic {config.agents.critic}"
    if spec.frame_stack > 1:
        yield f"{spec.frame_stack} frames stacked"
    elif spec.image is not None:
        yield f"--image-layout {spec.image.layout}"
    if copies:
        yield f"hindsight with {copies} other goals for each step"
    if _target(spec, config) is None and config.target_success is None:
        yield "no target return: give --target-return to end a run by it"


def _target(spec: EnvironmentSpec, config: RunConfig) -> float | None:
    return spec.reward_threshold if config.target_return is None else config.target_return


def _rate(figures: Figures) -> float:
    return float(figures["steps"] / figures["seconds"])
