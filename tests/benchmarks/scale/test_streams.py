"""The benchmark of streams against real processes, as small as it can be: it measures, and writes what it measured."""

import json
from pathlib import Path

from tests.builders.forked_commands import run

ROOT = Path(__file__).parents[3]


def test_it_measures_what_actors_and_watchers_cost(tmp_path: Path) -> None:
    file = tmp_path / "streams.json"
    flags = ["--streams", "2", "--steps", "16", "--segments", "20", "--reports", "1", "--versions", "2"]
    completed = run("benchmarks.scale.streams", *flags, "--json", str(file), cwd=ROOT, timeout=220)
    assert completed.returncode == 0, completed.stderr
    figures = json.loads(file.read_text())["figures"]
    (actors,) = figures["actors"]
    assert (actors["streams"], actors["segment_transitions"]) == (2, 128)
    assert actors["transitions_per_s"] > 0
    small, large = (
        [row for row in figures["watchers"] if row["hidden_sizes"] == hidden] for hidden in ([64, 64], [512, 512, 512])
    )
    assert [row["watchers"] for row in small] == [0, 2]
    assert large[0]["policy_bytes"] > 10 * small[0]["policy_bytes"]
