"""`actorq train`: runs a whole training run on this machine."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field

from actorq.config import settings
from actorq.config.messages.positional import add_environment
from actorq.config.presets import AUTO
from actorq.config.run_config import RunConfig
from actorq.config.schemes import installed_schemes, load_scheme
from actorq.config.sections import CERTIFICATES_HELP
from actorq.config.settings import ESSENTIAL, DefaultText, Settings
from actorq.config.unread import given_in_vain
from actorq.domain.environments import is_external
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import RunState
from actorq.errors import ActorQError, NotFoundError, UserError
from actorq.extras import require
from actorq.lifeline import await_parents_end
from actorq.process import EXIT_USER_ERROR, Sources, argument_parser
from actorq.rundirectory import RUNS, RunDirectory, new_run_directory
from actorq.text import return_text
from actorq_apps.cli.display import numbers
from actorq_apps.cli.display.display import display_of
from actorq_apps.cli.display.hints import with_hints
from actorq_apps.cli.display.output import with_queued_output
from actorq_apps.cli.display.report import print_result
from actorq_apps.cli.display.view import RunView
from actorq_apps.cli.support.regime import Fitted, fit_regime
from actorq_apps.local.algorithm import (
    Describe,
    Warn,
    about_bits,
    about_wrappers,
    check_learner,
    fit_algorithm,
    fit_environments,
)
from actorq_apps.local.environment import environment_of
from actorq_apps.local.forkserver import ForkServers
from actorq_apps.local.launcher import run_locally
from actorq_apps.local.observer import Observer
from actorq_apps.local.services import external_address, is_importable
from actorq_apps.local.wholerun import Newscast, read_spec, send_event
from actorq_apps.meter.node_meter import RunStart

_DESCRIPTION = """Train on this machine to the target return or the end of the budget. Ctrl-C saves the run and ends
it. Settings may be flags (--dqn.batch-size 32), variables (ACTORQ_DQN__BATCH_SIZE=32) and lines in --config
(dqn: {batch_size: 32}). Exit codes: 0 target reached, 3 budget ended, 4 stopped by an operator, 130,
143 interrupted, 2 wrong input, 1 other errors."""

# Roles of the run's processes. The launcher itself is the monitor.
_CERTIFIED = ("learner", "quantizer", "actor", "evaluator", "meter", "monitor")


class TrainSettings(Settings):
    """The folder of the run, and how to start it."""

    run_directory: Annotated[Path | None, DefaultText(f"{RUNS}/ENVIRONMENT-DATE"), ESSENTIAL] = Field(
        None, description="folder of the run"
    )
    certificates: Annotated[Path | None, DefaultText("that of --transport.certificates")] = Field(
        None, description=CERTIFICATES_HELP
    )
    profile: Annotated[Path | None, DefaultText("a measurement of 20 s")] = Field(
        None, description="figures of actorq profile --json for --preset auto"
    )
    actor_module: Annotated[str, DefaultText("the actor service")] = Field(
        "", description="module to run instead of the actor service; --resume does not remember it"
    )
    resume: Annotated[bool, ESSENTIAL] = Field(False, description="continue the run in --run-directory")
    lifeline: bool = Field(
        False, description="end as after SIGTERM when standard input closes; the parent process holds its other end"
    )
    news: bool = Field(False, description="send news of the run to the parent process, on standard input (a socket)")
    parent_acts: bool = Field(
        False,
        description="start no actor and no evaluator; the parent process acts, and writes the spec of its environment "
        "to standard input",
    )


def run(arguments: Sequence[str], servers: ForkServers | None = None, begun: RunStart | None = None) -> int:
    """Train until the run is over. Returns the exit code. For `servers` and `begun` see `run_locally`."""
    train, fitted, spec, run = _resolve(arguments, servers)
    # Even while the terminal is stopped, processes are restarted, and a signal ends the run.
    return with_queued_output(lambda: _train(train, fitted, spec, run, servers, begun), lambda code: code >= 128)


def _train(
    train: TrainSettings,
    fitted: Fitted,
    spec: EnvironmentSpec | None,
    run: RunDirectory,
    servers: ForkServers | None,
    begun: RunStart | None,
) -> int:
    config = fitted.config
    is_new = not (train.resume and run.root.exists())
    if is_new:
        run.create(config)
    if train.lifeline:
        threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()
    if spec is None:
        addresses = ", ".join(external_address(config, index) for index in range(config.actors))
        print(f"simulators: connect them to {addresses}", flush=True)
    elif spec.image is not None or spec.parts or spec.critic_leaves:
        flag = " (--image-layout)" if spec.image is not None and spec.frame_stack == 1 else ""
        print(f"observations: {spec.observations_text}{flag}", flush=True)
    if spec is not None and spec.action_parts:
        print(f"actions: {spec.actions_text}", flush=True)
    if spec is not None and spec.agents:
        print(f"{'agents' if spec.groups else 'agents that share the policy'}: {spec.agents_text}", flush=True)
    if spec is not None and spec.groups:
        print(f"groups of agents with a policy each: {spec.groups_text}", flush=True)
    waiting = "waiting for the processes of this run's earlier launcher to end"
    with run.locked(on_wait=lambda: print(waiting, flush=True)) as lock:
        if train.resume:
            run.write_config(config)
        earlier_summary = run.summary_written_ns()
        _log_to(run.log("launcher"))
        with display_of(RunView.of(str(run.root), config)) as display:
            shown: Observer = Newscast(display, run.root.absolute()) if train.news else display
            acts, updates_per_s = not (train.parent_acts or config.offline), fitted.updates_per_s
            observer = shown if spec is None else with_hints(shown, config, spec, updates_per_s, acts=acts)
            outcome = run_locally(
                *(run, config, observer, train.resume, lock, train.actor_module, servers, begun),
                acts=not train.parent_acts,
            )
        if is_new and outcome.exit_code == EXIT_USER_ERROR and not outcome.began:
            # The user may correct the command and use the same folder.
            run.discard(keep_logs=outcome.error is not None and str(run.logs) in outcome.error)
    if outcome.error is not None:
        kind = UserError if outcome.exit_code == EXIT_USER_ERROR else ActorQError
        raise kind(outcome.error)
    print_result(run, is_new=run.summary_written_ns() != earlier_summary)
    return outcome.exit_code


def _resolve(
    arguments: Sequence[str], servers: ForkServers | None
) -> tuple[TrainSettings, Fitted, EnvironmentSpec | None, RunDirectory]:
    """Resolve how to start, the run's settings, its environment, and its folder. Raises UserError.

    The environment is None if simulators connect later.
    """
    parser = argument_parser("actorq train", _DESCRIPTION, (TrainSettings, RunConfig))
    add_environment(parser)
    sources = Sources.read((TrainSettings, RunConfig), parser.parse_args(arguments))
    train = sources.resolve(TrainSettings)
    run = RunDirectory(train.run_directory) if train.run_directory else None
    if train.resume and run is None:
        raise UserError("--resume needs --run-directory DIR, the folder of the run to continue")
    # If the folder is lost, the learner restores the run from object storage. Its settings must be given again.
    lost = run is not None and train.resume and not run.root.exists()
    if lost and sources.resolve(RunConfig).checkpoint.object_storage:
        train = train.model_copy(update={"resume": False})
    earlier = run.config_tree() if run and train.resume else {}
    config = sources.resolve(RunConfig, earlier)
    if run and train.resume:
        _check_same_run(run, settings.build(RunConfig, earlier), config)
        _check_over(run, config)
    elif run:
        run.check_unused()
    if train.parent_acts and config.offline:
        raise UserError("--offline: expected an environment that other processes can make; move its class to a module")
    describe = _of_parent if train.parent_acts else partial(environment_of, servers=servers)
    warn = send_event if train.news else _warn
    config, spec = _checked(sources, config, train, describe, warn, servers, lost)
    fitted = Fitted(config)
    if config.preset == AUTO and not train.resume and not lost:
        fitted = fit_regime(
            *(config, sources.given[RunConfig], train.profile, servers),
            is_measurable=not train.parent_acts and spec is not None,
        )
    elif train.profile:
        raise UserError("--profile: expected --preset auto and a new run; leave it out")
    if train.certificates:
        fitted = replace(fitted, config=fitted.config.with_certificates(train.certificates))
    train = train.model_copy(update={"resume": train.resume or lost})
    return train, fitted, spec, run or new_run_directory(config.environment, datetime.now())


def _of_parent(config: RunConfig) -> EnvironmentSpec:
    return read_spec()


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def resolved_config(sources: Sources, describe: Describe = environment_of, warn: Warn = _warn) -> RunConfig:
    """The settings of a new run, including those that depend on its environment. Raises UserError if invalid."""
    return _checked(sources, sources.resolve(RunConfig), TrainSettings(), describe, warn)[0]


def _checked(
    sources: Sources,
    config: RunConfig,
    train: TrainSettings,
    describe: Describe,
    warn: Warn,
    servers: ForkServers | None = None,
    lost: bool = False,
) -> tuple[RunConfig, EnvironmentSpec | None]:
    """The configuration and the environment, checked against each other. Raises UserError for invalid settings.

    The environment is None if simulators connect later. Then the learner checks the settings against the first one.

    lost: whether the learner restores the run from object storage.
    """
    _check_packages(config)
    _check_certificates(config.with_certificates(train.certificates) if train.certificates else config)
    if train.actor_module and not is_importable(train.actor_module):
        raise UserError(f"--actor-module: expected a module that this Python can import, got {train.actor_module!r}")
    _check_scheme(config.scheme)
    if is_external(config.environment):
        # All simulators can connect to one actor.
        return (config if train.resume or lost else sources.resolve(RunConfig, {"actors": 1})), None
    fitting, spec = fit_algorithm(config, sources, may_choose=not train.resume, describe=describe)
    fitting = fit_environments(fitting, spec, warn)
    fitting.dynamic_capacity_of(spec)
    fitting.memory.check_frames(spec)
    if (own := fitting.own) is not None:
        epochs = None if fitting.on_policy is None else getattr(own, "epochs", 1)
        fitting.sparsity.check_changes(fitting.planned_updates(own.batch_size, epochs, spec.agent_count))
    # A resumed run has networks of its own. The run that it began from may be gone.
    resumes = {"init_from": None, "init_replay": False} if train.resume or lost else {}
    check_learner(fitting.model_copy(update=resumes), spec, servers, train.run_directory if train.resume else None)
    for text in (*about_wrappers(fitting.environment_arguments), *about_bits(fitting)):
        warn(f"warning: {text}")
    for name, reason in given_in_vain(sources.given[RunConfig], fitting, spec).items():
        warn(f"warning: {name} has no effect: {reason}")
    return fitting, spec


def _check_packages(config: RunConfig) -> None:
    for name in (*config.object_storage_urls, *(("init_from",) if "://" in (config.init_from or "") else ())):
        require(f"--{name.replace('_', '-')}", ["s3"])
    for name in ("mlflow", "wandb"):
        if getattr(config.telemetry, name) is not None:
            require(f"--telemetry.{name}", [name])


def _check_scheme(name: str) -> None:
    if name in installed_schemes():
        try:
            load_scheme(name)
        except NotFoundError as error:
            raise UserError(str(error)) from error


def _check_same_run(run: RunDirectory, earlier: RunConfig, config: RunConfig) -> None:
    """Raise UserError for a setting that a run cannot change, before anything is written or started."""
    for name, expected in earlier.fixed.items():
        if expected != (got := config.fixed.get(name)):
            raise UserError(
                f"--resume: expected {name} {settings.value_text(expected)} as in {run.config}, got "
                f"{settings.value_text(got)}; leave the setting out, or start a new run with another --run-directory"
            )


def _check_over(run: RunDirectory, config: RunConfig) -> None:
    """Raise UserError for a run that is over. Its learner would continue training, and its policy might get worse."""
    summary = run.read_summary()
    state, reached, rate = (summary.get(name) for name in ("state", "target_return", "target_success"))
    wanted = reached if config.target_return is None else config.target_return
    asked = rate if config.target_success is None and config.target_return is None else config.target_success
    for what, flag, old, new, text in (
        ("target return", "--target-return", reached, wanted, return_text),
        ("target success rate", "--target-success", rate, asked, numbers.share),
    ):
        if state == RunState.SOLVED.value and old is not None and new is not None and new <= old:
            raise UserError(
                f"--resume: the run is solved: it has reached its {what} of {text(old)}: give a higher {flag}, or "
                f"evaluate its policy with actorq evaluate {run.root}"
            )
    steps = summary.get("environment_steps", 0)
    if state == RunState.BUDGET_ENDED.value and steps >= config.max_environment_steps:
        used = f"{config.max_environment_steps:,} environment steps is used up ({steps:,})"
        raise UserError(f"--resume: the budget of {used}: give a larger --max-environment-steps")
    updates = summary.get("updates", 0)
    if state == RunState.BUDGET_ENDED.value and config.offline and updates >= config.max_updates:
        used = f"{config.max_updates:,} updates is used up ({updates:,})"
        raise UserError(f"--resume: the budget of {used}: give a larger --max-updates")
    seconds = summary.get("wall_clock_s", 0.0)
    if config.max_seconds is not None and seconds >= config.max_seconds:
        used = f"the {config.max_seconds:g} seconds of the run are used up ({seconds:,.0f})"
        raise UserError(f"--resume: {used}: give a larger --max-seconds")


def _check_certificates(config: RunConfig) -> None:
    """Raise UserError for certificates that a process of the run could not use, before any process starts."""
    for role in _CERTIFIED:
        certificates = config.transport.certificates_of(role)
        if certificates is not None:
            certificates.require_role(role, config.transport.run)


def _end_with_parent() -> None:
    await_parents_end()
    os.kill(os.getpid(), signal.SIGTERM)


def _log_to(path: Path) -> None:
    """Write warnings of this process to a file instead of the display, including those about logs on a full disk."""
    logging.raiseExceptions = False
    logging.basicConfig(
        filename=path, level=logging.INFO, format="%(asctime)s launcher %(levelname)s %(name)s: %(message)s"
    )
