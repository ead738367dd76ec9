"""Atomics, shuffles, votes and their like, against the semantics of the PTX ISA."""

from __future__ import annotations

import numpy as np
import pytest
from texts_ptx import codes, output, run

from wmmagen.errors import PtxError

SHARED = ".extern .shared .align 16 .b8 pool[];\n"
OUT = np.zeros(64, np.uint32)
LANES = np.arange(32)


# Shuffles ------------------------------------------------------------------------------------------------------------


def shuffled(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """The lane that is read, and the predicate, as the ISA's pseudocode says."""
    bval, cval, mask = b & 31, c & 31, c >> 8 & 31
    most, least = (lane & mask) | (cval & ~mask & 31), lane & mask
    if mode == "up":
        j, p = lane - bval, lane - bval >= most
    elif mode == "down":
        j, p = lane + bval, lane + bval <= most
    elif mode == "bfly":
        j, p = lane ^ bval, lane ^ bval <= most
    else:
        j, p = least | (bval & ~mask & 31), (least | (bval & ~mask & 31)) <= most
    return (j if p else lane), p


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("segments", [0x0, 0x1000, 0x1C00, 0x1800])
@pytest.mark.parametrize("step", [0, 1, 7, 16, 31, 37])
def test_shuffles_of_every_mode(mode: str, segments: int, step: int) -> None:
    clamp = segments if mode == "up" else segments | 31
    body = f"""
  mul.lo.u32 %r10, %r0, 3;
  shfl.sync.{mode}.b32 %r11|%p1, %r10, {step}, {clamp}, -1;
  selp.u32 %r12, 1000, 0, %p1;
  add.u32 %r11, %r11, %r12;
  st.global.b32 [%d10], %r11;"""
    got = run(body, OUT[:32])
    assert got.findings == ()
    want = [3 * j + 1000 * p for j, p in (shuffled(mode, lane, step, clamp) for lane in range(32))]
    assert output(got, 0, OUT[:32]).tolist() == want


def test_a_shuffle_by_a_lane_of_each_ones_own() -> None:
    body = "  xor.b32 %r9, %r0, 21;\n  shfl.sync.idx.b32 %r10, %r0, %r9, 31, 0xffffffff;\n  st.global.b32 [%d10], %r10;"
    assert output(run(body, OUT[:32]), 0, OUT[:32]).tolist() == [lane ^ 21 for lane in range(32)]


HALF = "  setp.lt.u32 %p0, %r0, 16;\n  @!%p0 bra $L_end;\n"


def test_shuffles_of_a_part_of_a_warp() -> None:
    exchange = "  shfl.sync.bfly.b32 %r10, %r0, {step}, 31, {mask};\n  st.global.b32 [%d10], %r10;\n$L_end:"
    got = run(HALF + exchange.format(step=1, mask=0xFFFF), OUT[:32])
    assert got.findings == ()
    assert output(got, 0, OUT[:32]).tolist() == [lane ^ 1 for lane in range(16)] + [0] * 16
    assert codes(run(HALF + exchange.format(step=1, mask=-1), OUT[:32])) == {"partial-warp"}
    # From the other half, which takes no part, comes nothing that is defined.
    assert codes(run(HALF + exchange.format(step=16, mask=0xFFFF), OUT[:32])) == {"poison-stored"}


def test_a_shuffle_orders_no_memory() -> None:
    body = """
  mov.u32 %r11, pool;
  mad.lo.u32 %r12, %r0, 4, %r11;
  st.shared.b32 [%r12], %r0;
  shfl.sync.bfly.b32 %r10, %r0, 1, 31, -1;
  mad.lo.u32 %r13, %r10, 4, %r11;
  ld.shared.b32 %r14, [%r13];"""
    assert codes(run(body, OUT, shared=SHARED, shared_bytes=128)) == {"race"}


# Votes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "said"), [(0, (0, 0, 1)), (7, (0, 1, 0)), (32, (1, 1, 1))])
def test_votes(limit: int, said: tuple[int, ...]) -> None:
    body = f"""
  setp.lt.u32 %p0, %r0, {limit};
  vote.sync.all.pred %p1, %p0, -1;
  vote.sync.any.pred %p2, %p0, -1;
  vote.sync.uni.pred %p3, %p0, -1;
  vote.sync.ballot.b32 %r10, %p0, -1;
  selp.u32 %r11, 1, 0, %p1;
  selp.u32 %r12, 2, 0, %p2;
  selp.u32 %r13, 4, 0, %p3;
  add.u32 %r11, %r11, %r12;
  add.u32 %r11, %r11, %r13;
  st.global.b32 [%d10], %r11;
  st.global.b32 [%d10+128], %r10;"""
    got = output(run(body, OUT), 0, OUT)
    assert got[:32].tolist() == [said[0] + 2 * said[1] + 4 * said[2]] * 32
    assert got[32:].tolist() == [(1 << limit) - 1] * 32


def test_a_vote_of_half_a_warp_and_the_lanes_that_run() -> None:
    body = (
        HALF
        + """
  setp.lt.u32 %p1, %r0, 40;
  vote.sync.all.pred %p2, %p1, {mask};
  activemask.b32 %r10;
  selp.u32 %r10, %r10, 0, %p2;
  st.global.b32 [%d10], %r10;
$L_end:"""
    )
    got = run(body.format(mask=0xFFFF), OUT[:32])
    assert got.findings == ()
    assert output(got, 0, OUT[:32]).tolist() == [0xFFFF] * 16 + [0] * 16
    assert codes(run(body.format(mask=0xFF), OUT[:32])) == {"partial-warp"}


@pytest.mark.parametrize(
    ("words", "want"),
    [("add.s32", sum(range(-16, 16)) % 2**32), ("min.s32", -16 % 2**32), ("max.s32", 15), ("min.u32", 0),
     ("max.u32", 2**32 - 1), ("and.b32", 0), ("or.b32", 2**32 - 1), ("xor.b32", 0)],
)  # fmt: skip
def test_reductions_of_a_warp(words: str, want: int) -> None:
    body = f"  sub.u32 %r10, %r0, 16;\n  redux.sync.{words} %r11, %r10, -1;\n  st.global.b32 [%d10], %r11;"
    assert output(run(body, OUT[:32]), 0, OUT[:32]).tolist() == [want] * 32


def test_one_lane_is_elected_and_nobody_knows_which() -> None:
    body = """
  elect.sync %r10|%p1, -1;
  elect.sync _|%p2, -1;
  selp.u32 %r11, 1, 0, %p1;
  selp.u32 %r12, 1, 0, %p2;
  xor.b32 %r12, %r12, %r11;
  st.global.b32 [%d10], %r11;
  st.global.b32 [%d10+128], %r10;
  st.global.b32 [%d10+256], %r12;"""
    leaders = set()
    for seed in range(8):
        got = output(run(body, np.zeros(96, np.uint32), seed=seed), 0, np.zeros(96, np.uint32))
        (leader,) = np.flatnonzero(got[:32])
        assert (got[32:64] == leader).all()
        assert not got[64:].any()
        leaders.add(int(leader))
    assert len(leaders) > 1


# Atomics -------------------------------------------------------------------------------------------------------------


def cells(values: np.ndarray, words: str, operands: str, *, before: str = "", **more: object) -> np.ndarray:
    """The buffer ``values`` after an atomic of two warps of two blocks on its first cell."""
    got = run(f"{before}\n  red.{words} [%d0], {operands};", values, blocks=2, threads=64, **more)
    assert got.findings == (), [str(f) for f in got.findings]
    return output(got, 0, values)


@pytest.mark.parametrize(
    ("words", "start", "operand", "want"),
    [
        ("global.add.u32", 2**32 - 8, "1", 120),
        ("relaxed.gpu.global.add.s32", 5, "-1", (5 - 128) % 2**32),
        ("add.u32", 1, "2", 257),
        ("global.min.s32", 3, "%r4", (3 - 127 - 100) % 2**32),
        ("global.min.u32", 300, "%r3", 0),
        ("global.max.s32", 2**31, "%r3", 127),
        ("global.max.u32", 2**31, "%r3", 2**31),
        ("global.and.b32", 0xFFFF, "0xF0F0", 0xF0F0),
        ("global.or.b32", 0, "%r3", 127),
        ("global.xor.b32", 9, "3", 9),
        ("global.inc.u32", 0, "9", 128 % 10),
        ("global.dec.u32", 0, "9", (0 - 128) % 10),
        ("global.dec.u32", 77, "9", (9 - 127) % 10),
    ],
)
def test_atomics_of_integers(words: str, start: int, operand: str, want: int) -> None:
    before = "  mov.u32 %r5, -100;\n  sub.u32 %r4, %r5, %r3;\n  add.u32 %r4, %r4, 3;\n" if "%r4" in operand else ""
    assert cells(np.array([start], np.uint32), words, operand, before=before)[0] == want


def test_atomics_of_64_bits_and_of_floating_point() -> None:
    assert cells(np.array([2**40], np.uint64), "global.add.u64", "%d5", before="  mov.u64 %d5, 3;")[0] == 2**40 + 384
    assert cells(np.array([1.5], np.float32), "global.add.f32", "0f3F000000")[0] == 65.5
    assert cells(np.array([1.5], np.float64), "global.add.f64", "0d3FE0000000000000")[0] == 65.5
    half = cells(np.array([1, 2], np.float16), "global.add.noftz.f16x2", "0x3C003800")
    assert half.tolist() == [1 + 64, 2 + 128]


def test_subnormals_are_flushed_by_additions_in_global_memory_only() -> None:
    body = """
  mov.u32 %r9, pool;
  setp.eq.u32 %p0, %r3, 0;
  @%p0 st.shared.b32 [%r9], 1;
  @%p0 red.{where}.add.f32 [{place}], 0f00000001;
  @%p0 ld.{where}.b32 %r10, [{place}];
  @%p0 st.global.b32 [%d0+4], %r10;"""
    start = np.array([1, 0], np.uint32)
    for where, place, want in (("shared", "%r9", 2), ("global", "%d0", 0)):
        got = run(body.format(where=where, place=place), start, shared=SHARED, shared_bytes=16)
        assert got.findings == ()
        assert output(got, 0, start)[1] == want


def test_everyone_draws_another_ticket_in_an_order_that_is_drawn() -> None:
    body = "  atom.global.add.u32 %r10, [%d0], 1;\n  st.global.b32 [%d11], %r10;"
    orders = []
    for seed in range(2):
        got = run(body, OUT[:1], np.zeros(128, np.uint32), blocks=2, threads=64, seed=seed)
        assert got.findings == ()
        orders.append(got.outputs[1].view(np.uint32).tolist())
        assert sorted(orders[-1]) == list(range(128))
    assert orders[0] != orders[1]


def test_exchange_and_compare() -> None:
    body = """
  atom.shared.exch.b32 %r10, [pool], %r0;
  st.global.b32 [%d10], %r10;
  add.u32 %r12, %r3, 100;
  atom.global.cas.b32 %r11, [%d0+256], 7, %r12;
  st.global.b32 [%d10+128], %r11;"""
    start = np.zeros(65, np.uint32)
    start[64] = 7
    zero = "  mov.u32 %r9, pool;\n  setp.eq.u32 %p0, %r0, 0;\n  @%p0 st.shared.b32 [%r9], 99;\n  bar.sync 0;\n"
    got = run(zero + body, start, shared=SHARED, shared_bytes=16)
    assert got.findings == ()
    found = output(got, 0, start)
    assert len(set(found[:32].tolist())) == 32
    assert 99 in found[:32]
    # One lane finds the 7 and puts its number there; the others find that number.
    winner = int(found[64])
    assert sorted(found[32:64].tolist()) == sorted([7] + [winner] * 31)


ATOMIC = "  red.global.add.u32 [%d0], 1;\n"


@pytest.mark.parametrize(
    ("before", "after", "blocks", "found"),
    [
        ("", "", 4, set()),
        ("", "  setp.eq.u32 %p0, %r0, 40;\n  @%p0 ld.global.b32 %r10, [%d0];", 1, {"race"}),
        ("", "  bar.sync 0;\n  ld.global.b32 %r10, [%d0];", 1, set()),
        ("", "  bar.sync 0;\n  ld.global.b32 %r10, [%d0];", 2, {"race-between-blocks"}),
        ("  ld.global.b32 %r10, [%d0];\n", "", 1, {"race"}),
        ("  setp.eq.u32 %p0, %r3, 0;\n  @%p0 st.global.b32 [%d0], 5;\n", "", 1, {"race"}),
        ("  setp.eq.u32 %p0, %r3, 0;\n  @%p0 st.global.b32 [%d0], 5;\n  bar.sync 0;\n", "", 1, set()),
        ("", "  bar.warp.sync -1;\n  setp.eq.u32 %p0, %r0, 3;\n  @%p0 ld.global.b32 %r10, [%d0];", 1, {"race"}),
    ],
)
def test_atomics_race_with_plain_accesses_only(before: str, after: str, blocks: int, found: set[str]) -> None:
    got = run(before + ATOMIC + after, OUT, blocks=blocks, threads=64)
    assert codes(got) == found


def test_atomics_on_nothing_and_at_odd_addresses() -> None:
    read = "  atom.shared.add.u32 %r10, [pool], 1;\n  st.global.b32 [%d10], %r10;"
    assert codes(run(read, OUT, shared=SHARED, shared_bytes=16)) == {"poison-stored"}
    assert codes(run("  red.global.add.u32 [%d0+2], 1;", OUT)) == {"misaligned"}
    assert codes(run("  red.global.add.u32 [%d0+4096], 1;", OUT)) == {"out-of-bounds"}
    assert codes(run("  red.global.add.u32 [%d0], %r50;", OUT)) == {"poison-stored"}


@pytest.mark.parametrize(
    "statement",
    ["atom.global.add.u16 %h1, [%d0], %h1;", "red.global.exch.b32 [%d0], %r1;", "atom.global.add.f16 %h1, [%d0], %h1;",
     "red.const.add.u32 [%d0], 1;", "shfl.sync.left.b32 %r1, %r1, 1, 31, -1;", "shfl.down.b32 %r1, %r1, 1, 31;",
     "vote.sync.ballot.pred %p1, %p1, -1;", "redux.sync.add.f32 %r1, %r1, -1;", "elect.sync %r1, -1;",
     "shfl.sync.idx.b32 %r1|, %r1, 1, 31, -1;", "atom.global.cas.b32 %r1, [%d0], 1;"],
)  # fmt: skip
def test_forms_that_do_not_exist_are_refused(statement: str) -> None:
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        run("  " + statement, OUT)
