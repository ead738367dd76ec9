"""Inputs, exact product, verdict: each test can fail, and most of them make something wrong on purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmmagen import dtypes as t
from wmmagen import pieces, reference
from wmmagen.config import Epilogue, Layout, Operation, Overflow, Problem
from wmmagen.errors import ConfigError, NotGeneratedYet
from wmmagen.layout import decode, encode, images
from wmmagen.reference import (
    Inputs,
    accumulation_limit,
    cheap_bound,
    exact_inputs,
    expected,
    given_inputs,
    normal_inputs,
    problems_for,
    product,
    round_once,
    rounded_to_tf32,
    tight_bound,
    unrounded,
)
from wmmagen.verdict import Tiles, Verdict, explain, judge

OPERATIONS = [
    Operation(t.F16, t.F32, t.F32),
    Operation(t.F16, t.F32, t.F16),
    Operation(t.F16, t.F16, t.F16),
    Operation(t.F16, t.F16, t.F32),
    Operation(t.BF16, t.F32, t.F32),
    Operation(t.BF16, t.F32, t.BF16),
    Operation(t.TF32, t.F32, t.F32),
    Operation(t.F64, t.F64, t.F64),
    Operation(t.S8, t.S32, t.S32),
    Operation(t.U8, t.S32, t.S32),
]
F16_F32 = OPERATIONS[0]
F16_F16 = OPERATIONS[2]
TILES = Tiles(block_m=32, block_n=64, warp_m=16, warp_n=32, inst_m=16, inst_n=16, block_k=16, stages=3)
operations = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: f"{o.a.name}-{o.acc.name}-{o.d.name}")


def wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int64)


def verdict_on(inputs: Inputs, exact: np.ndarray, spoil: Callable[[np.ndarray], None] | None = None) -> Verdict:
    """The verdict on a kernel that left ``exact``, rounded once, and after it ``spoil`` of the values of D."""
    image = images(inputs.problem)[2]
    values = round_once(exact, inputs.problem.operation.d).copy()
    if spoil is not None:
        spoil(values)
    return judge(inputs, image, image.pack(values))


# ---------------------------------------------------------------------------------------------------------------------
# Inputs.


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(OPERATIONS), st.integers(0, 70), st.integers(0, 70), st.integers(0, 700), st.integers(0, 2**30 - 1)
)
def test_the_bound_holds(operation: Operation, m: int, n: int, k: int, seed: int) -> None:
    inputs = exact_inputs(Problem.packed(operation, m, n, k), seed=seed)
    sums = np.abs(wide(inputs.a)) @ np.abs(wide(inputs.b))
    assert inputs.a.shape == (m, k) and inputs.b.shape == (k, n)
    assert int(sums.max(initial=0)) <= inputs.bound <= inputs.limit <= operation.acc.exact_limit
    assert inputs.guaranteed
    for values in (inputs.a, inputs.b):
        assert int(np.abs(wide(values)).max(initial=0)) <= operation.a.exact_limit
        assert np.array_equal(wide(decode(encode(values, operation.a), operation.a)), wide(values))
    d = expected(inputs)
    assert operation.d.integer or np.isfinite(d).all()


@operations
@pytest.mark.parametrize("k", [1, 16, 2048, 2049, 5000, 140_000])
def test_the_bound_holds_on_long_k(operation: Operation, k: int) -> None:
    inputs = exact_inputs(Problem.packed(operation, 4, 3, k))
    sums = np.abs(wide(inputs.a)) @ np.abs(wide(inputs.b))
    assert 0 < int(sums.max()) <= inputs.bound <= inputs.limit
    for start in range(0, k, -(-k // 64)):
        assert np.any(inputs.a[:, start : start + -(-k // 64)]), "a stretch of K that no sum depends on"


def test_known_limits() -> None:
    assert [accumulation_limit(o) for o in OPERATIONS] == [
        2**24, 65_504, 2**11, 2**11, 2**24, 2**24, 2**24, 2**53, 2**31 - 1, 2**31 - 1,
    ]  # fmt: skip


@operations
def test_inputs_use_the_room_they_have(operation: Operation) -> None:
    """A bound that is proved by tiny values proves little: a narrower accumulator has to show."""
    inputs = exact_inputs(Problem.packed(operation, 64, 64, 64))
    room = min(inputs.limit, 64 * operation.a.exact_limit**2)
    assert inputs.bound > room // 8
    if operation.acc is not t.F16 and operation.d is not t.BF16:
        assert np.abs(wide(product(inputs))).max() > 2**11


def test_a_narrow_accumulator_shows_through_a_wide_one() -> None:
    """f16 D from an f32 accumulator: summing in f16 gives other bits."""
    inputs = exact_inputs(Problem.packed(OPERATIONS[1], 32, 48, 64))
    total = np.zeros((32, 48), np.float16)
    for k in range(64):
        total += np.outer(inputs.a[:, k], inputs.b[k]).astype(np.float16)
    image = images(inputs.problem)[2]
    assert judge(inputs, image, image.pack(expected(inputs))).exact
    assert not judge(inputs, image, image.pack(total)).exact


@operations
def test_no_term_is_zero_while_the_accumulator_can_count_k(operation: Operation) -> None:
    inputs = exact_inputs(Problem.packed(operation, 16, 16, 2048))
    assert np.all(inputs.a) and np.all(inputs.b)


def test_seeds_differ_and_repeat() -> None:
    problem = Problem.packed(F16_F32, 16, 24, 32)
    first, again, other = (exact_inputs(problem, seed=s) for s in (1, 1, 2))
    assert np.array_equal(first.a, again.a) and np.array_equal(first.b, again.b)
    assert not np.array_equal(first.a, other.a) and not np.array_equal(first.b, other.b)


def test_what_was_proved_cannot_change() -> None:
    inputs = exact_inputs(Problem.packed(F16_F32, 2, 2, 2))
    with pytest.raises(ValueError, match="read-only"):
        inputs.a[0, 0] = 1


def test_values_are_the_same_on_every_machine() -> None:
    inputs = exact_inputs(Problem.packed(F16_F32, 2, 3, 4), seed=7)
    assert inputs.a.tolist() == [[-716, -1416, -112, 1687], [1068, -788, -1714, 832]]
    assert inputs.b.tolist() == [[1434, -1663, -1059], [75, -1444, 1345], [-799, 1911, 629], [-1364, -614, -1272]]


@pytest.mark.parametrize("shape", [(37, 11), (3, 700), (700, 3), (0, 5), (5, 0)])
def test_values_do_not_depend_on_how_many_are_made_at_a_time(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for signed in (True, False):
        whole = reference._nonzero(*shape, 50, signed, 3)
        with monkeypatch.context() as patch:
            patch.setattr(pieces, "PIECE", 64)
            patch.setattr(pieces, "_ALONE", 100)
            assert np.array_equal(reference._nonzero(*shape, 50, signed, 3), whole)


def test_rows_and_columns_are_all_different() -> None:
    inputs = exact_inputs(Problem.packed(F16_F16, 300, 300, 512))
    assert len(np.unique(inputs.a, axis=0)) == 300
    assert len(np.unique(inputs.b, axis=1).T) == 300


PERTURBATIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "last K slice dropped": lambda a, b: a[:, :-16] @ b[:-16],
    "first K slice dropped": lambda a, b: a[:, 16:] @ b[16:],
    "one term dropped": lambda a, b: a[:, :-1] @ b[:-1],
    "last K slice repeated": lambda a, b: a @ b + a[:, -16:] @ b[-16:],
    "two K slices of A swapped": lambda a, b: np.hstack([a[:, 16:32], a[:, :16], a[:, 32:]]) @ b,
    "two K slices of B swapped": lambda a, b: a @ np.vstack([b[16:32], b[:16], b[32:]]),
    "a stage stale": lambda a, b: a[:, :-16] @ b[:-16] + a[:, :16] @ b[:16],
    "A transposed": lambda a, b: a.T @ b,
    "B transposed": lambda a, b: a @ b.T,
    "D transposed": lambda a, b: (a @ b).T,
    "operands swapped": lambda a, b: b @ a,
    "A's rows shifted by a tile": lambda a, b: np.roll(a, 16, axis=0) @ b,
    "B's columns shifted by a tile": lambda a, b: a @ np.roll(b, 16, axis=1),
    "D shifted by 8": lambda a, b: np.roll(a @ b, 8, axis=1),
    "A shifted by one along K": lambda a, b: np.roll(a, 1, axis=1) @ b,
    "one row read twice": lambda a, b: a[[0, 0, *range(2, len(a))]] @ b,
    "one element of A negated": lambda a, b: a @ b - 2 * np.outer(a[:, 5], b[5]),
    "the same row everywhere": lambda a, b: np.broadcast_to(a[:1] @ b, a.shape).copy(),
}


@pytest.mark.parametrize(
    ("operation", "pattern"),
    [(o, p) for o in OPERATIONS for p in ("auto", "field") if (o.a, p) != (t.U8, "field")],
    ids=lambda x: x if isinstance(x, str) else f"{x.a.name}-{x.acc.name}-{x.d.name}",
)
@pytest.mark.parametrize("what", PERTURBATIONS)
def test_no_mistake_cancels(operation: Operation, pattern: str, what: str) -> None:
    inputs = exact_inputs(Problem.packed(operation, 64, 64, 64), pattern=pattern)
    assert verdict_on(inputs, product(inputs)).exact
    verdict = verdict_on(inputs, PERTURBATIONS[what](wide(inputs.a), wide(inputs.b)))
    assert not verdict.exact
    assert verdict.wrong > 32


@operations
def test_every_16x16_tile_and_every_k_slice_matters(operation: Operation) -> None:
    """Any two fragment tiles of D differ, and each K slice changes each tile of D."""
    inputs = exact_inputs(Problem.packed(operation, 64, 96, 128))
    a, b = wide(inputs.a), wide(inputs.b)
    right = a @ b
    tiles = [right[i : i + 16, j : j + 16].tobytes() for i in range(0, 64, 16) for j in range(0, 96, 16)]
    assert len(set(tiles)) == len(tiles)
    for k in range(0, 128, 16):
        part = a[:, k : k + 16] @ b[k : k + 16]
        changed = part.reshape(4, 16, 6, 16).any(axis=(1, 3))
        assert changed.all()


def test_the_published_pattern() -> None:
    inputs = exact_inputs(Problem.packed(F16_F32, 64, 64, 512), pattern="field")
    assert set(np.unique(inputs.a)) == set(range(-3, 4))
    assert set(np.unique(inputs.b)) == set(range(-2, 3))
    assert inputs.bound == 6 * 512 and inputs.guaranteed


def test_the_published_pattern_is_guaranteed_to_341_with_an_f16_accumulator() -> None:
    for k, guaranteed in ((341, True), (342, False)):
        inputs = exact_inputs(Problem.packed(F16_F16, 16, 16, k), pattern="field")
        assert inputs.guaranteed is guaranteed
        verdict = verdict_on(inputs, product(inputs))
        assert verdict.exact and verdict.guaranteed is guaranteed
        assert str(verdict) == ("exact" if guaranteed else "passed, not guaranteed by the bound")


def test_unknown_requests_are_refused() -> None:
    problem = Problem.packed(F16_F32, 16, 16, 16)
    with pytest.raises(ConfigError, match=r"patterns: auto field positions"):
        exact_inputs(problem, pattern="random")
    for seed in (-1, 2**30):
        with pytest.raises(ConfigError, match="seed"):
            exact_inputs(problem, seed=seed)
    with pytest.raises(ConfigError, match="u8"):
        exact_inputs(Problem.packed(Operation(t.U8, t.S32, t.S32), 1, 1, 1), pattern="field")
    for kinds in ((t.S8, t.S32, t.S32), (t.F64, t.F64, t.F32)):
        with pytest.raises(NotGeneratedYet, match="linear"):
            exact_inputs(Problem.packed(Operation(*kinds, epilogue=Epilogue.LINEAR), 1, 1, 1))
    with pytest.raises(ConfigError, match="b1"):
        exact_inputs(Problem.packed(Operation(t.B1, t.S32, t.S32), 1, 1, 1))


def test_a_callers_arrays_are_proved_or_refused() -> None:
    problem = Problem.packed(F16_F32, 2, 3, 4)
    a, b = np.arange(8).reshape(2, 4), np.arange(12).reshape(4, 3)
    inputs = given_inputs(problem, a, b)
    assert inputs.pattern == "given" and inputs.guaranteed and inputs.bound >= int((a @ b).max())
    with pytest.raises(ConfigError, match=r"\[4, 2\]"):
        given_inputs(problem, a.T, b)
    with pytest.raises(ConfigError, match="integers"):
        given_inputs(problem, a.astype(np.float32), b)
    with pytest.raises(ConfigError, match="does not hold"):
        given_inputs(problem, a + 2049, b)


def test_a_callers_bound_is_tight_where_the_cheap_one_proves_nothing() -> None:
    problem = Problem.packed(F16_F16, 2, 2, 2)
    a, b = np.array([[2000, 0], [0, 1]]), np.array([[1, 1], [0, 2000]])
    assert cheap_bound(a, b) > 2**11
    assert tight_bound(a, b) == 2000
    assert given_inputs(problem, a, b).guaranteed


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 12), st.integers(0, 2**20), st.integers(1, 2**20))
def test_the_cheap_bound_is_a_bound(m: int, n: int, k: int, seed: int, top: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-top, top + 1, (m, k)), rng.integers(-top, top + 1, (k, n))
    sums = np.abs(a) @ np.abs(b)
    assert int(sums.max(initial=0)) == tight_bound(a, b) <= cheap_bound(a, b)


def test_the_magnitude_of_the_lowest_int32_does_not_wrap() -> None:
    low = np.full((1, 1), -(2**31), np.int64)
    assert cheap_bound(low, low) == 2**62


@operations
def test_normal_inputs_are_normal_and_representable(operation: Operation) -> None:
    a, b = normal_inputs(Problem.packed(operation, 64, 96, 128), seed=3)
    assert a.shape == (64, 128) and b.shape == (128, 96)
    for values in (a, b):
        assert np.array_equal(decode(encode(values, operation.a), operation.a), values)
        middle, sigma = {"u8": (128, 32), "s8": (0, 32)}.get(operation.a.name, (0, 1))
        assert abs(values.astype(np.float64).mean() - middle) < sigma / 8
        assert 0.9 * sigma < values.astype(np.float64).std() < 1.1 * sigma
    if operation.a is t.TF32:
        assert not np.any(a.view(np.uint32) & 0x1FFF) and np.any(a.view(np.uint32) & 0x2000)


# ---------------------------------------------------------------------------------------------------------------------
# The exact product.


@operations
@pytest.mark.parametrize("size", [(96, 160, 48), (32, 16, 64), (64, 16, 32), (1, 1, 1), (7, 129, 33)])
def test_the_product_is_the_integer_product(operation: Operation, size: tuple[int, int, int]) -> None:
    inputs = exact_inputs(Problem.packed(operation, *size))
    assert np.array_equal(product(inputs), wide(inputs.a) @ wide(inputs.b))
    assert product(inputs).dtype == np.int64


@pytest.mark.parametrize("power", [24, 25, 53, 54])
def test_the_product_is_exact_on_both_sides_of_a_bound(power: int) -> None:
    """One big term and one of 1: a sum that float32 (2^24) or float64 (2^53) would lose beyond its bound."""
    problem = Problem.packed(Operation(t.F64, t.F64, t.F64), 1, 1, 2)
    a, b = np.array([[2 ** (power // 2), 1]]), np.array([[2 ** (power - power // 2)], [1]])
    assert product(given_inputs(problem, a, b))[0, 0] == 2**power + 1


def test_sums_beyond_64_bits_are_refused() -> None:
    problem = Problem.packed(Operation(t.F64, t.F64, t.F64), 1, 1, 1)
    with pytest.raises(ConfigError, match="64-bit"):
        given_inputs(problem, np.array([[2**40]]), np.array([[2**40]]))


def test_positions_by_modulo() -> None:
    """A[i,k] = (3i+k)%7, B[k,j] = (k+5j)%11, with M ≠ N ≠ K and wide leading dimensions."""
    m, n, k = 48, 80, 112
    problem = Problem.packed(F16_F32, m, n, k, extra=24)
    i, j, z = np.arange(m), np.arange(n), np.arange(k)
    inputs = given_inputs(problem, (3 * i[:, None] + z) % 7, (z[:, None] + 5 * j) % 11)
    slow = [[sum((3 * x + s) % 7 * ((s + 5 * y) % 11) for s in range(k)) for y in range(n)] for x in range(m)]
    assert expected(inputs).tolist() == slow
    assert expected(inputs).dtype == np.float32


@operations
def test_k_of_zero_gives_plus_zero(operation: Operation) -> None:
    inputs = exact_inputs(Problem.packed(operation, 16, 32, 0))
    assert inputs.bound == 0
    assert not encode(expected(inputs), operation.d).any()
    assert expected(inputs).shape == (16, 32)
    assert verdict_on(inputs, product(inputs)).exact
    assert not verdict_on(inputs, product(inputs) + 1).exact
    assert explain(verdict_on(inputs, product(inputs) + 1), TILES)


@pytest.mark.parametrize("size", [(0, 16, 16), (16, 0, 16), (0, 0, 0)])
def test_empty_outputs(size: tuple[int, int, int]) -> None:
    inputs = exact_inputs(Problem.packed(F16_F32, *size))
    verdict = verdict_on(inputs, product(inputs))
    assert verdict.exact and verdict.total == 0


def test_rounding_to_f16_is_once_to_nearest_even() -> None:
    exact = np.array([2048, 2049, 2050, 2051, 65_504, 65_519, 65_520, -65_520, 4098, 4102])
    right = [2048, 2048, 2050, 2052, 65_504, 65_504, np.inf, -np.inf, 4096, 4104]
    assert round_once(exact, t.F16).tolist() == right


def test_rounding_to_f32_is_once() -> None:
    # Through float64 this would first become 2^60 + 2^36 and then tie to even, down.
    assert round_once(np.array([2**60 + 2**36 + 1]), t.F32)[0] == np.float32(2**60 + 2**37)


@pytest.mark.parametrize("d", [t.F32, t.F16, t.BF16])
@pytest.mark.filterwarnings("error")
def test_what_passes_a_type_becomes_infinity_without_a_warning(d: t.ElementType) -> None:
    assert list(reference.round_once(np.array([1e300, -1e300, 1.0]), d)) == [np.inf, -np.inf, 1.0]


def test_rounding_to_bf16() -> None:
    assert round_once(np.array([257, 259, -257]), t.BF16).tolist() == [256, 260, -256]


def test_integers_wrap() -> None:
    """int8, all -128, K = 131,072: the accumulator wraps to the lowest integer."""
    k = 131_072
    problem = Problem.packed(Operation(t.S8, t.S32, t.S32), 1, 1, k)
    inputs = given_inputs(problem, np.full((1, k), -128), np.full((k, 1), -128))
    assert product(inputs)[0, 0] == 2**31
    assert expected(inputs)[0, 0] == -(2**31)
    # Sums that wrap are sums modulo 2^32, in any order.
    assert inputs.guaranteed
    extremes = exact_inputs(problem, pattern="extremes")
    assert np.array_equal(extremes.a, inputs.a) and np.array_equal(extremes.b, inputs.b)


def test_integers_saturate_where_it_is_asked() -> None:
    k = 131_072
    saturating = Operation(t.S8, t.S32, t.S32, overflow=Overflow.SATURATE)
    inputs = exact_inputs(Problem.packed(saturating, 1, 1, k), pattern="extremes")
    assert product(inputs)[0, 0] == 2**31 and expected(inputs)[0, 0] == 2**31 - 1
    assert inputs.guaranteed, "all products have one sign"
    mixed = np.where(np.arange(2 * k) < k, -128, 127)[None, :]
    both = given_inputs(Problem.packed(saturating, 1, 1, 2 * k), mixed, np.full((2 * k, 1), -128))
    assert not both.guaranteed, "it counts which end is met first"


def test_scaled_bytes_are_rounded_to_even_and_held() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 127.4, 127.5, 1e9, -128.5, -129.0])
    assert round_once(values, t.S8).tolist() == [0, 2, 2, 0, -2, 127, 127, 127, -128, -128]
    problem = Problem.packed(Operation(t.S8, t.S32, t.S8, Layout.RC, Epilogue.LINEAR), 48, 64, 96)
    for alpha, beta in ((2.0**-9, 1.0), (-(2.0**-9), 0.5)):
        d = expected(exact_inputs(dataclasses.replace(problem, alpha=alpha, beta=beta)))
        inside = (np.abs(d.astype(int)) < 127).mean()
        assert d.dtype == np.int8 and 0.5 < inside < 1, "most are within the type, and some beyond its ends"


def test_floats_that_have_to_be_rounded() -> None:
    """(1 + 2^-11) · 1 is 1 + 2^-10 in tf32: ties go away from zero."""
    ties = np.array([1 + 2**-11, -(1 + 2**-11), 1 + 2**-11 - 2**-23, 1 + 3 * 2**-11], np.float32)
    assert rounded_to_tf32(ties).tolist() == [1 + 2**-10, -(1 + 2**-10), 1.0, 1 + 2**-9]
    values = exact_inputs(Problem.packed(Operation(t.TF32, t.F32, t.F32), 64, 64, 64)).a
    for element, moves in ((t.TF32, True), (t.F32, False)):
        stored = unrounded(values, element, 0)
        assert np.array_equal(rounded_to_tf32(stored.astype(np.float32)), values)
        cut = (stored.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        assert bool((cut != values).mean() > 0.4) is moves
    assert np.array_equal(unrounded(np.zeros((3, 4), np.int32), t.TF32, 1), np.zeros((3, 4)))


# ---------------------------------------------------------------------------------------------------------------------
# The verdict.


def case(operation: Operation = F16_F32, m: int = 64, n: int = 192, k: int = 128, extra: int = 16) -> Inputs:
    return exact_inputs(Problem.packed(operation, m, n, k, extra))


@operations
def test_right_is_right(operation: Operation) -> None:
    verdict = verdict_on(case(operation), product(case(operation)))
    assert verdict == Verdict(True, True, None, 0, 64 * 192, "", "")
    assert str(verdict) == explain(verdict, TILES) == "exact"


@operations
def test_one_wrong_bit_is_found(operation: Operation) -> None:
    inputs = case(operation)
    image = images(inputs.problem)[2]
    buffer = image.pack(expected(inputs))
    image.bits(buffer)[33, 70] ^= 1
    verdict = judge(inputs, image, buffer)
    assert not verdict.exact and verdict.wrong == 1 and verdict.mismatch is not None
    assert (verdict.mismatch.row, verdict.mismatch.col) == (33, 70)
    assert verdict.mismatch.index == 33 * inputs.problem.ldd + 70
    assert verdict.mismatch.want == float(expected(inputs)[33, 70])
    assert "K slice" not in explain(verdict, TILES), "one element agrees with a slice by chance only"


def test_the_owner_is_named() -> None:
    inputs = case()
    verdict = verdict_on(inputs, product(inputs), lambda d: d.__setitem__((50, 115), 1e6))
    text = explain(verdict, TILES)
    assert "D[50, 115]" in text and "got 1000000" in text and "1 of 12288" in text
    assert "block (1, 1), warp (1, 1) of it, fragment (0, 1) of that" in text


def test_negative_zero_is_wrong() -> None:
    inputs = exact_inputs(Problem.packed(F16_F32, 16, 16, 0))
    verdict = verdict_on(inputs, product(inputs), lambda d: d.fill(-0.0))
    assert verdict.wrong == 256 and "minus sign" in verdict.hint
    assert verdict.mismatch is not None and "got -0, want 0" in verdict.mismatch.text


def test_a_launch_that_never_happened() -> None:
    inputs = case()
    image = images(inputs.problem)[2]
    verdict = judge(inputs, image, image.blank())
    assert verdict.wrong == verdict.total
    assert "never written: nothing was launched" in verdict.hint
    assert "(never written)" in str(verdict)


@pytest.mark.parametrize(
    ("rows", "cols", "words"),
    [
        (slice(32, 64), slice(64, 128), "whole 32x64 block tile at row 32, column 64"),
        (slice(16, 32), slice(32, 64), "whole 16x32 warp tile at row 16, column 32"),
        (slice(16, 32), slice(48, 64), "whole 16x16 fragment tile at row 16, column 48"),
        (slice(3, 4), slice(5, 7), "2 elements were never written, the first at row 3, column 5"),
    ],
)
@operations
def test_an_unwritten_tile(operation: Operation, rows: slice, cols: slice, words: str) -> None:
    inputs = case(operation)
    image = images(inputs.problem)[2]
    buffer = image.pack(expected(inputs))
    image.bits(buffer)[rows, cols] = image.poison
    verdict = judge(inputs, image, buffer)
    assert not verdict.exact
    assert verdict.wrong == (rows.stop - rows.start) * (cols.stop - cols.start)
    assert words in explain(verdict, TILES)


@pytest.mark.parametrize("value", [np.nan, -np.nan])
def test_nan_is_never_right(value: float) -> None:
    inputs = case()
    verdict = verdict_on(inputs, product(inputs), lambda d: d.__setitem__((1, 2), value))
    assert verdict.wrong == 1 and "1 elements are NaN" in verdict.hint
    verdict = verdict_on(inputs, product(inputs), lambda d: d.fill(value))
    assert "all elements are NaN" in verdict.hint


@operations
def test_all_zero(operation: Operation) -> None:
    inputs = case(operation)
    assert "every element is zero" in verdict_on(inputs, 0 * product(inputs)).hint


@operations
def test_guard_damage_is_no_pass(operation: Operation) -> None:
    inputs = case(operation)
    image = images(inputs.problem)[2]
    gap = image.offset + (5 * image.ld + image.cols) * image.element_bytes
    for byte, where in ((0, "before"), (gap, "in the gap of row 5"), (image.total_bytes - 1, "after")):
        buffer = image.pack(expected(inputs))
        buffer[byte] ^= 0xFF
        verdict = judge(inputs, image, buffer)
        assert not verdict.exact and verdict.wrong == 0 and verdict.mismatch is None
        assert where in verdict.damage and where in explain(verdict, TILES)


def test_damage_and_wrong_values_are_both_told() -> None:
    inputs = case()
    image = images(inputs.problem)[2]
    buffer = image.pack(expected(inputs) + 1)
    buffer[-1] ^= 1
    text = explain(judge(inputs, image, buffer), TILES)
    assert "after the data" in text and "12288 of 12288" in text


def test_the_accumulator_overflows() -> None:
    """64·64 summed over K = 16 is 65,536: fine in f32, infinite in f16, and the verdict says why."""
    sixty_four = np.full((16, 16), 64)
    fine = given_inputs(Problem.packed(F16_F32, 16, 16, 16), sixty_four, sixty_four)
    assert verdict_on(fine, product(fine)).exact and expected(fine)[0, 0] == 65_536
    for operation, who in (
        (F16_F16, "the accumulator type f16 overflowed"),
        (Operation(t.F16, t.F16, t.F32), "the accumulator type f16 overflowed"),
        (Operation(t.F16, t.F32, t.F16), "D's type f16, not the accumulator, overflowed"),
    ):
        inputs = given_inputs(Problem.packed(operation, 16, 16, 16), sixty_four, sixty_four)
        assert not inputs.guaranteed
        verdict = verdict_on(inputs, product(inputs), lambda d: d.fill(np.inf))
        assert not verdict.exact and verdict.wrong == 256
        assert who in verdict.hint and "65536" in verdict.hint
        assert verdict.mismatch is not None and "got inf, want 65536" in verdict.mismatch.text


def test_a_kept_product_gives_the_same_verdict() -> None:
    inputs = case()
    image = images(inputs.problem)[2]
    want = expected(inputs)
    assert judge(inputs, image, image.pack(want), want) == judge(inputs, image, image.pack(want))
    want[0, 0] += 1
    assert not judge(inputs, image, image.pack(expected(inputs)), want).exact


def test_a_buffer_of_another_problem_is_refused() -> None:
    inputs, image = case(), images(case(n=128).problem)[2]
    with pytest.raises(ValueError, match="image of D"):
        judge(inputs, image, image.blank())


SLICE = 16


def parts(inputs: Inputs) -> list[np.ndarray]:
    a, b = wide(inputs.a), wide(inputs.b)
    return [a[:, k : k + SLICE] @ b[k : k + SLICE] for k in range(0, inputs.problem.k, SLICE)]


def cross(inputs: Inputs, of_a: int, of_b: int) -> np.ndarray:
    a, b = wide(inputs.a), wide(inputs.b)
    return a[:, of_a * SLICE : (of_a + 1) * SLICE] @ b[of_b * SLICE : (of_b + 1) * SLICE]


@operations
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda p, x: sum(p[:-1]), "the last K slice (7 of 0 to 7) is missing"),
        (lambda p, x: sum(p) - p[2], "K slice 2 (of 0 to 7) is missing"),
        (lambda p, x: sum(p) + p[4], "K slice 4 (of 0 to 7) is counted twice"),
        (lambda p, x: p[-1], "D holds the last K slice (7 of 0 to 7) alone"),
        (lambda p, x: sum(p) - p[1] - p[4] - p[7], "every K slice of stage 1 (of 3) is missing"),
        (lambda p, x: sum(p) - p[5] + p[2], "K slice 5 (of 0 to 7) used A and B of the slice 3 earlier: stale"),
        (lambda p, x: sum(p) - p[1] + p[4], "K slice 1 (of 0 to 7) used A and B of the slice 3 later: overwritten"),
        (lambda p, x: sum(p) - p[6] + p[5], "K slice 6 (of 0 to 7) used A and B of the slice 1 earlier"),
        (lambda p, x: sum(p) - p[5] + cross(x, 2, 5), "K slice 5 (of 0 to 7) used A of the slice 3 earlier"),
        (lambda p, x: sum(p) - p[5] + cross(x, 5, 2), "K slice 5 (of 0 to 7) used B of the slice 3 earlier"),
        (
            lambda p, x: sum(p) - p[4] - p[7] + p[1] + p[4],
            "every K slice of stage 1 (of 3) used A and B of the slice 3 earlier",
        ),
    ],
)
def test_slices(operation: Operation, wrong: Callable[[list[np.ndarray], Inputs], np.ndarray], words: str) -> None:
    inputs = case(operation)
    assert words in explain(verdict_on(inputs, wrong(parts(inputs), inputs)), TILES)


def test_fewer_than_four_wrong_elements_are_no_slice() -> None:
    inputs = case()
    d = product(inputs)
    d[0, :3] -= parts(inputs)[-1][0, :3]
    assert "K slice" not in explain(verdict_on(inputs, d), TILES)
    d[0, 3] -= parts(inputs)[-1][0, 3]
    assert "the last K slice (7 of 0 to 7) is missing" in explain(verdict_on(inputs, d), TILES)


def test_a_short_last_slice() -> None:
    inputs = case(k=120)
    assert "the last K slice (7 of 0 to 7) is missing" in explain(
        verdict_on(inputs, np.sum(parts(inputs)[:-1], axis=0)), TILES
    )


def test_a_race_in_some_tiles_only() -> None:
    """Two fragments lost different slices: no cause explains all, the first fragment's is told."""
    inputs = case()
    p, d = parts(inputs), product(inputs)
    d[16:32, :16] -= p[3][16:32, :16]
    d[48:64, 64:80] -= p[5][48:64, 64:80]
    text = explain(verdict_on(inputs, d), TILES)
    assert "in the first wrong fragment, K slice 3 (of 0 to 7) is missing" in text


def in_tiles(values: np.ndarray, t_: int = 16) -> np.ndarray:
    """Each 16×16 tile transposed in its place."""
    m, n = values.shape
    return values.reshape(m // t_, t_, n // t_, t_).transpose(0, 3, 2, 1).reshape(m, n)


@operations
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda a, b: a.T @ b, "A was read as its transpose"),
        (lambda a, b: a @ b.T, "B was read as its transpose"),
        (lambda a, b: (a @ b).T, "D was stored as its transpose"),
        (lambda a, b: in_tiles(a) @ b, "each 16x16 fragment of A was loaded as its transpose"),
        (lambda a, b: a @ in_tiles(b), "each 16x16 fragment of B was loaded as its transpose"),
    ],
)
def test_transposed(operation: Operation, wrong: Callable[..., np.ndarray], words: str) -> None:
    inputs = case(operation, 64, 64, 64)
    assert words in explain(verdict_on(inputs, wrong(wide(inputs.a), wide(inputs.b))), TILES)


@pytest.mark.parametrize("parity", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_every_second_8_wide_tile(parity: int, axis: int) -> None:
    inputs = case()
    d = product(inputs)
    place = np.arange(d.shape[axis]) // 8 % 2 == parity
    d[(slice(None), place) if axis else (place, slice(None))] += 5
    text = explain(verdict_on(inputs, d), TILES)
    assert f"every second 8-wide tile of {('rows', 'columns')[axis]}" in text and "alignment" in text


@pytest.mark.parametrize(
    ("rows", "cols", "words"),
    [
        (slice(None), slice(190, None), "only the blocks at the right edge"),
        (slice(40, None), slice(None), "only the blocks at the bottom edge"),
        (slice(40, None), slice(190, None), "only the blocks at the bottom and right edge"),
    ],
)
def test_edges(rows: slice, cols: slice, words: str) -> None:
    inputs = case()
    d = product(inputs)
    d[rows, cols] += 5
    assert words in explain(verdict_on(inputs, d), TILES)


def test_the_same_warp_and_the_same_fragment_everywhere() -> None:
    inputs = case()
    d, e = product(inputs), product(inputs)
    d.reshape(2, 32, 3, 64)[:, 16:, :, :32] += 5
    assert "only warp (1, 0) of each block is wrong" in explain(verdict_on(inputs, d), TILES)
    e.reshape(4, 16, 6, 32)[:, :, :, 16:] += 5
    assert "only fragment (0, 1) of each warp is wrong" in explain(verdict_on(inputs, e), TILES)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(OPERATIONS),
    st.tuples(*[st.integers(1, 40)] * 3),
    st.tuples(*[st.integers(1, 4)] * 6),
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(0, 1000),
)
def test_any_wrong_output_is_explained_without_a_fault(
    operation: Operation, size: tuple[int, int, int], c: tuple[int, ...], block_k: int, stages: int, seed: int
) -> None:
    tiles = Tiles(c[0] * c[1] * c[2], c[3] * c[4] * c[5], c[1] * c[2], c[4] * c[5], c[2], c[5], block_k, stages)
    inputs = exact_inputs(Problem.packed(operation, *size, extra=3), seed=seed)
    image = images(inputs.problem)[2]
    buffer = image.pack(expected(inputs))
    rng = np.random.default_rng(seed)
    hurt = rng.random((inputs.problem.m, inputs.problem.n)) < 0.3
    image.bits(buffer)[hurt] ^= 1
    verdict = judge(inputs, image, buffer)
    assert verdict.exact == (not hurt.any()) and verdict.wrong == np.count_nonzero(hurt)
    text = explain(verdict, tiles)
    if verdict.mismatch is not None:
        row, col = np.argwhere(hurt)[0]
        assert f"D[{row}, {col}]" in text and "owner: block (" in text


def test_no_cause_is_made_up() -> None:
    inputs = case()
    rng = np.random.default_rng(0)
    verdict = verdict_on(inputs, product(inputs) + rng.integers(1, 9, (64, 192)))
    assert verdict.hint == "" and "hint" not in explain(verdict, TILES)


# ---------------------------------------------------------------------------------------------------------------------
# Problems to validate on.


@operations
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("block", [(64, 64, 32), (128, 256, 16), (16, 16, 16), (8, 32, 16), (32, 8, 16), (16, 16, 8)])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_the_hostile_set(operation: Operation, layout: Layout, block: tuple[int, int, int], stages: int) -> None:
    operation = Operation(operation.a, operation.acc, operation.d, layout)
    block_m, block_n, block_k = block
    *spaced, packed = problems_for(operation, *block, stages)
    counts = [p.k // block_k for p in spaced]
    assert counts == sorted({1, stages - 1, stages, stages + 1} - {0})
    assert all(x < y for x, y in pairwise(counts))
    for p in (*spaced, packed):
        assert p.operation == operation
        assert len({p.m, p.n, p.k}) == 3
        assert p.m % block_m == 0 == p.n % block_n and p.k % block_k == 0
        assert p.m >= 2 * block_m and p.n >= 2 * block_n
        for ld, element in ((p.lda, operation.a), (p.ldb, operation.a), (p.ldd, operation.d)):
            assert ld * element.bits % 256 == 0
        assert p.m * p.n <= 40 * block_m * block_n or block_m * block_n < 1024
    for p in spaced:
        extents = (p.k if operation.a_row_major else p.m, p.n if operation.b_row_major else p.k, p.n)
        gaps = [ld - extent for ld, extent in zip((p.lda, p.ldb, p.ldd), extents, strict=True)]
        assert min(gaps) >= 16 and len({p.lda, p.ldb, p.ldd}) == 3
        assert p.lda % 16 == p.ldb % 16 == p.ldd % 16 == 0
    assert packed == Problem.packed(operation, packed.m, packed.n, packed.k)
    assert packed.k >= (stages + 1) * block_k


# ---------------------------------------------------------------------------------------------------------------------
# Speed: a reference that takes minutes is a reference that people switch off.


@pytest.mark.parametrize("operation", [F16_F32, F16_F16], ids=["f32", "f16"])
def test_2048_cubed_is_quick(operation: Operation) -> None:
    from time import perf_counter

    start = perf_counter()
    inputs = exact_inputs(Problem.packed(operation, 2048, 2048, 2048))
    want = expected(inputs)
    image = images(inputs.problem)[2]
    assert judge(inputs, image, image.pack(want), want).exact
    # Ten times what it takes on two cores: catches a product without BLAS (a minute), not a busy machine.
    assert perf_counter() - start < 10
