"""Writes docker/requirements/: the packages of the images with versions and hashes, from pyproject.toml and
constraints.txt.

Run `make requirements` after a change of one of these files. It uses uv and uv's package index. The packages are for
Python 3.11 on Linux. The hashes cover all files of a version, so they fit each processor.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docker" / "requirements"
# The extras of each image, then optional extras. The file of an optional extra has only additional packages.
IMAGES = {"learner": ("learner", "s3"), "quantizer": ("quantizer",), "actor": ("actor",), "operator": ("operator",)}
ADDITIONS = {
    "learner": ("mlflow", "wandb"),
    "actor": ("box2d", "mujoco", "dm-control", "atari", "envpool", "pettingzoo"),
}
# PyTorch and its CUDA packages come from the index that the builder of the image chooses. Each index has different
# files.
OF_TORCH = re.compile(r"(torch|triton|cuda-|nvidia-(?!ml-py))")
_OPTIONS = (
    "--python-platform",
    "linux",
    "--python-version",
    "3.11",
    "--generate-hashes",
    "--no-annotate",
    "--no-header",
    "--quiet",
)


def resolved(extras: tuple[str, ...]) -> dict[str, str]:
    """The text of each pinned package of these extras, by name."""
    chosen = [argument for extra in extras for argument in ("--extra", extra)]
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", *_OPTIONS, *chosen]
    command += ["--constraint", "constraints.txt"]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    entries = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    pinned = {entry.partition("==")[0]: entry for entry in entries if "==" in entry}
    return {name: entry for name, entry in pinned.items() if not OF_TORCH.match(name)}


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for image, extras in IMAGES.items():
        own = resolved(extras)
        (FOLDER / f"{image}.txt").write_text("".join(own.values()), encoding="utf-8")
        for addition in ADDITIONS.get(image, ()):
            added = resolved((*extras, addition))
            text = "".join(entry for name, entry in added.items() if name not in own)
            (FOLDER / f"{addition}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
