"""Tables of faults: kills, moves, damaged files, power cuts, wrong messages, long runs."""

from sitegen.markdown import number, percent, table
from sitegen.results import figures


def chaos() -> str:
    """Recovery after each kind of fault."""
    rows = [
        (kind, each["faults"], each["median_s"], each["longest_s"])
        for kind, each in figures("chaos")["recovery"].items()
    ]
    return table(("fault", "times", "median s until steps grow again", "longest s"), rows)


def transitions() -> str:
    """Stored, lost and doubled transitions under these faults."""
    found = figures("chaos")
    counts = ((f"transitions {name}", count) for name, count in found["transitions"].items())
    return table(("", "count"), [("faults", found["faults"]), ("seconds", found["seconds"]), *counts])


def chaos_variants() -> str:
    """Transitions and faults of other kinds of runs."""
    names = {
        "chaos_ppo": "on-policy (PPO)",
        "chaos_memory": "PPO with memory",
        "chaos_agents": "DQN with several agents",
        "chaos_groups": "PPO with two groups of agents",
        "chaos_relay": "a relay",
        "chaos_storage": "object storage",
    }
    rows = []
    for name, kind in names.items():
        found = figures(name)
        counts = (found["transitions"][each] for each in ("acknowledged", "lost", "twice", "unknown"))
        rows.append((kind, found["faults"], *counts, len(found["stuck"]), len(found["ended_by_themselves"])))
    head = (
        "run",
        "faults",
        "acknowledged",
        "lost",
        "stored twice",
        "unknown",
        "stuck",
        "processes that ended by themselves",
    )
    return table(head, rows)


def chaos_states() -> str:
    """The states at the starts of segments, in the run with memory."""
    found = figures("chaos_memory")["states"]
    head = ("segments", "checked", "at the start of an episode", "of another episode", "not zero there", "told apart")
    keys = ("starts", "checked", "begun", "foreign", "not_zero")
    return table(head, [(*(found[key] for key in keys), percent(found["told_apart"], 1))])


def chaos_rows() -> str:
    """The rows of the replay, in the runs with several agents."""
    measured = {
        name: figures(result)["rows"]
        for name, result in (("one policy", "chaos_agents"), ("two groups", "chaos_groups"))
    }
    head = ("run", "environment steps", "rows of agents", "of another agent", "of another group")
    more = ("with another's next observation", "with a wrong end", "steps of another team", "rows of absent agents")
    keys = ("steps", "rows", "other_agent", "other_group", "other_successor", "wrong_end", "wrong_team", "absent")
    # One policy has no groups to mix up.
    rows = ((name, *(found.get(key) for key in keys)) for name, found in measured.items())
    return table((*head, *more), rows)


def moves() -> str:
    """Moves of a learner's pod, and scaling."""
    found = figures("cluster_moves")
    seconds = ", ".join(map(number, found["seconds_until_steps_grow"]))
    rows = [
        ("s until steps grow again, by move", seconds),
        ("s until added actors are up", found["actors_up_s"]),
        ("s until removed actors are gone", found["actors_down_s"]),
    ]
    return table(("", "measured"), rows)


def training_runs() -> str:
    """A queue of TrainingRuns while their operator is killed."""
    found = figures("training_runs")
    states = ", ".join(f"{count} {state}" for state, count in found["states"].items())
    head = ("runs", "at a time", "kills of the operator", "ends", "seconds for all", "objects left")
    return table(
        head, [(found["runs"], found["at_most"], found["kills"], states, found["seconds"], len(found["left"]))]
    )


def lost_volume() -> str:
    """The losses of a TrainingRun whose volumes were deleted, and start times compared with plain manifests."""
    found = figures("lost_volume")
    lost = found["loss"]
    keys = ("steps_before", "steps_after", "updates_before", "updates_after", "lost_s", "seconds_until_it_trains_on")
    head = (
        "steps before",
        "steps after",
        "updates before",
        "updates after",
        "s of training lost",
        "s until it trains on",
    )
    sides = (("TrainingRun", "training_run_start_s"), ("plain manifests", "plain_start_s"))
    rows = [(name, found[f"median_{key}"], ", ".join(map(number, found[key]))) for name, key in sides]
    starts = table(("from `kubectl apply` to the first environment step", "median s", "all"), rows)
    return f"{table(head, [[lost[key] for key in keys]])}\n\n{starts}"


def copies() -> str:
    """A learner in a copied folder, and a run that is restored from a snapshot."""
    sides = {"before": figures("copies_before"), "now": figures("copies")}

    def of(part: str, *keys: str) -> list[tuple[object, ...]]:
        return [(name, *(side[part][key] for key in keys)) for name, side in sides.items()]

    keys = ("seconds", "switches", "publications_of_the_copy", "publications_of_the_run", "ends_of_the_copy")
    head = ("", "s beside the copy", "switches", "versions of the copy", "of the run", "ends of the copy")
    beside = table(head, of("copy", *keys))
    after = ("", "versions before", "new ones after", "with two contents", "newest")
    restored = of("snapshot", "versions_before", "versions_after", "versions_with_two_contents", "newest")
    return f"{beside}\n\n{table(after, restored)}"


def corruption() -> str:
    """Damaged files by kind."""
    rows = [
        (f"`{name}`", each["faults"], each.get("told", 0), each.get("harmless", 0), each["resumed"])
        for name, each in figures("corruption")["classes"].items()
    ]
    return table(("file", "damaged", "reported", "harmless", "resumed"), rows)


def power_cuts() -> str:
    """Simulated power cuts."""
    keys = ("made", "acknowledged", "promised", "stored", "lost", "twice", "resumed_s")
    head = ("segments made", "acknowledged", "durable", "stored afterwards", "durable ones lost", "stored twice")
    return table((*head, "s of the resume"), ([cut[key] for key in keys] for cut in figures("powercut")["cuts"]))


def floods() -> str:
    """Memory of a quantizer under floods of frames."""
    rows = [
        (side, kind, f"{each['most_resident_bytes'] / 1e6:.0f}", each["median_answer_s"], each["longest_answer_s"])
        for side, name in (("before", "floods_before"), ("now", "floods"))
        for kind, each in figures(name)["floods"].items()
    ]
    return table(("", "frames", "most memory, MB", "median s to an answer", "longest"), rows)


def fuzz() -> str:
    """Answers to malformed messages, by service."""
    return _statuses("fuzz")


def fuzz_simulators() -> str:
    """Answers to malformed messages of simulators."""
    return _statuses("fuzz_simulators")


def _statuses(name: str) -> str:
    statuses = figures(name)["statuses"]
    codes = sorted({name.partition(" ")[2] for name in statuses})
    services = sorted({name.partition(" ")[0] for name in statuses})
    rows = [(service, *(statuses.get(f"{service} {code}", 0) for code in codes)) for service in services]
    return table(("service", *(code if code == "left" else f"`{code}`" for code in codes)), rows)


def mutants() -> str:
    """Numbers of changes of the code, and of those that no test detected."""
    found = figures("mutants")
    head = ("changes", "not noticed", "noticed by an earlier run")
    return table(head, [(found["mutants"], len(found["survivors"]), found["killed_earlier"])])


def soak() -> str:
    """Memory and open files over a long run."""
    rows = [
        (
            *(name, *each["megabytes"], percent(each["growth"] - 1, 1)),
            *each["open_files"],
        )
        for name, each in figures("soak")["processes"].items()
    ]
    return table(("process", "MB early", "MB late", "growth", "open files early", "late"), rows)
