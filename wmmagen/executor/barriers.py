"""Objects of type mbarrier in shared memory, and bulk copies that complete on them.

A phase is complete when all arrivals that were announced have come and all bytes that were expected are there. Bulk
copies land as late as that allows: where somebody looks for the completion of their phase. The first look finds
nothing, as the ISA allows, so that a kernel that looks once and goes on reads too early.

Source: PTX ISA, "mbarrier" and "cp.async.bulk".
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#parallel-synchronization-and-communication-instructions-mbarrier
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from wmmagen.executor.alu import UnknownInstruction
from wmmagen.executor.counts import SECTOR
from wmmagen.executor.handed import Knowledge
from wmmagen.executor.machine import Machine
from wmmagen.executor.memory import Space
from wmmagen.executor.objects import Barrier, Bulk
from wmmagen.executor.operands import Operands
from wmmagen.executor.ptx import Immediate, Statement, Symbol
from wmmagen.executor.steps import Access, Step

Array = Any

_ORDERS = ("relaxed", "acquire", "release")
_SCOPES = ("cta", "cluster")
#: Without clusters every address of the cluster is one of the block.
_SPACES = ("shared", "shared::cta", "shared::cluster")
_OBJECT_BYTES = 8
_BULK_UNIT = 16
_MOST = (1 << 20) - 1


# Decoding ------------------------------------------------------------------------------------------------------------


def decode(operands: Operands, statement: Statement) -> tuple[Step, str]:
    """An ``mbarrier`` instruction.

    Raises:
        UnknownInstruction: it has another form.
    """
    rest = list(statement.words[1:])
    if len(rest) < 2 or rest.pop() != "b64":
        raise UnknownInstruction
    operation = rest.pop(0)
    modifiers = [rest.pop(0)] if rest and rest[0] in ("parity", "expect_tx", "noComplete") else []
    for known in (_ORDERS, _SCOPES):
        if rest and rest[0] in known:
            rest.pop(0)
    space = "shared" if rest and rest.pop(0) in _SPACES else ""
    form = ".".join((operation, *modifiers))
    maker = _FORMS.get(form)
    if rest or maker is None:
        raise UnknownInstruction
    return maker(operands, statement, space), "mbarrier"


def _access(operands: Operands, statement: Statement, place: int, space: str) -> Access:
    base, offset = operands.address(statement.operands[place], statement)
    operands.note_width("shared", _OBJECT_BYTES)
    return Access(statement, space, base, offset, _OBJECT_BYTES, 1)


def _demand(statement: Statement, *counts: int) -> None:
    if len(statement.operands) not in counts:
        raise UnknownInstruction


def _init(operands: Operands, statement: Statement, space: str) -> Step:
    _demand(statement, 2)
    access = _access(operands, statement, 0, space)
    count = operands.source(statement.operands[1], "u32", statement)

    def step(machine: Machine) -> None:
        counts = machine.full(machine.registers[count])
        for memory, flat, lanes in _objects(machine, access, writes=True):
            expected = int(counts[lanes[0]])
            if flat in machine.barriers:
                _complain(machine, statement, memory, flat, lanes, "is initialized a second time")
            elif not 1 <= expected <= _MOST:
                _complain(machine, statement, memory, flat, lanes, f"is initialized for {expected} arrivals")
                expected = 1
            machine.barriers[flat] = Barrier(expected, machine.per_block)
            machine.events += 1

    return step


def _invalidate(operands: Operands, statement: Statement, space: str) -> Step:
    _demand(statement, 1)
    access = _access(operands, statement, 0, space)

    def step(machine: Machine) -> None:
        for memory, flat, lanes in _objects(machine, access, writes=True):
            if machine.barriers.pop(flat, None) is None:
                _complain(machine, statement, memory, flat, lanes, "is invalidated, but was not initialized")

    return step


def _arrive(operands: Operands, statement: Statement, space: str) -> Step:
    _demand(statement, 2, 3)
    return _arrives(operands, statement, space, expects=False)


def _arrive_expecting(operands: Operands, statement: Statement, space: str) -> Step:
    _demand(statement, 3)
    return _arrives(operands, statement, space, expects=True)


def _arrives(operands: Operands, statement: Statement, space: str, *, expects: bool) -> Step:
    state = statement.operands[0]
    target = -1 if state == Symbol("_") else operands.target(state, 64, statement)
    access = _access(operands, statement, 1, space)
    number = statement.operands[2] if len(statement.operands) == 3 else Immediate(1)
    amount = operands.source(number, "u32", statement)

    def step(machine: Machine) -> None:
        tokens = np.zeros(machine.order.lanes, np.uint64)
        amounts = machine.full(machine.registers[amount]).astype(np.int64)
        for memory, flat, lanes in _objects(machine, access):
            barrier = _found(machine, statement, memory, flat, lanes)
            if barrier is None:
                continue
            if barrier.ready:
                _complete(machine, barrier)
            if expects:
                barrier.expects += int(amounts[lanes].sum())
            tokens[lanes] = barrier.phase
            count = len(lanes) if expects else int(amounts[lanes].sum())
            _come(machine, statement, memory, flat, lanes, barrier, count)
        if target >= 0:
            machine.put(target, tokens, None)

    return step


def _come(
    machine: Machine, statement: Statement, memory: Space, flat: int, lanes: Array, barrier: Barrier, count: int
) -> None:
    """Arrivals, which hand over what the lanes have done."""
    if count > barrier.pending:
        _complain(machine, statement, memory, flat, lanes, f"gets {count} arrivals, and {barrier.lacks()}")
        count = barrier.pending
    order = machine.order
    order.clock += 1
    since = int(order.block_since[order.block_of[lanes[0]]])
    barrier.given = barrier.given.with_(machine.handed().release(lanes, order.clock, since))
    barrier.pending -= count
    machine.events += 1


def _expect(operands: Operands, statement: Statement, space: str) -> Step:
    _demand(statement, 2)
    access = _access(operands, statement, 0, space)
    amount = operands.source(statement.operands[1], "u32", statement)

    def step(machine: Machine) -> None:
        amounts = machine.full(machine.registers[amount]).astype(np.int64)
        for memory, flat, lanes in _objects(machine, access):
            barrier = _found(machine, statement, memory, flat, lanes)
            if barrier is not None:
                if barrier.ready:
                    _complete(machine, barrier)
                barrier.expects += int(amounts[lanes].sum())
                machine.events += 1

    return step


def _wait(operands: Operands, statement: Statement, space: str) -> Step:
    return _waits(operands, statement, space, by_parity=False)


def _wait_parity(operands: Operands, statement: Statement, space: str) -> Step:
    return _waits(operands, statement, space, by_parity=True)


def _waits(operands: Operands, statement: Statement, space: str, *, by_parity: bool) -> Step:
    # Only try_wait takes a time that it may wait.
    _demand(statement, *((3, 4) if statement.words[1] == "try_wait" else (3,)))
    target = operands.target(statement.operands[0], 1, statement)
    access = _access(operands, statement, 1, space)
    asked = operands.source(statement.operands[2], "u32" if by_parity else "u64", statement)

    def step(machine: Machine) -> None:
        machine.demand_defined(asked, "poison-branch", "the phase", statement)
        wanted = machine.full(machine.registers[asked]).astype(np.int64)
        # Who asks nothing that exists goes on.
        found = np.ones(machine.order.lanes, np.bool_)
        for memory, flat, lanes in _objects(machine, access):
            barrier = _found(machine, statement, memory, flat, lanes)
            if barrier is None:
                continue
            own = wanted[lanes]
            past = _past(barrier, own, by_parity)
            if not past.all() and barrier.ready:
                if barrier.asked:
                    _complete(machine, barrier)
                    past = _past(barrier, own, by_parity)
                barrier.asked = not barrier.asked
                machine.events += 1
            found[lanes] = past
            _see(machine, barrier, lanes[past])
            if not past.all():
                name, offset = memory.place(flat)
                machine.stalled = (
                    f"PTX line {statement.line}: {statement.name} of the mbarrier at byte {offset} of {name} in block "
                    f"{int(machine.order.block_of[lanes[0]])} waits for a phase that never completes: {barrier.lacks()}"
                )
        machine.put(target, found, None)

    return step


def _past(barrier: Barrier, asked: Array, by_parity: bool) -> Array:
    """Whether the phases that are asked for are complete."""
    return np.asarray(barrier.phase % 2 != asked % 2 if by_parity else asked < barrier.phase)


_FORMS: dict[str, Callable[[Operands, Statement, str], Step]] = {
    "init": _init,
    "inval": _invalidate,
    "arrive": _arrive,
    "arrive.noComplete": _arrive,
    "arrive.expect_tx": _arrive_expecting,
    "expect_tx": _expect,
    "test_wait": _wait,
    "try_wait": _wait,
    "test_wait.parity": _wait_parity,
    "try_wait.parity": _wait_parity,
}


# Objects -------------------------------------------------------------------------------------------------------------


def _objects(machine: Machine, access: Access, *, writes: bool = False) -> Iterator[tuple[Space, int, Array]]:
    """The objects that the running lanes mean: space, place, and the lanes of each, which all are of one block."""
    machine.handed()
    for space, address, wanted in access.parts(machine):
        flat, lanes = machine.locate(space, address, wanted, _OBJECT_BYTES, access.statement)
        if not lanes.size:
            continue
        granules, who = space.shadow.granules(flat, _OBJECT_BYTES), machine.who(lanes)
        if writes:
            machine.note_write(space, granules, who, access.statement, np.ones((len(lanes), 1), np.bool_))
        else:
            machine.note_atomic(space, granules, who, access.statement)
        for place in np.unique(flat):
            yield space, int(place), lanes[flat == place]


def _found(machine: Machine, statement: Statement, memory: Space, flat: int, lanes: Array) -> Barrier | None:
    barrier = machine.barriers.get(flat) if memory.name == "shared" else None
    if barrier is None:
        _complain(machine, statement, memory, flat, lanes, "was not initialized")
    return barrier


def _complain(machine: Machine, statement: Statement, memory: Space, flat: int, lanes: Array, what: str) -> None:
    name, offset = memory.place(flat)
    message = f"the mbarrier at byte {offset} of {name} {what}"
    machine.report("mbarrier", message, statement, int(lanes[0]), offset, count=len(lanes))


def _complete(machine: Machine, barrier: Barrier) -> None:
    """End the present phase: its copies land now, and not before."""
    if barrier.copies:
        batch = machine.handed().new_batch()
        for copy in barrier.copies:
            _land(machine, copy, batch)
        barrier.given = barrier.given.with_(Knowledge(barrier.given.times, frozenset((batch,))))
        machine.spaces["shared"].shadow.settle()
    barrier.phase += 1
    barrier.pending, barrier.expects, barrier.copies = barrier.expected, 0, []
    barrier.taken = barrier.given
    machine.events += 1


def _see(machine: Machine, barrier: Barrier, lanes: Array) -> None:
    """Lanes have found a phase complete: they take over what was handed over, and see what has landed."""
    if lanes.size:
        machine.order.clock += 1
        machine.handed().acquire(lanes, barrier.taken)


# Bulk copies ---------------------------------------------------------------------------------------------------------

_BULK = [
    ("async", "bulk", space, "global", "mbarrier::complete_tx::bytes") for space in ("shared::cluster", "shared::cta")
]


def copy(operands: Operands, statement: Statement) -> tuple[Step, str]:
    """``cp.async.bulk`` from global to shared memory.

    Raises:
        UnknownInstruction: it has another form.
    """
    words = statement.words[1:]
    hinted = words[-1] == "L2::cache_hint"
    if (words[:-1] if hinted else words) not in _BULK:
        raise UnknownInstruction
    _demand(statement, 5 if hinted else 4)
    target, source, size, barrier = statement.operands[:4]
    to, from_ = operands.address(target, statement), operands.address(source, statement)
    length = operands.source(size, "u32", statement)
    for space in ("shared", "global"):
        operands.note_width(space, _BULK_UNIT)
    access = _access(operands, statement, statement.operands.index(barrier), "shared")
    return _copies(
        Access(statement, "shared", *to, _BULK_UNIT, 1),
        Access(statement, "global", *from_, _BULK_UNIT, 1),
        length,
        access,
    ), "bulk copy"


def _copies(target: Access, source: Access, length: int, barrier: Access) -> Step:
    statement = target.statement

    def step(machine: Machine) -> None:
        machine.demand_defined(length, "poison-address", "the size", statement)
        sizes = machine.full(machine.registers[length]).astype(np.int64)
        everyone = machine.lanes
        addresses = [np.zeros(machine.order.lanes, np.int64) for _ in range(2)]
        for held, access in zip(addresses, (target, source), strict=True):
            held[everyone] = access.address(machine, everyone)
        for memory, flat, lanes in _objects(machine, barrier):
            found = _found(machine, statement, memory, flat, lanes)
            if found is None:
                continue
            for size in np.unique(sizes[lanes]):
                _issue(machine, statement, found, lanes[sizes[lanes] == size], addresses, int(size))

    return step


def _issue(
    machine: Machine, statement: Statement, barrier: Barrier, lanes: Array, addresses: list[Array], nbytes: int
) -> None:
    shared, origin = machine.spaces["shared"], machine.spaces["global"]
    places: list[Array] = []
    for space, held in ((shared, addresses[0]), (origin, addresses[1])):
        lanes, kept = _aligned(machine, statement, space, held, lanes, nbytes)
        places = [place[kept] for place in places]
        flat, inside = space.locate(held[lanes], lanes, nbytes) if lanes.size else (lanes, None)
        if inside is not None:
            machine.report_outside(space, held[lanes], lanes, inside, nbytes, statement)
            lanes, flat, places = lanes[inside], flat[inside], [place[inside] for place in places]
        places.append(flat)
    if not lanes.size or not nbytes:
        return
    granules, who = shared.shadow.granules(places[0], nbytes), machine.who(lanes)
    machine.report_pending(shared, granules, shared.shadow.pending_at(granules), who, statement, writes=True)
    machine.report_race(shared, granules, shared.shadow.touches(granules, who), who, statement, "a bulk copy into")
    shared.shadow.promise(granules)
    barrier.copies.append(Bulk(statement, lanes, places[0], places[1], nbytes))
    machine.events += 1
    sectors = places[1][:, None] + np.arange(0, nbytes, SECTOR // 2)
    machine.note_loaded(origin, sectors, who.block)
    machine.counts.global_load_requests += len(lanes)
    machine.counts.global_load_sectors += int(((places[1] + nbytes - 1) // SECTOR - places[1] // SECTOR + 1).sum())


def _aligned(
    machine: Machine, statement: Statement, space: Space, held: Array, lanes: Array, nbytes: int
) -> tuple[Array, Array]:
    """The lanes whose copy begins on, and has, whole units of 16 bytes; and which of the given ones they are."""
    good = (held[lanes] % _BULK_UNIT == 0) & (nbytes % _BULK_UNIT == 0)
    if not good.all():
        lane = int(lanes[np.argmin(good)])
        name, offset = space.name_of(int(held[lane]))
        message = f"a bulk copy of {nbytes} bytes at byte {offset} of {name}: both have to be multiples of {_BULK_UNIT}"
        machine.report("misaligned", message, statement, lane, offset, count=int((~good).sum()))
    return lanes[good], good


def _land(machine: Machine, copy: Bulk, batch: int) -> None:
    """Move the data; the source may have changed since the copy was issued."""
    shared, origin = machine.spaces["shared"], machine.spaces["global"]
    who = machine.who(copy.lanes)
    machine.note_read(origin, origin.shadow.granules(copy.source, copy.nbytes), who, copy.statement)
    granules = shared.shadow.granules(copy.target, copy.nbytes)
    shared.shadow.land(granules)
    shared.shadow.deliver(granules, who, batch)
    words = np.arange(copy.nbytes // 4)
    shared.views[4][(copy.target // 4)[:, None] + words] = origin.views[4][(copy.source // 4)[:, None] + words]
