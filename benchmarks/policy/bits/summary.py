"""The fewest bits that keep a policy's return, for each task and each rounded form."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

# Share of the difference between FP32's return and that of random actions.
KEPT = 0.95


def share(mean_return: float, fp32: float, random: float) -> float:
    """The part of (fp32 - random) that a return keeps: 1 for FP32's return, 0 for that of random actions.

    Raises ValueError if FP32 is no better than random actions.
    """
    if fp32 <= random:
        raise ValueError(f"expected a return of FP32 above that of random actions, {random:.4g}, got {fp32:.4g}")
    return (mean_return - random) / (fp32 - random)


def fewest(kept: Mapping[int, float], least: float = KEPT) -> int | None:
    """The fewest bits such that these and all larger ones keep at least this share; None if not even the most do.

    kept: shares by bits.
    """
    found = None
    for bits in sorted(kept, reverse=True):
        if kept[bits] < least:
            break
        found = bits
    return found


def summarized(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each task and form: the kept share by bits, of the mean return over seeds, and the fewest bits.

    runs: with `task`, `seed` and `returns`: mean returns by form and bits. Runs that were trained without simulated
    rounding also have `fp32` and `random`, and all forms are compared with these. If FP32 is no better than random
    actions, `kept` is empty and `fewest` is None.
    """
    rows = []
    for task in dict.fromkeys(run["task"] for run in runs):
        own = [run for run in runs if run["task"] == task]
        plain = [run for run in own if "random" in run]
        fp32, random = (fmean(run[key] for run in plain) for key in ("fp32", "random"))
        for form in dict.fromkeys(form for run in own for form in run["returns"]):
            # Numbers of bits are texts in JSON.
            returns: dict[int, list[float]] = {}
            for run in own:
                for bits, mean_return in run["returns"].get(form, {}).items():
                    returns.setdefault(int(bits), []).append(mean_return)
            kept = {
                bits: share(fmean(values), fp32, random) for bits, values in sorted(returns.items()) if fp32 > random
            }
            row = {"task": task, "form": form, "seeds": len(plain), "fp32": fp32, "random": random}
            rows.append({**row, "kept": kept, "fewest": fewest(kept)})
    return rows
