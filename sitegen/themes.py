"""Pictures with a light and a dark version: the reader's color scheme chooses."""

import re
from pathlib import Path

_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s#]+)\.png\)")


def both_versions(markdown: str, folder: Path) -> str:
    """The page with NAME-dark added to each PNG picture NAME that has one. folder: folder of the page."""

    def replaced(found: re.Match[str]) -> str:
        text, name = found.groups()
        if not (folder / f"{name}-dark.png").exists():
            return found[0]
        return f"![{text}]({name}.png#only-light) ![{text}]({name}-dark.png#only-dark)"

    return _IMAGE.sub(replaced, markdown)
