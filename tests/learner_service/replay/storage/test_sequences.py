"""The table of last sequence numbers detects duplicates."""

import re
from pathlib import Path

import pytest

from learner_service.replay import MOST_ACTORS, SegmentSource
from learner_service.replay.storage.sequences import LastSequences, save_sequences
from tests.learner_service.replay.replay_segments import source


def test_numbers_up_to_the_last_are_contained_per_actor_and_incarnation() -> None:
    sequences = LastSequences()
    sequences.advance(source(5))
    assert sequences.contains(source(5))
    assert sequences.contains(source(0))
    assert not sequences.contains(source(6))
    assert not sequences.contains(source(5, incarnation=8))
    assert not sequences.contains(source(5, name="other"))


def test_an_earlier_number_does_not_lower_the_last_one() -> None:
    sequences = LastSequences()
    sequences.advance(source(5))
    sequences.advance(source(3))
    assert list(sequences.as_dict().values()) == [5]


def test_the_stalest_incarnations_of_an_actor_are_forgotten() -> None:
    sequences = LastSequences()
    sequences.advance(source(9, name="other"))
    for incarnation in range(100):
        sequences.advance(source(1, incarnation=incarnation))
        sequences.advance(source(1, incarnation=0))
    kept = sorted(incarnation for key, incarnation in sequences.as_dict() if key == source(0).actor_key)
    assert kept == [0, 97, 98, 99]
    assert sequences.contains(source(9, name="other"))


def others(first: int, count: int) -> list[SegmentSource]:
    return [SegmentSource(number.to_bytes(16), number, 1) for number in range(first, first + count)]


def test_of_too_many_actors_the_one_that_has_stored_nothing_for_the_longest_time_is_forgotten(tmp_path: Path) -> None:
    sequences = LastSequences()
    for each in others(1, MOST_ACTORS):
        sequences.advance(each)
    sequences.advance(SegmentSource((1).to_bytes(16), 1, 2))
    sequences.advance(source(5, name="new", incarnation=90_000))
    assert len(sequences.as_dict()) == MOST_ACTORS
    # The second one, because the first has stored again.
    assert sequences.may_have_forgotten((2).to_bytes(16), 2)
    assert sequences.forgotten == 2
    assert not sequences.may_have_forgotten((1).to_bytes(16), 1)
    # Later incarnations have stored nothing that is forgotten.
    assert not sequences.may_have_forgotten((2).to_bytes(16), 3)
    save_sequences(tmp_path / "table.json", sequences.as_dict(), 1, sequences.forgotten)
    loaded = LastSequences()
    loaded.load(tmp_path / "table.json")
    for table in (sequences, loaded):
        table.advance(source(1, name="newer", incarnation=90_001))
        assert table.forgotten == 3
    assert list(loaded.as_dict().items()) == list(sequences.as_dict().items())


def test_members_are_never_forgotten() -> None:
    sequences = LastSequences()
    members = {each.actor_key for each in others(1, 100)}
    sequences.is_member = members.__contains__
    for each in others(1, 2 * MOST_ACTORS):
        sequences.advance(each)
    assert len(sequences.as_dict()) == MOST_ACTORS
    assert members <= {key for key, _ in sequences.as_dict()}


def test_a_saved_table_loads_to_the_same(tmp_path: Path) -> None:
    sequences, loaded = LastSequences(), LastSequences()
    sequences.advance(source(2**64 - 1, incarnation=2**64 - 1))
    sequences.advance(source(1, name="other"))
    save_sequences(tmp_path / "table.json", sequences.as_dict(), through=12)
    assert loaded.load(tmp_path / "table.json") == 12
    assert loaded.as_dict() == sequences.as_dict()
    assert loaded.load(tmp_path / "missing.json") == 0
    assert loaded.as_dict() == sequences.as_dict()


def test_a_damaged_table_is_replaced_by_the_previous_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, first, second = tmp_path / "table.json", LastSequences(), LastSequences()
    first.advance(source(4))
    second.advance(source(9))
    save_sequences(path, first.as_dict(), through=10)
    save_sequences(path, second.as_dict(), through=20)
    path.write_bytes(path.read_bytes().replace(b"9]", b"8]"))
    loaded = LastSequences()
    assert loaded.load(path) == 10
    assert loaded.as_dict() == first.as_dict()
    (line,) = caplog.messages
    assert re.search(f"{path} .*checksum", line)
