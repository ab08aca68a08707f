"""What the processor's flags tell about int8 products, and the driver about GPUs."""

from pathlib import Path

import pytest

from actorq.machine import gpu_models, lacks_dot_product, processor_flags, saturating_schemes

X86 = "processor\t: 0\nmodel name\t: Some: name\nflags\t\t: fpu sse2 avx2 {}\n\nprocessor\t: 1\nflags\t\t: fpu sse2\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd crc32 {}\n"


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        (X86.format("avx512f avx512_vnni"), False),
        (X86.format("avx_vnni"), False),
        (X86.format("avx512f"), True),
        (X86.format(""), True),
        (ARM.format("asimddp"), False),
        (ARM.format(""), True),
        ("processor\t: 0\n", False),
        ("", False),
    ],
)
def test_a_processor_lacks_the_dot_product_where_its_flags_say_so(tmp_path: Path, text: str, lacks: bool) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    assert lacks_dot_product(processor_flags(path)) is lacks
    assert saturating_schemes(processor_flags(path)) == (("int8", "int8-static") if lacks else ())


def test_a_system_that_tells_no_flags_lacks_nothing(tmp_path: Path) -> None:
    assert processor_flags(tmp_path / "absent") == frozenset()
    assert not lacks_dot_product(frozenset())


def test_gpus_are_named_as_their_driver_names_them(tmp_path: Path) -> None:
    assert gpu_models(tmp_path / "no driver") == []
    for bus, model in (("0000:41:00.0", "NVIDIA H200"), ("0000:05:00.0", "NVIDIA L4")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 24\n")
    assert gpu_models(tmp_path) == ["NVIDIA L4", "NVIDIA H200"]
