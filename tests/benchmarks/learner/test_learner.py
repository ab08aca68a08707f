"""The learner's benchmark: turns and ratios, and that what ours is compared with does update."""

from collections.abc import Callable

import numpy as np
import pytest

from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from benchmarks.learner.learner_baselines import Rows, cleanrl
from benchmarks.learner.learner_timing import Turns, speedup, take_turns

CONTINUOUS = EnvironmentSpec(
    "Walk-v0", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", (-1.0,) * 2, (1.0,) * 2), discrete_actions=0
)
DISCRETE = EnvironmentSpec("Choice-v0", ArraySpec((3,), "float32"), ArraySpec((), "int64"), discrete_actions=2)


def test_a_machine_that_slows_down_between_rounds_does_not_move_the_ratio() -> None:
    speed = [1.0, 1.0, 5.0, 9.0, 9.0]
    ours = Turns(cpu=[2.0 * each for each in speed], wall=[1.0] * 5)
    # In one round something took the processor from theirs.
    theirs = Turns(cpu=[3.0, 3.0, 500.0, 27.0, 27.0], wall=[4.0, 2.0, 2.0, 2.0, 0.1])
    assert speedup(ours, theirs, "cpu") == pytest.approx(1.5)
    assert speedup(ours, theirs, "wall") == pytest.approx(2.0)


def test_every_round_has_a_turn_of_each_and_begins_with_another() -> None:
    called: list[str] = []

    def busy(name: str) -> Callable[[], object]:
        def call() -> None:
            if called[-1:] != [name]:
                called.append(name)
            # Some CPU time, so that a slice has an end.
            sum(range(1000))

        return call

    turns = take_turns({name: busy(name) for name in "abc"}, rounds=3, slice_s=0.001)
    # After the warm-up, which is the first three.
    assert "".join(called[3:]) == "abcbcacab"
    assert all(len(each.cpu) == len(each.wall) == 3 for each in turns.values())
    assert all(each.median("cpu") > 0 for each in turns.values())


@pytest.mark.parametrize(("algorithm", "spec"), [("dqn", DISCRETE), ("td3", CONTINUOUS), ("sac", CONTINUOUS)])
def test_cleanrls_updates_use_every_column(algorithm: str, spec: EnvironmentSpec) -> None:
    rng = np.random.default_rng(0)
    rows: Rows = {
        "observations": rng.standard_normal((32, 3), np.float32),
        "actions": rng.integers(2, size=32) if spec.discrete_actions else rng.uniform(-1, 1, (32, 2)).astype("float32"),
        "rewards": rng.standard_normal(32, np.float32),
        "next_observations": rng.standard_normal((32, 3), np.float32),
        "dones": np.zeros(32, np.float32),
    }
    cleanrl(algorithm, spec, rows, sizes=[8, 8], batch=4, updates=3)()
    for name in rows:
        missing = {other: column for other, column in rows.items() if other != name}
        with pytest.raises(KeyError, match=name):
            cleanrl(algorithm, spec, missing, [8, 8], 4, 1)()
