"""gRPC ignores options that it does not know: a misspelt one shows only as a connection that ends after minutes."""

from pathlib import Path

import pytest
from grpc._cython import cygrpc

from actorq.transport.options import CLIENT_OPTIONS, SERVER_OPTIONS


@pytest.mark.parametrize("name", sorted({name for name, _ in (*CLIENT_OPTIONS, *SERVER_OPTIONS)}))
def test_grpc_knows_the_option(name: str) -> None:
    # To the end of a string of its library.
    assert name.encode() + b"\0" in Path(cygrpc.__file__).read_bytes()
