"""What nobody should hand to the executor: it answers with an error in words or a finding, soon, never otherwise."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from test_executor_matrix import HALF, ROWS, compute, result
from texts_ptx import HEADER, codes, kernel, output, run

from wmmagen import executor
from wmmagen.errors import LaunchFault, PtxError, TimeoutFault, WmmagenError
from wmmagen.executor import Pointer

OUT = np.zeros(64, np.uint32)
DIGITS = "9" * 6000
#: Seconds within which any text is answered; it takes a tenth of that on an idle core.
SOON = 20.0


def launch(text: str, **more: object) -> executor.Result:
    return executor.launch(text, "k", (1, 1, 1), (32, 1, 1), [], 0, budget=200_000, **more)


def inside(body: str, head: str = "", parameters: str = "") -> str:
    return (
        f"{HEADER}{head}\n.visible .entry k({parameters})\n"
        f"{{ .reg .b32 %r<9>; .reg .pred %p<9>; .reg .b64 %d<9>;\n{body}\nret;\n}}\n"
    )


REFUSED: dict[str, Callable[[], str]] = {
    "nothing": lambda: "",
    "garbage": lambda: "\0\xff{;" * 500_000,
    "one word": lambda: "a" * 5_000_000,
    "words": lambda: "foo\n" * 1_000_000,
    "semicolons": lambda: ";" * 1_000_000,
    "scopes": lambda: inside("{" * 100_000 + "}" * 100_000),
    "brackets": lambda: inside("ld.global.b32 %r1, " + "[" * 100_000 + ";"),
    "braces": lambda: inside("mov.b32 %r1, " + "{" * 100_000 + "}" * 100_000 + ";"),
    "commas": lambda: inside("mov.b32 " + "," * 100_000 + ";"),
    "operands": lambda: inside("mov.b32 " + "%r1," * 100_000 + "%r2;"),
    "comments": lambda: "/*" * 100_000,
    "a long count of registers": lambda: inside(f".reg .b32 %z<{DIGITS}>;"),
    "a long register": lambda: inside(f"mov.b32 %r{DIGITS}, 1;"),
    "a long number": lambda: inside(f"mov.b32 %r1, {DIGITS};"),
    "a long hexadecimal number": lambda: inside(f"mov.b32 %r1, 0x{DIGITS};"),
    "a long offset": lambda: inside(f"ld.global.b32 %r1, [%d1+{DIGITS}];"),
    "a long line number": lambda: inside(f".loc 1 {DIGITS} 1\n"),
    "a long array": lambda: inside("", f".shared .align 4 .b8 x[{DIGITS}];"),
    "a long initial value": lambda: inside("", f".global .align 4 .u32 x[2] = {{{DIGITS}}};"),
    "a long bound of threads": lambda: f"{HEADER}.visible .entry k()\n.maxntid {DIGITS}\n{{ ret; }}",
    "a parameter of many words": lambda: inside("", "", ".param .b8 " + ".a " * 20_000 + "!"),
    "a variable of many words": lambda: inside("", ".global " + ".align 4 " * 20_000 + ";"),
    "a header without an end": lambda: HEADER + ".visible .entry k(" + ".param .u32 a,\n" * 100_000,
    "no alignment": lambda: inside("mov.b32 %r1, x;", ".shared .align 0 .b8 x[16];"),
    "alignment to 3": lambda: inside("mov.b32 %r1, x;", ".shared .align 3 .b8 x[16];"),
    "a guard that is no predicate": lambda: inside("@%r1 mov.b32 %r2, 1;"),
    "barrier 99": lambda: inside("bar.sync 99;"),
    "a barrier of 7 threads": lambda: inside("bar.sync 1, 7;"),
    "two things in one": lambda: HEADER + ".visible .entry k() .entry k() { ret; }",
}


@pytest.mark.parametrize("what", REFUSED)
def test_texts_that_are_no_kernels_are_refused_with_their_line(what: str) -> None:
    text = REFUSED[what]()
    start = time.monotonic()
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        launch(text)
    assert time.monotonic() - start < SOON


@pytest.mark.parametrize(
    "body",
    ["", ".reg .b32 %z<999999999>; mov.b32 %z99999999, 1;", "cp.async.wait_group 18446744073709551615;",
     "mov.u32 %r1, 0; div.u32 %r2, %r1, %r1; div.s32 %r2, 0x80000000, -1; rem.s32 %r2, 0x80000000, -1;",
     "mov.u32 %r1, 5; shl.b32 %r2, %r1, 4000000000;", "$L_a:", ";;;;"],
)  # fmt: skip
def test_odd_texts_that_run(body: str) -> None:
    assert launch(inside(body)).findings == ()
    empty = f"{HEADER}.visible .entry k() {{\n{body if body.startswith('$') else ''}\n}}"
    assert launch(empty).findings == ()


def test_an_offset_of_64_bits_wraps_and_is_outside() -> None:
    assert codes(run("  ld.global.b32 %r10, [%d0+18446744073709551612];", OUT)) == {"out-of-bounds"}


def test_many_labels_and_branches_end() -> None:
    labels = "\n".join(f"$L{i}: bra $L{i + 1};" for i in range(2000)) + "\n$L2000:"
    assert launch(inside(labels)).findings == ()
    tangle = "setp.eq.u32 %p1, 1, 1;\n" + "\n".join(f"$L{i}: @%p1 bra $L{i * 7919 % 1000};" for i in range(1000))
    with pytest.raises(TimeoutFault):
        launch(inside(tangle))


BODY = """
  mov.u32 %r11, pool;
  mad.lo.u32 %r12, %r0, 4, %r11;
  cp.async.ca.shared.global [%r12], [%d10], 4;
  cp.async.wait_all;
  bar.sync 0;
$L_loop:
  xor.b32 %r13, %r12, 4;
  ld.shared.b32 %r14, [%r13];
  setp.lt.u32 %p0, %r14, 3;
  @%p0 bra $L_loop;
  shfl.sync.bfly.b32 %r15|%p1, %r14, 1, 31, -1;
  atom.global.add.u32 %r16, [%d0+256], %r15;
  mbarrier.init.shared.b64 [%r12+1024], 1;
  wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r20, %r21, %r22, %r23, %r24, %r25, %r26, %r27}, [%r11], 16;
  st.global.b32 [%d10], %r14;"""
TEXT = kernel(BODY, shared=".extern .shared .align 16 .b8 pool[];\n")


def answered(text: str) -> bool:
    """Whether a text runs or is refused within a small budget; anything else is an exception of another kind."""
    try:
        executor.launch(
            text, "k", (1, 1, 1), (32, 1, 1), [Pointer(0)], 2048, buffers=[OUT + 5], budget=20_000, limit_s=5
        )
    except WmmagenError:
        return False
    return True


def test_every_prefix_is_refused() -> None:
    for place in [match.start() for match in re.finditer(r"\S+", TEXT)]:
        assert not answered(TEXT[:place])
    assert answered(TEXT)


def test_changed_bytes_and_lines_are_run_or_refused() -> None:
    draw = random.Random(11)
    words, seen = TEXT.split(), set()
    for _ in range(150):
        changed = bytearray(TEXT.encode())
        for _ in range(draw.choice((1, 1, 2, 6))):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        seen.add(answered(changed.decode("latin-1")))
    for _ in range(150):
        lines = TEXT.split("\n")
        place = draw.randrange(len(lines))
        kind = draw.randrange(3)
        if kind == 0:
            lines[place] = draw.choice(lines)
        elif kind == 1:
            del lines[place]
        elif lines[place].split():
            own = lines[place].split()
            own[draw.randrange(len(own))] = draw.choice(words)
            lines[place] = " ".join(own)
        seen.add(answered("\n".join(lines)))
    assert seen == {True, False}


# Launches ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "block", "shared", "words"),
    [
        ((2**31, 1, 1), (1, 1, 1), 0, "is larger than"),
        ((2**31 - 1, 1, 1), (1024, 1, 1), 0, "MiB at most"),
        ((65535, 65535, 65535), (1, 1, 1), 0, "MiB at most"),
        ((1, 65536, 1), (1, 1, 1), 0, "is larger than"),
        ((1, 1, 1), (1, 1, 65), 0, "is larger than"),
        ((10**6, 1, 1), (256, 1, 1), 0, "MiB at most"),
        ((1, 1, 1), (32, 1, 1), 2**40, "MiB at most"),
        ((1, 1, 1), (32, 1, 1), 10**30, "MiB at most"),
        ((0, 1, 1), (1, 1, 1), 0, "threads must be"),
        ((-1, -1, 1), (1, 1, 1), 0, "threads must be"),
    ],
)
def test_launches_that_are_too_large_are_refused_before_anything_is_allocated(
    grid: tuple[int, int, int], block: tuple[int, int, int], shared: int, words: str
) -> None:
    text = inside("mov.u32 %r1, pool;", ".extern .shared .align 16 .b8 pool[];")
    start = time.monotonic()
    with pytest.raises(LaunchFault, match=words):
        executor.launch(text, "k", grid, block, [], shared)
    assert time.monotonic() - start < SOON


@pytest.mark.parametrize("space", ["shared", "local", "global"])
def test_variables_that_are_too_large_are_refused(space: str) -> None:
    declared = f".{space} .align 4 .b8 x[99999999999999];"
    head, body = ("", declared) if space == "local" else (declared, "")
    with pytest.raises(LaunchFault, match="MiB at most"):
        launch(inside(f"{body} mov.u64 %d1, x;", head))


@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [("u32", 1.5, False), ("f32", 3, True), ("f32", 1e300, False), ("f32", 10**400, False), ("f32", float("nan"), True),
     ("u32", -5, True), ("u32", 2**40, False), ("u32", np.int64(5), True), ("f32", np.float32(1.5), True),
     ("u32", "x", False), ("u64", None, False), ("u32", Pointer(0), False), ("u64", Pointer(9), False),
     ("u64", Pointer(0, 2**80), False), ("u64", Pointer(-1), False), ("f16", 1.0, False), ("u8", 255, True)],
)  # fmt: skip
def test_arguments_that_do_not_fit(kind: str, value: object, fits: bool) -> None:
    text = inside("", "", f".param .{kind} a")

    def start() -> None:
        executor.launch(text, "k", (1, 1, 1), (32, 1, 1), [value], 0, buffers=[OUT])  # type: ignore[list-item]

    if fits:
        start()
        return
    with pytest.raises(LaunchFault, match="argument 0"):
        start()


def test_buffers_that_overlap_or_hold_nothing() -> None:
    """Each buffer is a copy with addresses of its own: what overlaps outside does not in the launch."""
    whole = np.arange(64, dtype=np.uint32)
    got = run("  ld.global.b32 %r10, [%d11];\n  st.global.b32 [%d10], %r10;", whole[:32], whole[16:48])
    assert got.findings == ()
    assert output(got, 0, whole[:32]).tolist() == list(range(16, 48))
    assert whole.tolist() == list(range(64))
    nothing = np.zeros(0, np.uint32)
    assert codes(run("  ld.global.b32 %r10, [%d0];", nothing)) == {"out-of-bounds"}
    beside = run("  st.global.b32 [%d11], 7;", nothing, whole[:32])
    assert beside.findings == ()
    assert output(beside, 1, whole[:32]).tolist() == [7] * 32


# Numbers in matrix instructions --------------------------------------------------------------------------------------

F16 = [row for row in ROWS if row.a.name == "f16" and row.shape == "16x16x16"]


def diagonal(value: float) -> np.ndarray:
    return np.eye(16) * value


@pytest.mark.parametrize("row", F16, ids=str)
def test_subnormal_halves_are_numbers(row: object) -> None:
    """The smallest half, 2^-24: as an operand, as a sum, and where products of subnormals round."""
    least = 2.0**-24
    ones, none = np.ones((16, 16)), np.zeros((16, 16))
    got = result(row, compute(row, "row", "row", (diagonal(least), ones, none)))
    assert (got == np.float64(least)).all()
    got = result(row, compute(row, "row", "row", (diagonal(1), ones * least * 3, ones * least * 2)))
    assert (got == 5 * least).all()
    got = result(row, compute(row, "row", "row", (diagonal(least), ones * 0.75, none)))
    assert (got == (least if row.acc.name == "f16" else least * 0.75)).all()  # type: ignore[attr-defined]
    got = result(row, compute(row, "row", "row", (diagonal(least), ones * least, none)))
    assert (got == (0 if row.acc.name == "f16" else float(Fraction(1, 2**48)))).all()  # type: ignore[attr-defined]


@pytest.mark.parametrize("row", F16, ids=str)
def test_infinities_and_not_a_number(row: object) -> None:
    ones, none = np.ones((16, 16)), np.zeros((16, 16))
    with np.errstate(invalid="ignore"):
        spoiled = none.copy()
        spoiled[3, 5] = np.inf
    got = result(row, compute(row, "row", "row", (spoiled, none, none)))
    assert np.isnan(got[3]).all()
    assert (got[np.arange(16) != 3] == 0).all()
    got = result(row, compute(row, "row", "row", (spoiled, ones, none)))
    assert np.isposinf(got[3]).all()
    both = spoiled.copy()
    both[3, 6] = -np.inf
    assert np.isnan(result(row, compute(row, "row", "row", (both, ones, none)))[3]).all()
    payload = compute(row, "row", "row", (none + np.nan, ones, none)).outputs[3]
    kind, want = (np.uint16, 0x7FFF) if row is HALF else (np.uint32, 0x7FFFFFFF)
    # Whatever the payload was, the result is the canonical one.
    assert want in payload.view(kind)
    assert set(payload.view(kind).tolist()) <= {want, 0}


def test_an_exact_zero_is_positive() -> None:
    """Whether sums are whole numbers or not, which the executor adds up in two ways."""
    for scale in (1.0, 2.0**-3):
        a, b = np.full((16, 16), -0.0), np.full((16, 16), scale)
        a[5, 5] = scale * 0.5
        got = result(F16[0], compute(F16[0], "row", "row", (a, b, np.full((16, 16), -0.0))))
        assert not np.signbit(got).any()
