"""Segments with continuous actions, and with the actions without noise."""

import numpy as np

from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import PolicySpan, Segment

# Halves of the ranges: 2 and 0.5.
GREEDY = EnvironmentSpec("Arms-v0", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", (-2.0, 0.0), (2.0, 1.0)))


def greedy_segment(sequence: int, steps: int = 4, environments: int = 1, frame_stack: int = 1) -> Segment:
    """Random numbers, without ends: all steps are transitions."""
    rng, shape = np.random.default_rng(sequence), (steps, environments)
    return Segment(
        sequence=sequence,
        spans=(PolicySpan(0, 1, "fp32"),),
        columns={
            "observations": rng.standard_normal((frame_stack + steps, environments, 3), np.float32),
            "actions": rng.standard_normal((*shape, 2), np.float32),
            "rewards": rng.standard_normal(shape, np.float32),
            "terminated": np.zeros(shape, np.bool_),
            "truncated": np.zeros(shape, np.bool_),
            "valid": np.ones(shape, np.bool_),
            "ages": np.full(environments, 255, np.uint8),
            "greedy_actions": rng.standard_normal((*shape, 2), np.float32),
        },
    )
