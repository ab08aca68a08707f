"""The README for a package index: links to files of the project lead somewhere, or are text."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
README = """# ActorQ

![Return of the policy](docs/images/cartpole.png)

<picture>
  <source media="(prefers-color-scheme: dark)" srcset="docs/images/dark.svg">
  <img src="docs/images/light.svg" alt="Bars">
</picture>

<!-- generated: table -->
See [get started](docs/get-started.md#install), [the paper](https://arxiv.org/abs/1910.01055) and [below](#start).
"""


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = spec_from_file_location("setup_hook", ROOT / "setup.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_repository_links_to_files_become_text(hook: ModuleType) -> None:
    text = hook.long_description(README, None, "1.2.3")
    assert "See get started, [the paper](https://arxiv.org/abs/1910.01055) and [below](#start)." in text
    assert not re.search(r"cartpole|\.svg|picture|<!--", text)
    assert "source distribution" in text


@pytest.mark.parametrize("repository", ["https://forge.example/team/actorq", "https://forge.example/team/actorq/"])
def test_with_a_repository_links_lead_to_the_files_of_the_version(hook: ModuleType, repository: str) -> None:
    text = hook.long_description(README, repository, "1.2.3")
    base = "https://forge.example/team/actorq"
    assert f"![Return of the policy]({base}/raw/v1.2.3/docs/images/cartpole.png)" in text
    assert f'srcset="{base}/raw/v1.2.3/docs/images/dark.svg"' in text
    assert f'<img src="{base}/raw/v1.2.3/docs/images/light.svg" alt="Bars">' in text
    assert f"[get started]({base}/blob/v1.2.3/docs/get-started.md#install)" in text
    assert "[the paper](https://arxiv.org/abs/1910.01055) and [below](#start)" in text


@pytest.mark.parametrize("repository", [None, "https://forge.example/team/actorq"])
def test_the_readme_has_no_other_kind_of_link_to_a_file(hook: ModuleType, repository: str | None) -> None:
    text = hook.long_description((ROOT / "README.md").read_text(encoding="utf-8"), repository, "1.2.3")
    assert re.findall(r"\]\((?!https?://|#)[^)]*\)|(?:src|srcset|href)=\"(?!https?://|#)[^\"]*\"", text) == []
    assert text.startswith("# ActorQ\n")
