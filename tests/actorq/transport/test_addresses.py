"""Parsing of addresses, and who can reach them."""

import re

import pytest

from actorq.errors import UserError
from actorq.transport.addresses import is_loopback, split_address


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:50051", "127.0.0.1", 50051),
        ("localhost:0", "localhost", 0),
        ("[::1]:9090", "::1", 9090),
        ("[::]:1", "::", 1),
    ],
)
def test_an_address_has_a_host_and_a_port(address: str, host: str, port: int) -> None:
    assert split_address("--listen", address) == (host, port)


@pytest.mark.parametrize("address", ["", "9090", ":9090", "host:", "host:http", "host:65536", "host:-1", "host:²"])
def test_an_address_without_host_or_port_is_refused_under_the_name_of_its_flag(address: str) -> None:
    with pytest.raises(UserError, match=f"--metrics.*HOST:PORT.*{address}"):
        split_address("--metrics", address)


@pytest.mark.parametrize("address", ["::1:5005", ":::0", "[::1:5005", "localhost:1:2"])
def test_an_ipv6_address_needs_brackets_because_grpc_would_bind_something_else(address: str) -> None:
    with pytest.raises(UserError, match=f"--listen.*brackets.*{re.escape(address)}"):
        split_address("--listen", address)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost", "LocalHost"])
def test_loopback_is_reached_from_this_machine_only(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "learner", "localhost.example.org", ""])
def test_other_addresses_may_be_reached_from_other_machines(host: str) -> None:
    assert not is_loopback(host)
