"""What is right: inputs whose sums are exact in any order, and the exact result.

A, B and C hold integers. As long as the sum of |a||b| over K stays within what the accumulator counts exactly, every
partial sum is exact in every order, so each tile order, split, architecture and library gives the same bits, and any
difference is a bug. There is no tolerance. The bounds (IEEE 754: integers up to 2^p are exact in a significand of p
bits):

    f16 2^11    bf16 2^8    f32 2^24    f64 2^53    s32 2^31 - 1 (K < 2^17 for s8)

Beyond that, s32 wraps, which is exact in any order, too. Where it saturates instead, order counts, unless all products
have one sign.

An epilogue with factors goes on in f32, or in f64 beside sums of f64. A factor is p·2^e with an odd p; in units of the
smaller of the two powers of two, alpha·A·B + beta·C is an integer, and so are both of its terms. As long as
|alpha|·Σ|a||b| + |beta|·|c| is at most 2^24 of these units (2^53), the type holds all of them, in whatever order and
with or without fused operations.

What a step rounds, a function above all, has to be seen at fractions, too: a kernel that rounds an argument is right at
every integer. There A is a·2^-s with an integer a and one s for the whole matrix (``Inputs.scale_bits``), and so is
every sum. A power of two changes nothing in what a type counts, so the bounds above hold for the integers: for
Σ|a||b| in units of 2^-s. C, R and biases are multiples of a power of two, as many as their type holds; B is whole.
Operands of bytes have whole sums: there a scale before the function and the biases make fractions, and where a function
is of the sum itself, integers are all that it can see.

A kernel has to round tf32 operands, which lie in memory as floats: :func:`unrounded` gives floats that round to the
integers of the inputs, so that a kernel that leaves them as they are is wrong.

The generator proves the bounds on the arrays that it returns. The reference itself is computed in float32, float64 or
int64, whichever counts exactly up to the proved bound; never in half precision.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from wmmagen.config import LINEAR, Operation, Order, Overflow, Problem, Raster
from wmmagen.dtypes import F32, F64, RESULTS, ElementType
from wmmagen.epilogue import BIASES, SCALES, VECTORS, along_row
from wmmagen.errors import ConfigError, NotGeneratedYet
from wmmagen.formula import evaluate
from wmmagen.layout import Array, Mask, decode, encode, require_bytes, value_dtype
from wmmagen.pieces import over_rows
from wmmagen.rounding import (
    COUNTED,
    Between,
    Doubles,
    Grid,
    Inexact,
    Multiples,
    Reals,
    Singles,
    factor_parts,
    multiples_in,
    multiples_of,
    precise,
    ulp,
)

#: The largest finite f16, from IEEE 754 binary16: (2 - 2^-10) · 2^15.
F16_MAX = 65_504
#: Largest magnitudes in the field's published pattern: A in [-3, 3], B in [-2, 2].
FIELD_A, FIELD_B = 3, 2
#: Largest magnitude of C beside it.
FIELD_C = 3
PATTERNS = ("auto", "field", "positions", "extremes")
#: A factor that leaves less room than this to Σ|a||b| or to |c| leaves inputs that show few mistakes.
LEAST_ROOM = 64
#: In a chain of steps: magnitudes of C, R and biases where all is exact, and where a function makes of large numbers
#: what it makes of all others; and Σ|a||b| where bounds have to leave something of it.
_ADDED, _ADDED_TO_FUNCTIONS, _SUMS_BETWEEN_BOUNDS = 100, 4, 256
#: What a function is given: the typical magnitude of the largest rows of sums. Four times as much is reached, where
#: most functions are flat and an exponential is still finite.
_SPREAD = 6
#: Σ|a||b| of functions of whole sums that nothing scales before; in large matrices, in units: each element is looked up
#: in a table there, which few numbers keep small.
_SUMS_OF_FUNCTIONS, _SUMS_OF_LARGE = 32, 1024
#: The largest product of operands where the accumulator has room for all, and the least one, below which zeros take the
#: place of terms.
_LARGEST_PRODUCT, _LEAST_PRODUCT = 6144, 32
#: Magnitude of B, which is whole, and of its small one where little room is left to A.
_MOST_B, _LEAST_A = 3, 16
#: What a scale before a function makes of whole sums is a multiple of 2^-this, and by what those of large matrices are
#: scaled.
_WHOLE_BITS, _SCALE_OF_LARGE = 8, 0.25
#: Sums are multiples of 2^-this at most: f16 has none that are finer, and f64 as many as anybody needs.
_MOST_BITS = {"f32": 24, "f64": 64}
#: Rows of A are up to so many powers of two smaller than others, so that functions are seen near 0 and where they are
#: flat; and one in so many is 0.
_ROW_SIZES, _ROWS_TO_ZERO = 4, 16
#: Scales of rows and columns: no two neighbours are alike, and none is 1 alone.
_SCALES = (0.5, 1.0, 2.0, -1.0, 3.0, -0.25)
#: More streams of values, for what a chain reads.
_STREAM = 0x10000019
#: Four streams of values are drawn per seed, told apart by 4 · seed + 0 … 3 in 32 bits.
MAX_SEED = 2**30 - 1
#: Matrices of so many elements are kept for the next problem that draws them.
_LARGE = 1 << 20
#: Standard deviation of normal-distributed 8-bit operands; 4 of them reach the end of the type.
_INT_SIGMA = 32.0


# ---------------------------------------------------------------------------------------------------------------------
# Inputs.


@dataclass(frozen=True, eq=False)
class Inputs:
    """Operands, integers times powers of two, with the bound that was proved for them.

    Attributes:
        problem: what they are operands of.
        a: logical A, m×k multiples of 2^-``scale_bits``, read-only; integers in an integer dtype where that is 0.
            :func:`widened` before multiplying: the dtype is not wide enough for products.
        b: logical B, k×n integers, read-only.
        pattern: ``auto``, ``field``, ``positions``, ``extremes``, or ``given`` for a caller's own arrays.
        bound: proved: no sum of |a||b| over K exceeds it; in units of 2^-``scale_bits``.
        limit: up to here the accumulator is exact, the epilogue is exact beside this C, and D is finite; in the same
            units.
        c: logical C, m×n, read-only; None where nothing reads C. Integers but beside functions, where it is in
            multiples of a power of two that its type holds.
        beside: what else the epilogue reads of memory: ``r``, m×n, and the vectors, read-only, as C.
        scale_bits: every sum of products is a multiple of 2^-this: 0 for integers, which all inputs are but those of
            chains with functions.
    """

    problem: Problem
    a: Array = field(repr=False)
    b: Array = field(repr=False)
    pattern: str
    bound: int
    limit: int
    c: Array | None = field(default=None, repr=False)
    beside: Mapping[str, Array] = field(default_factory=dict, repr=False)
    scale_bits: int = 0

    @property
    def guaranteed(self) -> bool:
        """Whether every order of summation gives the same bits."""
        o = self.problem.operation
        if self.bound <= self.limit or o.epilogue.steps or not o.acc.integer:
            return self.bound <= self.limit
        return o.overflow is Overflow.WRAP or (_one_sided(self.a) and _one_sided(self.b))

    def __str__(self) -> str:
        word = "within" if self.guaranteed else "beyond"
        units = f" units of 2^-{self.scale_bits}" if self.scale_bits else ""
        return (
            f"{self.problem} {self.pattern}: sums of |a||b| up to {self.bound}{units}, {word} the exact limit "
            f"{self.limit}"
        )


def _one_sided(values: Array) -> bool:
    """Whether no two values have different signs."""
    return bool(values.min(initial=0) == 0 or values.max(initial=0) == 0)


def accumulation_limit(operation: Operation) -> int:
    """The largest sum of |a||b| up to which the accumulator is exact and D stays finite."""
    finite = F16_MAX if operation.d.name == "f16" else operation.acc.exact_limit
    return min(operation.acc.exact_limit, finite)


@dataclass(frozen=True)
class Room:
    """What an epilogue with factors leaves to its inputs, in units of 2^``exponent``.

    Attributes:
        exponent: of the unit, the smaller power of two of the two factors.
        alpha, beta: the factors; integers.
        total: up to here |alpha|·Σ|a||b| + |beta|·|c| is exact in the factors' type, and D is finite.
    """

    exponent: int
    alpha: int
    beta: int
    total: int


def room_of(problem: Problem) -> Room:
    """The room of a problem whose epilogue has factors."""
    (p, e), (q, f) = factor_parts(problem.alpha), factor_parts(problem.beta)
    unit = min([power for odd, power in ((p, e), (q, f)) if odd], default=0)
    factor = problem.operation.factor
    total = factor.exact_limit if unit in COUNTED[factor.name][1] else 0
    if problem.operation.d.name == "f16":
        total = min(total, F16_MAX << -unit if unit < 0 else F16_MAX >> unit)
    return Room(unit, p << (e - unit) if p else 0, q << (f - unit) if q else 0, total)


def _finite_in(operation: Operation) -> int:
    """The largest integer that steps can make and that is finite in D."""
    limit, units = COUNTED[operation.factor.name]
    return F16_MAX if operation.d.name == "f16" else limit << units[-1]


def _chain_limit(problem: Problem, largest_c: int, beside: Mapping[str, Array]) -> int:
    """The largest Σ|a||b| with which every step of a chain is exact and D finite; -1 where even none is too much.

    Where a step is a function, the largest with which the sums are exact, in whatever power of two they are counted.
    """
    p, e, factor = problem, problem.operation.epilogue, problem.operation.factor
    # Sums of whole numbers go on as floats.
    accumulated = min(problem.operation.acc.exact_limit, factor.exact_limit)
    if not e.exact:
        return accumulated
    amounts = {
        **{name: multiples_of(getattr(p, name)) for name in e.scalars},
        **{name: multiples_in(values) for name, values in beside.items()},
        "c": Multiples(0, largest_c),
        "row": Multiples(0, max(p.m - 1, 0)),
        "col": Multiples(0, max(p.n - 1, 0)),
    }

    def holds(total: int) -> bool:
        try:
            last = _through(problem, Grid(factor), {**amounts, "acc": Multiples(0, total if p.alpha else 0)})
        except Inexact:
            return False
        return isinstance(last, Multiples) and last.most * 2.0**last.unit <= _finite_in(problem.operation)

    low, high = -1, accumulated
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _through(problem: Problem, arithmetic: object, values: Mapping[str, object]) -> object:
    """What the steps of a chain make of ``values["acc"]`` under an arithmetic."""
    known = dict(values)
    known["bias"] = known.get("bias_col")
    for step in problem.operation.epilogue.steps:
        known["acc"] = evaluate(step.formula, arithmetic, known)
    return known["acc"]


def is_chain(operation: Operation) -> bool:
    """Whether its epilogue is more than alpha·A·B + beta·C."""
    return not operation.epilogue.simple


def sum_limit(problem: Problem, largest_c: int = 0, beside: Mapping[str, Array] | None = None) -> int:
    """The largest Σ|a||b| up to which everything is exact and finite, beside elements of C up to ``largest_c``.

    Args:
        beside: what else the epilogue reads; see :class:`Inputs`.
    """
    if is_chain(problem.operation):
        return _chain_limit(problem, largest_c, beside or {})
    if not problem.operation.scaled:
        return accumulation_limit(problem.operation)
    room, exact = room_of(problem), problem.operation.acc.exact_limit
    left = room.total - abs(room.beta) * largest_c
    # Below 0 even a sum of nothing is beyond it.
    return min(exact, left // abs(room.alpha)) if room.alpha else min(exact, left)


def _largest_c(problem: Problem, added: int) -> int:
    """The magnitude up to which the generator lets C go: a quarter of the room, as far as its type counts; 0 for none.

    Args:
        added: that of what a chain adds.

    Raises:
        ConfigError: the factors leave C or the sums less than :data:`LEAST_ROOM`.
    """
    if is_chain(problem.operation):
        return added if problem.reads_c else 0
    if not problem.operation.scaled:
        return 0
    room = room_of(problem)
    cap = min(problem.operation.added.exact_limit, 2**30 - 1)
    most = min(cap, room.total // 4 // abs(room.beta)) if room.beta else 0
    sums = sum_limit(problem, most)
    for word, factor, left in (("alpha", problem.alpha, sums), ("beta", problem.beta, most)):
        if factor and left < LEAST_ROOM:
            p, e = factor_parts(factor)
            raise ConfigError(
                f"{word} = {factor:g} is {p} * 2^{e} as a C float: "
                f"for alpha = {problem.alpha:g} and beta = {problem.beta:g} to stay exact in "
                f"{problem.operation.factor.name} and in "
                f"{problem.operation.d.name}, "
                f"{'sums of |a||b|' if word == 'alpha' else 'elements of C'} may reach {max(left, 0)} only",
                f"inputs that show mistakes need {LEAST_ROOM}: give small integers times powers of two, "
                "for example 1.5 or -0.25",
            )
    return most


def _mix(x: Array) -> Array:
    """A bijection of ``uint32`` in which every input bit moves every output bit: xorshift and multiply, in place."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x ^= x >> np.uint32(shift)
        x *= np.uint32(factor)
    x ^= x >> np.uint32(16)
    return x


def _hashed(rows: int, cols: int, salt: int, first: int = 0) -> Array:
    """Well-mixed ``uint32`` (rows × cols), a function of position and ``salt`` (below 2^32) alone.

    The same on every machine and under every version of NumPy. Rows and columns are mixed apart and then together, so
    no two rows are shifts of each other and no transposition or shift maps the matrix onto itself.

    Args:
        first: the number of the first of the rows.
    """
    row = _mix(np.arange(first, first + rows, dtype=np.uint32) ^ _mix(np.array([salt], np.uint32)))
    col = _mix(np.arange(cols, dtype=np.uint32) ^ np.uint32(0x9E3779B9))
    return _mix(row[:, None] ^ col)


def _in_range(hashed: Array, count: int) -> Array:
    """``hashed`` scaled to 0 … count - 1, as ``int64``; ``count`` below 2^31."""
    return (hashed.astype(np.uint64) * np.uint64(count) >> np.uint64(32)).astype(np.int64)


def _nonzero(rows: int, cols: int, amplitude: int, signed: bool, salt: int) -> Array:
    """Rows × cols ``int32`` of magnitude 1 … amplitude, read-only: no zeros, so every term of a sum counts."""
    make = _large_nonzero if rows * cols >= _LARGE else _small_nonzero
    return make(rows, cols, amplitude, signed, salt)


def _small_nonzero(rows: int, cols: int, amplitude: int, signed: bool, salt: int) -> Array:
    found = np.empty((rows, cols), np.int32)

    def some(first: int, end: int) -> None:
        hashed = _hashed(end - first, cols, salt, first)
        if signed:
            values = _in_range(hashed, 2 * amplitude) - amplitude
            values += values >= 0
        else:
            values = _in_range(hashed, amplitude) + 1
        found[first:end] = values

    over_rows(rows, cols, some)
    found.setflags(write=False)
    return found


#: A and B of one problem: often those of the same problem in other types, too.
_large_nonzero = lru_cache(maxsize=2)(_small_nonzero)


def _thin(a: Array, kept: int, salt: int) -> Array:
    """``a`` (m×k) with at most ``kept`` non-zeros in a row: one in each of ``kept`` stretches of K.

    Where in its stretch depends on the row. Spread over the whole of K, so no slice as long as two stretches is
    without one.
    """
    m, k = a.shape
    starts = np.arange(kept + 1, dtype=np.int64) * k // kept
    widths = np.diff(starts)
    places = starts[:-1] + _hashed(m, kept, salt).astype(np.int64) % widths
    thin = np.zeros_like(a)
    rows = np.arange(m)[:, None]
    thin[rows, places] = a[rows, places]
    return thin


def _auto(problem: Problem, seed: int, limit: int) -> tuple[Array, Array]:
    """A and B as large as the types and the bound allow, so that a narrower accumulator shows."""
    element, k = problem.operation.a, max(problem.k, 1)
    share = max(limit // k, 1)
    cap = min(element.exact_limit, 2**30 - 1)
    amplitude_a = min(math.isqrt(share), cap)
    amplitude_b = min(share // amplitude_a, cap)
    signed = _signed(element)
    a = _nonzero(problem.m, problem.k, amplitude_a, signed, 4 * seed)
    b = _nonzero(problem.k, problem.n, amplitude_b, signed, 4 * seed + 1)
    return (_thin(a, limit, 4 * seed + 2) if problem.k > limit else a), b


def _positions(problem: Problem) -> tuple[Array, Array]:
    """A[i, k] = (3i + k) % 7, B[k, j] = (k + 5j) % 11: small, and another one at every neighbouring place."""
    i, j, k = (np.arange(extent, dtype=np.int64) for extent in (problem.m, problem.n, problem.k))
    a, b = (3 * i[:, None] + k) % 7, (k[:, None] + 5 * j) % 11
    return a.astype(np.int32), b.astype(np.int32)


def _extreme(operation: Operation) -> int:
    """The end of an integer operand's type that makes the largest product: -128 of s8, 255 of u8."""
    ends = np.iinfo(value_dtype(operation.a))
    return int(ends.min or ends.max)


def largest_product(operation: Operation) -> int:
    """Of two integer operands."""
    return _extreme(operation) ** 2


def _extremes(problem: Problem) -> tuple[Array, Array]:
    """A and B, all of whose products are the largest."""
    value = _extreme(problem.operation)
    return np.full((problem.m, problem.k), value, np.int32), np.full((problem.k, problem.n), value, np.int32)


def _c_of(problem: Problem, seed: int, pattern: str, largest: int) -> Array | None:
    """C (m×n ``int32``), without zeros, or None where nothing reads it."""
    if not largest:
        return None
    if pattern == "positions":
        i, j = np.arange(problem.m, dtype=np.int64)[:, None], np.arange(problem.n, dtype=np.int64)
        return ((2 * i + 3 * j) % 13 + 1).astype(np.int32)
    amplitude = min(largest, FIELD_C) if pattern == "field" else largest
    return _nonzero(problem.m, problem.n, amplitude, _signed(problem.operation.added), 4 * seed + 3)


def _signed(element: ElementType) -> bool:
    return element.name != "u8"


@dataclass(frozen=True)
class _Draw:
    """How large and how fine the inputs of a chain are.

    Attributes:
        added: the largest magnitude of C, R and biases, in units of 2^-``added_bits``.
        added_bits: see there.
        scale_bits: A is in units of 2^-this.
        a, b: largest magnitudes of A, in these, and of B; 0 where Σ|a||b| alone decides.
        terms: how many products of a sum are not 0, at most.
    """

    added: int
    added_bits: int = 0
    scale_bits: int = 0
    a: int = 0
    b: int = 0
    terms: int = 0


def _draw_of(problem: Problem, pattern: str) -> _Draw:
    """What the generator draws; patterns with values of their own are whole."""
    o, most = problem.operation, problem.operation.added.exact_limit
    if o.epilogue.exact:
        return _Draw(min(_ADDED, most))
    if pattern != "auto":
        return _Draw(min(_ADDED_TO_FUNCTIONS, most))
    draw = _whole_operands(problem) if o.acc.integer else _fine_operands(problem)
    if o.added.integer:
        return draw
    if _is_large(problem):
        return replace(draw, added=2, added_bits=1)
    # As fine as what they are added to, as far as the type goes with numbers of this size.
    bits = min(most, 2**30 - 1).bit_length() - _ADDED_TO_FUNCTIONS.bit_length()
    bits = min(bits, _WHOLE_BITS if o.acc.integer else draw.scale_bits)
    return replace(draw, added=_ADDED_TO_FUNCTIONS << bits, added_bits=bits)


def _is_large(problem: Problem) -> bool:
    """Whether what becomes of its elements is looked up; see :func:`span_of`."""
    return problem.m * problem.n >= _LARGE


def _fine_operands(problem: Problem) -> _Draw:
    """Magnitudes of A and B, and the power of two with which their sums are spread as functions want them."""
    o, k = problem.operation, max(problem.k, 1)
    limit = min(o.acc.exact_limit, o.factor.exact_limit, _SUMS_OF_LARGE if _is_large(problem) else 2**62)
    cap = min(o.a.exact_limit, 2**30 - 1)
    terms = min(k, limit // _LEAST_PRODUCT)
    share = limit // terms
    least_b = max(share // min(cap, _LARGEST_PRODUCT), min(share // _LEAST_A, _MOST_B), 1)
    b = min(max(_MOST_B, _LARGEST_PRODUCT // cap), least_b)
    a = min(cap, share // b)
    seen = _typical(a) * _typical(b) * math.sqrt(terms) * _scaled_before(problem)
    bits = min(max(round(math.log2(seen / _SPREAD)), 0), _MOST_BITS[o.factor.name])
    return _Draw(min(_ADDED_TO_FUNCTIONS, o.added.exact_limit), scale_bits=bits, a=a, b=b, terms=terms)


def _typical(most: int) -> float:
    """The root of the mean square of 1 … ``most``."""
    return math.sqrt((most + 1) * (2 * most + 1) / 6)


def _whole_operands(problem: Problem) -> _Draw:
    """Magnitudes of A and B whose whole sums are spread by the scales before a function as that wants them."""
    o, k = problem.operation, max(problem.k, 1)
    draw = _Draw(min(_ADDED_TO_FUNCTIONS, o.added.exact_limit))
    if not o.epilogue.scales_first:
        return draw
    # What is scaled up has to be told apart, too.
    spread = max(round(_SPREAD / _scaled_before(problem)), _SPREAD)
    if _signed(o.a):
        # Terms of both signs add up as the root of their number, those of one sign as their number.
        product, terms = max(3 * spread // math.isqrt(k), 1), spread**2
    else:
        product = max(4 * spread // k, 4)
        terms = max(4 * spread // product, 1)
    cap, limit = o.a.exact_limit, o.factor.exact_limit
    terms = min(k, terms, limit // 4)
    product = min(product, limit // terms)
    a = min(math.isqrt(product), cap)
    return replace(draw, a=a, b=min(product // a, cap), terms=terms)


def _scaled_before(problem: Problem) -> float:
    """By what a call's scales make sums larger before the first step that rounds; of 0, which leaves none, by 1."""
    names = problem.operation.epilogue.scales_first
    factors = (_scale_of(problem, name) if name in SCALES else abs(getattr(problem, name)) for name in names)
    return math.prod(factor or 1.0 for factor in factors)


def _drawn(problem: Problem, seed: int, draw: _Draw) -> tuple[Array, Array]:
    """A, in multiples of 2^-``scale_bits``, and B: rows of A of several sizes, one in some of them 0."""
    p, signed = problem, _signed(problem.operation.a)
    a = _nonzero(p.m, p.k, draw.a, signed, 4 * seed)
    b = _nonzero(p.k, p.n, draw.b, signed, 4 * seed + 1)
    smaller = _in_range(_hashed(p.m, 1, 4 * seed + 2), _ROW_SIZES).astype(np.int32)
    a = np.sign(a) * np.maximum(np.abs(a) >> smaller, 1)
    a[_ROWS_TO_ZERO - 1 :: _ROWS_TO_ZERO] = 0
    return (_thin(a, draw.terms, 4 * seed + 2) if p.k > draw.terms else a), b


def _multiples(values: Array, bits: int) -> Array:
    """Integers as multiples of 2^-``bits``; themselves for 0."""
    if not bits:
        return values
    narrow = values.dtype.itemsize <= 4 and _largest(values) <= F32.exact_limit
    return np.asarray(np.ldexp(values.astype(np.float32 if narrow else np.float64), -bits))


def _units(values: Array, bits: int) -> Array:
    """How many units of 2^-``bits`` values are; integers."""
    return np.ldexp(values, bits).astype(np.int64) if bits else values


def widened(values: Array) -> Array:
    """Values in the dtype in which sums of products of them are exact: ``int64``, of fractions ``float64``."""
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


def _aim(operation: Operation) -> int:
    """Up to where Σ|a||b| goes, as far as it may: beyond, every element might become the same."""
    e, limit = operation.epilogue, operation.factor.exact_limit
    if not e.exact:
        return _SUMS_OF_FUNCTIONS
    if not (e.bounds or (operation.d.bits == _BYTES and not e.scale_names)):
        return limit
    _, scale = _small_scale(operation)
    return min(limit, round(_SUMS_BETWEEN_BOUNDS / scale))


def _small_scale(operation: Operation) -> tuple[str, float]:
    """Which the first scale of a chain of whole sums is, and by what it is multiplied, so that results tell mistakes.

    Sums of u8 have one sign, so those that differ are large. Where nothing is scaled by a name, nothing is: ("", 1.0).
    """
    o, e = operation, operation.epilogue
    if not o.acc.integer or not is_chain(o) or not e.scale_names:
        return "", 1.0
    if not e.exact:
        return (e.scales_first[0], 2.0**-_WHOLE_BITS) if e.scales_first else ("", 1.0)
    if e.bounds:
        return e.scale_names[0], _SMALL_SUMS[o.a.name]
    return e.scale_names[0], _byte_scale(o)


def _byte_scale(operation: Operation) -> float:
    """What makes sums of bytes to bytes again, of all magnitudes; 1 where D is wider."""
    o = operation
    # Bytes without a sign reach twice as far.
    return _BYTE_SCALES[o.a.name] * (1 if _signed(o.d) else 2) if o.d.bits == _BYTES else 1.0


def _most_beside(problem: Problem) -> dict[str, Array]:
    """The largest values that :func:`_beside` may draw, and all scales: what proves a bound for every draw."""
    e, largest = problem.operation.epilogue, np.array([_draw_of(problem, "auto").added, 1])
    scales = {name: np.array(_SCALES) * _scale_of(problem, name) for name in SCALES}
    return {name: scales.get(name, largest) for name in ("r", *VECTORS) if e.has(name)}


def _scale_of(problem: Problem, name: str) -> float:
    """What values of a scale are multiplied by; see :func:`_small_scale`."""
    first, scale = _small_scale(problem.operation)
    if name == first and not problem.operation.epilogue.exact and _is_large(problem):
        scale = _SCALE_OF_LARGE
    return scale if name == first else 1.0


def _beside(problem: Problem, seed: int, draw: _Draw) -> dict[str, Array]:
    """What a chain reads beside A, B and C: no zeros, and scales that are a few powers of two and a 3."""
    p, e, found = problem, problem.operation.epilogue, {}
    signed = _signed(p.operation.added)

    def salt(stream: int) -> int:
        return (4 * seed + 3 + stream * _STREAM) % 2**32

    if e.has("r"):
        found["r"] = _multiples(_nonzero(p.m, p.n, draw.added, signed, salt(1)), draw.added_bits)
    for stream, vector in enumerate(VECTORS, start=2):
        if not e.has(vector):
            continue
        extent = p.m if along_row(vector) else p.n
        if vector in BIASES:
            found[vector] = _multiples(_nonzero(1, extent, draw.added, signed, salt(stream))[0], draw.added_bits)
        else:
            # A step of 1 to 5 from each to the next.
            steps = 1 + _in_range(_hashed(1, extent, salt(stream)), len(_SCALES) - 1)[0]
            found[vector] = np.array(_SCALES)[np.cumsum(steps) % len(_SCALES)] * _scale_of(p, vector)
    return found


def _field(problem: Problem, seed: int) -> tuple[Array, Array]:
    """The published pattern of the field: A in [-3, 3], B in [-2, 2], zeros included."""

    def within(rows: int, cols: int, amplitude: int, salt: int) -> Array:
        return (_in_range(_hashed(rows, cols, salt), 2 * amplitude + 1) - amplitude).astype(np.int32)

    return within(problem.m, problem.k, FIELD_A, 4 * seed), within(problem.k, problem.n, FIELD_B, 4 * seed + 1)


def _largest(values: Array, axis: int | None = None) -> int:
    """The largest sum of |values| along ``axis``, or the largest |value| for None; 0 where there is none."""
    if not values.size:
        return 0
    if axis is None:
        return max(int(values.max()), -int(values.min()))
    rows, cols = values.shape
    sums = np.zeros(rows if axis else cols, np.int64)
    lock = threading.Lock()

    def some(first: int, end: int) -> None:
        # int64 also takes the magnitude of the lowest int32; the values are far from the lowest int64.
        part = np.abs(values[first:end].astype(np.int64)).sum(axis)
        if axis:
            sums[first:end] = part
        else:
            with lock:
                sums[:] += part

    over_rows(rows, cols, some)
    return int(sums.max())


def cheap_bound(a: Array, b: Array) -> int:
    """An upper bound of every sum of |a||b|: the largest row of |A| times max |B|, or column of |B| times max |A|."""
    return min(_largest(a, 1) * _largest(b), _largest(a) * _largest(b, 0))


def tight_bound(a: Array, b: Array) -> int:
    """The largest sum of |a||b| over all elements of the product, exactly.

    Raises:
        ConfigError: the sums do not fit into int64.
    """
    wide_a, wide_b = np.abs(a.astype(np.int64)), np.abs(b.astype(np.int64))
    return _largest(_multiply(wide_a, wide_b, cheap_bound(a, b)))


def _check_seed(seed: int) -> None:
    if not 0 <= seed <= MAX_SEED:
        raise ConfigError(f"seed = {seed} is no seed", f"give 0 to {MAX_SEED}")


def _seal(
    problem: Problem,
    a: Array,
    b: Array,
    c: Array | None,
    pattern: str,
    bound: int,
    beside: Mapping[str, Array] | None = None,
    scale_bits: int = 0,
) -> Inputs:
    """Inputs whose arrays cannot change any more, so that what was proved for them stays true."""
    beside = beside or {}
    for values in (a, b, c, *beside.values()):
        if values is not None:
            values.setflags(write=False)
    return Inputs(problem, a, b, pattern, bound, _limit_beside(problem, c, beside), c, beside, scale_bits)


def _limit_beside(problem: Problem, c: Array | None, beside: Mapping[str, Array]) -> int:
    """:func:`sum_limit` beside these; functions round whatever is added, so there it does not count."""
    return sum_limit(problem, _largest(c) if c is not None and problem.operation.epilogue.exact else 0, beside)


def _require_known(operation: Operation) -> None:
    """Refuse what the reference has no semantics for: factors are floats, and leave no integer exact."""
    o, acc, d = operation, operation.acc, operation.d
    if o.epilogue.steps and (d.name not in RESULTS.get(acc.name, ()) or (d.integer and d == acc)):
        raise NotGeneratedYet(
            f"the reference knows epilogue={o.epilogue} from f16 and f32 to f16, bf16 and f32, from f64 to "
            f"f64 and from s32 to these and to bytes, not from {acc.name} to {d.name}",
            "use epilogue=none, or epilogue=linear to another type",
        )


def demand(problem: Problem, pattern: str) -> None:
    """Return where :func:`exact_inputs` has inputs for ``problem``, without making any.

    Raises:
        ConfigError, NotGeneratedYet: as :func:`exact_inputs`.
    """
    _require_known(problem.operation)
    for element in (problem.operation.a, problem.operation.d):
        require_bytes(element)
    if pattern not in PATTERNS:
        raise ConfigError(f"pattern {pattern!r} is not known", "patterns: " + " ".join(PATTERNS))
    if pattern == "field" and problem.operation.a.name == "u8":
        raise ConfigError("pattern 'field' has negative values, u8 has none", "use pattern 'auto'")
    if pattern == "extremes" and not problem.operation.a.integer:
        raise ConfigError(
            f"pattern 'extremes' is of integers, {problem.operation.a.name} is none", "use pattern 'auto'"
        )
    _largest_c(problem, _draw_of(problem, pattern).added)


def exact_inputs(problem: Problem, *, seed: int = 0, pattern: str = "auto") -> Inputs:
    """Operands whose sums are exact in any order, with the proof: integers, and for functions fractions.

    ``auto`` takes the largest magnitudes that K, the accumulator and D allow, without zeros; where K is longer than
    the accumulator can count it thins out the rows of A. Where a chain has functions, sums are multiples of a small
    power of two, of several sizes up to some tens, in some rows 0. ``field`` is the published pattern of the field,
    bounded by 6K; with an f16 accumulator it is not guaranteed beyond K = 341. ``positions`` is A[i, k] = (3i + k) % 7
    and B[k, j] = (k + 5j) % 11, bounded by its own values. ``extremes`` is the largest product of an integer type,
    everywhere: with K = 131,072, sums of s8 are 2^31. C, where it is read, has no zeros in any of them.

    Args:
        problem: sizes, types and factors.
        seed: another seed, other values; 0 to 2^30 - 1. ``positions`` has one set of values.
        pattern: one of :data:`PATTERNS`.

    Raises:
        ConfigError: no such pattern or seed, a pattern that the operand type cannot hold, a sub-byte type, or factors
            with which hardly any inputs would be exact.
        NotGeneratedYet: an epilogue with factors on types for which it is not defined.
    """
    _check_seed(seed)
    demand(problem, pattern)
    draw = _draw_of(problem, pattern)
    most = _largest_c(problem, draw.added)
    c, beside = _c_of(problem, seed, pattern, most), _beside(problem, seed, draw)
    if pattern == "field":
        a, b = _field(problem, seed)
        # The published bound, not the smaller one of these values: what is guaranteed must not depend on the seed.
        return _seal(problem, a, b, c, pattern, FIELD_A * FIELD_B * problem.k, beside)
    limit = sum_limit(problem, most, _most_beside(problem))
    if pattern == "positions":
        a, b = _positions(problem)
        return _seal(problem, a, b, c, pattern, _proved_bound(a, b, limit), beside)
    if pattern == "extremes":
        a, b = _extremes(problem)
        return _seal(problem, a, b, c, pattern, cheap_bound(a, b), beside)
    if limit < LEAST_ROOM and is_chain(problem.operation):
        raise ConfigError(
            f"epilogue={problem.operation.epilogue}: for every step to stay exact in f32, and D finite in "
            f"{problem.operation.d.name}, sums of |a||b| may reach {max(limit, 0)} only",
            f"inputs that show mistakes need {LEAST_ROOM}: smaller numbers in expressions and factors, smaller sizes "
            "where row or col is multiplied, or d=f32",
        )
    if draw.a:
        a, b = _drawn(problem, seed, draw)
    else:
        aim = _aim(problem.operation) if is_chain(problem.operation) else limit
        a, b = _auto(problem, seed, min(limit, aim))
    bound, c = cheap_bound(a, b), None if c is None else _multiples(c, draw.added_bits)
    inputs = _seal(problem, _multiples(a, draw.scale_bits), b, c, pattern, bound, beside, draw.scale_bits)
    if not inputs.guaranteed:
        raise AssertionError(f"{inputs}: the generator chose magnitudes that it cannot prove")
    return inputs


def combined(of_a: Inputs, of_b: Inputs, of_c: Inputs, beside: Mapping[str, Array] | None = None) -> Inputs:
    """A of one draw of a problem, B of another and C of a third, with the bound of them together.

    The published bound of ``field`` holds for all of its draws.

    Args:
        beside: what else the epilogue reads, of whatever draws; that of A's draw where it is None.
    """
    problem, a, b, c = of_a.problem, of_a.a, of_b.b, of_c.c
    beside = of_a.beside if beside is None else beside
    if of_a is of_b is of_c and all(beside[name] is values for name, values in of_a.beside.items()):
        return of_a
    if of_a.pattern == "field":
        return _seal(problem, a, b, c, of_a.pattern, of_a.bound, beside)
    bits = of_a.scale_bits
    bound = _proved_bound(_units(a, bits), b, _limit_beside(problem, c, beside))
    return _seal(problem, a, b, c, of_a.pattern, bound, beside, bits)


def given_inputs(
    problem: Problem, a: Array, b: Array, c: Array | None = None, beside: Mapping[str, Array] | None = None
) -> Inputs:
    """A caller's own integers as operands; the bound is proved from them.

    Args:
        problem: sizes, types and factors.
        a: m×k integers.
        b: k×n integers.
        c: m×n integers, where the epilogue reads C; None where it does not.
        beside: what else a chain reads, by its names; see :class:`Inputs`.

    Raises:
        ConfigError: another shape, no integers, a value that its type does not hold exactly, or a C that is not read or
            is missing.
        NotGeneratedYet: an epilogue with factors on types for which it is not defined.
    """
    _require_known(problem.operation)
    p, o = problem, problem.operation
    if (c is None) is p.reads_c:
        raise ConfigError("C is given exactly where it is read: not where beta is 0", "give C, or leave it out")
    beside = beside or {}
    read = {name for name in ("r", *VECTORS) if o.epilogue.has(name)}
    if read != beside.keys():
        raise ConfigError(f"epilogue={o.epilogue} reads {sorted(read)}, and {sorted(beside)} was given", "give these")
    _require_exact("A", a, (p.m, p.k), o.a)
    _require_exact("B", b, (p.k, p.n), o.a)
    if c is not None:
        _require_exact("C", c, (p.m, p.n), o.added)
        c = c.astype(np.int64)
    wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
    bound = _proved_bound(wide_a, wide_b, _limit_beside(problem, c, beside))
    return _seal(problem, wide_a, wide_b, c, "given", bound, beside)


def _require_exact(word: str, values: Array, shape: tuple[int, int], element: ElementType) -> None:
    if values.shape != shape:
        raise ConfigError(f"{word} is {list(values.shape)}, the problem wants {list(shape)}")
    if not np.issubdtype(values.dtype, np.integer):
        raise ConfigError(f"{word} holds {values.dtype}, exact inputs are integers")
    if not np.array_equal(decode(encode(values, element), element).astype(np.float64), values.astype(np.float64)):
        raise ConfigError(f"{word} has a value that {element.name} does not hold exactly")


def _proved_bound(a: Array, b: Array, limit: int) -> int:
    """A bound of every sum of |a||b|: the cheap one where it is within ``limit``, else the tight one."""
    bound = cheap_bound(a, b)
    return bound if bound <= limit else tight_bound(a, b)


def normal_inputs(problem: Problem, seed: int = 0) -> tuple[Array, ...]:
    """Normal-distributed A (m×k), B (k×n) and what the epilogue reads, for timing; matrices m×n, vectors of one row.

    Every value is representable in its type. Floating types have mean 0 and deviation 1. 8-bit integers have deviation
    32, u8 around 128, cut at the ends of the type.

    Raises:
        ConfigError: no such seed, or a sub-byte type.
    """
    _check_seed(seed)
    o = problem.operation
    rng = np.random.default_rng(seed)

    def draw(rows: int, cols: int, element: ElementType) -> Array:
        target = value_dtype(element)
        values: Array = rng.standard_normal((rows, cols), np.float64 if element.bits == 64 else np.float32)
        if element.integer:
            ends = np.iinfo(target)
            middle = 128.0 if element.name == "u8" else 0.0
            return np.clip(np.rint(values * _INT_SIGMA + middle), ends.min, ends.max).astype(target)
        if element.name == "tf32":
            return _to_tf32(values)
        return decode(encode(values, element), element)

    p = problem
    vectors = (draw(1, p.m if along_row(vector) else p.n, o.vector_type(vector)) for vector in o.epilogue.vectors)
    matrices = (draw(p.m, p.n, o.added) for _ in o.epilogue.matrices)
    return draw(p.m, p.k, o.a), draw(p.k, p.n, o.a), *matrices, *vectors


def unrounded(values: Array, element: ElementType, stream: int) -> Array:
    """What lies in memory where a kernel has to round operands: floats that it makes ``values`` of, zeros as they are.

    Each is moved by up to half a step of ``element``, to both sides and as far as the ties, which go away from zero.
    So a kernel that cuts off what is too long is wrong in about half of them.

    Args:
        values: rows × cols, exact in ``element``.
        element: their type; where nothing is to be rounded, the values themselves.
        stream: another one, other floats.
    """
    if not element.rounded:
        return values
    exact = values.astype(np.float32)
    # 13 bits of f32 are beyond tf32: from half a step below in magnitude to just below half a step above.
    rows, cols = exact.shape
    beyond = (_hashed(rows, cols, stream) & np.uint32(0x1FFF)) - np.uint32(0x1000)
    moved = np.where(exact == 0, np.uint32(0), exact.view(np.uint32) + beyond).view(np.float32)
    if not np.array_equal(rounded_to_tf32(moved), exact):
        raise AssertionError("floats were made that do not round to their integers")
    return moved


def rounded_to_tf32(values: Array) -> Array:
    """Finite ``float32`` values rounded as cvt.rna.tf32.f32 does: to nearest, ties away from zero."""
    return ((values.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def _to_tf32(values: Array) -> Array:
    """Finite ``float32`` values rounded to the 11 bits of significand of tf32, ties to even; 13 bits are dropped."""
    wide = values.view(np.uint32)
    kept = (wide + np.uint32(0xFFF) + ((wide >> 13) & 1)) & np.uint32(0xFFFFE000)
    return kept.view(np.float32)


# ---------------------------------------------------------------------------------------------------------------------
# The exact result.


def _multiply(a: Array, b: Array, bound: int) -> Array:
    """A·B as ``int64``, exactly, given that no sum of |a||b| exceeds ``bound``.

    BLAS may sum in any order and fuse as it likes: every partial sum is an integer of at most ``bound``, which
    float32 holds exactly up to 2^24 and float64 up to 2^53.

    Raises:
        ConfigError: the sums may not fit into int64.
    """
    if bound <= 2**24:
        return np.asarray(np.matmul(a.astype(np.float32), b.astype(np.float32))).astype(np.int64)
    if bound <= 2**53:
        return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(np.int64)
    if bound < 2**63:
        return np.asarray(np.matmul(a.astype(np.int64), b.astype(np.int64)))
    raise ConfigError(f"sums of |a||b| reach {bound}, beyond 64-bit integers", "use smaller values")


def product(inputs: Inputs) -> Array:
    """The exact product A·B, m×n: ``int64``, or ``float64`` where it is in multiples of a power of two.

    Raises:
        ConfigError: the proved bound does not fit into int64.
    """
    bits = inputs.scale_bits
    sums = _multiply(np.ldexp(inputs.a, bits) if bits else inputs.a, inputs.b, inputs.bound)
    return np.ldexp(sums.astype(np.float64), -bits) if bits else sums


def whole(inputs: Inputs) -> dict[str, Array]:
    """What a chain reads beside sums and C, so that it broadcasts with m×n."""
    p = inputs.problem
    found = {name: v[:, None] if along_row(name) else v for name, v in inputs.beside.items()}
    return {**found, "row": np.arange(p.m)[:, None], "col": np.arange(p.n)}


def beside_at(inputs: Inputs, rows: Array, cols: Array) -> dict[str, Array]:
    """The same at some elements of D."""
    found = {"row": rows, "col": cols}
    for name, values in inputs.beside.items():
        found[name] = values[rows, cols] if name == "r" else values[rows if along_row(name) else cols]
    return found


def _chain_values(problem: Problem, sums: Array, c: Array | None, beside: Mapping[str, Array]) -> dict[str, Array]:
    """Everything that the formulas of a chain read, as ``float64``."""
    p = problem
    values = {name: np.asarray(getattr(p, name), np.float64) for name in p.operation.epilogue.scalars}
    values |= {name: np.asarray(v, np.float64) for name, v in beside.items()}
    # An alpha of 0 reads nothing, so what it scales is a sum of nothing; a C that is not read has no value.
    return {
        **values,
        "acc": np.asarray(sums if p.alpha else 0 * sums, np.float64),
        "c": np.asarray(0 if c is None else c, np.float64),
    }


def between(problem: Problem, sums: Array, c: Array | None, beside: Mapping[str, Array]) -> Between:
    """Between which values right evaluations of a chain end, as :mod:`wmmagen.rounding` proves; ``float64``."""
    values = {name: Between(v, v) for name, v in _chain_values(problem, sums, c, beside).items()}
    o = problem.operation
    found = _through(problem, Doubles() if o.factor == F64 else Singles(precise(o.d)), values)
    assert isinstance(found, Between)
    return found


def finish(problem: Problem, sums: Array, c: Array | None = None, beside: Mapping[str, Array] | None = None) -> Array:
    """What the epilogue makes of exact sums, before the one rounding.

    Without factors the sums themselves. With them alpha·sums + beta·c in ``float64``, with IEEE's signs of zero: a
    beta of 0 leaves out C, and an alpha of 0 leaves out the sums. Exact for inputs within their bound.

    Args:
        problem: its factors.
        sums: exact sums over K, as :func:`product` has them, any shape.
        c: the elements of C beside them, of a shape that broadcasts; None where C is not read.
        beside: what else a chain reads, of shapes that broadcast; of a function in it, this is the float64 value.
    """
    if problem.operation.acc.integer:
        sums = _held(sums, problem.operation)
    if is_chain(problem.operation):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return np.asarray(_through(problem, Reals(), _chain_values(problem, sums, c, beside or {})))
    if not problem.operation.scaled:
        return sums
    alpha, beta = np.float64(problem.alpha), np.float64(problem.beta)
    if c is None:
        # An alpha of 0 reads nothing, so what it scales is a sum of nothing: +0.
        return np.asarray(alpha * (sums if problem.alpha else 0 * sums).astype(np.float64))
    scaled = np.broadcast_to(beta * c.astype(np.float64), np.broadcast_shapes(sums.shape, c.shape))
    return np.asarray(alpha * sums.astype(np.float64) + scaled if problem.alpha else scaled)


def _held(sums: Array, operation: Operation) -> Array:
    """Exact sums as an integer accumulator holds them in the end; ``int64``."""
    ends = np.iinfo(value_dtype(operation.acc))
    if operation.overflow is Overflow.SATURATE:
        return np.clip(sums, ends.min, ends.max)
    return sums.astype(value_dtype(operation.acc)).astype(np.int64)


def round_once(exact: Array, element: ElementType) -> Array:
    """Exact values as D holds them, in the dtype of ``layout.value_dtype(element)``.

    Args:
        exact: any shape; ``int64``, or ``float64`` from :func:`finish`.
        element: D's type.

    Floating types round once to nearest, ties to even, and overflow to infinity. Integers of integers wrap, as the
    accumulators do: mma_sync saturates only when asked (CUDA C++ Programming Guide, Warp Matrix Functions). Integers of
    what was scaled are rounded to nearest, ties to even, and held at the ends of their type.
    """
    if element.integer and exact.dtype == np.float64:
        ends = np.iinfo(value_dtype(element))
        return np.clip(np.rint(exact), ends.min, ends.max).astype(value_dtype(element))
    if element.integer:
        return exact.astype(value_dtype(element))
    if element.name == "f64":
        return exact.astype(np.float64)
    if element.bits == 32:
        with np.errstate(over="ignore"):  # to infinity, which whoever asked is told in words
            return exact.astype(np.float32)  # the integer itself: through float64 it would round twice beyond 2^53
    # f16 is infinite where float64 begins to round; bf16 passes float32, exact for all that f32 counts.
    return decode(encode(exact.astype(np.float64), element), element)


@dataclass(frozen=True, eq=False)
class Span:
    """Where D of a chain with functions must lie: m×n each.

    Rounding to D's type is monotone, so whatever f32 value between two others a kernel rounds, it ends between theirs.

    Attributes:
        element: D's type.
        value: in ``float64``, before any rounding.
        low, high: the least and the largest right element of D, as ``float64``; the correctly rounded value is right,
            too, also where no evaluation of the formula in f32 gives it.
    """

    element: ElementType
    value: Array
    low: Array
    high: Array

    @property
    def ulps(self) -> float:
        """How far the farthest right element lies from its ``float64`` value, in ulp of D; 0 for no element."""
        far = np.maximum(self.high - self.value, self.value - self.low)
        return float((far / ulp(self.value, self.element)).max(initial=0.0))

    def seen(self, got: Array) -> float:
        """How far the farthest element of ``got``, finite values of D, lies from its ``float64`` value, in ulp of D."""
        farthest = []

        def some(first: int, end: int) -> None:
            value = self.value[first:end]
            far = np.abs(got[first:end].astype(np.float64) - value) / ulp(value, self.element)
            farthest.append(float(far.max(initial=0.0)))

        over_rows(len(got), got.size // max(len(got), 1), some)
        return max(farthest, default=0.0)

    def holds(self, got: Array) -> Mask:
        """Which elements of ``got`` are right; NaN is not."""
        if got.shape != self.low.shape:
            return np.asarray((self.low <= got) & (got <= self.high))
        found = np.empty(got.shape, np.bool_)

        def some(first: int, end: int) -> None:
            part = got[first:end].astype(np.float64)
            found[first:end] = (self.low[first:end] <= part) & (part <= self.high[first:end])

        over_rows(len(got), got.size // max(len(got), 1), some)
        return found


def span_of(
    problem: Problem, sums: Array, c: Array | None, beside: Mapping[str, Array], tanh_error: float = 0.0
) -> Span:
    """What a chain with functions may make of exact sums.

    Large ones are made of few different numbers: what a chain makes of each choice of them is looked up.

    Args:
        sums, c, beside: as for :func:`finish`.
        tanh_error: relative, of what computes a GELU by tanh in the last step: x/2·(1 + tanh(y)) is off by |x|/2 times
            it at most, for tanh(y) is no more than 1.
    """
    read = {name: values for name, values in beside.items() if problem.operation.epilogue.has(name)}
    told = _Told.of(sums, {"c": c, **read}) if sums.size >= _LARGE else None
    if told is None:
        return _span_of(problem, sums, c, beside, tanh_error)
    each = {name: told.each(name) for name in ("c", *read)}
    other_c = each.pop("c")
    span = _span_of(problem, told.sums, None if c is None else other_c, each, tanh_error)
    low, high, value = (told.spread(values) for values in (span.low, span.high, span.value))
    return Span(span.element, value, low, high)


#: Choices of numbers of which a table is made.
_MOST_CHOICES = 1 << 19


@dataclass(frozen=True, eq=False)
class _Told:
    """Every choice of the numbers that elements are made of, in a fixed order, and which one an element is.

    Attributes:
        values: the different numbers, by name; the sums are named "".
        index: of each element's choice.
    """

    values: Mapping[str, Array]
    index: Array

    @classmethod
    def of(cls, sums: Array, read: Mapping[str, Array | None]) -> _Told | None:
        """The choices of what the elements of ``sums`` read; None where they are too many."""
        values: dict[str, Array] = {}
        index: Array = np.zeros(sums.shape, np.int32)
        for name, held in {"": sums, **read}.items():
            if held is None:
                values[name] = np.zeros(1)
                continue
            numbers, places = _different(np.asarray(held))
            values[name] = numbers
            if math.prod(v.size for v in values.values()) > _MOST_CHOICES:
                return None
            index *= np.int32(numbers.size)
            index += places
        return cls(values, index)

    def each(self, name: str) -> Array:
        """One of the numbers in every choice."""
        sizes = [v.size for v in self.values.values()]
        place = list(self.values).index(name)
        repeats, turns = math.prod(sizes[place + 1 :]), math.prod(sizes[:place])
        return np.tile(np.repeat(self.values[name], repeats), turns)

    @property
    def sums(self) -> Array:
        return self.each("")

    def spread(self, values: Array) -> Array:
        """What was made of each choice, for every element."""
        return np.take(np.broadcast_to(values, math.prod(v.size for v in self.values.values())), self.index)


def _different(held: Array) -> tuple[Array, Array]:
    """The numbers among which all of ``held`` are, and the place of each; multiples of a unit need no sorting."""
    low, high = held.min().item(), held.max().item()
    bits = next((bits for bits in range(_WHOLE_BITS + 1) if _are_whole(np.ldexp(held[:1], bits))), 0)
    steps = math.ldexp(high - low, bits)
    if steps < _MOST_CHOICES:
        places = np.ldexp(held.astype(np.float64) - low, bits).astype(np.int32)
        if held.dtype.kind in "iu" or np.array_equal(low + np.ldexp(places, -bits), held):
            return np.ldexp(np.arange(int(steps) + 1), -bits) + low, places
    numbers, places = np.unique(held, return_inverse=True)
    return numbers, places.astype(np.int32).reshape(held.shape)


def _are_whole(values: Array) -> bool:
    return bool((values == np.rint(values)).all())


def _span_of(problem: Problem, sums: Array, c: Array | None, beside: Mapping[str, Array], tanh_error: float) -> Span:
    d, found, value = problem.operation.d, between(problem, sums, c, beside), finish(problem, sums, c, beside)
    if d.integer:
        # What is held at the ends of D's type is no error.
        limits = np.iinfo(value_dtype(d))
        value = np.clip(value, limits.min, limits.max)
    more = np.zeros(1)
    if tanh_error:
        e = problem.operation.epilogue
        before = problem.doing(replace(problem.operation, epilogue=e.with_steps(e.steps[:-1])))
        more = np.abs(finish(before, sums, c, beside).astype(np.float64)) / 2 * tanh_error
    ends = (found.low - more, found.high + more, value)
    low, high, near = (round_once(end, d).astype(np.float64) for end in ends)
    return Span(d, value, np.minimum(low, near), np.maximum(high, near))


def expected(inputs: Inputs) -> Array | Span:
    """D as it must be, m×n: the exact result rounded once to D's type; bf16 values are held in ``float32``.

    Of a chain with functions, where it must lie. That has to be finite.

    Raises:
        ConfigError: the proved bound does not fit into int64.
    """
    p = inputs.problem
    # With an alpha of 0 neither A nor B is read, and their product is of no interest.
    sums = product(inputs) if p.alpha else np.zeros((p.m, p.n), np.int64)
    if p.operation.epilogue.exact:
        return round_once(finish(p, sums, inputs.c, whole(inputs)), p.operation.d)
    span = span_of(p, sums, inputs.c, whole(inputs))
    if not (np.isfinite(span.low) & np.isfinite(span.high)).all():
        raise ConfigError(
            f"epilogue={p.operation.epilogue} makes infinities or NaN of these inputs, in {p.operation.d.name}",
            f"a formula that stays finite for sums up to {np.abs(sums).max(initial=0):.3g}, a wider d, or other "
            "numbers for factors and bounds",
        )
    return span


def restrict(inputs: Inputs, rows: Array, cols: Array) -> Inputs:
    """The inputs of some rows and columns of D (indices); what is proved for all of them holds for these."""
    smaller = replace(inputs.problem, m=rows.size, n=cols.size)
    c = None if inputs.c is None else inputs.c[np.ix_(rows, cols)]
    return replace(inputs, problem=smaller, a=inputs.a[rows], b=inputs.b[:, cols], c=c)


# ---------------------------------------------------------------------------------------------------------------------
# Problems to validate on.


#: Slices of K of the longest checked problem where K is split; each costs time on a machine without a GPU.
_MOST_SHARED = 48
#: Factors that a linear epilogue is checked with: plain, odd and negative, without C, without A and B, a fraction.
FACTORS = ((1.0, 1.0), (2.0, -3.0), (1.0, 0.0), (0.0, 2.0), (-1.0, 0.5))
#: What alpha is a multiple of where D is s8, by the type of A and B: with it most sums of the checked problems end
#: within the type, some of them on ties, and some beyond its ends. Sums of u8 have one sign.
_BYTE_SCALES = {"s8": 2.0**-9, "u8": 2.0**-14}
#: The same beside bounds, where sums are small: how much smaller results are.
_SMALL_SUMS = {"s8": 1.0, "u8": 2.0**-6}
_BYTES = 8
#: What other numbers of a call a chain is checked with: scales, and bounds between which some elements lie.
_CALLS = {"scale": (0.5, -1.5, 2.0), "low": (-6.0, -50.0, -1.5), "high": (80.0, 75.0, 20.0)}


@dataclass(frozen=True)
class Units:
    """Of how many elements the leading dimensions of checked calls are odd multiples.

    Odd, so that nothing wider than a unit is aligned in every row: a copy that is wider than promised faults.

    Attributes:
        a, b: of A and of B.
        d: of C and of D.
    """

    a: int
    b: int
    d: int


def wide_units(operation: Operation) -> Units:
    """16 elements, and 32 bytes: multiples of these every reading of the guide accepts."""
    operand, result = (max(16, 256 // element.bits) for element in (operation.a, operation.d))
    return Units(operand, operand, result)


def problems_for(
    operation: Operation,
    block_m: int,
    block_n: int,
    block_k: int,
    stages: int,
    *,
    units: Units | None = None,
    raster: Raster = LINEAR,
    splits: int = 1,
) -> tuple[Problem, ...]:
    """The hostile set for a variant that takes multiples of its block tile.

    At least two blocks each way, three where blocks go in groups, the last of which is then a part of one; M, N and K
    all different; K of one slice, and of one less than the pipeline holds, as many, and one more; leading dimensions
    above the extents and all different, so that none stands for another; and one packed problem. An epilogue with
    factors gets those of :data:`FACTORS` in turn, over more problems where there are fewer than factors.

    Where K is split, other numbers of slices take the place of these: one, which leaves all splits but the first
    without any; one for each and one more; and a whole pipeline for each and one more.

    A group of three block rows or more is longer than these problems: a further one has a whole group and a part of
    another.

    Args:
        operation: what is computed.
        block_m, block_n, block_k: extents of the block tile, in elements.
        stages: K slices in flight.
        units: what leading dimensions are odd multiples of, but for the packed problem's; :func:`wide_units` if None.
        raster: the order of blocks.
        splits: blocks that share a tile of D along K.
    """
    counts = _slice_counts(stages, splits)
    longest = max(counts) if splits == 1 else splits + 1
    if operation.scaled:
        # The longer ones twice: they are those that see the whole pipeline.
        counts += counts[::-1][: max(0, len(FACTORS) - 1 - len(counts))]
    units = units or wide_units(operation)
    blocks = _Blocks(block_m, block_n, raster)
    spaced = [spaced_problem(operation, *blocks.extents(count * block_k), count * block_k, units) for count in counts]
    spaced += [spaced_problem(operation, m, n, k, units) for m, n, k in blocks.several_groups(block_k)]
    # Where rows are packed, extents are leading dimensions, and a strict reading wants 256 bits of them.
    even = 256 // min(operation.a.bits, operation.d.bits)
    k = math.lcm(block_k, even)
    k *= -(-longest * block_k // k)
    packed = Problem.packed(operation, *blocks.extents(k, even), k)
    return _with_factors((*spaced, packed))


def _slice_counts(stages: int, splits: int) -> list[int]:
    """Of how many slices the K of a checked problem is, the fewest first."""
    if splits == 1:
        return sorted({1, stages - 1, stages, stages + 1} - {0})
    each = [1, stages + 1] if splits * (stages + 1) <= _MOST_SHARED else [1]
    return [1, *(splits * share + 1 for share in each)]


#: By how much the sizes of ragged problems miss whole block tiles: by one element and by one less than a copy of 16
#: bytes, to either side; and by a whole copy, which leaves no part of one.
_MISSES = ((-1, 1, -1), (1, -1, 1), (-7, 7, 7), (7, -7, -7), (-8, 8, -8))


def ragged(problems: Sequence[Problem], blocks: tuple[int, int, int], units: Units) -> tuple[Problem, ...]:
    """The hostile set for a variant that takes all sizes, made of that for multiples of its block tile.

    Each problem misses whole tiles in every extent, in turn by another number of elements; the last one, which is
    packed, stays what it is. One more, but where they become batches, is whole along K, and as long as any: there,
    blocks at an edge of D copy up to the end of A and B as inner ones do. Three more are smaller than a block tile: one
    of a single row, one of a single column, and one of a single element. All have leading dimensions above the extents.

    Args:
        problems: as :func:`problems_for` makes them.
        blocks: extents of the block tile, in elements.
        units: what leading dimensions are odd multiples of.
    """
    *spaced, packed = problems
    block_m, block_n, block_k = blocks
    sizes = [
        (p.m + m, p.n + n, max(p.k + k, 1)) for p, (m, n, k) in zip(spaced, itertools.cycle(_MISSES), strict=False)
    ]
    # Not of a batch, whose kernels copy alike: each further problem of it would be several.
    sizes += [] if packed.operation.batched else [(block_m + 5, block_n + 3, max(p.k for p in spaced))]
    sizes += [(1, block_n + 3, 2 * block_k + 5), (block_m + 3, 1, 3), (1, 1, 1)]
    return (*_with_factors(tuple(spaced_problem(packed.operation, *size, units) for size in sizes)), packed)


def _with_factors(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    e = problems[0].operation.epilogue
    o = problems[0].operation
    scaled = {
        name: [v * _scale_of(problems[0], name) for v in values] for name, values in _CALLS.items() if e.has(name)
    }
    calls = {name: itertools.cycle(values) for name, values in scaled.items()}
    given: list[dict[str, Any]] = [{name: next(turn) for name, turn in calls.items()} for _ in problems]
    problems = tuple(replace(p, **numbers) for p, numbers in zip(problems, given, strict=True))
    if not e.scaled:
        return problems
    scale = _scale_of(problems[0], "alpha") if is_chain(o) else _byte_scale(o)
    turns = itertools.cycle((scale * alpha, beta) for alpha, beta in FACTORS)
    return tuple(replace(p, alpha=alpha, beta=beta) for p, (alpha, beta) in zip(problems, turns, strict=False))


@dataclass(frozen=True)
class _Blocks:
    """Block tiles in their order, from which the extents of D follow."""

    block_m: int
    block_n: int
    raster: Raster

    def extents(self, k: int, even: int = 1) -> tuple[int, int]:
        """A small m×n of several blocks each way, multiples of ``even``, with m, n and k all different."""
        least = 2 if self.raster.order is Order.LINEAR else 3
        step_m, step_n = math.lcm(self.block_m, even), math.lcm(self.block_n, even)
        first_m, first_n = (
            -(-least * block // step) * step for block, step in ((self.block_m, step_m), (self.block_n, step_n))
        )
        pairs = ((first_m + x * step_m, first_n + y * step_n) for x in range(4) for y in range(4))
        distinct = [(m, n) for m, n in pairs if len({m, n, k}) == 3]
        return min(distinct, key=lambda pair: (self._in_whole_groups(*pair), pair[0] * pair[1], pair))

    def several_groups(self, block_k: int) -> list[tuple[int, int, int]]:
        """An m×n×k of a whole group and two blocks of another, where no smaller problem has more than one group."""
        width = self.raster.width
        if width <= 2:
            return []
        along, across = width + 2, 3
        down, right = (along, across) if self.raster.order is Order.GROUPED else (across, along)
        m, n = down * self.block_m, right * self.block_n
        if m == n:
            m, n = (m, n + self.block_n) if self.raster.order is Order.GROUPED else (m + self.block_m, n)
        return [(m, n, next(k for k in itertools.count(block_k, block_k) if k not in (m, n)))]

    def _in_whole_groups(self, m: int, n: int) -> bool:
        """Whether the blocks leave no part of a group or panel over; an ``even`` step may leave no other choice."""
        if self.raster.order is Order.LINEAR:
            return False
        count = m // self.block_m if self.raster.order is Order.GROUPED else n // self.block_n
        return count % self.raster.width == 0


def spaced_problem(operation: Operation, m: int, n: int, k: int, units: Units) -> Problem:
    """A problem whose leading dimensions are odd multiples of the units, above the extents and all different."""
    chosen: list[int] = []
    lines = [
        (k if operation.a_row_major else m, units.a),
        (n if operation.b_row_major else k, units.b),
        (n if operation.d_row_major else m, units.d),
        *((n if operation.c_row_major else m, units.d) for _ in operation.epilogue.matrices),
    ]
    for extent, unit in lines:
        # A gap of 16 elements at least: a narrow one could be stepped over.
        ld = ((extent + max(unit, 16) - 1) // unit | 1) * unit
        while ld in chosen or ld < extent + max(unit, 16):
            ld += 2 * unit
        chosen.append(ld)
    lda, ldb, ldd, *others = chosen
    read = {f"ld{matrix}": ld for matrix, ld in zip(operation.epilogue.matrices, others, strict=True)}
    return Problem(operation, m, n, k, lda, ldb, ldd, **read, beta=1.0 if operation.scaled else 0.0)
