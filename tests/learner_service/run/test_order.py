"""The modules of a run call each other in one direction."""

import ast
from pathlib import Path

from learner_service import run

FOLDER = Path(run.__file__).parent
PREFIX = f"{run.__name__}."


def imported(module: str) -> set[str]:
    """The modules of the package that a module imports."""
    nodes = ast.walk(ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8")))
    names = (node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module)
    return {name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)}


def test_a_module_imports_only_those_above_it_in_the_list_of_the_package() -> None:
    order = [line.split()[0] for line in (run.__doc__ or "").splitlines()[4:] if line]
    assert {*order} == {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    for place, module in enumerate(order):
        assert imported(module) <= {*order[:place]}, module
    assert len(imported("run")) > 5
