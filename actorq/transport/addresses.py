"""Addresses to listen on, as people write them."""

import ipaddress

from actorq.errors import UserError


def split_listen_address(flag: str, address: str) -> tuple[str, int]:
    """Host (IPv6 without its brackets) and port of "HOST:PORT"; raises UserError that names `flag`."""
    host, separator, port = address.rpartition(":")
    if not (separator and host and port.isdecimal() and port.isascii() and int(port) < 65536):
        raise UserError(f"{flag}: expected HOST:PORT, such as 127.0.0.1:50051, got {address!r}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        # gRPC takes ::1:5005 for an address without a port: what is checked here would not be what is bound there.
        raise UserError(f"{flag}: expected an IPv6 address in brackets, such as [::1]:50051, got {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach what listens there. Of names only "localhost" is known to be."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
