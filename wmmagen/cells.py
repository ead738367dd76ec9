"""A set of cells of a grid, packed as bits: its size, its n-th cell and the place of a cell, without writing it out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
Cell = tuple[int, ...]

#: Cells that are unpacked at a time, at most: few enough to look through, enough that rows need no large index.
_ROW = 4096


class Cells:
    """The cells in which every one of some masks holds, in the order in which the last dimension varies fastest.

    Positions that a mask of a single dimension rules out are left out of the grid. What remains is a row of bits for
    each cell of the leading dimensions. A dimension that no mask speaks of has length 1 in the bits.
    """

    def __init__(self, masks: Sequence[Mask], shape: Cell) -> None:
        """Join ``masks``.

        Args:
            masks: each has the dimensions of ``shape``, with length 1 where it does not speak of one.
            shape: of the grid.
        """
        self._kept = _kept(masks, shape)
        self._shape = tuple(len(positions) for positions in self._kept)
        joined = _joined([_restricted(mask, self._kept) for mask in masks], len(shape))
        cut = next(d for d in range(len(shape) + 1) if math.prod(self._shape[d:]) <= _ROW)
        self._head, self._tail = self._shape[:cut], self._shape[cut:]
        head, self._row_shape = joined.shape[:cut], joined.shape[cut:]
        rows = joined.reshape(math.prod(head), math.prod(self._row_shape))
        self._bits = np.packbits(rows, axis=1)
        # Which row of bits belongs to a cell of the leading dimensions, and how many cells come before it.
        numbers = np.arange(len(rows)).reshape(head)
        self._row_of = np.broadcast_to(numbers, self._head).reshape(-1)
        held = np.bitwise_count(self._bits).sum(axis=1, dtype=np.int64)
        if rows.size:
            held *= math.prod(self._tail) // rows.shape[1]
        self._starts: Counts = np.concatenate(([0], np.cumsum(held[self._row_of])))

    def __len__(self) -> int:
        return int(self._starts[-1])

    def at(self, place: int) -> Cell:
        """The cell at ``place``, from 0 to less than the size."""
        number = int(np.searchsorted(self._starts, place, side="right")) - 1
        offset = int(self._places(number)[place - int(self._starts[number])])
        return self._cell(number, offset)

    def place(self, cell: Cell) -> int | None:
        """Where in the order ``cell`` stands; None where it is not in the set."""
        local = [_find(positions, p) for positions, p in zip(self._kept, cell, strict=True)]
        found = [p for p in local if p is not None]
        if len(found) < len(local):
            return None
        cut = len(self._head)
        number, offset = _flat(found[:cut], self._head), _flat(found[cut:], self._tail)
        places = self._places(number)
        before = int(np.searchsorted(places, offset))
        here = before < len(places) and int(places[before]) == offset
        return int(self._starts[number]) + before if here else None

    def __iter__(self) -> Iterator[Cell]:
        for number in np.flatnonzero(np.diff(self._starts)):
            for offset in self._places(int(number)):
                yield self._cell(int(number), int(offset))

    def occurring(self) -> list[tuple[int, ...]]:
        """For each dimension, the positions that some cell of the set has."""
        head = (np.diff(self._starts) > 0).reshape(self._head)
        tail = self._spread(np.bitwise_or.reduce(self._bits, axis=0))
        lines = [*_lines(head), *_lines(tail)]
        return [tuple(int(p) for p in k[line]) for k, line in zip(self._kept, lines, strict=True)]

    def _places(self, number: int) -> npt.NDArray[np.intp]:
        """The cells of the last dimensions that go with a cell of the leading ones."""
        return np.flatnonzero(self._spread(self._bits[self._row_of[number]]))

    def _spread(self, bits: npt.NDArray[np.uint8]) -> Mask:
        """One row as a mask of the last dimensions."""
        row = np.unpackbits(bits, count=math.prod(self._row_shape)).astype(np.bool_)
        return np.broadcast_to(row.reshape(self._row_shape), self._tail)

    def _cell(self, number: int, offset: int) -> Cell:
        local = [*np.unravel_index(number, self._head), *np.unravel_index(offset, self._tail)]
        return tuple(int(positions[p]) for positions, p in zip(self._kept, local, strict=True))


def _kept(masks: Sequence[Mask], shape: Cell) -> list[npt.NDArray[np.intp]]:
    """For each dimension, the positions that no mask of that dimension alone rules out."""
    lines = [np.ones(length, dtype=np.bool_) for length in shape]
    for mask in masks:
        speaks = [d for d, length in enumerate(mask.shape) if length > 1]
        if len(speaks) <= 1:
            lines[speaks[0] if speaks else 0] &= mask.reshape(-1)
    return [np.flatnonzero(line) for line in lines]


def _restricted(mask: Mask, kept: Sequence[npt.NDArray[np.intp]]) -> Mask:
    """``mask`` on the kept positions of the dimensions that it speaks of."""
    for dimension, positions in enumerate(kept):
        length = mask.shape[dimension]
        if length > 1 and len(positions) < length:
            mask = np.take(mask, positions, axis=dimension)
    return mask


def _joined(masks: Sequence[Mask], dimensions: int) -> Mask:
    """Where all ``masks`` hold. Two at a time, those with the fewest cells together first: few passes are large."""
    alike: dict[Cell, Mask] = {(1,) * dimensions: np.ones((1,) * dimensions, dtype=np.bool_)}
    for mask in masks:
        if not mask.all():
            alike[mask.shape] = alike[mask.shape] & mask if mask.shape in alike else mask
    parts = list(alike.values())
    for one, other in _pairs(tuple(alike)):
        parts.append(parts[one] & parts[other])
    return parts[-1]


@lru_cache
def _pairs(shapes: tuple[Cell, ...]) -> list[tuple[int, int]]:
    """Which two to join, again and again; a pair that was joined has the number behind all that there are."""
    left, pairs = dict(enumerate(shapes)), list[tuple[int, int]]()
    while len(left) > 1:
        one, other = min(combinations(left, 2), key=lambda pair: math.prod(map(max, left[pair[0]], left[pair[1]])))
        joined = tuple(map(max, left.pop(one), left.pop(other)))
        left[len(shapes) + len(pairs)] = joined
        pairs.append((one, other))
    return pairs


def _lines(mask: Mask) -> list[Mask]:
    """For each dimension of ``mask``, at which positions it holds anywhere."""
    return [np.asarray(mask.any(axis=tuple(o for o in range(mask.ndim) if o != d))) for d in range(mask.ndim)]


def _find(positions: npt.NDArray[np.intp], position: int) -> int | None:
    local = int(np.searchsorted(positions, position))
    return local if local < len(positions) and int(positions[local]) == position else None


def _flat(cell: Sequence[int], shape: Cell) -> int:
    number = 0
    for position, length in zip(cell, shape, strict=True):
        number = number * length + position
    return number
