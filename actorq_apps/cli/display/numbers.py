"""Formats numbers for people."""


def duration(seconds: float) -> str:
    """A duration, such as 12.3s, 4m 05s, 2h 03m."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m"


def seconds(value: float) -> str:
    """A short time, such as 34 ms or 1.2 s."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def optional(value: float | None, digits: int = 1) -> str:
    """A number, or a dash for None."""
    return "-" if value is None else f"{value:,.{digits}f}"
