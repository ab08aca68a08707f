"""Videos of evaluations, read back."""

import threading
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from actor_service.environments import make_environments
from actor_service.policies.policy import OnnxPolicy
from actor_service.roles.evaluation import EvaluationEpisodes
from actor_service.roles.video import Video
from actorq.domain.spaces import ArraySpec
from actorq.errors import UserError
from tests.actor_service.actor_policies import constant_policy


def pictures(path: Path) -> list[NDArray[Any]]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_a_video_has_the_added_pictures(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    levels = (0, 120, 240)
    with Video(path, 12.5) as video:
        for level in levels:
            video.add(np.full((33, 47, 3), level, np.uint8))
        assert not path.exists()
    read = pictures(path)
    assert [picture.shape for picture in read] == [(34, 48, 3)] * 3
    np.testing.assert_allclose([picture.mean() for picture in read], levels, atol=4)
    with av.open(str(path)) as container:
        assert container.streams.video[0].average_rate == 12.5
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_video_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    path.write_text("the one before")

    def break_off() -> None:
        with Video(path, 10) as video:
            video.add(np.zeros((32, 32, 3), np.uint8))
            raise RuntimeError("the end")

    with pytest.raises(RuntimeError, match="the end"):
        break_off()
    assert path.read_text() == "the one before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_video_that_cannot_be_written_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--record: .*film\.mp4 .*No such file or directory"):
        Video(tmp_path / "missing" / "film.mp4", 10)


def test_a_folder_is_refused_as_the_file_of_a_video(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"--record: {tmp_path} .*folder"):
        Video(tmp_path, 10)


def test_a_video_that_cannot_be_renamed_to_its_file_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"

    def film() -> None:
        with Video(path, 10) as video:
            video.add(np.zeros((32, 32, 3), np.uint8))
            path.mkdir()

    with pytest.raises(IsADirectoryError):
        film()
    assert list(tmp_path.iterdir()) == [path]


def test_an_evaluation_is_filmed_from_its_first_observation_to_its_last(tmp_path: Path) -> None:
    environments = make_environments("environment_doubles:Counting-v0", 1, rendered=True)
    evaluator = EvaluationEpisodes(environments, 2)
    seen: list[int] = []
    policy = OnnxPolicy(constant_policy([0.0] * 3, 2), ArraySpec((2,), "float32"), 1)
    evaluator.run(policy, 0, 1, threading.Event(), on_picture=lambda picture: seen.append(int(picture[0, 0, 0])))
    # Two episodes of twelve steps, each from its first to its final observation.
    assert seen == [*range(13), *range(13)]
    assert evaluator.environments.steps_per_second == 10
    evaluator.close()


@pytest.mark.parametrize(
    ("picture", "fact"),
    [
        (np.zeros((5, 7), np.uint8), r"uint8\[5, 7\]"),
        (np.zeros((5, 7, 4), np.uint8), r"uint8\[5, 7, 4\]"),
        (np.zeros((5, 7, 3)), r"float64\[5, 7, 3\]"),
        (None, r"object\[\]"),
        (RuntimeError("no display"), "RuntimeError: no display"),
    ],
    ids=["gray", "with transparency", "float", "none", "error"],
)
def test_an_unusable_picture_of_an_environment_is_refused_with_its_shape(picture: object, fact: str) -> None:
    def render(self: object) -> object:
        if isinstance(picture, Exception):
            raise picture
        return picture

    with (
        mock.patch("environment_doubles.Counting.render", render),
        closing(make_environments("environment_doubles:Counting-v0", 1, rendered=True)) as environments,
    ):
        policy = OnnxPolicy(constant_policy([0.0] * 3, 2), ArraySpec((2,), "float32"), 1)
        with pytest.raises(UserError, match=r"uint8\[height, width, 3\], .*" + fact):
            EvaluationEpisodes(environments, 1).run(policy, 0, 1, threading.Event(), on_picture=lambda picture: None)
