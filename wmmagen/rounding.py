"""What f32 makes of a formula: whether it is exact, and where it is not, between which numbers every right result lies.

Three arithmetics for :func:`wmmagen.formula.evaluate`, on arrays or on bounds:

- :class:`Reals` is float64, for the value that is compared with;
- :class:`Singles` is interval arithmetic around whatever an f32 evaluation may give;
- :class:`Grid` proves that nothing is rounded at all.

**Why the intervals are right.** Rounding to nearest is monotone, so an operation on operands within intervals gives a
result within the f32 roundings of the ends of the exact interval. The ends are computed in float64 and moved one of its
steps outwards before they are rounded, which covers their own rounding. A compiler may fuse a product with a sum, which
leaves out the product's rounding: the interval of a product holds its exact ends beside the rounded ones, so that both
are in it. Of ``exp``, ``tanh``, ``erf`` and ``sqrt``, which all rise, the ends are moved by their largest error. So are
those of the normal distribution function, whose error is relative to its smaller side and grows slower than that side
does: what is below the function by its error rises as well, and what is above it.

**Where the errors come from.** CUDA C++ Programming Guide, 17.1 Standard Functions, table 17, in the edition with a
table 19 of quad precision: the largest difference in ulp between the correctly rounded result and the device's over the
full range. There ``expf``, ``exp2f``, ``tanhf`` and ``erff`` are 2; x + y, x * y, and x / y and ``sqrtf`` as
NVRTC compiles them by default (precise division and square root) are 0. Older editions differ by one for ``expf`` and
``tanhf``. ``__fdividef`` is 2 where the divisor is between 2^-126 and 2^126 in magnitude (the guide's table of
intrinsics), and gives 0 beyond 2^126 (at its declaration in ``crt/device_functions.h`` of CUDA 13); where D shows small
numbers, a kernel scales divisors beyond 2^64 by a power of two, and the quotient by it again. Half an ulp is added for
the correctly rounded result itself. The guide says that its numbers come from extensive, not exhaustive tests: what is
proved here is proved from them. ``rcp.approx.f32`` is within 1 ulp over the full range (PTX ISA, rcp). No other fast
and rough function is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wmmagen.dtypes import F16, F32, F64, ElementType
from wmmagen.layout import Array, Mask

#: The largest errors of functions, in ulp beyond the correctly rounded result.
FUNCTION_ULPS: dict[str, int] = {"exp": 2, "tanh": 2, "erf": 2, "sqrt": 0, "ratio": 2, "exp2": 2}
#: The same of f64, from the guide's table of double-precision standard functions, with what a C library's own results
#: may be off, from the GNU C library's table of known errors: the ends are computed by it.
DOUBLE_ULPS: dict[str, int] = {"exp": 1 + 1, "tanh": 2 + 2, "erf": 2 + 1, "erfc": 5 + 5, "sqrt": 0, "ratio": 0}
_NEARLY_INFINITE = float(np.finfo(np.float32).max) * (1 - 2.0**-20)


@dataclass(frozen=True)
class Tail:
    """How a kernel has what the normal distribution leaves behind z >= 0: 2^(power·z²)·t·p(t), t = 1 / (1 + step·z).

    With exp(-z²/2) out of the way what is left is a smooth function, from 1/2 down, which a polynomial of t follows.

    Attributes:
        step, power: f32 numbers; ``power`` is that nearest to -log2(e)/2, and p takes up what it is off.
        polynomial: p's coefficients, f32 numbers, the constant first: t·p(t) is the tail's other factor, but for 2^-24
            of it, for z up to 14.5, behind which f32 has no number left; by Remez' algorithm, of the relative error.
        units: the largest relative error, in 2^-24 and beside z² of them, of what is no subnormal number.
            ``test_normal.py`` derives it from those of ``rcp.approx.f32`` and ``exp2f``.
        end: behind this z nothing is left that f32 holds.
    """

    step: float
    power: float
    polynomial: tuple[float, ...]
    units: float
    end: float


def _f32(*values: float) -> tuple[float, ...]:
    return tuple(float(np.float32(value)) for value in values)


TAIL = Tail(
    step=0.34375,
    power=_f32(-0.5 / math.log(2.0))[0],
    polynomial=_f32(
        0.137118146, 0.137558773, 0.116660349, 0.112875551, -0.0396557041, 0.19124338, -0.271866113, 0.143869773,
        -0.0278041288,
    ),
    units=19.0,
    end=15.0,
)  # fmt: skip
#: Divisors of ``__fdividef`` beyond this may give 0; below its inverse nothing is promised.
_RATIO_LIMIT = 2.0**126
#: The factor of x in the normal distribution function, (1 + erf(x·sqrt(1/2))) / 2.
_CDF = math.sqrt(0.5)
#: f32 counts to this in any unit that is a power of two from its smallest normal number on; IEEE 754.
SINGLE_LIMIT = 1 << F32.precision
SINGLE_UNITS = range(-126, 128 - F32.precision)
#: The same of the two types in which factors are.
COUNTED: dict[str, tuple[int, range]] = {
    "f32": (SINGLE_LIMIT, SINGLE_UNITS),
    "f64": (1 << F64.precision, range(-1022, 1024 - F64.precision)),
}
#: Exponents of the smallest normal numbers; IEEE 754, and bf16 as f32.
_LEAST_EXPONENT = {"f16": -14, "bf16": -126, "f32": -126, "f64": -1022}


def ulp(values: Array, element: ElementType) -> Array:
    """One ulp of ``element`` at each of some finite values, in ``float64``; below the normal numbers, their spacing.

    Of integers it is 1.
    """
    if element.integer:
        return np.ones(np.shape(values))
    wide = np.abs(np.asarray(values, np.float64))
    _, exponents = np.frexp(wide)
    # Of 0 the exponent is 0, which is that of large numbers.
    exponents = np.maximum(
        np.where(wide == 0, np.iinfo(np.int32).min + 1, exponents) - 1, _LEAST_EXPONENT[element.name]
    )
    return np.asarray(np.ldexp(1.0, exponents - (element.precision - 1)))


def _by_value(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of floats on an array; once for each value that occurs, of which there are few in exact inputs."""

    def over(values: Array) -> Array:
        different, places = np.unique(np.asarray(values, np.float64), return_inverse=True)
        found = np.array([function(float(value)) for value in different], np.float64)
        return found[places].reshape(np.shape(values))

    return over


_erf = _by_value(math.erf)
#: Where erf comes near -1, float64 keeps only erfc apart from 0.
_cdf = _by_value(lambda x: 0.5 * math.erfc(-x * _CDF))
_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp, "tanh": np.tanh, "erf": _erf, "sqrt": np.sqrt,
}  # fmt: skip


class Reals:
    """float64, with the signs of zero that IEEE 754 gives; operands are arrays that broadcast."""

    def number(self, value: float) -> Array:
        return np.asarray(value, np.float64)

    def op_add(self, a: Array, b: Array) -> Array:
        return np.add(a, b)

    def op_sub(self, a: Array, b: Array) -> Array:
        return np.subtract(a, b)

    def op_mul(self, a: Array, b: Array) -> Array:
        return np.multiply(a, b)

    def op_div(self, a: Array, b: Array) -> Array:
        return np.divide(a, b)

    def op_neg(self, a: Array) -> Array:
        return np.negative(a)

    def op_abs(self, a: Array) -> Array:
        return np.abs(a)

    def op_min(self, a: Array, b: Array) -> Array:
        return np.where(b < a, b, a)

    def op_max(self, a: Array, b: Array) -> Array:
        return np.where(a < b, b, a)

    def op_exp(self, a: Array) -> Array:
        return np.exp(a)

    def op_tanh(self, a: Array) -> Array:
        return np.tanh(a)

    def op_erf(self, a: Array) -> Array:
        return _erf(a)

    def op_sqrt(self, a: Array) -> Array:
        return np.sqrt(a)

    def op_cdf(self, a: Array) -> Array:
        return _cdf(a)

    op_ratio = op_div

    def op_lt(self, a: Array, b: Array) -> Mask:
        return np.less(a, b)

    def op_le(self, a: Array, b: Array) -> Mask:
        return np.less_equal(a, b)

    def op_gt(self, a: Array, b: Array) -> Mask:
        return np.greater(a, b)

    def op_ge(self, a: Array, b: Array) -> Mask:
        return np.greater_equal(a, b)

    def op_eq(self, a: Array, b: Array) -> Mask:
        return np.equal(a, b)

    def op_ne(self, a: Array, b: Array) -> Mask:
        return np.not_equal(a, b)

    def op_if(self, condition: Mask, chosen: Array, other: Array) -> Array:
        return np.where(condition, chosen, other)


# ---------------------------------------------------------------------------------------------------------------------
# Intervals.


@dataclass(frozen=True, eq=False)
class Between:
    """Where an f32 evaluation may end: from ``low`` to ``high``, arrays in ``float64``."""

    low: Array
    high: Array


@dataclass(frozen=True, eq=False)
class Truth:
    """A comparison of such: where it certainly holds, and where it may."""

    certain: Mask
    possible: Mask


def _down(values: Array) -> Array:
    return np.nextafter(values, -np.inf)


def _up(values: Array) -> Array:
    return np.nextafter(values, np.inf)


def _single(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float32).astype(np.float64)


def _rounded(low: Array, high: Array) -> Between:
    """The f32 roundings of everything between two float64 results, whose own rounding is taken off and added."""
    # What is an f32 already was not rounded on the way: sums and products of f32 that float64 does not hold are none.
    low, high = (np.where(_single(v) == v, v, moved(v)) for v, moved in ((low, _down), (high, _up)))
    return Between(_single(low), _single(high))


def precise(d: ElementType) -> bool:
    """Whether D's type can tell small relative errors, or numbers near 0: then a kernel takes the more accurate way.

    Those are (1 + erff(x·sqrt(1/2))) / 2 and ``__fdividef`` where it cannot, :data:`TAIL` and ``__fdividef`` of a
    divisor that is scaled where it can.
    """
    # bf16 has fewer bits than f16, and the exponents of f32: far below 0 it shows all that is left of a gelu. Bytes
    # have fewer of both.
    return d != F16 and not d.integer


class Singles:
    """Interval arithmetic around f32; see the module. Operands are :class:`Between`.

    Args:
        precise: which of two ways a kernel takes; see :func:`precise`.
    """

    def __init__(self, precise: bool = False) -> None:
        self._precise = precise

    def number(self, value: float) -> Between:
        single = _single(np.asarray(value, np.float64))
        return Between(single, single)

    def op_add(self, a: Between, b: Between) -> Between:
        return _rounded(a.low + b.low, a.high + b.high)

    def op_sub(self, a: Between, b: Between) -> Between:
        return _rounded(a.low - b.high, a.high - b.low)

    def op_mul(self, a: Between, b: Between) -> Between:
        corners = [_product(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        low, high = np.minimum.reduce(corners), np.maximum.reduce(corners)
        rounded = _rounded(low, high)
        # Two f32 have a product that float64 holds; ends that are no f32, unrounded products themselves, may have none.
        held = _of_singles(a) & _of_singles(b)
        low, high = np.where(held, low, _down(low)), np.where(held, high, _up(high))
        return Between(np.minimum(rounded.low, low), np.maximum(rounded.high, high))

    def op_div(self, a: Between, b: Between) -> Between:
        spans_zero = (b.low <= 0) & (b.high >= 0)
        corners = [_quotient(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        found = _rounded(_down(np.minimum.reduce(corners)), _up(np.maximum.reduce(corners)))
        return Between(np.where(spans_zero, -np.inf, found.low), np.where(spans_zero, np.inf, found.high))

    def op_neg(self, a: Between) -> Between:
        return Between(-a.high, -a.low)

    def op_abs(self, a: Between) -> Between:
        least = np.where((a.low <= 0) & (a.high >= 0), 0.0, np.minimum(np.abs(a.low), np.abs(a.high)))
        return Between(least, np.maximum(np.abs(a.low), np.abs(a.high)))

    def op_min(self, a: Between, b: Between) -> Between:
        return Between(np.minimum(a.low, b.low), np.minimum(a.high, b.high))

    def op_max(self, a: Between, b: Between) -> Between:
        return Between(np.maximum(a.low, b.low), np.maximum(a.high, b.high))

    def op_exp(self, a: Between) -> Between:
        return _rising("exp", a)

    def op_tanh(self, a: Between) -> Between:
        return _rising("tanh", a)

    def op_erf(self, a: Between) -> Between:
        return _rising("erf", a)

    def op_sqrt(self, a: Between) -> Between:
        return _rising("sqrt", a)

    def op_cdf(self, a: Between) -> Between:
        if self._precise:
            low, high = _cdf(a.low) - _tail_error(a.low), _cdf(a.high) + _tail_error(a.high)
            return Between(np.maximum(_single(low), 0.0), _single(high))
        one = self.op_add(self.number(1.0), self.op_erf(self.op_mul(a, self.number(_CDF))))
        return self.op_mul(self.number(0.5), one)

    def op_ratio(self, a: Between, b: Between) -> Between:
        exact = self.op_div(a, b)
        low, high = (
            _moved(end, sign * (FUNCTION_ULPS["ratio"] + 0.5)) for sign, end in ((-1, exact.low), (1, exact.high))
        )
        if not self._precise:
            # A large divisor makes 0, exactly or in effect.
            none = np.maximum(np.abs(b.low), np.abs(b.high)) > _RATIO_LIMIT
            low, high = np.where(none, np.minimum(low, 0.0), low), np.where(none, np.maximum(high, 0.0), high)
        # What a small one makes is not promised, nor what a large negative one does that is not scaled.
        small = (b.low < 1 / _RATIO_LIMIT) & (self._precise | (b.high > -1 / _RATIO_LIMIT))
        return Between(np.where(small, -np.inf, _single(low)), np.where(small, np.inf, _single(high)))

    def op_lt(self, a: Between, b: Between) -> Truth:
        return Truth(a.high < b.low, a.low < b.high)

    def op_le(self, a: Between, b: Between) -> Truth:
        return Truth(a.high <= b.low, a.low <= b.high)

    def op_gt(self, a: Between, b: Between) -> Truth:
        return self.op_lt(b, a)

    def op_ge(self, a: Between, b: Between) -> Truth:
        return self.op_le(b, a)

    def op_eq(self, a: Between, b: Between) -> Truth:
        alone = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
        return Truth(alone, (a.low <= b.high) & (b.low <= a.high))

    def op_ne(self, a: Between, b: Between) -> Truth:
        same = self.op_eq(a, b)
        return Truth(~same.possible, ~same.certain)

    def op_if(self, condition: Truth, chosen: Between, other: Between) -> Between:
        may_low, may_high = np.minimum(chosen.low, other.low), np.maximum(chosen.high, other.high)
        low = np.where(condition.certain, chosen.low, np.where(condition.possible, may_low, other.low))
        high = np.where(condition.certain, chosen.high, np.where(condition.possible, may_high, other.high))
        return Between(low, high)


class Doubles(Singles):
    """Interval arithmetic around f64; operands are :class:`Between`.

    The ends of sums and quotients of f64 are what f64 makes of them: nothing is computed in a wider type that would
    have to be rounded once more. Those of a product that f64 does not hold are moved outwards by one step, which holds
    what is fused. Of functions the ends are moved by their largest error in units of f64.
    """

    def __init__(self) -> None:
        super().__init__(precise=True)

    def number(self, value: float) -> Between:
        exact = np.asarray(value, np.float64)
        return Between(exact, exact)

    def op_add(self, a: Between, b: Between) -> Between:
        return Between(a.low + b.low, a.high + b.high)

    def op_sub(self, a: Between, b: Between) -> Between:
        return Between(a.low - b.high, a.high - b.low)

    def op_mul(self, a: Between, b: Between) -> Between:
        ends = [(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        corners = [_product(x, y) for x, y in ends]
        # A product that f64 holds is moved nowhere.
        held = [_holds_product(x, y, corner) for (x, y), corner in zip(ends, corners, strict=True)]
        lows = [np.where(exact, corner, _down(corner)) for corner, exact in zip(corners, held, strict=True)]
        highs = [np.where(exact, corner, _up(corner)) for corner, exact in zip(corners, held, strict=True)]
        return Between(np.minimum.reduce(lows), np.maximum.reduce(highs))

    def op_div(self, a: Between, b: Between) -> Between:
        spans_zero = (b.low <= 0) & (b.high >= 0)
        corners = [_quotient(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        low, high = np.minimum.reduce(corners), np.maximum.reduce(corners)
        return Between(np.where(spans_zero, -np.inf, low), np.where(spans_zero, np.inf, high))

    def op_ratio(self, a: Between, b: Between) -> Between:
        return self.op_div(a, b)

    def op_exp(self, a: Between) -> Between:
        return _rising_double("exp", a)

    def op_tanh(self, a: Between) -> Between:
        return _rising_double("tanh", a)

    def op_erf(self, a: Between) -> Between:
        return _rising_double("erf", a)

    def op_sqrt(self, a: Between) -> Between:
        return Between(np.sqrt(a.low), np.sqrt(a.high))

    def op_cdf(self, a: Between) -> Between:
        scaled = self.op_mul(a, self.number(-_CDF))
        return self.op_mul(self.number(0.5), _rising_double("erfc", scaled, falls=True))


def _tail_error(x: Array) -> Array:
    """How far the distribution function of a kernel may be off at ``x``, before it is rounded."""
    z = np.minimum(np.abs(x), TAIL.end)
    # Below the normal numbers, 2^(power·z²) is off by 2.5 of their spacings, of which t·p(t) leaves a small part.
    return np.asarray(_cdf(-z) * (TAIL.units + z * z) * 2.0**-24 + 2.0**-149)


def _of_singles(a: Between) -> Mask:
    """Where both ends are f32."""
    return np.asarray((_single(a.low) == a.low) & (_single(a.high) == a.high))


def _product(a: Array, b: Array) -> Array:
    """With 0 for 0 times infinity: an end of an interval that is infinite is only approached."""
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.multiply(a, b)
    return np.where((a == 0) | (b == 0), 0.0, found)


#: Splits an f64 into two halves of 26 bits (Veltkamp), whose products f64 holds (Dekker).
_HALVES = 2.0**27 + 1
#: Between these magnitudes no part of a product over- or underflows.
_SAFE_PRODUCTS = (2.0**-900, 2.0**900)


def _holds_product(a: Array, b: Array, product: Array) -> Mask:
    """Where ``product``, the f64 nearest to a·b, is a·b itself: T. J. Dekker, Numerische Mathematik 18 (1971)."""
    a, b = np.broadcast_arrays(a, b)
    with np.errstate(all="ignore"):
        (a_high, a_low), (b_high, b_low) = (_halves(x) for x in (a, b))
        off = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    low, high = _SAFE_PRODUCTS
    safe = np.abs([a, b, product])
    inside = ((safe > low) & (safe < high)).all(axis=0)
    return np.asarray((product == 0) & ((a == 0) | (b == 0)) | inside & (off == 0))


def _halves(x: Array) -> tuple[Array, Array]:
    moved = _HALVES * x
    high = moved - (moved - x)
    return high, x - high


def _quotient(a: Array, b: Array) -> Array:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        found = np.divide(a, b)
    return np.where(np.isnan(found), 0.0, found)


def _moved(ends: Array, ulps: float, element: ElementType = F32) -> Array:
    """Ends of intervals moved by some ulp of f32, or of another type; infinite ones stay.

    Right below a power of two the units are those above it, in which the correctly rounded result may lie.
    """
    finite = np.isfinite(ends)
    return np.where(finite, ends + ulps * ulp(np.where(finite, ends, 0.0) * (1 + 2.0**-20), element), ends)


def _rising(name: str, a: Between) -> Between:
    """A function that rises, with its largest error beyond the correctly rounded ends."""
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = _down(_FUNCTIONS[name](a.low)), _up(_FUNCTIONS[name](a.high))
        error = FUNCTION_ULPS[name] + 0.5
        low, high = _moved(low, -error), _moved(high, error)
        if name in ("exp", "sqrt"):
            low = np.maximum(low, 0.0)  # none is ever negative
        # What is beyond f32 may come out as one of its largest numbers: no ulp tells those from infinity.
        return Between(np.minimum(_single(low), _NEARLY_INFINITE), _single(high))


#: Beyond, exp is no f64.
_EXP_LIMIT = math.log(float(np.finfo(np.float64).max))
#: By the C library, whose largest errors are known; NumPy's own are not the same on every machine.
_IN_DOUBLES = {name: _by_value(getattr(math, name)) for name in ("tanh", "erf", "erfc")}
_IN_DOUBLES["exp"] = _by_value(lambda x: math.exp(x) if x < _EXP_LIMIT else math.inf)


def _rising_double(name: str, a: Between, *, falls: bool = False) -> Between:
    """A function of f64 that rises, or falls, with its largest error beyond the ends."""
    ends = (a.high, a.low) if falls else (a.low, a.high)
    error = DOUBLE_ULPS[name] + 0.5
    low, high = (_moved(_IN_DOUBLES[name](end), sign * error, F64) for sign, end in zip((-1, 1), ends, strict=True))
    if name in ("exp", "erfc"):
        low = np.maximum(low, 0.0)  # none is ever negative
    return Between(_down(low), _up(high))


# ---------------------------------------------------------------------------------------------------------------------
# Exactness.


class Inexact(Exception):
    """A value that f32 may round."""


@dataclass(frozen=True)
class Multiples:
    """Any multiple of 2^``unit`` whose magnitude is at most ``most`` of these units."""

    unit: int
    most: int

    def units(self, unit: int) -> int:
        """``most`` in a smaller unit."""
        return self.most << (self.unit - unit)


def factor_parts(value: float) -> tuple[int, int]:
    """``(p, e)`` with the finite ``value`` = p·2^e and an odd p; ``(0, 0)`` for 0."""
    numerator, denominator = value.as_integer_ratio()
    twos = (numerator & -numerator).bit_length() - 1 if numerator else 0
    return numerator >> twos, twos - (denominator.bit_length() - 1)


def multiples_of(value: float) -> Multiples:
    """The one number ``value``."""
    odd, exponent = factor_parts(value)
    return Multiples(exponent, abs(odd))


def multiples_in(values: Array) -> Multiples:
    """What holds all of some finite numbers, which are small integers times powers of two."""
    return joined([multiples_of(float(value)) for value in np.unique(values)] or [Multiples(0, 0)])


def joined(several: list[Multiples]) -> Multiples:
    """What holds everything that any of ``several`` holds."""
    unit = min((m.unit for m in several if m.most), default=0)
    return Multiples(unit, max((m.units(unit) for m in several if m.most), default=0))


class Grid:
    """Proves that f32, or f64, rounds nothing: each value is a multiple of a power of two, of few enough bits.

    Operands are :class:`Multiples`.

    Args:
        element: f32 or f64.

    Raises:
        Inexact: from the first operation whose result that may not hold.
    """

    def __init__(self, element: ElementType = F32) -> None:
        self._limit, self._units = COUNTED[element.name]

    def number(self, value: float) -> Multiples:
        return self._held(multiples_of(value))

    def _held(self, found: Multiples) -> Multiples:
        if found.most > self._limit or (found.most and found.unit not in self._units):
            raise Inexact
        return found

    def _sum(self, a: Multiples, b: Multiples) -> Multiples:
        unit = joined([a, b]).unit
        return self._held(Multiples(unit, sum(m.units(unit) for m in (a, b) if m.most)))

    def _either(self, a: Multiples, b: Multiples) -> Multiples:
        return self._held(joined([a, b]))

    op_add = op_sub = _sum
    op_min = op_max = _either

    def op_mul(self, a: Multiples, b: Multiples) -> Multiples:
        return self._held(Multiples(a.unit + b.unit, a.most * b.most) if a.most and b.most else Multiples(0, 0))

    def op_div(self, a: Multiples, b: Multiples) -> Multiples:
        if b.most != 1:
            raise Inexact
        return self._held(Multiples(a.unit - b.unit, a.most))

    def op_neg(self, a: Multiples) -> Multiples:
        return a

    op_abs = op_neg

    def _never(self, a: Multiples) -> Multiples:
        raise Inexact

    op_exp = op_tanh = op_erf = op_sqrt = op_cdf = _never

    def op_ratio(self, a: Multiples, b: Multiples) -> Multiples:
        raise Inexact

    def _compared(self, a: Multiples, b: Multiples) -> None:
        """Both are exact, so the comparison is right."""

    op_lt = op_le = op_gt = op_ge = op_eq = op_ne = _compared

    def op_if(self, condition: None, chosen: Multiples, other: Multiples) -> Multiples:
        return self._either(chosen, other)
