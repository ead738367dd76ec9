"""How fast the rules are on columns, and a whole space made. One core; `python tests/pure/bench_space.py --to FILE`."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

# Before NumPy starts threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from cases_space import columns_of, random_points

from wmmagen import derive
from wmmagen import dtypes as t
from wmmagen.arch import ARCHS, Arch
from wmmagen.config import Operation
from wmmagen.rules import RULES
from wmmagen.space import Space, _legal

POINTS = 1_000_000
#: The owner's limit for so many points.
LIMIT_S = 2.0
OPERATIONS = (Operation(t.F16, t.F32, t.F32), Operation(t.F16, t.F16, t.F16))


def legal_rows(columns: dict[str, object]) -> np.ndarray:
    """Which points of a table break no rule."""
    known = derive.extend(columns)
    legal = np.ones(POINTS, dtype=np.bool_)
    for rule in RULES:
        legal &= rule.kept(known)
    return legal


def measured(work: Callable[[], object], repeats: int) -> str:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return f"median {statistics.median(seconds):.3f} s, least {min(seconds):.3f} s"


def table_lines(repeats: int) -> list[str]:
    space = Space(OPERATIONS[0], ARCHS[90])
    points = random_points(space, POINTS, seed=0)
    columns = columns_of(space, points)
    legal = int(np.count_nonzero(legal_rows(columns)))
    many = [name for name, values in columns.items() if isinstance(values, np.ndarray)]
    took = measured(lambda: legal_rows(columns), repeats)
    return [
        f"A table of {POINTS} random raw points, {space.operation.a.name} to {space.operation.d.name} on {space.arch}",
        f"  {len(many)} columns of {POINTS} rows: {' '.join(many)}",
        f"  every derived number and every rule: {took} (limit {LIMIT_S:g} s)",
        f"  legal: {legal}; the space says {len(space) / space.raw:.6f} of all, the table {legal / POINTS:.6f}",
    ]


def made_anew(operation: Operation, arch: Arch) -> Space:
    _legal.cache_clear()
    return Space(operation, arch)


def space_lines(repeats: int) -> list[str]:
    lines = ["Whole default spaces, made"]
    for operation in OPERATIONS:
        for arch in (arch for sm, arch in ARCHS.items() if sm >= 75):
            space = Space(operation, arch)
            took = measured(lambda o=operation, a=arch: made_anew(o, a), repeats)  # type: ignore[misc]
            lines.append(f"  {operation.acc.name} {arch!s:<7} {len(space):>9} of {space.raw} legal: {took}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, help="write the record to this file, too")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, one core, {asked.repeats} repeats"
    text = "\n".join([versions, *table_lines(asked.repeats), *space_lines(asked.repeats)])
    print(text)
    if asked.to is not None:
        asked.to.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
