"""What every test starts with and leaves: the same random numbers, whichever tests ran before it, and no run."""

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.builders import forked_commands

# The same examples in every run, however long a busy machine takes. New ones: pytest --hypothesis-profile=default
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")


# Whole runs. One worker makes them, one after another, while the others make all other tests: of two runs at a time on
# two cores, actors come too late for a run of seconds.
WHOLE_RUNS = (*("documentation", "integration", "learner_service/test_process.py", "test_distribution.py"),)
# What `make test-fast` leaves out besides: whole services, real environments, and long conformance suites.
SLOW = (
    *("benchmarks", "actorq_apps/cli/test_commands.py", "actorq_apps/local", "actorq/test_process.py"),
    *("actor_service/test_hanging.py", "actor_service/test_modules.py", "actor_service/test_process.py"),
    "actor_service/test_evaluator_process.py",
    *("fuzz", "k8s", "test_architecture.py", "actor_service/environments"),
    *(
        "actorq_apps/cli/test_compare_command.py",
        "actorq_apps/cli/test_verify.py",
        "actorq_apps/sweep/test_sweep_loop.py",
    ),
    *("actorq_apps/cluster/test_cluster_forward.py", "actorq_apps/comparison/test_comparison_report.py"),
    *("actorq/quantization/test_schemes.py", "actorq/quantization/test_scheme_batches.py"),
    *("learner_service/algorithms", "learner_service/policy", "learner_service/quantization/test_emitted_numbers.py"),
    *("learner_service/replay/storage", "quantizer_service/test_process.py"),
    *("learner_service/training/test_training.py", "quantizer_service/command"),
    *("quantizer_service/emission/test_torch.py", "quantizer_service/emission/test_ladder.py"),
    *("quantizer_service/emission/test_high_water.py", "quantizer_service/serving/test_publishers.py"),
    *("learner_service/run/test_on_policy_run.py", "learner_service/test_run_fault.py", "learner_service/test_pod.py"),
    *("learner_service/objectstorage/test_fencing.py", "learner_service/reporting/test_sinks.py"),
    *("learner_service/kernels/test_memory.py", "learner_service/kernels/test_active_weights.py"),
    "learner_service/networks/test_precision.py",
    *("learner_service/sparsity/test_sparsity_flops.py", "actor_service/test_watchdog.py"),
    *("actorq_apps/operator/test_operator_process.py", "actorq_apps/operator/test_deleted_runs.py"),
    *("actorq/transport/test_access.py", "actorq_apps/sweep/test_results.py", "cluster/test_older_kubernetes.py"),
    *("actorq/telemetry/test_metrics_server.py", "quantizer_service/serving/test_worker.py"),
    *("actorq/quantization/test_standard_form.py", "learner_service/sparsity/test_sparsity_structured.py"),
    *("learner_service/objectstorage/test_copies.py", "learner_service/objectstorage/test_damaged_checkpoints.py"),
    *("learner_service/run/test_linger.py", "learner_service/run/test_preparation.py"),
    *("actorq/quantization/test_compaction.py", "quantizer_service/serving/test_relay_refusals.py"),
)
# PyTorch's exporter takes three seconds to get ready. So one worker makes all tests that need it.
EXPORTS = (
    *("integration/test_export_snippets.py", "integration/test_quantize.py", "learner_service/policy"),
    *("learner_service/quantization/test_emitted_numbers.py", "quantizer_service/emission/test_torch.py"),
)
HERE = Path(__file__).parent


@cache
def _is_in(path: Path, places: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(HERE / place) for place in places)


def pytest_sessionstart() -> None:
    """Import without the garbage collector, which would find nothing. NumPy's threads would only wait for work."""
    gc.disable()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long. Whole runs come first, so that no worker waits for another one's at the end."""
    items.sort(key=lambda item: not _is_in(item.path, WHOLE_RUNS))
    for item in items:
        if _is_in(item.path, WHOLE_RUNS):
            # Longer than the commands in them may take, so that these fail with their own words.
            item.add_marker(pytest.mark.timeout(240))
        if _is_in(item.path, (*WHOLE_RUNS, *SLOW)):
            item.add_marker("slow")


class OneWholeRunAtATime(LoadScopeScheduling):
    """Gives all whole runs to one worker, all exports of PyTorch to another, and other tests to workers by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        path = HERE.parent / file
        if _is_in(path, EXPORTS):
            return "exports"
        return "whole runs" if _is_in(path, WHOLE_RUNS) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneWholeRunAtATime:
    """Take the order of collection: by default, files with the most tests come first."""
    config.option.loadscopereorder = False
    return OneWholeRunAtATime(config, log)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays to the end: the modules and the tests. Compute on one core per worker."""
    gc.freeze()
    gc.enable()
    # Exports of PyTorch make hundreds of thousands of objects that stay.
    gc.set_threshold(10_000)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """At the very end, leave the threads of failed tests behind. Python would wait for them without a limit."""
    forked_commands.close()

    def end() -> None:
        if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(session.exitstatus))

    if not hasattr(session.config, "workerinput"):
        session.config.add_cleanup(end)


@pytest.fixture(scope="session")
def operators_parsed_once() -> None:
    """For many exports: PyTorch's exporter parses the sources of all its operators in each."""
    exporter: Any = import_module("torch.onnx._internal.exporter._registration")
    exporter.onnxscript_apis.get_torchlib_ops = cache(exporter.onnxscript_apis.get_torchlib_ops)


def _seed() -> None:
    if "torch" in sys.modules:
        # Not torch.manual_seed, which seeds every kind of device and keeps a stack trace of each call.
        sys.modules["torch"].default_generator.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _same_random_numbers_in_shared_fixtures() -> None:
    _seed()


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    _seed()


@pytest.fixture(autouse=True)
def _no_run_outlives_its_test() -> Iterator[None]:
    """A run that a failed test has left would train beside all that follow. Its services go with it."""
    yield
    for command in forked_commands.running():
        if "train" in command.arguments:
            command.kill()
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        # No child at all, which is told much sooner than which children there are.
        return
    for process in psutil.Process().children():
        # A child may end meanwhile, and it is a zombie until its parent asks for its exit code.
        with suppress(psutil.NoSuchProcess):
            if "train" in process.cmdline():
                process.kill()
