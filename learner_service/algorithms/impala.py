"""IMPALA (Espeholt et al. 2018, arXiv 1802.01561): V-trace corrects for the policy that acted, mu; one pass.

One update, for the transitions of whole trajectories; B of them are no resets:

    w_t    = pi(a_t | s_t; theta) / mu(a_t | s_t)
    rho_t  = min(max_rho, w_t),   c_t = lambda min(max_c, w_t)                    eq. 1
    delta_t = rho_t (r_t + gamma V(s_{t+1}; phi) - V(s_t; phi))
    v_t    = V(s_t; phi) + delta_t + gamma c_t (v_{t+1} - V(s_{t+1}; phi))        remark 1, lambda: remark 2
    A_t    = rho_t (r_t + gamma v_{t+1} - V(s_t; phi))                            sec. 4.2
    L_pi   = -mean_t A_t log pi(a_t | s_t; theta)
    L_V    = mean_t 1/2 (V(s_t; phi) - v_t)^2
    L      = L_pi + value_cost L_V - entropy_cost mean_t H(pi(. | s_t; theta))

v_t and A_t are constants in the gradient. They are computed with the networks of the present update, so each minibatch
has the newest ratios. The paper sums over transitions; here the losses are means. A minibatch has trajectories of one
length, with at most about `batch_size` transitions in all. Past a terminal state V is 0. A time limit cuts
the trace: v_{t+1} is V(s_{t+1}).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from actorq.config.algorithms import IMPALAConfig
from learner_service.algorithms.base import Learned
from learner_service.algorithms.policy_gradient import PolicyGradient, by_length, explained_variance, flat
from learner_service.batch import Batch
from learner_service.rollouts.advantages import importance_weights, vtrace
from learner_service.sparsity import Flops


class IMPALA(PolicyGradient):
    """Importance-weighted actor-learner; see the module's docstring for the update."""

    name = "impala"
    settings = IMPALAConfig
    _settings: IMPALAConfig

    def learn(self, rollout: Sequence[Batch], progress: float) -> Learned:
        """All updates on one rollout. progress: share of the run's environment steps that is used up, in [0, 1]."""
        self.set_progress(progress)
        figures = [self._step(part) for steps in by_length(rollout) for part in self._minibatches(steps)]
        if not figures:
            return Learned(0.0, 0, {})
        means = {name: float(np.mean([each[name] for each in figures])) for name in figures[0]}
        settings = self._settings
        loss = means["policy_loss"] + settings.value_cost * means["value_loss"]
        return Learned(loss - settings.entropy_cost * means["entropy"], len(figures), means)

    def _minibatches(self, steps: Batch) -> Iterator[Batch]:
        """One pass over the trajectories in random order, without the trajectories that have no transition."""
        environments = steps.rewards.shape[1]
        order = torch.randperm(environments, generator=self.generator, device=self._device).cpu().numpy()
        parts = min(environments, max(1, round(steps.rewards.size / self.batch_size)))
        for chosen in np.array_split(order, parts):
            if steps.valid[:, chosen].any():
                yield steps[:, chosen]

    def _step(self, steps: Batch) -> dict[str, float]:
        settings, shape = self._settings, steps.rewards.shape
        observations = self._seen(flat(steps.observations))
        seen = observations[: steps.rewards.size]
        remembered = [self._unrolled(steps, observations).outputs.flatten(0, 1)] if self._memory else []
        distribution = self.policy.distribution(seen, *(each[: len(seen)] for each in remembered))
        actions = self.policy.drawn(self._tensor(flat(steps.actions)))
        logarithms = self.policy.log_probabilities(actions, *distribution)
        values = self._v(observations, *(each.detach() for each in remembered))

        present = values.detach().cpu().numpy().reshape(len(steps.observations), -1)
        logged = logarithms.detach().cpu().numpy().reshape(shape)
        weights = importance_weights(logged, steps.log_probabilities, settings.correct)
        targets = vtrace(
            steps, present, weights, self.discount, settings.trace_lambda, settings.max_rho, settings.max_c
        )
        shares = steps.valid.astype(np.float32) / np.float32(steps.valid.sum())
        weighted, share = self._tensor(flat(shares * targets.advantages)), self._tensor(flat(shares))
        policy_loss = -weighted.dot(logarithms)
        value_loss = 0.5 * share.dot((values[: steps.rewards.size] - self._tensor(flat(targets.values))).square())
        entropy = share.dot(self.policy.entropies(*distribution))
        loss = policy_loss + settings.value_cost * value_loss - settings.entropy_cost * entropy
        self.minimize(lambda: self.differentiate(loss))
        return {
            "policy_loss": float(policy_loss.detach()),
            "value_loss": float(value_loss.detach()),
            "entropy": float(entropy.detach()),
            "truncated_share": float((shares * (weights > settings.max_rho)).sum()),
            "mean_weight": float((shares * np.minimum(weights, settings.max_rho)).sum()),
            "explained_variance": explained_variance(
                *(torch.from_numpy(each[steps.valid]) for each in (present[:-1], targets.values))
            ),
        }

    @property
    def flops(self) -> Flops:
        """FLOPs of one update, without the FLOPs of the last observations of trajectories."""
        return Flops(action=self._pi.cost, update=self.batch_size * (3 * (self._pi.cost + self._v.cost)))
