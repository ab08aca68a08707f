"""The pictures of the first screen: up to date, readable on a phone, and complete without other servers."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.text import Text

from actorq_apps.cli.display.panel import figures
from sitegen.pictures import terminal
from sitegen.pictures.__main__ import pictures
from sitegen.pictures.recording import COLUMNS, Screen, lines_of, picture, record, thinned, without_start
from sitegen.pictures.svg import IMAGES
from sitegen.tables.first_screen import tasks_of_gain
from tests.builders.run_status import run_status
from tests.documentation.code_blocks import ROOT

SVG = "{http://www.w3.org/2000/svg}"
PHONE, MARGINS = 390, 32
MADE = dict(pictures())
PANEL = (IMAGES / "panel.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", MADE)
def test_a_picture_is_up_to_date(name: str) -> None:
    stored = (IMAGES / name).read_text(encoding="utf-8")
    assert stored == MADE[name], "python -m sitegen.pictures writes it"


@pytest.mark.parametrize("name", MADE)
def test_a_picture_is_readable_on_a_phone(name: str) -> None:
    root = ElementTree.fromstring(MADE[name])
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    texts = list(root.iter(f"{SVG}text"))
    assert texts
    for text in texts:
        size, x = float(text.attrib["font-size"]), float(text.attrib["x"])
        assert size * (PHONE - MARGINS) / width >= 11, text.text
        # The width of letters in the widest fonts is about 0.58 of their size.
        room = {"start": width - x, "middle": 2 * min(x, width - x), "end": x}[text.attrib.get("text-anchor", "start")]
        assert 0.58 * size * len(text.text or "") <= room + 8, text.text
        assert float(text.attrib["y"]) < height


@pytest.mark.parametrize("name", [*MADE, "panel.svg"])
def test_a_picture_needs_no_other_server(name: str) -> None:
    content = (IMAGES / name).read_text(encoding="utf-8")
    assert set(re.findall(r"\w+://[^\"' )]+", content)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"href|@import|@font-face|<script", content)


def test_both_color_schemes_have_the_same_text_and_different_colors() -> None:
    for name in ("gain", "loop"):
        light, dark = (MADE[f"{name}-{scheme}.svg"] for scheme in ("light", "dark"))
        words = [re.sub(r"#[0-9a-f]{6}", "", each) for each in (light, dark)]
        assert words[0] == words[1]
        assert not set(re.findall(r"#[0-9a-f]{6}", light)) & set(re.findall(r"#[0-9a-f]{6}", dark))


def test_the_picture_of_the_gain_has_each_scheme_with_its_gain() -> None:
    texts = [text.text or "" for text in ElementTree.fromstring(MADE["gain-light.svg"]).iter(f"{SVG}text")]
    tasks = [task for task in tasks_of_gain() if task["algorithm"] == "dqn"]
    assert len(tasks) == 2
    for task in tasks:
        start = texts.index(f"3 x {task['width']} units")
        for variant in task["variants"]:
            for ratio in variant["ratios"]:
                if ratio["baseline"] == "torch" and variant["name"] in ("int8", "int4"):
                    value = texts[texts.index(variant["name"], start) + 1]
                    assert float(value) == pytest.approx(ratio["time_to_target"]["value"], rel=0.05)


def test_pages_show_each_picture_in_both_color_schemes() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    home = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    concept = (ROOT / "docs" / "concepts" / "how-it-works.md").read_text(encoding="utf-8")
    for name in ("gain", "loop"):
        assert f'(prefers-color-scheme: dark)" srcset="docs/images/{name}-dark.svg"' in readme
        assert f'<img src="docs/images/{name}-light.svg"' in readme
        page = home if name == "gain" else concept
        assert f"images/{name}-light.svg#only-light" in page
        assert f"images/{name}-dark.svg#only-dark" in page


def test_the_recording_is_small_and_respects_reduced_motion() -> None:
    assert len(PANEL.encode()) < 300_000
    assert "@media (prefers-reduced-motion:reduce){g[class^=t]{animation:none}}" in PANEL


def test_the_recording_has_each_figure_of_todays_panel() -> None:
    last = [group for group in ElementTree.fromstring(PANEL).iter(f"{SVG}g") if "last" in group.get("class", "")]
    words = " ".join(text.text or "" for group in last for text in group.iter(f"{SVG}text"))
    # The name of the error depends on the algorithm.
    names = [figure.name for figure in figures(run_status()) if figure.name != "policy error"]
    assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", words)] == []
    assert "solved" in words


def test_a_redrawn_panel_replaces_the_previous_one_and_keeps_printed_lines() -> None:
    redraw = "\r\x1b[2K\x1b[1A\x1b[2K"
    written = f"\x1b[?25lobservations: image\r\n╭─ 1 ─╮\r\n{redraw}╭─ \x1b[1m2\x1b[0m ─╮\r\n\x1b[?25hsolved\r\n"
    assert [line.plain for line in lines_of(written)] == ["observations: image", "╭─ 2 ─╮", "solved"]


def test_a_line_that_is_too_long_continues_on_the_next() -> None:
    assert [len(line.plain) for line in lines_of("x" * (COLUMNS + 5))] == [COLUMNS, 5]


def test_a_command_on_a_terminal_is_recorded(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.stdout.isatty(), os.get_terminal_size().columns, flush=True); print('end')"
    screens = record([sys.executable, "-c", code], tmp_path)
    assert [line.plain for line in screens[-1].lines] == [f"True {COLUMNS}", "end"]


def screen(at_s: float, *lines: str) -> Screen:
    return Screen(at_s, tuple(Text(line) for line in lines))


def test_thinning_keeps_one_screen_for_each_period_and_the_last() -> None:
    screens = [screen(at_s, str(at_s)) for at_s in (0.1, 0.2, 0.6, 1.1)]
    kept = thinned(screens, period_s=0.5)
    assert [(each.at_s, each.lines[0].plain) for each in kept] == [(0.0, "0.2"), (0.5, "0.6"), (1.1, "1.1")]


def test_screens_before_the_first_whole_panel_are_removed() -> None:
    screens = [screen(0, "starting"), screen(1, *("panel",) * 20), screen(2, "end")]
    assert without_start(screens) == screens[1:]
    assert without_start(screens[:1]) == screens[:1]


def test_a_line_is_drawn_once_while_it_does_not_change() -> None:
    content = picture("actorq train", [screen(0, "same", "a"), screen(1, "same", "b"), screen(2, "same", "b")])
    assert content.count(">same<") == content.count(">a<") == content.count(">b<") == 1
    groups = {
        text.text: group.get("class")
        for group in ElementTree.fromstring(content).iter(f"{SVG}g")
        for text in group.findall(f"{SVG}text")
    }
    # A line that never changes needs no animation. Lines of the last screen are visible without one.
    assert groups["same"] == "last"
    assert groups["a"] == "t0"
    assert groups["b"] == "t1 last"
    assert "@keyframes t0{0%{visibility:visible}12.50%{visibility:hidden}}" in content
    assert "@keyframes t1{0%{visibility:hidden}12.50%{visibility:visible}}" in content


def test_text_and_shapes_stand_in_their_columns() -> None:
    drawn = terminal.row(Text.assemble("│ ", ("ab<", "bold green"), " █"))
    assert f'<path d="M{terminal.CELL / 2:g} 0V{terminal.LINE:g}"' in drawn
    assert f'<text x="{2 * terminal.CELL:g}"' in drawn
    assert 'font-weight="700">ab&lt;</text>' in drawn
    assert f'<rect x="{6 * terminal.CELL:g}" y="0" width="{terminal.CELL:g}" height="{terminal.LINE:g}"' in drawn
