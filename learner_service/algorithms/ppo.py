"""PPO (Schulman et al. 2017, arXiv 1707.06347), decoupled from the policy that acted (Hilton et al. 2021).

One update, for transitions i of a minibatch of B. mu is the policy that acted: quantized, and possibly older.
pi_prox is the policy before the first update on the rollout (arXiv 2110.00641, eq. 5).

    A_i    = sum_k (gamma lambda)^k delta_{t+k}                                   GAE, arXiv 1506.02438, eq. 16
    R_i    = A_i + V(s_t; phi_old)
    w_i    = min(pi_prox(a_t | s_t) / mu(a_t | s_t), max_weight)                  truncated importance weight
    r_i    = pi(a_t | s_t; theta) / pi_prox(a_t | s_t)
    J      = mean_i w_i min(r_i A_i, clip(r_i, 1 - epsilon, 1 + epsilon) A_i)     arXiv 1707.06347, eq. 7
    L_V    = mean_i 1/2 (V(s_t; phi) - R_i)^2
    L      = -J + value_cost L_V - entropy_cost mean_i H(pi(. | s_t; theta))      eq. 9

With w_i = 1 this is PPO. This case occurs when mu = pi_prox, up to about 1e-6, because actors compute log mu in
float64. A_i of a minibatch are scaled to mean 0 and standard deviation 1. With `value_clip`, L_V uses the larger of two
squared errors: of V, and of V clipped to within `value_clip` of V(s_t; phi_old). Each rollout gives `epochs` passes in
minibatches of nearly equal sizes. With memory, the transitions of a minibatch are those of whole sequences; see
`learner_service.rollouts.sequences`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorq.config.algorithms import PPOConfig
from learner_service.algorithms.base import Learned
from learner_service.algorithms.policy_gradient import PolicyGradient, by_length, explained_variance, flat
from learner_service.algorithms.trainable import annealed
from learner_service.batch import Batch
from learner_service.rollouts import sequences
from learner_service.rollouts.advantages import generalized_advantages, importance_weights
from learner_service.sparsity import Flops

# Prevents a division by 0 if all advantages are equal.
_SMALLEST_DEVIATION = 1e-8
# Keeps r finite for an action that no policy near pi_prox would draw. An honest ratio is far below exp(20).
_LARGEST_LOG_RATIO = 20.0


class Update(NamedTuple):
    """Figures of an update, float32[B] each: log r, the terms of J, and V - R."""

    log_ratios: Tensor
    gains: Tensor
    errors: Tensor


class PPO(PolicyGradient):
    """Decoupled proximal policy optimization; see the module's docstring for the update."""

    name = "ppo"
    settings = PPOConfig
    _settings: PPOConfig

    def make_networks(self, settings: PPOConfig) -> None:  # type: ignore[override]
        """Make pi and V."""
        super().make_networks(settings)
        self.epochs = settings.epochs
        self._improve = self.descent(self.compiled(self._loss))

    def learn(self, rollout: Sequence[Batch], progress: float) -> Learned:
        """All updates on one rollout. progress: share of the run's environment steps that is used up, in [0, 1]."""
        settings = self._settings
        self.set_progress(progress)
        clip = annealed(settings.clip, settings.clip_end, progress)
        parts, entropies = zip(*map(self._sequences if self._memory else self._rows, by_length(rollout)), strict=True)
        rows = sequences.joined(parts) if self._memory else Batch.joined(parts)
        if not rows.weights.numel():
            return Learned(0.0, 0, {})
        figures = {"entropy": float(torch.cat(entropies).mean()), **self._figures_before(rows)}
        done: list[Update] = []
        for _ in range(settings.epochs):
            epoch = [self._step(minibatch, clip) for minibatch in self._minibatches(rows)]
            done += epoch
            if settings.target_kl is not None and _divergence(epoch) > settings.target_kl:
                break
        log_ratios, gains, errors = (torch.cat(each) for each in zip(*done, strict=True))
        policy_loss, value_loss = -float(gains.mean()), 0.5 * float(errors.square().mean())
        return Learned(
            loss=policy_loss + settings.value_cost * value_loss - settings.entropy_cost * figures["entropy"],
            updates=len(done),
            figures={
                "policy_loss": policy_loss,
                "value_loss": value_loss,
                "approximate_kl": _divergence(done),
                "clipped_share": float(((log_ratios.exp() - 1).abs() > clip).float().mean()),
                **figures,
            },
        )

    def _rows(self, steps: Batch) -> tuple[Batch, Tensor]:
        """The B transitions of trajectories on the device, and the entropies of the present policy, float32[B].

        observations: [B, *policy_observation]. actions: in the form of `log_probabilities` of the policy.
        The others are float32[B]; see `_numbers`.
        """
        numbers, entropies = self._numbers(steps)
        valid = np.flatnonzero(steps.valid)
        columns = (flat(steps.observations[:-1]), flat(steps.actions), *numbers.values())
        used = [each if len(valid) == len(each) else each[valid] for each in columns]
        found = [self._tensor(each) for each in used[1:]]
        entropies = entropies.index_select(0, self._tensor(valid))
        own = dict(zip(numbers, found[1:], strict=True))
        return Batch(observations=self._seen(used[0]), actions=self.policy.drawn(found[0]), **own), entropies

    def _sequences(self, steps: Batch) -> tuple[Batch, Tensor]:
        """As `_rows` for a policy with memory: the same columns of M sequences [L, M, ...].

        Further columns: valid and begins, bool[L, M]; states, float32[1, M, S], before the first steps.
        """
        unrolled, shape = self._present(steps), steps.valid.shape
        numbers, entropies = self._numbers(steps, unrolled.outputs.flatten(0, 1))
        columns = {
            "observations": self._seen(flat(steps.observations[:-1])),
            "actions": self.policy.drawn(self._tensor(flat(steps.actions))),
            **{name: self._tensor(each) for name, each in numbers.items()},
            "begins": self._tensor(flat(sequences.begins_of(steps)[:-1])),
            "valid": (valid := self._tensor(flat(steps.valid))),
        }
        cut = sequences.Cut(shape[0], self._config.memory.sequence_length)
        whole = Batch(**{name: cut.steps(each.reshape(*shape, *each.shape[1:])) for name, each in columns.items()})
        whole = whole.with_columns(states=cut.starts(unrolled.states))
        return sequences.chosen(whole, whole.valid.any(0).nonzero().squeeze(1)), entropies[valid]

    def _numbers(self, steps: Batch, *remembered: Tensor) -> tuple[dict[str, NDArray[np.float32]], Tensor]:
        """Numbers of all steps before the first update, float32[T * N] each, and the entropies of the policy.

        proximal, log pi_prox(a | s); weights, w; advantages; returns; values, V(s; phi_old).
        remembered: outputs of the policy's cell, float32[(T + 1) * N, U], if it has one.
        """
        values = self.present_values(steps, remembered)
        targets = generalized_advantages(steps, values, self.discount, self._settings.gae_lambda)
        drawn = self.policy.drawn(self._tensor(flat(steps.actions)))
        seen = self._seen(flat(steps.observations[:-1]))
        judged = self._without_gradient(self._judged, seen, drawn, *(each[: len(seen)] for each in remembered))
        proximal = judged[:, 0].cpu().numpy()
        weights = importance_weights(proximal, flat(steps.log_probabilities), self._settings.correct)
        names = ("proximal", "weights", "advantages", "returns", "values")
        columns = (proximal, weights, *map(flat, (*targets, values[:-1])))
        return dict(zip(names, columns, strict=True)), judged[:, 1]

    def _judged(self, observations: Tensor, actions: Tensor, *remembered: Tensor) -> Tensor:
        """log pi(a | s) and the entropy of pi(. | s), float32[B, 2]."""
        distribution = self.policy.distribution(observations, *remembered)
        logarithms = self.policy.log_probabilities(actions, *distribution)
        return torch.stack((logarithms, self.policy.entropies(*distribution)), 1)

    def _figures_before(self, rows: Batch) -> dict[str, float]:
        """Figures of the rollout before the first update. Truncates the weights in place."""
        own = sequences.rows_of(rows) if self._memory else rows
        truncated = (own.weights > self._settings.max_weight).float().mean()
        rows.weights.clamp_(max=self._settings.max_weight)
        return {
            "truncated_share": float(truncated),
            "mean_weight": float(own.weights.clamp(max=self._settings.max_weight).mean()),
            "explained_variance": explained_variance(own.values, own.returns),
        }

    def _minibatches(self, rows: Batch) -> Iterator[Batch]:
        """One pass in random order, in minibatches of nearly `batch_size` rows."""
        if self._memory:
            return sequences.shuffled(rows, self.batch_size, self.generator)
        size = len(rows.weights)
        parts = max(1, round(size / self.batch_size))
        if parts == 1:
            # The order within a minibatch changes nothing.
            return iter((rows,))
        order = torch.randperm(size, generator=self.generator, device=self._device)
        return rows.shuffled(order, parts)

    def _step(self, rows: Batch, clip: float) -> Update:
        # These values are tensors, because a recording keeps Python's numbers as constants.
        count = int(rows.valid.sum()) if self._memory else len(rows.weights)
        numbers = torch.tensor((1 - clip, 1 + clip, 1 / count), dtype=torch.float64, device=self._device)
        return Update(*self._improve(rows, *numbers.unbind()))

    def _loss(self, rows: Batch, lowest: Tensor, highest: Tensor, share: Tensor) -> tuple[Tensor, ...]:
        """L, float32[], then the fields of `Update`. lowest, highest: bounds of r. share: 1 / B."""
        settings = self._settings
        remembered: list[Tensor] = []
        if self._memory:
            unrolled = self.policy.unrolled(rows.observations, rows.states[0], rows.begins)
            rows = sequences.rows_of(rows.with_columns(remembered=unrolled.outputs))
            remembered = [rows.remembered]
        advantages = rows.advantages
        if settings.normalize_advantages and len(advantages) > 1:
            std, mean = torch.std_mean(advantages)
            advantages = (advantages - mean) / (std + _SMALLEST_DEVIATION)
        advantages = advantages * rows.weights
        distribution = self.policy.distribution(rows.observations, *remembered)
        log_ratios = self.policy.log_probabilities(rows.actions, *distribution) - rows.proximal
        log_ratios = log_ratios.clamp(max=_LARGEST_LOG_RATIO)
        ratios = log_ratios.exp()
        # This is the minimum of the two terms. The clipped term is constant in theta where it is the smaller one.
        gains, bounds = ratios * advantages, ratios.detach().clamp(lowest, highest) * advantages
        gains = torch.where(gains > bounds, bounds, gains)
        values = self._v(rows.observations, *(each.detach() for each in remembered))
        errors = values - rows.returns
        if settings.value_clip is not None:
            bounded = rows.values + (values - rows.values).clamp(-settings.value_clip, settings.value_clip)
            bounded = bounded - rows.returns
            errors = torch.where(bounded.abs() > errors.abs(), bounded, errors)
        costs = 0.5 * settings.value_cost * errors.square() - gains
        if settings.entropy_cost:
            costs = costs - settings.entropy_cost * self.policy.entropies(*distribution)
        # A mean would make the number of rows a constant of the recording.
        return costs.dot(torch.full_like(costs, 1) * share), log_ratios.detach(), gains.detach(), errors.detach()

    @property
    def flops(self) -> Flops:
        """FLOPs of the updates, and of the values and probabilities before them."""
        both = self._pi.cost + self._v.cost
        return Flops(action=self._pi.cost, update=self.batch_size * ((3 + 1 / self.epochs) * both))


def _divergence(updates: Sequence[Update]) -> float:
    """KL(pi_prox || pi), estimated as the mean of r - 1 - log r over the rows of some updates."""
    log_ratios = torch.cat([update.log_ratios for update in updates])
    return float((log_ratios.expm1() - log_ratios).mean())
