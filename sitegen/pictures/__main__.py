"""Writes the pictures of the first screen to docs/images: `python -m sitegen.pictures`.

The recording of the panel needs a run, so it has a separate command: `python -m sitegen.pictures.recording`.
"""

from collections.abc import Callable, Iterator

from sitegen.pictures.architecture import architecture
from sitegen.pictures.speedup import speedup
from sitegen.pictures.svg import IMAGES, PALETTES, Palette

_PICTURES: dict[str, Callable[[Palette], str]] = {"gain": speedup, "loop": architecture}


def pictures() -> Iterator[tuple[str, str]]:
    """The name and the content of each file."""
    for name, drawn in _PICTURES.items():
        for palette in PALETTES:
            yield f"{name}-{palette.name}.svg", drawn(palette)


if __name__ == "__main__":
    for file, content in pictures():
        (IMAGES / file).write_text(content, encoding="utf-8")
