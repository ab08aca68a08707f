"""The parts of an observation that only critics see."""

from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from actor_service.environments.spaces.observations import Keys, in_one_line, leaves_of, path_of
from actorq.domain.leaves import ACTION_MASK
from actorq.errors import UserError
from actorq.text import one_line

_MOST_BYTES = 500


@dataclass(frozen=True)
class CriticParts:
    """The parts of nested observations below some paths.

    left_out: whether observations do not have these parts, because only policies act in the environment. The space of
        the environment may then lack them, too.
    """

    paths: tuple[str, ...] = ()
    left_out: bool = False

    def has(self, keys: Keys) -> bool:
        """Whether a part of the space is at or below one of the paths."""
        return any(path_of(keys[:length]) in self.paths for length in range(1, len(keys) + 1))

    def apply_to(self, space: spaces.Space[Any], masked: bool) -> bool:
        """Whether observations of this space need packing because of these parts.

        masked: whether the space has the action mask, which is no such part. Raises UserError for a path that does not
        exist, for a space without parts, and if no part is left for the policy.
        """
        if not self.paths or (self.left_out and not is_nested(space)):
            return False
        if self.left_out:
            return True
        if not is_nested(space):
            raise UserError(
                f"critic_leaves: observations must be a Dict or Tuple, whose parts have paths, got "
                f"{in_one_line(space)}; return a Dict of the policy's and the critics' parts, or split the array with "
                "a wrapper (--environment-wrappers)"
            )
        parts = [keys for keys, _ in leaves_of(space) if not (masked and keys == (ACTION_MASK,))]
        known = one_line(", ".join(map(path_of, parts)), _MOST_BYTES)
        for path in self.paths:
            if not any(CriticParts((path,)).has(keys) for keys in parts):
                raise UserError(f"critic_leaves: expected parts of an observation ({known}), got {path!r}")
        if all(map(self.has, parts)):
            raise UserError(
                f"critic_leaves: expected at least one part for the policy, but all parts are for critics ({known}); "
                "leave one of them out of --critic-leaves"
            )
        return True


NO_PARTS = CriticParts()
"""Critics and policies see the same."""


def is_nested(space: spaces.Space[Any]) -> bool:
    """Whether a space has parts with paths."""
    return isinstance(space, spaces.Dict | spaces.Tuple)
