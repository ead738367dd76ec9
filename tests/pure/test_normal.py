"""The normal distribution function of kernels whose D shows small numbers: its error is derived, and looked for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from wmmagen.rounding import FUNCTION_ULPS, TAIL, Between, Singles

#: Behind it f32 has no number left.
END = 14.5
#: Of ``rcp.approx.f32``, in ulp, over the full range; PTX ISA, rcp.
RECIPROCAL_ULPS = 1


def lower(x: np.ndarray) -> np.ndarray:
    """The distribution function, by the C library."""
    return np.array([0.5 * math.erfc(-value * math.sqrt(0.5)) for value in x.tolist()])


def horner(t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p(t), its derivative, and what rounding each step of it to 2^-24 adds up to, in units of 2^-24 of p(t)."""
    value, slope, rounded = np.full_like(t, TAIL.polynomial[-1]), np.zeros_like(t), np.zeros_like(t)
    for power, coefficient in reversed(list(enumerate(TAIL.polynomial[:-1]))):
        slope = slope * t + value
        value = value * t + coefficient
        rounded += np.abs(value) * t**power
    return value, slope, rounded / np.abs(value)


def test_the_error_follows_from_those_of_its_operations() -> None:
    z = np.linspace(0, END, 1 << 18)
    t = 1 / (1 + TAIL.step * z)
    value, slope, rounded = horner(t)
    fit = np.abs(np.exp2(TAIL.power * z * z) * t * value / lower(-z) - 1) * 2**24
    # An error of t, relative, becomes one of t·p(t) times this.
    growth = np.abs(1 + t * slope / value)
    # 1 + step·z is rounded once, by half an ulp of at most 2^-24; an ulp is at most 2^-23.
    of_t = 1 + 2 * RECIPROCAL_ULPS
    # exp2f, with the rounding of what is right; the products with t and with p. x² and its product with the power are
    # rounded by 2^-24 each, of an exponent that is z²/2 in units of e: that is the z² of the bound.
    others = 2 * (FUNCTION_ULPS["exp2"] + 0.5) + 2
    most = (fit + growth * of_t + rounded + others).max()
    # What errors of errors add, and what lies between the places that were looked at, is far below the rest.
    assert most + 0.5 < TAIL.units < most + 2


def test_below_the_normal_numbers_the_power_is_off_by_less_than_a_spacing_of_what_is_left() -> None:
    z = np.linspace(0, TAIL.end, 1 << 14)
    power, t = np.exp2(TAIL.power * z * z), 1 / (1 + TAIL.step * z)
    small = power < 2.0**-126
    spacings = (FUNCTION_ULPS["exp2"] + 0.5) * t * horner(t)[0]
    # Half of one more is the product's, below the normal numbers, too.
    assert small.any() and spacings[small].max() + 0.5 < 1


def test_what_lies_behind_the_end_is_none_of_f32() -> None:
    for z in (END, TAIL.end):
        assert 0.5 * math.erfc(z * math.sqrt(0.5)) < 2.0**-150


class Kernel:
    """The kernel's operations in f32, functions off by as much as they may be, and one product fused or not."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def off(self, exact: np.ndarray, ulps: int) -> np.ndarray:
        near = exact.astype(np.float32)
        by = self._rng.integers(-ulps, ulps, near.shape, endpoint=True)
        return np.where(np.isfinite(near), near + by * np.spacing(np.abs(near)), near).astype(np.float32)

    @staticmethod
    def fma(a: Any, b: Any, c: Any) -> np.ndarray:
        # Of two f32 the product is exact in float64, and their sum with a third is rounded there far below f32.
        return np.asarray(np.asarray(a, np.float64) * b + c).astype(np.float32)

    def cdf(self, x: np.ndarray) -> np.ndarray:
        t = self.off(1 / self.fma(np.abs(x), TAIL.step, 1.0).astype(np.float64), RECIPROCAL_ULPS)
        p = np.full_like(x, TAIL.polynomial[-1])
        for coefficient in reversed(TAIL.polynomial[:-1]):
            p = self.fma(p, t, coefficient)
        power = np.float32(TAIL.power) * (x * x)
        e = np.maximum(self.off(np.exp2(power.astype(np.float64)), FUNCTION_ULPS["exp2"]), np.float32(0))
        exact = e.astype(np.float64) * (p * t)
        side = exact.astype(np.float32)
        upper = np.where(self._rng.random(x.shape) < 0.5, 1 - exact, 1 - side.astype(np.float64)).astype(np.float32)
        return np.where(x < 0, side, upper)


@pytest.mark.parametrize(("low", "high"), [(-30, -6), (-6, -1), (-1, 0), (0, 1), (1, 2), (2, 3), (3, 3.9), (3.9, 60)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_every_evaluation_lies_in_its_interval(low: float, high: float, sign: int) -> None:
    """``low`` and ``high`` are exponents of 2."""
    rng = np.random.default_rng(11)
    x = (sign * np.exp2(rng.uniform(low, high, 20_000))).astype(np.float32)
    wide = x.astype(np.float64)
    span = Singles(precise=True).op_cdf(Between(wide, wide))
    with np.errstate(over="ignore", under="ignore"):
        got = Kernel(rng).cdf(x).astype(np.float64)
    assert ((span.low <= got) & (got <= span.high)).all()
    exact = lower(wide)
    near = exact.astype(np.float32)
    assert ((span.low <= near) & (near <= span.high)).all()
    # The bound says something: it is no more than some times what is seen.
    seen, told = np.abs(got - exact), np.maximum(span.high - exact, exact - span.low)
    assert told.max() <= 20 * seen.max() + 2.0**-149
