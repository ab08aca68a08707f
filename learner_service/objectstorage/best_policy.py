"""Keeps the policy with the best evaluation in a folder of the run, from where it is uploaded."""

import logging
from pathlib import Path

from actorq.client import QuantizerClient
from actorq.errors import NotFoundError
from actorq.statefiles.documents import write_document
from actorq.statefiles.files import replace_file
from actorq.statefiles.policies import descriptor_to_json
from learner_service.run.evaluations import EvaluationLog

_log = logging.getLogger(__name__)

FOLDER = "best"


class BestPolicy:
    """The best policy as NAME.onnx and NAME.json, its descriptor with the fidelity report and the mean return."""

    def __init__(self, directory: Path, client: QuantizerClient, evaluations: EvaluationLog) -> None:
        self._folder = directory / FOLDER
        self._client = client
        self._evaluations = evaluations
        self._missing = ""

    def update(self) -> None:
        """Get the best policy from the quantizer, unless it is here already.

        Raises UnavailableError when the quantizer is away. Keeps the present one when the quantizer has lost the best.
        """
        curve = self._evaluations.curve
        if not curve:
            return
        best = max(curve, key=lambda point: (point["mean_return"], point["policy_version"]))
        name = f"{best['policy_version']:08d}-{best['scheme']}"
        described = self._folder / f"{name}.json"
        if described.exists() or name == self._missing:
            return
        try:
            policy = self._client.get(best["scheme"], best["policy_version"])
        except NotFoundError as error:
            self._missing = name
            _log.warning("the best policy is not uploaded: %s", error)
            return
        self._folder.mkdir(exist_ok=True)
        replace_file(self._folder / f"{name}.onnx", policy.model)
        values = {**descriptor_to_json(policy.descriptor), "mean_return": best["mean_return"]}
        write_document(described, values, sync=False)
        for other in self._folder.iterdir():
            if other.stem != name:
                other.unlink()
