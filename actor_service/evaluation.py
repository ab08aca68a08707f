"""Greedy episodes of one pinned policy."""

import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from actor_service.environments import Environments
from actor_service.policy import OnnxPolicy
from actorq.errors import UnavailableError
from actorq.policy import Policy
from actorq.trajectory import EnvironmentSpec, Episode, Evaluation

_MOST_ENVIRONMENTS = 32


class Evaluator:
    """Runs greedy episodes in environments of its own."""

    def __init__(self, spec: EnvironmentSpec, episodes: int) -> None:
        self._spec = spec
        self._episodes = episodes
        self._environments = Environments(spec.environment_id, min(episodes, _MOST_ENVIRONMENTS))

    @property
    def environments(self) -> int:
        """How many environments are stepped as one batch."""
        return self._environments.count

    def load(self, policy: Policy) -> OnnxPolicy:
        """Make a policy ready for `run`; raises InvalidInputError when it does not fit the environment."""
        count = self._environments.count
        return OnnxPolicy(policy, self._spec.observations, count, self._spec.discrete_actions)

    def run(
        self,
        policy: OnnxPolicy,
        seed: int,
        sequence: int,
        stop: threading.Event,
        on_episode: Callable[[Episode], None] = lambda episode: None,
    ) -> Evaluation:
        """Run the episodes; raises UnavailableError when `stop` is set before they are done.

        Every environment runs its fixed share of the episodes. Taking whichever end first would count short ones more
        often.
        """
        started = time.monotonic()
        shares = np.full(self._environments.count, self._episodes // self._environments.count)
        shares[: self._episodes % self._environments.count] += 1
        episodes: list[Episode] = []
        observations = self._environments.reset(seed)
        while shares.any():
            if stop.is_set():
                raise UnavailableError("the evaluation was broken off: the actor ends")
            step = self._environments.step(self._greedy(policy(observations)))
            observations = step.observations
            for episode in step.episodes:
                if shares[episode.environment]:
                    shares[episode.environment] -= 1
                    episodes.append(episode)
                    on_episode(episode)
        return Evaluation(
            sequence=sequence,
            policy_version=policy.descriptor.version,
            learner_step=policy.descriptor.learner_step,
            scheme=policy.descriptor.effective_scheme,
            returns=tuple(episode.episode_return for episode in episodes),
            lengths=tuple(episode.length for episode in episodes),
            duration_s=time.monotonic() - started,
        )

    def close(self) -> None:
        """Release the environments."""
        self._environments.close()

    def _greedy(self, outputs: NDArray[np.float32]) -> NDArray[np.generic]:
        return outputs.argmax(axis=1) if self._spec.discrete_actions else outputs
