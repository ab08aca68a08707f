import re
from typing import Any

from actorq_apps.cli.display.report import result_lines

SIZES = {"fp32": 20_480, "emitted": 9_812}
FIRST = {"name": "0", "weights": "float32", "reason": "first layer"}
GATED = {"name": "1", "weights": "float32", "reason": "fidelity gate"}
INT8 = {"name": "2", "weights": "int8 per channel", "reason": ""}


def line(*layers: dict[str, str], agreement: float | None = None) -> str:
    fidelity: dict[str, Any] = {
        "relative_mean_error": 0.0042,
        "relative_max_error": 0.031,
        "argmax_agreement": agreement,
        "layers": list(layers),
    }
    (found,) = (text for text in result_lines({"policy_bytes": SIZES, "fidelity": fidelity}) if "policy" in text)
    return found


def test_discrete_actions_tell_their_agreement() -> None:
    assert re.match(r"policy 9\.6 KiB .* 20\.0 KiB, .* 98\.7%, 1 of 2 layers", line(FIRST, INT8, agreement=0.987))


def test_continuous_actions_tell_their_error() -> None:
    assert re.match(r"policy 9\.6 KiB .* 20\.0 KiB, action error 0\.42% .* 3\.1%, 0 of 1 layers", line(INT8))


def test_a_policy_that_tells_a_distribution_tells_its_divergence() -> None:
    fidelity = {"relative_mean_error": 0.1, "argmax_agreement": 0.5, "mean_kl": 0.00012, "max_kl": 0.0345}
    told = result_lines({"policy_bytes": SIZES, "fidelity": fidelity})[1]
    assert re.match(r"policy 9\.6 KiB .* 20\.0 KiB, KL .* 0\.00012 nats, .* 0\.035$", told)


def test_layers_that_the_gate_left_in_float_are_counted() -> None:
    assert re.search(r"2 of 3 layers .*\b1 .*fidelity gate", line(FIRST, GATED, INT8, agreement=1.0))


def test_a_summary_of_an_older_version_lacks_layers() -> None:
    older = {"policy_bytes": SIZES, "fidelity": {"argmax_agreement": 0.9, "float_layers": ["0"]}}
    assert re.match(r"policy 9\.6 KiB .* 20\.0 KiB, .* 90\.0%$", result_lines(older)[1])


def test_a_policy_in_another_scheme_than_the_evaluated_one_is_named() -> None:
    evaluation = {"mean_return": 1.0, "episodes": 1, "policy_version": 2, "scheme": "int8-weights"}
    summary = {"evaluation": evaluation, "policy_bytes": {**SIZES, "scheme": "fp32"}, "fidelity": {"layers": []}}
    assert re.search(r"\nfp32 policy .*9\.6 KiB", "\n".join(result_lines(summary)))
    same = {**summary, "policy_bytes": {**SIZES, "scheme": "int8-weights"}}
    assert "\npolicy 9.6 KiB" in "\n".join(result_lines(same))


def test_a_success_rate_and_its_target_are_told() -> None:
    evaluation = {"mean_return": -3.25, "success_rate": 0.955, "episodes": 200, "policy_version": 2, "scheme": "int8"}
    told = result_lines({"state": "solved", "target_success": 0.95, "evaluation": evaluation})[0]
    assert re.match(r"solved: .* -3\.25, success 95\.5% .*success 95%.* 200 episodes, policy v2 int8$", told)
