"""What f32 makes of formulas: every f32 evaluation lies in its interval, and what is proved exact is exact."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pure.test_epilogue import FORMULAS
from wmmagen import epilogue, formula
from wmmagen.dtypes import BF16, F16, F32, F64
from wmmagen.executor.numbers import fused
from wmmagen.formula import Node
from wmmagen.rounding import (
    FUNCTION_ULPS,
    Between,
    Doubles,
    Grid,
    Inexact,
    Multiples,
    Reals,
    Singles,
    joined,
    multiples_in,
    precise,
    ulp,
)

COUNT = 40


class Kernel(Reals):
    """f32 as a kernel has it: operations are rounded, functions off by as much as they may be, some products fused."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._products: dict[int, tuple[Any, Any, Any]] = {}

    def number(self, value: float) -> Any:
        return np.full(COUNT, value, np.float32)

    def op_mul(self, a: Any, b: Any) -> Any:
        found = np.multiply(a, b)
        self._products[id(found)] = (found, a, b)  # held, so that no other array gets its number
        return found

    def op_add(self, a: Any, b: Any) -> Any:
        for product, other in ((a, b), (b, a)):
            if id(product) in self._products and self._rng.random() < 0.5:
                _, x, y = self._products[id(product)]
                return fused(x, y, other, "f32").view(np.float32)
        return np.add(a, b)

    def _off(self, name: str, exact: Any) -> Any:
        near = exact.astype(np.float32)
        for _ in range(FUNCTION_ULPS[name]):
            near = np.where(
                self._rng.random(COUNT) < 0.7, np.nextafter(near, np.float32(self._rng.choice([-9, 9]))), near
            )
        return np.maximum(near, np.float32(0)) if name == "exp" else near

    def op_exp(self, a: Any) -> Any:
        return self._off("exp", np.exp(a.astype(np.float64)))

    def op_tanh(self, a: Any) -> Any:
        return self._off("tanh", np.tanh(a.astype(np.float64)))

    def op_erf(self, a: Any) -> Any:
        return self._off("erf", super().op_erf(a.astype(np.float64)))

    def op_cdf(self, a: Any) -> Any:
        one = np.add(np.float32(1), self.op_erf(np.multiply(a, np.float32(0.5**0.5))))
        return np.multiply(np.float32(0.5), one)

    def op_ratio(self, a: Any, b: Any) -> Any:
        return self._off("ratio", a.astype(np.float64) / b.astype(np.float64))


def values(rng: np.random.Generator, *, whole: bool = False) -> dict[str, Any]:
    names = ("acc", "c", "bias", "bias_col", "bias_row", "scale_row", "scale_col", "r", "row", "col")
    scalars = ("alpha", "beta", "scale", "low", "high")
    drawn = {name: rng.normal(0, 6, COUNT).astype(np.float32) for name in (*names, *scalars)}
    return {name: np.rint(v) for name, v in drawn.items()} if whole else drawn


@settings(max_examples=60, deadline=None)
@given(FORMULAS, st.integers(0, 2**31))
def test_every_evaluation_in_f32_lies_in_its_interval(node: Node, seed: int) -> None:
    rng = np.random.default_rng(seed)
    held = values(rng)
    with np.errstate(all="ignore"):
        wide = {name: Between(v.astype(np.float64), v.astype(np.float64)) for name, v in held.items()}
        span = formula.evaluate(node, Singles(), wide)
        got = np.asarray(formula.evaluate(node, Kernel(rng), held), np.float64)
    known = ~np.isnan(got) & ~np.isnan(span.low) & ~np.isnan(span.high)
    assert ((span.low <= got) & (got <= span.high))[known].all()


@pytest.mark.parametrize("word", epilogue.STEPS)
def test_every_step_in_f32_lies_in_its_interval_and_near_its_value(word: str) -> None:
    rng, node = np.random.default_rng(7), epilogue.STEPS[word].formula
    for _ in range(50):
        held = values(rng)
        with np.errstate(all="ignore"):
            wide = {name: Between(v.astype(np.float64), v.astype(np.float64)) for name, v in held.items()}
            span = formula.evaluate(node, Singles(), wide)
            got = np.asarray(formula.evaluate(node, Kernel(rng), held), np.float64)
            exact = formula.evaluate(node, Reals(), {name: v.astype(np.float64) for name, v in held.items()})
        assert ((span.low <= got) & (got <= span.high)).all()
        # A bound that says nothing would hold everything: some f32 ulp of the largest number that takes part.
        near = 60 * ulp(np.maximum(np.abs(exact), np.abs(held["acc"])) + 40, F32)
        assert (np.maximum(np.abs(span.high - exact), np.abs(span.low - exact)) <= near).all()


def test_the_accurate_gelu_keeps_its_digits_far_below_zero() -> None:
    x = np.linspace(-12, -4, 50).astype(np.float32).astype(np.float64)
    node, wide = epilogue.STEPS["gelu"].formula, {"acc": Between(x, x)}
    exact = formula.evaluate(node, Reals(), {"acc": x})
    for accurate, most in ((True, 400), (False, np.inf)):
        span = formula.evaluate(node, Singles(accurate), wide)
        far = (np.maximum(np.abs(span.high - exact), np.abs(span.low - exact)) / ulp(exact, F32)).max()
        assert far <= most and (accurate or far > 1e4)
    assert precise(F32) and not precise(F16)
    # bf16 has few bits, but the exponents of f32: it shows the small numbers of which erff leaves nothing.
    assert precise(BF16)


def test_where_a_quick_division_may_give_nothing() -> None:
    def ratio(a: float, b: float) -> tuple[float, float]:
        found = Singles().op_ratio(*(Between(np.float64(v), np.float64(v)) for v in (a, b)))
        return float(found.low), float(found.high)

    assert ratio(1.0, 2.0**127) == (0.0, ratio(1.0, 2.0**127)[1])
    assert max(map(abs, ratio(-3.0, np.inf))) <= 3 * 2.0**-149
    low, high = ratio(1.0, 3.0)
    assert low < 1 / 3 < high and high - low <= 6 * 2.0**-25
    assert ratio(1.0, 0.0) == (-np.inf, np.inf)


def test_a_division_whose_divisor_is_scaled_gives_something_wherever_there_is_something() -> None:
    b = np.float64(np.ldexp([1.0, 1.5, 1.5, 1.25, 1.0], [0, 63, 64, 127, 126]))
    a = np.full(5, -10.0)
    span = Singles(precise=True).op_ratio(Between(a, a), Between(b, b))
    assert ((span.low < a / b) & (a / b < span.high) & (span.high < 0)).all()
    assert (span.high - span.low <= 6 * ulp(a / b, F32)).all()
    # What the kernel does, with a quotient that is off by as much as it may be.
    scale = np.where(b > 2.0**64, np.float32(5.42101086e-20), np.float32(1)).astype(np.float64)
    for off in (-2, 0, 2):
        quotient = (a / (b * scale)).astype(np.float32)
        found = ((quotient + off * np.spacing(quotient)).astype(np.float64) * scale).astype(np.float32)
        assert ((span.low <= found) & (found <= span.high)).all()
    none = Singles(precise=True).op_ratio(Between(a, a), Between(a * -np.inf, a * -np.inf))
    assert (np.maximum(np.abs(none.low), np.abs(none.high)) <= 3 * 2.0**-149).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31))
def test_products_that_doubles_hold_are_told(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (np.ldexp(rng.integers(1, 2**27, 20).astype(np.float64), rng.integers(-60, 60, 20)) for _ in range(2))
    a[::2] *= 1 + 2.0**-40
    point = [Between(x, x) for x in (a, b)]
    span = Doubles().op_mul(*point)
    for x, y, low, high in zip(a.tolist(), b.tolist(), span.low.tolist(), span.high.tolist(), strict=True):
        exact = Fraction(x) * Fraction(y)
        assert Fraction(low) <= exact <= Fraction(high)
        assert (low == high) is (Fraction(x * y) == exact)


@pytest.mark.parametrize("word", ["linear", "gelu", "gelutanh", "silu"])
def test_every_step_in_doubles_lies_in_its_interval_and_near_its_value(word: str) -> None:
    node, rng = epilogue.STEPS[word].formula, np.random.default_rng(3)
    held = {name: rng.normal(size=40) * 6 for name in ("acc", "c", "alpha", "beta")}
    span = formula.evaluate(node, Doubles(), {name: Between(v, v) for name, v in held.items()})
    exact = formula.evaluate(node, Reals(), held)
    assert ((span.low <= exact) & (exact <= span.high)).all()
    near = 400 * ulp(np.maximum(np.abs(exact), 2.0**-20), F64) + ulp(np.abs(held["acc"]) * 40, F64)
    assert (span.high - span.low <= near).all()


@settings(max_examples=80, deadline=None)
@given(FORMULAS, st.integers(0, 2**31))
def test_what_is_proved_exact_is_not_rounded(node: Node, seed: int) -> None:
    rng = np.random.default_rng(seed)
    held = values(rng, whole=True)
    amounts = {name: multiples_in(v.astype(np.float64)) for name, v in held.items()}
    try:
        bound = formula.evaluate(node, Grid(), amounts)
    except Inexact:
        return
    got = np.asarray(formula.evaluate(node, Kernel(rng), held), np.float64)
    exact = np.broadcast_to(formula.evaluate(node, Reals(), {n: v.astype(np.float64) for n, v in held.items()}), COUNT)
    assert (np.broadcast_to(got, COUNT) == exact).all()
    assert (np.abs(exact) <= bound.most * 2.0**bound.unit).all()


def test_multiples_are_counted_in_the_smaller_unit() -> None:
    assert multiples_in(np.array([0.5, 3.0, -0.25, 0.0])) == Multiples(-2, 12)
    assert joined([Multiples(3, 1), Multiples(0, 5), Multiples(-9, 0)]) == Multiples(0, 8)
    with pytest.raises(Inexact):
        Grid().op_add(Multiples(0, 2**24), Multiples(0, 1))
    with pytest.raises(Inexact):
        Grid().number(1 + 2.0**-24)


def test_an_ulp_is_the_distance_of_neighbours() -> None:
    assert ulp(np.array([1.0, 1.99, 2.0, -1.0, 0.0, 2.0**-20]), F16).tolist() == [
        2.0**-10, 2.0**-10, 2.0**-9, 2.0**-10, 2.0**-24, 2.0**-24,
    ]  # fmt: skip
    assert ulp(np.array([1.0, 2.0**-140]), F32).tolist() == [2.0**-23, 2.0**-149]


def test_doubles_are_fused_with_one_rounding() -> None:
    """Beside fractions: any exponents, sums that all but cancel, ties, and what a float64 holds no longer."""
    rng = np.random.default_rng(7)
    count = 4000
    a, b = (np.ldexp(rng.uniform(1, 2, count), rng.integers(-20, 20, count)) for _ in "ab")
    c = np.where(rng.random(count) < 0.5, -a * b, a * b) * (1 + rng.integers(-2, 3, count) * 2.0**-52)
    c = np.where(rng.random(count) < 0.3, np.ldexp(c, rng.integers(-120, 120, count)), c)
    # Halves of the last bit of a product, which is exact here.
    a[:500], b[:500] = np.rint(a[:500] * 2**10), 3.0
    c[:500] = np.spacing(a[:500] * b[:500]) * rng.choice([0.5, -0.5, 1.5, 0.25], 500)
    a[500:700] = np.ldexp(a[500:700], rng.integers(-1074, 1000, 200))
    b[700:720], c[720:740], a[740:760] = 0.0, 0.0, 0.0
    c[760:780] = -a[760:780] * b[760:780]
    got = fused(a, b, c, "f64").view(np.float64)
    for one, *operands in zip(got, a, b, c, strict=True):
        x, y, z = map(Fraction, operands)
        exact = x * y + z
        try:
            assert one == exact.numerator / exact.denominator, operands
        except OverflowError:
            assert one == np.copysign(np.inf, float(exact > 0) - 0.5)
    assert np.signbit(fused(*(np.array([v]) for v in (-1.0, 0.0, -0.0)), "f64").view(np.float64))[0]


def test_what_is_not_finite_stays_so_in_doubles() -> None:
    a, b, c = np.array([[np.inf, 2, 1], [np.nan, 1, 1], [1, np.inf, -np.inf], [np.inf, 0, 1]]).T
    with np.errstate(invalid="ignore"):
        got = fused(a, b, c, "f64").view(np.float64)
    assert got[0] == np.inf and np.isnan(got[1:]).all()
