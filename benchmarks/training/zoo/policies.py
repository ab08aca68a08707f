"""Reads stored policies with a check of their digests, loads them as an actor does, and runs episodes with them."""

import hashlib
import json
import threading
from contextlib import closing
from pathlib import Path

from pydantic import TypeAdapter

from actor_service.environments import make_environments
from actor_service.roles.evaluation import EvaluationEpisodes
from actorq.arithmetic import arithmetic
from actorq.domain.policy import SIGNED, FidelityReport, Policy, PolicyDescriptor, variant_of
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Evaluation
from actorq.inference import description_file, load_policy
from actorq.weightencoding import in_weight_encoding

_MOST_ENVIRONMENTS = 20


def evaluate(file: Path, episodes: int, seed: int) -> Evaluation:
    """Greedy episodes of an exported policy in its environment, by the actor's own loader and loop.

    Each call of the policy has one observation, so an action does not depend on other episodes. Raises UserError for a
    missing or damaged file.
    """
    policy, spec = read(file)
    environments = make_environments(
        spec.environment_id,
        min(episodes, _MOST_ENVIRONMENTS),
        arguments=spec.environment_arguments.for_evaluations(),
    )
    with closing(EvaluationEpisodes(environments, episodes, rows=1)) as runner:
        return runner.run(runner.load(policy), seed, 0, threading.Event())


def read(file: Path) -> tuple[Policy, EnvironmentSpec]:
    """An exported policy as an actor on this processor receives it, and its environment.

    Raises UserError for a missing or damaged file.
    """
    # This checks the format and the digest.
    environment = load_policy(file).environment
    described = json.loads(description_file(file).read_text(encoding="utf-8"))
    descriptor = PolicyDescriptor(
        run_id=described["run_id"],
        version=described["version"],
        learner_step=described["updates"],
        scheme=described["scheme"],
        sha256=bytes.fromhex(described["sha256"]),
        size_bytes=described["size_bytes"],
        # The description has neither the size in FP32 nor the time of the snapshot.
        fp32_size_bytes=0,
        snapshot_at=0.0,
        fidelity=TypeAdapter(FidelityReport).validate_python(described["fidelity"]),
        weight_encoding=described["weight_encoding"] or SIGNED,
    )
    policy = Policy(descriptor, file.read_bytes())
    wanted = variant_of(descriptor.scheme, arithmetic().weight_encoding)
    return in_weight_encoding(policy, wanted.weight_encoding), environment


def digests(file: Path) -> dict[str, str]:
    """The SHA-256 of the model and of its description, in hexadecimal form."""
    files = {"sha256": file, "description_sha256": description_file(file)}
    return {name: hashlib.sha256(each.read_bytes()).hexdigest() for name, each in files.items()}
