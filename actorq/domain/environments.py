"""The identity of an environment besides its id: keyword arguments and wrappers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, cast, get_args

from actorq.errors import InvalidInputError

ImageLayout = Literal["auto", "channels-first", "channels-last"]
_LIBRARY = "gymnasium.wrappers"
# Gymnasium's wrappers that change rewards and nothing else, and those that keep statistics of observations.
_OF_REWARDS = ("NormalizeReward", "TransformReward", "ClipReward")
_OF_STATISTICS = ("NormalizeObservation",)
# Bound on the text of all arguments.
MAX_ARGUMENTS_BYTES = 8192


@dataclass(frozen=True)
class EnvironmentArguments:
    """Two environments of one id are the same only with equal arguments. All values are JSON values.

    keywords: arguments of the function that makes the environment, by name.
    wrappers: MODULE:CLASS and its keyword arguments, the innermost wrapper first.
    image_layout: the order of an image's axes; auto: by their lengths.
    """

    keywords: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    image_layout: ImageLayout = "auto"

    def __str__(self) -> str:
        return self.to_text() or "no arguments"

    def to_text(self) -> str:
        """One line of ASCII; empty for none. `from_text` restores equal arguments."""
        if self == NO_ARGUMENTS:
            return ""
        values = asdict(self)
        if self.image_layout == "auto":
            del values["image_layout"]
        return json.dumps(values, allow_nan=False)

    @property
    def reward_wrappers(self) -> tuple[str, ...]:
        """The wrappers that change rewards and nothing else, as far as they are known."""
        return tuple(path for path, _ in self.wrappers if _is_of(path, _OF_REWARDS))

    @property
    def statistics_wrappers(self) -> tuple[str, ...]:
        """The wrappers whose observations depend on those before, as far as they are known."""
        return tuple(path for path, _ in self.wrappers if _is_of(path, _OF_STATISTICS))

    def for_evaluations(self) -> "EnvironmentArguments":
        """The same environment with its own rewards, so that returns and the target are in one unit."""
        return replace(self, wrappers=tuple(each for each in self.wrappers if not _is_of(each[0], _OF_REWARDS)))

    @classmethod
    def from_text(cls, text: str) -> "EnvironmentArguments":
        """The arguments of `to_text`'s line. Raises InvalidInputError."""
        if not text:
            return cls()
        try:
            values = json.loads(text)
            # JSON has no NaN and no infinity. 1e999 is read as infinity.
            json.dumps(values, allow_nan=False)
        except (ValueError, RecursionError):
            values = None
        match values:
            case {"keywords": dict(keywords), "wrappers": [*wrappers], **rest} if all(map(_is_wrapper, wrappers)):
                layout = rest.get("image_layout", "auto")
                if layout in get_args(ImageLayout):
                    made = tuple((path, arguments) for path, arguments in wrappers)
                    return cls(keywords, made, cast(ImageLayout, layout))
        raise InvalidInputError(
            "environment_arguments: expected JSON as "
            '{"keywords": {NAME: VALUE}, "wrappers": [["MODULE:CLASS", {NAME: VALUE}]]}'
        )


NO_ARGUMENTS = EnvironmentArguments()


def _is_of(path: str, names: Sequence[str]) -> bool:
    module, _, name = path.partition(":")
    return (module == _LIBRARY or module.startswith(f"{_LIBRARY}.")) and name in names


def _is_wrapper(value: Any) -> bool:
    match value:
        case [str(), dict()]:
            return True
    return False


def modules_of(environment_id: str, arguments: EnvironmentArguments = NO_ARGUMENTS) -> set[str]:
    """The modules that an environment and its wrappers import: MODULE of MODULE:NAME."""
    paths = (environment_id, *(path for path, _ in arguments.wrappers))
    return {module for path in paths if (module := path.rpartition(":")[0])}
