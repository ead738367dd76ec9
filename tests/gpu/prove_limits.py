"""What holds the best kernels back, by Nsight Compute: how busy each unit is, and what warps wait for.

    python tests/gpu/prove_limits.py [--arch sm_90] [--problem 256,512,1024,2048,4096,8192] [--kernel 2048 NAME …]
                                     [--seconds 3] [--limit 400] [--launches 3] [--chip gh100] [--to tests/gpu/records]

For each size the best kernel that is known (or the one that --kernel names) is proved exact, timed by the usual
protocol, and launched under ncu with warm caches; a figure is the median of the launches behind the first. Metrics are
chosen among those that ncu lists for the chip. Some are known by several names: the first one that is there is taken,
the record says which, and one that is not there is said and costs nothing else.

Clocks: under ncu a launch stands alone and the device is cool, so its clock is higher than in a graph of launches at
the power cap. Both are in the table; shares of a unit's cycles do not depend on it, rates per second do.

Exit status 0 where every kernel was exact and counted, 1 where one was not, 3 where ncu is missing or refuses; the
record says why.
"""

from __future__ import annotations

import argparse
import json
import pickle
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import ncu
from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import chips, config, defaults, derive, emit, known, trial
from wmmagen.arch import Arch
from wmmagen.backends.pick import Place, pick
from wmmagen.backends.worker import KernelRecipe
from wmmagen.config import KernelConfig, Problem, name
from wmmagen.errors import AnswerIsNo, MissingPiece
from wmmagen.records import Facts
from wmmagen.timing import Timing, TimingProtocol

SIZES = "256,512,1024,2048,4096,8192"
#: Above this share of what it can do a unit is called near its limit.
NEAR = 80.0
#: Waits that are told.
TOP = 5
_PEAK = ".avg.pct_of_peak_sustained_elapsed"


@dataclass(frozen=True)
class Figure:
    """Something that is read of a launch.

    Attributes:
        words: for the table.
        metrics: its names, the preferred one first.
        factor: from ncu's base unit to that of the words.
        unit: the unit's name where this is how busy it is, in per cent of what it can do.
    """

    words: str
    metrics: tuple[str, ...]
    factor: float = 1.0
    unit: str = ""

    def read(self, values: Mapping[str, float]) -> tuple[float, str] | None:
        """The value and the metric that it is of; None where none of them is there."""
        found = next((metric for metric in self.metrics if metric in values), None)
        return None if found is None else (values[found] * self.factor, found)


FIGURES = (
    Figure("time of a launch, us", ("gpu__time_duration.sum",), 1e-3),
    Figure("clock, MHz", ("sm__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second"), 1e-6),
    Figure(
        "tensor pipe, %",
        (
            f"sm__pipe_tensor_cycles_active{_PEAK}",
            f"sm__pipe_tensor_op_hmma_cycles_active{_PEAK}",
            f"sm__inst_executed_pipe_tensor_op_hmma{_PEAK}",
            f"sm__inst_executed_pipe_tensor{_PEAK}",
        ),
        unit="tensor pipe",
    ),
    Figure(
        "shared memory, %",
        (
            f"l1tex__data_pipe_lsu_wavefronts_mem_shared{_PEAK}",
            f"l1tex__data_pipe_lsu_wavefronts{_PEAK}",
        ),
        unit="shared memory",
    ),
    Figure("first-level cache, %", (f"l1tex__throughput{_PEAK}",), unit="first-level cache"),
    Figure("bank conflicts", ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",)),
    Figure("L2, %", (f"lts__throughput{_PEAK}", f"lts__t_sectors{_PEAK}"), unit="L2"),
    Figure("L2 sectors, %", (f"lts__t_sectors{_PEAK}",)),
    Figure("L2 reads, MB", ("lts__t_sectors_op_read.sum",), 32e-6),
    Figure("L2 writes, MB", ("lts__t_sectors_op_write.sum",), 32e-6),
    Figure("L2 hits, %", ("lts__t_sector_hit_rate.pct",)),
    Figure("L2 to multiprocessors, MB", ("l1tex__m_xbar2l1tex_read_bytes.sum",), 1e-6),
    Figure("L2 to multiprocessors, GB/s", ("l1tex__m_xbar2l1tex_read_bytes.sum.per_second",), 1e-9),
    Figure("DRAM, %", (f"dram__throughput{_PEAK}", f"gpu__dram_throughput{_PEAK}"), unit="DRAM"),
    Figure("DRAM reads, MB", ("dram__bytes_read.sum",), 1e-6),
    Figure("DRAM writes, MB", ("dram__bytes_write.sum",), 1e-6),
    Figure(
        "issue slots, %",
        (
            "smsp__issue_active.avg.pct_of_peak_sustained_active",
            "smsp__inst_issued.avg.pct_of_peak_sustained_active",
        ),
        unit="issue slots",
    ),
    Figure("warps of a multiprocessor", ("sm__warps_active.avg.per_cycle_active",)),
    Figure("occupancy, %", ("sm__warps_active.avg.pct_of_peak_sustained_active",)),
    Figure("multiprocessors active, %", (f"sm__cycles_active{_PEAK}",)),
    Figure("waves", ("launch__waves_per_multiprocessor",)),
    Figure("registers of a thread", ("launch__registers_per_thread",)),
)

#: What a warp waits for, by the reason in the metric's name, in words. A warp that is issued waits for nothing.
STALLS = {
    "barrier": "for the others at a barrier",
    "branch_resolving": "for a branch",
    "dispatch_stall": "for the dispatcher",
    "drain": "for stores to leave at the end",
    "gmma": "for an asynchronous product",
    "imc_miss": "for a constant",
    "lg_throttle": "for the queue of accesses to global memory",
    "long_scoreboard": "for data of L2 or DRAM",
    "math_pipe_throttle": "for the tensor pipe, which is taken",
    "membar": "for a memory fence",
    "mio_throttle": "for the queue of shared memory",
    "misc": "for something else",
    "no_instruction": "for an instruction",
    "not_selected": "although ready: another warp was issued",
    "short_scoreboard": "for data of shared memory",
    "sleeping": "asleep",
    "tex_throttle": "for the queue of textures",
    "wait": "a fixed number of cycles behind its last instruction",
}


def stall_metric(reason: str) -> str:
    """Warps that wait so for each instruction that is issued."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


def metrics() -> list[str]:
    """Every metric that may be asked for."""
    named = [metric for figure in FIGURES for metric in figure.metrics]
    return list(dict.fromkeys((*named, *map(stall_metric, STALLS))))


def have(tool: Path, chip: str) -> tuple[list[str], list[str]]:
    """Of the metrics those that ncu lists for the chip, and those that it does not; all, where it lists none.

    What belongs to a launch and not to a counter it does not list, and has nonetheless.
    """
    listed = ncu.known_metrics(tool, chip, counters=False)
    there = [m for m in metrics() if not listed or m.startswith("launch__") or m.partition(".")[0] in listed]
    return there, [metric for metric in metrics() if metric not in there]


@dataclass(frozen=True)
class Kernel:
    """A size's kernel: proved, timed, ready to be counted.

    Attributes:
        size: M, N and K.
        words: how the kernel is known.
        timing: by the usual protocol, warm.
        facts: of the compiler.
        recipe: of a launch on the data that it was timed on.
    """

    size: tuple[int, int, int]
    words: str
    config: KernelConfig
    timing: Timing
    facts: Facts
    recipe: KernelRecipe

    @property
    def problem(self) -> Problem:
        return Problem.packed(self.config.operation, *self.size)

    @property
    def blocks(self) -> int:
        """Of a launch."""
        return int(derive.values(self.config, problem=self.problem)["BLOCKS"])


def ready(
    size: tuple[int, int, int], kernel: KernelConfig, words: str, arch: Arch, place: Place, protocol: TimingProtocol
) -> Kernel:
    """Prove and time a kernel.

    Raises:
        AnswerIsNo: it is wrong.
        CompileError, Fault: it cannot be compiled, run or timed.
    """
    backend, problem = place.demanded(), Problem.packed(kernel.operation, *size)
    _, binary = trial.build(kernel, arch)
    run = trial.validate(kernel, binary, backend, [*trial.validation_problems(kernel), problem])[-1]
    if not run.exact:
        raise AnswerIsNo(f"{name(kernel)} is wrong on {run.problem}: {run.mismatch}")
    timing = trial.time_it(kernel, binary, backend, problem, protocol)
    subject = trial.subject_of(kernel, binary, problem)
    recipe = KernelRecipe(binary.cubin, subject.launch, subject.buffers)
    return Kernel(size, words, kernel, timing, trial.facts_of(kernel, arch, binary), recipe)


def launch_all(recipes: Path, launches: int) -> None:
    """Launch each recipe so often, one after another."""
    # Here alone, because the parent makes no context.
    from wmmagen.backends.card import Card

    card = Card(0)
    for recipe in pickle.loads(recipes.read_bytes()):
        for _ in range(launches):
            card.run(recipe)


# What was counted ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """A kernel with its metrics, each the median of its launches."""

    kernel: Kernel
    values: Mapping[str, float]

    def figure(self, words: str) -> float | None:
        """The figure of these words."""
        found = next(figure for figure in FIGURES if figure.words == words).read(self.values)
        return None if found is None else found[0]

    @property
    def busy(self) -> list[tuple[str, float]]:
        """How busy each unit is, the busiest first."""
        read = [(figure.unit, figure.read(self.values)) for figure in FIGURES if figure.unit]
        return sorted(((unit, found[0]) for unit, found in read if found), key=lambda one: -one[1])

    @property
    def stalls(self) -> list[tuple[str, float]]:
        """Warps that wait for each issued instruction, by reason, most first; reasons that are never seen are none."""
        read = ((reason, self.values.get(stall_metric(reason), 0.0)) for reason in STALLS)
        return sorted(((reason, value) for reason, value in read if value > 0), key=lambda one: -one[1])

    def as_json(self) -> dict[str, Any]:
        """An element of the record."""
        read = {figure.words: figure.read(self.values) for figure in FIGURES}
        return {
            "problem": str(self.kernel.problem),
            "name": name(self.kernel.config),
            "known": self.kernel.words,
            "blocks": self.kernel.blocks,
            "timing": self.kernel.timing.to_json(),
            "figures": {words: {"value": one[0], "metric": one[1]} if one else None for words, one in read.items()},
            "stalls": dict(self.stalls),
        }


def counted(kernels: Sequence[Kernel], rows: Sequence[ncu.Row], launches: int) -> list[Counted]:
    """The launches of each kernel as one; the first of several finds other data in the caches and is left out.

    Raises:
        Unreadable: they are not the launches that were made.
    """
    made = [kernel.recipe.launch.entry for kernel in kernels for _ in range(launches)]
    if [row.kernel.partition("(")[0].strip() for row in rows] != made:
        raise ncu.Unreadable(f"ncu names {len(rows)} launches, which are not the {len(made)} that were made")
    found = []
    for number, kernel in enumerate(kernels):
        own = rows[number * launches : (number + 1) * launches]
        warm = own[1:] or own
        names = set.intersection(*(set(row.values) for row in warm))
        found.append(Counted(kernel, {one: statistics.median(row.values[one] for row in warm) for one in names}))
    return found


def table(found: Sequence[Counted]) -> str:
    """The figures, a column for each size."""
    wide = max(len(figure.words) for figure in FIGURES) + 2

    def line(words: str, cells: Sequence[str]) -> str:
        return f"{words:<{wide}}" + "".join(f"{cell:>18}" for cell in cells)

    def cell(value: float | None) -> str:
        return "-" if value is None else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.2f}"

    lines = [line("", [str(one.kernel.problem) for one in found])]
    lines.append(line("in a graph: time, us", [cell(one.kernel.timing.median_us) for one in found]))
    lines.append(line("in a graph: clock, MHz", [cell(one.kernel.timing.clock_mhz) for one in found]))
    lines.append(line("in a graph: empty, us", [cell(one.kernel.timing.empty_us) for one in found]))
    lines += [line(figure.words, [cell(one.figure(figure.words)) for one in found]) for figure in FIGURES]
    lines += ["", "Warps that wait for each instruction that is issued:"]
    reasons = sorted({reason for one in found for reason, _ in one.stalls[:TOP]})
    for reason in reasons:
        lines.append(line(reason, [cell(dict(one.stalls).get(reason)) for one in found]))
    return "\n".join(lines)


def paragraph(one: Counted) -> str:
    """What holds a kernel back, as its figures say it."""
    kernel, busy = one.kernel, one.busy
    rate = trial.tflops(kernel.problem, kernel.timing.median_us)
    said = [f"{kernel.problem}: {name(kernel.config)}, {kernel.timing.median_us:.2f} us, {rate:.1f} TFLOP/s."]
    near = [f"{unit} ({share:.0f} %)" for unit, share in busy if share >= NEAR]
    others = [f"{unit} {share:.0f} %" for unit, share in busy if share < NEAR]
    if near:
        said.append(f"Near its limit: {', '.join(near)}.")
    elif busy:
        said.append(f"No unit is near its limit; the busiest is the {others.pop(0)}.")
    if others:
        said.append(f"The others: {', '.join(others)}.")
    if one.stalls:
        waits = (f"{value:.2f} {STALLS[reason]} ({reason})" for reason, value in one.stalls[:TOP])
        said.append(f"Of its warps, for each instruction that is issued, wait: {'; '.join(waits)}.")
    if (waves := one.figure("waves")) is not None:
        held = f"{kernel.facts.occupancy} on a multiprocessor at a time"
        said.append(f"Its {kernel.blocks} blocks, {held}, are {waves:.2f} waves.")
    if (active := one.figure("multiprocessors active, %")) is not None and active < NEAR:
        said.append(f"A multiprocessor has a block in {active:.0f} % of the cycles only.")
    if kernel.timing.empty_us is not None:
        share = kernel.timing.empty_us / kernel.timing.median_us
        said.append(f"An empty kernel takes {kernel.timing.empty_us:.2f} us, {share:.0%} of its time.")
    if kernel.timing.throttle:
        said.append(f"In a graph its clock is held down: {', '.join(kernel.timing.throttle)}.")
    return " ".join(said)


def main() -> int:
    """Prove, time, watch, tell, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--problem", default=SIZES)
    parser.add_argument("--kernel", nargs=2, action="append", default=[], metavar=("MxNxK", "CONFIG"))
    parser.add_argument("--seconds", type=float, default=3.0, help="of timing for each kernel, at most")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds that ncu may take")
    parser.add_argument("--launches", type=int, default=3, help="of each kernel under ncu")
    parser.add_argument("--chip", default="gh100", help="as ncu --list-chips calls it")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    parser.add_argument("--launch", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.launch:
        launch_all(Path(asked.launch[0]), int(asked.launch[1]))
        return 0
    arch, protocol = archs.find(asked.arch), TimingProtocol(max_seconds=asked.seconds)
    named = {config.read_size(size): defaults.read_config(text, arch) for size, text in asked.kernel}
    with pick("gpu", arch) as place:
        print(place.first_line, flush=True)
        device = place.demanded().device
        chip = chips.find(device) or chips.usual(arch.sm)
        kernels = []
        for size in config.read_sizes(asked.problem):
            if size in named:
                kernel, words = named[size], "as asked for"
            else:
                best = known.best(defaults.operation_of({}), arch, size, chip)
                kernel, words = best.config, best.words
            kernels.append(ready(size, kernel, words, arch, place, protocol))
            print(f"{kernels[-1].problem}: {kernels[-1].timing.median_us:.2f} us, {name(kernel)}", flush=True)
    stem = asked.to / f"limits_{arch}_{device.split(' (')[0].replace(' ', '_')}"
    with tempfile.TemporaryDirectory(prefix="wmmagen-") as folder:
        recipes = Path(folder) / "recipes"
        recipes.write_bytes(pickle.dumps([kernel.recipe for kernel in kernels]))
        program = [sys.executable, __file__, "--launch", str(recipes), str(asked.launches)]
        try:
            tool = ncu.locate()
            subprocess.run(program, check=True, timeout=asked.limit)
            there, absent = have(tool, asked.chip)
            profile = ncu.profile(tool, there, program, asked.limit, ["--cache-control", "none"])
        except MissingPiece as missing:
            text = f"{device}: nothing was counted: {missing.message}; {missing.fix}\n"
            emit.write(Path(f"{stem}.txt"), text)
            print(text, end="")
            return missing.exit_status
    found = counted(kernels, profile.rows, asked.launches)
    text = told(found, device, ncu.version(tool), (*absent, *profile.absent))
    emit.write(
        Path(f"{stem}.json"), json.dumps({"device": device, "kernels": [x.as_json() for x in found]}, indent=2) + "\n"
    )
    emit.write(Path(f"{stem}.txt"), text)
    print(text, end="")
    return 0


def told(found: Sequence[Counted], device: str, version: str, absent: Sequence[str]) -> str:
    """The record in words."""
    used = dict.fromkeys(read[1] for one in found for figure in FIGURES if (read := figure.read(one.values)))
    lacking = [figure.words for figure in FIGURES if all(figure.read(one.values) is None for one in found)]
    head = [
        f"{device}, {version}: warm caches, clocks as they come; a figure is the median of launches.",
        f"metrics: {' '.join(used)}",
        f"metrics that are not here: {' '.join(absent) or 'none'}",
        f"figures without one: {', '.join(lacking) or 'none'}",
    ]
    return "\n".join([*head, "", table(found), "", "\n\n".join(map(paragraph, found))]) + "\n"


if __name__ == "__main__":
    sys.exit(ended(main))
