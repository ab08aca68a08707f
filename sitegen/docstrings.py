"""Formats the parameters that docstrings explain as lists, for the reference of the Python client."""

import re
from typing import Any

import griffe

# A line such as "period_s: seconds between two statuses." Continuation lines are indented.
_NAMES = re.compile(r"^(\w+(?:, \w+)*): (?=\S)")


class ExplainedNames(griffe.Extension):
    """An extension of griffe, the parser of docstrings for mkdocstrings."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    """The docstring with each explained name as an item of a Markdown list."""
    lines: list[str] = []
    in_list = False
    for line in text.split("\n"):
        item, found = _NAMES.subn(lambda names: f"- `{names[1].replace(', ', '`, `')}`: ", line)
        if found and not in_list and lines and lines[-1]:
            lines.append("")
        in_list = bool(found) or (in_list and line.startswith(" "))
        lines.append(item)
    return "\n".join(lines)
