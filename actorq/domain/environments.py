"""The identity of an environment in addition to its id: keyword arguments and wrappers."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, cast, get_args

from actorq.errors import InvalidInputError

ImageLayout = Literal["auto", "channels-first", "channels-last"]
AgentIdentity = Literal["none", "one-hot"]
AgentCritic = Literal["own", "joint", "state"]
_LIBRARY = "gymnasium.wrappers"
# Gymnasium's wrappers that change only rewards, and those that keep statistics of observations.
_OF_REWARDS = ("NormalizeReward", "TransformReward", "ClipReward")
_OF_STATISTICS = ("NormalizeObservation",)
_CHOICES = {"image_layout": ImageLayout, "agent_identity": AgentIdentity, "agent_critic": AgentCritic}
# Bound on the text of all arguments.
MAX_ARGUMENTS_BYTES = 8192
_EXTERNAL = "external/"


@dataclass(frozen=True)
class Group:
    """Agents with networks of their own.

    agents: in the order of their rows. bit: the component of an agent's vector of observations that is 1 for an agent
        of this group, and 0 for others; counted in the vector that critics see.
    """

    name: str
    agents: tuple[str, ...]
    bit: int = 0


def group_returns(groups: Iterable[Group], returns: Mapping[str, float]) -> dict[str, float]:
    """The return of each group by name: the sum over its agents. Empty without groups, or without returns of agents.

    returns: of each agent, by name.
    """
    found = [group for group in groups if {*group.agents} <= returns.keys()]
    return {group.name: sum(returns[agent] for agent in group.agents) for group in found}


@dataclass(frozen=True)
class EnvironmentArguments:
    """Keyword arguments and wrappers of an environment. Environments with one id are equal only if these are equal.

    keywords: arguments of the function that creates the environment, by name. All values are JSON values.
    wrappers: MODULE:CLASS and its keyword arguments, the innermost wrapper first.
    image_layout: the order of an image's axes; auto: inferred from their lengths.
    critic_leaves: paths of the parts of an observation that only critics see.
    agent_identity: what the observations of several agents also say of the agent; none: nothing.
    agent_critic: what critics of several agents also see; own: nothing; joint: the observations of all agents; state:
        the environment's state.
    agent_groups: the agents of each group with a policy of its own, by the group's name; empty for one policy.
    """

    keywords: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    image_layout: ImageLayout = "auto"
    critic_leaves: tuple[str, ...] = ()
    agent_identity: AgentIdentity = "none"
    agent_critic: AgentCritic = "own"
    agent_groups: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def __str__(self) -> str:
        return self.to_text() or "no arguments"

    def to_text(self) -> str:
        """One line of ASCII; empty without arguments. `from_text` restores equal arguments."""
        if self == NO_ARGUMENTS:
            return ""
        values = asdict(self)
        for name in ("image_layout", "critic_leaves", "agent_identity", "agent_critic", "agent_groups"):
            if values[name] == getattr(NO_ARGUMENTS, name):
                del values[name]
        return json.dumps(values, allow_nan=False)

    @property
    def reward_wrappers(self) -> tuple[str, ...]:
        """The known wrappers that change only rewards."""
        return tuple(path for path, _ in self.wrappers if _is_of(path, _OF_REWARDS))

    @property
    def statistics_wrappers(self) -> tuple[str, ...]:
        """The known wrappers whose observations depend on earlier observations."""
        return tuple(path for path, _ in self.wrappers if _is_of(path, _OF_STATISTICS))

    def for_evaluations(self) -> "EnvironmentArguments":
        """The environment without reward wrappers, so that returns and the target have the same unit."""
        return replace(self, wrappers=tuple(each for each in self.wrappers if not _is_of(each[0], _OF_REWARDS)))

    @classmethod
    def from_text(cls, text: str) -> "EnvironmentArguments":
        """Parse the line that `to_text` wrote. Raises InvalidInputError."""
        if not text:
            return cls()
        try:
            values = json.loads(text)
            # JSON has no NaN and no infinity. The parser reads 1e999 as infinity.
            json.dumps(values, allow_nan=False)
        except (ValueError, RecursionError):
            values = None
        match values:
            case {"keywords": dict(keywords), "wrappers": [*wrappers], **others} if all(map(_is_wrapper, wrappers)):
                rest = cast(dict[str, Any], others)
                leaves, groups = rest.pop("critic_leaves", []), rest.pop("agent_groups", [])
                known = all(name in _CHOICES and rest[name] in get_args(_CHOICES[name]) for name in rest)
                if known and _are_texts(leaves) and isinstance(groups, list) and all(map(_is_group, groups)):
                    made = tuple((path, arguments) for path, arguments in wrappers)
                    named = tuple((name, tuple(agents)) for name, agents in groups)
                    own: dict[str, Any] = {"critic_leaves": tuple(leaves), "agent_groups": named, **rest}
                    return cls(keywords, made, **own)
        raise InvalidInputError(
            "environment_arguments: expected JSON as "
            '{"keywords": {NAME: VALUE}, "wrappers": [["MODULE:CLASS", {NAME: VALUE}]]}'
        )


NO_ARGUMENTS = EnvironmentArguments()


def _is_of(path: str, names: Sequence[str]) -> bool:
    module, _, name = path.partition(":")
    return (module == _LIBRARY or module.startswith(f"{_LIBRARY}.")) and name in names


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(each, str) for each in values)


def _is_group(value: Any) -> bool:
    match value:
        case [str(), agents]:
            return _are_texts(agents)
    return False


def _is_wrapper(value: Any) -> bool:
    match value:
        case [str(), dict()]:
            return True
    return False


def is_external(environment_id: str) -> bool:
    """Whether simulators that connect to actors are the run's environment: an id such as external/robot."""
    return environment_id.startswith(_EXTERNAL)


def modules_of(environment_id: str, arguments: EnvironmentArguments = NO_ARGUMENTS) -> set[str]:
    """The modules that an environment and its wrappers import: the MODULE of each MODULE:NAME."""
    paths = (environment_id, *(path for path, _ in arguments.wrappers))
    return {module for path in paths if (module := path.rpartition(":")[0])}
