"""Limits of all values that services exchange or store, and of settings.

docs/reference/limits.md shows the limits as a table.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

USUAL_SEGMENT_BYTES = 1024 * 1024
# Bound on the message of a segment or chunk, with its field headers. The receiver refuses larger messages.
MAX_MESSAGE_BYTES = 2 * 1024 * 1024
# Bound on a segment of one step without its field headers. Its observations may be large.
MAX_SEGMENT_BYTES = MAX_MESSAGE_BYTES - 64 * 1024
# Bound on checkpoints and policies, which receivers assemble from chunks: four times the FP32 tensors of a policy with
# three layers of 4096 units. Larger policies are too slow for actors.
MAX_BLOB_BYTES = 512 * 1024**2

MAX_DIMENSIONS = 32
# No message can hold a larger tensor or a larger element of a space.
MAX_TENSOR_BYTES = MAX_MESSAGE_BYTES
# Code compares versions, and adds to them, as int64.
MAX_VERSION = 2**62 - 1
# Learner processes have the same kind of numbers. They are the upper bits of incarnations.
MAX_EPOCH = 2**31 - 1
# Sequences, incarnations and counters are stored as int64.
MAX_COUNT = 2**63 - 1
# In UTF-8; most characters of names take one byte.
MAX_NAME_BYTES = 128
MAX_TEXT_BYTES = 1024
MAX_PAGE_TOKEN_CHARACTERS = 19
DIGEST_BYTES = 32
# The year 2242.
MAX_UNIX_S = 2**33
# Enough CPU seconds for thirty thousand processors in a year.
MAX_SECONDS = 1e12
MAX_KWH = 1e12
MAX_RATE = 1e12
# Sums and means of numbers within this bound stay finite.
MAX_MAGNITUDE = 1e30
MAX_DISCRETE_ACTIONS = 65_536
MAX_FRAME_STACK = 256
# Most leaves of an observation, and most discrete parts of an action.
MAX_LEAVES = 64
MAX_PARTS = 1_024
MAX_ENVIRONMENTS = 65_536
# Most agents that share a policy, and most returns of agents in an evaluation.
MAX_AGENTS = 256
MAX_AGENT_RETURNS = 65_536
# Most copies of a step with other goals.
MAX_GOAL_COPIES = 16
# Numbers in a recurrent policy's state.
MAX_STATE = 8_192
# Stored sequences that a checkpoint carries for a policy with memory, and the steps of each.
MAX_SEQUENCES = 16
MAX_SEQUENCE_STEPS = 64
# Numbers of steps after which sequences are compared.
MAX_HORIZONS = 16
# Columns of a segment.
MAX_COLUMNS = 128
MAX_SEGMENT_STEPS = 2**20
MAX_QUEUED_SEGMENTS = 65_536
MAX_REPORT_PERIOD_S = 86_400.0
MAX_PATIENCE_S = 3_600.0
# At most as many spans and episodes as fit into a segment's bytes.
MAX_SPANS = 32_768
MAX_SEGMENT_EPISODES = 65_536
MAX_EVALUATION_EPISODES = 10_000
MAX_ACTIVATIONS = 100
MAX_PROCESSES = 1_000
# Figures of an algorithm.
MAX_FIGURES = 64
MAX_ACTORS = 1_000
MAX_SERVICES = 32
MAX_SCHEMES = 32
MAX_VARIANTS = 64
MAX_LAYERS = 1_024
MAX_OUTPUTS = 64
MAX_OUTPUT_COMPONENTS = 65_536
MAX_RUNGS = 64
MAX_GRAPH_DIGESTS = 1_024
MAX_ENCODINGS = 32
MAX_INPUTS = 64
# Largest absolute value of an observation, a reward and a drawn action. With this bound, the squared gradients that
# Adam keeps in float32 stay finite (docs/decisions/0051-numbers-of-actors.md).
LARGEST_NUMBER = 1e9
# Python checks fewer numbers than this faster than numpy.
_FEW_NUMBERS = 32


def within_numbers(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each number is from -LARGEST_NUMBER to LARGEST_NUMBER, bool of the same shape; False for NaN."""
    return (numbers >= -LARGEST_NUMBER) & (numbers <= LARGEST_NUMBER)


def all_within_numbers(numbers: NDArray[Any]) -> bool:
    """Whether `within_numbers` holds for all numbers."""
    if numbers.size < _FEW_NUMBERS:
        # A loop, because `all` with a generator takes twice as long, and each step of a simulator has such a check.
        for number in numbers.ravel().tolist():  # noqa: SIM110
            if not -LARGEST_NUMBER <= number <= LARGEST_NUMBER:
                return False
        return True
    return bool(within_numbers(numbers).all())
