"""A whole run whose actors choose their schemes themselves."""

import re

import pytest

from actorq.arithmetic import arithmetic
from actorq.domain.policy import FP32, SCHEMES, variant_of
from tests.integration.training_run import TrainingRun, actorq

# Wide enough that int8 is faster on most processors. The test accepts any choice.
_WIDE = ("--dqn.hidden-sizes", "256,256", "--dqn.learning-rate", "0.001")
_CHOICE = re.compile(r"actor_service\.policies\.subscription: auto: (\S+) of .*")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """A finished run of two actors, which ended long after they chose."""
    # No return ends the run, because the number of steps to a return varies, and actors need some time to choose.
    budget = ("--target-return", "501", "--max-environment-steps", "20000")
    run = TrainingRun.start(tmp_path_factory.mktemp("runs") / "run", "--scheme", "auto", "--seed", "1", *_WIDE, *budget)
    code, printed = run.finish()
    assert code == 3, printed
    return run


def choices(run: TrainingRun, name: str) -> list[str]:
    """The schemes that a process chose, from its log."""
    return _CHOICE.findall((run.directory / "logs" / f"{name}.log").read_text())


def test_each_actor_measures_all_schemes_and_chooses(trained: TrainingRun) -> None:
    for name in ("actor-0", "actor-1", "evaluator"):
        # An actor chooses again only if the gate refused a scheme.
        assert choices(trained, name)
        log = (trained.directory / "logs" / f"{name}.log").read_text()
        assert all(f"{scheme} " in log for scheme in SCHEMES if scheme not in arithmetic().inexact_schemes)


def test_transitions_come_from_the_schemes_that_the_actors_chose(trained: TrainingRun) -> None:
    summary = trained.summary()
    chosen = {scheme for name in ("actor-0", "actor-1") for scheme in choices(trained, name)}
    by_scheme = summary["transitions_by_scheme"]
    # They act with fp32 until they have chosen.
    assert set(by_scheme) == chosen | {FP32}
    assert sum(by_scheme.values()) == summary["environment_steps"]
    assert sum(by_scheme[scheme] for scheme in chosen) > summary["environment_steps"] / 2


def test_the_last_evaluation_used_the_scheme_of_the_evaluator(trained: TrainingRun) -> None:
    evaluation = trained.summary()["evaluation"]
    assert evaluation["scheme"] in choices(trained, "evaluator")


def test_the_quantizer_emits_only_the_chosen_schemes(trained: TrainingRun) -> None:
    chosen = {choices(trained, name)[-1] for name in ("actor-0", "actor-1", "evaluator")}
    policies = sorted((trained.directory / "policies").glob("*/policy-*.onnx"))
    # The second half was published after all actors had chosen.
    emitted = {path.stem.removeprefix("policy-") for path in policies[len(policies) // 2 :]}
    assert emitted == {str(variant_of(scheme, arithmetic().weight_encoding)) for scheme in chosen}


def test_a_finished_run_is_evaluated_in_the_scheme_of_its_evaluation(trained: TrainingRun) -> None:
    scheme = trained.summary()["evaluation"]["scheme"]
    result = actorq("evaluate", str(trained.directory), "--episodes", "2")
    assert result.returncode == 0, result.stderr
    assert re.search(rf"policy v\d+ {scheme} ", result.stdout)


def test_a_finished_run_is_evaluated_in_the_fastest_scheme_of_this_processor(trained: TrainingRun) -> None:
    result = actorq("evaluate", str(trained.directory), "--episodes", "2", "--scheme", "auto")
    assert result.returncode == 0, result.stderr
    assert re.search(rf"policy v\d+ ({'|'.join(SCHEMES)}) ", result.stdout)
