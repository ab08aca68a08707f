"""The normalized policy and critics, and the plain networks that they are folded into."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.signature import Role
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.networks import GaussianPolicy
from learner_service.networks.normalized.networks import NormalizedCritics, NormalizedPolicy, PlainCritics
from learner_service.networks.normalizer import Normalizer
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters

SPEC = EnvironmentSpec(
    "Continuous-v0", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", (-2.0, 0.0), (2.0, 4.0)), ()
)
SIZES = (16, 8)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def trained_policy(**given: Any) -> NormalizedPolicy:
    """A policy whose scales, shifts and statistics are not those of a new one."""
    policy = NormalizedPolicy(SPEC, SIZES, **given)
    with torch.no_grad():
        for parameter in (*policy.body.scales, *policy.body.shifts):
            parameter.add_(0.3 * torch.randn_like(parameter))
    for _ in range(200):
        policy.body.follow(policy(5.0 + 3.0 * torch.randn(64, 3))[1])
    return policy


def folded(policy: NormalizedPolicy, **given: Any) -> GaussianPolicy:
    plain = GaussianPolicy(SPEC, SIZES, **given)
    policy.fold_into(plain)
    return plain


def test_the_folded_policy_agrees_with_the_policy_on_a_large_batch() -> None:
    policy = trained_policy()
    observations = 5.0 + 3.0 * torch.randn(4096, 3)
    outputs, statistics = policy(observations)
    policy.body.statistics.copy_(statistics)
    torch.testing.assert_close(folded(policy).computed(observations), outputs, rtol=1e-4, atol=1e-4)


def test_both_networks_normalize_observations_with_the_shared_normalizer() -> None:
    normalizer = Normalizer(SPEC)
    normalizer.set(np.full(3, 5.0), np.full(3, 3.0))
    policy = trained_policy(normalizer=normalizer)
    observations = 5.0 + 3.0 * torch.randn(4096, 3)
    outputs, statistics = policy(observations)
    policy.body.statistics.copy_(statistics)
    plain = folded(policy, normalizer=normalizer)
    torch.testing.assert_close(plain.computed(observations), outputs, rtol=1e-4, atol=1e-4)


def test_the_exported_graph_has_plain_layers_and_computes_the_folded_policy() -> None:
    plain = folded(trained_policy())
    graph = export_policy_graph(plain, SPEC, takes_noise=True)
    operations = [node.op_type for node in onnx.load_from_string(graph.model).graph.node]
    assert operations.count("Gemm") == len(SIZES) + 1
    assert operations.count("Relu") == len(SIZES)
    # The rest samples, squashes and scales.
    assert set(operations) == {"Gemm", "Relu", "Split", "Clip", "Exp", "Mul", "Add", "Tanh"}
    observations, noise = 5.0 + 3.0 * torch.randn(7, 3), torch.randn(7, 2)
    session = onnxruntime.InferenceSession(graph.model, providers=["CPUExecutionProvider"])
    inputs = {OBSERVATIONS: observations.numpy(), Role.NOISE: noise.numpy()}
    (actions,) = session.run(None, {**inputs, **snapshot_parameters(plain)})
    with torch.no_grad():
        np.testing.assert_allclose(actions, plain(observations, noise).numpy(), rtol=1e-5, atol=1e-5)


def test_joint_statistics_differ_from_those_of_each_half() -> None:
    critics = NormalizedCritics(SPEC, SIZES, atoms=5)
    observations, actions = torch.randn(8, 3), torch.rand(8, 2)
    following, drawn = 4.0 + torch.randn(8, 3), -torch.rand(8, 2)
    joint, statistics = critics(torch.cat((observations, following)), torch.cat((actions, drawn)))
    alone, own = critics(observations, actions)
    assert not torch.allclose(joint[:, :8], alone, atol=1e-2)
    x = torch.cat((torch.cat((observations, following)), torch.cat((actions, drawn))), 1)
    torch.testing.assert_close(statistics[0, 0, :5], x.mean(0))
    torch.testing.assert_close(statistics[1, 1, :5], x.var(0, correction=0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(own[0, 0, :3], observations.mean(0))


def test_plain_critics_agree_and_have_gradients_for_actions_only() -> None:
    critics, plain = NormalizedCritics(SPEC, SIZES, atoms=5), PlainCritics(SPEC, SIZES, atoms=5)
    observations, actions = torch.randn(512, 3), torch.rand(512, 2, requires_grad=True)
    logits, statistics = critics(observations, actions)
    critics.set_statistics(statistics)
    torch.testing.assert_close(critics.statistics, statistics)
    critics.fold_into(plain)
    found = plain(observations, actions)
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-4)
    found.square().sum().backward()
    assert actions.grad is not None
    assert all(parameter.grad is None for parameter in plain.parameters())


def test_the_two_critics_differ() -> None:
    critics = NormalizedCritics(SPEC, SIZES, atoms=5)
    logits, _ = critics(torch.randn(8, 3), torch.rand(8, 2))
    assert not torch.allclose(logits[0], logits[1], atol=1e-2)
