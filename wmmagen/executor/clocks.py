"""What lanes of all blocks know of each other by fences and strong operations on global memory: vector clocks.

A vector has a time for each lane of the launch: what that lane did before it is known. Vectors are numbered and never
change, so that lanes share them. A fence remembers what its lane knows; a strong write lays that down at its place; a
strong read finds it there, and an acquire, or a fence after the read, takes it over. An atomic update passes on what it
finds. Barriers join what their lanes know, and what their sequentially consistent fences have fenced, because a pair of
those is ordered also where a barrier stands between fence and access. Order within a block or the device are two
scopes, each with a state of its own.

Source: PTX ISA, "Memory Consistency Model": release and acquire patterns, observation order, Fence-SC order, causality.
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#memory-consistency-model
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from wmmagen.arch import WARP_SIZE
from wmmagen.errors import LaunchFault

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
#: Where in memory something begins.
Place = int

_FOREVER = np.iinfo(np.int32).max
#: The reader of a message for the whole device; others are blocks.
_DEVICE = -1
#: Vectors that are kept before those are dropped that nobody holds.
_FIRST_VECTORS = 4096
#: What the vectors that are held may need.
MOST_BYTES = 1 << 30


def _digest(vector: Array) -> bytes:
    return blake2b(vector.tobytes(), digest_size=16).digest()


class _Moments:
    """The last fence of each lane: its time, and what the lane knew then. A time of 0 is no fence.

    ``number`` is that of the vector that says so, 0 where nobody has asked yet.
    """

    def __init__(self, lanes: int) -> None:
        self.time, self.block_since, self.warp_since, self.known = (np.zeros(lanes, np.int32) for _ in range(4))
        self.number = np.zeros(lanes, np.int32)


class _Scope:
    """The state of fences of one scope; all but ``fresh`` and the moments are numbers of vectors.

    Attributes:
        released: the last fence of each lane that releases; ``fenced``: the last one that is sequentially consistent.
        fresh: whether no barrier has handed on the latter yet.
        before: what such fences have fenced that come before what each lane does now.
        found: what each lane has found at places, and a fence of its own will take over.
        behind: the same for a sequentially consistent fence, also of a lane behind a barrier.
    """

    def __init__(self, lanes: int) -> None:
        self.released, self.fenced = _Moments(lanes), _Moments(lanes)
        self.fresh = np.zeros(lanes, np.bool_)
        self.before, self.found, self.behind = (np.zeros(lanes, np.int32) for _ in range(3))


class Clocks:
    """What the lanes of a launch know.

    Args:
        lanes, blocks: of the launch.
        warp_since, block_since: times of the last barriers of each warp and block.
        absent: lanes that do not exist; None for none.
    """

    def __init__(self, lanes: int, blocks: int, warp_since: Array, block_since: Array, absent: Mask | None) -> None:
        self.per_block = lanes // blocks
        self._warp_since, self._block_since = warp_since, block_since
        nothing = np.zeros(lanes, np.int32)
        if absent is not None:
            nothing[absent] = _FOREVER
        self._vectors = [nothing]
        self._numbers = {_digest(nothing): 0}
        self._joined: dict[tuple[int, int], int] = {}
        self._limit = max(MOST_BYTES // nothing.nbytes, 2)
        self._most = min(_FIRST_VECTORS, self._limit)
        self._known = np.zeros(lanes, np.int32)
        self._block, self._device = _Scope(lanes), _Scope(lanes)
        self._messages: dict[Place, dict[int, tuple[int, int]]] = {}
        # An operation that releases or acquires reaches over to what its lane does later, or has done, at its place.
        self._said: dict[tuple[int, Place, int], int] = {}
        self._heard: dict[tuple[int, Place, int], int] = {}

    # Vectors ---------------------------------------------------------------------------------------------------------

    def _number(self, vector: Array) -> int:
        number = self._numbers.setdefault(_digest(vector), len(self._vectors))
        if number == len(self._vectors):
            self._vectors.append(vector)
        return number

    def _holders(self) -> list[Array]:
        scopes = (self._block, self._device)
        moments = [held for scope in scopes for m in (scope.released, scope.fenced) for held in (m.known, m.number)]
        return [self._known, *moments, *(held for s in scopes for held in (s.before, s.found, s.behind))]

    def tidy(self) -> None:
        """Drop vectors that nobody holds any more, where they have become many; nobody may be at work with numbers.

        Raises:
            LaunchFault: those that are held need more than :data:`MOST_BYTES`.
        """
        if len(self._vectors) < self._most:
            return
        holders = self._holders()
        carried = {n for message in self._messages.values() for pair in message.values() for n in pair}
        carried |= {*self._said.values(), *self._heard.values()}
        held = sorted({0, *carried, *(int(n) for holder in holders for n in np.unique(holder))})
        if len(held) > self._limit:
            raise LaunchFault(
                f"what {len(self._known)} threads know of each other by fences and atomics needs more than "
                f"{MOST_BYTES >> 20} MiB, and the CPU executor takes no more",
                "run a smaller problem here, or this one on a GPU",
            )
        self._vectors = [self._vectors[number] for number in held]
        new = {number: place for place, number in enumerate(held)}
        self._numbers = {digest: new[number] for digest, number in self._numbers.items() if number in new}
        self._joined.clear()
        self._most = min(max(_FIRST_VECTORS, 2 * len(held)), max(self._limit, len(held) + len(held) // 4 + 1))
        for holder in holders:
            holder[:] = np.searchsorted(held, holder)
        for message in self._messages.values():
            message.update({reader: (new[a], new[b]) for reader, (a, b) in message.items()})
        for kept in (self._said, self._heard):
            kept.update({key: new[number] for key, number in kept.items()})

    def _join(self, one: int, other: int) -> int:
        if one == other or not other:
            return one
        if not one:
            return other
        key = (min(one, other), max(one, other))
        found = self._joined.get(key)
        if found is None:
            joined = np.maximum(self._vectors[one], self._vectors[other])
            found = self._joined[key] = self._number(joined)
        return found

    def _join_all(self, held: Array, more: Array) -> Array:
        """Of each pair of numbers, the number of both together."""
        if not more.any():
            return held
        pairs, back = np.unique(np.stack((held, more), axis=1), axis=0, return_inverse=True)
        return np.array([self._join(int(a), int(b)) for a, b in pairs], np.int32)[back.reshape(-1)]

    def _total(self, numbers: Array) -> int:
        found = 0
        for number in np.unique(numbers):
            found = self._join(found, int(number))
        return found

    def _at(self, moments: _Moments, lanes: Array) -> int:
        """What lanes of one block knew together at their last fences; the number of a vector."""
        lanes = lanes[moments.time[lanes] > 0]
        if not lanes.size:
            return 0
        vector = self._vectors[self._total(moments.known[lanes])].copy()
        block = int(lanes[0]) // self.per_block * self.per_block
        whole = vector[block : block + self.per_block]
        np.maximum(whole, moments.block_since[lanes].max(), out=whole)
        by_warp = vector.reshape(-1, WARP_SIZE)
        for lane in lanes:
            row = by_warp[lane // WARP_SIZE]
            np.maximum(row, moments.warp_since[lane], out=row)
        vector[lanes] = np.maximum(vector[lanes], moments.time[lanes])
        return self._number(vector)

    def _of(self, moments: _Moments, lane: int) -> int:
        """What one lane knew at its last fence; the number of a vector."""
        if moments.time[lane] and not moments.number[lane]:
            moments.number[lane] = self._at(moments, np.array([lane]))
        return int(moments.number[lane])

    def _remember(self, moments: _Moments, lanes: Array, time: int) -> None:
        moments.time[lanes] = time
        moments.block_since[lanes] = self._block_since[lanes // self.per_block]
        moments.warp_since[lanes] = self._warp_since[lanes // WARP_SIZE]
        moments.known[lanes] = self._known[lanes]
        moments.number[lanes] = 0

    # Fences and barriers ---------------------------------------------------------------------------------------------

    def fence(self, lanes: Array, time: int, *, device: bool, consistent: bool, acquires: bool, releases: bool) -> None:
        """A fence of these lanes at ``time``, which lies behind all that they did before.

        Args:
            device: whether its scope is the device, and not the block.
            consistent: whether it is sequentially consistent.
            acquires, releases: what it does.
        """
        self.tidy()
        scopes = (self._block, self._device) if device else (self._block,)
        for scope in scopes:
            if acquires:
                self._known[lanes] = self._join_all(self._known[lanes], scope.found[lanes])
            if consistent:
                self._known[lanes] = self._join_all(self._known[lanes], scope.behind[lanes])
        for scope in scopes:
            if releases:
                self._remember(scope.released, lanes, time)
            if consistent:
                self._remember(scope.fenced, lanes, time)
                scope.fresh[lanes] = True

    def blocks_meet(self, blocks: Array | None) -> None:
        """A barrier of these blocks; None for all."""
        self._meet(blocks, self.per_block)

    def warps_meet(self, warps: Array | None) -> None:
        """A barrier within each of these warps; None for all."""
        self._meet(warps, WARP_SIZE)

    def _meet(self, groups: Array | None, size: int) -> None:
        self.tidy()
        every = np.arange(len(self._known)).reshape(-1, size)
        rows = every if groups is None else every[groups]
        for scope in (self._block, self._device):
            for lanes in rows[scope.fresh[rows].any(axis=1)]:
                fresh = lanes[scope.fresh[lanes]]
                scope.before[lanes] = self._join(self._total(scope.before[lanes]), self._at(scope.fenced, fresh))
                scope.fresh[lanes] = False
        for held in (self._known, *(s for x in (self._block, self._device) for s in (x.before, x.behind))):
            values = held[rows]
            for lanes in rows[(values != values[:, :1]).any(axis=1)]:
                held[lanes] = self._total(held[lanes])

    # Strong operations -----------------------------------------------------------------------------------------------

    @property
    def carries_any(self) -> bool:
        """Whether something was laid down anywhere."""
        return bool(self._messages)

    def carries(self, place: Place) -> bool:
        """Whether something was laid down there."""
        return place in self._messages

    def may_release(self, lanes: Array) -> Mask:
        """Which of the lanes have anything to lay down without an operation that releases by itself."""
        scope = self._block
        found = (scope.released.time[lanes] > 0) | (scope.fenced.time[lanes] > 0) | (scope.before[lanes] > 0)
        return np.ones(len(lanes), np.bool_) if self._said else np.asarray(found)

    def _readers(self, lane: int, device: bool) -> list[tuple[int, _Scope]]:
        own = (lane // self.per_block, self._block)
        return [own, (_DEVICE, self._device)] if device else [own]

    def read(self, lane: int, place: Place, *, device: bool, acquires: bool) -> None:
        """A strong read, which sees the last write of the place."""
        message = self._messages.get(place)
        if message is None:
            return
        for reader, scope in self._readers(lane, device):
            released, fenced = message.get(reader, (0, 0))
            key = (lane, place, reader)
            released = self._join(released, self._heard.get(key, 0))
            taker = self._known if acquires else scope.found
            taker[lane] = self._join(int(taker[lane]), released)
            if released and not acquires:
                self._heard[key] = released
            scope.behind[lane] = self._join(int(scope.behind[lane]), fenced)

    def write(self, lane: int, place: Place, time: int, *, device: bool, releases: bool, updates: bool) -> None:
        """A strong write at ``time``; one that ``updates`` passes on what it has found there."""
        block = lane // self.per_block
        kept = self._messages.get(place, {}) if updates else {}
        message = {reader: held for reader, held in kept.items() if device or reader == block}
        for reader, scope in self._readers(lane, device):
            released, fenced = message.get(reader, (0, 0))
            key = (lane, place, reader)
            if releases:
                now = _Moments(len(self._known))
                self._remember(now, np.array([lane]), time)
                self._said[key] = self._at(now, np.array([lane]))
            before = int(scope.before[lane])
            if scope.fresh[lane]:
                before = self._join(before, self._of(scope.fenced, lane))
            released = self._join(released, self._of(scope.released, lane))
            released = self._join(released, self._said.get(key, 0))
            message[reader] = (released, self._join(fenced, before))
        self._messages[place] = message

    def forget(self, place: Place) -> None:
        """Something else was written there: what lay there is found no more."""
        self._messages.pop(place, None)

    # What is known ---------------------------------------------------------------------------------------------------

    def knows(self, lanes: Array) -> Array:
        """The times that each of these lanes of one warp knows: the least of them."""
        numbers = np.unique(self._known[lanes])
        vector = np.minimum.reduce([self._vectors[number] for number in numbers]).copy()
        block, warp = int(lanes[0]) // self.per_block, int(lanes[0]) // WARP_SIZE
        for own, since in (
            (slice(block * self.per_block, (block + 1) * self.per_block), self._block_since[block]),
            (slice(warp * WARP_SIZE, (warp + 1) * WARP_SIZE), self._warp_since[warp]),
        ):
            vector[own] = np.maximum(vector[own], since)
        if len(lanes) == 1:
            vector[lanes] = _FOREVER
        return np.asarray(vector)

    def groups(self, lanes: Array, whole_warp: Mask) -> list[tuple[Mask, Array]]:
        """Accesses of lanes, or of their whole warps, in groups that have heard the same of others: which, and what."""
        first = self._known.reshape(-1, WARP_SIZE)
        mixed = whole_warp & (first != first[:, :1]).any(axis=1)[lanes // WARP_SIZE]
        found = [
            ((numbers == number) & ~mixed, self._vectors[number])
            for numbers in [self._known[lanes]]
            for number in np.unique(numbers[~mixed])
            if number
        ]
        for warp in np.unique(lanes[mixed] // WARP_SIZE):
            heard = np.minimum.reduce([self._vectors[number] for number in np.unique(first[warp])])
            found.append((mixed & (lanes // WARP_SIZE == warp), heard))
        return found
