"""Stored data from the command line and from Python: import, show, train, resume and export."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

import actorq as library
from actorq.errors import UserError
from tests.integration.training_run import TrainingRun, actorq

# Random returns of Pendulum are far below this target.
_NEVER = ("--target-return", "0", "--no-energy.enabled", "--evaluation.episodes", "1")
SMALL = ("--scheme", "fp32", "--learner.torch-threads", "1", *_NEVER)

SPARSE = ("--sparsity.actor", "0.9", "--sparsity.critic", "0.9", "--sparsity.period-updates", "100")
RLX2 = ("--sparsity.method", "rlx2", *SPARSE)


def arrays(steps: int = 400, seed: int = 0) -> dict[str, np.ndarray]:
    """Episodes of random observations of Pendulum."""
    rng = np.random.default_rng(seed)
    angles = rng.uniform(-np.pi, np.pi, steps + 1)
    observations = np.stack((np.cos(angles), np.sin(angles), rng.uniform(-8, 8, steps + 1)), 1).astype(np.float32)
    return {
        "observations": observations[:-1],
        "next_observations": observations[1:],
        "actions": rng.uniform(-2, 2, (steps, 1)).astype(np.float32),
        "rewards": rng.uniform(-16, 0, steps).astype(np.float32),
        "terminations": np.zeros(steps, np.bool_),
        "truncations": np.arange(1, steps + 1) % 200 == 0,
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a data set "pendulum"."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    np.savez(tmp_path / "pendulum.npz", allow_pickle=False, **arrays())
    done = actorq("dataset", "import", "pendulum.npz", "--environment", "Pendulum-v1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "400 in 2 episodes" in done.stdout
    return tmp_path


@pytest.mark.timeout(240)
def test_a_data_set_is_shown_and_exported_in_every_form(folder: Path) -> None:
    shown = json.loads(actorq("dataset", "show", "pendulum", "--json", cwd=folder).stdout)
    assert (shown["environment"], shown["transitions"], shown["episodes"]) == ("Pendulum-v1", 400, 2)
    for target in ("minari:pendulum/copy-v0", "copy.hdf5", "copy.npz"):
        done = actorq("dataset", "export", "pendulum", target, cwd=folder)
        assert done.returncode == 0, done.stderr
        again = actorq("dataset", "import", target, "--environment", "Pendulum-v1", "--name", "again", cwd=folder)
        assert again.returncode == 0, again.stderr
        assert json.loads(actorq("dataset", "show", "again", "--json", cwd=folder).stdout)["digest"] == shown["digest"]
        shutil.rmtree(folder / "datasets" / "again")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("further", "said", "share_of_flops"),
    [
        ((), "", 1.0),
        (RLX2, "targets have 3 steps from update ", 0.1),
        (("--learner.quantization-aware-after", "0.5", "--scheme", "int8"), "quantization-aware from update ", 1.0),
    ],
    ids=["dense", "rlx2", "quantization-aware"],
)
def test_a_run_without_actors_ends_after_its_updates(
    further: tuple[str, ...], said: str, share_of_flops: float, folder: Path
) -> None:
    flags = ("Pendulum-v1", "--algorithm", "td3bc", "--dataset", "pendulum", "--offline", "--max-updates", "2000")
    small = ("--td3bc.hidden-sizes", "16,16", "--td3bc.batch-size", "32", *SMALL)
    done = actorq("train", *flags, *small, *further, "--run-directory", "run", cwd=folder)
    assert done.returncode == 3, done.stderr
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert (summary["updates"], summary["environment_steps"]) == (2000, 0)
    assert summary["evaluations"]
    assert summary["flops"]["update"]["ratio"] == pytest.approx(share_of_flops, abs=0.01)
    assert said in (folder / "run" / "logs" / "learner.log").read_text()
    (events,) = (folder / "run" / "events").iterdir()
    steps = {event.step for event in EventFileLoader(str(events)).Load() if event.summary.value}
    assert (min(steps), max(steps)) == (0, 2000)
    logs = {path.name for path in (folder / "run" / "logs").iterdir()}
    assert "evaluator.log" in logs
    assert not any(name.startswith("actor-") for name in logs)
    over = actorq("train", "--resume", "--run-directory", "run", cwd=folder)
    assert over.returncode == 2
    assert "the budget of 2,000 updates is used up" in over.stderr


@pytest.mark.timeout(240)
def test_a_run_with_a_data_set_resumes_with_it_and_exports_its_transitions(folder: Path) -> None:
    np.savez(folder / "other.npz", allow_pickle=False, **arrays(seed=1))
    assert actorq("dataset", "import", "other.npz", "--environment", "Pendulum-v1", cwd=folder).returncode == 0
    given = ("--environment", "Pendulum-v1", "--algorithm", "sac", "--actors", "1", *SMALL)
    small = ("--sac.hidden-sizes", "16,16", "--sac.batch-size", "32", "--max-environment-steps", "10000000")
    run = TrainingRun.start(folder / "run", *given, *small, "--dataset", str(folder / "datasets" / "pendulum"))
    run.until(lambda status: status.updates > 50 and status.environment_steps > 300)
    run.signal(signal.SIGTERM)
    assert run.finish()[0] == 143
    other = str(folder / "datasets" / "other")
    refused = actorq("train", "--resume", "--run-directory", str(folder / "run"), "--dataset", other)
    assert refused.returncode == 2
    assert "dataset: expected a data set with digest" in refused.stderr
    resumed = TrainingRun.start(folder / "run", "--resume")
    resumed.until(lambda status: status.updates > 200)
    resumed.signal(signal.SIGTERM)
    assert resumed.finish()[0] == 143
    exported = actorq("dataset", "export", "run", "run.npz", cwd=folder)
    assert exported.returncode == 0, exported.stderr
    with np.load(folder / "run.npz") as found:
        assert len(found["rewards"]) > 300
        assert found["policy_versions"].max() > 0
    again = actorq("dataset", "import", "run", "--name", "of-run", cwd=folder)
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (("Pendulum-v1", "--dataset", "nothing"), "expected the folder of a data set"),
        (("CartPole-v1", "--dataset", "pendulum"), "expected data of CartPole-v1, got data of Pendulum-v1"),
        (("Pendulum-v1", "--offline"), "offline needs dataset"),
        (("Pendulum-v1", "--algorithm", "ppo", "--dataset", "pendulum", "--offline"), "ppo, which is on-policy"),
        (("Pendulum-v1", "--algorithm", "sac", "--dataset", "pendulum", "--dataset.share", "1e-9"), "dataset.share"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_settings_are_refused_before_any_service_starts(flags: tuple[str, ...], fact: str, folder: Path) -> None:
    result = actorq("train", *flags, "--run-directory", "run", cwd=folder)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert fact in result.stderr
    assert not (folder / "run").exists()


@pytest.mark.timeout(240)
def test_python_imports_shows_exports_and_trains_from_stored_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("pendulum.npz", allow_pickle=False, **arrays())
    data = library.import_dataset("pendulum.npz", "Pendulum-v1", environment_args={"g": 9.8})
    assert (data.environment, data.transitions, data.episodes, data.terminated) == ("Pendulum-v1", 400, 2, 0)
    assert data.lowest_return <= data.mean_return <= data.highest_return
    assert library.show_dataset("pendulum") == replace(data, directory=tmp_path / "datasets" / "pendulum")
    assert library.export_dataset(data, "copy.npz") == library.DatasetExport("copy.npz", 2, 400, 0, 0)
    with pytest.raises(UserError, match="exists; give another name, or remove the folder"):
        library.import_dataset("copy.npz", "Pendulum-v1", name="pendulum")
    with pytest.raises(UserError, match="does not name its environment; give environment ID"):
        library.import_dataset("copy.npz")
    with pytest.raises(UserError, match="environment_args: expected no settings of the environment"):
        library.import_dataset(data.directory, name="again", environment_args={"g": 9.8})
    run = library.train(
        "Pendulum-v1",
        "iql",
        dataset=data,
        offline=True,
        max_updates=1000,
        iql={"hidden_sizes": (16, 16), "batch_size": 32},
        scheme="fp32",
        target_return=0,
        energy={"enabled": False},
        evaluation={"episodes": 1},
        progress=False,
    )
    result = run.wait()
    status = run.status()
    assert status is not None
    assert status.updates == 1000
    (axes,) = run.plot().figure.axes
    assert axes.get_xlabel() == "updates"
    assert np.max(axes.lines[0].get_xdata()) == 1000
    assert result.mean_return is not None
