"""The role table: which role may call which RPC.

With mutual TLS, each certificate names one role (identity.py). A server looks up the role here before the servicer runs
(access.py). An RPC without a row is refused. Without TLS, everybody may call everything.
"""

from typing import Literal, get_args

ServiceRole = Literal[
    "learner",  # trains and publishes checkpoints
    "quantizer",  # serves policies
    "relay",  # serves the policies of a quantizer or of another relay
    "actor",  # explores and sends trajectories
    "evaluator",  # sends evaluations
    "meter",  # reports energy
    "scaler",  # asks for the number of actors: KEDA
    "operator",  # controls the run, and reads everything
    "monitor",  # reads everything
]
ROLES: tuple[ServiceRole, ...] = get_args(ServiceRole)

Allowed = frozenset[ServiceRole]

_EVERYBODY = Allowed(ROLES)
_OPERATOR = Allowed(["operator"])
_READERS = Allowed(["operator", "monitor"])
_MEMBERS = Allowed(["actor", "evaluator"])
_POLICY_READERS = _READERS | _MEMBERS | Allowed(["relay"])
_SCALERS = _READERS | Allowed(["scaler"])

# By full name of the service, then by RPC.
TABLE: dict[str, dict[str, Allowed]] = {
    "actorq.v1.LearnerService": {
        "Join": _MEMBERS,
        "StreamTrajectories": _MEMBERS,
        "GetStatus": _READERS,
        "WatchStatus": _READERS,
        "PauseTraining": _OPERATOR,
        "ResumeTraining": _OPERATOR,
        "SaveCheckpoint": _OPERATOR,
        "StopRun": _OPERATOR,
        "ResetEnvironment": _OPERATOR,
        "ReportEnergy": Allowed(["meter"]),
    },
    "actorq.v1.QuantizerService": {
        "PublishCheckpoints": Allowed(["learner"]),
        "WatchPolicies": _POLICY_READERS,
        "GetPolicy": _POLICY_READERS,
        "ListPolicies": _POLICY_READERS,
        "GetFidelityReport": _POLICY_READERS,
        "HoldPolicy": Allowed(["evaluator", "relay", "operator"]),
    },
    "actorq.v1.ActorService": {
        "GetActorStatus": _READERS,
        "Evaluate": _OPERATOR,
        "Drain": _OPERATOR,
    },
    "externalscaler.ExternalScaler": {
        "IsActive": _SCALERS,
        "StreamIsActive": _SCALERS,
        "GetMetricSpec": _SCALERS,
        "GetMetrics": _SCALERS,
    },
    "grpc.health.v1.Health": {
        "Check": _EVERYBODY,
        "List": _EVERYBODY,
        "Watch": _EVERYBODY,
    },
    "grpc.reflection.v1alpha.ServerReflection": {
        "ServerReflectionInfo": _READERS,
    },
}


def allowed_roles(path: str) -> Allowed:
    """The roles that may call the RPC with the path "/SERVICE/RPC"; none where the table has no row."""
    service, _, rpc = path.removeprefix("/").partition("/")
    return TABLE.get(service, {}).get(rpc, Allowed())
