"""Memory in segments, and what is known of each of its bytes: who touched it last, and whether anything is in it.

Every buffer has addresses of its own, far from those of any other, so that an access that leaves one is out of bounds
at its first byte. Shared and local memory are windows of the same generic address space. Data lie in flat arrays, for
shared memory one behind the other for all blocks of the launch.

A :class:`Shadow` keeps for each granule (the narrowest element that the kernel touches in that space) who wrote and who
read it last, as an *actor*: a lane, or where several read it, their warp, their block or the grid. Two accesses of
different lanes of which one writes race unless a block barrier, or within one warp ``__syncwarp``, lies between them.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wmmagen.arch import WARP_SIZE
from wmmagen.executor.clocks import Clocks
from wmmagen.executor.handed import Handed
from wmmagen.executor.strong import Accesses

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

WARP = WARP_SIZE
#: Generic addresses of the windows. A buffer's slot is so wide that no 32-bit offset reaches the next one.
LOCAL_WINDOW = 1 << 43
SHARED_WINDOW = 1 << 44
GLOBAL_WINDOW = 1 << 46
SLOT_BITS = 36
#: What every allocation may count on, and no more: addresses are odd multiples of it.
BUFFER_ALIGNMENT = 256
#: Shared addresses begin here, so that 0 is none of them.
SHARED_BEGIN = 1024
#: A lane's local addresses begin here.
LOCAL_BEGIN = 1024
_UNIT = 16


class Order:
    """Who is who in a launch, and what happened before what.

    Time counts barriers. ``block_since`` and ``warp_since`` are the times of the last barrier that each block and each
    warp met at.

    Attributes:
        lanes, warps, blocks: how many there are in the launch.
        clock: the time now.
        handed: what lanes know of each other beside barriers; None until an object in memory is used for that.
        clocks: what lanes of all blocks know of each other; None where nothing strong touches global memory.
        warp_of, block_of: of each actor; -1 where it is more than one. Actors are numbered lanes, warps, blocks, grid.
    """

    def __init__(self, warps: int, blocks: int) -> None:
        self.lanes, self.warps, self.blocks = warps * WARP, warps, blocks
        self.clock = 1
        self.handed: Handed | None = None
        self.clocks: Clocks | None = None
        self.block_since = np.ones(blocks, np.int32)
        self.warp_since = np.ones(warps, np.int32)
        per_block = warps // blocks
        warp, block = np.arange(warps, dtype=np.int32), np.arange(blocks, dtype=np.int32)
        several = np.full(blocks, -1, np.int32)
        self.warp_of = np.concatenate((warp.repeat(WARP), warp, several, [-1])).astype(np.int32)
        self.block_of = np.concatenate(
            (block.repeat(WARP * per_block), block.repeat(per_block), block, [-1]),
        ).astype(np.int32)

    def warp_actor(self, warp: Array) -> Array:
        """The actor that stands for a whole warp."""
        return (warp + self.lanes).astype(np.int32)

    def blocks_meet(self, blocks: Array | None) -> None:
        """A block barrier of these blocks; None for all."""
        self.clock += 1
        if blocks is None:
            self.block_since[:] = self.clock
            self.warp_since[:] = self.clock
        else:
            self.block_since[blocks] = self.clock
            self.warp_since.reshape(self.blocks, -1)[blocks] = self.clock
        if self.clocks is not None:
            self.clocks.blocks_meet(blocks)

    def warps_meet(self, warps: Array | None) -> None:
        """A barrier within each of these warps; None for all."""
        self.clock += 1
        if warps is None:
            self.warp_since[:] = self.clock
        else:
            self.warp_since[warps] = self.clock
        if self.handed is not None:
            self.handed.warps_meet(warps, self.clock)
        if self.clocks is not None:
            self.clocks.warps_meet(warps)


@dataclass(frozen=True)
class Who:
    """The actors of an access with their warps and blocks; arrays that broadcast against the granules."""

    actor: Array
    warp: Array
    block: Array


class Shadow:
    """What is known of each granule of a space.

    Attributes:
        granule: its size in bytes, a power of two.
        undefined: whether nothing was written to it yet.
        pending: whether an asynchronous copy into it has not been waited for.
        writer: the actor that wrote it last; -1 for none.
        strong: the strong operations on it, where they are followed; None for none.
    """

    def __init__(self, size: int, granule: int, order: Order, *, defined: bool) -> None:
        count = -(-size // granule)
        self.granule = granule
        self._order = order
        self.writer = np.full(count, -1, np.int32)
        self._written = np.zeros(count, np.int32)
        self._reader = np.full(count, -1, np.int32)
        self._read = np.zeros(count, np.int32)
        #: Whether the last write was an atomic one; made when the first one comes.
        self._atomic: Mask | None = None
        #: The batch of bulk copies that each granule came by, and the time of the last read by each warp of the block;
        #: made where lanes hand over by objects in memory. Whose memory is not one block's has no such reads.
        self._batch: Array | None = None
        self._reads: Array | None = None
        self.strong: Accesses | None = None
        #: Where strong operations are followed: when each block has read last, granules × blocks.
        self._block_reads: Array | None = None
        self._foreign: Mask | None = None
        self.of_block = False
        self.undefined = np.full(count, not defined)
        self.pending = np.zeros(count, np.bool_)
        self._any_undefined = not defined
        self._any_pending = False
        self._any_written = False

    def granules(self, start: Array, nbytes: int) -> Array:
        """The granules of accesses of ``nbytes`` at ``start`` (n), as n × count."""
        first = start // self.granule if self.granule > 1 else start
        return np.asarray(first[:, None] + np.arange(max(nbytes // self.granule, 1)))

    def undefined_at(self, granules: Array) -> Mask | None:
        """Which of them nothing was written to; None where all are defined."""
        if not self._any_undefined:
            return None
        found = self.undefined[granules]
        return found if found.any() else None

    def pending_at(self, granules: Array) -> Mask | None:
        """Which of them wait for an asynchronous copy; None for none."""
        if not self._any_pending:
            return None
        found = self.pending[granules]
        return found if found.any() else None

    def read(self, granules: Array, who: Who) -> Mask | None:
        """Note a read; which granules another lane wrote without a barrier in between, None for none."""
        race = self._conflict(self.writer, self._written, granules, who) if self._any_written else None
        if self.strong is not None:
            race = _both(race, self._with_strong(self.strong, granules, who, writes=False))
        self._note_read(granules, who)
        return race

    def write(self, granules: Array, who: Who, *, undefined: Array | None = None) -> Mask | None:
        """Note a write; which granules another lane touched without a barrier in between, None for none.

        Args:
            undefined: whether what is written is itself undefined; broadcasts against the granules.
        """
        race = self.touches(granules, who)
        actor = np.broadcast_to(who.actor, granules.shape)
        self.writer[granules] = actor
        # Two lanes of one instruction on one granule: the later one stands there, and the earlier one is not found.
        twice = self.writer[granules] != actor
        if twice.any():
            race = twice if race is None else race | twice
        self._written[granules] = self._order.clock
        self._any_written = True
        if self._atomic is not None:
            self._atomic[granules] = False
        if self._batch is not None:
            self._batch[granules] = 0
        if self.strong is not None:
            race = _both(race, self._with_strong(self.strong, granules, who, writes=True))
            self.strong.end(granules)
            self._reader[granules] = -1
        if undefined is not None:
            self.undefined[granules] = undefined
            self._any_undefined = True
        elif self._any_undefined:
            self.undefined[granules] = False
        return race

    def update(self, granules: Array, who: Who) -> Mask | None:
        """Note an atomic update; which granules it races on, None for none: other atomics are none.

        Where several update a granule, their warp, block or grid stands for them, as for readers.
        """
        order = self._order
        if self._atomic is None:
            self._atomic = np.zeros(self.writer.shape, np.bool_)
        race = self.touches(granules, who)
        atomic = self._atomic[granules]
        if race is not None:
            other = self._conflict(self._reader, self._read, granules, who)
            race = race & ~atomic if other is None else (race & ~atomic) | other
        before, when = self.writer[granules], self._written[granules]
        actor = np.broadcast_to(who.actor, granules.shape)
        kept = atomic & ((order.block_of[before] != who.block) | (when >= order.block_since[who.block]))
        self._write_down(self.writer, granules, np.where(kept, self._join(before, actor, who), actor), who)
        self._written[granules] = order.clock
        self._atomic[granules] = self._any_written = True
        return race if race is not None and race.any() else None

    def follow_strong(self, clocks: Clocks) -> None:
        """Follow strong operations from now on."""
        self.strong = Accesses(len(self.writer), clocks)
        self._block_reads = np.zeros((len(self.writer), self._order.blocks), np.int32)

    def operate(self, granules: Array, who: Who, kinds: Array, *, device: bool) -> Mask | None:
        """Note strong operations, which do not race with each other; which they race on, None for none.

        ``kinds`` and ``device`` as in :meth:`wmmagen.executor.strong.Accesses.note`.
        """
        assert self.strong is not None
        race = self._conflict(self.writer, self._written, granules, who) if self._any_written else None
        reads = self._conflict(self._reader, self._read, granules, who)
        if reads is not None:
            race = _both(race, reads & (kinds != 0)[:, None])
        foreign = self.strong.foreign(granules, who.block)
        odd = self.strong.note(granules, who.actor[:, 0], self._order.clock, kinds, device=device)
        if odd is not None:
            self._note_foreign(odd & foreign)
        race = _both(race, odd)
        return race if race is None or race.any() else None

    def _with_strong(self, strong: Accesses, granules: Array, who: Who, *, writes: bool) -> Mask | None:
        touched = strong.touched[granules]
        if not touched.any():
            return None
        foreign = strong.foreign(granules, who.block)
        actor, warp = (np.broadcast_to(x, granules.shape) for x in (who.actor, who.warp))
        whole = actor >= self._order.lanes
        race = strong.plain(granules, np.where(whole, warp * WARP, actor), whole, writes=writes)
        if writes:
            strong.forget(granules[touched] * self.granule)
        if race is not None:
            self._note_foreign(race & foreign)
        return race

    def stored(self, granules: Array | slice) -> Mask:
        """Which granules the launch has written to."""
        found = self.writer[granules] >= 0
        return np.asarray(found if self.strong is None else found | self.strong.written[granules])

    def _note_foreign(self, found: Mask) -> None:
        self._foreign = found if self._foreign is None else self._foreign | found

    def take_foreign(self) -> Mask | None:
        """On which granules of the access that was noted last another block is what it races with."""
        found, self._foreign = self._foreign, None
        return found

    def define(self, granules: Array, undefined: Array) -> None:
        """Say whether granules hold something undefined."""
        if self._any_undefined or undefined.any():
            self.undefined[granules] = undefined
            self._any_undefined = True

    def touches(self, granules: Array, who: Who) -> Mask | None:
        """Which granules a write would race on; None for none."""
        race = self._conflict(self.writer, self._written, granules, who) if self._any_written else None
        other = self._conflict(self._reader, self._read, granules, who)
        if race is None or other is None:
            return other if race is None else race
        return race | other

    def promise(self, granules: Array) -> None:
        """An asynchronous copy into the granules is on its way: until it lands they hold nothing."""
        self.pending[granules] = True
        self.undefined[granules] = True
        self._any_pending = self._any_undefined = True

    def land(self, granules: Array) -> None:
        """The copy is there."""
        self.pending[granules] = False

    def deliver(self, granules: Array, who: Who, batch: int) -> None:
        """A bulk copy has written: it is there for whoever sees its batch, and for the block after a barrier."""
        order = self._order
        if self._batch is None:
            self._batch = np.zeros(self.writer.shape, np.int32)
        self._batch[granules] = batch
        self.writer[granules] = np.broadcast_to(order.lanes + order.warps + who.block, granules.shape)
        self._written[granules] = order.clock
        self.undefined[granules] = False
        self._any_written = True

    def delivered_unseen(self, granule: int, actor: int, warp: int) -> bool:
        """Whether a bulk copy wrote the granule last, and whoever touches it now has not seen that."""
        order = self._order
        if self._batch is None or order.handed is None or not self._batch[granule]:
            return False
        whole = actor >= order.lanes
        lane = np.array([warp * WARP if whole else actor])
        return not order.handed.saw(self._batch[[granule]], lane, np.array([whole]))[0]

    def settle(self) -> None:
        """No copy is on its way any more."""
        self._any_pending = bool(self.pending.any())

    def _conflict(self, actors: Array, times: Array, granules: Array, who: Who) -> Mask | None:
        order = self._order
        before, when = actors[granules], times[granules]
        # Most accesses come after a barrier, or to what nobody touched: those are told by one comparison.
        recent = (before >= 0) & ((when >= order.block_since[who.block]) | (order.block_of[before] != who.block))
        if not recent.any():
            return None
        same_warp = order.warp_of[before] == who.warp
        ordered = same_warp & ((when < order.warp_since[who.warp]) | (before == who.actor))
        race = recent & ~ordered
        if order.handed is not None and race.any():
            race[race] = ~self._handed_over(order.handed, actors is self._reader, granules, who, race)
        if order.clocks is not None and race.any():
            race &= ~self._known(order.clocks, actors is self._reader, granules, who, race)
        if not race.any():
            return None
        self._note_foreign(race & (order.block_of[before] != who.block))
        return np.asarray(race)

    def _known(self, clocks: Clocks, reads: bool, granules: Array, who: Who, asked: Mask) -> Mask:
        """Of each granule in ``asked``, whether strong operations order those that touched it before this access."""
        order, at = self._order, granules[asked]
        actor, warp = (np.broadcast_to(x, asked.shape)[asked] for x in (who.actor, who.warp))
        whole = actor >= order.lanes
        actors, times = (self._reader, self._read) if reads else (self.writer, self._written)
        before, when = actors[at], times[at]
        found = np.zeros(len(at), np.bool_)
        for own, vector in clocks.groups(np.where(whole, warp * WARP, actor), whole):
            by_warp = vector.reshape(-1, WARP).min(axis=1)
            by_block = vector.reshape(order.blocks, -1).min(axis=1)
            # Of the whole grid nothing is known at once, so each block's last read is asked.
            known = np.concatenate((vector, by_warp, by_block, [0]))
            found[own] = when[own] < known[before[own]]
            grid = own & (before == order.lanes + order.warps + order.blocks)
            if grid.any() and reads and self._block_reads is not None:
                known_here = np.broadcast_to(by_block, (int(grid.sum()), order.blocks)).copy()
                block = np.broadcast_to(who.block, asked.shape)[asked][grid]
                rows = np.arange(len(block))
                known_here[rows, block] = np.maximum(known_here[rows, block], order.block_since[block])
                last = self._block_reads[at[grid]]
                found[grid] = ((last == 0) | (last < known_here)).all(axis=1)
        result = np.zeros(asked.shape, np.bool_)
        result[asked] = found
        return result

    def _handed_over(self, handed: Handed, reads: bool, granules: Array, who: Who, race: Mask) -> Mask:
        """Of each granule in ``race``, whether those that touched it have handed over to who touches it now."""
        order, at = self._order, granules[race]
        actor, warp, block = (np.broadcast_to(x, race.shape)[race] for x in (who.actor, who.warp, who.block))
        whole = actor >= order.lanes
        lanes = np.where(whole, warp * WARP, actor)
        actors, times = (self._reader, self._read) if reads else (self.writer, self._written)
        before, when = actors[at], times[at]
        known = handed.knows(lanes, whole)
        by_warp = known.reshape(len(known), -1, WARP).min(axis=2)
        rows, per_block = np.arange(len(at)), known.shape[1]
        lane = np.where(before < order.lanes, before, 0) % per_block
        of_warp = np.maximum(order.warp_of[before], 0) % by_warp.shape[1]
        found = np.where(before < order.lanes, when < known[rows, lane], when < by_warp[rows, of_warp])
        several = order.warp_of[before] < 0
        if several.any():
            found = np.where(several, self._several_handed(handed, reads, at, (lanes, whole, block), by_warp), found)
        return np.asarray(found & (order.block_of[before] == block))

    def _several_handed(
        self, handed: Handed, reads: bool, at: Array, who: tuple[Array, Mask, Array], by_warp: Array
    ) -> Mask:
        """The same where several warps have read, or a bulk copy has written."""
        lanes, whole, block = who
        if not reads:
            return np.zeros(len(at), np.bool_) if self._batch is None else handed.saw(self._batch[at], lanes, whole)
        if self._reads is None:
            return np.zeros(len(at), np.bool_)
        times = self._reads[at]
        return np.asarray(((times < by_warp) | (times < self._order.block_since[block][:, None])).all(axis=1))

    def _note_read(self, granules: Array, who: Who) -> None:
        order = self._order
        before, when = self._reader[granules], self._read[granules]
        actor = np.broadcast_to(who.actor, granules.shape)
        block = order.block_of[before]
        kept = (before >= 0) & ((block != who.block) | (when >= order.block_since[who.block]))
        if kept.any():
            # A read that the same warp ordered before this one is covered by this one.
            kept &= ~((order.warp_of[before] == who.warp) & (when < order.warp_since[who.warp]))
            if order.clocks is not None and kept.any():
                kept &= ~self._known(order.clocks, True, granules, who, kept)
            actor = np.where(kept, self._join(before, actor, who), actor)
        self._write_down(self._reader, granules, actor, who)
        self._read[granules] = order.clock
        if self._block_reads is not None:
            self._block_reads[granules, who.block] = order.clock
        if order.handed is not None and self.of_block:
            warps = order.warps // order.blocks
            if self._reads is None:
                self._reads = np.zeros((len(self.writer), warps), np.int32)
            self._reads[granules, np.broadcast_to(who.warp % warps, granules.shape)] = order.clock

    def _write_down(self, actors: Array, granules: Array, actor: Array, who: Who) -> None:
        """Note actors of granules; where one instruction has several, what stands for all of them."""
        actors[granules] = actor
        found = actors[granules]
        different = found != actor
        if different.any():
            joined = self._join(found, actor, who)[different]
            np.maximum.at(actors, granules[different], joined)

    def _join(self, before: Array, actor: Array, who: Who) -> Array:
        order = self._order
        whole_block = order.lanes + order.warps + who.block
        grid = order.lanes + order.warps + order.blocks
        wider = np.where(order.block_of[before] == who.block, whole_block, grid)
        wider = np.where(order.warp_of[before] == who.warp, order.lanes + who.warp, wider)
        return np.where(before == actor, actor, wider).astype(np.int32)


def _both(one: Mask | None, other: Mask | None) -> Mask | None:
    if one is None or other is None:
        return other if one is None else one
    return one | other


class Space(abc.ABC):
    """One state space: its bytes, their shadow, and where addresses lie in it.

    Attributes:
        name: ``global``, ``shared`` or ``local``.
        data: all of its bytes, flat.
        shadow: of them.
    """

    name = ""

    def __init__(self, size: int, granule: int, order: Order, *, defined: bool) -> None:
        padded = -(-max(size, 1) // _UNIT) * _UNIT + _UNIT
        self.data = np.zeros(padded, np.uint8)
        self.views: dict[int, Array] = {
            1: self.data,
            2: self.data.view(np.uint16),
            4: self.data.view(np.uint32),
            8: self.data.view(np.uint64),
        }
        self.shadow = Shadow(padded, granule, order, defined=defined)

    @abc.abstractmethod
    def locate(self, address: Array, lanes: Array, nbytes: int) -> tuple[Array, Mask | None]:
        """Where ``nbytes`` at each address (n, int64) lie in the data, and which are inside; None for all of them."""

    @abc.abstractmethod
    def place(self, flat: int) -> tuple[str, int]:
        """What a place in the data is called, and its offset from the start of that."""

    @abc.abstractmethod
    def name_of(self, address: int) -> tuple[str, int]:
        """What an address outside of everything is near to, and its offset from the start of that."""


def buffer_addresses(count: int) -> Array:
    """The addresses of ``count`` buffers of a launch."""
    slots = np.arange(1, count + 1, dtype=np.int64)
    return np.asarray(GLOBAL_WINDOW + (slots << SLOT_BITS) + BUFFER_ALIGNMENT)


class GlobalSpace(Space):
    """The buffers of a launch."""

    name = "global"

    def __init__(self, buffers: Sequence[npt.NDArray[np.uint8]], granule: int, order: Order) -> None:
        sizes = np.array([buffer.nbytes for buffer in buffers], np.int64)
        aligned = -(-sizes // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
        self._arena = np.concatenate(([0], np.cumsum(aligned)))[:-1].astype(np.int64)
        super().__init__(int(aligned.sum()), granule, order, defined=True)
        self._sizes = sizes
        self.starts = buffer_addresses(len(buffers))
        for start, buffer in zip(self._arena, buffers, strict=True):
            self.data[start : start + buffer.nbytes] = buffer

    def buffer(self, number: int) -> npt.NDArray[np.uint8]:
        """A copy of a buffer as it is now."""
        start = self._arena[number]
        return self.data[start : start + self._sizes[number]].copy()

    def locate(self, address: Array, lanes: Array, nbytes: int) -> tuple[Array, Mask | None]:
        low, high = int(address.min()), int(address.max())
        slot = (low - GLOBAL_WINDOW >> SLOT_BITS) - 1
        if slot == (high - GLOBAL_WINDOW >> SLOT_BITS) - 1 and 0 <= slot < len(self._sizes):
            start = int(self.starts[slot])
            if low >= start and high - start <= self._sizes[slot] - nbytes:
                return address - (start - int(self._arena[slot])), None
        if not len(self._sizes):
            return np.zeros_like(address), np.zeros(address.shape, np.bool_)
        slots = (address - GLOBAL_WINDOW >> SLOT_BITS) - 1
        near = np.clip(slots, 0, len(self._sizes) - 1)
        offset = address - self.starts[near]
        inside = (slots == near) & (offset >= 0) & (offset <= self._sizes[near] - nbytes)
        return np.where(inside, offset + self._arena[near], 0), inside

    def place(self, flat: int) -> tuple[str, int]:
        number = int(np.searchsorted(self._arena, flat, side="right")) - 1
        return f"buffer {number}", flat - int(self._arena[number])

    def name_of(self, address: int) -> tuple[str, int]:
        slot = (address - GLOBAL_WINDOW >> SLOT_BITS) - 1
        if 0 <= slot < len(self._sizes):
            return f"buffer {slot} of {self._sizes[slot]} bytes", address - int(self.starts[slot])
        return "no buffer", address


class WindowSpace(Space):
    """Shared memory of every block, or local memory of every lane: a window that each owner sees its own part of."""

    def __init__(self, name: str, size: int, owners: int, lanes_per_owner: int, granule: int, order: Order) -> None:
        self.name = name
        self._begin = SHARED_BEGIN if name == "shared" else LOCAL_BEGIN
        self._size = size
        self._stride = -(-max(size, 1) // _UNIT) * _UNIT
        self._per_owner = lanes_per_owner
        super().__init__(self._stride * owners, granule, order, defined=False)
        self.shadow.of_block = name == "shared"

    def locate(self, address: Array, lanes: Array, nbytes: int) -> tuple[Array, Mask | None]:
        offset = address - self._begin
        flat = offset + lanes // self._per_owner * self._stride
        if offset.min() >= 0 and offset.max() <= self._size - nbytes:
            return flat, None
        inside = (offset >= 0) & (offset <= self._size - nbytes)
        return np.where(inside, flat, 0), inside

    def place(self, flat: int) -> tuple[str, int]:
        return f"{self.name} memory", flat % self._stride

    def name_of(self, address: int) -> tuple[str, int]:
        return f"{self._size} bytes of {self.name} memory", address - self._begin
