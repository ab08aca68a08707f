"""The result of a comparison: figures of each variant, and its ratios to the baselines of its cell."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from actorq.telemetry.machine import Machine
from actorq_apps.comparison import published
from actorq_apps.comparison.figures import DERIVED, RunFigures
from actorq_apps.comparison.intervals import CONFIDENCE, Ratio, ratio
from actorq_apps.comparison.schedule import BASELINES, TORCH, ScheduledRun, Variant

Value = Callable[[RunFigures], float | None]


@dataclass(frozen=True)
class Ratios:
    """Improvements over a baseline. Values above 1 are better. None if a side has no value.

    throughput: environment steps per second.
    time_to_target, steps_to_target: over seeds whose runs reached the target on both sides.
    energy, carbon: of all processes of a run. actor_energy: of the actors, per environment step.
    """

    baseline: str
    throughput: Ratio | None
    time_to_target: Ratio | None
    steps_to_target: Ratio | None
    energy: Ratio | None
    carbon: Ratio | None
    actor_energy: Ratio | None


@dataclass(frozen=True)
class Spread:
    """Mean, lowest and highest over seeds."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Side:
    """A variant and its runs, one for each seed."""

    variant: Variant
    runs: tuple[RunFigures, ...]

    def values(self, value: Value) -> list[float]:
        """The values of the runs that have this value."""
        return [found for run in self.runs if (found := value(run)) is not None]

    def spread(self, value: Value) -> Spread | None:
        """Mean and range over the runs that have this value; None without any."""
        values = self.values(value)
        return Spread(statistics.fmean(values), min(values), max(values)) if values else None

    def by_seed(self, value: Value) -> dict[int, float | None]:
        """The value of each seed."""
        return {run.scheduled.seed: value(run) for run in self.runs}

    @property
    def reached(self) -> int:
        """Number of runs that reached the target."""
        return sum(run.to_target is not None for run in self.runs)

    @property
    def acted(self) -> str:
        """The schemes that actors used, the most frequent first."""
        total: Counter[str] = Counter()
        for run in self.runs:
            total.update(run.acted)
        return ", ".join(scheme for scheme, _ in total.most_common())


@dataclass(frozen=True)
class Comparison:
    """All sides of one task. target: the return of `time_to_target` and `steps_to_target`; None without one."""

    environment: str
    algorithm: str
    target: float | None
    seeds: tuple[int, ...]
    machine: Machine
    sides: tuple[Side, ...]

    @classmethod
    def of(
        cls, runs: Sequence[RunFigures], environment: str, algorithm: str, target: float | None, machine: Machine
    ) -> "Comparison":
        """Group the runs into sides, in the order of their first runs."""
        sides: dict[Variant, list[RunFigures]] = {}
        for run in runs:
            sides.setdefault(run.scheduled.variant, []).append(run)
        ordered = tuple(
            Side(variant, tuple(sorted(found, key=lambda run: run.scheduled.seed))) for variant, found in sides.items()
        )
        return cls(environment, algorithm, target, tuple(sorted({r.scheduled.seed for r in runs})), machine, ordered)

    @property
    def cells(self) -> tuple[str, ...]:
        """The names of the cells. Ratios stay within a cell. The name is "" if only the scheme varies."""
        return tuple(dict.fromkeys(side.variant.cell for side in self.sides))

    def cell(self, name: str) -> tuple[Side, ...]:
        """The sides of a cell."""
        return tuple(side for side in self.sides if side.variant.cell == name)

    def ratios(self, side: Side) -> tuple[Ratios, ...]:
        """Ratios to each baseline of the side's cell; none to itself, and none for torch, which is only a baseline."""
        if side.variant.scheme == TORCH:
            return ()
        baselines = {each.variant.scheme: each for each in self.cell(side.variant.cell)}
        return tuple(
            ratios_of(side, baselines[name]) for name in BASELINES if name in baselines and name != side.variant.scheme
        )

    def to_json(self, link: Callable[[ScheduledRun], str]) -> dict[str, Any]:
        """All results as JSON values. `link` returns the link to a run's files."""
        return {
            "environment": self.environment,
            "algorithm": self.algorithm,
            "target_return": self.target,
            "seeds": list(self.seeds),
            "confidence": CONFIDENCE,
            "machine": asdict(self.machine),
            "variants": [
                {
                    "name": side.variant.name,
                    "scheme": side.variant.scheme,
                    "changes": dict(side.variant.changes),
                    "acted_with": side.acted,
                    "runs": [_run_as_json(run, link) for run in side.runs],
                    "ratios": [asdict(each) for each in self.ratios(side)],
                }
                for side in self.sides
            ],
            "published": {
                "source": f"{published.SOURCE}. {published.DEFINITION}",
                "ratios": [asdict(each) for each in published.RATIOS],
                "returns": (theirs := published.returns_of(self.environment)) and asdict(theirs),
            },
        }


def ratios_of(side: Side, baseline: Side) -> Ratios:
    """The improvement of a side over another."""

    def more(value: Value) -> Ratio | None:
        return ratio(side.by_seed(value), baseline.by_seed(value))

    def less(value: Value) -> Ratio | None:
        return ratio(baseline.by_seed(value), side.by_seed(value))

    return Ratios(
        baseline.variant.scheme,
        throughput=more(lambda run: run.steps_per_s),
        time_to_target=less(seconds_to_target),
        steps_to_target=less(steps_to_target),
        energy=less(lambda run: run.wh),
        carbon=less(lambda run: run.co2_g),
        actor_energy=less(lambda run: run.actor_wh_per_million_steps),
    )


def seconds_to_target(run: RunFigures) -> float | None:
    """Seconds to the target; None if it was not reached."""
    return run.to_target.seconds if run.to_target else None


def steps_to_target(run: RunFigures) -> float | None:
    """Environment steps to the target; None if it was not reached."""
    return run.to_target.steps if run.to_target else None


def _run_as_json(run: RunFigures, link: Callable[[ScheduledRun], str]) -> dict[str, Any]:
    values = asdict(run)
    del values["scheduled"]
    derived = {name: getattr(run, name) for name in DERIVED}
    return {"seed": run.scheduled.seed, "directory": link(run.scheduled), **values, **derived}
