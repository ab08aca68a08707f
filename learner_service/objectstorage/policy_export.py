"""Writes the best policy to object storage at the end of a run, in the form of `actorq export`."""

import contextlib
import json
import logging
import threading
from dataclasses import replace
from pathlib import Path

from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.policy import AUTO, BEST, FP32, NEWEST, chosen_version
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Evaluation
from actorq.errors import ActorQError, ConflictError, InvalidInputError, NotFoundError, UnavailableError, UserError
from actorq.inference.runpolicies import newest_evaluation
from actorq.quantization.description import describe
from learner_service.objectstorage.store import ObjectStore
from learner_service.objectstorage.volume import Volume

_log = logging.getLogger(__name__)

_MODEL, _DESCRIPTION = "policy.onnx", "policy.json"
_MOST_BYTES = 2**24


class PolicyExport:
    """The export of one run. url: of the ONNX file once it and its description are written; empty before."""

    def __init__(
        self, config: RunConfig, evaluations: Path, client: QuantizerClient, volume: Volume | None = None
    ) -> None:
        """evaluations: the run's log. volume: with object storage. Raises UserError for an unusable URL."""
        self.url = ""
        self._config = config
        self._evaluations = evaluations
        self._client = client
        self._volume = volume
        self._store: ObjectStore | None = None
        if url := config.policy_export.url:
            self._store = ObjectStore(url, config.checkpoint.object_storage_endpoint, "policy_export.url")

    def begin(self, run_id: str) -> None:
        """Raise UserError when the URL has the policy of another run.

        If the storage is unreachable, the run begins anyway.
        """
        if self._store is None:
            return
        try:
            self._require_own(self._store, run_id)
        except UnavailableError as error:
            _log.warning("policy_export.url cannot be checked for now: %s", error)
        except (ConflictError, InvalidInputError) as error:
            raise UserError(f"policy_export.url: {error}") from None

    def _require_own(self, store: ObjectStore, run_id: str) -> None:
        """Raise ConflictError when the storage has the policy of another run."""
        try:
            other = json.loads(store.get(_DESCRIPTION, _MOST_BYTES))["run_id"]
        except NotFoundError:
            return
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConflictError(f"{store.url} has a {_DESCRIPTION} that no run has written; use another URL") from None
        if other != run_id:
            raise ConflictError(f"{store.url} has the policy of run {other}; use another URL for each run")

    def write(self, environment: EnvironmentSpec, evaluation: Evaluation | None, timeout_s: float) -> None:
        """Write the best policy, or the newest if none has an evaluation. Gives up after `timeout_s` seconds.

        evaluation: the newest valid evaluation, which the quantizer may not have yet. A failure is logged.
        """
        if self._store is None:
            return
        # A hanging storage must not prevent the end of the learner.
        thread = threading.Thread(target=self._attempt, args=(self._store, environment, evaluation), daemon=True)
        thread.start()
        thread.join(timeout_s)
        if thread.is_alive():
            _log.error("the best policy is not in %s after %g s", self._store.url, timeout_s)

    def _attempt(self, store: ObjectStore, environment: EnvironmentSpec, evaluation: Evaluation | None) -> None:
        try:
            self._write(store, environment, evaluation)
        except Exception as error:
            known = isinstance(error, ActorQError | OSError)
            _log.error("the best policy is not exported: %s", error, exc_info=not known)

    def _write(self, store: ObjectStore, environment: EnvironmentSpec, evaluation: Evaluation | None) -> None:
        retained = self._client.list()
        if evaluation is not None:
            version, known = evaluation.policy_version, evaluation.mean_return
            retained = [replace(each, mean_return=known) if each.version == version else each for each in retained]
        best = chosen_version(BEST, retained) or chosen_version(NEWEST, retained)
        if best is None:
            raise NotFoundError("the quantizer has no policy")
        evaluated = newest_evaluation(self._evaluations, best)
        own = FP32 if self._config.scheme == AUTO else self._config.scheme
        scheme = self._config.policy_export.scheme or (evaluated["scheme"] if evaluated else own)
        policy = self._client.get(scheme, best.version)
        self._require_own(store, policy.descriptor.run_id)
        if self._volume is not None:
            # The learner that continues the run exports its own policy.
            with contextlib.suppress(UnavailableError):
                self._volume.check(policy.descriptor.run_id)
        description = describe(_MODEL, policy, best, environment, self._config.algorithm, evaluated)
        store.put(_MODEL, policy.model)
        store.put(_DESCRIPTION, (json.dumps(description, indent=2) + "\n").encode())
        self.url = f"{store.url.rstrip('/')}/{_MODEL}"
        _log.info("the best policy, version %d in %s, is in %s", best.version, scheme, self.url)
