"""The built site: complete, without requests to other servers, and with all generated parts."""

import re
from html import unescape
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from google.protobuf.descriptor import ServiceDescriptor

from actorq.config.run_config import RunConfig
from actorq.config.settings import leaves
from actorq.process import PROCESS_SETTINGS
from actorq.v1 import actor_pb2, external_pb2, learner_pb2, quantizer_pb2
from benchmarks.processor import DOT_PRODUCT
from sitegen import metrics, results, verdicts
from sitegen.checks import typed_figures
from sitegen.docstrings import listed
from sitegen.tables import TABLES
from tests.documentation.code_blocks import ROOT

BENCHMARKS = sorted((ROOT / "docs" / "benchmarks").glob("*.md"))
SERVICES: list[ServiceDescriptor] = [
    service
    for module in (learner_pb2, quantizer_pb2, actor_pb2, external_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
# Addresses that a browser fetches itself. It does not follow links.
_FETCHED = re.compile(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"([^\"]+)\"|<link[^>]*\shref=\"([^\"]+)\"")


@pytest.fixture(scope="module")
def site(site_folder: Path) -> dict[str, str]:
    """The HTML of all pages by their path, from a strict build; `assets` has the style sheets."""
    pages = {str(file.relative_to(site_folder)): file.read_text("utf-8") for file in site_folder.rglob("*.html")}
    return pages | {"assets": "\n".join(file.read_text("utf-8") for file in site_folder.rglob("*.css"))}


def test_nothing_is_fetched_from_another_server(site: dict[str, str]) -> None:
    fetched = {found[0] or found[1] for page in site.values() for found in _FETCHED.findall(page)}
    fetched |= {
        found[0] or found[1] for found in re.findall(r"url\([\"']?([^)\"']+)|@import \"([^\"]+)", site["assets"])
    }
    assert "assets/site.css" in fetched
    assert {address for address in fetched if urlsplit(address).netloc} == set()


def test_every_part_is_generated_and_every_table_is_rendered(site: dict[str, str]) -> None:
    for name, page in site.items():
        assert "<!-- generated:" not in page, name
        assert not re.search(r"<p>[^<]*\n(- |\| )", page), f"{name} has a list or a table without an empty line above"


def test_the_reference_has_everything(site: dict[str, str]) -> None:
    configuration = site["reference/configuration.html"]
    for leaf in leaves(RunConfig):
        assert f'id="{".".join(leaf.path)}"' in configuration
        assert leaf.variable in configuration
    for name in PROCESS_SETTINGS:
        assert f"ACTORQ_{name.upper()}<" in configuration
    for service in SERVICES:
        assert all(f'<h3 id="{method.name.lower()}">' in site["reference/rpcs.html"] for method in service.methods)
    rpcs = sum(len(service.methods) for service in SERVICES)
    assert site["reference/rpcs.html"].count("these roles may call it: <code>") == rpcs
    for metric in metrics.documented():
        assert metric.name in site["reference/metrics.html"]
    for command in ("train", "quantize", "cluster up", "learner"):
        assert f"usage: actorq {command}" in site["reference/command-line.html"]
    for name in ("LearnerClient", "watch", "QuantizerClient", "ActorClient", "UnavailableError"):
        assert name in site["reference/client.html"]


def test_a_missed_target_is_on_the_overview_and_on_its_page(site: dict[str, str]) -> None:
    sections = {part.partition('"')[0]: unescape(part) for part in site["benchmarks/index.html"].split('<h2 id="')}
    for each in verdicts.failed():
        if each.newest is not each:
            heading = "targets-that-an-older-result-missed"
        else:
            heading = "targets-without-a-verdict" if each.target.refused else "targets-that-are-missed"
        if each.newest is each or not each.target.refused:
            assert (each.measured if each.target.measured else each.case) in sections[heading]
        page = unescape(site[f"benchmarks/{results.page(each.result).removesuffix('.md')}.html"])
        plain = f"<strong>Missed</strong>: {each.meaning.question.split('`')[0]}"
        assert plain in page or heading != "targets-that-are-missed"


def test_older_results_are_in_collapsed_blocks(site: dict[str, str]) -> None:
    folded = "".join(re.findall(r'<details class="note">(.*?)</details>', site["benchmarks/faults.html"], re.DOTALL))
    for older, newer in (("copies_before", "copies"), ("floods_before", "floods")):
        assert f"<code>{results.command(older)}</code></p>" in folded
        assert f"<code>{results.command(newer)}</code></p>" not in folded


def test_every_result_and_every_table_is_on_a_page() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in BENCHMARKS)
    for name in results.stored():
        assert text.count(f"<!-- generated: record of {name} -->") == 1, name
        assert f"<!-- generated: line of {name} -->" in text, name
    assert {name for name in TABLES if f"<!-- generated: {name} -->" not in text} == set()


@pytest.mark.parametrize("page", BENCHMARKS, ids=lambda page: page.stem)
def test_no_figure_is_typed_by_hand(page: Path) -> None:
    assert typed_figures(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", results.stored())
def test_the_command_of_a_result_exists(name: str) -> None:
    module = results.command(name).split()[2].replace(".", "/")
    assert (ROOT / f"{module}.py").exists() or (ROOT / module / "__main__.py").exists()


def test_a_field_that_a_result_lacks_is_shown_as_not_recorded() -> None:
    old = next(name for name in results.stored() if "commit" not in results.load(name))
    assert "| commit | not recorded |" in results.record(old)
    assert results.load("start")["commit"][:12] in results.record("start")


def test_names_that_a_docstring_explains_are_a_list() -> None:
    text = "Act.\n\nobservations, dones: float32[B, N],\n    of a batch.\nseed: of the noise.\n\nRaises UserError."
    items = "- `observations`, `dones`: float32[B, N],\n    of a batch.\n- `seed`: of the noise."
    assert listed(text) == f"Act.\n\n{items}\n\nRaises UserError."
    assert listed("Act.\nseed: of the noise.") == "Act.\n\n- `seed`: of the noise."


def test_a_target_of_another_processor_is_neither_met_nor_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    target = {"name": "times", "measured": 7.0, "bound": 6.0, "at_most": False, "refused": "", "needs": DOT_PRODUCT}
    stored = {
        "targets": [{**target, "met": None}, {**target, "met": False}],
        "command": "python -m benchmarks.x",
        "machine": {"cpu": "a processor", "cores": 2},
    }
    monkeypatch.setattr(results, "load", lambda name: {**stored, "date": "2026-01-02"})
    monkeypatch.setattr(verdicts, "load", results.load)
    monkeypatch.setattr(verdicts, "stored", lambda: ["x"])
    assert "| none: needs an int8 dot product, which this processor lacks |" in results.targets("x")
    assert [each.met for each in verdicts.of("x")] == [None, False]
    assert len(list(verdicts.failed())) == 1
    assert "Targets met: 0 of 1." in results.line("x")
