"""Named columns."""

import copy

import numpy as np
import pytest
import torch

from learner_service.batch import Batch


def batch_of(rows: int) -> Batch:
    return Batch(rewards=torch.arange(float(rows)), actions=torch.arange(2 * rows).view(rows, 2))


def test_a_missing_column_is_an_error_that_lists_the_columns() -> None:
    with pytest.raises(AttributeError, match=r"returns.*rewards, actions"):
        _ = batch_of(3).returns
    assert "rewards" in batch_of(3)
    assert "returns" not in batch_of(3)


def test_minibatches_are_views_and_have_all_rows() -> None:
    batch = batch_of(6)
    parts = list(batch.split(2))
    assert [part.rewards.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
    parts[0].rewards[0] = 7
    assert batch.rewards[0] == 7
    joined = Batch.joined(list(batch.shuffled(torch.randperm(6), 4)))
    assert sorted(joined.rewards.tolist()) == sorted(batch.rewards.tolist())
    assert torch.equal(joined.actions[joined.rewards == 3], batch.actions[3:4])


def test_changed_columns_do_not_change_the_batch() -> None:
    batch = batch_of(2)
    assert batch.with_columns(rewards=torch.ones(2)).without("actions").columns.keys() == {"rewards"}
    assert batch.rewards.tolist() == [0, 1]
    assert torch.equal(copy.copy(batch).actions, batch.actions)


def test_its_size_is_that_of_all_columns() -> None:
    assert Batch(a=np.zeros((3, 2)), b=np.zeros(3, np.uint8)).nbytes == 51
