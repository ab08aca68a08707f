"""Makes the citation of this software and its methods, from CITATION.cff."""

from pathlib import Path
from typing import Any

import yaml

_FILE = Path(__file__).parents[2] / "CITATION.cff"


def entries() -> str:
    """The software and the articles of its methods, as BibTeX."""
    whole = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    software = {
        "title": f"{{{whole['title']}}}",
        "author": _authors(whole["authors"]),
        "version": whole["version"],
        "note": f"License {whole['license']}",
    }
    parts = [_entry("software", "actorq", software), *map(_article, whole["references"])]
    return "```text\n" + "\n\n".join(parts) + "\n```"


def _article(method: dict[str, Any]) -> str:
    kind, place = ("article", "journal") if "journal" in method else ("inproceedings", "booktitle")
    values = {
        "title": f"{{{method['title']}}}",
        "author": _authors(method["authors"]),
        place: method.get("journal") or method["collection-title"],
        "year": method["year"],
        "note": method["identifiers"][0]["value"],
    }
    return _entry(kind, method["title"].partition(":")[0].lower(), values)


def _authors(people: list[dict[str, str]]) -> str:
    # BibTeX does not split a name in braces.
    return " and\n            ".join(
        f"{{{each['name']}}}" if "name" in each else f"{each['family-names']}, {each['given-names']}" for each in people
    )


def _entry(kind: str, key: str, values: dict[str, Any]) -> str:
    lines = "\n".join(f"  {name} = {{{value}}}," for name, value in values.items())
    return f"@{kind}{{{key},\n{lines}\n}}"
