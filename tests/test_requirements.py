"""The files with the hashes of the images' packages."""

import re
import tomllib

import pytest

from sitegen.requirements import ADDITIONS, FOLDER, IMAGES, OF_TORCH, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FILES = [*IMAGES, *(name for names in ADDITIONS.values() for name in names)]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE)
    return {normal(name): version for name, version in found}


CONSTRAINTS = pins((ROOT / "constraints.txt").read_text("utf-8"))


def test_there_is_a_file_for_each_image_and_addition_and_no_other() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(FILES)
    assert set(FILES) < set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("name", FILES)
def test_versions_are_the_tested_ones_and_each_has_hashes(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text("utf-8")
    assert pins(text).items() <= CONSTRAINTS.items(), "run make requirements"
    for entry in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        assert not entry or re.fullmatch(r"\S+==[^\\]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n", entry), entry


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_hashes_of_all_that_the_project_asks_for(image: str) -> None:
    asked = [*PROJECT["dependencies"], *(each for extra in IMAGES[image] for each in needed(extra))]
    names = {normal(re.split(r"[\[<>=]", requirement)[0]) for requirement in asked}
    found = pins((FOLDER / f"{image}.txt").read_text("utf-8")).keys()
    assert {name for name in names if not OF_TORCH.match(name)} <= found, "run make requirements"


def needed(extra: str) -> list[str]:
    """The requirements of an extra, with those of the extras that it names."""
    found = []
    for requirement in PROJECT["optional-dependencies"][extra]:
        inner = re.fullmatch(r"actorq\[(.*)\]", requirement)
        found += [each for name in inner[1].split(",") for each in needed(name)] if inner else [requirement]
    return found
