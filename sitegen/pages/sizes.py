"""The resources that a run needs in a cluster, from the manifests in k8s."""

from pathlib import Path
from typing import Any

import yaml

from sitegen.markdown import number, table

_K8S = Path(__file__).parents[2] / "k8s"
_FILES = {
    "learner": "base/learner.yaml",
    "quantizer": "base/quantizer.yaml",
    "actor": "base/actor.yaml",
    "evaluator": "base/evaluator.yaml",
    "operator": "operator/deployment.yaml",
}
_MEBIBYTES = {"Mi": 1, "Gi": 1024}


def of_services() -> str:
    """Requests, limits and volume of each pod."""
    rows = []
    for name, file in _FILES.items():
        objects = _objects(file)
        resources = _resources(objects)
        amounts = [resources[kind][what] for kind in ("requests", "limits") for what in ("cpu", "memory")]
        rows.append((name, *amounts, _volume(objects), _replicas(objects)))
    head = ("pod", "requested CPU", "requested memory", "CPU limit", "memory limit", "volume", "pods by default")
    return table(head, rows)


def of_a_run() -> str:
    """What a whole run requests, as a formula in its number of actors."""
    fixed = [_requested(name) for name in ("learner", "quantizer", "evaluator")]
    cores, memory = (sum(each[at] for each in fixed) for at in (0, 1))
    actor_cores, actor_memory = _requested("actor")
    rows = [
        ("cores", f"{number(cores)} + {number(actor_cores)} x actors"),
        ("memory in MiB", f"{number(memory)} + {number(actor_memory)} x actors"),
    ]
    return table(("a run requests", "amount"), rows)


def _objects(file: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((_K8S / file).read_text(encoding="utf-8")) if each]


def _workload(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return next(each for each in objects if each["kind"] in ("Deployment", "StatefulSet"))


def _resources(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = _workload(objects)["spec"]["template"]["spec"]["containers"][0]["resources"]
    return found


def _replicas(objects: list[dict[str, Any]]) -> int:
    return int(_workload(objects)["spec"].get("replicas", 1))


def _volume(objects: list[dict[str, Any]]) -> str:
    claims = _workload(objects)["spec"].get("volumeClaimTemplates", [])
    claims += [each for each in objects if each["kind"] == "PersistentVolumeClaim"]
    return ", ".join(each["spec"]["resources"]["requests"]["storage"] for each in claims)


def _requested(name: str) -> tuple[float, int]:
    """Cores and MiB that a pod requests."""
    requests = _resources(_objects(_FILES[name]))["requests"]
    cpu, memory = str(requests["cpu"]), str(requests["memory"])
    cores = int(cpu.removesuffix("m")) / 1000 if cpu.endswith("m") else float(cpu)
    return cores, int(memory[:-2]) * _MEBIBYTES[memory[-2:]]
