"""Freivalds' check: whether D is the exact result, without the full product.

R. Freivalds, "Probabilistic machines can use less running time", IFIP Congress 1977. Where D holds every exact result,
D = alpha·A·B + beta·C is an equation between integer matrices, in units of the epilogue. Both sides are multiplied by
random vectors, from the right (D·x against alpha·A·(B·x) + beta·C·x) and from the left. That takes O(n²) and is exact:
every partial sum is an integer below 2^53, which the bound of the inputs proves. A wrong row keeps its sum against one
random vector with entries from R values with probability 1/R at most.

The vectors have fixed seeds, so a failure repeats; no kernel sees them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wmmagen.config import Problem
from wmmagen.layout import Array
from wmmagen.reference import Inputs, is_chain, room_of

VECTORS = 4
#: Up to here float64 counts exactly.
_EXACT = 2**53
#: Entries of the random vectors come from 2^these values, as many as the bound allows; fewer would prove little.
_MOST_BITS, _LEAST_BITS = 16, 8
#: Of the right and of the left vectors; the inputs come from another generator.
_SEEDS = (1, 2)


@dataclass(frozen=True, eq=False)
class Freivalds:
    """The random vectors for one set of inputs, and what the right D makes of them.

    Attributes:
        unit: exponent of the power of two in whose multiples D is counted.
        entry_bits: entries of a vector come from 2^this values.
        largest: no right element is beyond it, in units.
        right: n × vectors; ``right_sums``, m × vectors, is what D·right must be.
        left: vectors × m; ``left_sums``, vectors × n, is what left·D must be.
    """

    unit: int
    entry_bits: int
    largest: int
    right: Array = field(repr=False)
    right_sums: Array = field(repr=False)
    left: Array = field(repr=False)
    left_sums: Array = field(repr=False)

    @property
    def miss_bits(self) -> int:
        """A wrong D passes with a probability of 2^-this at most."""
        return VECTORS * self.entry_bits

    def suspects(self, values: Array) -> tuple[Array, Array]:
        """The rows and the columns (indices) whose sums are not those of the right D; empty where all are.

        Args:
            values: D as left, m×n, of a floating or integer type. An element that no right D holds (NaN, an infinity,
                more than the bound, a fraction of a unit) makes its row and its column suspect by itself.
        """
        counted = np.ldexp(values.astype(np.float64), -self.unit)
        # NaN fails the comparison, too.
        impossible = ~(np.abs(counted) <= self.largest)
        counted[impossible] = 0
        impossible |= counted != np.rint(counted)
        counted[impossible] = 0
        rows = (counted @ self.right != self.right_sums).any(axis=1) | impossible.any(axis=1)
        cols = (self.left @ counted != self.left_sums).any(axis=0) | impossible.any(axis=0)
        return np.flatnonzero(rows), np.flatnonzero(cols)


def prepare(inputs: Inputs) -> Freivalds | None:
    """The vectors for these inputs; None where D is rounded, wraps, is too large to be counted, or of a chain.

    Also None where alpha is 0: then there is no product that could be saved.
    """
    p = inputs.problem
    if is_chain(p.operation):
        return None  # its steps are no sums of products
    unit, alpha, beta = _scale(p)
    largest = abs(alpha) * inputs.bound + abs(beta) * _largest(inputs.c)
    # 2^-24 is the smallest f16; every wider type goes on below it, and integers have no fractions.
    smallest = 0 if p.operation.d.integer else -24
    if not alpha or not inputs.guaranteed or largest > p.operation.d.exact_limit or unit < smallest:
        return None
    entries = _entry_bits(inputs, largest)
    if entries < _LEAST_BITS:
        return None
    right = _vectors(p.n, entries, _SEEDS[0])
    left = _vectors(p.m, entries, _SEEDS[1]).T
    a, b = inputs.a.astype(np.float64), inputs.b.astype(np.float64)
    right_sums, left_sums = alpha * (a @ (b @ right)), alpha * ((left @ a) @ b)
    if inputs.c is not None:
        c = inputs.c.astype(np.float64)
        right_sums, left_sums = right_sums + beta * (c @ right), left_sums + beta * (left @ c)
    return Freivalds(unit, entries, largest, right, right_sums, left, left_sums)


def _scale(problem: Problem) -> tuple[int, int, int]:
    """Exponent of the unit, and alpha and beta in units."""
    if not problem.operation.scaled:
        return 0, 1, 0
    room = room_of(problem)
    return room.exponent, room.alpha, room.beta


def _entry_bits(inputs: Inputs, largest: int) -> int:
    """The most bits with which every partial sum of the check stays within :data:`_EXACT`; 0 or less for none.

    A partial sum of D·x or of A·(B·x), scaled, is at most n·max(x)·``largest``; one of B·x is n·max(x)·max|B|.
    """
    operand = max(_largest(inputs.a), _largest(inputs.b))
    most = max(inputs.problem.m, inputs.problem.n, 1) * max(largest, operand, 1)
    return min(_MOST_BITS, (_EXACT // most).bit_length() - 1)


def _largest(values: Array | None) -> int:
    return 0 if values is None else max(int(values.max(initial=0)), -int(values.min(initial=0)))


def _vectors(length: int, bits: int, seed: int) -> Array:
    """Length × vectors of random integers from 0 to 2^bits - 1, as ``float64``."""
    return np.random.default_rng(seed).integers(0, 1 << bits, (length, VECTORS)).astype(np.float64)
