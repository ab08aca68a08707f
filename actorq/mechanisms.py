"""Which of RLx2's mechanisms a run has besides sparse networks: multi-step targets, a replay of dynamic capacity.

Both belong to `sparsity.method` rlx2 and can be switched on and off by themselves (arXiv 2205.15043, sec. 4.2).
"""

from typing import TYPE_CHECKING

from actorq.errors import UserError
from actorq.trajectory import EnvironmentSpec

if TYPE_CHECKING:
    from actorq.config import DynamicCapacityConfig, MultiStepConfig, RunConfig

# Their returns are of several steps from the first update on.
_MULTI_STEP_ANYWAY = ("dqn", "d4pg")


def check_mechanisms(config: "RunConfig", n_step: int) -> None:
    """Raise UserError when an algorithm of ours cannot have what is asked for, whatever its environment.

    n_step: steps of the algorithm's own returns.
    """
    multi_step_of(config, n_step)
    if config.algorithm == "dqn" and config.dynamic_buffer:
        raise UserError(_needs_continuous("dqn, whose are discrete"))


def multi_step_of(config: "RunConfig", n_step: int) -> "MultiStepConfig | None":
    """How targets become longer in this run; None where they do not.

    n_step: steps of the algorithm's own returns.

    With rlx2 and no word of `multi_step`, algorithms with returns of several steps of their own keep them. Raises
    UserError when multi-step targets are asked for with such an algorithm, or segments are shorter than the returns.
    """
    if not _asked_for(config, config.multi_step):
        return None
    name, later = config.algorithm, config.multi_step_returns
    if name in _MULTI_STEP_ANYWAY or n_step > 1:
        if config.multi_step is None:
            return None
        raise UserError(
            f"multi_step: expected an algorithm whose returns are of one step at first, got {name} with {n_step}: "
            + ("leave --multi-step out" if name in _MULTI_STEP_ANYWAY else f"set {name}.n_step to 1")
        )
    if config.actor.segment_length < later.n_step:
        raise UserError(
            f"actor.segment_length must be at least multi_step_returns.n_step ({later.n_step}), got "
            f"{config.actor.segment_length}: returns end with their segment"
        )
    return later


def dynamic_capacity_of(config: "RunConfig", spec: EnvironmentSpec) -> "DynamicCapacityConfig | None":
    """How the replay of this run forgets; None where it keeps what it has room for.

    With rlx2 and no word of `dynamic_buffer`, it does so with continuous actions. Raises UserError when it is asked for
    with discrete ones, or could never forget, because it never has more than `dynamic_capacity.min_size`.
    """
    if not asks_for_greedy_actions(config):
        return None
    if spec.discrete_actions:
        if config.dynamic_buffer is None:
            return None
        raise UserError(_needs_continuous(f"{spec.environment_id} with {spec.discrete_actions} discrete ones"))
    settings, steps = config.dynamic_capacity, config.actor.segment_length
    # Every segment takes a few rows more of each environment than it has steps.
    room = config.replay.capacity * steps // (steps + spec.frame_stack)
    if settings.min_size >= room:
        raise UserError(
            f"dynamic_capacity.min_size must be below the about {room} transitions that replay.capacity "
            f"({config.replay.capacity} rows) has room for, got {settings.min_size}: nothing would ever be forgotten; "
            "change one of them, or give --no-dynamic-buffer"
        )
    if settings.min_size >= config.max_environment_steps:
        raise UserError(
            f"dynamic_capacity.min_size must be below max_environment_steps ({config.max_environment_steps}), got "
            f"{settings.min_size}: nothing would ever be forgotten; a fifth of the steps is common, or give "
            "--no-dynamic-buffer"
        )
    return settings


def asks_for_greedy_actions(config: "RunConfig") -> bool:
    """Whether actors are to tell what the policy would have done without noise; with discrete actions they do not."""
    return _asked_for(config, config.dynamic_buffer)


def _needs_continuous(got: str) -> str:
    return f"dynamic_buffer: expected continuous actions, to measure distances between, got {got}: leave it out"


def _asked_for(config: "RunConfig", switch: bool | None) -> bool:
    return config.sparsity.method == "rlx2" if switch is None else switch
