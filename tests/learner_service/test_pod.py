"""A run on a cluster has one learner: a second pod of the StatefulSet refuses to start."""

import re
from pathlib import Path

import pytest

from actorq.errors import UserError
from actorq.process import EXIT_USER_ERROR
from learner_service.process import LearnerSettings
from tests.builders.service_process import service_process


@pytest.mark.parametrize("pod", ["", "learner-0", "my-learner-0", "learner", "1"])
def test_the_first_pod_may_train_and_so_may_a_learner_outside_a_cluster(pod: str) -> None:
    LearnerSettings(pod=pod).require_first_pod()


@pytest.mark.parametrize(("pod", "first"), [("learner-1", "learner-0"), ("my-learner-12", "my-learner-0")])
def test_a_later_pod_may_not_train(pod: str, first: str) -> None:
    with pytest.raises(UserError, match=f" {first} .* {pod}:.*kubectl"):
        LearnerSettings(pod=pod).require_first_pod()


def test_a_second_learner_ends_with_one_line_and_leaves_the_volume_alone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with service_process("learner", "--pod", "learner-1", "--run-directory", str(run)) as process:
        code, line = process.end()
    assert code == EXIT_USER_ERROR
    assert re.match("error: --pod: .*learner-0 .*learner-1", line)
    assert not run.exists()
