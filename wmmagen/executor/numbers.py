"""Numbers as registers hold them: bits to values and back, and sums that are rounded once.

Registers hold unsigned bits; a predicate is a bool. A NaN that arithmetic gives is the canonical one, as on the
hardware. f16 and bf16 are computed in float32, whose 24 bits are at least twice theirs plus two, so that rounding again
to their width gives what one rounding gives (for +, -, ×, ÷).

Sources: PTX ISA, "Floating Point Instructions"; Figueroa, "When is double rounding innocuous?"; Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd".
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

#: An array of NumPy, or one of its scalars where all lanes have one value; its type checker knows no word for both.
Array = Any

UNSIGNED: dict[int, Any] = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED: dict[int, Any] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOATS: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
CANONICAL_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FF8000000000000}
_DOUBLE_BITS = 53
#: Powers of two between which factors and what is added leave every part of a·b + c a normal float64: its least part is
#: 2^-(2 · 53) of a product.
_FACTOR, _ADDEND = 400, 800
#: T. J. Dekker's: a float64 times this, less what it exceeds the float64 by, is its upper 26 bits.
_SPLITTER = 2.0**27 + 1


def resize(bits: Array, width: int, *, signed: bool = False) -> Array:
    """Unsigned ``bits`` cut or extended to another width; ``signed`` extends their sign."""
    own = bits.dtype.itemsize * 8
    if own == width:
        return bits
    if signed and width > own:
        return np.asarray(bits).view(SIGNED[own]).astype(SIGNED[width]).view(UNSIGNED[width])
    return bits.astype(UNSIGNED[width])


def to_float(bits: Array, kind: str) -> Array:
    """The values of ``bits`` of type ``kind``; float32 for bf16, else the type's own dtype."""
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view(FLOATS[kind])


def from_float(values: Array, kind: str) -> Array:
    """The bits of ``values`` rounded to nearest even in ``kind``, NaN made canonical."""
    if kind == "bf16":
        return _bf16_bits(values.astype(np.float32))
    stored = values.astype(FLOATS[kind])
    bits = stored.view(UNSIGNED[stored.dtype.itemsize * 8])
    nan = np.isnan(stored)
    return np.where(nan, bits.dtype.type(CANONICAL_NAN[kind]), bits) if nan.any() else bits


def _bf16_bits(values: Array) -> Array:
    wide = values.view(np.uint32)
    kept = (wide + np.uint32(0x7FFF) + ((wide >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(CANONICAL_NAN["bf16"]), kept).astype(np.uint16)


def to_tf32(values: Array) -> Array:
    """float32 rounded to the 11 bits of tf32, ties away from zero, as ``cvt.rna`` does; still float32."""
    bits = values.view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


def odd_sum(a: Array, b: Array) -> Array:
    """A + b in float64, rounded to odd: rounding that again to a type of at most 51 bits gives the sum rounded once."""
    total, error = map(np.asarray, _two_sum(a, b))
    inexact = (error != 0) & np.isfinite(total)
    if not inexact.any():
        return total
    bits = total.view(np.int64)
    # Where the sum was rounded to an even number, its odd neighbour on the side of the error is the one to take.
    away = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact & (bits & 1 == 0), bits + away, bits).view(np.float64)


def fused(a: Array, b: Array, c: Array, kind: str) -> Array:
    """Bits of a·b + c rounded once; operands are values of ``kind``, the result its bits."""
    if kind == "f64":
        return from_float(_fused_double(*np.broadcast_arrays(a, b, c)), kind)
    # The product of two numbers of at most 24 bits is exact in float64, and so is what the odd sum leaves to round.
    product = a.astype(np.float64) * b.astype(np.float64)
    return narrow(odd_sum(product, c.astype(np.float64)), kind)


def fused_down(a: Array, b: Array, c: Array) -> Array:
    """Bits of a·b + c of f32 bits, rounded once towards minus infinity."""
    x, y, z = (to_float(bits, "f32").astype(np.float64) for bits in (a, b, c))
    # What is rounded to odd lies on the same side of every f32 as what it stands for.
    total = odd_sum(x * y, z)
    near = np.asarray(total.astype(np.float32))
    return from_float(np.where(near.astype(np.float64) > total, np.nextafter(near, np.float32(-np.inf)), near), "f32")


def narrow(values: Array, kind: str) -> Array:
    """Bits of float64 ``values``, which are exact or rounded to odd, rounded once in ``kind``."""
    if kind != "bf16":
        return from_float(values, kind)
    # float32 is no place to stop on the way to bf16, unless it is rounded to odd, too.
    return from_float(_odd_single(values), kind)


def _odd_single(values: Array) -> Array:
    """float64 to float32, rounded to odd."""
    near = values.astype(np.float32)
    bits = near.view(np.int32)
    inexact = (near.astype(np.float64) != values) & np.isfinite(near)
    away = np.where(np.abs(values) > np.abs(near.astype(np.float64)), 1, -1)
    return np.where(inexact & (bits & 1 == 0), bits + away, bits).astype(np.int32).view(np.float32)


def _fused_double(a: Array, b: Array, c: Array) -> Array:
    result = np.asarray(a * b + c)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    plain = plain_factors(a) & plain_factors(b) & _within(c, _ADDEND)
    if plain.any():
        with np.errstate(all="ignore"):  # of the elements that are not taken
            quick = _fused_plain(a, b, c)
        # A sum that is 0 has the sign that the operation gives it.
        result = np.where(plain & (quick != 0), quick, result)
    flat = np.array(result, copy=True)
    for place in zip(*np.nonzero(np.atleast_1d(finite & ~plain)), strict=True):
        at = place if result.ndim else ()
        exact = Fraction(float(a[at])) * Fraction(float(b[at])) + Fraction(float(c[at]))
        if exact:
            flat[at] = rounded(exact.numerator, exact.denominator)
    return flat


def plain_factors(values: Array) -> Array:
    """Whether no product of two of these values, nor what rounding leaves out of it, is too large or small."""
    return _within(values, _FACTOR)


def _within(values: Array, power: int) -> Array:
    """Whether each value is 0, or its magnitude lies between 2^-power and 2^power."""
    magnitude = np.abs(values)
    return np.asarray((magnitude == 0) | ((magnitude >= 2.0**-power) & (magnitude <= 2.0**power)))


def _fused_plain(a: Array, b: Array, c: Array) -> Array:
    """a·b + c rounded once, where no part of it is too large or too small for a normal float64.

    Source: S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding
    to odd", IEEE Transactions on Computers 57 (2008).
    """
    product = a * b
    error = product_error(a, b, product)
    upper, lower = _two_sum(c, error)
    high, low = _two_sum(product, upper)
    return np.asarray(high + odd_sum(lower, low))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """A + b rounded, and what rounding left out, exactly."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def product_error(a: Array, b: Array, product: Array) -> Array:
    """What rounding left out of float64 a·b, exactly, where both are :func:`plain_factors`.

    By halves of 26 bits, whose products are exact.
    """
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(values: Array) -> tuple[Array, Array]:
    scaled = values * _SPLITTER
    high = scaled - (scaled - values)
    return high, values - high


def rounded(numerator: int, denominator: int) -> float:
    """The float64 nearest to a fraction; infinite where it is too large."""
    try:
        return numerator / denominator
    except OverflowError:
        return float("inf") if numerator > 0 else float("-inf")


def odd_double(value: int, exponent: int) -> float:
    """An integer times 2^exponent as float64, rounded to odd where it has more than 53 bits."""
    surplus = value.bit_length() - _DOUBLE_BITS
    if surplus <= 0:
        return float(np.ldexp(float(value), exponent))
    magnitude = abs(value)
    kept = magnitude >> surplus
    if kept << surplus != magnitude:
        kept |= 1
    return float(np.ldexp(float(kept if value > 0 else -kept), exponent + surplus))
