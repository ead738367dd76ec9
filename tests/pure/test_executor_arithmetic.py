"""Arithmetic of the executor against the specification, written here a second time on Python's integers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmmagen.executor import alu, numbers
from wmmagen.executor.alu import UnknownInstruction
from wmmagen.executor.ptx import TYPE_BITS

U32, U64 = 2**32, 2**64
words = st.integers(0, U32 - 1) | st.sampled_from([0, 1, 31, 32, 33, 255, 256, 2**31 - 1, 2**31, U32 - 1])
longs = st.integers(0, U64 - 1) | st.sampled_from([0, 1, 63, 64, 2**63 - 1, 2**63, U64 - 1])
halves = st.integers(0, 0xFFFF)


def compute(name: str, *values: int) -> int:
    """An instruction on one lane, beside another one, so that arrays are seen to work."""
    found = alu.decode(tuple(name.split(".")))
    kinds = [numbers.UNSIGNED[TYPE_BITS[kind]] for kind in found.sources]
    with np.errstate(all="ignore"):
        scalar = found.function(*(kind(value) for kind, value in zip(kinds, values, strict=True)))
        arrays = found.function(*(np.array([value, 0], kind) for kind, value in zip(kinds, values, strict=True)))
    assert int(scalar) == int(arrays[0])
    assert arrays.dtype == numbers.UNSIGNED[TYPE_BITS[found.result]]
    return int(arrays[0])


def signed(value: int, bits: int = 32) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


@given(words, words, words)
@settings(max_examples=120, deadline=None)
def test_words_wrap(a: int, b: int, c: int) -> None:
    sa, sb = signed(a), signed(b)
    assert compute("add.s32", a, b) == (a + b) % U32
    assert compute("sub.u32", a, b) == (a - b) % U32
    assert compute("mul.lo.s32", a, b) == a * b % U32
    assert compute("mul.hi.s32", a, b) == (sa * sb >> 32) % U32
    assert compute("mul.hi.u32", a, b) == a * b >> 32
    assert compute("mul.wide.s32", a, b) == sa * sb % U64
    assert compute("mul.wide.u32", a, b) == a * b
    assert compute("mad.lo.s32", a, b, c) == (a * b + c) % U32
    assert compute("min.s32", a, b) == min(sa, sb) % U32
    assert compute("max.u32", a, b) == max(a, b)
    assert compute("neg.s32", a) == -sa % U32
    assert compute("setp.lt.s32", a, b) == (sa < sb)
    assert compute("setp.lo.u32", a, b) == (a < b)
    assert compute("selp.b32", a, b, c % 2) == (a if c % 2 else b)
    assert compute("shf.l.wrap.b32", a, b, c) == ((b << 32 | a) << c % 32 >> 32) % U32
    assert compute("shf.r.clamp.b32", a, b, c) == (b << 32 | a) >> min(c, 32) & U32 - 1
    assert compute("popc.b32", a) == a.bit_count()
    assert compute("clz.b32", a) == 32 - a.bit_length()
    assert compute("brev.b32", a) == int(f"{a:032b}"[::-1], 2)


@given(words, words)
@settings(max_examples=80, deadline=None)
def test_shifts_clamp(a: int, n: int) -> None:
    assert compute("shl.b32", a, n) == (a << n) % U32 if n < 64 else compute("shl.b32", a, n) == 0
    assert compute("shr.u32", a, n) == a >> min(n, 32)
    assert compute("shr.s32", a, n) == (signed(a) >> min(n, 31)) % U32
    assert compute("shr.u16", a & 0xFFFF, n) == (a & 0xFFFF) >> min(n, 16)


@given(words, words)
@settings(max_examples=80, deadline=None)
def test_division_goes_towards_zero(a: int, b: int) -> None:
    if b == 0:
        b = 1
    sa, sb = signed(a), signed(b)
    quotient = abs(sa) // abs(sb) * (1 if (sa < 0) == (sb < 0) else -1)
    assert compute("div.s32", a, b) == quotient % U32
    assert compute("rem.s32", a, b) == (sa - quotient * sb) % U32
    assert compute("div.u32", a, b) == a // b


@given(longs, longs)
@settings(max_examples=60, deadline=None)
def test_long_words_wrap(a: int, b: int) -> None:
    assert compute("add.s64", a, b) == (a + b) % U64
    assert compute("mul.lo.s64", a, b) == a * b % U64
    assert compute("mul.hi.u64", a, b) == a * b >> 64
    assert compute("mul.hi.s64", a, b) == (signed(a, 64) * signed(b, 64) >> 64) % U64
    assert compute("shl.b64", a, b % 70) == (a << b % 70) % U64


@given(words, words, words, words)
@settings(max_examples=60, deadline=None)
def test_bits_are_picked_and_placed(a: int, b: int, p: int, n: int) -> None:
    p, n = p & 0xFF, n & 0xFF
    mask = ((1 << min(n, 32)) - 1) << p & U32 - 1
    assert compute("bfi.b32", a, b, p, n) == (b & ~mask) | (a << p & mask)
    assert compute("bfe.u32", a, p, n) == a >> p & (1 << min(n, 32)) - 1
    both = [(b << 32 | a) >> 8 * place & 0xFF for place in range(8)]
    chosen = [both[n >> 4 * place & 7] for place in range(2)]
    signs = [n >> 4 * place & 8 for place in range(2)]
    bytes_ = [(0xFF if byte & 0x80 else 0) if sign else byte for byte, sign in zip(chosen, signs, strict=True)]
    assert compute("prmt.b32", a, b, n) & 0xFFFF == bytes_[0] | bytes_[1] << 8
    low = [a & 0xFFFF, a >> 16]
    assert compute("dp2a.lo.u32.u32", a, b, p) == (low[0] * (b & 0xFF) + low[1] * (b >> 8 & 0xFF) + p) % U32
    assert compute("lop3.b32", a, b, p, 0x96) == a ^ b ^ p


def test_bfe_with_a_sign() -> None:
    assert compute("bfe.s32", 0x000000F0, 4, 4) == U32 - 1
    assert compute("bfe.s32", 0x00000070, 4, 4) == 7
    assert compute("bfe.s32", 0x80000000, 28, 16) == U32 - 8
    assert compute("bfe.s32", 0xFFFFFFFF, 3, 0) == 0


def single(bits: int) -> float:
    return float(np.array(bits, np.uint32).view(np.float32))


def nearest(exact: Fraction, kind: Any) -> int:
    """The bits of a fraction rounded once, ties to even, by comparing it with its neighbours."""
    with np.errstate(over="ignore"):
        guess = kind(float(exact))
    around = [guess, np.nextafter(guess, kind(-np.inf)), np.nextafter(guess, kind(np.inf))]
    finite = [x for x in around if np.isfinite(x)]
    width = {2: np.uint16, 4: np.uint32, 8: np.uint64}[guess.dtype.itemsize]
    best = min(finite, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(width)) & 1))
    largest = Fraction(float(np.finfo(kind).max))
    beyond = largest + Fraction(2) ** (np.finfo(kind).maxexp - np.finfo(kind).nmant - 2)
    if abs(exact) >= beyond:
        best = kind(math.copysign(math.inf, exact))
    return int(best.view(width))


finite32 = words.filter(lambda b: math.isfinite(single(b)))


@given(finite32, finite32, finite32)
@settings(max_examples=150, deadline=None)
def test_fma_is_rounded_once(a: int, b: int, c: int) -> None:
    exact = Fraction(single(a)) * Fraction(single(b)) + Fraction(single(c))
    if exact:
        assert compute("fma.rn.f32", a, b, c) == nearest(exact, np.float32)


def test_fma_where_rounding_twice_is_wrong() -> None:
    # 1 + 2^-24 + 2^-60: halfway between two numbers, and a little more that float64 does not keep.
    one, tiny = np.float32(1).view(np.uint32), np.float32(2.0**-30).view(np.uint32)
    addend = np.float32(1 + 2.0**-23).view(np.uint32)
    assert compute("fma.rn.f32", int(tiny), int(tiny), int(one)) == int(one)
    a = np.float32(2.0**-12 * (1 + 2.0**-23)).view(np.uint32)
    b = np.float32(2.0**-12).view(np.uint32)
    # (1 + 2^-23) + 2^-24 · (1 + 2^-23): just above the tie, whose even side is up anyway; and below 1 it is not.
    assert compute("fma.rn.f32", int(a), int(b), int(addend)) == int(addend) + 1
    assert compute("fma.rn.f32", int(a), int(b), int(one)) == int(one) + 1


@given(halves, halves, halves)
@settings(max_examples=150, deadline=None)
def test_half_arithmetic_is_rounded_once(a: int, b: int, c: int) -> None:
    x, y, z = (float(np.array(v, np.uint16).view(np.float16)) for v in (a, b, c))
    if not all(map(math.isfinite, (x, y, z))):
        return
    for name, exact, given_ in (
        ("fma.rn.f16", Fraction(x) * Fraction(y) + Fraction(z), (a, b, c)),
        ("add.f16", Fraction(x) + Fraction(y), (a, b)),
        ("mul.f16", Fraction(x) * Fraction(y), (a, b)),
    ):
        if exact:
            assert compute(name, *given_) == nearest(exact, np.float16)
    if x:
        packed = compute("mul.f16x2", a | b << 16, c | c << 16)
        assert packed == compute("mul.f16", a, c) | compute("mul.f16", b, c) << 16


@given(finite32)
@settings(max_examples=150, deadline=None)
def test_conversions_round_to_nearest_and_saturate(a: int) -> None:
    value = single(a)
    if value:
        assert compute("cvt.rn.f16.f32", a) == nearest(Fraction(value), np.float16)
    toward = math.trunc(value)
    assert compute("cvt.rzi.s32.f32", a) == max(-(2**31), min(2**31 - 1, toward)) % U32
    assert compute("cvt.rzi.u32.f32", a) == max(0, min(U32 - 1, toward))
    assert compute("cvt.rni.s64.f32", a) == max(-(2**63), min(2**63 - 1, round(value))) % U64


@given(words)
@settings(max_examples=60, deadline=None)
def test_conversions_of_integers(a: int) -> None:
    assert compute("cvt.s64.s32", a) == signed(a) % U64
    assert compute("cvt.u64.u32", a) == a
    assert compute("cvt.u16.u32", a) == a & 0xFFFF
    assert compute("cvt.sat.s8.s32", a) == max(-128, min(127, signed(a))) % 256
    assert compute("cvt.sat.u8.s32", a) == max(0, min(255, signed(a)))
    assert compute("cvt.rn.f32.s32", a) == nearest(Fraction(signed(a)), np.float32) if a else True


ROUNDINGS = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
WHOLE = [f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64)]
EDGES = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    127.5,
    -128.5,
    255.5,
    32767.5,
    65535.5,
    2.0**31,
    -(2.0**31) - 1,
    2.0**63,
    1e30,
]


def bounds(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_floating_point_to_every_integer_saturates(source: str, rounding: str) -> None:
    kind = numbers.FLOATS[source]
    width = numbers.UNSIGNED[TYPE_BITS[source]]
    drawn = np.random.default_rng(5).integers(0, 2 ** TYPE_BITS[source], 60, dtype=width)
    with np.errstate(all="ignore"):
        values = np.concatenate((drawn, np.array([*EDGES, np.inf, -np.inf]).astype(kind).view(width)))
        values = values[~np.isnan(values.view(kind))]
        for result in WHOLE:
            low, high = bounds(result)
            got = alu.decode(("cvt", rounding, result, source)).function(values)
            for value, found in zip(values.view(kind).tolist(), got.tolist(), strict=True):
                if math.isinf(value):
                    exact = high if value > 0 else low
                else:
                    exact = max(low, min(high, ROUNDINGS[rounding](Fraction(value))))
                assert found == exact % (1 << int(result[1:])), (value, result)


@pytest.mark.parametrize("source", WHOLE)
def test_integers_to_every_type(source: str) -> None:
    bits = int(source[1:])
    width = numbers.UNSIGNED[bits]
    drawn = np.random.default_rng(6).integers(0, 2**bits, 40, dtype=width)
    values = np.concatenate((drawn, np.array([0, 1, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1], width)))
    exact = [signed(v, bits) if source[0] == "s" else v for v in values.tolist()]
    for result in WHOLE:
        low, high = bounds(result)
        own = 1 << int(result[1:])
        wrapped = alu.decode(("cvt", result, source)).function(values).tolist()
        assert wrapped == [v % own for v in exact]
        clamped = alu.decode(("cvt", "sat", result, source)).function(values).tolist()
        assert clamped == [max(low, min(high, v)) % own for v in exact]
    for result in ("f32", "f64"):
        got = alu.decode(("cvt", "rn", result, source)).function(values)
        for value, found in zip(exact, got.tolist(), strict=True):
            assert found == (nearest(Fraction(value), numbers.FLOATS[result]) if value else 0)


NAN32, NAN16 = 0x7FC12345, 0x7E01


@pytest.mark.parametrize(
    ("name", "values", "want"),
    [
        ("add.f32", (NAN32, 0x3F800000), 0x7FFFFFFF),
        ("fma.rn.f32", (0x7F800000, 0, 0), 0x7FFFFFFF),
        ("cvt.rn.f16.f32", (NAN32,), 0x7FFF),
        ("cvt.rn.bf16.f32", (NAN32,), 0x7FFF),
        ("cvt.rzi.s32.f32", (NAN32,), 0),
        ("cvt.rzi.s64.f32", (NAN32,), 2**63),
        ("min.f32", (NAN32, 0x3F800000), 0x3F800000),
        ("min.f32", (0, 0x80000000), 0x80000000),
        ("max.f32", (0, 0x80000000), 0),
        ("setp.lt.f32", (NAN32, 0), 0),
        ("setp.ltu.f32", (NAN32, 0), 1),
        ("setp.neu.f32", (NAN32, NAN32), 1),
        ("setp.ne.f32", (NAN32, 0), 0),
        ("setp.nan.f32", (NAN32, 0), 1),
        ("add.sat.f32", (0x40000000, 0x40000000), 0x3F800000),
        ("add.sat.f32", (NAN32, 0), 0),
        ("neg.f16x2", (0x00008000,), 0x80000000),
        ("abs.f32", (0x80000001,), 1),
        ("cvt.f32.f16", (0x0001,), 0x33800000),
        ("cvt.rn.f16x2.f32", (0x3F800000, 0x40000000), 0x3C004000),
        ("cvt.rna.tf32.f32", (0x3F801000,), 0x3F802000),
        ("cvt.rn.bf16.f32", (0x3F808000,), 0x3F80),
        ("cvt.rn.bf16.f32", (0x3F818000,), 0x3F82),
        ("not.pred", (1,), 0),
        ("mul.wide.u16", (0xFFFF, 0xFFFF), 0xFFFE0001),
        ("mad.lo.s16", (300, 300, 5), (90000 + 5) % 65536),
        ("dp4a.s32.s32", (0x01FF0203, 0x01010101, 10), 1 - 1 + 2 + 3 + 10),
    ],
)
def test_special_values(name: str, values: tuple[int, ...], want: int) -> None:
    assert compute(name, *values) == want


@pytest.mark.parametrize(
    "name",
    ["add.ftz.f32", "mul.rz.f32", "add.s8", "mul.s32", "shl.s32", "cvt.f16.f32", "cvt.rn.f32.f16",
     "setp.lo.f32", "setp.lt.b32", "sin.approx.f32", "mad.wide.s64", "fma.f32", "add", "xor.s32", "cvt.rzi.f32.s32"],
)  # fmt: skip
def test_what_is_not_known_is_refused(name: str) -> None:
    with pytest.raises(UnknownInstruction):
        alu.decode(tuple(name.split(".")))


def bits_of(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def value_of(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))


singles = st.integers(0, U32 - 1) | st.floats(-200, 200, width=32).map(bits_of)


@given(singles, singles, singles)
@settings(max_examples=200, deadline=None)
def test_sums_towards_minus_infinity_are_the_largest_below(a: int, b: int, c: int) -> None:
    x, y, z = map(value_of, (a, b, c))
    if not all(map(math.isfinite, (x, y, z))):
        return
    exact, found = Fraction(x) * Fraction(y) + Fraction(z), value_of(compute("fma.rm.f32", a, b, c))
    if math.isfinite(found) and abs(exact) < 2**127:
        above = float(np.nextafter(np.float32(found), np.float32(np.inf)))
        assert Fraction(found) <= exact < Fraction(above)


@given(singles)
@settings(max_examples=200, deadline=None)
def test_approximations_are_the_nearest_values(a: int) -> None:
    """The ISA bounds their errors only; the executor's are 0 but for rounding. Subnormals of .ftz are 0."""
    x = value_of(a)
    if not math.isfinite(x):
        return
    power, inverse = value_of(compute("ex2.approx.ftz.f32", a)), value_of(compute("rcp.approx.ftz.f32", a))
    if -126 <= x < 128:
        assert power == np.float32(np.exp2(np.float64(x)))
    elif x < -127:
        assert power == 0
    if 2.0**-125 <= abs(x) <= 2.0**125:
        assert inverse == np.float32(1 / x)
    elif abs(x) < 2.0**-126:
        assert math.isinf(inverse) and math.copysign(1, inverse) == math.copysign(1, x)


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (3.0, 0x3FD55555_00000000),
        (np.nextafter(3.0, 4.0), 0x3FD55555_00000000),
        (-0.5, 0xC0000000_00000000),
        (2.0**-1030, 0x7FF00000_00000000),
        (-(2.0**1023), 0x80000000_00000000),
        (np.inf, 0),
    ],
)
def test_the_gross_reciprocal_of_doubles_has_32_bits(value: float, bits: int) -> None:
    assert compute("rcp.approx.ftz.f64", int(np.float64(value).view(np.uint64))) == bits


@given(singles, singles)
@settings(max_examples=100, deadline=None)
def test_signs_are_copied_and_quick_quotients_vanish(a: int, b: int) -> None:
    """``copysign.f32 d, a, b``: the magnitude of b with the sign of a."""
    assert compute("copysign.f32", a, b) == a & 0x80000000 | b & 0x7FFFFFFF
    x, y = value_of(a), value_of(b)
    found = value_of(compute("div.approx.f32", a, b))
    if 2.0**-100 <= abs(x) <= 2.0**20 and 2.0**-20 <= abs(y) <= 2.0**20:
        assert found == np.float32(x / y)
    if math.isfinite(x) and 2.0**126 < abs(y) < math.inf:
        assert found == 0


@pytest.mark.parametrize(
    "name", ["ex2.f32", "ex2.approx.f64", "rcp.approx.f16", "copysign.b32", "fma.rp.f32", "div.full.f32"]
)
def test_their_other_forms_are_refused(name: str) -> None:
    with pytest.raises(UnknownInstruction):
        alu.decode(tuple(name.split(".")))
