"""Invented summaries of runs."""

from typing import Any

from actorq.telemetry.machine import Machine
from actorq_apps.comparison.figures import RunFigures, figures_of
from actorq_apps.comparison.result import Comparison
from actorq_apps.comparison.schedule import ScheduledRun, Variant

MACHINE = Machine("Processor 3000", 2, 8.0, "3.11.0", {"torch": "2.13.0", "numpy": "2.4.6"})
TARGET = 475.0


def summary(speed: float = 100.0, returns: tuple[float, ...] = (100.0, 480.0), **changes: Any) -> dict[str, Any]:
    """The summary of a run with a start of 5 s, `speed` steps per second, and an evaluation every ten seconds."""
    seconds = 10.0 * max(1, len(returns))
    return {
        "state": "solved" if returns and returns[-1] >= TARGET else "budget ended",
        "target_return": TARGET,
        "first_transition_s": 5.0,
        "last_transition_s": 5.0 + seconds,
        "wall_clock_s": 6.0 + seconds,
        "environment_steps": int(speed * seconds),
        "updates": 400,
        "staleness": {"p50": 1.0, "p99": 3.0},
        "starved_s": 0.25 * seconds,
        "policy_bytes": {"fp32": 4_000, "emitted": 1_000},
        "fidelity": {"relative_mean_error": 0.01, "argmax_agreement": 0.99},
        "transitions_by_scheme": {"int8": 10},
        "energy": {
            "kwh": 2e-3 / speed,
            "co2_kg": 1e-3 / speed,
            "method": "model",
            "per_service": {"actor": {"kwh": 1e-6}},
        },
        "evaluation": {"mean_return": returns[-1]} if returns else None,
        "evaluations": [
            {
                "wall_clock_s": 15.0 + 10 * place,
                "environment_steps": int(speed * 10 * (place + 1)),
                "mean_return": value,
            }
            for place, value in enumerate(returns)
        ],
        **changes,
    }


def run(scheme: str, seed: int, *, cell: str = "", **of_summary: Any) -> RunFigures:
    """A run's figures; `cell` is a value of --vary dqn.n-step."""
    variant = Variant(scheme, (("dqn.n-step", cell),) if cell else ())
    return figures_of(ScheduledRun(variant, seed), summary(**of_summary), TARGET)


def comparison(*runs: RunFigures, environment: str = "CartPole-v1", target: float | None = TARGET) -> Comparison:
    """A comparison of these runs."""
    return Comparison.of(runs, environment, "dqn", target, MACHINE)
