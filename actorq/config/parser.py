"""The argument parser of all commands: errors in one line, a short and a full help."""

import argparse
import difflib
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from actorq.errors import UserError

_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


class OneLineParser(argparse.ArgumentParser):
    """Reports a wrong flag in one line. argparse would print the usage, which is long here."""

    def __init__(self, **options: Any) -> None:
        super().__init__(add_help=False, allow_abbrev=False, **options)
        self._only_in_full_help: dict[argparse.Action, str] = {}
        self.add_argument("-h", "--help", action="store_true", help="show this help and exit")

    def section(self, title: str, description: str) -> Any:
        """The group of flags with that title, created if missing. A further description is appended."""
        for group in self._action_groups:
            if group.title == title:
                group.description = f"{group.description} {description}"
                return group
        return self.add_argument_group(title, description)

    def only_in_full_help(self, action: argparse.Action, section: str) -> None:
        """Show a flag in `--help-all` only. `--help` names its section, if `section` is not empty."""
        if not self._only_in_full_help:
            self.add_argument("--help-all", action="store_true", help=argparse.SUPPRESS)
        self._only_in_full_help[action] = section

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse. Raises UserError for an unknown or wrong flag, with the nearest known flag."""
        given = self._plain_booleans(sys.argv[1:] if args is None else args)
        # Help comes before any check, because it needs no positional arguments.
        full = "--help-all" in given and self._only_in_full_help
        if full or "-h" in given or "--help" in given:
            is_short = self._only_in_full_help and not full
            self._print_message(self._format_short_help() if is_short else self.format_help(), sys.stdout)
            self.exit()
        parsed, unknown = self.parse_known_args(given, namespace)
        if unknown:
            flags = {flag for action in self._actions for flag in action.option_strings}
            active = f"--{getattr(parsed, 'algorithm', '')}."
            self.error(f"unknown argument {unknown[0]!r}{suggestion(unknown[0].partition('=')[0], flags, active)}")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Raise UserError with the fault and where to find the list of flags."""
        raise UserError(f"{' '.join(message.split())}; see {self.prog} --help")

    def _plain_booleans(self, given: Sequence[str]) -> list[str]:
        """Replace `--flag true`, `--flag=false` and the like by `--flag` and `--no-flag`."""
        switches = {
            flag
            for action in self._actions
            if isinstance(action, argparse.BooleanOptionalAction)
            for flag in action.option_strings
            if not flag.startswith("--no-")
        }
        plain: list[str] = []
        for word in given:
            flag, equals, value = word.partition("=")
            if not equals:
                flag, value = (plain[-1] if plain else ""), word
            if flag not in switches or value.lower() not in (*_TRUE, *_FALSE):
                plain.append(word)
                continue
            if not equals:
                plain.pop()
            plain.append(flag if value.lower() in _TRUE else f"--no-{flag[2:]}")
        return plain

    def _format_short_help(self) -> str:
        """The most important flags, and one line for each section of the others."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        formatter.start_section("flags")
        formatter.add_arguments(action for action in self._actions if action not in self._only_in_full_help)
        formatter.end_section()
        sections = {name for name in self._only_in_full_help.values() if name}
        width = max(map(len, sections), default=0) + 8
        lines = [
            f"  --{group.title.replace('_', '-')}.*".ljust(width) + _first_clause(group.description or "")
            for group in self._action_groups
            if group.title and group.title.replace("_", "-") in sections
        ]
        return f"{formatter.format_help()}\nsections of further flags, shown by {self.prog} --help-all:\n" + (
            "\n".join(lines) + "\n"
        )


def number(least: float, most: float, expected: str, kind: Callable[[str], float] = float) -> Callable[[str], float]:
    """The type of a flag: a number within bounds. `expected` describes it in errors. kind: float, or int."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return value

    return parse


def suggestion(name: str, known: Iterable[str], preferred: str = "") -> str:
    """The nearest known name as a clause of an error, or empty. Names that begin with `preferred` come first."""
    ordered = sorted(known, key=lambda each: (not (preferred and each.startswith(preferred)), len(each), each))
    bare = name.removeprefix("--")
    beginning = [each for each in ordered if len(bare) > 2 and each.startswith(name)]
    ending = [each for each in ordered if bare and each.endswith(f".{bare}")]
    near = difflib.get_close_matches(name, ordered, n=1, cutoff=0.6)
    found = next(iter((*ending, *beginning, *near)), "")
    return f"; did you mean {found!r}?" if found else ""


def _first_clause(text: str) -> str:
    """The first clause, for a help of one line."""
    clause = text.partition(". ")[0].partition(" (")[0].partition(":")[0].rstrip(".")
    return clause if len(clause) <= 76 else clause[:75] + "…"
