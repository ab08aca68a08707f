"""The search of the site finds the right page first."""

from pathlib import Path

import pytest

from tests.documentation.search_worker import Search

CONFIGURATION = "reference/configuration.html"
FIRST = {
    "exit code": "reference/exit-codes.html",
    "resume a run": "how-to/recover.html",
    "train": "get-started.html",
    "install": "get-started.html",
    "samples_per_insert": CONFIGURATION,
    "n_step": CONFIGURATION,
    "batch_size": CONFIGURATION,
    "replay.capacity": CONFIGURATION,
    "--rate-limiter.samples-per-insert": CONFIGURATION,
    "--run-directory": CONFIGURATION,
    "ACTORQ_SEED": CONFIGURATION,
    "--scheme": "concepts/schemes.html",
    "callback": "how-to/python.html",
    "contribute": "development/contributing.html",
    "custom environment": "tutorials/environment.html",
    "export a policy": "how-to/export.html",
    "quantize": "how-to/quantize.html",
    "kubernetes": "how-to/kubernetes.html",
    "tls": "how-to/tls.html",
    "metrics": "reference/metrics.html",
    "compare schemes": "how-to/compare.html",
    "sweep": "how-to/sweep.html",
    "fidelity gate": "concepts/fidelity.html",
    "LearnerClient": "reference/client.html",
    "PPO": "concepts/algorithms.html",
    "relay": "how-to/relays.html",
    "monitor": "how-to/monitor.html",
}


@pytest.fixture(scope="module")
def search(site_folder: Path) -> Search:
    return Search(site_folder)


@pytest.mark.parametrize(("query", "page"), FIRST.items(), ids=FIRST)
def test_the_right_page_is_first(search: Search, query: str, page: str) -> None:
    assert search.pages(query)[:1] == [page]


def test_decisions_are_below_manuals(search: Search) -> None:
    found = search.pages("sparse policy")
    decisions = [place for place, page in enumerate(found) if page.startswith("decisions/")]
    manuals = [place for place, page in enumerate(found) if page.startswith(("how-to/", "concepts/"))]
    assert decisions
    assert manuals[0] < decisions[0]
