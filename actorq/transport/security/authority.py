"""An authority that signs a certificate for each member of a run.

`write_certificates` creates an authority for development and discards its key. For longer use, use an authority that
renews certificates, such as cert-manager. Its files have the same names.
"""

import ipaddress
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
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


def member_names(member: str, namespace: str, service: str = "") -> tuple[str, ...]:
    """The names by which clients reach a member: on this machine, and as a service in a cluster's namespace.

    service: the name of the member's service in the cluster, if it differs from the member's name.
    """
    local = ("localhost", "127.0.0.1", "::1")
    if member not in ("learner", "quantizer", "relay"):
        return local
    service = service or member
    services = (service, f"{service}-headless", f"*.{service}-headless")
    suffixes = ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")
    return (*local, *(f"{service}{suffix}" for service in services for suffix in suffixes))


def write_certificates(
    directory: Path, namespace: str, extra_names: Iterable[str], begin: datetime, days: int, run: str = DEFAULT_RUN
) -> None:
    """Create `directory` with ca.crt and a folder for each role (ca.crt, tls.crt, tls.key): all files or none.

    extra_names: additional DNS names and IP addresses in every certificate.
    begin: start of the validity, which lasts `days` days.
    run: the run of the certificates, as in `transport.run`.

    Raises UserError when the directory exists or cannot be written, or when a name is malformed.
    """
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise UserError(
            f"{directory} exists and would be overwritten: choose another folder, or remove it if nobody uses its "
            "certificates anymore"
        )
    extra = tuple(extra_names)
    end = begin + timedelta(days=days)
    authority = Authority.made("ActorQ development authority", begin, end)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        try:
            _write(partial / "ca.crt", authority.pem.certificate)
            for role in ROLES:
                names = (*member_names(role, namespace), *extra)
                issued = authority.issue(role, names, identity_uri(role, run), begin, end)
                (partial / role).mkdir()
                _write(partial / role / "ca.crt", authority.pem.certificate)
                _write(partial / role / "tls.crt", issued.certificate)
                _write(partial / role / "tls.key", issued.key, mode=0o600)
            partial.chmod(0o755)
            partial.rename(directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise UserError(f"{directory}: certificates cannot be written there ({error.strerror})") from None


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, both in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


class Authority:
    """Signs certificates for both ends of a connection."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate, self._key = certificate, key

    @classmethod
    def made(
        cls, name: str, begin: datetime, end: datetime, key: ec.EllipticCurvePrivateKey | None = None
    ) -> "Authority":
        """A new authority. With an earlier authority's key, certificates of either authority are valid for both."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        extensions = x509.BasicConstraints(ca=True, path_length=0), _usage(signs_certificates=True)
        return cls(_signed(_name(name), key.public_key(), _name(name), key, begin, end, *extensions), key)

    @classmethod
    def read(cls, pem: Issued) -> "Authority":
        """The authority with this certificate and key. Raises ValueError unless they match."""
        certificate = x509.load_pem_x509_certificate(pem.certificate)
        return cls(certificate, _key_of(certificate, pem.key))

    @property
    def end(self) -> datetime:
        """End of the validity."""
        return self._certificate.not_valid_after_utc

    @property
    def pem(self) -> Issued:
        """The certificate and its key, in the form that `read` expects."""
        return Issued(self._certificate.public_bytes(serialization.Encoding.PEM), _key_text(self._key))

    def renewed(self, begin: datetime, end: datetime) -> "Authority":
        """An authority with the same name and key and another validity."""
        (name,) = self._certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return self.made(str(name.value), begin, end, self._key)

    def issue(self, member: str, names: Iterable[str], identity: str, begin: datetime, end: datetime) -> Issued:
        """A certificate for `names` with the URI `identity`, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        signed = _signed(
            *(_name(f"actorq {member}"), key.public_key(), self._certificate.subject, self._key, begin, end),
            _alternatives(names, identity),
            x509.BasicConstraints(ca=False, path_length=None),
            _usage(signs_certificates=False),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
        )
        return Issued(signed.public_bytes(serialization.Encoding.PEM), _key_text(key))

    def end_of(self, issued: Issued, names: Iterable[str], identity: str) -> datetime:
        """End of the validity of a certificate of this authority.

        Raises ValueError for a certificate of another authority, with other names, or with another key.
        """
        certificate = x509.load_pem_x509_certificate(issued.certificate)
        _key_of(certificate, issued.key)
        try:
            certificate.verify_directly_issued_by(self._certificate)
            found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (InvalidSignature, TypeError, x509.ExtensionNotFound) as error:
            raise ValueError(f"not a certificate of this authority: {error}") from None
        if found != _alternatives(names, identity):
            raise ValueError("the certificate is for other names")
        return certificate.not_valid_after_utc


def _signed(
    subject: x509.Name,
    public: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    begin: datetime,
    end: datetime,
    *extensions: x509.ExtensionType,
) -> x509.Certificate:
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _EARLIER)
        .not_valid_after(end)
    )
    for each in (x509.SubjectKeyIdentifier.from_public_key(public), authority, *extensions):
        builder = builder.add_extension(each, critical=isinstance(each, x509.BasicConstraints | x509.KeyUsage))
    return builder.sign(signer, hashes.SHA256())


def _alternatives(names: Iterable[str], identity: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([*map(_general_name, names), x509.UniformResourceIdentifier(identity)])


def _key_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _key_of(certificate: x509.Certificate, text: bytes) -> ec.EllipticCurvePrivateKey:
    """The key of a certificate. Raises ValueError when it does not match."""
    try:
        key = serialization.load_pem_private_key(text, password=None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"the key cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError("the key is not the certificate's")
    return key


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
    encrypts = ("key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only")
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        **dict.fromkeys(encrypts, False),
    )
