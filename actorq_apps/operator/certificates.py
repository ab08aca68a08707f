"""The secrets of a run whose certificates the operator generates: created once, and renewed before they expire."""

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime, timedelta

from actorq import __version__
from actorq.transport.options import Certificates
from actorq.transport.security.authority import Authority, Issued, member_names
from actorq.transport.security.identity import identity_uri
from actorq.transport.security.roles import ROLES
from actorq_apps.cluster.objects import ACTORQ, RUN_LABEL, Object, part
from actorq_apps.operator.render import VERSION_LABEL, identity, owner
from actorq_apps.operator.resource.training_run import TrainingRun

AUTHORITY_LIFE = timedelta(days=3650)
LIFE = timedelta(days=365)
# A certificate is renewed when less than this share of its life is left.
_RENEWAL = 1 / 3
# The meter measures runs on one machine. Runs on Kubernetes have no meter.
_ROLES = tuple(role for role in ROLES if role != "meter")
# The certificates of these roles are valid only for the names of their Deployment's pods.
_NAMED = ("actor", "evaluator")
_AUTHORITY = "authority"


def secrets(run: TrainingRun, existing: Mapping[str, Object], now: datetime) -> list[Object]:
    """The secrets that must be created or renewed now; none unless spec.tls.mode is generated.

    existing: the secrets of the namespace, by name. now: the time, with its time zone.
    """
    if run.spec.tls.mode != "generated":
        return []
    stored = _issued(existing.get(secret_name(run, _AUTHORITY)))
    authority = _authority(run, stored, now)
    made = [] if authority.pem == stored else [_secret(run, _AUTHORITY, authority.pem, authority)]
    for role in _ROLES:
        name = secret_name(run, role)
        names = member_names(role, run.namespace, f"{run.name}-{role}")
        # With simulators, each actor is also the evaluator of its streams.
        workload = "actor" if run.spec.actors.external is not None else role
        uri = identity_uri(role, identity(run), f"{run.name}-{workload}-" if role in _NAMED else "")
        if not _serves(existing.get(name), authority, names, uri, now):
            made.append(_secret(run, role, authority.issue(role, names, uri, now, now + LIFE), authority))
    return made


def secret_name(run: TrainingRun, role: str) -> str:
    """The name of the secret of a role, or of the authority."""
    return f"{run.name}-{role}-tls"


def certificates(secret: Object) -> Certificates | None:
    """The certificates in a secret, such as the secret of the role operator; None when it has no certificates."""
    issued, authority = _issued(secret), _decoded(secret, "ca.crt")
    return Certificates(authority, issued.certificate, issued.key) if issued and authority else None


def _authority(run: TrainingRun, stored: Issued | None, now: datetime) -> Authority:
    end = now + AUTHORITY_LIFE
    try:
        authority = None if stored is None else Authority.read(stored)
    except ValueError:
        # Someone changed the secret. All certificates are created again.
        authority = None
    if authority is None:
        return Authority.made(f"ActorQ {run.name}", now, end)
    return authority if _lasts(authority.end, now, AUTHORITY_LIFE) else authority.renewed(now, end)


def _serves(secret: Object | None, authority: Authority, names: tuple[str, ...], uri: str, now: datetime) -> bool:
    """Whether a role can continue to use its secret."""
    issued = _issued(secret)
    if issued is None or _decoded(secret, "ca.crt") != authority.pem.certificate:
        return False
    try:
        return _lasts(authority.end_of(issued, names, uri), now, LIFE)
    except ValueError:
        return False


def _lasts(end: datetime, now: datetime, life: timedelta) -> bool:
    return end - now > life * _RENEWAL


def _secret(run: TrainingRun, role: str, issued: Issued, authority: Authority) -> Object:
    label, _, program = ACTORQ.partition("=")
    labels = {label: program, RUN_LABEL: run.name, VERSION_LABEL: __version__}
    metadata = {"name": secret_name(run, role), "namespace": run.namespace, "labels": labels}
    files = {"ca.crt": authority.pem.certificate, "tls.crt": issued.certificate, "tls.key": issued.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {**metadata, "ownerReferences": [owner(run)]},
        "data": {name: base64.b64encode(value).decode() for name, value in files.items()},
    }


def _issued(secret: Object | None) -> Issued | None:
    certificate, key = _decoded(secret, "tls.crt"), _decoded(secret, "tls.key")
    return Issued(certificate, key) if certificate and key else None


def _decoded(secret: Object | None, name: str) -> bytes:
    try:
        return base64.b64decode(str(part(secret, "data").get(name, "")), validate=True)
    except binascii.Error:
        return b""
