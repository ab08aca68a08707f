"""Published results of ActorQ's authors, for comparison with ours."""

from dataclasses import dataclass

SOURCE = "QuaRL, arXiv 1910.01055; Google Research blog of 2022-09-27"
DEFINITION = (
    "Their time is that to 95% of the FP32 return, their throughput is read off their plots, and their baseline is the "
    "same actor in PyTorch FP32."
)


@dataclass(frozen=True)
class Ratios:
    """Published ranges of int8 relative to FP32 over their tasks: lowest and highest; None if not published."""

    tasks: str
    time_to_target: tuple[float, float]
    throughput: tuple[float, float] | None
    carbon: tuple[float, float] | None


RATIOS = (
    Ratios("all tasks", (1.5, 5.41), None, (1.9, 3.76)),
    Ratios("D4PG on DM Control", (1.5, 3.06), (1.45, 1.8), None),
    Ratios("DQN on Gym", (2.2, 5.41), (2.8, 3.2), None),
)

_RETURNS = {
    "dm_control/cartpole-balance": (998.0, 998.0),
    "dm_control/cheetah-run": (756.0, 876.0),
    "dm_control/walker-stand": (972.0, 973.0),
    "dm_control/hopper-stand": (868.0, 858.0),
    "dm_control/reacher-hard": (785.0, 965.0),
    "dm_control/finger-spin": (858.0, 850.0),
    "dm_control/humanoid-stand": (867.0, 899.0),
    "dm_control/humanoid-walk": (663.0, 695.0),
    "CartPole": (180.0, 182.0),
    "MountainCar": (-126.0, -124.0),
    "Acrobot": (-95.0, -99.0),
}


@dataclass(frozen=True)
class Returns:
    """Final returns of their FP32 and int8 runs on a task."""

    fp32: float
    int8: float
    note: str = ""


def returns_of(environment: str) -> Returns | None:
    """Their final returns on this task; None if they did not publish it."""
    found = _RETURNS.get(environment if "/" in environment else environment.partition("-")[0])
    of_200 = environment.startswith("CartPole") and not environment.endswith("v0")
    return Returns(*found, "Theirs is of at most 200." if of_200 else "") if found else None
