"""What this processor can do with int8 numbers, from the flags that Linux tells."""

from pathlib import Path

# Instructions that add four products of int8 numbers in 32 bits, on x86-64 and on ARM.
_X86_DOT_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni"})
_ARM_DOT_PRODUCT = "asimddp"


def processor_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The flags of the first processor; empty where the system does not tell them."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, flags = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(flags.split())
    return frozenset()


def lacks_dot_product(flags: frozenset[str]) -> bool:
    """Whether ONNX Runtime has to add products of int8 numbers without dot-product instructions.

    On x86-64 it then adds pairs of them in 16 bits, which may saturate. False where the flags do not tell.
    """
    if "sse2" in flags:
        return not flags & _X86_DOT_PRODUCTS
    return "asimd" in flags and _ARM_DOT_PRODUCT not in flags


def saturating_schemes(flags: frozenset[str]) -> tuple[str, ...]:
    """The schemes whose policies ONNX Runtime may compute wrongly on a processor with these flags."""
    return ("int8", "int8-static") if lacks_dot_product(flags) else ()
