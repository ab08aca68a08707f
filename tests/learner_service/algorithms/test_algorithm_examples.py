"""The examples of docs/tutorials/algorithm.md, run as they stand there."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from actorq.config.run_config import RunConfig
from learner_service.algorithms import make_algorithm
from learner_service.policy.policy_graph import export_policy_graph
from tests.learner_service.learner_parts import SPEC, ones, random_batch

PAGE = Path(__file__).parents[3] / "docs" / "tutorials" / "algorithm.md"
_EXAMPLE = re.compile(r"`(my_\w+)\.py`[^`]*```python\n(.*?)```", re.DOTALL)


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The examples' files, where the command would be given."""
    examples = dict(_EXAMPLE.findall(PAGE.read_text("utf-8")))
    assert set(examples) == {"my_networks", "my_algorithms"}
    for name, code in examples.items():
        (tmp_path / f"{name}.py").write_text(code, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in examples:
        sys.modules.pop(name, None)


def test_the_network_of_the_documentation_is_trained_and_exported() -> None:
    assert "--network my_networks:residual" in PAGE.read_text("utf-8")
    algorithm = make_algorithm(RunConfig(network="my_networks:residual"), SPEC)
    batch = random_batch(np.random.default_rng(0), 8 * algorithm.batch_size)
    first = algorithm.update(batch, ones(8 * algorithm.batch_size)).loss
    for _ in range(10):
        last = algorithm.update(batch, ones(8 * algorithm.batch_size)).loss
    assert last < first
    inputs = {
        tensor.name for tensor in onnx.load_from_string(export_policy_graph(algorithm.policy, SPEC).model).graph.input
    }
    assert {"torso.2.layers.0.weight", "torso.2.layers.2.weight"} < inputs


def test_the_algorithm_of_the_documentation_learns_and_resumes() -> None:
    assert "--algorithm my_algorithms:SoftQLearning" in PAGE.read_text("utf-8")
    config = RunConfig(
        algorithm="my_algorithms:SoftQLearning",
        algorithm_args={"learning_rate": "3e-3", "hidden_sizes": [32, 16], "batch_size": 64},
    )
    algorithm = make_algorithm(config, SPEC)
    assert {(32, 4), (16, 32)} < {tuple(parameter.shape) for parameter in algorithm.policy.parameters()}
    rows = 8 * algorithm.batch_size
    batch = random_batch(np.random.default_rng(0), rows)
    # Rewards that depend on the action only.
    batch.bootstrap_discounts[:] = 0.0
    batch.returns[:] = batch.actions
    losses = [algorithm.update(batch, ones(rows)) for _ in range(60)]
    assert losses[-1].loss < 0.2 * losses[0].loss
    assert losses[0].priorities.shape == (rows,)
    assert losses[-1].figures["largest_value"] == pytest.approx(1.0, abs=0.1)
    resumed = make_algorithm(config.model_copy(update={"seed": 9}), SPEC)
    resumed.load_state(algorithm.state())
    for name, value in algorithm.state().items():
        np.testing.assert_array_equal(resumed.state()[name], value)
    export_policy_graph(resumed.policy, SPEC)
