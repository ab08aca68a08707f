"""Reads the owner of a certificate: role, run, name and serial number.

The identity is a URI among the certificate's alternative names, in the form of a SPIFFE id:

    spiffe://actorq/run/RUN/role/ROLE           any name
    spiffe://actorq/run/RUN/role/ROLE/NAME      this name; a NAME that ends with "-" allows all names with this prefix
"""

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from actorq.errors import DeniedError
from actorq.transport.quota import address_of
from actorq.transport.security.roles import ROLES, ServiceRole

DEFAULT_RUN = "actorq"
# The characters that a SPIFFE id allows in a segment of its path.
RUN_PATTERN = "^[A-Za-z0-9._-]{1,63}$"
RUN_EXPECTED = "1 to 63 letters, digits, dots, hyphens and underscores"

_TRUST_DOMAIN = "spiffe://actorq/"
_PATH = re.compile(r"run/(?P<run>[A-Za-z0-9._-]+)/role/(?P<role>[a-z]+)(/(?P<name>[A-Za-z0-9._-]+))?", re.ASCII)
_LONGEST_URI = 2048
_DER_SEQUENCE, _DER_INTEGER, _DER_VERSION = 0x30, 0x02, 0xA0


@dataclass(frozen=True)
class Identity:
    """The owner of a certificate. An empty `name` allows any name."""

    role: ServiceRole
    run: str
    name: str = ""
    serial: int = 0

    def may_be_called(self, name: str) -> bool:
        """Whether the certificate allows this name."""
        return not self.name or name == self.name or (self.name.endswith("-") and name.startswith(self.name))


def identity_uri(role: str, run: str, name: str = "") -> str:
    """The URI for a certificate with this identity."""
    return f"{_TRUST_DOMAIN}run/{run}/role/{role}{f'/{name}' if name else ''}"


def parse_identity(uris: Sequence[str], serial: int = 0) -> Identity:
    """The identity in a certificate's URIs. Raises DeniedError unless there is exactly one."""
    ours = [uri for uri in uris if uri.startswith(_TRUST_DOMAIN)]
    expected = f"expected one URI {identity_uri('ROLE', 'RUN')} in the certificate"
    hint = "`actorq certificates init` makes certificates with roles"
    if len(ours) != 1:
        raise DeniedError(f"{expected}, got {len(ours)}; {hint}")
    found = _PATH.fullmatch(ours[0].removeprefix(_TRUST_DOMAIN)) if len(ours[0]) <= _LONGEST_URI else None
    if found is None or found["role"] not in ROLES:
        raise DeniedError(f"{expected} with a role of {', '.join(ROLES)}, got {ours[0][:200]!r}; {hint}")
    return Identity(cast(ServiceRole, found["role"]), found["run"], found["name"] or "", serial)


def identity_of(authentication: Mapping[str, Sequence[bytes]]) -> Identity | None:
    """The peer of a call with this `auth_context()`; None without TLS. Raises DeniedError if it has no identity."""
    certificates = authentication.get("x509_pem_cert")
    if not certificates:
        return None
    uris = [uri.decode("utf-8", "replace") for uri in authentication.get("peer_uri", ())]
    return parse_identity(uris, serial_number(certificates[0]))


def require_member(context: Any, name: str, role: str | None) -> None:
    """Raise DeniedError unless the certificate of the call's peer allows this actor's name and role.

    role: actor or evaluator; None if unknown. A call without TLS or without a network may have any role.
    """
    identity = None if context is None else identity_of(context.auth_context())
    if identity is None:
        return
    if role is not None and role != identity.role:
        raise DeniedError(f"the certificate is for role {identity.role}, got {role} {name!r}")
    if not identity.may_be_called(name):
        allowed = f"names that begin with {identity.name}" if identity.name.endswith("-") else identity.name
        raise DeniedError(f"actor_name: the certificate allows {allowed}, got {name!r}")


def owner_of(context: Any) -> str:
    """The caller: the certificate's serial number (0 without TLS), and the address without the port."""
    if context is None:
        return ""
    identity = identity_of(context.auth_context())
    return f"{identity.serial if identity else 0:x} at {address_of(context.peer())}"


def serial_number(pem: bytes) -> int:
    """The serial number of a certificate in PEM. Raises DeniedError when it cannot be read.

    The serial number is the first integer in a certificate. Services therefore need no package to parse certificates.
    """
    try:
        der = ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))
        at, _ = _der_content(der, 0, _DER_SEQUENCE)
        at, _ = _der_content(der, at, _DER_SEQUENCE)
        if der[at] == _DER_VERSION:
            at = _der_content(der, at, _DER_VERSION)[1]
        begin, end = _der_content(der, at, _DER_INTEGER)
    except (ValueError, IndexError):
        raise DeniedError("the certificate has no readable serial number") from None
    return int.from_bytes(der[begin:end], "big")


def _der_content(der: bytes, at: int, tag: int) -> tuple[int, int]:
    """Start and end of the content of the element at `at`. Raises ValueError for another tag."""
    if der[at] != tag:
        raise ValueError(f"expected DER tag {tag:#x}, got {der[at]:#x}")
    length, begin = der[at + 1], at + 2
    if length >= 0x80:
        octets = length & 0x7F
        length, begin = int.from_bytes(der[begin : begin + octets], "big"), begin + octets
    if begin + length > len(der):
        raise ValueError("the element is longer than the certificate")
    return begin, begin + length
