"""Packages that are installed for one test."""

from collections.abc import Mapping
from pathlib import Path


def install_package(folder: Path, name: str, source: str, group: str, points: Mapping[str, str]) -> None:
    """Write a package of one module with entry points into a folder, made if needed, which the caller puts on the path.

    points: by their names, MODULE:NAME of what they load.
    """
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / f"{name}.py").write_text(source, "utf-8")
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
    lines = "".join(f"{point} = {value}\n" for point, value in points.items())
    (information / "entry_points.txt").write_text(f"[{group}]\n{lines}", "utf-8")
