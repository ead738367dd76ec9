"""Every row of the instruction table as NVRTC compiles it from nvcuda::wmma, on the executor, against integers.

All rows of an architecture are kernels of one text, so that it is compiled once.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from wmmagen import executor, layout, nvrtc
from wmmagen.arch import ARCHS
from wmmagen.dtypes import ElementType
from wmmagen.executor import Pointer
from wmmagen.instructions import INSTRUCTIONS, Instruction

HEADER = """#include <mma.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
using namespace nvcuda;
"""
KERNEL = """
extern "C" __global__ void {name}(const {storage}* a, const {storage}* b, const {acc}* c, {acc}* d, int lda, int ldb) {{
  wmma::fragment<wmma::matrix_a, {m}, {n}, {k}, {fragment}, wmma::{la}> fa;
  wmma::fragment<wmma::matrix_b, {m}, {n}, {k}, {fragment}, wmma::{lb}> fb;
  wmma::fragment<wmma::accumulator, {m}, {n}, {k}, {acc}> fc;
  wmma::load_matrix_sync(fa, a, lda);
  wmma::load_matrix_sync(fb, b, ldb);
  wmma::load_matrix_sync(fc, c, {ldc}, wmma::mem_row_major);
  {product};
  wmma::store_matrix_sync(d, fc, {ldc}, wmma::mem_row_major);
}}
"""
ORDERS = {"r": "row_major", "c": "col_major"}
BIT_PRODUCTS = {"xor": "wmma::experimental::bmmaBitOpXOR", "and": "wmma::experimental::bmmaBitOpAND"}
ARCHITECTURES = (75, 80, 90, 120)


def rows_of(sm: int) -> list[Instruction]:
    return [row for row in INSTRUCTIONS if row.min_sm <= sm]


def saturations(row: Instruction) -> tuple[bool, ...]:
    """Whether products saturate: what the language has. Bits are only counted."""
    return (False, True) if row.acc.name == "s32" and row.product == "mul" else (False,)


def name_of(row: Instruction, layouts: str, saturates: bool) -> str:
    return f"k_{row.a.name}_{row.acc.name}_{row.shape}_{row.product}_{layouts}_{int(saturates)}"


def kernel_of(row: Instruction, layouts: str, saturates: bool) -> str:
    product = f"wmma::mma_sync(fc, fa, fb, fc{', true' if saturates else ''})"
    if row.product != "mul":
        product = f"wmma::bmma_sync(fc, fa, fb, fc, {BIT_PRODUCTS[row.product]})"
    return KERNEL.format(
        name=name_of(row, layouts, saturates),
        storage=row.a.storage, fragment=row.a.fragment, acc=row.acc.storage, m=row.m, n=row.n, k=row.k,
        la=ORDERS[layouts[0]], lb=ORDERS[layouts[1]], ldc=row.n, product=product,
    )  # fmt: skip


CASES = [(sm, row) for sm in ARCHITECTURES for row in rows_of(sm)]


@lru_cache
def ptx_of(sm: int) -> str:
    kernels = [
        kernel_of(row, layouts, saturates)
        for row in rows_of(sm)
        for layouts in row.layouts
        for saturates in saturations(row)
    ]
    first = rows_of(sm)[0]
    entry = name_of(first, first.layouts[0], False)
    return nvrtc.compile_source(HEADER + "".join(kernels), entry, ARCHS[sm]).ptx


def packed(values: np.ndarray, element: ElementType) -> np.ndarray:
    """Lines of elements in memory; of less than a byte the first one lies in the lowest bits."""
    if element.bits >= 8:
        return layout.encode(values.astype(layout.value_dtype(element)), element).view(np.uint8)
    each = 8 // element.bits
    bits = (values.astype(np.int64) & (1 << element.bits) - 1).reshape(*values.shape[:-1], -1, each)
    return (bits << (np.arange(each) * element.bits)).sum(axis=-1).astype(np.uint8)


def in_memory(values: np.ndarray, order: str, element: ElementType) -> tuple[np.ndarray, int]:
    """The bytes of a matrix, and its leading dimension in elements: two units of 16 bytes more than a line."""
    inside = np.ascontiguousarray(values if order == "r" else values.T)
    lines = packed(inside, element)
    pad = -lines.shape[1] % 16 + 32
    wide = np.pad(lines, ((0, 0), (0, pad)), constant_values=0xA5)
    return wide, wide.shape[1] * 8 // element.bits


def limits(element: ElementType) -> tuple[int, int]:
    if not element.integer:
        return -7, 7
    return (
        (-(1 << element.bits - 1), (1 << element.bits - 1) - 1) if element.name[0] == "s" else (0, 2**element.bits - 1)
    )


def want(row: Instruction, a: np.ndarray, b: np.ndarray, c: np.ndarray, saturates: bool) -> np.ndarray:
    a, b, c = (x.astype(np.int64) for x in (a, b, c))
    if row.product == "mul":
        total = a @ b + c
    else:
        pairs = a[:, :, None] ^ b[None] if row.product == "xor" else a[:, :, None] & b[None]
        total = pairs.sum(axis=1) + c
    if not row.acc.integer:
        return total
    if saturates:
        return np.clip(total, -(2**31), 2**31 - 1)
    return (total + 2**31) % 2**32 - 2**31


def check(sm: int, row: Instruction, layouts: str, saturates: bool, operands: tuple[np.ndarray, ...]) -> None:
    a, b, c = operands
    (memory_a, lda), (memory_b, ldb) = in_memory(a, layouts[0], row.a), in_memory(b, layouts[1], row.a)
    memory_c = packed(c, row.acc)
    args = [*(Pointer(n) for n in range(4)), lda, ldb]
    buffers = [memory_a, memory_b, memory_c, np.zeros_like(memory_c)]
    entry = name_of(row, layouts, saturates)
    got = executor.launch(ptx_of(sm), entry, (1, 1, 1), (32, 1, 1), args, 0, buffers=buffers, seed=sm)
    assert [str(f) for f in got.findings] == []
    found = layout.decode(got.outputs[3].view(layout.bits_dtype(row.acc)), row.acc).reshape(row.m, row.n)
    assert np.array_equal(found, want(row, a, b, c, saturates))
    assert got.counts.tensor_instructions == 1


@pytest.mark.parametrize(("sm", "row"), CASES, ids=[f"sm_{sm}-{row}-{row.product}" for sm, row in CASES])
def test_every_row_in_every_layout(sm: int, row: Instruction) -> None:
    """Any integers, with sums at both ends of their range, so that they wrap or saturate; small ones of the others."""
    random = np.random.default_rng(row.m + row.k)
    low, high = limits(row.a)
    ends = (2**31 - 40, 2**31) if row.acc.integer else (-50, 50)
    for layouts in row.layouts:
        for saturates in saturations(row):
            a = random.integers(low, high + 1, (row.m, row.k))
            b = random.integers(low, high + 1, (row.k, row.n))
            c = random.integers(*ends, (row.m, row.n)) * random.choice((-1, 1), (row.m, row.n))
            check(sm, row, layouts, saturates, (a, b, c))


EXTREMES = [row for row in rows_of(80) if row.acc.name == "s32"]


@pytest.mark.parametrize("row", EXTREMES, ids=lambda row: f"{row}-{row.product}")
@pytest.mark.parametrize("start", [2**31 - 1, 0, -(2**31)])
def test_the_largest_integers_wrap_unless_they_saturate(row: Instruction, start: int) -> None:
    """All operands at one end of their range: -128 · -128 is the largest product of signed bytes."""
    for value in limits(row.a):
        for saturates in saturations(row):
            a, b = np.full((row.m, row.k), value), np.full((row.k, row.n), limits(row.a)[0] or value)
            check(80, row, "rc", saturates, (a, b, np.full((row.m, row.n), start)))
