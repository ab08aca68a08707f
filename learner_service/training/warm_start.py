"""Starts a run with the networks, the normalizers and the replay of another run."""

import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from actorq.config.run_config import RunConfig
from actorq.config.settings import flag_text, value_text
from actorq.config.sparsity import SparsityConfig
from actorq.domain.columns import own_columns
from actorq.domain.leaves import Leaf
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from actorq.statefiles.files import sync_folder
from learner_service.algorithms.base import AnyAlgorithm, is_on_policy
from learner_service.replay import ReplayStore, SegmentBuffer
from learner_service.replay.storage.adopted import adopt, adoptable
from learner_service.training.source import Source

_log = logging.getLogger(__name__)

_OTHERWISE = "or begin without --init-from"


def check_settings(source: Source, config: RunConfig) -> None:
    """Raise UserError when the run of this configuration cannot have the source's networks."""
    _check_algorithm(source, config)
    values, here = source.state.values, config.network_settings
    # Checkpoints of earlier versions lack these values. Then the shapes of the parameters decide.
    for name, there in values.get("network_settings", {}).items():
        if name in here and there != here[name]:
            raise _refusal(source, name, there, here[name], f"give {flag_text(name, there)}")
    topology = SparsityConfig().model_dump() | values.get("sparsity", {})
    for name, configured in config.sparsity.topology.items():
        there = topology[name]
        if name.endswith("method"):
            # The masks come with the weights. The method decides only how they change later.
            fits = there == configured or {there, configured}.isdisjoint(("dense", "tiny"))
        else:
            fits = there == configured
        if not fits:
            raise _refusal(
                source, f"sparsity.{name}", there, configured, f"give {flag_text(f'sparsity.{name}', there)}"
            )


def check_fits(source: Source, config: RunConfig, spec: EnvironmentSpec, algorithm: AnyAlgorithm) -> None:
    """Raise UserError as `check_settings`, and when the source has other observations or actions than `spec`.

    Other dynamics, rewards and time limits are allowed. With `init_replay`, the bounds of actions must be equal too,
    and the replay must have all columns of the run.
    """
    _check_algorithm(source, config)
    if config.init_replay and is_on_policy(algorithm):
        raise UserError(
            f"init_replay: expected an algorithm with a replay, got {config.algorithm}, which is on-policy; leave "
            "--init-replay out"
        )
    if source.spec is not None:
        for fault in _differences(source.spec, spec, with_bounds=config.init_replay):
            raise UserError(
                f"init_from: {fault} in {source.checkpoint}; give an environment with these spaces, {_OTHERWISE}"
            )
    if config.init_replay:
        folder = _replay_of(source)
        replay = adoptable(folder, _further(config, spec))
        # The description of a replay lacks these fields, which do not matter to its rows.
        replay = replace(replay, indicators=spec.indicators, environment_arguments=spec.environment_arguments)
        for fault in _differences(replay, spec, with_bounds=False):
            raise UserError(f"init_replay: {fault} in {folder}; leave --init-replay out")
    check_settings(source, config)


def begin_replay(source: Source, directory: Path, make: Callable[[Path], ReplayStore]) -> None:
    """Make the replay of a new run in `directory`, with the transitions of the source's replay.

    make: opens a new store in a folder.
    The replay appears whole or not at all. An existing replay stays. Raises UserError as `adopt` does, and the errors
    of `ReplayStore.open`.
    """
    if directory.exists():
        return
    partial = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        store = make(partial)
        try:
            adopt(_replay_of(source), store)
        finally:
            store.close()
        partial.rename(directory)
        sync_folder(directory.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def begin_training(source: Source, config: RunConfig, algorithm: AnyAlgorithm, replay: SegmentBuffer) -> None:
    """Copy the source's networks and normalizers into a new algorithm and its buffer. Raises UserError."""
    begin_networks(source, config, algorithm)
    replay.begin_from(source.state.values["limiter"])
    _log.info(
        "the run begins with the networks of %s, after %d updates%s",
        *(source.checkpoint, source.state.updates, ", and with its replay" if config.init_replay else ""),
    )


def begin_networks(source: Source, config: RunConfig, algorithm: AnyAlgorithm) -> None:
    """Copy the source's networks and normalizers into a new algorithm. Raises UserError when they do not fit."""
    begin_from: Callable[[dict[str, Any]], None] | None = getattr(algorithm, "begin_from", None)
    if begin_from is None:
        raise UserError(
            f"init_from: algorithm {config.algorithm} cannot begin with other networks: it has no method begin_from "
            "(learner_service.algorithms.base.AnyAlgorithm)"
        )
    try:
        begin_from(source.state.tensors)
    except Exception as error:
        # A user's algorithm may raise any exception.
        raise UserError(
            f"init_from: the networks in {source.checkpoint} do not fit those of this run: "
            f"{' '.join(str(error).split())}; give the settings of that run, {_OTHERWISE}"
        ) from error


def _check_algorithm(source: Source, config: RunConfig) -> None:
    if (algorithm := source.state.values.get("algorithm")) != config.algorithm:
        raise _refusal(
            *(source, "algorithm", algorithm, config.algorithm),
            f"give --algorithm {algorithm} if it has this environment's actions",
        )


def _differences(there: EnvironmentSpec, here: EnvironmentSpec, with_bounds: bool) -> Iterator[str]:
    """The differences between two environments' spaces, each as "expected ..., got ...". The first difference is
    enough.
    """
    if there.leaves or here.leaves:
        ours, theirs = ({leaf.name: leaf for leaf in spec.leaves} for spec in (here, there))
        for name in dict.fromkeys((*ours, *theirs)):
            if ours.get(name) != theirs.get(name):
                yield f"observations: expected {_text(name, ours.get(name))}, got {_text(name, theirs.get(name))}"
    mine, other = (f"{spec.observations.dtype}{[*spec.observations.shape]}" for spec in (here, there))
    if (here.observations.shape, here.observations.dtype) != (there.observations.shape, there.observations.dtype):
        yield f"observations: expected {mine} ({here.observations_text}), got {other} ({there.observations_text})"
    if here.sizes != there.sizes and len(here.sizes) == len(there.sizes):
        part = next(index for index, sizes in enumerate(zip(here.sizes, there.sizes, strict=True)) if len({*sizes}) > 1)
        name = f"part {part + 1} of {len(here.sizes)}" if len(here.sizes) > 1 else "the head"
        yield f"actions: expected {here.sizes[part]} choices of {name}, got {there.sizes[part]}"
    if (here.sizes, here.actions.shape) != (there.sizes, there.actions.shape):
        yield f"actions: expected {here.actions_text}, got {there.actions_text}"
    if (mine_seen := _images(here)) != (other_seen := _images(there)):
        yield f"image_layout: expected images {mine_seen!r:.100}, got {other_seen!r:.100}"
    for name in ("frame_stack", "goal", "indicators", *(("actions",) if with_bounds else ())):
        mine, other = getattr(here, name), getattr(there, name)
        if mine != other:
            yield f"{name}: expected {mine!r:.100}, got {other!r:.100}"


def _images(spec: EnvironmentSpec) -> list[str]:
    """The order of the axes of each image."""
    if spec.leaves:
        return [spec.image_of(leaf).layout for leaf in spec.leaves if leaf.kind == "image"]
    return [] if spec.image is None else [spec.image.layout]


def _text(name: str, leaf: Leaf | None) -> str:
    if leaf is None:
        return f"no array {name!r}"
    of = f" of {leaf.categories} categories" if leaf.categories else ""
    return f"{name!r} as {leaf.kind}{of} {leaf.dtype}{[*leaf.shape]}{' for critics only' * leaf.critic}"


def _replay_of(source: Source) -> Path:
    if source.replay is None:
        raise UserError(f"init_replay: {source.checkpoint} is in no run, so it has no replay; leave --init-replay out")
    return source.replay


def _further(config: RunConfig, spec: EnvironmentSpec) -> list[str]:
    """The further columns of the run's replay in this environment."""
    own = own_columns(spec, config.further_columns(sampled=False))
    return [column.name for column in own]


def _refusal(source: Source, name: str, there: object, here: object, advice: str) -> UserError:
    return UserError(
        f"init_from: expected {name} {_shown(here)} as in this run, got {_shown(there)} in {source.checkpoint}; "
        f"{advice}, {_OTHERWISE}"
    )


def _shown(value: object) -> str:
    return value_text(tuple(value) if isinstance(value, list) else value)
