"""The reference of all Prometheus metrics, from the calls that create them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector

from actorq.domain.policy import Variant
from sitegen.markdown import names, table

_ROOT = Path(__file__).parents[1]
_MAKERS = {
    "gauge": "gauge",
    "counter": "counter",
    "histogram": "histogram",
    "labelled_gauge": "gauge",
    "labelled_counter": "counter",
    "variant_gauge": "gauge",
    "variant_counter": "counter",
}
# The labels that a function adds itself, by the prefix of its name.
_LABELS = {"variant": Variant._fields}
# Prefixes of names. Metrics of every service have another prefix.
_SERVICES = ("learner", "quantizer", "relay", "actor", "operator")
LEARNER, QUANTIZER, RELAY, ACTOR, OPERATOR = _PREFIXES = tuple(f"actorq_{name}_" for name in _SERVICES)


@dataclass(frozen=True)
class DocumentedMetric:
    """A family of metrics: served name, type, labels and meaning."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def documented() -> list[DocumentedMetric]:
    """All metrics of all services, in the order of the code. Metrics of the process are last."""
    shared = [_ROOT / name / "metrics.py" for name in ("actorq/telemetry", "actorq_apps/operator")]
    sources = [*shared, *sorted(_ROOT.glob("*_service/**/metrics.py"))]
    found = [metric for file in sources for metric in _made_in(file)]
    process = ProcessCollector(registry=CollectorRegistry()).collect()
    found += [DocumentedMetric(_served(each.name, each.type), each.type, (), each.documentation) for each in process]
    return found


def of_service(prefix: str) -> list[DocumentedMetric]:
    """The metrics with this prefix. With an empty prefix, the metrics that every service has."""
    if prefix:
        return [each for each in documented() if each.name.startswith(prefix)]
    return [each for each in documented() if not each.name.startswith(_PREFIXES)]


def metrics() -> str:
    """A section for each service."""
    titles = {
        LEARNER: "Learner",
        QUANTIZER: "Quantizer",
        RELAY: "Relay",
        ACTOR: "Actor and evaluator",
        OPERATOR: "Operator",
        "": "Every service",
    }
    head = ("name", "type", "labels", "meaning")
    return "\n\n".join(
        f"## {title}\n\n"
        + table(head, ((f"`{each.name}`", each.kind, names(each.labels), each.text) for each in of_service(prefix)))
        for prefix, title in titles.items()
    )


def _made_in(file: Path) -> Iterator[DocumentedMetric]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        maker = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if isinstance(node, ast.Call) and maker in _MAKERS and isinstance(node.args[0], ast.Constant):
            name, text = (ast.literal_eval(each) for each in node.args[:2])
            of_maker = _LABELS.get(maker.partition("_")[0], ())
            labels = ast.literal_eval(node.args[2]) if maker.startswith("labelled") else of_maker
            yield DocumentedMetric(_served(name, _MAKERS[maker]), _MAKERS[maker], labels, text)


def _served(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name
