"""What lanes of a block know of each other by objects in shared memory, beside what barriers order: vector clocks.

Whoever arrives at an mbarrier hands over what was done before, by itself and by those that it has heard of; whoever
sees the phase complete takes it over. Barriers of warps join what their lanes know. Barriers of blocks need no entry
here.

Source: PTX ISA, "Memory Consistency Model", release and acquire patterns.
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#memory-consistency-model
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wmmagen.arch import WARP_SIZE

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

_FIRST_BATCHES = 64
_FOREVER = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Knowledge:
    """What is handed over.

    Attributes:
        times: for each lane of the block, what it did before this time.
        batches: the bulk copies that are known to be there, by number.
    """

    times: Array
    batches: frozenset[int] = frozenset()

    def with_(self, other: Knowledge) -> Knowledge:
        """Both together."""
        return Knowledge(np.maximum(self.times, other.times), self.batches | other.batches)


class Handed:
    """The knowledge of all lanes of a launch.

    Args:
        lanes, blocks: of the launch.
        warp_since, block_since: times of the last barriers of each warp and block.
        absent: lanes that do not exist; None for none.
    """

    def __init__(self, lanes: int, blocks: int, warp_since: Array, block_since: Array, absent: Mask | None) -> None:
        self._per_block = per_block = lanes // blocks
        # For each lane and each lane of its block: what that one did before this time came before what this one does.
        self._known = block_since.repeat(per_block)[:, None].repeat(per_block, axis=1).astype(np.int32)
        own = np.arange(lanes)
        places = own % per_block // WARP_SIZE * WARP_SIZE
        for place in range(WARP_SIZE):
            self._known[own, places + place] = warp_since[own // WARP_SIZE]
        if absent is not None:
            self._known[:, absent[:per_block]] = _FOREVER
        # For each batch of bulk copies, who has seen that it is there. Number 0 is no batch.
        self._seen = np.zeros((_FIRST_BATCHES, lanes), np.bool_)
        self._batches = 0

    def release(self, lanes: Array, time: int, since: int) -> Knowledge:
        """What lanes of one block hand over at ``time``; their block's last barrier was at ``since``."""
        vector = np.maximum(self._known[lanes].max(axis=0), since)
        vector[lanes % self._per_block] = time
        seen = np.flatnonzero(np.asarray(self._seen[:, lanes].any(axis=1)))
        return Knowledge(vector, frozenset(seen.tolist()))

    def acquire(self, lanes: Array, given: Knowledge) -> None:
        """Lanes of one block take over what was handed over."""
        self._known[lanes] = np.maximum(self._known[lanes], given.times)
        if given.batches:
            self._seen[np.ix_(np.array(sorted(given.batches)), lanes)] = True

    def warps_meet(self, warps: Array | None, time: int) -> None:
        """A barrier within each of these warps at ``time``; None for all."""
        known = self._known.reshape(-1, WARP_SIZE, self._per_block)
        seen = self._seen.reshape(len(self._seen), -1, WARP_SIZE)
        chosen = np.arange(len(known)) if warps is None else warps
        together = known[chosen].max(axis=1)
        own = chosen % (self._per_block // WARP_SIZE) * WARP_SIZE
        for place in range(WARP_SIZE):
            together[np.arange(len(chosen)), own + place] = time
        known[chosen] = together[:, None]
        seen[:, chosen] = np.asarray(seen[:, chosen].any(axis=2))[:, :, None]

    def new_batch(self) -> int:
        """The number of a batch of bulk copies that has landed and that nobody has seen yet."""
        self._batches += 1
        if self._batches == len(self._seen):
            self._seen = np.concatenate((self._seen, np.zeros_like(self._seen)))
        return self._batches

    def saw(self, batches: Array, lanes: Array, whole_warp: Mask) -> Mask:
        """Whether each lane, or its whole warp, has seen a batch; all of the same length."""
        warps = np.asarray(self._seen.reshape(len(self._seen), -1, WARP_SIZE).all(axis=2))
        seen = np.where(whole_warp, warps[batches, lanes // WARP_SIZE], self._seen[batches, lanes])
        return np.asarray(seen & (batches > 0))

    def knows(self, lanes: Array, whole_warp: Mask) -> Array:
        """For each of these lanes, or its whole warp, what it knows of the lanes of its block."""
        rows = self._known[lanes]
        if whole_warp.any():
            warps = self._known.reshape(-1, WARP_SIZE, self._per_block).min(axis=1)
            rows = np.where(whole_warp[:, None], warps[lanes // WARP_SIZE], rows)
        return np.asarray(rows)
