"""Mutants change one place each, and every module of the glue is there with its tests."""

import ast
from pathlib import Path

import pytest

from benchmarks.faults.mutants import GLUE, RULES, Reach, mutants, sample

ROOT = Path(__file__).parents[3]
SOURCE = """
def store(items, most):
    if len(items) < most and items:
        write(max(items) + 1)
    return True
"""


def test_each_mutant_changes_one_place() -> None:
    found = list(mutants("store.py", SOURCE))
    assert len({mutant.source for mutant in found}) == len({mutant.digest() for mutant in found}) == len(found)
    assert ast.unparse(ast.parse(SOURCE)) not in {mutant.source for mutant in found}
    changed = {mutant.source for mutant in found}
    for expected in (
        "len(items) <= most",
        "< most or items",
        "min(items) + 1",
        "max(items) - 1",
        "+ 2",
        "return False",
        "if not (",
    ):
        assert sum(expected in source for source in changed) == 1, expected
    # The call is gone.
    assert sum("write" not in source for source in changed) == 1


def test_a_sample_follows_from_its_seed_and_survives_a_change() -> None:
    changed = SOURCE + "    look(items[0])\n"

    def places(source: str, seed: int = 1, count: int = 4) -> list[tuple[str, str]]:
        return [(mutant.before, mutant.after) for mutant in sample({"store.py": source}, seed, count)]

    assert places(SOURCE) == places(SOURCE)
    assert places(SOURCE) != places(SOURCE, seed=2)
    every = places(SOURCE, count=100)
    assert len(every) == len(list(mutants("store.py", SOURCE)))
    assert [each for each in places(changed, count=100) if each in every] == every


def test_what_is_logged_is_no_glue() -> None:
    assert list(mutants("store.py", "_log.info('stored')")) == []


@pytest.mark.parametrize("source", ["@dataclass(frozen=True)\nclass Item:\n    n: int", "x = zip(a, strict=True)"])
def test_what_only_forbids_a_mistake_is_no_glue(source: str) -> None:
    assert list(mutants("store.py", source)) == []


def test_the_glue_and_its_tests_are_there() -> None:
    for file, tests in GLUE.items():
        assert all((ROOT / place).exists() for place in (file, *tests)), file
    for rule in RULES:
        place, _, name = rule.partition("::")
        assert f"def {name}(" in (ROOT / place).read_text(encoding="utf-8")


def test_the_quickest_tests_that_reach_a_line_run_first() -> None:
    names = ["tests/room/test_slow.py::test_it", "tests/room/test_quick.py::test_it[1]"]
    reach = Reach({"test_slow::test_it": 2.0, "test_quick::test_it[1]": 0.1}, {("store.py", 3): [*names, *names]})
    assert reach.tests("store.py", 3) == names[::-1]
    assert reach.tests("store.py", 4) == []
