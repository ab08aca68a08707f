"""The stand-alone evaluator role: evaluates policies on request, without a learner."""

from pathlib import Path

from actor_service.environments import describe_environment
from actor_service.roles.actor_role import ActorRole, Host
from actorq.config.run_config import RunConfig
from actorq.domain.status import Sampling


class StandaloneEvaluator(ActorRole):
    """Has a fixed environment, and fetches the policy that each request names.

    config: of the run whose policies it evaluates.
    record: the file for a video of each evaluation; None for no video.
    sampling: how actions are drawn; empty for greedy actions.
    """

    role = "standalone"

    def __init__(self, host: Host, config: RunConfig, record: Path | None = None, sampling: Sampling = "") -> None:
        super().__init__(host)
        self._record = record
        self._sampling = sampling
        self._scheme = config.scheme
        self._environments = config.environments_per_actor
        # Made here and not in `start`, so that a wrong environment ends the process before it serves.
        self._watchdog.start()
        try:
            with self._own_call:
                self._spec = describe_environment(
                    *(config.environment, host.backend, config.environment_arguments),
                    rendered=record is not None,
                    evaluated=True,
                )
        except BaseException:
            self._watchdog.close()
            raise

    def start(self) -> None:
        """Wait for requests. The watchdog already runs."""
        self._activity = "waiting for requests"

    def drain(self, flush_s: float) -> None:
        """End at once, because no items are queued."""
        self._close_watchdog()
        self._quantizer.close()
        self._host.on_end(None)

    @property
    def _acting_scheme(self) -> str:
        return self._scheme
