"""With three real services and a policy after every update, no policy acts for long while a newer policy exists."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actorq.domain.spaces import EnvironmentSpec
from actorq.statefiles.documents import read_document
from learner_service.replay.storage.store import ReplayStore
from tests.integration.training_run import TrainingRun

STEPS, RANDOM, MOST, CAPACITY = 700, 200, 3, 5_000


def test_no_policy_acts_for_more_steps_than_the_limit(tmp_path: Path) -> None:
    flags = {
        "actors": 1,
        "environments-per-actor": 1,
        "actor.segment-length": 2,
        "actor.max-steps-per-policy": MOST,
        "dqn.n-step": 1,
        "dqn.batch-size": 32,
        "replay.min-size": RANDOM,
        "replay.capacity": CAPACITY,
        "exploration.random-steps": RANDOM,
        "rate-limiter.samples-per-insert": 32,
        "rate-limiter.error-buffer": 128,
        "publication.period-updates": 1,
        "max-environment-steps": STEPS,
    }
    arguments = (part for name, value in flags.items() for part in (f"--{name}", str(value)))
    run = TrainingRun.start(tmp_path / "run", *arguments)
    code, printed = run.finish()
    assert code in (0, 3), printed
    versions = versions_that_acted(run.directory)[RANDOM + 4 * MOST :]
    steps = np.unique(versions, return_counts=True)[1]
    # If the wait for a newer policy fails, a policy acts longer, for example after the machine hung for a second.
    assert (steps <= MOST).mean() > 0.95
    assert len(steps) > 100


def versions_that_acted(directory: Path) -> NDArray[np.int64]:
    """The policy version of each stored transition, in order."""
    spec = EnvironmentSpec.from_json(read_document(directory / "environment.json"))
    store = ReplayStore.open(directory / "replay", spec, CAPACITY)
    rows = store.segments.extent()[1]
    versions: NDArray[np.int64] = np.array(store.policy_versions[:rows])[np.array(store.flags[:rows]) != 0]
    return versions
