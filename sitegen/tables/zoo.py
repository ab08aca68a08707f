"""Tables of the zoo: stored policies, and all tuned settings with their results."""

from statistics import fmean, median

from benchmarks.training.zoo.settings import RESULTS, Run, Setting, command_of, settings_of
from sitegen.markdown import number, spread, table
from sitegen.results import figures


def zoo_policies() -> str:
    """Each stored policy: its command, its return, the seconds of its training, and its file."""
    head = ("algorithm", "environment", "command", "return on new episodes", "seconds", "environment steps")
    rows = []
    for setting, (run, *_) in sorted(settings_of([figures("zoo")["runs"]]).items()):
        confirmed, policy = run["confirmed"], run["policy"]
        rows.append(
            (
                *(setting.algorithm.upper(), f"`{setting.environment}`", f"`{run['command']}`"),
                *(confirmed["mean_return"], run["wall_clock_s"], run["environment_steps"]),
                *(f"`{policy['file']}`", number(policy["kilobytes"]), confirmed["scheme"]),
            )
        )
    return table((*head, "policy", "kB", "scheme"), rows)


def zoo_settings() -> str:
    """Each tuned setting: its command, its return, its seconds, and the place of its curve."""
    rows = [_row(setting, runs) for setting, runs in sorted(_settings().items())]
    head = ("algorithm", "environment", "preset", "command", "seeds", "return on new episodes", "seconds")
    return table((*head, "environment steps", "curve"), rows)


def _settings() -> dict[Setting, list[Run]]:
    return settings_of(figures(name)["runs"] for name in RESULTS)


def _row(setting: Setting, runs: list[Run]) -> tuple[object, ...]:
    returns = [run["confirmed"]["mean_return"] for run in runs]
    place = "curves-of-dqn" if setting.algorithm == "dqn" else "curves-of-other-algorithms"
    return (
        *(setting.algorithm.upper(), f"`{setting.environment}`", setting.preset),
        f"`{command_of(setting, runs[0]['target_return'])}`",
        *(len(runs), f"{number(fmean(returns))} ({number(min(returns))} to {number(max(returns))})"),
        number(median(run["wall_clock_s"] for run in runs)),
        spread(run["environment_steps"] for run in runs),
        f"[curve](#{place})",
    )
