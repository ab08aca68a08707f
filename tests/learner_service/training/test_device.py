"""Where the learner computes."""

import numpy as np
import pytest
import torch

from actorq.errors import UserError
from learner_service.replay import Returns, WindowBatch
from learner_service.training.device import batches_for, choose_device
from tests.learner_service.learner_parts import SPEC

ONE_STEP = Returns(1, 0.9)


def test_auto_is_a_gpu_where_there_is_one() -> None:
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device("cpu") == torch.device("cpu")


def test_a_missing_gpu_is_refused() -> None:
    with pytest.raises(UserError, match=r"learner\.device .*cuda:99"):
        choose_device("cuda:99")


def test_on_the_cpu_batches_are_computed_on_as_they_are() -> None:
    batch = batches_for(torch.device("cpu"), SPEC, ONE_STEP)(6)
    tensor = torch.from_numpy(batch.observations)
    batch.observations[2] = 7.0
    assert tensor.shape == (6, 4)
    assert (tensor[2] == 7.0).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_for_a_gpu_batches_are_in_pinned_memory() -> None:
    batch = batches_for(torch.device("cuda"), SPEC, Returns(3, 0.9, windows=True))(6)
    assert isinstance(batch, WindowBatch)
    for column in vars(batch).values():
        assert torch.from_numpy(column).is_pinned()
        assert column.flags.c_contiguous
    assert batch.actions.dtype == np.int64
