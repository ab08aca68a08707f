"""Whether peers will accept a certificate, tried out without a network: the process shakes hands with itself."""

import ssl
from pathlib import Path
from typing import Any

# A certificate that is only for servers. That is for its owner to know, and all that is wrong with it here.
_INVALID_PURPOSE = 26
# Each end speaks twice at most.
_TURNS = 4


def shake_hands(authority: Path, certificate: Path, key: Path) -> tuple[str, ...] | None:
    """Show the certificate to an end that trusts only `authority`; all are PEM files.

    Returns the URIs among the certificate's alternative names; None for a certificate that is for servers only.

    Raises ssl.SSLCertVerificationError when it has expired, is not valid yet, or is not of that authority, another
    ssl.SSLError when a file does not hold what it should, and OSError when one cannot be read.
    """
    server = _context(ssl.PROTOCOL_TLS_SERVER, authority, certificate, key)
    server.verify_mode = ssl.CERT_REQUIRED
    # As gRPC does: an authority need not be the root of its own.
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
    # With an empty password it does not ask the terminal for one.
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
