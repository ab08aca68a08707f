"""A release: one version, one date, and what cites it."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from actorq import __version__

ROOT = Path(__file__).parents[1]
# The project's images, the chart, and labels of objects.
_NAMED = re.compile(
    r"actorq-(?:learner|quantizer|actor|operator):(\d[\w.]*)|^appVersion: (\S+)|^ *(?:tag|version): (\d+\.\d+\.\d+)"
    r"|newTag: (\d[\w.]*)|app\.kubernetes\.io/version: (\d[\w.]*\w)|image\.version=\"([^\"]+)\"",
    re.MULTILINE,
)
_FOLDERS = ("charts", "docs", "examples", "k8s", "Dockerfile", "README.md", "CITATION.cff")


@pytest.fixture(scope="module")
def cited() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    return values


def test_all_files_name_the_same_version() -> None:
    listed = subprocess.run(["git", "ls-files", "-z", *_FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name.endswith((".md", ".yaml", ".cff", "file"))]
    named = {
        (str(path.relative_to(ROOT)), version)
        for path in paths
        for found in _NAMED.findall(path.read_text(encoding="utf-8"))
        for version in found
        if version
    }
    assert {name for name, version in named if version != __version__} == set()
    assert {"CITATION.cff", "Dockerfile", "charts/actorq/Chart.yaml", "charts/actorq/values.yaml"} < dict(named).keys()


def test_the_newest_release_of_the_changelog_is_this_one_and_has_the_cited_date(cited: dict[str, Any]) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heads = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    released = [head for head in heads if head != "Unreleased"]
    assert released[0] == f"{__version__} - {cited['date-released']}"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", head) for head in released)
    kinds = set(re.findall(r"^### (.+)$", changelog, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_citation_is_complete(cited: dict[str, Any]) -> None:
    assert cited["version"] == __version__
    assert cited["license"] == "Apache-2.0"
    required = {"abstract", "authors", "cff-version", "date-released", "keywords", "message", "title", "type"}
    assert required <= {name for name, value in cited.items() if value}
    papers = {
        identifier["value"] for paper in cited["references"] for identifier in paper["identifiers"] if paper["authors"]
    }
    assert {"arXiv:1910.01055", "arXiv:2205.15043"} <= papers


def test_a_report_of_a_vulnerability_has_a_way_and_supported_versions() -> None:
    policy = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    major, minor, _ = __version__.split(".")
    assert f"| {major}.{minor}.x | yes |" in policy
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", policy):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda form: form.stem
)
def test_a_form_of_issues_has_fields_with_names_of_their_own(form: Path) -> None:
    content = yaml.safe_load(form.read_text(encoding="utf-8"))
    if form.stem == "config":
        assert content == {"blank_issues_enabled": True}
        return
    assert content["name"]
    assert content["description"]
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 1
    assert all(field["attributes"]["label"] for field in fields)
