"""How to cite this software and its method: from CITATION.cff."""

from pathlib import Path
from typing import Any

import yaml

_FILE = Path(__file__).parents[2] / "CITATION.cff"


def entries() -> str:
    """Both entries in the format of BibTeX."""
    whole = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    (method,) = whole["references"]
    identifier = method["identifiers"][0]["value"]
    software = {
        "title": f"{{{whole['title']}}}",
        "author": _authors(whole["authors"]),
        "version": whole["version"],
        "note": f"License {whole['license']}",
    }
    article = {
        "title": f"{{{method['title']}}}",
        "author": _authors(method["authors"]),
        "journal": method["journal"],
        "year": method["year"],
        "note": identifier,
    }
    return f"```text\n{_entry('software', 'actorq', software)}\n\n{_entry('article', 'quarl', article)}\n```"


def _authors(people: list[dict[str, str]]) -> str:
    # A name in braces is not taken apart.
    return " and ".join(
        f"{{{each['name']}}}" if "name" in each else f"{each['family-names']}, {each['given-names']}" for each in people
    )


def _entry(kind: str, key: str, values: dict[str, Any]) -> str:
    lines = "\n".join(f"  {name} = {{{value}}}," for name, value in values.items())
    return f"@{kind}{{{key},\n{lines}\n}}"
