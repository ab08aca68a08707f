"""Checks and stores the evaluations of a run, each once, and compares them with the target."""

import asyncio
import logging
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

from actorq.domain.trajectory import Evaluation
from actorq.errors import ExhaustedError, InvalidInputError, UnavailableError
from actorq.text import return_text, size_text
from learner_service.actors.credits import ActorStream
from learner_service.actors.members import Member
from learner_service.actors.schemes import acting_schemes
from learner_service.run.records import Records
from learner_service.training.training import Training

_log = logging.getLogger(__name__)

# Evaluations need this much more free space than `replay.min_free_bytes`, so that they never make actors wait.
_ROOM = 1.25
# Bytes per second, and the most saved bytes: for one evaluator, and for all together. Honest evaluators need far less.
_EACH_EVALUATOR = 2**14, 2**20
_ALL_EVALUATORS = 2**16, 2**22
# Most bytes of a line in the log: without its episodes, and for each episode.
_LINE_BYTES, _EPISODE_BYTES = 1024, 48
# Of the name of an agent, and of its return in an episode.
_AGENT_BYTES, _RETURN_BYTES = 144, 24


class Allowance:
    """Bytes that may be written now: `rate` more each second, up to `most`, which is also the start.

    A write that begins within the allowance may exceed it. The next write then waits until the excess is covered.
    """

    def __init__(self, rate: float, most: float, clock: Callable[[], float]) -> None:
        self.rate, self._most, self._clock = rate, most, clock
        self._saved, self._at = most, clock()

    @property
    def has_some(self) -> bool:
        """Whether a write may begin."""
        now = self._clock()
        self._saved, self._at = min(self._most, self._saved + self.rate * (now - self._at)), now
        return self._saved > 0

    def spend(self, nbytes: int) -> None:
        """Record a write."""
        self._saved -= nbytes


class EvaluationAllowance:
    """The allowances of all evaluators: one for each evaluator, and one for all together. Lives on the event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._all = Allowance(*_ALL_EVALUATORS, clock)
        self._each: WeakKeyDictionary[Member, Allowance] = WeakKeyDictionary()

    def spend(self, member: Member, evaluation: Evaluation) -> None:
        """Record an evaluation. Raises ExhaustedError when too much was sent; the evaluator then sends it again."""
        own = self._each.setdefault(member, Allowance(*_EACH_EVALUATOR, self._clock))
        for allowance, who in ((own, f"evaluator {member.name!r}"), (self._all, "all")):
            if not allowance.has_some:
                most = f"{allowance.rate} bytes per second by {who}"
                raise ExhaustedError(f"evaluation: expected at most {most}, got more: send it again later")
        for allowance in (own, self._all):
            allowance.spend(most_line_bytes(evaluation))


def most_line_bytes(evaluation: Evaluation) -> int:
    """The most bytes that an evaluation may have in the log."""
    of_agents = _AGENT_BYTES * len(evaluation.agents) + _RETURN_BYTES * len(evaluation.agent_returns)
    return _LINE_BYTES + _EPISODE_BYTES * len(evaluation.returns) + of_agents


class Judge:
    """Compares evaluations with the target, a return or a success rate. Lives on the event loop.

    flagged: the newest evaluation and the reason, if it is implausible; otherwise empty. Such a policy is not exported.
    unconfirmed: the newest evaluation that reaches the target far above the actors' returns, and needs a second
        confirmation.
    """

    def __init__(self, records: Records) -> None:
        self.flagged = self.unconfirmed = ""
        self._solved_by: Evaluation | None = None
        # The evaluator of the newest evaluation that reached the target far above the actors' returns.
        self._witness = ""
        # The newest unconfirmed evaluation, and its training.
        self._waiting: tuple[Evaluation, Training] | None = None
        self._acting = acting_schemes(records.config.scheme)
        self._records = records
        self._evaluated = asyncio.Event()
        self._allowance = EvaluationAllowance(time.monotonic)
        self._disk_is_low = False

    @property
    def target_return(self) -> float | None:
        """The return that ends the run: configured, else of the environment; None if a success rate ends it."""
        config, training = self._records.config, self._records.training
        if config.target_return is not None or config.target_success is not None or training is None:
            return config.target_return
        return training.spec.reward_threshold

    @property
    def evaluation(self) -> Evaluation | None:
        """The evaluation that solved the run, otherwise the newest one.

        Another evaluation may arrive while the run ends.
        """
        return self._solved_by or self._records.evaluations.newest

    def check(self, stream: ActorStream, evaluation: Evaluation) -> None:
        """Check a received evaluation before it is stored.

        Raises InvalidInputError when the sender is no evaluator, or when no actor may run the policy. Raises
        CorruptedError when an earlier evaluation is missing, and ExhaustedError when evaluators send too much.
        """
        if stream.member.role != "evaluator" or evaluation.scheme not in self._acting or evaluation.policy_version < 1:
            raise InvalidInputError(
                f"evaluation: expected one from an evaluator for a published {' or '.join(self._acting)} policy, "
                f"got one from an {stream.member.role} for version {evaluation.policy_version} {evaluation.scheme!r}"
            )
        stream.require_all_before(evaluation.sequence)
        if evaluation.sequence > stream.received:
            self._allowance.spend(stream.member, evaluation)
        stream.received = max(stream.received, evaluation.sequence)

    async def until_evaluated(self, version: int, timeout_s: float) -> None:
        """Wait for an evaluation of this version or a newer version. Raises TimeoutError after `timeout_s` seconds."""
        async with asyncio.timeout(timeout_s):
            while (newest := self._records.evaluations.newest) is None or newest.policy_version < version:
                self._evaluated.clear()
                await self._evaluated.wait()

    def store(self, member: Member, evaluation: Evaluation, training: Training) -> bool:
        """Store an evaluation, on the storage thread; False if it is already stored. Raises UnavailableError on a low
        disk.
        """
        least = int(_ROOM * self._records.config.replay.min_free_bytes)
        free = training.replay.machine.free_bytes(self._records.identity.directory)
        was_low, self._disk_is_low = self._disk_is_low, free < least
        if self._disk_is_low:
            reason = f"the disk has {size_text(free)}, and evaluations need {size_text(least)}"
            if not was_low:
                _log.warning("evaluations wait: %s", reason)
            raise UnavailableError(f"evaluation: {reason}: send it again later")
        steps = training.replay.total_transitions
        try:
            if not self._records.evaluations.append(member, evaluation, steps, self._records.clock.elapsed_s):
                return False
        except OSError as error:
            reason = f"the evaluation cannot be written ({error.strerror}): send it again"
            raise UnavailableError(reason) from error
        step = evaluation.learner_step if self._records.config.offline else steps
        self._records.events.evaluation(evaluation, step, time.time())
        return True

    def decide(self, evaluator: str, evaluation: Evaluation) -> bool:
        """Compare a stored evaluation with the target. Returns whether the run is solved."""
        rate = evaluation.success_rate
        success = "" if rate is None else f", success rate {rate:.0%}"
        _log.info("version %d: return %s%s", evaluation.policy_version, return_text(evaluation.mean_return), success)
        self._evaluated.set()
        training = self._records.training
        return training is not None and self._reaches_target(evaluator, evaluation, training)

    def reconsider(self) -> bool:
        """Whether an unconfirmed evaluation solves the run now, because the actors' returns have come closer.

        A run that begins with trained networks has such an evaluation before its actors have ended a whole episode.
        """
        if self._waiting is None or self._waiting[1] is not self._records.training:
            return False
        evaluation, training = self._waiting
        if training.intake.doubt(evaluation) or not training.intake.agrees(evaluation):
            return False
        _log.info(
            "version %d: its return of %s is confirmed", evaluation.policy_version, return_text(evaluation.mean_return)
        )
        self._waiting, self.unconfirmed = None, ""
        self._solved_by = self._solved_by or evaluation
        return True

    def _reaches_target(self, evaluator: str, evaluation: Evaluation, training: Training) -> bool:
        """Whether an evaluation reaches the target. An implausible evaluation never does."""
        self.unconfirmed = ""
        success = self._records.config.target_success
        target, score = self.target_return if success is None else success, evaluation.score(success is not None)
        reached = target is not None and score is not None and score >= target
        if reached and (doubt := training.intake.doubt(evaluation)):
            self.flagged = f"version {evaluation.policy_version}, by {evaluator}: {doubt}"
            _log.warning("flagged evaluation of %s; the run continues", self.flagged)
            return False
        self.flagged = ""
        training.publisher.evaluated(evaluation)
        if reached and not training.intake.agrees(evaluation) and self._witness in ("", evaluator):
            self._witness = evaluator
            self.unconfirmed = (
                f"version {evaluation.policy_version}, by {evaluator}: its return of "
                f"{return_text(evaluation.mean_return)} is far above "
                "those of the actors; it counts when they come closer, or another evaluator agrees"
            )
            # In an honest run, exploring actors may be that far behind a greedy policy for a moment.
            _log.info("unconfirmed evaluation of %s", self.unconfirmed)
            self._waiting = evaluation, training
            return False
        if score is None:
            self.unconfirmed = (
                f"version {evaluation.policy_version}, by {evaluator}: target_success is never reached, because the "
                "environment does not tell of success (info['is_success'] at the end of an episode)"
            )
            return False
        if reached:
            self._solved_by = self._solved_by or evaluation
        return reached
