"""A run that publishes many versions during each evaluation loses none that it has evaluated before that is known."""

import json
import re
from pathlib import Path

import pytest
from training_run import TrainingRun, actorq

# Versions come with each few updates and only the newest is kept, so that every evaluation outlasts its version.
FAST = ("--publication.period-updates", "5", "--quantizer.retain-newest", "1", "--quantizer.retain-best", "2")
BRIEF = ("--target-return", "501", "--max-environment-steps", "3000", "--evaluation.episodes", "20")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """A run whose steps are used up."""
    run = TrainingRun.start(
        tmp_path_factory.mktemp("runs") / "run", *FAST, *BRIEF, "--evaluation.period-updates", "50", "--seed", "1"
    )
    code, printed = run.finish()
    assert code == 3, printed
    return run


def evaluated(run: TrainingRun) -> dict[int, float]:
    """The mean returns of the retained versions that were evaluated."""
    return {
        int(path.parent.name): json.loads(path.read_text())["mean_return"]
        for path in (run.directory / "policies").glob("*/evaluation.json")
    }


def test_the_best_evaluated_versions_are_retained(ended: TrainingRun) -> None:
    log = (ended.directory / "logs" / "quantizer.log").read_text()
    evaluations = ended.summary()["evaluations"]
    assert len(evaluations) > 3
    assert ended.summary()["policy_versions"] > 4 * len(evaluations)
    assert "dropped: it is not retained" not in log
    best = sorted((each["mean_return"] for each in evaluations), reverse=True)[:2]
    assert sorted(evaluated(ended).values(), reverse=True)[:2] == pytest.approx(best)


def test_a_version_that_is_gone_is_replaced_by_the_best_one_in_evaluate(ended: TrainingRun, tmp_path: Path) -> None:
    summary = ended.directory / "summary.json"
    whole = summary.read_text()
    tree = json.loads(whole)
    tree["evaluation"]["policy_version"] = 1
    summary.write_text(json.dumps(tree))
    try:
        result = actorq("evaluate", str(ended.directory), "--episodes", "2")
        named = actorq("evaluate", str(ended.directory), "--episodes", "2", "--version", "1")
    finally:
        summary.write_text(whole)
    mean_return, best = max((value, version) for version, value in evaluated(ended).items())
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == (
        f"version 1, the one evaluated last, is not retained: this is {best}, the best retained one, evaluated at "
        f"{mean_return:,.1f}"
    )
    assert [re.match(r"episode (\d)/2 ", line) is not None for line in lines[1:3]] == [True, True]
    assert f"policy v{best} " in result.stdout
    assert (named.returncode, named.stdout) == (2, "")
    assert "version 1 is not retained" in named.stderr
