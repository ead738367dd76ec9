"""Configurations and problems that are drawn freely, beside the listed ones; the same generator draws the same ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from tests.draws import MOST_ELEMENTS
from wmmagen import derive, dtypes, trial
from wmmagen.arch import Arch
from wmmagen.config import Epilogue, KernelConfig, Layout, Operation, Problem
from wmmagen.space import Space

ALIGNMENTS = (8, 8, 4, 2, 1)
#: Points that are drawn from a space at a time, of which some are larger than what is looked for.
TRIES = 64
#: Blocks down and across that are drawn: more than any width of a raster, so that groups are full, and cut short.
MOST_BLOCKS = 9
MOST_SLICES = 24
#: Of the largest hostile problem, as multiply-adds. Upwards of it, and no further, because each launch is executed.
MOST_WORK = 2
FACTORS = (-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)


def from_spaces(
    arch: Arch, rng: random.Random, seen: set[KernelConfig], most_elements: int = MOST_ELEMENTS
) -> Iterator[KernelConfig]:
    """Points that the CPU executor takes on their hostile problems, with block tiles of ``most_elements`` at most.

    None of them is among ``seen``, where they are put.

    One from the search space of each operation on f16 operands that is drawn, as likely as any other of that space.
    """
    while True:
        acc, d = (rng.choice((dtypes.F32, dtypes.F16)) for _ in range(2))
        aligned = {f"align_{matrix}": rng.choice(ALIGNMENTS) for matrix in "abd"}
        operation = Operation(
            dtypes.F16, acc, d, rng.choice(list(Layout)), rng.choice((Epilogue.NONE, Epilogue.LINEAR)), **aligned
        )
        points = (c for c in Space(operation, arch).sample(rng, TRIES) if c not in seen)
        for config in islice((c for c in points if _taken(c, most_elements)), 1):
            seen.add(config)
            yield config


def _elements(config: KernelConfig) -> int:
    known = derive.values(config)
    return int(known["BLOCK_M"] * known["BLOCK_N"])


def _few_wait(config: KernelConfig, m: int, n: int) -> bool:
    """Whether few blocks may wait for each other: they cost the executor memory by the square of their number."""
    known = derive.values(config)
    blocks = m // known["BLOCK_M"] * (n // known["BLOCK_N"]) * config.split_k
    return config.split_k == 1 or bool(blocks <= MOST_BLOCKS**2)


def _taken(config: KernelConfig, most_elements: int) -> bool:
    """Whether the executor takes the hostile problems of ``config``, whose block tile is small enough."""
    if _elements(config) > most_elements:
        return False
    return config.split_k == 1 or all(_few_wait(config, p.m, p.n) for p in trial.validation_problems(config))


def larger(config: KernelConfig, rng: random.Random) -> Problem:
    """A legal problem with more multiply-adds than any of the hostile ones, but no more than twice as many.

    Leading dimensions are the extents or more, aligned as ``config`` demands and by chance further.
    """
    known = derive.values(config)
    largest = max(p.m * p.n * p.k for p in trial.validation_problems(config))
    while True:
        m = rng.randint(1, MOST_BLOCKS) * known["BLOCK_M"]
        n = rng.randint(1, MOST_BLOCKS) * known["BLOCK_N"]
        k = rng.randint(1, MOST_SLICES * config.split_k) * known["BLOCK_K"]
        if _few_wait(config, m, n) and largest < m * n * k <= MOST_WORK * largest:
            return _spaced(config, m, n, k, rng)


def _spaced(config: KernelConfig, m: int, n: int, k: int, rng: random.Random) -> Problem:
    o, bytes_of = config.operation, trial.pointer_shifts(config)

    def row(extent: int, unit_bytes: int, bits: int) -> int:
        unit = unit_bytes * 8 // bits
        return (-(-extent // unit) + rng.randint(0, 5)) * unit

    lda = row(k if o.a_row_major else m, bytes_of.a, o.a.bits)
    ldb = row(n if o.b_row_major else k, bytes_of.b, o.a.bits)
    ldd = row(n, bytes_of.d, o.d.bits)
    if not o.scaled:
        return Problem(o, m, n, k, lda, ldb, ldd)
    ldc = row(n, bytes_of.d, o.d.bits)
    return Problem(o, m, n, k, lda, ldb, ldd, ldc, alpha=rng.choice(FACTORS), beta=rng.choice(FACTORS))
