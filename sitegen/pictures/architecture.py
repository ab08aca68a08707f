"""The picture of the three services and the data between them."""

from sitegen.pictures import svg
from sitegen.pictures.svg import Palette

_WIDTH, _HEIGHT = 420, 294
_BOX_WIDTH, _BOX_HEIGHT = 144, 92


def architecture(palette: Palette) -> str:
    """The picture as SVG."""
    right = _WIDTH - 4 - _BOX_WIDTH
    parts = [
        svg.arrow_marker(palette.accents[1]),
        *_service(palette, 4, 4, _BOX_WIDTH, "Learner", "PyTorch, FP32", "trains the policy"),
        *_service(palette, right, 4, _BOX_WIDTH, "Quantizer", "ONNX", "checks each version"),
    ]
    # Cards behind the actors' box represent the other actors.
    for shift in (12, 6):
        parts.append(
            svg.box(70 + shift, 186 + shift, 264, _BOX_HEIGHT, palette.box, stroke=palette.accents[1], radius=8)
        )
    parts += _service(palette, 70, 186, 264, "Actors", "ONNX Runtime, int8, on CPUs", "step environments")
    parts += [
        svg.line(4 + _BOX_WIDTH, 50, right - 3, 50, palette.accents[1], 2, arrow=True),
        svg.text(_WIDTH / 2, 40, "FP32 weights", 14, palette.text, anchor="middle"),
        svg.text(_WIDTH / 2, 70, "graph sent once", 13.5, palette.muted, anchor="middle"),
        svg.line(right + 40, 4 + _BOX_HEIGHT, right + 40, 183, palette.accents[1], 2, arrow=True),
        svg.text(right + 32, 136, "int8 policies", 14, palette.text, anchor="end"),
        svg.text(right + 32, 154, "newest only", 13.5, palette.muted, anchor="end"),
        svg.line(100, 186, 100, 4 + _BOX_HEIGHT + 3, palette.accents[1], 2, arrow=True),
        svg.text(92, 136, "transitions", 14, palette.text, anchor="end"),
        svg.text(92, 154, "each once", 13.5, palette.muted, anchor="end"),
    ]
    return svg.document(_WIDTH, _HEIGHT, "Learner, quantizer and actors in a loop", parts)


def _service(palette: Palette, x: float, y: float, width: float, name: str, *lines: str) -> list[str]:
    middle = x + width / 2
    return [
        svg.box(x, y, width, _BOX_HEIGHT, palette.box, stroke=palette.accents[1], radius=8),
        svg.text(middle, y + 30, name, 18, palette.text, bold=True, anchor="middle"),
        *(
            svg.text(middle, y + 54 + 20 * row, content, 13.5, palette.muted, anchor="middle")
            for row, content in enumerate(lines)
        ),
    ]
