"""Writes a run to Weights & Biases: `python -m learner_service.reporting.sinks.wandb_sink`, rows on standard input."""

import sys
from collections.abc import Mapping
from typing import Any

from actorq.start import fast_imports

with fast_imports():
    import wandb

from learner_service.reporting.sinks.serving import Start, finished, serve

_STEP = "environment_steps"


class Wandb:
    """The W&B run with the run's own id, so that a resumed run continues it."""

    def __init__(self, start: Start) -> None:
        self._run = wandb.init(
            project=start.target,
            id=start.run_id,
            name=start.name,
            dir=start.directory,
            config=dict(start.parameters),
            resume="allow",
            allow_val_change=True,
            # The sink's own process, output and code say nothing about the run.
            settings=wandb.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True),
        )
        # W&B's own step cannot decrease, but a resumed run may repeat a step.
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)

    def add(self, scalars: Mapping[str, float], step: int, wall_time: float) -> None:
        """Log a row; W&B sets its own time."""
        self._run.log({**scalars, _STEP: step})

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Write the summary, and end the run."""
        self._run.summary.update(summary or {})
        self._run.finish(exit_code=0 if finished(summary) else 1)


if __name__ == "__main__":
    sys.exit(serve(Wandb))
