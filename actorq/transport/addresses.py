"""Parses and classifies addresses of services."""

import ipaddress

from actorq.errors import UserError


def split_address(flag: str, address: str, lowest_port: int = 0) -> tuple[str, int]:
    """Host (IPv6 without brackets) and port of "HOST:PORT". Raises UserError that names `flag`.

    lowest_port: 0 if the system may choose the port.
    """
    host, separator, port = address.rpartition(":")
    if not (separator and host and port.isdecimal() and port.isascii() and lowest_port <= int(port) < 65536):
        raise UserError(f"{flag}: expected HOST:PORT, such as 127.0.0.1:50051, got {address!r}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        # gRPC misreads ::1:5005: it finds no port in it, binds another address, and cannot connect.
        raise UserError(f"{flag}: expected an IPv6 address in brackets, such as [::1]:50051, got {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach the host. Of all names, only "localhost" counts."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
