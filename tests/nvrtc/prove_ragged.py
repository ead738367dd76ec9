"""Kernels for all sizes on the CPU executor: exact wherever a matrix ends, mistakes at edges found. Writes its record.

    python tests/nvrtc/prove_ragged.py [--each 12] [--sizes 16] [--jobs N] [--to tests/nvrtc/records]

For each of three architectures, the variants of ``tests/ragged.py`` and drawn ones are validated on their hostile
problems and on sizes drawn from {1, 7, 8, 15, 16, 17, 31, 33, 63, 65, 100, 129} in all orders; on a GPU
``tests/gpu/prove_ragged.py`` takes all 1,728. Then constructed mistakes at edges are judged, beside those of ``wmmagen
mutants``. Drawn by a fixed seed. Exit status 0 where all are exact, nothing is found in them, and every mistake is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.ragged import MISTAKES, VARIANTS, drawn, problem_of, sizes
from wmmagen import defaults, emit, mutants, nvrtc, rules, show, trial
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends.cpu import CpuBackend
from wmmagen.config import KernelConfig, name
from wmmagen.errors import Fault
from wmmagen.foundry import usable_cores

ARCHITECTURES = (75, 80, 90)
SEED = 20_261_130
_SAID_EVERY = 10


def chosen(each: int) -> list[tuple[Arch, KernelConfig]]:
    """The listed variants that an architecture has, and ``each`` drawn ones."""
    found: list[tuple[Arch, KernelConfig]] = []
    for sm in ARCHITECTURES:
        arch = ARCHS[sm]
        listed = (defaults.read_config(f"residue=predicated,{text}", arch) for text in VARIANTS)
        found += [(arch, config) for config in listed if rules.legal(config, arch)]
        found += [(arch, config) for config in drawn(arch, each)]
    return found


def prove(number: int, arch: Arch, config: KernelConfig, count: int) -> tuple[int, str]:
    """How many launches one had, and what was wrong."""
    _, binary = trial.build(config, arch)
    rng = random.Random(SEED + number)
    asked = [problem_of(config, size, turn) for turn, size in enumerate(sizes(rng, count))]
    try:
        runs = trial.validate(
            config, binary, CpuBackend(seed=1000 * number), [*trial.validation_problems(config), *asked], above=None
        )
    except Fault as fault:
        return 0, f"{fault.outcome}: {fault.message}"
    return len(runs), "; ".join(f"{r.problem}: {r.mismatch}" for r in runs if not (r.exact and r.guaranteed))


def main() -> int:
    """Draw, validate, judge, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=12)
    parser.add_argument("--sizes", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=usable_cores())
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    begin = time.monotonic()
    # One thread for each process is enough: NumPy's libraries would start as many again as there are cores.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    wanted = chosen(asked.each)
    lines, launches, wrong = [], 0, 0
    with ProcessPoolExecutor(asked.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(prove, n, arch, config, asked.sizes) for n, (arch, config) in enumerate(wanted)]
        for done, ((arch, config), future) in enumerate(zip(wanted, futures, strict=True), 1):
            count, said = future.result()
            launches += count
            wrong += bool(said)
            lines.append(
                f"{'WRONG' if said else 'exact':<5} {count:>3} launches  {arch}  {name(config)}  {said}".rstrip()
            )
            if said:
                print(lines[-1], file=sys.stderr, flush=True)
            if done % _SAID_EVERY == 0:
                print(f"{done} of {len(wanted)} after {time.monotonic() - begin:.0f} s", flush=True)
    cases = list(mutants.cases(MISTAKES, [ARCHS[80]]))
    rows = mutants.judge_all(cases, mutants.executor(), jobs=asked.jobs, told=lambda row: None)
    survivors = [row for row in rows if row.survived]
    head = [
        f"CPU executor, {asked.jobs} processes, {time.monotonic() - begin:.0f} s; {nvrtc.title()}",
        f"{len(wanted)} kernels for all sizes, {launches} checked launches: {len(wanted) - wrong} exact without a "
        f"finding, {wrong} not",
        f"mistakes at edges beside the table: {show.kill_rate(rows)}",
    ]
    print("\n".join(head))
    judged = [f"{'killed' if row.killed else 'SURVIVED'} by {row.by or 'nothing':<20} {row.case}" for row in rows]
    emit.write(asked.to / "ragged.txt", "\n".join([*head, "", *lines, "", *judged]) + "\n")
    return 1 if wrong or survivors else 0


if __name__ == "__main__":
    sys.exit(main())
