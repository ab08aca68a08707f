"""Other libraries are compared fairly: equal settings, equal episodes, pinned packages, and nothing left running."""

import sys
from collections.abc import Sequence
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from actor_service.environments import describe_environment
from actorq.config.run_config import RunConfig
from actorq.process import parse_arguments
from benchmarks.environments.coded import KINDS, STEPS, blind
from benchmarks.environments.packages import PACKAGES
from benchmarks.environments.structured import TARGET
from benchmarks.libraries.parity_episodes import final_returns
from benchmarks.libraries.parity_settings import TD3
from benchmarks.libraries.peers.environments import requirements
from benchmarks.libraries.peers.process import run_tree
from benchmarks.libraries.peers.systems import RLLIB, STABLE_BASELINES
from benchmarks.onpolicy.settings import TASKS, Task
from benchmarks.training.offline.targets import D3RLPY

ROOT = Path(__file__).parents[2]


def _config(flags: Sequence[str]) -> RunConfig:
    (config,) = parse_arguments("actorq train", "", (RunConfig,), flags)
    assert isinstance(config, RunConfig)
    return config


def test_both_libraries_learn_off_policy_with_the_same_settings() -> None:
    theirs, ours = TD3.stable_baselines(), _config(TD3.actorq())
    assert list(ours.td3.hidden_sizes) == theirs["policy_kwargs"]["net_arch"]
    assert (ours.td3.learning_rate, ours.td3.target_rate) == (theirs["learning_rate"], theirs["tau"])
    assert ours.exploration.random_steps == ours.replay.min_size == theirs["learning_starts"]
    # One update per step.
    assert ours.rate_limiter.samples_per_insert == theirs["batch_size"]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_both_libraries_learn_on_policy_with_the_same_settings(task: Task) -> None:
    config, theirs = _config(task.actorq()), task.stable_baselines()
    ours = config.ppo
    assert (theirs["batch_size"], theirs["n_epochs"]) == (ours.batch_size, ours.epochs)
    assert (theirs["gamma"], theirs["gae_lambda"]) == (ours.discount, ours.gae_lambda)
    # Their loss of values is the squared error, ours is half of it.
    assert (theirs["ent_coef"], 2 * theirs["vf_coef"]) == (ours.entropy_cost, ours.value_cost)
    assert theirs["max_grad_norm"] == ours.max_gradient_norm
    assert theirs["n_steps"] * task.environments == ours.rollout_size
    assert (ours.hidden_sizes, ours.value_sizes, ours.activation) == ((64, 64), (64, 64), "tanh")
    # Their standard deviation is 1 in the environment's units, at first.
    spec = describe_environment(task.environment)
    if not spec.sizes:
        assert np.exp(ours.log_std) * spec.actions.high[0] == pytest.approx(1.0)


def test_the_same_seed_gives_the_same_first_states_whoever_acts() -> None:
    def first_states(action: int, seed: int) -> list[list[float]]:
        seen: list[list[float]] = []

        def act(state: NDArray[np.float32]) -> NDArray[np.int64]:
            seen.append(state.tolist())
            return np.array(action)

        final_returns(act, gymnasium.make("CartPole-v1"), 1, seed)
        return seen[:1]

    assert first_states(0, 5) == first_states(1, 5) != first_states(1, 6)


def test_packages_are_pinned_and_torch_is_that_of_actorq() -> None:
    ours = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    [torch] = [line for line in ours if line.startswith("torch==")]
    for peer in (STABLE_BASELINES, RLLIB, D3RLPY):
        lines = requirements(peer).read_text(encoding="utf-8").splitlines()
        assert torch in lines
        assert all("==" in line and "+" not in line for line in lines if not line.startswith("#"))
    assert all(requirement.count("==") == 1 for package in PACKAGES for requirement in package.requirements)


# Starts a process that outlives it, tells its number, and waits for ever.
_PARENT = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-IS", "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
signal.pause()
"""


def test_the_time_limit_ends_all_processes_of_a_run(tmp_path: Path) -> None:
    lines: list[str] = []
    command = [sys.executable, "-IS", "-c", _PARENT]
    outcome = run_tree(command, "", 0.5, tmp_path / "errors", lambda _, line: lines.append(line), grace_s=2.0)
    assert outcome.timed_out
    assert not psutil.pid_exists(int(lines[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_that_is_blind_to_a_part_stays_below_the_target(kind: str) -> None:
    assert blind(kind) < TARGET < STEPS
