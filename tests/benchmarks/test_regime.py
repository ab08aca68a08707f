"""The sweep of regimes: its order, and the regime it calls the best."""

from typing import Any

from benchmarks.training.regime import AUTO, summary, targets


def run(samples: int | str, seconds: float, reached: bool = True, n_step: int = 1) -> dict[str, Any]:
    return {
        "task": "sac/Ant-v5",
        "n_step": n_step,
        "samples_per_insert": samples,
        "seconds": seconds,
        "reached": reached,
    }


def test_the_best_regime_has_the_fewest_median_seconds() -> None:
    runs = [run(64, 300), run(16, 100), run(16, 900, reached=False), run(16, 800), run(64, 310), run(64, 900)]
    (found,) = summary(runs)
    assert found["best"] == 64
    assert found["seconds"] == {16: 800, 64: 310}


def test_each_n_step_has_its_own_best_regime() -> None:
    found = summary([run(16, 100), run(64, 200), run(16, 300, n_step=3), run(64, 50, n_step=3)])
    assert [(row["n_step"], row["best"]) for row in found] == [(1, 16), (3, 64)]


def test_a_regime_whose_runs_all_missed_the_target_is_never_the_best() -> None:
    missed = run(16, 900, reached=False)
    assert summary([missed])[0]["best"] is None
    assert summary([missed, run(64, 900)])[0]["best"] == 64


def test_the_choice_of_the_preset_is_compared_with_the_best_number() -> None:
    rows = summary([run(16, 100), run(64, 200), run(AUTO, 120), run(AUTO, 130), run(AUTO, 90)])
    assert (rows[0]["best"], list(rows[0]["seconds"])) == (16, [16, 64, AUTO])
    (target,) = targets(rows)
    assert (target.measured, target.met) == (1.2, True)
    assert [each.met for each in targets(summary([run(16, 100), run(AUTO, 130)]))] == [False]
    assert targets(summary([run(16, 100)])) == targets(summary([run(16, 900, reached=False), run(AUTO, 90)])) == []
