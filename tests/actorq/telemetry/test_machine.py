"""GPU models from the driver's files."""

from pathlib import Path

from actorq.telemetry.machine import gpu_models


def test_gpus_are_named_as_their_driver_names_them(tmp_path: Path) -> None:
    assert gpu_models(tmp_path / "no driver") == []
    for bus, model in (("0000:41:00.0", "NVIDIA H200"), ("0000:05:00.0", "NVIDIA L4")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 24\n")
    assert gpu_models(tmp_path) == ["NVIDIA L4", "NVIDIA H200"]
