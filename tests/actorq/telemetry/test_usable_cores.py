"""The cores that a process may use: its affinity, and the limits of cgroups of both versions."""

from pathlib import Path

import pytest

from actorq.telemetry.machine import usable_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))


def cores(tmp_path: Path, membership: str, files: dict[str, str]) -> int:
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")
    own = tmp_path / "membership"
    own.write_text(membership, encoding="utf-8")
    return usable_cores(tmp_path / "cgroup", own)


def test_uses_the_affinity_without_a_limit(tmp_path: Path) -> None:
    assert cores(tmp_path, "0::/\n", {"cpu.max": "max 100000"}) == 8
    assert usable_cores(tmp_path / "nothing", tmp_path / "missing") == 8


def test_the_limit_is_rounded_down_but_not_to_zero(tmp_path: Path) -> None:
    assert cores(tmp_path, "0::/\n", {"cpu.max": "350000 100000"}) == 3
    assert cores(tmp_path, "0::/\n", {"cpu.max": "25000 100000"}) == 1


def test_a_limit_above_the_affinity_adds_nothing(tmp_path: Path) -> None:
    assert cores(tmp_path, "0::/\n", {"cpu.max": "1600000 100000"}) == 8


def test_uses_the_smallest_limit_of_a_cgroup_and_its_parents(tmp_path: Path) -> None:
    files = {"pods/cpu.max": "200000 100000", "pods/learner/cpu.max": "400000 100000"}
    assert cores(tmp_path, "0::/pods/learner\n", files) == 2


def test_version_one_has_quota_and_period(tmp_path: Path) -> None:
    membership = "5:devices:/\n3:cpu,cpuacct:/pod\n2:cpuset:/\n"
    files = {"cpu,cpuacct/pod/cpu.cfs_quota_us": "400000", "cpu,cpuacct/pod/cpu.cfs_period_us": "100000"}
    assert cores(tmp_path, membership, files) == 4
    assert cores(tmp_path, membership, {"cpu,cpuacct/pod/cpu.cfs_quota_us": "-1"}) == 8


def test_a_container_that_names_the_path_of_its_host_finds_its_own_limit(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}
    assert cores(tmp_path, "4:cpu:/kubepods/pod1/learner\n", files) == 2
    assert cores(tmp_path, "0::/../../learner\n", {"cpu.max": "300000 100000"}) == 3


@pytest.mark.parametrize("text", ["", "max", "a b", "100000 0"])
def test_a_file_that_cannot_be_understood_is_no_limit(tmp_path: Path, text: str) -> None:
    assert cores(tmp_path, "0::/\n", {"cpu.max": text}) == 8
