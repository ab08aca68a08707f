"""`actorq quantize` from the command line, on a policy that torch exported."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from tests.integration.training_run import actorq

OBSERVATION_SIZE, ACTIONS = 17, 6

pytestmark = pytest.mark.usefixtures("operators_parsed_once")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy in the default form of torch.onnx.export, with its weights in a separate file."""
    torch.manual_seed(0)
    sizes = (OBSERVATION_SIZE, 128, 128)
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ELU())]
    module = nn.Sequential(*layers, nn.Linear(sizes[-1], ACTIONS), nn.Tanh())
    path = tmp_path_factory.mktemp("exported") / "policy.onnx"
    batch = {0: torch.export.Dim("batch", min=1)}
    example = (torch.zeros(2, OBSERVATION_SIZE),)
    torch.onnx.export(module, example, path, dynamo=True, dynamic_shapes=(batch,), external_data=True, verbose=False)
    assert len(list(path.parent.iterdir())) == 2
    return path


def run(model: Path, observations: NDArray[Any]) -> NDArray[Any]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: observations})
    return np.asarray(output)


def test_a_policy_of_torch_is_compared_and_the_written_policy_agrees(exported: Path, tmp_path: Path) -> None:
    observations = np.random.default_rng(0).standard_normal((40, OBSERVATION_SIZE)).astype(np.float32)
    np.savez(tmp_path / "observations.npz", observations)
    output = tmp_path / "quantized.onnx"
    given = ("--calibration", str(tmp_path / "observations.npz"), "--scheme", "int8-static", "-o", str(output))
    result = actorq("quantize", str(exported), *given)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "* int8-static" in result.stdout
    assert output.stat().st_size < (exported.parent / "policy.onnx.data").stat().st_size / 2
    error = np.abs(run(output, observations) - run(exported, observations))
    assert 0 < error.max() < 0.05


def test_a_mistake_is_one_line_and_exit_code_2(exported: Path, tmp_path: Path) -> None:
    result = actorq("quantize", str(exported), "-o", str(tmp_path / "absent" / "out.onnx"))
    assert (result.returncode, result.stdout) == (2, "")
    assert re.match(f"error: --output: .*folder {tmp_path}/absent", result.stderr)
    assert len(result.stderr.splitlines()) == 1


def test_help_calls_the_command_by_its_name() -> None:
    result = actorq("quantize", "--help")
    assert result.returncode == 0
    assert result.stdout.startswith("usage: actorq quantize MODEL.onnx [flags]")
    assert "--gate.max-mean-error X" in result.stdout
    assert "quantize" in actorq("--help").stdout
