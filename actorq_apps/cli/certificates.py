"""`actorq certificates`: certificates for mutual TLS during development."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field

from actorq.config.messages.expected import Expected
from actorq.config.numbers import Whole
from actorq.config.settings import Settings
from actorq.process import Sources, argument_parser
from actorq.transport.security.authority import write_certificates
from actorq.transport.security.identity import DEFAULT_RUN, RUN_EXPECTED, RUN_PATTERN
from actorq.transport.security.roles import ROLES

_PROGRAM = "actorq certificates"
_DESCRIPTION = """Create a certificate authority and certificates signed by it. DIR gets one folder for each role, such
as learner, actor and operator, with ca.crt, tls.crt and tls.key. The authority's key is discarded, so no certificates
can be added. Create new ones in another folder before they expire."""


class CertificatesSettings(Settings):
    """The names and the validity of the certificates."""

    names: tuple[str, ...] = Field(
        (), description="additional DNS names and IP addresses of the services, valid in every certificate"
    )
    namespace: Annotated[
        str,
        Field(pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"),
        Expected("at most 63 lower-case letters, digits and inner hyphens"),
    ] = Field("actorq", description="namespace of the cluster in which the services have DNS names")
    run: Annotated[str, Field(pattern=RUN_PATTERN), Expected(RUN_EXPECTED)] = Field(
        DEFAULT_RUN, description="name of the certificates' run; services get it as --transport.run"
    )
    days: Annotated[Whole, Field(ge=1, le=3650)] = Field(365, description="days of validity")


def run(arguments: Sequence[str]) -> int:
    """Create certificates and print how to use them."""
    parser = argument_parser(_PROGRAM, _DESCRIPTION, (CertificatesSettings,))
    parser.usage = f"{_PROGRAM} init DIR [flags]"
    parser.add_argument("action", choices=("init",), metavar="init", help="make new certificates")
    parser.add_argument("directory", type=Path, metavar="DIR", help="folder to create; it must be absent or empty")
    namespace = parser.parse_args(arguments)
    how = Sources.read((CertificatesSettings,), namespace).resolve(CertificatesSettings)
    directory: Path = namespace.directory
    write_certificates(directory, how.namespace, how.names, datetime.now(UTC), how.days, how.run)
    print(f"valid for {how.days} days: {', '.join(ROLES)}")
    named = "" if how.run == DEFAULT_RUN else f" --transport.run {how.run}"
    print(f"on this machine: actorq train --certificates {directory}{named}")
    print(directory)
    return 0
