"""The frames are those of HTTP/2, and a service survives a short flood."""

from benchmarks.faults.floods import FRAMES, frame, measure


def test_a_frame_has_the_header_of_http_2() -> None:
    assert frame(6, bytes(8)) == bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + bytes(8)
    assert FRAMES["priority"] == bytes([0, 0, 5, 2, 0, 0, 0, 0, 1]) + bytes([0, 0, 0, 0, 10])


def test_a_quantizer_answers_during_a_short_flood() -> None:
    found = measure("priority", connections=2, seconds=2.0)
    assert found["resident_bytes_before"] <= found["most_resident_bytes"] < 2**30
