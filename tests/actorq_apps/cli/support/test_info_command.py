"""`actorq info` has what a bug report needs, and no values of settings."""

import json
import platform
from importlib.metadata import version

import pytest

from actorq import __version__
from actorq.arithmetic import arithmetic
from actorq_apps.cli.main import main


def test_prints_versions_processor_and_int8_encoding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert lines["actorq"] == __version__
    assert lines["python"].endswith(platform.python_version())
    assert f"onnxruntime {version('onnxruntime')}" in lines["packages"]
    assert lines["int8"] == f"encodings {', '.join(arithmetic().weight_encodings) or 'none is exact'}"
    assert lines["processor"].strip()


def test_json_has_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["grpcio"] == version("grpcio")
    assert found["wrong schemes"] == list(arithmetic().inexact_schemes)


def test_settings_are_named_without_their_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTORQ_TELEMETRY__MLFLOW", "https://user:password@tracker")
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "ACTORQ_TELEMETRY__MLFLOW" in out
    assert "password" not in out


@pytest.mark.parametrize("spelling", ["version", "--version", "-V"])
def test_the_version_command_prints_the_version(capsys: pytest.CaptureFixture[str], spelling: str) -> None:
    assert main([spelling]) == 0
    assert capsys.readouterr().out == f"actorq {__version__}\n"
