"""The executor's lanes: where they part and meet, what they see of memory, and what is found of their mistakes."""

from __future__ import annotations

import numpy as np
import pytest
from texts_ptx import FIRST_LINE, codes, output, run

from wmmagen import executor
from wmmagen.errors import TimeoutFault

SHARED = ".extern .shared .align 16 .b8 pool[];\n"
OUT = np.zeros(64, np.uint32)


def test_lanes_part_and_meet_again() -> None:
    """A loop whose length differs by lane, a branch in it, and a warp barrier after it that all lanes reach."""
    got = run(
        """
  mov.u32 %r10, 0;
  mov.u32 %r11, 0;
$L_head:
  and.b32 %r12, %r10, 1;
  setp.eq.u32 %p0, %r12, 0;
  @%p0 bra $L_even;
  add.u32 %r11, %r11, 100;
  bra $L_join;
$L_even:
  add.u32 %r11, %r11, 1;
$L_join:
  add.u32 %r10, %r10, 1;
  setp.le.u32 %p1, %r10, %r3;
  @%p1 bra $L_head;
  bar.warp.sync -1;
  st.global.b32 [%d10], %r11;""",
        OUT,
        threads=64,
    )
    assert output(got, 0, OUT).tolist() == [(i // 2 + 1) + 100 * ((i + 1) // 2) for i in range(64)]
    assert got.findings == ()
    assert got.counts.warp_barriers == 2


def test_guarded_instructions_and_early_exits() -> None:
    got = run(
        """
  setp.ge.u32 %p0, %r0, 40;
  @%p0 exit;
  setp.lt.u32 %p1, %r0, 8;
  mov.u32 %r10, 1;
  @%p1 mov.u32 %r10, 2;
  @!%p1 add.u32 %r10, %r10, 5;
  st.global.b32 [%d10], %r10;""",
        OUT,
        threads=64,
    )
    assert output(got, 0, OUT).tolist() == [2] * 8 + [6] * 32 + [0] * 24
    assert got.findings == ()


def test_a_block_that_does_not_fill_its_last_warp() -> None:
    got = run("  bar.sync 0;\n  add.u32 %r10, %r3, 1;\n  st.global.b32 [%d10], %r10;", OUT, threads=20, blocks=3)
    assert output(got, 0, OUT).tolist() == [*range(1, 61), 0, 0, 0, 0]
    assert got.findings == ()


def test_warps_may_meet_at_different_barriers_of_one_number() -> None:
    got = run(
        """
  shl.b32 %r10, %r0, 2;
  mov.u32 %r11, pool;
  add.u32 %r12, %r10, %r11;
  xor.b32 %r13, %r10, 128;
  add.u32 %r13, %r13, %r11;
  st.shared.b32 [%r12], %r0;
  setp.lt.u32 %p0, %r0, 32;
  @%p0 bra $L_first;
  bar.sync 0;
  ld.shared.b32 %r14, [%r13];
  bra $L_end;
$L_first:
  bar.sync 0;
  ld.shared.b32 %r14, [%r13];
$L_end:
  st.global.b32 [%d10], %r14;""",
        OUT,
        threads=64,
        shared=SHARED,
        shared_bytes=256,
    )
    assert output(got, 0, OUT).tolist() == [i ^ 32 for i in range(64)]
    assert got.findings == ()


def test_a_warp_may_pass_more_barriers_in_a_loop_than_its_neighbour() -> None:
    """Warp 0 meets in the loop what warp 1 meets behind it: the counts agree, so nothing is wrong."""
    got = run(
        """
  setp.ge.u32 %p0, %r0, 32;
  @%p0 bra $L_out;
  bar.sync 0;
$L_out:
  @%p0 bra $L_other;
  bra $L_end;
$L_other:
  bar.sync 0;
$L_end:
  st.global.b32 [%d10], 1;""",
        OUT,
        threads=64,
    )
    assert output(got, 0, OUT).tolist() == [1] * 64
    assert got.findings == ()


def test_a_barrier_that_part_of_the_block_never_reaches() -> None:
    got = run("  setp.lt.u32 %p0, %r0, 32;\n  @%p0 bar.sync 0;\n  st.global.b32 [%d10], 1;", OUT, threads=64)
    assert codes(got) == {"barrier-divergence"}
    (found,) = got.findings
    assert "32 threads" in found.message
    assert "every thread" in found.advice
    assert output(got, 0, OUT).tolist() == [1] * 64


def test_a_barrier_in_half_a_warp() -> None:
    got = run("  setp.lt.u32 %p0, %r0, 16;\n  @%p0 bar.sync 0;", OUT, threads=32)
    assert codes(got) == {"barrier-divergence", "partial-warp"}


@pytest.mark.parametrize("body", ["$L_a:\n  bra $L_a;", "$L_a:\n  setp.lt.u32 %p0, %r0, 4;\n  @%p0 bra $L_a;"])
def test_an_endless_kernel_ends(body: str) -> None:
    with pytest.raises(TimeoutFault, match="5000 instructions"):
        run(body, OUT, budget=5000)
    with pytest.raises(TimeoutFault, match=r"within 0\.01 s"):
        run(body, OUT, limit_s=0.01)


def test_generic_addresses_reach_the_window_that_they_name() -> None:
    got = run(
        """
  mov.u64 %d1, pool;
  cvta.shared.u64 %d2, %d1;
  mad.wide.u32 %d3, %r0, 4, %d2;
  cvta.global.u64 %d4, %d10;
  st.b32 [%d3], %r0;
  setp.lt.u32 %p0, %r0, 16;
  selp.b64 %d5, %d3, %d4, %p0;
  add.u32 %r10, %r0, 1000;
  st.b32 [%d5], %r10;
  ld.b32 %r11, [%d3];
  cvta.to.shared.u64 %d6, %d3;
  cvt.u32.u64 %r12, %d6;
  ld.shared.b32 %r13, [%r12];
  add.u32 %r11, %r11, %r13;
  mad.wide.u32 %d7, %r0, 4, %d0;
  st.global.b32 [%d7+128], %r11;""",
        OUT,
        shared=SHARED,
        shared_bytes=128,
    )
    want = [0] * 16 + [i + 1000 for i in range(16, 32)] + [2 * (i + 1000) for i in range(16)]
    assert output(got, 0, OUT).tolist() == want + [2 * i for i in range(16, 32)]
    assert got.findings == ()


def test_local_memory_is_a_lanes_own() -> None:
    got = run(
        """
  .local .align 8 .b8 depot[16];
  mov.u64 %d1, depot;
  st.local.b32 [%d1+4], %r0;
  ld.local.b32 %r10, [%d1+4];
  st.global.b32 [%d10], %r10;""",
        OUT[:32],
    )
    assert output(got, 0, OUT[:32]).tolist() == list(range(32))
    assert got.findings == ()


@pytest.mark.parametrize(
    ("body", "code", "lane", "address"),
    [
        ("  st.global.b32 [%d10+4], %r0;", "out-of-bounds", 31, 128),
        ("  st.global.b32 [%d10+-4], %r0;", "out-of-bounds", 0, -4),
        ("  mov.u32 %r10, 3;\n  st.shared.b32 [%r10], %r0;", "out-of-bounds", 0, 3 - 1024),
        ("  mov.u64 %d5, 0;\n  ld.global.b32 %r10, [%d5];", "out-of-bounds", 0, 0),
        ("  add.u64 %d5, %d10, 2;\n  ld.global.b32 %r10, [%d5];", "misaligned", 0, 2),
        ("  ld.global.v2.b32 {%r10, %r11}, [%d10];", "misaligned", 1, 4),
    ],
)
def test_accesses_outside_or_across(body: str, code: str, lane: int, address: int) -> None:
    got = run(body, OUT[:32])
    found = next(f for f in got.findings if f.code == code)
    assert (found.lane, found.address, found.block, found.warp) == (lane, address, 0, 0)
    assert found.ptx_line == FIRST_LINE + body.count("\n")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("  st.global.b32 [%d10], %r50;", "poison-stored"),
        ("  mov.u32 %r9, pool;\n  ld.shared.b32 %r10, [%r9];\n  add.u32 %r11, %r10, 1;\n"
         "  st.global.b32 [%d10], %r11;", "poison-stored"),
        ("  setp.eq.u32 %p3, %r50, 0;\n  @%p3 bra $L_x;\n  mov.u32 %r10, 1;\n$L_x:", "poison-branch"),
        ("  @%p3 mov.u32 %r10, 1;", "poison-branch"),
        ("  ld.global.b32 %r10, [%d20];", "poison-address"),
        ("  setp.lt.u32 %p0, %r0, 5;\n  @%p0 mov.u32 %r40, 1;\n  st.global.b32 [%d10], %r40;", "poison-stored"),
    ],
)  # fmt: skip
def test_what_was_never_written_is_followed(body: str, code: str) -> None:
    assert code in codes(run(body, OUT[:32], shared=SHARED, shared_bytes=16))


def test_undefined_bits_that_are_ignored_are_not_reported() -> None:
    """Compilers leave the upper half of such a word undefined, because dp2a.lo does not read it."""
    got = run(
        """
  prmt.b32 %r10, %r0, 12, 0x3340;
  prmt.b32 %r11, %r50, %r51, 0x3340;
  prmt.b32 %r12, %r10, %r11, 0x5410;
  dp2a.lo.u32.u32 %r13, %r0, %r12, 0;
  and.b32 %r14, %r50, 0;
  add.u32 %r13, %r13, %r14;
  st.global.b32 [%d10], %r13;""",
        OUT[:32],
    )
    assert got.findings == ()
    assert output(got, 0, OUT[:32]).tolist() == [i * i for i in range(32)]
    spoiled = run("  or.b32 %r14, %r50, 0xFFFF;\n  st.global.b32 [%d10], %r14;", OUT[:32])
    assert codes(spoiled) == {"poison-stored"}


EXCHANGE = """
  shl.b32 %r10, %r0, 2;
  mov.u32 %r11, pool;
  add.u32 %r12, %r10, %r11;
  xor.b32 %r13, %r10, {distance};
  add.u32 %r13, %r13, %r11;
  st.shared.b32 [%r12], %r0;
  {barrier}
  ld.shared.b32 %r14, [%r13];
  {second}
  st.shared.b32 [%r12], %r14;
  st.global.b32 [%d10], %r14;"""
NOTHING, WARP, BLOCK = "", "bar.warp.sync -1;", "bar.sync 0;"


@pytest.mark.parametrize(
    ("distance", "barrier", "second", "races"),
    [
        (4, NOTHING, NOTHING, 2), (4, NOTHING, WARP, 1), (4, WARP, NOTHING, 1), (4, WARP, WARP, 0),
        (4, BLOCK, WARP, 0), (4, BLOCK, BLOCK, 0),
        (128, WARP, WARP, 2), (128, BLOCK, WARP, 1), (128, WARP, BLOCK, 1), (128, BLOCK, BLOCK, 0),
        (0, NOTHING, NOTHING, 0),
    ],
)  # fmt: skip
def test_races_are_found_by_lane_whatever_the_values(distance: int, barrier: str, second: str, races: int) -> None:
    """Lanes exchange words of shared memory: within a warp a warp barrier is enough, between warps it is not."""
    body = EXCHANGE.format(distance=distance, barrier=barrier, second=second)
    got = run(body, OUT, threads=64, shared=SHARED, shared_bytes=256)
    assert codes(got) == ({"race"} if races else set())
    assert len(got.findings) == races
    assert output(got, 0, OUT).tolist() == [i ^ distance // 4 for i in range(64)]


def test_two_lanes_that_write_one_byte_race_even_with_one_value() -> None:
    assert codes(run("  st.global.b32 [%d0], 7;", OUT)) == {"race"}
    assert codes(run("  setp.eq.u32 %p0, %r0, 0;\n  @%p0 st.global.b32 [%d0], 7;", OUT)) == set()


def test_a_byte_beside_another_is_no_race() -> None:
    body = "  cvt.u64.u32 %d5, %r0;\n  add.u64 %d5, %d5, %d0;\n  st.global.u8 [%d5], %r0;"
    got = run(body, OUT)
    assert got.findings == ()
    assert got.outputs[0][:32].tolist() == list(range(32))


def test_blocks_are_not_ordered() -> None:
    once = "  setp.eq.u32 %p0, %r0, 0;\n  @%p0 {access} [%d0]{value};\n"
    write, read = once.format(access="st.global.b32", value=", 7"), "  ld.global.b32 %r10, [%d0];\n"
    assert codes(run(write, OUT, blocks=2)) == {"race-between-blocks"}
    assert "race-between-blocks" in codes(run(write + "  bar.sync 0;\n" + read, OUT, blocks=2))
    assert codes(run(write + "  bar.sync 0;\n" + read, OUT, blocks=1)) == set()
    assert codes(run(read, OUT, blocks=4)) == set()


def test_reads_of_several_warps_are_all_remembered() -> None:
    """Warp 0 reads, warp 1 reads, and warp 1 writes: its own read hides nothing of the other's."""
    body = """
  mov.u32 %r11, pool;
  setp.eq.u32 %p0, %r0, 0;
  @%p0 st.shared.b32 [%r11], 5;
  bar.sync 0;
  ld.shared.b32 %r12, [%r11];
  setp.eq.u32 %p1, %r0, 40;
  {barrier}
  @%p1 st.shared.b32 [%r11], %r12;"""
    for barrier, found in (("bar.warp.sync -1;", {"race"}), ("bar.sync 0;", set())):
        got = run(body.format(barrier=barrier), OUT, threads=64, shared=SHARED, shared_bytes=16)
        assert codes(got) == found


COPY = """
  mov.u32 %r11, pool;
  shl.b32 %r10, %r0, 2;
  add.u32 %r12, %r10, %r11;
  cp.async.ca.shared.global [%r12], [%d10], 4;
  cp.async.commit_group;
  cp.async.ca.shared.global [%r12+128], [%d10+128], 4;
  cp.async.commit_group;
  cp.async.wait_group {left};
  ld.shared.b32 %r13, [%r12];
  {second}
  st.global.b32 [%d10], %r13;"""


def test_asynchronous_copies_land_at_the_wait_that_covers_them() -> None:
    source = np.arange(64, dtype=np.uint32)
    more = {"shared": SHARED, "shared_bytes": 256}
    got = run(COPY.format(left=1, second=""), source, **more)
    assert got.findings == ()
    for left, second, found in (
        (2, "", {"early-read", "poison-stored"}),
        (1, "ld.shared.b32 %r14, [%r12+128];", {"early-read"}),
        (0, "ld.shared.b32 %r14, [%r12+128];", set()),
        (1, "st.shared.b32 [%r12+128], %r0;", {"early-write"}),
    ):
        assert codes(run(COPY.format(left=left, second=second), source, **more)) == found


def test_a_copy_reads_its_source_when_it_lands() -> None:
    body = """
  mov.u32 %r11, pool;
  shl.b32 %r10, %r0, 2;
  add.u32 %r12, %r10, %r11;
  cp.async.ca.shared.global [%r12], [%d10], 4;
  st.global.b32 [%d10], 77;
  cp.async.wait_all;
  ld.shared.b32 %r13, [%r12];
  st.global.b32 [%d10], %r13;"""
    got = run(body, np.arange(32, dtype=np.uint32), shared=SHARED, shared_bytes=128)
    assert got.outputs[0].view(np.uint32).tolist() == [77] * 32


def test_other_lanes_need_a_barrier_behind_the_wait() -> None:
    body = """
  mov.u32 %r11, pool;
  shl.b32 %r10, %r0, 2;
  add.u32 %r12, %r10, %r11;
  xor.b32 %r14, %r10, 4;
  add.u32 %r14, %r14, %r11;
  cp.async.ca.shared.global [%r12], [%d10], 4, {size};
  cp.async.wait_all;
  {barrier}
  ld.shared.b32 %r13, [%r14];
  st.global.b32 [%d10], %r13;"""
    source = np.arange(32, dtype=np.uint32)
    more = {"shared": SHARED, "shared_bytes": 128}
    assert codes(run(body.format(size=4, barrier=""), source, **more)) == {"race"}
    got = run(body.format(size=4, barrier="bar.warp.sync -1;"), source, **more)
    assert got.findings == ()
    assert output(got, 0, source).tolist() == [i ^ 1 for i in range(32)]
    assert not run(body.format(size=0, barrier="bar.warp.sync -1;"), source, **more).outputs[0].any()


#: Each lane copies as many bytes as register 13 says from its place in the first buffer, a multiple of 8 bytes behind
#: its beginning, and hands on the 8 bytes that its copy has written.
SIZED = """
  mov.u32 %r11, pool;
  shl.b32 %r10, %r0, 3;
  add.u32 %r12, %r10, %r11;
  mad.wide.u32 %d20, %r0, 8, %d0;
  mad.wide.u32 %d21, %r0, 8, %d1;
  {size}
  cp.async.ca.shared.global [%r12], [%d20{offset}], 8, %r13;
  cp.async.wait_all;
  ld.shared.v2.b32 {{%r14, %r15}}, [%r12];
  st.global.v2.b32 [%d21], {{%r14, %r15}};"""
NUMBERS = np.arange(1, 257).astype(np.uint8)


def sized(size: str, offset: str = "", nbytes: int = 256) -> executor.Result:
    """The run of :data:`SIZED` on a first buffer of ``nbytes``; the second one holds what every lane hands on."""
    body = SIZED.format(size=size, offset=offset)
    return run(body, NUMBERS[:nbytes], np.zeros(256, np.uint8), shared=SHARED, shared_bytes=256)


def test_a_copy_of_as_many_bytes_as_a_register_says() -> None:
    """Any number of bytes, another one for each lane; zeros stand for the others."""
    got = sized("rem.u32 %r13, %r0, 9;")
    assert got.findings == ()
    want = NUMBERS.reshape(32, 8).copy()
    for lane, row in enumerate(want):
        row[lane % 9 :] = 0
    assert got.outputs[1].reshape(32, 8).tolist() == want.tolist()


def test_what_a_copy_is_not_told_to_read_may_lie_outside() -> None:
    five = "mov.u32 %r13, 5;"
    assert sized(five, nbytes=253).findings == ()
    # What was not copied stays undefined, and is handed on.
    assert codes(sized(five, nbytes=252)) == {"out-of-bounds", "poison-stored"}
    assert sized("mov.u32 %r13, 0;", "+4194305").findings == ()
    assert codes(sized("mov.u32 %r13, 1;", "+4194304")) >= {"out-of-bounds"}


def test_bad_sizes_of_copies() -> None:
    assert "misaligned" in codes(sized("mov.u32 %r13, 3;", "+2"))
    assert codes(sized("mov.u32 %r13, 9;")) == {"out-of-bounds"}
    assert "poison-address" in codes(sized(""))


def test_a_copy_into_what_others_still_read() -> None:
    body = """
  mov.u32 %r11, pool;
  shl.b32 %r10, %r0, 2;
  add.u32 %r12, %r10, %r11;
  xor.b32 %r14, %r10, 4;
  add.u32 %r14, %r14, %r11;
  st.shared.b32 [%r12], %r0;
  bar.sync 0;
  ld.shared.b32 %r13, [%r14];
  {barrier}
  cp.async.ca.shared.global [%r12], [%d10], 4;
  cp.async.wait_all;"""
    source = np.arange(32, dtype=np.uint32)
    more = {"shared": SHARED, "shared_bytes": 128}
    assert codes(run(body.format(barrier=""), source, **more)) == {"race"}
    assert codes(run(body.format(barrier="bar.warp.sync -1;"), source, **more)) == set()


def test_a_warp_barrier_that_is_not_reached_by_all() -> None:
    body = "  setp.lt.u32 %p0, %r0, 16;\n  @%p0 bar.warp.sync {mask};"
    assert codes(run(body.format(mask=-1), OUT)) == {"partial-warp"}
    assert codes(run(body.format(mask=0xFFFF), OUT)) == set()


def test_a_copy_to_nowhere_is_no_copy() -> None:
    body = "  mov.u32 %r11, 0;\n  cp.async.ca.shared.global [%r11], [%d10], 4;\n  cp.async.wait_all;"
    assert codes(run(body, OUT)) == {"out-of-bounds"}
    beyond = COPY.replace("[%d10+128]", "[%d10+4096]").format(left=0, second="")
    assert codes(run(beyond, OUT, shared=SHARED, shared_bytes=256)) == {"out-of-bounds"}


def test_findings_are_counted_not_repeated() -> None:
    body = "  mov.u32 %r9, 0;\n$L_a:\n  st.global.b32 [%d0], %r9;\n  add.u32 %r9, %r9, 1;\n"
    got = run(body + "  setp.lt.u32 %p0, %r9, 10;\n  @%p0 bra $L_a;", OUT, blocks=2)
    by_code = {f.code: f for f in got.findings}
    assert len(got.findings) <= 2
    assert sum(f.count for f in by_code.values()) > 100


def test_accesses_are_counted() -> None:
    body = """
  mov.u32 %r11, pool;
  mad.lo.u32 %r12, %r0, {stride}, %r11;
  st.shared.b32 [%r12], %r0;
  ld.shared.b32 %r13, [%r12];
  st.global.b32 [%d10], %r13;
  ld.global.b32 %r14, [%d10];"""
    for stride, wavefronts in ((4, 1), (8, 2), (128, 32), (132, 1)):
        counts = run(body.format(stride=stride), OUT[:32], shared=SHARED, shared_bytes=4352).counts
        assert (counts.shared_store_wavefronts, counts.shared_load_wavefronts) == (wavefronts, wavefronts)
        assert counts.shared_load_conflicts == wavefronts - 1
        # Buffers begin at a multiple of 256 bytes, so 128 bytes are four sectors.
        assert (counts.global_store_requests, counts.global_store_sectors) == (1, 4)
        assert (counts.global_load_requests, counts.global_load_sectors) == (1, 4)
        assert counts.output_crossings == 2
        assert counts.instructions["load shared"] == 1
    wide = run("  mad.wide.u32 %d5, %r0, 32, %d0;\n  ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%d5];",
               np.zeros(256, np.uint32), threads=32)  # fmt: skip
    assert wide.counts.global_load_sectors == 32


def test_bytes_from_memory_under_both_assumptions_about_caches() -> None:
    """Two blocks of 64 lanes read the same 256 bytes twice, then each its own 256; what is only stored is no load."""
    body = """
  mad.wide.u32 %d5, %r0, 4, %d0;
  ld.global.b32 %r10, [%d5];
  ld.global.b32 %r10, [%d5];
  ld.global.b32 %r11, [%d10+256];
  st.global.b32 [%d11], %r11;"""
    counts = run(body, np.zeros(192, np.uint32), np.zeros(128, np.uint32), blocks=2, threads=64).counts
    assert counts.load_bytes_perfect_l2 == 256 + 2 * 256
    assert counts.load_bytes_no_l2 == 2 * 256 + 2 * 256
    assert counts.as_json()["load_bytes_no_l2"] == 1024
    one = run("  setp.eq.u32 %p0, %r0, 9;\n  @%p0 ld.global.b32 %r10, [%d0+4];", OUT, blocks=3).counts
    assert (one.load_bytes_perfect_l2, one.load_bytes_no_l2) == (32, 96)
    copied = run(COPY.format(left=0, second=""), np.zeros(64, np.uint32), shared=SHARED, shared_bytes=256).counts
    assert copied.load_bytes_perfect_l2 == 256
