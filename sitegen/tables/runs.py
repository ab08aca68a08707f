"""Tables of whole training runs: speed, returns and energy."""

from dataclasses import astuple
from statistics import fmean, median, stdev
from typing import Any

from benchmarks.libraries.parity import OURS, THEIRS, verdict
from benchmarks.training.rlx2_sparsities import PAPER, PUBLISHED_LOWEST_FLOPS, PUBLISHED_MEANS, PUBLISHED_RETURNS
from sitegen.markdown import interval, number, percent, spread, table
from sitegen.results import NEWER, Run, beside, by, figures, newest_runs, older_tables

# Results that were made at different times, from the older to the newer.
RETURNS = ("returns_mountain_car_continuous", "returns", *NEWER["returns"])
PARITY = ("parity", *NEWER["parity"])
RLX2 = ("rlx2", "rlx2_hopper", "rlx2_walker2d", "rlx2_ant", "rlx2_sac_hopper", *NEWER["rlx2"])


def speedup() -> str:
    """Each task of the comparison with PyTorch actors."""
    return "\n\n".join(_speedup_of(task) for task in figures("actorq")["tasks"])


def speedup_of_d4pg() -> str:
    """The same for D4PG."""
    return "\n\n".join(_speedup_of(task) for task in figures("actorq_balance")["tasks"])


def speedup_in_steps() -> str:
    """The same for runs that end before the target."""
    return "\n\n".join(_speedup_of(task) for task in figures("actorq_steps")["tasks"])


def speedup_without_vnni() -> str:
    """The same on a processor without an int8 dot product."""
    return "\n\n".join(_speedup_of(task) for task in figures("actorq_without_vnni")["tasks"])


def speedup_on_a_gpu() -> str:
    """The same with the learner on a GPU and 14 actors: runs of equal length, and runs to the target."""
    of = ("actorq_gpu", "actorq_gpu_to_target")
    return "\n\n".join(_speedup_of(task) for name in of for task in figures(name)["tasks"])


def on_policy_wide() -> str:
    """The same for PPO."""
    return "\n\n".join(_speedup_of(task) for task in figures("on_policy_wide")["tasks"])


def _speedup_of(task: dict[str, Any]) -> str:
    head = ("actors", "steps/s", "steps/s vs torch", "steps/s vs fp32", "seconds to target")
    speedups = ("times faster to target vs torch", "times faster to target vs fp32")
    more = (*speedups, "learner waits for data", "return on new episodes")
    rows = []
    for variant in task["variants"]:
        runs = variant["runs"]
        to_target = [run["to_target"]["seconds"] for run in runs if run["to_target"]]
        ratios = {each["baseline"]: each for each in variant["ratios"]}
        throughput, time = (
            [interval((ratios.get(baseline) or {}).get(of), "value") for baseline in ("torch", "fp32")]
            for of in ("throughput", "time_to_target")
        )
        reached = f"{number(median(to_target))} ({len(to_target)} of {len(runs)} seeds)" if to_target else "not reached"
        confirmed = [run["confirmed"]["mean_return"] for run in runs if run.get("confirmed")]
        rows.append(
            (
                *(variant["name"], median(run["steps_per_s"] for run in runs), *throughput, reached, *time),
                percent(median(run["starved_share"] for run in runs)),
                fmean(confirmed) if confirmed else None,
            )
        )
    title = f"**{task['algorithm']} on {task['environment']}**, three hidden layers of {task['width']} units"
    target = f"target {number(task['target_return'])}, seeds {', '.join(map(str, task['seeds']))}"
    return f"{title}, {target}:\n\n{table((*head, *more), rows)}"


def published() -> str:
    """The ratios of the paper."""
    of = figures("actorq")["tasks"][0]["published"]
    names = ("time_to_target", "throughput", "carbon")
    rows = [
        (each["tasks"], *(f"{each[name][0]} to {each[name][1]}" if each[name] else None for name in names))
        for each in of["ratios"]
    ]
    head = ("tasks", "times faster to target vs torch", "steps/s vs torch", "times less carbon vs torch")
    return f"{table(head, rows)}\n\nSource: {of['source']}"


def energy() -> str:
    """Energy of the runs of the comparison."""
    rows = []
    for name in ("actorq", "actorq_steps"):
        for task in figures(name)["tasks"]:
            for variant in task["variants"]:
                runs = variant["runs"]
                ratio = next((each["energy"] for each in variant["ratios"] if each["baseline"] == "torch"), None)
                of_runs = [median(run[key] for run in runs) for key in ("wh", "actor_wh", "co2_g")]
                rows.append((task["task"], variant["name"], *of_runs, interval(ratio, "value")))
    head = ("task", "actors", "Wh of a run", "Wh of its actors", "g of CO2", "times less energy than torch")
    method = figures("actorq")["tasks"][0]["variants"][0]["runs"][0]["energy_method"]
    return f"{table(head, rows)}\n\nMethod: {method}."


def energy_shares() -> str:
    """Energy of a short run, by service."""
    runs = figures("start")["runs"]
    rows = [(name, percent(median(run["energy_shares"][name] for run in runs))) for name in runs[0]["energy_shares"]]
    return table(("process", "share of the energy"), rows)


def start() -> str:
    """Short runs, by seed."""
    return _start("start")


def start_without_vnni() -> str:
    """The same on a processor without an int8 dot product."""
    return _start("start_without_vnni")


def _start(result: str) -> str:
    head = (
        "seed",
        "solved",
        "seconds of the command",
        "seconds to the first int8 action",
        "updates",
        "evaluations",
        "Wh",
    )
    keys = ("seed", "solved", "command_s", "first_action_s", "updates", "evaluations_taken", "wh")
    return table(head, ([run[key] for key in keys] for run in figures(result)["runs"]))


def cartpole() -> str:
    """CartPole, by seed."""
    head = ("seed", "solved", "seconds of training", "environment steps", "updates", "return on new episodes")
    memory = ("MB of the largest actor", "MB of the learner")
    rows = []
    for run in figures("cartpole")["runs"]:
        used = run["peak_memory_mb"]
        largest = max(value for name, value in used.items() if name.startswith("actor"))
        done = [run[key] for key in ("seed", "solved", "wall_clock_s", "environment_steps", "updates")]
        rows.append((*done, (run.get("confirmed") or run["evaluation"])["mean_return"], largest, used["learner"]))
    return table((*head, *memory), rows)


def returns() -> str:
    """Each task with its seeds, by the newest result."""
    return _returns_of(newest_runs(RETURNS))


def older_returns() -> str:
    """The same by older results."""
    return older_tables(RETURNS, _returns_of)


def _returns_of(found: list[Run]) -> str:
    rows = []
    for task, runs in by("task", found).items():
        confirmed = ", ".join(number(run["confirmed"]["mean_return"]) for run in runs)
        of_runs = [spread(run[key] for run in runs) for key in ("environment_steps", "wall_clock_s", "activation_ms")]
        rows.append((task, len(runs), runs[0]["target_return"], confirmed, *of_runs))
    head = ("task", "seeds", "ends at return", "return on new episodes, by seed", "environment steps", "seconds")
    return table((*head, "ms from snapshot to first action"), rows)


def memory() -> str:
    """Peak memory of each process of these runs."""
    found: dict[str, list[float]] = {}
    for run in newest_runs(RETURNS):
        for name, value in run["peak_memory_mb"].items():
            found.setdefault(name.partition("-")[0], []).append(value)
    return table(
        ("process", "peak memory in MB over all tasks"), ((name, spread(values)) for name, values in found.items())
    )


def seconds_by_preset() -> str:
    """Both presets on the same tasks."""
    head = ("task", "preset", "seed", "seconds to the target", "environment steps", "return on new episodes")
    runs = sorted(figures("presets")["runs"], key=lambda run: (run["task"], run["preset"], run["seed"]))
    rows = (
        (
            *(run["task"], run["preset"], run["seed"], run["seconds"], run["environment_steps"]),
            run["confirmed"]["mean_return"],
        )
        for run in runs
    )
    return table(head, rows)


def parity() -> str:
    """Final returns compared with Stable-Baselines3, by the newest result."""
    return _parity_of(newest_runs(PARITY))


def older_parity() -> str:
    """The same by older results."""
    return older_tables(PARITY, _parity_of)


def _parity_of(runs: list[Run]) -> str:
    rows = []
    for task, of_task in by("task", runs).items():
        sides = by("side", of_task)
        comparison = beside(verdict(task, sides[OURS], sides[THEIRS]))
        for side in (OURS, THEIRS):
            finals = [run["final"]["mean_return"] for run in sides[side]]
            shown = (", ".join(map(number, finals)), fmean(finals), stdev(finals))
            rows.append((task, side, *shown, comparison if side == OURS else None))
    head = ("task", "library", "final return, by seed", "mean", "standard deviation")
    return table((*head, "ActorQ's mean compared with the other"), rows)


def rlx2() -> str:
    """Returns of sparse methods, by the newest result."""
    return _rlx2_of(newest_runs(RLX2))


def older_rlx2() -> str:
    """The same by older results."""
    return older_tables(RLX2, _rlx2_of)


def _rlx2_of(found: list[Run]) -> str:
    rows = []
    for task, of_task in by("task", found).items():
        methods = by("method", of_task)
        new = {method: [run["confirmed"]["mean_return"] for run in runs] for method, runs in methods.items()}
        for method, runs in methods.items():
            mean, settled = fmean(new[method]), [run["settled"] for run in runs]
            shares = (percent(mean / fmean(new[of])) if of in new else "not run" for of in ("dense", "control"))
            settled_columns = (", ".join(map(number, settled)), fmean(settled))
            rows.append((task, method, ", ".join(map(number, new[method])), mean, *shares, *settled_columns))
    head = ("task", "method", "new episodes, by seed", "mean", "mean vs dense", "mean vs control")
    return table((*head, "last quarter, by seed", "mean of last quarter"), rows)


def rlx2_costs() -> str:
    """Floating-point operations and bytes of sparse methods, and the share of their policies that act in int8."""
    rows = []
    for task, of_task in by("task", newest_runs(RLX2)).items():
        for method, runs in by("method", of_task).items():
            # Schedules do not depend on the seed.
            flops, acted = runs[0]["flops"], [run["transitions_by_scheme"] for run in runs]
            int8 = (percent(each.get("int8", 0) / sum(each.values())) for each in acted)
            sizes = spread(run["policy_bytes"]["emitted"] for run in runs)
            ratios = (flops[of]["ratio"] for of in ("update", "action"))
            rows.append((task, method, *ratios, f"{flops['training']:.3g}", sizes, ", ".join(int8)))
    head = ("task", "method", "FLOPs of an update vs dense", "FLOPs of an action vs dense", "FLOPs of the training")
    return table((*head, "bytes of the last policy as emitted", "steps acted in int8, by seed"), rows)


def rlx2_costs_over_tasks() -> str:
    """FLOPs of sparse methods over dense ones: mean and lowest over the paper's tasks, and the lowest in the paper."""
    of_paper = {f"{algorithm}/{environment}" for algorithm, environment in PAPER}
    runs = [{**run, "algorithm": run["task"].partition("/")[0]} for run in newest_runs(RLX2) if run["task"] in of_paper]
    rows: list[tuple[object, ...]] = []
    for algorithm, own in by("algorithm", runs).items():
        for method, of_method in by("method", own).items():
            # Schedules do not depend on the seed.
            flops = [of_task[0]["flops"] for of_task in by("task", of_method).values()]
            ratios = {of: [each[of]["ratio"] for each in flops] for of in PUBLISHED_LOWEST_FLOPS}
            if min(ratios["action"]) < 1:
                figures_of_method = (part for found in ratios.values() for part in (fmean(found), min(found)))
                rows.append((algorithm, method, len(flops), *figures_of_method))
    lowest = (part for share in PUBLISHED_LOWEST_FLOPS.values() for part in (None, share))
    rows.append(("td3, sac", "rlx2 in the paper", len(PAPER), *lowest))
    head = ("algorithm", "method", "tasks", "FLOPs of an update vs dense, mean", "lowest")
    return table((*head, "FLOPs of an action vs dense, mean", "lowest"), rows)


def rlx2_published() -> str:
    """Results of the paper, relative to dense training."""
    returns = [(*key, *map(percent, astuple(PAPER[key])), f"{share}%") for key, share in PUBLISHED_RETURNS.items()]
    methods = list(PUBLISHED_MEANS["td3"])
    means = [(algorithm, *(f"{share}%" for share in of.values())) for algorithm, of in PUBLISHED_MEANS.items()]
    head = ("algorithm", "environment", "sparsity of the actor", "sparsity of the critics", "return of RLx2 vs dense")
    by_task = table(head, returns)
    return f"{by_task}\n\nMeans over the environments, of dense:\n\n{table(('algorithm', *methods), means)}"


def joint() -> str:
    """Sparsity and quantization together."""
    head = (
        "policy",
        "return",
        "bytes of an update",
        "us, batch 1",
        "us, batch 32",
        "FLOPs of training",
        "FLOPs of an action",
    )
    parts = []
    for task, variants in figures("joint")["tables"].items():
        rows = [
            (
                *(name, each["return"], each["bytes"], each["us"]["1"], each["us"]["32"]),
                *(f"{each['training_flops']:.3g}", each["inference_flops"]),
            )
            for name, each in variants.items()
        ]
        parts.append(f"**{task}**:\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def sweep() -> str:
    """The trials of the sweep, the best one in bold."""
    found = figures("sweep")
    names = list(found["trials"][0]["params"])
    rows = []
    for trial in found["trials"]:
        bold = "**" if trial["number"] == found["best"] else ""
        values = (f"{value:.4g}" if isinstance(value, float) else value for value in trial["params"].values())
        rows.append((f"{bold}{trial['number']}{bold}", trial["state"], trial["steps"], trial["seconds"], *values))
    return table(("trial", "state", "environment steps", "seconds", *(f"`{name}`" for name in names)), rows)


def warmstart() -> str:
    """Environment steps of each way to start, by seed, and their medians."""
    found = figures("warmstart")
    names = {"fresh": "new networks", "warm": "networks of the first run", "warm_with_replay": "with its replay too"}
    rows = [
        (
            run["seed"],
            run["warm"]["first_return"],
            *(run[start]["environment_steps"] for start in names),
            f"{run['warm']['environment_steps'] / run['fresh']['environment_steps']:.2f}",
        )
        for run in found["runs"]
    ]
    medians = found["median_steps"]
    share = f"{medians['warm'] / medians['fresh']:.2f}"
    steps = (f"steps: {name}" for name in names.values())
    head = ("seed", "return of the first evaluation", *steps, "share of the steps")
    return table(head, [*rows, ("median", "", *(medians[start] for start in names), share)])
