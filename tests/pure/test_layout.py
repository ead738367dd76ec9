"""Bytes around matrices: encodings, guards, poison."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmmagen import dtypes as t
from wmmagen.config import Epilogue, Layout, Operation, Problem, Residue
from wmmagen.errors import ConfigError
from wmmagen.layout import Image, Shifts, bits_dtype, decode, encode, image, images, make_stale, value_dtype, workspace

TYPES = [t.F16, t.BF16, t.TF32, t.F32, t.F64, t.S8, t.U8, t.S32]
FLOATS = [t.F16, t.BF16, t.TF32, t.F32, t.F64]


def ramp(rows: int, cols: int) -> np.ndarray:
    return (np.arange(rows * cols) % 101).reshape(rows, cols)


@pytest.mark.parametrize("element", TYPES, ids=lambda e: e.name)
@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize("output", [True, False])
def test_pack_and_unpack_are_inverse(element: t.ElementType, row_major: bool, output: bool) -> None:
    where = image(5, 7, 13, element, row_major=row_major, output=output)
    buffer = where.pack(ramp(5, 7))
    back = where.unpack(buffer)
    assert back.dtype == value_dtype(element)
    assert np.array_equal(back, ramp(5, 7))
    assert where.guard_damage(buffer) is None
    assert where.offset % 256 == 0 and buffer.shape == (where.total_bytes,)


@pytest.mark.parametrize("row_major", [True, False])
def test_an_element_lies_where_its_leading_dimension_says(row_major: bool) -> None:
    where = image(3, 4, 9, t.F64, row_major=row_major)
    buffer = where.pack(ramp(3, 4))
    index = 2 * 9 + 1 if row_major else 1 * 9 + 2
    start = where.offset + 8 * index
    assert buffer[start : start + 8].view(np.float64)[0] == ramp(3, 4)[2, 1]


@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
def test_a_read_outside_an_operand_is_nan(element: t.ElementType) -> None:
    where = image(3, 4, 9, element)
    everything = decode(where.pack(ramp(3, 4)).view(bits_dtype(element)), element)
    assert np.count_nonzero(~np.isnan(everything)) == 12


@pytest.mark.parametrize("element", [t.F16, t.BF16, t.F32, t.F64, t.S32], ids=lambda e: e.name)
def test_a_blank_output_is_poison_and_its_guards_are_not(element: t.ElementType) -> None:
    where = image(3, 4, 9, element, output=True)
    blank = where.blank()
    assert where.unwritten(blank).all() and where.unwritten(blank).shape == (3, 4)
    assert where.guard_damage(blank) is None
    assert where.poison != where.guard
    if not element.integer:
        assert np.isnan(where.unpack(blank)).all()
        canonical = {16: 0x7FFF, 32: 0x7FFFFFFF, 64: 0x7FF8000000000000}[element.bits]
        assert where.poison not in (canonical, where.guard)
    assert not where.unwritten(where.pack(ramp(3, 4))).any()


@pytest.mark.parametrize("element", TYPES, ids=lambda e: e.name)
@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize("output", [True, False])
def test_every_single_guard_byte_is_watched(element: t.ElementType, row_major: bool, output: bool) -> None:
    where = image(2, 3, 5, element, row_major=row_major, output=output, guard_bytes=256)
    clean = where.pack(ramp(2, 3))
    size = element.bits // 8
    data = {
        where.offset + (line * 5 + i) * size + byte
        for line in range(where.lines)
        for i in range(where.length)
        for byte in range(size)
    }
    for byte in range(where.total_bytes):
        hurt = clean.copy()
        hurt[byte] ^= 0x10
        found = where.guard_damage(hurt)
        if byte in data:
            assert found is None
        else:
            assert found is not None and (found.offset, found.elements) == (byte, 1)


@pytest.mark.parametrize(
    ("row_major", "at", "where"),
    [
        (True, -1, "before the data"),
        (True, 3, "in the gap of row 0"),
        (True, 5 + 4, "in the gap of row 1"),
        (True, 10, "after the data"),
        (False, 5 + 2, "in the gap of column 1"),
        (False, 15, "after the data"),
    ],
)
def test_damage_says_where_it_lies(row_major: bool, at: int, where: str) -> None:
    place = image(2, 3, 5, t.F32, row_major=row_major, output=True)
    buffer = place.blank()
    start = place.offset + 4 * at
    buffer[start : start + 4] = 0
    found = place.guard_damage(buffer)
    assert found is not None and found.where == where and found.offset == start
    assert where in str(found)


def test_the_first_damage_in_memory_is_named_and_all_are_counted() -> None:
    place = image(2, 3, 5, t.F16, output=True)
    buffer = place.blank()
    buffer[place.offset + 20 :] = 0
    buffer[place.offset + 6 : place.offset + 8] = 0
    found = place.guard_damage(buffer)
    assert found is not None
    assert found.where == "in the gap of row 0"
    assert found.elements == 1 + place.total_bytes // 2 - place.offset // 2 - 10


@pytest.mark.parametrize(("rows", "cols"), [(0, 0), (0, 4), (4, 0)])
@pytest.mark.parametrize("row_major", [True, False])
def test_an_empty_matrix_has_guards_only(rows: int, cols: int, row_major: bool) -> None:
    where = image(rows, cols, 8, t.F16, row_major=row_major, output=True)
    buffer = where.blank()
    assert where.unpack(buffer).shape == (rows, cols)
    assert where.guard_damage(buffer) is None
    buffer[where.offset - 1] ^= 1
    assert where.guard_damage(buffer) is not None


def test_the_images_of_a_problem_have_its_layouts() -> None:
    problem = Problem.packed(Operation(t.F16, t.F32, t.F32, Layout.RC), 3, 4, 5, extra=8)
    a, b, d = images(problem)
    assert (a.rows, a.cols, a.ld, a.row_major, a.output) == (3, 5, 13, True, False)
    assert (b.rows, b.cols, b.ld, b.row_major, b.output) == (5, 4, 13, False, False)
    assert (d.rows, d.cols, d.ld, d.row_major, d.output, d.element) == (3, 4, 12, True, True, t.F32)


def test_what_cannot_be_laid_out_is_refused() -> None:
    with pytest.raises(ConfigError, match="leading dimension 3"):
        image(3, 4, 3, t.F16)
    with pytest.raises(ConfigError, match="s4"):
        image(3, 4, 4, t.S4)
    with pytest.raises(ValueError, match="256"):
        image(3, 4, 4, t.F16, guard_bytes=100)
    where = image(3, 4, 4, t.F16)
    with pytest.raises(ValueError, match="3x4"):
        where.pack(ramp(4, 3))
    wrong: list[Any] = [where.blank()[:-1], where.blank().view(np.uint16)]
    for buffer in wrong:
        with pytest.raises(ValueError, match="bytes"):
            where.unpack(buffer)


@pytest.mark.parametrize(("element", "value"), [(t.S8, 128), (t.S8, -129), (t.U8, -1), (t.U8, 256), (t.S32, 2**31)])
def test_an_integer_that_does_not_fit_is_refused(element: t.ElementType, value: int) -> None:
    with pytest.raises(ConfigError, match=element.name):
        encode(np.array([value]), element)


def test_bf16_rounds_to_nearest_even() -> None:
    given_values = np.array([1.0, 257.0, 259.0, 258.0, 0.0, -0.0, np.inf, 3.4e38, -257.0], np.float32)
    right = [1.0, 256.0, 260.0, 258.0, 0.0, -0.0, np.inf, np.inf, -256.0]
    back = decode(encode(given_values, t.BF16), t.BF16)
    assert back.tolist() == right
    assert encode(np.array([-0.0]), t.BF16)[0] == 0x8000


@given(st.integers(0, 2**32 - 1))
def test_bf16_is_the_nearest_of_its_neighbours(bits: int) -> None:
    value = np.array([bits], np.uint32).view(np.float32)
    got = encode(value, t.BF16)
    if np.isnan(value[0]):
        assert np.isnan(decode(got, t.BF16)[0])
        return
    # The two candidates are the cut bits and the next; the 16 bits that are cut off say which is nearer.
    low, rest = bits >> 16, bits & 0xFFFF
    right = low if rest < 0x8000 else low + 1 if rest > 0x8000 else low + (low & 1)
    assert int(got[0]) == right


@given(st.integers(0, 2**16 - 1))
def test_every_half_survives(bits: int) -> None:
    for element in (t.F16, t.BF16):
        one = np.array([[bits]], np.uint16)
        if not np.isnan(decode(one, element)[0, 0]):
            assert encode(decode(one, element), element)[0, 0] == bits


def test_bits_are_a_view() -> None:
    where: Image = image(2, 2, 4, t.F32, output=True)
    buffer = where.blank()
    where.bits(buffer)[1, 1] = 0
    assert where.unpack(buffer)[1, 1] == 0


def test_a_linear_epilogue_has_a_c() -> None:
    operation = Operation(t.F16, t.F32, t.F16, Layout.RC, Epilogue.LINEAR)
    problem = Problem(operation, 3, 4, 5, 13, 14, 15, 17)
    a, b, c, d = images(problem, shifts=Shifts(4, 8, 2))
    assert [x.offset % 256 for x in (a, b, c, d)] == [4, 8, 2, 2]
    assert (c.rows, c.cols, c.ld, c.row_major, c.output, c.element) == (3, 4, 17, True, False, t.F16)
    assert (d.ld, d.output) == (15, True)
    assert images(replace(problem, beta=0.0, ldc=1))[2].ld == 4


@pytest.mark.parametrize("element", TYPES, ids=lambda e: e.name)
@pytest.mark.parametrize("shift", [8, 16, 32])
def test_a_shifted_matrix_is_guarded_all_around(element: t.ElementType, shift: int) -> None:
    where = image(2, 3, 5, element, guard_bytes=256, shift=shift)
    assert where.offset % 256 == shift
    buffer = where.pack(ramp(2, 3))
    assert np.array_equal(where.unpack(buffer), ramp(2, 3))
    assert where.guard_damage(buffer) is None
    for byte in (0, where.offset - 1, where.total_bytes - 1):
        hurt = buffer.copy()
        hurt[byte] ^= 1
        assert where.guard_damage(hurt) is not None
    assert where.total_bytes - where.offset - 10 * element.bits // 8 == 256


def test_a_shift_is_whole_elements() -> None:
    for shift in (1, -2, 256):
        with pytest.raises(ValueError, match="shift"):
            image(2, 3, 5, t.F16, shift=shift)


@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
@pytest.mark.parametrize("row_major", [True, False])
def test_what_must_not_be_read_is_nan_or_infinite(element: t.ElementType, row_major: bool) -> None:
    where = image(3, 4, 9, element, row_major=row_major)
    assert np.isnan(where.unpack(where.unreadable())).all()
    infinite = where.unreadable(infinite=True)
    assert set(where.unpack(infinite).ravel().tolist()) == {np.inf, -np.inf}
    assert where.guard_damage(infinite) is None


def test_c_and_d_lie_as_the_operation_says() -> None:
    for cd in Layout:
        operation = Operation(t.F16, t.F32, t.F16, epilogue=Epilogue.LINEAR, cd=cd)
        *_, c, d = images(Problem.packed(operation, 2, 3, 5, beta=0.0))
        assert [one.row_major for one in (c, d)] == [letter == "r" for letter in cd]
        assert [(one.lines, one.length) for one in (c, d)] == [(2, 3) if letter == "r" else (3, 2) for letter in cd]
        buffer = d.blank()
        values = np.arange(6, dtype=np.float16).reshape(2, 3)
        d.bits(buffer)[:] = values.view(np.uint16)
        flat = np.frombuffer(buffer[d.offset : d.offset + 12].tobytes(), np.float16)
        assert flat.tolist() == (values if cd[1] == "r" else values.T).reshape(-1).tolist()


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 31, 4099])
def test_what_no_result_may_come_from_fills_all_of_a_workspace(size: int) -> None:
    memory = np.zeros(size + 2, np.uint8)
    make_stale(memory[1:-1])
    assert bytes(memory) == b"\0" + (bytes((0x01, 0x7E, 0xC1, 0x7F)) * (size // 4 + 1))[:size] + b"\0"


def test_a_workspace_takes_no_more_memory_than_it_has_bytes() -> None:
    # Some have gigabytes. A list of what is repeated would have eight bytes for each repetition.
    where = workspace(tiles=64, tile_bytes=32_800, count_offset=32_768)
    tracemalloc.start()
    try:
        buffer = where.blank()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert buffer.size <= most < 1.1 * buffer.size
    assert not where.damage(buffer)


@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize(("rows", "cols"), [(3, 5), (1, 1), (0, 4), (4, 0)])
def test_a_buffer_that_ends_with_its_matrix_has_no_gap_behind_the_last_line(
    rows: int, cols: int, row_major: bool
) -> None:
    where = image(rows, cols, 9, t.F16, row_major=row_major, ends=True)
    buffer = where.pack(ramp(rows, cols))
    assert (where.unpack(buffer) == ramp(rows, cols)).all() and where.guard_damage(buffer) is None
    lines, length = (rows, cols) if row_major else (cols, rows)
    held = max((lines - 1) * 9 + length, 0)
    assert buffer.size == where.offset + 2 * held
    for place in range(held):
        hurt = buffer.copy()
        hurt[where.offset + 2 * place] ^= 1
        assert (where.guard_damage(hurt) is None) is (place % 9 < length)


def test_behind_a_and_b_of_kernels_for_all_sizes_nothing_lies() -> None:
    operation = Operation(t.F16, t.F32, t.F32, Layout.RC)
    for residue, behind in ((Residue.EXACT, 4096), (Residue.PREDICATED, 0)):
        problem = replace(Problem.packed(replace(operation, residue=residue), 16, 16, 16), lda=24, ldb=24)
        a, b, _ = images(problem)
        gap = 8 * 2 if behind else 0
        assert [one.total_bytes - one.offset for one in (a, b)] == [2 * (15 * 24 + 16) + gap + behind] * 2
