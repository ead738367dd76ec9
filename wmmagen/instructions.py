"""The matrix instructions of WMMA: which types multiply in which shapes, from which architecture on.

Sources: CUDA C++ Programming Guide, "Warp Matrix Functions", element types and matrix sizes (types, shapes,
architectures, layouts of the sub-byte types); PTX ISA, "Matrix Fragments for WMMA" (registers per thread).
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#element-types-and-matrix-sizes
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#warp-level-matrix-fragment

A row proves itself on import: its fragments, spread over the warp, hold every element of their tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wmmagen import dtypes
from wmmagen.arch import WARP_SIZE
from wmmagen.dtypes import ElementType

REGISTER_BITS = 32


@dataclass(frozen=True)
class MachineCode:
    """What the instruction and the loads and stores of its fragments must become in machine code.

    Words are opcode and width, as :mod:`wmmagen.sass` forms them. *Along* is an operand whose rows in memory run along
    K (row-major A, column-major B), *across* is the other layout.

    Seen in the disassembly of NVRTC 13.5 for sm_75, 80, 86, 90, 100, 103 and 120 (f16, s8) and for sm_80, 90 and 120
    (bf16, tf32, f64). Those of bf16, tf32 and f64 are what PTX's ``wmma.load`` and ``wmma.store`` become when they name
    the address space: the C++ calls lose it, and their loads become generic ones.

    Attributes:
        matrix: opcode and types; behind them ``.SAT`` where integer sums saturate.
        shared: loads from shared memory, along and across.
        from_global: loads from global memory, along and across.
        stores: of accumulators to global memory; more than one where architectures or ways to write it differ.
    """

    matrix: str
    shared: tuple[str, str]
    from_global: tuple[str, str]
    stores: tuple[str, ...]


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
        machine: what it must become in machine code; None where there is no evidence yet.
        hidden: what the calls of nvcuda::wmma move through generic addresses, because they lose the address space:
            fragments of A and B (``operands``), tiles of sums (``tiles``). PTX names the space for these.
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
    machine: MachineCode | None = None
    hidden: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        warp_bits = WARP_SIZE * REGISTER_BITS
        for operand, bits, registers in (
            ("A", self.m * self.k * self.a.bits, self.a_registers),
            ("B", self.k * self.n * self.a.bits, self.b_registers),
        ):
            if registers * warp_bits < bits:
                raise ValueError(f"{self}: {registers} registers per thread cannot hold {operand}")
        if not set(self.hidden) <= {"operands", "tiles"}:
            raise ValueError(f"{self}: {self.hidden} names something else than operands and tiles")
        if self.acc_registers * warp_bits != self.m * self.n * self.acc.bits:
            raise ValueError(f"{self}: the accumulator fragments do not hold D exactly once")

    @property
    def bytewise(self) -> bool:
        """Whether fragments across K are loaded in single bytes, from shared or from global memory."""
        return self.machine is not None and any(
            access.endswith(".8") for access in (self.machine.shared[1], self.machine.from_global[1])
        )

    @property
    def whole_layouts(self) -> tuple[str, ...]:
        """Those of ``layouts`` in which no fragment is loaded in single bytes."""
        return tuple(both for both in self.layouts if both == "rc") if self.bytewise else self.layouts

    @property
    def shape(self) -> str:
        """``16x16x16``."""
        return f"{self.m}x{self.n}x{self.k}"

    def __str__(self) -> str:
        return f"{self.a.name}->{self.acc.name} {self.shape}"


_16_BIT_LOADS = (("LDSM.M88", "LDSM.MT88"), ("LDG.32", "LDG.32"))
#: Across K, bytes are loaded one by one: no load of matrices transposes them.
_8_BIT_LOADS = (("LDSM.M88", "LDS.8"), ("LDG.32", "LDG.8"))


def _three(
    a: ElementType,
    acc: ElementType,
    min_sm: int,
    registers: dict[str, tuple[int, int, int]],
    machine: Callable[[str], MachineCode],
    hidden: tuple[str, ...] = (),
) -> tuple[Instruction, ...]:
    """The three shapes that f16, bf16 and the 8-bit integers share."""
    shapes = {"16x16x16": (16, 16, 16), "32x8x16": (32, 8, 16), "8x32x16": (8, 32, 16)}
    return tuple(
        Instruction(a, acc, *shapes[s], min_sm, *registers[s], machine=machine(s), hidden=hidden) for s in shapes
    )


def _32_bit_stores(shape: str) -> tuple[str, ...]:
    """Of sums of 32 bits: two neighbours of a row at a time, but in 8x32x16, whose threads hold columns."""
    return ("STG.32",) if shape == "8x32x16" else ("STG.64",)


def _f16_f32(shape: str) -> MachineCode:
    return MachineCode("HMMA.F32", *_16_BIT_LOADS, _32_bit_stores(shape))


def _f16_f16(_: str) -> MachineCode:
    return MachineCode("HMMA.F16", *_16_BIT_LOADS, ("STG.32",))


def _bf16(shape: str) -> MachineCode:
    return MachineCode("HMMA.F32.BF16", *_16_BIT_LOADS, _32_bit_stores(shape))


def _int8(word: str) -> Callable[[str], MachineCode]:
    def machine(shape: str) -> MachineCode:
        # Turing multiplies 8x32x16 row by row and stores pairs; its successors do not.
        stores = ("STG.32", "STG.64") if shape == "8x32x16" else ("STG.64",)
        return MachineCode(f"IMMA.{word}.{word}", *_8_BIT_LOADS, stores)

    return machine


_TF32 = MachineCode("HMMA.F32.TF32", ("LDS.32", "LDS.32"), ("LDG.32", "LDG.32"), ("STG.64",))
_F64 = MachineCode("DMMA", ("LDS.64", "LDS.64"), ("LDG.64", "LDG.64"), ("STG.128",))

_F16_F32 = dict.fromkeys(("16x16x16", "32x8x16", "8x32x16"), (8, 8, 8))
_F16_F16 = dict.fromkeys(("16x16x16", "32x8x16", "8x32x16"), (8, 8, 4))
_BF16 = {"16x16x16": (4, 4, 8), "32x8x16": (8, 2, 8), "8x32x16": (2, 8, 8)}
_INT8 = {"16x16x16": (2, 2, 8), "32x8x16": (4, 1, 8), "8x32x16": (1, 4, 8)}

INSTRUCTIONS: tuple[Instruction, ...] = (
    *_three(dtypes.F16, dtypes.F32, 70, _F16_F32, _f16_f32),
    *_three(dtypes.F16, dtypes.F16, 70, _F16_F16, _f16_f16),
    *_three(dtypes.BF16, dtypes.F32, 80, _BF16, _bf16, ("operands",)),
    *_three(dtypes.S8, dtypes.S32, 72, _INT8, _int8("S8")),
    *_three(dtypes.U8, dtypes.S32, 72, _INT8, _int8("U8")),
    Instruction(dtypes.TF32, dtypes.F32, 16, 16, 8, 80, 4, 4, 8, machine=_TF32, hidden=("operands", "tiles")),
    Instruction(dtypes.F64, dtypes.F64, 8, 8, 4, 80, 2, 2, 4, machine=_F64, hidden=("operands", "tiles")),
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
