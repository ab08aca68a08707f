"""Writes the generated parts of the README: `python -m sitegen.readme`.

The site generates parts when it is built. The README is read without a build. It therefore contains its parts, between
`<!-- generated: NAME -->` and `<!-- end -->`.
"""

import re
from pathlib import Path

from sitegen import parts

README = Path(__file__).parents[1] / "README.md"
_PART = re.compile(r"^<!-- generated: (.+?) -->\n.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)


def filled(text: str) -> str:
    """The text with each part generated from the present results. Raises KeyError for an unknown part."""
    return _PART.sub(lambda found: f"<!-- generated: {found[1]} -->\n\n{parts.part(found[1])}\n\n<!-- end -->", text)


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
