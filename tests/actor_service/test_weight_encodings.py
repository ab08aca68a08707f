"""An actor requests the weights that its processor computes exactly, and uses them from its first policy."""

import logging
import re
from dataclasses import replace

import pytest

from actorq.arithmetic import arithmetic
from actorq.domain.policy import SIGNED, UNSIGNED, Policy
from actorq.v1.policy_pb2 import WEIGHT_ENCODING_UNSIGNED
from tests.actor_service.actor_peers import DEADLINE_S, ScriptedLearner, ScriptedQuantizer, membership
from tests.actor_service.actor_process import beside, in_scheme, running_actor, stop
from tests.builders.emulation import ended_without_dot_product


def unsigned(version: int) -> Policy:
    policy = in_scheme("int8", version)
    return replace(policy, descriptor=replace(policy.descriptor, weight_encoding=UNSIGNED))


def test_an_actor_with_unsigned_weights_uses_only_these_from_its_first_policy(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer, caplog: pytest.LogCaptureFixture
) -> None:
    learner.membership = membership(scheme="int8", segment_length=2)
    settings = beside(learner, quantizer).model_copy(update={"weight_encoding": UNSIGNED})
    with caplog.at_level(logging.WARNING), running_actor(settings) as (client, ended):
        learner.opened()
        for version in (1, 2):
            request = quantizer.watched()
            assert (request.scheme, request.weight_encoding) == ("int8", WEIGHT_ENCODING_UNSIGNED)
            quantizer.serve(unsigned(version))
            learner.answer(credit=version)
            segment = learner.segments.get(timeout=DEADLINE_S)
            assert {span.scheme for span in segment.spans} == {"int8"}
            report = client.status().report
            assert (report.scheme, report.avoided_scheme) == ("int8", "")
            # It requests the same encoding when it connects again.
            quantizer.end()
        stop(learner, ended)
    assert [record.getMessage() for record in caplog.records if "wrongly" in record.getMessage()] == []


@pytest.mark.timeout(300)
def test_an_encoding_that_the_processor_computes_wrongly_ends_the_actor_with_one_line() -> None:
    ended = ended_without_dot_product("-m", "actor_service", "--weight-encoding", SIGNED)
    assert ended.returncode == 2, ended.stderr[-2000:]
    # The emulator reports the instructions that it lacks.
    (line,) = (line for line in ended.stderr.splitlines() if not line.startswith("qemu"))
    assert re.search("error: --weight-encoding: .*signed .*auto, unsigned$", line)


def test_every_x86_64_and_arm_processor_computes_unsigned_weights_exactly() -> None:
    assert UNSIGNED in arithmetic().weight_encodings
