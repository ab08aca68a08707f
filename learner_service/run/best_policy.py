"""Keeps the policy with the best evaluation in a folder of the run, for the upload."""

import math
from pathlib import Path

from actorq.client import QuantizerClient
from actorq.errors import InvalidInputError
from actorq.statefiles.documents import read_document, write_document
from actorq.statefiles.files import replace_file
from actorq.statefiles.policies import descriptor_to_json
from learner_service.files import BEST_POLICY
from learner_service.run.evaluations import EvaluationLog

_NONE = (-math.inf, 0)


class BestPolicy:
    """The best policy as NAME.onnx and NAME.json, its descriptor with the fidelity report and the mean return."""

    def __init__(self, directory: Path, client: QuantizerClient, evaluations: EvaluationLog) -> None:
        self._folder = directory / BEST_POLICY
        self._client = client
        self._evaluations = evaluations

    def update(self) -> None:
        """Get the best policy from the quantizer, unless the policy in the folder is as good.

        Raises UnavailableError when the quantizer is unreachable. Keeps the present policy when the quantizer has lost
        the best one.
        """
        schemes = {(each["mean_return"], each["policy_version"]): each["scheme"] for each in self._evaluations.curve}
        if not schemes:
            return
        # The quantizer does not get flagged evaluations, so all its evaluations are valid.
        counted = schemes.keys() & {(each.mean_return, each.version) for each in self._client.list()}
        best = max(counted, default=None)
        if best is None or best <= self._present():
            return
        mean_return, version = best
        policy = self._client.get(schemes[best], version)
        name = f"{version:08d}-{schemes[best]}"
        self._folder.mkdir(exist_ok=True)
        replace_file(self._folder / f"{name}.onnx", policy.model)
        values = {**descriptor_to_json(policy.descriptor), "mean_return": mean_return}
        write_document(self._folder / f"{name}.json", values, sync=False)
        for other in self._folder.iterdir():
            if other.stem != name:
                other.unlink()

    def _present(self) -> tuple[float, int]:
        """Mean return and version of the present policy. Without a policy, any policy is better."""
        try:
            documents = map(read_document, self._folder.glob("*.json"))
            return max(((each["mean_return"], each["version"]) for each in documents), default=_NONE)
        except (InvalidInputError, KeyError):
            return _NONE
