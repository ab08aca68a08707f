"""Environments of a package that needs one that is missing."""

import no_such_package  # type: ignore[import-not-found]  # noqa: F401
