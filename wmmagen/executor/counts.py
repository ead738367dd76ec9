"""How much a launch moved and computed, counted as the hardware's own counters count.

Wavefronts and sectors follow the published access rules: a warp's accesses to shared memory of up to 4 bytes per lane
are one group, of 8 bytes two groups of 16 lanes, of 16 bytes four groups of 8; a group takes as many wavefronts as its
busiest bank has different words. Global accesses move sectors of 32 bytes, each once per request.
Source: CUDA C++ Programming Guide, "Compute Capabilities", shared and global memory; Nsight Compute, "Metrics Guide".
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Bytes of the unit of global traffic.
SECTOR = 32
_BANKS = 32
_WORD = 4
#: Bytes that all banks pass in one wavefront.
WAVEFRONT = _BANKS * _WORD
#: Stands for a lane that takes no part.
ABSENT = -1
#: Patterns of addresses that are remembered; loops repeat the same few.
_REMEMBERED = 4096


@dataclass
class Counts:
    """The figures of one launch.

    Attributes:
        warps: of the launch.
        global_load_requests, global_load_sectors: instructions of a warp, and the sectors that they touch.
        global_store_requests, global_store_sectors: the same of stores.
        shared_load_wavefronts, shared_store_wavefronts: passes through the banks; asynchronous copies store.
        shared_copy_wavefronts: those of the stores that asynchronous copies make.
        shared_load_conflicts, shared_store_conflicts: those of them that a layout without conflicts would save.
        tensor_instructions: matrix instructions of a warp, as PTX has them.
        multiply_adds: in matrix instructions.
        instructions: of a warp, by class.
        block_barriers, warp_barriers: how many were met, by blocks and by warps.
        stored_bytes: to global memory.
        reloaded_bytes: from global memory, of bytes that the launch had stored before.
        distinct_stored_bytes: of global memory that were stored to.
        sectors_per_launch: sectors of global memory that were loaded from, each once in the launch.
        sectors_per_block: the same, each once in every block that loads from it.
    """

    warps: int = 0
    global_load_requests: int = 0
    global_load_sectors: int = 0
    global_store_requests: int = 0
    global_store_sectors: int = 0
    shared_load_wavefronts: int = 0
    shared_store_wavefronts: int = 0
    shared_copy_wavefronts: int = 0
    shared_load_conflicts: int = 0
    shared_store_conflicts: int = 0
    tensor_instructions: int = 0
    multiply_adds: int = 0
    instructions: Counter[str] = field(default_factory=Counter)
    block_barriers: int = 0
    warp_barriers: int = 0
    stored_bytes: int = 0
    reloaded_bytes: int = 0
    distinct_stored_bytes: int = 0
    sectors_per_launch: int = 0
    sectors_per_block: int = 0

    @property
    def load_bytes_perfect_l2(self) -> int:
        """Bytes loaded from memory where the L2 keeps every sector to the end of the launch: the least that can be."""
        return SECTOR * self.sectors_per_launch

    @property
    def load_bytes_no_l2(self) -> int:
        """Bytes loaded from memory where each block keeps every sector it has loaded, and blocks share nothing."""
        return SECTOR * self.sectors_per_block

    @property
    def output_crossings(self) -> float:
        """How often an output byte crosses global memory, there or back; 1 where each is stored once."""
        if not self.distinct_stored_bytes:
            return 0.0
        return (self.stored_bytes + self.reloaded_bytes) / self.distinct_stored_bytes

    def as_json(self) -> dict[str, object]:
        """All figures under their names."""
        figures: dict[str, object] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        made = ("output_crossings", "load_bytes_perfect_l2", "load_bytes_no_l2")
        return {**figures, "instructions": dict(self.instructions), **{name: getattr(self, name) for name in made}}


class Meter:
    """Counts accesses of warps; remembers patterns, because the same ones come again with every slice."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[int, int]] = {}

    def sectors(self, addresses: Array) -> tuple[int, int]:
        """Requests and sectors of accesses at ``addresses`` (warps × lanes, :data:`ABSENT` where none).

        An access lies within one sector: it is aligned to its width, which is 32 bytes at most.
        """
        return self._remembered("sectors", addresses, SECTOR, _sectors)

    def wavefronts(self, addresses: Array, nbytes: int) -> tuple[int, int]:
        """Wavefronts and conflicts of accesses of ``nbytes`` at ``addresses`` (warps × lanes)."""
        return self._remembered("banks", addresses, _WORD, lambda a: _wavefronts(a, nbytes), nbytes)

    def _remembered(self, kind: str, addresses: Array, unit: int, count: Any, *more: object) -> tuple[int, int]:
        first = int(addresses.flat[0])
        if first == ABSENT or (addresses.size and addresses.min() < 0):
            found: tuple[int, int] = count(addresses)
            return found
        # A pattern that is moved as a whole by whole units touches as many of them.
        key = (kind, *more, addresses.shape, first % unit, (addresses - first).tobytes())
        known = self._known.get(key)
        if known is None:
            known = count(addresses)
            if len(self._known) < _REMEMBERED:
                self._known[key] = known
        return known


def _sectors(addresses: Array) -> tuple[int, int]:
    present = (addresses >= 0).any(axis=1)
    sectors = np.sort(np.where(addresses >= 0, addresses // SECTOR, ABSENT), axis=1)
    return int(present.sum()), int(_firsts(sectors).sum())


def _firsts(ordered: Array) -> Array:
    """Where a value stands for the first time in an ordered row; absent ones do not count."""
    first = np.ones(ordered.shape, np.bool_)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return np.asarray(first & (ordered >= 0))


def _wavefronts(addresses: Array, nbytes: int) -> tuple[int, int]:
    words_each = max(nbytes // _WORD, 1)
    groups = addresses.reshape(-1, _BANKS // words_each)
    words = np.where(groups >= 0, groups // _WORD, ABSENT)
    if words_each > 1:
        spread = words[:, :, None] + np.arange(words_each)
        words = np.where(words[:, :, None] >= 0, spread, ABSENT).reshape(len(groups), -1)
    ordered = np.sort(words, axis=1)
    first = _firsts(ordered)
    rows = np.broadcast_to(np.arange(len(ordered))[:, None], ordered.shape)
    per_bank = np.bincount((rows * _BANKS + ordered % _BANKS)[first], minlength=len(ordered) * _BANKS)
    busiest = per_bank.reshape(-1, _BANKS).max(axis=1)
    return int(busiest.sum()), int((busiest - 1)[busiest > 0].sum())


class Sectors:
    """Which sectors of global memory each block has loaded from.

    One byte for each block and sector; pages that nobody writes to cost nothing.

    Args:
        nbytes: of global memory.
        blocks: of the launch.
    """

    def __init__(self, nbytes: int, blocks: int) -> None:
        self._count = -(-nbytes // SECTOR)
        self._loaded = np.zeros(blocks * self._count, np.bool_)

    def load(self, places: Array, blocks: Array) -> None:
        """Note loads; ``places`` are bytes in global memory, each of an access within its sector."""
        self._loaded[blocks * np.int64(self._count) + places // SECTOR] = True

    def totals(self) -> tuple[int, int]:
        """Sectors that were loaded from: each once in the launch, and each once in every block."""
        per_block = self._loaded.reshape(-1, self._count)
        return int(per_block.any(axis=0).sum()), int(np.count_nonzero(per_block))
