"""XQC (Palenicek et al. 2025, arXiv 2509.25174): SAC with batch normalization, unit rows and categorical critics.

One update, for transitions i of a batch with importance weights w_i. The critics Z_1, Z_2 predict probabilities p_j of
fixed values z. Q_j(s, a) = sum_k p_jk(s, a) z_k.

    a'      ~ pi(. | s'; phi)                                                    with running statistics
    p^-     = Z_c(s', a'; theta^-)   in the joint batch [s, a; s', a'],  c = argmin_j Q_j(s', a'; theta^-)
    y_i     = Phi( r + gamma (z - alpha log pi(a' | s')) with probabilities p^- )     arXiv 1707.06887, eq. 7
    L_Z     = mean_i w_i 1/2 sum_j -sum_k y_ik log p_jk(s, a; theta)   in the joint batch   cross entropy
    L_pi    = mean_i alpha log pi(a_i | s) - min_j Q_j(s, a_i; theta),  a_i ~ pi(. | s; phi)    arXiv 1812.05905, eq. 9
    L_alpha = -log alpha mean_i (log pi(a_i | s) + target entropy)                              arXiv 1812.05905, eq. 18
    theta^- <- tau theta + (1 - tau) theta^-

L_Z is minimized first. L_pi and L_alpha are minimized in every `policy_delay`-th update, with the updated critics. Then
the targets move. After each gradient step, every row of a hidden weight is divided by its norm (`unit_rows`).

Joint batch (CrossQ, arXiv 1902.05605): the critics see (s, a) and (s', a') as one batch, because both must be
normalized alike. Only the first half has a loss, but gradients flow through the shared statistics. Unlike CrossQ, XQC
keeps target critics. They normalize with the statistics of the joint batch, too. Only parameters are averaged.

Running statistics are needed for a', for actors, and for Q in L_pi. All three compute with plain layers, into which
the normalization is folded (networks/normalized/mlp.py). `policy` is the folded policy, so actors run ordinary layers.
In L_pi the policy itself is normalized with the batch of s.

In quantization-aware training L_pi uses the folded and rounded policy instead, so its normalization has running
statistics there (arXiv 1712.05877, sec. 3.2). The gradients of the folded weights continue to the policy's own
parameters by the chain rule.

The step size may fall linearly from `learning_rate` to `learning_rate_end`. The number of updates alone determines it,
so a resumed run continues the schedule exactly.

The values z are in [-5, 5]. The replay divides rewards by max(std(G), max |G| / 5) of the running discounted return G
when it draws them, as in arXiv 2604.04539. With `value_min` and `value_max` rewards are unchanged. Values then have a
unit of (value_max - value_min) / 10, and so have alpha and the losses. Priorities are in units of the batch's returns.

A transition's new priority is the mean of |E[y_i] - Q_j(s, a)|. Returns of n steps are those of SAC, with the entropies
of the steps in between.
"""

import logging
import math
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from actorq.config.algorithms import ActionSpace, XQCConfig
from actorq.config.sparsity import SparsityMethod
from actorq.errors import UserError
from learner_service.algorithms.gradient import GradientAlgorithm
from learner_service.algorithms.sac import Temperature, soft_returns
from learner_service.algorithms.trainable import annealed
from learner_service.batch import Batch
from learner_service.kernels.parameters import FlatParameters
from learner_service.networks import GaussianPolicy, Support
from learner_service.networks.continuous import sample_of
from learner_service.networks.normalized.mlp import plain_parameters
from learner_service.networks.normalized.networks import NormalizedCritics, NormalizedPolicy, PlainCritics
from learner_service.networks.observations import has_images, need_encoders
from learner_service.quantization.fake_quantization import is_fake_quantized
from learner_service.sparsity import Cost, Flops

_log = logging.getLogger(__name__)

# Bound of the values in their unit.
_BOUND = 5.0
# Target entropy of each component, in nats. arXiv 2604.04539 uses -0.478.
_ENTROPY = -0.5


class XQC(GradientAlgorithm):
    """Normalized soft actor-critic; see the module's docstring for the update."""

    name = "xqc"
    action_spaces: ClassVar[tuple[ActionSpace, ...]] = XQCConfig.actions
    sparsity_methods: ClassVar[tuple[SparsityMethod, ...]] = ("dense",)
    takes_noise = True
    needs_windows = True
    has_critic: ClassVar[bool] = True
    settings = XQCConfig
    policy: GaussianPolicy
    _settings: XQCConfig

    def make_networks(self, settings: XQCConfig) -> None:
        """Make alpha, pi and Z, and the plain networks that pi and Z are folded into."""
        self._check()
        spec, rate = self._spec, settings.learning_rate
        self._unit, lowest, highest = 1.0, -_BOUND, _BOUND
        if settings.value_min is not None and settings.value_max is not None:
            self._unit = (settings.value_max - settings.value_min) / (2 * _BOUND)
            lowest, highest = settings.value_min / self._unit, settings.value_max / self._unit
        self._support = Support(lowest, highest, settings.atoms).to(self._device)
        components = math.prod(spec.actions.shape)
        target_entropy = _ENTROPY * components if settings.target_entropy is None else settings.target_entropy
        self.temperature = Temperature(
            settings.temperature, target_entropy, components, self.name, settings.initial_temperature
        ).to(self._device)
        self._pi = self.network(
            *("actor", NormalizedPolicy, settings.policy_sizes, rate),
            has_target=False,
            updates_per_step=settings.policy_delay,
            besides=(self.temperature,),
        )
        critics = partial(NormalizedCritics, atoms=settings.atoms)
        self._z = self.network("critic", critics, settings.critic_sizes, rate)
        normalizers = self._normalizers
        self.policy = GaussianPolicy(spec, settings.policy_sizes, normalizers.get("actor")).to(self._device)
        self.policy.requires_grad_(self._config.learner.quantization_aware_after is not None)
        self._folded_z = PlainCritics(
            self._specs["critic"], settings.critic_sizes, settings.atoms, normalizer=normalizers.get("critic")
        )
        self.copies.append(FlatParameters(self._folded_z.to(self._device)))
        self._pi.network.fold_into(self.policy)
        self._improve_critics = self.descent(self._z, self._critic_loss)
        self._improve_policy = self.descent(self._pi, self._policy_loss)
        self._is_beyond_plan = False
        # Number of sampled actions for the entropies in between, in the last update.
        self._steps_between = settings.n_step - 1

    @property
    def reward_bound(self) -> float | None:
        """The bound of scaled returns, or None with `value_min` and `value_max`; see `Algorithm`."""
        return _BOUND if self._settings.value_min is None else None

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Update the critics, then policy and temperature if they are due, then the target critics."""
        settings, rows, between = self._settings, len(batch.weights), None
        learning_rate = self._learning_rate()
        for each in (self._z, self._pi):
            each.set_learning_rate(learning_rate)
        following = self.noise(rows)
        if "between_discounts" in batch:
            self._steps_between = batch.between_discounts.shape[1]
            between = self.noise(batch.between_discounts.numel())
        loss, errors, statistics = self._improve_critics(batch, following, between)
        self._z.network.follow(statistics)
        if settings.unit_rows:
            self._z.network.project()
        self.updates += 1
        if self.updates % settings.policy_delay == 0:
            self._step_policy(batch.observations, self.noise(rows))
        self._z.move_target(settings.target_rate)
        return loss, errors

    def _learning_rate(self) -> float:
        """The step size of the next update. Logs one line when the run exceeds its planned updates."""
        settings, planned = self._settings, self._settings.learning_rate_updates
        if settings.learning_rate_end is not None and self.updates >= planned and not self._is_beyond_plan:
            self._is_beyond_plan = True
            _log.warning(
                "xqc.learning_rate_updates: the run makes more than the planned %d updates; the step size stays at %g; "
                "plan more updates for a longer run",
                *(planned, settings.learning_rate_end),
            )
        return annealed(settings.learning_rate, settings.learning_rate_end, self.updates / planned)

    def _step_policy(self, observations: Tensor, noise: Tensor) -> None:
        self._z.network.fold_into(self._folded_z)
        policy_loss, statistics = self._improve_policy(observations, noise)
        self._pi.network.body.follow(statistics)
        if self._settings.unit_rows:
            self._pi.network.body.project()
        self._pi.network.fold_into(self.policy)
        self.report(policy_loss=policy_loss, temperature=self.temperature.alpha)

    def _critic_loss(self, batch: Batch, following: Tensor, between: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """L_Z, the mean of both |E[y] - Q|, float32[B], and the statistics of the joint batch.

        following, between: standard normal, as in SAC.
        """
        rows, values, alpha = len(batch.weights), self._support.values, self.temperature.alpha
        with torch.no_grad():
            batch = batch.with_columns(returns=batch.returns / self._unit)
            drawn, log_probabilities = self.policy.sample(batch.bootstrap_observations, following)
            soft = batch.returns if between is None else soft_returns(batch, self.policy, between, alpha)
            observations = torch.cat((batch.observations, batch.bootstrap_observations))
            actions = torch.cat((self.policy.scale.normalize(batch.actions), drawn))
            # The head computes only one half. The statistics need both.
            logits, _ = self._z.target(observations, actions, slice(rows, None))
            targets = self.targets(logits, soft, batch.bootstrap_discounts, alpha * log_probabilities)
        logits, statistics = self._z.network(observations, actions, slice(rows))
        logarithms = torch.log_softmax(logits, 2)
        cross_entropies = -(targets * logarithms).sum(2)
        with torch.no_grad():
            errors = self._unit * (targets @ values - logarithms.exp() @ values).abs().mean(0)
        return 0.5 * (batch.weights * cross_entropies.sum(0)).mean(), errors, statistics

    def targets(self, logits: Tensor, returns: Tensor, discounts: Tensor, cost: Tensor) -> Tensor:
        """y, float32[B, atoms], all in the unit of values.

        logits: of the target critics at (s', a'), float32[2, B, atoms]. cost: alpha log pi(a' | s'), float32[B].
        returns, discounts: float32[B].
        """
        first, second = torch.softmax(logits, 2)
        values = self._support.values
        smaller = torch.where((first @ values <= second @ values).unsqueeze(1), first, second)
        return self._support.project(smaller, returns - discounts * cost, discounts)

    def _policy_loss(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """L_pi + L_alpha, and the statistics of the batch. noise: standard normal, for a_i."""
        if is_fake_quantized(self.policy):
            return self._rounded_policy_loss(observations, noise)
        outputs, statistics = self._pi.network(observations)
        loss, log_probabilities = self._policy_values(observations, outputs, noise)
        return loss + self.temperature.loss(log_probabilities), statistics

    def _rounded_policy_loss(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The same with the policy of the actors. Its gradient goes through the folding."""
        with torch.no_grad():
            _, statistics = self._pi.network(observations)
        loss, log_probabilities = self._policy_values(observations, self.policy.computed(observations), noise)
        gradients = torch.autograd.grad(loss, plain_parameters(self.policy.torso, self.policy.head))
        folded = self._pi.network.body.folded()
        chained = torch.stack([(own * to).sum() for own, to in zip(folded, gradients, strict=True)]).sum()
        # Has the value of the loss, and the gradient of `chained`.
        loss = loss.detach() + chained - chained.detach()
        return loss + self.temperature.loss(log_probabilities.detach()), statistics

    def _policy_values(self, observations: Tensor, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """L_pi, and log pi(a_i | s), float32[B]. outputs: of the policy's last layer, float32[B, 2 A]."""
        actions, log_probabilities = sample_of(outputs, noise)
        values = torch.softmax(self._folded_z(observations, actions), 2) @ self._support.values
        return (self.temperature.alpha * log_probabilities - values.amin(0)).mean(), log_probabilities

    def state(self) -> dict[str, Tensor]:
        """As in `Trainable`, with the running statistics."""
        return super().state() | {
            "policy.statistics": self._pi.network.body.statistics.clone(),
            "critic.statistics": self._z.network.statistics,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned. Raises KeyError or RuntimeError when names or shapes differ."""
        super().load_state(state)
        self._load_statistics(state)

    def begin_from(self, state: dict[str, Tensor]) -> None:
        """As in `Trainable`, with the running statistics."""
        super().begin_from(state)
        self._load_statistics(state)

    def _load_statistics(self, state: dict[str, Tensor]) -> None:
        self._pi.network.body.statistics.copy_(state["policy.statistics"])
        self._z.network.set_statistics(state["critic.statistics"])
        self._pi.network.fold_into(self.policy)

    def _check(self) -> None:
        """Raise UserError for what this algorithm does not support."""
        own_layers = self._config.network or self._config.encoders
        if own_layers or any(has_images(spec) or need_encoders(spec) for spec in self._specs.values()):
            raise UserError(
                f"algorithm {self.name} supports observations that are vectors, without network and encoders; "
                "for images, several arrays and layers of your own use sac"
            )

    @property
    def flops(self) -> Flops:
        """FLOPs of the targets with their entropies, of both critics on the joint batch, and of the policy's updates.

        Heads compute half of the joint batch. An update of the policy counts 1 / `policy_delay` times.
        """
        actor, critics = self._pi.cost, self._z.cost
        head = 2.0 * (2 * self._settings.critic_sizes[-1] - 1) * self._settings.atoms
        # In forward passes of one half of a joint batch: two of the target critics, six of the critics.
        joint = 8 * critics + -4 * Cost(head, head)
        policy = (1 / self._settings.policy_delay) * (3 * actor + critics)
        return Flops(action=actor, update=self.batch_size * ((1 + self._steps_between) * actor + joint + policy))
