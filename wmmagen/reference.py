"""What is right: inputs whose sums are exact in any order, and their exact product.

A and B hold integers. As long as the sum of |a||b| over K stays within what the accumulator counts exactly, every
partial sum is exact in every order, so each tile order, split, architecture and library gives the same bits, and any
difference is a bug. There is no tolerance. The bounds (IEEE 754: integers up to 2^p are exact in a significand of p
bits):

    f16 2^11    bf16 2^8    f32 2^24    f64 2^53    s32 2^31 - 1 (K < 2^17 for s8)

The generator proves the bound on the arrays that it returns. The reference itself is computed in float32, float64 or
int64, whichever counts exactly up to the proved bound; never in half precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from wmmagen.config import Epilogue, Operation, Problem
from wmmagen.dtypes import ElementType
from wmmagen.errors import ConfigError, NotGeneratedYet
from wmmagen.layout import Array, decode, encode, require_bytes, value_dtype

#: The largest finite f16, from IEEE 754 binary16: (2 - 2^-10) · 2^15.
F16_MAX = 65_504
#: Largest magnitudes in the field's published pattern: A in [-3, 3], B in [-2, 2].
FIELD_A, FIELD_B = 3, 2
PATTERNS = ("auto", "field")
#: Three streams of values are drawn per seed, told apart by 4 · seed + 0 … 2 in 32 bits.
MAX_SEED = 2**30 - 1
#: Standard deviation of normal-distributed 8-bit operands; 4 of them reach the end of the type.
_INT_SIGMA = 32.0


# ---------------------------------------------------------------------------------------------------------------------
# Inputs.


@dataclass(frozen=True, eq=False)
class Inputs:
    """Integer operands with the bound that was proved for them.

    Attributes:
        problem: what they are operands of.
        a: logical A, m×k integers, read-only. Widen before multiplying: the dtype is not wide enough for products.
        b: logical B, k×n integers, read-only.
        pattern: ``auto``, ``field``, or ``given`` for a caller's own arrays.
        bound: proved: no sum of |a||b| over K exceeds it.
        limit: up to here the accumulator is exact and D is finite.
    """

    problem: Problem
    a: Array = field(repr=False)
    b: Array = field(repr=False)
    pattern: str
    bound: int
    limit: int

    @property
    def guaranteed(self) -> bool:
        """Whether every order of summation gives the same bits."""
        return self.bound <= self.limit

    def __str__(self) -> str:
        word = "within" if self.guaranteed else "beyond"
        return f"{self.problem} {self.pattern}: sums of |a||b| up to {self.bound}, {word} the exact limit {self.limit}"


def accumulation_limit(operation: Operation) -> int:
    """The largest sum of |a||b| up to which the accumulator is exact and D stays finite."""
    finite = F16_MAX if operation.d.name == "f16" else operation.acc.exact_limit
    return min(operation.acc.exact_limit, finite)


def _mix(x: Array) -> Array:
    """A bijection of ``uint32`` in which every input bit moves every output bit: xorshift and multiply, in place."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x ^= x >> np.uint32(shift)
        x *= np.uint32(factor)
    x ^= x >> np.uint32(16)
    return x


def _hashed(rows: int, cols: int, salt: int) -> Array:
    """Well-mixed ``uint32`` (rows × cols), a function of position and ``salt`` (below 2^32) alone.

    The same on every machine and under every version of NumPy. Rows and columns are mixed apart and then together, so
    no two rows are shifts of each other and no transposition or shift maps the matrix onto itself.
    """
    row = _mix(np.arange(rows, dtype=np.uint32) ^ _mix(np.array([salt], np.uint32)))
    col = _mix(np.arange(cols, dtype=np.uint32) ^ np.uint32(0x9E3779B9))
    return _mix(row[:, None] ^ col)


def _in_range(hashed: Array, count: int) -> Array:
    """``hashed`` scaled to 0 … count - 1, as ``int64``; ``count`` below 2^31."""
    return (hashed.astype(np.uint64) * np.uint64(count) >> np.uint64(32)).astype(np.int64)


def _nonzero(rows: int, cols: int, amplitude: int, signed: bool, salt: int) -> Array:
    """Rows × cols ``int32`` of magnitude 1 … amplitude: no zeros, so every term of a sum counts."""
    if signed:
        values = _in_range(_hashed(rows, cols, salt), 2 * amplitude) - amplitude
        values += values >= 0
    else:
        values = _in_range(_hashed(rows, cols, salt), amplitude) + 1
    return values.astype(np.int32)


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
    signed = element.name != "u8"
    a = _nonzero(problem.m, problem.k, amplitude_a, signed, 4 * seed)
    b = _nonzero(problem.k, problem.n, amplitude_b, signed, 4 * seed + 1)
    return (_thin(a, limit, 4 * seed + 2) if problem.k > limit else a), b


def _field(problem: Problem, seed: int) -> tuple[Array, Array]:
    """The published pattern of the field: A in [-3, 3], B in [-2, 2], zeros included."""
    if problem.operation.a.name == "u8":
        raise ConfigError("pattern 'field' has negative values, u8 has none", "use pattern 'auto'")

    def within(rows: int, cols: int, amplitude: int, salt: int) -> Array:
        return (_in_range(_hashed(rows, cols, salt), 2 * amplitude + 1) - amplitude).astype(np.int32)

    return within(problem.m, problem.k, FIELD_A, 4 * seed), within(problem.k, problem.n, FIELD_B, 4 * seed + 1)


def _largest(values: Array, axis: int | None = None) -> int:
    """The largest sum of |values| along ``axis``, or the largest |value| for None; 0 where there is none."""
    if not values.size:
        return 0
    # int64 also takes the magnitude of the lowest int32; the values are far from the lowest int64.
    magnitude = np.abs(values) if values.dtype == np.int32 else np.abs(values.astype(np.int64))
    return int(magnitude.max() if axis is None else magnitude.sum(axis, dtype=np.int64).max())


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


def _seal(problem: Problem, a: Array, b: Array, pattern: str, bound: int) -> Inputs:
    """Inputs whose arrays cannot change any more, so that what was proved for them stays true."""
    a.setflags(write=False)
    b.setflags(write=False)
    return Inputs(problem, a, b, pattern, bound, accumulation_limit(problem.operation))


def _require_product(operation: Operation) -> None:
    if operation.epilogue is not Epilogue.NONE:
        raise NotGeneratedYet(f"epilogue {operation.epilogue}: the reference knows D = A·B only", "use epilogue=none")


def exact_inputs(problem: Problem, *, seed: int = 0, pattern: str = "auto") -> Inputs:
    """Integer operands whose sums are exact in any order, with the proof.

    ``auto`` takes the largest magnitudes that K, the accumulator and D allow, without zeros; where K is longer than
    the accumulator can count it thins out the rows of A. ``field`` is the published pattern of the field, bounded by
    6K; with an f16 accumulator it is not guaranteed beyond K = 341.

    Args:
        problem: sizes and types.
        seed: another seed, other values; 0 to 2^30 - 1.
        pattern: ``auto`` or ``field``.

    Raises:
        ConfigError: no such pattern or seed, a pattern that the operand type cannot hold, or a sub-byte type.
        NotGeneratedYet: an epilogue with alpha, beta and C.
    """
    _check_seed(seed)
    _require_product(problem.operation)
    for element in (problem.operation.a, problem.operation.d):
        require_bytes(element)
    limit = accumulation_limit(problem.operation)
    if pattern == "auto":
        a, b = _auto(problem, seed, limit)
        bound = cheap_bound(a, b)
        if bound > limit:
            raise AssertionError(f"{problem}: the generator chose magnitudes whose sums reach {bound}, beyond {limit}")
        return _seal(problem, a, b, pattern, bound)
    if pattern == "field":
        a, b = _field(problem, seed)
        # The published bound, not the smaller one of these values: what is guaranteed must not depend on the seed.
        return _seal(problem, a, b, pattern, FIELD_A * FIELD_B * problem.k)
    raise ConfigError(f"pattern {pattern!r} is not known", "patterns: " + " ".join(PATTERNS))


def given_inputs(problem: Problem, a: Array, b: Array) -> Inputs:
    """A caller's own integers as operands; the bound is proved from them.

    Args:
        problem: sizes and types.
        a: m×k integers.
        b: k×n integers.

    Raises:
        ConfigError: another shape, no integers, or a value that the operand type does not hold exactly.
        NotGeneratedYet: an epilogue with alpha, beta and C.
    """
    _require_product(problem.operation)
    element = problem.operation.a
    for word, values, shape in (("A", a, (problem.m, problem.k)), ("B", b, (problem.k, problem.n))):
        if values.shape != shape:
            raise ConfigError(f"{word} is {list(values.shape)}, the problem wants {list(shape)}")
        if not np.issubdtype(values.dtype, np.integer):
            raise ConfigError(f"{word} holds {values.dtype}, exact inputs are integers")
        if not np.array_equal(decode(encode(values, element), element).astype(np.float64), values.astype(np.float64)):
            raise ConfigError(f"{word} has a value that {element.name} does not hold exactly")
    wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
    bound = cheap_bound(wide_a, wide_b)
    if bound > accumulation_limit(problem.operation):
        bound = tight_bound(wide_a, wide_b)
    return _seal(problem, wide_a, wide_b, "given", bound)


def normal_inputs(problem: Problem, seed: int = 0) -> tuple[Array, Array]:
    """Normal-distributed A (m×k) and B (k×n) for timing, every value representable in the operand type.

    Floating types have mean 0 and deviation 1. 8-bit integers have deviation 32, u8 around 128, cut at the ends of
    the type.

    Raises:
        ConfigError: no such seed, or a sub-byte type.
    """
    _check_seed(seed)
    element = problem.operation.a
    target = value_dtype(element)
    rng = np.random.default_rng(seed)

    def draw(rows: int, cols: int) -> Array:
        values: Array = rng.standard_normal((rows, cols), np.float64 if element.bits == 64 else np.float32)
        if element.integer:
            ends = np.iinfo(target)
            middle = 128.0 if element.name == "u8" else 0.0
            return np.clip(np.rint(values * _INT_SIGMA + middle), ends.min, ends.max).astype(target)
        if element.name == "tf32":
            return _to_tf32(values)
        return decode(encode(values, element), element)

    return draw(problem.m, problem.k), draw(problem.k, problem.n)


def _to_tf32(values: Array) -> Array:
    """Finite ``float32`` values rounded to the 11 bits of significand of tf32, ties to even; 13 bits are dropped."""
    wide = values.view(np.uint32)
    kept = (wide + np.uint32(0xFFF) + ((wide >> 13) & 1)) & np.uint32(0xFFFFE000)
    return kept.view(np.float32)


# ---------------------------------------------------------------------------------------------------------------------
# The exact product.


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
    """The exact product A·B, m×n ``int64``.

    Raises:
        ConfigError: the proved bound does not fit into int64.
    """
    return _multiply(inputs.a, inputs.b, inputs.bound)


def round_once(exact: Array, element: ElementType) -> Array:
    """Exact ``int64`` values (any shape) as D holds them, in the dtype of ``layout.value_dtype(element)``.

    Floating types round once to nearest, ties to even, and overflow to infinity. Integer types wrap, as the
    accumulators do: mma_sync saturates only when asked (CUDA C++ Programming Guide, Warp Matrix Functions).
    """
    if element.integer:
        return exact.astype(value_dtype(element))
    if element.name == "f64":
        return exact.astype(np.float64)
    if element.bits == 32:
        return exact.astype(np.float32)  # the integer itself: through float64 it would round twice beyond 2^53
    # f16 is infinite where float64 begins to round; bf16 passes float32, exact for all that f32 counts.
    return decode(encode(exact.astype(np.float64), element), element)


def expected(inputs: Inputs) -> Array:
    """D as it must be, m×n: the exact product rounded once to D's type; bf16 values are held in ``float32``.

    Raises:
        ConfigError: the proved bound does not fit into int64.
    """
    return round_once(product(inputs), inputs.problem.operation.d)


# ---------------------------------------------------------------------------------------------------------------------
# Problems to validate on.


def problems_for(operation: Operation, block_m: int, block_n: int, block_k: int, stages: int) -> tuple[Problem, ...]:
    """The hostile set for a variant that takes multiples of its block tile.

    At least two blocks each way; M, N and K all different; K of one slice, and of one less than the pipeline holds,
    as many, and one more; leading dimensions above the extents and all different, so that none stands for another; and
    one packed problem. Leading dimensions are multiples of 32 bytes (and of 16 elements, where they are not the
    extents), which every reading of the guide accepts.

    Args:
        operation: what is computed.
        block_m, block_n, block_k: extents of the block tile, in elements.
        stages: K slices in flight.
    """
    counts = sorted({1, stages - 1, stages, stages + 1} - {0})
    unit = max(16, 256 // operation.a.bits, 256 // operation.d.bits)
    spaced = []
    for count in counts:
        m, n = _two_extents(block_m, block_n, count * block_k, 1)
        spaced.append(_spaced(operation, m, n, count * block_k, unit))
    even = 256 // min(operation.a.bits, operation.d.bits)
    k = math.lcm(block_k, even)
    k *= -(-counts[-1] * block_k // k)
    m, n = _two_extents(block_m, block_n, k, even)
    return (*spaced, Problem.packed(operation, m, n, k))


def _two_extents(block_m: int, block_n: int, k: int, even: int) -> tuple[int, int]:
    """The smallest m×n of at least two blocks each way, multiples of ``even``, with m, n and k all different."""
    step_m, step_n = math.lcm(block_m, even), math.lcm(block_n, even)
    first_m, first_n = (-(-2 * block // step) * step for block, step in ((block_m, step_m), (block_n, step_n)))
    pairs = ((first_m + x * step_m, first_n + y * step_n) for x in range(3) for y in range(3))
    return min(((m, n) for m, n in pairs if len({m, n, k}) == 3), key=lambda pair: (pair[0] * pair[1], pair))


def _spaced(operation: Operation, m: int, n: int, k: int, unit: int) -> Problem:
    """A problem whose leading dimensions are multiples of ``unit`` elements, above the extents and all different."""
    chosen: list[int] = []
    for extent in (k if operation.a_row_major else m, n if operation.b_row_major else k, n):
        ld = (-(-extent // unit) + 1) * unit
        while ld in chosen:
            ld += unit
        chosen.append(ld)
    lda, ldb, ldd = chosen
    return Problem(operation, m, n, k, lda, ldb, ldd)
