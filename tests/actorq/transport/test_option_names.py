"""gRPC ignores options that it does not know: a misspelt one shows only as a connection that ends after minutes."""

from pathlib import Path

import pytest
from grpc._cython import cygrpc

from actorq.transport.options import CLIENT_OPTIONS, ServerLimits, server_options


@pytest.mark.parametrize("name", sorted({name for name, _ in (*CLIENT_OPTIONS, *server_options(ServerLimits()))}))
def test_grpc_knows_the_option(name: str) -> None:
    # To the end of a string of its library.
    assert name.encode() + b"\0" in Path(cygrpc.__file__).read_bytes()


@pytest.mark.parametrize("options", [CLIENT_OPTIONS, server_options(ServerLimits())], ids=["client", "server"])
def test_a_silent_peer_is_gone_after_half_a_minute(options: list[tuple[str, int]]) -> None:
    """A stopped process still has a kernel that takes pings: the ping's own timeout counts, a minute by default."""
    values = dict(options)
    assert values["grpc.http2.ping_timeout_ms"] == values["grpc.keepalive_timeout_ms"]
    assert values["grpc.keepalive_time_ms"] + values["grpc.http2.ping_timeout_ms"] <= 30_000
