"""A development authority: it signs a certificate for each member of a run. Its key is not kept.

For longer use, take an authority that renews certificates, such as cert-manager. The files have the same names.
"""

import ipaddress
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from actorq.errors import UserError
from actorq.transport.security.identity import DEFAULT_RUN, identity_uri
from actorq.transport.security.roles import ROLES

# Tolerates differences between the clocks of machines.
_EARLIER = timedelta(minutes=5)
_DNS_NAME = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII | re.I)
_LONGEST_DNS_NAME = 253


def member_names(member: str, namespace: str) -> tuple[str, ...]:
    """The names by which clients reach a member: on this machine, and as a service in a cluster's namespace."""
    local = ("localhost", "127.0.0.1", "::1")
    if member not in ("learner", "quantizer", "relay"):
        return local
    services = (member, f"{member}-headless", f"*.{member}-headless")
    suffixes = ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")
    return (*local, *(f"{service}{suffix}" for service in services for suffix in suffixes))


def write_certificates(
    directory: Path, namespace: str, extra_names: Iterable[str], begin: datetime, days: int, run: str = DEFAULT_RUN
) -> None:
    """Make `directory` with ca.crt and a folder for each role with ca.crt, tls.crt and tls.key, all or nothing.

    extra_names: further DNS names and IP addresses for which every certificate is valid.
    begin: start of the validity of `days` days.
    run: the run of the certificates, as in `transport.run`.

    Raises UserError when the directory exists or cannot be written, or for a malformed name.
    """
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise UserError(
            f"{directory} exists and would be overwritten: choose another folder, or remove it if nobody uses its "
            "certificates anymore"
        )
    extra = tuple(extra_names)
    authority = _Authority(begin, begin + timedelta(days=days))
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        try:
            _write(partial / "ca.crt", authority.certificate)
            for role in ROLES:
                names = (*member_names(role, namespace), *extra)
                _write_member(partial / role, authority, names, identity_uri(role, run))
            partial.chmod(0o755)
            partial.rename(directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise UserError(f"{directory}: certificates cannot be written there ({error.strerror})") from None


@dataclass(frozen=True)
class _Issued:
    certificate: bytes
    key: bytes


class _Authority:
    """Signs certificates for both ends of a connection. Its key exists in memory only."""

    def __init__(self, begin: datetime, end: datetime) -> None:
        self._begin, self._end = begin, end
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("ActorQ development authority")
        public = self._key.public_key()
        usage = _usage(signs_certificates=True)
        builder = (
            self._builder(self._name, public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        self.certificate = self._sign(builder)

    def issue(self, member: str, names: Iterable[str], identity: str) -> _Issued:
        """A certificate for `names` with the URI `identity`, and its key, both in PEM."""
        alternatives = [*(_general_name(name) for name in names), x509.UniformResourceIdentifier(identity)]
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = (
            self._builder(_name(f"actorq {member}"), key.public_key())
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(purposes, critical=False)
        )
        form = serialization.PrivateFormat.PKCS8
        text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        return _Issued(self._sign(builder), text)

    def _builder(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._begin - _EARLIER)
            .not_valid_after(self._end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(authority, critical=False)
        )

    def _sign(self, builder: x509.CertificateBuilder) -> bytes:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _write_member(folder: Path, authority: _Authority, names: Iterable[str], identity: str) -> None:
    folder.mkdir()
    issued = authority.issue(folder.name, names, identity)
    _write(folder / "ca.crt", authority.certificate)
    _write(folder / "tls.crt", issued.certificate)
    _write(folder / "tls.key", issued.key, mode=0o600)


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if len(name) > _LONGEST_DNS_NAME or not _DNS_NAME.fullmatch(name):
        raise UserError(f"certificates: expected a DNS name or an IP address, got {name!r}")
    return x509.DNSName(name)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
