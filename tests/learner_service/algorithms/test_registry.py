"""Algorithms by name, by entry point and by path. Other values give one line."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_on_policy import RecurrentReinforce, Reinforce, RememberingLogits

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from learner_service.algorithms import (
    algorithm_class,
    is_on_policy,
    make_algorithm,
    registry,
)
from tests.learner_service.learner_parts import SPEC, ones, random_batch

PENDULUM = EnvironmentSpec("Pendulum-v1", ArraySpec((3,), "float32"), ArraySpec((1,), "float32", (-2.0,), (2.0,)), ())
UNBOUNDED = EnvironmentSpec("Free-v0", ArraySpec((3,), "float32"), ArraySpec((1,), "float32"), ())


@pytest.mark.parametrize(
    ("name", "spec"), [("dqn", SPEC), ("d4pg", PENDULUM), ("td3", PENDULUM), ("sac", PENDULUM), ("xqc", PENDULUM)]
)
def test_each_built_in_algorithm_is_made_by_its_name(name: str, spec: EnvironmentSpec) -> None:
    config = RunConfig(algorithm=name, seed=3)
    algorithm = make_algorithm(config, spec)
    assert algorithm.name == name
    section = getattr(config, name)
    assert (algorithm.batch_size, algorithm.n_step) == (section.batch_size, section.n_step)


@pytest.mark.parametrize("spec", [SPEC, PENDULUM], ids=["discrete", "continuous"])
@pytest.mark.parametrize("name", ["ppo", "impala"])
def test_an_on_policy_algorithm_is_made_by_name(name: str, spec: EnvironmentSpec) -> None:
    config = RunConfig(algorithm=name, seed=3)
    assert is_on_policy(algorithm_class(name))
    algorithm = make_algorithm(config, spec)
    assert is_on_policy(algorithm)
    section = getattr(config, name)
    assert (algorithm.name, algorithm.sampling) == (name, "clipped")
    assert (algorithm.batch_size, algorithm.rollout_size) == (section.batch_size, section.rollout_size)
    assert algorithm.epochs == getattr(section, "epochs", 1)


def test_an_algorithm_with_a_replay_is_not_on_policy() -> None:
    assert not is_on_policy(algorithm_class("dqn"))


def test_a_users_class_is_found_by_its_path() -> None:
    algorithm = make_algorithm(RunConfig(algorithm="own_algorithms:PatientDQN"), SPEC)
    assert algorithm.name == "patient-dqn"


def test_an_installed_package_adds_an_algorithm_as_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(group: str) -> EntryPoints:
        return EntryPoints([EntryPoint("patient", "own_algorithms:PatientDQN", group)])

    monkeypatch.setattr(registry, "entry_points", installed)
    assert algorithm_class("patient").name == "patient-dqn"
    with pytest.raises(
        UserError, match="expected dqn, d4pg, td3, sac, xqc, ppo, impala, td3bc, iql, patient, or MODULE:CLASS"
    ):
        algorithm_class("hasty")


def linear_q(**settings: Any) -> RunConfig:
    return RunConfig(algorithm="own_algorithms:LinearQ", algorithm_args=settings)


def test_an_algorithm_from_outside_has_settings_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_algorithm(linear_q(), SPEC).n_step == 2
    batch = random_batch(np.random.default_rng(0), 16)
    moved = []
    for config in (linear_q(), linear_q(learning_rate=0.2, n_step="5")):
        torch.manual_seed(0)
        algorithm = make_algorithm(config, SPEC)
        before = algorithm.state()["weight"]
        algorithm.update(batch, ones(16))
        moved.append(algorithm.state()["weight"] - before)
    assert algorithm.n_step == 5
    torch.testing.assert_close(moved[1], 2 * moved[0])


@pytest.mark.parametrize(
    ("algorithm", "given", "message"),
    [
        (
            "LinearQ",
            {"lerning_rate": 1},
            "unknown setting 'algorithm_args.lerning_rate'; did you mean 'algorithm_args.learning_rate'?",
        ),
        ("LinearQ", {"n_step": 0}, "setting 'algorithm_args.n_step': expected a whole number of at least 1, got 0"),
        (
            "LinearQ",
            {"n_step": None},
            "setting 'algorithm_args.n_step': expected a whole number of at least 1, got None",
        ),
        ("PatientDQN", {"n_step": 3}, "algorithm_args: the settings of algorithm own_algorithms:PatientDQN are --dqn."),
        ("OfOtherSettings", {}, "its settings are not a subclass of actorq.config.settings.Settings"),
    ],
)
def test_unknown_settings_of_an_algorithm_give_one_line(algorithm: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make_algorithm(RunConfig(algorithm=f"own_algorithms:{algorithm}", algorithm_args=given), SPEC)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_algorithm_without_settings_refuses_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("own_algorithms.LinearQ.settings")
    with pytest.raises(UserError, match=r"algorithm_args: algorithm own_algorithms:LinearQ has no settings of its own"):
        make_algorithm(linear_q(n_step=1), SPEC)


def test_a_class_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_here.py").write_text("from learner_service.algorithms.dqn import DQN as Mine\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    # The changes of `load` are undone.
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    assert algorithm_class("found_here:Mine").name == "dqn"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:Mine", "algorithm no_such_module:Mine: no_such_module cannot be imported: ModuleNotFound"),
        ("own_algorithms:Missing", "algorithm own_algorithms:Missing: module own_algorithms has no Missing"),
        ("own_algorithms:", "expected MODULE:NAME, got 'own_algorithms:'"),
        (
            "own_algorithms:NoAlgorithm",
            "algorithm own_algorithms:NoAlgorithm is not an algorithm: it lacks update, normalize, state, load_state",
        ),
        ("own_algorithms:NOT_A_CLASS", "is not an algorithm: it is not a class"),
    ],
)
def test_an_object_that_is_not_an_algorithm_gives_one_line(path: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        algorithm_class(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ThatFails", "algorithm own_algorithms:ThatFails has failed: ZeroDivisionError: batches / 0"),
        (
            "Unfinished",
            "own_algorithms:Unfinished is not an algorithm: it lacks policy, batch_size, n_step, discount; "
            "see learner_service.algorithms.base.Algorithm",
        ),
    ],
)
def test_an_algorithm_that_cannot_be_made_gives_one_line(name: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        make_algorithm(RunConfig(algorithm=f"own_algorithms:{name}"), SPEC)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        (
            "dqn",
            PENDULUM,
            "algorithm dqn needs discrete actions, but Pendulum-v1 has continuous ones of shape [1]; for continuous "
            "actions use d4pg, td3, sac, xqc, ppo, impala",
        ),
        (
            "sac",
            SPEC,
            "algorithm sac needs continuous actions, but CartPole-v1 has 2 discrete ones of shape []; for discrete "
            "actions use dqn, ppo, impala",
        ),
        ("ppo", UNBOUNDED, "Free-v0 has actions without finite bounds; actions must be discrete, or"),
        ("td3", UNBOUNDED, "Free-v0 has actions without finite bounds; actions must be discrete, or"),
    ],
)
def test_unsupported_actions_give_an_error_with_fitting_algorithms(
    name: str, spec: EnvironmentSpec, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        make_algorithm(RunConfig(algorithm=name), spec)
    assert message in str(caught.value)


def small(name: str, **changes: Any) -> RunConfig:
    return RunConfig.model_validate({"algorithm": name, "network": "own_algorithms:wide_and_shallow", **changes})


@pytest.mark.parametrize(("name", "spec"), [("dqn", SPEC), ("d4pg", PENDULUM), ("td3", PENDULUM), ("sac", PENDULUM)])
def test_a_users_network_is_in_the_policy_of_every_algorithm(name: str, spec: EnvironmentSpec) -> None:
    policy = make_algorithm(small(name), spec).policy
    assert (300, spec.observations.shape[0]) in {tuple(parameter.shape) for parameter in policy.parameters()}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("NOT_A_CLASS", "own_algorithms:NOT_A_CLASS is not a function: got int"),
        ("that_fails", "own_algorithms:that_fails has failed: ZeroDivisionError: units / 0"),
        ("of_nothing", "own_algorithms:of_nothing must return a torch.nn.Module, got a NoneType"),
        ("of_one_row", "must turn float32[B, 4] into float32[B, features]: it turned 2 rows into [8]"),
        (
            "always_the_same",
            "own_algorithms:always_the_same must make a new module with each call: the policy, the critics and the "
            "target networks need their own layers",
        ),
        (
            "that_counts",
            "own_algorithms:that_counts: the module changes 1.running_mean, 1.running_var, 1.num_batches_tracked when "
            "it is used; only parameters may change, so use LayerNorm instead of BatchNorm",
        ),
        (
            "that_drops_out",
            "own_algorithms:that_drops_out: the module's outputs for one batch differ from call to call; it "
            "must not draw random numbers, so remove Dropout",
        ),
        ("of_other_inputs", "must turn float32[B, 4] into float32[B, features]: mat1 and mat2 shapes"),
    ],
)
def test_a_network_that_does_not_fit_gives_one_line(function: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        make_algorithm(small("dqn", network=f"own_algorithms:{function}"), SPEC)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


class OfOneUnit(RecurrentReinforce):
    """Has a state of one number, whatever the run asks for."""

    def _make_policy(self, config: RunConfig, spec: EnvironmentSpec) -> torch.nn.Module:
        return RememberingLogits(spec.observations.shape[0], 1, spec.acting_size)


class WithoutState(Reinforce):
    """Has a policy without a state."""

    has_memory = True
    states = None


class WithoutStates(Reinforce):
    """Lacks the method `states`."""

    has_memory = True


@pytest.mark.parametrize(("kind", "size"), [("gru", 8), ("lstm", 16)])
def test_the_state_of_an_own_cell_has_the_size_that_the_run_asks_for(kind: str, size: int) -> None:
    memory = {"kind": kind, "units": 8}
    own = RunConfig.model_validate({"algorithm": "own_on_policy:RecurrentReinforce", "memory": memory})
    policy: Any = make_algorithm(own, SPEC).policy
    assert policy.state_size == size


@pytest.mark.parametrize(
    ("name", "memory", "message"),
    [
        ("OfOneUnit", {"kind": "gru", "units": 8}, "with state_size 8, got 1; memory.kind and memory.units set"),
        ("OfOneUnit", {"kind": "lstm", "units": 8}, "with state_size 16, got 1; memory.kind and memory.units set"),
        ("OfOneUnit", {"kind": "none"}, "memory.kind none: expected a policy of algorithm"),
        ("WithoutState", {"kind": "gru", "units": 8}, "with state_size 8, got 0; memory.kind and memory.units set"),
        ("WithoutStates", {"kind": "gru"}, "lacks the method states; see learner_service.algorithms.base.Recurrent"),
    ],
)
def test_an_own_memory_that_does_not_fit_gives_one_line(name: str, memory: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make_algorithm(RunConfig.model_validate({"algorithm": f"{__name__}:{name}", "memory": memory}), SPEC)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
