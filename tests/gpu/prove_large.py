"""The proof of size: offsets beyond 2^31 elements and grids beyond 65,535 blocks, exact on a GPU. Writes its record.

    python tests/gpu/prove_large.py [--arch sm_90] [--to tests/gpu/records]

A matrix of few lines with a leading dimension so large that its last lines begin beyond 2^31 elements shows an offset
that was formed in 32 bits: it leaves the buffer or meets the guard between two lines. A matrix of many rows or columns
has more blocks than a grid's second and third direction may have. Every matrix of a kernel has its turn, for each way
in which the templates read and write it. Needs about 10 GB on the card and 50 GB beside it. Exit status 0 where all are
exact.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import defaults, derive, emit, trial
from wmmagen.arch import Arch
from wmmagen.backends.pick import pick
from wmmagen.config import KernelConfig, Problem, Residue, name
from wmmagen.errors import Fault

#: The first offset that a 32-bit integer does not hold; in elements.
FAR = 2**31
#: The first number of blocks that a grid's second direction does not take.
MANY = 65_536
SMALL = "warps=2x2,frags=2x2"
#: Every way to read A, B and C and to write D.
FAR_CASES = (
    f"{SMALL},copy=cpasync,stages=3",
    f"{SMALL},copy=ld,stages=2,layout=cc,arrange_a=tiles,arrange_b=tiles,epilogue=linear",
    f"{SMALL},feed=global,layout=cr,residency=global",
    f"{SMALL},copy=ld,stages=1,layout=rc,store=staged,d=f16,epilogue=linear",
    f"{SMALL},residue=predicated,copy=cpasync,stages=3,layout=cr,epilogue=linear",
    f"{SMALL},residue=predicated,copy=ld,stages=2,layout=rc,store=staged,d=f16,epilogue=linear",
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


def far_problems(config: KernelConfig) -> Iterator[tuple[str, Problem]]:
    """One problem for each matrix, whose last lines begin beyond :data:`FAR` elements."""
    o, known = config.operation, derive.values(config)
    m, n, k = (x - _part(config) for x in (known["BLOCK_M"], known["BLOCK_N"], 3 * known["BLOCK_K"]))
    plain = Problem.packed(o, m, n, k)
    lines = {"lda": k if o.layout[0] == "c" else m, "ldb": n if o.layout[1] == "c" else k, "ldd": m}
    if o.scaled:
        lines["ldc"] = m
        plain = replace(plain, alpha=2.0, beta=-1.0)
    for key, count in lines.items():
        # The last two lines begin beyond it; a multiple of 64 elements keeps every promised alignment.
        yield key, replace(plain, **{key: (FAR // (count - 2) // 64 + 1) * 64})


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


def tasks(arch: Arch) -> Iterator[tuple[KernelConfig, str, Problem]]:
    """Each configuration with each of its problems, and what is large there."""
    for pairs, problems in ((MANY_CASES, many_problems), (FAR_CASES, far_problems)):
        for text in pairs:
            config = defaults.read_config(text, arch)
            for key, problem in problems(config):
                yield config, key, problem


def main() -> int:
    """Run, judge, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    lines, right = [], True
    with pick("gpu", arch) as place:
        print(place.first_line, flush=True)
        backend = place.demanded()
        lines.append(backend.device)
        for config, key, problem in tasks(arch):
            begin = time.monotonic()
            try:
                run = trial.check_run(config, trial.build(config, arch)[1], backend, problem)
                said, exact = run.mismatch or f"exact ({run.method})", run.exact
            except Fault as fault:
                said, exact = fault.message, False
            # Each problem is used once, and some hold 10 GB.
            trial.forget_cases()
            right = right and exact
            p = problem
            dims = f"lda={p.lda} ldb={p.ldb} ldc={p.ldc} ldd={p.ldd}"
            lines.append(f"{key:<3} {said}: {p.m}x{p.n}x{p.k} {dims} {name(config)}")
            print(f"{lines[-1]} ({time.monotonic() - begin:.0f} s)", flush=True)
    emit.write(asked.to / f"large_{arch}.txt", "\n".join(lines) + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(ended(main))
