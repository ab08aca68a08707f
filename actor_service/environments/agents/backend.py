"""Makes batches of environments with several agents: `pettingzoo/FAMILY/NAME`, and those of a user's function."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from gymnasium import spaces

from actor_service.environments.agents.door import AgentDoor, mask_source
from actor_service.environments.agents.loop import AgentEnvironments
from actor_service.environments.agents.recognized import AgentsFound, acts_in_turns, has_agents
from actor_service.environments.agents.team import Parallel
from actor_service.environments.agents.team_part import TeamPart, team_part
from actor_service.environments.failures import kind_of
from actor_service.environments.keywords import fitting_keywords
from actor_service.environments.spaces.actions import sizes_of
from actor_service.environments.spaces.critics import NO_PARTS, CriticParts
from actorq.domain.environments import NO_ARGUMENTS, EnvironmentArguments, Group
from actorq.domain.limits import MAX_AGENTS
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from actorq.text import one_line

PREFIX = "pettingzoo/"
_OWN = ("atari", "butterfly", "classic", "sisl")
_OTHERS = ("mpe2",)
"""Packages with families of PettingZoo's, which an id may name. Another module needs MODULE:FUNCTION."""
_EXAMPLE = f"{PREFIX}mpe2/simple_spread_v3"
_VERSIONED = re.compile(r"\w+_v[0-9]+")
_MOST_BYTES = 300


def make(
    environment_id: str,
    count: int,
    rendered: bool,
    before_reset: Callable[[], None] = lambda: None,
    critics: CriticParts = NO_PARTS,
    arguments: EnvironmentArguments = NO_ARGUMENTS,
    /,
    *,
    max_episode_steps: int | None = None,
    **keywords: Any,
) -> AgentEnvironments:
    """A batch of the environment pettingzoo/FAMILY/NAME, as `make_environments` makes it."""
    create = _creator(environment_id)
    keywords = fitting_keywords(create, keywords)
    if rendered:
        keywords["render_mode"] = "rgb_array"

    def make_one() -> Any:
        return create(**keywords)

    return make_found(
        AgentsFound(make_one(), make_one), environment_id, count, before_reset, critics, arguments, max_episode_steps
    )


def make_found(
    found: AgentsFound,
    environment_id: str,
    count: int,
    before_reset: Callable[[], None] = lambda: None,
    critics: CriticParts = NO_PARTS,
    arguments: EnvironmentArguments = NO_ARGUMENTS,
    max_episode_steps: int | None = None,
) -> AgentEnvironments:
    """A batch of environments of a function that has made the first one.

    arguments: what the agents and their critics see.
    max_episode_steps: steps after which an episode is truncated; None for the environment's own limit.
    Raises UserError for an environment whose agents act in turns, or whose agents cannot share one policy.
    """
    first = found.environment
    limit = max_episode_steps or 0
    if not isinstance(limit, int) or not 0 <= limit < 2**32 or max_episode_steps == 0:
        raise UserError(
            f"environment_args: max_episode_steps must be a whole number from 1 to 2^32 - 1, got {max_episode_steps!r}"
        )
    try:
        spec, doors, part = _described(environment_id, first, before_reset, critics, arguments, limit)
    except UserError:
        first.close()
        raise
    environments = [first, *(found.make() for _ in range(count - 1))]
    return AgentEnvironments(spec, doors, environments, found.make, limit, part)


def _creator(environment_id: str) -> Callable[..., Any]:
    family, slash, name = environment_id.removeprefix(PREFIX).partition("/")
    if not slash or not name.isidentifier() or family not in (*_OWN, *_OTHERS):
        raise UserError(
            f"environment {environment_id!r} cannot be made: give {PREFIX}FAMILY/NAME with a family of "
            f"{', '.join((*_OWN, *_OTHERS))}, such as {_EXAMPLE}, or MODULE:FUNCTION"
        )
    package = family if family in _OTHERS else f"pettingzoo.{family}"
    try:
        parent, _ = import_module(package), import_module("pettingzoo")
    except ModuleNotFoundError as error:
        if error.name not in ("pettingzoo", family):
            raise
        raise UserError(
            f"environment {environment_id!r} needs {error.name}: pip install 'actorq[pettingzoo]'"
        ) from None
    known = sorted(each.name for each in iter_modules(parent.__path__) if _VERSIONED.fullmatch(each.name))
    if name not in known:
        names = one_line(", ".join(known), _MOST_BYTES)
        raise UserError(f"environment {environment_id!r} cannot be made: the family {family} has {names or 'none'}")
    module = import_module(f"{package}.{name}")
    create = getattr(module, "parallel_env", None)
    if not callable(create):
        raise UserError(_of_turns(environment_id))
    return create  # type: ignore[no-any-return]


def _of_turns(environment_id: str) -> str:
    return (
        f"environment {environment_id}: its agents act in turns (AEC), and a run needs agents that act at the same "
        "time; give MODULE:FUNCTION of a function that returns pettingzoo.utils.aec_to_parallel(environment)"
    )


def _described(
    environment_id: str,
    first: Parallel,
    before_reset: Callable[[], None],
    critics: CriticParts,
    arguments: EnvironmentArguments,
    limit: int,
) -> tuple[EnvironmentSpec, list[AgentDoor], TeamPart | None]:
    """The spec, the conversion of each agent, and the part of the team. Raises UserError."""
    if acts_in_turns(first):
        raise UserError(_of_turns(environment_id))
    if not has_agents(first):
        raise UserError(
            f"environment {environment_id}: expected an environment of pettingzoo.ParallelEnv, got {kind_of(first)}"
        )
    agents = tuple(map(str, first.possible_agents))
    if not 1 <= len(agents) <= MAX_AGENTS or len({*agents}) < len(agents):
        raise UserError(
            f"environment {environment_id}: possible_agents must be 1 to {MAX_AGENTS} different agents, got "
            f"{one_line(str(list(agents)), _MOST_BYTES)}"
        )
    both = [(first.observation_space(each), first.action_space(each)) for each in first.possible_agents]
    mask = mask_source(first, both[0][0], sizes_of(both[0][1]), before_reset)
    kind = arguments.agent_critic
    # Evaluated environments may be without a state. Their observations lack this part, whatever its space is.
    part = None if critics.left_out else team_part(kind, environment_id, first, both[0][0], before_reset)
    space = part.space if part is not None else None if kind == "own" else spaces.Discrete(1)
    named = _groups(environment_id, agents, arguments.agent_groups)
    doors = [
        AgentDoor(
            *(environment_id, *pair, mask, index, len(agents), critics, arguments.agent_identity, space),
            bits=[int(agents[index] in members) for members in named.values()],
        )
        for index, pair in enumerate(both)
    ]
    for name, door, pair in zip(agents, doors, both, strict=True):
        _check_same(environment_id, (agents[0], doors[0], both[0]), (name, door, pair))
    spec = replace(doors[0].spec, agents=agents, max_episode_steps=limit)
    if named:
        _check_numbers(spec)
        first_bit = doors[0].first_bit
        groups = (Group(name, members, first_bit + index) for index, (name, members) in enumerate(named.items()))
        spec = replace(spec, groups=tuple(groups))
    return spec, doors, part


def _groups(
    environment_id: str, agents: Sequence[str], asked: Sequence[tuple[str, Sequence[str]]]
) -> dict[str, tuple[str, ...]]:
    """The agents of each group, in their order. Raises UserError unless each agent is in one group."""
    known = one_line(", ".join(agents), _MOST_BYTES)
    for name, members in asked:
        if unknown := [each for each in members if each not in agents]:
            raise UserError(
                f"policies.{name}: expected agents of {environment_id}, which has {known}, got "
                f"{one_line(unknown[0], _MOST_BYTES)}"
            )
    found = {name: tuple(each for each in agents if each in members) for name, members in asked}
    if missing := [each for each in agents if found and not any(each in members for members in found.values())]:
        raise UserError(
            f"policies: expected each agent of {environment_id} in a group, got none with "
            f"{one_line(', '.join(missing), _MOST_BYTES)}"
        )
    return found


def _check_numbers(spec: EnvironmentSpec) -> None:
    """Raise UserError unless networks see one vector of numbers."""
    seen = spec.for_critics
    if seen.vector is None or (seen.leaves and {leaf.kind for leaf in seen.encoded} != {"numbers"}):
        raise UserError(
            f"policies: groups need observations that are one vector of numbers, but {spec.environment_id} has "
            f"{one_line(spec.observations_text, _MOST_BYTES)}; leave policies out"
        )


_Agent = tuple[str, AgentDoor, tuple[spaces.Space[Any], spaces.Space[Any]]]


def _check_same(environment_id: str, one: _Agent, other: _Agent) -> None:
    """Raise UserError when two agents cannot share one policy."""
    (name, door, pair), (other_name, other_door, other_pair) = one, other
    for place, fields in enumerate((("observations", "indicators"), ("actions", "sizes"))):
        if all(getattr(door.spec, field) == getattr(other_door.spec, field) for field in fields):
            continue
        texts = (one_line(" ".join(str(each[place]).split()), _MOST_BYTES) for each in (pair, other_pair))
        raise UserError(
            f"environment {environment_id}: agents that share a policy need equal spaces, got {fields[0]} "
            f"{next(texts)} of {name} and {next(texts)} of {other_name}; pad them to one size, for example with "
            "supersuit.pad_observations_v0 and supersuit.pad_action_space_v0 in a function of your own"
        )
