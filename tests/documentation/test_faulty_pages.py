"""A strict build of the site fails if a page has a fault."""

from pathlib import Path
from typing import Any

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from tests.documentation.code_blocks import ROOT

FAULTS = {
    "a missing picture": ("index.md", "![A plot](images/none.png)", "images/none.png"),
    "a missing picture in HTML": ("index.md", '<img alt="A plot" src="images/none.png">', "images/none.png"),
    "a link to no page": ("index.md", "[Other](other.md)", "other.md"),
    "a dead anchor": ("index.md", "[Part](#none)", "#none"),
    "a typed figure": ("benchmarks/speed.md", "It is 7.5 times faster.", "7.5"),
    "Python that does not compile": ("index.md", "```python\nx = = 1\n```", "invalid syntax"),
    "YAML that cannot be read": ("index.md", "```yaml\na: [1\n```", "yaml cannot be read"),
    "JSON that cannot be read": ("index.md", '```json\n{"a": }\n```', "json cannot be read"),
    "an open code block": ("index.md", "```sh\nactorq train\n", "expected each code block to end"),
}
RIGHT = """# Page

[Here](#page)

It takes 7 steps.

```python
x = 1
```

<!-- not run: it is a part -->
```python
x = = 1
```
"""


def build_page(folder: Path, path: str, text: str) -> None:
    """Build a site of one page with the project's configuration, strictly."""
    docs = folder / "docs"
    for name, content in {"index.md": "# Home\n", path: text}.items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text(content, encoding="utf-8")
    changed: dict[str, Any] = {"docs_dir": str(docs), "site_dir": str(folder / "site"), "nav": [{"Home": "index.md"}]}
    build(load_config(str(ROOT / "mkdocs.yml"), **changed, plugins=["search"], extra_css=[], strict=True))


@pytest.mark.parametrize(("path", "text", "named"), FAULTS.values(), ids=FAULTS)
def test_a_faulty_page_fails_the_build(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, text: str, named: str
) -> None:
    with pytest.raises(Abort):
        build_page(tmp_path, path, f"# Page\n\n{text}\n")
    assert named in caplog.text


def test_a_page_without_faults_is_built(tmp_path: Path) -> None:
    build_page(tmp_path, "index.md", RIGHT)
    assert "It takes 7 steps." in (tmp_path / "site" / "index.html").read_text("utf-8")
