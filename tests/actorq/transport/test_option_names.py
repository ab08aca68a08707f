"""gRPC ignores unknown options. A misspelled option would show only as a connection that ends after minutes."""

from pathlib import Path

import pytest
from grpc._cython import cygrpc

from actorq.transport.options import CLIENT_OPTIONS, ServerLimits, server_options


@pytest.mark.parametrize("name", sorted({name for name, _ in (*CLIENT_OPTIONS, *server_options(ServerLimits()))}))
def test_grpc_knows_the_option(name: str) -> None:
    # The option's name must end a string in gRPC's library.
    assert name.encode() + b"\0" in Path(cygrpc.__file__).read_bytes()


@pytest.mark.parametrize("options", [CLIENT_OPTIONS, server_options(ServerLimits())], ids=["client", "server"])
def test_a_silent_peer_is_gone_after_half_a_minute(options: list[tuple[str, int]]) -> None:
    """The kernel of a stopped process still acknowledges pings. Only the ping timeout ends the connection."""
    values = dict(options)
    assert values["grpc.http2.ping_timeout_ms"] == values["grpc.keepalive_timeout_ms"]
    assert values["grpc.keepalive_time_ms"] + values["grpc.http2.ping_timeout_ms"] <= 30_000
