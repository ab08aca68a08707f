"""The first cells of a new notebook, in a real kernel."""

import signal
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

CLASS = """
from gymnasium.envs.classic_control import CartPoleEnv

class HeavyCartPole(CartPoleEnv):
    def __init__(self):
        super().__init__()
        self.gravity = 12.0
"""
TRAIN = """
import actorq
limit = {"max_episode_steps": 500}
run = actorq.train(HeavyCartPole, like="CartPole-v1", target_return=475, environment_args=limit)
result = run.wait()
policy = actorq.load_policy(run.export("policy.onnx"))
print(result.solved, policy.predict([0.0, 0.0, 0.0, 0.0]))
run.plot()
"""


def _execute(folder: Path, *cells: str) -> Any:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=80, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def test_a_class_of_the_cell_above_is_trained_plotted_exported_and_loaded(tmp_path: Path) -> None:
    assert len(TRAIN.strip().splitlines()) <= 8
    outputs = _execute(tmp_path, CLASS, TRAIN).cells[1].outputs
    shown = [output.data for output in outputs if output.output_type == "display_data"]
    assert len(shown) == 1
    # One output, which was replaced during the run.
    assert "solved" in shown[0]["text/html"]
    assert "solved" in shown[0]["text/plain"]
    (printed,) = [output.text for output in outputs if output.output_type == "stream" and output.name == "stdout"]
    assert printed in ("True 0\n", "True 1\n")
    (picture,) = [output.data for output in outputs if output.output_type == "execute_result"]
    assert picture["image/png"]


def test_a_mistake_is_an_error_of_the_cell(tmp_path: Path) -> None:
    with pytest.raises(CellExecutionError, match=r"UserError.*sede"):
        _execute(tmp_path, "import actorq", "actorq.train('CartPole-v1', sede=3)")


def test_a_killed_kernel_leaves_no_process(tmp_path: Path) -> None:
    cell = TRAIN.replace("475", "501").splitlines()[1:4]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(each) for each in (CLASS, "\n".join(cell), "next(iter(run))")]
    )
    client = NotebookClient(notebook, timeout=80, resources={"metadata": {"path": str(tmp_path)}})
    with client.setup_kernel():
        for index, each in enumerate(notebook.cells):
            client.execute_cell(each, index)
        kernel = psutil.Process(client.km.provisioner.pid)
        children = kernel.children(recursive=True)
        assert len(children) >= 3
        kernel.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
