"""The table of last sequence numbers tells duplicates from news."""

from pathlib import Path

import pytest
from replay_segments import source

from learner_service.replay import SegmentSource
from learner_service.replay.sequences import LastSequences


def test_numbers_up_to_the_last_are_contained_per_actor_and_incarnation() -> None:
    sequences = LastSequences()
    sequences.advance(source(5))
    assert sequences.contains(source(5))
    assert sequences.contains(source(0))
    assert not sequences.contains(source(6))
    assert not sequences.contains(source(5, incarnation=8))
    assert not sequences.contains(source(5, name="other"))


def test_an_earlier_number_does_not_take_the_last_back() -> None:
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


def test_a_saved_table_loads_to_the_same(tmp_path: Path) -> None:
    sequences, loaded = LastSequences(), LastSequences()
    sequences.advance(source(2**64 - 1, incarnation=2**64 - 1))
    sequences.advance(source(1, name="other"))
    sequences.save(tmp_path / "table.json", through=12)
    assert loaded.load(tmp_path / "table.json") == 12
    assert loaded.as_dict() == sequences.as_dict()
    assert loaded.load(tmp_path / "missing.json") == 0
    assert loaded.as_dict() == sequences.as_dict()


def test_a_source_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes, got 3"):
        SegmentSource(b"abc", 0, 0)
    with pytest.raises(ValueError, match="sequence"):
        source(-1)
    with pytest.raises(ValueError, match="incarnation"):
        source(0, incarnation=2**64)
