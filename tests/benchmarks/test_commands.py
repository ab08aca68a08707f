"""Every benchmark is a command with the flags of the harness."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _name(file: Path) -> str:
    return ".".join(part for part in file.relative_to(ROOT).with_suffix("").parts if part != "__main__")


COMMANDS = [
    _name(file)
    for file in sorted((ROOT / "benchmarks").glob("*/**/*.py"))
    if "run_benchmark(" in file.read_text(encoding="utf-8")
]


# It may have been imported by others before.
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_the_flags_of_the_harness(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_module(name, run_name="__main__")
    told = capsys.readouterr().out
    assert "--json" in told
    assert "--check" in told
