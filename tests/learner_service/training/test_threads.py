"""The number of torch threads: the rule, the measurement with its own clock, and the effect of a fixed number."""

import logging
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np
import pytest
import torch

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from learner_service.algorithms import make_algorithm
from learner_service.algorithms.base import Algorithm
from learner_service.replay import Returns
from learner_service.training.threads import (
    Threads,
    choose,
    free_numbers,
    numbers_of_threads,
    random_batch,
    set_configured,
    smallest_good,
    time_threads,
    update_seconds,
)
from tests.learner_service.algorithms.algorithm_parts import CONTINUOUS, DISCRETE
from tests.learner_service.algorithms.on_policy_parts import CLASSES

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def config_of(threads: int | str = "auto", algorithm: str = "sac", **section: object) -> RunConfig:
    return RunConfig.model_validate(
        {
            "environment": "Small-v0",
            "algorithm": algorithm,
            algorithm: {"hidden_sizes": [32, 32], "batch_size": 16, **section},
            "learner": {"torch_threads": threads},
        }
    )


def given(seconds: dict[int, float], asked: list[list[int]]) -> object:
    def measure(config: RunConfig, spec: EnvironmentSpec, numbers: Sequence[int]) -> dict[int, float]:
        asked.append(list(numbers))
        return seconds

    return measure


@pytest.mark.parametrize(
    ("seconds", "number"),
    [
        ({1: 1.0}, 1),
        ({1: 1.0, 2: 0.95}, 1),
        ({1: 1.0, 2: 0.85}, 2),
        ({1: 1.0, 2: 0.6, 4: 0.51, 8: 0.5}, 4),
        ({1: 1.0, 2: 1.4, 4: 3.0}, 1),
    ],
)
def test_the_smallest_number_within_a_tenth_of_the_best_speed_is_chosen(seconds: dict[int, float], number: int) -> None:
    assert smallest_good(seconds) == number


@pytest.mark.parametrize(
    ("limit", "numbers"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (6, [1, 2, 4, 6])]
)
def test_powers_of_two_and_the_limit_are_measured(limit: int, numbers: list[int]) -> None:
    assert numbers_of_threads(limit) == numbers


class Machine:
    """A clock that a call advances, depending on the number of threads."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds, self.now, self.threads, self.calls = seconds, 0.0, 1, [0]

    def call(self) -> None:
        self.now += self.seconds[self.threads]
        self.calls.append(self.threads)

    def set(self, threads: int) -> None:
        self.threads = threads

    def clock(self) -> float:
        return self.now


def test_numbers_of_threads_take_turns_until_the_budget_is_used_up() -> None:
    machine = Machine({1: 0.02, 2: 0.01})
    found = time_threads(machine.call, [1, 2], machine.clock, machine.set, budget_s=0.08)
    assert found == {1: pytest.approx(0.02), 2: pytest.approx(0.01)}
    # The first call makes the recording.
    assert machine.calls[2:] == [1, 2, 1, 2, 1, 2]


def test_a_slow_update_is_measured_once_with_each_number() -> None:
    machine = Machine({1: 5.0, 2: 3.0})
    assert time_threads(machine.call, [1, 2], machine.clock, machine.set, budget_s=0.08) == {1: 5.0, 2: 3.0}
    assert len(machine.calls) == 4


def test_the_first_turn_in_which_threads_start_does_not_count() -> None:
    machine = Machine({1: 0.02, 2: 1.0})

    def call() -> None:
        machine.call()
        if machine.threads == 2:
            machine.seconds[2] = 0.01

    found = time_threads(call, [1, 2], machine.clock, machine.set, budget_s=1.1)
    assert found == {1: pytest.approx(0.02), 2: pytest.approx(0.01)}


@pytest.mark.parametrize(
    ("seconds", "numbers"),
    [({1: 0.1, 2: 0.06, 4: 0.04}, [1, 2, 4]), ({1: 0.1, 2: 0.2, 4: 0.9}, [1, 2]), ({1: 0.1, 2: 5.0, 4: 0.1}, [1])],
)
def test_numbers_from_the_first_without_free_cores_are_not_measured(
    seconds: dict[int, float], numbers: list[int]
) -> None:
    machine = Machine(seconds)
    assert free_numbers([1, 2, 4], machine.clock, machine.set, machine.call) == numbers


def test_the_log_says_the_number_and_the_rates(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[list[int]] = []
    with caplog.at_level(logging.INFO):
        threads = choose(config_of(), CONTINUOUS, CPU, limit=4, measure=given({1: 0.1, 2: 0.05, 4: 0.049}, asked))  # type: ignore[arg-type]
    assert threads == Threads(2, 4)
    assert asked == [[1, 2, 4]]
    assert torch.get_num_threads() == 2
    (line,) = caplog.messages
    assert re.search(r"learner\.torch_threads auto: 2 of 4; .*10 with 1, 20 with 2, 20\.41 with 4", line)


def test_threads_that_start_later_use_the_number() -> None:
    choose(config_of(), CONTINUOUS, CPU, limit=2, measure=given({1: 2.0, 2: 1.0}, []))  # type: ignore[arg-type]
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert found == [2]


def test_nothing_is_measured_with_one_core_on_a_gpu_or_with_a_fixed_number() -> None:
    asked: list[list[int]] = []
    measure = given({1: 1.0, 2: 0.1}, asked)
    assert choose(config_of(), CONTINUOUS, CPU, limit=1, measure=measure) == Threads(1, 1)  # type: ignore[arg-type]
    assert choose(config_of(), CONTINUOUS, torch.device("cuda"), limit=2, measure=measure) == Threads(1, 2)  # type: ignore[arg-type]
    assert choose(config_of(2), CONTINUOUS, CPU, limit=2, measure=measure) is None  # type: ignore[arg-type]
    assert asked == []


def test_a_resumed_run_reuses_its_number_unless_the_limit_has_changed() -> None:
    asked: list[list[int]] = []
    saved = asdict(Threads(2, 4))
    measure = given({1: 1.0, 2: 1.0, 4: 0.1, 8: 0.1}, asked)
    assert choose(config_of(), CONTINUOUS, CPU, saved, limit=4, measure=measure) == Threads(2, 4)  # type: ignore[arg-type]
    assert asked == []
    assert choose(config_of(), CONTINUOUS, CPU, saved, limit=8, measure=measure) == Threads(4, 8)  # type: ignore[arg-type]
    assert asked == [[1, 2, 4, 8]]


def test_a_failed_measurement_leaves_one_thread_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def fails(config: RunConfig, spec: EnvironmentSpec, numbers: Sequence[int]) -> dict[int, float]:
        raise ValueError("no such data\nand more")

    with caplog.at_level(logging.INFO):
        assert choose(config_of(), CONTINUOUS, CPU, limit=2, measure=fails) == Threads(1, 2)
    (line,) = caplog.messages
    assert re.fullmatch(r"learner\.torch_threads auto: 1 of 2; .*ValueError: no such data", line)


def test_more_threads_than_cores_are_used_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    set_configured(config_of(3), limit=3)
    assert not caplog.records
    set_configured(config_of(3), limit=2)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "\n" not in record.getMessage()
    assert re.search(r"learner\.torch_threads .*3, .*2 cores", record.getMessage())
    assert torch.get_num_threads() == 3
    set_configured(config_of("auto"), limit=2)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("threads", [0, -1, "many", 1.5])
def test_torch_threads_is_a_positive_number_or_auto(threads: object) -> None:
    with pytest.raises((ValueError, UserError), match="torch_threads"):
        config_of(threads)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["dqn", "td3", "sac", "d4pg", "xqc", *CLASSES])
@pytest.mark.parametrize("n_step", [1, 3])
def test_updates_of_every_algorithm_are_measured(name: str, n_step: int) -> None:
    if name in CLASSES:
        section: dict[str, object] = {"value_sizes": [32, 32]}
    elif name in ("d4pg", "xqc"):
        section = {"n_step": n_step, "policy_sizes": [32, 32], "critic_sizes": [32, 32]}
    else:
        section = {"n_step": n_step}
    config = RunConfig.model_validate(
        {"environment": "Small-v0", "algorithm": name, name: {"batch_size": 16, **section}}
    )
    found = update_seconds(config, DISCRETE if name in ("dqn", "impala") else CONTINUOUS, [1, 2])
    # Without 2 where other programs use the cores.
    assert 1 in found
    assert all(each > 0 for each in found.values())


@pytest.mark.parametrize("threads", [1, 2])
def test_updates_with_a_fixed_number_of_threads_are_reproducible(threads: int) -> None:
    """The sizes are those from which torch and MKL use two threads."""
    torch.set_num_threads(threads)
    config = config_of(threads, "td3", hidden_sizes=[256, 256], batch_size=256)
    batch = random_batch(CONTINUOUS, 2 * 256, Returns(1, 0.99))
    states = []
    for _ in range(2):
        algorithm: Algorithm = make_algorithm(config, CONTINUOUS, CPU)
        for _ in range(3):
            algorithm.update(batch, np.ones(2 * 256, np.float32))
        states.append(algorithm.state())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
