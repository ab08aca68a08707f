"""The handle for a run that this program has started."""

import atexit
import contextvars
import os
import queue
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from actorq.arithmetic import arithmetic
from actorq.client import LearnerClient
from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.status import RunState, RunStatus
from actorq.domain.trajectory import Evaluation
from actorq.errors import ActorQError, ConflictError, InvalidInputError
from actorq.inference.runpolicies import RunPolicies
from actorq.process import EXIT_OF_STATE, EXIT_USER_ERROR
from actorq.rundirectory import Addresses, RunDirectory
from actorq.start import command_of
from actorq_apps.cli.display.display import Display
from actorq_apps.local.child import Child, run_to_end
from actorq_apps.local.evaluation import EvaluationRequest, EvaluationResult, evaluate_run
from actorq_apps.local.events import ChildExited
from actorq_apps.local.observer import ProcessState, ProcessView
from actorq_apps.local.services import Kind
from actorq_apps.local.watching import StatusWatch
from actorq_apps.local.wholerun import DRAIN_MARGIN_S
from actorq_apps.python.arguments import with_arguments
from actorq_apps.python.buffer import EventBuffer
from actorq_apps.python.events import EndEvent, EvaluationEvent, Event, NoticeEvent, Result, StatusEvent
from actorq_apps.python.plot import Plot, plot_run

if TYPE_CHECKING:
    from actor_service.embedded import EmbeddedActor, OwnEnvironment
    from actorq.inference import LoadedPolicy

Callback = Callable[[Event], bool | None]
Item = Path | ProcessView | RunStatus | ChildExited | str | Exception
"""Items from the launcher, the learner and this process's actor. A str is an event. An Exception ends the run."""

# Exit codes of a launcher whose run has a result: finished, or interrupted by a signal.
_WITH_RESULT = {*EXIT_OF_STATE.values(), 130, 143}


class Run:
    """A run in the background of this program. `actorq.train` creates it; see there for an example.

    All methods may be called from any thread. As a context manager, it stops the run at the end of the block. When this
    program ends, the run is saved and ends too.

    directory: folder of the run. Commands can read it too: `actorq evaluate DIRECTORY`.
    """

    def __init__(
        self,
        child: Child,
        directory: RunDirectory,
        items: "queue.SimpleQueue[Item]",
        display: AbstractContextManager[Any] | None,
        callbacks: Sequence[Callback],
        own: "OwnEnvironment | None",
        files: "TemporaryDirectory[str]",
    ) -> None:
        self.directory = directory.root
        self._files, self._run = files, directory
        self._child, self._items, self._callbacks, self._own = child, items, callbacks, own
        self._display: Display | None = display  # type: ignore[assignment]
        self._config = settings.build(RunConfig, directory.config_tree())
        self._lock = threading.Lock()
        self._readers: list[EventBuffer] = []
        self._status: RunStatus | None = None
        self._addresses: Addresses | None = None
        self._serving: set[Kind] = set()
        self._watch: StatusWatch | None = None
        self._actor: EmbeddedActor | None = None
        self._error: BaseException | None = None
        self._result: Result | None = None
        self._stopping = False
        self._ended = threading.Event()
        self._leaving = threading.Event()
        atexit.register(self._leave)
        _close_in_forks(child)
        # The caller's context: in a notebook, the output belongs to the cell that started the run.
        follow = contextvars.copy_context().run
        self._thread = threading.Thread(target=follow, args=(self._follow,), name="actorq-run", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = self._status.state.value if self._status else "starting"
        return f"<actorq.Run {self._config.algorithm} on {self._config.environment}: {state}, {self.directory}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __iter__(self) -> Iterator[Event]:
        """Each event from now on. The last is an `EndEvent`. A failed run raises its error instead, as in `wait`."""
        reader = EventBuffer()
        with self._lock:
            if self._result is not None:
                reader.put(EndEvent(self._result))
            self._readers.append(reader)
        try:
            while not isinstance(event := reader.get(), EndEvent):
                yield event
        finally:
            # A reader that stops early must not collect further events.
            with self._lock:
                self._readers.remove(reader)
        self._outcome()
        yield event

    @property
    def running(self) -> bool:
        """Whether processes of the run exist."""
        return not self._ended.is_set()

    def status(self) -> RunStatus | None:
        """The newest status of the learner; None before the first one, about a second after the start."""
        return self._status

    def wait(self, timeout: float | None = None) -> Result:
        """Wait for the end of the run, and show its progress in a terminal. Returns its result.

        timeout: seconds, after which this method raises TimeoutError. The run then continues.

        Raises the error that ended the run: UserError for wrong settings, the exception of a callback, the exception of
        an environment in this process, or ActorQError for other errors.
        """
        if self.running:
            with self._display or nullcontext():
                if not self._ended.wait(timeout):
                    raise TimeoutError(f"the run in {self.directory} has not ended after {timeout:g} s; it continues")
        return self._outcome()

    def stop(self) -> None:
        """Save the run, end it, and wait for the end. `actorq.train(..., directory=..., resume=True)` continues it.

        Does nothing if the run has ended. In a callback it does not wait.
        """
        self._terminate()
        if threading.current_thread() is not self._thread and not self._ended.wait(self._drain_s):
            self._child.kill()
            self._ended.wait()

    def pause(self) -> None:
        """Pause the learner. Actors then wait. Raises UnavailableError while the learner does not serve."""
        with self._learner() as learner:
            learner.pause()

    def resume(self) -> None:
        """Continue after `pause`."""
        with self._learner() as learner:
            learner.resume()

    def policy(self, version: int | str = "", scheme: str = "") -> "LoadedPolicy":
        """A policy of the run, to compute actions: `run.policy().predict(observation)`. See `actorq.load_policy`.

        A policy with memory keeps its state between calls: keep the policy, and call its `reset` where an episode
        begins.
        """
        from actorq.inference import load_policy

        return load_policy(self.directory, version, scheme)

    def evaluate(self, episodes: int = 20, version: int | str = "", seed: int = 1) -> Evaluation:
        """Run greedy episodes of a quantized policy, even during the run. Blocks.

        version: "best", "newest" or a number; by default the best, or the newest without evaluations. seed: seed
        of the environments.

        Raises UserError for a version that is not stored.
        """
        policies = RunPolicies(self._run)
        found = policies.find(str(version))
        scheme = policies.scheme_of(found)
        if self._own is not None:
            policy = policies.stored(found, scheme, arithmetic().weight_encoding)
            each = policies.config.environments_per_actor
            return self._own.evaluate(self._run.read_environment(), policy, episodes, each, seed, self._leaving)
        request = EvaluationRequest(episodes, scheme, found.version, seed)
        for item in evaluate_run(self._run, policies.config, request):
            if isinstance(item, EvaluationResult):
                return item.evaluation
        raise ActorQError("the evaluation ended without a result")

    def export(self, path: str | Path = "policy.onnx", **flags: str | int) -> Path:
        """Write a policy as an ONNX file, with a description file. `actorq.load_policy(path)` reads it.

        flags: flags of `actorq export`, such as form="standard" or version="best". Raises UserError, for example for an
        existing file.
        """
        given = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        command = (*command_of("quantizer_service.command.export:command"), str(self.directory), "--output", str(path))
        run_to_end((*command, *given), None, "the export failed")
        return Path(path)

    def plot(self, path: str | Path | None = None) -> Plot:
        """Plot the evaluations. A notebook displays the plot. path: also write it to this .png, .svg or .pdf file."""
        target = self._status.target_return if self._status else self._config.target_return
        plot = plot_run(self._run, target)
        if path is not None:
            plot.save(path)
        return plot

    @property
    def _drain_s(self) -> float:
        return self._config.transport.drain_s + DRAIN_MARGIN_S

    def _outcome(self) -> Result:
        self._ended.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def _learner(self) -> LearnerClient:
        if self._addresses is None or self._ended.is_set():
            raise ConflictError(f"the run in {self.directory} has no learner {'yet' if self.running else 'any more'}")
        return LearnerClient(self._addresses.learner, self._config.transport.certificates_of("operator"))

    def _terminate(self) -> None:
        self._stopping = True
        self._child.terminate()

    def _leave(self) -> None:
        """Save the run at the end of the program."""
        self._leaving.set()
        self.stop()

    def _follow(self) -> None:
        """Process all items until the launcher has ended."""
        code: int | None = None
        while code is None:
            match self._items.get():
                case ChildExited() as ended:
                    code = ended.code
                case ProcessView() as view:
                    self._process(view)
                case RunStatus() as status:
                    self._learned(status)
                case str() as text:
                    if self._stopping and text.startswith(signal.SIGTERM.name):
                        # This program requested the end and sent no signal itself, so the text must not name one.
                        text = "saving the run and ending"
                    if self._display is not None:
                        self._display.event(text)
                    self._emit(NoticeEvent(text))
                case Exception() as error:
                    self._fail(error)
        self._end(code)

    def _process(self, view: ProcessView) -> None:
        if self._display is not None:
            self._display.process(view)
        (self._serving.add if view.state is ProcessState.RUNNING else self._serving.discard)(view.kind)
        if self._serving >= {Kind.LEARNER, Kind.QUANTIZER}:
            self._connect()

    def _connect(self) -> None:
        """Follow the learner's status and start to act, once for each set of addresses."""
        try:
            addresses = self._run.read_addresses()
        except InvalidInputError:
            return
        known = self._addresses
        if known is not None and (known.learner, known.quantizer) == (addresses.learner, addresses.quantizer):
            return
        self._disconnect()
        self._addresses = addresses
        certificates = self._config.transport.certificates_of("monitor")
        self._watch = StatusWatch(addresses.learner, certificates, self._items.put, until_close=True)
        if self._own is not None:
            from actor_service.embedded import EmbeddedActor

            self._actor = EmbeddedActor(
                self._own, self._config, addresses.learner, addresses.quantizer, self._actor_ended
            )
            self._actor.start()

    def _disconnect(self) -> None:
        if self._actor is not None:
            self._actor.close()
        if self._watch is not None:
            self._watch.close()

    def _actor_ended(self, error: BaseException | None) -> None:
        if error is not None:
            self._items.put(error if isinstance(error, Exception) else ActorQError(repr(error)))

    def _learned(self, status: RunStatus) -> None:
        before, self._status = self._status, status
        if self._display is not None:
            self._display.status(status)
        evaluation = status.evaluation
        if evaluation is not None and evaluation != (before and before.evaluation):
            self._emit(EvaluationEvent(evaluation, status))
        self._emit(StatusEvent(status))

    def _emit(self, event: Event) -> None:
        with self._lock:
            for reader in self._readers:
                reader.put(event)
        for callback in self._callbacks:
            try:
                if callback(event) is False:
                    self._terminate()
            except Exception as error:  # The caller's function gets its own exception back.
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the run because of an error of this process."""
        self._error = self._error or error
        self._terminate()

    def _end(self, code: int) -> None:
        self._disconnect()
        if self._error is None and (code not in _WITH_RESULT or code == EXIT_USER_ERROR):
            self._error = with_arguments(self._child.failure(code, "before the run was over"))
        result = Result.of(self.directory, self._run.read_summary(), RunState.INTERRUPTED)
        if self._status is not None and self._status.state is not result.state:
            # The learner may have ended before its last status arrived.
            self._learned(replace(self._status, state=result.state))
        with self._lock:
            self._result = result
        self._emit(EndEvent(result))
        if self._own is not None:
            self._own.free()
        atexit.unregister(self._leave)
        self._files.cleanup()
        self._ended.set()


def _close_in_forks(child: Child) -> None:
    """Make forks of this program release the launcher's lifeline, because the run must end with this program."""
    found = weakref.ref(child)

    def close() -> None:
        if (known := found()) is not None:
            known.forget()

    os.register_at_fork(after_in_child=close)
