"""Executes the runs of trials on this machine, each with `actorq train` in its own process."""

import queue
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.policy import FP32
from actorq.domain.status import RunState
from actorq.errors import UserError
from actorq.process import EXIT_REFUSED
from actorq.rundirectory import RunDirectory
from actorq.start import command_of
from actorq.statefiles.files import replace_file
from actorq.statefiles.lines import read_lines
from actorq_apps.local.child import Child
from actorq_apps.local.events import ChildExited, Events, SignalReceived
from actorq_apps.local.forkserver import ForkServers
from actorq_apps.local.wholerun import DRAIN_MARGIN_S, failure_of, start_run
from actorq_apps.sweep.space import Value
from actorq_apps.sweep.trials import Progress, RunEnd, Trial, own_urls

FOLDERS = ("runs", "logs", "configs")
_ENDS = {RunState.SOLVED.value: RunEnd.SOLVED, RunState.BUDGET_ENDED.value: RunEnd.BUDGET_ENDED}


@dataclass(eq=False)
class Processes:
    """Runs as processes of this machine: a `Backend`.

    root: the sweep's folder, with FOLDERS. identity: part of the runs' URLs, so that two sweeps never share them.
    config_of: returns the settings of a run with a trial's values.
    events: the sweep's queue, which also has its signals. The exits of the processes are put there.
    lock: descriptor of the sweep's lock, which the runs inherit. servers: from `run_server`, to fork the runs.
    """

    root: Path
    identity: str
    config_of: Callable[[Mapping[str, Value]], RunConfig]
    events: Events
    lock: int
    servers: ForkServers | None = None
    period_s: float = 0.5
    _children: dict[int, Child] = field(default_factory=dict, init=False)
    _codes: dict[str, int] = field(default_factory=dict, init=False)
    _refused: dict[int, str] = field(default_factory=dict, init=False)

    def run(self, trial: Trial) -> RunDirectory:
        """The directory of a trial's run."""
        return RunDirectory(self.root / "runs" / _name(trial))

    def start(self, trial: Trial) -> None:
        """Start the process, unless the run is over. A run without a configuration starts from the beginning."""
        run = self.run(trial)
        if run.read_summary().get("state") in _ENDS:
            return
        try:
            urls = own_urls(self.config_of(trial.params), f"{self.identity}-{trial.number:03}")
            config = self.config_of({**trial.params, **urls})
        except UserError as error:
            # Each value may be valid alone, but not together with the others.
            self._refused[trial.number] = str(error)
            return
        resume = run.config.exists()
        if not resume and run.root.exists():
            shutil.rmtree(run.root)
        config_file = self.root / "configs" / f"{_name(trial)}.yaml"
        replace_file(config_file, settings.to_yaml(config))
        log = self.root / "logs" / f"{_name(trial)}.log"
        of_run = _name(trial), run.root, config_file, log, self._record_exit
        child = start_run(*of_run, resume=resume, inherited=(self.lock,), servers=self.servers)
        self._children[trial.number] = child

    def progress(self, trial: Trial) -> Progress:
        """The progress from the run's log of evaluations; after its end from its summary."""
        if trial.number in self._refused:
            return Progress(end=RunEnd.FAILED, reason=self._refused[trial.number])
        child = self._children.get(trial.number)
        if child and child.name not in self._codes:
            return self._so_far(trial)
        summary = self.run(trial).read_summary()
        if end := _ENDS.get(summary.get("state", "")):
            points = tuple((point["environment_steps"], point["mean_return"]) for point in summary["evaluations"])
            steps, final = summary["environment_steps"], summary["evaluation"]
            # The evaluation that solved the run may not be the last one.
            if final and (not points or final["mean_return"] != points[-1][1]):
                points = (*points, (steps, final["mean_return"]))
            return Progress(points, steps, summary["wall_clock_s"], end)
        error = failure_of(child, self._codes[child.name]) if child else None
        reason = f"{error or 'the run left no summary'} (see {self.root / 'logs' / f'{_name(trial)}.log'})"
        return replace(self._so_far(trial), end=RunEnd.FAILED, reason=reason)

    def prune(self, trial: Trial) -> None:
        """Ask the run to end."""
        if child := self._children.get(trial.number):
            child.terminate()

    def interrupt(self) -> None:
        """Ask all runs to end, and wait. Later they continue from their checkpoints."""
        alive = {child.name: child for child in self._children.values() if child.name not in self._codes}
        for child in alive.values():
            child.terminate()
        deadline = time.monotonic() + self.config_of({}).transport.drain_s + DRAIN_MARGIN_S
        while alive.keys() - self._codes.keys():
            try:
                event = self.events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(event, SignalReceived):
                break
        for child in alive.values():
            child.kill()

    def keep_best(self, trial: Trial, folder: Path) -> str:
        """Export the run's best policy in the scheme of its actors, and copy its configuration."""
        run = self.run(trial)
        if not run.config.exists():
            return f"the best policy cannot be exported: {run.root} is gone; {folder} stays as it is"
        shutil.copyfile(run.config, folder / "config.yaml")
        policy = folder / "policy.onnx"
        # The command runs without --force, which would also write a policy that the gate refused.
        for earlier in (policy, policy.with_suffix(".json")):
            earlier.unlink(missing_ok=True)
        command = (*command_of("quantizer_service.command.export:command"), str(run.root), "--output", str(policy))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == EXIT_REFUSED:
            done = subprocess.run((*command, "--scheme", FP32), capture_output=True, text=True, check=False)
        if done.returncode:
            return f"the best policy cannot be exported: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}"
        return f"the best policy: {policy}"

    def _record_exit(self, exited: ChildExited) -> None:
        self._codes[exited.name] = exited.code
        self.events.put(exited)

    def _so_far(self, trial: Trial) -> Progress:
        log = self.run(trial).evaluations
        lines = [values for _, values in read_lines(log) if values] if log.exists() else []
        points = tuple((line["environment_steps"], fmean(line["evaluation"]["returns"])) for line in lines)
        return Progress(points, lines[-1]["environment_steps"], lines[-1]["wall_clock_s"]) if lines else Progress()


def _name(trial: Trial) -> str:
    return f"trial-{trial.number:03}"
