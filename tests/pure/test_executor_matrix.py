"""Matrix instructions of the executor: every row of the table, the random layouts, the rulebooks, the rounding."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from texts_ptx import HEADER, codes

from wmmagen import executor, layout
from wmmagen.dtypes import ELEMENT_TYPES
from wmmagen.executor import Pointer, fragments, matrix
from wmmagen.executor.alu import UnknownInstruction
from wmmagen.executor.matrix import Layouts
from wmmagen.instructions import INSTRUCTIONS, Instruction
from wmmagen.rules import RULES

ROWS = [row for row in INSTRUCTIONS if row.a.bits >= 8]
LAYOUTS = [(a, b) for a in ("row", "col") for b in ("row", "col")]


def names(fragment: matrix.Fragment, first: int) -> str:
    prefix = "%d" if fragment.register_bits == 64 else "%r"
    return "{" + ", ".join(f"{prefix}{first + n}" for n in range(fragment.registers)) + "}"


def product_words(row: Instruction, a: str, b: str) -> str:
    shape, kind, acc = f"m{row.m}n{row.n}k{row.k}", row.a.name, row.acc.name
    kinds = f"{acc}.{acc}" if kind == "f16" else f"{acc}.{kind}.{kind}.{acc}"
    return f"wmma.mma.sync.aligned.{a}.{b}.{shape}.{'rn.' if kind == 'f64' else ''}{kinds}"


def text(row: Instruction, a: str, b: str, *, between: str = "", space: str = ".global", d: str = "row") -> str:
    """A kernel that computes D = A·B + C by one instruction, from global memory."""
    product = matrix.decode_product(tuple(product_words(row, a, b).split(".")))
    held = [names(f, 10 + 20 * n) for n, f in enumerate((product.a, product.b, product.c, product.d))]
    shape, kind, acc = f"m{row.m}n{row.n}k{row.k}", row.a.name, row.acc.name
    return f"""{HEADER}.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d, .param .u32 lda,
  .param .u32 ldb, .param .u32 ldc)
{{ .reg .b32 %r<100>; .reg .b64 %d<100>;
  ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b]; ld.param.u64 %d2, [c]; ld.param.u64 %d3, [d];
  ld.param.u32 %r0, [lda]; ld.param.u32 %r1, [ldb]; ld.param.u32 %r2, [ldc];
  wmma.load.a.sync.aligned.{a}.{shape}{space}.{kind} {held[0]}, [%d0], %r0;
  wmma.load.b.sync.aligned.{b}.{shape}{space}.{kind} {held[1]}, [%d1], %r1;
  wmma.load.c.sync.aligned.row.{shape}{space}.{acc} {held[2]}, [%d2], %r2;
  {between}
  {product_words(row, a, b)} {held[3]}, {held[0]}, {held[1]}, {held[2]};
  wmma.store.d.sync.aligned.{d}.{shape}{space}.{acc} [%d3], {held[3]}, %r2;
  ret; }}
"""


def lines(values: np.ndarray, order: str, kind: str, ld: int) -> np.ndarray:
    """A matrix in memory, with ``ld`` elements from line to line."""
    inside = values if order == "row" else values.T
    element = ELEMENT_TYPES[kind]
    memory = np.zeros((inside.shape[0], ld), layout.bits_dtype(element))
    memory[:, : inside.shape[1]] = layout.encode(inside.astype(layout.value_dtype(element)), element)
    return memory


def compute(row: Instruction, a: str, b: str, operands: tuple[np.ndarray, ...], **more: object) -> executor.Result:
    """Run the kernel of :func:`text` on A, B and C."""
    orders, kinds = (a, b, "row"), (row.a.name, row.a.name, row.acc.name)
    extents = [m.shape[1] if o == "row" else m.shape[0] for m, o in zip(operands, orders, strict=True)]
    units = [128 // ELEMENT_TYPES[kind].bits for kind in kinds]
    lds = [(extent // unit + 2) * unit for extent, unit in zip(extents, units, strict=True)]
    made = [lines(*each) for each in zip(operands, orders, kinds, lds, strict=True)]
    args = [*(Pointer(n) for n in range(4)), *lds]
    written = text(row, a, b, **{k: v for k, v in more.items() if k in ("between", "space")})
    return executor.launch(
        written, "k", (1, 1, 1), (32, 1, 1), args, 0, buffers=[*made, made[2] * 0], seed=more.get("seed", 0)
    )


def result(row: Instruction, got: executor.Result) -> np.ndarray:
    element = row.acc
    bits = got.outputs[3].view(layout.bits_dtype(element)).reshape(row.m, -1)[:, : row.n]
    return layout.decode(np.ascontiguousarray(bits), element)


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize(("a", "b"), LAYOUTS)
def test_every_row_of_the_table_multiplies(row: Instruction, a: str, b: str) -> None:
    random = np.random.default_rng(row.m + row.k)
    low = 0 if row.a.name == "u8" else -7
    operands = (
        random.integers(low, 8, (row.m, row.k)),
        random.integers(low, 8, (row.k, row.n)),
        random.integers(-50, 50, (row.m, row.n)),
    )
    got = compute(row, a, b, operands)
    assert got.findings == ()
    assert np.array_equal(result(row, got), operands[0] @ operands[1] + operands[2])
    assert got.counts.tensor_instructions == 1
    assert got.counts.multiply_adds == row.m * row.n * row.k


F16, HALF, S8 = (next(r for r in ROWS if (r.a.name, r.acc.name, r.m) == key) for key in
                 (("f16", "f32", 16), ("f16", "f16", 16), ("s8", "s32", 16)))  # fmt: skip
TF32, BF16, F64 = (next(r for r in ROWS if r.a.name == name and r.m in (8, 16)) for name in ("tf32", "bf16", "f64"))


def small(row: Instruction) -> tuple[np.ndarray, ...]:
    return np.eye(row.m, row.k), np.arange(row.k * row.n).reshape(row.k, row.n) % 97, np.zeros((row.m, row.n))


def test_generic_addresses_and_uniform_work_on_elements() -> None:
    """Twice each register of C before the product: uniform work passes, whatever the layout."""
    words = "".join(f"add.f32 %r{50 + n}, %r{50 + n}, %r{50 + n}; " for n in range(8))
    for seed in range(3):
        a, b, c = small(F16)
        got = compute(F16, "row", "row", (a, b, c + 3), between=words, space="", seed=seed)
        assert got.findings == ()
        assert np.array_equal(result(F16, got), a @ b + 6)


def test_a_guessed_layout_fails() -> None:
    """Element 0 of lane 0 is no particular element of the tile: two runs put it at different places."""
    words = "mov.u32 %r9, %laneid; setp.eq.u32 %p0, %r9, 0; @%p0 add.f32 %r50, %r50, 0f40000000;"
    places = set()
    for seed in range(4):
        a, b, c = small(F16)
        got = compute(F16, "row", "row", (a, b, c), between=".reg .pred %p<2>; " + words, seed=seed)
        (where,) = np.argwhere(result(F16, got) != a @ b)
        places.add(tuple(where))
    assert len(places) > 1


def test_layouts_hold_every_element_equally_often() -> None:
    for row in ROWS:
        product = matrix.decode_product(tuple(product_words(row, "row", "col").split(".")))
        for fragment in (product.a, product.b, product.c):
            held, first = Layouts(5).of(fragment)
            copies = np.bincount(held, minlength=fragment.elements)
            assert copies.min() == copies.max()
            assert np.array_equal(held[first], np.arange(fragment.elements))
            assert np.array_equal(held, Layouts(5).of(fragment)[0])
            assert not np.array_equal(held, Layouts(6).of(fragment)[0])


def nearest_f32(exact: Fraction) -> np.float32:
    near = np.float32(float(exact))
    around = (near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf)))
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1))


@pytest.mark.parametrize("row", [F16, BF16, TF32], ids=str)
def test_sums_are_exact_and_rounded_once(row: Instruction) -> None:
    """Values over the whole range of exponents, where float64 itself cannot hold the sums."""
    random = np.random.default_rng(7)
    spread = 12 if row.a.name == "f16" else 60
    operands = tuple(
        layout.decode(layout.encode((random.standard_normal(shape) * 2.0 ** random.integers(-spread, spread, shape))
                                    .astype(layout.value_dtype(kind)), kind), kind)
        for shape, kind in (((row.m, row.k), row.a), ((row.k, row.n), row.a), ((row.m, row.n), row.acc))
    )  # fmt: skip
    if row.a.name == "tf32":
        operands = (*((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in operands[:2]), operands[2])
    got = result(row, compute(row, "row", "row", operands))
    a, b, c = operands
    for i in range(0, row.m, 3):
        for j in range(0, row.n, 3):
            exact = Fraction(float(c[i, j]))
            exact += sum(Fraction(float(a[i, k])) * Fraction(float(b[k, j])) for k in range(row.k))
            assert got[i, j] == nearest_f32(exact)


def test_half_sums_overflow_and_doubles_round_once() -> None:
    got = result(HALF, compute(HALF, "row", "row", (np.full((16, 16), 64), np.full((16, 16), 64), np.zeros((16, 16)))))
    assert np.isinf(got).all()
    third = np.full((8, 4), 1 / 3), np.full((4, 8), 1 / 3), np.ones((8, 8))
    got = result(F64, compute(F64, "row", "row", third))
    assert got[0, 0] == float(4 * Fraction(1 / 3) ** 2 + 1)


def test_not_a_number_spoils_its_row_alone() -> None:
    a, b, c = small(F16)
    a[3, 5] = np.nan
    a[4, 4], b[4, 2] = np.inf, 1
    got = result(F16, compute(F16, "row", "row", (a, b, c)))
    assert np.isnan(got[3]).all()
    assert np.isinf(got[4, 2])
    assert np.array_equal(got[5:], (np.eye(16) @ b)[5:])


def test_integers_wrap_unless_they_saturate() -> None:
    a, b = np.full((16, 16), 127), np.full((16, 16), 127)
    c = np.full((16, 16), 2**31 - 1)
    wrapped = result(S8, compute(S8, "row", "row", (a, b, c)))
    assert wrapped[0, 0] == 2**31 - 1 + 16 * 127**2 - 2**32
    words = product_words(S8, "row", "col") + ".satfinite"
    assert matrix.decode_product(tuple(words.split("."))).saturates


@pytest.mark.parametrize(
    ("shift", "lda", "strict", "rules"),
    [
        (0, 32, True, set()),
        (16, 32, False, {"P303"}),
        (32, 24, False, set()),
        (0, 24, True, {"L231"}),
        (0, 20, False, {"L221"}),
        (2, 20, False, {"P303", "L221"}),
    ],
)
def test_both_rulebooks_of_alignment(shift: int, lda: int, strict: bool, rules: set[str]) -> None:
    buffers = [np.zeros(2048, np.uint8) for _ in range(4)]
    args = [Pointer(0, shift), Pointer(1), Pointer(2), Pointer(3), lda, 16, 16]
    got = executor.launch(
        text(F16, "row", "row"), "k", (1, 1, 1), (32, 1, 1), args, 0, buffers=buffers, strict_isa=strict
    )
    assert {f.rule for f in got.findings} == rules


NAMES = {rule.id: rule.name for rule in RULES}


@pytest.mark.parametrize(
    ("table", "staged", "called", "strict"),
    [
        (fragments._POINTER_RULES, "staged-tiles", "global-tiles", ""),
        (fragments._LDM_RULES, "staged-ldm", "call-ldm", ""),
        (fragments._STRICT_RULES, "staged-ldm", "call-ldm", "-strict"),
    ],
)
def test_findings_name_the_rule_of_their_operand(
    table: dict[tuple[str, str], str], staged: str, called: str, strict: str
) -> None:
    assert set(table) >= set(itertools.product(("shared", "global"), "ab"))
    for (space, letter), rule in table.items():
        # Staged sums are loaded again where they were stored; tiles of C are as wide as those of D.
        operand = "d" if letter == "c" and rule in ("L203", "L213", "P305") else letter
        assert NAMES[rule] == f"{staged if space == 'shared' else called}-{operand}{strict}"


def test_a_fragment_outside_of_its_buffer_and_a_part_of_a_warp() -> None:
    buffers = [np.zeros(size, np.uint8) for size in (500, 512, 1024, 1024)]
    args = [*(Pointer(n) for n in range(4)), 16, 16, 16]
    got = executor.launch(text(F16, "row", "row"), "k", (1, 1, 1), (32, 1, 1), args, 0, buffers=buffers)
    found = next(f for f in got.findings if f.code == "out-of-bounds")
    assert (found.address, found.lane) == (500, -1)
    assert "poison-stored" in codes(got)
    half = executor.launch(text(F16, "row", "row"), "k", (1, 1, 1), (16, 1, 1), args, 0, buffers=buffers)
    assert codes(half) == {"partial-warp"}


def test_arguments_that_differ_within_a_warp() -> None:
    written = text(F16, "row", "row").replace("ld.param.u32 %r2, [ldc];", "ld.param.u32 %r2, [ldc];\n"
              "mov.u32 %r9, %laneid; mad.wide.u32 %d0, %r9, 32, %d0;")  # fmt: skip
    buffers = [np.zeros(4096, np.uint8) for _ in range(4)]
    args = [*(Pointer(n) for n in range(4)), 16, 16, 16]
    got = executor.launch(written, "k", (1, 1, 1), (32, 1, 1), args, 0, buffers=buffers)
    assert codes(got) == {"differing-arguments"}


STAGED = """{header}.extern .shared .align 128 .b8 pool[];
.visible .entry k(.param .u64 d)
{{ .reg .b32 %r<60>; .reg .b64 %d<4>;
  ld.param.u64 %d0, [d]; mov.u32 %r1, %laneid; mov.u32 %r2, pool; mov.u32 %r3, 0f3F800000;
  wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%r2], {{%r3, %r3, %r3, %r3, %r3, %r3, %r3, %r3}}, {ldm};
  {barrier}
  mad.lo.u32 %r4, %r1, 4, %r2; ld.shared.b32 %r5, [%r4]; mad.wide.u32 %d1, %r1, 4, %d0; st.global.b32 [%d1], %r5;
  ret; }}
"""


@pytest.mark.parametrize(("barrier", "found"), [("", {"race"}), ("bar.warp.sync 0xffffffff;", set())])
def test_a_tile_that_other_lanes_read_without_a_warp_barrier(barrier: str, found: set[str]) -> None:
    written = STAGED.format(header=HEADER, barrier=barrier, ldm=16)
    got = executor.launch(written, "k", (1, 1, 1), (32, 1, 1), [Pointer(0)], 1024, buffers=[np.zeros(128, np.uint8)])
    assert codes(got) == found
    assert got.outputs[0].view(np.float32).tolist() == [1.0] * 32


LOADED = """{header}.extern .shared .align 128 .b8 pool[];
.visible .entry k()
{{ .reg .b32 %r<60>;
  mov.u32 %r2, pool;
  wmma.load.a.sync.aligned.{order}.{shape}.shared.f16 {{%r10, %r11, %r12, %r13, %r14, %r15, %r16, %r17}}, [%r2], {ldm};
  ret; }}
"""


@pytest.mark.parametrize(
    ("shape", "order", "ldm", "wavefronts", "conflicts"),
    [
        # Four 8x8 matrices; lines of 80 bytes fall on different banks, of 128 bytes all on the same ones.
        ("m16n16k16", "row", 40, 4, 0),
        ("m16n16k16", "col", 40, 4, 0),
        ("m16n16k16", "row", 64, 32, 28),
        ("m16n16k16", "row", 32, 16, 12),
        ("m16n16k16", "row", 16, 8, 4),
        ("m32n8k16", "row", 24, 8, 0),
        ("m8n32k16", "col", 8, 2, 0),
    ],
)
def test_fragment_loads_are_counted_as_matrices(
    shape: str, order: str, ldm: int, wavefronts: int, conflicts: int
) -> None:
    written = LOADED.format(header=HEADER, shape=shape, order=order, ldm=ldm)
    counts = executor.launch(written, "k", (1, 1, 1), (32, 1, 1), [], 4096).counts
    assert (counts.shared_load_wavefronts, counts.shared_load_conflicts) == (wavefronts, conflicts)


SHAPED = """{header}.extern .shared .align 128 .b8 pool[];
.visible .entry k(.param .u64 d)
{{ .reg .b32 %r<60>; .reg .b64 %d<4>;
  ld.param.u64 %d0, [d]; mov.u32 %r2, pool; mov.u32 %r3, 0;
  wmma.store.d.sync.aligned.row.{shape}.shared.{kind} [%r2], {{{registers}}}, {ldm};
  wmma.store.d.sync.aligned.row.{shape}.global.{kind} [%d0], {{{registers}}}, {ldm};
  ret; }}
"""


def lane_addresses(shape: str, kind: str, ldm: int) -> Iterator[list[range]]:
    """The bytes of each lane in each store of a tile, as the machine code for sm_90 computes them from its number.

    In 8x32x16 a lane's sums lie on two lines, 2·(lane mod 4) and the next; halves are transposed back before.
    """
    _, m, n, _ = (int(x) for x in re.split("[mnk]", f"0{shape}"))
    size = 4 if kind == "f32" else 2
    for top, left in itertools.product(range(0, m, 8), range(0, n, 8)):
        if (shape, kind) == ("m8n32k16", "f32"):
            for odd in (0, 1):
                starts = [(2 * (lane % 4) + odd) * ldm + left + lane // 4 for lane in range(32)]
                yield [range(size * start, size * (start + 1)) for start in starts]
        else:
            starts = [(top + lane // 4) * ldm + left + lane % 4 * 2 for lane in range(32)]
            yield [range(size * start, size * (start + 2)) for start in starts]


def wavefronts_of(lanes: list[range]) -> int:
    """Lanes pass together as long as they have 128 bytes together; then the busiest bank counts."""
    together = 128 // max(len(lanes[0]), 4)
    total = 0
    for first in range(0, 32, together):
        words = {byte // 4 for lane in lanes[first : first + together] for byte in lane}
        total += max(Counter(word % 32 for word in words).values())
    return total


@pytest.mark.parametrize("shape", ["m16n16k16", "m32n8k16", "m8n32k16"])
@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("more", [0, 4, 8, 12, 24])
def test_stores_of_accumulators_are_counted_as_lanes_make_them(shape: str, kind: str, more: int) -> None:
    ldm = int(re.split("[mnk]", shape)[2]) + more * (1 if kind == "f32" else 2)
    registers = ", ".join(["%r3"] * (8 if kind == "f32" else 4))
    written = SHAPED.format(header=HEADER, shape=shape, kind=kind, ldm=ldm, registers=registers)
    counts = executor.launch(
        written, "k", (1, 1, 1), (32, 1, 1), [Pointer(0)], 8192, buffers=[np.zeros(8192, np.uint8)]
    ).counts
    stores = list(lane_addresses(shape, kind, ldm))
    assert counts.shared_store_wavefronts == sum(wavefronts_of(lanes) for lanes in stores)
    assert counts.global_store_requests == len(stores)
    assert counts.global_store_sectors == sum(len({byte // 32 for lane in lanes for byte in lane}) for lanes in stores)


@pytest.mark.parametrize(
    "words",
    ["wmma.mma.sync.aligned.row.col.m16n16k8.f32.f32", "wmma.mma.sync.aligned.row.col.m16n16k16.f64.f32",
     "wmma.mma.sync.aligned.row.row.m8n8k32.s32.s4.s4.s32", "wmma.mma.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32",
     "wmma.mma.or.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32",
     "wmma.mma.xor.popc.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32",
     "wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.u4.s32", "wmma.mma.sync.aligned.row.any.m16n16k16.f32.f32",
     "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32.satfinite", "wmma.mma.sync.row.col.m16n16k16.f32.f32"],
)  # fmt: skip
def test_products_that_are_not_known(words: str) -> None:
    with pytest.raises(UnknownInstruction):
        matrix.decode_product(tuple(words.split(".")))
