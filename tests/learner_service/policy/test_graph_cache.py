"""A run caches the graph of its policy. Later learners use it if it is whole and of the same policy."""

import base64
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from actorq.domain.policy import PolicyGraph
from actorq.statefiles.documents import read_document, write_document
from learner_service.networks import QNetwork
from learner_service.policy.graph_cache import cached_policy_graph, fingerprint
from learner_service.policy.policy_graph import example_inputs
from tests.learner_service.learner_parts import SPEC

pytestmark = pytest.mark.usefixtures("operators_parsed_once")

# As in another process: it builds the same network and uses the graph of its run.
NEXT_LEARNER = """
import sys
from pathlib import Path
from tests.learner_service.policy.test_graph_cache import Waves, cached
graph = cached(Path(sys.argv[1]), Waves())
modules = [name for name in ("onnxscript", "sympy", "torch._dynamo", "torch.onnx._internal.exporter._core")
           if name in sys.modules]
print(graph.digest.hex(), *modules)
"""


class Waves(nn.Module):
    """A user's network; `phase` is a number that no parameter shows."""

    def __init__(self, phase: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.last = nn.Linear(6, 2)
        self.phase = phase

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """float32[B, 4] -> float32[B, 2]."""
        values: torch.Tensor = self.last(torch.sin(self.first(observations) + self.phase))
        return values


class Cosines(Waves):
    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.last(torch.cos(self.first(observations) + self.phase))
        return values


class Shifted(Waves):
    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.last(torch.sin(self.first(observations) + torch.arange(6) / 10))
        return values


def cached(path: Path, policy: nn.Module) -> PolicyGraph:
    return cached_policy_graph(path, policy, SPEC, takes_noise=False, greedy=False)


def operators(graph: PolicyGraph) -> set[str]:
    return {node.op_type for node in onnx.load_from_string(graph.model).graph.node}


def mark(path: Path) -> bytes:
    """Put another model in the file of a cached graph, to detect its use. Returns the model."""
    document = read_document(path)
    model = onnx.load_from_string(base64.b64decode(document["model"]))
    model.doc_string = "mark"
    marked = model.SerializeToString()
    write_document(path, {**document, "model": base64.b64encode(marked).decode()})
    return marked


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "learner_service.policy.graph_cache"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policy_graph.json"


@pytest.fixture(scope="module")
def of_waves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PolicyGraph]:
    """The file that a run keeps of Waves, and the graph in it."""
    file = tmp_path_factory.mktemp("cache") / "policy_graph.json"
    return file, cached(file, Waves())


@pytest.fixture
def graph(of_waves: tuple[Path, PolicyGraph], path: Path) -> PolicyGraph:
    """The graph of Waves, which the run has kept."""
    shutil.copy(of_waves[0], path)
    return of_waves[1]


def test_the_next_learner_reads_the_graph_without_the_exporter(path: Path, graph: PolicyGraph) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(
        [sys.executable, "-c", NEXT_LEARNER, path], env=environment, capture_output=True, text=True, timeout=60
    )
    assert said.stdout.split() == [graph.digest.hex()], said.stderr


def test_a_trained_policy_uses_the_same_graph(path: Path, graph: PolicyGraph) -> None:
    policy = Waves()
    with torch.no_grad():
        policy.first.weight.add_(1.0)
    assert cached(path, policy) == graph
    assert mark(path) == cached(path, policy).model


@pytest.mark.parametrize(
    ("other", "differs"),
    [(Cosines(), {"Cos"}), (Waves(0.5), {"Add"}), (Shifted(), {"Add"})],
    ids=["another function", "another number", "another constant"],
)
def test_a_changed_policy_does_not_use_the_old_graph(
    path: Path, graph: PolicyGraph, other: nn.Module, differs: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="learner_service.policy.graph_cache")
    assert not operators(graph) & differs
    mark(path)
    exported = cached(path, other)
    assert operators(exported) >= differs
    assert [line for line in logged(caplog) if re.match(r"policy_graph\.json .*another network", line)]
    # The new one is kept in its place.
    assert cached(path, other) == exported


@pytest.mark.usefixtures("graph")
def test_another_environment_does_not_use_the_old_graph(path: Path) -> None:
    marked = mark(path)
    other = replace(SPEC, environment_id="Other-v0")
    assert cached_policy_graph(path, Waves(), other, takes_noise=False, greedy=False).model != marked


def test_a_damaged_file_is_exported_again_and_replaced(
    path: Path, graph: PolicyGraph, caplog: pytest.LogCaptureFixture
) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert cached(path, Waves()) == graph
    (line,) = logged(caplog)
    assert re.match(r"policy_graph\.json .*damaged", line)
    assert mark(path) == cached(path, Waves()).model


def test_a_policy_graph_that_cannot_be_written_does_not_stop_training(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.mkdir()
    assert operators(cached(path, Waves())) >= {"Sin"}
    assert "policy_graph.json" in logged(caplog)[-1]


def test_the_fingerprint_of_a_network_does_not_depend_on_its_weights() -> None:
    one, other, wider = (QNetwork(SPEC, sizes, dueling=True).eval() for sizes in ((8,), (8,), (9,)))
    examples = example_inputs(SPEC, takes_noise=False)
    assert fingerprint(one, examples) == fingerprint(other, examples) != fingerprint(wider, examples)
