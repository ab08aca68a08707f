"""The tested versions and machines, from pyproject.toml, constraints.txt, the code and the stored results."""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from actorq.domain.contract import CONTRACT
from actorq.inference import DESCRIPTION_FORMAT
from actorq.statefiles.policies import STORE_FORMATS
from actorq.telemetry.machine import Machine
from actorq_apps.operator.resource.training_run import API_VERSION
from learner_service.objectstorage import generations
from learner_service.replay.storage import description
from learner_service.training import checkpoint_files
from sitegen.markdown import names, table
from sitegen.results import load, stored

_ROOT = Path(__file__).parents[2]
_REQUIREMENT = re.compile(r"^([\w.-]+)(?:\[.*\])?(.*)$")
_PYTHON = "Programming Language :: Python :: "


def machines() -> str:
    """The machines of all stored results, the most frequent ones first."""
    found: Counter[tuple[str, ...]] = Counter()
    for name in stored():
        machine = load(name)["machine"]
        known = Machine(**{each.name: machine[each.name] for each in fields(Machine) if each.name in machine})
        features = [each for each in machine.get("features", ("not recorded",)) if "int8" in each or "not" in each]
        packages = [known.packages[package] for package in ("torch", "onnxruntime")]
        processor = ", ".join((known.cpu, f"{known.cores} cores"))
        found[(processor, ", ".join(known.gpus) or "none named", *features, known.python, *packages)] += 1
    head = ("processor", "GPU", "int8 dot product", "Python", "PyTorch", "ONNX Runtime", "stored results")
    return table(head, ((*machine, count) for machine, count in found.most_common()))


def pythons() -> str:
    """The Python versions that the package declares."""
    project = _project()
    listed = [each.removeprefix(_PYTHON) for each in project["classifiers"] if re.match(_PYTHON + r"3\.", each)]
    recorded = sorted({load(name)["machine"]["python"] for name in stored()})
    rows = [("required", f"`{project['requires-python']}`"), ("of the stored results", names(recorded))]
    return table(("Python", "versions"), [*rows, *([("named by the package", names(listed))] if listed else [])])


def packages() -> str:
    """Each direct package of each extra that users install, with the allowed and the tested versions."""
    project, pins, rows = _project(), _pins(), []
    extras: Mapping[str, list[str]] = {
        "every installation": project["dependencies"],
        **project["optional-dependencies"],
    }
    for extra, listed in extras.items():
        for (name, allowed), *_ in map(_REQUIREMENT.findall, listed):
            if extra not in ("docs", "dev") and name != "actorq":
                of = extra if extra == "every installation" else f"`{extra}`"
                rows.append((of, name, f"`{allowed}`" if allowed else "any", pins[_plain(name)]))
    return table(("extra", "package", "allowed", "tested"), rows)


def formats() -> str:
    """The number of each stored format."""
    earlier = ", ".join(str(each) for each in description._EARLIER)
    rows = [
        ("contract of the services", "`Join`, `PublishCheckpoints`, `WatchPolicies`; files below", CONTRACT, ""),
        ("replay", "`replay/meta.json`", description.FORMAT_VERSION, earlier),
        ("checkpoints", "`checkpoints/UPDATES`", checkpoint_files._FORMAT, ""),
        ("policies of the quantizer", "`policies/run.json`", STORE_FORMATS[0], _others()),
        ("copies in object storage", "`manifests/CLAIM-NUMBER.json`", generations._FORMAT, ""),
        ("description of an exported policy", "`policy.json`", DESCRIPTION_FORMAT, ""),
        ("TrainingRun", "`apiVersion`", API_VERSION, ""),
    ]
    return table(("what", "where its number is", "number", "earlier ones that are read"), rows)


def _others() -> str:
    return ", ".join(str(each) for each in STORE_FORMATS[1:])


def _project() -> dict[str, Any]:
    text = (_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = tomllib.loads(text)["project"]
    return found


def _pins() -> dict[str, str]:
    text = (_ROOT / "constraints.txt").read_text(encoding="utf-8")
    return {_plain(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
