"""Makes the runs of a comparison one after the other, each with `actorq train` in its own process."""

import queue
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from actorq.comparison.folder import ComparisonFolder
from actorq.comparison.plan import PlannedRun
from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.errors import ActorQError, UserError
from actorq.local.child import Child, describe_exit
from actorq.process import EXIT_BUDGET_ENDED, EXIT_OK, EXIT_USER_ERROR
from actorq.statefiles.files import replace_file

_DRAIN_MARGIN_S = 20.0


def make_runs(
    folder: ComparisonFolder,
    plan: Sequence[PlannedRun],
    config_of: Callable[[PlannedRun], RunConfig],
    tell: Callable[[str], None],
) -> None:
    """Make each unfinished run. Raises ActorQError when one fails. Main thread only.

    SIGTERM and Ctrl-C end the current run, then this process.
    """
    with _sigterm_as_exit():
        for number, planned in enumerate(plan, 1):
            title = f"run {number} of {len(plan)}: {planned.variant.name}, seed {planned.seed}"
            if folder.finished(planned):
                tell(f"{title}: kept")
                continue
            tell(f"{title} (log: {folder.log(planned)})")
            _make(folder, planned, config_of(planned))
            tell(f"  {_result(folder, planned)}")


def _make(folder: ComparisonFolder, planned: PlannedRun, config: RunConfig) -> None:
    folder.clear(planned)
    replace_file(folder.config(planned), settings.to_yaml(config))
    log = folder.log(planned)
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "actorq.cli.main", "train"]
    command += ["--config", str(folder.config(planned)), "--run-directory", str(folder.run(planned).root)]
    if planned.variant.actor_module:
        command += ["--actor-module", planned.variant.actor_module]
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    child = Child(planned.name, command, log, lambda exited: ended.put(exited.code))
    try:
        code = ended.get()
    except BaseException:
        try:
            child.end(config.transport.drain_s + _DRAIN_MARGIN_S)
        finally:
            # A second Ctrl-C.
            child.kill()
        raise
    if code not in (EXIT_OK, EXIT_BUDGET_ENDED):
        kind = UserError if code == EXIT_USER_ERROR else ActorQError
        reason = child.user_error() or describe_exit(code)
        raise kind(f"{planned.name}: {reason} (see {log}); the same command continues the comparison")


def _result(folder: ComparisonFolder, planned: PlannedRun) -> str:
    summary = folder.run(planned).read_summary()
    evaluation = summary.get("evaluation")
    score = f"return {evaluation['mean_return']:,.1f}" if evaluation else "no evaluation"
    return (
        f"{summary['state']}: {score}, {summary['environment_steps']:,} environment steps, "
        f"{summary['wall_clock_s']:,.0f} s"
    )


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    def leave(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
