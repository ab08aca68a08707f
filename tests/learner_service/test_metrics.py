"""A learner's metrics of stored, repeated and refused segments, and before any data."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from actorq.client import LearnerClient
from actorq.config.run_config import RunConfig
from actorq.domain.processes import NodeEnergy, ProcessStats
from actorq.domain.status import DynamicCapacityStatus
from learner_service.report import Reporter
from tests.learner_service.learner_parts import segment
from tests.learner_service.learner_servers import Running, joined, running_learner, running_quantizer

CONFIG = RunConfig.model_validate(
    {
        "environments_per_actor": 2,
        "dqn": {"hidden_sizes": (8,), "n_step": 3},
        "replay": {"capacity": 2_000, "min_size": 64},
        "actor": {"segment_length": 4},
    }
)


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[Running]:
    with (
        running_quantizer(tmp_path / "policies") as quantizer,
        running_learner(CONFIG, tmp_path / "run", quantizer) as running,
    ):
        yield running


def samples(learner: Running) -> dict[tuple[str, ...], float]:
    """Every sample by its name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in learner.service.metrics()
        for sample in family.samples
    }


def names(learner: Running) -> list[str]:
    return [family.name for family in learner.service.metrics()]


def test_every_metric_exists_before_any_data(learner: Running) -> None:
    told = samples(learner)
    assert told["actorq_learner_state", "waiting for actors"] == 1
    assert told["actorq_learner_environment_steps_total",] == 0
    assert ("actorq_learner_evaluation_return",) not in told
    assert ("actorq_learner_replay_transitions",) not in told
    before = names(learner)
    assert len(before) == len(set(before))
    with LearnerClient(learner.address) as client:
        stream = joined(client, "actor-0")
        stream.await_credit(1)
        assert names(learner) == before
        stream.close()


def test_segments_are_counted_by_their_outcome(learner: Running) -> None:
    with LearnerClient(learner.address) as client:
        stream = joined(client, "actor-0")
        stream.await_credit(2)
        for sequence in (1, 1, 2):
            stream.send_segment(segment(sequence))
        stream.await_acknowledged(2)
        assert samples(learner)["actorq_learner_actors", "actor"] == 1
        stream.send_segment(segment(9))
        stream.refusal()
        told = samples(learner)
        assert told["actorq_learner_segments_total", "stored"] == 2
        assert told["actorq_learner_segments_total", "duplicate"] == 1
        assert told["actorq_learner_segments_total", "refused"] == 1
        assert told["actorq_learner_environment_steps_total",] == told["actorq_learner_replay_transitions",] == 16


def test_dynamic_capacity_has_metrics_of_distance_and_drops(learner: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "actorq_learner_replay_dropped_transitions_total" not in {name for name, *_ in samples(learner)}
    now = Reporter.status
    forgetful = DynamicCapacityStatus(transitions=900, distance=0.25, drops=2, dropped_transitions=220)
    monkeypatch.setattr(Reporter, "status", lambda self: replace(now(self), dynamic_capacity=forgetful))
    told = samples(learner)
    assert told["actorq_learner_replay_policy_distance",] == 0.25
    assert told["actorq_learner_replay_dropped_transitions_total",] == 220


def test_energy_is_measured_in_joules_and_grams_for_each_service(learner: Running) -> None:
    actor = ProcessStats("actor-0", "actor", "node-1", 7, 1.0, 4.0, 1_000_000, 1_000_000)
    energy = NodeEnergy("node-1", 0.0, 0.0, 0.0, 0.0, 0.0, "test")
    later = NodeEnergy("node-1", 1e-3, 0.0, 0.0, 5e-4, 4.0, "test")
    with LearnerClient(learner.address) as client:
        client.report_energy(energy, ())
        client.report_energy(later, (actor,))
        told = samples(learner)
    assert told["actorq_learner_energy_joules_total", "actor"] > 0
    ratio = told["actorq_learner_co2_grams_total", "actor"] / told["actorq_learner_energy_joules_total", "actor"]
    assert abs(ratio - 0.5 / 3600) < 1e-9


def test_unknown_service_names_share_one_time_series(learner: Running) -> None:
    strangers = tuple(ProcessStats(f"p-{i}", f"role-{i}", "node-1", i, 1.0, 1.0, 1, 1) for i in range(1, 9))
    begun = NodeEnergy("node-1", 0.0, 0.0, 0.0, 0.0, 0.0, "test")
    later = NodeEnergy("node-1", 1e-3, 0.0, 0.0, 5e-4, 8.0, "test")
    with LearnerClient(learner.address) as client:
        client.report_energy(begun, ())
        client.report_energy(later, strangers)
        told = samples(learner)
    services = {key[1] for key in told if key[0] == "actorq_learner_energy_joules_total"}
    assert services == {"learner", "other"}
    assert told["actorq_learner_energy_joules_total", "other"] > 0


def test_the_age_of_the_newest_copy_exists_only_with_object_storage(learner: Running, tmp_path: Path) -> None:
    names = ("actorq_learner_object_storage_age_seconds", "actorq_learner_object_storage_period_seconds")
    without = samples(learner)
    assert not [name for name in names if (name,) in without]
    tree = {**CONFIG.model_dump(), "checkpoint": {"period_s": 7.0, "object_storage": f"file://{tmp_path}/stored"}}
    with running_learner(RunConfig.model_validate(tree), tmp_path / "copied", "127.0.0.1:1") as copied:
        first, second = (samples(copied) for _ in range(2))
    # Nothing is uploaded yet.
    assert 0 <= first[names[0],] < second[names[0],]
    assert second[names[1],] == 7.0
