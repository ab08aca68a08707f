"""A process's report about its own resources."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from actorq.telemetry import process_stats
from actorq.telemetry.process_stats import measure_process


def test_a_process_measures_itself() -> None:
    stats = measure_process("actor-0", "actor", "node-1")
    assert (stats.name, stats.role, stats.node, stats.pid) == ("actor-0", "actor", "node-1", os.getpid())
    assert 0 < stats.started_at < time.time()
    assert stats.cpu_seconds > 0
    assert 1 << 20 < stats.resident_bytes <= stats.peak_resident_bytes < 1 << 40


def test_measures_the_start_to_a_few_hundredths_of_a_second() -> None:
    asking = "from actorq.telemetry.process_stats import measure_process; print(measure_process('x', 'y').started_at)"
    before = time.time()
    answer = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True, check=True).stdout
    # The kernel counts hundredths of a second. The process started after the call and before its own imports.
    assert before - 0.02 <= float(answer) <= time.time() - 0.02


def test_cpu_time_grows_with_work_and_the_start_stays() -> None:
    before = measure_process("x", "actor")
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    after = measure_process("x", "actor")
    assert after.cpu_seconds > before.cpu_seconds
    assert after.incarnation == before.incarnation
    assert after.node


def test_the_peak_stays_when_memory_is_released() -> None:
    size = 64 << 20
    before = measure_process("x", "actor").resident_bytes
    block = bytearray(os.urandom(1 << 20) * 64)
    during = measure_process("x", "actor")
    del block
    after = measure_process("x", "actor")
    assert during.resident_bytes > before + size // 2
    assert after.peak_resident_bytes >= during.resident_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps ru_maxrss across exec")
def test_the_peak_of_a_small_process_is_not_that_of_the_big_one_that_started_it() -> None:
    block = bytearray(os.urandom(1 << 20) * 256)
    code = "from actorq.telemetry.process_stats import measure_process as m; print(m('x', 'y').peak_resident_bytes)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(out.stdout) < len(block)


def test_the_peak_of_rusage_is_in_bytes_on_macos_and_in_kibibytes_elsewhere() -> None:
    assert process_stats._peak_from_rusage("linux") >= 1024 * process_stats._peak_from_rusage("darwin") > 0


def test_without_proc_the_peak_comes_from_rusage() -> None:
    peak = process_stats._peak_resident_bytes(Path("/no/such/file"))
    assert 1 << 20 < peak <= process_stats._peak_from_rusage()


LAUNCHED = "from actorq.telemetry.process_stats import measure_launcher\nprint(measure_launcher('n'))"
SERVER = """
import sys
from pathlib import Path
while sum(n * n for n in range(100_000)) and __import__("time").process_time() < 0.4: pass
Path("/proc/self/comm").write_text("actorq-forks")
print("named", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are named as on Linux")
def test_measures_the_launcher_with_its_fork_server() -> None:
    def launcher_cpu_seconds() -> float:
        told = subprocess.run([sys.executable, "-c", LAUNCHED], capture_output=True, text=True, check=True).stdout
        assert f"name='launcher', role='launcher', node='n', pid={os.getpid()}" in told
        return float(told.partition("cpu_seconds=")[2].partition(",")[0])

    alone = launcher_cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        # The kernel counts hundredths of a second for each process separately.
        assert launcher_cpu_seconds() >= alone + 0.2
