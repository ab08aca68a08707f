"""Predicts the speed of a run from the costs of its parts. docs/concepts/performance-model.md has the formulas."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

# Runs within this share of the best speed count as equally fast.
AS_GOOD = 0.03
_MOST_ACTORS = 100_000
# Number of bisection steps for a rate: more than a float64 has digits.
_HALVINGS = 60


class Limit(Enum):
    """The part that limits a run's speed."""

    ACTORS = "actors"
    LEARNER = "learner"
    PROCESSORS = "processors"


@dataclass(frozen=True)
class Workload:
    """The work that a run's settings require of its parts.

    updates_per_step: gradient updates per transition.
    updates_per_version: gradient updates between two published versions.
    updates_per_evaluation: minimum number of gradient updates between two evaluations.
    synchronous: whether actors wait for the policy trained on their last steps.
    """

    updates_per_step: float
    updates_per_version: float
    updates_per_evaluation: int
    synchronous: bool = False


@dataclass(frozen=True)
class ActorCosts:
    """Costs of an actor with a scheme, in seconds of its only thread. A step is a transition of one environment.

    step_s: environment, policy, exploration, segment and upload. version_s: the switch to a new version.
    evaluation_s: an evaluation of full length, by the evaluator.
    """

    step_s: float
    version_s: float
    evaluation_s: float = 0.0


@dataclass(frozen=True)
class LearnerCosts:
    """Costs of the learner in seconds.

    update_s: time between two updates if the trainer never waits for data.
    update_cpu_s: processor time of an update over all threads.
    step_s: receiving and storing a transition.
    version_s: a snapshot and its transfer to the quantizer.
    share: share of the time in which the learner works if the trainer never waits for data. In the rest it waits for
        threads.
    """

    update_s: float
    update_cpu_s: float
    step_s: float
    version_s: float
    share: float = 1.0


@dataclass(frozen=True)
class Costs:
    """Costs of all parts with one scheme. quantizer_version_s: seconds of the quantizer per version."""

    actor: ActorCosts
    learner: LearnerCosts
    quantizer_version_s: float


@dataclass(frozen=True)
class Cores:
    """Mean number of cores that each service keeps busy."""

    actors: float
    learner: float
    quantizer: float
    evaluator: float

    @property
    def total(self) -> float:
        """Busy cores of all services."""
        return self.actors + self.learner + self.quantizer + self.evaluator


@dataclass(frozen=True)
class Prediction:
    """The speed of a run in transitions per second. limits: the speed that each limit alone would allow."""

    actors: int
    steps_per_s: float
    limits: dict[Limit, float]
    cores: Cores

    @property
    def limit(self) -> Limit:
        """The part that limits the run most."""
        return min(self.limits, key=lambda limit: self.limits[limit])

    @property
    def core_seconds_per_step(self) -> float:
        """Processor seconds of all services per transition."""
        return self.cores.total / self.steps_per_s


def predict(costs: Costs, work: Workload, actors: int, cores: float = math.inf) -> Prediction:
    """The steady state of a run with `actors` actors on `cores` cores. Infinity means a core for each process."""
    limits = {
        Limit.ACTORS: _highest(partial(_busy_actor, costs, work, actors), 1.0),
        Limit.LEARNER: _highest(partial(_busy_learner, costs, work), 1.0),
        Limit.PROCESSORS: _highest(lambda rate: _cores(costs, work, actors, rate).total, cores),
    }
    rate = min(limits.values())
    return Prediction(actors, rate, limits, _cores(costs, work, actors, rate))


def useful_actors(costs: Costs, work: Workload, cores: float = math.inf) -> Prediction:
    """The run with the fewest actors that is within 3% of the speed of any number of actors."""
    if math.isfinite(cores):
        # With more actors than cores, actors only share the cores.
        runs = [predict(costs, work, actors, cores) for actors in range(1, max(1, math.floor(cores)) + 1)]
        enough = (1 - AS_GOOD) * max(run.steps_per_s for run in runs)
        return next(run for run in runs if run.steps_per_s >= enough)
    enough = (1 - AS_GOOD) * predict(costs, work, _MOST_ACTORS).steps_per_s
    numbers = range(1, _MOST_ACTORS)
    fewer = bisect_left(numbers, enough, key=lambda actors: predict(costs, work, actors).steps_per_s)
    return predict(costs, work, fewer + 1)


def versions_per_s(costs: Costs, work: Workload, rate: float) -> float:
    """Versions per second that reach the actors at `rate` transitions/s. A late quantizer skips versions."""
    offered = rate * work.updates_per_step / work.updates_per_version
    return min(offered, 1 / costs.quantizer_version_s) if costs.quantizer_version_s > 0 else offered


def _busy_actor(costs: Costs, work: Workload, actors: int, rate: float) -> float:
    acting = rate / actors * costs.actor.step_s + _swapping(costs, work, rate)
    if not work.synchronous:
        return acting
    return acting + _busy_learner(costs, work, rate) + versions_per_s(costs, work, rate) * costs.quantizer_version_s


def _swapping(costs: Costs, work: Workload, rate: float) -> float:
    """Share of an actor's time for switches to new versions. An actor without spare time skips versions."""
    return min(0.5, versions_per_s(costs, work, rate) * costs.actor.version_s)


def _busy_learner(costs: Costs, work: Workload, rate: float) -> float:
    learner = costs.learner
    updating = rate * work.updates_per_step * learner.update_s
    return (updating + rate * learner.step_s + versions_per_s(costs, work, rate) * learner.version_s) / learner.share


def _cores(costs: Costs, work: Workload, actors: int, rate: float) -> Cores:
    learner, versions = costs.learner, versions_per_s(costs, work, rate)
    evaluations = rate * work.updates_per_step / work.updates_per_evaluation
    return Cores(
        actors=rate * costs.actor.step_s + actors * _swapping(costs, work, rate),
        learner=rate * (work.updates_per_step * learner.update_cpu_s + learner.step_s) + versions * learner.version_s,
        quantizer=versions * costs.quantizer_version_s,
        evaluator=min(1.0, evaluations * costs.actor.evaluation_s),
    )


def _highest(busy: Callable[[float], float], most: float) -> float:
    """The highest rate at which `busy` is at most `most`. `busy` grows with the rate."""
    if math.isinf(most):
        return math.inf
    low, high = 0.0, 1.0
    while busy(high) <= most:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if busy(middle) <= most else (low, middle)
    return low
