"""The benchmark of fan-out against real processes, as small as it can be: it measures, draws, and writes it down."""

import json
from pathlib import Path

from tests.builders.forked_commands import run

ROOT = Path(__file__).parents[3]


def test_it_measures_how_long_the_last_subscriber_waits(tmp_path: Path) -> None:
    file, image = tmp_path / "fanout.json", tmp_path / "images" / "fanout.png"
    flags = ["--subscribers", "3", "--versions", "2", "--json", str(file), "--plot", str(image)]
    completed = run("benchmarks.scale.fanout", *flags, cwd=ROOT, timeout=220)
    assert completed.returncode == 0, completed.stderr
    result = json.loads(file.read_text())
    figures = result["figures"]
    assert (figures["subscribers"], figures["versions"]) == (3, 2)
    assert 140_000 < figures["policy_bytes"] < 160_000
    for way in ("direct", "relayed", "bare_streams", "plain_stream"):
        assert len(figures[way]["all_ms"]) == 2
        assert figures[way]["ms"] > 0
    assert set(figures["ratios"]) == {
        "over bare streams",
        "over plain stream",
        "server CPU over bare streams",
        "relayed over direct",
        "with a slow one over without",
    }
    assert len(result["targets"]) == 6
    assert image.stat().st_size > 5_000
