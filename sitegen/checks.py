"""Finds faults of pages that mkdocs does not find: broken code, typed figures, missing pictures.

A fault makes a strict build fail.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

# `<!-- not run: REASON -->` above a block says why no test runs it.
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_NO_PROSE = re.compile(r"<!--.*?-->|`[^`]*`|\([^)\s]*\)")
_FIGURE = re.compile(r"(?<![\w-])\d[\d.,]*")
# Pictures of HTML in a page. mkdocs itself checks the pictures of Markdown.
_PICTURE = re.compile(r"<(?:img|source|object)\b[^>]*?\s(?:src|srcset|data)=\"([^\"#?]+)")
_READERS: dict[str, Callable[[str], Any]] = {
    "python": lambda code: compile(code, "block", "exec"),
    "yaml": yaml.safe_load,
    "toml": tomllib.loads,
    "json": json.loads,
}


@dataclass(frozen=True)
class Block:
    """A code block: its page, its line there, its language, and why no test runs it."""

    page: str
    line: int
    language: str
    code: str
    reason: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(markdown: str, page: str) -> Iterator[Block]:
    """The code blocks of a page."""
    for found in _BLOCK.finditer(markdown):
        line = markdown.count("\n", 0, found.start("code"))
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
        yield Block(page, line, found["language"], code, found["reason"] or "")


def typed_figures(markdown: str) -> list[str]:
    """The numbers in the prose of a page. A benchmark page must have none, because its numbers are generated."""
    return _FIGURE.findall(_NO_PROSE.sub("", markdown))


def faults(markdown: str, path: str, folder: Path) -> Iterator[str]:
    """One line for each fault of a page. path: of the page, relative to docs. folder: folder of the page."""
    found = list(blocks_of(markdown, path))
    if markdown.count("```") != 2 * len(found):
        yield f"{path}: expected each code block to end with ``` in a separate line"
    for block in found:
        if block.language in _READERS and not block.reason:
            try:
                _READERS[block.language](block.code)
            except (SyntaxError, ValueError, yaml.YAMLError) as error:
                first = str(error).partition("\n")[0]
                yield f"{block}: this {block.language} cannot be read: {first}. Correct the block"
    if path.startswith("benchmarks/") and (typed := typed_figures(markdown)):
        yield f"{path}: expected generated figures only, got {', '.join(typed)}: take them from a result with a table"
    for picture in _PICTURE.findall(markdown):
        if "://" not in picture and not (folder / picture).exists():
            yield f"{path}: picture {picture} is missing: draw it, or correct its name"
