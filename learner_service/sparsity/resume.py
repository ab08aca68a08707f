"""Checks that a resumed run keeps its sparsity settings."""

from collections.abc import Mapping
from typing import Any

from actorq.config.run_config import RunConfig
from actorq.config.sparsity import SparsityConfig
from actorq.errors import UserError


def topology_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that decide the masks, as JSON values. Others may change when a run is resumed."""
    return _of(config.sparsity)


def check_same_topology(config: RunConfig, checkpoint: Mapping[str, Any]) -> None:
    """Raise UserError when a checkpoint's networks have another sparsity than `config`.

    checkpoint: its values. A checkpoint without sparsity settings has dense networks.
    """
    saved = checkpoint.get("sparsity", _of(SparsityConfig()))
    configured = topology_settings(config)
    differing = [name for name in ("method", *configured) if saved.get(name) != configured.get(name)]
    if not differing:
        return
    name = differing[0]
    if saved.get(name) is None or configured.get(name) is None:
        name = "method"
    raise UserError(
        f"the run's checkpoint has sparsity.{name} {saved[name]}, but the configuration has {configured[name]}; resume "
        f"with --sparsity.{name} {saved[name]}, or start a new run in another --run-directory"
    )


def _of(sparsity: SparsityConfig) -> dict[str, Any]:
    if sparsity.method == "dense":
        return {"method": "dense"}
    return {
        "method": sparsity.method,
        "actor": sparsity.actor,
        "critic": sparsity.critic,
        "structured": sparsity.structured,
    }
