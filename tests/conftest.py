"""What every test starts with and leaves: the same random numbers, whichever tests ran before it, and no run."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

# The same examples in every run. New ones: pytest --hypothesis-profile=default
settings.register_profile("same", derandomize=True)
settings.load_profile("same")


# Whole services and whole runs, whose processes need the cores for themselves.
ALONE = (
    *("benchmarks", "integration", "actorq/cli/test_commands.py", "actorq/local", "actorq/test_process.py"),
    *("actor_service/test_hanging.py", "actor_service/test_modules.py", "actor_service/test_process.py"),
    *("learner_service/test_process.py", "quantizer_service/test_process.py"),
)
# What `make test-fast` leaves out besides: real environments, and long conformance suites.
SLOW = (
    *("documentation", "fuzz", "k8s", "test_architecture.py", "actor_service/environments"),
    *("actorq/cli/test_compare_command.py", "actorq/cli/test_verify.py"),
    *("actorq/cluster/test_cluster_forward.py", "actorq/comparison/test_comparison_report.py"),
    *("actorq/quantization/test_schemes.py", "actorq/quantization/test_scheme_batches.py"),
    *("learner_service/algorithms", "learner_service/policy", "learner_service/replay/storage"),
    *("learner_service/training/test_training.py", "quantizer_service/command"),
    *("quantizer_service/emission/test_torch.py", "quantizer_service/emission/test_ladder.py"),
)
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long, and what needs the cores for itself."""
    for item in items:
        if any(item.path.is_relative_to(HERE / place) for place in (*ALONE, *SLOW)):
            item.add_marker("slow")
        if any(item.path.is_relative_to(HERE / place) for place in ALONE):
            item.add_marker("alone")


def _seed() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


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
    for process in psutil.Process().children():
        # A child may end meanwhile, and it is a zombie until its parent asks for its exit code.
        with suppress(psutil.NoSuchProcess):
            if "train" in process.cmdline():
                process.kill()
