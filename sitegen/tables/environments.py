"""Tables of environments: packages from PyPI, observations and actions of several parts, goals."""

from statistics import fmean, median

from sitegen.markdown import names, table
from sitegen.results import NEWER, Run, figures

_PACKAGES = ("packages", *NEWER["packages"])


def packages() -> str:
    """Runs in environments of packages from PyPI, compared with random actions, by the newest result."""
    return _packages(_newest_packages())


def older_packages() -> str:
    """The same by older results."""
    newest = _newest_packages()
    return _packages([each for each in figures("packages")["packages"] if each not in newest])


def _newest_packages() -> list[Run]:
    """The newest run of each package."""
    found = {each["package"]: each for name in _PACKAGES for each in figures(name)["packages"]}
    return list(found.values())


def _packages(found: list[Run]) -> str:
    rows = [
        (
            f"`{each['requirements'][0]}`",
            f"`{each['environment'].rpartition(':')[2]}`",
            each["algorithm"].upper(),
            each["environment_steps"],
            fmean(each["random_returns"]),
            fmean(each["returns"]),
        )
        for each in found
    ]
    returned = table(("package", "environment", "algorithm", "steps", "random actions", "mean return"), rows)
    needed = [
        (f"`{each['package']}`", names([*each["wrappers"], *filter(None, [" ".join(each["flags"])])])) for each in found
    ]
    settings = [row for row in needed if row[1]]
    return returned + (f"\n\n{table(('package', 'wrappers and flags'), settings)}" if settings else "")


def goals() -> str:
    """Success rates with hindsight and without it, of each seed."""
    found: dict[tuple[str, str], dict[bool, list[Run]]] = {}
    for run in figures("goals")["runs"]:
        found.setdefault((run["task"], run["algorithm"]), {}).setdefault(run["copies"] > 0, []).append(run)

    def shown(runs: list[Run]) -> str:
        return ", ".join(f"{run['success_rate']:.2f}" for run in runs)

    rows = [
        (task, algorithm.upper(), shown(by[True]), shown(by[False]), max(run["wall_clock_s"] for run in by[True]))
        for (task, algorithm), by in found.items()
    ]
    return table(("environment", "algorithm", "with hindsight", "without", "slowest with, s"), rows)


def structured_peers() -> str:
    """Seconds to the target and the last scores, of each seed of both libraries."""
    found: dict[tuple[str, str], list[Run]] = {}
    for run in figures("structured_peers")["runs"]:
        found.setdefault((run["task"], run["system"]), []).append(run)
    rows = [
        (
            task,
            system,
            median(run["seconds"] for run in runs),
            f"{min(run['seconds'] for run in runs):.1f} to {max(run['seconds'] for run in runs):.1f}",
            fmean(run["score"] for run in runs),
        )
        for (task, system), runs in found.items()
    ]
    return table(("task", "system", "seconds, median", "range", "mean score"), rows)


def structured() -> str:
    """Runs in coded environments of several parts: their return, and the highest one of policies that ignore a part."""
    found: dict[str, dict[str, list[Run]]] = {}
    for run in figures("structured")["runs"]:
        found.setdefault(run["kind"], {}).setdefault(run["algorithm"], []).append(run)
    algorithms = list(dict.fromkeys(name for runs in found.values() for name in runs))
    rows = [
        (
            kind,
            *(", ".join(f"{run['mean_return']:.1f}" for run in runs.get(name, ())) or "-" for name in algorithms),
            max(run["wall_clock_s"] for each in runs.values() for run in each),
            next(iter(runs.values()))[0]["blind"],
        )
        for kind, runs in found.items()
    ]
    return table(("parts", *(name.upper() for name in algorithms), "slowest, s", "blind to a part"), rows)


def refused_packages() -> str:
    """The errors of `actorq` for these environments without wrappers."""
    found = figures("packages")["packages"]
    rows = [(f"`{each['package']}`", each["refused_without_wrappers"]) for each in found]
    return table(("package", "without wrappers"), (row for row in rows if row[1]))
