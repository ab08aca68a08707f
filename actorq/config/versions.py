"""The setting of a policy version: "best", "newest" or a number."""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from actorq.domain.policy import BEST, NEWEST


def _checked(choice: str) -> str:
    if choice in (BEST, NEWEST) or (choice.isascii() and choice.isdecimal() and int(choice)):
        return choice.lstrip("0")
    raise ValueError(f"value should be {BEST!r}, {NEWEST!r} or a number greater than 0")


# YAML gives integers for numbers.
VersionChoice = Annotated[str, BeforeValidator(str), AfterValidator(_checked)]
"""A setting: a version of a policy, as actorq.domain.policy.chosen_version takes it."""
