"""The versions that an evaluator evaluates."""

from dataclasses import replace

import pytest

from actor_service.roles.schedule import EvaluationSchedule
from actorq.domain.policy import PolicyDescriptor
from tests.actor_service.actor_peers import membership
from tests.actor_service.actor_policies import random_policy
from tests.actor_service.uploading.uploader_side import SPEC


def version(number: int, learner_step: int) -> PolicyDescriptor:
    return replace(random_policy(4, 2, version=number).descriptor, learner_step=learner_step)


def test_the_first_version_is_due_whenever_it_comes() -> None:
    assert EvaluationSchedule(100).is_due(version(1, 0))
    assert EvaluationSchedule(100).is_due(version(9, 730))


def test_the_next_is_due_when_its_updates_have_been_made() -> None:
    schedule = EvaluationSchedule(100)
    schedule.begun(version(1, 50))
    assert not schedule.is_due(version(1, 50))
    assert not schedule.is_due(version(2, 149))
    assert schedule.is_due(version(3, 150))


def test_updates_that_were_lost_with_a_checkpoint_count_as_well() -> None:
    schedule = EvaluationSchedule(100)
    schedule.begun(version(5, 500))
    assert not schedule.is_due(version(6, 401))
    assert schedule.is_due(version(6, 400))


def test_a_version_that_the_learner_requests_is_due_at_once_and_only_once() -> None:
    schedule = EvaluationSchedule(100)
    schedule.begun(version(1, 0))
    schedule.want(3)
    schedule.want(2)
    assert not schedule.is_due(version(2, 20))
    assert schedule.is_due(version(4, 40))
    schedule.begun(version(4, 40))
    assert not schedule.is_due(version(5, 50))


def test_a_lost_version_is_not_due_until_it_is_tried_again() -> None:
    schedule = EvaluationSchedule(100)
    schedule.lost(1)
    assert not schedule.is_due(version(1, 0))
    assert schedule.is_due(version(2, 0))
    schedule.try_again()
    assert schedule.is_due(version(1, 0))


def test_without_cpu_time_only_the_learners_requests_are_due() -> None:
    schedule = EvaluationSchedule(100, affordable=lambda: False)
    assert not schedule.is_due(version(1, 0))
    schedule.want(2)
    assert not schedule.is_due(version(1, 0))
    assert schedule.is_due(version(2, 10))


def test_near_the_target_cpu_time_does_not_count() -> None:
    schedule = EvaluationSchedule(100, affordable=lambda: False, target=-100.0)
    for mean_return, near in ((-500.0, False), (-190.0, False), (-180.0, True), (-300.0, False)):
        schedule.ended(mean_return)
        assert schedule.is_due(version(1, 0)) is near


def test_at_the_target_it_waits_for_the_end_of_the_run() -> None:
    schedule = EvaluationSchedule(100, target=475.0)
    schedule.begun(version(1, 100))
    schedule.ended(475.0)
    assert not schedule.is_due(version(2, 200))
    schedule.want(3)
    assert schedule.is_due(version(3, 210))
    schedule.try_again()
    assert schedule.is_due(version(2, 200))


def test_without_a_target_no_return_is_near_it() -> None:
    schedule = EvaluationSchedule(100, affordable=lambda: False)
    schedule.ended(0.0)
    schedule.ended(1e6)
    assert not schedule.is_due(version(1, 0))


@pytest.mark.parametrize(("target", "near"), [(None, False), (100.0, True), (500.0, False)])
def test_the_target_is_that_of_the_run_or_else_of_the_environment(target: float | None, near: bool) -> None:
    run = membership(target_return=target, evaluation_period_updates=10).run
    spec = replace(SPEC, reward_threshold=475.0)
    schedule = EvaluationSchedule.of(run, spec, affordable=lambda: False)
    for number, mean_return in enumerate((20.0, 90.0), 1):
        schedule.begun(version(number, 10 * number))
        schedule.ended(mean_return)
    assert schedule.is_due(version(3, 30)) is near
    assert not schedule.is_due(version(3, 29))


def test_a_target_success_is_compared_with_success_rates() -> None:
    run = membership(target_success=0.95, evaluation_period_updates=10).run
    spec = replace(SPEC, reward_threshold=475.0)
    schedule = EvaluationSchedule.of(run, spec, affordable=lambda: False)
    # Empty for an environment that does not report success.
    for score, near in ((None, False), (0.0, False), (0.5, False), (0.8, True)):
        schedule.ended(score)
        assert schedule.is_due(version(3, 30)) is near


def test_evaluations_that_begin_near_the_target_are_excused() -> None:
    excused: list[None] = []
    schedule = EvaluationSchedule(100, excuse=lambda: excused.append(None), target=100.0)
    for number, (score, total) in enumerate([(0.0, 0), (50.0, 0), (85.0, 0), (60.0, 1), (90.0, 1), (95.0, 2)]):
        schedule.begun(version(number + 1, 100 * number))
        schedule.ended(score)
        assert len(excused) == total
