"""The regime of `--preset auto`: updates per step and actors, from the measured costs of a run's parts."""

import math
from dataclasses import dataclass, replace

from actorq_apps.profile.model import AS_GOOD, Costs, Limit, Prediction, Workload, predict

# With r updates per step, a return needs a number of updates that grows with r ** (1 - _UPDATES). The seconds to the
# return therefore go as 1 / (updates/s ** _UPDATES * steps/s ** (1 - _UPDATES)): docs/concepts/performance-model.md.
_UPDATES = 0.8
# From one update per step to one per 16 steps. Fewer updates lose seeds: docs/decisions/0081-preset-auto.md.
_OCTAVES, _PER_OCTAVE = 4, 8


@dataclass(frozen=True)
class Regime:
    """A run's samples per insert and actors, with the speed that the model predicts for them.

    batch_size: samples of an update.
    """

    samples_per_insert: float
    batch_size: int
    prediction: Prediction

    @property
    def steps_per_update(self) -> float:
        """Transitions for each gradient update."""
        return self.batch_size / self.samples_per_insert

    @property
    def updates_per_s(self) -> float:
        """The learner's updates per second if it never waits for data."""
        return self.prediction.limits[Limit.LEARNER] / self.steps_per_update

    @property
    def steps_per_s(self) -> float:
        """The actors' transitions per second if they never wait for credit."""
        return self.prediction.limits[Limit.ACTORS]


def choose(
    costs: Costs,
    work: Workload,
    batch_size: int,
    cores: float,
    samples_per_insert: float | None = None,
    actors: int | None = None,
) -> Regime:
    """The regime that reaches a return soonest on `cores` cores. Among equally fast ones, that with the fewest actors.

    work: of an off-policy run; its updates per step are replaced. batch_size: samples of an update. Given numbers of
    samples per insert and actors are kept.
    """
    samples_tried = [
        float(f"{batch_size * 2.0 ** (-place / _PER_OCTAVE):.3g}") for place in range(_OCTAVES * _PER_OCTAVE + 1)
    ]
    if samples_per_insert is not None:
        samples_tried = [samples_per_insert]
    counts = range(1, max(1, math.floor(cores)) + 1) if actors is None else (actors,)

    def at(samples: float, count: int) -> Regime:
        needed = replace(work, updates_per_step=samples / batch_size)
        return Regime(samples, batch_size, predict(costs, needed, count, cores))

    # For each number of actors, its best samples per insert.
    found = [max((at(samples, count) for samples in samples_tried), key=_speed) for count in counts]
    enough = (1 - AS_GOOD) * max(map(_speed, found))
    return next(regime for regime in found if _speed(regime) >= enough)


def _speed(regime: Regime) -> float:
    """The inverse of the seconds to a return, in arbitrary units."""
    return math.exp(math.log(regime.prediction.steps_per_s) - _UPDATES * math.log(regime.steps_per_update))
