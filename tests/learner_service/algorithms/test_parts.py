"""Every algorithm on observations of several arrays, and those that support actions of several parts on these."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from actorq.domain.leaves import Leaf, views
from actorq.domain.spaces import EnvironmentSpec
from learner_service.algorithms.dqn import DQN
from learner_service.batch import Batch
from tests.builders.structured import (
    ALL,
    CATEGORY,
    NUMBERS,
    discrete,
    mixed,
    packed,
    random_choices,
    random_observations,
)
from tests.learner_service.algorithms import on_policy_parts
from tests.learner_service.algorithms.algorithm_parts import (
    BATCH,
    CONTINUOUS,
    assert_equal_states,
    make,
    ones,
    with_windows,
)

# Too small for the convolutions of large images.
_IMAGE = Leaf("eye", "image", (4, 4, 1), "uint8")
_LEAVES = {"all": (NUMBERS, _IMAGE, CATEGORY), "vector": (NUMBERS,), "category": (CATEGORY,)}
_OFF_POLICY = {"dqn": ((), (2, 3)), "d4pg": ((),), "td3": ((),), "sac": ((),)}
_CASES = [(name, leaves, choices) for name, each in _OFF_POLICY.items() for leaves in _LEAVES for choices in each]


def spec_of(name: str, leaves: str, choices: tuple[int, ...], masked: bool = True) -> EnvironmentSpec:
    if name in ("d4pg", "td3", "sac"):
        return replace(CONTINUOUS, observations=packed(*_LEAVES[leaves]))
    return discrete(*_LEAVES[leaves], choices=choices, masked=masked)


def batch_of(spec: EnvironmentSpec, rng: np.random.Generator, size: int = 2 * BATCH) -> Batch:
    actions: NDArray[Any] = (
        random_choices(rng, spec, size)
        if spec.sizes
        else rng.uniform(-1, 1, (size, *spec.actions.shape)).astype(np.float32)
    )
    return Batch(
        observations=random_observations(rng, spec, size),
        actions=actions,
        returns=rng.standard_normal(size, np.float32),
        bootstrap_discounts=np.where(rng.random(size) < 0.3, 0.0, 0.9).astype(np.float32),
        bootstrap_observations=random_observations(rng, spec, size),
        policy_versions=np.ones(size, np.int64),
    )


@pytest.mark.parametrize(("name", "leaves", "choices"), _CASES)
def test_recorded_updates_are_the_updates(name: str, leaves: str, choices: tuple[int, ...]) -> None:
    spec = spec_of(name, leaves, choices)
    learner = {"recorded": make(name, spec), "called": make(name, spec)}
    assert learner["recorded"].can_record  # type: ignore[attr-defined]
    learner["called"].__dict__["can_record"] = False
    for rng in (np.random.default_rng(seed) for seed in range(4)):
        batch = batch_of(spec, rng)
        told = [each.update(batch, ones(2 * BATCH)) for each in learner.values()]
        assert np.isfinite(told[0].loss)
        np.testing.assert_array_equal(told[0].priorities, told[1].priorities)
    assert_equal_states(learner["recorded"], learner["called"])
    assert not torch.equal(learner["recorded"].state()["updates"], make(name, spec).state()["updates"])


def test_entropies_in_between_come_from_the_observations_in_between() -> None:
    spec = spec_of("sac", "all", ())
    algorithm, rng = make("sac", spec, n_step=3), np.random.default_rng(0)
    batch = with_windows(rng, batch_of(spec, rng), 3)
    batch = batch.with_columns(between_observations=random_observations(rng, spec, 2 * BATCH, 2))
    assert np.isfinite(algorithm.update(batch, ones(2 * BATCH)).loss)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("choices", [(), (2, 3)])
def test_targets_are_means_over_the_best_allowed_choices_of_each_part(choices: tuple[int, ...], double: bool) -> None:
    spec = discrete(NUMBERS, choices=choices, masked=True)
    dqn: Any = make("dqn", spec, double=double, target_update_period=1000)
    assert isinstance(dqn, DQN)
    rng = np.random.default_rng(0)
    # The target network differs from the online one after an update.
    dqn.update(batch_of(spec, rng), ones(2 * BATCH))
    batch = batch_of(spec, rng, BATCH)
    with torch.no_grad():
        following = torch.from_numpy(batch.bootstrap_observations)
        online, target = (each(following).numpy() for each in (dqn.policy, dqn.networks["actor"].target))
        values = dqn.policy(torch.from_numpy(batch.observations)).numpy()
    mask = views(spec.leaves, batch.bootstrap_observations)["action_mask"]
    errors, losses = [], []
    for row in range(BATCH):
        best, taken, start = [], [], 0
        for part, size in enumerate(spec.sizes):
            own = slice(start, start + size)
            deciding = np.where(mask[row, own], (online if double else target)[row, own], -np.inf)
            best.append(target[row, own][deciding.argmax()])
            taken.append(values[row, start + int(np.atleast_1d(batch.actions[row])[part])])
            start += size
        y = batch.returns[row] + batch.bootstrap_discounts[row] * np.mean(best)
        errors.append(np.mean(np.abs(y - np.array(taken))))
        losses.append(np.mean([float(functional.huber_loss(torch.tensor(q), torch.tensor(y))) for q in taken]))
    told = dqn.update(batch, ones(BATCH))
    # A stored action may be one that the mask does not allow, whose value is none.
    legal = np.array(errors) < 1e6
    np.testing.assert_allclose(told.priorities[legal], np.array(errors)[legal], rtol=1e-4)
    if legal.all():
        assert told.loss == pytest.approx(np.mean(losses), rel=1e-4)


# On-policy algorithms

_SPECS = {
    "arrays": discrete(NUMBERS, CATEGORY, masked=True),
    "images": discrete(NUMBERS, _IMAGE, CATEGORY, masked=True),
    "parts": discrete(NUMBERS, choices=(2, 3), masked=True),
    "mixed": mixed(NUMBERS, CATEGORY),
    "mixed of a plain vector": mixed(),
}


def rollout_of(spec: EnvironmentSpec, algorithm: Any, steps: int = 16, environments: int = 8) -> Batch:
    """Random steps with legal actions, with the probabilities of the present policy."""
    rng, rows = np.random.default_rng(0), (steps, environments)
    plain = replace(spec, sizes=(), actions=CONTINUOUS.actions)
    found = on_policy_parts.random_trajectories(rng, plain, steps, environments)
    actions = random_choices(rng, spec, *rows)
    if spec.leaves:
        observations = random_observations(rng, spec, steps + 1, environments)
        if spec.mask is not None:
            mask = views(spec.leaves, observations)["action_mask"]
            starts = np.cumsum((0, *spec.sizes[:-1]))
            chosen = actions.reshape(*rows, -1)[..., : len(spec.sizes)].astype(np.int64) + starts
            np.put_along_axis(mask[:-1], chosen, True, axis=-1)
        found = found.with_columns(observations=observations)
    return on_policy_parts.as_acted(algorithm, found.with_columns(actions=actions))


@pytest.mark.parametrize("name", on_policy_parts.CLASSES)
@pytest.mark.parametrize("spec", _SPECS.values(), ids=_SPECS)
def test_on_policy_updates_make_rewarded_actions_more_probable(name: str, spec: EnvironmentSpec) -> None:
    algorithm = on_policy_parts.make(name, spec)
    steps = rollout_of(spec, algorithm)
    assert np.isfinite(steps.log_probabilities).all()
    first = steps.actions.reshape(*steps.rewards.shape, -1)[..., 0] == 0
    steps = steps.with_columns(
        rewards=first.astype(np.float32), terminated=np.ones_like(first), valid=np.ones_like(first)
    )

    def of_first() -> float:
        """The mean probability of the first part's first choice."""
        with torch.no_grad():
            observations = torch.from_numpy(steps.observations[:-1].reshape(-1, *steps.observations.shape[2:]))
            return float(algorithm.policy.distribution(observations)[0][:, 0].exp().mean())

    before = of_first()
    for _ in range(20):
        learned = algorithm.learn([on_policy_parts.as_acted(algorithm, steps)], 0.0)
        assert np.isfinite(learned.loss)
    assert of_first() > before + 0.1


@pytest.mark.parametrize("spec", [each for key, each in _SPECS.items() if key != "images"])
def test_recorded_updates_of_ppo_are_the_updates(spec: EnvironmentSpec) -> None:
    recorded, called = (on_policy_parts.make("ppo", spec) for _ in range(2))
    assert recorded.can_record
    called.__dict__["can_record"] = False
    for environments in (8, 7):
        steps = rollout_of(spec, recorded, environments=environments)
        for each in (recorded, called):
            each.learn([steps], 0.0)
    on_policy_parts.assert_equal_states(recorded, called)


def test_ppo_with_images_is_not_recorded() -> None:
    assert not on_policy_parts.make("ppo", _SPECS["images"]).can_record


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_actions_of_both_kinds_are_refused_with_the_algorithms_that_take_them(name: str) -> None:
    with pytest.raises(Exception, match=r"discrete and continuous actions use ppo, impala"):
        make(name, mixed())


def test_all_arrays_of_a_policy_are_in_its_features() -> None:
    q: Any = make("dqn", discrete(*ALL)).policy
    assert len(q.torso[0].each) == len(ALL)
