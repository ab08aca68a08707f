"""`actorq evaluate`: runs episodes with a run's policy."""

import sys
from collections.abc import Collection, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from actorq.arithmetic import arithmetic
from actorq.config import settings
from actorq.config.numbers import Episodes, Whole
from actorq.config.run_config import RunConfig
from actorq.config.schemes import SchemeChoice, VersionChoice
from actorq.config.sections import CERTIFICATES_HELP
from actorq.config.settings import DefaultText, Settings
from actorq.domain.environments import Group, group_returns
from actorq.domain.policy import AUTO, FALLBACK
from actorq.errors import UserError
from actorq.inference.runpolicies import RunPolicies
from actorq.process import Sources, argument_parser
from actorq.rundirectory import RunDirectory
from actorq.text import return_text
from actorq_apps.cli.display.numbers import share
from actorq_apps.local.algorithm import about_wrappers
from actorq_apps.local.environment import modules_here
from actorq_apps.local.evaluation import EvaluationRequest, EvaluationResult, Substitution, evaluate_run
from actorq_apps.local.events import sigterm_as_exit

_EPISODES = 20
# Suffix of an episode's line.
_SUCCESS = {True: "  success", False: "  failure", None: ""}


class EvaluateSettings(Settings):
    """The policy to evaluate, and how to evaluate it."""

    run_directory: Path | None = Field(None, description="folder of the run, if RUN_DIR is not given")
    episodes: Annotated[Episodes | None, DefaultText("20, with --record 1")] = Field(
        None, description="episodes to run"
    )
    scheme: Annotated[
        SchemeChoice | None,
        DefaultText("the run's own; for a finished auto run that of the last evaluation, else auto"),
    ] = Field(
        None, description="quantization of the policy; auto: the fastest on this machine for the run's batch size"
    )
    version: Annotated[
        VersionChoice | None,
        DefaultText("for a finished run the last evaluated one, or the best if that is not retained, else the newest"),
    ] = Field(None, description="version of the policy: best, newest or a number; actorq policies lists them")
    seed: Annotated[Whole, Field(ge=0, lt=2**31)] = Field(1, description="seed of the environments")
    sampled: bool = Field(
        False,
        description="draw actions from the policy's distribution, as actors of an on-policy algorithm do; otherwise "
        "actions are greedy",
    )
    allow_modules: tuple[str, ...] = Field(
        (), description="modules of the working directory that the run's environment MODULE:NAME may import"
    )
    record: Path | None = Field(None, description="MP4 file for a video of the episodes")
    certificates: Annotated[Path | None, DefaultText("the run's own")] = Field(None, description=CERTIFICATES_HELP)


def run(arguments: Sequence[str]) -> int:
    """Run episodes. Print each return, then the result over all episodes."""
    text = "Run episodes of a run's policy, during the run or after it, without its learner."
    parser = argument_parser("actorq evaluate", text, (EvaluateSettings,))
    parser.usage = "actorq evaluate RUN_DIR [flags]"
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN_DIR", help="folder of the run")
    namespace = parser.parse_args(arguments)
    how = Sources.read((EvaluateSettings,), namespace).resolve(EvaluateSettings)
    root: Path | None = namespace.run or how.run_directory
    if root is None:
        parser.error("the following arguments are required: RUN_DIR")
    directory = RunDirectory(root)
    config = settings.build(RunConfig, directory.config_tree())
    _require_allowed(config, how.allow_modules)
    if how.certificates:
        config = config.with_certificates(how.certificates)
    if not directory.has_policies:
        raise UserError(f"{directory.policies} has no policies: the run has not published any yet")
    if how.record and not how.record.absolute().parent.is_dir():
        raise UserError(f"--record: there is no folder {how.record.absolute().parent}")
    if how.record and how.record.suffix != ".mp4":
        raise UserError(f"--record: expected a name that ends in .mp4, got {how.record}")
    if how.record and how.record.exists():
        raise UserError(f"--record: {how.record} is there already; give another name")
    request = EvaluationRequest(
        episodes=how.episodes or (1 if how.record else _EPISODES),
        scheme=how.scheme or _scheme_of_run(directory, config),
        version=RunPolicies(directory).find(how.version).version if how.version else _evaluated_version(directory),
        seed=how.seed,
        record=how.record,
        # A version that the user names is never replaced by another.
        else_best=how.version is None,
        sampled=how.sampled,
    )
    for text in about_wrappers(config.environment_arguments):
        print(f"warning: {text}", file=sys.stderr, flush=True)
    with sigterm_as_exit():
        _print_episodes(directory, config, request)
    return 0


def _require_allowed(config: RunConfig, allowed: Collection[str]) -> None:
    """Raise UserError when the run would import a local module that is not allowed. It may be another user's module."""
    for module in modules_here(config):
        if module not in allowed:
            raise UserError(
                f"the run's environment {config.environment!r} would import {module} from the working directory; give "
                f"--allow-modules {module} if you trust the run and that module"
            )


def _print_episodes(directory: RunDirectory, config: RunConfig, request: EvaluationRequest) -> None:
    width = len(str(request.episodes))
    numbers = count(1)
    with closing(evaluate_run(directory, config, request)) as items:
        for item in items:
            if isinstance(item, EvaluationResult):
                _print_result(item, config.groups)
                if request.record:
                    print(f"video in {request.record}")
            elif isinstance(item, Substitution):
                best = f"the best retained one, evaluated at {return_text(item.mean_return)}"
                which = "the newest" if item.mean_return is None else best
                gone = f"version {item.asked_for}, the one evaluated last, is not retained"
                print(f"{gone}: this is {item.version}, {which}", flush=True)
            else:
                episode = f"episode {next(numbers):>{width}}/{request.episodes}"
                figures = f"return {return_text(item.episode_return)}  {item.length:,} steps{_SUCCESS[item.success]}"
                print(f"{episode}  {figures}", flush=True)


def _print_result(result: EvaluationResult, groups: Sequence[Group]) -> None:
    evaluation, policy = result.evaluation, result.policy
    returns = evaluation.returns
    mean, low, high = (return_text(each) for each in (evaluation.mean_return, min(returns), max(returns)))
    episodes = f"{len(returns)} episode{'s' * (len(returns) != 1)}"
    print(f"return mean {mean}  min {low}  max {high}  over {episodes} in {evaluation.duration_s:.1f} s")
    for name, group_return in group_returns(groups, evaluation.mean_agent_returns).items():
        print(f"  group {name} mean {return_text(group_return)}")
    for agent, agent_return in evaluation.mean_agent_returns.items():
        print(f"  {agent} mean {return_text(agent_return)}")
    if evaluation.success_rate is not None:
        print(f"success in {sum(evaluation.successes)} of {len(returns)}: {share(evaluation.success_rate)}")
    fidelity = policy.fidelity
    close = ""
    if fidelity.mean_kl is not None:
        close = f"KL divergence from fp32 {fidelity.mean_kl:.2g} nats, "
    elif fidelity.argmax_agreement is not None:
        close = f"same action as fp32 in {fidelity.argmax_agreement:.1%}, "
    fallen_back = "" if policy.effective_scheme == policy.scheme else f", in effect {policy.effective_scheme}"
    print(
        f"policy v{policy.version} {policy.scheme}{fallen_back} ({policy.learner_step:,} updates): {close}"
        f"mean error {fidelity.mean_error:.3g} on {fidelity.observations:,} observations"
        + ("" if fidelity.state_drift is None else f", drift of the state {fidelity.state_drift:.2%} of its range")
    )
    if policy.effective_scheme in arithmetic().inexact_schemes:
        print(f"this processor computes {policy.scheme} wrongly: take --scheme {FALLBACK}")


def _scheme_of_run(directory: RunDirectory, config: RunConfig) -> str:
    """The scheme of the run's actors. With "auto": the evaluator's scheme if the run is over, else "auto"."""
    if config.scheme != AUTO:
        return config.scheme
    return str(_last_evaluation(directory).get("scheme") or AUTO)


def _evaluated_version(directory: RunDirectory) -> int:
    """The version of the run's last evaluation; 0 (the newest) while the run is active."""
    return int(_last_evaluation(directory).get("policy_version", 0))


def _last_evaluation(directory: RunDirectory) -> dict[str, Any]:
    """The evaluation in the run's summary. Empty while the run is active, because the summary is then outdated."""
    return {} if directory.is_in_use else directory.read_summary().get("evaluation") or {}
