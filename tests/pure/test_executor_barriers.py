"""Objects of type mbarrier and bulk copies: phases, what waits observe, what lanes hand over, and mistakes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from texts_ptx import codes, output, run

from wmmagen import executor
from wmmagen.errors import PtxError, TimeoutFault

#: Two barriers, and rows of 64 bytes with a pad of 16 behind them.
SHARED = ".shared .align 8 .b8 full[8];\n.shared .align 8 .b8 empty[8];\n.extern .shared .align 16 .b8 pool[];\n"
INIT = """
  setp.eq.u32 %p0, %r0, 0;
  @%p0 mbarrier.init.shared::cta.b64 [full], {full};
  @%p0 mbarrier.init.shared.b64 [empty], {empty};
  fence.proxy.async;
  bar.sync 0;
  mov.u32 %r10, pool;
"""
WAIT = """
$L_{name}:
  mbarrier.try_wait.parity.shared::cta.b64 %p5, [{barrier}], {parity};
  @!%p5 bra $L_{name};
"""
EXPECT = "  @%p0 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [full], {bytes};\n"
ROW = "  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%d5], {size}, [full];\n"
#: Each of four lanes copies a row of 64 bytes, to rows 80 bytes apart.
ROWS = """
  setp.lt.u32 %p1, %r0, 4;
  mad.lo.u32 %r11, %r0, 80, %r10;
  mad.wide.u32 %d5, %r0, 64, %d0;
  @%p1""" + ROW.format(size=64)
#: Each of 64 lanes reads a word of the rows.
READ = """
  shr.u32 %r12, %r0, 4;
  and.b32 %r13, %r0, 15;
  mad.lo.u32 %r14, %r12, 80, %r10;
  mad.lo.u32 %r14, %r13, 4, %r14;
  ld.shared.b32 %r15, [%r14];
  st.global.b32 [%d11], %r15;
"""
SOURCE = np.arange(100, 164, dtype=np.uint32)


def launch(
    body: str, *, full: int = 1, empty: int = 1, init: bool = True, blocks: int = 1, **more: object
) -> executor.Result:
    text = (
        INIT.format(full=full, empty=empty) if init else "  setp.eq.u32 %p0, %r0, 0;\n  mov.u32 %r10, pool;\n"
    ) + body
    zeros = np.zeros(64 * blocks, np.uint32)
    return run(text, SOURCE, zeros, threads=64, blocks=blocks, shared=SHARED, shared_bytes=640, **more)


def wait(parity: object = 0, barrier: str = "full", name: str = "w") -> str:
    return WAIT.format(parity=parity, barrier=barrier, name=name)


@pytest.mark.parametrize("blocks", [1, 3])
def test_rows_are_copied_into_padded_rows(blocks: int) -> None:
    got = launch(EXPECT.format(bytes=256) + ROWS + wait() + READ, blocks=blocks)
    assert [str(f) for f in got.findings] == []
    assert output(got, 1, np.zeros(64 * blocks, np.uint32)).tolist() == SOURCE.tolist() * blocks
    assert got.counts.load_bytes_perfect_l2 == 256
    assert got.counts.global_load_sectors == 8 * blocks


def test_the_copies_may_be_issued_before_their_bytes_are_expected() -> None:
    assert launch(ROWS + EXPECT.format(bytes=256) + wait() + READ).findings == ()


def test_a_copy_lands_at_the_wait_and_reads_its_source_then() -> None:
    late = "  bar.sync 0;\n  setp.eq.u32 %p2, %r0, 7;\n  @%p2 st.global.b32 [%d0], 77;\n  bar.sync 0;\n"
    got = launch(EXPECT.format(bytes=256) + ROWS + late + wait() + READ)
    assert got.outputs[1].view(np.uint32)[0] == 77


@pytest.mark.parametrize(
    ("between", "found"),
    [
        ("", {"early-read", "poison-stored"}),
        # Who looks once, and goes on whatever the answer is.
        ("  mbarrier.try_wait.parity.shared.b64 %p5, [full], 0;\n", {"early-read", "poison-stored"}),
        # One lane has seen the phase complete: the others have not.
        ("  @!%p0 bra $L_on;\n" + wait() + "$L_on:\n", {"early-read"}),
        ("  @!%p0 bra $L_on;\n" + wait() + "$L_on:\n  bar.sync 0;\n", set()),
        # Its warp has heard of it at the warp's barrier, the other warp has not.
        ("  @!%p0 bra $L_on;\n" + wait() + "$L_on:\n  bar.warp.sync -1;\n", {"early-read"}),
        ("  setp.ge.u32 %p6, %r0, 32;\n  @%p6 bra $L_own;\n  @!%p0 bra $L_on;\n" + wait() + "$L_on:\n"
         "  bar.warp.sync -1;\n  bra $L_all;\n$L_own:\n" + wait(name="v") + "$L_all:\n", set()),
    ],
)  # fmt: skip
def test_who_reads_has_to_see_that_the_phase_is_complete(between: str, found: set[str]) -> None:
    assert codes(launch(EXPECT.format(bytes=256) + ROWS + between + READ)) == found


def test_tokens_of_arrivals() -> None:
    body = """
  mbarrier.arrive.shared::cta.b64 %d6, [full];
$L_w:
  mbarrier.test_wait.shared::cta.b64 %p5, [full], %d6;
  @!%p5 bra $L_w;
  st.global.b32 [%d11], 1;"""
    got = launch(body, full=64)
    assert got.findings == ()
    assert output(got, 1, np.zeros(64, np.uint32)).all()


EXCHANGE = """
  mad.lo.u32 %r11, %r0, 4, %r10;
  xor.b32 %r12, %r0, {distance};
  mad.lo.u32 %r12, %r12, 4, %r10;
  st.shared.b32 [%r11], %r0;
  {arrive}
  {wait}
  ld.shared.b32 %r13, [%r12];
  {second}
  st.shared.b32 [%r11], %r13;
  st.global.b32 [%d11], %r13;"""
ARRIVE = "mbarrier.arrive.shared.b64 _, [full];"
ONE_OF_A_WARP = "and.b32 %r20, %r0, 31;\n  setp.eq.u32 %p7, %r20, 0;\n  @%p7 " + ARRIVE


@pytest.mark.parametrize(
    ("count", "arrive", "waits", "second", "found"),
    [
        (64, ARRIVE, wait(), "bar.sync 0;", set()),
        (64, ARRIVE, wait(), ARRIVE + wait(1, name="x"), set()),
        (64, ARRIVE, "", "bar.sync 0;", {"race"}),
        (64, ARRIVE, wait(), "", {"race"}),
        # One lane arrives for its warp: without the warp's barrier it speaks for itself alone.
        (2, ONE_OF_A_WARP, wait(), "bar.sync 0;", {"race"}),
        (2, "bar.warp.sync -1;\n  " + ONE_OF_A_WARP, wait(), "bar.sync 0;", set()),
    ],
)
@pytest.mark.parametrize("distance", [1, 32])
def test_arrivals_hand_over_and_waits_take_over(
    count: int, arrive: str, waits: str, second: str, found: set[str], distance: int
) -> None:
    got = launch(EXCHANGE.format(distance=distance, arrive=arrive, wait=waits, second=second), full=count)
    assert codes(got) == found
    assert output(got, 1, np.zeros(64, np.uint32)).tolist() == [i ^ distance for i in range(64)]


#: A producer warp fills one stage again and again; the other warp reads it, and hands it back by the second barrier.
PIPELINE = """
  mov.u32 %r30, 0;
  mov.u32 %r31, 0;
  setp.ge.u32 %p6, %r0, 32;
  @%p6 bra $L_consumer;
$L_produce:
  @!%p0 bra $L_next;
  and.b32 %r32, %r30, 1;
  xor.b32 %r33, %r32, 1;
$L_free:
  mbarrier.try_wait.parity.shared.b64 %p5, [empty], %r33;
  {spin}@!%p5 bra $L_free;
  mbarrier.arrive.expect_tx.shared.b64 _, [full], 128;
  mad.wide.u32 %d5, %r30, 128, %d0;
  mov.u32 %r11, %r10;
  cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r11], [%d5], 128, [full];
$L_next:
  bar.warp.sync -1;
  add.u32 %r30, %r30, 1;
  setp.lt.u32 %p4, %r30, 2;
  @%p4 bra $L_produce;
  bra $L_end;
$L_consumer:
  and.b32 %r32, %r30, 1;
$L_wait:
  mbarrier.try_wait.parity.shared.b64 %p5, [full], %r32;
  @!%p5 bra $L_wait;
  sub.u32 %r34, %r0, 32;
  mad.lo.u32 %r35, %r34, 4, %r10;
  ld.shared.b32 %r36, [%r35];
  add.u32 %r31, %r31, %r36;
  {back}
  add.u32 %r30, %r30, 1;
  setp.lt.u32 %p4, %r30, 2;
  @%p4 bra $L_consumer;
  st.global.b32 [%d11], %r31;
$L_end:"""


def test_a_pipeline_of_a_producer_and_consumers() -> None:
    got = launch(PIPELINE.format(spin="", back="mbarrier.arrive.shared.b64 _, [empty];"), empty=32)
    assert [str(f) for f in got.findings] == []
    assert output(got, 1, np.zeros(64, np.uint32))[32:].tolist() == [200 + 32 + 2 * i for i in range(32)]


def test_a_stage_that_is_filled_while_it_is_read() -> None:
    """The producer does not wait: the copy may write what consumers have still to read."""
    got = launch(PIPELINE.format(spin="// ", back="mbarrier.arrive.shared.b64 _, [empty];"), empty=32)
    assert codes(got) & {"early-write", "race", "mbarrier"}
    # One lane hands back for all, before the others have read.
    one = "setp.eq.u32 %p3, %r34, 0;\n  @%p3 mbarrier.arrive.shared.b64 _, [empty];"
    assert codes(launch(PIPELINE.format(spin="", back=one), empty=1)) == {"race"}
    assert codes(launch(PIPELINE.format(spin="", back="bar.warp.sync -1;\n  " + one), empty=1)) == set()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (wait(), "1 of 1 arrivals are missing"),
        (EXPECT.format(bytes=512) + ROWS + wait(), "512 bytes are expected and 256 on their way"),
        (EXPECT.format(bytes=128) + ROWS + wait(), "128 bytes are expected and 256 on their way"),
        (EXPECT.format(bytes=0) + wait() + wait(1, name="second"), "1 of 1 arrivals are missing"),
        # Half of the block waits for an arrival that the other half would make behind the block's barrier.
        (
            "  setp.lt.u32 %p6, %r0, 32;\n  @!%p6 bra $L_o;\n" + wait() + "$L_o:\n  bar.sync 0;\n",
            "arrivals are missing",
        ),
    ],
)
def test_a_phase_that_never_completes_is_a_deadlock_and_no_hang(body: str, words: str) -> None:
    with pytest.raises(TimeoutFault, match=re.escape(words)) as caught:
        launch(body)
    assert caught.value.message.startswith("deadlock: PTX line")


@pytest.mark.parametrize(
    ("body", "init", "found"),
    [
        (wait(), False, {"mbarrier"}),
        ("  @%p0 mbarrier.arrive.shared.b64 _, [full];\n", False, {"mbarrier"}),
        ("  @%p0 mbarrier.inval.shared.b64 [full];\n", False, {"mbarrier"}),
        ("  @%p0 mbarrier.init.shared.b64 [full], 4;\n", True, {"mbarrier"}),
        ("  @%p0 mbarrier.inval.shared.b64 [full];\n  @%p0 mbarrier.init.shared.b64 [full], 4;\n", True, set()),
        ("  @%p0 mbarrier.init.shared.b64 [full], 0;\n", False, {"mbarrier"}),
        ("  mbarrier.arrive.shared.b64 _, [full];\n", True, {"mbarrier"}),
        # Used by others before a barrier orders its initialization.
        ("  @%p0 mbarrier.init.shared.b64 [full], 64;\n  mbarrier.arrive.shared.b64 _, [full];\n", False, {"race"}),
        ("  mov.u32 %r11, full;\n  @%p0 ld.shared.b32 %r12, [%r11];\n  st.global.b32 [%d11], %r12;\n", True,
         {"poison-stored"}),
        ("  @%p0 mbarrier.arrive.shared.b64 _, [full+4];\n", True, {"misaligned"}),
    ],
)  # fmt: skip
def test_mistakes_with_objects(body: str, init: bool, found: set[str]) -> None:
    assert codes(launch(body, init=init)) == found


@pytest.mark.parametrize(
    ("target", "source", "size", "found"),
    [(0, 0, 64, set()), (8, 0, 64, {"misaligned"}), (0, 4, 64, {"misaligned"}), (0, 0, 24, {"misaligned"}),
     (0, 256, 64, {"out-of-bounds"}), (640, 0, 64, {"out-of-bounds"}), (0, 0, 2**30, {"out-of-bounds"}),
     (0, -16, 64, {"out-of-bounds"})],
)  # fmt: skip
def test_bulk_copies_across_and_outside(target: int, source: int, size: int, found: set[str]) -> None:
    body = f"  add.u32 %r11, %r10, {target};\n  add.s64 %d5, %d0, {source};\n  @%p0" + ROW.format(size=size)
    assert codes(launch(body)) == found


def test_bulk_copies_into_what_others_use() -> None:
    touch = "  mad.lo.u32 %r20, %r0, 4, %r10;\n  st.shared.b32 [%r20], 1;\n  {barrier}\n"
    for barrier, found in (("", {"race"}), ("bar.sync 0;", set())):
        assert codes(launch(touch.format(barrier=barrier) + EXPECT.format(bytes=256) + ROWS + wait())) == found
    # Written while it is on its way.
    assert "early-write" in codes(launch(EXPECT.format(bytes=256) + ROWS + touch.format(barrier="") + wait()))


@pytest.mark.parametrize(
    "statement",
    ["mbarrier.init.b32 [%d0], 1;", "mbarrier.arrive.shared.b64 [full];", "mbarrier.try_wait.shared.b64 %p1, [full];",
     "mbarrier.test_wait.parity.shared.b64 %p1, [full], 0, 10;", "mbarrier.pending_count.b64 %r1, %d1;",
     "cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1], 16;",
     "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0], 16;"],
)  # fmt: skip
def test_forms_that_are_not_known(statement: str) -> None:
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        launch("  " + statement)


def test_hints_and_fences_are_taken_and_do_nothing() -> None:
    body = """
  fence.mbarrier_init.release.cluster;
  fence.proxy.async.shared::cta;
  fence.acq_rel.gpu;
  membar.gl;
  prefetch.global.L2 [%d0];
  griddepcontrol.wait;
  griddepcontrol.launch_dependents;
  setmaxnreg.inc.sync.aligned.u32 128;
  nanosleep.u32 20;
  ld.global.L2::128B.b32 %r20, [%d10];
  st.global.b32 [%d11], %r20;"""
    got = launch(body)
    assert got.findings == ()
    assert output(got, 1, SOURCE).tolist() == SOURCE.tolist()
