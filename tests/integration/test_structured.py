"""A whole run on an image, a vector and a mask, with int8 actors; then its policy acts in the user's own process."""

from pathlib import Path

import numpy as np
import pytest

import actorq
from actorq.errors import InvalidInputError
from tests.integration.training_run import actorq as command

_CODED = "benchmarks.environments.coded:Parts-v0"


@pytest.mark.parametrize(("kind", "algorithm"), [("mask", "dqn"), ("image and vector", "ppo")])
def test_a_run_learns_from_all_arrays_and_its_policy_can_be_loaded(tmp_path: Path, kind: str, algorithm: str) -> None:
    run = tmp_path / "run"
    ended = command(
        *("train", "--run-directory", str(run), "--environment", _CODED, "--environment-args", f"kind={kind}"),
        *("--algorithm", algorithm, "--scheme", "int8", "--target-return", "18", "--max-seconds", "120"),
        "--no-energy.enabled",
        cwd=Path(__file__).parents[2],
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    policy = actorq.load_policy(run)
    names = {leaf.name for leaf in policy.environment.leaves}
    if kind == "mask":
        code = np.array([1, 0, 1, 0, 0], np.float32)
        for allowed in ([0, 1, 1, 0], [0, 0, 1, 1]):
            # With 0 as first digit, the best choice is the lowest allowed one.
            action = policy.predict({"vector": code, "mask": np.array(allowed, np.bool_)})
            assert allowed[int(action)]
        with pytest.raises(InvalidInputError, match="vector, mask"):
            policy.predict({"vector": code})
        with pytest.raises(InvalidInputError, match="mask"):
            policy.predict({"vector": code, "mask": np.ones(5, np.bool_)})
        assert names == {"vector", "action_mask"}
        return
    dark = np.repeat(np.array([[0, 255]], np.uint8), 4, axis=1)
    actions = [
        int(policy.predict({"vector": way, "picture": np.tile(picture, (8, 1))[..., None]}))
        for picture in (dark, dark[:, ::-1])
        for way in np.eye(3, dtype=np.float32)
    ]
    assert actions == [0, 1, 2, 1, 2, 0]
