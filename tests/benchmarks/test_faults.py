"""What the benchmarks of faults judge by: what was lost or doubled, what stood still, and whether a fault is one."""

import ast
import random
import socket
from pathlib import Path

import numpy as np
import pytest

from actorq.domain.policy import PolicyGraph
from actorq.domain.signature import signature_of
from actorq.domain.trajectory import PolicySpan, Segment
from actorq.errors import UserError
from benchmarks.faults.chaos.environment import CodedEnvironment, codes_of
from benchmarks.faults.chaos.ledger import Ledger, judge
from benchmarks.faults.chaos.observer import Look, longest_standstill
from benchmarks.faults.chaos.proxy import Proxy
from benchmarks.faults.copies import switches
from benchmarks.faults.corruption import Outcome
from benchmarks.faults.corruption_faults import Fault, faults
from benchmarks.faults.fuzz.services import log_faults
from benchmarks.faults.fuzz.targets import Publishing, all_targets, processes_of, targets_of
from benchmarks.faults.lost_volume import Moment, lost_seconds
from benchmarks.faults.mutants import GLUE, mutants, sample
from benchmarks.processes import ServiceProcess

ROOT = Path(__file__).parents[2]
SOURCE = """
def store(items, most):
    if len(items) < most and items:
        write(max(items) + 1)
    return True
"""


def test_chaos_counts_lost_doubled_and_unknown_transitions(tmp_path: Path) -> None:
    environment = CodedEnvironment()
    seen = np.stack([environment.reset(seed=0)[0], *(environment.step(np.int64(0))[0] for _ in range(15))])
    codes, ledger = codes_of(seen[:15]), Ledger(tmp_path / "1.ledger")
    assert (np.diff(codes.astype(np.int64)) == 1).all()
    for sequence in (1, 2, 3):
        rows = seen[5 * sequence - 5 : 5 * sequence + 1, None]
        columns = {"observations": rows, "valid": np.ones((5, 1), np.bool_)}
        ledger.made(Segment(sequence, columns, (PolicySpan(0, 1, "int8"),), ()))
    ledger.acknowledged(2)
    whole = judge(tmp_path, codes[:10])
    assert (whole.made, whole.acknowledged, whole.stored) == (15, 10, 10)
    assert (whole.lost, whole.twice, whole.unknown) == (0, 0, 0)
    # What was not acknowledged may be stored.
    assert judge(tmp_path, codes).lost == 0
    unknown = codes_of(CodedEnvironment().reset(seed=0)[0][None])
    harmed = judge(tmp_path, np.concatenate([codes[1:10], codes[1:2], unknown]))
    assert (harmed.lost, harmed.twice, harmed.unknown) == (1, 1, 1)
    # A kill cuts the last record short, which says what was acknowledged.
    ledger_file = tmp_path / "1.ledger"
    ledger_file.write_bytes(ledger_file.read_bytes()[:-20])
    assert judge(tmp_path, codes).made == 10


def test_a_standstill_counts_only_while_somebody_could_have_acted() -> None:
    looks = [Look(0.0, 5), Look(4.0, 5), Look(9.0, 5), Look(10.0, 6), Look(13.0, 6)]
    assert longest_standstill(looks, lambda moment: True) == 9.0
    assert longest_standstill(looks, lambda moment: moment > 5.0) == 5.0


def test_a_link_can_change_a_byte_and_refuse() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = Proxy().link(f"127.0.0.1:{server.getsockname()[1]}")
        at = ("127.0.0.1", int(link.address.rpartition(":")[2]))
        with socket.create_connection(at) as client, server.accept()[0] as served:
            client.sendall(b"hello")
            assert served.recv(5) == b"hello"
            link.corrupt(random.Random(1))
            client.sendall(b"hello")
            assert served.recv(5) != b"hello"
            link.cut()
            assert client.recv(1) == b""
        with socket.create_connection(at) as refused:
            assert refused.recv(1) == b""


@pytest.mark.parametrize(("published", "count"), [("", 0), ("aaa", 0), ("aab", 1), ("abab", 3), ("aabbaa", 2)])
def test_a_switch_is_a_publication_of_another_learner_than_the_one_before(published: str, count: int) -> None:
    assert switches(list(published)) == count


@pytest.mark.parametrize(("steps", "seconds"), [(400, 0.0), (399, 1.5), (300, 1.5), (299, 3.0), (150, 4.0), (0, 4.0)])
def test_the_time_that_is_lost_begins_at_the_last_step_that_is_kept(steps: int, seconds: float) -> None:
    seen = [Moment(at, made, 0) for at, made in ((10.0, 100), (11.0, 200), (12.5, 300), (14.0, 400))]
    assert lost_seconds(seen, steps) == seconds


def test_each_corruption_changes_one_file(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"run_id": "abc", "lives": 3}\n')
    (tmp_path / "rows.bin").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "empty.lock").touch()
    found = faults(tmp_path, lambda path: True, 60, np.random.default_rng(3))
    assert {(fault.path, fault.kind) for fault in found} == {
        (path, kind) for path in ("run.json", "rows.bin") for kind in ("flip", "zeros", "cut")
    }
    for fault in found:
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        fault.apply(tmp_path)
        assert [path.name for path, data in before.items() if path.read_bytes() != data] == [fault.path]
        (tmp_path / fault.path).write_bytes(before[tmp_path / fault.path])


def test_a_change_that_nobody_tells_is_silent_and_one_that_changes_nothing_is_harmless() -> None:
    fault = Fault("run.json", "flip", 0, mask=1)
    silent, told = Outcome(fault, (), ("run_id",), ""), Outcome(fault, ("run.json",), ("run_id",), "")
    harmless, stuck = Outcome(fault, (), (), ""), Outcome(fault, (), (), "UserError: lost")
    assert [each.silent for each in (silent, told, harmless, stuck)] == [True, False, False, True]


def test_a_traceback_and_an_unprintable_line_are_faults_of_a_log() -> None:
    log = ["fine\n", "  Traceback (most recent call last):\n", "a\x1b[2Jb\n", "x" * 3000 + "\n"]
    service = ServiceProcess("", None, log)  # type: ignore[arg-type]
    assert len(log_faults({"learner": service})) == 3


def test_a_choice_of_rpcs_needs_only_their_services() -> None:
    targets = all_targets(Publishing(PolicyGraph(b"model", signature_of(("observation",), ("q_values", "value"))), {}))
    (play,) = targets_of(targets, ["Play"])
    assert (play.service, play.path) == ("simulators", "/actorq.v1.ExternalEnvironmentService/Play")
    assert processes_of([play]) == {"simulators"}
    assert processes_of(targets_of(targets, ["Evaluate"])) == {"actor", "quantizer"}
    assert targets_of(targets, []) == targets
    with pytest.raises(UserError, match=r"--rpcs: expected names among .*Play.*, got Plya"):
        targets_of(targets, ["Play", "Plya"])


def test_each_mutant_changes_one_place() -> None:
    changed = {mutant.source for mutant in mutants("store.py", SOURCE)}
    assert len(changed) == len(list(mutants("store.py", SOURCE)))
    assert ast.unparse(ast.parse(SOURCE)) not in changed
    for expected in ("len(items) <= most", "< most or items", "min(items) + 1", "+ 2", "return False", "if not ("):
        assert sum(expected in source for source in changed) == 1, expected
    # The call is gone.
    assert sum("write" not in source for source in changed) == 1
    # Logs and what only forbids a mistake are no glue.
    assert not list(mutants("store.py", "_log.info('stored')\nx = zip(a, strict=True)"))


def test_a_sample_of_mutants_follows_from_its_seed_and_its_modules_exist() -> None:
    first, again, other = ([each.digest() for each in sample({"a.py": SOURCE}, seed, 4)] for seed in (1, 1, 2))
    assert first == again != other
    for file, tests in GLUE.items():
        assert all((ROOT / place).exists() for place in (file, *tests)), file
