"""Shapes that were named before anything was measured on them: each swept for a bounded time, then timed beside cuBLAS.

    python tests/gpu/prove_shapes.py [--arch sm_90] [--list decode | --problem 8x4096x4096,…] [--sweep 10 | --screen 96]
                                     [--seconds 1] [--mode warm] [--fp32] [--fix acc=f16,d=f16] [--at-least 5]
                                     [--continue] [--to sweeps/records]

All of the list is measured and said, whatever comes of it. For each shape a sweep of so many seconds finds leaders, or
with --screen the quickest of so many candidates, which nothing has proved so far: a third is what won at such shapes
and seeds, a third drawn points, half of them the best of many by the estimate, the rest steps from the quickest. The
leaders are proved and timed in turns with cuBLASLt's best exact candidate, and a win is a share whose lower end is
above 1. Writes a table, a JSON line for each kernel and each record of a sweep, and the lines that make the winners
known to `wmmagen bench --shapes` (wmmagen/winners.txt). After each shape what is known so far is written. With
--continue shapes that are right in the record, measured in the same way, are not done again.

Exit status 0 where every leader was right in the end and, with --at-least, so many shapes were won; else 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import (
    bench,
    choose,
    config,
    defaults,
    emit,
    estimate,
    job,
    known,
    rules,
    seeds,
    series,
    shapes,
    show,
    trial,
)
from wmmagen.arch import Arch
from wmmagen.backends import Backend, pick
from wmmagen.backends.pick import Place
from wmmagen.config import KernelConfig, Operation, Problem, parse
from wmmagen.errors import CompileError, Fault, RequestError
from wmmagen.foundry import Foundry, usable_cores
from wmmagen.nvrtc import Binary
from wmmagen.records import Outcome, Record
from wmmagen.render import render
from wmmagen.series import Measured, Plan
from wmmagen.shapes import Shape
from wmmagen.space import Space
from wmmagen.timing import Mode, TimingProtocol

#: A look at a candidate, long enough to tell a tenth mostly.
_GLANCE = TimingProtocol(
    warmup_min_s=0.002,
    warmup_max_s=0.01,
    min_replay_us=300.0,
    min_samples=5,
    max_samples=7,
    max_seconds=0.04,
    repeats=0,
)
#: How many points are drawn for each that is the best of them by the estimate.
_DRAWN_FOR_ONE = 64
#: Of the candidates so far, those whose neighbours come next, and how many of these.
_PARENTS, _CHILDREN = 6, 32


@dataclass(frozen=True)
class Proved:
    """A shape: how it was searched, what a sweep recorded, and the leaders beside the library."""

    shape: Shape
    search: str
    records: tuple[Record, ...]
    measured: Measured | None
    seconds: float

    @property
    def right(self) -> bool:
        """Whether there were leaders, and all of them were right in the end."""
        return self.measured is not None and self.measured.table.right


def sweep(shape: Shape, operation: Operation, arch: Arch, place: Place, asked: argparse.Namespace) -> list[Record]:
    """The records of a sweep of so many seconds; its study lives no longer."""
    with tempfile.TemporaryDirectory(prefix="wmmagen-") as folder:
        request = job.Request(
            operation=operation,
            arch=arch,
            size=shape.size,
            batch=shape.batch,
            trials=None,
            budget_s=asked.sweep,
            storage=f"sqlite:///{folder}/shapes.db",
            generated=Path(folder) / "generated",
            protocol=protocol(asked),
        )
        # A hundred million inputs take seconds to prove; they are every candidate's, and no part of the sweep.
        trial.checked_case(request.problem)
        # The leaders are held against the library behind it, all of them; a sweep would measure it, too.
        result = job.sweep(request, dataclasses.replace(place, library=None), lambda record, progress: None)
    return list(result.records)


def screen(
    shape: Shape, operation: Operation, arch: Arch, place: Place, asked: argparse.Namespace
) -> list[KernelConfig]:
    """The quickest of so many candidates, the quickest first, by a glance at each: nothing is proved of them."""
    backend, problem = place.demanded(), Problem.packed(operation, *shape.size, batch=shape.batch)
    space = Space(operation, arch, {}, problem=problem)
    rng = random.Random(f"shapes/{arch}/{problem}")
    share = asked.screen // 3
    tried = dict.fromkeys([*won(shape, operation, arch), *seeds.for_space(space)])
    before = [one for one in tried if not rules.check(one, arch, problem)][:share]
    best = promising(space, rng, share // 2, place)
    wanted = dict.fromkeys([*before, *best, *space.sample(rng, share - len(best))])
    times: dict[KernelConfig, float] = {}
    with Foundry(usable_cores()) as foundry:
        while wanted and len(times) < asked.screen:
            fresh = list(itertools.islice(wanted, asked.screen - len(times)))
            sources = [render(one, arch) for one in fresh]
            made = foundry.compile_many([foundry.order(one.text, one.kernel, arch) for one in sources])
            for one, binary in zip(fresh, made, strict=True):
                times[one] = glanced(one, binary, problem, backend, asked.mode)
            best = sorted(times, key=times.__getitem__)[:_PARENTS]
            steps = [step for one in best for step in space.neighbours(one) if step not in times]
            wanted = dict.fromkeys(rng.sample(steps, min(len(steps), _CHILDREN)))
    return [one for one in sorted(times, key=times.__getitem__) if times[one] < math.inf]


def promising(space: Space, rng: random.Random, count: int, place: Place) -> list[KernelConfig]:
    """The best by the estimate of many drawn points; none where the chip's rate of such products is not known."""
    problem, arch, chip = space.problem, place.arch, pick.chip(place.arch, place.device)
    if problem is None or not estimate.priced(space.operation, chip):
        return []
    drawn = space.sample(rng, _DRAWN_FOR_ONE * count)
    return sorted(drawn, key=lambda one: estimate.estimate(one, arch, chip, problem).us)[:count]


def won(shape: Shape, operation: Operation, arch: Arch) -> Iterator[KernelConfig]:
    """What won of the same operation, and of the other residue where only the rows were others; such rows first."""
    for one in sorted(known.winners(), key=lambda one: one.size[1:] != shape.size[1:]):
        like = dataclasses.replace(one.config, operation=operation)
        same = one.config == like
        kin = dataclasses.replace(one.config.operation, residue=operation.residue) == operation
        if one.arch == arch and (same or (kin and one.size[1:] == shape.size[1:])):
            yield like


def glanced(
    config: KernelConfig, binary: Binary | CompileError, problem: Problem, backend: Backend, mode: Mode
) -> float:
    """About how many microseconds a launch takes; infinitely many where there is none."""
    if isinstance(binary, CompileError):
        return math.inf
    try:
        return trial.time_it(config, binary, backend, problem, dataclasses.replace(_GLANCE, mode=mode)).median_us
    except Fault:
        return math.inf


def protocol(asked: argparse.Namespace) -> TimingProtocol:
    """How candidates, leaders and the library are timed: all alike."""
    usual = TimingProtocol(mode=asked.mode)
    longest = min(usual.warmup_max_s, asked.seconds / 2)
    return dataclasses.replace(
        usual, max_seconds=asked.seconds, warmup_max_s=longest, warmup_min_s=min(usual.warmup_min_s, longest)
    )


def prove(shape: Shape, operation: Operation, arch: Arch, place: Place, asked: argparse.Namespace) -> Proved:
    """Sweep, then time the leaders beside the library."""
    begin, records, measured = time.monotonic(), list[Record](), None
    if asked.screen:
        ranked, what = screen(shape, operation, arch, place, asked), "screening"
        search = f"{len(ranked)} candidates glanced at"
    else:
        records, what = sweep(shape, operation, arch, place, asked), "sweep"
        ranked = [parse(record.name) for record in choose.ranking(records)]
        right = sum(record.outcome is Outcome.OK for record in records)
        search = f"{right} right of {len(records)} candidates"
    if leaders := ranked[: asked.leaders]:
        plan = Plan(shape, {one: f"number {rank} of the {what}" for rank, one in enumerate(leaders, start=1)})
        kinds = bench.kinds(fp32=asked.fp32)
        measured = series.measure(plan, arch, place, protocol(asked), ceilings=False, kinds=kinds)
    return Proved(shape, search, tuple(records), measured, time.monotonic() - begin)


def winner_of(one: Measured) -> str | None:
    """The name of the fastest right kernel of a shape."""
    right = [row for row in one.rows if row.outcome is Outcome.OK and row.timing is not None]
    return min(right, key=lambda row: (row.timing.median_us if row.timing else 0.0, row.name)).name if right else None


@dataclass(frozen=True)
class Entry:
    """A shape as the record has it, measured now or before.

    Attributes:
        shape: which.
        how: what was asked of its search and its times.
        search: what became of the search.
        seconds: that it took in all.
        right: see :attr:`Proved.right`.
        summary: its line in the table of all; empty where nothing was timed.
        wins: whether a kernel beats the library, and whether that is told, as 0 or 1.
        winner: its line of ``wmmagen/winners.txt``; empty where there is none.
        told: its own table.
        lines: of the record for programs, behind that of the shape.
    """

    shape: Shape
    how: str
    search: str
    seconds: float
    right: bool
    summary: str
    wins: tuple[int, int]
    winner: str
    told: str
    lines: tuple[str, ...] = ()

    @classmethod
    def of(cls, one: Proved, arch: Arch, device: str, asked: argparse.Namespace) -> Entry:
        """What is kept of a shape that was measured."""
        shape, table = one.shape, one.measured
        name = winner_of(table) if table else None
        return cls(
            shape=shape,
            how=how_of(asked),
            search=one.search,
            seconds=one.seconds,
            right=one.right,
            summary=show.series_progress(table) if table else "",
            wins=series.wins([table] if table else []),
            winner=known.line_of(arch, shape.size, parse(name)) if name else "",
            told=show.series([table], protocol(asked), series.wins([table])) if table else "",
            lines=tuple(lines_of(one, arch, device)),
        )

    def to_lines(self) -> Iterator[str]:
        """The record for programs."""
        own = dataclasses.asdict(self)
        del own["lines"]
        yield json.dumps({"kind": "shape", **own})
        yield from self.lines


def read(path: Path) -> list[Entry]:
    """The entries of a record for programs; none where there is none, or one from before shapes had lines of their own.

    Raises:
        RequestError: it is no such record.
    """
    found: list[tuple[dict[str, Any], list[str]]] = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            plain = json.loads(line)
            if plain["kind"] == "shape":
                found.append((plain, []))
            elif found:
                found[-1][1].append(line)
        return [_entry(plain, lines) for plain, lines in found]
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{path} is no record of shapes: {error}", "leave out --continue") from None


def _entry(plain: dict[str, Any], lines: Sequence[str]) -> Entry:
    del plain["kind"]
    won, told = plain["wins"]
    return Entry(**plain | {"shape": Shape(**plain["shape"]), "wins": (won, told), "lines": tuple(lines)})


def how_of(asked: argparse.Namespace) -> str:
    """What is asked of each shape, in words."""
    how = f"screened with {asked.screen} candidates" if asked.screen else f"swept for {asked.sweep:g} s"
    fp32 = " and in FP32" if asked.fp32 else ""
    return (
        f"{how} and then timed in turns with cuBLASLt{fp32}, {asked.seconds:g} s for each kernel at most, {asked.mode}"
    )


def wins_of(entries: Sequence[Entry]) -> tuple[int, int]:
    """As :func:`wmmagen.series.wins`."""
    won, told = (sum(one.wins[place] for one in entries) for place in (0, 1))
    return won, told


def text_of(entries: Sequence[Entry], wanted: Sequence[Shape], device: str, asked: argparse.Namespace) -> str:
    """The record in words."""
    words = [
        f"{device}: {len(entries)} of {len(wanted)} shapes, each {how_of(asked)}",
        "",
        show.series_table([one.summary for one in entries if one.summary], wins_of(entries)),
    ]
    words += [f"No right kernel: {one.shape.words} {one.shape.size}" for one in entries if not one.right]
    words += ["", "Searches, and the seconds of each shape in all:"]
    words += [f"  {'x'.join(map(str, one.shape.size)):<18} {one.search}, {one.seconds:.1f} s" for one in entries]
    words += ["", "For wmmagen/winners.txt:", *(one.winner for one in entries if one.winner)]
    for one in entries:
        words += ["", one.told] if one.told else []
    return "\n".join(words) + "\n"


def lines_of(one: Proved, arch: Arch, device: str) -> Iterator[str]:
    """The leaders beside the library, then what the sweep recorded, for programs."""
    head = {"arch": arch.name, "device": device}
    if one.measured is not None:
        for row in series.document([one.measured])["rows"]:
            yield json.dumps({"kind": "row", **head, **row, "search": one.search})
        for baseline in one.measured.table.baselines:
            yield json.dumps({"kind": "denominator", **head, "of": baseline.as_json()})
    for record in one.records:
        yield json.dumps({"kind": "candidate", **record.to_json()})


def main() -> int:
    """Sweep, time, record, shape by shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--list", default="decode", choices=sorted(shapes.LISTS))
    parser.add_argument("--problem", help="these sizes instead of a list, with commas between them")
    parser.add_argument("--sweep", type=float, default=10.0, help="seconds of the sweep of each shape")
    parser.add_argument("--screen", type=int, default=0, help="candidates that are timed without a proof instead")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of timing for each kernel, at most")
    parser.add_argument("--leaders", type=int, default=2, help="of the sweep, timed beside the library")
    parser.add_argument("--mode", default="warm", choices=("warm", "cold"))
    parser.add_argument("--fp32", action="store_true", help="time cuBLASLt in FP32, too")
    parser.add_argument("--fix", default="", help="the operation, for example acc=f16,d=f16")
    parser.add_argument("--at-least", type=int, default=0, help="shapes that have to be won")
    parser.add_argument("--continue", dest="goes_on", action="store_true", help="do not repeat what the record has")
    parser.add_argument("--to", type=Path, default=Path("sweeps/records"))
    asked = parser.parse_args()
    arch, operation = archs.find(asked.arch), defaults.operation_of(config.read_pairs(asked.fix))
    wanted = series.unnamed(config.read_sizes(asked.problem)) if asked.problem else series.listed(asked.list)
    what = "sizes" if asked.problem else asked.list
    types = f"{operation.a.name}_{operation.acc.name}_{operation.d.name}"
    with pick.pick("gpu", arch) as place:
        print(place.first_line, flush=True)
        device = place.demanded().device
        stem = asked.to / f"shapes_{what}_{arch}_{types}_{asked.mode}_{device.split(' (')[0].replace(' ', '_')}"
        before = read(Path(f"{stem}.jsonl")) if asked.goes_on else []
        done = {one.shape: one for one in before if one.right and one.how == how_of(asked)}
        for shape in wanted:
            if shape not in done:
                one = prove(shape, series.suited(operation, shape), arch, place, asked)
                done[shape] = Entry.of(one, arch, device, asked)
                print(done[shape].summary or f"{shape.size}: no right kernel", flush=True)
            entries = [done[shape] for shape in wanted if shape in done]
            text = text_of(entries, wanted, device, asked)
            emit.write(Path(f"{stem}.jsonl"), "".join(f"{line}\n" for one in entries for line in one.to_lines()))
            emit.write(Path(f"{stem}.txt"), text)
    print(text, end="")
    return 0 if all(one.right for one in entries) and wins_of(entries)[0] >= asked.at_least else 1


if __name__ == "__main__":
    sys.exit(ended(main))
