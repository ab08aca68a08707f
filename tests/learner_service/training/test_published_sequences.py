"""A learner with memory sends stored sequences with each version, and the quantizer accepts them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from actorq import wire
from actorq.client import QuantizerClient
from actorq.domain.policy import SEQUENCE_LENGTHS, Checkpoint, PolicyGraph
from actorq.domain.signature import Role
from actorq.quantization.graph import Graph
from learner_service.actors.members import Member
from learner_service.training.publisher import Snapshot, checkpoint_requests
from learner_service.training.training import Training, build_training
from quantizer_service.emission.prepared_graph import PreparedGraph
from quantizer_service.serving.submissions import SubmissionAssembler
from tests.learner_service.learner_parts import SPEC, config, drawn_segment, segment, store_segment

UNITS = 6
ACTOR = Member("actor-0", "actor", 0, incarnation=1)


@pytest.fixture(params=["ppo", "dqn"])
def built(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Training, PolicyGraph]]:
    """With a rollout queue, or with a replay."""
    memory = {"kind": "lstm", "units": UNITS, "burn_in": 1, "sequence_length": 2}
    run = config(algorithm=request.param, memory=memory, actors=1, actor={"segment_length": 4})
    with QuantizerClient("127.0.0.1:1") as client:
        opening = wire.Opening("run", "int8")
        training, graph = build_training(run, SPEC, tmp_path, opening, client, None, lambda _: tmp_path, lambda _: None)
        yield training, graph
        training.close()


def published(training: Training, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    offered: list[Snapshot] = []

    def offer(snapshot: Snapshot) -> int:
        offered.append(snapshot)
        return len(offered)

    monkeypatch.setattr(training.publisher, "offer", offer)
    training.trainer.publish()
    return offered[0]


def test_a_version_carries_the_newest_sequences(
    built: tuple[Training, PolicyGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    training, graph = built
    segments = []
    for sequence in (1, 2):
        states = np.full((2, 2 * UNITS), sequence, np.float32)
        made = drawn_segment(sequence) if training.config.algorithm == "ppo" else segment(sequence)
        segments.append(made.with_columns(**{f"state_{2 * UNITS}": states}))
        assert training.replay.limiter.try_reserve(8)
        store_segment(training.intake, ACTOR, segments[-1], 8)
    snapshot = published(training, monkeypatch)
    found = snapshot.sequences
    assert found[SEQUENCE_LENGTHS].tolist() == [4, 4, 4, 4]
    # The newest segment comes first.
    assert found[Role.STATE][:, 0].tolist() == [2, 2, 1, 1]
    np.testing.assert_array_equal(found["observations"][:, :2], segments[1].observations[:4])
    np.testing.assert_array_equal(found["observations"][:, 2:], segments[0].observations[:4])
    # The quantizer parses the same arrays, and runs them.
    assembler = SubmissionAssembler()
    assembler.add(wire.publication_to_proto(wire.Opening("run", "int8")))
    *_, checkpoint = (assembler.add(request) for request in checkpoint_requests(1, snapshot, graph, ()))
    assert isinstance(checkpoint, Checkpoint)
    prepared = PreparedGraph(Graph.parse(graph))
    run = prepared.without_dead_units(prepared.validated(checkpoint)).run("run", ())
    reference = prepared.reference
    errors = run.judge_sequences(lambda inputs: reference.run(snapshot.parameters, inputs))
    assert [(each.steps, each.state_drift) for each in errors] == [(1, 0.0), (4, 0.0)]


def test_sequences_from_a_replay_continue_in_the_segments_that_follow(
    built: tuple[Training, PolicyGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    training, _ = built
    if training.config.algorithm != "dqn":
        pytest.skip("is about the replay")
    last = np.zeros((2, 4), np.float32)
    for sequence in range(1, 31):
        states = np.full((2, 2 * UNITS), sequence, np.float32)
        made = replace(segment(sequence), follows=sequence > 1)
        made.observations[0], last = last, made.observations[-1].copy()
        assert training.replay.limiter.try_reserve(8)
        store_segment(training.intake, ACTOR, made.with_columns(**{f"state_{2 * UNITS}": states}), 8)
    # The learner draws batches from the same replay.
    assert training.batches.fetch(10.0)
    training.batches.learn(0.0)
    snapshot = published(training, monkeypatch)
    found = snapshot.sequences
    assert found[SEQUENCE_LENGTHS].tolist() == [64] * 16
    assert found["observations"].shape == (64, 16, 4)
    # They begin in different segments, with the stored states.
    assert len(set(found[Role.STATE][:, 0].tolist())) > 5
    # Calibration has the states of the drawn steps.
    calibration = snapshot.calibration[Role.STATE]
    assert calibration.shape == (len(snapshot.calibration["observations"]), 2 * UNITS)
    assert len(np.unique(calibration, axis=0)) > 5


def test_the_first_version_has_no_sequences(
    built: tuple[Training, PolicyGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert published(built[0], monkeypatch).sequences == {}
