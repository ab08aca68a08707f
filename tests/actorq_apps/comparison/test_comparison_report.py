"""The report of a comparison, from invented summaries."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from actorq_apps.comparison import published
from actorq_apps.comparison.plots import draw
from actorq_apps.comparison.report import page, warnings
from actorq_apps.comparison.result import Comparison
from tests.actorq_apps.comparison.comparison_parts import comparison, run

SCHEMES = (("fp32", 50.0), ("int8", 100.0), ("torch", 20.0))


def three_schemes(seeds: int = 2, environment: str = "CartPole-v1") -> Comparison:
    return comparison(
        *(run(scheme, seed, speed=speed + seed) for seed in range(1, seeds + 1) for scheme, speed in SCHEMES),
        environment=environment,
    )


def rendered(of: Comparison, folder: Path) -> str:
    return page(of, draw(of, folder), "actorq compare --seeds 2 <x>", lambda scheduled: f"runs/{scheduled.name}")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a grid: three schemes with each of four values of a setting."""
    runs = [
        run(scheme, seed, cell=cell, speed=speed + seed)
        for seed in (1, 2)
        for cell in ("1", "3", "5", "7")
        for scheme, speed in SCHEMES
    ]
    return rendered(comparison(*runs), tmp_path_factory.mktemp("compared"))


class Tags(HTMLParser):
    """Checks that tags are closed in order, and records the links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "srcset", "href")]
        if tag not in ("meta", "img", "source", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_complete_and_self_contained(text: str) -> None:
    tags = Tags(text)
    assert tags.open == []
    assert [link[:21] for link in tags.links if not link.startswith("runs/")] == ["data:image/png;base64"] * 8
    assert "http" not in re.sub(r"base64,[^\"]*", "", text)
    assert "&lt;x&gt;" in text


def test_the_page_shows_ratios_limits_and_published_figures(text: str) -> None:
    assert re.search(r"<b>int8, dqn\.n-step 7</b> .*fp32 .* 1\.97 .*throughput", text)
    assert "1.5 to 5.41" in text
    assert "1.9 to 3.76" in text
    assert re.search(r" at most 200\b", text)
    assert "prefers-color-scheme: dark" in text


def test_the_page_shows_divergence_and_mismatch_of_on_policy_runs(tmp_path: Path, text: str) -> None:
    queue = {"divergence": 0.0421, "mismatch": 0.0037}
    of = comparison(run("int8", 1, rollout_queue=queue, fidelity={"mean_kl": 1.2e-4}), run("fp32", 1))
    told = rendered(of, tmp_path)
    for head, value in (("divergence", "0.042"), ("mismatch", "0.0037"), ("KL from FP32, nats", "0.00012")):
        assert f"<th>{head}</th>" in told
        assert f"<td>{value}</td>" in told
        assert f"<th>{head}</th>" not in text
    int8, fp32 = (side["runs"][0] for side in of.to_json(lambda scheduled: scheduled.name)["variants"])
    assert [int8[name] for name in ("divergence", "mismatch", "mean_kl")] == [0.0421, 0.0037, 1.2e-4]
    assert fp32["divergence"] is None


def test_the_page_shows_the_drift_of_policies_with_memory(tmp_path: Path, text: str) -> None:
    sequences = [{"steps": 1, "state_drift": 0.001}, {"steps": 64, "state_drift": 0.0123}]
    of = comparison(run("int8", 1, fidelity={"sequences": sequences}), run("fp32", 1))
    told = rendered(of, tmp_path)
    assert "<th>state drift, %</th>" in told
    assert "<td>1.23</td>" in told
    assert "state drift" not in text
    int8, fp32 = (side["runs"][0] for side in of.to_json(lambda scheduled: scheduled.name)["variants"])
    assert (int8["state_drift"], fp32["state_drift"]) == (0.0123, None)


def test_runs_without_an_evaluation_or_a_target_have_a_page_too(tmp_path: Path) -> None:
    of = comparison(run("int8", 1, returns=()), run("fp32", 1, returns=(10.0,)), target=None)
    assert "Environment steps per second" in rendered(of, tmp_path)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """The drawn figures, which stay open until the end of the test."""
    drawn: list[Figure] = []
    with monkeypatch.context() as patched:
        patched.setattr(pyplot, "close", drawn.append)
        yield drawn
    pyplot.close("all")


def test_a_target_that_no_run_reached_has_no_numbers_on_its_axis(tmp_path: Path, figures: list[Figure]) -> None:
    draw(comparison(run("int8", 1, returns=(100.0,)), run("fp32", 1, returns=(100.0,))), tmp_path)
    draw(comparison(run("int8", 1, returns=(470.0, 480.0)), run("fp32", 1)), tmp_path)
    missed, reached = (
        [label.get_text() for label in drawn.axes[0].get_xticklabels()]
        for drawn in figures
        if drawn.axes[0].get_xlabel() == "seconds to the target" and drawn.get_facecolor()[0] == 1
    )
    assert missed == []
    assert "20" in reached


@pytest.mark.parametrize("speed", [0.01, 3e5])
def test_numbers_on_an_axis_differ(speed: float, tmp_path: Path, figures: list[Figure]) -> None:
    draw(comparison(run("int8", 1, speed=speed), run("fp32", 1, speed=speed)), tmp_path)
    for drawn in figures:
        labels = [label.get_text() for label in drawn.axes[0].get_xticklabels()]
        assert len(set(labels)) == len(labels)


def test_numbers_on_an_axis_have_room_beside_each_other(tmp_path: Path, figures: list[Figure]) -> None:
    cells = ("1", "3", "5")
    draw(
        comparison(*(run(scheme, 1, cell=cell, speed=1.5e5) for cell in cells for scheme in ("fp32", "int8"))), tmp_path
    )
    assert figures
    for drawn in figures:
        drawn.canvas.draw()
        for axes in drawn.axes:
            boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
            assert all(left.x1 < right.x0 for left, right in pairwise(boxes)), axes.get_xlabel()


def test_shows_methods_that_differ_only_in_figures_once(tmp_path: Path) -> None:
    def energy(seconds: str) -> dict[str, object]:
        method = f"a model; the first {seconds} s at the mean power of the 1.0 s after them"
        return {"kwh": 1e-6, "co2_kg": 1e-6, "method": method, "per_service": {}}

    told = rendered(comparison(run("int8", 1, energy=energy("2.0")), run("fp32", 1, energy=energy("1.7"))), tmp_path)
    assert told.count("<dd>a model; ") == 1
    assert not re.search(r"<dd>a model; [^<]*\d", told)


def test_schemes_of_installed_packages_are_drawn_too(tmp_path: Path) -> None:
    of = comparison(*(run(scheme, seed) for scheme in ("fp32", "int6", "int7") for seed in (1, 2)))
    assert "int6" in rendered(of, tmp_path)


def test_warns_that_one_seed_gives_no_interval() -> None:
    assert any("no interval" in text for text in warnings(three_schemes(seeds=1)))
    assert any("too narrow" in text for text in warnings(three_schemes(seeds=2)))
    assert not any("interval" in text for text in warnings(three_schemes(seeds=5)))


def test_warns_about_a_missed_target() -> None:
    of = comparison(run("int8", 1, returns=(100.0,)), run("fp32", 1))
    assert any(re.search("target: int8", text) for text in warnings(of))


def test_the_figures_are_json() -> None:
    values = json.loads(json.dumps(three_schemes().to_json(lambda scheduled: f"runs/{scheduled.name}")))
    assert [side["scheme"] for side in values["variants"]] == ["fp32", "int8", "torch"]
    int8 = values["variants"][1]
    assert int8["ratios"][0]["throughput"]["value"] == pytest.approx(1.97, abs=0.005)
    assert int8["runs"][0]["directory"] == "runs/int8-seed1"
    assert int8["runs"][0]["limit"] == "both"
    assert values["machine"]["cpu"] == "Processor 3000"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ("dm_control/cheetah-run", published.Returns(756.0, 876.0)),
        ("CartPole-v0", published.Returns(180.0, 182.0)),
        ("Acrobot-v1", published.Returns(-95.0, -99.0)),
        ("dm_control/cartpole-swingup", None),
        ("HalfCheetah-v5", None),
    ],
)
def test_published_returns_are_of_the_same_task(environment: str, expected: published.Returns | None) -> None:
    assert published.returns_of(environment) == expected


def test_draws_success_rates_if_runs_have_them(tmp_path: Path, figures: list[Figure]) -> None:
    plain = draw(comparison(run("int8", 1)), tmp_path)
    assert "success-steps" not in plain
    figures.clear()
    point = {"wall_clock_s": 15.0, "environment_steps": 1000, "mean_return": -9.0, "success_rate": 0.5}
    runs = [
        run("int8", 1, evaluations=[point, {**point, "environment_steps": 2000, "success_rate": 1.0}]),
        run("fp32", 1),
    ]
    assert "success-steps" in draw(comparison(*runs), tmp_path)
    (axes,) = (drawn.axes[0] for drawn in figures[::2] if drawn.axes[0].get_ylabel() == "success rate")
    assert axes.get_lines()[0].get_ydata()[-1] == 1.0  # type: ignore[index]
