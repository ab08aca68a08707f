"""A learner with memory sends stored sequences with each version, and the quantizer accepts them."""

from collections.abc import Iterator
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
from tests.learner_service.learner_parts import SPEC, config, drawn_segment, store_segment

UNITS = 6
ACTOR = Member("actor-0", "actor", 0, incarnation=1)


@pytest.fixture
def built(tmp_path: Path) -> Iterator[tuple[Training, PolicyGraph]]:
    actor = {"segment_length": 4}
    run = config(algorithm="ppo", memory={"kind": "lstm", "units": UNITS}, actors=1, actor=actor)
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
        segments.append(drawn_segment(sequence).with_columns(**{f"state_{2 * UNITS}": states}))
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


def test_the_first_version_has_no_sequences(
    built: tuple[Training, PolicyGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert published(built[0], monkeypatch).sequences == {}
