"""Runs the episodes of an evaluation, with one fixed policy version."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.acting.behavior import BehaviorPolicy
from actor_service.acting.behaviors import behavior_policy
from actor_service.acting.frame_stack import FrameStack
from actor_service.acting.memory import PolicyStates
from actor_service.acting.parts import greedy_actions
from actor_service.counts import ActorCounts
from actor_service.environments import Environments, Step
from actor_service.policies.policy import OnnxPolicy, load_policy
from actorq.domain.limits import MAX_AGENT_RETURNS
from actorq.domain.policy import Policy
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration, Sampling
from actorq.domain.trajectory import Episode, Evaluation
from actorq.errors import ActorQError, UnavailableError, UserError

MOST_ENVIRONMENTS = 32
# Consecutive failed episodes that end the actor.
MOST_FAILED = 100


def batch_size(episodes: int, rows: int, most: int = MOST_ENVIRONMENTS) -> int:
    """Number of environments for an evaluation: a multiple of `rows`, at most `most`.

    The number is rounded up, because a second episode in each environment would double the time.
    """
    return min(-(-episodes // rows), most // rows) * rows


@dataclass(eq=False)
class EvaluationEpisodes:
    """Runs episodes with greedy actions, or with actions drawn from the policy's distribution.

    A greedy action is the action of highest value, or the policy's action without noise.

    An episode in which an environment fails counts as a fault, and another episode replaces it. `MOST_FAILED` faults in
    a row raise ActorQError.

    watched: context of each call to the environments, for a watchdog.
    sampling: how actions are drawn; empty for greedy actions.
    rows: observations per call of the policy, a divisor of the environments' rows; 0 for all. A quantized policy's
        dynamic ranges cover the rows of a call. The policy therefore acts as in actors with this number of rows. With
        several agents, a call has all agents of its environments.
    """

    environments: Environments
    episodes: int
    counts: ActorCounts = field(default_factory=ActorCounts)
    watched: AbstractContextManager[Any] = field(default_factory=nullcontext)
    sampling: Sampling = ""
    rows: int = 0

    def __post_init__(self) -> None:
        self.rows = self.rows or self.environments.rows
        self.spec = self.environments.spec
        if (count := self.episodes * len(self.spec.agents)) > MAX_AGENT_RETURNS:
            raise UserError(
                f"evaluation.episodes: expected at most {MAX_AGENT_RETURNS // len(self.spec.agents)} episodes with "
                f"{len(self.spec.agents)} agents, got {self.episodes}, which have {count} returns"
            )
        self.needs = self._behaviors(0)[0].needs if self.sampling else ()
        """Roles of outputs that policies must have for `run`; see `BehaviorPolicy`."""

    def load(self, policy: Policy) -> OnnxPolicy:
        """Make a policy ready for `run`. Raises InvalidInputError when it does not fit the environment."""
        return load_policy(policy, self.spec, self.rows, self.needs)

    def run(
        self,
        policy: OnnxPolicy,
        seed: int,
        sequence: int,
        stop: threading.Event,
        on_episode: Callable[[Episode], None] = lambda episode: None,
        on_picture: Callable[[NDArray[np.uint8]], None] | None = None,
    ) -> Evaluation:
        """Run the episodes. Raises UnavailableError when `stop` is set before the end.

        Every environment runs a fixed share of the episodes. Taking the first episodes to end would favor short ones.

        seed: of the environments, and of drawn actions.
        on_picture: called with a picture of the first environment at its first observation and after each of its steps.
        """
        started = time.monotonic()
        behaviors = self._behaviors(seed) if self.sampling else None
        environments, stack = self.environments, FrameStack(self.spec, self.environments.rows)
        shares = np.full(environments.count, self.episodes // environments.count)
        shares[: self.episodes % environments.count] += 1
        states = PolicyStates(environments.rows, policy.state_size) if policy.state_size else None
        episodes: list[Episode] = []
        failed = 0
        with self.watched:
            observations = environments.reset(seed)
        while shares.any():
            if stop.is_set():
                raise UnavailableError("the evaluation was stopped because the actor ends")
            if on_picture is not None and shares[0]:
                on_picture(self._picture())
            actions = self._actions(policy, stack.push(observations, environments.lengths), behaviors, states)
            with self.watched:
                step = environments.step(actions)
            if states is not None:
                states.begin(environments.lengths)
            observations = step.observations
            failed = self._count_faults(step, failed)
            for episode in step.episodes:
                if shares[episode.environment]:
                    shares[episode.environment] -= 1
                    episodes.append(episode)
                    on_episode(episode)
        if on_picture is not None:
            on_picture(self._picture())
        return evaluation_of(policy, episodes, sequence, time.monotonic() - started, self.spec)

    def close(self) -> None:
        """Release the environments."""
        with self.watched:
            self.environments.close()

    def _count_faults(self, step: Step, failed: int) -> int:
        """The number of episodes that have failed in a row. Raises ActorQError when there are too many.

        failed: the number before the step.
        """
        failed = 0 if step.episodes else failed + len(step.faults)
        for fault in step.faults:
            self.counts.add_fault(fault.restarted)
            if failed >= MOST_FAILED:
                raise ActorQError(
                    f"environment {self.spec.environment_id} failed in {failed} episodes in a row; the last time: "
                    f"{fault.reason}"
                ) from fault.error
        return failed

    def _picture(self) -> NDArray[np.uint8]:
        what = f"environment {self.spec.environment_id}: a picture must be uint8[height, width, 3], got"
        try:
            with self.watched:
                picture = np.asarray(self.environments.render(0))
        except Exception as error:  # A user's environment may raise any exception.
            raise UserError(f"{what} {type(error).__name__}: {error}") from error
        if picture.dtype != np.uint8 or picture.shape[2:] != (3,):
            raise UserError(f"{what} {picture.dtype}{list(picture.shape)}")
        return picture

    def _actions(
        self,
        policy: OnnxPolicy,
        seen: NDArray[Any],
        behaviors: Sequence[BehaviorPolicy] | None,
        states: PolicyStates | None,
    ) -> NDArray[np.generic]:
        """The actions for all environments. behaviors: draw the actions for each call; None for greedy actions.

        states: of a policy with memory. They become the states after this step.
        """
        found = []
        for number, part in enumerate(np.split(seen, len(seen) // self.rows)):
            rows = slice(number * self.rows, (number + 1) * self.rows)
            if states is not None:
                states.give(policy, rows)
            if behaviors is not None:
                found.append(behaviors[number](policy, part).copy())
            else:
                found.append(greedy_actions(self.spec, policy, policy(part)).copy())
            if states is not None:
                states.take(policy, rows)
        return np.concatenate(found)

    def _behaviors(self, seed: int) -> list[BehaviorPolicy]:
        exploration = Exploration(epsilons=(), noise=(), sampling=self.sampling)
        generators = np.random.default_rng(seed).spawn(self.environments.rows // self.rows)
        count = self.rows // self.spec.agent_count
        return [behavior_policy(self.spec, exploration, count, generator) for generator in generators]


def evaluation_of(
    policy: OnnxPolicy, episodes: Sequence[Episode], sequence: int, duration_s: float, spec: EnvironmentSpec
) -> Evaluation:
    """The evaluation of a policy in these episodes. spec: of their environments."""
    return Evaluation(
        sequence=sequence,
        policy_version=policy.descriptor.version,
        learner_step=policy.descriptor.learner_step,
        scheme=policy.descriptor.effective_scheme,
        returns=tuple(episode.episode_return for episode in episodes),
        lengths=tuple(episode.length for episode in episodes),
        duration_s=duration_s,
        successes=_successes(episodes),
        agents=spec.agents,
        agent_returns=tuple(each for episode in episodes for each in episode.agent_returns),
    )


def _successes(episodes: Sequence[Episode]) -> tuple[bool, ...]:
    """Whether each episode ended with success; empty unless all of them report it."""
    told = tuple(each.success for each in episodes if each.success is not None)
    return told if len(told) == len(episodes) else ()
