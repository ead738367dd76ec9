"""The executor's counts against the hardware's own counters, by Nsight Compute. Writes its records.

    python tests/gpu/prove_counts.py [--arch sm_90] [--limit 400] [--more] [--to tests/gpu/records]

Configurations that differ in kind are launched on problems of several blocks and slices, by the CPU executor and by a
program that ncu watches. Both have to leave the same bytes. Then the executor's counts are held against the counters:
tensor instructions, sectors of global memory and wavefronts of shared memory are to be within 5 %; requests, and loads
and stores apart, are printed beside them. PTX has one matrix instruction where the machine has several: the executor's
multiply-adds are divided by those of the instruction that the disassembly of the same machine code names.

Each is launched twice: with rows that begin on whole lines of 128 bytes, where the figures have to agree, and with rows
that are aligned as far as was promised and no further, whose lines are information.

Where the model cannot follow: an asynchronous copy of 16 bytes past the first cache whose destinations meet in a bank
moves in several passes, and a sector whose halves go in two of them is counted twice; the executor counts the sectors
that a request touches. Where no halves are parted (pads of 0 and 16, narrower copies) the two are equal. The wavefronts
of these copies the hardware counts by arriving data, 1.0 to 2.3 times the least that the banks allow, which is what the
executor counts; both are printed. The assembler joins neighbouring stores of a lane, so two kernels need fewer
wavefronts than their PTX says.

Exit status 0 where at least 20 configurations agree in all of it, 1 where they do not, 3 where ncu is missing or
refuses; the record says why.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import multiprocessing
import pickle
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tests import ncu
from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import defaults, emit, layout, rules, sass, trial
from wmmagen.arch import Arch
from wmmagen.backends import Bytes, Launch
from wmmagen.backends.cpu import execute
from wmmagen.backends.gpu import devices
from wmmagen.backends.worker import KernelRecipe
from wmmagen.config import KernelConfig, Problem, name
from wmmagen.errors import DisassemblyError, HazardFault, MissingPiece
from wmmagen.executor import Counts
from wmmagen.foundry import usable_cores
from wmmagen.nvrtc import Binary

WITHIN = 0.05
AT_LEAST = 20
#: The problems have one slice of K more than that.
SLICES = 6
_LINE = 128
CHIP = "gh100"

SMALL = "warps=2x2,frags=2x2"
CASES = (
    f"{SMALL},feed=global",
    f"{SMALL},feed=global,layout=rc",
    f"{SMALL},feed=global,layout=cr,acc=f16",
    f"{SMALL},feed=global,layout=rc,inst=8x32x16",
    f"{SMALL},feed=global,layout=cc,inst=32x8x16",
    f"{SMALL},feed=global,acc=f16,d=f32,layout=rc",
    f"{SMALL},feed=global,layout=rc,residency=global",
    f"{SMALL},copy=ld,stages=1",
    f"{SMALL},copy=ld,stages=1,pad_a=0,pad_b=0",
    f"{SMALL},copy=ld,stages=1,pad_a=16,pad_b=16,layout=cc",
    f"{SMALL},copy=ld,stages=2,layout=rc",
    f"{SMALL},copy=ld,stages=2,layout=cr,epilogue=linear",
    f"{SMALL},copy=ld,stages=2,align_a=1,align_b=1,align_d=1,d=f16",
    f"{SMALL},copy=ld,stages=1,align_a=2,align_b=4",
    f"{SMALL},copy=ld,stages=1,align_a=4,align_b=2,align_d=2,store=staged",
    f"{SMALL},copy=ld,stages=1,arrange_a=tiles,arrange_b=tiles,store=staged,epilogue=linear",
    f"{SMALL},copy=cpasync,stages=2",
    f"{SMALL},copy=cpasync,stages=3,pad_a=0,pad_b=0",
    f"{SMALL},copy=cpasync,stages=3,pad_a=16,pad_b=16,layout=rc",
    f"{SMALL},copy=cpasync,stages=2,align_a=4,align_b=2",
    f"{SMALL},copy=cpasync,stages=2,align_a=2,align_b=4,layout=cc",
    f"{SMALL},copy=cpasync,stages=4,epilogue=linear,d=f16,layout=rc",
    f"{SMALL},copy=cpasync,stages=3,arrange_a=tiles,arrange_b=tiles,layout=cc",
    f"{SMALL},copy=cpasync,stages=3,residency=global",
    f"{SMALL},copy=cpasync,stages=3,inst=32x8x16,acc=f16,epilogue=linear",
    f"{SMALL},copy=cpasync,stages=3,inst=8x32x16,layout=cr",
    f"{SMALL},copy=cpasync,stages=3,inst=8x32x16,store=staged,pad_d=4",
    f"{SMALL},copy=cpasync,stages=3,inst=8x32x16,acc=f16,layout=rc",
    f"{SMALL},copy=cpasync,stages=2,inst=32x8x16,layout=cr",
    f"{SMALL},copy=cpasync,stages=3,acc=f16",
    f"{SMALL},copy=cpasync,stages=3,acc=f16,d=f32,pad_d=0",
    f"{SMALL},copy=ld,stages=2,acc=f16,inst=32x8x16,pad_d=0",
    "warps=2x4,frags=4x2,copy=cpasync,stages=3,k_steps=2",
    "warps=4x2,frags=2x4,copy=ld,stages=2,k_steps=4,fragment_buffers=2",
)

_L1 = "l1tex__"
_SECTORS, _REQUESTS = "t_sectors_pipe_lsu_mem_global", "t_requests_pipe_lsu_mem_global"
_WAVEFRONTS, _CONFLICTS = "data_pipe_lsu_wavefronts_mem_shared", "data_bank_conflicts_pipe_lsu_mem_shared"


def _copies(counter: str) -> tuple[tuple[str, ...], ...]:
    """Asynchronous copies have counters of their own; versions differ in where: the first that is there is taken."""
    sass_wide = [(f"{unit}__sass_l1tex_{counter}_op_ldgsts.sum",) for unit in ("smsp", "sm")]
    parts = [
        tuple(f"{prefix}{counter}_op_ldgsts_{way}.sum" for way in ("cache_access", "cache_bypass"))
        for prefix in ("sm__sass_l1tex_", _L1)
    ]
    return (*sass_wide, *parts, (f"{_L1}{counter}_op_ldgsts.sum",))


#: Looked at in the record, and no figure of its own.
MORE = (
    "smsp__inst_executed.sum",
    "smsp__inst_executed_op_ldsm.sum",
    "smsp__inst_executed_op_ldgsts.sum",
    "smsp__inst_executed_op_shared_ld.sum",
    "smsp__inst_executed_op_shared_st.sum",
    "smsp__inst_executed_op_global_ld.sum",
    "smsp__inst_executed_op_global_st.sum",
    "smsp__inst_executed_pipe_tensor.sum",
    "sm__inst_executed_pipe_tensor.sum",
    *(f"{_L1}{_CONFLICTS}_op_{way}.sum" for way in ("ld", "st", "ldgsts")),
)
#: Counters that ``--more`` adds to the record, of those that ncu lists.
SOUGHT = re.compile(r"ldgsts|ldsm|lsu_wavefronts_mem_shared|mem_global_op_(ld|st)$|inst_executed_op_shared|pipe_tensor")
NOT_SOUGHT = re.compile(r"hit_rate|lookup|cycles|dshared|tma|pred_on|thread_inst|pct|throughput|bytes|_realtime")
MOST_MORE = 60


@dataclass(frozen=True)
class Executed:
    """The executor's side of a configuration.

    Attributes:
        whole_lines: rows begin on lines of 128 bytes, and the figures have to agree.
        launch, buffers: what the GPU is to be given as well.
        outputs: every buffer as the executor left it.
        counts: of the launch.
        volume: multiply-adds of one matrix instruction of the machine code; None where nobody could read it.
    """

    config: KernelConfig
    problem: Problem
    whole_lines: bool
    binary: Binary
    launch: Launch
    buffers: tuple[Bytes, ...]
    outputs: tuple[Bytes, ...]
    counts: Counts
    volume: int | None


@dataclass(frozen=True)
class Figure:
    """Something that both sides count.

    Attributes:
        words: for the table.
        executor: what the executor counted; None where it cannot be said.
        hardware: alternatives; the first whose metrics are all there is taken, and they are summed.
        demanded: whether it has to agree.
    """

    words: str
    executor: Callable[[Executed], float | None]
    hardware: tuple[tuple[str, ...], ...]
    demanded: bool = False

    def counted(self, values: dict[str, float]) -> float | None:
        """What the hardware counted; None where a metric is missing."""
        found = next((names for names in self.hardware if all(metric in values for metric in names)), None)
        return None if found is None else sum(values[metric] for metric in found)


def _stores(run: Executed) -> int:
    """Wavefronts of stores that threads make themselves."""
    return run.counts.shared_store_wavefronts - run.counts.shared_copy_wavefronts


def _l1(counter: str) -> tuple[tuple[str, ...], ...]:
    return ((f"{_L1}{counter}.sum",),)


FIGURES = (
    Figure(
        "tensor instructions",
        lambda e: e.counts.multiply_adds / e.volume if e.volume else None,
        (
            ("smsp__inst_executed_pipe_tensor_op_hmma.sum",),
            ("sm__inst_executed_pipe_tensor_op_hmma.sum",),
            ("sm__inst_executed_pipe_tensor.sum",),
        ),
        demanded=True,
    ),
    Figure(
        "global load sectors",
        lambda e: e.counts.global_load_sectors,
        _l1(f"{_SECTORS}_op_ld"),  # contains asynchronous copies
        demanded=True,
    ),
    Figure("global store sectors", lambda e: e.counts.global_store_sectors, _l1(f"{_SECTORS}_op_st"), demanded=True),
    Figure(
        "shared wavefronts",
        lambda e: e.counts.shared_load_wavefronts + _stores(e),
        ((f"{_L1}{_WAVEFRONTS}_op_ld.sum", f"{_L1}{_WAVEFRONTS}_op_st.sum"),),
        demanded=True,
    ),
    Figure("- loads", lambda e: e.counts.shared_load_wavefronts, _l1(f"{_WAVEFRONTS}_op_ld")),
    Figure("- stores", lambda e: _stores(e), _l1(f"{_WAVEFRONTS}_op_st")),
    Figure("- asynchronous copies", lambda e: e.counts.shared_copy_wavefronts, _copies(_WAVEFRONTS)),
    Figure("global load requests", lambda e: e.counts.global_load_requests, _l1(f"{_REQUESTS}_op_ld")),
    Figure("global store requests", lambda e: e.counts.global_store_requests, _l1(f"{_REQUESTS}_op_st")),
)


def metrics() -> list[str]:
    """Every metric that is asked for."""
    named = [metric for f in FIGURES for names in f.hardware for metric in names]
    return list(dict.fromkeys((*named, *MORE)))


def have(tool: Path, wanted: Sequence[str], *, more: bool) -> tuple[list[str], list[str]]:
    """Of the metrics those that ncu lists for the chip, and those that it does not; all, where it lists none.

    Args:
        more: whether others that it lists are wanted, too.
    """
    known = ncu.known_metrics(tool, CHIP)
    if more:
        found = sorted(name for name in known if SOUGHT.search(name) and not NOT_SOUGHT.search(name))
        wanted = list(dict.fromkeys((*wanted, *(f"{name}.sum" for name in found[:MOST_MORE]))))
    there = [metric for metric in wanted if not known or metric.partition(".")[0] in known]
    return there, [metric for metric in wanted if metric not in there]


# The executor's side -------------------------------------------------------------------------------------------------


def problem_for(config: KernelConfig, *, whole_lines: bool) -> Problem:
    """Several blocks each way, :data:`SLICES` + 1 slices, rows that are aligned as far as was promised.

    Args:
        whole_lines: rows begin on lines of 128 bytes instead.
    """
    *spaced, _, _ = trial.validation_problems(replace(config, stages=SLICES))
    p = max(spaced, key=lambda p: p.k)
    if p.operation.scaled:
        p = replace(p, alpha=2.0, beta=-3.0)
    if not whole_lines:
        return p
    of_a, of_d = (_LINE * 8 // bits for bits in (p.operation.a.bits, p.operation.d.bits))
    return replace(
        p,
        lda=_up(p.lda, of_a),
        ldb=_up(p.ldb, of_a),
        ldc=_up(p.ldc, of_d),
        ldd=_up(p.ldd, of_d),
    )


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def executed(config: KernelConfig, arch: Arch, whole_lines: bool) -> Executed:
    """Compile and run on the executor.

    Raises:
        SystemExit: the result is not exact, or the executor found something.
    """
    _, binary = trial.build(config, arch)
    problem = problem_for(config, whole_lines=whole_lines)
    shifts = layout.UNSHIFTED if whole_lines else trial.pointer_shifts(config)
    case = trial.exact_case(problem, shifts=shifts, above=None)
    launch = trial.launch_of(binary.entry, config, problem, case.images)
    try:
        got = execute(binary, launch, case.buffers)
    except HazardFault as fault:
        raise SystemExit(f"{name(config)}: {fault.message}") from fault
    return Executed(
        config, problem, whole_lines, binary, launch, case.buffers, got.outputs, got.counts, volume_of(binary)
    )


def volume_of(binary: Binary) -> int | None:
    """Multiply-adds of the machine's matrix instruction; None without a disassembler.

    Raises:
        DisassemblyError: the machine code has several sizes of them, or none.
    """
    try:
        text = sass.disassemble(sass.locate(), binary.cubin)
    except MissingPiece:
        return None
    products = [sass.product(op) for op in sass.parse(text, binary.entry).ops]
    volumes = {product.volume for product in products if product is not None}
    if len(volumes) != 1:
        raise DisassemblyError(f"{binary.entry} has matrix instructions of the sizes {sorted(volumes)}")
    return volumes.pop()


# The GPU's side, a process of its own --------------------------------------------------------------------------------


def launch_all(recipes: Path, results: Path) -> None:
    """Launch each recipe once and write the buffers that they leave."""
    # Here alone, because the parent makes no context.
    from wmmagen.backends.card import Card

    card = Card(0)
    found = [card.run(recipe) for recipe in pickle.loads(recipes.read_bytes())]
    results.write_bytes(pickle.dumps(found))


def check_outputs(runs: Sequence[Executed], results: Path) -> None:
    """Both sides left the same bytes.

    Raises:
        SystemExit: they did not.
    """
    for run, theirs in zip(runs, pickle.loads(results.read_bytes()), strict=True):
        if not all(np.array_equal(a, b) for a, b in zip(run.outputs, theirs, strict=True)):
            raise SystemExit(f"{name(run.config)}: the executor and the GPU leave different bytes")


# The comparison ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One figure of one configuration."""

    figure: Figure
    executor: float | None
    hardware: float | None

    @property
    def ratio(self) -> float | None:
        """The executor's over the hardware's; None where one of them is missing, or only the hardware's is 0."""
        if self.executor is None or self.hardware is None:
            return None
        if not self.hardware:
            return None if self.executor else 1.0
        return self.executor / self.hardware

    @property
    def within(self) -> bool:
        """Whether they agree; what was not counted does not."""
        if self.executor is None or self.hardware is None:
            return False
        return abs(self.executor - self.hardware) <= WITHIN * self.hardware

    def __str__(self) -> str:
        ours, theirs = (f"{x:.0f}" if x is not None else "-" for x in (self.executor, self.hardware))
        ratio = f"{self.ratio:.3f}" if self.ratio is not None else "-"
        word = "" if self.within else ("NOT WITHIN" if self.figure.demanded else "differs")
        return f"  {self.figure.words:<24} {ours:>10} {theirs:>10} {ratio:>7}  {word}".rstrip()


def lines_of(run: Executed, row: ncu.Row) -> list[Line]:
    """Every figure of a configuration."""
    return [Line(figure, figure.executor(run), figure.counted(row.values)) for figure in FIGURES]


def agrees(lines: Sequence[Line]) -> bool:
    """Whether every figure that has to is within the limit."""
    return all(line.within for line in lines if line.figure.demanded)


def matched(runs: Sequence[Executed], rows: Sequence[ncu.Row]) -> list[ncu.Row]:
    """The row of each run; launches are in their order, and kernels have their symbols.

    Raises:
        Unreadable: they do not fit.
    """
    names = [run.launch.entry for run in runs]
    if [row.kernel.partition("(")[0].strip() for row in rows] != names:
        raise ncu.Unreadable(f"ncu names {len(rows)} launches, which are not the {len(names)} that were made")
    return list(rows)


def table(runs: Sequence[Executed], rows: Sequence[ncu.Row]) -> tuple[str, int]:
    """The comparison in words, and how many configurations agree where they have to."""
    compared = [(run, lines_of(run, row)) for run, row in zip(runs, matched(runs, rows), strict=True)]
    held = [(run, lines) for run, lines in compared if run.whole_lines]
    others = [(run, lines) for run, lines in compared if not run.whole_lines]
    count = sum(agrees(lines) for _, lines in held)
    demanded = ", ".join(figure.words for figure in FIGURES if figure.demanded)
    words = [
        "Rows that begin on whole lines of 128 bytes:",
        *_summary(held),
        f"{count} of {len(held)} configurations agree within {WITHIN:.0%} in all of: {demanded}",
        "",
        "Rows that are aligned as far as was promised (information):",
        *_summary(others),
        "",
        f"  {'figure':<24} {'executor':>10} {'hardware':>10} {'ratio':>7}",
    ]
    for run, lines in compared:
        p = run.problem
        words.append(f"{name(run.config)}: {p}, ld {p.lda} {p.ldb} {p.ldc} {p.ldd}")
        words += map(str, lines)
    return "\n".join(words) + "\n", count


def _summary(compared: Sequence[tuple[Executed, list[Line]]]) -> Iterator[str]:
    for number, figure in enumerate(FIGURES):
        ratios = [lines[number].ratio for _, lines in compared]
        known = [ratio for ratio in ratios if ratio is not None]
        inside = sum(lines[number].within for _, lines in compared)
        span = f"ratios {min(known):.3f} to {max(known):.3f}" if known else "not counted"
        yield f"{figure.words:<24} {inside} of {len(compared)} within {WITHIN:.0%}, {span}"


def as_csv(rows: Sequence[ncu.Row]) -> str:
    """The counters as they were read, a line for each launch."""
    names = list(dict.fromkeys(metric for row in rows for metric in row.values))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["kernel", *names])
    for row in rows:
        values = (f"{row.values[metric]:.0f}" if metric in row.values else "" for metric in names)
        writer.writerow([row.kernel, *values])
    return out.getvalue()


def main() -> int:
    """Execute, watch, compare, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds that ncu may take")
    parser.add_argument("--more", action="store_true", help="read every counter that has to do with it")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    parser.add_argument("--launch", nargs=2, type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.launch:
        launch_all(*asked.launch)
        return 0
    arch = archs.find(asked.arch)
    device = devices()[0]
    with ProcessPoolExecutor(usable_cores(), mp_context=multiprocessing.get_context("spawn")) as pool:
        both = [(config, lines) for lines in (True, False) for config in configs(arch)]
        runs = list(pool.map(executed, (c for c, _ in both), itertools.repeat(arch), (lines for _, lines in both)))
    stem = f"counts_{arch}_on_{device.name.replace(' ', '_')}"
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="wmmagen-") as folder:
        recipes, results = Path(folder) / "recipes", Path(folder) / "results"
        recipes.write_bytes(pickle.dumps([KernelRecipe(r.binary.cubin, r.launch, r.buffers) for r in runs]))
        program = [sys.executable, __file__, "--launch", str(recipes), str(results)]
        subprocess.run(program, check=True, timeout=300)
        check_outputs(runs, results)
        try:
            tool = ncu.locate()
            there, absent = have(tool, metrics(), more=asked.more)
            profile = ncu.profile(tool, there, program, asked.limit)
        except MissingPiece as missing:
            text = f"{device}: nothing was counted: {missing.message}; {missing.fix}\n"
            emit.write(asked.to / f"{stem}.txt", text)
            print(text, end="")
            return missing.exit_status
        check_outputs(runs, results)
    emit.write(asked.to / f"{stem}.csv", as_csv(profile.rows))
    words, count = table(runs, profile.rows)
    seconds = time.monotonic() - begin
    head = [
        f"{device}, {ncu.version(tool)}: {len(runs)} configurations in {seconds:.0f} s; every output bitwise equal",
        f"ncu {' '.join(profile.command[1:-5])} python {Path(__file__).name} --launch ...",
        f"metrics that are not here: {' '.join((*absent, *profile.absent)) or 'none'}",
        "",
    ]
    text = "\n".join(head) + words
    emit.write(asked.to / f"{stem}.txt", text)
    print(text, end="")
    return 0 if count >= AT_LEAST else 1


def configs(arch: Arch) -> list[KernelConfig]:
    """The cases as configurations.

    Raises:
        IllegalConfig: one of them is none on ``arch``.
    """
    found = [defaults.read_config(pairs, arch) for pairs in CASES]
    for config in found:
        rules.demand(config, arch)
    return found


if __name__ == "__main__":
    sys.exit(ended(main))
