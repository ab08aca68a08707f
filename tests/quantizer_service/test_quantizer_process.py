"""The process as a launcher starts it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from actorq.client import QuantizerClient


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "quantizer_service", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_it_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    announce = tmp_path / "address.json"
    process = start("--store", str(tmp_path / "store"), "--announce", str(announce), "--lifeline")
    assert process.stderr is not None
    assert process.stdin is not None
    for line in process.stderr:
        if "serving on" in line:
            break
    address = line.rpartition(" ")[2].strip()
    with QuantizerClient(address) as client:
        assert client.list() == []
    assert (tmp_path / "store").is_dir()

    process.send_signal(signal.SIGTERM)

    assert process.wait(20) == 0
    assert json.loads(announce.read_text())["address"] == address
    process.stdin.close()
    process.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--store", os.devnull], "error: --store: cannot write to"),
        (["--shop", "x"], "error: unknown argument"),
        (["--listen", "nowhere"], "error: --listen: expected HOST:PORT"),
    ],
)
def test_a_users_mistake_is_one_line(arguments: list[str], reason: str, tmp_path: Path) -> None:
    process = start(*(["--store", str(tmp_path)] if "--store" not in arguments else []), *arguments)

    _, errors = process.communicate(timeout=20)

    assert process.returncode == 2
    assert errors.startswith(reason)
    assert errors.count("\n") == 1


def test_it_imports_neither_torch_nor_gymnasium() -> None:
    program = "import sys, quantizer_service.__main__; print({'torch', 'gymnasium'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "set()"
