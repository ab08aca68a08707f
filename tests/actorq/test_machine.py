"""What the system tells of its processor, and the driver of GPUs."""

from pathlib import Path

from actorq.machine import gpu_models, processor_flags


def test_a_system_that_tells_no_flags_has_none(tmp_path: Path) -> None:
    assert processor_flags(tmp_path / "absent") == frozenset()
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu sse2\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert processor_flags(tmp_path / "cpuinfo") == {"fpu", "sse2"}


def test_gpus_are_named_as_their_driver_names_them(tmp_path: Path) -> None:
    assert gpu_models(tmp_path / "no driver") == []
    for bus, model in (("0000:41:00.0", "NVIDIA H200"), ("0000:05:00.0", "NVIDIA L4")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 24\n")
    assert gpu_models(tmp_path) == ["NVIDIA L4", "NVIDIA H200"]
