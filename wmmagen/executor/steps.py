"""Instructions as functions of the machine: arithmetic, moves, loads, stores, asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wmmagen.executor import alu, memory
from wmmagen.executor.machine import WINDOWS, Copies, Machine, as_bits, flagged
from wmmagen.executor.memory import Space
from wmmagen.executor.numbers import UNSIGNED, resize
from wmmagen.executor.ptx import Statement
from wmmagen.executor.strong import READ, STORE, Strength

Step = Callable[[Machine], None]


def widened(function: alu.Function, bits: int, *, signed: bool) -> alu.Function:
    """The function with its result extended to ``bits``."""
    return lambda *values: resize(function(*values), bits, signed=signed)


def either(states: Sequence[Any]) -> Any:
    """The lanes for which one of the states is undefined; None where none is."""
    found = None
    for state in states:
        if state is not None:
            flags = flagged(state)
            found = flags if found is None else found | flags
    return found


Undefined = Callable[[Sequence[Any], Sequence[Any]], Any]


def computes(function: alu.Function, target: int, sources: Sequence[int], rule: Undefined | None = None) -> Step:
    """An instruction from ``sources`` to ``target``; ``rule`` says which bits of the result are undefined."""

    def spoiled(machine: Machine) -> Any:
        states = [machine.undefined[number] for number in sources]
        if rule is None:
            return either(states)
        values = [machine.registers[number] for number in sources]
        mask = rule(values, [as_bits(state, value) for state, value in zip(states, values, strict=True)])
        return mask if mask.any() else None

    if len(sources) == 2:
        left, right = sources

        def binary(machine: Machine) -> None:
            registers, undefined = machine.registers, machine.undefined
            defined = undefined[left] is None and undefined[right] is None
            wrong = None if defined else spoiled(machine)
            machine.put(target, function(registers[left], registers[right]), wrong)

        return binary
    numbers = tuple(sources)

    def step(machine: Machine) -> None:
        registers, undefined = machine.registers, machine.undefined
        wrong = None
        for number in numbers:
            if undefined[number] is not None:
                wrong = spoiled(machine)
                break
        machine.put(target, function(*[registers[number] for number in numbers]), wrong)

    return step


def unpacks(source: int, targets: list[tuple[int, int]], width: int) -> Step:
    """The parts of a register, of ``width`` bits each; ``targets`` are their places and registers."""
    narrow = UNSIGNED[width]

    def step(machine: Machine) -> None:
        value, state = machine.registers[source], machine.undefined[source]
        mask = None if state is None else as_bits(state, value)
        for place, to in targets:
            shift = value.dtype.type(place * width)
            wrong = None if mask is None else (mask >> shift).astype(narrow)
            machine.put(to, (value >> shift).astype(narrow), None if wrong is None or not wrong.any() else wrong)

    return step


def parameters(start: int, width: int, targets: list[tuple[int, int, int]], *, signed: bool) -> Step:
    """Loads of ``width`` bytes each from the kernel's parameters at ``start``, to places, registers and their bits."""
    kind = UNSIGNED[width * 8]

    def step(machine: Machine) -> None:
        for place, to, bits in targets:
            value = np.frombuffer(machine.parameters, kind, 1, start + place * width)[0]
            machine.put(to, resize(value, bits, signed=signed), None)

    return step


def moves(target: int, source: int) -> Step:
    """A copy of a register."""

    def step(machine: Machine) -> None:
        machine.put(target, machine.registers[source], machine.undefined[source])

    return step


def guarded(step: Step, guard: int, statement: Statement) -> Step:
    """A step that runs for the lanes only for which a predicate holds."""

    def run(machine: Machine) -> None:
        machine.demand_defined(guard, "poison-branch", "the guard", statement)
        before = machine.mask
        chosen = machine.full(machine.registers[guard]) ^ statement.negated
        chosen = chosen if before is None else chosen & before
        if chosen.any():
            machine.run_under(None if before is None and chosen.all() else chosen)
            step(machine)
            machine.run_under(before)

    return run


@dataclass(frozen=True)
class Access:
    """Where an instruction loads or stores: ``count`` elements of ``width`` bytes at a register plus an offset."""

    statement: Statement
    space: str
    base: int
    offset: int
    width: int
    count: int

    @property
    def nbytes(self) -> int:
        return self.width * self.count

    def address(self, machine: Machine, lanes: Any) -> Any:
        """Addresses of these lanes, int64."""
        machine.demand_defined(self.base, "poison-address", "the address", self.statement)
        value = machine.full(machine.registers[self.base])
        value = value if lanes is machine.every else value[lanes]
        return value.astype(np.int64) + self.offset

    def parts(self, machine: Machine) -> list[tuple[Space, Any, Any]]:
        """The spaces that the running lanes access, with their addresses in that space and the lanes."""
        lanes = machine.lanes
        address = self.address(machine, lanes)
        if self.space:
            return [(machine.spaces[self.space], address, lanes)]
        return by_window(machine, address, lanes)


def by_window(machine: Machine, address: Any, lanes: Any) -> list[tuple[Space, Any, Any]]:
    """Generic addresses by the window that they lie in."""
    where = np.where(address >= memory.GLOBAL_WINDOW, 0, 1 + (address >= memory.SHARED_WINDOW))
    where = np.where(address < memory.LOCAL_WINDOW, 0, where)
    parts: list[tuple[Space, Any, Any]] = []
    for number, name in enumerate(("global", "local", "shared")):
        here = where == number
        if here.all():
            return [(machine.spaces[name], address - WINDOWS[name], lanes)]
        if here.any():
            parts.append((machine.spaces[name], address[here] - WINDOWS[name], lanes[here]))
    return parts


def turns(flat: Any, random: np.random.Generator) -> list[Any]:
    """Positions in ``flat`` in groups without a repetition; those of one address come in random order."""
    drawn = random.permutation(len(flat))
    order = drawn[np.argsort(flat[drawn], kind="stable")]
    ordered = flat[order]
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(first)
    rank = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.append(starts, len(ordered))))
    by_rank = np.argsort(rank, kind="stable")
    return np.split(order[by_rank], np.cumsum(np.bincount(rank))[:-1])


def _elements(access: Access, flat: Any, lanes: Any) -> tuple[Any, Any]:
    """Places and lanes of the elements of a vector, each of which is an operation of its own."""
    places = flat[:, None] + np.arange(access.count) * access.width
    return places.reshape(-1), lanes.repeat(access.count)


def _looks(machine: Machine, access: Access, space: Space, flat: Any, lanes: Any, strength: Strength) -> Any:
    """Strong reads; which granules hold nothing defined, None for none."""
    statement = access.statement
    places, readers = _elements(access, flat, lanes)
    machine.note_strong(space, places, access.width, readers, np.full(len(places), READ), strength, statement)
    if access.count == 1:
        machine.look(space, flat, lanes, space.views[access.width][flat // access.width], statement)
    return space.shadow.undefined_at(space.shadow.granules(flat, access.nbytes))


def _lays(
    machine: Machine,
    access: Access,
    space: Space,
    flat: Any,
    lanes: Any,
    values: Any,
    strength: Strength,
    undefined: Any,
) -> None:
    """Strong writes of ``values`` (lanes × elements), in an order that is drawn where two lanes mean one place."""
    places, writers = _elements(access, flat, lanes)
    view, shadow, given = space.views[access.width], space.shadow, values.reshape(-1)
    wrong = np.zeros(len(places), np.bool_) if undefined is None else undefined.repeat(access.count)
    drawn = turns(places, machine.random)
    order, kinds = np.concatenate(drawn), np.full(len(places), STORE)
    machine.note_strong(space, places[order], access.width, writers[order], kinds, strength, access.statement)
    for turn in drawn:
        shadow.define(shadow.granules(places[turn], access.width), wrong[turn][:, None])
        view[places[turn] // access.width] = given[turn]
    machine.events += 1


def loads(
    access: Access, targets: list[tuple[int, int, int]], *, signed: bool, strength: Strength | None = None
) -> Step:
    """A load; ``targets`` are places in the vector, registers and their bits; ``strength`` is None for a weak one."""
    width, count, nbytes, statement = access.width, access.count, access.nbytes, access.statement

    def step(machine: Machine) -> None:
        parts = access.parts(machine)
        values = np.zeros((count, machine.order.lanes), UNSIGNED[width * 8])
        undefined: Any = None
        for space, address, wanted in parts:
            flat, lanes = machine.locate(space, address, wanted, nbytes, statement)
            if lanes is not wanted:
                undefined = np.zeros((count, machine.order.lanes), np.bool_) if undefined is None else undefined
                undefined[:, np.setdiff1d(wanted, lanes)] = True
                if not lanes.size:
                    continue
            granules = space.shadow.granules(flat, nbytes)
            machine.count_reloads(space, granules)
            who = machine.who(lanes)
            if strength is not None and machine.follows(space):
                nothing = _looks(machine, access, space, flat, lanes, strength)
            else:
                nothing = machine.note_read(space, granules, who, statement)
            machine.note_loaded(space, flat, who.block[:, 0])
            first = flat // width
            view = space.views[width]
            whole = lanes is machine.every
            for place in range(count):
                values[place, slice(None) if whole else lanes] = view[first + place]
            if nothing is not None:
                undefined = np.zeros((count, machine.order.lanes), np.bool_) if undefined is None else undefined
                undefined[:, lanes] |= nothing.reshape(len(lanes), count, -1).any(axis=2).T
            machine.count_access(space, machine.by_warp(flat, lanes), nbytes, stores=False)
        for place, to, bits in targets:
            wrong = None if undefined is None else undefined[place]
            if wrong is not None and not wrong.any():
                wrong = None
            machine.put(to, resize(values[place], bits, signed=signed), wrong)

    return step


def stores(access: Access, sources: list[int], strength: Strength | None = None) -> Step:
    """A store of one register for each element; ``strength`` is None for a weak one."""
    width, nbytes, statement = access.width, access.nbytes, access.statement

    def step(machine: Machine) -> None:
        for number in dict.fromkeys(sources):
            machine.demand_defined(number, "poison-stored", "what is stored", statement)
        wrong = either([machine.undefined[number] for number in sources])
        for space, address, wanted in access.parts(machine):
            flat, lanes = machine.locate(space, address, wanted, nbytes, statement)
            if not lanes.size:
                continue
            undefined = None if wrong is None else machine.full(wrong)[lanes][:, None]
            if strength is not None and machine.follows(space):
                values = [resize(machine.full(machine.registers[number]), width * 8)[lanes] for number in sources]
                _lays(machine, access, space, flat, lanes, np.stack(values, axis=1), strength, undefined)
            else:
                granules = space.shadow.granules(flat, nbytes)
                machine.note_write(space, granules, machine.who(lanes), statement, undefined)
                first = flat // width
                view = space.views[width]
                for place, number in enumerate(sources):
                    value = resize(machine.full(machine.registers[number]), width * 8)
                    view[first + place] = value if lanes is machine.every else value[lanes]
            machine.note_stored(space, nbytes * len(lanes))
            machine.count_access(space, machine.by_warp(flat, lanes), nbytes, stores=True)

    return step


def copies(target: Access, source: Access, read: int) -> Step:
    """An asynchronous copy. Register ``read`` says how many bytes come from the source; the others are zeros.

    Where it says none, the source may be any address.
    """
    statement, nbytes = target.statement, target.nbytes

    def step(machine: Machine) -> None:
        shared = machine.spaces["shared"]
        machine.demand_defined(read, "poison-address", "the size of a copy", statement)
        lanes = machine.lanes
        to, from_ = target.address(machine, lanes), source.address(machine, lanes)
        sizes = machine.full(machine.registers[read])[lanes].astype(np.int64)
        if (sizes > nbytes).any():
            first = int(np.argmax(sizes > nbytes))
            message = f"{sizes[first]} bytes of a copy that writes {nbytes}"
            machine.report("out-of-bounds", message, statement, int(lanes[first]), count=int((sizes > nbytes).sum()))
            sizes = np.minimum(sizes, nbytes)
        flat, left = machine.locate(shared, to, lanes, nbytes, statement)
        if left is not lanes:
            here = np.isin(lanes, left)
            from_, sizes = from_[here], sizes[here]
        written: list[tuple[Any, Any]] = []
        loaded: list[tuple[Any, Any]] = []
        for size in np.unique(sizes).tolist():
            own = slice(None) if (sizes == size).all() else sizes == size
            parts = left[own], flat[own], from_[own]
            kept, places, inside = _begin(machine, target, parts, size)
            written.append((places, kept))
            loaded += [(inside, kept)] if size else []
        for space, accesses in ((machine.spaces["global"], loaded), (shared, written)):
            if accesses:
                flat, kept = (np.concatenate(parts) for parts in zip(*accesses, strict=True))
                store = space is shared
                machine.count_access(space, machine.by_warp(flat, kept), nbytes, stores=store, copies=store)

    return step


def _begin(machine: Machine, target: Access, parts: tuple[Any, Any, Any], size: int) -> tuple[Any, Any, Any]:
    """Start the copies of lanes that read ``size`` bytes each: lanes, places in shared memory, addresses of the source.

    What is left of the three where the source can be read, its addresses as places.
    """
    statement, nbytes = target.statement, target.nbytes
    shared, origin = machine.spaces["shared"], machine.spaces["global"]
    lanes, flat, from_ = parts
    inside, kept = machine.locate(origin, from_, lanes, size, statement, align=nbytes) if size else (from_, lanes)
    if kept is not lanes:
        flat = flat[np.isin(lanes, kept)]
    if kept.size:
        granules = shared.shadow.granules(flat, nbytes)
        who = machine.who(kept)
        # The copy may write at any moment from now on, so whoever touches the bytes now has to be done with them.
        machine.report_pending(shared, granules, shared.shadow.pending_at(granules), who, statement, writes=True)
        machine.report_race(shared, granules, shared.shadow.touches(granules, who), who, statement, "a copy into")
        shared.shadow.promise(granules)
        machine.copies.append(Copies(statement, kept, machine.committed[kept], flat, inside, size, nbytes))
        if size:
            machine.note_loaded(origin, inside, who.block[:, 0])
    return kept, flat, inside


def commit(machine: Machine) -> None:
    """Close the group of copies of the running lanes."""
    machine.committed[machine.lanes] += 1


def wait_all(machine: Machine) -> None:
    """Wait for every copy of the running lanes."""
    commit(machine)
    machine.land(machine.committed)


def waits(left: int) -> Step:
    """A wait for all groups but the last ``left``."""
    return lambda machine: machine.land(machine.committed - left)
