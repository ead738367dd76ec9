"""From records to a winner, and to the order of those that no time speaks for."""

from __future__ import annotations

import dataclasses
import random

from wmmagen.arch import ARCHS
from wmmagen.choose import Choice, by_estimate, choose, decided, estimated, latest, leading, ranking
from wmmagen.config import name, read_pairs
from wmmagen.defaults import complete
from wmmagen.records import Estimated, Facts, Outcome, Record
from wmmagen.timing import Timing

SM = ARCHS[80]


def kernel(text: str = "") -> str:
    return name(complete(read_pairs(text), SM))


def record(
    text: str = "",
    median: float | None = None,
    *,
    half: float = 0.5,
    outcome: Outcome = Outcome.OK,
    facts: Facts | None = None,
    foreign: bool = False,
) -> Record:
    timing = None if median is None else Timing(median, (median - half, median + half), 20, 100)
    return Record(kernel(text), "sm_80", "2048x2048x2048", outcome, foreign=foreign, facts=facts, timing=timing)


def facts(*, spill: int = 0, occupancy: int = 1, threads: int = 128) -> Facts:
    return Facts(200, spill, 0, 40_000, threads, occupancy, 0.2, "nvrtc 13.0")


def test_no_record_or_none_that_ranks_is_no_choice() -> None:
    assert choose([]) is None
    untimed = [record(), record("stages=2", outcome=Outcome.UNVERIFIED)]
    assert choose([*untimed, record("stages=4", 3.0, foreign=True)]) is None


def test_a_fast_wrong_or_foreign_record_never_wins() -> None:
    slow = record("stages=2", 50.0)
    others = [record("stages=3", 1.0, outcome=o) for o in Outcome if o is not Outcome.OK]
    for other in [*others, record("stages=3", 1.0, foreign=True)]:
        assert choose([other, slow]) == Choice(slow)


def test_the_smallest_median_wins_with_its_margin() -> None:
    a, b, c = record("stages=2", 40.0), record("stages=3", 30.0), record("stages=4", 32.0)
    assert choose([a, b, c]) == Choice(b, c, 32.0 / 30.0 - 1, tie=False)
    assert ranking([a, b, c]) == [b, c, a]


def test_overlapping_intervals_are_a_tie() -> None:
    a, b = record("stages=2", 30.0), record("stages=3", 31.0)
    chosen = choose([b, a])
    assert chosen is not None and chosen.tie and chosen.best == a
    apart = choose([a, record("stages=3", 31.0, half=0.25)])
    assert apart is not None and not apart.tie


def test_the_order_of_records_does_not_matter() -> None:
    records = [record(f"stages={s},k_steps={k}", 30.0) for s in (2, 3) for k in (1, 2, 4)]
    expected = ranking(records)
    assert [r.name for r in expected] == sorted(r.name for r in records)
    for seed in range(5):
        assert ranking(random.Random(seed).sample(records, len(records))) == expected


def test_later_records_replace_earlier_ones() -> None:
    first, other = record("stages=2", 10.0), record("stages=3", 20.0)
    wrong = dataclasses.replace(first, outcome=Outcome.WRONG, timing=None)
    assert latest([first, other, wrong]) == [wrong, other]
    assert choose([first, other, wrong]) == Choice(other)
    assert choose([wrong, other, first]) == Choice(first, other, 1.0, tie=False)


def at(record: Record, device: str, **more: object) -> Record:
    return dataclasses.replace(record, device=device, **more)  # type: ignore[arg-type]


def test_what_another_device_says_takes_no_time_away() -> None:
    timed = at(record("stages=2", 10.0), "card")
    elsewhere = [at(guessed("stages=2", 90.0), "CPU"), at(record("stages=2", 1.0, foreign=True), "far card")]
    elsewhere += [at(record("stages=2", outcome=o), "") for o in (Outcome.UNVERIFIED, Outcome.LAUNCH, Outcome.TIMEOUT)]
    for other in elsewhere:
        for records in ([timed, other], [other, timed]):
            assert latest(records) == [timed] and choose(records) == Choice(timed)


def test_what_is_wrong_anywhere_is_wrong() -> None:
    timed, slow = at(record("stages=2", 10.0), "card"), at(record("stages=3", 20.0), "card")
    for outcome in (Outcome.WRONG, Outcome.CRASH):
        refuting = at(record("stages=2", outcome=outcome), "CPU")
        for records in ([timed, refuting, slow], [refuting, timed, slow]):
            assert latest(records) == [refuting, slow] and choose(records) == Choice(slow)
        # The device itself may take it back, and of another text it said nothing.
        assert choose([refuting, timed, at(record("stages=2"), "CPU")]) == Choice(timed)
        assert choose([refuting, dataclasses.replace(timed, fingerprint="new")]) is not None


def test_a_card_keeps_its_times_beside_another_ones() -> None:
    first = [at(record(f"stages={n}", 10.0 * n), "card") for n in (2, 3)]
    other = [at(record("stages=2", 90.0), "other card")]
    last = at(record("stages=4", 5.0), "card")
    assert ranking([*first, *other]) == other
    assert ranking([*first, *other, last]) == [last, *first]


def test_leading_are_the_right_and_the_open_ones_without_a_time_that_counts() -> None:
    open_ = [
        record("stages=2", outcome=Outcome.UNVERIFIED),
        record("stages=3"),
        record("stages=4", 3.0, foreign=True),
    ]
    failed = [record("k_steps=4", outcome=Outcome.WRONG), record("frags=2x2", outcome=Outcome.COMPILE)]
    out = [record("k_steps=1", 3.0), *failed]
    elsewhere = dataclasses.replace(record("frags=2x4"), arch="sm_90")
    assert {r.name for r in leading([*out, *open_, elsewhere], SM)} == {r.name for r in open_}


def test_leading_are_ordered_by_what_the_compiler_said() -> None:
    best = record("warps=2x2,frags=4x4", facts=facts())
    less_resident = record("warps=2x2,frags=4x4,stages=2", facts=facts(threads=64))
    smaller_block = record("warps=1x1,frags=4x4", facts=facts(occupancy=8))
    smaller_warp = record("warps=2x2,frags=2x4", facts=facts(occupancy=8))
    spilled = record("warps=2x2,frags=6x6", facts=facts(spill=64))
    unknown = record("warps=2x2,frags=8x4")
    expected = [best, less_resident, smaller_block, smaller_warp, spilled, unknown]
    assert leading(reversed(expected), SM) == expected


def test_what_is_fed_from_global_memory_reads_it_once_per_warp() -> None:
    staged = record("warps=2x2,frags=4x4", facts=facts())
    fed = record("warps=2x2,frags=4x4,feed=global", facts=facts(occupancy=8))
    assert leading([fed, staged], SM) == [staged, fed]
    one = record("warps=1x1,frags=4x4", facts=facts())
    other = record("warps=1x1,frags=4x4,feed=global", facts=facts())
    assert leading([other, one], SM) == [one, other]


def test_operations_of_two_widths_are_compared_by_bytes() -> None:
    wide = record("a=tf32,warps=2x2,frags=4x4", facts=facts())
    narrow = record("a=f16,warps=2x2,frags=4x4", facts=facts(occupancy=1, threads=32))
    assert leading([wide, narrow], SM) == [narrow, wide]


def test_among_those_that_were_measured_again_the_fastest_is_best() -> None:
    records = [record("stages=2", 10.0), record("stages=3", 11.0), record("stages=4", 12.0)]
    finals = [record("stages=2", 13.0), record("stages=3", 12.5), record("stages=5", 1.0)]
    found = decided(records, finals)
    assert found is not None and found.best == finals[1] and found.runner_up == finals[0]


def test_a_new_leader_is_best_until_it_is_measured_again() -> None:
    records = [record("stages=2", 10.0), record("stages=3", 11.0), record("stages=4", 9.0)]
    found = decided(records, [record("stages=2", 8.0), record("stages=3", 7.0)])
    assert found is not None and found.best == records[2]
    assert decided([], [record("stages=2", 8.0)]) is None


def test_finals_of_another_card_or_text_decide_nothing() -> None:
    records = [at(record("stages=2", 10.0), "card"), at(record("stages=3", 11.0), "card")]
    finals = [at(record("stages=2", 9.0), "card"), at(record("stages=3", 8.0), "card")]
    for stale in ({"device": "other card"}, {"fingerprint": "of another version"}):
        found = decided(records, [dataclasses.replace(one, **stale) for one in finals])  # type: ignore[arg-type]
        assert found is not None and found.best == records[0]
    found = decided(records, finals)
    assert found is not None and found.best == finals[1]


def guessed(text: str, us: float, chip: str = "A100 80 GB SXM", **more: object) -> Record:
    return dataclasses.replace(record(text, **more), estimate=Estimated(us, chip, "l2"))  # type: ignore[arg-type]


def test_without_times_the_smallest_estimate_of_a_right_one_wins() -> None:
    a, b, c = guessed("stages=2", 40.0), guessed("stages=3", 30.0), guessed("stages=4", 33.0)
    wrong = guessed("stages=5", 1.0, outcome=Outcome.WRONG)
    unverified = guessed("k_steps=1", 2.0, outcome=Outcome.UNVERIFIED)
    records = [a, b, wrong, unverified, c]
    assert by_estimate(records) == Choice(b, c, 33.0 / 30.0 - 1, estimated=True)
    assert estimated(records) == [b, c, a]
    assert choose(records) is None and by_estimate([wrong, unverified]) is None
    assert by_estimate([a]) == Choice(a, estimated=True)


def test_where_a_time_ranks_no_estimate_does() -> None:
    fast = guessed("stages=2", 1.0)
    assert estimated([fast, record("stages=3", 50.0)]) == []
    # A foreign time is none that ranks.
    assert estimated([fast, record("stages=3", 50.0, foreign=True)]) == [fast]
    # One that was taken back by a later record was measured all the same.
    assert by_estimate([record("stages=3", 50.0), guessed("stages=3", 20.0)]) is None


def test_estimates_for_two_chips_are_not_compared() -> None:
    first, second = guessed("stages=2", 1.0, "A100 40 GB"), guessed("stages=3", 30.0)
    assert estimated([first, second]) == [second]


def test_leading_are_in_the_order_of_their_estimates() -> None:
    slow, fast = guessed("warps=2x2,frags=4x4", 40.0, facts=facts()), guessed("stages=4", 30.0, facts=facts(spill=64))
    without = record("warps=2x2,frags=4x2", facts=facts())
    assert leading([without, slow, fast], SM) == [fast, slow, without]
