"""A whole actor in its process: the answers of its service, and its end."""

import logging
import queue
import re
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actor_service.environments import Environments, make_environments
from actorq.domain.contract import CONTRACT
from actorq.domain.status import Exploration, Membership
from actorq.domain.trajectory import Evaluation
from actorq.errors import ConflictError, NotFoundError, UnavailableError, UserError
from actorq.process import EXIT_OK
from actorq.v1 import learner_pb2
from tests.actor_service.actor_peers import DEADLINE_S, ScriptedLearner, ScriptedQuantizer, membership, serving
from tests.actor_service.actor_policies import constant_policy, logits_policy
from tests.actor_service.actor_process import MANY, beside, first_policy, in_scheme, running_actor, status_when, stop


def test_an_auto_actor_reports_the_scheme_that_it_uses(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    learner.membership = membership(scheme="auto", segment_length=2)
    # int4 cannot be loaded, and the others are not there.
    quantizer.offer(in_scheme("fp32"), replace(in_scheme("int4"), model=b"garbage"))
    with running_actor(beside(learner, quantizer)) as (client, ended):
        learner.opened()
        assert quantizer.watched().scheme == "fp32"
        quantizer.serve(in_scheme("fp32"))
        learner.answer(credit=1)
        assert learner.received(1) == [("segment", 1)]
        report = client.status().report
        assert (report.policy_version, report.scheme) == (1, "fp32")
        # On request it evaluates in the scheme that it acts in.
        *_, evaluation = client.evaluate(1)
        assert isinstance(evaluation, Evaluation)
        assert evaluation.scheme == "fp32"
        stop(learner, ended)
    (first,) = [message for message in caplog.messages if message.startswith("first action")]
    assert "version 1 fp32" in first


def test_when_the_run_is_over_an_actor_does_not_wait_for_credit(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    learner.membership = membership(segment_length=2)
    with running_actor(beside(learner, quantizer)) as (_, ended):
        first_policy(learner, quantizer, constant_policy([0.0, 1.0]))
        learner.answer(credit=1)
        assert learner.received(1) == [("segment", 1)]
        stop(learner, ended)


class LearnerOfARunThatIsOver(ScriptedLearner):
    """Refuses this number of joins; then the run continues."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    async def Join(self, request: learner_pb2.JoinRequest, context: Any) -> learner_pb2.JoinResponse:  # noqa: N802
        if self.refusals:
            self.refusals -= 1
            raise UnavailableError("the run is over")
        return await super().Join(request, context)


def test_an_actor_waits_quietly_while_the_run_is_over_and_joins_when_it_continues(
    quantizer: ScriptedQuantizer, caplog: pytest.LogCaptureFixture
) -> None:
    peer = LearnerOfARunThatIsOver(refusals=3)
    with (
        serving(peer),
        caplog.at_level(logging.INFO),
        running_actor(beside(peer, quantizer)) as (client, _),
    ):
        assert peer.opened().actor_name == "actor-0"
        status_when(client, "acting")
    assert caplog.text.count("run is over") == 1
    assert re.search("connected again .*3 attempts", caplog.text)


class LearnerWithAnInvalidAnswer(ScriptedLearner):
    """Sends no membership until `mended` is set, and counts the joins."""

    def __init__(self) -> None:
        super().__init__()
        self.mended = False
        self.joins: queue.Queue[str] = queue.Queue()

    async def Join(self, request: learner_pb2.JoinRequest, context: Any) -> learner_pb2.JoinResponse:  # noqa: N802
        self.joins.put(request.actor_name)
        return await super().Join(request, context) if self.mended else learner_pb2.JoinResponse(contract=CONTRACT)


def test_an_actor_joins_again_after_an_answer_without_a_membership(quantizer: ScriptedQuantizer) -> None:
    peer = LearnerWithAnInvalidAnswer()
    with serving(peer), running_actor(beside(peer, quantizer)):
        assert [peer.joins.get(timeout=DEADLINE_S) for _ in range(2)] == ["actor-0"] * 2
        peer.mended = True
        assert peer.opened().actor_name == "actor-0"


@pytest.mark.parametrize(
    "exploration", [None, Exploration((), ()), Exploration((0.1,) * 3, (0.2,) * 3)], ids=["none", "empty", "too many"]
)
def test_an_actor_joins_again_after_an_answer_without_a_rate_for_each_environment(
    learner: ScriptedLearner,
    quantizer: ScriptedQuantizer,
    caplog: pytest.LogCaptureFixture,
    exploration: Exploration | None,
) -> None:
    good = learner.membership
    learner.membership = replace(good, exploration=exploration)
    with running_actor(beside(learner, quantizer)) as (client, ended):
        status_when(client, "joining")
        while "exploration for each of 1 environments" not in caplog.text:
            assert not ended.done()
            threading.Event().wait(0.01)
        learner.membership = good
        assert learner.opened().actor_name == "actor-0"
        stop(learner, ended)


class LearnerWithTwoOfAName(ScriptedLearner):
    """Once `taken_over` is set, another process has joined under the actor's name."""

    def __init__(self) -> None:
        super().__init__()
        self.taken_over = False
        self.joins: list[tuple[int, int]] = []

    async def Join(self, request: learner_pb2.JoinRequest, context: Any) -> learner_pb2.JoinResponse:  # noqa: N802
        self.joins.append((request.incarnation, request.nonce))
        if self.taken_over:
            raise ConflictError("actor 'actor-0': another process has taken over this name")
        return await super().Join(request, context)


def test_an_actor_whose_name_is_taken_over_ends_with_one_line(quantizer: ScriptedQuantizer) -> None:
    peer = LearnerWithTwoOfAName()
    with (
        serving(peer),
        running_actor(beside(peer, quantizer)) as (_, ended),
    ):
        assert peer.opened().incarnation == peer.membership.incarnation
        # It joins without an incarnation, and from then on with the one that it was given.
        (first, nonce), (second, again) = peer.joins
        assert (first, second) == (0, peer.membership.incarnation)
        assert nonce == again != 0
        peer.taken_over = True
        peer.fail(ConflictError("actor 'actor-0': another process has taken over this name"))
        # Not a user's mistake: the launcher restarts it, and it claims the name again.
        with pytest.raises(ConflictError, match="'actor-0'"):
            ended.result(DEADLINE_S)


class LearnerThatListens(ScriptedLearner):
    """Records the messages of actors in Join."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, int]] = []

    async def Join(self, request: learner_pb2.JoinRequest, context: Any) -> learner_pb2.JoinResponse:  # noqa: N802
        self.told.append((request.epoch, request.newest_version))
        return await super().Join(request, context)


def test_an_actor_of_a_restored_run_leaves_the_older_learner(
    quantizer: ScriptedQuantizer, caplog: pytest.LogCaptureFixture
) -> None:
    peer = LearnerThatListens()
    good = replace(membership(segment_length=2), epoch=5)
    peer.membership = good
    with (
        serving(peer),
        running_actor(beside(peer, quantizer)) as (_, ended),
    ):
        first_policy(peer, quantizer, constant_policy([0.0, 1.0], version=500))
        peer.answer(credit=1)
        peer.segments.get(timeout=DEADLINE_S)
        peer.membership = replace(good, epoch=4)
        peer.fail(UnavailableError("the learner moves"))
        while "epoch 5" not in caplog.text:
            assert not ended.done()
            threading.Event().wait(0.01)
        assert peer.opens.empty()
        # It stays a member of the run of epoch 5, and accepts a later epoch.
        peer.membership = replace(good, epoch=6)
        peer.opened()
        assert peer.told[0] == (0, 0)
        assert (5, 500) in peer.told
        stop(peer, ended)


def test_an_actor_that_waits_for_a_run_ends_when_it_is_told_to(quantizer: ScriptedQuantizer) -> None:
    peer = LearnerOfARunThatIsOver(refusals=MANY)
    with (
        serving(peer),
        running_actor(beside(peer, quantizer)) as (client, ended),
    ):
        assert client.drain() == (0, 0)
        assert ended.result(DEADLINE_S) == EXIT_OK


def test_an_actor_ends_when_its_learner_has_another_run(learner: ScriptedLearner, quantizer: ScriptedQuantizer) -> None:
    with running_actor(beside(learner, quantizer)) as (_, ended):
        learner.opened()
        learner.membership = membership(run_id="another")
        learner.fail(NotFoundError("actor-0 has not joined"))
        with pytest.raises(ConflictError, match=r"run another; .*run"):
            ended.result(DEADLINE_S)


def test_an_actor_ignores_policies_of_another_run_and_waits_for_its_own(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer, caplog: pytest.LogCaptureFixture
) -> None:
    learner.membership = membership(segment_length=2)
    other = constant_policy([0.0, 1.0], version=500)
    with running_actor(beside(learner, quantizer)) as (_, ended):
        first_policy(learner, quantizer, replace(other, descriptor=replace(other.descriptor, run_id="before")))
        # Its own run's versions are lower.
        assert quantizer.watched().after_version == 0
        quantizer.serve(constant_policy([0.0, 1.0], version=3))
        learner.answer(credit=1)
        assert learner.segments.get(timeout=DEADLINE_S).spans[0].version == 3
        stop(learner, ended)
    assert re.search("run run, .*run before", caplog.text)


def test_an_actor_that_cannot_make_its_environment_ends_with_the_reason(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    learner.membership = membership(environment_id="Nowhere-v0")
    with (
        running_actor(beside(learner, quantizer)) as (_, ended),
        pytest.raises(UserError, match="Nowhere"),
    ):
        ended.result(DEADLINE_S)


def test_an_actor_that_waits_for_its_first_policy_ends_when_it_is_told_to(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    with running_actor(beside(learner, quantizer)) as (client, ended):
        quantizer.watched()
        assert learner.reports.get(timeout=DEADLINE_S).steps_per_second == 0.0
        status_when(client, "acting")
        assert client.drain() == (0, 0)
        assert ended.result(DEADLINE_S) == EXIT_OK


def drawing(**changes: Any) -> Membership:
    """A place in a run that draws actions."""
    place = membership(**changes)
    return replace(place, exploration=Exploration((), (), sampling="clipped"))


def test_an_actor_of_a_run_that_draws_actions_sends_their_probabilities(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer, caplog: pytest.LogCaptureFixture
) -> None:
    learner.membership = drawing(environments_per_actor=2, segment_length=16)
    with running_actor(beside(learner, quantizer)) as (_, ended):
        learner.opened()
        quantizer.watched()
        # A policy without a distribution does not act. The next policy may.
        quantizer.serve(constant_policy([0.0, 1.0], version=1))
        quantizer.serve(logits_policy([0.0, np.log(3.0)], version=2))
        learner.answer(credit=1)
        segment = learner.segments.get(timeout=DEADLINE_S)
        assert segment.spans[0].version == 2
        told = segment.columns["log_probabilities"].astype(float)
        np.testing.assert_allclose(told, np.log([0.25, 0.75])[segment.actions], atol=1e-6)
        stop(learner, ended)


def test_an_actor_waits_as_long_as_the_run_says_for_a_newer_policy(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    learner.membership = drawing(segment_length=8, max_steps_per_policy=12, policy_patience_s=600.0)
    with running_actor(beside(learner, quantizer)) as (_, ended):
        learner.opened()
        quantizer.watched()
        learner.answer(credit=100)
        for version in (1, 2):
            quantizer.serve(logits_policy([0.0, 0.0], version=version))
            segments = [learner.segments.get(timeout=DEADLINE_S) for _ in range(2)]
            # All steps of a policy arrive while the actor waits for the next one.
            assert [segment.steps for segment in segments] == [8, 4]
            assert [span.version for segment in segments for span in segment.spans] == [version] * 2
        # The default patience is one second.
        with pytest.raises(queue.Empty):
            learner.segments.get(timeout=1.5)
        stop(learner, ended)


# The environments accept seeds below 2**31, and this seed is larger.
LARGE_SEED = 2


def test_an_actor_follows_its_seed_and_reports_the_end_of_the_run(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    learner.membership = replace(membership(segment_length=2), seed=LARGE_SEED)
    environment_seed = int(np.random.SeedSequence(LARGE_SEED).generate_state(2)[0])
    assert environment_seed >= 2**31
    with running_actor(beside(learner, quantizer)) as (_, ended):
        first_policy(learner, quantizer, constant_policy([0.0, 1.0]))
        learner.answer(credit=1)
        first = learner.segments.get(timeout=DEADLINE_S).observations[0]
        assert "run is over" not in caplog.text
        stop(learner, ended)
    assert caplog.text.count("run is over") == 1
    environments = make_environments("CartPole-v1", 1)
    np.testing.assert_array_equal(first, environments.reset(environment_seed % 2**31))
    environments.close()


def test_an_actor_without_credit_reports_its_steps_and_its_waiting_time(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    learner.membership = membership(segment_length=2, queue_segments=1, report_period_s=0.01)
    with running_actor(beside(learner, quantizer)):
        first_policy(learner, quantizer, constant_policy([0.0, 1.0]))
        # Two segments: one in the queue, and one that waits for a place in it.
        reports = (learner.reports.get(timeout=DEADLINE_S) for _ in range(MANY))
        done = next(each for each in reports if each.environment_steps == 4)
        # A report comes much sooner than the deadline, so at least one step per deadline is little.
        assert done.steps_per_second > 1 / DEADLINE_S
        # It may have made its last step and not wait yet.
        waiting = next(each for each in reports if each.waited_seconds > done.waited_seconds)
        assert waiting.environment_steps == 4
        assert waiting.steps_per_second == 0.0
        assert waiting.queued_segments == 1
        learner.answer(directive=learner_pb2.DIRECTIVE_STOP)


def test_an_actor_that_still_makes_its_environments_evaluates_in_the_scheme_of_the_run(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    making, made = threading.Event(), threading.Event()

    def slowly(*arguments: Any, **keywords: Any) -> Environments:
        # The environments of the evaluation are made at once.
        if not making.is_set():
            making.set()
            made.wait(DEADLINE_S)
        return make_environments(*arguments, **keywords)

    monkeypatch.setattr("actor_service.roles.actor_role.make_environments", slowly)
    quantizer.publish(constant_policy([0.0, 1.0], version=3))
    with running_actor(beside(learner, quantizer)) as (client, ended):
        assert making.wait(DEADLINE_S)
        *_, evaluation = client.evaluate(1)
        assert isinstance(evaluation, Evaluation)
        assert quantizer.asked.get(timeout=DEADLINE_S) == membership().run.scheme
        made.set()
        stop(learner, ended)
