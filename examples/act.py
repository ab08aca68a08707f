"""Act with an exported policy by ONNX Runtime and numpy alone, for robots and other programs.

    actorq export runs/mine -o policy.onnx
    python examples/act.py policy.onnx

policy.json in the same folder describes the environment, the inputs and the outputs.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
from numpy.typing import NDArray


class Policy:
    """The policy of a file. It computes the action for one observation, without exploration."""

    def __init__(self, file: Path) -> None:
        text = file.with_suffix(".json").read_text(encoding="utf-8")
        self.description: dict[str, Any] = json.loads(text)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        # Otherwise int8-weights may round activations, too.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        self._session = onnxruntime.InferenceSession(str(file), options)

    def act(self, observation: NDArray[Any]) -> Any:
        """The action: an index for discrete actions, else an array within the bounds."""
        environment = self.description["environment"]
        feeds: dict[str, NDArray[Any]] = {}
        for name, tensor in self.description["inputs"].items():
            shape = [1, *tensor["shape"][1:]]
            # SAC has a second input: its noise. Zeros give the most likely action.
            values = np.zeros(shape) if name == "noise" else np.asarray(observation).reshape(shape)
            feeds[name] = values.astype(tensor["dtype"])
        first = self._session.run(None, feeds)[0][0]
        if len(environment["sizes"]) == 1:
            return int(first.argmax())
        return first.reshape(environment["actions"]["shape"])


def main(file: Path, seed: int = 1) -> float:
    """Play one episode. Returns its return."""
    policy = Policy(file)
    environment = gymnasium.make(policy.description["environment"]["environment_id"])
    observation, _ = environment.reset(seed=seed)
    episode_return, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = environment.step(policy.act(observation))
        episode_return, over = episode_return + float(reward), terminated or truncated
    about = policy.description
    print(f"policy v{about['version']} {about['scheme']} returned {episode_return:.1f}")
    return episode_return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
