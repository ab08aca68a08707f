"""Formats numbers for people."""

from actorq.domain.status import RunStatus
from actorq.domain.trajectory import Evaluation
from actorq.text import return_text


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


def share(value: float) -> str:
    """A share in percent, such as 95% or 99.5%."""
    return f"{round(100 * value, 1):g}%"


def score(evaluation: Evaluation | None) -> str:
    """The return of an evaluation, and its success rate if it has one, such as "-3.25, success 95%"."""
    mean_return = return_text(evaluation.mean_return if evaluation else None)
    rate = None if evaluation is None else evaluation.success_rate
    return mean_return if rate is None else f"{mean_return}, success {share(rate)}"


def target(status: RunStatus) -> str:
    """The return or success rate that ends a run; empty for none."""
    if status.target_success is not None:
        return f"success {share(status.target_success)}"
    return "" if status.target_return is None else return_text(status.target_return)
