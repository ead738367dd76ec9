"""Atomic operations on memory: ``atom`` returns what was there, ``red`` does not.

Atomics of different lanes are no races with each other, but they are with plain accesses. They happen in an order that
is drawn at random, so that a sum of floating point numbers, or who comes first, is not the same in every run.

Source: PTX ISA, "atom" and "red".
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#parallel-synchronization-and-communication-instructions-atom
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wmmagen.executor import alu
from wmmagen.executor.alu import UnknownInstruction
from wmmagen.executor.machine import Machine, flagged
from wmmagen.executor.memory import Space
from wmmagen.executor.numbers import UNSIGNED
from wmmagen.executor.operands import Operands
from wmmagen.executor.ptx import TYPE_BITS, Immediate, Statement, Symbol
from wmmagen.executor.steps import Access, Step

Array = Any
#: From what is there and the operands to what shall be there.
Update = Callable[..., Array]

_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
_SCOPES = ("cta", "cluster", "gpu", "sys")
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
#: Where the old value decides nothing of the new one.
_OVERWRITES = ("exch",)


def decode(operands: Operands, statement: Statement) -> tuple[Step, str]:
    """An ``atom`` or ``red``.

    Raises:
        UnknownInstruction: it has another form.
    """
    space, operation, kind = _words(statement)
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
    return _updates(access, _update(operation, kind, space), operation in _OVERWRITES, target, sources), "atomic"


def _words(statement: Statement) -> tuple[str, str, str]:
    """State space (empty for generic), operation and type."""
    rest = list(statement.words[1:])
    for known in (_ORDERS, _SCOPES):
        if rest and rest[0] in known:
            rest.pop(0)
    space = rest.pop(0) if rest and rest[0] in _SPACES else ""
    if len(rest) == 3 and rest[1] == "noftz" and rest[2] in _HALVES:
        rest.pop(1)
    if len(rest) != 2 or rest[1] not in _TYPES.get(rest[0], ()):
        raise UnknownInstruction
    # Halves flush nothing, and have to say so.
    if rest[1] in _HALVES and "noftz" not in statement.words:
        raise UnknownInstruction
    return "shared" if space == "shared::cta" else space, rest[0], rest[1]


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


def _updates(access: Access, update: Update, overwrites: bool, target: int, sources: list[int]) -> Step:
    statement, width = access.statement, access.width

    def step(machine: Machine) -> None:
        for number in dict.fromkeys(sources):
            machine.demand_defined(number, "poison-stored", "what is stored", statement)
        values = [machine.full(machine.registers[number]) for number in sources]
        before = np.zeros(machine.order.lanes, UNSIGNED[width * 8])
        undefined = np.zeros(machine.order.lanes, np.bool_)
        for number in sources:
            if machine.undefined[number] is not None:
                undefined |= machine.full(flagged(machine.undefined[number]))
        for space, address, wanted in access.parts(machine):
            flat, lanes = machine.locate(space, address, wanted, width, statement)
            undefined[np.setdiff1d(wanted, lanes)] = True
            if lanes.size:
                _apply(machine, access, space, flat, lanes, (values, before, undefined), update, overwrites)
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
    update: Update,
    overwrites: bool,
) -> None:
    """Let lanes have their turns at a space's memory, those of one address one after another."""
    values, before, undefined = state
    granules = space.shadow.granules(flat, access.width)
    who = machine.who(lanes)
    machine.note_atomic(space, granules, who, access.statement)
    machine.note_loaded(space, flat, who.block[:, 0])
    machine.count_reloads(space, granules)
    machine.count_access(space, machine.by_warp(flat, lanes), access.width, stores=True)
    if space.name == "global":
        machine.counts.stored_bytes += access.width * len(lanes)
    view, shadow = space.views[access.width], space.shadow
    for turn in _turns(flat, machine.random):
        now, places = lanes[turn], flat[turn] // access.width
        before[now] = view[places]
        nothing = shadow.undefined[granules[turn]].any(axis=1)
        following = undefined[now] if overwrites else undefined[now] | nothing
        shadow.define(granules[turn], following[:, None])
        undefined[now] = nothing
        view[places] = update(before[now], *(value[now] for value in values))


def _turns(flat: Array, random: np.random.Generator) -> list[Array]:
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
