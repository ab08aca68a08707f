"""The code blocks of README and documentation, for tests that run them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sitegen.checks import Block, blocks_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_INDENTED = re.compile(r"(?:^ {4}\S.*\n)+", re.MULTILINE)


def blocks(language: str = "", page: str = "") -> list[Block]:
    """All blocks, or those of one language or page."""
    texts = ((file.read_text(encoding="utf-8"), str(file.relative_to(ROOT))) for file in PAGES)
    found = [block for text, name in texts for block in blocks_of(text, name)]
    return [each for each in found if language in ("", each.language) and page in ("", each.page)]


def run_python(page: str, addresses: dict[str, Any]) -> None:
    """Run the Python of a page against a run, with the addresses of its services instead of the printed ones."""
    real = {"50051": addresses["learner"], "50052": addresses["quantizer"]}
    for block in blocks("python", page):
        code = re.sub(
            r"127\.0\.0\.1:(\d+)", lambda found: real.get(found[1], addresses["actors"]["actor-0"]), block.code
        )
        exec(compile(code, str(block), "exec"), {"__name__": "example"})


def shell_lines() -> Iterator[tuple[str, str]]:
    """The commands of all shell blocks with their positions. Those of README are indented."""
    for block in blocks("sh"):
        if not block.reason:
            for line in block.code.replace("\\\n", "").splitlines():
                yield str(block), line
    for found in _INDENTED.findall(PAGES[0].read_text(encoding="utf-8")):
        for line in found.splitlines():
            if re.match(r" +(actorq|make|kubectl|pip|python) ", line):
                yield "README.md", line
