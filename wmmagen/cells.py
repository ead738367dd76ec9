"""A set of cells of a grid, packed as bits: its size, its n-th cell and the place of a cell, without writing it out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Words = npt.NDArray[np.unsignedinteger[Any]]
Counts = npt.NDArray[np.int64]
Cell = tuple[int, ...]

#: Cells that are unpacked at a time, at most: few enough to look through, enough that rows need no large index.
_ROW = 4096
#: Words of bits, the smallest first; their bytes stand in the order in which their bits are unpacked.
_WORDS = tuple(np.dtype(kind) for kind in ("<u1", "<u2", "<u4", "<u8"))
_WORD_BITS = _WORDS[-1].itemsize * 8


class Cells:
    """The cells in which every one of some masks holds, in the order in which the last dimension varies fastest.

    Positions that a mask of a single dimension rules out are left out of the grid. What remains is a row of words for
    each cell of the leading dimensions. A dimension that no mask speaks of has length 1 there, and some of the last
    dimensions are bits of a word.
    """

    def __init__(self, masks: Sequence[Mask], shape: Cell) -> None:
        """Join ``masks``.

        Args:
            masks: each has the dimensions of ``shape``, with length 1 where it does not speak of one.
            shape: of the grid.
        """
        self._kept = _kept(masks, shape)
        self._shape = tuple(len(positions) for positions in self._kept)
        cut = next(d for d in range(len(shape) + 1) if math.prod(self._shape[d:]) <= _ROW)
        self._head, self._tail = self._shape[:cut], self._shape[cut:]
        everywhere = np.ones((1,) * len(shape), dtype=np.bool_)
        restricted = (_restricted(mask, self._kept) for mask in masks)
        alike = _alike([everywhere, *(mask for mask in restricted if not mask.all())])
        spoken = np.broadcast_shapes(*alike)
        self._inner = _inner(tuple(alike), cut, spoken)
        self._outer = tuple(d for d in range(cut, len(shape)) if d not in self._inner)
        self._row_shape = spoken[cut:]
        packed = [_packed(mask, self._inner, spoken) for mask in alike.values()]
        joined = _joined(_alike(packed))
        self._words = joined.reshape(math.prod(spoken[:cut]), -1)
        # Which row of words belongs to a cell of the leading dimensions, and how many cells come before it.
        numbers = np.arange(len(self._words)).reshape(spoken[:cut])
        self._row_of = np.broadcast_to(numbers, self._head).reshape(-1)
        held = np.bitwise_count(self._words).sum(axis=1, dtype=np.int64)
        if held.size:
            held *= math.prod(self._tail) // math.prod(spoken[cut:])
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
        tail = self._spread(np.bitwise_or.reduce(self._words, axis=0))
        lines = [*_lines(head), *_lines(tail)]
        return [tuple(int(p) for p in k[line]) for k, line in zip(self._kept, lines, strict=True)]

    def _places(self, number: int) -> npt.NDArray[np.intp]:
        """The cells of the last dimensions that go with a cell of the leading ones."""
        return np.flatnonzero(self._spread(self._words[self._row_of[number]]))

    def _spread(self, words: Words) -> Mask:
        """One row as a mask of the last dimensions."""
        order = [d - len(self._head) for d in (*self._outer, *self._inner)]
        lengths = [self._row_shape[d] for d in order]
        many = math.prod(lengths[len(self._outer) :])
        bits = np.unpackbits(words.view(np.uint8).reshape(len(words), -1), axis=1, count=many, bitorder="little")
        row = bits.view(np.bool_).reshape(lengths).transpose(np.argsort(order))
        return np.broadcast_to(row, self._tail)

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


def _alike(masks: Iterable[npt.NDArray[Any]]) -> dict[Cell, npt.NDArray[Any]]:
    """Of each shape of ``masks``, where all of that shape hold."""
    alike: dict[Cell, npt.NDArray[Any]] = {}
    for mask in masks:
        alike[mask.shape] = alike[mask.shape] & mask if mask.shape in alike else mask
    return alike


@lru_cache
def _inner(shapes: tuple[Cell, ...], cut: int, spoken: Cell) -> Cell:
    """Dimensions from ``cut`` on that fit into a word, those first of which only small masks speak.

    What does not speak of them has one word where the grid has many cells, so that large passes have few of them.
    """
    speak = {d: sum(math.prod(s) for s in shapes if s[d] > 1) for d in range(cut, len(spoken)) if spoken[d] > 1}
    found: list[int] = []
    for d in sorted(speak, key=lambda d: speak[d]):
        if math.prod(spoken[i] for i in (*found, d)) <= _WORD_BITS:
            found.append(d)
    return tuple(sorted(found))


def _packed(mask: Mask, inner: Cell, spoken: Cell) -> Words:
    """``mask`` in words whose bits are the cells of the ``inner`` dimensions, which have length 1 then."""
    outside = tuple(1 if d in inner else length for d, length in enumerate(mask.shape))
    patterns = _patterns(tuple(spoken[d] for d in inner), tuple(mask.shape[d] for d in inner))
    parts = np.moveaxis(mask, inner, range(len(inner))).reshape(len(patterns), -1)
    words = np.zeros(parts.shape[1], dtype=patterns.dtype)
    for part, pattern in zip(parts, patterns, strict=True):
        words |= part * pattern
    return words.reshape(outside)


@lru_cache
def _patterns(inner: Cell, speaks: Cell) -> Words:
    """For each cell of a mask of lengths ``speaks``, the word of the cells of ``inner`` dimensions that it means."""
    bits = np.arange(math.prod(inner)).reshape(inner)
    own = (bits[tuple(slice(i, i + 1) if n > 1 else slice(None) for i, n in zip(c, speaks, strict=True))]
           for c in np.ndindex(speaks))  # fmt: skip
    word = next(kind for kind in _WORDS if kind.itemsize * 8 >= bits.size)
    return np.array([sum(1 << bit for bit in cells.reshape(-1).tolist()) for cells in own], dtype=word)


def _joined(alike: Mapping[Cell, Words]) -> Words:
    """Where all of some words hold. Two at a time, those with the fewest together first: few passes are large."""
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
