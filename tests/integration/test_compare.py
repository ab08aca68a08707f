"""`actorq compare` from the command line, with real runs."""

import json
from pathlib import Path

from tests.integration.training_run import actorq

TASK = (
    "--dqn.hidden-sizes",
    "16,16",
    "--max-environment-steps",
    "3000",
    "--no-energy.enabled",
    "--evaluation.episodes",
    "2",
    "--actors",
    "1",
)


def test_int8_is_compared_with_actors_in_pytorch(tmp_path: Path) -> None:
    folder = tmp_path / "compared"
    limits = ("--target-return", "1e9", "--time-to", "1")
    arguments = ("compare", "--directory", str(folder), "--schemes", "int8", "torch", "--seeds", "1", *TASK, *limits)
    result = actorq(*arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("one seed")
    assert result.stdout.splitlines()[-1] == str(folder / "report.html")

    int8, torch = json.loads((folder / "comparison.json").read_text())["variants"]
    assert [int8["acted_with"], torch["acted_with"]] == ["int8", "fp32"]
    for side in (int8, torch):
        (run,) = side["runs"]
        assert run["state"] == "budget ended"
        assert run["environment_steps"] >= 3000
        assert run["steps_per_s"] > 0
        # A run this short may end before its evaluator has joined.
        assert run["to_target"] is None or run["to_target"]["mean_return"] >= 1
    (ratios,) = int8["ratios"]
    assert ratios["baseline"] == "torch"
    assert ratios["throughput"]["value"] > 0
    assert ratios["throughput"]["low"] is None
    for scheme, acted in (("torch", True), ("int8", False)):
        logs = (folder / "runs" / f"{scheme}-seed1" / "logs").glob("actor-*.log")
        assert ["PyTorch" in log.read_text() for log in logs] == [acted]
    assert (folder / "report.html").read_text().count("data:image/png;base64,") == 8
