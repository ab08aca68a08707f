"""The code blocks of README and documentation, for tests that run them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A page says with `<!-- not run: REASON -->` above a block why no test runs it.
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_INDENTED = re.compile(r"(?:^ {4}\S.*\n)+", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block: its page relative to the project, its line there, its language, and why no test runs it."""

    page: str
    line: int
    language: str
    code: str
    reason: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(language: str = "", page: str = "") -> list[Block]:
    """All blocks, or those of one language or page."""
    found = [block for file in PAGES for block in _of(file)]
    return [each for each in found if language in ("", each.language) and page in ("", each.page)]


def run_python(page: str, addresses: dict[str, Any]) -> None:
    """Run the Python of a page against a run, whose services have these addresses in place of the printed ones."""
    real = {"50051": addresses["learner"], "50052": addresses["quantizer"]}
    for block in blocks("python", page):
        code = re.sub(
            r"127\.0\.0\.1:(\d+)", lambda found: real.get(found[1], addresses["actors"]["actor-0"]), block.code
        )
        exec(compile(code, str(block), "exec"), {"__name__": "example"})


def shell_lines() -> Iterator[tuple[str, str]]:
    """The commands of all shell blocks, with where they are; those of README are indented."""
    for block in blocks("sh"):
        if not block.reason:
            for line in block.code.replace("\\\n", " ").splitlines():
                yield str(block), line
    for found in _INDENTED.findall(PAGES[0].read_text(encoding="utf-8")):
        for line in found.splitlines():
            if re.match(r" +(actorq|make|kubectl|pip|python) ", line):
                yield "README.md", line


def _of(file: Path) -> Iterator[Block]:
    text = file.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("code"))
        page = str(file.relative_to(ROOT))
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
        yield Block(page, line, found["language"], code, found["reason"] or "")
