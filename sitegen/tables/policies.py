"""Tables of quantized policies: fidelity, inference, emission, bytes."""

from statistics import fmean
from typing import Any

from benchmarks.policy.bits.summary import KEPT
from sitegen.markdown import interval, number, percent, spread, table
from sitegen.results import figures
from sitegen.verdicts import plain


def fidelity() -> str:
    """Each policy in each scheme."""
    return _fidelity("fidelity")


def fidelity_without_vnni() -> str:
    """Each policy in each scheme, on a processor without an int8 dot product."""
    return _fidelity("fidelity_without_vnni")


def _fidelity(result: str) -> str:
    parts = []
    for policy, variants in figures(result)["policies"].items():
        rows = []
        for name, each in variants.items():
            errors = each["errors"]["32"]
            agreement = None if errors["agreement"] is None else percent(errors["agreement"], 2)
            returned = fmean(each["returns"]) if each["returns"] else None
            rows.append((name, agreement, errors["mean_error"], errors["max_error"], each["size_bytes"], returned))
        head = ("scheme", "same action as FP32", "mean error", "largest error", "bytes", "mean return")
        trained = figures(result)["trained_by"][policy]
        parts.append(f"**{policy}** ({trained}):\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def bits() -> str:
    """The fewest bits that keep a policy's return, by task and by what is rounded."""
    found, most = figures("bits")["summary"], max(figures("bits")["bits"])
    forms = list(dict.fromkeys(row["form"] for row in found))
    by_task: dict[str, dict[str, Any]] = {}
    for row in found:
        by_task.setdefault(row["task"], {})[row["form"]] = row["fewest"] or f"more than {most}"
    rows = [(plain(task), *(fewest.get(form) for form in forms)) for task, fewest in by_task.items()]
    return table((f"bits for {percent(KEPT)}", *forms), rows)


def bits_kept() -> str:
    """The share of each policy's return that each number of bits keeps."""
    return _bits_kept("bits")


def bits_quantization_aware() -> str:
    """The same with runs that trained with simulated rounding."""
    return _bits_kept("bits_quantization_aware")


def _bits_kept(result: str) -> str:
    found = figures(result)["summary"]
    parts = []
    for task in dict.fromkeys(row["task"] for row in found):
        own = [row for row in found if row["task"] == task]
        wanted = [str(each) for each in figures(result)["bits"]]
        # Without the sum, a share just below zero would be written as -0%.
        shares = [{bits: percent(round(share, 2) + 0.0) for bits, share in row["kept"].items()} for row in own]
        rows = [(row["form"], *map(kept.get, wanted)) for row, kept in zip(own, shares, strict=True)]
        first = own[0]
        means = f"FP32 {number(first['fp32'])}, random actions {number(first['random'])}, seeds: {first['seeds']}"
        parts.append(
            f"**{plain(task)}** ({means}):\n\n{table(('rounded', *(f'{each} bits' for each in wanted)), rows)}"
        )
    return "\n\n".join(parts)


def foreign() -> str:
    """Printed and measured agreement of each policy of another library."""
    rows = [
        (
            each["library"],
            each["policy"],
            each["form"],
            each["scheme"],
            f"{each['printed']:.1f}%",
            f"{each['measured']:.2f}%",
        )
        for each in figures("foreign")["models"]
    ]
    return table(("library", "policy", "output", "scheme", "printed agreement", "measured agreement"), rows)


def quantize() -> str:
    """Policies of each library: the choice of `auto` compared with onnxruntime.quantization. Medians."""
    libraries: dict[str, list[dict[str, Any]]] = {}
    for each in figures("quantize")["models"]:
        libraries.setdefault(each["library"], []).append(each)
    rows = []
    for library, models in libraries.items():
        schemes = sorted({each["scheme_1"] for each in models if "scheme_1" in each})
        ratios = [[each[name] for each in models if name in each] for name in ("bytes", "time_1", "time_32", "error")]
        refused = sum("refused" in each for each in models)
        rows.append((library, len(models), refused, ", ".join(schemes), *(spread(of) if of else None for of in ratios)))
    head = ("library", "policies", "refused", "`auto` at batch 1", "bytes", "time, batch 1", "time, batch 32", "error")
    return table(head, rows)


def inference() -> str:
    """Time of a call of each network at each batch size."""
    return _inference("inference")


def inference_without_vnni() -> str:
    """The same on a processor without an int8 dot product."""
    return _inference("inference_without_vnni")


def _inference(result: str) -> str:
    cells = figures(result)["cells"]
    schemes = list(cells[0]["timings"])
    rows = []
    for found in cells:
        timings = found["timings"]
        # Names with a comma are variants of a scheme. They are only for comparison.
        fastest = min(each["median"] for name, each in timings.items() if "," not in name)
        times = [number(timings[each]["median"]) for each in schemes]
        bold = [
            f"**{text}**" if timings[each]["median"] == fastest else text
            for each, text in zip(schemes, times, strict=True)
        ]
        rows.append((found["network"], found["batch"], *bold, found["auto"], percent(found["regret"], 1)))
    return table(("network", "batch", *(f"{scheme}, us" for scheme in schemes), "auto takes", "regret of auto"), rows)


def encodings() -> str:
    """Versions in two weight encodings compared with versions in one, by width."""
    rows = [
        (
            width,
            *(1e3 * each["seconds"][fleet] for fleet in ("one", "two")),
            each["ratio"],
            *(each["bytes"][name] for name in ("int8", "int8.unsigned")),
            sum(each["unequal"].values()),
        )
        for width, each in figures("encodings")["widths"].items()
    ]
    head = ("width", "one encoding, ms", "two encodings, ms", "ms of two vs one", "bytes, signed", "bytes, unsigned")
    return table((*head, "unequal outputs"), rows)


def swap() -> str:
    """Time from tensors to an acting policy, by width."""
    widths = figures("swap")["widths"]
    ways = next(iter(widths.values()))
    rows = [(way, *(found[way]["total_ms"] for found in widths.values())) for way in ways]
    return table(("ms of CPU time, by width", *widths), rows)


def swap_stages() -> str:
    """The stages of an int8 swap, by width."""
    widths = figures("swap")["widths"]
    stages = list(next(iter(widths.values()))["actorq int8"]["stages_ms"])
    rows = [(width, *(ways["actorq int8"]["stages_ms"][stage] for stage in stages)) for width, ways in widths.items()]
    return table(("width", *(f"{stage}, ms" for stage in stages)), rows)


def publication() -> str:
    """Whole runs: from a snapshot to its first action."""
    rows = [
        (each["activation_ms"], each["emission_ms"], each["policy_versions"]) for each in figures("publication")["runs"]
    ]
    return table(("median ms from snapshot to first action", "median ms of emission", "versions"), rows)


def sparse_bytes() -> str:
    """Bytes of an update of sparse policies, by scheme."""
    found = figures("sparse_policy")["bytes"]
    schemes = list(found[0]["watched"])
    rows = [
        (
            *(each["task"], each["masks"], percent(each["sparsity"]), each["dense"]),
            *(f"{number(each['watched'][scheme])} ({number(each['times'][scheme])})" for scheme in schemes),
        )
        for each in found
    ]
    return table(
        ("task", "masks", "sparsity", "dense fp32, bytes", *(f"{scheme}, bytes (times fewer)" for scheme in schemes)),
        rows,
    )


def sparse_calls() -> str:
    """Time of a call of sparse policies, by scheme."""
    calls = figures("sparse_policy")["calls"]
    schemes = list(calls[0]["timings"])
    rows = [
        (each["masks"], percent(each["sparsity"]), each["batch"], "-".join(map(str, each["widths"])))
        + tuple(interval(each["timings"][scheme]) for scheme in schemes)
        for each in calls
    ]
    return table(("masks", "sparsity", "batch", "units left", *(f"{scheme}, us" for scheme in schemes)), rows)
