"""The estimate beside what was measured: its order, its errors, and the figures of a T4.

    python tests/nvrtc/prove_estimate.py [--no-compile] [--record FILE]

No GPU is needed: the times are those of ``sweeps/records``. Sets of at least a hundred variants that were drawn evenly
judge the estimate, and of each size there has to be one. Smaller sets were drawn later and nothing was fitted to them:
they are shown, as are sweeps, which crowd around their best. Each variant is estimated in three ways: with nothing
compiled, as the first trials of a sweep are chosen; with what the compiler said when it was measured, as a sweep
without a GPU ranks; and with what a block does counted from the PTX that is compiled here. A variant that was measured
with another text than today's templates make keeps the registers and spills of that text, and no set with such variants
is judged by what is counted of today's. Ends with 1 where the order or a T4 figure misses its demand.

What sweeps without a GPU choose is shown, too: where well-built kernels of each architecture stand among 256 even
draws, and the best of a sweep for sm_75.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from tests import measured
from wmmagen import arch as archs
from wmmagen import chips, emit, estimate, profile, seeds
from wmmagen.config import KernelConfig, Operation, Problem, name, parse, read_size
from wmmagen.defaults import read_config
from wmmagen.dtypes import F16, F32
from wmmagen.errors import RequestError
from wmmagen.estimate import Estimate
from wmmagen.foundry import Foundry, Order, usable_cores
from wmmagen.records import Record
from wmmagen.render import render
from wmmagen.space import Space
from wmmagen.trial import build, facts_of

RECORD = Path(__file__).resolve().parent / "records" / "estimate.txt"
#: Demanded of Spearman's rank correlation.
LEAST = 0.8
#: Demanded of the T4's figures: how far off an estimate may be, and which times an order is demanded of.
FACTOR, APART = 2.0, 1.15
#: How many of the largest errors are shown, each way.
WORST = 4
#: Architectures and chips on which well-built kernels are looked for among so many even draws, for this cube.
PLACES, EVEN, CUBE = (
    (("sm_75", "t4"), ("sm_80", "a100"), ("sm_86", "3090"), ("sm_89", "4090"), ("sm_90", "h200")),
    256,
    2048,
)
#: What two sets of fragments across slices gave over one set on an H200, at a cube of 4096 with 256x128x64 and three
#: stages, both with their copies spread: 395 over 346 TFLOP/s (wmmagen/DESIGN.md).
ACROSS, GAVE = (
    "warps=4x2,frags=4x4,k_steps=4,copy=cpasync,stages=3,pad_a=8,pad_b=8,store=direct,fragment_buffers={}",
    395 / 346,
)
#: A sweep where there is no GPU.
SWEEP = ("sweep", "--arch", "sm_75", "--trials", "40", "--backend", "cpu")

Guess = Callable[[Record], Estimate]
COUNTED = "counted from PTX"


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
    """With what a block does counted from the PTX; registers and spills are those of the text that was measured."""

    def guess(record: Record) -> Estimate:
        config, arch = parse(record.name), archs.find(record.arch)
        _, binary = build(config, arch, foundry.compile)
        if record.name not in counted:
            counted[record.name] = profile.work_of(config, binary)
        assert record.facts is not None
        facts = facts_of(config, arch, binary) if is_todays(record) else record.facts
        return of(record, footprint=estimate.compiled(facts), counted=counted[record.name])

    counted: dict[str, estimate.Work] = {}
    return guess


def is_todays(record: Record) -> bool:
    """Whether today's templates make the text that was measured."""
    return render(parse(record.name), archs.find(record.arch)).fingerprint == record.fingerprint


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
    others = sum(not is_todays(record) for record in records)
    yield f"{path.stem}: {len(records)} right and timed{'' if demanded else '; not fitted to, and not judged by'}", ""
    if others:
        yield f"  {others} of them with another text than today's templates make: what is counted is of today's", ""
    guesses: list[Estimate] = []
    for way, guess in ways.items():
        guesses = [guess(record) for record in records]
        order = measured.spearman([r.timing.median_us for r in records if r.timing], [g.us for g in guesses])
        judges = demanded and not (way == COUNTED and others)
        missed = f"{path.stem}, {way}: Spearman {order:.3f}" if judges and order < LEAST else ""
        yield f"  {way + ':':<22} {figures(records, guesses)}", missed
    if demanded:
        yield "    the largest errors of the last one:", ""
        yield from ((line, "") for line in worst(records, guesses))


def on(config: KernelConfig, arch: str, chip: str, n: int) -> Estimate:
    """The estimate of a kernel for a cube, with nothing compiled."""
    problem = Problem.packed(config.operation, n, n, n)
    return estimate.estimate(config, archs.find(arch), chips.named(chip), problem)


def best() -> Iterator[str]:
    """The best of printed sweeps, which were measured with today's loads of fragments and copies."""
    yield "The best ten of sweeps on an H200, nothing compiled, not judged by; they are close to each other:"
    for path in measured.sweeps():
        n, rows = measured.ranking(path)
        times = [us for us, _ in rows]
        guessed = [on(parse(kernel), "sm_90", "h200", n).us for _, kernel in rows]
        ratios = sorted(one / us for one, us in zip(guessed, times, strict=True))
        yield (
            f"  {n:5}: best {times[0]:7.2f} us measured, {guessed[0]:7.2f} us estimated; estimate over time of all "
            f"{ratios[0]:.2f} to {ratios[-1]:.2f}, median {np.median(ratios):.2f}; Spearman "
            f"{measured.spearman(times, guessed):.2f}"
        )
    one, two = (on(read_config(ACROSS.format(sets), archs.find("sm_90")), "sm_90", "h200", 4096).us for sets in (1, 2))
    given = f"{GAVE:.2f} measured, {one / two:.2f} estimated"
    yield f"  two sets of fragments across slices over one, 256x128x64 at 4096: {given}"


def well_built() -> Iterator[str]:
    """Where the seeds stand among even draws."""
    operation = Operation(F16, F32, F32)
    yield f"Well-built kernels among {EVEN} even draws, at {CUBE}, nothing compiled; not judged by:"
    for arch, chip in PLACES:
        space = Space(operation, archs.find(arch), problem=Problem.packed(operation, CUBE, CUBE, CUBE))
        drawn = sorted(on(config, arch, chip, CUBE).us for config in space.sample(random.Random(1), EVEN))
        yield f"  {arch} on {chip}: the best drawn are estimated at {', '.join(f'{us:.1f}' for us in drawn[:3])} us"
        for config in seeds.for_space(space):
            made = on(config, arch, chip, CUBE)
            place = sum(us < made.us for us in drawn) + 1
            yield f"    place {place:3}: {made.us:7.1f} us, {made.limiting}; {name(config)}"


def swept() -> Iterator[str]:
    """The best of a sweep without a GPU."""
    yield f"wmmagen {' '.join(SWEEP)}: its best ten; not judged by:"
    root = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(
            [sys.executable, "-m", "wmmagen", *SWEEP],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
        )
    yield from (line for line in made.stdout.splitlines() if ". estimated" in line)


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
    judging, sweeps = measured.judging(), [p for p in sorted(measured.RECORDS.glob("sm_*.jsonl")) if measured.read(p)]
    others = [path for path in measured.variants() if path not in judging]
    quick: dict[str, Guess] = {"nothing compiled": of, "the compiler's facts": with_facts}
    lines: list[str] = []
    complaints = [f"no set of {measured.AT_LEAST} variants at {n}" for n in measured.missing()]
    with Foundry(usable_cores()) as foundry:
        ways = quick if asked.no_compile else {**quick, COUNTED: counting(foundry)}
        if not asked.no_compile:
            drawn = {record.name: record for path in (*judging, *others) for record in known(path)}
            for record in drawn.values():
                source = render(parse(record.name), archs.find(record.arch))
                foundry.begin(Order(source.text, source.kernel, archs.find(record.arch)))
        parts = [judged(path, ways, True) for path in judging] + [judged(path, ways, False) for path in others]
        parts += [judged(path, quick, False) for path in sweeps]
        shown = (best(), well_built()) if asked.no_compile else (best(), well_built(), swept())
        parts += [turing(), *(((line, "") for line in part) for part in shown)]
        for part in parts:
            for line, complaint in part:
                complaints += [complaint] if complaint else []
                lines += [line] if line else []
                print(line or complaint, flush=True)
    verdict = complaints or [f"All demands are met: Spearman at least {LEAST}, the T4 in order and within {FACTOR}."]
    print("\n".join(verdict))
    emit.write(asked.record, "\n".join([*lines, *verdict]) + "\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
