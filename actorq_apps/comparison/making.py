"""Executes the runs of a comparison one after the other, each with `actorq train` in its own process."""

import queue
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.statefiles.files import replace_file
from actorq_apps.comparison.folder import ComparisonFolder
from actorq_apps.comparison.schedule import ScheduledRun
from actorq_apps.local.events import sigterm_as_exit
from actorq_apps.local.forkserver import ForkServers, run_server
from actorq_apps.local.wholerun import DRAIN_MARGIN_S, failure_of, start_run


def make_runs(
    folder: ComparisonFolder,
    schedule: Sequence[ScheduledRun],
    config_of: Callable[[ScheduledRun], RunConfig],
    tell: Callable[[str], None],
) -> None:
    """Execute each unfinished run. Raises ActorQError when one fails. Main thread only.

    SIGTERM and Ctrl-C end the current run, then this process.
    """
    finished = all(folder.finished(scheduled) for scheduled in schedule)
    with sigterm_as_exit(), nullcontext() if finished else run_server() as servers:
        for number, scheduled in enumerate(schedule, 1):
            title = f"run {number} of {len(schedule)}: {scheduled.variant.name}, seed {scheduled.seed}"
            if folder.finished(scheduled):
                tell(f"{title}: kept")
                continue
            tell(f"{title} (log: {folder.log(scheduled)})")
            _make(folder, scheduled, config_of(scheduled), servers)
            tell(f"  {_result(folder, scheduled)}")


def _make(folder: ComparisonFolder, scheduled: ScheduledRun, config: RunConfig, servers: ForkServers | None) -> None:
    folder.clear(scheduled)
    replace_file(folder.config(scheduled), settings.to_yaml(config))
    log = folder.log(scheduled)
    log.unlink(missing_ok=True)
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    child = start_run(
        *(
            scheduled.name,
            folder.run(scheduled).root,
            folder.config(scheduled),
            log,
            lambda exited: ended.put(exited.code),
        ),
        actor_module=scheduled.variant.actor_module,
        servers=servers,
    )
    try:
        code = ended.get()
    except BaseException:
        try:
            child.end(config.transport.drain_s + DRAIN_MARGIN_S)
        finally:
            # The user pressed Ctrl-C again.
            child.kill()
        raise
    if error := failure_of(child, code):
        raise type(error)(f"{scheduled.name}: {error} (see {log}); the same command continues the comparison")


def _result(folder: ComparisonFolder, scheduled: ScheduledRun) -> str:
    summary = folder.run(scheduled).read_summary()
    evaluation = summary.get("evaluation")
    score = f"return {evaluation['mean_return']:,.1f}" if evaluation else "no evaluation"
    return (
        f"{summary['state']}: {score}, {summary['environment_steps']:,} environment steps, "
        f"{summary['wall_clock_s']:,.0f} s"
    )
