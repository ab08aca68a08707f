"""The folder of a comparison: its runs, and the settings and the machine that they share."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actorq.comparison.plan import PlannedRun
from actorq.domain.status import RunState
from actorq.errors import InvalidInputError, UserError
from actorq.machine import Machine
from actorq.rundirectory import RunDirectory
from actorq.statefiles.documents import read_document, write_document

_FINISHED = (RunState.SOLVED.value, RunState.BUDGET_ENDED.value)


@dataclass(frozen=True)
class ComparisonFolder:
    """The folder of --directory."""

    root: Path

    @property
    def _basis(self) -> Path:
        return self.root / "basis.json"

    def open(self, settings: Mapping[str, Any], machine: Machine) -> None:
        """Make the folder, or continue in it. `settings` are JSON values.

        Raises UserError if the folder has other settings, another machine, or other content.
        """
        basis: dict[str, Any] = {"settings": dict(settings), "machine": asdict(machine)}
        if self.root.exists() and not self.root.is_dir():
            raise UserError(f"--directory: {self.root} is a file")
        if self._basis.exists():
            self._check(basis)
            return
        if self.root.is_dir() and any(self.root.iterdir()):
            raise UserError(f"--directory: expected a folder of actorq compare or an empty one, got {self.root}")
        try:
            for folder in ("runs", "logs", "configs"):
                (self.root / folder).mkdir(parents=True, exist_ok=True)
            write_document(self._basis, basis, indent=2)
        except OSError as error:
            raise UserError(f"--directory: {self.root} cannot be written ({error.strerror})") from None

    def run(self, planned: PlannedRun) -> RunDirectory:
        """The directory of a run."""
        return RunDirectory(self.root / "runs" / planned.name)

    def log(self, planned: PlannedRun) -> Path:
        """The output of `actorq train`."""
        return self.root / "logs" / f"{planned.name}.log"

    def config(self, planned: PlannedRun) -> Path:
        """The configuration of a run."""
        return self.root / "configs" / f"{planned.name}.yaml"

    def finished(self, planned: PlannedRun) -> bool:
        """Whether the run is over: solved, or its budget ended."""
        return self.run(planned).read_summary().get("state") in _FINISHED

    def clear(self, planned: PlannedRun) -> None:
        """Remove the files of an interrupted run. Raises UserError while the run goes on.

        A run is never resumed here: its times would contain a second start, and caches that were already warm.
        """
        run = self.run(planned)
        if not run.root.exists():
            return
        with run.locked(lambda: None):
            shutil.rmtree(run.root)

    def _check(self, basis: Mapping[str, Any]) -> None:
        try:
            earlier = read_document(self._basis)
        except (OSError, InvalidInputError) as error:
            raise UserError(f"--directory: {self._basis} cannot be read ({error}); take another folder") from None
        if found := next(_differences(earlier.get("machine"), basis["machine"]), None):
            raise UserError(
                f"--directory: {self.root} has runs of another machine ({found}): ratios never mix machines, take "
                "another folder"
            )
        if found := next(_differences(earlier.get("settings"), basis["settings"]), None):
            raise UserError(f"--directory: {self.root} was made with other settings ({found}): take another folder")


def _differences(there: Any, here: Any, name: str = "") -> Iterator[str]:
    """Each differing value with its path."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted({*there, *here}):
            yield from _differences(there.get(key), here.get(key), f"{name}.{key}" if name else key)
    elif there != here:
        yield f"{name}: {_shown(there)} there, {_shown(here)} here"


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value) if not isinstance(value, dict) else "something"
