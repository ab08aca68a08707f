"""Finds and reads the policies in a run's folder, without a service."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.policy import AUTO, BEST, FP32, NEWEST, SIGNED, Policy, RetainedPolicy, chosen_version, variant_of
from actorq.errors import InvalidInputError, UserError
from actorq.rundirectory import RunDirectory
from actorq.statefiles.lines import read_lines
from actorq.statefiles.policies import read_policy, retained_policies, version_folder
from actorq.weightencoding import in_weight_encoding


class RunPolicies:
    """The versions in a run's folder at this time. The run may still be running.

    versions: newest first. Raises UserError if the folder is not a run's folder, or if the run has no policies.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.config = settings.build(RunConfig, run.config_tree())
        self.versions = retained_policies(run.policies)
        if not self.versions:
            if any(run.policies.glob("[0-9]*")):
                raise UserError(f"{run.policies}: all versions are damaged, so there is no policy")
            raise UserError(f"{run.policies} has no policies: the run has not published any yet")

    def find(self, choice: str = "") -> RetainedPolicy:
        """The version "best", "newest", a number, or "" (the best, else the newest). UserError if none matches."""
        for each in (choice,) if choice else (BEST, NEWEST):
            if (found := chosen_version(each, self.versions)) is not None:
                return found
        listing = f"actorq policies {self.run.root} lists the versions"
        if choice == BEST:
            raise UserError(f"no version of {self.run.root} has an evaluation: give newest or a number; {listing}")
        raise UserError(f"version {choice} is not in {self.run.root}; {listing}")

    def scheme_of(self, version: RetainedPolicy) -> str:
        """The run's scheme. If it is "auto", the scheme in which the evaluator ran this version."""
        if self.config.scheme != AUTO:
            return self.config.scheme
        evaluation = newest_evaluation(self.run.evaluations, version) or {}
        return next((each for each in (evaluation.get("scheme"), *version.schemes) if each in version.schemes), FP32)

    def stored(self, version: RetainedPolicy, scheme: str, weight_encoding: str = SIGNED) -> Policy:
        """A stored policy in this encoding. Raises UserError if it is damaged, or not stored in the scheme."""
        if scheme not in version.schemes:
            raise UserError(
                f"version {version.version} of {self.run.root} is stored in {', '.join(version.schemes) or 'no scheme'}"
                f", not in {scheme}; write a file with: actorq export {self.run.root} --version {version.version} "
                f"--scheme {scheme}"
            )
        folder = version_folder(self.run.policies, version.version)
        try:
            wanted = variant_of(scheme, weight_encoding)
            found = next(each for each in (wanted, *wanted.siblings) if each in version.variants)
            return in_weight_encoding(read_policy(folder, found), wanted.weight_encoding)
        except InvalidInputError as error:
            gone = f"newer versions have just replaced version {version.version} of {self.run.root}; try again"
            raise UserError(str(error) if folder.exists() else gone) from None


def newest_evaluation(path: Path, version: RetainedPolicy) -> Mapping[str, Any] | None:
    """The newest evaluation in a run's log that has the version's return; None without one.

    The log also contains flagged evaluations. The quantizer does not know their returns.
    """
    if not path.exists():
        return None
    lines = (values["evaluation"] for _, values in read_lines(path) if values)
    found: list[Mapping[str, Any]] = [
        each
        for each in lines
        if (each["policy_version"], float(np.mean(each["returns"]))) == (version.version, version.mean_return)
    ]
    return found[-1] if found else None
