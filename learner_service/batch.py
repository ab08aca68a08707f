"""Named columns for algorithms: NumPy arrays from replay and queue, later tensors on the device."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # The replay works without torch.
    from torch import Tensor


class Batch:
    """Columns by name, each an attribute: `batch.rewards`. The first dimension of all is the rows, or time.

    The replay returns B n-step transitions (see `replay.assemble`). The one-pass queue returns trajectories of T steps
    of N environments (see `RolloutQueue.next_rollout`). Both contain the run's further columns by name.
    """

    def __init__(self, **columns: Any) -> None:
        # The columns are the attributes themselves, because updates of small networks read many of them.
        self.__dict__ = columns

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"batch: no column {name}; the columns are {', '.join(self.__dict__)}")

    @property
    def columns(self) -> dict[str, Any]:
        """The columns by name."""
        return self.__dict__

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, rows: Any) -> "Batch":
        return self.map(lambda column: column[rows])

    def map(self, function: Callable[[Any], Any]) -> "Batch":
        """The batch with a function of each column."""
        return Batch(**{name: function(column) for name, column in self.columns.items()})

    def with_columns(self, **columns: Any) -> "Batch":
        """The batch with these columns, which replace columns of the same names."""
        return Batch(**{**self.columns, **columns})

    def without(self, *names: str) -> "Batch":
        """The batch without these columns."""
        return Batch(**{name: column for name, column in self.columns.items() if name not in names})

    def split(self, size: int) -> Iterator["Batch"]:
        """Views of `size` rows each, of a batch of tensors."""
        return _recombined(self, [column.split(size) for column in self.columns.values()])

    def shuffled(self, order: "Tensor", parts: int) -> Iterator["Batch"]:
        """The rows int64[B] of tensors, in `parts` batches of nearly equal sizes."""
        columns = (column.index_select(0, order).tensor_split(parts) for column in self.columns.values())
        return _recombined(self, columns)

    @staticmethod
    def joined(batches: Sequence["Batch"]) -> "Batch":
        """The rows of all batches of tensors."""
        if len(batches) == 1:
            return batches[0]
        import torch

        return Batch(**{name: torch.cat([each.columns[name] for each in batches]) for name in batches[0].columns})

    @property
    def nbytes(self) -> int:
        """Bytes of all columns together."""
        return sum(column.nbytes for column in self.columns.values())


def _recombined(batch: Batch, columns: Any) -> Iterator[Batch]:
    return (Batch(**dict(zip(batch.columns, parts, strict=True))) for parts in zip(*columns, strict=True))


def mapped(function: "Callable[[Tensor], Tensor]", given: "Tensor | Batch | None") -> "Tensor | Batch | None":
    """Apply a function to a tensor, or to each column of a batch. None stays None."""
    if given is None:
        return None
    return given.map(function) if isinstance(given, Batch) else function(given)
