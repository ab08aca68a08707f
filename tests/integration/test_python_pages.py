"""Runs the Python of the pages about training from Python, block by block, as a reader would paste it."""

from pathlib import Path

import pytest

from tests.documentation.code_blocks import blocks


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ["docs/how-to/python.md", "docs/how-to/from-stable-baselines3.md", "README.md"])
def test_the_blocks_of_a_page_run_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    ran = [block for block in blocks("python", page) if not block.reason]
    assert ran
    for block in ran:
        exec(compile(block.code, str(block), "exec"), names)
