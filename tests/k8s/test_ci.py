"""The scripts of .ci always remove their cluster, test other Pythons, and report errors. They run in a separate folder,
with a substitute for the tool that runs clusters.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.k8s.rendered_manifests import ROOT

TIMEOUT_S = 60
TOOL = """#!/bin/sh
echo "$*" >>calls
echo "called $1"
case $1 in
$FAILS) exit 3 ;;
$HANGS) exec tail -f /dev/null ;;
esac
"""
IMAGES = (
    "actorq-learner:9 actorq-quantizer:9 actorq-actor:9 actorq-operator:9 hover-learner:1 hover-actor:1 cart-pole:1"
)
UP = ["down", f"up {IMAGES}"]
TESTS = "run make test-cluster ARGS=--maxfail=2"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files of a clone that the scripts read."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "Makefile").write_text("install test:\n\t@echo made $@\n")
    (tmp_path / "actorq").mkdir()
    (tmp_path / "actorq" / "__init__.py").write_text('__version__ = "9"\n')
    for name in ("tool", "kubectl"):
        (tmp_path / name).write_text(TOOL)
        (tmp_path / name).chmod(0o755)
    # No test installs packages on this machine.
    (tmp_path / "apt-get").write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/installed\n')
    (tmp_path / "apt-get").chmod(0o755)
    return tmp_path


def start(clone: Path, script: str, fails: str = "-", hangs: str = "-", **more: str) -> subprocess.Popen[str]:
    """Run a script. The tool's commands in `fails` fail, and those in `hangs` hang."""
    own = {"KUBELAB": "./tool", "KUBELAB_HOME": str(clone / "home"), "NEEDED_GB": "0", "PYTHONS": "", "CI": "false"}
    own["PATH"] = f"{clone}{os.pathsep}{os.environ['PATH']}"
    # The pattern of a case must be part of the text.
    for name in ("tool", "kubectl"):
        text = (clone / name).read_text().replace("$FAILS", fails).replace("$HANGS", hangs)
        (clone / name).write_text(text)
    # If make runs these tests, the make of the scripts would print that it is a child of it.
    around = {name: value for name, value in os.environ.items() if "MAKE" not in name and name != "MFLAGS"}
    return subprocess.Popen(
        [clone / ".ci" / script],
        env={**around, **own, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        shown, told = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    return process.returncode, shown, told


def calls(clone: Path) -> list[str]:
    return (clone / "calls").read_text().splitlines()


def test_the_tests_run_on_a_new_cluster_that_is_removed(clone: Path) -> None:
    code, _, told = finish(start(clone, "cluster"))
    assert (code, told) == (0, "")
    built = [f". actorq-{name}:9 --target {name}" for name in ("learner", "quantizer", "actor", "operator")]
    built += [f"examples/hover hover-{name}:1 --build-arg BASE=actorq-{name}:9" for name in ("learner", "actor")]
    built.append("examples/simulator cart-pole:1 --build-arg BASE=actorq-actor:9")
    # An image replaces the image of an earlier run.
    made = [call for each in built for call in (f"podman rmi --force {each.split()[1]}", f"build-image {each}")]
    before = ["install", "base-image", "build", "podman image prune --force --filter until=24h"]
    assert calls(clone) == [*before, *made, *UP, TESTS, "down"]


def test_too_small_a_disk_is_refused_before_the_build(clone: Path) -> None:
    code, _, told = finish(start(clone, "cluster", NEEDED_GB="1000000000", KUBELAB_HOME=str(clone / "home")))
    assert code == 1
    (line,) = told.splitlines()
    assert re.match(rf"error: 1000000000 GB .*{clone}/home.* \d+ GB .*\./tool clean", line)
    assert not (clone / "calls").exists()


@pytest.mark.parametrize("command", ["up", "run"])
def test_a_failure_is_reported_after_the_cluster_is_removed(clone: Path, command: str) -> None:
    code, _, told = finish(start(clone, "cluster", fails=command))
    assert code == 3
    assert re.search(rf"^error: .* 3 .* \d+ s: \./tool {command} ", told, re.MULTILINE)
    assert "kubectl get pods -A -o wide" in calls(clone)
    assert calls(clone)[-1] == "down"


def test_a_step_beyond_its_time_is_stopped_and_the_cluster_removed(clone: Path) -> None:
    code, _, told = finish(start(clone, "cluster", hangs="run", LIMIT_S="2"))
    assert code == 124
    assert re.search(r"no time .*\./tool run make test-cluster", told)
    assert calls(clone)[-1] == "down"


def test_a_signal_removes_the_cluster_at_once(clone: Path) -> None:
    process = start(clone, "cluster", hangs="run")
    assert process.stdout
    while process.stdout.readline() != "called run\n":
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    code, _, _ = finish(process)
    assert code == 143
    assert calls(clone)[-1] == "down"


def test_a_cluster_that_cannot_be_removed_is_a_failure(clone: Path) -> None:
    (clone / "tool").write_text(TOOL.replace("$FAILS)", "down) [ $(grep -c down calls) -lt 2 ] || exit 5 ;;\n-)"))
    code, _, _ = finish(start(clone, "cluster"))
    assert code == 1


def test_ci_runs_the_tests_on_a_cluster_after_all_others(clone: Path) -> None:
    code, shown, _ = finish(start(clone, "run"))
    assert code == 0
    assert shown.startswith("made test\n")
    assert calls(clone)[-2:] == [TESTS, "down"]


def test_ci_reports_that_it_skips_cluster_tests_without_the_tool(clone: Path) -> None:
    code, shown, _ = finish(start(clone, "run", KUBELAB="../nowhere"))
    assert code == 0
    made, skipped = shown.splitlines()
    assert made == "made test"
    assert re.search(r"skipped: \.\./nowhere .*make test-cluster", skipped)
    assert not (clone / "calls").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can install packages")
def test_ci_installs_the_missing_packages_that_it_can(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    packages = {"g++": "g++", "grpc_cpp_plugin": "protobuf-compiler-grpc", "node": "nodejs", "npm": "npm"}
    # All commands of this machine, without those of these packages.
    folder = tmp_path_factory.mktemp("bin")
    for name in {*os.listdir("/usr/bin"), *os.listdir("/bin")} - {*packages, "apt-get"}:
        (folder / name).symlink_to(shutil.which(name, path="/usr/bin:/bin") or "/nowhere")
    (clone / "apt-get").write_text((clone / "apt-get").read_text() + 'case "$*" in *nodejs) exit 1 ;; esac\n')
    code, shown, _ = finish(start(clone, "run", KUBELAB="../nowhere", PATH=f"{clone}{os.pathsep}{folder}"))
    assert code == 0
    assert "nodejs cannot be installed here\n" in shown
    updated, *installed = (clone / "installed").read_text().splitlines()
    assert updated == "update"
    assert {f"install --yes --no-install-recommends {name}" for name in packages.values()} <= set(installed)


def test_a_missing_python_is_reported_and_skipped(clone: Path) -> None:
    code, shown, _ = finish(start(clone, "pythons", PYTHONS="3.98 3.99"))
    assert code == 0
    assert [re.findall(r"Python (\S+) .*skipped", line) for line in shown.splitlines()] == [["3.98"], ["3.99"]]


@pytest.mark.parametrize(("version", "code"), [("1.0", 0), ("0.9", 1)])
def test_another_python_installs_the_project_and_runs_its_tests(clone: Path, version: str, code: int) -> None:
    # A substitute for a Python. The commands in its environment record their calls.
    script = f"""#!/bin/sh
echo "$*" >>{clone}/calls
case "$*" in
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/actorq" ;;
--version) echo "actorq {version}" ;;
train) echo "error: actorq train needs torch: pip install 'actorq[learner]'" ;;
esac
"""
    (clone / "actorq" / "__init__.py").write_text('__version__ = "1.0"\n')
    (clone / "python3.99").write_text(script)
    (clone / "python3.99").chmod(0o755)
    ended, _, told = finish(start(clone, "pythons", PYTHONS="3.99"))
    assert ended == code, told
    made = calls(clone)
    assert any("-m pip install" in call and ".[quantizer,actor,cluster]" in call for call in made)
    assert any("-m pytest" in call for call in made) is (code == 0)
    assert ('expected "actorq 1.0", got: actorq 0.9' in told) is (code == 1)


def test_the_tests_for_other_pythons_exist_and_need_no_torch() -> None:
    found = re.search(r"^PARTS=\((.*?)\)", (ROOT / ".ci" / "pythons").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert found
    parts = found[1].split()
    assert len(parts) > 5
    collected = "import sys, pytest; sys.modules['torch'] = None; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", collected, "--collect-only", "--quiet", "-p", "no:cacheprovider", *parts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout
