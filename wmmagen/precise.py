"""Products of matrices of real numbers, more precise than float64: what errors are measured against.

Operands are cut into slices of so few bits that a product of two slices is exact in float64, whatever the order in
which BLAS sums it (Ozaki, Ogita, Oishi and Rump, "Error-free transformations of matrix multiplication by using fast
routines of matrix multiplication and its applications", Numerical Algorithms 59, 2012). The products of slices are
summed in two float64 each. Values of f16, bf16 and tf32 end within few slices, and their sums are exact but for the
last rounding; of float64 operands what lies :data:`DEPTH` bits below the largest of a line is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wmmagen.layout import Array

#: Bits of a float64 significand, IEEE 754.
_BITS = 53
#: How far below the largest value of its line an operand is followed; in bits.
DEPTH = 80


@dataclass(frozen=True)
class Sums:
    """A product, m×n float64, as the unevaluated sum of two: ``high`` is that sum rounded to float64.

    Attributes:
        high: the product rounded to float64.
        low: what that rounding left.
        slack: how far the true product may lie from their sum; all 0 where nothing was left out and nothing rounded.
        magnitudes: sums of |a||b|, rounded up.
    """

    high: Array
    low: Array
    slack: Array
    magnitudes: Array

    def error_of(self, values: Array) -> Array:
        """How far ``values`` (m×n, any floating type) lie from the product, float64; not finite where they are not."""
        with np.errstate(invalid="ignore"):
            return np.asarray(values.astype(np.float64) - self.high - self.low)


def multiply(a: Array, b: Array) -> Sums:
    """A·B of finite operands, a m×k and b k×n, of any floating type; k is 1 at least."""
    k = a.shape[1]
    left, right = a.astype(np.float64), b.astype(np.float64)
    bits = (_BITS - math.ceil(math.log2(k))) // 2
    (rows, beyond_a), (cols, beyond_b) = _slices(left, 1, bits), _slices(right, 0, bits)
    high = np.zeros((a.shape[0], b.shape[1]))
    low, lost = np.zeros_like(high), np.zeros_like(high)
    for row in rows:
        for col in cols:
            high, error = _two_sum(high, row @ col)
            low, error = _two_sum(low, error)
            lost += np.abs(error)
    high, low = _two_sum(high, low)
    # What was left out of a line, times the largest of the other operand's, K times; twice for the product of both.
    largest_a, largest_b = np.abs(left).max(1, keepdims=True), np.abs(right).max(0, keepdims=True)
    left_out = 2.0 * k * (beyond_a * largest_b + largest_a * beyond_b)
    # float64 sums of K terms are off by less than K·2^-52 of their own size.
    magnitudes = (np.abs(left) @ np.abs(right)) * (1 + k * 2.0 ** (1 - _BITS))
    return Sums(high, low, 2.0 * lost + left_out, magnitudes)


def _slices(x: Array, axis: int, bits: int) -> tuple[list[Array], Array]:
    """``x`` cut along ``axis`` into slices that are at most 2^``bits`` units each, the first one the highest, and the
    largest magnitude that is left of each line.
    """
    slices: list[Array] = []
    rest, left = x, np.abs(x).max(axis, keepdims=True)
    while len(slices) < math.ceil(DEPTH / bits) and left.any():
        unit = np.ldexp(1.0, np.frexp(left)[1] - bits)
        slices.append(np.rint(rest / unit) * unit)
        rest = rest - slices[-1]
        left = np.abs(rest).max(axis, keepdims=True)
    return slices, left


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """A + b in float64, and what rounding it lost (Knuth, "The Art of Computer Programming", 4.2.2)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)
