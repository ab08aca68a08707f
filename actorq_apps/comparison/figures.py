"""The figures of one run, from its summary."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from actorq.errors import InvalidInputError
from actorq_apps.comparison.schedule import ScheduledRun

# Shares of time in which the learner waits for data. From the first on, the actors are the limit. Up to the second,
# the learner is.
_MOSTLY, _HARDLY = 0.5, 0.05
# Figures derived from the others, for the results as JSON.
DERIVED = ("steps_per_s", "final_return", "starved_share", "limit", "actor_wh_per_million_steps")


@dataclass(frozen=True)
class Point:
    """An evaluation: seconds since the first transition, environment steps, mean return, success rate if known."""

    seconds: float
    steps: int
    mean_return: float
    success_rate: float | None = None


@dataclass(frozen=True)
class RunFigures:
    """The figures of a run. Seconds count from its first stored transition, without the start of the processes.

    startup_s: time before the first transition.
    seconds: time until the last transition. steps_per_s: environment steps per second in this time.
    to_target: the first evaluation at or above the target; None if there was none.
    starved_s: time in which the learner waited for data.
    policy_bytes, fp32_bytes: size of the actors' model, and of its weights in FP32.
    action_error: mean, relative to the action range. agreement: share of equal best actions; None for continuous ones.
    wh, actor_wh, co2_g: watt hours of all processes, of the actors, and grams of CO2; None if not measured.
    acted: number of transitions by the scheme that chose the action.
    divergence, mismatch: mean |log pi - log mu| of an on-policy run's transitions. For the divergence, pi is the
        learner's newest policy; for the mismatch, pi is the FP32 policy of the actor's version. mean_kl:
        KL(FP32 || quantized) of the last version, in nats. None for other runs.
    state_drift: of the last version's policy with memory, relative to the state's range; None without memory.
    """

    scheduled: ScheduledRun
    state: str
    environment_steps: int
    updates: int
    startup_s: float
    seconds: float
    curve: tuple[Point, ...]
    to_target: Point | None
    starved_s: float
    policy_bytes: int | None
    fp32_bytes: int | None
    action_error: float | None
    agreement: float | None
    staleness_p50: float
    staleness_p99: float
    wh: float | None
    actor_wh: float | None
    co2_g: float | None
    energy_method: str
    acted: Mapping[str, int]
    divergence: float | None
    mismatch: float | None
    mean_kl: float | None
    state_drift: float | None = None

    @property
    def steps_per_s(self) -> float:
        """Throughput."""
        return self.environment_steps / self.seconds

    @property
    def final_return(self) -> float | None:
        """Mean return of the last evaluation."""
        return self.curve[-1].mean_return if self.curve else None

    @property
    def starved_share(self) -> float:
        """Share of time in which the learner waited for data."""
        return min(1.0, self.starved_s / self.seconds)

    @property
    def limit(self) -> str:
        """The part that limits the run's speed, by the share of time in which the learner waited for data."""
        if self.starved_share >= _MOSTLY:
            return "actors"
        return "learner" if self.starved_share <= _HARDLY else "both"

    @property
    def actor_wh_per_million_steps(self) -> float | None:
        """Energy of only the actors, comparable between runs of different lengths."""
        return None if self.actor_wh is None else self.actor_wh / self.environment_steps * 1e6


def figures_of(scheduled: ScheduledRun, summary: Mapping[str, Any], target: float | None) -> RunFigures:
    """The figures of a finished run. target: a return. Raises InvalidInputError for an incomplete summary."""
    try:
        start = summary["first_transition_s"]
        curve = tuple(
            Point(
                *(max(0.0, point["wall_clock_s"] - start), point["environment_steps"], point["mean_return"]),
                success_rate=point.get("success_rate"),
            )
            for point in summary["evaluations"]
        )
        energy, sizes, fidelity = summary["energy"], summary["policy_bytes"] or {}, summary["fidelity"] or {}
        queue = summary.get("rollout_queue") or {}
        measured = bool(energy["kwh"])
        actor = energy["per_service"].get("actor", {}).get("kwh")
        return RunFigures(
            scheduled=scheduled,
            state=summary["state"],
            environment_steps=summary["environment_steps"],
            updates=summary["updates"],
            startup_s=start,
            seconds=max(1e-3, summary["last_transition_s"] - start),
            curve=curve,
            to_target=None if target is None else next((p for p in curve if p.mean_return >= target), None),
            starved_s=summary["starved_s"],
            policy_bytes=sizes.get("emitted"),
            fp32_bytes=sizes.get("fp32"),
            action_error=fidelity.get("relative_mean_error"),
            agreement=fidelity.get("argmax_agreement"),
            staleness_p50=summary["staleness"]["p50"],
            staleness_p99=summary["staleness"]["p99"],
            wh=energy["kwh"] * 1e3 if measured else None,
            actor_wh=actor * 1e3 if measured and actor else None,
            co2_g=energy["co2_kg"] * 1e3 if measured else None,
            energy_method=energy["method"],
            acted=summary["transitions_by_scheme"],
            divergence=queue.get("divergence"),
            mismatch=queue.get("mismatch"),
            mean_kl=fidelity.get("mean_kl"),
            state_drift=max((each["state_drift"] for each in fidelity.get("sequences") or ()), default=None),
        )
    except (KeyError, TypeError) as error:
        raise InvalidInputError(
            f"{scheduled.name}: expected the summary of a finished run of this version, but {error} is missing"
        ) from None
