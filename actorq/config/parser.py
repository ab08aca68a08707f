"""The argument parser of all commands: errors in one line, a short and a full help."""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from actorq.config.messages.suggestions import suggestion
from actorq.config.numbers import whole_number
from actorq.errors import UserError

_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
_HELP = ("-h", "--help", "--help-all")


class OneLineParser(argparse.ArgumentParser):
    """Reports a wrong flag in one line. argparse would also print the usage, which is long here.

    before_help: called with the arguments before the help is printed, and whether it is the full help.
    settle: called with the parsed arguments, which it may complete.
    preferred: returns the prefix of flags that suggestions prefer, such as "--sac.".
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(add_help=False, allow_abbrev=False, **options)
        self.before_help: Callable[[argparse.Namespace, bool], None] = lambda *_: None
        self.settle: Callable[[argparse.Namespace], None] = lambda _: None
        self.preferred: Callable[[argparse.Namespace], str] = lambda _: ""
        self._only_in_full_help: dict[argparse.Action, str] = {}
        # Flags of mappings, each with its name in the namespace.
        self._mappings: dict[str, str] = {}
        self.add_argument("-h", "--help", action="store_true", help="show this help and exit")

    def section(self, title: str, description: str) -> Any:
        """The group of flags with this title, created if missing. Appends a further description."""
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

    def accept_entries(self, flag: str, dest: str) -> None:
        """Accept `FLAG.NAME VALUE` for each entry of a mapping.

        The parsed namespace has the texts by NAME as `entries_name(dest)`, if there are any.
        """
        self._mappings[flag] = dest

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse. Raises UserError for an unknown or wrong flag, with the nearest known flag."""
        given = self._plain_booleans(sys.argv[1:] if args is None else args)
        # Help comes before any check, because it needs no positional arguments.
        full = "--help-all" in given and bool(self._only_in_full_help)
        if full or "-h" in given or "--help" in given:
            self._print_help([word for word in given if word not in _HELP], full)
            self.exit()
        given, entries = self._without_entries(given)
        parsed, unknown = self.parse_known_args(given, namespace)
        vars(parsed).update(entries)
        if unknown:
            with suppress(UserError):
                self.settle(parsed)
            self.refuse(unknown[0], parsed)
        self.settle(parsed)
        return parsed

    def refuse(self, word: str, parsed: argparse.Namespace) -> NoReturn:
        """Raise UserError for an unknown argument, with the flag that the user probably means."""
        flags = {flag for action in self._actions for flag in action.option_strings}
        name = f"--{word.partition('=')[0].lstrip('-')}"
        self.error(f"unknown argument {word!r}{suggestion(name, flags, self.preferred(parsed))}")

    def _print_help(self, given: Sequence[str], full: bool) -> None:
        for action in self._actions:
            action.required = False
        try:
            given, _ = self._without_entries(given)
            parsed, _ = self.parse_known_args(given)
            self.settle(parsed)
        except UserError:
            parsed = argparse.Namespace()
        self.before_help(parsed, full)
        is_short = self._only_in_full_help and not full
        self._print_message(self._format_short_help() if is_short else self.format_help(), sys.stdout)

    def format_help(self) -> str:
        """The help with all flags. Groups whose flags are all hidden are left out."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for group in self._action_groups:
            if any(action.help != argparse.SUPPRESS for action in group._group_actions):
                formatter.start_section(group.title)
                formatter.add_text(group.description)
                formatter.add_arguments(group._group_actions)
                formatter.end_section()
        return formatter.format_help()

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(
                action, f"expected one of {', '.join(map(str, action.choices))}, got {value!r}"
            )

    def error(self, message: str) -> NoReturn:
        """Raise UserError with the fault, and with the command that lists the flags."""
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
                if flag in switches and equals:
                    self.error(f"{flag}: expected true or false, got {value!r}")
                plain.append(word)
                continue
            if not equals:
                plain.pop()
            plain.append(flag if value.lower() in _TRUE else f"--no-{flag[2:]}")
        return plain

    def _without_entries(self, given: Sequence[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
        """The arguments without the entries of mappings, and these entries by their name in the namespace."""
        left: list[str] = []
        found: dict[str, dict[str, str]] = {}
        words = iter(given)
        for word in words:
            name, equals, value = word.partition("=")
            mapping = next((flag for flag in self._mappings if name.startswith(f"{flag}.")), None)
            if mapping is None:
                left.append(word)
                continue
            if not equals and ((value := next(words, "")) == "" or value.startswith("--")):
                self.error(f"argument {name}: expected one argument")
            entries = found.setdefault(entries_name(self._mappings[mapping]), {})
            entries[name.removeprefix(f"{mapping}.")] = value
        return left, found

    def _format_short_help(self) -> str:
        """The most important flags, and one line for each section of other flags."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        formatter.start_section("flags")
        shown = [action for action in self._actions if action not in self._only_in_full_help]
        formatter.add_arguments(sorted(shown, key=lambda action: bool(action.option_strings)))
        formatter.end_section()
        further = self._only_in_full_help.items()
        sections = {name for action, name in further if name and action.help != argparse.SUPPRESS}
        if not sections:
            return formatter.format_help()
        width = max(map(len, sections), default=0) + 8
        lines = [
            f"  --{group.title.replace('_', '-')}.*".ljust(width) + _first_clause(group.description or "")
            for group in self._action_groups
            if group.title and group.title.replace("_", "-") in sections
        ]
        return f"{formatter.format_help()}\nsections of further flags, shown by {self.prog} --help-all:\n" + (
            "\n".join(lines) + "\n"
        )


def entries_name(dest: str) -> str:
    """Name in a namespace of the single entries of a mapping; see `OneLineParser.accept_entries`."""
    return f"{dest}.*"


def number(least: float, most: float, expected: str, kind: Callable[[str], float] = float) -> Callable[[str], float]:
    """The parser of a flag with a bounded number. `expected` describes it in errors. kind: float or int."""

    def parse(text: str) -> float:
        try:
            value = whole_number(text) if kind is int else kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return value

    return parse


def _first_clause(text: str) -> str:
    """The first clause, for a help of one line."""
    clause = text.partition(". ")[0].partition(" (")[0].partition(":")[0].rstrip(".")
    return clause if len(clause) <= 76 else clause[:75] + "…"
