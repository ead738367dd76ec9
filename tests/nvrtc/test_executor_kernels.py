"""The executor on what NVRTC makes of rendered kernels: the exact result without a finding, and what is counted.

What it finds in broken ones is shown by `test_mutants.py`.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pytest

from wmmagen import executor, nvrtc, trial
from wmmagen.arch import ARCHS
from wmmagen.backends import Pointer
from wmmagen.config import KernelConfig, Problem
from wmmagen.defaults import read_config
from wmmagen.doctor import PROBE_ENTRY, PROBE_SOURCE
from wmmagen.executor import Result, fragments, ptx
from wmmagen.render import render
from wmmagen.verdict import judge

pytestmark = pytest.mark.usefixtures("headers_once")

#: Every part of the templates and every architecture occurs, most of them more than once.
KERNELS = [
    (75, "inst=16x16x16,layout=rr,warps=2x2,frags=2x2,k_steps=2,feed=shared,copy=ld,stages=1"),
    (75, "acc=f16,d=f16,layout=cc,inst=32x8x16,warps=2x1,frags=1x2,feed=shared,copy=ld,stages=2"),
    (80, "layout=rc,warps=2x2,frags=1x2,k_steps=2,feed=shared,copy=cpasync,stages=3,fragment_buffers=2"),
    (86, "layout=cr,epilogue=linear,warps=1x2,frags=2x1,feed=shared,copy=cpasync,stages=4,store=staged,d=f16"),
    (89, "layout=rr,residency=global,store=direct,warps=2x1,frags=1x2,feed=shared,copy=cpasync,stages=2"),
    (90, "inst=8x32x16,acc=f16,layout=rr,arrange_a=tiles,arrange_b=tiles,warps=1x1,frags=2x1,raster=grouped4,d=f32"),
    (100, "layout=rc,feed=global,epilogue=linear,store=staged,warps=1x2,frags=1x1,align_d=2,raster=panels8"),
    (120, "layout=cc,align_a=1,align_b=2,warps=1x1,frags=2x2,feed=shared,copy=ld,stages=2,store=staged,d=f16,acc=f32"),
    (120, "epilogue=linear,residency=global,store=direct,layout=rr,warps=1x1,frags=1x1,copy=ld,stages=1"),
    (75, "layout=rr,warps=2x1,frags=1x2,k_steps=2,feed=shared,copy=ld,stages=2,fragment_buffers=2"),
    (100, "layout=rc,warps=1x2,frags=2x1,k_steps=4,copy=cpasync,stages=2,fragment_buffers=2,arrange_a=tiles,"
     "residency=global,store=direct"),
    (120, "layout=rc,warps=2x1,frags=1x2,k_steps=3,copy=cpasync,stages=5,arrange_b=tiles"),
    (86, "layout=cr,warps=2x2,frags=3x1,k_steps=2,copy=cpasync,stages=4,fragment_buffers=2,epilogue=linear,d=f16,"
     "store=staged"),
]  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A configuration with its source for an architecture."""

    config: KernelConfig
    sm: int
    source: str
    entry: str

    @property
    def problems(self) -> tuple[Problem, ...]:
        return trial.validation_problems(self.config)


@lru_cache
def make(sm: int, text: str) -> Made:
    config = read_config(text, ARCHS[sm])
    source = render(config, ARCHS[sm])
    return Made(config, sm, source.text, source.kernel)


@lru_cache
def ptx_of(source: str, entry: str, sm: int) -> str:
    return nvrtc.compile_source(source, entry, ARCHS[sm], line_info=True).ptx


def check(made: Made, problem: Problem, **more: object) -> tuple[bool, Result]:
    """Whether D is exact and nothing else was touched, and what the executor says."""
    case = trial.exact_case(problem, shifts=trial.pointer_shifts(made.config), above=None)
    launch = trial.launch_of(made.entry, made.config, problem, case.images)
    args = [executor.Pointer(a.buffer, a.offset) if isinstance(a, Pointer) else a for a in launch.arguments]
    ptx = ptx_of(made.source, made.entry, made.sm)
    got = executor.launch(
        ptx, made.entry, launch.grid, launch.block, args, launch.shared_bytes, buffers=case.buffers, **more
    )
    verdict = judge(case.inputs, case.images[-1], got.outputs[-1], case.want, None)
    kept = all((a == b).all() for a, b in zip(case.buffers[:-1], got.outputs[:-1], strict=True))
    return verdict.exact and kept, got


@pytest.mark.parametrize(("sm", "text"), KERNELS, ids=[f"sm_{sm}-{n}" for n, (sm, _) in enumerate(KERNELS)])
def test_right_kernels_are_exact_and_nothing_is_found(sm: int, text: str) -> None:
    made = make(sm, text)
    # The shortest, one in the middle, and no slice at all.
    for seed, number in enumerate((0, len(made.problems) // 2, -1)):
        exact, got = check(made, made.problems[number], seed=seed)
        assert [str(f) for f in got.findings] == []
        assert exact, made.problems[number]


CALLS = {("wmma", "load"): "load_matrix_sync(", ("wmma", "store"): "store_matrix_sync(", ("wmma", "mma"): "mma_sync("}


@pytest.mark.parametrize(("sm", "text"), KERNELS[1::3])
def test_matrix_instructions_stand_in_the_line_of_their_call(sm: int, text: str) -> None:
    """The functions of nvcuda::wmma are in a header: the line is that of the kernel's text which calls them."""
    made = make(sm, text)
    lines = made.source.split("\n")
    seen = set()
    for statement in ptx.parse(ptx_of(made.source, made.entry, sm)).kernels[made.entry].statements:
        call = CALLS.get(statement.words[:2])
        if call is not None:
            seen.add(statement.words[:2])
            assert call in lines[statement.source_line - 1]
    assert seen == set(CALLS)


def test_a_missing_barrier_is_found_at_the_line_of_the_load() -> None:
    made = make(*KERNELS[2])
    source = re.sub(r"(wait_groups<STAGES - 2>\(\);\s*)__syncthreads\(\);", r"\1", made.source, count=1)
    assert source != made.source
    lines = source.split("\n")
    _, got = check(replace(made, source=source), made.problems[len(made.problems) // 2])
    assert {f.code for f in got.findings} == {"race"}
    named = [lines[f.source_line - 1] for f in got.findings]
    # Each of the loads reads what others' copies have filled; the copies meet what is still read.
    assert sum("wmma::load_matrix_sync(" in line for line in named) >= 2
    assert all("load_matrix_sync(" in line or "cp.async" in line for line in named)


def code_of(cubin: bytes, entry: str) -> bytes:
    """The machine code of a kernel: the section of that name of an ELF file of 64 bits."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    # Of each section: where its name stands, its type, flags and address, then where it lies, and its size.
    rows = [struct.unpack_from("<IIQQQQ", cubin, table + size * number) for number in range(count)]
    strings = rows[names][4]
    (found,) = (row for row in rows if cubin[strings + row[0] :].startswith(f".text.{entry}\0".encode()))
    return cubin[found[4] : found[4] + found[5]]


@pytest.mark.parametrize("sm", [75, 80, 86, 89, 90, 100, 103, 120])
def test_line_tables_change_no_machine_code(sm: int) -> None:
    binaries = [nvrtc.compile_source(PROBE_SOURCE, PROBE_ENTRY, ARCHS[sm], line_info=lines) for lines in (False, True)]
    plain, lined = (code_of(binary.cubin, PROBE_ENTRY) for binary in binaries)
    assert plain == lined
    assert len(plain) > 10 * 16  # bytes of an instruction
    assert binaries[0].registers == binaries[1].registers
    assert ".loc" in binaries[1].ptx
    assert ".loc" not in binaries[0].ptx


AHEAD, LD_AHEAD, TWO_AHEAD = KERNELS[2], KERNELS[9], KERNELS[10]
#: Mistakes that change no result: fragments are loaded where nothing was written, and not used.
UNWRITTEN = [
    (AHEAD, "if (slices > 0) {", "if (true) {"),
    (AHEAD, "slice + 1 < slices ? after : read_stage", "after"),
    (LD_AHEAD, "  if (slices > 0) {\n    load_step", "  if (true) {\n    load_step"),
    (LD_AHEAD, "more ? (slice + 1) % STAGES : read_stage", "(slice + 1) % STAGES"),
]


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each load of fragments with an element that nobody wrote."""
    loads: list[int] = []
    fill = fragments.Mover._fill

    def watched(self: fragments.Mover, machine: Any, warps: Any, elements: Any, undefined: Any) -> None:
        loads.extend([1] if undefined.any() else [])
        fill(self, machine, warps, elements, undefined)

    monkeypatch.setattr(fragments.Mover, "_fill", watched)
    return loads


@pytest.mark.parametrize("kernel", [AHEAD, LD_AHEAD, TWO_AHEAD, KERNELS[-1]], ids=["3", "ld", "2", "4"])
def test_fragments_ahead_are_loaded_from_what_was_written(kernel: tuple[int, str], unwritten: list[int]) -> None:
    made = make(*kernel)
    for problem in (made.problems[0], made.problems[-1]):  # one slice, and none
        check(made, problem)
    assert unwritten == []


@pytest.mark.parametrize(("kernel", "old", "new"), UNWRITTEN, ids=["none", "last", "ld none", "ld last"])
def test_fragments_that_nobody_wrote_are_seen(
    kernel: tuple[int, str], old: str, new: str, unwritten: list[int]
) -> None:
    made = make(*kernel)
    assert made.source.count(old) == 1
    for problem in (made.problems[0], made.problems[-1]):
        check(replace(made, source=made.source.replace(old, new)), problem)
    assert unwritten


def test_what_is_counted_tells_configurations_apart() -> None:
    """What the design promises to see without a card: padding, residency, the width of copies, the feed."""
    base = "layout=rc,warps=2x2,frags=2x2,k_steps=2,copy=cpasync,stages=3,store=direct,residency=fragment"

    def counts(text: str) -> executor.Counts:
        made = make(80, text)
        return check(made, made.problems[len(made.problems) // 2])[1].counts

    padded, plain = counts(base + ",pad_a=8,pad_b=8"), counts(base + ",pad_a=0,pad_b=0")
    assert padded.shared_load_conflicts == 0
    assert plain.shared_load_conflicts > 0
    assert padded.tensor_instructions == plain.tensor_instructions
    parked = counts(base.replace("residency=fragment", "residency=global"))
    assert padded.output_crossings == 1
    assert parked.output_crossings > 2
    # A and B, each once: blocks share what they read in a perfect L2, and read it each for themselves without one.
    problem = make(80, base).problems[len(make(80, base).problems) // 2]
    rows, columns = -(-problem.m // 64), -(-problem.n // 64)
    exact = 2 * problem.k * (problem.m + problem.n)
    assert padded.load_bytes_perfect_l2 >= exact
    assert padded.load_bytes_perfect_l2 < 1.2 * exact
    each = 2 * problem.k * (problem.m * columns + problem.n * rows)
    assert each <= padded.load_bytes_no_l2 < 1.2 * each
    narrow = counts(base + ",align_a=2,align_b=2")
    assert narrow.instructions["asynchronous copy"] > 2 * padded.instructions["asynchronous copy"]
