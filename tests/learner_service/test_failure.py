"""The exception that ended a learner is known to the next one."""

from pathlib import Path

from learner_service.process import fails_again


def test_the_same_exception_twice_without_an_update_between_is_a_repetition(tmp_path: Path) -> None:
    assert not fails_again(tmp_path, ValueError("no"), life=1, made_updates=False)
    assert fails_again(tmp_path, ValueError("no"), life=2, made_updates=False)


def test_another_exception_and_an_update_between_are_no_repetition(tmp_path: Path) -> None:
    assert not fails_again(tmp_path, ValueError("no"), life=1, made_updates=True)
    assert not fails_again(tmp_path, KeyError("no"), life=2, made_updates=False)
    assert not fails_again(tmp_path, KeyError("no"), life=3, made_updates=True)
    assert fails_again(tmp_path, KeyError("no"), life=4, made_updates=False)


def test_a_learner_that_left_in_order_between_two_failures_makes_them_no_repetition(tmp_path: Path) -> None:
    assert not fails_again(tmp_path, ValueError("no"), life=1, made_updates=False)
    assert not fails_again(tmp_path, ValueError("no"), life=3, made_updates=False)


def test_a_damaged_file_of_the_last_failure_is_ignored(tmp_path: Path) -> None:
    fails_again(tmp_path, ValueError("no"), life=1, made_updates=False)
    (tmp_path / "failure.json").write_bytes(b"\xff")
    assert not fails_again(tmp_path, ValueError("no"), life=2, made_updates=False)


def test_a_full_disk_does_not_end_the_learner(tmp_path: Path) -> None:
    assert not fails_again(tmp_path / "absent" / "folder", ValueError("no"), life=1, made_updates=False)
