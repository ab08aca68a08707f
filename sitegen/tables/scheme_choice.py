"""The fastest schemes, from the stored timings of calls, for the page about choosing a scheme."""

from collections.abc import Iterable
from typing import Any

from sitegen import results
from sitegen.markdown import table

# Times up to this share above the fastest one count as equal, as in `auto`.
_EQUAL = 1.02
_TORCH, _FP32, _STATIC = "torch fp32", "fp32", "int8-static"


def fastest_schemes() -> str:
    """The fastest scheme of each network and batch, with its gain over FP32."""
    return _fastest("inference")


def fastest_schemes_without_vnni() -> str:
    """The same on a processor without an int8 dot product."""
    return _fastest("inference_without_vnni")


def _fastest(result: str) -> str:
    cells = results.figures(result)["cells"]
    batches = sorted({each["batch"] for each in cells})
    found = {(each["network"], each["batch"]): _of_cell(each) for each in cells}
    networks = dict.fromkeys(each["network"] for each in cells)
    head = ("network", *(f"batch {batch}" for batch in batches))
    return table(head, ((_network(name), *(found.get((name, batch)) for batch in batches)) for name in networks))


def _of_cell(measured: dict[str, Any]) -> str:
    equal = _as_fast(measured)
    if _FP32 in equal:
        return f"`{_FP32}`"
    gain = measured["timings"][_FP32]["median"] / measured["timings"][equal[0]]["median"]
    return f"{' or '.join(f'`{name}`' for name in equal)}, {gain:.1f}"


def _as_fast(measured: dict[str, Any]) -> list[str]:
    """The fastest scheme, then the schemes that count as equally fast."""
    # Names with a comma are variants of a scheme. They are only for comparison.
    times = {name: each["median"] for name, each in measured["timings"].items() if "," not in name and name != _TORCH}
    best = min(times.values())
    return sorted((name for name, time in times.items() if time <= _EQUAL * best), key=lambda name: times[name])


def _network(name: str) -> str:
    kind, _, width = name.partition(" ")
    return "convolutions" if kind == "cnn" else f"{kind.upper()}, {width} units"


def price_of_int8() -> str:
    """The largest slowdown of int8 against int8-static, in the rows of MLPs above batch 1."""
    worst = max(_static_rows(), key=_price)
    return (
        f"In the rows of MLPs above batch 1, a call in `int8` takes at most {_price(worst) - 1:.0%} longer than one in "
        f"`{_STATIC}`."
    )


def _price(measured: dict[str, Any]) -> float:
    times = measured["timings"]
    return float(times["int8"]["median"] / times[_STATIC]["median"])


def _static_rows() -> list[dict[str, Any]]:
    cells = results.figures("inference")["cells"]
    return [each for each in cells if each["batch"] > 1 and each["network"].startswith("mlp")]


def static_rows() -> str:
    """The number of rows of MLPs above batch 1 with int8-static as (equally) fastest scheme, and the other rows."""
    rows = _static_rows()
    others = [each for each in rows if _STATIC not in _as_fast(each)]
    first = (
        f"Above batch 1, `{_STATIC}` is the fastest scheme or within 2% of it in {len(rows) - len(others)} of "
        f"{len(rows)} rows of MLPs."
    )
    exceptions = (
        f"{each['network'].partition(' ')[2]} units at batch {each['batch']} (`{_as_fast(each)[0]}`)" for each in others
    )
    return f"{first} {_exceptions(exceptions)}".strip()


def _exceptions(found: Iterable[str]) -> str:
    listed = " and ".join(found)
    return f"The exceptions are {listed}." if listed else ""
