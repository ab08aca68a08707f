"""The export snippets of docs/how-to/quantize.md run as printed, and their policies can be quantized."""

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from actorq.process import main
from quantizer_service.command import command

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "quantize.md").read_text(encoding="utf-8")
SIZE, ROWS = 6, 64

pytestmark = pytest.mark.usefixtures("operators_parsed_once")


def snippet(library: str) -> str:
    """The Python block below the heading of a library."""
    found = re.search(rf"^### {library}\n.*?^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def exported(code: str, observations: NDArray[Any], **names: object) -> NDArray[Any]:
    """Run a snippet, quantize its policy.onnx, and return the exported policy as a function."""
    exec(compile(code, "docs/how-to/quantize.md", "exec"), names)
    session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
    np.savez("observations.npz", observations)
    given = ["policy.onnx", "--calibration", "observations.npz", "--scheme", "int8-weights", "-o", "int8.onnx"]
    assert main(lambda: command.run(given)) == 0
    return np.asarray(session.run(None, {session.get_inputs()[0].name: observations})[0])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("algorithm", "environment"), [("PPO", "CartPole-v1"), ("DQN", "CartPole-v1"), ("SAC", "Pendulum-v1")]
)
def test_whole_policies_of_stable_baselines3(algorithm: str, environment: str) -> None:
    library = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")
    model = getattr(library, algorithm)("MlpPolicy", environment, device="cpu")
    model.save("model.zip")
    observations = np.random.default_rng(0).standard_normal((ROWS, *model.observation_space.shape), np.float32)
    actions = exported(snippet("Stable-Baselines3").replace("PPO", algorithm), observations)
    expected, _ = model.predict(observations, deterministic=True)
    np.testing.assert_allclose(actions, expected, rtol=1e-4, atol=1e-5)


class Actor(nn.Module):
    """An actor with the form of CleanRL's sac_continuous_action.py."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(SIZE, 256), nn.Linear(256, 256)
        self.fc_mean, self.fc_logstd = nn.Linear(256, 2), nn.Linear(256, 2)
        self.register_buffer("action_scale", torch.tensor([[2.0, 3.0]]))
        self.register_buffer("action_bias", torch.tensor([[0.0, 1.0]]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.fc2(torch.relu(self.fc1(x))))
        return self.fc_mean(x), torch.tanh(self.fc_logstd(x))


def test_a_sac_actor_in_the_form_of_cleanrl() -> None:
    actor = Actor()
    observations = np.random.default_rng(0).standard_normal((ROWS, SIZE), np.float32)
    actions = exported(snippet("CleanRL"), observations, actor=actor)
    mean = actor(torch.from_numpy(observations))[0].detach().numpy()
    np.testing.assert_allclose(actions, np.tanh(mean) * [2, 3] + [0, 1], rtol=1e-4, atol=1e-5)


class Module(nn.Module):
    """A module with the form of RLlib's RLModule."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (SIZE,))

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(SIZE, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))

    def forward_inference(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"action_dist_inputs": self.layers(batch["obs"])}


def test_a_module_in_the_form_of_rllib() -> None:
    module = Module()
    observations = np.random.default_rng(0).standard_normal((ROWS, SIZE), np.float32)
    logits = exported(snippet("RLlib"), observations, module=module)
    expected = module.layers(torch.from_numpy(observations)).detach().numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
