"""Makes the runs of a comparison one after the other, each with `actorq train` in its own process."""

import queue
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.statefiles.files import replace_file
from actorq_apps.comparison.folder import ComparisonFolder
from actorq_apps.comparison.plan import PlannedRun
from actorq_apps.local.events import sigterm_as_exit
from actorq_apps.local.forkserver import ForkServers, run_server
from actorq_apps.local.wholerun import DRAIN_MARGIN_S, failure_of, start_run


def make_runs(
    folder: ComparisonFolder,
    plan: Sequence[PlannedRun],
    config_of: Callable[[PlannedRun], RunConfig],
    tell: Callable[[str], None],
) -> None:
    """Make each unfinished run. Raises ActorQError when one fails. Main thread only.

    SIGTERM and Ctrl-C end the current run, then this process.
    """
    finished = all(folder.finished(planned) for planned in plan)
    with sigterm_as_exit(), nullcontext() if finished else run_server() as servers:
        for number, planned in enumerate(plan, 1):
            title = f"run {number} of {len(plan)}: {planned.variant.name}, seed {planned.seed}"
            if folder.finished(planned):
                tell(f"{title}: kept")
                continue
            tell(f"{title} (log: {folder.log(planned)})")
            _make(folder, planned, config_of(planned), servers)
            tell(f"  {_result(folder, planned)}")


def _make(folder: ComparisonFolder, planned: PlannedRun, config: RunConfig, servers: ForkServers | None) -> None:
    folder.clear(planned)
    replace_file(folder.config(planned), settings.to_yaml(config))
    log = folder.log(planned)
    log.unlink(missing_ok=True)
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    child = start_run(
        *(planned.name, folder.run(planned), folder.config(planned), log, lambda exited: ended.put(exited.code)),
        actor_module=planned.variant.actor_module,
        servers=servers,
    )
    try:
        code = ended.get()
    except BaseException:
        try:
            child.end(config.transport.drain_s + DRAIN_MARGIN_S)
        finally:
            # A second Ctrl-C.
            child.kill()
        raise
    if error := failure_of(child, code):
        raise type(error)(f"{planned.name}: {error} (see {log}); the same command continues the comparison")


def _result(folder: ComparisonFolder, planned: PlannedRun) -> str:
    summary = folder.run(planned).read_summary()
    evaluation = summary.get("evaluation")
    score = f"return {evaluation['mean_return']:,.1f}" if evaluation else "no evaluation"
    return (
        f"{summary['state']}: {score}, {summary['environment_steps']:,} environment steps, "
        f"{summary['wall_clock_s']:,.0f} s"
    )
