"""One run of Ray RLlib's PPO with several agents, in a separate process: JSON in on stdin.

`python -m benchmarks.libraries.peer_runs.rllib_agents`. All agents have one policy. Settings are those of
`benchmarks.training.agents.tasks`. RLlib has no setting for these differences:

- It scales advantages over the whole rollout, ActorQ in each minibatch.
- Its Adam has another epsilon, and first weights are its own.
- It waits for a rollout before it learns, and for the new policy before the next rollout. Two processes sample.
- If all present agents leave when others come, one of them leaves a step later (`lives.py`).

Masks are those of RLlib's example rllib/examples/rl_modules/action_masking_rl_module.py.
"""

import importlib
import json
import os
import sys
from typing import Any

from benchmarks.libraries.peer_runs.lives import Lives, make
from benchmarks.libraries.peer_runs.rllib import train
from benchmarks.libraries.peer_runs.rllib_team import made

_SAMPLERS = 2
_POLICY, _TEAM = "shared", "team"
_MASKED = "ray.rllib.examples.rl_modules.classes.action_masking_rlm"


def learn(
    task: str,
    environment: str,
    seed: int,
    episodes: int,
    period: int,
    share: float,
    lives: int,
    settings: dict[str, Any],
) -> None:
    """Learn, and tell the mean of `episodes` greedy episodes as often as EvaluationSchedule allows.

    lives: see `Lives`. settings: those of PPO, by name.
    """
    # Not a dependency of this project: the run's environment has it.
    ray = importlib.import_module("ray")
    ray.init(num_cpus=max(_SAMPLERS, len(os.sched_getaffinity(0))), include_dashboard=False, log_to_driver=False)
    importlib.import_module("ray.tune").register_env(_TEAM, lambda _: made(environment, lives))
    train(_config(Lives(make(environment), lives), seed, episodes, settings).build_algo(), period, share)


def _config(found: Lives, seed: int, episodes: int, settings: dict[str, Any]) -> Any:
    module = importlib.import_module("ray.rllib.core.rl_module.rl_module").RLModuleSpec
    modules = importlib.import_module("ray.rllib.core.rl_module.multi_rl_module").MultiRLModuleSpec
    model = importlib.import_module("ray.rllib.core.rl_module.default_model_config").DefaultModelConfig
    masked = importlib.import_module(_MASKED).ActionMaskingTorchRLModule if found.has_masks else None
    policy = module(
        module_class=masked,
        observation_space=found.observations,
        action_space=found.actions,
        model_config=model(
            fcnet_hiddens=list(settings["hidden_sizes"]),
            fcnet_activation=settings["activation"],
            vf_share_layers=False,
        ),
    )
    return (
        importlib.import_module("ray.rllib.algorithms.ppo")
        .PPOConfig()
        .environment(_TEAM, disable_env_checking=True)
        .env_runners(num_env_runners=_SAMPLERS, num_envs_per_env_runner=settings["environments"] // _SAMPLERS)
        .training(**training(settings))
        .multi_agent(policies={_POLICY}, policy_mapping_fn=lambda *_, **__: _POLICY)
        .rl_module(rl_module_spec=modules(rl_module_specs={_POLICY: policy}))
        .evaluation(
            evaluation_duration=episodes,
            evaluation_duration_unit="episodes",
            # The mean covers only the episodes of one evaluation.
            evaluation_config={"explore": False, "metrics_num_episodes_for_smoothing": episodes},
            # Never by itself. But with an interval there is an environment for evaluations.
            evaluation_interval=1_000_000_000,
        )
        .debugging(seed=seed, log_level="ERROR")
    )


def training(settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `PPOConfig.training`. settings: of `benchmarks.training.agents.tasks.Settings`, by name."""
    return {
        "train_batch_size_per_learner": settings["rollout_size"],
        "minibatch_size": settings["batch_size"],
        "num_epochs": settings["epochs"],
        "shuffle_batch_per_epoch": True,
        "lr": settings["learning_rate"],
        "gamma": settings["discount"],
        "lambda_": settings["gae_lambda"],
        "clip_param": settings["clip"],
        "entropy_coeff": settings["entropy_cost"],
        # RLlib weights the squared error, without the half. ActorQ has no bound on the error, and no loss of the KL
        # divergence.
        "vf_loss_coeff": settings["value_cost"] / 2,
        "vf_clip_param": float("inf"),
        "use_kl_loss": False,
        "grad_clip": settings["max_gradient_norm"],
        "grad_clip_by": "global_norm",
    }


if __name__ == "__main__":
    learn(**json.load(sys.stdin))
