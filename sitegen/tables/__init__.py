"""Tables of the benchmark pages, by the names that pages call them by."""

from collections.abc import Callable

TABLES: dict[str, Callable[[], str]] = {}
