"""Checks whether peers will accept a certificate: the process makes a TLS handshake with itself, without a network."""

import ssl
from pathlib import Path
from typing import Any

# OpenSSL's error for a certificate that is only for servers. This module accepts such certificates.
_INVALID_PURPOSE = 26
# Each end sends at most twice.
_TURNS = 4


def shake_hands(authority: Path, certificate: Path, key: Path) -> tuple[str, ...] | None:
    """Present the certificate to an end that trusts only `authority`. All files are PEM.

    Returns the URIs among the certificate's alternative names; None for a certificate that is only for servers.

    Raises ssl.SSLCertVerificationError when the certificate is expired, not yet valid, or not signed by the authority.
    Raises another ssl.SSLError when a file has wrong content, and OSError when a file cannot be read.
    """
    server = _context(ssl.PROTOCOL_TLS_SERVER, authority, certificate, key)
    server.verify_mode = ssl.CERT_REQUIRED
    # As in gRPC, an intermediate authority may be trusted without its root.
    server.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client = _context(ssl.PROTOCOL_TLS_CLIENT, authority, certificate, key)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    taker = server.wrap_bio(up, down, server_side=True)
    ends = [client.wrap_bio(down, up), taker]
    for _ in range(_TURNS):
        ends = [end for end in ends if not _ended(end)]
    shown = taker.getpeercert() or {}
    names: Any = shown.get("subjectAltName", ())
    return tuple(name for kind, name in names if kind == "URI") if shown else None


def _context(protocol: "ssl._SSLMethod", authority: Path, certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.load_verify_locations(cafile=authority)
    # The empty password prevents OpenSSL from prompting on the terminal.
    context.load_cert_chain(certificate, key, password="")
    return context


def _ended(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    except ssl.SSLCertVerificationError as error:
        if error.verify_code != _INVALID_PURPOSE:
            raise
    return True
