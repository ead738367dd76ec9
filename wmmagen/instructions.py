"""The matrix instructions of WMMA: which types multiply in which shapes, from which architecture on.

Sources: CUDA C++ Programming Guide, "Warp Matrix Functions", element types and matrix sizes (types, shapes,
architectures, layouts of the sub-byte types); PTX ISA, "Matrix Fragments for WMMA" (registers per thread).
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#element-types-and-matrix-sizes
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#warp-level-matrix-fragment

A row proves itself on import: its fragments, spread over the warp, hold every element of their tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from wmmagen import dtypes
from wmmagen.arch import WARP_SIZE
from wmmagen.dtypes import ElementType

REGISTER_BITS = 32


@dataclass(frozen=True)
class Instruction:
    """One matrix multiply-accumulate: D (m×n) = A (m×k) · B (k×n) + C (m×n), by one warp.

    Attributes:
        a: element type of A and of B.
        acc: accumulator type.
        m, n, k: extents in elements.
        min_sm: first architecture that has it.
        a_registers, b_registers, acc_registers: 32-bit registers of each thread's fragments; the PTX ISA aligns
            every row of an operand to this many.
        layouts: of A and B, in the words of :class:`wmmagen.config.Layout`.
        product: how elements are multiplied: ``mul``, or ``xor`` and ``and`` of bits, whose ones are counted.
        removed_sm: first architecture for which it is documented as removed; 0 for none.
    """

    a: ElementType
    acc: ElementType
    m: int
    n: int
    k: int
    min_sm: int
    a_registers: int
    b_registers: int
    acc_registers: int
    layouts: tuple[str, ...] = ("rr", "rc", "cr", "cc")
    product: str = "mul"
    removed_sm: int = 0

    def __post_init__(self) -> None:
        warp_bits = WARP_SIZE * REGISTER_BITS
        for operand, bits, registers in (
            ("A", self.m * self.k * self.a.bits, self.a_registers),
            ("B", self.k * self.n * self.a.bits, self.b_registers),
        ):
            if registers * warp_bits < bits:
                raise ValueError(f"{self}: {registers} registers per thread cannot hold {operand}")
        if self.acc_registers * warp_bits != self.m * self.n * self.acc.bits:
            raise ValueError(f"{self}: the accumulator fragments do not hold D exactly once")

    @property
    def shape(self) -> str:
        """``16x16x16``."""
        return f"{self.m}x{self.n}x{self.k}"

    def __str__(self) -> str:
        return f"{self.a.name}->{self.acc.name} {self.shape}"


def _three(
    a: ElementType, acc: ElementType, min_sm: int, registers: dict[str, tuple[int, int, int]]
) -> tuple[Instruction, ...]:
    """The three shapes that f16, bf16 and the 8-bit integers share."""
    shapes = {"16x16x16": (16, 16, 16), "32x8x16": (32, 8, 16), "8x32x16": (8, 32, 16)}
    return tuple(Instruction(a, acc, *shapes[s], min_sm, *registers[s]) for s in shapes)


_F16_F32 = dict.fromkeys(("16x16x16", "32x8x16", "8x32x16"), (8, 8, 8))
_F16_F16 = dict.fromkeys(("16x16x16", "32x8x16", "8x32x16"), (8, 8, 4))
_BF16 = {"16x16x16": (4, 4, 8), "32x8x16": (8, 2, 8), "8x32x16": (2, 8, 8)}
_INT8 = {"16x16x16": (2, 2, 8), "32x8x16": (4, 1, 8), "8x32x16": (1, 4, 8)}

INSTRUCTIONS: tuple[Instruction, ...] = (
    *_three(dtypes.F16, dtypes.F32, 70, _F16_F32),
    *_three(dtypes.F16, dtypes.F16, 70, _F16_F16),
    *_three(dtypes.BF16, dtypes.F32, 80, _BF16),
    *_three(dtypes.S8, dtypes.S32, 72, _INT8),
    *_three(dtypes.U8, dtypes.S32, 72, _INT8),
    Instruction(dtypes.TF32, dtypes.F32, 16, 16, 8, 80, 4, 4, 8),
    Instruction(dtypes.F64, dtypes.F64, 8, 8, 4, 80, 2, 2, 4),
    Instruction(dtypes.S4, dtypes.S32, 8, 8, 32, 75, 1, 1, 2, ("rc",), removed_sm=90),
    Instruction(dtypes.U4, dtypes.S32, 8, 8, 32, 75, 1, 1, 2, ("rc",), removed_sm=90),
    Instruction(dtypes.B1, dtypes.S32, 8, 8, 128, 75, 1, 1, 2, ("rc",), "xor", removed_sm=90),
    Instruction(dtypes.B1, dtypes.S32, 8, 8, 128, 80, 1, 1, 2, ("rc",), "and"),
)

if len({(i.a, i.acc, i.shape, i.product) for i in INSTRUCTIONS}) != len(INSTRUCTIONS):
    raise ValueError("two rows describe one instruction")


def of_operand(a: ElementType) -> tuple[Instruction, ...]:
    """The instructions that multiply elements of type ``a``; empty for a type that is no operand."""
    return tuple(i for i in INSTRUCTIONS if i.a == a)


def find(a: ElementType, acc: ElementType, m: int, n: int, k: int) -> Instruction | None:
    """The instruction of exactly these types and extents, if there is one; of b1's two, which are alike, the first."""
    return next((i for i in INSTRUCTIONS if (i.a, i.acc, i.m, i.n, i.k) == (a, acc, m, n, k)), None)
