"""`actorq profile`: the limit of a run on this machine, and recommended settings."""

import json
import logging
import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from actorq.arithmetic import arithmetic
from actorq.config.messages.positional import add_environment
from actorq.config.parser import number
from actorq.config.run_config import RunConfig
from actorq.config.sections import HindsightConfig
from actorq.domain.policy import FALLBACK, FP32
from actorq.errors import UserError
from actorq.process import EXIT_OK, Sources, argument_parser
from actorq.profiling import DEFAULT_SECONDS, measuring_seconds
from actorq.statefiles.files import replace_file
from actorq_apps.cli.display.display import wide_output
from actorq_apps.local.algorithm import fit_algorithm
from actorq_apps.local.environment import environment_of
from actorq_apps.local.events import sigterm_as_exit
from actorq_apps.local.forkserver import ForkServers, fork_servers
from actorq_apps.meter.node_meter import NodeMeter
from actorq_apps.meter.tracker import CodecarbonTracker
from actorq_apps.profile.advice import Outlook, Pods, explain, outlooks, pods, recommend
from actorq_apps.profile.measure import Figures, measure
from actorq_apps.profile.model import Prediction

_DESCRIPTION = """Measure the parts of a run on this machine, in half a minute: a step of the environments, a call of
the policy and a version in each scheme, an update of the learner, the path of transitions to the replay. Then predict
the limit of the run, the number of actors that one learner can use, and the savings of each scheme. Accepts all
settings of actorq train. Keep the machine idle meanwhile. Exit codes: 0, 2 for wrong input, 1 any other error."""
_IGNORES = (
    *("target_return", "target_success", "max_environment_steps", "max_seconds", "hindsight", "exploration"),
    *("checkpoint", "policy_export", "telemetry", "transport"),
)


def run(arguments: Sequence[str]) -> int:
    """Measure, predict and print."""
    parser = argument_parser("actorq profile", _DESCRIPTION, (RunConfig,), ignores=_IGNORES)
    add_environment(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument(
        "--seconds",
        type=measuring_seconds,
        default=DEFAULT_SECONDS,
        metavar="S",
        help=f"seconds to measure each of five parts (default: {DEFAULT_SECONDS:g})",
    )
    parser.add_argument(
        "--cores",
        type=number(1, 100_000, "1 to 100,000 cores", int),
        metavar="N",
        help="cores to predict for (default: those that this process may use)",
    )
    namespace = parser.parse_args(arguments)
    sources = Sources.read((RunConfig,), namespace)
    config = sources.resolve(RunConfig)
    if namespace.json and not namespace.json.absolute().parent.is_dir():
        raise UserError(f"--json: there is no folder {namespace.json.absolute().parent}")
    with sigterm_as_exit(), fork_servers() as servers:
        return _profile(sources, config, namespace, servers)


def _profile(sources: Sources, config: RunConfig, namespace: Namespace, servers: ForkServers | None) -> int:
    config, _ = fit_algorithm(config, sources, True, partial(environment_of, servers=servers))
    # Steps are measured without hindsight, whose goals come from whole episodes.
    config = config.model_copy(update={"hindsight": HindsightConfig(copies=0)})
    # Warnings about services that are still starting would be confusing here.
    logging.basicConfig(level=logging.ERROR)
    cores = namespace.cores or len(os.sched_getaffinity(0))
    console = wide_output()
    if (asked := config.scheme) in arithmetic().inexact_schemes:
        config = config.model_copy(update={"scheme": FALLBACK})
        _say(console, f"actors act with {FALLBACK} instead of {asked}: this processor computes it wrongly")
    figures = measure(config, namespace.seconds, lambda text: console.print(f"measuring {text}", style="dim"), servers)
    if (reason := figures.actor["dropped"].get(config.scheme)) is not None:
        raise UserError(
            f"setting 'scheme': {config.scheme} cannot act here: {reason}; take one of {', '.join(figures.schemes)}"
        )
    watts, method = _watts_per_core(config)
    every = outlooks(figures.schemes, figures.environments, figures.costs, figures.workload, config.actors, cores)
    best = recommend(every, config.environments_per_actor)
    shown = [each for each in every if each.environments == config.environments_per_actor]
    _print_parts(console, figures)
    _print_outlooks(console, shown, config, cores, watts)
    _print_settings(console, config, shown, best, pods(best))
    _say(console, f"energy: {method}")
    if namespace.json:
        report = _report(figures, every, best, cores, watts)
        try:
            replace_file(namespace.json, json.dumps(report, indent=1) + "\n")
        except OSError as error:
            raise UserError(f"--json: cannot write {namespace.json}: {error.strerror}") from None
    return EXIT_OK


def _watts_per_core(config: RunConfig) -> tuple[float | None, str]:
    """Watts of a busy core (None if unknown), and the method of measurement."""
    energy = config.energy
    tracker = partial(CodecarbonTracker, energy.country, energy.tdp_watts, energy.ram_watts)
    with closing(NodeMeter("profile", tracker)) as meter:
        reading = meter.read()
    watts = energy.tdp_watts or reading.tdp_watts
    if watts is None:
        return None, f"not known ({reading.method}); give --energy.tdp-watts"
    cores = os.cpu_count() or 1
    return watts / cores, f"{watts / cores:.1f} W per busy core ({reading.method})"


def _print_parts(console: Console, figures: Figures) -> None:
    config, learner, count = figures.config, figures.learner, figures.config.environments_per_actor
    seconds: dict[str, Callable[[str], float]] = {
        "a step of one environment": lambda _: figures.environment_s(count),
        "a call of the policy, all environments": lambda scheme: figures.call_s(scheme, count),
        "the rest of an actor's step, all environments": figures.rest_s,
        "the upload of a transition": lambda _: figures.upload_s,
        "an actor's transition, in all": lambda scheme: figures.costs(scheme).actor.step_s,
        "a version: quantizer": lambda scheme: figures.costs(scheme).quantizer_version_s,
        "a version: taken over by an actor": lambda scheme: figures.costs(scheme).actor.version_s,
        "a version: snapshot by the learner": lambda _: learner["version_s"],
        f"an update of {learner['batch_size']} samples": lambda _: learner["update_s"],
        "storing a transition": lambda _: figures.links.learner_s,
    }
    title = f"Costs, {config.environment}, {config.algorithm}, {count} environments per actor"
    rows = {name: [f"{of(scheme) * 1e6:,.1f}" for scheme in figures.schemes] for name, of in seconds.items()}
    _print_table(console, title, "microseconds of", figures.schemes, rows)
    for scheme, reason in figures.dropped.items():
        _say(console, f"not {scheme}: {reason}")


def _print_outlooks(
    console: Console, shown: Sequence[Outlook], config: RunConfig, cores: int, watts: float | None
) -> None:
    base = next((each for each in shown if each.scheme == FP32), shown[0])
    rows = {
        f"steps/s, {config.actors} actors": [f"{each.configured.steps_per_s:,.0f}" for each in shown],
        "limited by": [each.configured.limit.value for each in shown],
        "best actors here": [f"{each.here.actors:,}" for each in shown],
        "steps/s with them": [f"{each.here.steps_per_s:,.0f}" for each in shown],
        f"against {base.scheme}": [f"{each.here.steps_per_s / base.here.steps_per_s:.2f}x" for each in shown],
        "core hours, 1M steps": [f"{each.core_hours:.3f}" for each in shown],
        "Wh, 1M steps": ["-" if watts is None else f"{each.core_hours * watts:.2f}" for each in shown],
        "saved": [f"{1 - each.core_hours / base.core_hours:+.0%}" if each is not base else "-" for each in shown],
        "actors one learner can use": [f"{each.apart.actors:,}" for each in shown],
        "steps/s with those": [f"{each.apart.steps_per_s:,.0f}" for each in shown],
    }
    title = f"Predictions: this machine ({cores} cores), and processes with cores of their own"
    _print_table(console, title, "", [each.scheme for each in shown], rows)


def _print_table(console: Console, title: str, corner: str, schemes: Sequence[str], rows: dict[str, list[str]]) -> None:
    """Print a column for each scheme. On a narrow terminal, row names wrap and figures stay whole."""
    table = Table(title=title, box=None, header_style="bold", pad_edge=False)
    table.add_column(corner)
    for scheme in schemes:
        table.add_column(scheme, justify="right", no_wrap=True)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    console.print(table)


def _print_settings(
    console: Console, config: RunConfig, shown: Sequence[Outlook], best: Outlook, deployment: Pods
) -> None:
    # If a scheme quantizes no layer, actors use fp32.
    now = next((each for each in shown if each.scheme == config.scheme), shown[0])
    _say(console, f"{now.scheme}, {config.actors} actors: {explain(now.configured.limit)}")
    flags = f"--scheme {best.scheme} --actors {best.here.actors} --environments-per-actor {best.environments}"
    _say(console, f"here: {flags} ({best.here.steps_per_s:,.0f} steps/s, limited by: {best.here.limit.value})")
    actors = f"{deployment.actors} actor replica{'s' * (deployment.actors != 1)} with {deployment.actor_cpu:g} CPU each"
    others = f"learner {deployment.learner_cpu:g} CPU, quantizer {deployment.quantizer_cpu:g} CPU"
    _say(console, f"on Kubernetes: {actors}, {others} ({deployment.steps_per_s:,.0f} steps/s on cores like these)")


def _report(
    figures: Figures, every: Sequence[Outlook], best: Outlook, cores: int, watts: float | None
) -> dict[str, Any]:
    def as_json(outlook: Outlook) -> dict[str, Any]:
        values: dict[str, Any] = {
            "scheme": outlook.scheme,
            "environments_per_actor": outlook.environments,
            "core_hours_per_million_steps": outlook.core_hours,
            "wh_per_million_steps": None if watts is None else outlook.core_hours * watts,
        }
        for name in ("configured", "here", "apart"):
            run: Prediction = getattr(outlook, name)
            speed = {"actors": run.actors, "steps_per_s": run.steps_per_s, "limit": run.limit.value}
            values[name] = {**speed, "cores": asdict(run.cores)}
        return values

    settings = {"scheme": best.scheme, "actors": best.here.actors, "environments_per_actor": best.environments}
    return {
        "environment": figures.config.environment,
        "algorithm": figures.config.algorithm,
        "cores": cores,
        "watts_per_core": watts,
        "measured": figures.to_json(),
        "dropped": figures.dropped,
        "predictions": [as_json(each) for each in every],
        "settings": settings,
        "pods": asdict(pods(best)),
    }


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True)
