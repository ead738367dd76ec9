"""What each slot and each number of a kernel gives: the best kernels that are known, each with one key changed.

    python tests/gpu/measure_slots.py [--arch sm_90] [--problem 512 1024 2048 4096 8192 64x4096x4096 16x4096x4096]
                                      [--seconds 60] [--to sweeps/records]

For each problem the best kernel that is known is the base. Beside it stands the same kernel with one key at another
value, for every value of :data:`MECHANISMS` with which it is legal and fits a multiprocessor; keys that the value does
not go with change, too, which is said. Two mechanisms are in every text, and no key says them: there the text itself is
changed (:data:`EDITS`). All are compiled first, side by side, and proved exact on their hostile problems; then, problem
by problem, on the problem itself, and timed in turns with the base, the values of a key together, warm, on normal data.

Writes ``slots_<arch>_<device>.txt``, a table of values and problems, and a JSON file with everything beside it, both
anew after each problem. A cell is the lower end of how many times as fast as the base the changed kernel is. Exit
status 0 where every kernel is exact and has a time; else 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.proof import Judge, ended
from tests.gpu.spread import spread
from wmmagen import arch as archs
from wmmagen import chips, coverage, defaults, emit, foundry, known, rules, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend, Subject
from wmmagen.backends.pick import pick
from wmmagen.config import KernelConfig, Problem, build, name, read_pairs, read_size, spell, values_of
from wmmagen.errors import CompileError, Fault
from wmmagen.foundry import Foundry, usable_cores
from wmmagen.known import Known
from wmmagen.nvrtc import Binary
from wmmagen.records import Facts
from wmmagen.render import Source, render
from wmmagen.timing import Ratio, Timing, TimingProtocol

#: The last two have few tiles and a long K, for which groups of warps and splits are.
PROBLEMS = ("512", "1024", "2048", "4096", "8192", "64x4096x4096", "16x4096x4096")

#: Changes of the text: a pattern, and what stands in its place.
EDITS: Mapping[str, tuple[str, str]] = {
    "copies of a slice all at once": (r"i \* [^/\n]+ / [AB]_COPIES == part", "part == 0"),
    "products in serpentine order": (
        r"wmma::mma_sync\(acc\[i\]\[j\], (.+)\[j\], acc\[i\]\[j\]\);",
        r"const int turn = i % 2 ? FRAGS_N - 1 - j : j; wmma::mma_sync(acc[i][turn], \1[turn], acc[i][turn]);",
    ),
}


@dataclass(frozen=True)
class Change:
    """One row of the table.

    Attributes:
        words: the values, as ``key=value,…``, or an edit of the text.
        along: further values, for bases that these are illegal with; the first that are legal go along.
    """

    words: str
    along: tuple[str, ...] = ()

    @property
    def edit(self) -> str:
        return self.words if self.words in EDITS else ""


def _each(key: str, *values: object, along: tuple[str, ...] = ()) -> tuple[Change, ...]:
    return tuple(Change(f"{key}={value}", along) for value in values)


#: What is timed together: the values of a key, or keys that say one thing.
MECHANISMS: Mapping[str, tuple[Change, ...]] = {
    "blocks that launch bounds ask for": _each("min_blocks", 1, 2, 3, 4, along=("stages=2",)),
    "order of blocks": _each("raster", "linear", "grouped4", "grouped8", "grouped16", "panels4", "panels8"),
    "way to D": _each("store", "direct", "staged", along=("pad_d=0", "pad_d=0,reduction=workspace")),
    "pad of D": _each("pad_d", 0, 4, 8, along=("store=staged",)),
    "steps of a slice": _each(
        "k_steps", 1, 2, 4, 8,
        along=("fragment_buffers=1", "stages=4", "stages=2", "stages=2,min_blocks=1", "warps_k=2"),
    ),
    "sets of fragments": _each("fragment_buffers", 1, 2),
    "stages": _each("stages", 2, 3, 4, 5, 6, 8),
    "copies": (*_each("copy", "cpasync", "ld", along=("stages=2",)), Change("copy=ld,stages=1")),
    "pads of A and B": (*_each("pad_a", 0, 8, 16), *_each("pad_b", 0, 8, 16), Change("pad_a=0,pad_b=0")),
    "tiles in shared memory": (
        Change("arrange_a=tiles", ("pad_a=0",)),
        Change("arrange_b=tiles", ("pad_b=0",)),
        Change("arrange_a=tiles,arrange_b=tiles", ("pad_a=0,pad_b=0",)),
        Change("arrange_a=tiles,arrange_b=tiles,pad_a=0,pad_b=0"),
    ),
    "where sums live": _each(
        "residency", "fragment", "global",
        along=(
            "store=direct,pad_d=0", "split_k=1,reduction=none", "store=direct,pad_d=0,split_k=1,reduction=none",
            "store=direct,pad_d=0,split_k=1,reduction=none,warps_k=1",
        ),
    ),
    "where fragments come from": _each("feed", "shared", "global", along=("copy=none,stages=1,pad_a=0,pad_b=0",)),
    "splits of K": (
        Change("split_k=1,reduction=none"),
        *(Change(f"split_k={n},reduction=workspace") for n in (2, 4, 8)),
        *(Change(f"split_k={n},reduction=atomic", ("store=staged",)) for n in (2, 4, 8)),
    ),
    "groups of warps": _each(
        "warps_k", 1, 2, 4, along=("k_steps=4", "k_steps=4,stages=4", "k_steps=8,stages=4", "k_steps=8,stages=3")
    ),
    "what no key says": tuple(map(Change, EDITS)),
}  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """A configuration whose text may be changed.

    Attributes:
        config: what it is made of, and launched as.
        edit: of :data:`EDITS`; empty for none.
    """

    config: KernelConfig
    edit: str = ""

    def source(self, arch: Arch) -> Source:
        """Its text."""
        source = render(self.config, arch)
        return dataclasses.replace(source, text=re.sub(*EDITS[self.edit], source.text)) if self.edit else source


@dataclass(frozen=True)
class Column:
    """A problem and the best kernel that is known for it."""

    title: str
    problem: Problem
    best: Known

    @property
    def base(self) -> Kernel:
        return Kernel(self.best.config)


@dataclass(frozen=True)
class Cell:
    """A change of the base of a column.

    Attributes:
        column, mechanism, change: which.
        kernel: the changed one; None where there is none.
        refused: why there is none; empty where there is.
        along: what else changed, as ``key=value,…``.
    """

    column: Column
    mechanism: str
    change: Change
    kernel: Kernel | None = None
    refused: str = ""
    along: str = ""

    @property
    def of_base(self) -> bool:
        """Whether the base has these values itself."""
        return self.kernel == self.column.base


@dataclass(frozen=True)
class Found:
    """What became of a cell.

    Attributes:
        cell: which.
        reason: why it has no time and should; empty where it has one, or is the base.
        facts: what the compiler said; None where it made nothing.
        timing, beside: of the kernel and of the base, taken in turns.
        ratio: how many times as fast as the base it is.
    """

    cell: Cell
    reason: str = ""
    facts: Facts | None = None
    timing: Timing | None = None
    beside: Timing | None = None
    ratio: Ratio | None = None

    def __str__(self) -> str:
        if self.reason:
            return "FAILED"
        if self.ratio is None:
            return "base" if self.cell.of_base else "-"
        return f"{self.ratio.low:.3f}{'*' if self.cell.along else ''}"

    def to_json(self) -> dict[str, object]:
        """An element of the record's list."""
        cell, kernel = self.cell, self.cell.kernel
        return {
            "problem": str(cell.column.problem),
            "mechanism": cell.mechanism,
            "change": cell.change.words,
            "along": cell.along,
            "base": name(cell.column.base.config),
            "name": name(kernel.config) if kernel else None,
            "of_base": cell.of_base,
            "refused": cell.refused,
            "reason": self.reason,
            "facts": dataclasses.asdict(self.facts) if self.facts else None,
            "timing": self.timing.to_json() if self.timing else None,
            "timing_of_base": self.beside.to_json() if self.beside else None,
            "ratio": dataclasses.asdict(self.ratio) if self.ratio else None,
        }


# What is measured ----------------------------------------------------------------------------------------------------


def column_of(title: str, arch: Arch, chip: chips.Chip) -> Column:
    """The column of a size.

    Raises:
        ConfigError: it is no size.
        RequestError: no variant takes it.
    """
    operation, size = defaults.operation_of({}), read_size(title)
    return Column(title, Problem.packed(operation, *size), known.best(operation, arch, size, chip))


def cells_of(column: Column, arch: Arch) -> Iterator[Cell]:
    """Every change of the base of a column, legal or refused."""
    for mechanism, changes in MECHANISMS.items():
        for change in changes:
            yield (_edited if change.edit else _changed)(Cell(column, mechanism, change), arch)


def _changed(cell: Cell, arch: Arch) -> Cell:
    """The cell with its kernel: the values alone where that is legal, else with those that go along."""
    column, change = cell.column, cell.change
    given = values_of(column.base.config) | read_pairs(change.words)
    for along in ("", *change.along):
        config = build(given | read_pairs(along))
        if not _refused(config, arch, column.problem):
            more = {key: spell(value) for key, value in read_pairs(along).items() if value != given[key]}
            words = ",".join(f"{key}={value}" for key, value in more.items())
            return dataclasses.replace(cell, kernel=Kernel(config), along=words)
    return dataclasses.replace(cell, refused=_refused(build(given), arch, column.problem))


def _refused(config: KernelConfig, arch: Arch, problem: Problem) -> str:
    broken = [f"{one.rule.id} {one.message}" for one in rules.check(config, arch, problem)]
    return "; ".join(broken or coverage.missing(config))


def _edited(cell: Cell, arch: Arch) -> Cell:
    base, edited = cell.column.base, Kernel(cell.column.base.config, cell.change.edit)
    if edited.source(arch) == base.source(arch):
        return dataclasses.replace(cell, refused="its text has no such place")
    return dataclasses.replace(cell, kernel=edited)


def compiled(kernels: Iterable[Kernel], arch: Arch) -> tuple[dict[Kernel, Binary], dict[Kernel, str]]:
    """What the compiler makes of each, side by side, and why it refuses others."""
    wanted = list(dict.fromkeys(kernels))
    with Foundry(usable_cores()) as makers:
        sources = [one.source(arch) for one in wanted]
        orders = [makers.order(one.text, one.kernel, arch) for one in sources]
        answers = dict(zip(wanted, makers.compile_many(orders), strict=True))
    made = {one: answer for one, answer in answers.items() if isinstance(answer, Binary)}
    return made, {one: answer.message for one, answer in answers.items() if isinstance(answer, CompileError)}


def hostile(backend: Backend, case: tuple[Kernel, Arch]) -> str:
    """What is wrong with a kernel on its hostile problems; empty where all is exact. It was compiled before."""
    kernel, arch = case
    source = kernel.source(arch)
    binary = foundry.compile_source(source.text, source.kernel, arch)
    try:
        last = trial.validate(kernel.config, binary, backend, trial.validation_problems(kernel.config))[-1]
    except Fault as fault:
        return f"{fault.outcome}: {fault.message}"
    return "" if last.exact else f"{last.problem}: {last.mismatch}"


def proved(kernels: Sequence[Kernel], arch: Arch) -> dict[Kernel, str]:
    """:func:`hostile` of each, judged side by side."""
    cases = [(one, arch) for one in kernels]
    return dict(zip(kernels, spread(hostile, cases, arch), strict=True))


class Bench:
    """A card, and what is known of the kernels on it.

    Args:
        backend: the card.
        arch: what kernels are made for.
        protocol: how they are timed.
        made: what the compiler made of each; of those that it refused nothing.
        wrong: what is wrong with each; empty where it was made and is exact on its hostile problems.
    """

    def __init__(
        self,
        backend: Backend,
        arch: Arch,
        protocol: TimingProtocol,
        made: Mapping[Kernel, Binary],
        wrong: Mapping[Kernel, str],
    ) -> None:
        self._backend = backend
        self._arch = arch
        self._protocol = protocol
        self._made = made
        self._wrong = wrong
        self._judge = Judge()
        self._reasons: dict[tuple[Kernel, Problem], str] = {}

    def measure(self, cells: Sequence[Cell]) -> list[Found]:
        """Cells of one column and one mechanism: proved on the problem, then timed in turns with the base."""
        found = [self._looked_at(cell) for cell in cells]
        right = [one for one in found if one.facts and not one.reason]
        if not right:
            return found
        reason = self.reason(cells[0].column.base, cells[0].column.problem)
        try:
            timed = [] if reason else self._timed(right)
        except Fault as fault:
            reason, timed = fault.message, []
        told = {one.cell: one for one in timed or (dataclasses.replace(one, reason=reason) for one in right)}
        return [told.get(one.cell, one) for one in found]

    def _looked_at(self, cell: Cell) -> Found:
        """A cell before it is timed, with the facts of a kernel that is no base, was made and fits."""
        kernel = cell.kernel
        if kernel is None or cell.of_base:
            return Found(cell)
        if kernel not in self._made:
            return Found(cell, self._wrong[kernel])
        facts = trial.facts_of(kernel.config, self._arch, self._made[kernel])
        if not facts.occupancy:
            words = f"{facts.registers} registers of {facts.threads} threads do not fit a multiprocessor"
            return Found(dataclasses.replace(cell, kernel=None, refused=words))
        return Found(cell, self.reason(kernel, cell.column.problem), facts)

    def reason(self, kernel: Kernel, problem: Problem) -> str:
        """Why a kernel must not be timed on ``problem``; empty where it is exact there and on its hostile problems."""
        if (kernel, problem) not in self._reasons:
            self._reasons[kernel, problem] = self._wrong[kernel] or self._wrong_on(kernel, problem)
        return self._reasons[kernel, problem]

    def _wrong_on(self, kernel: Kernel, problem: Problem) -> str:
        case, binary = trial.exact_case(problem), self._made[kernel]
        launch = trial.launch_of(binary.entry, kernel.config, problem, case.images)
        buffers = trial.launched(kernel.config, problem, case.buffers)
        try:
            returned = trial.run_once(Subject(binary, launch, buffers), self._backend)
        except Fault as fault:
            return fault.message
        workspace = trial.workspace_of(kernel.config, problem)
        damage = workspace.damage(returned[-1]) if workspace is not None else ""
        return self._judge.wrong(case, returned[: len(case.images)]) or damage

    def _timed(self, found: Sequence[Found]) -> list[Found]:
        """Exact cells, in turns with their base.

        Raises:
            Fault: there is a time that cannot be, or none.
        """
        column, data = found[0].cell.column, self._protocol.data
        kernels = [column.base, *(one.cell.kernel for one in found if one.cell.kernel)]
        subjects = [trial.subject_of(one.config, self._made[one], column.problem, data) for one in kernels]
        taken = trial.compare(subjects, self._backend, self._protocol)
        base, *others = taken.timings
        for timing in taken.timings:
            trial.demand_possible(column.problem, timing, self._backend.device)
        return [
            dataclasses.replace(one, timing=timing, beside=base, ratio=taken.ratio(number, 0))
            for number, (one, timing) in enumerate(zip(found, others, strict=True), start=1)
        ]


def subjects_of(cells: Sequence[Cell]) -> int:
    """How many kernels are timed, the base once for each mechanism."""
    timed = [cell for cell in cells if cell.kernel is not None and not cell.of_base]
    return len(timed) + len({(cell.column, cell.mechanism) for cell in timed})


def protocol_of(seconds: float, subjects: int) -> TimingProtocol:
    """The tool's, with ``seconds`` for all subjects together."""
    each = seconds / max(subjects, 1)
    return TimingProtocol(warmup_min_s=min(0.1, each / 4), warmup_max_s=each / 2, max_samples=100, max_seconds=each)


# What is told --------------------------------------------------------------------------------------------------------


def text_of(found: Sequence[Found], columns: Sequence[Column], head: str) -> str:
    """The record for people: of a column that was not reached yet, cells are empty."""
    cells = {(one.cell.change, one.cell.column): str(one) for one in found}
    width = max(len(change.words) for changes in MECHANISMS.values() for change in changes)
    lines = [
        head,
        "The best kernel that is known for each problem, with one value changed. A cell is the lower end of the 95 %",
        "interval of how many times as fast as that kernel the changed one is, in turns, warm, on normal data. base is",
        "what the kernel has itself, - is illegal or does not fit, and * changes more than the one value, as is said",
        "below. Each was exact on its hostile problems and on the problem first.",
    ]
    for mechanism, changes in MECHANISMS.items():
        lines += ["", f"{mechanism:{width}}" + "".join(f"{column.title:>14}" for column in columns)]
        for change in changes:
            filled = "".join(f"{cells.get((change, column), ''):>14}" for column in columns)
            lines.append(f"{change.words:{width}}{filled}".rstrip())
    lines += ["", "The kernels:"]
    for column in columns:
        times = [one.beside.median_us for one in found if one.cell.column == column and one.beside]
        rate = f": {min(times):.2f} us, {trial.tflops(column.problem, min(times)):.1f} TFLOP/s" if times else ""
        lines += [f"  {column.title}{rate}, {column.best.words}", f"    {column.base.config}"]
    along = dict.fromkeys(
        f"  {one.cell.column.title}: {one.cell.change.words} with {one.cell.along}" for one in found if one.cell.along
    )
    lines += ["", "* with more than the one value changed:", *along] if along else []
    lines += [f"FAILED {one.cell.column.title}, {one.cell.change.words}: {one.reason}" for one in found if one.reason]
    return "\n".join(lines) + "\n"


def keep(stem: Path, found: Sequence[Found], columns: Sequence[Column], head: Mapping[str, str]) -> str:
    """Write both records; returns that for people."""
    document = {**head, "measurements": [one.to_json() for one in found]}
    words = "{device}, {compiler}: what each slot and number of a kernel gives on {arch}.".format(**head)
    text = text_of(found, columns, words)
    emit.write(stem.with_suffix(".txt"), text)
    emit.write(stem.with_suffix(".json"), json.dumps(document, indent=1, sort_keys=True) + "\n")
    return text


def main() -> int:
    """Compile, prove, measure, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--problem", nargs="+", default=list(PROBLEMS))
    parser.add_argument("--seconds", type=float, default=60.0, help="of all measurements; proofs come on top")
    parser.add_argument("--to", type=Path, default=Path("sweeps/records"))
    asked = parser.parse_args()
    arch, start = archs.find(asked.arch), time.monotonic()

    def said(words: str) -> None:
        print(f"{time.monotonic() - start:6.1f} s  {words}", flush=True)

    with pick("gpu", arch) as place:
        print(place.first_line, flush=True)
        backend = place.demanded()
        chip = chips.find(backend.device) or chips.usual(arch.sm)
        columns = [column_of(title, arch, chip) for title in dict.fromkeys(asked.problem)]
        cells = [cell for column in columns for cell in cells_of(column, arch)]
        made, wrong = compiled((one for cell in cells for one in (cell.column.base, cell.kernel) if one), arch)
        said(f"{len(made)} kernels compiled, {len(wrong)} refused by the compiler")
        wrong |= proved(list(made), arch)
        subjects = subjects_of(cells)
        protocol = protocol_of(asked.seconds, subjects)
        said(f"{sum(map(bool, wrong.values()))} wrong; {subjects} to time, {protocol.max_seconds:.2f} s each")
        compiler = {binary.compiler for binary in made.values()}.pop()
        head = {"device": backend.device, "arch": arch.name, "compiler": compiler}
        bench, found = Bench(backend, arch, protocol, made, wrong), list[Found]()
        stem = asked.to / f"slots_{arch}_{backend.device.split(' (')[0].replace(' ', '_')}"
        for column, own in itertools.groupby(cells, key=lambda cell: cell.column):
            for _, together in itertools.groupby(own, key=lambda cell: cell.mechanism):
                found += bench.measure(list(together))
            text = keep(stem, found, columns, head)
            said(column.title)
    print(text, end="")
    return 1 if any(one.reason for one in found) else 0


if __name__ == "__main__":
    sys.exit(ended(main))
