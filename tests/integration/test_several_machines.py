"""Runs the commands of docs/how-to/several-machines.md in network namespaces that a bridge connects. Programs that
enter a namespace replace ssh, scp, srun and scontrol.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from actorq.process import EXIT_INTERRUPTED
from sitegen.commands import help_of
from tests.documentation.code_blocks import ROOT, blocks

PAGE = "docs/how-to/several-machines.md"
JOB = ROOT / "examples" / "slurm" / "train.sbatch"
NODES = ("node1", "node2", "node3")
PATIENCE_S = 180
# Enters a machine in its own folder, like a user.
_ENTER = """#!/bin/sh
node=$1; shift
cd {root}/$node && exec ip netns exec {prefix}-$node "$@"
"""
_SSH = """#!/bin/sh
node=$1; shift
exec enter "$node" sh -c "$*"
"""
_SCP = """#!/bin/sh
# scp [-r] SOURCE NODE:TARGET
[ "$1" = -r ] && shift
exec cp -r "$1" "{root}/${{2%%:*}}/${{2#*:}}"
"""
_SCONTROL = f"#!/bin/sh\nprintf '%s\\n' {' '.join(NODES)}\n"
_SRUN = f"""#!/bin/bash
# srun --cpus-per-task N --wait SECONDS COMMAND
shift 4
processes=()
number=0
# LATE_NODE starts when the run has ended.
later() {{{{
    while [ "$1" = "${{{{LATE_NODE-}}}}" ] && ! grep -q '"solved": true' run/summary.json; do sleep 0.1; done
    shift; exec "$@"
}}}}
for node in {" ".join(NODES)}; do
    # All nodes share the folder of the job.
    later $node ip netns exec {{prefix}}-$node env SLURM_NODEID=$number "$@" &
    processes+=($!)
    number=$((number + 1))
done
trap 'kill -TERM "${{{{processes[@]}}}}"' TERM
code=0
wait -n "${{{{processes[@]}}}}" || code=$?
# Slurm waits for SECONDS, and then sends SIGTERM to the processes of all tasks.
(sleep 15; for process in "${{{{processes[@]}}}}"; do pkill -TERM -P $process; done) &
terminates=$!
for process in "${{{{processes[@]}}}}"; do wait "$process" || code=$?; done
kill $terminates 2> /dev/null
exit $code
"""


def missing() -> str:
    """The reason why this machine cannot make network namespaces; empty if it can."""
    if shutil.which("ip") is None:
        return "needs the command `ip` of iproute2"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    name = f"aqtry{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"cannot make a network namespace: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@dataclass
class Machines:
    """Three machines behind one bridge. `commands` has their running commands."""

    root: Path
    prefix: str
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for commands: the replaced programs come first in PATH. The run ends early."""
        path = f"{self.root / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        settings = {"TARGET_RETURN": "350", "MAX_ENVIRONMENT_STEPS": "10000000", "EVALUATION__EPISODES": "5"}
        return {**os.environ, "PATH": path, **{f"ACTORQ_{name}": value for name, value in settings.items()}}

    def start(self, line: str, folder: Path | None = None) -> subprocess.Popen[str]:
        """Start a command on node1, in its folder or another one."""
        command = ["ip", "netns", "exec", f"{self.prefix}-node1", "bash", "-c", f"exec {line}"]
        where = folder or self.root / "node1"
        log = (self.root / f"log-{len(self.running)}").open("w+")
        process = subprocess.Popen(
            command, cwd=where, env=self.environment, stdout=log, stderr=log, text=True, start_new_session=True
        )
        log.close()
        self.running.append(process)
        return process

    def run(self, line: str) -> str:
        """Run a command on node1 to its end, and return its output."""
        process = self.start(line)
        code = self.ended(process)
        printed = self.log(process)
        assert code == 0, printed
        return printed

    def ended(self, process: subprocess.Popen[str]) -> int:
        """Wait for the end of a command, and return its exit code. A command that does not end fails with its log."""
        try:
            return process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.log(process)) from None

    def log(self, process: subprocess.Popen[str]) -> str:
        """The output of a command so far."""
        return (self.root / f"log-{self.running.index(process)}").read_text(encoding="utf-8")

    def ask(self, status: str, run: subprocess.Popen[str], names: Sequence[str], folder: Path | None = None) -> None:
        """Ask for the status of a running run, until all of these processes have appeared in it."""
        seen = ""
        while run.poll() is None and not all(name in seen for name in names):
            asked = self.start(status, folder)
            code = self.ended(asked)
            seen += self.log(asked) if code == 0 else ""
        assert all(name in seen for name in names), seen + self.log(run)

    def processes(self) -> list[psutil.Process]:
        """All processes on the machines."""
        found = []
        for node in NODES:
            command = ["ip", "netns", "pids", f"{self.prefix}-{node}"]
            pids = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            found += [psutil.Process(int(pid)) for pid in pids]
        return found

    def close(self) -> None:
        """End all running commands."""
        for process in self.running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if lack := missing():
        pytest.skip(lack)
    prefix = f"aq{os.getpid()}"
    bridge, found = f"{prefix}b", Machines(tmp_path, prefix)
    hosts = "127.0.0.1 localhost\n" + "".join(f"10.97.0.{at} {node}\n" for at, node in enumerate(NODES, 1))
    (tmp_path / "bin").mkdir()
    stand_ins = {"enter": _ENTER, "ssh": _SSH, "scp": _SCP, "scontrol": _SCONTROL, "srun": _SRUN}
    for name, text in stand_ins.items():
        file = tmp_path / "bin" / name
        file.write_text(text.format(root=tmp_path, prefix=prefix) if "{prefix}" in text or "{root}" in text else text)
        file.chmod(0o755)
    try:
        # The bridge has its own namespace, so the other machines cannot reach this one.
        ip("netns", "add", bridge)
        ip("-n", bridge, "link", "add", "bridge", "type", "bridge")
        ip("-n", bridge, "link", "set", "bridge", "up")
        for at, node in enumerate(NODES, 1):
            (tmp_path / node).mkdir()
            etc = Path("/etc/netns") / f"{prefix}-{node}"
            etc.mkdir(parents=True)
            # Processes in the namespace see this file as /etc/hosts.
            (etc / "hosts").write_text(hosts)
            ip("netns", "add", f"{prefix}-{node}")
            ip("-n", bridge, "link", "add", node, "type", "veth", "peer", "name", "eth0", "netns", f"{prefix}-{node}")
            ip("-n", bridge, "link", "set", node, "master", "bridge", "up")
            ip("-n", f"{prefix}-{node}", "addr", "add", f"10.97.0.{at}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", f"{prefix}-{node}", "link", "set", device, "up")
        yield found
    finally:
        found.close()
        for node in NODES:
            subprocess.run(["ip", "netns", "del", f"{prefix}-{node}"], capture_output=True, check=False)
            shutil.rmtree(f"/etc/netns/{prefix}-{node}", ignore_errors=True)
        subprocess.run(["ip", "netns", "del", bridge], capture_output=True, check=False)
        with suppress(OSError):
            Path("/etc/netns").rmdir()


def lines_of(section: str) -> list[str]:
    """The commands of one section of the page."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    start = text.count("\n", 0, text.index(f"## {section}"))
    end = text.count("\n", 0, text.find("\n## ", text.index(f"## {section}")))
    found = [each.code.replace("\\\n", " ") for each in blocks("sh", PAGE) if start < each.line <= end]
    return [line for code in found for line in code.splitlines()]


def summary(run: Path) -> dict[str, object]:
    """The summary of a run."""
    found: dict[str, object] = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return found


def test_the_commands_of_the_page_train_on_three_machines(machines: Machines) -> None:
    (settings,) = blocks("yaml", PAGE)
    (machines.root / "node1" / "actor.yaml").write_text(settings.code, encoding="utf-8")
    for line in lines_of("1. Make certificates"):
        machines.run(line)
    # A machine with actors has only their certificate.
    assert {file.name for file in (machines.root / "node2" / "certificates").iterdir()} == {
        "ca.crt",
        "tls.crt",
        "tls.key",
    }
    commands = {shlex.split(line)[1]: line for line in lines_of("2. Start the services")}
    assert commands.keys() == {"quantizer", "learner", "actor"}
    quantizer, learner = (machines.start(commands[name]) for name in ("quantizer", "learner"))
    actors = [machines.start(line) for line in lines_of("3. Start the actors")]
    assert len(actors) == 2
    (status,) = lines_of("4. Look at the run")
    machines.ask(status, learner, ("node2-1", "node2-2", "node3-1", "node3-2"))
    # The evaluator starts last: without it, the run does not end before all processes have been seen.
    evaluator = machines.start(commands["actor"])
    assert machines.ended(learner) == 0, machines.log(learner)
    found = summary(machines.root / "node1" / "runs" / "mine")
    assert (found["solved"], found["environment"]) == (True, "CartPole-v1")
    (export,) = lines_of("5. Use the policy")
    machines.run(export)
    assert (machines.root / "node1" / "policy.onnx").is_file()
    for process in (*actors, evaluator):
        assert machines.ended(process) == 0, machines.log(process)
    quantizer.send_signal(signal.SIGINT)
    assert machines.ended(quantizer) == 0, machines.log(quantizer)


# Two runs, one after the other.
@pytest.mark.timeout(420)
def test_a_job_saves_its_run_at_its_time_limit_and_the_next_job_continues(machines: Machines) -> None:
    shared = machines.root / "shared"
    shared.mkdir()
    job = f"SLURM_JOB_NODELIST=node[1-3] SLURM_CPUS_PER_TASK=1 bash {JOB}"
    first = machines.start(f"env SLURM_JOB_ID=7 ACTORQ_TARGET_RETURN=501 ACTORQ_TRANSPORT__DRAIN_S=5 {job}", shared)
    asks = "actorq status --learner node1:50051 --certificates certificates-7"
    machines.ask(asks, first, ("node1-1", "node2-1"), shared)
    for process in machines.processes():
        # Like Slurm, signal all processes of the step, but not the shell of the job.
        if not {str(JOB), str(machines.root / "bin" / "srun")} & set(process.cmdline()):
            process.terminate()
    assert machines.ended(first) == EXIT_INTERRUPTED, machines.log(first)
    begun = json.loads((shared / "run" / "run.json").read_text(encoding="utf-8"))
    # The actors of one machine start too late to find the learner.
    second = machines.start(f"env SLURM_JOB_ID=8 ACTORQ_TARGET_RETURN=100 LATE_NODE=node3 {job}", shared)
    assert machines.ended(second) == 0, machines.log(second)
    found = summary(shared / "run")
    assert (found["solved"], found["run_id"]) == (True, begun["run_id"])


def test_the_job_script_is_bash_and_uses_flags_of_the_commands() -> None:
    subprocess.run(["bash", "-n", str(JOB)], check=True)
    script = "\n".join(line for line in JOB.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    known = "".join(help_of(service, flag="--help-all") for service in ("learner", "quantizer", "actor"))
    flags = set(re.findall(r"--[a-z][\w.-]*", script)) - {"--cpus-per-task", "--wait"}
    assert {"--transport.certificates", "--resume", "--names"} <= flags
    assert {flag for flag in flags if flag not in known + help_of("certificates")} == set()
