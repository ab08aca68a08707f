"""The evaluations of a run, on disk before they are acknowledged."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actorq.trajectory import Evaluation
from learner_service.members import Member


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

    All entries are kept in memory too: some 500 bytes each, a few per minute.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self.entries: list[Entry] = []
        for line in path.read_bytes().splitlines(keepends=True):
            # A killed process may leave a part of a line at the end: it was never acknowledged.
            if line.endswith(b"\n"):
                self.entries.append(_from_json(json.loads(line)))
            else:
                os.truncate(path, path.stat().st_size - len(line))

    @property
    def newest(self) -> Evaluation | None:
        """The newest evaluation, None before the first."""
        return self.entries[-1].evaluation if self.entries else None

    def append(self, member: Member, evaluation: Evaluation, environment_steps: int, wall_clock_s: float) -> None:
        """Write an evaluation; when it returns, the evaluation may be acknowledged."""
        entry = Entry(member.name, member.incarnation, environment_steps, wall_clock_s, evaluation)
        self._file.write(json.dumps(asdict(entry)).encode() + b"\n")
        self._file.flush()
        self.entries.append(entry)

    def last_sequence(self, member: Member) -> int:
        """The highest sequence that is stored of this incarnation, 0 when there is none."""
        return max(
            (
                entry.evaluation.sequence
                for entry in self.entries
                if (entry.evaluator, entry.incarnation) == (member.name, member.incarnation)
            ),
            default=0,
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _from_json(values: dict[str, Any]) -> Entry:
    evaluation = values["evaluation"]
    sequences = {name: tuple(evaluation[name]) for name in ("returns", "lengths")}
    return Entry(**{**values, "evaluation": Evaluation(**{**evaluation, **sequences})})
