"""The executor on what NVRTC makes of rendered kernels: the exact result without a finding, and mutants that are found.

Kernels are compiled with line tables, so that findings name lines of the source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import pytest

from wmmagen import executor, nvrtc, trial
from wmmagen.arch import ARCHS
from wmmagen.backends import Pointer
from wmmagen.config import KernelConfig, Problem
from wmmagen.defaults import read_config
from wmmagen.executor import Result
from wmmagen.render import render
from wmmagen.verdict import judge

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
]


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


@lru_cache(maxsize=64)
def ptx_of(source: str, entry: str, sm: int) -> str:
    return nvrtc.compile_source(source, entry, ARCHS[sm], line_info=True).ptx


def check(made: Made, problem: Problem, source: str | None = None, **more: object) -> tuple[bool, Result]:
    """Whether D is exact and nothing else was touched, and what the executor says."""
    case = trial.exact_case(problem, shifts=trial.pointer_shifts(made.config), above=None)
    launch = trial.launch_of(made.entry, made.config, problem, case.images)
    args = [executor.Pointer(a.buffer, a.offset) if isinstance(a, Pointer) else a for a in launch.arguments]
    ptx = ptx_of(source or made.source, made.entry, made.sm)
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


CPASYNC, LD, GLOBAL, PARKED, STAGED, TILES = KERNELS[2], KERNELS[1], KERNELS[6], KERNELS[4], KERNELS[3], KERNELS[0]
BARRIER = r"__syncthreads\(\);"

#: A mistake in the source by replacement, and the code of the finding by which it is told; empty where the wrong result
#: tells it alone.
MUTANTS = [
    ("the barrier of the pipeline is dropped", CPASYNC, r"(wait_groups<STAGES - 2>\(\);\s*)" + BARRIER, r"\1", "race"),
    ("it waits for one group too few", CPASYNC, r"wait_groups<STAGES - 2>\(\)", "wait_groups<STAGES - 1>()",
     "early-read"),
    ("it does not wait at all", CPASYNC, r"wait_groups<STAGES - 2>\(\);", "", "early-read"),
    ("the stage that is read is filled", CPASYNC, r"int fill_stage = STAGES - 1;", "int fill_stage = 0;", "early-read"),
    ("no group is closed in the main loop", CPASYNC, r"close_group\(\);\n(?=\s*multiply_stage)", "", "early-read"),
    ("the last slice is dropped", CPASYNC, r"slice < slices; \+\+slice", "slice + 1 < slices; ++slice", ""),
    ("the barrier after the stores to shared memory is dropped", TILES, BARRIER + r"(  // the slice is there)", r"\1",
     "race"),
    ("the barrier before the stores to shared memory is dropped", TILES, BARRIER + r"(  // every warp has read the s)",
     r"\1", "race"),
    ("the barrier of the prefetching loop is dropped", LD, r"(store_slice\(\(slice \+ 1\)[^}]*\}\s*)" + BARRIER,
     r"\1", "race"),
    ("half of the block passes by the barrier", LD, BARRIER, "if (threadIdx.x < 32) __syncthreads();",
     "barrier-divergence"),
    ("the warp barrier before the strip is read is dropped", STAGED, r"(LDS_D, wmma::mem_row_major\);\s*\}\s*)"
     r"__syncwarp\(\);", r"\1", "race"),
    ("the warp barrier behind the strip is dropped", STAGED, r"__syncwarp\(\);(  // the strip is read)", r"\1", "race"),
    ("the strip overlays slices that are still read", STAGED, BARRIER + r"(  // every warp has read the last)", r"\1",
     "race"),
    ("the leading dimension of the staged A is wrong", TILES, r"(_sync\(a\[i\][^;]*)LDS_A\)", r"\1LDS_A + 4)",
     "fragment-ldm"),
    ("a pointer moves by half a fragment", TILES, r"(load_matrix_sync\(b\[j\], )", r"\1 8 + ", "fragment-pointer"),
    ("A is read beyond its end", GLOBAL, r"0 : K / BLOCK_K;", "0 : K / BLOCK_K + 400;", "out-of-bounds"),
    ("accumulators are not zeroed", TILES, r"wmma::fill_fragment\([^;]*;", "", "poison-stored"),
    ("C is not read", GLOBAL, r"if \(beta == 0\)", "if (true)", ""),
    ("blocks write the same tile", TILES, r"block_col = [^;]*;", "block_col = 0;", "race-between-blocks"),
    ("an element is told by its place in the fragment", TILES, r"(\n  // 5\. )",
     r"\n  if (threadIdx.x % 32 == 0) acc[0][0].x[0] = 0.0f;\1", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kernel", "old", "new", "code"), MUTANTS, ids=[m[0] for m in MUTANTS])
def test_mutants_are_found(name: str, kernel: tuple[int, str], old: str, new: str, code: str) -> None:
    made = make(*kernel)
    source = re.sub(old, new, made.source, count=1)
    assert source != made.source, "the mutant changes nothing"
    # A mistake may need a certain length of the pipeline, or a factor, to show.
    seen: list[str] = []
    for problem in made.problems:
        exact, got = check(made, problem, source)
        found = [f for f in got.findings if f.code == code]
        if found or not (code or exact):
            break
        seen += [str(f) for f in got.findings]
    assert bool(found) or not (code or exact), seen
    assert all(1 <= f.source_line <= source.count("\n") for f in found)


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
    narrow = counts(base + ",align_a=2,align_b=2")
    assert narrow.instructions["asynchronous copy"] > 2 * padded.instructions["asynchronous copy"]
