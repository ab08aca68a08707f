"""The process as a launcher starts it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from actorq.client import QuantizerClient
from tests.builders.forked_commands import ForkedCommand


def start(*arguments: str) -> ForkedCommand:
    return ForkedCommand("quantizer_service", *arguments)


def test_a_quantizer_serves_until_sigterm(tmp_path: Path) -> None:
    announce = tmp_path / "address.json"
    process = start("--store", str(tmp_path / "store"), "--announce", str(announce), "--lifeline")
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
    ("arguments", "fact"),
    [
        (["--store", os.devnull], f"--store: .*{os.devnull}"),
        (["--shop", "x"], "unknown .*--shop"),
        (["--listen", "nowhere"], "--listen: .*nowhere"),
        (["--name", "x" * 129], "'name': .*128"),
        (["--store", "/absent", "--read-only"], "--store: .*/absent"),
    ],
)
def test_a_users_mistake_is_one_line(arguments: list[str], fact: str, tmp_path: Path) -> None:
    process = start(*(["--store", str(tmp_path)] if "--store" not in arguments else []), *arguments)

    _, errors = process.communicate(timeout=20)

    assert process.returncode == 2
    assert re.match(f"error: .*{fact}", errors)
    assert errors.count("\n") == 1


def test_a_second_writer_is_refused_in_one_line_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    first = start("--store", str(tmp_path), "--lifeline")
    assert any("serving on" in line for line in first.stderr)

    _, errors = start("--store", str(tmp_path)).communicate(timeout=20)
    assert re.match(f"error: --store: another quantizer .*{tmp_path}", errors)
    assert errors.count("\n") == 1

    first.kill()
    first.communicate(timeout=20)
    again = start("--store", str(tmp_path), "--lifeline")
    assert any("serving on" in line for line in again.stderr)
    again.kill()
    again.communicate(timeout=20)


def test_the_help_has_the_command_and_its_flags() -> None:
    command = [sys.executable, "-m", "quantizer_service", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout

    assert shown.startswith("usage: actorq quantizer ")
    assert "--read-only" in shown


def test_a_quantizer_imports_neither_torch_nor_gymnasium() -> None:
    program = "import sys, quantizer_service.process; print({'torch', 'gymnasium'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "set()"
