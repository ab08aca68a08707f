"""Formats text for people: a peer's text on one short line, sizes in bytes, and returns."""

import math

# gRPC sends an error's details in a header of at most 8 KiB, with up to three bytes for each byte of text.
MAX_LINE_BYTES = 2_000
_ENDING = " ..."
_MOST_DIGITS = 6


def one_line(text: str, most_bytes: int = MAX_LINE_BYTES) -> str:
    r"""The text cut to `most_bytes` of UTF-8, with characters that are not printable escaped, such as "\n".

    Line ends, terminal escapes and characters that change the writing direction count as not printable.
    """
    # Later characters cannot be shown, and escaping a megabyte is slow.
    shown = text[: most_bytes + 1]
    if not shown.isprintable():
        shown = "".join(
            letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in shown
        )
    data = shown.encode("utf-8", "backslashreplace")
    if len(data) <= most_bytes:
        return data.decode()
    return data[: most_bytes - len(_ENDING)].decode("utf-8", "ignore") + _ENDING


def reason_of(error: BaseException) -> str:
    """The message of a library's error on one line of at most 300 characters."""
    return " ".join(str(error).split())[:300]


def size_text(count: float) -> str:
    """A number of bytes, such as 812 B, 18.4 KiB, 410 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def return_text(value: float | None) -> str:
    """A return with at least two digits, such as 1,234.5, 9.87, 0.85 and 0.0042, or a dash for None."""
    if value is None:
        return "-"
    size = abs(value)
    if not math.isfinite(size) or size == 0 or size >= 10:
        return f"{value:,.1f}"
    return f"{value:.{max(2, min(_MOST_DIGITS, 1 - math.floor(math.log10(size))))}f}"
