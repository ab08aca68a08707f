"""Writes the generated parts of the README: `python -m sitegen.readme`.

The site fills its pages when it is built. The README is read as it is, so its parts are stored in it, between
`<!-- generated: NAME -->` and `<!-- end -->`.
"""

import re
from pathlib import Path

from sitegen import parts

README = Path(__file__).parents[1] / "README.md"
_PART = re.compile(r"^<!-- generated: (.+?) -->\n.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)


def filled(text: str) -> str:
    """The text with each part as the results of today make it. Raises KeyError for a part that there is not."""
    return _PART.sub(lambda found: f"<!-- generated: {found[1]} -->\n\n{parts.part(found[1])}\n\n<!-- end -->", text)


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
