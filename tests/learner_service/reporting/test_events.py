"""The event file can be read by TensorBoard's own reader."""

import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from actorq.domain.environments import Group
from actorq.domain.policy import FidelityReport, LayerReport, PolicyDescriptor, RefusedRung, SequenceError
from actorq.domain.status import DynamicCapacityStatus, Energy, RolloutQueueStatus
from actorq.domain.trajectory import Evaluation
from learner_service.reporting.events import EventFile, EventLog
from learner_service.sparsity import Cost, Flops
from tests.builders.run_status import run_status
from tests.learner_service.learner_parts import room_for

LAYERS = (LayerReport("a", "float32", "fidelity gate"), LayerReport("b", "int8 per channel"))
FIDELITY = FidelityReport(256, 0.01, 0.02, 0.001, 0.002, 0.99, LAYERS, refused=(RefusedRung((), 0.3, 0.4, 0.5),))
EMITTED = PolicyDescriptor("run", 4, 100, "int8", b"", 1_000, 4_000, 0.0, FIDELITY)
STATUS = run_status(
    environment_steps=500,
    environment_steps_per_s=100.0,
    updates=64,
    updates_per_s=50.0,
    samples_per_insert=8.0,
    episodes=3,
    max_environment_steps=1_000,
    policy_version=4,
    staleness_p50=1.0,
    staleness_p99=2.0,
    energy=Energy(0.002, 0.001, "model", {"learner": 0.0015, "actor": 0.0005}),
    starved_s=0.5,
    loss=0.25,
)


def read(directory: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """(tag, step) -> (value, wall time) of the one event file."""
    (path,) = directory.iterdir()
    return {
        (value.tag, event.step): (
            value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value,
            event.wall_time,
        )
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    }


def test_statuses_and_evaluations_are_scalars_over_environment_steps(tmp_path: Path) -> None:
    log = EventLog([EventFile(tmp_path)])
    log.status(STATUS, wall_time=10.0)
    log.evaluation(Evaluation(1, 4, 64, "int8", (100.0, 300.0), (100, 300), 1.0, (True, False)), 600, wall_time=11.0)
    full = replace(STATUS, environment_steps=700, training_return=42.0, activation_s=0.003, emitted=EMITTED)
    log.status(full, wall_time=12.0)
    sequences = (SequenceError(64, 16, 0.0, 0.0, 0.0125, 0.0, 0.0),)
    takes_noise = replace(FIDELITY, mean_kl=0.0003, max_kl=0.02, sequences=sequences)
    log.status(replace(full, environment_steps=800, emitted=replace(EMITTED, fidelity=takes_noise)), wall_time=13.0)
    log.close()
    events = read(tmp_path)
    assert events["training/updates", 500] == (64.0, 10.0)
    assert events["training/loss", 500][0] == 0.25
    assert events["actors/staleness_p99_versions", 500][0] == 2.0
    assert events["energy/wh", 500][0] == pytest.approx(2.0)
    assert events["energy/learner_wh", 500][0] == pytest.approx(1.5)
    assert events["return/evaluation", 600] == (200.0, 11.0)
    assert events["success/evaluation", 600] == (0.5, 11.0)
    assert events["return/training", 700][0] == 42.0
    assert events["policy/activation_ms", 700][0] == pytest.approx(3.0)
    assert events["policy/bytes", 700][0] == 1_000.0
    assert events["fidelity/argmax_agreement", 700][0] == pytest.approx(0.99)
    assert events["fidelity/relative_mean_error", 700][0] == pytest.approx(0.001)
    assert events["fidelity/relative_max_error", 700][0] == pytest.approx(0.002)
    assert events["fidelity/mean_kl", 800][0] == pytest.approx(0.0003)
    assert events["fidelity/max_kl", 800][0] == pytest.approx(0.02)
    assert events["fidelity/state_drift", 800][0] == pytest.approx(0.0125)
    assert events["fidelity/float_layers", 700][0] == 1.0
    assert events["fidelity/refused_rungs", 700][0] == 1.0


def test_unknown_values_are_not_written(tmp_path: Path) -> None:
    log = EventLog([EventFile(tmp_path)])
    log.status(STATUS, wall_time=10.0)
    continuous = replace(EMITTED, fidelity=replace(FIDELITY, argmax_agreement=None))
    log.status(replace(STATUS, environment_steps=501, emitted=continuous), wall_time=11.0)
    log.close()
    tags = {tag for tag, _ in read(tmp_path)}
    assert not tags & {"return/training", "return/evaluation", "policy/activation_ms", "fidelity/argmax_agreement"}
    assert not tags & {"fidelity/mean_kl", "fidelity/max_kl", "fidelity/state_drift"}
    assert "policy/bytes" in tags


def test_flops_are_scalars_over_environment_steps(tmp_path: Path) -> None:
    log = EventLog([EventFile(tmp_path)])
    log.flops(Flops(action=Cost(10.0, 100.0), update=Cost(50.0, 200.0)), updates=3, step=7, wall_time=5.0)
    log.close()
    written = read(tmp_path)
    assert {tag: value for (tag, step), (value, _) in written.items() if step == 7} == pytest.approx(
        {
            "flops/action": 10.0,
            "flops/action_to_dense": 0.1,
            "flops/update": 50.0,
            "flops/update_to_dense": 0.25,
            "flops/training": 150.0,
        }
    )


def test_multi_step_targets_and_dynamic_capacity_are_scalars_if_used(tmp_path: Path) -> None:
    log = EventLog([EventFile(tmp_path)])
    log.status(STATUS, wall_time=10.0)
    looked = replace(STATUS, environment_steps=600, dynamic_capacity=DynamicCapacityStatus(90, None, 0, 0))
    log.status(looked, wall_time=11.0)
    dropped = DynamicCapacityStatus(80, 0.5, 2, 16)
    log.status(replace(looked, environment_steps=700, multi_step_since=650, dynamic_capacity=dropped), wall_time=12.0)
    log.close()
    events = {key: value for key, (value, _) in read(tmp_path).items() if key[0].startswith("replay/")}
    assert events == {
        ("replay/transitions", 600): 90.0,
        ("replay/drops", 600): 0.0,
        ("replay/dropped_transitions", 600): 0.0,
        ("replay/transitions", 700): 80.0,
        ("replay/drops", 700): 2.0,
        ("replay/dropped_transitions", 700): 16.0,
        ("replay/policy_distance", 700): 0.5,
    }
    since = [key for key in read(tmp_path) if key[0] == "training/multi_step_since_environment_step"]
    assert since == [("training/multi_step_since_environment_step", 700)]


def test_the_queue_and_the_figures_of_an_on_policy_algorithm_are_scalars(tmp_path: Path) -> None:
    log = EventLog([EventFile(tmp_path)])
    log.status(replace(STATUS, rollout_queue=RolloutQueueStatus(64, 8)), wall_time=10.0)
    known = RolloutQueueStatus(0, 16, mismatch=0.25, divergence=0.5, policy_lag=1.5)
    log.status(replace(STATUS, environment_steps=600, rollout_queue=known), wall_time=11.0)
    log.figures({"entropy": 0.75}, 600, wall_time=11.0)
    log.figures({}, 700, wall_time=12.0)
    log.close()
    events = {key: value for key, (value, _) in read(tmp_path).items() if key[0].startswith(("queue/", "training/ent"))}
    assert events == {
        ("queue/waiting_transitions", 500): 64.0,
        ("queue/dropped_transitions", 500): 8.0,
        ("queue/waiting_transitions", 600): 0.0,
        ("queue/dropped_transitions", 600): 16.0,
        ("queue/mismatch", 600): 0.25,
        ("queue/divergence", 600): 0.5,
        ("queue/policy_lag", 600): 1.5,
        ("training/entropy", 600): 0.75,
    }


def test_on_a_full_disk_events_are_lost_and_the_file_stays_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    log = EventLog([EventFile(tmp_path)])
    log.status(STATUS, wall_time=1.0)
    size = next(tmp_path.iterdir()).stat().st_size
    with room_for(size + 100):
        for updates in (65, 66):
            log.status(replace(STATUS, environment_steps=updates), wall_time=2.0)
    assert next(tmp_path.iterdir()).stat().st_size == size
    log.status(replace(STATUS, environment_steps=900), wall_time=3.0)
    log.close()
    assert {step for _, step in read(tmp_path)} == {500, 900}
    assert len(caplog.records) == 2


def test_a_disk_that_is_full_at_the_start_gets_its_events_later(tmp_path: Path) -> None:
    log = EventLog([EventFile(tmp_path)])
    with room_for(10):
        log.status(STATUS, wall_time=1.0)
    assert list(tmp_path.iterdir()) == []
    log.status(STATUS, wall_time=2.0)
    log.close()
    assert {step for _, step in read(tmp_path)} == {500}


def test_two_threads_write_one_file(tmp_path: Path) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(50):
            file, together = EventFile(tmp_path / str(number)), threading.Barrier(2)

            def add(name: str, file: EventFile = file, together: threading.Barrier = together) -> None:
                together.wait()
                file.add({name: 1.0}, 1, 1.0)

            threads = [threading.Thread(target=add, args=(name,)) for name in ("a", "b")]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            file.close()
            assert len(list((tmp_path / str(number)).iterdir())) == 1
    finally:
        sys.setswitchinterval(interval)


def test_returns_of_agents_are_scalars_too(tmp_path: Path) -> None:
    log = EventLog([EventFile(tmp_path)])
    log.status(replace(STATUS, agent_returns={"red": 1.5, "green": -2.0}), wall_time=10.0)
    evaluation = Evaluation(1, 4, 64, "int8", (3.0, 5.0), (9, 9), 1.0, (), ("red", "green"), (1.0, 2.0, 2.0, 3.0))
    log.evaluation(evaluation, 600, wall_time=11.0)
    log.close()
    events = read(tmp_path)
    assert [events[f"return/training/{agent}", 500][0] for agent in ("red", "green")] == [1.5, -2.0]
    assert [events[f"return/evaluation/{agent}", 600][0] for agent in ("red", "green")] == [1.5, 2.5]
    assert events["return/evaluation", 600][0] == 4.0


def test_the_returns_of_groups_are_scalars(tmp_path: Path) -> None:
    log = EventLog([EventFile(tmp_path)], (Group("pair", ("green", "blue")), Group("solo", ("red",))))
    log.status(replace(STATUS, agent_returns={"red": 1.5, "green": -2.0, "blue": 0.5}), wall_time=10.0)
    agents = ("red", "green", "blue")
    evaluation = Evaluation(1, 4, 64, "int8", (6.0,), (10,), 1.0, agents=agents, agent_returns=(1.0, 2.0, 3.0))
    log.evaluation(evaluation, 600, wall_time=11.0)
    log.close()
    events = read(tmp_path)
    assert events["return/training/group pair", 500][0] == -1.5
    assert events["return/training/group solo", 500][0] == 1.5
    assert events["return/evaluation/group pair", 600][0] == 5.0
    assert events["return/evaluation/red", 600][0] == 1.0
