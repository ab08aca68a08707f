"""Networks on stacks of colored images: frames become channels, the oldest first."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec
from learner_service.networks import GaussianPolicy, QNetwork
from learner_service.networks.observations import Observations, feature_layers
from tests.learner_service.algorithms.algorithm_parts import BOUNDED, DISCRETE


@pytest.mark.parametrize("last", [False, True])
def test_frames_become_channels_the_oldest_first(last: bool) -> None:
    rng = np.random.default_rng(0)
    stacks = rng.integers(256, size=(5, 2, 3, 8, 10), dtype=np.uint8)
    shape = (8, 10, 3) if last else (3, 8, 10)
    spec = replace(BOUNDED, observations=ArraySpec(shape, "uint8"), frame_stack=2)
    given = np.moveaxis(stacks, 2, -1) if last else stacks
    seen = Observations(spec, layers=nn.Identity())(torch.from_numpy(given.copy()))
    np.testing.assert_allclose(seen.numpy(), stacks.reshape(5, 6, 8, 10) / np.float32(255), rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 40, 40), (40, 40, 3)])
def test_policies_act_on_stacks(shape: tuple[int, ...]) -> None:
    spec = replace(BOUNDED, observations=ArraySpec(shape, "uint8"), frame_stack=3)
    policy = GaussianPolicy(spec, (16,), layers=feature_layers(RunConfig(), spec))
    stacks = torch.randint(256, (4, *spec.policy_observations.shape), dtype=torch.uint8)
    assert policy(stacks).shape == (4, 2)
    games = replace(DISCRETE, observations=ArraySpec(shape, "uint8"), frame_stack=3)
    values = QNetwork(games, (16,), dueling=True, layers=feature_layers(RunConfig(), games))
    assert values(stacks).shape == (4, 3)
