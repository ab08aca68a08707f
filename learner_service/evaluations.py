"""The evaluations of a run, on disk before they are acknowledged."""

import json
import os
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actorq.trajectory import Evaluation
from learner_service.members import Member

_CURVE_POINTS = 10_000


@dataclass(frozen=True)
class Entry:
    """An evaluation and where the run stood when it arrived; `wall_clock_s` since the start of the run."""

    evaluator: str
    incarnation: int
    environment_steps: int
    wall_clock_s: float
    evaluation: Evaluation

    def point(self) -> dict[str, Any]:
        """One point of the learning curve, for the summary."""
        return {
            "environment_steps": self.environment_steps,
            "updates": self.evaluation.learner_step,
            "wall_clock_s": round(self.wall_clock_s, 3),
            "policy_version": self.evaluation.policy_version,
            "scheme": self.evaluation.scheme,
            "mean_return": self.evaluation.mean_return,
        }


class EvaluationLog:
    """One JSON object per line, appended. Like the replay, it outlives a killed process without a flush.

    count: evaluations so far. curve: a point for each, the last `_CURVE_POINTS` of them. newest: None before the first.
    """

    def __init__(self, path: Path) -> None:
        self.count = 0
        self.curve: deque[dict[str, Any]] = deque(maxlen=_CURVE_POINTS)
        self.newest: Evaluation | None = None
        self._last: dict[tuple[str, int], int] = {}
        self._file = path.open("ab")
        with path.open("rb") as written:
            for line in written:
                if line.endswith(b"\n"):
                    self._note(_from_json(json.loads(line)))
                else:
                    # A killed process left a part of a line: it was never acknowledged.
                    os.truncate(path, path.stat().st_size - len(line))

    def append(self, member: Member, evaluation: Evaluation, environment_steps: int, wall_clock_s: float) -> None:
        """Write an evaluation; when it returns, the evaluation may be acknowledged."""
        entry = Entry(member.name, member.incarnation, environment_steps, wall_clock_s, evaluation)
        self._file.write(json.dumps(asdict(entry)).encode() + b"\n")
        self._file.flush()
        self._note(entry)

    def last_sequence(self, member: Member) -> int:
        """The highest sequence that is stored of this incarnation, 0 when there is none."""
        return self._last.get((member.name, member.incarnation), 0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _note(self, entry: Entry) -> None:
        self.count += 1
        self.curve.append(entry.point())
        self.newest = entry.evaluation
        self._last[(entry.evaluator, entry.incarnation)] = entry.evaluation.sequence


def _from_json(values: dict[str, Any]) -> Entry:
    evaluation = values["evaluation"]
    sequences = {name: tuple(evaluation[name]) for name in ("returns", "lengths")}
    return Entry(**{**values, "evaluation": Evaluation(**{**evaluation, **sequences})})
