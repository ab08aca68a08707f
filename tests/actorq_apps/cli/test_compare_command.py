"""`actorq compare`: what it takes, what it refuses, and that it goes on with what is there."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from actorq.config.run_config import RunConfig
from actorq.statefiles.documents import write_document
from actorq_apps.cli import compare
from actorq_apps.cli.main import main
from actorq_apps.comparison.folder import ComparisonFolder
from actorq_apps.comparison.plan import PlannedRun
from tests.actorq_apps.comparison.comparison_parts import summary


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that it gets; nothing is written."""
    assert main(["compare", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert not Path("DIR").exists()
    return captured.err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "the following arguments are required: --directory"),
        (("--directory", "DIR", "--seed", "3"), "--seed: a comparison has several, give --seeds"),
        (("--directory", "DIR", "--scheme", "int8"), "--scheme: a comparison has several, give --schemes"),
        (("--directory", "DIR", "--schemes", "int9"), "--schemes: expected some of fp32"),
        (("--directory", "DIR", "--vary", "dqn.n-stepp", "1"), "--vary: unknown setting 'dqn.n-stepp'; did you mean"),
        (("--directory", "DIR", "--time-to", "nan"), "argument --time-to: expected a finite number, got 'nan'"),
        (("--directory", "DIR", "--vary", "dqn.n-step", "0"), "setting 'dqn.n_step': value should be greater than 0"),
        (("--directory", "DIR", "--resume"), "unknown argument '--resume'"),
        (
            ("--directory", "DIR", "--target-return", "10", "--time-to", "20"),
            "--time-to: expected at most target_return (10), at which runs end, got 20",
        ),
        # Without a target, runs end at the threshold of the environment.
        (
            ("--directory", "DIR", "--time-to", "500"),
            "--time-to: expected at most target_return (475), at which runs end, got 500",
        ),
        (
            ("--directory", "DIR", "--vary", "algorithm", "dqn", "td3"),
            "algorithm td3 needs continuous actions, but CartPole-v1 has discrete ones",
        ),
        (
            ("--directory", "DIR", "--policy-export.url", "s3://policies/best"),
            "policy_export.url: the runs of a comparison would share s3://policies/best; leave it out",
        ),
    ],
)
def test_a_mistake_gets_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str) -> None:
    assert mistake(capsys, *arguments).startswith(expected)


def test_torch_needs_the_benchmarks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "TORCH_ACTOR", "elsewhere.torch_actor")
    told = mistake(capsys, "--directory", "DIR", "--schemes", "fp32", "torch")
    assert told == (
        "--schemes torch: elsewhere.torch_actor cannot be imported: run in the folder of ActorQ's sources, or add "
        "this folder to PYTHONPATH"
    )


def test_a_comparison_makes_its_runs_in_turns_and_tells_its_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int, int]] = []

    def make_runs(
        folder: ComparisonFolder, plan: Sequence[PlannedRun], config_of: Callable[[PlannedRun], RunConfig], _: object
    ) -> None:
        for planned in plan:
            config, root = config_of(planned), folder.run(planned).root
            made.append((config.scheme, config.seed, config.dqn.n_step))
            root.mkdir()
            write_document(root / "summary.json", summary(100.0 if config.scheme == "int8" else 50.0))

    monkeypatch.setattr(compare, "make_runs", make_runs)
    assert main(["compare", "--directory", "DIR", "--seeds", "2", "--vary", "dqn.n-step", "3"]) == 0
    assert made == [("fp32", 1, 3), ("int8", 1, 3), ("int8", 2, 3), ("fp32", 2, 3)]
    out = capsys.readouterr().out
    assert "int8, dqn.n-step 3 against fp32: throughput 2.00 [2.00, 2.00]" in out
    values = json.loads(Path("DIR/comparison.json").read_text())
    assert values["command"] == "actorq compare --directory DIR --seeds 2 --vary dqn.n-step 3"
    assert "2.00 times the throughput" in Path("DIR/report.html").read_text()
