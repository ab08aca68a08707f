"""Tables of policies with memory: returns, steps per second of the acting loop, drift of the state, time of a call."""

from statistics import median

from benchmarks.training.memory.tasks import TASKS
from sitegen.markdown import number, percent, spread, table
from sitegen.results import by, figures


def memory_tasks() -> str:
    """What each environment hides, and the bounds of the benchmark."""
    rows = (
        (f"`{task.name}`", task.hidden, ", ".join(task.steps), number(task.least), number(task.most), task.episodes)
        for task in TASKS
    )
    head = ("environment", "hidden", "algorithms", "with memory at least", "without at most", "episodes")
    return table(head, rows)


def memory_returns() -> str:
    """Returns, seconds and steps with memory and without it."""
    runs = [run for name in ("memory", "memory_sac") for run in figures(name)["runs"]]
    rows = []
    for own in by("task", runs).values():
        returns = ", ".join(number(run["confirmed"]["mean_return"]) for run in own)
        seconds = spread(run["wall_clock_s"] for run in own)
        steps = round(median(run["environment_steps"] for run in own))
        first = own[0]
        rows.append((f"`{first['environment']}`", first["algorithm"], first["memory"], returns, seconds, steps))
    head = ("environment", "algorithm", "memory", "return of each seed", "seconds", "environment steps")
    return table(head, rows)


def memory_loop() -> str:
    """Steps per second of the acting loop in int8 and in FP32."""
    rows = []
    for each in figures("memory_actor")["results"]:
        rates, (low, high) = each["steps_per_second"], each["quartiles"]
        times = f"{number(each['ratio'])} ({number(low)} to {number(high)})"
        cell = f"{each['kind']} {each['units']}"
        rows.append((cell, each["environments"], round(rates["int8"]), round(rates["fp32"]), times))
    head = ("cell", "environments", "int8, steps/s", "FP32, steps/s", "times (quartiles)")
    return table(head, rows)


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
