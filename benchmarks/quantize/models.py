"""Untrained policies of ten libraries from PyPI, each built by its own package.

Tested versions: stable-baselines3 2.9.2, sb3-contrib 2.9.2, d3rlpy 2.8.1, tianshou 2.0.1 and torchrl 0.14.1. Also skrl
2.1.1, rsl-rl-lib 5.5.1, pfrl 0.4.0, elegantrl 0.3.6 and rl-games 1.6.5. They are not dependencies of the project. Only
this module imports them.
"""

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.policy.foreign.models import IMAGE, SIZE, Foreign, Values

ACTIONS, COMPONENTS = 6, 4
WIDTHS = ((64, 64), (128, 128), (256, 256), (400, 300), (256, 128, 64), (512, 256, 128))
_VECTOR = gymnasium.spaces.Box(-np.inf, np.inf, (SIZE,), np.float32)
_IMAGES = gymnasium.spaces.Box(0, 255, IMAGE, np.uint8)
_BOX, _DISCRETE = gymnasium.spaces.Box(-1, 1, (COMPONENTS,), np.float32), gymnasium.spaces.Discrete(ACTIONS)


@dataclass(frozen=True)
class Model:
    """A policy to export.

    discrete: whether its first output has a value for each action.
    write: exports it with the exporter of its library; None for torch's.
    """

    policy: Foreign
    discrete: bool
    write: Callable[[Path], object] | None = None


def libraries() -> Mapping[str, Callable[[], Iterator[Model]]]:
    """The makers of policies, by the name of the library."""
    return {
        "stable-baselines3": _stable_baselines3,
        "sb3-contrib": _sb3_contrib,
        "d3rlpy": _d3rlpy,
        "tianshou": _tianshou,
        "torchrl": _torchrl,
        "skrl": _skrl,
        "rsl-rl-lib": _rsl_rl,
        "pfrl": _pfrl,
        "elegantrl": _elegantrl,
        "rl-games": _rl_games,
    }


def _model(
    library: str,
    name: str,
    module: nn.Module,
    discrete: bool,
    call: Callable[..., Any] | None = None,
    inputs: tuple[tuple[int, ...], ...] = ((SIZE,),),
) -> Model:
    return Model(Foreign(library, name, Values(module, call or _forward), inputs), discrete)


def _forward(module: nn.Module, *inputs: Tensor) -> Any:
    return module(*inputs)


def _rate(_: float) -> float:
    return 1e-4


def _mean_action(policy: Any, observations: Tensor) -> Any:
    actor = policy.actor
    features = actor.extract_features(observations, actor.features_extractor)
    return torch.tanh(actor.mu(actor.latent_pi(features)))


def _stable_baselines3() -> Iterator[Model]:
    common = importlib.import_module("stable_baselines3.common.policies")
    dqn, sac, td3 = (importlib.import_module(f"stable_baselines3.{name}.policies") for name in ("dqn", "sac", "td3"))
    torch.distributions.Distribution.set_default_validate_args(False)

    def logits(policy: Any, observations: Tensor) -> Any:
        return policy.get_distribution(observations).distribution.logits

    def mean(policy: Any, observations: Tensor) -> Any:
        features = policy.extract_features(observations, policy.pi_features_extractor)
        return policy.action_net(policy.mlp_extractor.forward_actor(features))

    for widths in WIDTHS[1:3]:
        made = common.ActorCriticPolicy(_VECTOR, _DISCRETE, _rate, net_arch=list(widths))
        yield _model("stable-baselines3", f"PPO {widths}", made, True, logits)
        made = common.ActorCriticPolicy(_VECTOR, _BOX, _rate, net_arch=list(widths))
        yield _model("stable-baselines3", f"PPO, Gaussian {widths}", made, False, mean)
    made = dqn.DQNPolicy(_VECTOR, _DISCRETE, _rate, net_arch=[256, 256])
    yield _model("stable-baselines3", "DQN", made, True, lambda policy, x: policy.q_net(x))
    made = dqn.CnnPolicy(_IMAGES, _DISCRETE, _rate)
    yield _model("stable-baselines3", "DQN, CNN", made, True, lambda policy, x: policy.q_net(x), (IMAGE,))
    yield _model("stable-baselines3", "SAC", sac.SACPolicy(_VECTOR, _BOX, _rate), False, _mean_action)
    yield _model(
        "stable-baselines3", "TD3", td3.TD3Policy(_VECTOR, _BOX, _rate), False, lambda policy, x: policy.actor(x)
    )


def _sb3_contrib() -> Iterator[Model]:
    tqc, qrdqn = (importlib.import_module(f"sb3_contrib.{name}.policies") for name in ("tqc", "qrdqn"))

    def values(policy: Any, observations: Tensor) -> Any:
        return policy.quantile_net(observations).mean(dim=1)

    for widths in WIDTHS[:4]:
        made = tqc.TQCPolicy(_VECTOR, _BOX, _rate, net_arch=list(widths))
        yield _model("sb3-contrib", f"TQC {widths}", made, False, _mean_action)
    for widths in WIDTHS[1:3]:
        made = qrdqn.QRDQNPolicy(_VECTOR, _DISCRETE, _rate, net_arch=list(widths))
        yield _model("sb3-contrib", f"QR-DQN {widths}", made, True, values)


def _d3rlpy() -> Iterator[Model]:
    algorithms, datasets = (importlib.import_module(f"d3rlpy.{name}") for name in ("algos", "dataset"))
    # The library requests opset 11 of torch's first exporter.
    torch.onnx.export = functools.partial(torch.onnx.export, dynamo=False)
    rng = np.random.default_rng(0)
    rows, ends = rng.standard_normal((200, SIZE)).astype(np.float32), np.arange(200) % 100 == 99
    actions = {
        True: rng.integers(0, ACTIONS, (200, 1)),
        False: rng.uniform(-1, 1, (200, COMPONENTS)).astype(np.float32),
    }
    for name in ("DQN", "DiscreteCQL", "DiscreteSAC", "SAC", "TD3", "IQL", "CQL"):
        discrete = name.startswith("D")
        made = getattr(algorithms, f"{name}Config")().create(device="cpu:0")
        made.build_with_dataset(datasets.MDPDataset(rows, actions[discrete], rng.standard_normal(200), ends))
        # Its discrete policies return the index of the action.
        write = functools.partial(_saved, made)
        yield Model(Foreign("d3rlpy", name, nn.Identity()), False, write)


def _saved(algorithm: Any, path: Path) -> None:
    algorithm.save_policy(str(path))


def _tianshou() -> Iterator[Model]:
    common = importlib.import_module("tianshou.utils.net.common")
    for widths in WIDTHS:
        made = common.MLP(input_dim=SIZE, output_dim=ACTIONS, hidden_sizes=list(widths))
        yield _model("tianshou", f"MLP {widths}", made, True)


def _torchrl() -> Iterator[Model]:
    modules = importlib.import_module("torchrl.modules")
    for widths in WIDTHS:
        made = modules.MLP(in_features=SIZE, out_features=COMPONENTS, num_cells=list(widths))
        yield _model("torchrl", f"MLP {widths}", made, False)


def _skrl() -> Iterator[Model]:
    instantiators = importlib.import_module("skrl.utils.model_instantiators.torch")

    def action(model: Any, observations: Tensor) -> Any:
        return model.compute({"observations": observations, "states": observations}, role="")[0]

    for widths in WIDTHS:
        network = [{"name": "net", "input": "OBSERVATIONS", "layers": list(widths), "activations": "elu"}]
        made = instantiators.deterministic_model(
            observation_space=_VECTOR, action_space=_BOX, device="cpu", network=network, output="ACTIONS"
        )
        yield _model("skrl", f"deterministic {widths}", made, False, action)


def _rsl_rl() -> Iterator[Model]:
    modules = importlib.import_module("rsl_rl.modules")
    for widths in WIDTHS:
        yield _model("rsl-rl-lib", f"MLP {widths}", modules.MLP(SIZE, COMPONENTS, list(widths), "elu"), False)
    for kind, states in (("lstm", 2), ("gru", 1)):
        for units in (128, 256):
            memory = modules.RNN(SIZE, units, 1, kind)
            made = nn.ModuleList((memory.rnn, modules.MLP(units, COMPONENTS, [64], "elu")))
            inputs = ((SIZE,), *[(1, units)] * states)
            yield _model("rsl-rl-lib", f"{kind.upper()} {units}", made, False, _recurrent, inputs)


def _recurrent(policy: Any, observations: Tensor, *states: Tensor) -> Any:
    layer, head = policy
    turned = tuple(state.transpose(0, 1) for state in states)
    features, after = layer(observations[None], turned if len(turned) > 1 else turned[0])
    outputs = after if isinstance(after, tuple) else (after,)
    return head(features[0]), *(state.transpose(0, 1) for state in outputs)


def _pfrl() -> Iterator[Model]:
    functions = importlib.import_module("pfrl.q_functions")
    for units, layers in ((64, 2), (128, 2), (256, 2), (128, 3), (256, 3), (512, 2)):
        made = functions.FCStateQFunctionWithDiscreteAction(SIZE, ACTIONS, units, layers)
        yield _model("pfrl", f"DQN {units} x {layers}", made, True, lambda policy, x: policy(x).q_values)


def _elegantrl() -> Iterator[Model]:
    made = importlib.import_module("elegantrl.agents.AgentSAC").ActorSAC
    for widths in WIDTHS:
        yield _model("elegantrl", f"SAC {widths}", made(list(widths), SIZE, COMPONENTS), False)


def _rl_games() -> Iterator[Model]:
    builders = importlib.import_module("rl_games.algos_torch.network_builder")
    default = {"name": "default"}
    space = {
        "mu_activation": "None",
        "sigma_activation": "None",
        "mu_init": default,
        "sigma_init": {"name": "const_initializer", "val": 0},
        "fixed_sigma": True,
    }
    for widths in WIDTHS:
        mlp = {
            "units": list(widths),
            "activation": "elu",
            "d2rl": False,
            "initializer": default,
            "regularizer": {"name": "None"},
        }
        builder = builders.A2CBuilder()
        builder.load({"name": "actor_critic", "separate": False, "space": {"continuous": space}, "mlp": mlp})
        made = builder.build("a2c", actions_num=COMPONENTS, input_shape=(SIZE,), num_seqs=1, value_size=1)
        yield _model("rl-games", f"A2C {widths}", made, False, lambda policy, x: policy({"obs": x})[0])
