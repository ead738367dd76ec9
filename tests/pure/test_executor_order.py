"""The order between blocks that fences, atomics and strong accesses make: what is clean, and what is found.

Source of what is right: PTX ISA, "Memory Consistency Model".
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#memory-consistency-model
"""

from __future__ import annotations

import numpy as np
import pytest
from texts_ptx import codes, output, run

from wmmagen import executor
from wmmagen.errors import LaunchFault, PtxError, TimeoutFault
from wmmagen.executor import clocks

BETWEEN = "race-between-blocks"
#: With odd ones blocks begin one after another, with even ones together.
SEEDS = range(4)
THREADS = 64
COUNTER = np.zeros(16, np.uint32)
DATA, OUT = np.zeros(256, np.uint32), np.zeros(256, np.uint32)

#: Block 0 writes its words and says so, block 1 waits for that and reads them the other way round.
PASSING = """
  setp.eq.u32 %p0, %r0, 0;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra $L_reader;
  add.u32 %r10, %r0, 100;
  st.global.b32 [%d11], %r10;
  {written}
  @!%p0 bra $L_end;
  {publish}
  bra $L_end;
$L_reader:
  @!%p0 bra $L_seen;
$L_wait:
  {look}
  setp.eq.u32 %p2, %r11, 0;
  @%p2 bra $L_wait;
  {found}
$L_seen:
  {seen}
  sub.u32 %r12, 63, %r0;
  mad.wide.u32 %d20, %r12, 4, %d1;
  ld.global.b32 %r13, [%d20];
  st.global.b32 [%d12], %r13;
$L_end:"""
WANT = [0] * THREADS + [163 - i for i in range(THREADS)] + [0] * THREADS * 2

GL, ACQ_REL = "membar.gl;", "fence.acq_rel.gpu;"
ADD, RED, RESULT = (
    "atom.global.add.u32 %r14, [%d0], 1;",
    "red.global.add.u32 [%d0], 1;",
    "atom.global.add.u32 %r11, [%d0], 0;",
)
VOLATILE, STORE_VOLATILE = "ld.volatile.global.u32 %r11, [%d0];", "st.volatile.global.u32 [%d0], 1;"
RELAXED, STORE_RELAXED = "ld.relaxed.gpu.global.u32 %r11, [%d0];", "st.relaxed.gpu.global.u32 [%d0], 1;"
ACQUIRE, STORE_RELEASE = "ld.acquire.gpu.global.u32 %r11, [%d0];", "st.release.gpu.global.u32 [%d0], 1;"
BAR = "bar.sync 0;"


def passing(written: str, publish: str, look: str, found: str, seen: str, seed: int = 0) -> executor.Result:
    body = PASSING.format(written=written, publish=publish, look=look, found=found, seen=seen)
    return run(body, COUNTER, DATA, OUT, blocks=2, threads=THREADS, seed=seed, budget=500_000)


@pytest.mark.parametrize(
    ("written", "publish", "look", "found", "seen"),
    [
        # The barrier, then the fence of the one thread that says so; the same the other way round.
        (BAR, GL + ADD, RESULT, GL, BAR),
        (BAR, ACQ_REL + ADD, RESULT, ACQ_REL, BAR),
        (BAR, ACQ_REL + RED, VOLATILE, ACQ_REL, BAR),
        (BAR, GL + STORE_VOLATILE, VOLATILE, GL, BAR),
        (BAR, "fence.sc.gpu;" + STORE_RELAXED, RELAXED, "fence.acq_rel.sys;", BAR),
        (BAR, "membar.sys;" + STORE_VOLATILE, RELAXED, GL, BAR),
        (BAR, STORE_RELEASE, ACQUIRE, "", BAR),
        (BAR, STORE_RELEASE, RELAXED, ACQ_REL, BAR),
        (BAR, ACQ_REL + STORE_RELAXED, ACQUIRE, "", BAR),
        (BAR, "red.release.gpu.global.add.u32 [%d0], 1;", "atom.acquire.gpu.global.add.u32 %r11, [%d0], 0;", "", BAR),
        (BAR, "atom.acq_rel.gpu.global.exch.b32 %r14, [%d0], 1;", "ld.acquire.sys.global.u32 %r11, [%d0];", "", BAR),
        (BAR, "st.release.gpu.u32 [%d0], 1;", "ld.acquire.gpu.u32 %r11, [%d0];", "", BAR),
        (BAR, "st.global.release.gpu.b32 [%d0], 1;", "ld.global.acquire.gpu.b32 %r11, [%d0];", "", BAR),
        # An operation that releases or acquires reaches over to others of its lane at its place.
        (BAR, STORE_RELEASE + STORE_RELAXED.replace("1;", "2;"), ACQUIRE, "", BAR),
        (BAR, GL + ADD, VOLATILE + "ld.acquire.gpu.global.u32 %r15, [%d0];", "", BAR),
        # Sequentially consistent fences of every thread, with the barrier between them and the counter.
        (GL + BAR, ADD, RESULT, "", BAR + GL),
        (GL + BAR, ADD, VOLATILE, GL, BAR),
        (BAR, GL + ADD, VOLATILE, "", BAR + GL),
        # Updates of others pass on what they find; here the reader's own.
        (BAR, ACQ_REL + ADD + ADD + ADD, "atom.global.max.u32 %r11, [%d0], 0;" + VOLATILE, ACQ_REL, BAR),
    ],
)  # fmt: skip
def test_messages_between_blocks(written: str, publish: str, look: str, found: str, seen: str) -> None:
    for seed in SEEDS:
        got = passing(written, publish, look, found, seen, seed)
        assert got.findings == ()
        assert output(got, 2, OUT).tolist() == WANT


@pytest.mark.parametrize(
    ("written", "publish", "look", "found", "seen"),
    [
        # No fence before; none behind; neither.
        (BAR, ADD, RESULT, GL, BAR),
        (BAR, GL + ADD, RESULT, "", BAR),
        (BAR, ADD, RESULT, "", BAR),
        (BAR, STORE_RELAXED, ACQUIRE, "", BAR),
        (BAR, STORE_RELEASE, RELAXED, "", BAR),
        (BAR, STORE_RELEASE, VOLATILE, "", BAR),
        # The fence on the wrong side of the access.
        (BAR, ADD + GL, RESULT, GL, BAR),
        (BAR, GL + ADD, GL + RESULT, "", BAR),
        # No barrier before the fence of the one thread, or none behind.
        ("", GL + ADD, RESULT, GL, BAR),
        (GL, ADD, RESULT, GL, BAR),
        (BAR, GL + ADD, RESULT, GL, ""),
        # Fences that acquire and release belong to the thread that makes them.
        (ACQ_REL + BAR, ADD, RESULT, GL, BAR),
        (BAR, GL + ADD, RESULT, "", BAR + ACQ_REL),
        (GL + BAR, ADD, ACQUIRE, "", BAR),
        # A scope that ends with the block, of a fence or of an access.
        (BAR, "membar.cta;" + ADD, RESULT, GL, BAR),
        (BAR, GL + ADD, RESULT, "fence.acq_rel.cta;", BAR),
        (BAR, "st.release.cta.global.u32 [%d0], 1;", ACQUIRE, "", BAR),
        (BAR, STORE_RELEASE, "ld.acquire.cta.global.u32 %r11, [%d0];", "", BAR),
        (BAR, GL + "atom.cta.global.add.u32 %r14, [%d0], 1;", RESULT, GL, BAR),
        # The counter is read or written like any other word.
        (BAR, GL + ADD, "ld.global.u32 %r11, [%d0];", GL, BAR),
        (BAR, GL + "st.global.u32 [%d0], 1;", VOLATILE, GL, BAR),
        # Another counter is waited for than the fence stands before.
        (BAR, ADD + GL + "red.global.add.u32 [%d0+4], 1;", RESULT, GL, BAR),
        # A reduction acquires nothing; nor does a read of another place.
        (BAR, GL + ADD, VOLATILE + "red.acquire.gpu.global.add.u32 [%d0], 0;", "", BAR),
        (BAR, GL + ADD, VOLATILE + "ld.acquire.gpu.global.u32 %r15, [%d0+4];", "", BAR),
        (BAR, STORE_RELEASE.replace("[%d0]", "[%d0+4]") + STORE_RELAXED, ACQUIRE, "", BAR),
    ],
)  # fmt: skip
def test_broken_messages_are_found(written: str, publish: str, look: str, found: str, seen: str) -> None:
    for seed in SEEDS:
        assert BETWEEN in codes(passing(written, publish, look, found, seen, seed))


#: Block 0 says so to block 1 at one place, and that one to block 2 at another, which reads what block 0 has written.
RELAY = """
  setp.eq.u32 %p0, %r0, 0;
  setp.eq.u32 %p1, %r1, 0;
  @!%p1 bra $L_later;
  add.u32 %r10, %r0, 100;
  st.global.b32 [%d11], %r10;
  bar.sync 0;
  @%p0 st.release.gpu.global.u32 [%d0], 1;
  bra $L_end;
$L_later:
  sub.u32 %r15, %r1, 1;
  mad.wide.u32 %d20, %r15, 4, %d0;
  @!%p0 bra $L_seen;
$L_wait:
  ld.{look}.gpu.global.u32 %r11, [%d20];
  setp.eq.u32 %p2, %r11, 0;
  @%p2 bra $L_wait;
$L_seen:
  bar.sync 0;
  setp.eq.u32 %p3, %r1, 2;
  @%p3 bra $L_last;
  @%p0 st.{say}.gpu.global.u32 [%d20+4], 1;
  bra $L_end;
$L_last:
  sub.u32 %r12, 63, %r0;
  mad.wide.u32 %d21, %r12, 4, %d1;
  ld.global.b32 %r13, [%d21];
  st.global.b32 [%d12], %r13;
$L_end:"""


@pytest.mark.parametrize(
    ("look", "say", "found"),
    [("acquire", "release", set()), ("acquire", "relaxed", {BETWEEN}), ("relaxed", "release", {BETWEEN})],
)
def test_order_is_handed_on(look: str, say: str, found: set[str]) -> None:
    for seed in SEEDS:
        got = run(RELAY.format(look=look, say=say), COUNTER, DATA, OUT, blocks=3, threads=THREADS, seed=seed)
        assert codes(got) == found


#: Each block writes partial sums; the one whose atomic is the last adds all of them and sets the counter back.
LAST = """
  setp.eq.u32 %p0, %r0, 0;
  mov.u32 %r20, %nctaid.x;
  add.u32 %r10, %r3, 1;
  st.global.b32 [%d11], %r10;
  {written}
  @!%p0 bra $L_told;
  {ticket}
  sub.u32 %r21, %r20, 1;
  setp.eq.u32 %p1, %r14, %r21;
  selp.u32 %r15, 1, 0, %p1;
  st.shared.b32 [flag], %r15;
$L_told:
  bar.sync 0;
  ld.shared.b32 %r16, [flag];
  setp.eq.u32 %p2, %r16, {last};
  @!%p2 bra $L_end;
  {seen}
  mov.u32 %r17, 0;
  mov.u32 %r18, 0;
$L_sum:
  mad.lo.u32 %r19, %r18, %r2, %r0;
  mad.wide.u32 %d20, %r19, 4, %d1;
  ld.global.b32 %r22, [%d20];
  add.u32 %r17, %r17, %r22;
  add.u32 %r18, %r18, 1;
  setp.lt.u32 %p3, %r18, %r20;
  @%p3 bra $L_sum;
  mad.wide.u32 %d21, %r0, 4, %d2;
  st.global.b32 [%d21], %r17;
  {reset}
$L_end:"""
TICKET = "atom.global.add.u32 %r14, [%d0], 1;"
RESET = "@%p0 st.global.u32 [%d0], 0;"


def last(
    written: str = BAR, ticket: str = GL + TICKET, seen: str = GL, reset: str = RESET, last: str = "1", **more: object
) -> executor.Result:
    body = LAST.format(written=written, ticket=ticket, seen=seen, reset=reset, last=last)
    flag = ".shared .align 4 .b32 flag;\n"
    return run(body, COUNTER, DATA, OUT, blocks=4, threads=THREADS, shared=flag, **more)


@pytest.mark.parametrize(
    "ways",
    [
        {},
        {"written": GL + BAR, "ticket": TICKET},
        {"ticket": "atom.acq_rel.gpu.global.add.u32 %r14, [%d0], 1;", "seen": ""},
        {"ticket": ACQ_REL + "atom.global.inc.u32 %r14, [%d0], 3;" + ACQ_REL, "seen": "", "reset": ""},
        {"reset": "@%p0 atom.global.exch.b32 %r23, [%d0], 0;"},
        # The barrier behind the ticket is enough for another thread of the block to set it back.
        {"reset": "setp.eq.u32 %p4, %r0, 40;\n  @%p4 st.global.u32 [%d0], 0;"},
    ],
)
def test_the_last_block_adds_what_all_have_written(ways: dict[str, str]) -> None:
    for seed in SEEDS:
        got = last(**ways, seed=seed)
        assert got.findings == ()
        assert output(got, 2, OUT)[:THREADS].tolist() == [4 * (i + 1) + 6 * THREADS for i in range(THREADS)]
        assert output(got, 0, COUNTER)[0] == 0


@pytest.mark.parametrize(
    ("ways", "found"),
    [
        ({"ticket": TICKET}, BETWEEN),
        ({"written": "", "ticket": GL + TICKET}, BETWEEN),
        ({"seen": ""}, BETWEEN),
        ({"ticket": TICKET, "written": ACQ_REL + BAR}, BETWEEN),
        ({"ticket": "membar.cta;" + TICKET}, BETWEEN),
        ({"ticket": GL + "atom.cta.global.add.u32 %r14, [%d0], 1;"}, BETWEEN),
        # Whoever is not the last has not seen all.
        ({"last": "0"}, BETWEEN),
        # Set back by whoever comes, and by two threads.
        ({"ticket": GL + TICKET + "\n  " + RESET}, BETWEEN),
        ({"reset": RESET + "\n  setp.eq.u32 %p4, %r0, 40;\n  @%p4 st.global.u32 [%d0], 0;"}, "race"),
        # The counter as a word of another width.
        ({"ticket": GL + TICKET + "\n  red.global.add.u64 [%d0], 0;"}, BETWEEN),
    ],
)
def test_a_broken_last_block_is_found(ways: dict[str, str], found: str) -> None:
    for seed in SEEDS:
        assert found in codes(last(**ways, seed=seed))


#: The blocks add to one tile in turn: each waits until the counter is its number, and then counts on.
TURNS = """
  setp.eq.u32 %p0, %r0, 0;
  mad.wide.u32 %d20, %r0, 4, %d1;
  @!%p0 bra $L_mine;
$L_wait:
  {look}
  setp.ne.u32 %p2, %r11, %r1;
  @%p2 bra $L_wait;
  {found}
$L_mine:
  {enter}
  ld.global.b32 %r12, [%d20];
  mad.lo.u32 %r12, %r12, 10, %r1;
  st.global.b32 [%d20], %r12;
  {leave}
  @!%p0 bra $L_end;
  add.u32 %r13, %r1, {step};
  {publish}
$L_end:"""
COUNT = {
    "look": VOLATILE,
    "found": GL,
    "enter": BAR,
    "leave": BAR,
    "publish": GL + "st.volatile.global.u32 [%d0], %r13;",
}
NEXT = {"look": ACQUIRE, "found": "", "publish": "st.release.gpu.global.u32 [%d0], %r13;"}
SWAPS = {"look": RESULT, "publish": GL + "atom.global.exch.b32 %r14, [%d0], %r13;"}


def in_turn(step: int = 1, blocks: int = 4, **ways: object) -> executor.Result:
    seed = ways.pop("seed", 0)
    body = TURNS.format(**{**COUNT, **ways}, step=step)
    return run(body, COUNTER, DATA, blocks=blocks, threads=THREADS, seed=seed, budget=2_000_000)


@pytest.mark.parametrize("ways", [{}, NEXT, SWAPS, {"look": VOLATILE + "nanosleep.u32 20;"}, {"look": RELAXED}])
def test_blocks_take_turns(ways: dict[str, str]) -> None:
    for seed in SEEDS:
        got = in_turn(**ways, seed=seed)
        assert got.findings == ()
        assert output(got, 1, DATA)[:THREADS].tolist() == [123] * THREADS


@pytest.mark.parametrize(
    "ways",
    [
        {"publish": "st.volatile.global.u32 [%d0], %r13;"},
        {"found": ""},
        {"leave": ""},
        {"enter": ""},
        {"look": "ld.global.u32 %r11, [%d0];"},
        {**NEXT, "look": "ld.acquire.cta.global.u32 %r11, [%d0];"},
        {"publish": "membar.cta; st.volatile.global.u32 [%d0], %r13;"},
        {"look": "mov.u32 %r11, %r1;"},
        {"publish": GL + "st.global.u32 [%d0], %r13;"},
        {"publish": GL + "st.volatile.global.u8 [%d0], %r13;"},
    ],
)
def test_broken_turns_are_found(ways: dict[str, str]) -> None:
    for seed in SEEDS[1:3]:
        assert BETWEEN in codes(in_turn(blocks=3, seed=seed, **ways))


@pytest.mark.parametrize("look", [VOLATILE, ACQUIRE, RESULT, "atom.global.cas.b32 %r11, [%d0], 9, 9;"])
def test_a_turn_that_never_comes_is_a_deadlock(look: str) -> None:
    with pytest.raises(TimeoutFault, match=r"deadlock: PTX line \d+: .* of byte 0 of buffer 0 in block \d finds 4"):
        in_turn(step=2, look=look)


def test_a_bounded_look_is_no_deadlock() -> None:
    body = """
  mov.u32 %r10, 0;
$L_wait:
  ld.volatile.global.u32 %r11, [%d0];
  add.u32 %r10, %r10, 1;
  setp.lt.u32 %p1, %r10, 200;
  @%p1 bra $L_wait;
  st.global.b32 [%d11], %r10;"""
    got = run(body, COUNTER, DATA, blocks=2)
    assert got.findings == ()
    assert output(got, 1, DATA)[:64].tolist() == [200] * 64


def test_a_lock_that_blocks_take_in_any_order() -> None:
    """Updates of one word under a lock, one thread of each block."""
    body = """
  setp.ne.u32 %p0, %r0, 0;
  @%p0 bra $L_end;
$L_wait:
  atom.acquire.gpu.global.cas.b32 %r11, [%d0], 0, 1;
  setp.ne.u32 %p1, %r11, 0;
  @%p1 bra $L_wait;
  ld.global.b32 %r12, [%d1];
  add.u32 %r12, %r12, 5;
  st.global.b32 [%d1], %r12;
  {leave}
$L_end:"""
    for leave, found in (
        ("atom.release.gpu.global.exch.b32 %r13, [%d0], 0;", set()),
        ("st.relaxed.gpu.global.u32 [%d0], 0;", {BETWEEN}),
    ):
        for seed in SEEDS:
            got = run(body.format(leave=leave), COUNTER, DATA, blocks=5, seed=seed)
            assert codes(got) == found
            assert output(got, 1, DATA)[0] == 25


#: All blocks read their neighbours' words, meet at a counter, and write their own.
GRID = """
  setp.eq.u32 %p0, %r0, 0;
  mov.u32 %r20, %nctaid.x;
  ld.global.b32 %r10, [%d1];
  ld.global.b32 %r12, [%d11];
  bar.sync 0;
  @!%p0 bra $L_met;
  {arrive}
$L_wait:
  ld.acquire.gpu.global.u32 %r11, [%d0];
  setp.lt.u32 %p2, %r11, {most};
  @%p2 bra $L_wait;
$L_met:
  bar.sync 0;
  add.u32 %r12, %r12, 1;
  st.global.b32 [%d11], %r12;
  setp.eq.u32 %p3, %r3, 100;
  @%p3 st.global.b32 [%d1+4], %r12;"""


@pytest.mark.parametrize(
    ("arrive", "most", "found"),
    [
        ("red.release.gpu.global.add.u32 [%d0], 1;", "%r20", {"race-between-blocks"}),
        ("red.release.gpu.global.add.u32 [%d0], 1;", "2", {"race-between-blocks"}),
    ],
)
def test_two_writers_behind_a_barrier_of_the_grid_race(arrive: str, most: str, found: set[str]) -> None:
    assert codes(run(GRID.format(arrive=arrive, most=most), COUNTER, DATA, blocks=3, threads=THREADS)) == found


@pytest.mark.parametrize(
    ("arrive", "most", "found"),
    [
        ("red.release.gpu.global.add.u32 [%d0], 1;", "%r20", set()),
        (GL + "red.global.add.u32 [%d0], 1;", "%r20", set()),
        ("red.global.add.u32 [%d0], 1;", "%r20", {BETWEEN}),
    ],
)
def test_blocks_that_meet_at_a_counter(arrive: str, most: str, found: set[str]) -> None:
    body = GRID.format(arrive=arrive, most=most)
    body = body[: body.index("  setp.eq.u32 %p3")]
    for seed in SEEDS:
        assert codes(run(body, COUNTER, DATA, blocks=3, threads=THREADS, seed=seed)) == found


def test_who_goes_on_too_early_is_found_where_the_order_of_blocks_shows_it() -> None:
    """Nobody has to wait for more than its own arrival: right values where all arrive first, and in no other order."""
    body = GRID.format(arrive="red.release.gpu.global.add.u32 [%d0], 1;", most="1")
    body = body[: body.index("  setp.eq.u32 %p3")]
    found = [codes(run(body, COUNTER, DATA, blocks=3, threads=THREADS, seed=seed)) for seed in range(8)]
    assert {BETWEEN} in found


def test_warps_of_one_block_are_ordered_the_same_way() -> None:
    """The scope of the block is enough within it, and its barriers are not needed."""
    body = """
  setp.eq.u32 %p0, %r0, 0;
  setp.eq.u32 %p1, %r0, 32;
  @%p0 st.global.b32 [%d1], 7;
  @%p0 st.{say}.cta.global.u32 [%d0], 1;
  @!%p1 bra $L_end;
$L_wait:
  ld.{look}.cta.global.u32 %r11, [%d0];
  setp.eq.u32 %p2, %r11, 0;
  @%p2 bra $L_wait;
  ld.global.b32 %r12, [%d1];
  st.global.b32 [%d1+4], %r12;
$L_end:"""
    for look, say, found in (
        ("acquire", "release", set()),
        ("relaxed", "release", {"race"}),
        ("acquire", "relaxed", {"race"}),
    ):
        got = run(body.format(look=look, say=say), COUNTER, DATA, threads=THREADS)
        assert codes(got) == found
        assert output(got, 1, DATA)[1] == 7


@pytest.mark.parametrize(
    "statement",
    ["fence.relaxed.gpu;", "fence.acq_rel.grid;", "membar.gpu;", "membar;", "fence.sc;",
     "ld.acquire.global.u32 %r10, [%d0];", "ld.gpu.global.u32 %r10, [%d0];",
     "ld.release.gpu.global.u32 %r10, [%d0];", "st.acquire.gpu.global.u32 [%d0], %r10;",
     "ld.volatile.relaxed.gpu.global.u32 %r10, [%d0];", "ld.weak.acquire.gpu.global.u32 %r10, [%d0];"],
)  # fmt: skip
def test_forms_that_do_not_exist_are_refused(statement: str) -> None:
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        run("  " + statement, COUNTER)


def test_many_releases_do_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors that nobody holds any more are dropped, and what is still held keeps its meaning."""
    body = """
  setp.eq.u32 %p0, %r0, 0;
  mov.u32 %r10, 0;
$L_again:
  st.global.b32 [%d11], %r10;
  bar.sync 0;
  @%p0 st.release.gpu.global.u32 [%d10], 1;
  add.u32 %r10, %r10, 1;
  setp.lt.u32 %p1, %r10, 150;
  @%p1 bra $L_again;
  setp.ne.u32 %p2, %r1, 1;
  @%p2 bra $L_end;
  @!%p0 bra $L_seen;
  ld.acquire.gpu.global.u32 %r11, [%d0];
$L_seen:
  bar.sync 0;
  mad.wide.u32 %d20, %r0, 4, %d1;
  ld.global.b32 %r12, [%d20];
$L_end:"""
    monkeypatch.setattr(clocks, "_FIRST_VECTORS", 16)
    got = run(body, COUNTER.repeat(8), DATA, blocks=2)
    assert got.findings == ()


def test_knowledge_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread releases at a place of its own, and all of that is held."""
    monkeypatch.setattr(clocks, "MOST_BYTES", 1 << 14)
    body = "  st.release.gpu.global.u32 [%d10], 1;\n  bar.sync 0;\n  st.release.gpu.global.u32 [%d10+1024], 1;"
    with pytest.raises(LaunchFault, match="128 threads know of each other"):
        run(body, np.zeros(512, np.uint32), blocks=2, threads=THREADS)


#: One thread of each of two blocks, which nothing orders.
TWO = """
  setp.ne.u32 %p0, %r0, 0;
  @%p0 bra $L_end;
  setp.eq.u32 %p1, %r1, {second};
  @%p1 bra $L_other;
  {one}
  bra $L_end;
$L_other:
  {other}
$L_end:"""
WRITE, CTA = "st.global.u32 [%d0], 5;", "atom.cta.global.add.u32 %r14, [%d0], 1;"


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ("ld.global.u32 %r11, [%d0];", VOLATILE, set()),
        (VOLATILE, ADD, set()),
        (STORE_RELAXED, STORE_VOLATILE, set()),
        (VOLATILE, WRITE, {BETWEEN}),
        ("ld.global.u32 %r11, [%d0];", ADD, {BETWEEN}),
        # Neither a store of its own nor an update shows a thread what others have stored or read before.
        (STORE_RELAXED, STORE_RELAXED + RELAXED + WRITE, {BETWEEN}),
        (VOLATILE, ADD + WRITE, {BETWEEN}),
        # One of the two scopes is enough to spoil it.
        (CTA, ADD, {BETWEEN}),
        (CTA, CTA, {BETWEEN}),
        ("ld.relaxed.cta.global.u32 %r11, [%d0];", ADD, {BETWEEN}),
        (ADD, "atom.global.add.u64 %d25, [%d0], 1;", {BETWEEN}),
    ],
)
def test_pairs_of_accesses(one: str, other: str, found: set[str]) -> None:
    for seed in SEEDS:
        for second in (0, 1):
            assert codes(run(TWO.format(second=second, one=one, other=other), COUNTER, blocks=2, seed=seed)) == found


@pytest.mark.parametrize(
    ("passes", "found"),
    [("atom.global.add.u32 %r14, [%d0], 1;", set()), ("st.relaxed.gpu.global.u32 [%d0], 2;", {BETWEEN})],
)
def test_an_update_passes_on_what_it_finds_and_a_store_does_not(passes: str, found: set[str]) -> None:
    body = """
  setp.ne.u32 %p0, %r0, 0;
  @%p0 bra $L_end;
  setp.eq.u32 %p1, %r1, 0;
  @!%p1 bra $L_wait;
  st.global.b32 [%d1], 7;
  st.release.gpu.global.u32 [%d0], 1;
  bra $L_end;
$L_wait:
  sub.u32 %r15, %r1, 1;
  mad.wide.u32 %d20, %r15, 4, %d0;
  ld.relaxed.gpu.global.u32 %r11, [%d20];
  setp.eq.u32 %p2, %r11, 0;
  @%p2 bra $L_wait;
  setp.eq.u32 %p3, %r1, 2;
  @%p3 bra $L_last;
  {passes}
  st.relaxed.gpu.global.u32 [%d0+4], 1;
  bra $L_end;
$L_last:
  ld.relaxed.gpu.global.u32 %r12, [%d0];
  fence.acq_rel.gpu;
  ld.global.b32 %r13, [%d1];
$L_end:"""
    for seed in SEEDS:
        assert codes(run(body.format(passes=passes), COUNTER, DATA, blocks=3, seed=seed)) == found
