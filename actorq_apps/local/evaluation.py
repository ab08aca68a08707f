"""Evaluates a run's retained policies without its learner. Starts a quantizer on the run's store, and an actor."""

import queue
import re
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from actorq.client import ActorClient, QuantizerClient
from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.policy import AUTO, BEST, NEWEST, PolicyDescriptor, chosen_version
from actorq.domain.trajectory import Episode, Evaluation
from actorq.errors import ActorQError, ConflictError, InvalidInputError, NotFoundError, UserError
from actorq.rundirectory import RunDirectory
from actorq_apps.local.child import Child
from actorq_apps.local.events import ChildExited
from actorq_apps.local.forkserver import once_forked
from actorq_apps.local.services import MODULES, Kind, module_command, reserved_addresses


@dataclass(frozen=True)
class EvaluationRequest:
    """A request for an evaluation. Version 0 is the newest retained one. Scheme "auto" is the fastest on this machine.

    record: file for a video of the episodes, which then run one after the other.
    sampled: draw actions from the policy's distribution instead of greedy actions.
    else_best: if the version is not retained, evaluate the best retained version: see Substitution.
    """

    episodes: int
    scheme: str
    version: int
    seed: int
    record: Path | None = None
    else_best: bool = False
    sampled: bool = False


@dataclass(frozen=True)
class Substitution:
    """The version that replaces one that is not retained: the best, or the newest if none was evaluated."""

    asked_for: int
    version: int
    mean_return: float | None


@dataclass(frozen=True)
class EvaluationResult:
    """All episodes, and the policy that chose the actions."""

    evaluation: Evaluation
    policy: PolicyDescriptor


_PATIENCE_S = 5.0
_PEER = re.compile(r"^((actor|quantizer) at [^ ]+:\d+: )+")

# The items that the session's threads put on its queue.
_Item = Episode | EvaluationResult | Substitution | ChildExited | ActorQError


def evaluate_run(
    run: RunDirectory, config: RunConfig, request: EvaluationRequest
) -> Generator[Episode | EvaluationResult | Substitution, None, None]:
    """Yield a substitution if there is one, each episode when it ends, then the result.

    This also works while the run is active, and never affects its learner.

    Raises UserError when the policy does not exist or is unusable, and ActorQError when a process fails. To end the
    processes early, close the iterator.
    """
    certificates = config.transport.certificates_of("operator")
    items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
    with ExitStack() as stack:
        servers = stack.enter_context(once_forked((MODULES[Kind.QUANTIZER], MODULES[Kind.ACTOR])))
        logs = Path(stack.enter_context(TemporaryDirectory(prefix="actorq-evaluate-")))
        # A copy, because the run's own file may be damaged.
        given = logs / "config.yaml"
        given.write_text(settings.to_yaml(config), encoding="utf-8")
        quantizer, actor = stack.enter_context(reserved_addresses(2))
        children = {}
        for name, command in _commands(run, config, given, quantizer, actor, request).items():
            children[name] = Child(name, command, logs / f"{name}.log", items.put, servers=servers)
            # An interrupted actor needs time to remove its incomplete video.
            stack.callback(children[name].end, _PATIENCE_S if request.record and name == "actor" else 0.0)
        client = stack.enter_context(ActorClient(actor, certificates))
        policies = stack.enter_context(QuantizerClient(quantizer, certificates))
        threading.Thread(target=_ask, args=(client, policies, request, items.put), daemon=True).start()
        while True:
            item = items.get()
            if isinstance(item, InvalidInputError | NotFoundError | ConflictError):
                # A refusal by a service is the user's error. The user does not know the services' addresses.
                raise UserError(_PEER.sub("", str(item)))
            if isinstance(item, ActorQError):
                raise item
            if isinstance(item, ChildExited):
                raise children[item.name].failure(item.code, "before the evaluation did")
            yield item
            if isinstance(item, EvaluationResult):
                return


def _commands(
    run: RunDirectory, config: RunConfig, file: Path, quantizer: str, actor: str, request: EvaluationRequest
) -> dict[str, tuple[str, ...]]:
    record, certificates = request.record, str(config.transport.certificates or "none")
    given = ("--config", str(file), "--transport.certificates", certificates, "--lifeline")
    return {
        "quantizer": module_command(
            Kind.QUANTIZER,
            # The run's own quantizer may be writing to the store.
            *(*given, "--store", str(run.policies), "--read-only", "--listen", quantizer, "--name", "quantizer"),
        ),
        "actor": module_command(
            Kind.ACTOR,
            *(*given, "--role", "standalone", "--quantizer", quantizer, "--environment", config.environment),
            *("--listen", actor, "--name", "evaluator"),
            *(("--sampled",) if request.sampled else ()),
            # Only the environment's own library can render.
            *(("--record", str(record.absolute()), "--environment-backend", "python") if record else ()),
        ),
    }


def _ask(
    client: ActorClient, policies: QuantizerClient, request: EvaluationRequest, put: Callable[[_Item], None]
) -> None:
    try:
        # If a process ends before it serves, the caller handles its exit. This daemon thread may keep waiting.
        policies.wait()
        client.wait()
        for item in _evaluated(client, policies, request):
            if isinstance(item, Evaluation):
                # The evaluation names the scheme that was used: fp32 when the gate refused the requested scheme.
                scheme = item.scheme if request.scheme == AUTO else request.scheme
                put(EvaluationResult(item, policies.fidelity(scheme, item.policy_version)))
            else:
                put(item)
    except ActorQError as error:
        put(error)


def _evaluated(
    client: ActorClient, policies: QuantizerClient, request: EvaluationRequest
) -> Iterator[Substitution | Episode | Evaluation]:
    try:
        yield from client.evaluate(request.episodes, request.scheme, request.version, request.seed)
    except NotFoundError:
        retained = policies.list() if request.else_best else []
        best = chosen_version(BEST, retained) or chosen_version(NEWEST, retained)
        # Version 0 is the newest.
        if not request.version or best is None or chosen_version(str(request.version), retained):
            raise
        yield Substitution(request.version, best.version, best.mean_return)
        yield from client.evaluate(request.episodes, request.scheme, best.version, request.seed)
