"""From records to the best configuration. Pure: nothing is measured and nothing is estimated here.

Times and estimates never stand in one ranking: where a time ranks, no estimate does.

Of several records of one name from one device the last counts, whatever became of it. A record from another device
takes no time away, unless it says that the kernel is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from wmmagen import derive
from wmmagen.arch import WARP_SIZE, Arch
from wmmagen.config import parse
from wmmagen.records import Outcome, Record
from wmmagen.timing import Timing


@dataclass(frozen=True)
class Choice:
    """The best record, and by how much.

    Attributes:
        best: the record with the smallest median; where ``estimated``, with the smallest estimate.
        runner_up: the next one; None where there is no other.
        margin: how much more time the runner-up takes, relative to the best; None without a runner-up.
        tie: whether their intervals overlap, so that either may be the better one; estimates have none.
        estimated: no time ranks, and estimates do.
    """

    best: Record
    runner_up: Record | None = None
    margin: float | None = None
    tie: bool = False
    estimated: bool = False


def latest(records: Iterable[Record]) -> list[Record]:
    """What is known of each name, in the order in which the names first came.

    Records of another text than the last one's are forgotten. Each device keeps its last record. Where there are
    several, one that says that the kernel is wrong counts, else a time that ranks, else a right one; the last of such.
    """
    spoken: dict[str, dict[str, Record]] = {}
    for record in records:
        known = spoken.setdefault(record.name, {})
        if any(other.fingerprint != record.fingerprint for other in known.values()):
            known.clear()
        known.pop(record.device, None)
        known[record.device] = record
    return [_speaking(list(known.values())) for known in spoken.values()]


def _speaking(known: Sequence[Record]) -> Record:
    refuting = [r for r in known if r.refutes]
    timed = [r for r in known if r.ranks]
    right = [r for r in known if r.outcome is Outcome.OK]
    return (refuting or timed or right or known)[-1]


def ranking(records: Sequence[Record]) -> list[Record]:
    """The records whose time may be compared, the fastest first.

    Times of two cards may not: where a study holds several, those of the card that was timed last count.
    """
    card = next((r.device for r in reversed(records) if r.ranks), "")
    refuted = {r.name for r in latest(records) if r.refutes}
    timed = [r for r in latest(r for r in records if r.device == card) if r.ranks and r.name not in refuted]
    return sorted(timed, key=lambda r: (_timing(r).median_us, r.name))


def estimated(records: Sequence[Record]) -> list[Record]:
    """The right records by their estimates, the fastest first; none where a time ranks.

    Estimates for two chips may not be compared: where there are several, those for the last one count.
    """
    known = list(records)
    if any(record.ranks for record in known):
        return []
    right = [(r, r.estimate) for r in latest(known) if r.ranks_by_estimate and r.estimate]
    chip = next((guess.chip for _, guess in reversed(right)), "")
    mine = [(guess.us, r.name, r) for r, guess in right if guess.chip == chip]
    return [record for _, _, record in sorted(mine, key=lambda each: each[:2])]


def by_estimate(records: Sequence[Record]) -> Choice | None:
    """The right record with the smallest estimate; None where a time ranks, or nothing is right."""
    ranked = estimated(records)
    if not ranked:
        return None
    first, second = ranked[0].estimate, ranked[1].estimate if len(ranked) > 1 else None
    margin = second.us / first.us - 1 if first and second else None
    return Choice(ranked[0], ranked[1] if len(ranked) > 1 else None, margin=margin, estimated=True)


def decided(records: Sequence[Record], finals: Sequence[Record]) -> Choice | None:
    """The choice among ``records``; among those of ``finals`` where the fastest was measured again there.

    Args:
        finals: leaders measured again, in turns with each other, so that no drift of the clock stands between them.
    """
    first = choose(records)
    again = measured_again(ranking(records), finals)
    if first is None or first.best.name not in {record.name for record in again}:
        return first
    return choose(again) or first


def measured_again(records: Iterable[Record], finals: Iterable[Record]) -> list[Record]:
    """Those of ``finals`` that measured one of ``records`` again: the same text, on the same card."""
    known = {(record.name, record.fingerprint, record.device) for record in records}
    return [record for record in finals if (record.name, record.fingerprint, record.device) in known]


def choose(records: Sequence[Record]) -> Choice | None:
    """The fastest of the records that rank; None where none does."""
    ranked = ranking(records)
    if not ranked:
        return None
    best = ranked[0]
    if len(ranked) == 1:
        return Choice(best)
    first, second = _timing(best), _timing(ranked[1])
    return Choice(
        best,
        ranked[1],
        margin=second.median_us / first.median_us - 1,
        tie=tied(first, second),
    )


def tied(first: Timing, second: Timing) -> bool:
    """Whether the intervals of the fastest and the next one overlap."""
    return second.interval_us[0] <= first.interval_us[1]


def _timing(record: Record) -> Timing:
    if record.timing is None:
        raise ValueError(f"{record.name} was not timed")
    return record.timing


def leading(records: Iterable[Record], arch: Arch) -> list[Record]:
    """The records that are right, or could not be run, and that no time on ``arch`` speaks for, the likeliest first.

    Those with an estimate are in its order. The others, of versions and types without one, follow in the order of what
    the compiler said and of what their tiles move. One precedes another by the first of these that differs:

    1. nothing is spilled; then the fewest bytes spilled;
    2. multiply-adds per byte that a warp reads to feed its tile;
    3. multiply-adds per byte that comes from global memory: per block where tiles are staged, per warp where not;
    4. the next slice is on its way while one is multiplied;
    5. warps resident on a multiprocessor;
    6. fed from shared memory;
    7. the name.

    A record without facts comes after those with them.
    """
    words = (Outcome.OK, Outcome.UNVERIFIED)
    open_ = [r for r in latest(records) if r.outcome in words and not r.ranks and r.arch == arch.name]
    return sorted(open_, key=_place)


def _place(record: Record) -> tuple[Any, ...]:
    known = derive.values(parse(record.name))
    facts = record.facts
    warp = _reuse(known["WARP_M"], known["WARP_N"], known["A_BITS"])
    block = _reuse(known["BLOCK_M"], known["BLOCK_N"], known["A_BITS"])
    resident = facts.occupancy * facts.threads // WARP_SIZE if facts else 0
    return (
        record.estimate is None,
        record.estimate.us if record.estimate else 0.0,
        facts is None,
        facts.spill_bytes if facts else 0,
        -warp,
        -(block if known["feed_shared"] else warp),
        known["STAGES"] < 2,
        -resident,
        not known["feed_shared"],
        record.name,
    )


def _reuse(m: int, n: int, bits: int) -> Fraction:
    """Multiply-adds of an m×n tile per byte of operands, of ``bits`` bits an element, that it is fed with."""
    return Fraction(8 * m * n, (m + n) * bits)
