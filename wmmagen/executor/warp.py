"""What the lanes of a warp do together: warp barriers, shuffles, votes, reductions, the election of one lane.

Each names its members. The lanes that reach it have to be just those; a shuffle from a lane that takes no part gives
something undefined. Nothing here but the barrier orders memory.

Source: PTX ISA, "bar.warp.sync", "shfl.sync", "vote.sync", "activemask", "redux.sync", "elect.sync".
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#parallel-synchronization-and-communication-instructions
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wmmagen.executor.alu import UnknownInstruction
from wmmagen.executor.machine import Machine, flagged
from wmmagen.executor.memory import WARP
from wmmagen.executor.numbers import SIGNED
from wmmagen.executor.operands import Operands
from wmmagen.executor.ptx import Operand, Pair, Statement, Symbol
from wmmagen.executor.steps import Step, either

Array = Any

_EVERY = 0xFFFFFFFF
_MODES = ("up", "down", "bfly", "idx")
_LANES = np.arange(WARP)
_BITS = 1 << np.arange(WARP, dtype=np.int64)


def _together(machine: Machine, members: int, statement: Statement) -> tuple[Array, Array]:
    """The warps that run, and which of their lanes do (warps × 32); reports where those are not the named members."""
    value = machine.registers[members]
    machine.demand_defined(members, "poison-branch", "the mask of members", statement)
    if machine.mask is None and np.ndim(value) == 0 and value == _EVERY:
        return np.arange(machine.order.warps), np.ones((machine.order.warps, WARP), np.bool_)
    rows = machine.running.reshape(-1, WARP)
    warps = np.flatnonzero(rows.any(axis=1))
    rows = rows[warps]
    bits = (rows * _BITS).sum(axis=1)
    asked = np.where(rows, machine.full(value).reshape(-1, WARP)[warps].astype(np.int64), bits[:, None])
    wrong = (asked != bits[:, None]).any(axis=1)
    if wrong.any():
        first = int(np.argmax(wrong))
        lane = int(warps[first]) * WARP + int(np.argmax(rows[first]))
        message = f"{statement.name} is not reached by just the lanes that its mask names"
        machine.report("partial-warp", message, statement, lane, count=int(wrong.sum()))
    return warps, rows


def _meets(members: int, statement: Statement) -> Step:
    def step(machine: Machine) -> None:
        warps, rows = _together(machine, members, statement)
        # A barrier of some lanes only orders nothing here: the shadow knows warps, not parts of them.
        whole = rows.all(axis=1)
        machine.order.warps_meet(None if len(warps) == machine.order.warps and whole.all() else warps[whole])
        machine.counts.warp_barriers += len(warps)

    return step


def barrier(operands: Operands, statement: Statement) -> tuple[Step, str]:
    """``bar.warp.sync``.

    Raises:
        UnknownInstruction: it has another form.
    """
    if statement.words != ("bar", "warp", "sync") or len(statement.operands) != 1:
        raise UnknownInstruction
    return _meets(operands.source(statement.operands[0], "b32", statement), statement), "warp barrier"


# Shuffles ------------------------------------------------------------------------------------------------------------


def shuffle(operands: Operands, statement: Statement) -> tuple[Step, str]:
    """``shfl.sync``.

    Raises:
        UnknownInstruction: it has another form.
    """
    words = statement.words
    if len(words) != 4 or words[1] != "sync" or words[2] not in _MODES or words[3] != "b32":
        raise UnknownInstruction
    if len(statement.operands) != 5:
        raise UnknownInstruction
    target, found = _targets(operands, statement.operands[0], 32, statement)
    sources = [operands.source(operand, "b32", statement) for operand in statement.operands[1:]]
    return _shuffles(words[2], target, found, sources, statement), "shuffle"


def _targets(operands: Operands, operand: Operand, bits: int, statement: Statement) -> tuple[int, int]:
    """Numbers of a destination and of the predicate beside it; -1 for one that is not wanted."""
    first, second = operand if isinstance(operand, Pair) else (operand, Symbol("_"))
    numbers = [
        -1 if part == Symbol("_") else operands.target(part, width, statement)
        for part, width in ((first, bits), (second, 1))
    ]
    return numbers[0], numbers[1]


def _source_lanes(mode: str, b: Array, c: Array) -> tuple[Array, Array]:
    """The lane that each lane reads, and whether it lies in its segment."""
    step, clamp, segment = b & 31, c & 31, c >> 8 & 31
    least, most = _LANES & segment, (_LANES & segment) | (clamp & ~segment & 31)
    if mode == "up":
        lane = _LANES - step
        inside = lane >= most
    else:
        steps = {"down": _LANES + step, "bfly": _LANES ^ step, "idx": least | (step & ~segment & 31)}
        lane = steps[mode]
        inside = lane <= most
    return np.where(inside, lane, _LANES), inside


def _shuffles(mode: str, target: int, found: int, sources: list[int], statement: Statement) -> Step:
    value, b, c, members = sources

    def step(machine: Machine) -> None:
        warps, rows = _together(machine, members, statement)
        for number, what in ((b, "the lane"), (c, "the clamp")):
            machine.demand_defined(number, "poison-address", what, statement)
        steps, clamps = (machine.full(machine.registers[n]).reshape(-1, WARP).astype(np.int64) for n in (b, c))
        lanes, inside = _source_lanes(mode, steps, clamps)
        if target >= 0:
            held = machine.full(machine.registers[value]).reshape(-1, WARP)
            moved = np.take_along_axis(held, lanes, axis=1).reshape(-1)
            machine.put(target, moved, _undefined(machine, value, lanes, warps, rows))
        if found >= 0:
            machine.put(found, inside.reshape(-1), either([machine.undefined[b], machine.undefined[c]]))

    return step


def _undefined(machine: Machine, value: int, lanes: Array, warps: Array, rows: Array) -> Array | None:
    """Which lanes get something undefined: from a lane that takes no part, or that holds nothing."""
    absent = np.ones((machine.order.warps, WARP), np.bool_)
    absent[warps] = ~rows
    state = machine.undefined[value]
    if state is not None:
        absent = absent | machine.full(flagged(state)).reshape(-1, WARP)
    wrong = np.take_along_axis(absent, lanes, axis=1).reshape(-1)
    return wrong if wrong.any() else None


# Votes and reductions ------------------------------------------------------------------------------------------------

#: What members said and which members there are, rows of them; one value for each row.
VOTES: dict[str, Callable[[Array, Array], Array]] = {
    "all": lambda said, here: (said | ~here).all(axis=1),
    "any": lambda said, here: (said & here).any(axis=1),
    "uni": lambda said, here: (said | ~here).all(axis=1) | (~said | ~here).all(axis=1),
    "ballot": lambda said, here: ((said & here) * _BITS).sum(axis=1).astype(np.uint32),
}


def vote(operands: Operands, statement: Statement) -> tuple[Step, str]:
    """``vote.sync``.

    Raises:
        UnknownInstruction: it has another form.
    """
    words = statement.words
    if len(words) != 4 or words[1] != "sync" or words[2] not in VOTES or len(statement.operands) != 3:
        raise UnknownInstruction
    if words[3] != ("b32" if words[2] == "ballot" else "pred"):
        raise UnknownInstruction
    target = operands.target(statement.operands[0], 32 if words[2] == "ballot" else 1, statement)
    source = operands.source(statement.operands[1], "pred", statement)
    members = operands.source(statement.operands[2], "b32", statement)
    return _joins(VOTES[words[2]], target, source, members, statement), "vote"


def _joins(
    compute: Callable[[Array, Array], Array], target: int, source: int, members: int, statement: Statement
) -> Step:
    """One value for all lanes of a warp, of what each of them gives."""

    def step(machine: Machine) -> None:
        warps, rows = _together(machine, members, statement)
        given = machine.full(machine.registers[source]).reshape(-1, WARP)[warps]
        found = compute(given, rows)
        values = np.zeros(machine.order.warps, found.dtype)
        values[warps] = found
        state, wrong = machine.undefined[source], None
        if state is not None:
            spoiled = np.zeros(machine.order.warps, np.bool_)
            spoiled[warps] = (machine.full(flagged(state)).reshape(-1, WARP)[warps] & rows).any(axis=1)
            wrong = spoiled.repeat(WARP) if spoiled.any() else None
        machine.put(target, values.repeat(WARP), wrong)

    return step


def active(operands: Operands, statement: Statement) -> tuple[Step, str]:
    """``activemask``: the lanes that run.

    Raises:
        UnknownInstruction: it has another form.
    """
    if statement.words != ("activemask", "b32") or len(statement.operands) != 1:
        raise UnknownInstruction
    target = operands.target(statement.operands[0], 32, statement)

    def step(machine: Machine) -> None:
        bits = (machine.running.reshape(-1, WARP) * _BITS).sum(axis=1).astype(np.uint32)
        machine.put(target, bits.repeat(WARP), None)

    return step, "vote"


_REDUCTIONS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "add": (np.add, ("u32", "s32")), "min": (np.minimum, ("u32", "s32")), "max": (np.maximum, ("u32", "s32")),
    "and": (np.bitwise_and, ("b32",)), "or": (np.bitwise_or, ("b32",)), "xor": (np.bitwise_xor, ("b32",)),
}  # fmt: skip


def reduce(operands: Operands, statement: Statement) -> tuple[Step, str]:
    """``redux.sync`` of integers.

    Raises:
        UnknownInstruction: it has another form.
    """
    words = statement.words
    if len(words) != 4 or words[1] != "sync" or words[2] not in _REDUCTIONS or len(statement.operands) != 3:
        raise UnknownInstruction
    function, kinds = _REDUCTIONS[words[2]]
    if words[3] not in kinds:
        raise UnknownInstruction
    seen = SIGNED[32] if words[3] == "s32" else np.uint32
    target = operands.target(statement.operands[0], 32, statement)
    source, members = (operands.source(operand, "b32", statement) for operand in statement.operands[1:])

    def compute(given: Array, here: Array) -> Array:
        found = np.empty(len(given), np.uint32)
        for number, (values, rows) in enumerate(zip(given, here, strict=True)):
            found[number] = np.asarray(function.reduce(values[rows].view(seen), dtype=seen)).view(np.uint32)
        return found

    return _joins(compute, target, source, members, statement), "vote"


def elect(operands: Operands, statement: Statement) -> tuple[Step, str]:
    """``elect.sync``: one lane of the members. Which one is unspecified, so it is drawn.

    Raises:
        UnknownInstruction: it has another form.
    """
    if statement.words != ("elect", "sync") or len(statement.operands) != 2:
        raise UnknownInstruction
    pair, mask = statement.operands
    if not isinstance(pair, Pair):
        raise UnknownInstruction
    target, chosen = _targets(operands, pair, 32, statement)
    members = operands.source(mask, "b32", statement)

    def step(machine: Machine) -> None:
        warps, rows = _together(machine, members, statement)
        leaders = np.array([machine.leader(row) for row in rows], np.int64)
        lanes = np.zeros(machine.order.warps, np.uint32)
        lanes[warps] = leaders
        is_leader = np.zeros(machine.order.lanes, np.bool_)
        is_leader[warps * WARP + leaders] = True
        if target >= 0:
            machine.put(target, lanes.repeat(WARP), None)
        if chosen >= 0:
            machine.put(chosen, is_leader, None)

    return step, "vote"
