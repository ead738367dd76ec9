"""What was tried on sm_90 and is no template, each mechanism beside the tool's own kernel. Writes its record.

    python tests/gpu/measure_tried.py [--sizes 1024 2048 4096 7680 8192] [--seconds 180] [--to sweeps/records]

The kernels are in tests/gpu/tried. Each one is compiled, proved exact on integers at every size at which it is timed,
and timed in turns with the tool's kernel of the same tile, by the tool's protocol, on integers and on normal data.
Nothing is proved of a bound, which leaves something out to see what it costs and computes no product.

Writes ``tried_sm_90_<device>.txt``, a table of mechanisms and sizes, and a JSON file with everything beside it, both
anew after each size. Exit status 0 where all that claims to be a product is exact and everything has a time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.proof import Judge, ended
from tests.gpu.tensor_maps import Boxed, TensorMapRecipe
from wmmagen import arch as archs
from wmmagen import defaults, derive, emit, layout, nvrtc, trial
from wmmagen.backends import Bytes, Launch, Pointer
from wmmagen.backends.gpu import DeviceInfo, devices
from wmmagen.backends.worker import Compare, KernelRecipe, Run, serve
from wmmagen.config import KernelConfig, Problem, read_size
from wmmagen.errors import Fault, RequestError
from wmmagen.layout import Image
from wmmagen.nvrtc import Binary
from wmmagen.render import render
from wmmagen.supervisor import Supervisor
from wmmagen.timing import Comparison, Data, Ratio, Timing, TimingProtocol

ARCH = archs.find("sm_90")
TEXTS = Path(__file__).parent / "tried"
SIZES = ("1024", "2048", "4096", "7680", "8192")
DATA: tuple[Data, ...] = ("integers", "normal")
#: Seconds beyond a measurement's own, for buffers of a gigabyte to travel.
SLACK_S = 60.0

#: The macros of tests/gpu/tried/common.cuh: a block of 256x128 of the pipeline that the tool has.
NUMBERS: Mapping[str, int | str] = {
    "WARPS_M": 4, "WARPS_N": 2, "FRAGS_M": 4, "FRAGS_N": 4, "STEPS": 4, "STAGES": 4, "CLUSTER_M": 1, "CLUSTER_N": 1,
    "PANEL": 8, "MIN_BLOCKS": 1, "FIRST": 3, "SETS": 2, "MBARRIERS": 0, "BARRIER": 1, "COPIES": 1, "STORE": 1,
    "READ": 16, "SUM": "float", "RELEASE": '""', "ACQUIRE": '""',
}  # fmt: skip

WIDE = "warps=4x2,frags=4x4,k_steps=4,stages=3,raster=panels8"
WIDER = "warps=2x4,frags=5x4,k_steps=4,stages=3,raster=panels8"
SQUARE = "warps=2x2,frags=4x4,k_steps=4,stages=3,raster=panels8,min_blocks=2"
NARROW = "warps=2x2,frags=4x2,k_steps=4,stages=4,raster=panels8,min_blocks=2"
SMALL = "warps=2x2,frags=2x2,k_steps=4,stages=4,raster=panels8,min_blocks=2"
HALVES = "acc=f16,d=f16,warps=4x2,frags=4x8,k_steps=4,stages=2,raster=panels8"
HALVES_TALL = "acc=f16,d=f16,warps=2x4,frags=8x4,k_steps=2,stages=4,raster=panels8"


@dataclass(frozen=True, eq=False)
class Row:
    """A mechanism.

    Attributes:
        words: what it is called.
        text: the file of :data:`TEXTS`; empty for a configuration of the tool.
        numbers: where they differ from :data:`NUMBERS`.
        beside: the tool's kernel that it is timed with.
        persistent: whether there are as many blocks as run at once, or one for each tile.
        bound: whether it computes no product.
        own: a configuration of the tool, where that is what is tried.
        hint: what its copies tell the L2 beside what the tool's tell it.
    """

    words: str
    text: str = ""
    numbers: Mapping[str, int | str] = field(default_factory=dict)
    beside: str = WIDE
    persistent: bool = True
    bound: bool = False
    own: str = ""
    hint: str = ""

    def number(self, name: str) -> int:
        return int({**NUMBERS, **self.numbers}[name])

    @property
    def source(self) -> str:
        """The whole text, its numbers in front."""
        numbers = "".join(f"#define {name} {value}\n" for name, value in {**NUMBERS, **self.numbers}.items())
        files = (TEXTS / "common.cuh", TEXTS / f"{self.text}.cu")
        return numbers + "\n".join(file.read_text(encoding="utf-8") for file in files)

    @property
    def block(self) -> tuple[int, int, int]:
        """Extents of a block's tile and of a slice."""
        number = self.number
        return (
            number("WARPS_M") * number("FRAGS_M") * 16,
            number("WARPS_N") * number("FRAGS_N") * 16,
            number("STEPS") * 16,
        )

    @property
    def shared_bytes(self) -> int:
        m, n, k = self.block
        return self.number("STAGES") * (m * (k + 8) + k * (n + 8)) * 2


def _maps(words: str, beside: str = WIDE, *, persistent: bool = True, **numbers: Any) -> Row:
    return Row(f"tensor maps, {words}", "tensor_maps", numbers, beside, persistent)


def _copies(words: str, beside: str = WIDE, *, persistent: bool = True, bound: bool = False, **numbers: Any) -> Row:
    return Row(f"cp.async, {words}", "cp_async", {"STAGES": 3} | numbers, beside, persistent, bound)


#: As the memory model has it between blocks of a cluster; what the prototypes of clusters were first measured with.
_STRICT: dict[str, Any] = {"RELEASE": '".release.cluster"'}
_STRICT_BOTH: dict[str, Any] = {**_STRICT, "ACQUIRE": '".acquire.cluster"'}
_PAIR = {"CLUSTER_N": 2, "PANEL": 4}

ROWS = (
    _maps("persistent"),
    _maps("a block for each tile", persistent=False),
    _maps("cluster 1x2 shares A", CLUSTER_N=2, FIRST=2),
    _maps("cluster 1x2 shares A, cluster scope", CLUSTER_N=2, FIRST=2, **_STRICT),
    _maps("cluster 2x1 shares B", CLUSTER_M=2, FIRST=2),
    _maps("cluster 2x1 shares B, cluster scope", CLUSTER_M=2, FIRST=2, **_STRICT),
    _maps("cluster 2x2 shares both", CLUSTER_M=2, CLUSTER_N=2, FIRST=2),
    _maps("cluster 2x2 shares both, cluster scope", CLUSTER_M=2, CLUSTER_N=2, FIRST=2, **_STRICT),
    _maps("128x128", SQUARE, WARPS_M=2, STAGES=3, FIRST=2, MIN_BLOCKS=2),
    _maps("128x64", NARROW, WARPS_M=2, FRAGS_N=2, MIN_BLOCKS=2),
    _maps("64x64", SMALL, WARPS_M=2, FRAGS_M=2, FRAGS_N=2, MIN_BLOCKS=2),
    Row("halves of A handed on within a cluster", "handed_on", _PAIR, persistent=False),
    Row("halves of A handed on, cluster scope", "handed_on", {**_PAIR, **_STRICT_BOTH}, persistent=False),
    _copies("a block for each tile", persistent=False),
    _copies("persistent, copies go on across tiles"),
    _copies("mbarriers for the block barrier", MBARRIERS=1),
    _copies("160x256, warp tiles of 80x64", WARPS_M=2, WARPS_N=4, FRAGS_M=5),
    _copies("160x256, one set of fragments", WARPS_M=2, WARPS_N=4, FRAGS_M=5, SETS=1),
    Row("160x256, the tool's own kernel", own=WIDER),
    Row("the L2 told to fetch 128 bytes", own=WIDE, hint=".L2::128B"),
    Row("the L2 told to fetch 256 bytes", own=WIDE, hint=".L2::256B"),
    _copies("bound: no block barrier", bound=True, BARRIER=0),
    _copies("bound: copies that read nothing", bound=True, READ=0),
    _copies("bound: no copies in the loop", bound=True, COPIES=0),
    _copies("bound: no store", bound=True, STORE=0),
    _copies("bound: no copies, no store", bound=True, COPIES=0, STORE=0),
    _copies("bound: no copies, no store, no barrier", bound=True, COPIES=0, STORE=0, BARRIER=0),
    # Last, so that the operands of the others are made once.
    _copies("256x256, sums of f16", HALVES, FRAGS_N=8, STAGES=2, SUM="__half"),
    _copies(
        "256x256 of 128x64, sums of f16", HALVES_TALL,
        WARPS_M=2, WARPS_N=4, FRAGS_M=8, STEPS=2, STAGES=4, SUM="__half",
    ),
)  # fmt: skip


@functools.cache
def configured(text: str) -> tuple[KernelConfig, Binary]:
    """A kernel of the tool."""
    config = defaults.read_config(text, ARCH)
    return config, trial.build(config, ARCH)[1]


@functools.cache
def compiled(row: Row) -> Binary:
    """The kernel of a row."""
    if not row.own:
        return nvrtc.compile_source(row.source, row.text, ARCH)
    if not row.hint:
        return configured(row.own)[1]
    source, copies = render(configured(row.own)[0], ARCH), "cp.async.cg.shared.global"
    assert copies in source.text
    return nvrtc.compile_source(source.text.replace(copies, copies + row.hint), source.kernel, ARCH)


def takes(row: Row, size: tuple[int, int, int]) -> bool:
    """Whether whole tiles, and whole clusters of them, make up the problem, of the row and of what it stands beside."""
    units = []
    for text in filter(None, (row.beside, row.own)):
        known = derive.values(configured(text)[0])
        units.append((known["BLOCK_M"], known["BLOCK_N"], known["BLOCK_K"]))
    if row.text:
        m, n, k = row.block
        units.append((m * row.number("CLUSTER_M"), n * row.number("CLUSTER_N"), k))
    return all(extent % unit == 0 for tile in units for extent, unit in zip(size, tile, strict=True))


def recipe(
    row: Row, problem: Problem, images: Sequence[Image], buffers: tuple[Bytes, ...], multiprocessors: int
) -> KernelRecipe | TensorMapRecipe:
    """The launch of a row on packed operands."""
    if row.own:
        return own(row.own, compiled(row), problem, images, buffers)
    (block_m, block_n, block_k), number = row.block, row.number
    peers = number("CLUSTER_M") * number("CLUSTER_N")
    blocks = (problem.m // block_m) * (problem.n // block_n)
    if row.persistent:
        blocks = min(blocks, multiprocessors * number("MIN_BLOCKS") // peers * peers)
    a, b, d = (Pointer(place, image.offset) for place, image in enumerate(images))
    arguments = (d, problem.m, problem.n, problem.k, problem.ldd)
    launch = Launch(
        entry=row.text,
        grid=(blocks, 1, 1),
        block=(32 * number("WARPS_M") * number("WARPS_N"), 1, 1),
        shared_bytes=row.shared_bytes,
        arguments=arguments,
    )
    cubin = compiled(row).cubin
    if row.text != "tensor_maps":
        return KernelRecipe(cubin, dataclasses.replace(launch, arguments=(a, b, *arguments)), buffers)
    maps = (
        Boxed(a, problem.m, problem.k, problem.lda, block_m // number("CLUSTER_N"), block_k + 8),
        Boxed(b, problem.k, problem.n, problem.ldb, block_k // number("CLUSTER_M"), block_n + 8),
    )
    return TensorMapRecipe(cubin, launch, maps, buffers)


def own(
    text: str, binary: Binary, problem: Problem, images: Sequence[Image], buffers: tuple[Bytes, ...]
) -> KernelRecipe:
    """The launch of a binary of a kernel of the tool."""
    config, _ = configured(text)
    return KernelRecipe(binary.cubin, trial.launch_of(binary.entry, config, problem, images), buffers)


@dataclass(frozen=True)
class Found:
    """What became of a row on a problem and a kind of data.

    Attributes:
        row: which of them.
        size: of the problem.
        data: what it was timed on.
        reason: why there is no time; empty where there is one.
        timing, beside: of the row and of the tool's kernel, taken in turns.
        ratio: how many times as fast as that the row is.
        rates: of both, in TFLOP/s.
    """

    row: Row
    size: str
    data: Data
    reason: str = ""
    timing: Timing | None = None
    beside: Timing | None = None
    ratio: Ratio | None = None
    rates: tuple[float, float] = (0.0, 0.0)

    def to_json(self) -> dict[str, object]:
        binary = compiled(self.row)
        return {
            "mechanism": self.row.words,
            "text": self.row.text or self.row.own,
            "hint": self.row.hint,
            "numbers": {**NUMBERS, **self.row.numbers} if self.row.text else {},
            "persistent": self.row.persistent,
            "bound": self.row.bound,
            "beside": str(configured(self.row.beside)[0]),
            "registers": binary.registers,
            "spill_bytes": binary.spill_bytes,
            "size": self.size,
            "data": self.data,
            "reason": self.reason,
            "timing": self.timing.to_json() if self.timing else None,
            "timing_beside": self.beside.to_json() if self.beside else None,
            "ratio": dataclasses.asdict(self.ratio) if self.ratio else None,
            "tflops": self.rates[0],
            "tflops_beside": self.rates[1],
        }

    @property
    def cell(self) -> str:
        """As it stands in the table."""
        if self.ratio is None:
            return "failed"
        return f"{self.rates[0]:.0f} / {self.rates[1]:.0f} {self.ratio.low:.3f}"


class Bench:
    """A card of sm_90 in a child process, which kernels may break.

    Args:
        device: which one.
        protocol: how each pair is timed; its data are those of each measurement.
    """

    def __init__(self, device: DeviceInfo, protocol: TimingProtocol) -> None:
        self.device = device
        self.protocol = protocol
        self.child = Supervisor(serve, (device.index,), name="GPU worker")
        self._proved: set[tuple[str, Problem]] = set()
        self._judge = Judge()

    def wrong(self, row: Row, problem: Problem) -> str:
        """What is wrong with results on integers, of the tool's kernel or of the row; empty where all is exact.

        Raises:
            Fault: there is no result.
        """
        case = trial.exact_case(problem)
        if (row.beside, problem) not in self._proved:
            found = self._judged(
                own(row.beside, configured(row.beside)[1], problem, case.images, case.buffers), case, row.beside
            )
            if found:
                return f"the tool's kernel: {found}"
            self._proved.add((row.beside, problem))
        if row.bound:
            return ""
        return self._judged(
            recipe(row, problem, case.images, case.buffers, self.device.multiprocessors), case, row.words
        )

    def _judged(self, made: KernelRecipe | TensorMapRecipe, case: trial.Case, words: str) -> str:
        """As :meth:`wrong`, of one kernel."""
        request = Run(made)
        returned = request.left(self.child.ask(request, limit_s=SLACK_S, what=words))
        return self._judge.wrong(case, returned)

    def timed(self, row: Row, problem: Problem, size: str, data: Data) -> Found:
        """The row in turns with the tool's kernel.

        Raises:
            Fault: there is no time, or one that cannot be.
        """
        config, binary = configured(row.beside)
        buffers = trial.subject_of(config, binary, problem, data).buffers
        images = layout.images(problem)
        recipes = (
            recipe(row, problem, images, buffers, self.device.multiprocessors),
            own(row.beside, configured(row.beside)[1], problem, images, buffers),
        )
        protocol = dataclasses.replace(self.protocol, data=data)
        limit_s = SLACK_S + len(recipes) * protocol.max_seconds
        found: Comparison = self.child.ask(Compare(recipes, protocol), limit_s=limit_s, what=row.words)
        for timing in found.timings:
            trial.demand_possible(problem, timing, str(self.device))
        one, other = found.timings
        rates = trial.tflops(problem, one.median_us), trial.tflops(problem, other.median_us)
        return Found(row, size, data, "", one, other, found.ratio(0, 1), rates)

    def measure(self, row: Row, size: str) -> Iterator[Found]:
        """Proved, then timed on both kinds of data."""
        problem = Problem.packed(configured(row.beside)[0].operation, *read_size(size))
        try:
            reason = self.wrong(row, problem)
        except Fault as fault:
            reason = fault.message
        for data in DATA:
            if reason:
                yield Found(row, size, data, reason)
                continue
            try:
                yield self.timed(row, problem, size, data)
            except Fault as fault:
                yield Found(row, size, data, fault.message)


def table(found: Sequence[Found], sizes: Sequence[str], data: Data) -> list[str]:
    """Mechanisms by size; a size that whole tiles do not make up has a dash."""
    cells = {(f.row, f.size): f.cell for f in found if f.data == data}
    width = max(len(row.words) for row in ROWS)
    lines = [f"{'':{width}} regs spills" + "".join(f"{size:>18}" for size in sizes)]
    for row in ROWS:
        binary = compiled(row)
        filled = "".join(f"{cells.get((row, size), '-'):>18}" for size in sizes)
        lines.append(f"{row.words:{width}} {binary.registers:4} {binary.spill_bytes:6}{filled}")
    return lines


def text_of(found: Sequence[Found], sizes: Sequence[str], device: DeviceInfo, compiler: str) -> str:
    """The record for people."""
    lines = [
        f"{device}, {compiler}: what was tried on {ARCH}, in turns with the tool's kernel with cp.async.",
        "A cell has the TFLOP/s of the mechanism and of the tool's kernel in the same turns, and the lower end of the",
        "95 % interval of how many times as fast the mechanism is. A bound leaves something out and computes no",
        "product; all others were exact on integers at each size first. Spills are bytes of a thread.",
    ]
    for data in DATA:
        lines += ["", f"On {data}:" if data == "integers" else f"On {data} data:", *table(found, sizes, data)]
    beside: dict[str, list[str]] = {row.beside: [] for row in ROWS}
    for row in ROWS:
        beside[row.beside].append(row.words)
    lines += ["", "The tool's kernels:"]
    for text, words in beside.items():
        lines += [f"  {configured(text)[0]}", f"    beside: {'; '.join(words)}"]
    lines += [f"FAILED {f.row.words}, {f.size}, {f.data}: {f.reason}" for f in found if f.reason]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Compile, prove, measure, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES))
    parser.add_argument("--seconds", type=float, default=180.0, help="of all measurements; proofs come on top")
    parser.add_argument("--to", type=Path, default=Path("sweeps/records"))
    asked = parser.parse_args()
    device = devices()[0]
    if device.sm != ARCH.sm:
        raise RequestError(f"{device} cannot tell what was tried on {ARCH}", f"run it where there is a GPU of {ARCH}")
    start = time.monotonic()
    compiler = {compiled(row).compiler for row in ROWS}.pop()
    planned = {size: [row for row in ROWS if takes(row, read_size(size))] for size in asked.sizes}
    pairs = len(DATA) * sum(len(rows) for rows in planned.values())
    if not pairs:
        raise RequestError("no mechanism takes any of these sizes", f"sizes that some take: {' '.join(SIZES)}")
    each = asked.seconds / (2 * pairs)
    print(f"{device}: {pairs} pairs, {each:.2f} s for each of the two", flush=True)
    protocol = TimingProtocol(warmup_min_s=min(0.1, each / 4), warmup_max_s=each / 2, max_samples=100, max_seconds=each)
    found: list[Found] = []
    bench = Bench(device, protocol)
    stem = asked.to / f"tried_{ARCH}_{device.name.replace(' ', '_')}"
    with contextlib.closing(bench.child):
        for size, rows in planned.items():
            for one in (one for row in rows for one in bench.measure(row, size)):
                found.append(one)
                words = f"{size} {one.data:8} {one.cell:>18}  {one.row.words} {one.reason}"
                print(f"{time.monotonic() - start:6.1f} s {words.rstrip()}", flush=True)
            keep(stem, found, asked.sizes, device, compiler)
    print(text_of(found, asked.sizes, device, compiler))
    return 1 if any(one.reason for one in found) else 0


def keep(stem: Path, found: Sequence[Found], sizes: Sequence[str], device: DeviceInfo, compiler: str) -> None:
    """Write both records."""
    document = {
        "device": str(device),
        "arch": ARCH.name,
        "compiler": compiler,
        "measurements": [one.to_json() for one in found],
    }
    emit.write(stem.with_suffix(".txt"), text_of(found, sizes, device, compiler))
    emit.write(stem.with_suffix(".json"), json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(ended(main))
