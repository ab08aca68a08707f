"""The model of `actorq profile`: predictions from costs, and recommendations."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorq_apps.profile.advice import Outlook, explain, outlooks, pods, recommend
from actorq_apps.profile.model import ActorCosts, Costs, LearnerCosts, Limit, Workload, predict, useful_actors

WORK = Workload(updates_per_step=0.25, updates_per_version=16, updates_per_evaluation=250)
COSTS = Costs(
    ActorCosts(step_s=20e-6, version_s=1e-3, evaluation_s=0.1),
    LearnerCosts(update_s=1e-3, update_cpu_s=1.2e-3, step_s=4e-6, version_s=0.4e-3),
    quantizer_version_s=3e-3,
)
NO_VERSIONS = replace(COSTS, quantizer_version_s=0.0, learner=replace(COSTS.learner, version_s=0.0))
NO_VERSIONS = replace(NO_VERSIONS, actor=ActorCosts(step_s=20e-6, version_s=0.0))

seconds = st.floats(1e-7, 1e-1)
costs = st.builds(
    Costs,
    st.builds(ActorCosts, seconds, seconds, seconds),
    st.builds(LearnerCosts, seconds, seconds, seconds, seconds, st.floats(0.1, 1.0)),
    seconds,
)
works = st.builds(Workload, st.floats(1e-3, 4.0), st.integers(1, 1000), st.integers(1, 10_000))
actors = st.integers(1, 64)
cores = st.floats(2.0, 128.0)


def test_without_versions_each_limit_is_the_inverse_of_its_costs() -> None:
    prediction = predict(NO_VERSIONS, WORK, actors=3, cores=8)
    assert prediction.limits[Limit.ACTORS] == pytest.approx(3 / 20e-6)
    assert prediction.limits[Limit.LEARNER] == pytest.approx(1 / (0.25 * 1e-3 + 4e-6))
    assert prediction.limits[Limit.PROCESSORS] == pytest.approx(8 / (20e-6 + 0.25 * 1.2e-3 + 4e-6))
    assert prediction.limit is Limit.LEARNER
    assert prediction.steps_per_s == prediction.limits[Limit.LEARNER]


def test_a_learner_whose_threads_wait_for_each_other_is_slower() -> None:
    waiting = replace(NO_VERSIONS, learner=replace(NO_VERSIONS.learner, share=0.9))
    whole, prediction = (predict(each, WORK, actors=3, cores=8) for each in (NO_VERSIONS, waiting))
    assert prediction.steps_per_s == pytest.approx(0.9 * whole.steps_per_s)
    assert prediction.core_seconds_per_step == pytest.approx(whole.core_seconds_per_step)


@given(costs, works, actors, cores)
def test_no_thread_or_core_is_used_beyond_its_capacity(costs: Costs, work: Workload, actors: int, cores: float) -> None:
    prediction = predict(costs, work, actors, cores)
    assert prediction.steps_per_s > 0
    assert prediction.cores.total <= cores * (1 + 1e-9)
    assert prediction.cores.actors <= actors * (1 + 1e-9)
    assert prediction.cores.quantizer <= 1 + 1e-9


@given(costs, works, actors, cores)
def test_some_limit_is_reached(costs: Costs, work: Workload, actors: int, cores: float) -> None:
    prediction = predict(costs, work, actors, cores)
    faster = prediction.steps_per_s * 1.01
    assert any(faster > limit for limit in prediction.limits.values())


@given(costs, works, actors, cores, st.floats(0.1, 1.0))
def test_cheaper_steps_are_never_slower(costs: Costs, work: Workload, actors: int, cores: float, share: float) -> None:
    cheaper = replace(costs, actor=replace(costs.actor, step_s=share * costs.actor.step_s))
    before, after = (predict(each, work, actors, cores).steps_per_s for each in (costs, cheaper))
    assert after >= before * (1 - 1e-9)


@given(costs, works, actors, cores)
def test_more_cores_are_never_slower(costs: Costs, work: Workload, actors: int, cores: float) -> None:
    rates = [predict(costs, work, actors, each).steps_per_s for each in (cores, 2 * cores, math.inf)]
    assert rates[0] <= rates[1] * (1 + 1e-9)
    assert rates[1] <= rates[2] * (1 + 1e-9)


@given(costs, works)
def test_useful_actors_are_the_fewest_that_are_as_fast(costs: Costs, work: Workload) -> None:
    found = useful_actors(costs, work)
    best = predict(costs, work, 100_000).steps_per_s
    assert found.steps_per_s >= 0.97 * best
    assert found.actors == 1 or predict(costs, work, found.actors - 1).steps_per_s < 0.97 * best


def test_a_late_quantizer_skips_versions_and_does_not_slow_the_run() -> None:
    late = replace(COSTS, quantizer_version_s=2.0)
    prediction = predict(late, WORK, actors=4)
    assert prediction.cores.quantizer == pytest.approx(1.0)
    assert prediction.steps_per_s >= predict(COSTS, WORK, actors=4).steps_per_s


def test_in_a_synchronous_run_actors_learner_and_quantizer_take_turns() -> None:
    work = replace(WORK, synchronous=True)
    prediction = predict(COSTS, work, actors=2)
    updates = WORK.updates_per_step
    version_s = (1e-3 + 0.4e-3 + 3e-3) * updates / WORK.updates_per_version
    assert prediction.limit is Limit.ACTORS
    assert 1 / prediction.steps_per_s == pytest.approx(20e-6 / 2 + updates * 1e-3 + 4e-6 + version_s)


def test_the_slower_the_actor_the_more_actors_a_learner_can_use() -> None:
    slow = replace(COSTS, actor=replace(COSTS.actor, step_s=1e-3, version_s=0.0))
    slower = replace(slow, actor=replace(slow.actor, step_s=1e-2))
    assert useful_actors(COSTS, WORK).actors < useful_actors(slow, WORK).actors < useful_actors(slower, WORK).actors


def outlooks_of(**step_s: float) -> list[Outlook]:
    def cost(scheme: str, environments: int) -> Costs:
        return replace(COSTS, actor=replace(COSTS.actor, step_s=step_s[scheme] / environments))

    return outlooks(tuple(step_s), (1, 8), cost, WORK, actors=1, cores=16)


def test_keeps_the_configuration_if_the_learner_is_the_limit() -> None:
    best = recommend(outlooks_of(fp32=1e-6, int8=0.9e-6), preferred_environments=8)
    assert (best.scheme, best.environments) == ("fp32", 8)
    assert best.here.limit is Limit.LEARNER


def test_a_scheme_that_saves_work_is_recommended() -> None:
    best = recommend(outlooks_of(fp32=40e-3, int8=4e-3), preferred_environments=8)
    assert (best.scheme, best.environments) == ("int8", 8)


def test_pods_request_what_their_processes_use() -> None:
    outlook = outlooks_of(fp32=4e-3)[0]
    deployment = pods(outlook)
    assert deployment.actors == outlook.apart.actors
    assert deployment.learner_cpu >= outlook.apart.cores.learner
    assert deployment.actor_cpu * deployment.actors >= outlook.apart.cores.actors
    assert deployment.actor_cpu <= 1.0


@pytest.mark.parametrize("limit", Limit)
def test_each_limit_is_explained(limit: Limit) -> None:
    assert "limit" in explain(limit)
