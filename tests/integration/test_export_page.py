"""Runs the commands and the Python of docs/how-to/export.md, on policies of DQN and SAC."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorq.domain.policy import Checkpoint
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.policy.policy_graph import calibration_batch, export_policy_graph, snapshot_parameters
from tests.builders.processors import exact_here
from tests.builders.stored_policies import stored_run
from tests.integration.training_run import actorq
from tests.learner_service.algorithms.algorithm_parts import make, random_batch
from tests.quantizer_service.quantizer_server import running_quantizer

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "export.md"
CARTPOLE = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), (2,))
PENDULUM = EnvironmentSpec("Pendulum-v1", ArraySpec((3,), "float32"), ArraySpec((1,), "float32", (-2.0,), (2.0,)), ())


def stored(root: Path, name: str, spec: EnvironmentSpec) -> None:
    """A run with untrained policies. Version 24 is the best."""
    algorithm = make(name, spec)
    graph = export_policy_graph(algorithm.policy, spec, algorithm.takes_noise)
    rows = random_batch(np.random.default_rng(0), spec, 64).observations
    calibration = calibration_batch(rows, spec, algorithm.takes_noise, seed=0)
    first = Checkpoint(24, 10, graph.digest, snapshot_parameters(algorithm.policy), calibration, 0.0)
    settings: dict[str, Any] = {"environment": spec.environment_id, "algorithm": name}
    stored_run(root, graph, [first, replace(first, version=29)], {24: 9.5}, spec=spec, **settings)


def test_the_blocks_of_the_page_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    stored(Path("runs/mine"), "dqn", CARTPOLE)
    stored(Path("runs/pendulum"), "sac", PENDULUM)
    printed = ""
    for language, code in re.findall(r"^```(sh|python)\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        if language == "python":
            with running_quantizer(Path("runs/mine/policies").absolute(), read_only=True) as address:
                exec(compile(code.replace("127.0.0.1:50052", address), str(PAGE), "exec"), {"__name__": "example"})
            continue
        for line in code.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "actorq"
            result = actorq(*arguments)
            assert (result.returncode, result.stderr) == (0, ""), line
            printed += result.stdout
    printed += capsys.readouterr().out
    # A client that requests no encoding gets signed weights. `actorq export` writes the encoding that is exact here.
    assert exact_here(Path("best.onnx").read_bytes()) == Path("policy.onnx").read_bytes()
    for expected in (
        "9.5",
        "best",
        "policy.onnx: version 24, int8",
        "policy-fp32.onnx: version 24, fp32",
        "episode 20/20",
    ):
        assert expected in printed
    assert re.search(r"policy v24 int8 returned \d+\.0\n", printed)
    assert re.search(r"pendulum\.onnx: version 24, int8 with signed weights, standard form, [\d,]+ bytes\n", printed)
    assert re.search(r"^returned -\d+\n", printed, re.MULTILINE)
