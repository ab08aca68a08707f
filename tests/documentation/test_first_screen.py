"""README, home page and the page about choosing a scheme agree with the stored results."""

import re
from statistics import median
from typing import Any

import pytest

from sitegen import parts, readme, results
from sitegen.tables import first_screen, scheme_choice
from tests.documentation.code_blocks import ROOT

README = readme.README.read_text(encoding="utf-8")
HOME = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
CHOOSING = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
# The minimum version of Python, the confidence of the intervals, and the width from which `int8` gains much.
NUMBERS_BY_HAND = {"3.11", "95%", "512"}


def test_the_generated_parts_of_the_readme_are_up_to_date() -> None:
    assert readme.filled(README) == README, "python -m sitegen.readme writes them"
    assert README.count("<!-- generated: ") == README.count("<!-- end -->") == 4


def test_an_outdated_part_is_replaced_and_the_text_around_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "part", lambda name: f"new {name}")
    text = "before\n<!-- generated: x -->\nold\n<!-- end -->\nafter\n"
    assert readme.filled(text) == "before\n<!-- generated: x -->\n\nnew x\n\n<!-- end -->\nafter\n"


def test_the_home_page_has_the_parts_of_the_readme() -> None:
    names = re.findall(r"^<!-- generated: (.+) -->$", README, re.MULTILINE)
    assert [name for name in names if f"\n<!-- generated: {name} -->\n" not in HOME] == []


def test_no_result_is_typed_by_hand() -> None:
    for page in (README, HOME):
        prose = re.sub(r"<!-- generated: .*?<!-- end -->", "", page, flags=re.DOTALL)
        prose = re.sub(r"^ {4}\S.*$|^---\n.*?^---$", "", prose, flags=re.MULTILINE | re.DOTALL)
        prose = re.sub(r"<[^>]*>|`[^`]*`|\]\([^)]*\)(\{[^}]*\})?", "", prose)
        assert set(re.findall(r"(?<![\w-])\d[\d.,]*\d%?|(?<![\w-])\d%?", prose)) <= NUMBERS_BY_HAND


def test_each_benchmark_in_the_readme_is_the_command_of_a_stored_result() -> None:
    found = re.findall(r"^\| `(\w+)\.json` \| `(python -m [^`]+)` \|", README, re.MULTILINE)
    assert {name for name, _ in found} >= {"actorq", "actorq_balance", "peers", "peers_ppo", "peers_off_policy"}
    assert {command for _, command in found} == set(re.findall(r"python -m benchmarks[^`\n]*", README))
    for name, command in found:
        stored = results.load(name)["command"].split()
        assert stored[2].rpartition(".")[2] == command.split()[2].rpartition(".")[2]
        # All flags except those that name files.
        assert [word for word in command.split()[3:] if word not in stored] == []
        assert command == results.command(name)


@pytest.mark.parametrize(
    ("name", "module"),
    [("peers", "benchmarks.libraries.peers"), ("structured_peers", "benchmarks.environments.peers")],
)
def test_results_of_two_modules_of_one_name_keep_their_module(name: str, module: str) -> None:
    assert results.command(name).split()[2] == module


def rows(part: str) -> dict[str, list[str]]:
    """The cells of a table by the first cell of their row."""
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in part.splitlines()[2:]]
    return {first: rest for first, *rest in cells}


def ratio(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


def comparison(int8_over_fp32: dict[str, float]) -> dict[str, Any]:
    def variant(name: str, **times: dict[str, float]) -> dict[str, Any]:
        ratios = [{"baseline": baseline, "time_to_target": found} for baseline, found in times.items()]
        return {"name": name, "ratios": ratios, "runs": [{"fp32_bytes": 530_000}]}

    variants = [variant("torch"), variant("int8", torch=ratio(2, 1.5, 3), fp32=int8_over_fp32)]
    return {"algorithm": "dqn", "environment": "CartPole-v0", "width": 256, "variants": variants}


def test_a_gain_whose_interval_contains_one_is_no_clear_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"unclear": comparison(ratio(1.2, 0.9, 1.6)), "clear": comparison(ratio(1.2, 1.1, 1.6))}
    found = {}
    for name, task in made.items():
        monkeypatch.setattr(first_screen, "tasks_of_gain", lambda task=task: [task])
        found[name] = (first_screen.quantization_gain(), first_screen.limits_of_gain())
    (unclear,) = rows(found["unclear"][0]).values()
    assert unclear[:3] == ["**2** (1.5 to 3)", "1.2 (0.9 to 1.6), no clear gain", "not reached"]
    assert unclear[-1] == "1"
    assert rows(found["clear"][0]).popitem()[1][1] == "**1.2** (1.1 to 1.6)"
    says = "gain from ONNX Runtime, and not clearly from quantization"
    assert says in found["unclear"][1]
    assert says not in found["clear"][1]


def test_each_missed_gain_is_listed() -> None:
    missed = [
        target
        for name in ("actorq", "actorq_balance")
        for target in results.load(name)["targets"]
        if target["met"] is False and "time to the target over torch" in target["name"]
    ]
    assert first_screen.limits_of_gain().count("**misses its target**") == len(missed)


def peers(ours: list[float], theirs: list[float]) -> list[dict[str, Any]]:
    return [
        {
            **{"task": "dqn/CartPole-v1", "system": system, "seconds": seconds, "reached": seconds < 100},
            "peak_memory_mb": memory,
        }
        for system, memory, of in (("actorq", 900.0, ours), ("stable-baselines3", 300.0, theirs))
        for seconds in of
    ]


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ([20.0, 30.0, 40.0], ["**3.0**", "10 (9 to 12)", "30 (20 to 40)", "not measured", "3.0", "3"]),
        ([11.0, 15.0, 40.0], ["1.5, ranges overlap", "10 (9 to 12)", "15 (11 to 40)", "not measured", "3.0", "3"]),
        (
            [100.0, 100.0, 90.0],
            [
                "**more than 10.0**",
                "10 (9 to 12)",
                "more than 100 (1 of 3 seeds reached it, the first after 90)",
                "not measured",
                "3.0",
                "3",
            ],
        ),
    ],
)
def test_seconds_of_libraries_show_overlaps_missed_targets_and_what_was_not_measured(
    monkeypatch: pytest.MonkeyPatch, theirs: list[float], expected: list[str]
) -> None:
    monkeypatch.setattr(results, "stored", lambda: ["peers"])
    monkeypatch.setattr(results, "figures", lambda name: {"runs": peers([9.0, 10.0, 12.0], theirs)})
    found = rows(first_screen.peers_seconds())
    assert found["DQN on CartPole-v1"] == expected
    assert found["SAC on Pendulum-v1"] == ["", "not measured", "not measured", "not measured", "", ""]


def test_a_task_with_several_results_shows_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"old": peers([50.0], [90.0]), "new": peers([10.0], [90.0])}
    dates = {"old": "2026-11-01", "new": "2026-11-02"}
    monkeypatch.setattr(results, "stored", lambda: ["new", "old"])
    monkeypatch.setattr(results, "command", lambda name: "python -m benchmarks.libraries.peers")
    monkeypatch.setattr(results, "load", lambda name: {"date": dates[name]})
    monkeypatch.setattr(results, "figures", lambda name: {"runs": made[name]})
    assert rows(first_screen.peers_seconds())["DQN on CartPole-v1"][1] == "10"


def test_claims_about_other_libraries_agree_with_the_results() -> None:
    found = rows(first_screen.peers_seconds())
    steps = []
    for name in ("peers_continuous", "peers_hopper"):
        runs = results.figures(name)["runs"]
        steps.append(
            {
                system: median(run["environment_steps"] for run in runs if run["system"] == system)
                for system in ("actorq", "actorq-xqc", "stable-baselines3")
            }
        )
    gains = {task: float(re.sub(r"[*]|more than |,.*", "", cells[0])) for task, cells in found.items() if cells[0]}
    for page in (README, HOME):
        assert ("PPO gains less than DQN" in page) == (gains["PPO on CartPole-v1"] < gains["DQN on CartPole-v1"])
        assert ("Where ranges overlap" in page) == any("overlap" in cells[0] for cells in found.values())
        assert "On HalfCheetah and Hopper ActorQ makes several times as many environment steps" in page
        assert all(min(each["actorq"], each["actorq-xqc"]) > 2 * each["stable-baselines3"] for each in steps)
        assert ("needs more memory" in page) == all(float(cells[4]) > 1 for cells in found.values() if cells[4])


def cell(network: str, batch: int, **medians: float) -> dict[str, Any]:
    times = {name.replace("_", "-"): {"median": median} for name, median in medians.items()}
    # PyTorch and variants for comparison do not count.
    times |= {"torch fp32": {"median": 1.0}, "int8, 7 bits": {"median": 1.0}}
    return {"network": network, "batch": batch, "timings": times}


def test_the_fastest_scheme_has_its_equals_and_its_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [
        cell("mlp 64", 1, fp32=10.1, int8=20, int8_static=10),
        cell("mlp 64", 8, fp32=10, int8=20, int8_static=15),
        cell("mlp 256", 1, fp32=30, int8=10, int8_static=10.5),
        cell("mlp 256", 8, fp32=30, int8=15.2, int8_static=15),
        cell("cnn", 1, fp32=30, int8=20, int8_static=10),
    ]
    monkeypatch.setattr(results, "figures", lambda name: {"cells": cells})
    assert rows(scheme_choice.fastest_schemes()) == {
        "MLP, 64 units": ["`fp32`", "`fp32`"],
        "MLP, 256 units": ["`int8`, 3.0", "`int8-static` or `int8`, 2.0"],
        "convolutions": ["`int8-static`, 3.0", ""],
    }
    assert "in 1 of 2 rows of MLPs. The exceptions are 64 units at batch 8 (`fp32`)." in scheme_choice.static_rows()
    assert "at most 33% longer" in scheme_choice.price_of_int8()


def advised(kind: str, width: int, batch: int) -> str:
    """The first scheme in the table of docs/choosing.md."""
    if kind == "cnn":
        return "int8-static"
    if width <= 64 or (width <= 128 and batch == 1):
        return "fp32"
    return "int4" if width >= 1024 and batch == 1 else "int8-static"


def test_the_advised_scheme_is_within_a_tenth_of_the_fastest() -> None:
    for measured in results.figures("inference")["cells"]:
        kind, _, width = measured["network"].partition(" ")
        times = {name: each["median"] for name, each in measured["timings"].items() if "," not in name}
        scheme = advised(kind, int(width or 0), measured["batch"])
        assert times[scheme] <= 1.1 * min(times.values()), (measured["network"], measured["batch"])
    assert "| convolutions | `int8-static` |" in CHOOSING
    assert "| MLP of 1024 or more units, one environment per actor | `int4` |" in CHOOSING
    assert "| MLP of 64 units; MLP of 128 units with one environment per actor | `fp32`, or" in CHOOSING
    assert "| MLP of 128 or more units, eight or more environments per actor | `int8-static`, or" in CHOOSING


def test_auto_shows_no_gain_over_fp32_in_whole_runs_of_small_policies() -> None:
    (small,) = (task for task in results.figures("actorq")["tasks"] if task["width"] == 256)
    (auto,) = (variant for variant in small["variants"] if variant["name"] == "auto")
    (over_fp32,) = (ratio["time_to_target"] for ratio in auto["ratios"] if ratio["baseline"] == "fp32")
    assert "In whole runs of small policies `auto` gains nothing over `fp32`" in CHOOSING
    assert over_fp32["low"] < 1 < over_fp32["high"]
