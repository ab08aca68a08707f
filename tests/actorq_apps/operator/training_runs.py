"""TrainingRun objects for tests."""

from typing import Any

from actorq_apps.operator.resource.training_run import TrainingRun

Object = dict[str, Any]

# A run's settings for the pods of a role. Secrets have separate tests.
POD: Object = {
    "labels": {"team": "rl"},
    "annotations": {"note": "two\nlines"},
    "env": [
        {"name": "DATA", "value": "/data"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ],
    "envFrom": [{"configMapRef": {"name": "shared"}}],
    "volumes": [
        {"name": "games", "persistentVolumeClaim": {"claimName": "games", "readOnly": True}},
        {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ],
    "volumeMounts": [{"name": "games", "mountPath": "/games", "readOnly": True}],
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "serviceAccountName": "reader",
}
# A simulator beside each actor, with volumes of the actors' pods. Secrets have separate tests.
SIMULATOR: Object = {
    "image": "registry/robot:3",
    "name": "robot",
    "command": ["/robot"],
    "args": ["--headless", "learner.yaml"],
    "env": [
        {"name": "LEVEL", "value": "3"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ],
    "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "2Gi"}},
    "volumeMounts": [{"name": "games", "mountPath": "/games", "readOnly": True}],
}
# The smallest specification, and specifications that together use every option.
SPECS: dict[str, Object] = {
    "smallest": {},
    "plain": {"tls": {"mode": "none"}, "relays": {"replicas": 2}, "networkPolicies": True},
    "issuer": {
        "tls": {"mode": "issuer", "issuer": {"name": "company", "kind": "ClusterIssuer"}},
        "relays": {"replicas": 1},
        "evaluator": {"replicas": 0},
    },
    "full": {
        "algorithm": "dqn",
        "config": {"seed": 7, "actors": 8},
        "images": {"learner": "registry/l:2", "quantizer": "registry/q@sha256:0", "actor": "registry/a:2"},
        "imagePullSecrets": [{"name": "registry"}],
        "actors": {
            "replicas": 8,
            "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": 2}},
            "tolerations": [{"key": "batch", "operator": "Exists"}],
            "nodeSelector": {"pool": "cheap"},
            "spot": True,
            "priorityClassName": "low",
            "pod": POD,
        },
        "learner": {
            "gpu": 2,
            "storage": "50Gi",
            "storageClassName": "fast",
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "team", "operator": "Equal", "value": "rl", "effect": "NoSchedule"}],
            "resources": {"limits": {"memory": "64Gi"}},
        },
        "quantizer": {"storage": "4Gi", "storageClassName": "fast", "resources": {"requests": {"cpu": 1}}},
        "relays": {"replicas": 3},
        "evaluator": {"replicas": 1, "resources": {"limits": {"memory": "1Gi"}}},
        "networkPolicies": True,
        "serviceAccountAnnotations": {"iam.gke.io/gcp-service-account": "rl@project"},
        "activeDeadlineSeconds": 86_400,
        "backoffLimit": 20,
        "ttlSecondsAfterFinished": 60,
        "checkpoint": {"retain": False, "secret": "bucket"},
        "policyExport": {"url": "s3://policies/alpha", "scheme": "int8"},
    },
    "suspended": {"suspend": True},
    "offline": {
        "algorithm": "dqn",
        "config": {"dataset": "/sets/cart-pole", "offline": True},
        "actors": {"replicas": 0},
        "learner": {
            "pod": {
                "volumes": [{"name": "sets", "persistentVolumeClaim": {"claimName": "sets", "readOnly": True}}],
                "volumeMounts": [{"name": "sets", "mountPath": "/sets", "readOnly": True}],
            }
        },
    },
    "simulator": {
        "environment": "external/robot",
        "actors": {"replicas": 3, "external": SIMULATOR, "pod": POD},
        "networkPolicies": True,
    },
    "simulator with an issuer": {
        "environment": "external/robot",
        "actors": {"external": {"image": "robot:1"}},
        "relays": {"replicas": 1},
        "tls": {"mode": "issuer", "issuer": {"name": "ca"}},
    },
    "simulator in plain text": {
        "environment": "external/robot",
        "actors": {"external": {"image": "robot:1"}},
        "tls": {"mode": "none"},
    },
}


def manifest(name: str = "alpha", namespace: str = "lab", **spec: Any) -> Object:
    """A TrainingRun as the API server returns it."""
    return {
        "apiVersion": "actorq.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-of-{name}", "generation": 1},
        "spec": {"environment": "CartPole-v1", **spec},
    }


def training_run(name: str = "alpha", namespace: str = "lab", **spec: Any) -> TrainingRun:
    """A TrainingRun."""
    return TrainingRun.of(manifest(name, namespace, **spec))
