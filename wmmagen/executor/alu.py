"""What arithmetic instructions compute, on arrays of register bits.

:func:`decode` reads an instruction's words once and returns its function with the types of its operands. Integers wrap,
shifts by the width or more give what the shift would give in infinite width, conversions from floating point saturate,
floating point rounds to nearest even. An instruction that is not here is refused, never guessed.

Source: PTX ISA, "Instruction Set".
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#instruction-set
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from wmmagen.executor import numbers
from wmmagen.executor.numbers import SIGNED, UNSIGNED, from_float, to_float
from wmmagen.executor.ptx import TYPE_BITS

#: An array of NumPy, or one of its scalars where all lanes have one value; its type checker knows no word for both.
Array = Any
Function = Callable[..., Array]


class UnknownInstruction(Exception):
    """The words name no instruction that is known here."""


@dataclass(frozen=True)
class Arithmetic:
    """An instruction that reads registers and writes one.

    Attributes:
        function: from operands' bits (arrays or scalars of NumPy) to the result's bits.
        sources: the type of each operand, which says how wide it is.
        result: the type of the result.
        signed: whether a wider destination is filled with the sign.
        kind: its class in the counts.
        undefined: from operands' bits, and masks of which of them are undefined, to the mask of the result. None where
            one undefined bit spoils all of the result.
    """

    function: Function
    sources: tuple[str, ...]
    result: str
    signed: bool = False
    kind: str = "integer"
    undefined: Callable[[Sequence[Array], Sequence[Array]], Array] | None = None


#: Kernels use some hundred different instructions.
_DECODED_KEPT = 1024
_FLOAT_TYPES = ("f16", "bf16", "f32", "f64")
_INTEGERS = frozenset(f"{sign}{bits}" for sign in "us" for bits in (16, 32, 64))
_PLAINS = frozenset(("b16", "b32", "b64"))
_PACKED = {"f16x2": "f16", "bf16x2": "bf16"}


@lru_cache(maxsize=_DECODED_KEPT)
def decode(words: tuple[str, ...]) -> Arithmetic:
    """The arithmetic of an instruction.

    Raises:
        UnknownInstruction: it is none, or has a modifier that is not known.
    """
    maker = _MAKERS.get(words[0])
    if maker is None or len(words) < 2:
        raise UnknownInstruction
    found = maker(words[1:])
    if found is None:
        raise UnknownInstruction
    return found


def _bits(kind: str) -> int:
    return TYPE_BITS[kind]


def _integer(kind: str) -> bool:
    return kind in _INTEGERS


def _plain(kind: str) -> bool:
    return kind in _PLAINS


def _view(kind: str) -> Any:
    return SIGNED[_bits(kind)] if kind[0] == "s" else UNSIGNED[_bits(kind)]


def _of_ints(kind: str, count: int, compute: Function, *, result: str = "") -> Arithmetic:
    """An operation on integers of one type; ``compute`` sees them signed where they are."""
    seen, kept = _view(kind), UNSIGNED[_bits(result or kind)]
    if kind[0] == "s":

        def run(*values: Array) -> Array:
            return np.asarray(compute(*(v.view(seen) for v in values))).view(kept)
    else:
        run = compute
    return Arithmetic(run, (kind,) * count, result or kind)


def _of_floats(kind: str, count: int, compute: Function, *, saturate: bool = False) -> Arithmetic:
    """An operation on floating point numbers of one type, each rounded once."""

    def one(*values: Array) -> Array:
        found = compute(*(to_float(v, kind) for v in values))
        if saturate:
            found = np.where(np.isnan(found), found.dtype.type(0), np.clip(found, 0, 1))
        return from_float(found, kind)

    return Arithmetic(one, (kind,) * count, kind, kind="float")


def _packed(element: Arithmetic, kind: str) -> Arithmetic:
    """The same operation on both halves of 32 bits."""

    def both(*values: Array) -> Array:
        low = element.function(*(v.astype(np.uint16) for v in values))
        high = element.function(*((v >> np.uint32(16)).astype(np.uint16) for v in values))
        return np.asarray(low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16)))

    return Arithmetic(both, (kind,) * len(element.sources), kind, kind="float")


def _floating(words: tuple[str, ...], count: int, compute: Function, *, rounds: bool = True) -> Arithmetic | None:
    """``{.rn}{.sat}.type`` of an operation on floating point numbers."""
    *modifiers, kind = words
    allowed = {"rn", "sat"} if rounds else set()
    if not set(modifiers) <= allowed or len(set(modifiers)) != len(modifiers):
        return None
    element = _PACKED.get(kind, kind)
    if element not in _FLOAT_TYPES:
        return None
    found = _of_floats(element, count, compute, saturate="sat" in modifiers)
    return _packed(found, kind) if kind in _PACKED else found


# Integers ------------------------------------------------------------------------------------------------------------


def _sum_like(compute: Function) -> Callable[[tuple[str, ...]], Arithmetic | None]:
    """Add and sub: wrap in integers, round in floating point."""

    def make(words: tuple[str, ...]) -> Arithmetic | None:
        if words[-1] in _FLOAT_TYPES or words[-1] in _PACKED:
            return _floating(words, 2, compute)
        if len(words) == 1 and _integer(words[0]):
            # Wrapping is the same for both signs.
            return Arithmetic(compute, (words[0],) * 2, words[0])
        return None

    return make


def _mul(words: tuple[str, ...]) -> Arithmetic | None:
    if words[-1] in _FLOAT_TYPES or words[-1] in _PACKED:
        return _floating(words, 2, np.multiply)
    if len(words) != 2 or not _integer(words[1]):
        return None
    part, kind = words
    compute = _product(part, kind)
    return None if compute is None else _of_ints(kind, 2, compute, result=_product_type(part, kind))


def _product_type(part: str, kind: str) -> str:
    return f"{kind[0]}{2 * _bits(kind)}" if part == "wide" else kind


def _product(part: str, kind: str) -> Function | None:
    """The low, high or whole product of two integers of type ``kind``; None where there is none."""
    if part == "lo":
        return np.multiply
    if part == "wide" and _bits(kind) < 64:
        return _wide(kind)
    if part != "hi":
        return None
    if _bits(kind) == 64:
        return _high_signed if kind[0] == "s" else _high_unsigned
    wide, narrow, shift = _wide(kind), _view(kind), _bits(kind)

    def high(a: Array, b: Array) -> Array:
        product = wide(a, b)
        return np.asarray((product >> product.dtype.type(shift)).astype(narrow))

    return high


def _wide(kind: str) -> Function:
    double = (SIGNED if kind[0] == "s" else UNSIGNED)[2 * _bits(kind)]

    def wide(a: Array, b: Array) -> Array:
        return np.asarray(a.astype(double) * b.astype(double))

    return wide


def _high_unsigned(a: Array, b: Array) -> Array:
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    al, ah, bl, bh = a & low, a >> half, b & low, b >> half
    middle = ah * bl + (al * bl >> half)
    other = al * bh + (middle & low)
    return np.asarray(ah * bh + (middle >> half) + (other >> half))


def _high_signed(a: Array, b: Array) -> Array:
    au, bu = a.view(np.uint64), b.view(np.uint64)
    zero = np.uint64(0)
    found = _high_unsigned(au, bu) - np.where(a < 0, bu, zero) - np.where(b < 0, au, zero)
    return np.asarray(found.view(np.int64))


def _mad(words: tuple[str, ...]) -> Arithmetic | None:
    if words[-1] in _FLOAT_TYPES:
        return _fma(words)
    if len(words) != 2 or not _integer(words[1]):
        return None
    part, kind = words
    product = _product(part, kind)
    if product is None:
        return None
    result = _product_type(part, kind)
    seen, kept = _view(kind), UNSIGNED[_bits(result)]

    def run(a: Array, b: Array, c: Array) -> Array:
        return np.asarray(product(a.view(seen), b.view(seen)).view(kept) + c)

    return Arithmetic(run, (kind, kind, result), result)


def _divides(*, remainder: bool) -> Callable[[tuple[str, ...]], Arithmetic | None]:
    def make(words: tuple[str, ...]) -> Arithmetic | None:
        if not remainder and words[0] == "approx":
            return _approximate(words, _quick_quotient, 2)
        if not remainder and words[-1] in ("f32", "f64"):
            return _floating(words, 2, np.divide) if words[0] == "rn" else None
        if len(words) != 1 or not _integer(words[0]):
            return None
        return _of_ints(words[0], 2, _remainder if remainder else _quotient)

    return make


def _quotient(a: Array, b: Array) -> Array:
    """Towards zero; all ones where the divisor is 0, which the ISA leaves open."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    down = a // safe
    if np.issubdtype(a.dtype, np.signedinteger):
        down = down + ((a - down * safe != 0) & ((a < 0) != (safe < 0)))
    return np.asarray(np.where(b == 0, ~b.dtype.type(0), down).astype(a.dtype))


def _remainder(a: Array, b: Array) -> Array:
    """With the sign of the dividend; the dividend where the divisor is 0."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    return np.asarray(np.where(b == 0, a, a - _quotient(a, safe) * safe).astype(a.dtype))


def _extreme(pick: Function, pick_float: Function, *, largest: bool) -> Callable[[tuple[str, ...]], Arithmetic | None]:
    def of_floats(a: Array, b: Array) -> Array:
        # The other operand where one is NaN; of the two zeros, -0 is the smaller one.
        signs = (np.signbit(a) & np.signbit(b)) if largest else (np.signbit(a) | np.signbit(b))
        zero = np.where(signs, a.dtype.type(-0.0), a.dtype.type(0))
        return np.where((a == 0) & (b == 0), zero, pick_float(a, b))

    def make(words: tuple[str, ...]) -> Arithmetic | None:
        if words[-1] in _FLOAT_TYPES or words[-1] in _PACKED:
            return _floating(words, 2, of_floats, rounds=False)
        return _of_ints(words[0], 2, pick) if len(words) == 1 and _integer(words[0]) else None

    return make


def _sign(compute: Function, mask: Callable[[Array, Any], Array]) -> Callable[[tuple[str, ...]], Arithmetic | None]:
    """Neg and abs: of integers, and of floating point numbers by their sign bit alone."""

    def make(words: tuple[str, ...]) -> Arithmetic | None:
        if len(words) != 1:
            return None
        kind = words[0]
        if _integer(kind) and kind[0] == "s":
            return _of_ints(kind, 1, compute)
        if kind in _FLOAT_TYPES or kind in _PACKED:
            unsigned = UNSIGNED[_bits(kind)]
            sign = unsigned(0x80008000 if kind in _PACKED else 1 << _bits(kind) - 1)
            return Arithmetic(lambda a: mask(a, sign), (kind,), kind, kind="float")
        return None

    return make


def _logic(
    compute: Function, count: int, undefined: Callable[[Sequence[Array], Sequence[Array]], Array]
) -> Callable[[tuple[str, ...]], Arithmetic | None]:
    def make(words: tuple[str, ...]) -> Arithmetic | None:
        if len(words) == 1 and (_plain(words[0]) or words[0] == "pred"):
            return Arithmetic(compute, (words[0],) * count, words[0], kind="logic", undefined=undefined)
        return None

    return make


def _and_undefined(values: Sequence[Array], masks: Sequence[Array]) -> Array:
    """A defined 0 on one side decides."""
    (a, b), (u, v) = values, masks
    return np.asarray((u & v) | (u & b) | (v & a))


def _or_undefined(values: Sequence[Array], masks: Sequence[Array]) -> Array:
    """A defined 1 on one side decides."""
    (a, b), (u, v) = values, masks
    return np.asarray((u & v) | (u & ~b) | (v & ~a))


def _bitwise_undefined(values: Sequence[Array], masks: Sequence[Array]) -> Array:
    found = masks[0]
    for mask in masks[1:]:
        found = found | mask
    return found


def _like_first(function: Function) -> Callable[[Sequence[Array], Sequence[Array]], Array]:
    """Of what moves the first operand's bits to where the others say: an undefined bit there spoils all."""

    def undefined(values: Sequence[Array], masks: Sequence[Array]) -> Array:
        found = np.asarray(function(masks[0], *values[1:]))
        whole = found.dtype.type(np.iinfo(found.dtype).max)
        spoiled = np.any([mask != 0 for mask in np.broadcast_arrays(*masks[1:])], axis=0)
        return np.where(spoiled, whole, found)

    return undefined


def _shl(words: tuple[str, ...]) -> Arithmetic | None:
    if len(words) != 1 or not _plain(words[0]):
        return None
    width = _bits(words[0])

    def run(a: Array, n: Array) -> Array:
        near = np.minimum(n, n.dtype.type(width - 1)).astype(a.dtype)
        return np.where(n >= width, a.dtype.type(0), a << near)

    return Arithmetic(run, (words[0], "u32"), words[0], kind="logic", undefined=_like_first(run))


def _shr(words: tuple[str, ...]) -> Arithmetic | None:
    if len(words) != 1 or not (_plain(words[0]) or _integer(words[0])):
        return None
    kind, width, seen, kept = words[0], _bits(words[0]), _view(words[0]), UNSIGNED[_bits(words[0])]

    def run(a: Array, n: Array) -> Array:
        near = np.minimum(n, n.dtype.type(width - 1)).astype(a.dtype)
        if kind[0] == "s":
            return np.asarray(a.view(seen) >> near.view(seen)).view(kept)
        return np.where(n >= width, a.dtype.type(0), a >> near)

    return Arithmetic(run, (kind, "u32"), kind, kind="logic", undefined=_like_first(run))


def _prmt(words: tuple[str, ...]) -> Arithmetic | None:
    if words != ("b32",):
        return None

    def run(a: Array, b: Array, selector: Array) -> Array:
        both = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
        result: Any = np.uint32(0)
        for place in range(4):
            choice = (selector >> np.uint32(4 * place)) & np.uint32(15)
            byte = (both >> ((choice & np.uint32(7)).astype(np.uint64) * np.uint64(8))).astype(np.uint8)
            spread = np.where(byte >= 0x80, np.uint8(0xFF), np.uint8(0))
            byte = np.where(choice >= 8, spread, byte)
            result = result | (byte.astype(np.uint32) << np.uint32(8 * place))
        return np.asarray(result)

    def undefined(values: Sequence[Array], masks: Sequence[Array]) -> Array:
        return np.where(masks[2] != 0, np.uint32(0xFFFFFFFF), run(masks[0], masks[1], values[2]))

    return Arithmetic(run, ("b32", "b32", "b32"), "b32", kind="logic", undefined=undefined)


def _field_mask(position: Array, length: Array) -> Array:
    """Ones in a field of 64 bits at least."""
    one = np.uint64(1)
    ones = (one << np.minimum(length.astype(np.uint64), np.uint64(32))) - one
    return np.asarray(ones << np.minimum(position.astype(np.uint64), np.uint64(32)))


def _bfi(words: tuple[str, ...]) -> Arithmetic | None:
    if words != ("b32",):
        return None

    def run(a: Array, b: Array, position: Array, length: Array) -> Array:
        position, length = position & np.uint32(0xFF), length & np.uint32(0xFF)
        mask = _field_mask(position, length).astype(np.uint32)
        moved = (a.astype(np.uint64) << np.minimum(position.astype(np.uint64), np.uint64(32))).astype(np.uint32)
        return np.asarray((b & ~mask) | (moved & mask))

    return Arithmetic(run, ("b32", "b32", "u32", "u32"), "b32", kind="logic")


def _bfe(words: tuple[str, ...]) -> Arithmetic | None:
    if words not in (("u32",), ("s32",)):
        return None
    signed = words == ("s32",)

    def run(a: Array, position: Array, length: Array) -> Array:
        position, length = position & np.uint32(0xFF), length & np.uint32(0xFF)
        wide = numbers.resize(a, 64, signed=signed)
        ones = _field_mask(np.zeros_like(position), length)
        near = np.minimum(position, np.uint32(63)).astype(np.uint64)
        moved = (wide.view(np.int64) >> near.view(np.int64)).view(np.uint64) if signed else wide >> near
        found = moved & ones
        if signed:
            top = np.minimum(position + length - np.uint32(1), np.uint32(31))
            negative = (length > 0) & ((a >> top) & np.uint32(1) != 0)
            found = np.where(negative, found | ~ones, found)
        return found.astype(np.uint32)

    return Arithmetic(run, (words[0], "u32", "u32"), words[0], kind="logic")


def _lop3(words: tuple[str, ...]) -> Arithmetic | None:
    if words != ("b32",):
        return None

    def run(a: Array, b: Array, c: Array, table: Array) -> Array:
        result = np.zeros_like(a | b | c)
        for row in range(8):
            term = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
            result = np.where(table >> np.uint32(row) & np.uint32(1) != 0, result | term, result)
        return result

    return Arithmetic(run, ("b32", "b32", "b32", "b32"), "b32", kind="logic")


def _shf(words: tuple[str, ...]) -> Arithmetic | None:
    if len(words) != 3 or words[0] not in ("l", "r") or words[1] not in ("wrap", "clamp") or words[2] != "b32":
        return None
    left, wraps = words[0] == "l", words[1] == "wrap"

    def run(low: Array, high: Array, n: Array) -> Array:
        count = (n & np.uint32(31) if wraps else np.minimum(n, np.uint32(32))).astype(np.uint64)
        both = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
        return np.asarray((both << count) >> np.uint64(32) if left else both >> count).astype(np.uint32)

    return Arithmetic(run, ("b32", "b32", "u32"), "b32", kind="logic")


def _dot(words: tuple[str, ...], halves: bool) -> Arithmetic | None:
    kinds = words[1:] if halves else words
    if len(kinds) != 2 or not set(kinds) <= {"u32", "s32"} or (halves and words[0] not in ("lo", "hi")):
        return None
    start = 2 if halves and words[0] == "hi" else 0

    def part(value: Array, place: int, bits: int, signed: bool) -> Array:
        cut = (value >> np.uint32(place * bits)).astype(UNSIGNED[bits])
        return (cut.view(SIGNED[bits]) if signed else cut).astype(np.int64)

    def run(a: Array, b: Array, c: Array) -> Array:
        total = c.astype(np.int64)
        for place in range(2 if halves else 4):
            left = part(a, place, 16 if halves else 8, kinds[0] == "s32")
            total = total + left * part(b, start + place, 8, kinds[1] == "s32")
        return total.astype(np.uint32)

    read = np.uint32(0xFFFF << 8 * start if halves else 0xFFFFFFFF)

    def undefined(values: Sequence[Array], masks: Sequence[Array]) -> Array:
        spoiled = (masks[0] != 0) | (masks[1] & read != 0) | (masks[2] != 0)
        return np.where(spoiled, np.uint32(0xFFFFFFFF), np.uint32(0))

    return Arithmetic(run, ("b32", "b32", "b32"), "b32", undefined=undefined)


def _count_bits(compute: Callable[[Array, int], Array]) -> Callable[[tuple[str, ...]], Arithmetic | None]:
    def make(words: tuple[str, ...]) -> Arithmetic | None:
        if words not in (("b32",), ("b64",)):
            return None
        width = _bits(words[0])
        return Arithmetic(lambda a: compute(a, width).astype(np.uint32), words, "u32", kind="logic")

    return make


def _leading_zeros(a: Array, width: int) -> Array:
    found = np.full(np.shape(a), width, np.int64)
    for place in range(width):
        found = np.where(a >> a.dtype.type(place) & a.dtype.type(1) != 0, width - 1 - place, found)
    return found


def _brev(words: tuple[str, ...]) -> Arithmetic | None:
    if words not in (("b32",), ("b64",)):
        return None
    width = _bits(words[0])

    def run(a: Array) -> Array:
        one = a.dtype.type(1)
        found = np.zeros_like(a)
        for place in range(width):
            found = found | ((a >> a.dtype.type(place) & one) << a.dtype.type(width - 1 - place))
        return found

    return Arithmetic(run, words, words[0], kind="logic")


# Floating point ------------------------------------------------------------------------------------------------------


def _fma(words: tuple[str, ...]) -> Arithmetic | None:
    if words == ("rm", "f32"):
        return Arithmetic(numbers.fused_down, ("f32",) * 3, "f32", kind="float")
    if len(words) != 2 or words[0] != "rn":
        return None
    kind = words[1]
    element = _PACKED.get(kind, kind)
    if element not in _FLOAT_TYPES:
        return None

    def run(a: Array, b: Array, c: Array) -> Array:
        return numbers.fused(to_float(a, element), to_float(b, element), to_float(c, element), element)

    found = Arithmetic(run, (element,) * 3, element, kind="float")
    return _packed(found, kind) if kind in _PACKED else found


def _root(words: tuple[str, ...]) -> Arithmetic | None:
    return _floating(words, 1, np.sqrt) if words in (("rn", "f32"), ("rn", "f64")) else None


def _flushed(values: Array) -> Array:
    """Subnormal f32 as 0 of their sign."""
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), values), values)


def _quick_quotient(a: Array, b: Array) -> Array:
    """As __fdividef: 0 where the divisor is beyond 2^126 and no infinity."""
    large = (np.abs(b) > 2.0**126) & np.isfinite(b) & np.isfinite(a)
    return np.where(large, 0.0, a / b)


def _approximate(words: tuple[str, ...], compute: Function, count: int = 1) -> Arithmetic | None:
    """``.approx{.ftz}.f32``: the correctly rounded value, which is one that the ISA's largest error allows.

    A card may give a neighbour of it, so bits of such results are the executor's own: what is proved of a kernel with
    them is proved from the largest error of the function that the instruction is part of.
    """
    if words not in (("approx", "f32"), ("approx", "ftz", "f32")):
        return None
    flush = _flushed if "ftz" in words else np.asarray

    def run(*operands: Array) -> Array:
        with np.errstate(all="ignore"):
            exact = compute(*(flush(to_float(operand, "f32")).astype(np.float64) for operand in operands))
            return from_float(flush(exact.astype(np.float32)), "f32")

    return Arithmetic(run, ("f32",) * count, "f32", kind="float")


def _copysign(words: tuple[str, ...]) -> Arithmetic | None:
    """The second operand with the sign of the first."""
    if words not in (("f32",), ("f64",)):
        return None
    unsigned = UNSIGNED[_bits(words[0])]
    sign = unsigned(1 << _bits(words[0]) - 1)
    return Arithmetic(lambda a, b: (a & sign) | (b & ~sign), (words[0],) * 2, words[0], kind="float")


#: Sign, exponent and 20 bits of mantissa of an f64.
_UPPER_HALF = np.uint64(0xFFFFFFFF_00000000)


def _gross_reciprocal() -> Arithmetic:
    """``rcp.approx.ftz.f64``: of the operand's upper 32 bits and to 32 bits, as the PTX ISA says; 0 for subnormals.

    Which of the neighbours among 32 bits it is, is open there; the executor's is the one towards 0.
    """

    def run(a: Array) -> Array:
        with np.errstate(all="ignore"):
            value = to_float(a & _UPPER_HALF, "f64")
            tiny = np.finfo(np.float64).tiny
            inverse = np.divide(1.0, np.where(np.abs(value) < tiny, np.copysign(0.0, value), value))
            flushed = np.where(np.abs(inverse) < tiny, np.copysign(0.0, inverse), inverse)
            return np.asarray(from_float(flushed, "f64") & _UPPER_HALF)

    return Arithmetic(run, ("f64",), "f64", kind="float")


def _reciprocal(words: tuple[str, ...]) -> Arithmetic | None:
    if words == ("approx", "ftz", "f64"):
        return _gross_reciprocal()
    if words[0] == "approx":
        return _approximate(words, lambda a: 1 / a)
    if words not in (("rn", "f32"), ("rn", "f64")):
        return None
    return _floating(words, 1, lambda a: a.dtype.type(1) / a)


# Comparisons ---------------------------------------------------------------------------------------------------------

_COMPARISONS: dict[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_JOINS: dict[str, Function] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _compares(name: str, kind: str) -> Function | None:
    """The comparison of bits of type ``kind``; None where there is none."""
    if kind not in _FLOAT_TYPES:
        compare = _COMPARISONS.get(name)
        if compare is None or not (_integer(kind) or (_plain(kind) and name in ("eq", "ne"))):
            return None
        seen = _view(kind)
        return lambda a, b: compare(a.view(seen), b.view(seen))
    if name in ("num", "nan"):
        return lambda a, b: (np.isnan(to_float(a, kind)) | np.isnan(to_float(b, kind))) == (name == "nan")
    unordered = name.endswith("u") and name[:-1] in ("eq", "ne", "lt", "le", "gt", "ge")
    ordered = _COMPARISONS.get(name[:-1] if unordered else name)
    if ordered is None or name in ("lo", "ls", "hi", "hs"):
        return None

    def run(a: Array, b: Array) -> Array:
        x, y = to_float(a, kind), to_float(b, kind)
        nan = np.isnan(x) | np.isnan(y)
        return np.where(nan, np.bool_(unordered), ordered(x, y))

    return run


def _setp(words: tuple[str, ...]) -> Arithmetic | None:
    if len(words) not in (2, 3) or words[-1] not in TYPE_BITS:
        return None
    kind = words[-1]
    compare = _compares(words[0], kind)
    if compare is None:
        return None
    if len(words) == 2:
        return Arithmetic(compare, (kind, kind), "pred", kind="compare")
    join = _JOINS.get(words[1])
    if join is None:
        return None
    both = compare
    return Arithmetic(lambda a, b, p: join(both(a, b), p), (kind, kind, "pred"), "pred", kind="compare")


def _selp(words: tuple[str, ...]) -> Arithmetic | None:
    if len(words) != 1 or _bits_or_none(words[0]) not in (16, 32, 64):
        return None

    def undefined(values: Sequence[Array], masks: Sequence[Array]) -> Array:
        chosen: Array = np.where(values[2], masks[0], masks[1])
        return np.where(masks[2], chosen.dtype.type(np.iinfo(chosen.dtype).max), chosen)

    kinds = (words[0], words[0], "pred")
    return Arithmetic(lambda a, b, p: np.where(p, a, b), kinds, words[0], kind="compare", undefined=undefined)


def _bits_or_none(kind: str) -> int | None:
    return TYPE_BITS.get(kind)


# Conversions ---------------------------------------------------------------------------------------------------------

_ROUNDINGS: dict[str, Any] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _cvt(words: tuple[str, ...]) -> Arithmetic | None:
    *modifiers, result, source = words if len(words) > 1 else (*words, "")
    if result in _PACKED and source == "f32" and modifiers == ["rn"]:
        return _pack(_PACKED[result], result)
    if (modifiers, result, source) == (["rna"], "tf32", "f32"):
        return Arithmetic(
            lambda a: numbers.to_tf32(a.view(np.float32)).view(np.uint32), ("f32",), "b32", kind="convert"
        )
    whole = {f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64)}
    saturate = "sat" in modifiers
    rounding = [m for m in modifiers if m != "sat"]
    if result in whole and source in whole:
        return _between_integers(result, source, saturate) if not rounding else None
    if result in whole and source in _FLOAT_TYPES:
        return _to_integer(result, source, rounding[0]) if len(rounding) == 1 and rounding[0] in _ROUNDINGS else None
    if result in _FLOAT_TYPES and source in whole and rounding == ["rn"] and not saturate:
        return _from_integer(result, source)
    if result in _FLOAT_TYPES and source in _FLOAT_TYPES:
        return _between_floats(result, source, rounding, saturate)
    return None


def _pack(element: str, result: str) -> Arithmetic:
    def run(high: Array, low: Array) -> Array:
        upper, lower = (from_float(v.view(np.float32), element).astype(np.uint32) for v in (high, low))
        return np.asarray((upper << np.uint32(16)) | lower)

    return Arithmetic(run, ("f32", "f32"), result, kind="convert")


def _between_integers(result: str, source: str, saturate: bool) -> Arithmetic:
    narrow, seen = UNSIGNED[_bits(source)], _view(source)

    def run(a: Array) -> Array:
        values = a.astype(narrow).view(seen)
        if saturate:
            limits = np.iinfo(_view(result))
            own = np.iinfo(seen)
            values = np.clip(values, max(limits.min, own.min), min(limits.max, own.max))
        return values.astype(_view(result)).view(UNSIGNED[_bits(result)])

    def undefined(values: Sequence[Array], masks: Sequence[Array]) -> Array:
        return run(masks[0])

    signed = result[0] == "s"
    # Where values are cut or extended alone, so is what is undefined of them.
    moves = None if saturate else undefined
    return Arithmetic(run, (source,), result, signed=signed, kind="convert", undefined=moves)


def _to_integer(result: str, source: str, rounding: str) -> Arithmetic:
    limits, signed, wide = np.iinfo(_view(result)), result[0] == "s", _bits(result) == 64
    # NaN gives 0, except where 64 bits are on either side: there it gives the topmost bit alone.
    of_nan = 1 << _bits(result) - 1 if wide or source == "f64" else 0

    def run(a: Array) -> Array:
        values = _ROUNDINGS[rounding](to_float(a, source).astype(np.float64))
        inside = np.where((values >= float(limits.min)) & (values < float(limits.max)), values, 0.0)
        whole = inside.astype(np.int64 if signed else np.uint64).astype(_view(result)).view(UNSIGNED[_bits(result)])
        top, bottom = (limits.max & (1 << _bits(result)) - 1, limits.min & (1 << _bits(result)) - 1)
        whole = np.where(values >= float(limits.max), whole.dtype.type(top), whole)
        whole = np.where(values < float(limits.min), whole.dtype.type(bottom), whole)
        return np.where(np.isnan(values), whole.dtype.type(of_nan), whole)

    return Arithmetic(run, (source,), result, signed=signed, kind="convert")


def _from_integer(result: str, source: str) -> Arithmetic | None:
    if result == "bf16":
        return None
    narrow, seen = UNSIGNED[_bits(source)], _view(source)
    return Arithmetic(lambda a: from_float(a.astype(narrow).view(seen), result), (source,), result, kind="convert")


def _between_floats(result: str, source: str, rounding: list[str], saturate: bool) -> Arithmetic | None:
    narrows = _bits(result) < _bits(source) or {result, source} == {"f16", "bf16"}
    wholes = len(rounding) == 1 and rounding[0] in _ROUNDINGS and result == source
    if not (wholes or rounding == (["rn"] if narrows else [])):
        return None
    to_whole = _ROUNDINGS[rounding[0]] if wholes else None

    def run(a: Array) -> Array:
        values = to_float(a, source)
        if to_whole is not None:
            values = to_whole(values)
        if saturate:
            values = np.where(np.isnan(values), values.dtype.type(0), np.clip(values, 0, 1))
        return numbers.narrow(values, result) if source == "f64" else from_float(values, result)

    return Arithmetic(run, (source,), result, kind="convert")


_MAKERS: dict[str, Callable[[tuple[str, ...]], Arithmetic | None]] = {
    "add": _sum_like(np.add),
    "sub": _sum_like(np.subtract),
    "mul": _mul,
    "mad": _mad,
    "fma": _fma,
    "div": _divides(remainder=False),
    "rem": _divides(remainder=True),
    "min": _extreme(np.minimum, np.fmin, largest=False),
    "max": _extreme(np.maximum, np.fmax, largest=True),
    "neg": _sign(np.negative, lambda a, sign: a ^ sign),
    "abs": _sign(np.abs, lambda a, sign: a & ~sign),
    "and": _logic(np.bitwise_and, 2, _and_undefined),
    "or": _logic(np.bitwise_or, 2, _or_undefined),
    "xor": _logic(np.bitwise_xor, 2, _bitwise_undefined),
    "not": _logic(np.invert, 1, _bitwise_undefined),
    "shl": _shl,
    "shr": _shr,
    "prmt": _prmt,
    "bfi": _bfi,
    "bfe": _bfe,
    "lop3": _lop3,
    "shf": _shf,
    "dp2a": lambda words: _dot(words, halves=True),
    "dp4a": lambda words: _dot(words, halves=False),
    "popc": _count_bits(lambda a, width: np.bitwise_count(a)),
    "clz": _count_bits(_leading_zeros),
    "brev": _brev,
    "sqrt": _root,
    "rcp": _reciprocal,
    "ex2": lambda words: _approximate(words, np.exp2),
    "copysign": _copysign,
    "setp": _setp,
    "selp": _selp,
    "cvt": _cvt,
}
