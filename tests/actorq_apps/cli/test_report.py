import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from actorq.config.run_config import RunConfig
from actorq.rundirectory import RunDirectory
from actorq_apps.cli.display.report import next_commands, print_result, result_lines

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


def test_reports_agreement_for_discrete_actions() -> None:
    assert re.match(r"policy 9\.6 KiB .* 20\.0 KiB, .* 98\.7%, 1 of 2 layers", line(FIRST, INT8, agreement=0.987))


def test_reports_the_action_error_for_continuous_actions() -> None:
    assert re.match(r"policy 9\.6 KiB .* 20\.0 KiB, action error 0\.42% .* 3\.1%, 0 of 1 layers", line(INT8))


def test_reports_the_divergence_of_a_stochastic_policy() -> None:
    fidelity = {"relative_mean_error": 0.1, "argmax_agreement": 0.5, "mean_kl": 0.00012, "max_kl": 0.0345}
    told = result_lines({"policy_bytes": SIZES, "fidelity": fidelity})[1]
    assert re.match(r"policy 9\.6 KiB .* 20\.0 KiB, KL .* 0\.00012 nats, .* 0\.035$", told)


def test_reports_the_drift_of_a_policy_with_memory() -> None:
    sequences = [{"steps": 1, "state_drift": 0.001}, {"steps": 64, "state_drift": 0.0123}]
    fidelity = {"relative_mean_error": 0.1, "relative_max_error": 0.2, "sequences": sequences}
    told = result_lines({"policy_bytes": SIZES, "fidelity": fidelity})[1]
    assert told.endswith("drift of the state 1.23% of its range")


def test_layers_that_the_gate_left_in_float_are_counted() -> None:
    assert re.search(r"2 of 3 layers .*\b1 .*fidelity gate", line(FIRST, GATED, INT8, agreement=1.0))


def test_a_summary_of_an_older_version_lacks_layers() -> None:
    older = {"policy_bytes": SIZES, "fidelity": {"argmax_agreement": 0.9, "float_layers": ["0"]}}
    assert re.match(r"policy 9\.6 KiB .* 20\.0 KiB, .* 90\.0%$", result_lines(older)[1])


def test_a_policy_in_another_scheme_than_the_evaluated_one_is_named() -> None:
    evaluation = {"mean_return": 1.0, "episodes": 1, "policy_version": 2, "scheme": "int8-weights"}
    summary = {"evaluation": evaluation, "policy_bytes": {**SIZES, "scheme": "fp32"}, "fidelity": {"layers": []}}
    assert re.search(r"\nfp32 policy .*9\.6 KiB", "\n".join(result_lines(summary)))
    same = {**summary, "policy_bytes": {**SIZES, "version": 2, "scheme": "int8-weights"}}
    assert "\npolicy 9.6 KiB" in "\n".join(result_lines(same))


def test_a_policy_of_another_version_than_the_evaluated_one_is_named() -> None:
    evaluation = {"mean_return": 1.0, "episodes": 1, "policy_version": 2, "scheme": "int8"}
    sizes = {**SIZES, "version": 5, "scheme": "int8"}
    summary = {"evaluation": evaluation, "policy_bytes": sizes, "fidelity": {"layers": []}}
    assert result_lines(summary)[1].startswith("newest policy, v5: 9.6 KiB instead of 20.0 KiB")


def test_reports_a_success_rate_and_its_target() -> None:
    evaluation = {"mean_return": -3.25, "success_rate": 0.955, "episodes": 200, "policy_version": 2, "scheme": "int8"}
    told = result_lines({"state": "solved", "target_success": 0.95, "evaluation": evaluation})[0]
    assert re.match(r"solved: .* -3\.25, success 95\.5% .*success 95%.* 200 episodes, policy v2 int8$", told)


METHOD = (
    "load x TDP 8 W (codecarbon's table, Some(R) Processor(TM) of a Long Name); RAM constant 20 W (codecarbon's guess "
    "from its size); CO2 of the grid of USA; the first 1.4 s at the mean power of the 1.0 s after them"
)


@pytest.mark.parametrize(
    ("energy", "line"),
    [
        ({"kwh": 3.3e-5, "co2_kg": 1.2e-5, "method": METHOD}, "0.033 Wh, 0.012 g CO2 (load x TDP 8 W)"),
        ({"kwh": 0.0, "co2_kg": 0.0, "method": "not measured: a reason"}, "energy: not measured: a reason"),
        ({"kwh": 1.0, "co2_kg": 0.4, "method": "node: RAPL " * 20}, "1000.000 Wh, 400.000 g CO2 (node: RAPL "),
    ],
)
def test_the_energy_fits_into_one_line_of_a_terminal(energy: dict[str, Any], line: str) -> None:
    shown = result_lines({"energy": energy})[-1]
    assert shown.startswith(line)
    assert len(shown) <= 80


def made_run(root: Path, policies: bool = True, **changes: Any) -> RunDirectory:
    run = RunDirectory(root)
    run.create(RunConfig.model_validate({"max_environment_steps": 500, **changes}))
    if policies:
        (run.policies / "00000001").mkdir(parents=True)
    return run


@pytest.mark.parametrize(
    ("changes", "summary", "budget"),
    [
        ({}, {}, []),
        ({}, {"state": "interrupted"}, []),
        ({}, {"state": "budget ended", "environment_steps": 500}, ["--max-environment-steps", "1000"]),
        ({"max_seconds": 7.5}, {"state": "budget ended", "wall_clock_s": 7.6}, ["--max-seconds", "15"]),
        ({"max_seconds": 90}, {"state": "budget ended", "wall_clock_s": 7.6}, ["--max-environment-steps", "1000"]),
    ],
)
def test_an_unsolved_run_names_the_command_that_continues_it(
    tmp_path: Path, changes: dict[str, Any], summary: dict[str, Any], budget: list[str]
) -> None:
    run = made_run(tmp_path / "my run", **changes)
    evaluate, resume = next_commands(run, summary)
    assert shlex.split(evaluate) == ["evaluate", "it:", "actorq", "evaluate", str(run.root)]
    expected = ["continue", "with:", "actorq", "train", "--resume", "--run-directory", str(run.root), *budget]
    assert shlex.split(resume) == expected


def test_a_solved_run_names_the_command_that_evaluates_it(tmp_path: Path) -> None:
    solved = {"state": "solved", "solved": True}
    assert list(next_commands(made_run(tmp_path / "run"), solved)) == [f"evaluate it: actorq evaluate {tmp_path}/run"]
    assert list(next_commands(made_run(tmp_path / "new", policies=False), solved)) == []


def test_the_evaluation_command_allows_the_environments_local_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("arms.py").write_text("")
    run = made_run(Path("run"), environment="arms:Arm-v0")
    assert next(next_commands(run, {})) == "evaluate it: actorq evaluate run --allow-modules arms"


def test_the_result_ends_with_the_folder_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run")
    run.summary.write_text('{"solved": true}')
    print_result(run, is_new=False)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert (first, last) == ("ended before the learner could write a summary", str(run.root))
