"""Hooks of mkdocs: put generated parts into pages, and list folders in the navigation.

A page requests a part with a comment in a separate line, `<!-- generated: NAME -->`. The part gets the indent of the
comment. In the navigation of mkdocs.yml, `folder/*` stands for all pages of a folder without their own entry.
"""

import logging
import re
from fnmatch import fnmatchcase
from pathlib import Path
from textwrap import indent
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from sitegen import cards, checks, parts, search, themes

# A warning of this logger makes a strict build fail.
_log = logging.getLogger("mkdocs.hooks.sitegen")
_ROOT = Path(__file__).parents[1]
_PART = re.compile(r"^( *)<!-- generated: (.+?) -->$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!\w+:|#)([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace patterns in the navigation by the matching pages."""
    pages = sorted(file.src_uri for file in files.documentation_pages())
    named = set(_leaves(config.nav))
    config.nav = _expanded(config.nav, [page for page in pages if page not in named])
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the generated parts, and show links to files outside of the documentation as plain text."""
    filled = _PART.sub(lambda found: indent(parts.part(found[2]), found[1]), markdown)
    folder = Path(config.docs_dir, page.file.src_uri).parent
    for fault in checks.faults(markdown, page.file.src_uri, folder):
        _log.warning(fault)

    def unlinked(found: re.Match[str]) -> str:
        target = (folder / found[2].partition("#")[0]).resolve()
        outside = target.exists() and not target.is_relative_to(config.docs_dir)
        return found[1] if outside else found[0]

    page.meta.update(search.settings_of(page.file.src_uri))
    return themes.both_versions(_LINK.sub(unlinked, filled), folder)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Prepare tables for narrow screens, except those of figures."""
    has_figures = page.file.src_uri.startswith("benchmarks/") and not page.is_index
    return html if has_figures else cards.labelled(html)


# After the plugin search has written the index, and before the plugin offline copies it.
@event_priority(-90)
def on_post_build(config: MkDocsConfig) -> None:
    """Make each setting searchable by its name."""
    search.add_settings(Path(config.site_dir, "search", "search_index.json"))


def _leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    members = nav.values() if isinstance(nav, dict) else nav or []
    return [leaf for member in members for leaf in _leaves(member)]


def _expanded(nav: Any, others: list[str]) -> Any:
    """The navigation with pages in place of patterns."""
    if isinstance(nav, str):
        return nav
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            found.append({title: _expanded(below, others) for title, below in entry.items()})
        else:
            found += [page for page in others if fnmatchcase(page, entry)] if "*" in entry else [entry]
    return found
