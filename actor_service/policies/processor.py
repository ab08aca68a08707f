"""What a processor can do with int8 numbers, from its flags."""

# Instructions that add four products of int8 numbers in 32 bits, on x86-64 and on ARM.
_X86_DOT_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni"})
_ARM_DOT_PRODUCT = "asimddp"


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
