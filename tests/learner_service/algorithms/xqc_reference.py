"""A small XQC, and its update written out in float64 with torch's batch normalization and Adam."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, Normal
from torch.nn import functional

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from learner_service.algorithms import make_algorithm
from learner_service.algorithms.xqc import XQC
from learner_service.batch import Batch
from tests.learner_service.algorithms.algorithm_parts import BATCH, CONTINUOUS, DEVICE

RATE, LEARNING_RATE, UNIT, ATOMS = 0.1, 1e-2, 2.0, 11


def make_xqc(spec: EnvironmentSpec = CONTINUOUS, seed: int = 1, run: Any = None, **changes: Any) -> XQC:
    section = {
        **{"policy_sizes": (12, 8), "critic_sizes": (16, 8), "learning_rate": LEARNING_RATE, "target_rate": RATE},
        **{"batch_size": BATCH, "policy_delay": 1, "atoms": ATOMS, "value_min": -10.0, "value_max": 10.0},
        **changes,
    }
    config = RunConfig.model_validate({"algorithm": "xqc", "xqc": section, "seed": seed, **(run or {})})
    algorithm = make_algorithm(config, spec, DEVICE)
    assert isinstance(algorithm, XQC)
    return algorithm


class ReferenceMLP:
    """A normalized MLP in float64: its parameters by name, and its running statistics by layer."""

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        self.parameters = {name: value.detach().double().clone() for name, value in parameters.items()}
        self.depth = sum(name.startswith("layers.") for name in parameters)
        sizes = [len(self.parameters[f"scales.{number}"]) for number in range(self.depth + 1)]
        self.means = [torch.zeros(size, dtype=torch.float64) for size in sizes]
        self.variances = [torch.ones(size, dtype=torch.float64) for size in sizes]

    def __call__(self, x: Tensor, training: bool = True, follow: bool = False) -> Tensor:
        """The outputs. follow: whether the running statistics move."""
        for number in range(self.depth + 1):
            if number:
                x = x @ self.parameters[f"layers.{number - 1}.weight"].T
            if follow:
                self.means[number].lerp_(x.detach().mean(0), 0.01)
                self.variances[number].lerp_(x.detach().var(0, correction=0), 0.01)
            mean, variance = (None, None) if training else (self.means[number], self.variances[number])
            scale, shift = self.parameters[f"scales.{number}"], self.parameters.get(f"shifts.{number - 1}")
            x = functional.batch_norm(x, mean, variance, scale, shift, training, eps=1e-5)
            x = x.relu() if number else x
        return x @ self.parameters["head.weight"].T + self.parameters["head.bias"]

    def project(self) -> None:
        for number in range(self.depth):
            rows = self.parameters[f"layers.{number}.weight"].data
            rows /= rows.norm(dim=1, keepdim=True)

    def trained(self) -> list[Tensor]:
        return [value.requires_grad_() for value in self.parameters.values()]


class Reference:
    """The update of the module's docstring."""

    def __init__(self, xqc: XQC) -> None:
        self._policy = ReferenceMLP(dict(xqc._pi.network.body.named_parameters()))
        self._critics, self._targets = (
            [ReferenceMLP(dict(critic.named_parameters())) for critic in network.both]
            for network in (xqc._z.network, xqc._z.target)
        )
        self.log_alpha = xqc.temperature.log_alpha.detach().double().clone().requires_grad_()
        critics = [value for critic in self._critics for value in critic.trained()]
        self._adams = [
            torch.optim.Adam(values, lr=LEARNING_RATE) for values in (critics, self._policy.trained(), [self.log_alpha])
        ]
        self._generator = torch.Generator().manual_seed(1)
        self.values = torch.linspace(-10 / UNIT, 10 / UNIT, ATOMS, dtype=torch.float64)

    def update(self, batch: Batch, weights: Any) -> Tensor:
        observations, following, actions, returns, discounts = (
            torch.from_numpy(column).double()
            for column in (
                *(batch.observations, batch.bootstrap_observations, batch.actions),
                *(batch.returns, batch.bootstrap_discounts),
            )
        )
        alpha = self.log_alpha.detach().exp()
        noise = torch.randn(BATCH, 2, generator=self._generator).double()
        with torch.no_grad():
            drawn, log_probability = self._sample(self._policy(following, training=False), noise)
            x = torch.cat((torch.cat((observations, following)), torch.cat((actions, drawn))), 1)
            believed = [torch.softmax(critic(x)[BATCH:], 1) for critic in self._targets]
            targets = self._project(believed, returns / UNIT, discounts, alpha * log_probability)
        loss, errors = torch.zeros(BATCH, dtype=torch.float64), torch.zeros(BATCH, dtype=torch.float64)
        for critic in self._critics:
            logarithms = torch.log_softmax(critic(x, follow=True)[:BATCH], 1)
            loss = loss - 0.5 * (targets * logarithms).sum(1)
            errors += 0.5 * UNIT * ((targets - logarithms.exp().detach()) @ self.values).abs()
        _descend(self._adams[0], (torch.from_numpy(weights) * loss).mean())
        for critic in self._critics:
            critic.project()
        noise = torch.randn(BATCH, 2, generator=self._generator).double()
        drawn, log_probability = self._sample(self._policy(observations, follow=True), noise)
        x = torch.cat((observations, drawn), 1)
        first, second = (torch.softmax(critic(x, training=False), 1) @ self.values for critic in self._critics)
        # The target entropy is minus half the number of components.
        temperature_loss = -(self.log_alpha * (log_probability.detach() - 1.0)).mean()
        _descend(self._adams[1], (alpha * log_probability - torch.minimum(first, second)).mean())
        _descend(self._adams[2], temperature_loss)
        self._policy.project()
        for target, critic in zip(self._targets, self._critics, strict=True):
            for name, value in critic.parameters.items():
                target.parameters[name].lerp_(value.detach(), RATE)
        return errors

    def _project(self, believed: list[Tensor], returns: Tensor, discounts: Tensor, costs: Tensor) -> Tensor:
        """y, one atom of one row after the other."""
        projected = torch.zeros(BATCH, ATOMS, dtype=torch.float64)
        width = float(self.values[1] - self.values[0])
        for row in range(BATCH):
            chosen = min((probabilities[row] for probabilities in believed), key=lambda each: float(each @ self.values))
            for value, probability in zip(self.values, chosen, strict=True):
                moved = float(returns[row] + discounts[row] * (value - costs[row]))
                moved = min(max(moved, float(self.values[0])), float(self.values[-1]))
                for atom in range(ATOMS):
                    share = max(0.0, 1 - abs(moved - float(self.values[atom])) / width)
                    projected[row, atom] += share * probability
        return projected

    @staticmethod
    def _sample(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_deviation = outputs.chunk(2, dim=1)
        deviation = log_deviation.clamp(-20, 2).exp()
        drawn = mean + deviation * noise
        gaussian = Independent(Normal(mean, deviation), 1)
        log_probability: Tensor = gaussian.log_prob(drawn)  # type: ignore[no-untyped-call]
        return torch.tanh(drawn), log_probability - torch.log(1 - torch.tanh(drawn).square()).sum(1)

    def state(self) -> dict[str, Tensor]:
        """The entries of the algorithm's state."""
        parts = {"critic.parameters": self._critics, "target_critic": self._targets}
        found = {
            name: _flat(value for mlp in mlps for value in mlp.parameters.values()) for name, mlps in parts.items()
        }
        found["policy.parameters"] = _flat((*self._policy.parameters.values(), self.log_alpha))
        found["policy.statistics"] = _statistics(self._policy)
        found["critic.statistics"] = torch.stack([_statistics(critic) for critic in self._critics])
        return found


def _flat(values: Any) -> Tensor:
    return torch.cat([value.detach().flatten() for value in values]).float()


def _statistics(mlp: ReferenceMLP) -> Tensor:
    return torch.stack((torch.cat(mlp.means), torch.cat(mlp.variances))).float()


def _descend(adam: torch.optim.Optimizer, loss: Tensor) -> None:
    # Only these parameters' gradients are checked, so other gradients may stay.
    adam.zero_grad()
    torch.autograd.backward(loss)
    adam.step()
