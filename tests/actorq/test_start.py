"""A process starts with fast imports, and ends with the exit code of its function."""

import gc
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from actorq.process import EXIT_INTERRUPTED
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


def test_respects_the_number_of_numpy_threads_in_the_environment(tmp_path: Path) -> None:
    assert started(tmp_path, "run", OPENBLAS_NUM_THREADS="3").stdout == "False True 3\n"


def test_a_users_mistake_at_the_start_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    process = started(tmp_path, "fail")
    assert (process.returncode, process.stderr) == (2, "error: expected another function\n")


@pytest.mark.parametrize(("given", "lines"), [({}, 0), ({"GRPC_VERBOSITY": "ERROR"}, 1)])
def test_grpc_writes_no_lines_of_its_own_unless_the_user_wants_them(given: dict[str, str], lines: int) -> None:
    code = """
from actorq.start import fast_imports
with fast_imports():
    import grpc
from concurrent.futures import ThreadPoolExecutor
try:
    grpc.server(ThreadPoolExecutor(1)).add_insecure_port("192.0.2.1:4000")
except RuntimeError:
    pass
"""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"} | given
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert len(done.stderr.splitlines()) >= lines
    assert bool(done.stderr) is bool(lines)


def test_garbage_is_collected_again_after_a_failed_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")

    def import_absent() -> None:
        with fast_imports():
            assert not gc.isenabled()
            import_module("no_such_module")

    with pytest.raises(ModuleNotFoundError):
        import_absent()
    assert gc.isenabled()


# It waits in steps, as an import does. During one long wait in the kernel, a signal would be handled only afterwards.
SLOW = """
import os, select, sys
print(os.getpid(), flush=True)
while not select.select([sys.stdin], [], [], 0.05)[0]:
    pass
"""


@pytest.mark.parametrize("code", [0, 6])
@pytest.mark.parametrize("first", [False, True], ids=["process", "first process of a container"])
def test_sigterm_while_a_service_imports_ends_it(tmp_path: Path, code: int, first: bool) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[2])))
    command = [sys.executable, "-c", f"from actorq.start import start; start('slow:run', sigterm={code})"]
    if first:
        namespace = ["unshare", "--fork", "--pid", "--kill-child"]
        if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
            pytest.skip("no process can be the first one of a namespace here")
        command = namespace + command
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        number = int(process.stdout.readline())
        assert (number == 1) is first
        if first:
            # Outside, the process has another number.
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGTERM)
        else:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == code


def test_a_command_ended_by_a_signal_has_an_error_exit_code(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[2])))
    command = [sys.executable, "-m", "actorq.start", "slow:run"]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("actor_service", 0),
        ("quantizer_service", 0),
        ("actorq_apps.operator", 0),
        ("learner_service", EXIT_INTERRUPTED),
    ],
)
def test_each_service_handles_sigterm_before_its_imports(module: str, code: int) -> None:
    # The first import of a process that will import its service.
    script = f"""
import os, runpy, signal, sys
from actorq import start
def import_module(name):
    os.kill(os.getpid(), signal.SIGTERM)
    raise AssertionError(name)
start.import_module = import_module
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, "")
