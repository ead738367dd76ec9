"""Atomic operations on memory: ``atom`` returns what was there, ``red`` does not.

Atomics of different lanes are no races with each other, but they are with plain accesses that nothing orders: neither a
barrier nor, in global memory, fences and what was seen at a place (:mod:`wmmagen.executor.clocks`). They happen in an
order that is drawn at random, so that a sum of floating point numbers, or who comes first, is not always the same.

Source: PTX ISA, "atom" and "red".
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#parallel-synchronization-and-communication-instructions-atom
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wmmagen.executor import alu
from wmmagen.executor.alu import UnknownInstruction
from wmmagen.executor.fences import ORDERS, SCOPES
from wmmagen.executor.machine import Machine
from wmmagen.executor.memory import Space
from wmmagen.executor.numbers import UNSIGNED
from wmmagen.executor.operands import Operands
from wmmagen.executor.ptx import TYPE_BITS, Immediate, Statement, Symbol
from wmmagen.executor.steps import Access, Step, either, turns
from wmmagen.executor.strong import READ, UPDATE, Strength

Array = Any
#: From what is there and the operands to what shall be there.
Update = Callable[..., Array]

_SPACES = ("global", "shared", "shared::cta")
_INTEGERS = ("u32", "s32", "u64")
_TYPES: dict[str, tuple[str, ...]] = {
    "add": (*_INTEGERS, "f16", "f16x2", "bf16", "bf16x2", "f32", "f64"),
    "min": (*_INTEGERS, "s64"),
    "max": (*_INTEGERS, "s64"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64"),
    "cas": ("b16", "b32", "b64"),
}
_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
#: Without an order it is relaxed, without a scope the device's.
_USUAL = Strength(device=True)
#: Where the old value decides nothing of the new one.
_OVERWRITES = ("exch",)


def decode(operands: Operands, statement: Statement) -> tuple[Step, str]:
    """An ``atom`` or ``red``.

    Raises:
        UnknownInstruction: it has another form.
    """
    space, operation, kind, strength = _words(statement)
    returns = statement.words[0] == "atom"
    given = list(statement.operands)
    targets = given[:1] if returns else []
    given = given[1:] if returns else given
    if len(given) != (3 if operation == "cas" else 2) or (not returns and operation in ("exch", "cas")):
        raise UnknownInstruction
    width = TYPE_BITS[kind]
    base, offset = operands.address(given[0], statement)
    sources = [operands.source(operand, f"b{width}", statement) for operand in given[1:]]
    wanted = [operand for operand in targets if operand not in (Symbol("_"), Immediate(0))]
    target = operands.target(wanted[0], width, statement) if wanted else -1
    operands.note_width(space, width // 8)
    access = Access(statement, space, base, offset, width // 8, 1)
    operands.note_strong(space)
    how = _How(_update(operation, kind, space), operation in _OVERWRITES, operation == "cas", strength, bool(wanted))
    return _updates(access, how, target, sources), "atomic"


def _words(statement: Statement) -> tuple[str, str, str, Strength]:
    """State space (empty for generic), operation, type, and how strong it is."""
    # Compilers write these in more than one order.
    found = [[word for word in statement.words[1:] if word in known] for known in (ORDERS, SCOPES, _SPACES)]
    rest = [word for word in statement.words[1:] if not any(word in words for words in found)]
    if any(len(words) > 1 for words in found):
        raise UnknownInstruction
    order, scope, space = (words[0] if words else "" for words in found)
    strength = Strength(SCOPES.get(scope, _USUAL.device), *ORDERS[order or "relaxed"])
    if len(rest) == 3 and rest[1] == "noftz" and rest[2] in _HALVES:
        rest.pop(1)
    if len(rest) != 2 or rest[1] not in _TYPES.get(rest[0], ()):
        raise UnknownInstruction
    # Halves flush nothing, and have to say so.
    if rest[1] in _HALVES and "noftz" not in statement.words:
        raise UnknownInstruction
    return "shared" if space == "shared::cta" else space, rest[0], rest[1], strength


def _update(operation: str, kind: str, space: str) -> Update:
    if operation == "exch":
        return lambda old, new: new
    if operation == "cas":
        return lambda old, expected, new: np.where(old == expected, new, old)
    if operation == "inc":
        return lambda old, most: np.where(old >= most, np.uint32(0), old + np.uint32(1))
    if operation == "dec":
        return lambda old, most: np.where((old == 0) | (old > most), most, old - np.uint32(1))
    function = alu.decode((operation, kind)).function
    if (operation, kind) == ("add", "f32") and space != "shared":
        return lambda old, value: _flushed(function(_flushed(old), _flushed(value)))
    return function


def _flushed(bits: Array) -> Array:
    """f32 without subnormals, which additions in global memory flush to zero with their sign."""
    return np.where(bits & np.uint32(0x7F800000) == 0, bits & np.uint32(0x80000000), bits)


@dataclass(frozen=True)
class _How:
    """What an atomic does.

    Attributes:
        update: to the value.
        overwrites: whether the old value decides nothing of the new one.
        compares: whether it writes only where the old value is the first operand.
        strength: how strong it is.
        returns: whether somebody looks at the old value.
    """

    update: Update
    overwrites: bool
    compares: bool
    strength: Strength
    returns: bool


def _updates(access: Access, how: _How, target: int, sources: list[int]) -> Step:
    statement, width = access.statement, access.width

    def step(machine: Machine) -> None:
        for number in dict.fromkeys(sources):
            machine.demand_defined(number, "poison-stored", "what is stored", statement)
        values = [machine.full(machine.registers[number]) for number in sources]
        before = np.zeros(machine.order.lanes, UNSIGNED[width * 8])
        wrong = either([machine.undefined[number] for number in sources])
        undefined = np.zeros(machine.order.lanes, np.bool_) if wrong is None else np.array(machine.full(wrong))
        for space, address, wanted in access.parts(machine):
            flat, lanes = machine.locate(space, address, wanted, width, statement)
            undefined[np.setdiff1d(wanted, lanes)] = True
            if lanes.size:
                _apply(machine, access, space, flat, lanes, (values, before, undefined), how)
        if target >= 0:
            machine.put(target, before, undefined if undefined.any() else None)

    return step


def _apply(
    machine: Machine,
    access: Access,
    space: Space,
    flat: Array,
    lanes: Array,
    state: tuple[list[Array], Array, Array],
    how: _How,
) -> None:
    """Let lanes have their turns at a space's memory, those of one address one after another."""
    values, before, undefined = state
    granules = space.shadow.granules(flat, access.width)
    who = machine.who(lanes)
    followed = machine.follows(space)
    if not followed:
        machine.note_atomic(space, granules, who, access.statement)
    machine.note_loaded(space, flat, who.block[:, 0])
    machine.count_reloads(space, granules)
    machine.count_access(space, machine.by_warp(flat, lanes), access.width, stores=True)
    machine.note_stored(space, access.width * len(lanes))
    view, shadow = space.views[access.width], space.shadow
    changed, drawn = False, turns(flat, machine.random)
    for turn in drawn:
        now, places = lanes[turn], flat[turn] // access.width
        before[now] = view[places]
        nothing = shadow.undefined[granules[turn]].any(axis=1)
        following = undefined[now] if how.overwrites else undefined[now] | nothing
        shadow.define(granules[turn], following[:, None])
        undefined[now] = nothing
        after = how.update(before[now], *(value[now] for value in values))
        changed = changed or bool((after != before[now]).any())
        view[places] = after
    if followed:
        order = np.concatenate(drawn)
        now = lanes[order]
        writes = before[now] == values[0][now] if how.compares else np.ones(len(now), np.bool_)
        kinds = np.where(writes, UPDATE, READ)
        machine.note_strong(space, flat[order], access.width, now, kinds, how.strength, access.statement)
    if changed:
        machine.events += 1
    elif followed and how.returns:
        machine.look(space, flat, lanes, before[lanes], access.statement)
