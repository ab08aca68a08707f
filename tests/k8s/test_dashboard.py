"""The Grafana dashboard shows all changing metrics of the services."""

import json
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sitegen import metrics

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "k8s" / "components" / "monitoring" / "dashboard.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
# Metrics without a panel. Users look them up when needed.
NOT_SHOWN = {
    "actorq_info",
    "actorq_learner_run_info",
    "actorq_actor_info",
    "actorq_learner_elapsed_seconds",
    "actorq_learner_object_storage_period_seconds",
    "process_virtual_memory_bytes",
    "process_start_time_seconds",
    "process_open_fds",
    "process_max_fds",
}


@cache
def documented() -> dict[str, set[str]]:
    """The labels of each documented metric, and those that Prometheus adds."""
    scraped = {"namespace", "pod", "container", "le"}
    return {each.name: {*each.labels, *scraped} for each in metrics.documented()}


def named(expression: str) -> set[str]:
    """The metrics of an expression."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\b(?:actorq|process)_\w+", expression)}


def test_every_documented_metric_except_listed_ones_is_shown() -> None:
    shown = {name for expression in EXPRESSIONS for name in named(expression)}
    # The dashboard is about runs, not about the operator.
    assert shown == {name for name in documented() if not name.startswith(metrics.OPERATOR)} - NOT_SHOWN


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_selects_one_namespace_and_existing_labels(expression: str) -> None:
    selected = re.findall(r"\b(?:actorq|process)_\w+(\{[^}]*\})?", expression)
    assert selected
    assert all('namespace="$namespace"' in selector for selector in selected)
    labels = {label for name in named(expression) for label in documented()[name]}
    grouped = {label.strip() for by in re.findall(r"\bby \(([^)]*)\)", expression) for label in by.split(",")}
    matched = set(re.findall(r"(\w+)(?:=~|!=|=)\"", expression))
    assert grouped | matched <= labels


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_legend_uses_labels_that_its_expression_has(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        labels = {label for name in named(target["expr"]) for label in documented()[name]}
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels
    references = [target["refId"] for target in panel["targets"]]
    assert len(references) == len(set(references))


def test_panels_have_different_titles_and_do_not_overlap() -> None:
    identifiers = sorted(panel["id"] for panel in PANELS)
    assert all(one < other for one, other in pairwise(identifiers))
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert max(x for x, _ in taken) < 24


def test_names_follow_the_conventions_of_prometheus() -> None:
    """Only counters end in _total. Units are base units. Only summaries and histograms have their reserved labels."""
    for each in metrics.documented():
        name = each.name
        assert name.endswith("_total") == (each.kind == "counter"), name
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|kwh|kg|percent|count|sum|bucket)(_|$)", name), name
        assert each.kind == "histogram" or not {"le", "quantile"} & set(each.labels), name
