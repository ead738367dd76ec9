"""Shapes that were named before anything was measured on them: each swept for a bounded time, then timed beside cuBLAS.

    python tests/gpu/prove_shapes.py [--arch sm_90] [--list decode | --problem 8x4096x4096,…] [--sweep 10 | --screen 96]
                                     [--seconds 1] [--mode warm] [--fp32] [--fix acc=f16,d=f16] [--at-least 5]
                                     [--to sweeps/records]

All of the list is measured and said, whatever comes of it. For each shape a sweep of so many seconds finds leaders, or
with --screen the quickest of so many candidates, which nothing has proved so far: seeds, what is known for the shape
and drawn points first, then steps from the quickest. The leaders are proved and timed in turns with cuBLASLt's best
exact candidate, and a win is a share whose lower end is above 1. Writes a table, a JSON line for each kernel and each
record of a sweep, and the lines that make the winners known to `wmmagen bench --shapes` (wmmagen/winners.txt). After
each shape what is known so far is written.

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

from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import bench, choose, config, defaults, emit, job, known, rules, seeds, series, shapes, show, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend
from wmmagen.backends.pick import Place, pick
from wmmagen.config import Batch, KernelConfig, Operation, Problem, parse
from wmmagen.denominators import Kind
from wmmagen.errors import CompileError, Fault
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


def operation_for(shape: Shape, operation: Operation) -> Operation:
    """``operation``, which takes a batch by strides where the shape is one and nothing else was asked for."""
    if shape.batch == 1 or operation.batched:
        return operation
    return dataclasses.replace(operation, batch=Batch.STRIDED)


def screen(
    shape: Shape, operation: Operation, arch: Arch, place: Place, asked: argparse.Namespace
) -> list[KernelConfig]:
    """The quickest of so many candidates, the quickest first, by a glance at each: nothing is proved of them."""
    backend, problem = place.demanded(), Problem.packed(operation, *shape.size, batch=shape.batch)
    space = Space(operation, arch, {}, problem=problem)
    rng = random.Random(f"shapes/{arch}/{problem}")
    won = [one.config for one in known.winners() if one.arch == arch and one.config.operation == operation]
    starts = [*won, *seeds.for_space(space), *space.sample(rng, asked.screen // 3)]
    wanted = dict.fromkeys(one for one in starts if not rules.check(one, arch, problem))
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
        plan = Plan(shape, {one: f"number {place} of the {what}" for place, one in enumerate(leaders, start=1)})
        kinds: Sequence[Kind] = bench.KINDS if asked.fp32 else bench.KINDS[:1]
        measured = series.measure(plan, arch, place, protocol(asked), ceilings=False, kinds=kinds)
    return Proved(shape, search, tuple(records), measured, time.monotonic() - begin)


def winner_of(one: Measured) -> str | None:
    """The name of the fastest right kernel of a shape."""
    right = [row for row in one.rows if row.outcome is Outcome.OK and row.timing is not None]
    return min(right, key=lambda row: (row.timing.median_us if row.timing else 0.0, row.name)).name if right else None


def text_of(
    found: Sequence[Proved], wanted: Sequence[Shape], arch: Arch, device: str, asked: argparse.Namespace
) -> str:
    """The record in words."""
    tables = [one.measured for one in found if one.measured is not None]
    won, told = series.wins(tables)
    how = f"screened with {asked.screen} candidates" if asked.screen else f"swept for {asked.sweep:g} s"
    words = [
        f"{device}: {len(found)} of {len(wanted)} shapes, each {how} and then timed in turns "
        f"with cuBLASLt, {asked.seconds:g} s for each kernel at most, {asked.mode}",
        "",
        show.series_summary(tables, (won, told)),
    ]
    words += [f"No right kernel: {one.shape.words} {one.shape.size}" for one in found if not one.right]
    words += ["", "Searches, and the seconds of each shape in all:"]
    words += [f"  {'x'.join(map(str, one.shape.size)):<18} {one.search}, {one.seconds:.1f} s" for one in found]
    words += ["", "For wmmagen/winners.txt:"]
    for table in tables:
        if name := winner_of(table):
            words.append(known.line_of(arch, table.plan.shape.size, parse(name)))
    for table in tables:
        words += ["", show.series([table], protocol(asked), series.wins([table]))]
    return "\n".join(words) + "\n"


def lines_of(found: Sequence[Proved], arch: Arch, device: str) -> Iterator[str]:
    """The record for programs: the leaders beside the library, then what the sweeps recorded."""
    head = {"arch": arch.name, "device": device}
    for one in found:
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
    parser.add_argument("--to", type=Path, default=Path("sweeps/records"))
    asked = parser.parse_args()
    arch, operation = archs.find(asked.arch), defaults.operation_of(config.read_pairs(asked.fix))
    wanted = series.unnamed(config.read_sizes(asked.problem)) if asked.problem else series.listed(asked.list)
    what = "sizes" if asked.problem else asked.list
    types = f"{operation.a.name}_{operation.acc.name}_{operation.d.name}"
    found: list[Proved] = []
    with pick("gpu", arch) as place:
        print(place.first_line, flush=True)
        device = place.demanded().device
        stem = asked.to / f"shapes_{what}_{arch}_{types}_{asked.mode}_{device.split(' (')[0].replace(' ', '_')}"
        for shape in wanted:
            found.append(prove(shape, operation_for(shape, operation), arch, place, asked))
            one = found[-1].measured
            print(show.series_progress(one) if one else f"{shape.size}: no right kernel", flush=True)
            text = text_of(found, wanted, arch, device, asked)
            emit.write(Path(f"{stem}.jsonl"), "".join(f"{line}\n" for line in lines_of(found, arch, device)))
            emit.write(Path(f"{stem}.txt"), text)
    print(text, end="")
    won, _ = series.wins([one.measured for one in found if one.measured is not None])
    return 0 if all(one.right for one in found) and won >= asked.at_least else 1


if __name__ == "__main__":
    sys.exit(ended(main))
