"""Build hook: the long description, which is README.md with links that work outside of the project's folder."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
# Targets that are files of the project: neither a URL nor a place on the same page.
_FILE = r"(?!\w+:|#|//)"
_IMAGE = re.compile(rf"^!\[([^\]]*)\]\({_FILE}([^)\s]+)\)\n*", re.MULTILINE)
_LINK = re.compile(rf"(?<!!)\[([^\]]+)\]\({_FILE}([^)\s]+)\)")
_SOURCE = re.compile(rf"\b(src|srcset|href)=\"{_FILE}([^\"]+)\"")
_PICTURE = re.compile(rf"<picture>.*?</picture>\n*|<img [^>]*src=\"{_FILE}[^>]*>\n*", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_PACKAGES = (
    "\nThe distribution installs the command `actorq` and the packages `actorq`, `actorq_apps`, `learner_service`,\n"
    "`quantizer_service` and `actor_service`.\n"
)
_WITHOUT_LINKS = (
    "\n*This page names files of the project. The source distribution has all of them, and `make docs` builds the\n"
    "documentation from it.*\n"
)


def long_description(readme: str, repository: str | None, version: str) -> str:
    """The README for a package index, where links to files of the project lead nowhere; and what is installed.

    repository: URL of the repository; links then lead to the files of the version's tag there. With None, each link
    becomes its text, images are left out, and a last sentence says where the files are.
    """
    text = _COMMENT.sub("", readme) + _PACKAGES
    if repository is None:
        return _LINK.sub(r"\1", _IMAGE.sub("", _PICTURE.sub("", text))) + _WITHOUT_LINKS
    pages, raw = (f"{repository.rstrip('/')}/{kind}/v{version}" for kind in ("blob", "raw"))
    text = _IMAGE.sub(lambda found: f"![{found[1]}]({raw}/{found[2]})\n\n", text)
    text = _SOURCE.sub(lambda found: f'{found[1]}="{raw}/{found[2]}"', text)
    return _LINK.sub(lambda found: f"[{found[1]}]({pages}/{found[2]})", text)


def main() -> None:
    """Build with the README of this folder; the repository is that of `[project.urls]`, if it is there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    code = (ROOT / "actorq" / "__init__.py").read_text("utf-8")
    found = re.search(r'^__version__ = "(.+)"$', code, re.MULTILINE)
    assert found, "actorq/__init__.py has no __version__"
    text = long_description(
        (ROOT / "README.md").read_text("utf-8"), project.get("urls", {}).get("Repository"), found[1]
    )
    setup(long_description=text, long_description_content_type="text/markdown")


if __name__ == "__main__":
    main()
