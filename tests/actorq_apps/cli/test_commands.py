"""The commands as processes, with small fake services instead of the real ones."""

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from actorq.config.run_config import RunConfig
from actorq.rundirectory import RunDirectory
from actorq.statefiles.documents import write_document
from actorq_apps.cli.evaluate import _evaluated_version
from tests.builders.forked_commands import COMMANDS, ForkedCommand

TIMEOUT_S = 60.0
REPOSITORY = Path(__file__).parents[3]

# A service that reports its life on the test's pipe. FAKE_LEARNER sets the learner's behavior.
FAKE = """
import os, select, signal, sys
from pathlib import Path
from actorq.statefiles.documents import write_document
arguments = sys.argv[1:]
def flag(name):
    return arguments[arguments.index(name) + 1]
name = flag("--name")
behaviour = os.environ.get("FAKE_LEARNER", "serve") if name == "learner" else "serve"
def say(text):
    with open(os.environ["FAKE_PIPE"], "w") as pipe:
        pipe.write(f"{name} {os.getpid()} {text}\\n")
def finish(state, code):
    if name == "learner":
        summary = {"solved": state == "solved", "state": state, "target_return": 475.0, "environment_steps": 64256,
                   "updates": 100, "wall_clock_s": 42.3, "evaluation": {"mean_return": 486.2, "episodes": 20,
                   "scheme": "int8", "policy_version": 35}}
        write_document(Path(flag("--run-directory"), "summary.json"), summary)
    os._exit(code)
signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "stubborn" else lambda *_: finish("interrupted", 6))
woken, wakes = os.pipe()
os.set_blocking(wakes, False)
signal.set_wakeup_fd(wakes)
if "standalone" in arguments and os.environ["FAKE_LEARNER"] == "mistake":
    sys.exit(print("error: environment 'CartPole-v1' needs gymnasium", file=sys.stderr) or 2)
if "standalone" in arguments and os.environ["FAKE_LEARNER"] == "crash":
    sys.exit("out of memory")
say(("resumed" if "--resume" in arguments else "started") + (" to read" if "--read-only" in arguments else ""))
if behaviour == "solve":
    finish("solved", 0)
if behaviour == "spend":
    finish("budget ended", 3)
if behaviour == "stop":
    finish("stopped", 4)
if behaviour == "mistake":
    sys.exit(print("error: --run-directory: no space left", file=sys.stderr) or 2)
os.write(0, b"ready\\n")
# Not a read: it would not end by a signal that arrives just before it begins.
select.select([0, woken], [], [])
"""
# Replaces the process that reports an environment's spec.
FAKE_ENVIRONMENTS = """
import json, os, socket, sys
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
spec = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), sizes=(2,))
known = sys.argv[1] == "CartPole-v1"
answer = {"spec": spec.to_json()} if known else {"error": "environment 'Nope-v0' is not known", "exits": False}
socket.socket(fileno=os.dup(0)).sendall(json.dumps(answer).encode() + b"\\n")
sys.exit(0 if known else 2)
"""


class Command:
    """Runs the command in a folder where fake services hide the real ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for package in ("learner_service", "quantizer_service", "actor_service"):
            (folder / package).mkdir()
            (folder / package / "__init__.py").touch()
            (folder / package / "__main__.py").write_text(FAKE)
        # A fork server imports this before the learner starts.
        (folder / "learner_service" / "process.py").touch()
        (folder / "actor_service" / "environments").mkdir()
        (folder / "actor_service" / "environments" / "__main__.py").write_text(FAKE_ENVIRONMENTS)
        self._pipe = folder / "pipe"
        os.mkfifo(self._pipe)
        # Opened to read and write, so that the pipe has a writer whenever the test reads.
        self._said = os.fdopen(os.open(self._pipe, os.O_RDWR), "rb", buffering=0)
        self.pids: set[int] = set()
        self.process: ForkedCommand | None = None

    def start(self, *arguments: str, learner: str = "serve") -> ForkedCommand:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ACTORQ_")}
        mine = {"PYTHONPATH": str(REPOSITORY), "FAKE_PIPE": str(self._pipe), "FAKE_LEARNER": learner}
        # Not forked from a process with the services' modules, which would fork the real services.
        self.process = ForkedCommand(
            "actorq_apps.cli.main", *arguments, cwd=self.folder, environment=clean | mine, modules=COMMANDS
        )
        return self.process

    def run(self, *arguments: str, learner: str = "serve") -> tuple[int, str, str]:
        """Run the command to its end; returns its exit code, output and errors."""
        process = self.start(*arguments, learner=learner)
        output, errors = process.communicate(timeout=TIMEOUT_S)
        return process.wait(), output, errors

    def hear(self, *expected: str) -> dict[str, int]:
        """Wait until processes have written all these texts, each "NAME TEXT"; returns their process ids."""
        missing, pids = set(expected), {}
        while missing:
            assert select.select([self._said], [], [], TIMEOUT_S)[0], f"nobody has said {missing}"
            name, pid, text = self._said.readline().decode().rstrip("\n").split(" ", 2)
            self.pids.add(int(pid))
            pids[name] = int(pid)
            missing.discard(f"{name} {text}")
        return pids

    def finish(self) -> tuple[int, str, str]:
        """Wait for the command's end. None of its processes may be left."""
        assert self.process is not None
        output, errors = self.process.communicate(timeout=TIMEOUT_S)
        _, alive = psutil.wait_procs(self._processes(), timeout=TIMEOUT_S)
        assert not alive
        return self.process.wait(), output, errors

    def close(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=TIMEOUT_S)
        self._said.close()

    def _processes(self) -> list[psutil.Process]:
        found = []
        for pid in self.pids:
            # Most processes are just ending.
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return found


ALL = ("learner started", "quantizer started", "actor-0 started", "actor-1 started", "evaluator started")
TRAIN = ("train", "--no-energy.enabled", "--run-directory", "run")


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    command.close()


@pytest.mark.parametrize(
    ("learner", "code", "verdict"), [("solve", 0, "solved"), ("spend", 3, "budget ended"), ("stop", 4, "stopped")]
)
def test_a_run_ends_with_its_result_and_its_directory(command: Command, learner: str, code: int, verdict: str) -> None:
    returned, output, errors = command.run(*TRAIN, learner=learner)
    lines = output.splitlines()
    assert (returned, errors, lines[-1]) == (code, "", "run")
    result = rf"{verdict}: .* 486\.2 .*475\.0.* 20 episodes, policy v35 int8"
    assert any(re.match(result, line) for line in lines), output
    assert (command.folder / "run" / "config.yaml").is_file()
    assert not (command.folder / "run" / "addresses.json").exists()


def test_the_default_directory_is_named_after_the_environment(command: Command) -> None:
    _, output, _ = command.run("train", "--no-energy.enabled", learner="solve")
    directory = output.splitlines()[-1]
    assert directory.startswith("runs/CartPole-v1-")
    assert (command.folder / directory / "summary.json").is_file()


def test_ctrl_c_saves_the_run_and_resume_continues_it(command: Command) -> None:
    command.start(*TRAIN, "--seed", "7")
    command.hear(*ALL)
    assert command.process
    command.process.send_signal(signal.SIGINT)
    code, output, _ = command.finish()
    assert code == 130
    assert output.endswith(": actorq train --resume --run-directory run\nrun\n")
    command.start(*TRAIN, "--resume")
    command.hear("learner resumed", *ALL[1:])
    command.process.send_signal(signal.SIGTERM)
    assert command.finish()[0] == 143
    assert "seed: 7\n" in (command.folder / "run" / "config.yaml").read_text()


def test_ctrl_c_twice_ends_even_a_learner_that_ignores_signals(command: Command) -> None:
    process = command.start(*TRAIN, learner="stubborn")
    command.hear(*ALL)
    process.send_signal(signal.SIGINT)
    assert process.stdout
    assert any("SIGINT" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    assert command.finish()[0] == 130


def test_a_killed_launcher_leaves_no_process_behind(command: Command) -> None:
    process = command.start(*TRAIN, learner="stubborn")
    command.hear(*ALL)
    process.kill()
    assert command.finish()[0] == -signal.SIGKILL


def test_a_killed_learner_is_restarted_to_resume(command: Command) -> None:
    process = command.start(*TRAIN)
    os.kill(command.hear(*ALL)["learner"], signal.SIGKILL)
    command.hear("learner resumed")
    process.send_signal(signal.SIGINT)
    _, output, _ = command.finish()
    assert re.search("learner .*SIGKILL.*restarting", output)


def test_restarts_an_interrupted_learner_and_continues_the_run(command: Command) -> None:
    process = command.start(*TRAIN)
    os.kill(command.hear(*ALL)["learner"], signal.SIGTERM)
    command.hear("learner resumed")
    process.send_signal(signal.SIGINT)
    code, output, errors = command.finish()
    assert (code, errors) == (130, "")
    assert re.search("learner .*interrupted.*restarting", output)
    assert re.search(r"\ninterrupted: .* 486\.2", output)
    assert output.endswith(": actorq train --resume --run-directory run\nrun\n")


def test_a_users_mistake_in_a_service_becomes_the_commands_error(command: Command) -> None:
    code, _, errors = command.run(*TRAIN, learner="mistake")
    assert (code, errors) == (2, "error: --run-directory: no space left\n")


def test_reports_an_unknown_environment_before_creating_files(command: Command) -> None:
    before = sorted(command.folder.iterdir())
    code, output, errors = command.run(*TRAIN, "--environment", "Nope-v0")
    assert (code, output, errors) == (2, "", "error: environment 'Nope-v0' is not known\n")
    assert sorted(command.folder.iterdir()) == before


def test_does_not_change_an_existing_directory(command: Command) -> None:
    (command.folder / "run").mkdir()
    (command.folder / "run" / "mine").write_text("dear")
    code, _, errors = command.run(*TRAIN)
    assert code == 2
    assert re.match("error: .* run .*--resume .*--run-directory\n$", errors)
    assert [path.name for path in (command.folder / "run").iterdir()] == ["mine"]


def test_an_empty_directory_may_be_used(command: Command) -> None:
    (command.folder / "run").mkdir()
    assert command.run(*TRAIN, learner="solve")[0] == 0


def test_one_run_has_one_launcher(command: Command) -> None:
    first = command.start(*TRAIN)
    command.hear(*ALL)
    code, _, errors = command.run(*TRAIN, "--resume")
    assert code == 2
    assert re.match("error: .* run .*in use .*actorq train\n$", errors)
    first.send_signal(signal.SIGINT)
    command.process = first
    assert command.finish()[0] == 130


@pytest.mark.parametrize(
    ("behaviour", "code", "fact"),
    [
        ("mistake", 2, "error: environment 'CartPole-v1' needs gymnasium\n$"),
        ("crash", 1, "error: actor .*exit code 1.*\n  out of memory\n$"),
    ],
)
def test_an_evaluation_reports_why_its_actor_failed(command: Command, behaviour: str, code: int, fact: str) -> None:
    run = RunDirectory(command.folder / "run")
    run.create(RunConfig())
    (run.policies / "1").mkdir(parents=True)
    *ended, errors = command.run("evaluate", "run", learner=behaviour)
    assert ended == [code, ""]
    assert re.match(fact, errors)


def test_an_evaluation_only_reads_policies_and_a_signal_ends_its_processes(command: Command) -> None:
    run = RunDirectory(command.folder / "run")
    run.create(RunConfig())
    (run.policies / "1").mkdir(parents=True)
    process = command.start("evaluate", "run")
    command.hear("quantizer started to read", "evaluator started")
    process.send_signal(signal.SIGTERM)
    assert command.finish() == (143, "", "")


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (["--record", "run"], r"--record.*\.mp4.* run$"),
        (["--record", "no/film.mp4"], "--record.*{folder}/no$"),
        (["--record", "film.txt"], r"--record.*\.mp4.* film\.txt$"),
        (["--record", "run/film.mp4"], r"--record.*run/film\.mp4 .*already"),
        (["--episodes", "10001"], "'episodes'.* 10,000, .*'10001'$"),
        (["--seed", "2147483648"], "'seed'.* 2,147,483,647, .*'2147483648'$"),
    ],
)
def test_a_wrong_flag_of_an_evaluation_is_refused_before_it_begins(
    command: Command, flags: list[str], fact: str
) -> None:
    run = RunDirectory(command.folder / "run")
    run.create(RunConfig())
    (run.policies / "1").mkdir(parents=True)
    (run.root / "film.mp4").touch()
    code, output, errors = command.run("evaluate", "run", *flags)
    (line,) = errors.splitlines()
    assert (code, output) == (2, "")
    assert re.match(f"error: .*{fact.replace('{folder}', str(command.folder))}", line)


def test_evaluates_the_newest_version_while_the_run_is_active(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create(RunConfig())
    write_document(run.summary, {"evaluation": {"policy_version": 3}})
    assert _evaluated_version(run) == 3
    with run.locked(lambda: None):
        assert _evaluated_version(run) == 0


def test_a_closed_output_causes_no_traceback() -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m actorq_apps.cli.main --version >&-"], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_service_command_becomes_the_service(command: Command) -> None:
    command.start("quantizer", "--name", "mine")
    assert command.process
    assert command.hear("mine started") == {"mine": command.process.pid}
