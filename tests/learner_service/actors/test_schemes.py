"""The schemes that may act in a run, and the policy that represents the run."""

from dataclasses import replace

import pytest

from actorq.domain.policy import FLOAT32, INT8_PER_CHANNEL, SCHEMES, FidelityReport, LayerReport, PolicyDescriptor
from actorq.domain.status import ActorReport, ActorStatus
from actorq.domain.trajectory import Role
from actorq.telemetry.process_stats import measure_process
from learner_service.actors.schemes import acting_schemes, policy_of

PROCESS = measure_process("actor-0", "actor")


def policy(scheme: str, weights: str = INT8_PER_CHANNEL) -> PolicyDescriptor:
    weights = FLOAT32 if scheme == "fp32" else weights
    fidelity = FidelityReport(1, 0.0, 0.0, 0.0, 0.0, None, (LayerReport("torso.2", weights),))
    return PolicyDescriptor("run", 1, 0, scheme, b"", 1, 1, 0.0, fidelity)


def actors(*schemes: str, role: Role = "actor") -> tuple[ActorStatus, ...]:
    report = ActorReport(1, "", 0, 0.0, 0, (), PROCESS)
    return tuple(
        ActorStatus(f"{role}-{i}", role, i, True, replace(report, scheme=scheme)) for i, scheme in enumerate(schemes)
    )


@pytest.mark.parametrize(
    ("scheme", "acting"),
    [
        ("auto", SCHEMES),
        ("int8", ("int8", "fp32", "int8-weights")),
        ("int8-static", ("int8-static", "fp32", "int8-weights")),
        ("int4", ("int4", "fp32", "int8-weights")),
        ("int8-weights", ("int8-weights", "fp32")),
        ("fp32", ("fp32",)),
    ],
)
def test_acting_schemes_include_the_fallbacks_and_with_auto_all_schemes(scheme: str, acting: tuple[str, ...]) -> None:
    assert acting_schemes(scheme) == acting


def test_a_fixed_scheme_decides_for_any_reports_of_actors() -> None:
    policies = [policy("fp32"), policy("int8", FLOAT32)]
    assert policy_of("int8", policies, actors("fp32", "fp32")) is policies[1]
    assert policy_of("int4", policies, actors("int8")) is None
    assert policy_of("int8", (), actors("int8")) is None


def test_with_auto_the_most_reported_scheme_decides() -> None:
    policies = [policy("int8"), policy("fp32"), policy("int4")]
    assert policy_of("auto", policies, actors("int8", "fp32", "fp32")) is policies[1]
    # The evaluators do not count, nor those that have reported nothing, and of equals the first of SCHEMES does.
    evaluators = actors("int4", "int4", "int4", role="evaluator")
    unknown = (ActorStatus("actor-9", "actor", 9, True, None), *actors("", "int8-static", "int8-static"))
    assert policy_of("auto", policies, (*actors("int4", "int8"), *evaluators, *unknown)) is policies[0]


def test_with_auto_and_no_report_the_first_policy_is_chosen() -> None:
    policies = [policy("int8"), policy("fp32")]
    assert policy_of("auto", policies, ()) is policies[0]
    assert policy_of("auto", policies, actors("")) is policies[0]
    assert policy_of("auto", (), actors("int8")) is None


def test_with_auto_a_policy_that_became_fp32_is_found_by_its_effective_scheme() -> None:
    policies = [policy("int4"), policy("int8", FLOAT32)]
    assert policy_of("auto", policies, actors("fp32")) is policies[1]
    # But not before a requested scheme.
    policies.append(policy("fp32"))
    assert policy_of("auto", policies, actors("fp32")) is policies[2]
