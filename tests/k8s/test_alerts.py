"""The alerts use existing metrics, labels and states, and link to existing documentation."""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import promql_parser as promql
import pytest
import yaml
from markdown.extensions.toc import slugify

from actorq.domain.status import RunState
from sitegen import metrics
from tests.k8s.rendered_manifests import K8S, OVERLAYS, ROOT, of_kind, render

RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((K8S / "components/monitoring/rules.yaml").read_text("utf-8"))["spec"]["groups"]
    for rule in group["rules"]
]
# Labels that Prometheus and the monitors add.
TARGET = {"namespace", "actorq_run", "pod", "container"}


def selectors(expression: promql.Expr) -> Iterator[promql.VectorSelector]:
    """The metrics of an expression, with their matchers."""
    match expression:
        case promql.VectorSelector():
            yield expression
        case promql.MatrixSelector():
            yield from selectors(expression.vector_selector)
        case promql.BinaryExpr():
            yield from chain(selectors(expression.lhs), selectors(expression.rhs))
        case promql.AggregateExpr() | promql.ParenExpr():
            yield from selectors(expression.expr)
        case promql.Call():
            yield from chain.from_iterable(map(selectors, expression.args))
        case _:
            assert isinstance(expression, promql.NumberLiteral), expression


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
class TestAlert:
    def test_the_expression_is_promql_about_existing_metrics_and_labels(self, rule: dict[str, Any]) -> None:
        served = {each.name: {*each.labels, *TARGET} for each in metrics.documented()}
        found = list(selectors(promql.parse(rule["expr"])))
        assert found
        for selector in found:
            assert selector.name is not None
            assert selector.name in served
            assert {matcher.name for matcher in selector.matchers.matchers} <= served[selector.name]
        grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"])
        labels = set.intersection(*(served[selector.name] for selector in found if selector.name))
        assert {name.strip() for names in grouped for name in names.split(",")} <= labels

    def test_the_alert_is_about_one_run_and_names_it(self, rule: dict[str, Any]) -> None:
        used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        assert {"namespace", "actorq_run"} <= used
        assert used - TARGET <= set(re.findall(r"\w+", rule["expr"]))

    def test_the_alert_waits_has_a_severity_and_points_to_existing_documentation(self, rule: dict[str, Any]) -> None:
        assert re.fullmatch(r"[1-9]\d*m", rule["for"])
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
        assert anchor in {slugify(heading, "-") for heading in headings}

    def test_the_alert_is_in_the_table_of_the_documentation(self, rule: dict[str, Any]) -> None:
        page = (ROOT / "docs/how-to/monitor.md").read_text("utf-8")
        assert f"| `{rule['alert']}` | {rule['labels']['severity']} |" in page


def test_states_in_expressions_are_states_of_a_run() -> None:
    states = re.findall(r'state=~?"([^"]*)"', " ".join(rule["expr"] for rule in RULES))
    assert states
    assert {state for each in states for state in each.split("|")} <= {state.value for state in RunState}


def test_the_overlay_with_monitoring_has_the_alerts_and_the_runs_name_on_their_labels() -> None:
    assert "production" in OVERLAYS
    objects = render(K8S / "overlays" / "production")
    (rules,) = of_kind(objects, "PrometheusRule").values()
    assert len(rules["spec"]["groups"][0]["rules"]) == len(RULES)
    for monitor in of_kind(objects, "ServiceMonitor", "PodMonitor").values():
        assert monitor["spec"]["podTargetLabels"] == ["actorq/run"]
