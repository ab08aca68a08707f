"""The targets of the CartPole benchmark: a system that solves it slowly, or not in int8, misses them."""

from typing import Any

from benchmarks.training.cartpole import targets


def _run(seconds: float, steps: int = 20_000, scheme: str = "int8") -> dict[str, Any]:
    return {
        "solved": True,
        "evaluation": {"mean_return": 490.0, "scheme": scheme},
        "wall_clock_s": seconds,
        "environment_steps": steps,
        "transitions_by_scheme": {scheme: steps},
        "peak_memory_mb": {"actor-0": 110.0, "learner": 900.0},
    }


def test_five_quick_seeds_meet_all_targets() -> None:
    assert all(target.met for target in targets([_run(8.0)] * 5))


def test_a_run_of_half_a_minute_is_too_slow() -> None:
    missed = [target.name for target in targets([_run(8.0), _run(8.0), _run(30.0, 80_000)]) if not target.met]
    assert missed == ["longest seconds of training", "most environment steps"]


def test_a_run_that_acts_in_float_misses_two_targets() -> None:
    missed = {
        target.name: target.measured for target in targets([_run(8.0), _run(8.0, scheme="fp32")]) if not target.met
    }
    assert missed == {"seeds solved by the int8 policy": 1, "runs whose transitions all came from int8 policies": 1}


def test_one_seed_gives_no_verdict() -> None:
    assert {target.refused for target in targets([_run(8.0)])} == {"one seed gives no verdict"}
