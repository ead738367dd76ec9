"""The estimate beside what was measured: its order, its errors, and the figures of a T4.

    python -m tests.nvrtc.prove_estimate [--no-compile] [--record FILE]

No GPU is needed: the times are those of ``sweeps/records``. Variants that were drawn evenly judge the estimate; sweeps,
which crowd around their best, are shown beside them. Each is estimated in three ways: with nothing compiled, as the
first trials of a sweep are chosen; with what the compiler said when they were measured, as a sweep without a GPU ranks;
and with what a block does counted from the PTX that is compiled here. Ends with 1 where the order or a T4 figure misses
its demand.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from tests import measured
from wmmagen import arch as archs
from wmmagen import chips, emit, estimate, profile
from wmmagen.config import Problem, parse, read_size
from wmmagen.defaults import read_config
from wmmagen.errors import RequestError
from wmmagen.estimate import Estimate
from wmmagen.foundry import Foundry, Order, usable_cores
from wmmagen.records import Record
from wmmagen.render import render
from wmmagen.trial import build, facts_of

RECORD = Path(__file__).resolve().parent / "records" / "estimate.txt"
#: Demanded of Spearman's rank correlation, over at least so many variants.
LEAST, AT_LEAST = 0.8, 100
#: Demanded of the T4's figures: how far off an estimate may be, and which times an order is demanded of.
FACTOR, APART = 2.0, 1.15
#: How many of the largest errors are shown, each way.
WORST = 4

Guess = Callable[[Record], Estimate]


def of(record: Record, **more: object) -> Estimate:
    """The estimate of a record's kernel on the card that it was measured on."""
    config, chip = parse(record.name), chips.find(record.device)
    assert chip is not None, f"{record.device} is not in the table of chips"
    problem = Problem.packed(config.operation, *read_size(record.problem))
    return estimate.estimate(config, archs.find(record.arch), chip, problem, **more)  # type: ignore[arg-type]


def with_facts(record: Record) -> Estimate:
    """With what the compiler said when the variant was measured."""
    assert record.facts is not None
    return of(record, footprint=estimate.compiled(record.facts))


def counting(foundry: Foundry) -> Guess:
    """With what a block does counted from the PTX, and with what the compiler here says."""

    def guess(record: Record) -> Estimate:
        config, arch = parse(record.name), archs.find(record.arch)
        _, binary = build(config, arch, foundry.compile)
        if record.name not in counted:
            counted[record.name] = profile.work_of(config, binary)
        facts = facts_of(config, arch, binary)
        return of(record, footprint=estimate.compiled(facts), counted=counted[record.name])

    counted: dict[str, estimate.Work] = {}
    return guess


def known(path: Path) -> list[Record]:
    """The records of a file whose names are names today."""
    found = []
    for record in measured.read(path):
        try:
            parse(record.name)
        except RequestError:
            continue
        found.append(record)
    return found


def figures(records: Sequence[Record], guesses: Sequence[Estimate]) -> str:
    """Order and errors of one way of estimating."""
    times = np.array([record.timing.median_us for record in records if record.timing])
    guessed = np.array([one.us for one in guesses])
    errors = np.log(guessed / times)
    leaders = np.argsort(guessed, kind="stable")[:5]
    middle = np.median(errors)
    return (
        f"Spearman {measured.spearman(times, guessed):.3f}; estimate over time: median {math.exp(middle):.2f}, "
        f"two thirds within a factor {math.exp(np.quantile(abs(errors - middle), 2 / 3)):.2f} of that; "
        f"best of the first five takes {times[leaders].min() / times.min():.2f} of the best time"
    )


def worst(records: Sequence[Record], guesses: Sequence[Estimate]) -> Iterator[str]:
    """The largest errors, low ones first."""
    pairs = [(g.us / r.timing.median_us, r, g) for r, g in zip(records, guesses, strict=True) if r.timing]
    pairs.sort(key=lambda pair: pair[0])
    for ratio, record, guess in [*pairs[:WORST], *pairs[-WORST:]]:
        assert record.timing is not None
        yield (
            f"      {ratio:5.2f}: {record.timing.median_us:9.1f} us measured, {guess.us:9.1f} us estimated, "
            f"{guess.limiting}; {record.name}"
        )


def judged(path: Path, ways: dict[str, Guess], demanded: bool) -> Iterator[tuple[str, str]]:
    """Lines about one file, each with what it complains of."""
    records = known(path)
    yield f"{path.stem}: {len(records)} right and timed", ""
    if demanded and len(records) < AT_LEAST:
        yield "", f"{path.stem} has {len(records)} variants, fewer than {AT_LEAST}"
    guesses: list[Estimate] = []
    for way, guess in ways.items():
        guesses = [guess(record) for record in records]
        order = measured.spearman([r.timing.median_us for r in records if r.timing], [g.us for g in guesses])
        missed = f"{path.stem}, {way}: Spearman {order:.3f}" if demanded and order < LEAST else ""
        yield f"  {way + ':':<22} {figures(records, guesses)}", missed
    if demanded:
        yield "    the largest errors of the last one:", ""
        yield from ((line, "") for line in worst(records, guesses))


def turing() -> Iterator[tuple[str, str]]:
    """The T4's figures beside the estimates of the nearest configurations."""
    arch, chip = archs.find("sm_75"), chips.named("t4")
    pairs = []
    yield "Tesla T4, f32 sums; the kernels are somebody else's, and these are the nearest configurations:", ""
    for one in measured.T4:
        config = read_config(one.nearest, arch)
        yield f"  {one.what}: {one.nearest}", ""
        for n, us in one.us.items():
            guess = estimate.estimate(config, arch, chip, Problem.packed(config.operation, n, n, n))
            pairs.append((us, guess.us, f"{one.what} at {n}"))
            far = f"{one.what} at {n}: off by more than {FACTOR}" if not 1 / FACTOR < guess.us / us < FACTOR else ""
            yield (
                f"    {n}: {us:8.0f} us measured, {guess.us:8.0f} us estimated ({guess.limiting}), {guess.us / us:.2f}",
                far,
            )
    for slow, fast in ((a, b) for a in pairs for b in pairs if a[0] >= APART * b[0]):
        if slow[1] <= fast[1]:
            yield "", f"{slow[2]} is estimated to be faster than {fast[2]}"


def main() -> int:
    """Estimate, compare, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-compile", action="store_true", help="only what needs no compiler")
    parser.add_argument("--record", type=Path, default=RECORD)
    asked = parser.parse_args()
    drawn = measured.variants()
    sweeps = [path for path in sorted(measured.RECORDS.glob("sm_*.jsonl")) if measured.read(path)]
    quick: dict[str, Guess] = {"nothing compiled": of, "the compiler's facts": with_facts}
    lines: list[str] = []
    complaints: list[str] = []
    with Foundry(usable_cores()) as foundry:
        ways = quick if asked.no_compile else {**quick, "counted from PTX": counting(foundry)}
        if not asked.no_compile:
            for record in {record.name: record for path in drawn for record in known(path)}.values():
                source = render(parse(record.name), archs.find(record.arch))
                foundry.begin(Order(source.text, source.kernel, archs.find(record.arch)))
        parts = [judged(path, ways, True) for path in drawn] + [judged(path, quick, False) for path in sweeps]
        for part in (*parts, turing()):
            for line, complaint in part:
                complaints += [complaint] if complaint else []
                lines += [line] if line else []
                print(line or complaint, flush=True)
    verdict = complaints or [f"All demands are met: Spearman at least {LEAST}, the T4 in order and within {FACTOR}."]
    print("\n".join(verdict))
    emit.write(asked.record, "\n".join([*lines, *verdict]) + "\n")
    return 1 if complaints or not drawn else 0


if __name__ == "__main__":
    sys.exit(main())
