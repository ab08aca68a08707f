"""Parses and classifies addresses to listen on."""

import ipaddress

from actorq.errors import UserError


def split_listen_address(flag: str, address: str) -> tuple[str, int]:
    """Host (IPv6 without brackets) and port of "HOST:PORT". Raises UserError that names `flag`."""
    host, separator, port = address.rpartition(":")
    if not (separator and host and port.isdecimal() and port.isascii() and int(port) < 65536):
        raise UserError(f"{flag}: expected HOST:PORT, such as 127.0.0.1:50051, got {address!r}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        # gRPC would read ::1:5005 as an address without a port, and so bind another address than the checked one.
        raise UserError(f"{flag}: expected an IPv6 address in brackets, such as [::1]:50051, got {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach the host. "localhost" is the only name that counts."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
