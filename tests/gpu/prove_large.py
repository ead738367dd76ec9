"""The proof of size: offsets beyond 2^31 elements and grids beyond 65,535 blocks, exact on a GPU. Writes its record.

    python tests/gpu/prove_large.py [--arch sm_90] [--only KEY] [--to tests/gpu/records]

A matrix of few lines with a leading dimension so large that its last lines begin beyond 2^31 elements shows an offset
that was formed in 32 bits: it leaves the buffer or meets the guard between two lines. A matrix of many rows or columns
has more blocks than a grid's second and third direction may have. Every matrix of a kernel has its turn, for each way
in which the templates read and write it; a batch has matrices and vectors that lie that far apart, splits of K have a
workspace that is that large, and what is padded lies as far apart as what a kernel reads. Needs about 20 GB on the card
and 50 GB beside it, and some minutes: after each problem what is known so far is written. ``--only KEY`` takes the
problems of which KEY is large, ``m``, ``ldb`` or ``workspace`` for example, and has a record of its own. Exit status 0
where all are exact.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import defaults, derive, emit, padding, render, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend
from wmmagen.backends.pick import pick
from wmmagen.config import STRIDES, KernelConfig, Problem, Residue, name
from wmmagen.errors import Fault
from wmmagen.foundry import compile_source

#: The first offset that a 32-bit integer does not hold; in elements.
FAR = 2**31
#: The first number of blocks that a grid's second direction does not take.
MANY = 65_536
SMALL = "warps=2x2,frags=2x2"
#: Every way to read A, B and C and to write D; each matrix has its turn.
FAR_CASES = (
    f"{SMALL},copy=cpasync,stages=3",
    f"{SMALL},copy=ld,stages=2,layout=cc,arrange_a=tiles,arrange_b=tiles,epilogue=linear",
    f"{SMALL},feed=global,layout=cr,residency=global",
    f"{SMALL},copy=ld,stages=1,layout=rc,store=staged,d=f16,epilogue=linear",
    f"{SMALL},residue=predicated,copy=cpasync,stages=3,layout=cr,epilogue=linear",
    f"{SMALL},residue=predicated,copy=ld,stages=2,layout=rc,store=staged,d=f16,epilogue=linear",
)
#: Further ways, each with the matrices that have their turn: the others are read by the same text as in a case above,
#: or in one of `prove_batched.py`, which has the strides of A, B, C and D.
#: Elements of a byte, where a type is no matter, since a turn takes as many of them as there are in 32 bits.
FAR_TURNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        f"a=s8,d=s8,batch=strided,{SMALL},copy=cpasync,stages=3,layout=rc,epilogue=linear+biasrow+residual",
        ("stride_r", "stride_bias_row"),
    ),
    (f"a=s8,d=s8,cd=cc,{SMALL},copy=ld,stages=1,layout=rc,epilogue=linear+residual", ("ldr", "ldd")),
    (
        f"a=s8,d=s8,cd=rc,residue=predicated,{SMALL},copy=ld,stages=2,layout=rc,epilogue=linear",
        ("ldc", "ldd"),
    ),
    (
        f"a=bf16,d=bf16,residue=predicated,warps_k=2,{SMALL},k_steps=4,copy=cpasync,stages=3,layout=cr",
        ("ldb",),
    ),
    (f"warps_k=2,{SMALL},k_steps=4,feed=global,layout=cr", ("lda",)),
    (f"split_k=2,reduction=workspace,{SMALL},copy=ld,stages=1,layout=cr", ("lda",)),
    (f"a=f64,{SMALL},copy=cpasync,stages=2,layout=rr", ("ldb",)),
)
#: The most blocks to a tile, and sums of two bytes: the least workspace that is so large.
FAR_WORK = f"acc=f16,d=f16,split_k=64,reduction=workspace,{SMALL},k_steps=1,copy=ld,stages=1,layout=rc"
#: Called on padded copies of what lies far apart.
FAR_PADDED = (
    (f"a=s8,{SMALL},copy=ld,stages=1,layout=rc", ("lda",)),
    (f"acc=f16,d=f16,{SMALL},copy=ld,stages=1", ("ldd",)),
)
TINY = "inst=16x16x16,warps=1x1,frags=1x1,k_steps=1"
MANY_CASES = (
    *(
        f"{TINY},{rest},raster={raster}"
        for rest in ("copy=ld,stages=1", "feed=global")
        for raster in ("linear", "grouped8", "panels8")
    ),
    f"{TINY},residue=predicated,copy=ld,stages=1,raster=panels8",
)


def far_problem(config: KernelConfig, key: str) -> Problem:
    """One whose last lines begin beyond :data:`FAR` elements in the matrix of leading dimension ``key``.

    With a stride, the second of two products does.
    """
    o, known = config.operation, derive.values(config)
    m, n, k = (x - _part(config) for x in (known["BLOCK_M"], known["BLOCK_N"], 3 * known["BLOCK_K"]))
    # Lines of whole tiles keep the promised alignment where extents are none.
    plain = Problem.packed(o, m, n, k, _part(config), batch=2 if o.batched else 1)
    if o.scaled:
        plain = replace(plain, alpha=2.0, beta=-1.0)
    if key.startswith("stride_"):
        apart = FAR + 64
    else:
        # The last two lines begin beyond it; a multiple of 64 elements keeps every promised alignment.
        apart = (FAR // (lines(plain, key) - 2) // 64 + 1) * 64
    far: dict[str, Any] = {key: apart}
    return replace(plain, **far)


def lines(problem: Problem, key: str) -> int:
    """How many lines, ``key`` elements apart, the matrix of that leading dimension has."""
    o, p = problem.operation, problem
    return {
        "lda": p.m if o.a_row_major else p.k,
        "ldb": p.k if o.b_row_major else p.n,
        "ldc": p.m if o.c_row_major else p.n,
        "ldr": p.m if o.c_row_major else p.n,
        "ldd": p.m if o.d_row_major else p.n,
    }[key]


def far_problems(config: KernelConfig) -> Iterator[tuple[str, Problem]]:
    """One problem for each matrix."""
    for key in ("lda", "ldb", "ldd", *(["ldc"] if config.operation.scaled else [])):
        yield key, far_problem(config, key)


def work_problem(config: KernelConfig) -> Problem:
    """One whose blocks keep more than :data:`FAR` sums in the workspace."""
    known = derive.values(config)
    down = 128
    across = FAR // known["TILE_WORK"] // down + 2  # the sums of the last tile begin beyond it
    size = down * known["BLOCK_M"], across * known["BLOCK_N"], known["SPLIT_K"] * known["BLOCK_K"]
    return Problem.packed(config.operation, *size)


def many_problems(config: KernelConfig) -> Iterator[tuple[str, Problem]]:
    """More than :data:`MANY` blocks down, and across."""
    known = derive.values(config)
    for key, one in (("m", known["BLOCK_M"]), ("n", known["BLOCK_N"])):
        size = {"m": known["BLOCK_M"], "n": known["BLOCK_N"], "k": 2 * known["BLOCK_K"], key: (MANY + 3) * one}
        # Rows of whole tiles keep the promised alignment; an extent that is no row may end within a tile.
        size["m"] -= _part(config)
        yield key, Problem.packed(config.operation, **size)


def _part(config: KernelConfig) -> int:
    """What a size may miss of whole tiles."""
    return int(config.operation.residue is Residue.PREDICATED)


@dataclass(frozen=True)
class Task:
    """A configuration, a problem of it and what is large there; ``padded`` where it is called on padded copies."""

    config: KernelConfig
    key: str
    problem: Problem
    padded: bool = False


def tasks(arch: Arch) -> Iterator[Task]:
    """Each configuration with each of its problems."""
    for pairs, problems in ((MANY_CASES, many_problems), (FAR_CASES, far_problems)):
        for text in pairs:
            config = defaults.read_config(text, arch)
            for key, problem in problems(config):
                yield Task(config, key, problem)
    for turns, padded in ((FAR_TURNS, False), (FAR_PADDED, True)):
        for text, keys in turns:
            config = defaults.read_config(text, arch)
            for key in keys:
                yield Task(config, key, far_problem(config, key), padded)
    config = defaults.read_config(FAR_WORK, arch)
    yield Task(config, "workspace", work_problem(config))


def tried(task: Task, arch: Arch, backend: Backend) -> tuple[bool, str]:
    """Whether D is exact and nothing else was touched, in words as well."""
    config, problem = task.config, task.problem
    try:
        source, binary = trial.build(config, arch)
        if task.padded:
            text = render.render_padding(config, arch)
            copiers = compile_source(text, render.padding_entry(source.symbol), arch)
            said = padding.check(config, binary, copiers, backend, problem)
            return not said, said or "exact (padded)"
        run = trial.check_run(config, binary, backend, problem)
        return run.exact, run.mismatch or f"exact ({run.method})"
    except Fault as fault:
        return False, fault.message
    finally:
        # Each problem is used once, and some hold 10 GB.
        trial.forget_cases()


def words(problem: Problem) -> str:
    """A problem with whatever of it may be large."""
    p, e = problem, problem.operation.epilogue
    told = f"{p} lda={p.lda} ldb={p.ldb} ldc={p.ldc} ldd={p.ldd}" + (f" ldr={p.ldr}" if e.has("r") else "")
    far = (f" {stride}={value}" for stride in STRIDES if (value := getattr(p, stride)) > FAR)
    return told + "".join(far)


def main() -> int:
    """Run, judge, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--only", default="", metavar="KEY")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    wanted = [task for task in tasks(arch) if asked.only in ("", task.key)]
    if not wanted:
        parser.error(f"there is no problem of {asked.only!r}; of {', '.join(sorted({t.key for t in tasks(arch)}))}")
    told, right, record = list[str](), True, f"large_{arch}{asked.only and '_'}{asked.only}.txt"
    with pick("gpu", arch) as place:
        print(place.first_line, flush=True)
        backend = place.demanded()
        for task in wanted:
            begin = time.monotonic()
            exact, said = tried(task, arch, backend)
            right = right and exact
            told.append(f"{task.key:<3} {said}: {words(task.problem)} {name(task.config)}")
            print(f"{told[-1]} ({time.monotonic() - begin:.0f} s)", flush=True)
            head = f"{backend.device}: {len(told)} of {len(wanted)} problems"
            emit.write(asked.to / record, "\n".join([head, *told]) + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(ended(main))
