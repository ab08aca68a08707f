"""What every test starts with and leaves: the same random numbers, whichever tests ran before it, and no run."""

import sys
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
from hypothesis import settings

# The same examples in every run. New ones: pytest --hypothesis-profile=default
settings.register_profile("same", derandomize=True)
settings.load_profile("same")


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
