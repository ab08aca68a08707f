"""Missed targets have explanations, and a target that only the baseline's spread meets is marked."""

import re

import pytest

from benchmarks.harness import Meaning, Target
from sitegen import results, verdicts
from sitegen.parts import part
from sitegen.results import beside, target_of
from tests.documentation.code_blocks import ROOT

BY_SPREAD = [
    (name, target)
    for name in results.stored()
    for target in map(target_of, results.load(name)["targets"])
    if target.met_by_spread
]


@pytest.mark.parametrize("verdict", tuple(verdicts.failed()), ids=lambda each: f"{each.result}: {each.target.name}")
def test_every_missed_target_has_an_explanation(verdict: verdicts.Verdict) -> None:
    assert verdict.meaning.question.endswith("?")
    assert verdict.meaning.means.endswith(".")
    assert "{" not in verdict.measured + verdict.bound


def test_a_missed_target_without_an_explanation_raises_an_error_with_its_name() -> None:
    unknown = verdicts.Verdict("actor", Target("unknown", 1.0, 2.0, at_most=False), False)
    with pytest.raises(LookupError, match=r"benchmarks\.speedup\.actor: expected a pattern in MEANINGS for 'unknown'"):
        _ = unknown.meaning


def test_figures_have_the_unit_and_the_case_of_their_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    words = Meaning(r"(?P<task>.+): share", "How much?", "Little.", unit="%", scale=100, case="{task}")
    monkeypatch.setattr(verdicts, "_meanings", lambda _: (words,))
    share = Target("d4pg/dm_control/cartpole-balance/2048: share", 0.832, 0.85, at_most=False)
    assert verdicts.Verdict("actor", share, False).measured == "83.2% (D4PG on cartpole-balance, width 2,048)"
    assert verdicts.Verdict("actor_without_vnni", share, False).measured.endswith(", without VNNI)")
    assert verdicts.Verdict("actor", share, False).bound == "at least 85%"


@pytest.mark.parametrize("older", results.NEWER)
def test_a_newer_result_is_of_the_same_benchmark_and_is_newer(older: str) -> None:
    times = [results.time_of(name) for name in (older, *results.NEWER[older])]
    assert times[0] < min(times[1:])
    assert len({results.command(name).split()[2] for name in (older, *results.NEWER[older])}) == 1


def test_a_target_that_a_newer_result_meets_is_not_missed() -> None:
    older = next(each for each in verdicts.failed() if each.result == "parity")
    assert older.newest.result == "parity_sac_pendulum"
    assert older.newest.met
    assert older.measured not in verdicts.missed()
    assert older.measured in verdicts.missed_before()
    assert "**Missed**" not in verdicts.line("parity")


def test_a_missed_target_is_explained_below_its_result() -> None:
    line = verdicts.line("load")
    missed = next(each for each in verdicts.failed() if each.result == "load")
    assert line.splitlines()[0] == results.line("load")
    for words in (missed.meaning.question, missed.measured, missed.bound, missed.meaning.means):
        assert words in line


def test_a_target_that_only_the_spread_meets_is_found() -> None:
    assert ("on_policy_ppo", "ppo/LunarLander-v3") in {(name, each.name.partition(":")[0]) for name, each in BY_SPREAD}


@pytest.mark.parametrize(("name", "target"), BY_SPREAD, ids=lambda each: str(getattr(each, "name", each)))
def test_a_target_that_only_the_spread_meets_is_marked(name: str, target: Target) -> None:
    row = next(line for line in results.targets(name).splitlines() if line.startswith(f"| {target.name} |"))
    assert "only because the baseline's seeds spread widely" in row
    table = {"on_policy_ppo": "on policy ppo"}.get(name, name)
    task = target.name.partition(":")[0]
    rows = [line for line in part(table).splitlines() if line.startswith(f"| {task} |")]
    assert beside(target) in rows[0]


def test_targets_without_a_verdict_are_counted_apart() -> None:
    assert "Targets met: 0 of 0, 1 without a verdict." in results.line("returns_pong")
    assert "Targets met: 3 of 4, 1 without a verdict." in results.line("actorq_gpu_to_target")


def test_a_mean_is_compared_with_its_baseline_in_words() -> None:
    def words(measured: float, bound: float = 80.0) -> str:
        return beside(Target("mean", measured, bound, at_most=False, baseline=100.0))

    assert words(100.0) == "not lower"
    assert words(97.0) == "lower by 3"
    assert words(90.0).startswith("**lower by 10**; the target is met only because")
    assert words(70.0) == "**lower by 30**; the target is missed"
    assert beside(Target("times faster", 2.0, 1.0, at_most=False)) == ""


def test_the_command_of_an_old_result_belongs_to_its_benchmark() -> None:
    assert results.command("peers").startswith("python -m benchmarks.libraries.peers --tasks")
    assert results.command("structured_peers").startswith("python -m benchmarks.environments.peers")


def test_the_overview_answers_ten_questions_with_figures_and_existing_pages() -> None:
    rows = part("answers").splitlines()[2:]
    assert len(rows) == 10
    for row in rows:
        assert re.match(r"\| \[[^\]]+\?\]\(\S+\.md\) \| .*\*\*.*\d.*\*\*", row), row
    pages = [re.findall(r"\]\((\S+\.md)\)", row) for row in rows]
    assert all((ROOT / "docs" / "benchmarks" / page).exists() for linked in pages for page in linked)


def test_the_overview_names_missed_targets_and_lower_returns() -> None:
    sooner, _, returns, *_ = part("answers").splitlines()[2:]
    missed = next(each for each in verdicts.failed() if each.result == "actorq_balance")
    assert f"the target of {missed.target.bound:g} is missed" in sooner
    lower = {verdicts.plain(each.name.partition(":")[0]) for name, each in BY_SPREAD if name != "precision"}
    assert all(task in returns for task in lower)
