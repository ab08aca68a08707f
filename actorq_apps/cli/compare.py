"""`actorq compare`: trains one task with several schemes and seeds, and writes a report."""

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actorq.config.messages.positional import add_environment
from actorq.config.parser import OneLineParser, number
from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from actorq.process import Sources, argument_parser
from actorq.statefiles.documents import write_document
from actorq.statefiles.files import replace_file
from actorq.telemetry.machine import this_machine
from actorq.text import return_text
from actorq_apps.cli.display.output import with_queued_output
from actorq_apps.cli.train import resolved_config
from actorq_apps.comparison.figures import figures_of
from actorq_apps.comparison.folder import ComparisonFolder
from actorq_apps.comparison.making import make_runs
from actorq_apps.comparison.plots import draw
from actorq_apps.comparison.report import ON_POLICY, page, ratio_text, warnings
from actorq_apps.comparison.result import Comparison
from actorq_apps.comparison.schedule import (
    TORCH,
    TORCH_ACTOR,
    ScheduledRun,
    Variant,
    grid,
    interleaved,
    scheme_choices,
    seeds_of,
)
from actorq_apps.local.algorithm import Describe
from actorq_apps.local.environment import environment_of
from actorq_apps.local.services import is_importable

_DESCRIPTION = """Train one task with several schemes and seeds on this machine, one run after the other. Report
learning curves, throughput, time to a target return, energy, and ratios to fp32 and to PyTorch with intervals. Flags,
--config and environment define the task as in actorq train. Finished runs are kept: the same command continues an
interrupted comparison, and restarts its unfinished run. DIR/report.html shows everything on one page,
DIR/comparison.json has the figures."""
_OWN = {"seed": "--seeds", "scheme": "--schemes"}
# All runs of a comparison would share one folder of object storage.
_IGNORES = (
    *_OWN,
    *("checkpoint.object_storage", "checkpoint.object_storage_endpoint", "checkpoint.object_storage_replay"),
    "policy_export",
)


def run(arguments: Sequence[str]) -> int:
    """Start the missing runs, then write the report. Returns the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    return with_queued_output(lambda: _compare(arguments, parser, given))


def _compare(arguments: Sequence[str], parser: OneLineParser, given: Any) -> int:
    for setting, flag in _OWN.items():
        if hasattr(given, setting):
            raise UserError(f"--{setting}: a comparison has several, give {flag}")
    variants, seeds = grid(given.schemes, given.vary), seeds_of(given.seeds)
    describe = _remembering()
    configs = _configs(parser, arguments, variants, describe)
    _check(configs, given.time_to, describe)
    if TORCH in given.schemes and not is_importable(TORCH_ACTOR):
        remedy = "run in the folder of ActorQ's sources, or add this folder to PYTHONPATH"
        raise UserError(f"--schemes torch: {TORCH_ACTOR} cannot be imported: {remedy}")
    folder, machine = ComparisonFolder(given.directory), this_machine()
    # The settings that all runs of a folder share. Seeds may be added later.
    shared = {variant.name: config.model_dump(mode="json", exclude={"seed"}) for variant, config in configs.items()}
    folder.open({"time_to": given.time_to, "variants": shared}, machine)
    schedule = interleaved(variants, seeds)
    if len(seeds) == 1:
        print("one seed: no interval can be given", flush=True)

    def config_of(scheduled: ScheduledRun) -> RunConfig:
        return configs[scheduled.variant].model_copy(update={"seed": scheduled.seed})

    make_runs(folder, schedule, config_of, lambda text: print(text, flush=True))
    summaries = {scheduled: folder.run(scheduled).read_summary() for scheduled in schedule}
    target = given.time_to if given.time_to is not None else summaries[schedule[0]].get("target_return")
    by_variant = [ScheduledRun(variant, seed) for variant in variants for seed in seeds]
    runs = [figures_of(scheduled, summaries[scheduled], target) for scheduled in by_variant]
    algorithms = ", ".join(dict.fromkeys(config.algorithm for config in configs.values()))
    comparison = Comparison.of(runs, configs[variants[0]].environment, algorithms, target, machine)
    _write(comparison, folder, shlex.join(["actorq", "compare", *arguments]))
    for line in _lines(comparison):
        print(line)
    print(given.directory / "report.html")
    return 0


def _parser() -> OneLineParser:
    parser = argument_parser("actorq compare", _DESCRIPTION, (RunConfig,), ignores=_IGNORES)
    add_environment(parser)
    own = parser.section("comparison", "What is compared.")
    own.add_argument("--directory", type=Path, required=True, metavar="DIR", help="folder of the runs and the report")
    own.add_argument(
        "--schemes",
        nargs="+",
        default=["fp32", "int8"],
        metavar="SCHEME",
        help=f"some of {', '.join(scheme_choices())} (default: fp32 int8); torch: actors that run PyTorch in FP32",
    )
    whole = number(-math.inf, math.inf, "a whole number", int)
    own.add_argument(
        "--seeds", nargs="+", type=whole, default=[3], metavar="N", help="a count, or the seeds themselves (default: 3)"
    )
    own.add_argument(
        "--vary",
        nargs="+",
        action="append",
        default=[],
        metavar=("SETTING", "VALUE"),
        help="a setting and several values, such as dqn.hidden-sizes 64,64 256,256; each value runs with all schemes; "
        "may be repeated for further settings (default: none)",
    )
    own.add_argument(
        "--time-to",
        type=number(-sys.float_info.max, sys.float_info.max, "a finite number"),
        metavar="RETURN",
        help="evaluated return for the time to the target (default: target_return, at which runs end)",
    )
    return parser


def _remembering() -> Describe:
    """Returns environment specs. Variants that share an environment create it only once."""
    specs: dict[tuple[str, str, str], EnvironmentSpec] = {}

    def describe(config: RunConfig) -> EnvironmentSpec:
        key = (config.environment, config.environment_backend, config.environment_arguments.to_text())
        if key not in specs:
            specs[key] = environment_of(config)
        return specs[key]

    return describe


def _configs(
    parser: OneLineParser, arguments: Sequence[str], variants: Sequence[Variant], describe: Describe
) -> dict[Variant, RunConfig]:
    """The configuration of each variant, resolved and checked as in `actorq train`. Raises UserError."""
    warnings_of_all: dict[str, None] = {}
    configs = {
        variant: resolved_config(
            Sources.read((RunConfig,), parser.parse_args([*arguments, *variant.flags])),
            describe,
            lambda text: warnings_of_all.update({text: None}),
        )
        for variant in variants
    }
    for text in warnings_of_all:
        print(text, file=sys.stderr, flush=True)
    return configs


def _check(configs: dict[Variant, RunConfig], time_to: float | None, describe: Describe) -> None:
    """Raise UserError for a return above the target, and for an object storage URL, which all runs would share."""
    for config in configs.values():
        target = describe(config).reward_threshold if config.target_return is None else config.target_return
        if time_to is not None and target is not None and time_to > target:
            most = f"target_return ({return_text(target)}), at which runs end"
            raise UserError(f"--time-to: expected at most {most}, got {return_text(time_to)}")
        for setting, url in config.object_storage_urls.items():
            raise UserError(f"{setting}: the runs of a comparison would share {url}; leave it out")


def _write(comparison: Comparison, folder: ComparisonFolder, command: str) -> None:
    def link(scheduled: ScheduledRun) -> str:
        return str(folder.run(scheduled).root.relative_to(folder.root))

    pictures = draw(comparison, folder.root)
    write_document(folder.root / "comparison.json", {"command": command, **comparison.to_json(link)}, indent=2)
    replace_file(folder.root / "report.html", page(comparison, pictures, command, link))


def _lines(comparison: Comparison) -> list[str]:
    lines = [f"note: {text}" for text in warnings(comparison)]
    for side in comparison.sides:
        for each in comparison.ratios(side):
            values = {"throughput": each.throughput, "time to target": each.time_to_target, "energy": each.energy}
            ratios = ", ".join(f"{name} {ratio_text(value)}" for name, value in values.items() if value)
            lines.append(f"{side.variant.name} against {each.baseline}: {ratios}")
        spreads = {name: side.spread(value) for name, value, _ in ON_POLICY}
        if found := ", ".join(f"{name} {spread.mean:.2g}" for name, spread in spreads.items() if spread):
            lines.append(f"{side.variant.name}: {found}")
    return lines
