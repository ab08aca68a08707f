"""Resumes a run in this process, without actors and without a quantizer, and returns the resumed state."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from actorq.client import QuantizerClient
from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from actorq.rundirectory import RunDirectory
from actorq.statefiles.findings import Finding
from actorq_apps.cli.verify import launcher_files
from learner_service import verify as learner_verify
from learner_service.replay import ReplayBuffer
from learner_service.replay.storage.store import ReplayStore
from learner_service.run.run import Run
from learner_service.training.training import Training
from quantizer_service import verify as quantizer_verify
from quantizer_service.store.store import PolicyStore

# No service listens there. The learner's publisher retries until it is closed.
_NOBODY = "127.0.0.1:1"
RESTORE_S = 120.0
_DRAWN = 256

# The resumed state of a run, by name.
State = dict[str, Any]


def verify(root: Path) -> list[Finding]:
    """The findings of `actorq verify`."""
    policies = (each.below("policies") for each in quantizer_verify.verify(root / "policies"))
    return [*launcher_files(RunDirectory(root)), *learner_verify.verify(root), *policies]


def resume(root: Path, damaged: str = "") -> State:
    """Resume learner and store as their processes do. Raises their errors.

    damaged: the only changed file. If it is a file of the store, the learner is not resumed. The rows of the replay
    are compared if the file belongs to the replay.
    """
    config = settings.build(RunConfig, RunDirectory(root).config_tree())
    state: State = {"config": config.model_dump(mode="json")}
    if not damaged.startswith("policies/"):
        learner = asyncio.run(_resume_learner(root, config))
        state |= learner
        if not damaged or damaged.startswith("replay/"):
            state["replay"] = _replay(root, config, learner["spec"])
    return {**state, **_resume_store(root, config)}


async def _resume_learner(root: Path, config: RunConfig) -> State:
    run = Run(config, root, QuantizerClient(_NOBODY), resume=True, stays_over=True)
    try:
        async with asyncio.timeout(RESTORE_S):
            # A finished run stays finished, but its replay is opened.
            await run.preparation.restore()
        if run.lifecycle.fault is not None:
            raise run.lifecycle.fault
        training = run.training
        return {
            "run_id": run.records.identity.run_id,
            "lives": run.records.identity.lives,
            "state": run.lifecycle.state.value,
            "spec": training and training.spec.to_json(),
            "evaluations": list(run.records.evaluations.curve),
            "elapsed_s": round(run.records.clock.elapsed_s, 1),
            **(_training_state(training) if training else {}),
        }
    finally:
        await run.close()


def _training_state(training: Training) -> State:
    # Unreadable rows raise here, as in the learner.
    assert isinstance(training.replay, ReplayBuffer)
    drawn = training.replay.draw(_DRAWN)[0].returns if training.replay.transitions else np.zeros(1)
    if not np.isfinite(drawn).all():
        raise ValueError("the replay returns values that are not finite")
    digest = hashlib.sha256()
    for name, tensor in sorted(training.algorithm.state().items()):
        digest.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    return {
        "updates": training.trainer.updates,
        "tensors": digest.hexdigest(),
        "transitions": training.replay.total_transitions,
        "generator": training.rng.bit_generator.state,
        "version": training.publisher.version,
    }


def _replay(root: Path, config: RunConfig, spec: dict[str, Any] | None) -> str:
    """The digest of all stored rows."""
    digest = hashlib.sha256()
    if spec is not None:
        environment = EnvironmentSpec.from_json(spec)
        store = ReplayStore.open(
            root / "replay", environment, config.replay.capacity, config.further_columns(sampled=False)
        )
        columns = (store.observations, store.actions, store.rewards, store.flags, store.policy_versions, store.ages)
        for segment in store.segments.live:
            for column in (*columns, *store.further.values()):
                digest.update(np.ascontiguousarray(column[segment.start : segment.stop]).tobytes())
        store.close()
    return digest.hexdigest()


def _resume_store(root: Path, config: RunConfig) -> State:
    quantizer = config.resolved_quantizer()
    store = PolicyStore(root / "policies", quantizer.retain_newest, quantizer.retain_best, quantizer.retain_every)
    try:
        policies = {
            (version.version, str(variant)): store.policy(version.version, variant)
            for version in store.versions()
            for variant in version.variants
        }
        return {
            "run of the store": store.run_id,
            "versions": [(each.version, each.schemes, each.mean_return) for each in store.versions()],
            "policies": {key: policy and policy.descriptor for key, policy in policies.items()},
            "graphs": sorted(topology.hex() for topology in store.graphs),
            "highest_version": store.highest_version,
        }
    finally:
        store.close()
