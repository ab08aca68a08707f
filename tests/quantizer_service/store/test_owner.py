"""The learner that may publish to a store after a run's folder was copied or restored."""

from pathlib import Path

import pytest

from actorq.domain.lineage import UNCHECKED, Lineage
from actorq.errors import ConflictError
from quantizer_service.store.owner import Owner
from quantizer_service.store.reader import PolicyReader
from tests.quantizer_service.store.filled_stores import opened

SUPERSEDED = "another learner"


def test_the_next_process_of_the_same_folder_follows() -> None:
    owner = Owner().followed_by(Lineage(0, (1, 2)))
    assert owner == Owner(0, 2)
    assert owner.followed_by(Lineage(0, (1, 2))) == owner
    # Processes in between have not met this quantizer.
    assert owner.followed_by(Lineage(0, (1, 2, 3, 4, 5))) == Owner(0, 5)


def test_a_copy_and_its_later_processes_are_refused_after_the_other_has_continued() -> None:
    owner = Owner(0, 2).followed_by(Lineage(0, (1, 2, 3)))
    for copy in ((1, 2, 30), (1, 2, 30, 31)):
        with pytest.raises(ConflictError, match=SUPERSEDED):
            owner.followed_by(Lineage(0, copy))


def test_a_refused_process_stays_refused_when_the_owner_restarts() -> None:
    owner = Owner(0, 2).refusing(Lineage(0, (1, 2, 30)))
    with pytest.raises(ConflictError, match=SUPERSEDED):
        owner.followed_by(Lineage(0, (1, 2, 30, 31)))
    assert owner.followed_by(Lineage(0, (1, 2, 3))).process == 3


def test_a_higher_epoch_takes_over_and_the_lower_epoch_is_refused_permanently() -> None:
    owner = Owner(0, 2, refused=(30,)).followed_by(Lineage(7, (30,)))
    assert owner == Owner(7, 30)
    with pytest.raises(ConflictError, match=SUPERSEDED):
        owner.followed_by(Lineage(0, (1, 2, 3)))
    with pytest.raises(ConflictError, match=SUPERSEDED):
        owner.followed_by(Lineage(7, (40,)))


def test_a_learner_without_a_lineage_is_not_checked() -> None:
    assert Owner(7, 30).followed_by(UNCHECKED) == Owner(7, 30)


def test_the_number_of_refused_processes_is_bounded() -> None:
    owner = Owner(0, 1)
    for process in range(2, 1002):
        owner = owner.refusing(Lineage(0, (1, process)))
    assert len(owner.refused) == 64
    assert owner.refused[-1] == 1001


def test_the_owner_is_on_the_disk(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.claim("run", Lineage(3, (2**64 - 1,)))
    store.refuse(Lineage(3, (2**64 - 1, 5)))
    store.close()
    assert PolicyReader(tmp_path).owner == Owner(3, 2**64 - 1, (5,))
    with pytest.raises(ConflictError, match=SUPERSEDED):
        opened(tmp_path).claim("run", Lineage(2, (2**64 - 1, 6)))
