"""`actorq compare`: its flags, its refusals, and the continuation of a comparison."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from actorq.config.run_config import RunConfig
from actorq.statefiles.documents import write_document
from actorq_apps.cli import compare
from actorq_apps.cli.main import main
from actorq_apps.comparison.folder import ComparisonFolder
from actorq_apps.comparison.schedule import ScheduledRun
from tests.actorq_apps.comparison.comparison_parts import summary


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The single line of an error. No files are written."""
    assert main(["compare", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert not Path("DIR").exists()
    return captured.err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ((), "required: --directory"),
        (("--directory", "DIR", "--seed", "3"), "--seed:.*--seeds"),
        (("--directory", "DIR", "--scheme", "int8"), "--scheme:.*--schemes"),
        (("--directory", "DIR", "--schemes", "int9"), "--schemes.* fp32.*int9"),
        (("--directory", "DIR", "--vary", "dqn.n-stepp", "1"), r"--vary.*'dqn\.n-stepp'.*'dqn\.n-step'"),
        (("--directory", "DIR", "--time-to", "nan"), "--time-to.*finite.*'nan'"),
        (("--directory", "DIR", "--vary", "dqn.n-step", "0"), r"'dqn\.n_step'.* 1,.*0"),
        (("--directory", "DIR", "--resume"), "'--resume'"),
        (("--directory", "DIR", "--target-return", "10", "--time-to", "20"), "--time-to.*target_return.*10.* 20"),
        # Without a target, runs end at the environment's threshold.
        (("--directory", "DIR", "--time-to", "500"), "--time-to.*target_return.*475.* 500"),
        (("--directory", "DIR", "--vary", "algorithm", "dqn", "td3"), "td3 .*continuous.*CartPole-v1 .*discrete"),
        (
            ("--directory", "DIR", "--policy-export.url", "s3://policies/best"),
            r"policy_export\.url.*s3://policies/best",
        ),
    ],
)
def test_a_wrong_flag_of_a_comparison_gets_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], fact: str
) -> None:
    assert re.search(fact, mistake(capsys, *arguments))


def test_the_scheme_torch_needs_the_module_of_the_benchmarks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "TORCH_ACTOR", "elsewhere.torch_actor")
    told = mistake(capsys, "--directory", "DIR", "--schemes", "fp32", "torch")
    assert re.search("--schemes torch.*elsewhere.torch_actor .*PYTHONPATH", told)


def test_a_comparison_interleaves_its_runs_and_reports_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int, int]] = []

    def make_runs(
        folder: ComparisonFolder,
        schedule: Sequence[ScheduledRun],
        config_of: Callable[[ScheduledRun], RunConfig],
        _: object,
    ) -> None:
        for scheduled in schedule:
            config, root = config_of(scheduled), folder.run(scheduled).root
            made.append((config.scheme, config.seed, config.dqn.n_step))
            root.mkdir()
            write_document(root / "summary.json", summary(100.0 if config.scheme == "int8" else 50.0))

    monkeypatch.setattr(compare, "make_runs", make_runs)
    assert main(["compare", "--directory", "DIR", "--seeds", "2", "--vary", "dqn.n-step", "3"]) == 0
    assert made == [("fp32", 1, 3), ("int8", 1, 3), ("int8", 2, 3), ("fp32", 2, 3)]
    out = capsys.readouterr().out
    assert re.search(r"int8, dqn\.n-step 3 against fp32: .* 2\.00 \[2\.00, 2\.00\]", out)
    values = json.loads(Path("DIR/comparison.json").read_text())
    assert values["command"] == "actorq compare --directory DIR --seeds 2 --vary dqn.n-step 3"
    assert re.search(r"2\.00 .*throughput", Path("DIR/report.html").read_text())
