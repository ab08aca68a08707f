"""The end of a child process."""

import queue
import sys
from pathlib import Path

import pytest

from actorq_apps.local.child import Child
from actorq_apps.local.events import ChildExited

TIMEOUT_S = 30.0
# Ready once it has created the file. When asked to end, it removes the file or ignores the request.
SCRIPT = """
import pathlib, signal, sys
part = pathlib.Path(sys.argv[1])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
part.touch()
print("ready", flush=True)
signal.sigwait([signal.SIGTERM])
if sys.argv[2] == "deaf":
    signal.sigwait([signal.SIGTERM])
part.unlink()
"""


@pytest.mark.parametrize(("kind", "patience_s", "code"), [("tidy", TIMEOUT_S, 0), ("deaf", 0.1, -9)])
def test_a_child_gets_time_to_clean_up_before_it_is_killed(
    tmp_path: Path, kind: str, patience_s: float, code: int
) -> None:
    ended: queue.SimpleQueue[ChildExited] = queue.SimpleQueue()
    part, log = tmp_path / "part", tmp_path / "log"
    child = Child("actor", [sys.executable, "-c", SCRIPT, str(part), kind], log, ended.put)
    try:
        while "ready" not in log.read_text():
            assert ended.empty(), log.read_text()
        child.end(patience_s)
        assert ended.get(timeout=TIMEOUT_S) == ChildExited("actor", child.pid, code)
        assert part.exists() == (kind == "deaf")
    finally:
        child.kill()
