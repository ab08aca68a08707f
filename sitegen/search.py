"""Ranks pages in the search: manuals before explanations. Also makes each setting searchable by its name."""

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from sitegen.configuration import all_leaves

# Boost of a page, by the longest matching prefix of its path. Others have 1.
_BOOSTS = {
    "get-started.md": 3.0,
    "faq.md": 2.0,
    "tutorials/": 2.0,
    "how-to/": 2.5,
    "concepts/": 1.5,
    "reference/": 1.5,
    "reference/command-line.md": 0.7,
    "benchmarks/": 0.3,
    "development/": 0.5,
    "development/contributing.md": 1.5,
    "development/changelog.md": 0.1,
    "decisions/": 0.05,
}
_SETTINGS = 2.0
_CONFIGURATION = "reference/configuration.html"
# Search words that a page does not contain itself.
_WORDS = {
    "concepts/algorithms.md": ("PPO",),
    "concepts/schemes.md": ("scheme",),
    "development/contributing.md": ("contribute",),
    "get-started.md": ("install", "train"),
    "how-to/python.md": ("callback",),
    "how-to/recover.md": ("resume",),
    "reference/exit-codes.md": ("exit code",),
    "how-to/sweep.md": ("sweep",),
    "tutorials/environment.md": ("custom",),
}


def settings_of(path: str) -> dict[str, Any]:
    """The metadata of a page for the search. path: of its source, relative to docs."""
    beginnings = [each for each in _BOOSTS if path.startswith(each)]
    boost = _BOOSTS[max(beginnings, key=len)] if beginnings else 1.0
    return {"search": {"boost": boost}, "tags": list(_WORDS.get(path, ()))}


def add_settings(file: Path) -> None:
    """Add an entry for each setting to the index of the search, which has only whole tables."""
    index = json.loads(file.read_text(encoding="utf-8"))
    index["docs"] += _settings()
    file.write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")


def _settings() -> Iterator[dict[str, Any]]:
    for leaf in all_leaves():
        key = ".".join(leaf.path)
        names = f"<code>{leaf.flag}</code> <code>{leaf.variable}</code>"
        text = f"<p>{names} {escape(leaf.field.description or '')}</p>"
        yield {"location": f"{_CONFIGURATION}#{key}", "title": key, "text": text, "boost": _SETTINGS}
