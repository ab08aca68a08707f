"""Checks that a resumed run keeps its sparsity settings."""

from collections.abc import Mapping
from typing import Any

from actorq.config.run_config import RunConfig
from actorq.config.sparsity import SparsityConfig
from actorq.errors import UserError


def check_same_topology(config: RunConfig, checkpoint: Mapping[str, Any]) -> None:
    """Raise UserError when a checkpoint's networks have another sparsity than `config`.

    checkpoint: its values. A setting that it lacks had its default; without any, the networks are dense.
    """
    saved = SparsityConfig().model_dump() | checkpoint.get("sparsity", {})
    for name, configured in config.sparsity.topology.items():
        if (had := saved[name]) != configured:
            raise UserError(
                f"the run's checkpoint has sparsity.{name} {had}, but the configuration has {configured}; resume with "
                f"--sparsity.{name} {had}, or start a new run in another --run-directory"
            )
