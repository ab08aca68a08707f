"""A failed test ends the tests, whatever it leaves behind."""

import subprocess
import sys
from pathlib import Path

ENDLESS = """
import threading

def test_it():
    threading.Thread(target=threading.Event().wait).start()
    assert False
"""


def test_a_thread_of_a_failed_test_does_not_keep_the_tests_from_their_end(tmp_path: Path) -> None:
    file = tmp_path / "test_endless.py"
    file.write_text(ENDLESS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", str(file)]
    ended = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1, ended.stderr
    assert "1 failed" in ended.stdout
