"""Strong operations on global memory: which other accesses each of them, and each plain access, has to be ordered with.

Two strong operations are no race where they mean the same bytes and each one's scope holds the other's lane. All else
is a race unless it is ordered: by what lanes know (:mod:`wmmagen.executor.clocks`), or because the later lane has seen
the earlier write, itself or through updates of others. Operations are kept in the order in which they happened.

Source: PTX ISA, "Memory Consistency Model": morally strong operations, conflict and data races, causality order.
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#memory-consistency-model
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wmmagen.arch import WARP_SIZE
from wmmagen.executor.clocks import Clocks

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

READ, STORE, UPDATE = range(3)
_SEVERAL = -1
#: Operations that are kept before those are dropped which a later one of the same lane stands for.
_FIRST_LIMIT = 1 << 20


@dataclass(frozen=True)
class Strength:
    """What makes an operation strong.

    Attributes:
        device: whether its scope is the device (or wider), and not the block.
        acquires, releases: its order; neither for ``relaxed``.
    """

    device: bool
    acquires: bool = False
    releases: bool = False


class Accesses:
    """The strong operations on a space.

    Attributes:
        written: which granules one has written to.
        touched: where a plain access has to be ordered with one.
    """

    def __init__(self, granules: int, clocks: Clocks) -> None:
        self._clocks = clocks
        self.written, self.touched = np.zeros(granules, np.bool_), np.zeros(granules, np.bool_)
        #: How all operations on a granule mean it, the block that all are of, and whether one has its scope only.
        self._form, self._block = np.zeros(granules, np.int32), np.zeros(granules, np.int32)
        self._narrow = np.zeros(granules, np.bool_)
        #: Operations before this number are over for the granule.
        self._begin = np.zeros(granules, np.int64)
        self._kept: list[Array] = []
        self._count, self._number, self._limit = 0, 0, _FIRST_LIMIT
        self._sorted: Array | None = None

    def note(self, granules: Array, lanes: Array, time: int, kinds: Array, *, device: bool) -> Mask | None:
        """Note operations of lanes (n) on granules (n × m), in this order; which granules they race on.

        They do not race with each other.

        ``kinds`` tells of each whether it reads, stores or updates. None for no race.
        """
        form = granules.shape[1] * 64 + np.arange(granules.shape[1]) + np.zeros_like(granules)
        blocks = (lanes // self._clocks.per_block)[:, None]
        touched = self.touched[granules]
        foreign = touched & (self._block[granules] != blocks)
        odd = (touched & (self._form[granules] != form)) | (foreign & (self._narrow[granules] | (not device)))
        race = np.zeros(granules.shape, np.bool_)
        for row, column in np.argwhere(odd):
            writes = bool(kinds[row] != READ)
            how = (int(form[row, column]), device)
            race[row, column] = self._unordered(int(granules[row, column]), lanes[[row]], writes, how)
        mark = np.where(foreign, _SEVERAL, blocks)
        self._block[granules] = mark
        self._block[granules[self._block[granules] != mark]] = _SEVERAL
        self._form[granules] = form
        self._narrow[granules] = (touched & self._narrow[granules]) | (not device)
        self.touched[granules] = True
        self.written[granules] |= (kinds != READ)[:, None]
        self._keep(granules, lanes, time, kinds, form, device)
        return race if race.any() else None

    def _keep(self, granules: Array, lanes: Array, time: int, kinds: Array, form: Array, device: bool) -> None:
        rows = np.empty((granules.size, 7), np.int64)
        each = granules.shape[1]
        rows[:, 0], rows[:, 1] = granules.reshape(-1), self._number
        rows[:, 2], rows[:, 3], rows[:, 4] = lanes.repeat(each), time, kinds.repeat(each)
        rows[:, 5], rows[:, 6] = form.reshape(-1), device
        self._kept.append(rows)
        self._number += 1
        self._count += len(rows)
        self._sorted = None
        if self._count > self._limit:
            self._drop()

    def _drop(self) -> None:
        """Drop what a later operation of the same lane and kind on the same granule stands for."""
        rows = np.concatenate(self._kept)[::-1]
        rows = rows[rows[:, 1] >= self._begin[rows[:, 0]]]
        _, last = np.unique(rows[:, [0, 2, 4, 5, 6]], axis=0, return_index=True)
        self._kept = [rows[np.sort(last)][::-1]]
        self._count = len(last)
        self._limit = max(_FIRST_LIMIT, 2 * self._count)

    def _of(self, granule: int) -> Array:
        """The operations on a granule, in their order."""
        if self._sorted is None:
            rows = np.concatenate(self._kept)
            self._kept = [rows]
            self._sorted = rows[np.argsort(rows[:, 0], kind="stable")]
        first, last = np.searchsorted(self._sorted[:, 0], (granule, granule + 1))
        rows = self._sorted[first:last]
        return np.asarray(rows[rows[:, 1] >= self._begin[granule]])

    def plain(self, granules: Array, lanes: Array, whole_warp: Mask, *, writes: bool) -> Mask | None:
        """Which granules plain accesses of lanes, or of their whole warps, race on with strong ones; None for none.

        All three have one shape.
        """
        touched = self.touched[granules]
        if not touched.any():
            return None
        race = np.zeros(granules.shape, np.bool_)
        for place in map(tuple, np.argwhere(touched)):
            lane = int(lanes[place])
            who = np.arange(lane, lane + WARP_SIZE) if whole_warp[place] else np.array([lane])
            race[place] = self._unordered(int(granules[place]), who, writes, None)
        return race if race.any() else None

    def foreign(self, granules: Array, blocks: Array) -> Mask:
        """Where a block other than these has made strong operations."""
        return np.asarray(self.touched[granules] & (self._block[granules] != blocks))

    def end(self, granules: Array) -> None:
        """Plain writes have come: whoever comes after those has to be ordered with them alone."""
        self.touched[granules] = False
        self._begin[granules] = self._number

    def forget(self, places: Array) -> None:
        """What was laid down at these places is found no more."""
        for place in np.unique(places):
            self._clocks.forget(int(place))

    def _unordered(self, granule: int, lanes: Array, writes: bool, how: tuple[int, bool] | None) -> bool:
        """Whether an access of these lanes, strong where ``how`` tells form and scope, races with an operation."""
        _, _, lane, time, kind, form, device = self._of(granule).T
        conflict = (kind != READ) | writes
        if how is not None:
            own = lane // self._clocks.per_block == lanes[0] // self._clocks.per_block
            conflict &= (form != how[0]) | ~(own | (how[1] & (device != 0)))
        if not conflict.any():
            return False
        known = time < self._clocks.knows(lanes)[lane]
        # Whoever is known to have read has seen all updates since the last store, and that store.
        since, number = np.cumsum(kind == STORE), np.arange(len(kind))
        last = np.full(len(kind) + 1, -1)
        np.maximum.at(last, since, np.where(known & (kind != STORE), number, -1))
        ordered = known | ((kind != READ) & (number < last[since]))
        return bool((conflict & ~ordered).any())
