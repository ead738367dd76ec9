"""Element types: their C++ spelling, their width, and how many integers they hold exactly.

Sources: CUDA C++ Programming Guide, "Warp Matrix Functions", element types and matrix sizes, alternate
floating point, double precision and sub-byte operations; significand widths from IEEE 754 (f16, f32, f64)
and from the same guide (bf16: 8 bits, tf32: 11 bits, both with the implied one).
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#warp-matrix-functions

A row proves itself on import: a wrong table cannot be imported.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ElementType:
    """One element type.

    Attributes:
        name: the word used in configurations, kernel names and records.
        storage: the C++ type of an element in memory.
        fragment: the C++ type that ``wmma::fragment`` is given; differs from ``storage`` for tf32 and sub-byte types.
        bits: width of one element in memory.
        precision: bits of significand with the implied one; for integers the bits of magnitude.
        integer: whether arithmetic on it wraps instead of rounding.
        widen, narrow: the C++ functions to and from ``float``, rounding to nearest; empty where there is none. What no
            header declares is a function of ``templates/parts/convert.jinja``.
        zero: the C++ expression of its zero that needs no operator of a class type.
        header: the toolkit header that defines ``storage``; empty where the language does.
        experimental: in ``wmma::experimental``; documented as removed from sm_90 on.
        rounded: the C++ function that rounds what is stored to this type, to nearest and ties away from zero; empty
            where ``storage`` holds nothing else.
    """

    name: str
    storage: str
    fragment: str
    bits: int
    precision: int
    integer: bool = False
    zero: str = "0"
    header: str = ""
    experimental: bool = False
    widen: str = ""
    narrow: str = ""
    rounded: str = ""

    def __post_init__(self) -> None:
        if not self.name.isalnum() or self.name != self.name.lower():
            raise ValueError(f"element type {self.name!r}: a name is lower-case letters and digits")
        if self.bits not in (1, 4, 8, 16, 32, 64):
            raise ValueError(f"{self.name}: no element has {self.bits} bits")
        if not 1 <= self.precision <= self.bits:
            raise ValueError(f"{self.name}: {self.precision} bits of precision do not fit into {self.bits}")

    @property
    def exact_limit(self) -> int:
        """The largest integer L such that every integer in [-L, L] is representable (unsigned types: [0, L])."""
        return (1 << self.precision) - 1 if self.integer else 1 << self.precision


F16 = ElementType(
    "f16",
    "__half",
    "__half",
    16,
    11,
    zero="__float2half(0.0f)",
    header="cuda_fp16.h",
    widen="__half2float",
    narrow="__float2half",
)
BF16 = ElementType(
    "bf16",
    "__nv_bfloat16",
    "__nv_bfloat16",
    16,
    8,
    zero="__float2bfloat16(0.0f)",
    header="cuda_bf16.h",
    widen="__bfloat162float",
    narrow="__float2bfloat16",
)
TF32 = ElementType("tf32", "float", "wmma::precision::tf32", 32, 11, zero="0.0f", rounded="wmma::__float_to_tf32")
F32 = ElementType("f32", "float", "float", 32, 24, zero="0.0f")
F64 = ElementType("f64", "double", "double", 64, 53, zero="0.0")
S8 = ElementType("s8", "signed char", "signed char", 8, 7, integer=True, widen="static_cast<float>", narrow="to_s8")
U8 = ElementType("u8", "unsigned char", "unsigned char", 8, 8, integer=True, widen="static_cast<float>", narrow="to_u8")
S32 = ElementType("s32", "int", "int", 32, 31, integer=True, widen="__int2float_rn")
S4 = ElementType("s4", "int", "wmma::experimental::precision::s4", 4, 3, integer=True, experimental=True)
U4 = ElementType("u4", "int", "wmma::experimental::precision::u4", 4, 4, integer=True, experimental=True)
B1 = ElementType("b1", "int", "wmma::experimental::precision::b1", 1, 1, integer=True, experimental=True)

ELEMENT_TYPES: dict[str, ElementType] = {t.name: t for t in (F16, BF16, TF32, F32, F64, S8, U8, S32, S4, U4, B1)}

#: What sums of a type may become in D: their own type first, then those that are made of them on the way.
RESULTS: dict[str, tuple[str, ...]] = {
    "f32": ("f32", "f16", "bf16"),
    "f16": ("f16", "f32", "bf16"),
    "f64": ("f64",),
    "s32": ("s32", "s8", "u8", "f32", "f16", "bf16"),
}

#: Names that people ask for and that WMMA does not have, each with the sentence that says so.
ABSENT_TYPES: dict[str, str] = {
    **dict.fromkeys(
        ("fp8", "e4m3", "e5m2"),
        "WMMA has no 8-bit floating point type on any architecture; fp8 products begin with mma.sync on sm_89 and "
        "wgmma on sm_90",
    ),
    "char": "plain char is no WMMA operand on any architecture, because its sign is the platform's choice; ask for s8 "
    "or u8, which begin with sm_72",
    "s16": "WMMA has no 16-bit integer type",
    "fp16": "the word is f16",
    "half": "the word is f16",
    "float": "the word is f32 (an accumulator) or tf32 (an operand)",
    "double": "the word is f64",
    "int8": "the word is s8",
    "uint8": "the word is u8",
    "int32": "the word is s32",
    "int": "the word is s32",
}

if not {name for row in RESULTS.items() for name in (row[0], *row[1])} <= ELEMENT_TYPES.keys():
    raise ValueError("a result is of no known type")
if len(ELEMENT_TYPES) != 11:
    raise ValueError("two element types share a name")
