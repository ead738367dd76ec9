"""``mma.sync`` and ``ldmatrix``: fragments as the PTX ISA specifies them, written down here from its tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from texts_ptx import codes, output, run

from wmmagen import layout
from wmmagen.dtypes import ELEMENT_TYPES
from wmmagen.errors import PtxError
from wmmagen.executor import Result

Place = Callable[[int, int], tuple[int, int]]
LANES = range(32)


def by_column(g: int, row: int, col: int) -> tuple[int, int]:
    return row, col


#: Row and column of element ``i`` of lane ``lane``: A, B and C of each instruction. Source: PTX ISA, the tables of
#: "Matrix Fragments for mma.m16n8k16 with floating point type" and its like.
def _a16(k: int) -> Place:
    def place(lane: int, i: int) -> tuple[int, int]:
        g, t = lane >> 2, lane % 4
        row = g if i in (0, 1, 4, 5) else g + 8
        return row, t * 2 + (i & 1) + (8 if i >= 4 else 0)

    return place


def _b16(lane: int, i: int) -> tuple[int, int]:
    g, t = lane >> 2, lane % 4
    return t * 2 + (i & 1) + (8 if i >= 2 else 0), g


def _c(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (8 if i >= 2 else 0), lane % 4 * 2 + (i & 1)


def _a_tf32(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (8 if i in (1, 3) else 0), lane % 4 + (4 if i >= 2 else 0)


def _b_tf32(lane: int, i: int) -> tuple[int, int]:
    return lane % 4 + 4 * i, lane >> 2


def _a_bytes_32(lane: int, i: int) -> tuple[int, int]:
    row = (lane >> 2) if i < 4 or 8 <= i < 12 else (lane >> 2) + 8
    return row, lane % 4 * 4 + (i & 3) + (16 if i >= 8 else 0)


def _a_bytes_16(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (8 if i >= 4 else 0), lane % 4 * 4 + (i & 3)


def _b_bytes(lane: int, i: int) -> tuple[int, int]:
    return lane % 4 * 4 + (i & 3) + (16 if i >= 4 else 0), lane >> 2


def _a_f64(lane: int, i: int) -> tuple[int, int]:
    return lane >> 2, lane % 4


def _b_f64(lane: int, i: int) -> tuple[int, int]:
    return lane % 4, lane >> 2


SPECIFIED = [
    ("m16n8k16", "f32.f16.f16.f32", (16, 8, 16), (_a16(16), _b16, _c)),
    ("m16n8k16", "f16.f16.f16.f16", (16, 8, 16), (_a16(16), _b16, _c)),
    ("m16n8k16", "f32.bf16.bf16.f32", (16, 8, 16), (_a16(16), _b16, _c)),
    ("m16n8k8", "f32.f16.f16.f32", (16, 8, 8), (_a16(8), _b16, _c)),
    ("m16n8k8", "f32.bf16.bf16.f32", (16, 8, 8), (_a16(8), _b16, _c)),
    ("m16n8k8", "f32.tf32.tf32.f32", (16, 8, 8), (_a_tf32, _b_tf32, _c)),
    ("m16n8k4", "f32.tf32.tf32.f32", (16, 8, 4), (_a_tf32, _b_tf32, _c)),
    ("m8n8k16", "s32.s8.s8.s32", (8, 8, 16), (_a_bytes_16, _b_bytes, _c)),
    ("m16n8k16", "s32.s8.u8.s32", (16, 8, 16), (_a_bytes_16, _b_bytes, _c)),
    ("m16n8k32", "s32.s8.s8.s32", (16, 8, 32), (_a_bytes_32, _b_bytes, _c)),
    ("m16n8k32", "s32.u8.s8.s32", (16, 8, 32), (_a_bytes_32, _b_bytes, _c)),
    ("m8n8k4", "f64.f64.f64.f64", (8, 8, 4), (_a_f64, _b_f64, _c)),
]


def spread(values: np.ndarray, kind: str, place: Place) -> np.ndarray:
    """The registers of a warp that hold a tile: registers × lanes, as unsigned words."""
    element = ELEMENT_TYPES[kind]
    count = values.size // 32
    held = np.array([[values[place(lane, i)] for i in range(count)] for lane in LANES])
    bits = layout.encode(held.astype(layout.value_dtype(element)), element)
    return np.ascontiguousarray(np.ascontiguousarray(bits).view(np.uint64 if kind == "f64" else np.uint32).T)


def multiply(shape: str, kinds: str, operands: tuple[np.ndarray, ...], places: tuple[Place, ...], suffix: str = "",
             before: str = "", **more: object) -> tuple[np.ndarray, Result]:  # fmt: skip
    """D of one instruction, and the launch."""
    d, a, b, c = kinds.split(".")
    registers = [spread(x, k, p) for x, k, p in zip(operands, (a, b, c), places, strict=True)]
    names, loads, first = [], "", 20
    for number, held in enumerate(registers):
        wide = held.dtype == np.uint64
        prefix = "%d" if wide else "%r"
        own = [f"{prefix}{first + i}" for i in range(len(held))]
        loads += f"  mad.wide.u32 %d9, %r0, {held.itemsize}, %d{number};\n"
        loads += "".join(
            f"  ld.global.{'b64' if wide else 'b32'} {name}, [%d9+{32 * held.itemsize * i}];\n"
            for i, name in enumerate(own)
        )
        names.append("{" + ", ".join(own) + "}")
        first += len(held)
    wide = d == "f64"
    results = [f"{'%d' if wide else '%r'}{first + i}" for i in range(len(registers[2]))]
    words = f"mma.sync.aligned.{shape}.row.col.{kinds}{suffix}"
    body = loads + before + f"  {words} {{{', '.join(results)}}}, {', '.join(names)};\n"
    body += f"  mad.wide.u32 %d9, %r0, {8 if wide else 4}, %d3;\n"
    body += "".join(
        f"  st.global.{'b64' if wide else 'b32'} [%d9+{32 * (8 if wide else 4) * i}], {name};\n"
        for i, name in enumerate(results)
    )
    got = run(body, *registers, np.zeros_like(registers[2]), **more)
    element = ELEMENT_TYPES[d]
    per_lane = np.ascontiguousarray(output(got, 3, registers[2]).T).view(layout.bits_dtype(element))
    values = layout.decode(per_lane, element)
    found = np.zeros(operands[2].shape, values.dtype)
    for lane in LANES:
        for i in range(values.shape[1]):
            found[places[2](lane, i)] = values[lane, i]
    return found, got


def drawn(kinds: str, extents: tuple[int, int, int]) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(sum(extents))
    m, n, k = extents
    _, a, b, _ = kinds.split(".")
    lows = [0 if kind == "u8" else -9 for kind in (a, b)]
    return random.integers(lows[0], 9, (m, k)), random.integers(lows[1], 9, (k, n)), random.integers(-50, 50, (m, n))


@pytest.mark.parametrize(
    ("shape", "kinds", "extents", "places"), SPECIFIED, ids=[f"{s}-{k}" for s, k, _, _ in SPECIFIED]
)
def test_products_of_specified_fragments(
    shape: str, kinds: str, extents: tuple[int, int, int], places: tuple[Place, ...]
) -> None:
    a, b, c = drawn(kinds, extents)
    for seed in range(2):
        found, got = multiply(shape, kinds, (a, b, c), places, seed=seed)
        assert got.findings == ()
        assert np.array_equal(found, a @ b + c)
        assert got.counts.multiply_adds == extents[0] * extents[1] * extents[2]


def test_bytes_wrap_unless_they_saturate() -> None:
    shape, kinds, (m, n, k), places = SPECIFIED[9]
    operands = np.full((m, k), -128), np.full((k, n), -128), np.full((m, n), 2**31 - 1)
    exact = 2**31 - 1 + k * 2**14
    assert (multiply(shape, kinds, operands, places)[0] == exact - 2**32).all()
    assert (multiply(shape, kinds, operands, places, ".satfinite")[0] == 2**31 - 1).all()


def test_half_a_warp_multiplies_nothing() -> None:
    shape, kinds, extents, places = SPECIFIED[0]
    operands = drawn(kinds, extents)
    half = "  setp.lt.u32 %p0, %r0, 16;\n  @%p0 bra $L_x;\n  exit;\n$L_x:\n"
    assert "partial-warp" in codes(multiply(shape, kinds, operands, places, before=half)[1])


SHARED = ".extern .shared .align 16 .b8 pool[];\n"
#: Stores 4 matrices, one row for each lane, then loads {count} of them.
STORED = """
  mov.u32 %r10, pool;
  mad.lo.u32 %r11, %r0, {stride}, %r10;
  mad.wide.u32 %d5, %r0, 16, %d0;
  ld.global.v4.b32 {{%r12, %r13, %r14, %r15}}, [%d5];
  st.shared.v4.b32 [%r11], {{%r12, %r13, %r14, %r15}};
  {barrier}
  add.u32 %r11, %r11, {shift};
  ldmatrix.sync.aligned.m8n8.{words}.b16 {{{registers}}}, [%r11];
"""


def loaded(
    words: str, *, stride: int = 16, barrier: str = "bar.warp.sync -1;", shift: int = 0
) -> tuple[np.ndarray, Result]:
    count = int(words[1])
    body = STORED.format(
        words=words, stride=stride, barrier=barrier, shift=shift,
        registers=", ".join(f"%r{20 + i}" for i in range(count)),
    )  # fmt: skip
    body += "".join(f"  st.global.b32 [%d11+{128 * i}], %r{20 + i};\n" for i in range(count))
    source = np.arange(256, dtype=np.uint16)
    got = run(body, source, np.zeros(128, np.uint32), shared=SHARED, shared_bytes=32 * stride)
    return output(got, 1, np.zeros((128, 2), np.uint16)), got


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("space", [".shared", ".shared::cta"])
def test_loads_of_matrices(count: int, trans: str, space: str) -> None:
    found, got = loaded(f"x{count}{trans}{space}")
    assert got.findings == ()
    matrices = np.arange(256).reshape(4, 8, 8)
    for number in range(count):
        matrix = matrices[number].T if trans else matrices[number]
        want = [[matrix[lane // 4, lane % 4 * 2], matrix[lane // 4, lane % 4 * 2 + 1]] for lane in LANES]
        assert found[32 * number : 32 * number + 32].tolist() == want
    assert got.counts.shared_load_wavefronts == count


@pytest.mark.parametrize(("stride", "wavefronts"), [(16, 4), (32, 8), (64, 16), (128, 32), (144, 4)])
def test_matrix_loads_are_counted(stride: int, wavefronts: int) -> None:
    _, got = loaded("x4.shared", stride=stride)
    assert got.findings == ()
    assert got.counts.shared_load_wavefronts == wavefronts


def test_mistakes_with_matrix_loads() -> None:
    assert codes(loaded("x4.shared", barrier="")[1]) == {"race"}
    assert "misaligned" in codes(loaded("x4.shared", shift=8)[1])
    assert "out-of-bounds" in codes(loaded("x4.shared", shift=16)[1])
    # The first matrix needs the addresses of the first 8 lanes only.
    assert codes(loaded("x1.shared", shift=16)[1]) == set()


FOUR, TWO = "{%r1, %r1, %r1, %r1}", "{%r1, %r1}"


@pytest.mark.parametrize(
    "statement",
    [
        "ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r1, %r2, %r3}, [%r4]",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1, %r2}, [%r4]",
        "ldmatrix.sync.aligned.m8n8.x1.global.b16 {%r1}, [%d4]",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1}, [%r4]",
        f"mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {FOUR}, {FOUR}, {TWO}, {FOUR}",
        f"mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {FOUR}, {FOUR}, {TWO}, {FOUR}",
        f"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {FOUR}, {FOUR}, {TWO}, {FOUR}",
        f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{1, 2, 3, 4}}, {FOUR}, {TWO}, {FOUR}",
    ],
)
def test_forms_that_are_not_known(statement: str) -> None:
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        run(f"  {statement};", np.zeros(32, np.uint32))
