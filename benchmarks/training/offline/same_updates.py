"""Updates of our offline algorithms and of d3rlpy's, from the same weights with the same batches.

Returns depend on the luck of a seed. Weights do not: equal algorithms move them alike, except for rounding, which grows
from update to update. After some hundred updates it can change the side of an expectile, and networks of IQL then
differ by percents. The deviation of IQL's policy is another function of its parameter in d3rlpy, so policies of IQL are
not compared.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from actor_service.environments import make_environments
from actorq.config.run_config import RunConfig
from learner_service.algorithms import make_algorithm
from learner_service.batch import Batch

UPDATES, ROWS = 50, 256
_SEED = 1
_HIDDEN = ("_encoder._layers.0", "_encoder._layers.2")
_CRITICS, _VALUE, _POLICY = "q_funcs", "value_func", "policy"
# The compared networks, by the names of d3rlpy.
COMPARED: Mapping[str, tuple[str, ...]] = {"td3bc": (_POLICY, _CRITICS), "iql": (_CRITICS, _VALUE)}

Weights = Mapping[str, Any]


def compare(
    algorithm: str, environment: str, file: Path, ask: Callable[[dict[str, Any]], Any]
) -> Iterator[dict[str, Any]]:
    """For each network the distance between our weights and d3rlpy's after the last update.

    file: flat arrays of transitions (recording.py). ask: calls d3rlpy's process (peer.py).
    Distances are relative to d3rlpy's distance from the weights before the first update.
    """
    with closing(make_environments(environment, 1)) as environments:
        spec = environments.spec
    settings = {"batch_size": ROWS, "learning_rate": 3e-4, "hidden_sizes": (256, 256)}
    settings |= {"target_noise": 0.0} if algorithm == "td3bc" else {}
    config = RunConfig.model_validate(
        {
            **{"environment": environment, "algorithm": algorithm, "normalize_observations": False},
            **{"learner": {"precision": "fp32"}, algorithm: settings},
        }
    )
    made: Any = make_algorithm(config, spec)
    columns = _batches(file)
    with tempfile.TemporaryDirectory() as folder:
        batches, weights = Path(folder) / "batches.npz", Path(folder) / "weights.npz"
        low, high = spec.actions.bounds()
        scaled = (columns["actions"] - (high + low) / 2) / ((high - low) / 2)
        np.savez(batches, allow_pickle=False, **{**columns, "actions": scaled.astype(np.float32)})
        ask(
            {
                "function": "repeat",
                "algorithm": algorithm,
                "batches": str(batches),
                "weights": str(weights),
                "seed": _SEED,
            }
        )
        with np.load(weights) as found:
            theirs = {name: torch.from_numpy(found[name]) for name in found.files}
    for network in made.networks.values():
        for each in (network.network, network.target):
            _load(each, theirs)
    for update in range(UPDATES):
        made.update(
            Batch(
                observations=columns["observations"][update],
                actions=columns["actions"][update],
                returns=columns["rewards"][update],
                bootstrap_observations=columns["next_observations"][update],
                bootstrap_discounts=np.full(ROWS, getattr(config, algorithm).discount, np.float32),
                policy_versions=np.zeros(ROWS, np.int64),
            ),
            np.ones(ROWS, np.float32),
        )
    ours = {name: values for network in made.networks.values() for name, values in _named(network.network)}
    for name in COMPARED[algorithm]:
        yield {"algorithm": algorithm, "network": name, "updates": UPDATES, **_distances(name, ours, theirs)}


def _batches(file: Path) -> dict[str, Any]:
    """float32[updates, rows, ...] of transitions that end no episode, because d3rlpy drops the last ones."""
    with np.load(file) as arrays:
        columns = {name: arrays[name] for name in arrays.files}
    kept = np.flatnonzero(~(columns["terminations"] | columns["truncations"]))
    chosen = np.random.default_rng(_SEED).choice(kept, (UPDATES, ROWS))
    names = ("observations", "actions", "rewards", "next_observations")
    return {name: columns[name][chosen].astype(np.float32) for name in names}


def _named(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Our parameters by d3rlpy's names. The twin critics are two networks there."""
    for name, values in network.named_parameters():
        *path, kind = name.split(".")
        if path[-1] == "stacked":
            layer = (*_HIDDEN, "_fc")[int(kind) // 2]
            for index in (0, 1):
                yield f"{_CRITICS}.{index}.{layer}.{('weight', 'bias')[int(kind) % 2]}", values[index]
        elif path[0] == "value":
            yield f"{_VALUE}.{_layer(path[1:])}.{kind}", values
        else:
            yield f"{_POLICY}.{_layer(path)}.{kind}", values


def _layer(path: list[str]) -> str:
    return "_fc" if path[0] == "head" else f"_encoder._layers.{path[1]}"


@torch.no_grad()
def _load(network: nn.Module, theirs: Weights) -> None:
    """Give our network d3rlpy's first weights."""
    for name, values in _named(network):
        # The name of the last layer of IQL's policy.
        found = theirs.get(f"before.{name}", theirs.get(f"before.{name.replace('_fc', '_mu')}"))
        values.copy_(found)


def _distances(network: str, ours: Weights, theirs: Weights) -> dict[str, float]:
    names = [name for name in ours if name.startswith(f"{network}.")]
    before, after, own = (
        torch.cat([weights[f"{prefix}{name}"].detach().flatten() for name in names])
        for weights, prefix in ((theirs, "before."), (theirs, "after."), (ours, ""))
    )
    moved = float((after - before).norm())
    return {"distance": float((own - after).norm()) / moved, "moved": moved / float(before.norm())}
