"""Where the learner computes."""

import pytest
import torch

from actorq.errors import UserError
from learner_service.training.device import allocator_for, choose_device


def test_auto_is_a_gpu_if_there_is_one() -> None:
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device("cpu") == torch.device("cpu")


def test_a_missing_gpu_is_refused() -> None:
    with pytest.raises(UserError, match=r"learner\.device .*cuda:99"):
        choose_device("cuda:99")


def test_on_the_cpu_batches_are_used_without_a_copy() -> None:
    array = allocator_for(torch.device("cpu"))((6, 4), "float32")
    tensor = torch.from_numpy(array)
    array[2] = 7.0
    assert tensor.shape == (6, 4)
    assert (tensor[2] == 7.0).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_for_a_gpu_batches_are_in_pinned_memory(dtype: str) -> None:
    array = allocator_for(torch.device("cuda"))((6, 4), dtype)
    assert torch.from_numpy(array).is_pinned()
    assert array.flags.c_contiguous
    assert array.dtype == dtype
