"""An authority for tests: certificates with any role, name, date and serial number."""

import datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from actorq.transport.security.identity import identity_uri

START = datetime.datetime(2020, 1, 1)
LATER = datetime.datetime(2021, 1, 1)
MUCH_LATER = datetime.datetime(2099, 1, 1)
END = datetime.datetime(2100, 1, 1)


class Authority:
    """Signs certificates for this host."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = self._builder(self._name, self._key).add_extension(constraint, critical=True)

    def issue(
        self,
        folder: Path,
        name: str,
        password: bytes | None = None,
        address: str = "127.0.0.1",
        valid: tuple[datetime.datetime, datetime.datetime] = (START, END),
        uris: tuple[str, ...] = (identity_uri("operator", "actorq"),),
        serial: int | None = None,
    ) -> Path:
        """Write ca.crt, tls.crt and tls.key of a member into its folder. Replaces existing files."""
        folder = folder / name
        folder.mkdir(exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = [x509.IPAddress(ip_address(address)), *map(x509.UniformResourceIdentifier, uris)]
        alternatives = x509.SubjectAlternativeName(names)
        certificate = self._builder(subject, key, valid, serial).add_extension(alternatives, critical=False)
        for file, builder in (("ca.crt", self._certificate), ("tls.crt", certificate)):
            signed = builder.sign(self._key, hashes.SHA256())
            (folder / file).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        lock = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        (folder / "tls.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, lock))
        (folder / "tls.key").chmod(0o600)
        return folder

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        valid: tuple[datetime.datetime, datetime.datetime] = (START, END),
        serial: int | None = None,
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(serial or x509.random_serial_number())
            .not_valid_before(valid[0])
            .not_valid_after(valid[1])
        )
