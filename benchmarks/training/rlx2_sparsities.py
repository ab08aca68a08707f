"""Sparsities and results of RLx2's paper (arXiv 2205.15043), and the spaces of its environments."""

from dataclasses import dataclass

from actorq.domain.spaces import ArraySpec, EnvironmentSpec


@dataclass(frozen=True)
class Sparsity:
    """Shares of zero weights."""

    actor: float
    critic: float


PAPER = {
    ("td3", "HalfCheetah-v5"): Sparsity(0.90, 0.85),
    ("td3", "Hopper-v5"): Sparsity(0.98, 0.95),
    ("td3", "Walker2d-v5"): Sparsity(0.97, 0.95),
    ("td3", "Ant-v5"): Sparsity(0.96, 0.88),
    ("sac", "HalfCheetah-v5"): Sparsity(0.90, 0.80),
    ("sac", "Hopper-v5"): Sparsity(0.98, 0.95),
    ("sac", "Walker2d-v5"): Sparsity(0.90, 0.90),
    ("sac", "Ant-v5"): Sparsity(0.90, 0.75),
}
# Returns of RLx2 after 3 million steps, in percent of dense training, means of 8 seeds.
PUBLISHED_RETURNS = {
    ("td3", "HalfCheetah-v5"): 99.8,
    ("td3", "Hopper-v5"): 97.0,
    ("td3", "Walker2d-v5"): 98.1,
    ("td3", "Ant-v5"): 103.9,
    ("sac", "HalfCheetah-v5"): 102.2,
    ("sac", "Hopper-v5"): 109.7,
    ("sac", "Walker2d-v5"): 103.2,
    ("sac", "Ant-v5"): 105.6,
}
# The same as means over these environments, for each method.
PUBLISHED_MEANS = {
    "td3": {"tiny": 57.0, "static": 59.0, "set": 65.0, "rigl": 71.0, "rlx2": 99.7},
    "sac": {"tiny": 77.0, "static": 72.0, "set": 94.0, "rigl": 93.0, "rlx2": 105.0},
}
# The lowest FLOPs of RLx2 over these environments, relative to dense training: up to 20 and 50 times fewer (abstract).
PUBLISHED_LOWEST_FLOPS = {"update": 1 / 20, "action": 1 / 50}
# Sizes of an observation and an action in gymnasium. In the paper's older version Ant's observation has 111 numbers.
_SPACES = {"HalfCheetah-v5": (17, 6), "Hopper-v5": (11, 3), "Walker2d-v5": (17, 6), "Ant-v5": (105, 8)}


def spec_of(environment: str) -> EnvironmentSpec:
    """The spec of one of the paper's environments. Actions are in [-1, 1] here."""
    observations, actions = _SPACES[environment]
    bounds = ((-1.0,) * actions, (1.0,) * actions)
    return EnvironmentSpec(
        environment, ArraySpec((observations,), "float32"), ArraySpec((actions,), "float32", *bounds), ()
    )
