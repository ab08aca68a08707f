"""A run's status and view for tests of the display."""

import io
from dataclasses import replace

from rich.console import Console

from actorq.domain.policy import FidelityReport, LayerReport, PolicyDescriptor
from actorq.domain.processes import ProcessStats
from actorq.domain.status import ActorReport, ActorStatus, Energy, RunStatus
from actorq.domain.trajectory import Evaluation, Role
from actorq_apps.cli.display.panel import render
from actorq_apps.cli.display.view import RunView
from actorq_apps.local.observer import ProcessState, ProcessView
from actorq_apps.local.services import Kind
from tests.builders.run_status import run_status


def process_stats(name: str, role: str, pid: int) -> ProcessStats:
    return ProcessStats(name, role, "node-a", pid, 1.7e9, 12.5, 84 * 2**20, 96 * 2**20)


def actor_status(name: str, role: Role, index: int, pid: int) -> ActorStatus:
    report = ActorReport(34, "int8", 32_100, 742.3, 1, (0.034,), process_stats(name, role, pid))
    return ActorStatus(name, role, index, connected=True, report=report)


def evaluation(mean_return: float, version: int) -> Evaluation:
    return Evaluation(version, version, version * 100, "int8", (mean_return,) * 20, (200,) * 20, 1.5)


EMITTED = PolicyDescriptor(
    run_id="CartPole-v1-20260102-030405",
    version=35,
    learner_step=3500,
    scheme="int8",
    sha256=b"\0" * 32,
    size_bytes=9_812,
    fp32_size_bytes=20_480,
    snapshot_at=1.7e9,
    fidelity=FidelityReport(
        256,
        0.002,
        0.01,
        0.001,
        0.004,
        0.992,
        (LayerReport("0", "float32", "first layer"), LayerReport("1", "int8 per channel")),
    ),
)

STATUS = run_status(
    run_id="CartPole-v1-20260102-030405",
    elapsed_s=42.3,
    environment_steps=64_256,
    environment_steps_per_s=1484.6,
    updates=22_010,
    updates_per_s=921.4,
    samples_per_insert=21.9,
    episodes=812,
    training_return=180.2,
    evaluation=evaluation(231.4, 35),
    policy_version=36,
    staleness_p50=1.0,
    staleness_p99=3.0,
    emitted=EMITTED,
    actors=(
        actor_status("actor-0", "actor", 0, 4103),
        actor_status("actor-1", "actor", 1, 4104),
        actor_status("evaluator", "evaluator", 0, 4105),
    ),
    processes=tuple(
        process_stats(name, role, pid)
        for name, role, pid in (
            ("learner", "learner", 4101),
            ("quantizer", "quantizer", 4102),
            ("actor-0", "actor", 4103),
        )
    ),
    energy=Energy(0.00123, 0.00045, "codecarbon tdp estimate"),
    starved_s=3.2,
    loss=0.01234,
    activation_s=0.034,
)


def with_evaluation(mean_return: float, version: int) -> RunStatus:
    return replace(STATUS, evaluation=evaluation(mean_return, version))


def panel(view: RunView, width: int, height: int | None = None) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True, force_terminal=True)
    console.print(render(view, 42.3, width, height, lambda _: (301 * 2**20, 41.2)))
    return console.export_text().rstrip("\n").splitlines()


def run_view() -> RunView:
    view = RunView("runs/example", "CartPole-v1", "dqn")
    kinds = (("learner", Kind.LEARNER), ("quantizer", Kind.QUANTIZER), ("actor-0", Kind.ACTOR), ("meter", Kind.METER))
    for pid, (name, kind) in enumerate(kinds, start=4101):
        view.update_process(ProcessView(name, kind, ProcessState.RUNNING, pid, 0))
    view.update_process(ProcessView("actor-1", Kind.ACTOR, ProcessState.RESTARTING, None, 2))
    return view
