"""The pictures of the documentation are those of the stored results, in a light and a dark version."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from actorq_apps.comparison.plots import THEMES
from benchmarks.drawing import WIDTH, legend, themed
from benchmarks.pictures import IMAGES, PICTURES, Picture


def source_of(file: Path) -> str:
    with Image.open(file) as image:
        return str(image.info["Source"])


def test_every_plot_of_the_documentation_is_drawn_by_the_script() -> None:
    drawn = {themed(IMAGES / f"{name}.png", theme) for name in PICTURES for theme in THEMES}
    assert set(IMAGES.glob("*.png")) == drawn


@pytest.mark.parametrize("name", PICTURES)
def test_a_plot_shows_its_stored_results(name: str) -> None:
    for theme in THEMES:
        file = themed(IMAGES / f"{name}.png", theme)
        assert source_of(file) == PICTURES[name].source, f"run python -m benchmarks.pictures {name}"


@pytest.mark.parametrize("name", ["cartpole", "fidelity", "speedup_steps", "fanout", "rlx2_profile"])
def test_both_versions_are_drawn(tmp_path: Path, name: str) -> None:
    file = tmp_path / f"{name}.png"
    PICTURES[name].draw(file)
    grounds = {}
    for theme in THEMES:
        assert source_of(themed(file, theme)) == PICTURES[name].source
        with Image.open(themed(file, theme)) as image:
            grounds[theme] = image.convert("RGB").getpixel((0, 0))
            # As wide as text of this size stays readable on a phone.
            assert image.width == 720
    assert grounds == {"light": (255, 255, 255), "dark": (0x16, 0x19, 0x1D)}


def test_the_source_of_a_plot_changes_with_its_results() -> None:
    paint = PICTURES["peers"].paint
    assert Picture(("peers",), paint).source != Picture(("peers_ppo",), paint).source


def test_a_wide_legend_has_fewer_columns() -> None:
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    axes = figure.subplots()
    for number in range(4):
        axes.plot([], [], label=f"a library with a long name, {number}")
    legend(figure, axes)
    [shown] = figure.legends
    assert shown.get_window_extent().width <= figure.bbox.width
