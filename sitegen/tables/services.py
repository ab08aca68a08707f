"""Tables of the services: the learner's updates, the actor's loop, many peers, autoscaling."""

from statistics import fmean, median, stdev
from typing import Any

from benchmarks.learner.precision import BF16, FP32, TASKS, verdict
from sitegen.markdown import number, percent, spread, table
from sitegen.results import NEWER, Run, beside, figures, newest_runs, older_tables

_PRECISION = ("precision", *NEWER["precision"])


def learner() -> str:
    """Updates per second compared with other libraries."""
    return _learner("learner")


def learner_without_vnni() -> str:
    """The same on a processor without AVX-512, VNNI and bfloat16."""
    return _learner("learner_without_vnni")


def _learner(result: str) -> str:
    rows = [
        (
            task,
            library,
            each["updates_per_second"]["cpu"],
            each["updates_per_second"]["wall"],
            each["speedup_of_ours"]["cpu"],
        )
        for task, libraries in figures(result).items()
        for library, each in libraries.items()
    ]
    return table(("update", "library", "updates/s of CPU time", "updates/s", "ActorQ is faster by"), rows)


def learner_products() -> str:
    """The share of products in an update, and how fast an update of nothing else would be."""
    rows = [
        (task, precision, percent(ours["products"]), rate / theirs, rate / ours["products"] / theirs)
        for task, libraries in figures("learner_products").items()
        if (library := libraries.get("Stable-Baselines3"))
        for theirs in [library["updates_per_second"]["cpu"]]
        for precision, ours in libraries.items()
        if "products" in ours
        for rate in [ours["updates_per_second"]["cpu"]]
    ]
    columns = ("update", "implementation", "share of products", "times Stable-Baselines3", "with products alone")
    return table(columns, rows)


def learner_cores() -> str:
    """Updates per second by number of threads."""
    return _learner_cores("learner_cores")


def learner_cores_without_vnni() -> str:
    """The same on a processor without AVX-512, VNNI and bfloat16."""
    return _learner_cores("learner_cores_without_vnni")


def _learner_cores(result: str) -> str:
    rows = [
        (case, contender, each["updates_per_second"], each["of_one_thread"])
        for case, contenders in figures(result).items()
        for contender, each in contenders.items()
    ]
    return table(("update", "library and threads", "updates/s", "times ActorQ with one thread"), rows)


def gpu() -> str:
    """Updates per second on a GPU and on the CPU of the same machine."""
    rows = [
        (case, contender.removeprefix(f"{device} "), device.upper(), rate)
        for case, rates in figures("gpu")["cases"].items()
        for contender, rate in rates.items()
        for device in [contender.partition(" ")[0]]
    ]
    return table(("update", "precision", "device", "updates/s"), rows)


def precision() -> str:
    """Mean returns of training in both precisions, by the newest result."""
    return _precision(newest_runs(_PRECISION))


def older_precision() -> str:
    """The same by older results."""
    return older_tables(_PRECISION, _precision)


def _precision(found: list[Run]) -> str:
    rows = []
    for task in TASKS:
        runs = [run for run in found if run["task"] == task.name]
        if runs:
            of = [[run["confirmed"]["mean_return"] for run in runs if run["asked"] == each] for each in (BF16, FP32)]
            shown = (f"{fmean(each):,.1f} ± {stdev(each):,.1f}" for each in of)
            rows.append((task.name, len(of[0]), *shown, beside(verdict(task, runs))))
    return table(("task", "seeds", "return in bf16", "return in fp32", "bf16's mean compared with fp32's"), rows)


def throughput() -> str:
    """Speeds relative to an earlier commit."""
    found = figures("throughput")
    names = {
        "updates": "updates/s of the learner",
        "steps": "steps/s of an actor",
        "ingest": "transitions/s into the replay",
    }
    rows = [
        (text, median(found[name]["before"]), median(found[name]["now"]), found[name]["ratio"])
        for name, text in names.items()
    ]
    return table(
        ("speed", f"commit {found['against']}", "measured commit", f"measured commit vs {found['against']}"), rows
    )


def sparse_learner() -> str:
    """Time of an update of sparse networks relative to dense ones."""
    cells = figures("sparse_learner")["cells"]
    ways = [way for way in cells[0]["ratios"] if way != "dense"]
    rows = [
        (each["case"], "/".join(map(percent, each["sparsity"])), each["width"], *(each["ratios"][way] for way in ways))
        for each in cells
    ]
    return table(("task", "sparsity of policy/critic", "width", *(f"{way}, time vs dense" for way in ways)), rows)


def actor() -> str:
    """Steps per second of the acting loop compared with bare loops."""
    return _actor("actor")


def actor_without_vnni() -> str:
    """The same on a processor without an int8 dot product."""
    return _actor("actor_without_vnni")


def _actor(result: str) -> str:
    ways = {"bare": "bare loop", "actor": "ActorQ's actor", "torch": "PyTorch loop", "envpool": "EnvPool, synchronous"}
    rows = [
        (each["task"], text, each["steps_per_second"][way], percent(each["wall_shares"][way]))
        for each in figures(result)["results"]
        for way, text in ways.items()
        if way in each["steps_per_second"]
    ]
    return table(("task", "loop", "steps/s", "steps/s vs bare loop"), rows)


def pools() -> str:
    """Steps per second of the actor on each environment backend."""
    rows = [
        (each["task"], pool, each["steps_per_second"][pool], each["times"][pool])
        for each in figures("actor")["pools"]
        for pool in each["steps_per_second"]
    ]
    return table(("task", "environments", "steps/s of the actor", "steps/s vs Python loop"), rows)


def embedded() -> str:
    """Steps per second of an actor in the caller's process compared with an actor process."""
    rows = [
        (name, spread(rates["own process"]), spread(rates["caller's process"]), percent(rates["ratio"]))
        for name, rates in figures("embedded").items()
    ]
    head = ("task", "actor process: steps/s", "caller's process: steps/s", "caller's process vs actor process")
    return table(head, rows)


def profile() -> str:
    """Predicted and measured speeds."""
    keys = ("task", "scheme", "samples_per_insert", "actors", "predicted_steps_per_s", "measured_steps_per_s")
    rows = [(*(run[key] for key in keys), percent(run["error"]), run["limit"]) for run in figures("profile")["runs"]]
    head = (
        "task",
        "scheme",
        "samples per insert",
        "actors",
        "predicted steps/s",
        "measured steps/s",
        "error",
        "predicted limit",
    )
    return table(head, rows)


def scaling() -> str:
    """Number of actors that the autoscaler reaches."""
    rows = []
    for _, (up, down) in figures("scaling").items():
        rows += [_settled("up", up), _settled("down", down)]
    head = ("direction", "needed actors", "settles at", "polls", "overshoot", "more than needed", "changes afterwards")
    return table((*head, "learner starved", "actors blocked"), rows)


def _settled(direction: str, found: dict[str, Any]) -> tuple[object, ...]:
    shares = [percent(found[key]) for key in ("overshoot", "excess")]
    waits = [percent(found[key], 1) for key in ("starved", "blocked")]
    return direction, found["needed"], found["settled_at"], found["settled_polls"], *shares, found["changes"], *waits


def load() -> str:
    """Throughput of a learner with many streams, compared with a bare gRPC server."""
    found = figures("load")
    names = {
        "segments_per_s": "segments/s",
        "transitions_per_s": "transitions/s",
        "mb_per_s": "MB/s",
        "acknowledged_p50_ms": "ms to the acknowledgement, median",
        "acknowledged_p99_ms": "ms to the acknowledgement, 99th percentile",
        "server_cpu_us_per_segment": "us of server CPU for each segment",
    }
    rows = [
        (text, *(median(pair[side][name] for pair in found["pairs"]) for side in ("learner", "bare")))
        for name, text in names.items()
    ]
    streams = f"{found['streams']} streams, segments of {number(found['segment_bytes'])} bytes, medians of pairs:"
    return f"{streams}\n\n{table(('', 'learner', 'bare gRPC stream'), rows)}"


def streams() -> str:
    """Cost of many actors at one learner."""
    keys = ("streams", "segment_transitions", "segment_bytes", "join_wall_ms", "resident_kb_per_stream")
    more = ("cpu_us_per_report", "cpu_us_per_segment", "transitions_per_s")
    head = ("actors", "transitions of a segment", "bytes", "ms of a join", "kB for each actor")
    costs = ("us of CPU for each report", "us of CPU for each segment", "transitions/s")
    return table((*head, *costs), ([each[key] for key in (*keys, *more)] for each in figures("streams")["actors"]))


def watchers() -> str:
    """Cost of many watchers at one quantizer."""
    rows = [
        (
            *("-".join(map(str, each["hidden_sizes"])), each["watchers"], each["policy_bytes"]),
            *(each["wall_ms_per_policy"], each["cpu_ms_per_policy"], each["resident_kb_per_watcher"]),
        )
        for each in figures("streams")["watchers"]
    ]
    return table(("policy", "watchers", "bytes", "ms for each policy", "ms of CPU", "kB for each watcher"), rows)


def fanout() -> str:
    """Time until the last subscriber has a policy."""
    found = figures("fanout")
    ways = {
        "direct": "direct",
        "relayed": "through two relays",
        "bare_streams": "as many bare gRPC streams",
        "plain_stream": "one plain stream of the same bytes",
    }
    rows = [(text, spread(found[way]["all_ms"])) for way, text in ways.items()]
    about = f"{found['subscribers']} subscribers, a policy of {number(found['policy_bytes'])} bytes:"
    return f"{about}\n\n{table(('way', 'ms until the last subscriber has the policy'), rows)}"


def fanout_memory() -> str:
    """Memory of quantizer and relay."""
    names = {
        "quantizer_mb": "quantizer without subscribers, MB",
        "with_subscribers_mb": "with subscribers, MB",
        "after_versions_mb": "after all versions, MB",
        "after_a_slow_one_mb": "after a slow subscriber, MB",
        "kb_per_subscriber": "for each subscriber, kB",
        "relay_mb": "relay, MB",
        "relay_kb_per_subscriber": "relay, for each subscriber, kB",
    }
    memory = figures("fanout")["memory"]
    return table(("memory", ""), ((text, memory[name]) for name, text in names.items()))
