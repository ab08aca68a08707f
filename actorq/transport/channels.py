"""Opens channels."""

import grpc

from actorq.transport.addresses import split_address
from actorq.transport.options import CLIENT_OPTIONS, Certificates
from actorq.transport.payload.checksums import ChecksummedChannel


def open_channel(address: str, certificates: Certificates | None = None) -> grpc.Channel:
    """Open a channel to "HOST:PORT". Certificates make it mutual TLS. The first call connects.

    Without TLS, messages carry checksums. TLS itself detects changed bytes.
    """
    split_address("address", address, lowest_port=1)
    if certificates is None:
        return ChecksummedChannel(grpc.insecure_channel(address, options=CLIENT_OPTIONS))
    credentials = grpc.ssl_channel_credentials(
        root_certificates=certificates.authority,
        private_key=certificates.key,
        certificate_chain=certificates.certificate,
    )
    return grpc.secure_channel(address, credentials, options=CLIENT_OPTIONS)
