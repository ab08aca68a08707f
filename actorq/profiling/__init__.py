"""The folder through which the services' measurements exchange data and figures (JSON)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq import wire
from actorq.arithmetic import arithmetic
from actorq.config.parser import number
from actorq.config.run_config import RunConfig
from actorq.domain.policy import FP32, SCHEMES, Policy, PolicyGraph
from actorq.domain.signature import Signature
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import PolicySpan, Segment
from actorq.errors import UserError
from actorq.process import Sources, argument_parser
from actorq.v1 import policy_pb2

DEFAULT_SECONDS = 4.0
measuring_seconds = number(0.1, 10.0, "0.1 to 10 seconds")
"""The type of --seconds."""


@dataclass(frozen=True)
class Order:
    """A request for measurements by a service: the run, the folder, and the approximate seconds.

    is_brief: only the scheme of the actors and FP32 are measured, with the configured number of environments.
    """

    config: RunConfig
    folder: "Folder"
    seconds: float
    only_record: bool
    is_brief: bool

    @classmethod
    def parse(cls, program: str, description: str, arguments: Sequence[str] | None = None) -> "Order":
        """Parse the request from the arguments of a process. Raises UserError."""
        parser = argument_parser(program, description, (RunConfig,))
        parser.add_argument("--folder", type=Path, required=True, help="folder for the figures")
        parser.add_argument("--seconds", type=measuring_seconds, default=DEFAULT_SECONDS, help="time to measure")
        parser.add_argument("--record", action="store_true", help="only record transitions of random actions")
        parser.add_argument("--brief", action="store_true", help="measure only the run's own scheme and environments")
        namespace = parser.parse_args(arguments)
        config = Sources.read((RunConfig,), namespace).resolve(RunConfig)
        return cls(config, Folder(namespace.folder), namespace.seconds, namespace.record, namespace.brief)

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes to measure. All of them if the actors choose their scheme, or cannot use the run's."""
        own = self.config.scheme
        if not self.is_brief or own not in SCHEMES or own in arithmetic().inexact_schemes:
            return SCHEMES
        return tuple(scheme for scheme in SCHEMES if scheme in (FP32, own))


@dataclass(frozen=True)
class Folder:
    """Data of the measurements. Reading missing data raises UserError."""

    path: Path

    def write(self, name: str, figures: Mapping[str, Any]) -> None:
        """Write figures under this name."""
        (self.path / f"{name}.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")

    def read(self, name: str) -> dict[str, Any]:
        """Read the figures with this name."""
        try:
            return dict(json.loads((self.path / f"{name}.json").read_text(encoding="utf-8")))
        except OSError as error:
            reason = f"{self.path} has no {name}.json ({error.strerror})"
            raise UserError(f"--folder: {reason}: measure that first") from None

    def write_segments(self, spec: EnvironmentSpec, segments: Sequence[Segment]) -> None:
        """Write segments of equal length, without their episodes."""
        self.write("spec", spec.to_json())
        columns = {name: np.stack([each.columns[name] for each in segments]) for name in segments[0].columns}
        np.savez(self.path / "segments.npz", **columns)  # type: ignore[arg-type]

    def spec(self) -> EnvironmentSpec:
        """The spec of the environment."""
        return EnvironmentSpec.from_json(self.read("spec"))

    def segments(self) -> list[Segment]:
        """The recorded segments."""
        with np.load(self.path / "segments.npz") as file:
            columns = {name: file[name] for name in file.files}
        spans = (PolicySpan(0, 1, "fp32"),)
        return [
            Segment(index + 1, {name: column[index] for name, column in columns.items()}, spans)
            for index in range(len(columns["rewards"]))
        ]

    def write_graph(self, graph: PolicyGraph, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Write a policy's graph, and its parameters and calibration batches by name."""
        (self.path / "graph.onnx").write_bytes(graph.model)
        self.write("graph", {"signature": graph.signature.to_text()})
        np.savez(self.path / "tensors.npz", **tensors)  # type: ignore[arg-type]

    def graph(self) -> tuple[PolicyGraph, dict[str, NDArray[Any]]]:
        """The graph and tensors of `write_graph`."""
        written = self.read("graph")
        model = (self.path / "graph.onnx").read_bytes()
        with np.load(self.path / "tensors.npz") as file:
            tensors = {name: file[name] for name in file.files}
        return PolicyGraph(model, Signature.from_text(written["signature"])), tensors

    def write_policy(self, policy: Policy) -> None:
        """Write an emitted policy under its scheme."""
        path = self.path / f"{policy.descriptor.scheme}.onnx"
        path.write_bytes(policy.model)
        path.with_suffix(".pb").write_bytes(wire.descriptor_to_proto(policy.descriptor).SerializeToString())

    def policies(self) -> dict[str, Policy]:
        """The emitted policies by scheme."""
        policies = {}
        for scheme in SCHEMES:
            path = self.path / f"{scheme}.onnx"
            if path.exists():
                message = policy_pb2.PolicyDescriptor.FromString(path.with_suffix(".pb").read_bytes())
                policies[scheme] = Policy(wire.descriptor_from_proto(message), path.read_bytes())
        return policies
