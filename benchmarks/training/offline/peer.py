"""d3rlpy, in a separate process of its own Python: JSON in on stdin, JSON out as the last line.

The input has the name of a function of this module, and its arguments. Settings are those of the papers, as ours. The
number of torch threads is the caller's.
"""

import importlib
import json
import sys
import time
from typing import Any

import numpy as np


def learn(
    algorithm: str,
    environment: str,
    file: str,
    seed: int,
    updates: int,
    batch_size: int,
    inverse_temperature: float,
    start: int,
    episodes: int,
) -> dict[str, Any]:
    """Learn from a file of flat arrays, and return the mean return of greedy episodes and the updates per second.

    inverse_temperature: of IQL. start: seed of the first episode. The next ones have the next seeds.
    """
    # Not dependencies of this project: the run's environment has them.
    d3rlpy, gymnasium = (importlib.import_module(name) for name in ("d3rlpy", "gymnasium"))
    d3rlpy.seed(seed)
    evaluated = gymnasium.make(environment)
    with np.load(file) as arrays:
        dataset = d3rlpy.dataset.MDPDataset(
            *(arrays[name].astype(np.float32) for name in ("observations", "actions", "rewards")),
            terminals=arrays["terminations"].astype(np.float32),
            timeouts=arrays["truncations"].astype(np.float32),
        )
    space, scalers = evaluated.action_space, d3rlpy.preprocessing
    config = _config(
        d3rlpy,
        algorithm,
        batch_size=batch_size,
        action_scaler=scalers.MinMaxActionScaler(minimum=space.low, maximum=space.high),
        **(
            {"observation_scaler": scalers.StandardObservationScaler()}
            if algorithm == "td3bc"
            else {"weight_temp": inverse_temperature}
        ),
    )
    model = config.create(device="cpu:0")
    began = time.monotonic()
    adapter = d3rlpy.logging.NoopAdapterFactory()
    model.fit(dataset, updates, n_steps_per_epoch=updates, show_progress=False, logger_adapter=adapter)
    seconds = time.monotonic() - began
    returns = []
    for episode in range(episodes):
        observation, _ = evaluated.reset(seed=start + episode)
        total, over = 0.0, False
        while not over:
            action = model.predict(observation[None].astype(np.float32))[0]
            observation, reward, terminated, truncated, _ = evaluated.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    speed = {"updates": updates, "updates_per_s": round(updates / seconds, 1)}
    return {"returns": {"fp32": float(np.mean(returns))}, **speed, "version": d3rlpy.__version__}


def repeat(algorithm: str, batches: str, weights: str, seed: int) -> dict[str, Any]:
    """Make one update with each batch of a file. Actions of targets have no noise.

    batches: has observations, actions in [-1, 1], rewards and next_observations, float32[updates, rows, ...], of
        transitions that end no episode.
    weights: the file that gets all weights before the first and after the last update, as `before.NETWORK.NAME` and
        `after.NETWORK.NAME`.
    """
    d3rlpy, torch = importlib.import_module("d3rlpy"), importlib.import_module("torch")
    d3rlpy.seed(seed)
    with np.load(batches) as found:
        columns = {name: torch.from_numpy(found[name]) for name in found.files}
    count, rows = columns["rewards"].shape
    quiet = {"target_smoothing_sigma": 0.0} if algorithm == "td3bc" else {}
    model = _config(d3rlpy, algorithm, batch_size=rows, **quiet).create(device="cpu:0")
    model.create_impl(tuple(columns["observations"].shape[2:]), columns["actions"].shape[2])
    kept = _weights(model, "before")
    column = torch.zeros(rows, 1)
    for update in range(count):
        batch = {name: values[update] for name, values in columns.items()}
        batch["rewards"] = batch["rewards"].view(-1, 1)
        further = {"next_actions": batch["actions"], "returns_to_go": column, "terminals": column}
        made = d3rlpy.torch_utility.TorchMiniBatch(**batch, **further, intervals=column + 1, device="cpu:0")
        model.impl.inner_update(made, update + 1)
    np.savez(weights, allow_pickle=False, **kept, **_weights(model, "after"))
    return {"version": d3rlpy.__version__}


def _config(d3rlpy: Any, algorithm: str, **settings: Any) -> Any:
    rates = {"actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4}
    algorithms = d3rlpy.algos
    return (algorithms.TD3PlusBCConfig if algorithm == "td3bc" else algorithms.IQLConfig)(**rates, **settings)


def _weights(model: Any, when: str) -> dict[str, Any]:
    modules = model.impl.modules
    return {
        f"{when}.{network}.{name}": values.detach().numpy().copy()
        for network in ("policy", "q_funcs", "value_func")
        if hasattr(modules, network)
        for name, values in getattr(modules, network).state_dict().items()
    }


if __name__ == "__main__":
    given = json.load(sys.stdin)
    answer = learn(**given) if given.pop("function") == "learn" else repeat(**given)
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
