"""The roles that may call each RPC.

With mutual TLS, each certificate names one role (identity.py). Each RPC in protos/actorq/v1 names the roles of its
callers. A server checks them before the servicer runs (access.py). An RPC without roles is refused. Without TLS, every
caller may call every RPC.
"""

from typing import Literal, get_args

from google.protobuf import descriptor_pool

from actorq.v1 import access_pb2

ServiceRole = Literal[
    "learner",  # trains and publishes checkpoints
    "quantizer",  # serves policies
    "relay",  # serves the policies of a quantizer or of another relay
    "actor",  # explores and sends trajectories
    "evaluator",  # sends evaluations
    "simulator",  # plays through an actor
    "meter",  # reports energy
    "scaler",  # asks for the number of actors: KEDA
    "operator",  # controls the run, and reads everything
    "monitor",  # reads everything
]
ROLES: tuple[ServiceRole, ...] = get_args(ServiceRole)

Allowed = frozenset[ServiceRole]

# RPCs of other packages, by full name of the service.
_FOREIGN: dict[str, Allowed] = {
    "externalscaler.ExternalScaler": Allowed(["operator", "monitor", "scaler"]),
    "grpc.health.v1.Health": Allowed(ROLES),
    "grpc.reflection.v1alpha.ServerReflection": Allowed(["operator", "monitor"]),
}


def allowed_roles(path: str) -> Allowed:
    """The roles that may call the RPC with the path "/SERVICE/RPC"; empty for an unknown RPC."""
    service, _, rpc = path.removeprefix("/").partition("/")
    try:
        method = descriptor_pool.Default().FindMethodByName(f"{service}.{rpc}")
    except (KeyError, TypeError):
        # The name is unknown, or not UTF-8.
        return Allowed()
    named: str = method.GetOptions().Extensions[access_pb2.callers]  # type: ignore[index]
    return _FOREIGN.get(service) or Allowed(role for role in ROLES if role in named.split())
