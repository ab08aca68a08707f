"""The pages of the site fit the window of a desktop and of a phone."""

import re
from html import unescape
from pathlib import Path

import pytest

from sitegen import measure_pages
from sitegen.cards import labelled
from sitegen.themes import both_versions

# Number of characters that fit the text column in a window of 1,440 pixels.
MOST_CHARACTERS = 104
DESKTOP, PHONE = 1440, 390
_BLOCK = re.compile(r"<pre\b[^>]*>(.*?)</pre>", re.DOTALL)


def long_lines(html: str) -> list[str]:
    """The lines of a page's code blocks that are too long."""
    blocks = [unescape(re.sub(r"<[^>]+>", "", block)) for block in _BLOCK.findall(html)]
    return [line for block in blocks for line in block.splitlines() if len(line) > MOST_CHARACTERS]


def test_no_line_of_code_is_too_long(site_folder: Path) -> None:
    found = {file.name: long_lines(file.read_text("utf-8")) for file in site_folder.rglob("*.html")}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_long_line_is_found_in_colored_code() -> None:
    line = "x" * MOST_CHARACTERS
    html = f'<pre id="a"><span></span><code><span class="n">{line}</span>&lt;\n<span>{line}</span>\n</code></pre>'
    assert long_lines(html) == [f"{line}<"]


def measured(site: Path) -> list[measure_pages.Layout]:
    program = measure_pages.browser()
    if program is None:
        pytest.skip("no Chromium is installed, so no page is measured")
    return measure_pages.measure(site, (DESKTOP, PHONE), program)


@pytest.mark.timeout(400)
def test_no_code_overflows_a_desktop_and_no_page_scrolls_sideways(site_folder: Path) -> None:
    layouts = measured(site_folder)
    assert sum(each.blocks for each in layouts) > 400
    assert [each for each in layouts if each.sideways] == []
    assert [each for each in layouts if each.width == DESKTOP and each.overflowing] == []


@pytest.mark.timeout(400)
def test_overflowing_blocks_are_found(tmp_path: Path) -> None:
    wide = "<pre style='overflow: auto'><code style='display: block; overflow: auto'>{}</code></pre>"
    (tmp_path / "wide.html").write_text(wide.format("first\n" + "x" * 400), encoding="utf-8")
    (tmp_path / "page.html").write_text("<div style='width: 2000px'>x</div>", encoding="utf-8")
    (tmp_path / "short.html").write_text(wide.format("x"), encoding="utf-8")
    by_page = {each.page: each for each in measured(tmp_path) if each.width == DESKTOP}
    assert by_page["wide.html"].overflowing == ("first",)
    assert by_page["page.html"].sideways
    assert (by_page["short.html"].overflowing, by_page["short.html"].sideways) == ((), False)


def test_cells_have_the_names_of_their_columns() -> None:
    rows = "<tr>\n<td><code>a</code></td>\n<td>1</td>\n</tr>"
    table = (
        f"<table>\n<thead>\n<tr>\n<th>setting</th>\n<th>a &amp; <code>b</code></th>\n</tr>\n</thead>\n{rows}\n</table>"
    )
    assert labelled(table).count("data-label") == 1
    assert '<td data-label="a &amp; b">1</td>' in labelled(table)


def test_a_picture_with_a_dark_version_is_shown_in_both(tmp_path: Path) -> None:
    (tmp_path / "a-dark.png").touch()
    page = "![A plot](a.png)\n\n![Other](b.png)"
    assert both_versions(page, tmp_path) == (
        "![A plot](a.png#only-light) ![A plot](a-dark.png#only-dark)\n\n![Other](b.png)"
    )
