"""Tables of policies with memory: drift of the state, and time of a call."""

from sitegen.markdown import number, percent, table
from sitegen.results import figures


def drift() -> str:
    """The drift of each int8 policy after some steps, with the gate's verdict."""
    found = figures("drift")["drift"]
    steps = list(found[0]["after"])
    rows = [
        (
            each["policy"],
            *(percent(each["after"][step], 2) for step in steps),
            percent(each["gate"], 2),
            ", ".join(each["in_float"]) or "none",
            number(each["task_error"]),
        )
        for each in found
    ]
    after = (f"after {int(step):,} step{'s' * (step != '1')}" for step in steps)
    return table(("policy", *after, "in the gate", "layers that the gate put in float", "error on the task"), rows)


def drift_speed() -> str:
    """Median microseconds of a call in each form, and how many times int8 is faster."""
    found = figures("drift")["speed"]
    forms = list(dict.fromkeys(form for each in found for form in each["timings"]))
    rows = []
    for each in found:
        medians = {form: timing["median"] for form, timing in each["timings"].items()}
        cells = (
            f"{number(medians[form])} ({medians[form] / medians['int8']:.2f})" if form in medians else None
            for form in forms
        )
        rows.append((f"{each['kind']} {each['units']}", each["batch"], *cells))
    return table(("cell", "batch", *(f"{form}, us (times int8)" for form in forms)), rows)
