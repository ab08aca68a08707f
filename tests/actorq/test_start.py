"""A process starts without what only slows its imports, and ends with the code of its function."""

import gc
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from actorq.start import fast_imports

BODY = """
import gc, os
from actorq.errors import UserError
imported_with_collection = gc.isenabled()
def run():
    print(imported_with_collection, gc.isenabled(), os.environ["OPENBLAS_NUM_THREADS"])
    return 5
def fail():
    raise UserError("expected another function")
"""


def started(tmp_path: Path, function: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "body.py").write_text(BODY)
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[2])))
    command = [sys.executable, "-c", f"from actorq.start import start; start('body:{function}')"]
    environment = {**environment, "PYTHONPATH": path, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_function_runs_with_garbage_collection_and_its_module_was_imported_without(tmp_path: Path) -> None:
    process = started(tmp_path, "run")
    assert (process.returncode, process.stdout, process.stderr) == (5, "False True 1\n", "")


def test_the_threads_of_numpy_are_those_that_the_environment_asks_for(tmp_path: Path) -> None:
    assert started(tmp_path, "run", OPENBLAS_NUM_THREADS="3").stdout == "False True 3\n"


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    process = started(tmp_path, "fail")
    assert (process.returncode, process.stderr) == (2, "error: expected another function\n")


def test_garbage_is_collected_again_after_a_failed_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")

    def import_absent() -> None:
        with fast_imports():
            assert not gc.isenabled()
            import_module("no_such_module")

    with pytest.raises(ModuleNotFoundError):
        import_absent()
    assert gc.isenabled()
