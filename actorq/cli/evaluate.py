"""`actorq evaluate`: greedy episodes of a run's policy."""

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import get_args

from actorq import settings
from actorq.config import RunConfig
from actorq.errors import UserError
from actorq.local.evaluation import EvaluationRequest, EvaluationResult, evaluate_run
from actorq.rundirectory import RunDirectory

_TERMINATED = 143


def run(arguments: Sequence[str]) -> int:
    """Run episodes and print each return, then what they come to."""
    parser = settings.OneLineParser(
        prog="actorq evaluate",
        description="Run greedy episodes of a run's policy, during the run or after it, without its learner.",
        allow_abbrev=False,
    )
    schemes = get_args(RunConfig.model_fields["scheme"].annotation)
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="folder of the run")
    parser.add_argument("--episodes", type=_positive, default=20, metavar="N", help="episodes to run (default: 20)")
    parser.add_argument(
        "--scheme", metavar="{" + ",".join(schemes) + "}", help="quantization of the policy (default: the run's own)"
    )
    parser.add_argument(
        "--version",
        type=_positive,
        metavar="V",
        help="version of the policy (default: the one evaluated last when the run has ended, else the newest)",
    )
    parser.add_argument("--seed", type=_natural, default=1, metavar="N", help="seed of the environments (default: 1)")
    namespace = parser.parse_args(arguments)
    directory = RunDirectory(namespace.run)
    config = settings.build(RunConfig, directory.config_tree())
    if not directory.policies.is_dir() or not any(directory.policies.iterdir()):
        raise UserError(f"{directory.policies} has no policies: the run has not published any yet")
    request = EvaluationRequest(
        episodes=namespace.episodes,
        scheme=namespace.scheme or config.scheme,
        version=namespace.version or _evaluated_version(directory),
        seed=namespace.seed,
    )
    with _sigterm_exits():
        _print_episodes(directory, config, request)
    return 0


def _print_episodes(directory: RunDirectory, config: RunConfig, request: EvaluationRequest) -> None:
    width = len(str(request.episodes))
    with closing(evaluate_run(directory, config, request)) as items:
        for number, item in enumerate(items, start=1):
            if isinstance(item, EvaluationResult):
                _print_result(item)
            else:
                print(
                    f"episode {number:>{width}}/{request.episodes}  return {item.episode_return:,.1f}  "
                    f"{item.length:,} steps",
                    flush=True,
                )


def _print_result(result: EvaluationResult) -> None:
    evaluation, policy = result.evaluation, result.policy
    returns = evaluation.returns
    print(
        f"return mean {evaluation.mean_return:,.1f}  min {min(returns):,.1f}  max {max(returns):,.1f}  "
        f"over {len(returns)} episodes in {evaluation.duration_s:.1f} s"
    )
    fidelity = policy.fidelity
    agreement = (
        f"same action as fp32 in {fidelity.argmax_agreement:.1%}, " if fidelity.argmax_agreement is not None else ""
    )
    print(
        f"policy v{policy.version} {policy.scheme} (learner step {policy.learner_step:,}): {agreement}"
        f"mean error {fidelity.mean_error:.3g} on {fidelity.observations:,} observations"
    )


def _evaluated_version(directory: RunDirectory) -> int:
    """The version of the run's last evaluation; 0, the newest, while the run goes on."""
    evaluation = directory.read_summary().get("evaluation") or {}
    return int(evaluation.get("policy_version", 0))


@contextmanager
def _sigterm_exits() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that everything that was started is ended."""

    def leave(_: int, __: FrameType | None) -> None:
        sys.exit(_TERMINATED)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _positive(text: str) -> int:
    return _whole(text, 1)


def _natural(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, minimum: int) -> int:
    if not text.isdecimal() or int(text) < minimum:
        raise argparse.ArgumentTypeError(f"expected a whole number from {minimum} on, got {text!r}")
    return int(text)
