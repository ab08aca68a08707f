"""Entry point of the `actorq` command. Finds and runs the subcommand."""

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from actorq import __version__
from actorq.errors import UserError
from actorq.extras import BASE, COMMAND_LINE, require
from actorq.start import command_of, fast_imports, run_command

# The extras that a whole run needs.
_RUN = ("learner", "quantizer", "actor")
# Extras of commands. Other commands need only the base installation. Services check their own extras at the start.
_EXTRAS: dict[str, tuple[str, ...]] = {
    "train": _RUN,
    "check": ("actor",),
    "dataset": ("learner", "actor"),
    "compare": (*_RUN, "compare"),
    "profile": _RUN,
    "sweep": ("sweep",),
    "evaluate": ("quantizer", "actor"),
    "cluster": ("cluster",),
    "certificates": ("cluster",),
    "export": ("quantizer",),
    "quantize": ("quantizer",),
    "external": ("actor",),
    "serve": ("actor",),
}
# Only the given command's module is imported, so that --help and --version are fast.
_COMMANDS = {
    "train": ("actorq_apps.cli.start", "train on this machine: learner, quantizer, actors, evaluator and energy meter"),
    "check": ("actorq_apps.cli.check", "try an environment: possible problems, suitable algorithms and settings"),
    "dataset": (
        "actorq_apps.cli.support.dataset",
        "import, show and export stored data, to train from recorded transitions",
    ),
    "compare": ("actorq_apps.cli.compare", "train with several schemes and seeds, and compare the results"),
    "sweep": ("actorq_apps.cli.sweep.command", "search for settings with many runs, here or on Kubernetes"),
    "evaluate": ("actorq_apps.cli.evaluate", "run greedy episodes of a run's policy"),
    "policies": ("actorq_apps.cli.policies", "list the policy versions of a run: evaluation, scheme, fidelity, size"),
    "profile": (
        "actorq_apps.cli.profile",
        "measure the parts of a run here: its limit, useful actors, savings of schemes",
    ),
    "status": ("actorq_apps.cli.status", "show the status of a run"),
    "reset-environment": ("actorq_apps.cli.reset_environment", "make a run forget a wrong environment's spec"),
    "verify": ("actorq_apps.cli.verify", "check the files of a run, and show what --resume would do"),
    "cluster": ("actorq_apps.cli.cluster", "run on Kubernetes: up, status, scale, logs, forward, down"),
    "certificates": ("actorq_apps.cli.certificates", "make a development authority and certificates for mutual TLS"),
    "info": (
        "actorq_apps.cli.support.info",
        "print versions, processor and int8 encoding of this machine, for bug reports",
    ),
}
_SERVICES = {
    "learner": ("learner_service", "run the learner service (its flags: actorq learner --help)"),
    "quantizer": ("quantizer_service", "run the quantizer service"),
    "actor": ("actor_service", "run the actor service"),
    "meter": ("actorq_apps.meter", "run the energy meter of this machine"),
}
# Commands that need a service's libraries. Each is a function of that service.
_TOOLS = {
    "export": ("quantizer_service.command.export:command", "write a policy of a run as an ONNX file and a description"),
    "quantize": (
        "quantizer_service.command.command:command",
        "compare the schemes for an ONNX policy of any library, and write one",
    ),
    "external": (
        "actor_service.external.command:command",
        "check the client of a simulator: actorq external check ADDRESS",
    ),
    "serve": (
        "actor_service.external.serve:command",
        "serve a policy to simulators: an exported file, or the newest version of a run",
    ),
    "restore": ("learner_service.restore:command", "continue a run from a copy of its folder, in a new epoch"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code. A user's error gives one line on standard error, and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    return run_command(lambda: _dispatch(given))


def _dispatch(given: list[str]) -> int:
    if not given:
        raise UserError("a command is missing; see actorq --help")
    name, rest = given[0], given[1:]
    if name in ("-h", "--help", "help"):
        print(_help())
        return 0
    if name in ("-V", "--version", "version"):
        print(f"actorq {__version__}")
        return 0
    if name in _COMMANDS or name in _SERVICES or name in _TOOLS:
        # The help of a command needs fewer packages than the command.
        extras = _EXTRAS.get(name, ()) if {"-h", "--help"}.isdisjoint(rest) else ()
        require(f"actorq {name}", (BASE, *((COMMAND_LINE,) if name in _COMMANDS else ()), *extras))
    # This process becomes the service, so signals and exit codes are the service's own, as in a pod.
    if name in _SERVICES:
        os.execv(sys.executable, [sys.executable, "-m", _SERVICES[name][0], *rest])
    if name in _TOOLS:
        os.execv(sys.executable, [*command_of(_TOOLS[name][0]), *rest])
    if name in _COMMANDS:
        with fast_imports():
            run: Callable[[Sequence[str]], int] = import_module(_COMMANDS[name][0]).run
        return run(rest)
    close = difflib.get_close_matches(name, [*_COMMANDS, *_TOOLS, *_SERVICES], n=1)
    raise UserError(f"unknown command {name!r}; {f'did you mean {close[0]}?' if close else 'see actorq --help'}")


def _help() -> str:
    def lines(commands: dict[str, tuple[str, str]]) -> str:
        return "\n".join(f"  {name:<17} {text}" for name, (_, text) in commands.items())

    return f"""usage: actorq COMMAND [flags]

Reinforcement learning with a full-precision learner and many cheap int8 actors.

commands:
{lines({**_COMMANDS, **_TOOLS})}

services, as started by train or in a cluster:
{lines(_SERVICES)}

  --version  print the version
  --help     print this; actorq COMMAND --help lists a command's flags

Settings come from --config FILE, then ACTORQ_* environment variables, then flags.
exit codes: 0 the target was reached, 3 the budget of environment steps ended first, 4 an operator stopped the run
(StopRun), 2 wrong input, 7 the fidelity gate refused the policy to export, 1 any other error,
130 and 143 ended by Ctrl-C and SIGTERM."""


if __name__ == "__main__":
    sys.exit(main())
