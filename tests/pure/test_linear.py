"""D = alpha·A·B + beta·C: exact inputs with factors, the result, and the verdict's causes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmmagen import dtypes as t
from wmmagen.config import Epilogue, Layout, Operation, Order, Problem, Raster
from wmmagen.errors import ConfigError
from wmmagen.layout import decode, encode, images
from wmmagen.reference import (
    FACTORS,
    LEAST_ROOM,
    Inputs,
    Units,
    exact_inputs,
    expected,
    finish,
    given_inputs,
    normal_inputs,
    problems_for,
    product,
    room_of,
    round_once,
    sum_limit,
)
from wmmagen.rounding import factor_parts
from wmmagen.verdict import Tiles, Verdict, explain, judge

OPERATIONS = [Operation(t.F16, acc, d, epilogue=Epilogue.LINEAR) for acc in (t.F32, t.F16) for d in (t.F32, t.F16)]
F32, F32_F16, F16_F32, F16 = OPERATIONS
TILES = Tiles(block_m=32, block_n=64, warp_m=16, warp_n=32, inst_m=16, inst_n=16, block_k=16, stages=3)
operations = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: f"{o.acc.name}-{o.d.name}")
factors = pytest.mark.parametrize("alpha_beta", [*FACTORS, (-0.375, 3.0), (0.0, 0.0), (-2.0, 0.0)], ids=str)


def case(
    operation: Operation = F32, alpha: float = 2.0, beta: float = -3.0, size: tuple[int, ...] = (64, 96, 64)
) -> Inputs:
    m, n, k = size
    return exact_inputs(Problem.packed(operation, m, n, k, 16, alpha=alpha, beta=beta))


def verdict_on(inputs: Inputs, results: np.ndarray) -> Verdict:
    image = images(inputs.problem)[-1]
    return judge(inputs, image, image.pack(round_once(results, inputs.problem.operation.d)))


# ---------------------------------------------------------------------------------------------------------------------
# Inputs.


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (1.0, (1, 0)),
        (-3.0, (-3, 0)),
        (12.0, (3, 2)),
        (0.375, (3, -3)),
        (0.0, (0, 0)),
        (-0.0, (0, 0)),
        (2.0**-149, (1, -149)),
    ],
)
def test_a_factor_is_an_odd_integer_times_a_power_of_two(value: float, parts: tuple[int, int]) -> None:
    assert factor_parts(value) == parts


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_parts_of_a_factor_are_the_factor(value: float) -> None:
    p, e = factor_parts(value)
    assert Fraction(p) * Fraction(2) ** e == Fraction(value)
    assert p % 2 or p == e == 0


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e39])
def test_a_factor_that_is_no_finite_float_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="finite float"):
        Problem.packed(F32, 16, 16, 16, alpha=value)


@pytest.mark.parametrize("factor", [1e-50, -1e-50, -0.0], ids=str)
def test_a_factor_that_a_float_rounds_to_zero_is_zero(factor: float) -> None:
    """The kernel is given a C float: it reads neither A nor B and leaves +0, whatever sign A·B has."""
    problem = Problem.packed(F32, 32, 32, 32, alpha=factor, beta=factor)
    assert problem == Problem.packed(F32, 32, 32, 32, alpha=0.0, beta=0.0)
    inputs = exact_inputs(problem)
    assert inputs.c is None
    assert not np.signbit(expected(inputs)).any()


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(OPERATIONS),
    st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 300)),
    st.tuples(*[st.tuples(st.integers(-9, 9), st.integers(-4, 2))] * 2),
    st.sampled_from(["auto", "field", "positions"]),
    st.integers(0, 2**30 - 1),
)
def test_everything_is_exact_within_the_bound(
    operation: Operation,
    size: tuple[int, int, int],
    parts: tuple[tuple[int, int], tuple[int, int]],
    pattern: str,
    seed: int,
) -> None:
    """By fractions: the terms, their sum and D, each an f32 without rounding; D finite after its own."""
    alpha, beta = (p * 2.0**e for p, e in parts)
    problem = Problem.packed(operation, *size, alpha=alpha, beta=beta)
    inputs = exact_inputs(problem, seed=seed, pattern=pattern)
    sums = np.abs(inputs.a.astype(np.int64)) @ np.abs(inputs.b.astype(np.int64))
    assert int(sums.max(initial=0)) <= inputs.bound
    assert inputs.guaranteed or pattern != "auto"
    assert (inputs.c is None) is (beta == 0)
    if not inputs.guaranteed:
        return
    most_c = 0 if inputs.c is None else int(np.abs(inputs.c).max(initial=0))
    room = room_of(problem)
    reach = abs(Fraction(alpha)) * inputs.bound + abs(Fraction(beta)) * most_c
    assert reach <= 2**24 * Fraction(2) ** room.exponent
    assert inputs.bound <= operation.acc.exact_limit
    assert operation.d is not t.F16 or reach <= 65_504 or not alpha
    assert np.isfinite(expected(inputs)).all()


@operations
@factors
def test_c_has_no_zeros_and_is_held_exactly(operation: Operation, alpha_beta: tuple[float, float]) -> None:
    for pattern in ("auto", "field", "positions"):
        inputs = exact_inputs(
            Problem.packed(operation, 48, 80, 32, alpha=alpha_beta[0], beta=alpha_beta[1]), pattern=pattern
        )
        if alpha_beta[1] == 0:
            assert inputs.c is None
            continue
        assert inputs.c is not None
        assert inputs.c.all()
        assert np.array_equal(decode(encode(inputs.c, operation.d), operation.d), inputs.c)
        assert not np.array_equal(inputs.c[:48, :48], inputs.c[:48, :48].T)
        with pytest.raises(ValueError, match="read-only"):
            inputs.c[0, 0] = 1


def test_a_wide_c_shows_a_narrow_path() -> None:
    c = case(F32, 1.0, 1.0).c
    assert c is not None
    assert np.abs(c).max() > t.F16.exact_limit


@pytest.mark.parametrize(
    ("alpha", "beta", "words"),
    [
        (0.1, 1.0, r"alpha = 0\.1 is 13421773 \* 2\^-27 as a C float.*sums of \|a\|\|b\|"),
        (1.0, 0.1, r"may reach 0 only"),
        (1.0, 2.0**-40, r"stay exact in f32"),
        (2.0**-140, 0.0, r"may reach 0 only"),
        (2.0**127, 0.0, r"may reach 0 only"),
    ],
)
def test_factors_that_leave_no_exact_inputs_are_refused_with_a_reason(alpha: float, beta: float, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        case(F32, alpha, beta)


def test_the_room_is_used_to_its_end() -> None:
    """One more than the limit is not exact any more: the limit is no guess."""
    problem = Problem.packed(F32, 1, 1, 1, alpha=3.0, beta=-5.0)
    limit = sum_limit(problem, 1000)
    assert 3 * limit + 5000 <= 2**24 < 3 * (limit + 1) + 5000
    assert sum_limit(Problem.packed(F32_F16, 1, 1, 1, alpha=0.5, beta=1.0), 4) == 2 * (65_504 - 4)
    assert sum_limit(Problem.packed(F16, 1, 1, 1), 4) == 2**11
    assert sum_limit(problem, 2**24) < 0
    assert min(case(o, *f).limit for o in OPERATIONS for f in FACTORS) >= LEAST_ROOM


def test_a_callers_c_is_proved_or_refused() -> None:
    a, b, c = np.full((2, 3), 7), np.full((3, 4), 5), np.arange(1, 9).reshape(2, 4)
    problem = Problem.packed(F32, 2, 4, 3, alpha=2.0, beta=0.5)
    inputs = given_inputs(problem, a, b, c)
    assert inputs.guaranteed
    assert expected(inputs).tolist() == (2 * (a @ b) + c / 2).tolist()
    assert not given_inputs(problem, a, b, c + 2**24 - 8).guaranteed
    for bad in (None, c.T, c + 0.5, c + 2**25 + 1):
        with pytest.raises(ConfigError, match="C "):
            given_inputs(problem, a, b, bad)
    with pytest.raises(ConfigError, match="beta"):
        given_inputs(replace(problem, beta=0.0), a, b, c)


@operations
def test_normal_inputs_have_a_c(operation: Operation) -> None:
    a, b, c = normal_inputs(Problem.packed(operation, 64, 96, 128))
    assert (a.shape, b.shape, c.shape) == ((64, 128), (128, 96), (64, 96))
    assert np.array_equal(decode(encode(c, operation.d), operation.d), c)
    assert 0.9 < c.astype(np.float64).std() < 1.1


# ---------------------------------------------------------------------------------------------------------------------
# The result.


@operations
@factors
def test_the_result_by_fractions(operation: Operation, alpha_beta: tuple[float, float]) -> None:
    inputs = case(operation, *alpha_beta, size=(5, 7, 19))
    a, b = inputs.a.tolist(), inputs.b.tolist()
    c = None if inputs.c is None else inputs.c.tolist()
    alpha, beta = (Fraction(x) for x in alpha_beta)
    for i in range(5):
        for j in range(7):
            exact = alpha * sum(a[i][k] * b[k][j] for k in range(19)) + (beta * c[i][j] if c else 0)
            want = float(exact)
            assert Fraction(want) == exact
            assert expected(inputs)[i, j] == round_once(np.array([want]), operation.d)[0]


def test_c_is_what_remains_of_an_alpha_of_zero() -> None:
    """alpha = 0, beta = 2: D is 2·C exactly, whatever A holds."""
    for operation in OPERATIONS:
        inputs = case(operation, 0.0, 2.0)
        assert inputs.c is not None
        assert np.array_equal(expected(inputs), round_once(2 * inputs.c, operation.d))


@pytest.mark.parametrize(
    ("alpha", "beta", "sign"), [(1.0, 0.0, False), (-1.0, 0.0, True), (0.0, 0.0, False), (-1.0, 1.0, False)]
)
def test_zero_has_the_sign_of_ieee(alpha: float, beta: float, sign: bool) -> None:
    problem = Problem.packed(F32, 2, 3, 1, alpha=alpha, beta=beta)
    zeros = np.zeros((2, 3), np.int64)
    result = finish(problem, zeros + 4 if beta else zeros, zeros + 4 if beta else None)
    assert not result.any()
    assert (np.signbit(result) == sign).all()


@operations
def test_no_products_leave_beta_c(operation: Operation) -> None:
    inputs = case(operation, 2.0, -3.0, size=(16, 32, 0))
    assert inputs.c is not None
    assert np.array_equal(expected(inputs), round_once(-3 * inputs.c, operation.d))
    assert verdict_on(inputs, -3.0 * inputs.c).exact


def test_d_is_rounded_once() -> None:
    """f16 D from an f32 epilogue: rounding the sum first gives other bits."""
    inputs = case(F32_F16, 1.0, 1.0)
    assert inputs.c is not None
    twice = product(inputs).astype(np.float16) + inputs.c.astype(np.float16)
    assert not np.array_equal(twice, expected(inputs))


# ---------------------------------------------------------------------------------------------------------------------
# The verdict.


@operations
@factors
def test_right_is_right(operation: Operation, alpha_beta: tuple[float, float]) -> None:
    inputs = case(operation, *alpha_beta)
    assert str(verdict_on(inputs, finish(inputs.problem, product(inputs), inputs.c))) == "exact"


def _of(inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    assert inputs.c is not None
    return product(inputs).astype(np.float64), inputs.c.astype(np.float64)


CAUSES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "alpha was ignored": lambda p, c: p - 3 * c,
    "beta was ignored": lambda p, c: 2 * p + c,
    "beta·C is missing": lambda p, c: 2 * p,
    "alpha·A·B is missing": lambda p, c: -3 * c,
    "C was read as its transpose": lambda p, c: 2 * p - 3 * np.pad(c, ((0, 32), (0, 0)))[:96, :96].T[:64, :96],
}


@operations
@pytest.mark.parametrize("cause", CAUSES)
def test_a_wrong_epilogue_has_its_cause(operation: Operation, cause: str) -> None:
    inputs = case(operation)
    p, c = _of(inputs)
    verdict = verdict_on(inputs, CAUSES[cause](p, c))
    assert not verdict.exact
    assert cause in verdict.hint
    assert sum(other in explain(verdict, TILES) for other in CAUSES) == 1


@operations
def test_the_causes_in_the_product_are_found_through_the_epilogue(operation: Operation) -> None:
    inputs = case(operation, 0.5, -3.0)
    a, b = inputs.a.astype(np.int64), inputs.b.astype(np.int64)
    for sums, words in (
        (a[:, :-16] @ b[:-16], "the last K slice (3 of 0 to 3) is missing"),
        (a.T @ b, "A was read as its transpose"),
    ):
        verdict = verdict_on(inputs, finish(inputs.problem, sums, inputs.c))
        assert words in explain(verdict, TILES)


@pytest.mark.parametrize(
    ("alpha", "beta", "words"), [(1.0, 0.0, "C was read although beta is 0"), (0.0, 2.0, "although alpha is 0")]
)
def test_a_read_that_must_not_be_shows_as_nan(alpha: float, beta: float, words: str) -> None:
    inputs = case(F32, alpha, beta)
    assert words in verdict_on(inputs, np.full((64, 96), np.nan)).hint


def test_the_accumulator_overflows() -> None:
    """64·64 summed over K = 16 is 65,536: exact from f32, infinite in f16 however small alpha is."""
    full = np.full((16, 16), 64)
    problem = Problem.packed(F16_F32, 16, 16, 16, alpha=0.5, beta=1.0)
    wide = given_inputs(replace(problem, operation=F32), full, full, full)
    assert wide.guaranteed
    assert (expected(wide) == 32_832).all()
    narrow = given_inputs(problem, full, full, full)
    assert not narrow.guaranteed
    assert "the accumulator type f16 overflowed" in verdict_on(narrow, np.full((16, 16), np.inf)).hint
    out = given_inputs(replace(problem, operation=F32_F16, alpha=1.0), full, full, full)
    assert "D's type f16, not the accumulator, overflowed" in verdict_on(out, np.full((16, 16), np.inf)).hint


def test_a_mismatch_tells_a_fraction() -> None:
    inputs = case(F32, 1.0, 0.5)
    p, c = _of(inputs)
    right = p + c / 2
    place = tuple(np.argwhere(right % 1)[0])
    wrong = right.copy()
    wrong[place] += 1
    verdict = verdict_on(inputs, wrong)
    assert verdict.mismatch is not None
    assert f"want {right[place]}" in verdict.mismatch.text


# ---------------------------------------------------------------------------------------------------------------------
# Problems to validate on.


@operations
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("units", [Units(8, 8, 8), Units(1, 2, 4), Units(4, 1, 1), None])
def test_the_hostile_set(operation: Operation, layout: Layout, stages: int, units: Units | None) -> None:
    operation = replace(operation, layout=layout)
    *spaced, packed = problems_for(operation, 64, 32, 16, stages, units=units)
    assert {(p.alpha, p.beta) for p in (*spaced, packed)} == set(FACTORS)
    assert len(spaced) <= 6
    assert {p.k // 16 for p in spaced} == {1, stages - 1, stages, stages + 1} - {0}
    u = units or Units(16, 16, 16)
    for p in spaced:
        lds = {p.lda: u.a, p.ldb: u.b, p.ldc: u.d, p.ldd: u.d}
        assert len(lds) == 4
        assert all(ld // unit % 2 and ld % unit == 0 for ld, unit in lds.items())
        lines = (p.k if operation.a_row_major else p.m, p.n if operation.b_row_major else p.k, p.n, p.n)
        assert all(ld >= line + 16 for ld, line in zip((p.lda, p.ldb, p.ldc, p.ldd), lines, strict=True))
    assert packed == Problem.packed(operation, packed.m, packed.n, packed.k, alpha=packed.alpha, beta=packed.beta)


@pytest.mark.parametrize("order", [Order.GROUPED, Order.PANELS])
@pytest.mark.parametrize("width", [2, 3, 4, 8])
def test_the_last_group_is_a_part_of_one(order: Order, width: int) -> None:
    problems = problems_for(Operation(t.F16, t.F32, t.F32), 64, 32, 16, 3, raster=Raster(order, width))
    for p in problems:
        blocks = (p.m // 64, p.n // 32)
        assert min(blocks) >= 3 and len({p.m, p.n, p.k}) == 3
        assert blocks[order is Order.PANELS] % width
    # A mistake behind the first group shows where there is a second one.
    assert any((p.m // 64, p.n // 32)[order is Order.PANELS] > width for p in problems)
