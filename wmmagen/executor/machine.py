"""The state of a launch while it runs: registers of all lanes, memory, and what the instructions of a warp share.

A register is one array over all lanes of the launch, or one scalar where every lane has the same value. Beside it
stands what of it is undefined: None for nothing, which is nearly always so; flags for whole lanes; or a mask of bits,
because compilers leave bits undefined that a later instruction ignores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wmmagen.executor import memory
from wmmagen.executor.counts import ABSENT, Counts, Meter, Sectors
from wmmagen.executor.findings import Finding, Log
from wmmagen.executor.handed import Handed
from wmmagen.executor.matrix import Layouts, Values
from wmmagen.executor.memory import WARP, GlobalSpace, Order, Space, Who, WindowSpace
from wmmagen.executor.objects import Barrier
from wmmagen.executor.ptx import Statement
from wmmagen.executor.strong import READ, STORE, UPDATE, Strength

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

_TILES_KEPT = 256


def flagged(state: Any) -> Any:
    """Which lanes have an undefined bit."""
    return state if state.dtype == np.bool_ else state != 0


def as_bits(state: Any, value: Any) -> Any:
    """A state of undefinedness, None included, as a mask of the bits of ``value``."""
    kind = value.dtype.type
    if state is None:
        return kind(0)
    if state.dtype == value.dtype:
        return state
    return np.where(flagged(state), ~kind(0), kind(0))


class Copies:
    """One ``cp.async`` of some lanes, until it has landed.

    Attributes:
        statement: the instruction.
        lanes: that issued it.
        groups: the number of the group of each lane that it belongs to.
        target, source: places in shared and in global memory.
        read: bytes to copy; the rest of ``nbytes`` is filled with zeros. Where it is 0, ``source`` means nothing.
        nbytes: bytes to write.
    """

    def __init__(
        self,
        statement: Statement,
        lanes: Array,
        groups: Array,
        target: Array,
        source: Array,
        read: int,
        nbytes: int,
    ) -> None:
        self.statement, self.lanes, self.groups = statement, lanes, groups
        self.target, self.source, self.read, self.nbytes = target, source, read, nbytes

    def take(self, ready: Mask) -> Copies:
        """The part of it for some of its lanes."""
        return Copies(
            self.statement, self.lanes[ready], self.groups[ready], self.target[ready], self.source[ready],
            self.read, self.nbytes,
        )  # fmt: skip


class Machine:
    """All blocks of one launch.

    Attributes:
        registers, undefined: by register number; see the module's text.
        mask: the lanes that run now; None for all.
        order: who is who, and what came before what.
        spaces: memory by state space.
        parameters: the bytes of the kernel's parameters.
        layouts: the fragment maps of this run.
        random: draws of whatever else is left open.
        log, counts, meter, sectors: what is reported.
        strict_isa: whether the strict reading of alignment is checked, too.
        exited: lanes that have ended.
        barriers: objects of type mbarrier, by their place in shared memory.
        stalled: what a lane has just waited for in vain, in words; empty for nothing.
        events: grows with whatever may end such a wait.
        threads: of a block.
        absent: lanes of a last warp that the block does not fill; None for none.
    """

    def __init__(
        self,
        registers: Sequence[Any],
        unwritten: frozenset[int],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        spaces: dict[str, Space],
        order: Order,
        parameters: bytes,
        seed: int,
        *,
        strict_isa: bool,
    ) -> None:
        self.registers: list[Any] = list(registers)
        self.undefined: list[Any] = [np.True_ if number in unwritten else None for number in range(len(registers))]
        self.grid, self.block, self.order, self.spaces = grid, block, order, spaces
        self.parameters = parameters
        self.layouts = Layouts(seed)
        self.random = np.random.default_rng((seed, 1))
        self._draw = int(self.random.integers(WARP))
        self._apart = seed % 2 == 1
        self.strict_isa = strict_isa
        self.log, self.meter = Log(), Meter()
        self.counts = Counts(warps=order.warps)
        self.sectors = Sectors(spaces["global"].data.nbytes, order.blocks)
        self.mask: Mask | None = None
        self.every = np.arange(order.lanes)
        self._lanes: Array | None = self.every
        self._everyone = self._who(self.every)
        self.per_block = order.lanes // order.blocks
        self.threads = math.prod(block)
        within = self.every % self.per_block
        self.absent: Mask | None = within >= self.threads if self.threads < self.per_block else None
        self.exited = np.zeros(order.lanes, np.bool_) if self.absent is None else self.absent.copy()
        self.committed = np.zeros(order.lanes, np.int64)
        self.copies: list[Copies] = []
        self.barriers: dict[int, Barrier] = {}
        self.stalled = ""
        self.events = 0
        #: For each instruction that looks at memory for a change: where each lane looked last, and what it found.
        self._looks: dict[int, tuple[Array, Array]] = {}
        self._tiles: dict[tuple[object, ...], tuple[object, Values]] = {}

    # Lanes -----------------------------------------------------------------------------------------------------------

    def run_under(self, mask: Mask | None) -> None:
        """Let only these lanes run; None for all."""
        self.mask = mask
        self._lanes = self.every if mask is None else None

    @property
    def lanes(self) -> Array:
        """The numbers of the lanes that run."""
        if self._lanes is None:
            self._lanes = np.flatnonzero(self.full(self.mask))
        return self._lanes

    @property
    def running(self) -> Mask:
        """Of every lane, whether it runs."""
        return self.full(np.True_ if self.mask is None else self.mask)

    def _who(self, lanes: Array) -> Who:
        column = lanes[:, None].astype(np.int32)
        return Who(column, self.order.warp_of[column], self.order.block_of[column])

    def who(self, lanes: Array) -> Who:
        """The lanes as actors, one row each."""
        return self._everyone if lanes is self.every else self._who(lanes)

    def whole_warps(self, statement: Statement) -> Array:
        """The warps that run; reports those of which only a part does, and leaves them out."""
        if self.mask is None:
            return np.arange(self.order.warps)
        running = self.mask.reshape(-1, WARP)
        some, every = running.any(axis=1), running.all(axis=1)
        for warp in np.flatnonzero(some & ~every):
            lane = int(np.flatnonzero(~running[warp])[0])
            self.report(
                "partial-warp",
                f"{statement.name} is reached by {int(running[warp].sum())} of 32 lanes",
                statement,
                int(warp) * WARP + lane,
            )
        return np.flatnonzero(every)

    def draw_blocks(self) -> Array | None:
        """An order in which blocks begin, one after another; None where all begin together, with every even seed."""
        if self.order.blocks == 1 or not self._apart:
            return None
        return self.random.permutation(self.order.blocks)

    def leader(self, members: Mask) -> int:
        """The lane that these members of a warp elect: the same one for the same members."""
        lanes = np.flatnonzero(members)
        return int(lanes[self._draw % len(lanes)])

    def same_in_warp(self, value: Any, warps: Array, statement: Statement, what: str) -> Array:
        """The value of each of these warps, whose lanes have to agree on it."""
        spread = self.full(value).reshape(-1, WARP)[warps]
        first = spread[:, :1]
        if (spread != first).any():
            row, lane = np.argwhere(spread != first)[0]
            self.report(
                "differing-arguments",
                f"{statement.name} gets different values of {what} within a warp",
                statement,
                int(warps[row]) * WARP + int(lane),
            )
        return np.asarray(first[:, 0])

    # Registers -------------------------------------------------------------------------------------------------------

    def full(self, value: Any) -> Array:
        """A value for every lane."""
        array = np.asarray(value)
        return array if array.ndim else np.broadcast_to(array, (self.order.lanes,))

    def put(self, register: int, value: Any, undefined: Any) -> None:
        """Write a register of the running lanes; ``value`` and ``undefined`` are for all lanes, or scalars."""
        if self.mask is None:
            self.registers[register] = value
            self.undefined[register] = undefined
            return
        self.registers[register] = np.where(self.mask, value, self.registers[register])
        old = self.undefined[register]
        if undefined is None and old is None:
            return
        both = np.where(self.mask, as_bits(undefined, value), as_bits(old, value))
        self.undefined[register] = both if both.any() else None

    def undefined_in(self, register: int, lanes: Array) -> Mask | None:
        """Which of the lanes hold something undefined; None for none."""
        state = self.undefined[register]
        if state is None:
            return None
        found = self.full(flagged(state))[lanes]
        return found if found.any() else None

    def demand_defined(self, register: int, code: str, what: str, statement: Statement) -> None:
        """Report where a running lane uses something undefined for what must not be."""
        wrong = self.undefined_in(register, self.lanes)
        if wrong is not None:
            lane = int(self.lanes[np.argmax(wrong)])
            self.report(code, f"{what} is undefined", statement, lane, count=int(wrong.sum()))

    # Memory ----------------------------------------------------------------------------------------------------------

    def locate(
        self, space: Space, address: Array, lanes: Array, nbytes: int, statement: Statement, align: int = 0
    ) -> tuple[Array, Array]:
        """Places of accesses in a space, and the lanes whose access can be made; reports the others.

        Args:
            align: bytes of which addresses have to be multiples, a power of two; ``nbytes`` where it is 0.
        """
        if not lanes.size:
            return address, lanes
        flat, inside = space.locate(address, lanes, nbytes)
        if inside is not None:
            self.report_outside(space, address, lanes, inside, nbytes, statement)
            lanes, flat, address = lanes[inside], flat[inside], address[inside]
        align = align or nbytes
        if align > 1:
            crooked = address & (align - 1) != 0
            if crooked.any():
                first = int(np.argmax(crooked))
                name, offset = space.place(int(flat[first]))
                self.report(
                    "misaligned",
                    f"an access of {align} bytes at byte {offset} of {name}",
                    statement,
                    int(lanes[first]),
                    offset,
                    count=int(crooked.sum()),
                )
                flat, lanes = flat[~crooked], lanes[~crooked]
        return flat, lanes

    def report_outside(
        self, space: Space, address: Array, lanes: Array, inside: Mask, nbytes: int, statement: Statement
    ) -> None:
        first = int(np.argmin(inside))
        name, offset = space.name_of(int(address[first]))
        message = f"an access of {nbytes} bytes at byte {offset}, outside of {name}"
        self.report("out-of-bounds", message, statement, int(lanes[first]), offset, count=int((~inside).sum()))

    def handed(self) -> Handed:
        """What lanes know of each other beside barriers; from now on it is followed."""
        order = self.order
        if order.handed is None:
            order.handed = Handed(order.lanes, order.blocks, order.warp_since, order.block_since, self.absent)
        return order.handed

    def report_race(
        self, space: Space, granules: Array, race: Mask | None, who: Who, statement: Statement, what: str
    ) -> None:
        """Report granules that another lane touched without an order."""
        foreign = space.shadow.take_foreign()
        if race is None:
            return
        place = np.unravel_index(int(np.argmax(race)), race.shape)
        granule = int(granules[place])
        actor, warp, block = (int(np.broadcast_to(x, race.shape)[place]) for x in (who.actor, who.warp, who.block))
        name, offset = space.place(granule * space.shadow.granule)
        before = int(space.shadow.writer[granule])
        between = space.name == "global" and before >= 0 and self.order.block_of[before] != block
        between = between or (space.name == "global" and foreign is not None and bool(foreign[place]))
        lane = actor if actor < self.order.lanes else warp * WARP
        if space.shadow.delivered_unseen(granule, actor, warp):
            code = "early-read" if what == "a read" else "early-write"
            message = (
                f"byte {offset} of {name} came by a bulk copy, of which this lane has not seen that it is complete"
            )
            self.report(code, message, statement, lane, offset, count=int(race.sum()))
            return
        self.report(
            "race-between-blocks" if between else "race",
            f"{what} of byte {offset} of {name}, which another lane touches without a barrier in between",
            statement,
            lane,
            offset,
            count=int(race.sum()),
        )

    def report_pending(
        self, space: Space, granules: Array, pending: Mask | None, who: Who, statement: Statement, *, writes: bool
    ) -> None:
        """Report accesses to what an asynchronous copy has still to fill."""
        if pending is None:
            return
        place = np.unravel_index(int(np.argmax(pending)), pending.shape)
        actor, warp = (int(np.broadcast_to(x, pending.shape)[place]) for x in (who.actor, who.warp))
        name, offset = space.place(int(granules[place]) * space.shadow.granule)
        self.report(
            "early-write" if writes else "early-read",
            f"byte {offset} of {name} waits for an asynchronous copy",
            statement,
            actor if actor < self.order.lanes else warp * WARP,
            offset,
            count=int(pending.sum()),
        )

    def note_read(self, space: Space, granules: Array, who: Who, statement: Statement) -> Mask | None:
        """Note a read; reports races and early ones. Which granules hold nothing defined; None for none."""
        shadow = space.shadow
        self.report_pending(space, granules, shadow.pending_at(granules), who, statement, writes=False)
        self.report_race(space, granules, shadow.read(granules, who), who, statement, "a read")
        return shadow.undefined_at(granules)

    def note_write(
        self, space: Space, granules: Array, who: Who, statement: Statement, undefined: Array | None = None
    ) -> None:
        """Note a write; reports races and early ones."""
        shadow = space.shadow
        self.report_pending(space, granules, shadow.pending_at(granules), who, statement, writes=True)
        self.report_race(space, granules, shadow.write(granules, who, undefined=undefined), who, statement, "a write")

    def note_atomic(self, space: Space, granules: Array, who: Who, statement: Statement) -> None:
        """Note an atomic update; reports races and early ones."""
        shadow = space.shadow
        self.report_pending(space, granules, shadow.pending_at(granules), who, statement, writes=True)
        self.report_race(space, granules, shadow.update(granules, who), who, statement, "an atomic update")

    def follows(self, space: Space) -> bool:
        """Whether strong operations on a space are followed."""
        return space.shadow.strong is not None

    def note_strong(
        self,
        space: Space,
        flat: Array,
        width: int,
        lanes: Array,
        kinds: Array,
        strength: Strength,
        statement: Statement,
    ) -> None:
        """Note strong operations of ``width`` bytes by lanes at places, in this order, and what they order.

        ``kinds`` tells of each whether it reads, stores or updates. Reports races.
        """
        order, shadow = self.order, space.shadow
        clocks, device = order.clocks, strength.device
        assert clocks is not None
        clocks.tidy()
        if strength.releases:
            order.clock += 1
        what = {READ: "a strong read", STORE: "a strong write", UPDATE: "an atomic update"}[int(kinds[0])]
        # What an acquire takes over orders the operations behind it, and not itself. Where all mean the whole device,
        # no two of them race.
        for group in [slice(None)] if device else [slice(row, row + 1) for row in range(len(lanes))]:
            granules, who = shadow.granules(flat[group], width), self.who(lanes[group])
            race = shadow.operate(granules, who, kinds[group], device=device)
            self.report_race(space, granules, race, who, statement, what)
        speaks = np.full(len(lanes), strength.releases) | clocks.may_release(lanes)
        for row, place in enumerate(flat.tolist() if speaks.any() or clocks.carries_any else ()):
            kind, lane, carries = int(kinds[row]), int(lanes[row]), clocks.carries(place)
            # What a reduction reads is passed on, but it acquires nothing.
            if carries and kind != STORE and statement.words[0] != "red":
                clocks.read(lane, place, device=device, acquires=strength.acquires)
            if kind != READ and (speaks[row] or carries):
                clocks.write(
                    lane, place, order.clock, device=device, releases=strength.releases, updates=kind == UPDATE
                )

    def look(self, space: Space, flat: Array, lanes: Array, found: Array, statement: Statement) -> None:
        """Lanes have looked at places and changed nothing: where all find what they found before, they wait."""
        kept = self._looks.get(statement.line)
        if kept is None:
            kept = self._looks[statement.line] = (
                np.full(self.order.lanes, -1),
                np.zeros(self.order.lanes, found.dtype),
            )
        where, what = kept
        again = bool(((where[lanes] == flat) & (what[lanes] == found)).all())
        where[lanes], what[lanes] = flat, found
        if again and not self.stalled:
            name, offset = space.place(int(flat[0]))
            block = int(self.order.block_of[lanes[0]])
            self.stalled = (
                f"PTX line {statement.line}: {statement.name} of byte {offset} of {name} in block {block} finds "
                f"{int(found[0])} again and again"
            )
        if not again:
            self.events += 1

    def by_warp(self, values: Array, lanes: Array) -> Array:
        """Values of lanes as warps × lanes, of the warps that take part; :data:`ABSENT` where a lane does not."""
        if lanes is self.every:
            return values.reshape(-1, WARP)
        spread = np.full(self.order.lanes, ABSENT, np.int64)
        spread[lanes] = values
        rows = spread.reshape(-1, WARP)
        return np.asarray(rows[(rows != ABSENT).any(axis=1)])

    def count_access(self, space: Space, flat: Array, nbytes: int, *, stores: bool, copies: bool = False) -> None:
        """Count accesses of ``nbytes`` at places (warps × lanes); ``copies`` are stores of asynchronous copies."""
        counts = self.counts
        if not flat.size:
            return
        if space.name == "global":
            requests, sectors = self.meter.sectors(flat)
            if stores:
                counts.global_store_requests += requests
                counts.global_store_sectors += sectors
            else:
                counts.global_load_requests += requests
                counts.global_load_sectors += sectors
        elif space.name == "shared":
            wavefronts, conflicts = self.meter.wavefronts(flat, nbytes)
            if stores:
                counts.shared_store_wavefronts += wavefronts
                counts.shared_copy_wavefronts += wavefronts if copies else 0
                counts.shared_store_conflicts += conflicts
            else:
                counts.shared_load_wavefronts += wavefronts
                counts.shared_load_conflicts += conflicts

    def note_loaded(self, space: Space, places: Array, blocks: Array) -> None:
        """Note which sectors of global memory blocks have loaded from."""
        if space.name == "global":
            self.sectors.load(places, blocks)

    def note_stored(self, space: Space, nbytes: int) -> None:
        """Count what has been stored to global memory, all lanes together."""
        if space.name == "global":
            self.counts.stored_bytes += nbytes

    def count_reloads(self, space: Space, granules: Array) -> None:
        """Count loads of what this launch has stored."""
        if space.name == "global" and self.counts.stored_bytes:
            again = int(space.shadow.stored(granules).sum())
            self.counts.reloaded_bytes += again * space.shadow.granule

    # Asynchronous copies ---------------------------------------------------------------------------------------------

    def land(self, until: Array) -> None:
        """Let the copies of the running lanes land whose group number is below ``until`` (of every lane)."""
        running = self.running
        left: list[Copies] = []
        for copies in self.copies:
            ready = running[copies.lanes] & (copies.groups < until[copies.lanes])
            if ready.all():
                self._land(copies)
            elif ready.any():
                self._land(copies.take(ready))
                left.append(copies.take(~ready))
            else:
                left.append(copies)
        self.copies = left
        self.spaces["shared"].shadow.settle()

    def _land(self, copies: Copies) -> None:
        """Move the data now, and not before: the source may have changed since the copy was issued."""
        shared, source = self.spaces["shared"], self.spaces["global"]
        who = self.who(copies.lanes)
        if copies.read:
            granules = source.shadow.granules(copies.source, copies.read)
            self.note_read(source, granules, who, copies.statement)
        granules = shared.shadow.granules(copies.target, copies.nbytes)
        shared.shadow.land(granules)
        self.note_write(shared, granules, who, copies.statement)
        # The source may end behind what is read of it.
        unit = math.gcd(4, copies.read)
        places = np.arange(copies.nbytes // unit)
        words = np.zeros((len(copies.lanes), places.size), source.views[unit].dtype)
        read = copies.read // unit
        words[:, :read] = source.views[unit][(copies.source // unit)[:, None] + places[:read]]
        shared.views[unit][(copies.target // unit)[:, None] + places] = words

    # Fragments -------------------------------------------------------------------------------------------------------

    def tile(self, key: tuple[object, ...]) -> Values | None:
        """Numbers that were made of the same registers before; ``key`` holds their identities."""
        found = self._tiles.get(key)
        return found[1] if found is not None else None

    def keep_tile(self, key: tuple[object, ...], kept: object, values: Values) -> None:
        """Remember numbers. ``kept`` holds the registers' arrays, so that no other array gets their identity."""
        if len(self._tiles) >= _TILES_KEPT:
            self._tiles.clear()
        self._tiles[key] = (kept, values)

    # Reports ---------------------------------------------------------------------------------------------------------

    def report(
        self,
        code: str,
        message: str,
        statement: Statement,
        lane: int,
        address: int = -1,
        *,
        rule: str = "",
        count: int = 1,
        whole_warp: bool = False,
    ) -> None:
        """Keep a finding of a lane, numbered over the launch."""
        block, within = divmod(lane, self.per_block)
        self.log.add(
            Finding(
                code,
                message,
                statement.line,
                statement.source_line,
                block,
                within // WARP,
                -1 if whole_warp else within % WARP,
                address,
                rule,
                count,
            )
        )

    def finish(self) -> None:
        """Work out the figures that only the end of a launch shows."""
        written = self.spaces["global"].shadow.stored(slice(None))
        self.counts.distinct_stored_bytes = int(written.sum()) * self.spaces["global"].shadow.granule
        self.counts.sectors_per_launch, self.counts.sectors_per_block = self.sectors.totals()


def make_spaces(
    buffers: Sequence[npt.NDArray[np.uint8]],
    shared_bytes: int,
    local_bytes: int,
    granules: dict[str, int],
    order: Order,
) -> dict[str, Space]:
    """The memory of a launch; sizes in bytes, of shared memory per block and of local memory per lane."""
    per_block = order.lanes // order.blocks
    return {
        "global": GlobalSpace(buffers, granules["global"], order),
        "shared": WindowSpace("shared", shared_bytes, order.blocks, per_block, granules["shared"], order),
        "local": WindowSpace("local", local_bytes, order.lanes, 1, 1, order),
    }


#: The window of each state space in the generic address space.
WINDOWS = {"global": 0, "shared": memory.SHARED_WINDOW, "local": memory.LOCAL_WINDOW}
