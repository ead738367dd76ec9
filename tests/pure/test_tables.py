"""The tables against the documents that they are made from; written out here a second time, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wmmagen import instructions
from wmmagen.arch import ARCHS
from wmmagen.dtypes import ABSENT_TYPES, ELEMENT_TYPES, F16, F32, ElementType
from wmmagen.instructions import INSTRUCTIONS, Instruction

ALL = "rr rc cr cc"
WIDE = "16x16x16 32x8x16 8x32x16"

#: operand, accumulator, shapes, first architecture, layouts.
GUIDE = [
    ("f16", "f32", WIDE, 70, ALL),
    ("f16", "f16", WIDE, 70, ALL),
    ("s8", "s32", WIDE, 72, ALL),
    ("u8", "s32", WIDE, 72, ALL),
    ("bf16", "f32", WIDE, 80, ALL),
    ("tf32", "f32", "16x16x8", 80, ALL),
    ("f64", "f64", "8x8x4", 80, ALL),
    ("s4", "s32", "8x8x32", 75, "rc"),
    ("u4", "s32", "8x8x32", 75, "rc"),
    ("b1", "s32", "8x8x128", 75, "rc"),
    ("b1", "s32", "8x8x128", 80, "rc"),
]

#: Bytes to which the PTX ISA aligns every row: operand, accumulator, shape, of A, of B, of C and D.
ALIGNMENTS = [
    ("f16", "f32", "16x16x16", 32, 32, 32),
    ("f16", "f32", "32x8x16", 32, 32, 32),
    ("f16", "f32", "8x32x16", 32, 32, 32),
    ("f16", "f16", "16x16x16", 32, 32, 16),
    ("bf16", "f32", "16x16x16", 16, 16, 32),
    ("bf16", "f32", "32x8x16", 32, 8, 32),
    ("bf16", "f32", "8x32x16", 8, 32, 32),
    ("tf32", "f32", "16x16x8", 16, 16, 32),
    ("s8", "s32", "16x16x16", 8, 8, 32),
    ("u8", "s32", "32x8x16", 16, 4, 32),
    ("s8", "s32", "8x32x16", 4, 16, 32),
    ("s4", "s32", "8x8x32", 4, 4, 8),
    ("b1", "s32", "8x8x128", 4, 4, 8),
]


def test_instructions_are_the_guide_s() -> None:
    found = {(i.a.name, i.acc.name, i.shape, i.min_sm, i.layouts) for i in INSTRUCTIONS}
    products = {(i.a.name, i.product): (i.min_sm, i.removed_sm) for i in INSTRUCTIONS if i.a.experimental}
    assert products == {
        ("s4", "mul"): (75, 90),
        ("u4", "mul"): (75, 90),
        ("b1", "xor"): (75, 90),
        ("b1", "and"): (80, 0),
    }
    wanted = {
        (a, acc, shape, sm, tuple(layouts.split())) for a, acc, shapes, sm, layouts in GUIDE for shape in shapes.split()
    }
    assert found == wanted
    assert len(INSTRUCTIONS) == len(wanted)


@pytest.mark.parametrize(("a", "acc", "shape", "of_a", "of_b", "of_acc"), ALIGNMENTS)
def test_fragments_are_the_ptx_isa_s(a: str, acc: str, shape: str, of_a: int, of_b: int, of_acc: int) -> None:
    m, n, k = map(int, shape.split("x"))
    row = instructions.find(ELEMENT_TYPES[a], ELEMENT_TYPES[acc], m, n, k)
    assert row is not None
    assert (row.a_registers * 4, row.b_registers * 4, row.acc_registers * 4) == (of_a, of_b, of_acc)


@pytest.mark.parametrize(
    ("a", "acc", "shape"),
    [
        ("bf16", "bf16", "16x16x16"),
        ("bf16", "f16", "16x16x16"),
        ("f16", "f32", "16x16x8"),
        ("f16", "f32", "32x16x8"),
        ("f16", "f32", "8x16x32"),
        ("tf32", "f32", "16x16x16"),
        ("s8", "f32", "16x16x16"),
        ("f32", "f32", "16x16x8"),
    ],
)
def test_what_does_not_exist_is_not_found(a: str, acc: str, shape: str) -> None:
    m, n, k = map(int, shape.split("x"))
    assert instructions.find(ELEMENT_TYPES[a], ELEMENT_TYPES[acc], m, n, k) is None


def test_rows_of_one_operand() -> None:
    assert [i.shape for i in instructions.of_operand(ELEMENT_TYPES["tf32"])] == ["16x16x8"]
    assert instructions.of_operand(F32) == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"m": 32},
        {"n": 8},
        {"a_registers": 3},
        {"b_registers": 3},
        {"acc_registers": 4},
        {"acc_registers": 16},
        {"acc": F16},
    ],
)
def test_a_wrong_row_cannot_be_made(wrong: dict[str, object]) -> None:
    row = Instruction(F16, F32, 16, 16, 16, 70, 8, 8, 8)
    with pytest.raises(ValueError, match="hold"):
        replace(row, **wrong)  # type: ignore[arg-type]


#: name, bits in memory, largest L such that all whole numbers up to L are exact.
TYPES = [
    ("f16", 16, 2**11),
    ("bf16", 16, 2**8),
    ("tf32", 32, 2**11),
    ("f32", 32, 2**24),
    ("f64", 64, 2**53),
    ("s8", 8, 127),
    ("u8", 8, 255),
    ("s32", 32, 2**31 - 1),
    ("s4", 4, 7),
    ("u4", 4, 15),
    ("b1", 1, 1),
]


def test_element_types_are_the_documents() -> None:
    assert [(t.name, t.bits, t.exact_limit) for t in ELEMENT_TYPES.values()] == TYPES
    assert {t.name for t in ELEMENT_TYPES.values() if t.experimental} == {"s4", "u4", "b1"}
    assert {t.name: t.header for t in ELEMENT_TYPES.values() if t.header} == {
        "f16": "cuda_fp16.h",
        "bf16": "cuda_bf16.h",
    }


@pytest.mark.parametrize(
    "wrong", [{"name": "F16"}, {"name": "f_16"}, {"bits": 12}, {"precision": 0}, {"precision": 17}]
)
def test_a_wrong_type_cannot_be_made(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        replace(F16, **wrong)  # type: ignore[arg-type]
    assert isinstance(F16, ElementType)


def test_absent_types_are_absent() -> None:
    assert not ABSENT_TYPES.keys() & ELEMENT_TYPES.keys()
    assert {"fp8", "e4m3", "e5m2", "char"} <= ABSENT_TYPES.keys()


#: Kilobytes of shared memory that one block may use, opted in.
SHARED = {
    75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99,
}  # fmt: skip


def test_shared_memory_of_a_block() -> None:
    assert {sm: arch.shared_block // 1024 for sm, arch in ARCHS.items() if sm >= 75} == SHARED
    assert all(arch.shared_block % 1024 == 0 for arch in ARCHS.values())
