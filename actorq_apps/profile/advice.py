"""Recommendations from measured costs: limit, number of actors, scheme, settings."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from actorq_apps.profile.model import AS_GOOD, Costs, Limit, Prediction, Workload, predict, useful_actors

_MILLION = 1e6
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Outlook:
    """Predictions for a run with one scheme and `environments` environments per actor.

    configured: on this machine, with the configured number of actors.
    here: on this machine, with the best number of actors.
    apart: with a separate core for each process, as in pods, and as many actors as one learner can use.
    """

    scheme: str
    environments: int
    configured: Prediction
    here: Prediction
    apart: Prediction

    @property
    def core_hours(self) -> float:
        """Core hours per million transitions, with the best number of actors on this machine."""
        return self.here.core_seconds_per_step * _MILLION / _HOUR_S


@dataclass(frozen=True)
class Pods:
    """A deployment: the number of actors, and the CPU request of each pod in cores."""

    actors: int
    actor_cpu: float
    learner_cpu: float
    quantizer_cpu: float
    steps_per_s: float


def outlooks(
    schemes: Sequence[str],
    environments: Sequence[int],
    costs: Callable[[str, int], Costs],
    work: Workload,
    actors: int,
    cores: float,
) -> list[Outlook]:
    """The outlook for each scheme and each number of environments, in this order, on a machine with `cores` cores."""
    found = []
    for scheme, count in product(schemes, environments):
        cost = costs(scheme, count)
        configured = predict(cost, work, actors, cores)
        found.append(Outlook(scheme, count, configured, useful_actors(cost, work, cores), useful_actors(cost, work)))
    return found


def recommend(candidates: Sequence[Outlook], preferred_environments: int) -> Outlook:
    """The fastest outlook on this machine. Among those within 3% of it, the one with the least work.

    Among those within 3% of the least work, the preferred number of environments wins, else the first.
    """
    fastest = max(each.here.steps_per_s for each in candidates)
    fast = [each for each in candidates if each.here.steps_per_s >= (1 - AS_GOOD) * fastest]
    least = min(each.core_hours for each in fast)
    cheap = [each for each in fast if each.core_hours <= (1 + AS_GOOD) * least]
    return next((each for each in cheap if each.environments == preferred_environments), cheap[0])


def pods(outlook: Outlook) -> Pods:
    """The deployment of a run with separate cores for each process. Requests are rounded up to a tenth of a core."""
    cores, actors = outlook.apart.cores, outlook.apart.actors
    actor, learner, quantizer = map(_tenths, (cores.actors / actors, cores.learner, cores.quantizer))
    return Pods(actors, actor, learner, quantizer, outlook.apart.steps_per_s)


def explain(limit: Limit) -> str:
    """A remedy for a limit, in one sentence."""
    return {
        Limit.ACTORS: "The actors limit the run: more actors, more environments per actor or a faster scheme help.",
        Limit.LEARNER: "The learner limits the run: no scheme and no further actor makes it faster. Fewer samples per "
        "insert (on-policy: fewer epochs), a larger learner or smaller networks do.",
        Limit.PROCESSORS: "The machine's cores limit the run: less processor time per step makes it faster.",
    }[limit]


def _tenths(cores: float) -> float:
    return max(0.1, math.ceil(round(cores * 10, 6)) / 10)
