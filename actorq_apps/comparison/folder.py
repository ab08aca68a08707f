"""The folder of a comparison: its runs, and the settings and machine that they share."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actorq.domain.status import RunState
from actorq.rundirectory import RunDirectory
from actorq.statefiles.basis import open_folder
from actorq.telemetry.machine import Machine
from actorq_apps.comparison.schedule import ScheduledRun

_FINISHED = (RunState.SOLVED.value, RunState.BUDGET_ENDED.value)


@dataclass(frozen=True)
class ComparisonFolder:
    """The folder of --directory."""

    root: Path

    def open(self, settings: Mapping[str, Any], machine: Machine) -> None:
        """Create the folder, or continue in it. `settings` are JSON values.

        Raises UserError if the folder has other settings, another machine, or other content.
        """
        # Older versions did not record GPUs. On machines without a GPU, their folders can be continued.
        parts = {name: value for name, value in asdict(machine).items() if value != []}
        refusals = {
            "machine": "has runs of another machine ({}): ratios never mix machines, take another folder",
            "settings": "was made with other settings ({}): take another folder",
        }
        basis = {"settings": dict(settings), "machine": parts}
        open_folder(self.root, "actorq compare", ("runs", "logs", "configs"), basis, refusals)

    def run(self, scheduled: ScheduledRun) -> RunDirectory:
        """The directory of a run."""
        return RunDirectory(self.root / "runs" / scheduled.name)

    def log(self, scheduled: ScheduledRun) -> Path:
        """The output of `actorq train`."""
        return self.root / "logs" / f"{scheduled.name}.log"

    def config(self, scheduled: ScheduledRun) -> Path:
        """The configuration of a run."""
        return self.root / "configs" / f"{scheduled.name}.yaml"

    def finished(self, scheduled: ScheduledRun) -> bool:
        """Whether the run is over: solved, or its budget ended."""
        return self.run(scheduled).read_summary().get("state") in _FINISHED

    def clear(self, scheduled: ScheduledRun) -> None:
        """Remove the files of an interrupted run. Raises UserError while the run is active.

        A comparison never resumes a run: its times would include a second start, and warm caches.
        """
        run = self.run(scheduled)
        if not run.root.exists():
            return
        with run.locked(lambda: None):
            shutil.rmtree(run.root)
