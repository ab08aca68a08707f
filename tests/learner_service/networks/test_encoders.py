"""Networks of several arrays: the features of each form of an observation, and the effect of a mask."""

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from actorq.config.run_config import RunConfig
from actorq.domain.leaves import Leaf, views
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from learner_service.networks import PartwisePolicy, QNetwork, SoftmaxPolicy, ValueNetwork
from learner_service.networks.encoders import NOT_ALLOWED, Leaves
from learner_service.networks.normalizer import Normalizer
from learner_service.networks.observations import feature_layers
from tests.builders.structured import (
    ALL,
    CATEGORY,
    IMAGE,
    NUMBERS,
    PLANES,
    discrete,
    mixed,
    packed,
    random_choices,
    random_observations,
)

SPECS = {
    "all": discrete(*ALL, masked=True),
    "vector and image": discrete(NUMBERS, IMAGE),
    "image": discrete(IMAGE, masked=True),
    "category": discrete(CATEGORY),
    "vector": discrete(NUMBERS, choices=(2, 3), masked=True),
}


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest) -> EnvironmentSpec:
    return SPECS[request.param]


def network(kind: Any, spec: EnvironmentSpec, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    layers = feature_layers(RunConfig(), spec)
    normalizer = Normalizer(spec) if spec.vector is not None else None
    if normalizer is not None:
        normalizer.set(np.full(3, 0.5), np.full(3, 2.0))
    made: nn.Module = kind(spec, (16, 16), normalizer=normalizer, layers=layers, **options)
    return made


def observed(spec: EnvironmentSpec, rows: int = 5) -> Tensor:
    rng, depth = np.random.default_rng(0), () if spec.frame_stack == 1 else (spec.frame_stack,)
    return torch.from_numpy(random_observations(rng, replace(spec, frame_stack=1), rows, *depth))


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_bytes_numbers_and_inputs_of_an_observation_give_the_same_outputs(
    spec: EnvironmentSpec, frame_stack: int
) -> None:
    spec = replace(spec, frame_stack=frame_stack)
    value, observations = network(ValueNetwork, spec), observed(spec)
    inputs = {
        name: torch.from_numpy(each.copy())
        for name, each in spec.policy_observations.split(observations.numpy()).items()
    }
    with torch.no_grad():
        of_bytes, of_numbers, of_inputs = (
            value(each) for each in (observations, Leaves(spec).unpacked(observations), inputs)
        )
    assert of_bytes.shape == (5,)
    assert torch.equal(of_bytes, of_numbers)
    assert torch.equal(of_bytes, of_inputs)


def test_every_array_affects_the_outputs(spec: EnvironmentSpec) -> None:
    q, observations = network(QNetwork, spec, dueling=True), observed(spec, 1).numpy()
    for leaf in spec.leaves:
        changed = observations.copy()
        values = views(spec.leaves, changed)[leaf.name]
        values[...] = ~values if leaf.dtype == "bool" else (values + 1) % (leaf.categories or 200)
        with torch.no_grad():
            assert not torch.equal(q(torch.from_numpy(changed)), q(torch.from_numpy(observations))), leaf


def test_all_layers_have_gradients() -> None:
    spec = SPECS["all"]
    q = network(QNetwork, spec, dueling=True)
    q(observed(spec, 32)).clamp(min=-1e3).square().sum().backward()
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in q.parameters())


def test_the_vector_is_normalized_and_no_other_array() -> None:
    spec = SPECS["all"]
    observations = observed(spec, 64)
    vector, image, planes, category = network(QNetwork, spec, dueling=False).observe(observations)  # type: ignore[operator]
    given = views(spec.leaves, observations.numpy())
    np.testing.assert_allclose(vector, (given["vector"] - 0.5) / 2, rtol=1e-5)
    np.testing.assert_allclose(image, given["camera/left"] / 255, rtol=1e-5)
    np.testing.assert_array_equal(planes, given["planes"])
    np.testing.assert_array_equal(category, given["item"])


def test_a_stack_of_an_image_is_its_channels_the_oldest_first() -> None:
    spec = replace(discrete(PLANES, NUMBERS), frame_stack=2)
    observations = observed(spec, 3)
    _, planes = reversed(network(QNetwork, spec, dueling=False).observe(observations))  # type: ignore[operator]
    given = views(spec.leaves, observations.numpy())["planes"]
    assert planes.shape == (3, 4, 5, 5)
    np.testing.assert_array_equal(planes, np.moveaxis(given, 4, 2).reshape(3, 4, 5, 5))


# Masks and parts


@pytest.mark.parametrize("choices", [(), (2, 3)])
def test_values_and_logits_of_forbidden_choices_are_far_below_all_others(choices: tuple[int, ...]) -> None:
    spec = discrete(NUMBERS, choices=choices, masked=True)
    observations = observed(spec, 50)
    mask = views(spec.leaves, observations.numpy())["action_mask"]
    for kind, options in ((QNetwork, {"dueling": True}), (PartwisePolicy if choices else SoftmaxPolicy, {})):
        made = network(kind, spec, **options)
        with torch.no_grad():
            told = made(observations).numpy()
        assert (told[~mask] == np.float32(NOT_ALLOWED)).all()
        assert (np.abs(told[mask]) < 100).all()


@pytest.mark.parametrize("choices", [(), (2, 3)])
def test_a_forbidden_choice_has_no_probability_no_entropy_and_no_gradient(choices: tuple[int, ...]) -> None:
    spec = discrete(NUMBERS, choices=choices, masked=True)
    policy: Any = network(PartwisePolicy if choices else SoftmaxPolicy, spec)
    observations = observed(spec, 50)
    mask = views(spec.leaves, observations.numpy())["action_mask"]
    distribution = policy.distribution(observations)
    probabilities = distribution[0].exp().detach().numpy()
    assert (probabilities[~mask] == 0).all()
    np.testing.assert_allclose(probabilities.sum(1), len(spec.sizes), rtol=1e-5)
    logarithms = np.log(probabilities, where=mask, out=np.zeros_like(probabilities))
    entropies = policy.entropies(*distribution)
    np.testing.assert_allclose(entropies.detach(), -(probabilities * logarithms).sum(1), atol=1e-4)
    entropies.sum().backward()
    assert all(bool(torch.isfinite(each.grad).all()) for each in policy.parameters() if each.grad is not None)


def test_the_probability_of_an_action_is_the_product_over_its_parts() -> None:
    spec, distribution = mixed(NUMBERS), cast(Any, torch.distributions.Categorical)
    policy: Any = network(PartwisePolicy, spec, log_std=0.3)
    rng, observations = np.random.default_rng(3), observed(spec, 20)
    actions = torch.from_numpy(random_choices(rng, spec, 20))
    with torch.no_grad():
        logits, _, mean, log_std = policy(observations)
        told = policy.log_probabilities(policy.drawn(actions), *policy.distribution(observations))
        entropies = policy.entropies(*policy.distribution(observations))
    first, second = (distribution(logits=part) for part in (logits[:, :2], logits[:, 2:]))
    components: Any = torch.distributions.Normal(mean, log_std.exp())
    expected = first.log_prob(actions[:, 0]) + second.log_prob(actions[:, 1])
    torch.testing.assert_close(told, expected + components.log_prob(actions[:, 2:]).sum(1), rtol=1e-4, atol=1e-4)
    both = first.entropy() + second.entropy() + components.entropy().sum(1)
    torch.testing.assert_close(entropies, both, rtol=1e-4, atol=1e-4)


def test_each_part_of_a_dueling_network_has_advantages_of_its_own() -> None:
    spec = discrete(choices=(2, 3))
    q: Any = network(QNetwork, spec, dueling=True)
    observations = torch.randn(7, 3)
    with torch.no_grad():
        values = q(observations)
        state = q.value(q.torso(q.observe(observations)))
    for part in torch.split(values, [2, 3], 1):
        torch.testing.assert_close(part.mean(1, keepdim=True), state, rtol=1e-4, atol=1e-5)


def test_a_small_image_among_other_arrays_is_refused() -> None:
    tiny = Leaf("tiny", "image", (2, 8, 1), "uint8")
    spec = replace(SPECS["all"], observations=packed(NUMBERS, tiny))
    with pytest.raises(UserError, match="3 x 3"):
        feature_layers(RunConfig(), spec)


# Layers of the user's own


class _Mean(nn.Module):
    """The mean of an image, as one feature."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.shape = leaf.shape

    def forward(self, image: Tensor) -> Tensor:
        assert image.shape[1:] == self.shape
        return image.flatten(1).mean(1, keepdim=True) * self.scale


class _OfAll(nn.Module):
    """Takes the arrays by their names."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, arrays: dict[str, Tensor]) -> Tensor:
        mean = arrays["camera/left"].flatten(1).mean(1, keepdim=True)
        return torch.tanh(self.linear(torch.cat((arrays["vector"], mean), 1)))


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("own_encoders")
    module.__dict__.update(mean=_Mean, of_all=_OfAll, text=lambda leaf: "no module")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def test_the_users_encoder_is_used_for_one_array_and_ours_for_the_others(own: str) -> None:
    spec = SPECS["vector and image"]
    config = RunConfig(encoders={"camera/left": f"{own}:mean"})
    encoders, features = feature_layers(config, spec) or (nn.Identity(), 0)
    assert features == 64 + 1
    parts = network(QNetwork, spec, dueling=False).observe(observed(spec))  # type: ignore[operator]
    with torch.no_grad():
        found = encoders(parts)
    torch.testing.assert_close(found[:, -1], parts[1].flatten(1).mean(1))


def test_a_network_of_the_user_gets_the_arrays_by_name(own: str) -> None:
    spec = SPECS["vector and image"]
    layers = feature_layers(RunConfig(network=f"{own}:of_all"), spec)
    q = QNetwork(spec, (), dueling=False, layers=layers)
    assert q(observed(spec)).shape == (5, 5)


@pytest.mark.parametrize(
    ("encoders", "fact"),
    [
        ({"camera": "own_encoders:mean"}, "camera/left"),
        ({"camera/left": "own_encoders:missing"}, "missing"),
        ({"camera/left": "own_encoders:text"}, "Module"),
        ({"vector": "own_encoders:of_all"}, r"float32\[B, 3\]"),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused_in_one_line(own: str, encoders: dict[str, str], fact: str) -> None:
    with pytest.raises(UserError, match=fact) as refused:
        feature_layers(RunConfig(encoders=encoders), SPECS["vector and image"])
    assert "\n" not in str(refused.value)
