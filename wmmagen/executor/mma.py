"""``mma.sync`` and ``ldmatrix``: matrix instructions whose fragments the ISA specifies, lane by lane.

Source: PTX ISA, "mma" and "ldmatrix" with their fragments.
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#warp-level-matrix-instructions-mma
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wmmagen.executor import fragments, matrix
from wmmagen.executor.alu import UnknownInstruction
from wmmagen.executor.machine import Machine
from wmmagen.executor.matrix import Product
from wmmagen.executor.memory import WARP, Space, Who
from wmmagen.executor.operands import Operands
from wmmagen.executor.ptx import Statement
from wmmagen.executor.steps import Access, Step

Array = Any

_MATRICES = {"x1": 1, "x2": 2, "x4": 4}
_SPACES = {(): "", ("shared",): "shared", ("shared::cta",): "shared"}
#: A matrix has 8 rows of 8 elements of 16 bits.
_ROWS, _ROW_BYTES = 8, 16


def product(operands: Operands, statement: Statement) -> tuple[Step, str]:
    """``mma.sync`` of f16, bf16, tf32, f64 and bytes.

    Raises:
        UnknownInstruction: it has another form.
    """
    if len(statement.words) < 10:
        raise UnknownInstruction
    return multiplies(operands, statement, matrix.decode_fixed_product(statement.words)), "matrix product"


def multiplies(operands: Operands, statement: Statement, product: Product) -> Step:
    """``product`` with the fragments that the statement names; of ``mma`` and of ``wmma.mma`` alike.

    Raises:
        UnknownInstruction: it names another number of fragments.
    """
    if len(statement.operands) != 4:
        raise UnknownInstruction
    held = (product.d, product.a, product.b, product.c)
    registers = [
        operands.fragment(operand, each.registers, each.register_bits, statement, written=not number)
        for number, (operand, each) in enumerate(zip(statement.operands, held, strict=True))
    ]
    return fragments.multiplies(statement, product, registers)


def load(operands: Operands, statement: Statement) -> tuple[Step, str]:
    """``ldmatrix`` of 8x8 matrices of 16 bits.

    Raises:
        UnknownInstruction: it has another form.
    """
    words = statement.words
    if words[1:4] != ("sync", "aligned", "m8n8") or words[4:5] == () or words[-1] != "b16":
        raise UnknownInstruction
    transposes = words[5:6] == ("trans",)
    space = _SPACES.get(words[6 if transposes else 5 : -1])
    count = _MATRICES.get(words[4])
    if count is None or space is None or len(statement.operands) != 2:
        raise UnknownInstruction
    parts = operands.elements(statement.operands[0], count, statement)
    targets = [operands.target(part, 32, statement) for part in parts]
    base, offset = operands.address(statement.operands[1], statement)
    operands.note_width(space, _ROW_BYTES)
    return _loads(Access(statement, space, base, offset, _ROW_BYTES, 1), targets, transposes), "matrix load"


def _loads(access: Access, targets: list[int], transposes: bool) -> Step:
    statement, givers = access.statement, _ROWS * len(targets)

    def step(machine: Machine) -> None:
        warps = machine.whole_warps(statement)
        if not warps.size:
            return
        before = machine.mask
        machine.run_under(_lanes_of(machine, warps, givers))
        rows = np.zeros((machine.order.lanes, _ROW_BYTES // 2), np.uint16)
        undefined = np.zeros(rows.shape, np.bool_)
        for space, address, wanted in access.parts(machine):
            flat, lanes = machine.locate(space, address, wanted, _ROW_BYTES, statement)
            undefined[np.setdiff1d(wanted, lanes)] = True
            if lanes.size:
                rows[lanes], undefined[lanes] = _read(machine, space, flat, lanes, statement)
        whole = len(warps) == machine.order.warps
        machine.run_under(None if whole else _lanes_of(machine, warps, WARP))
        for number, target in enumerate(targets):
            values, wrong = (_spread(each, number, transposes) for each in (rows, undefined))
            flags = wrong.any(axis=1)
            machine.put(target, values.view(np.uint32)[:, 0], flags if flags.any() else None)
        machine.run_under(before)

    return step


def _lanes_of(machine: Machine, warps: Array, count: int) -> Array:
    """The first ``count`` lanes of each of these warps."""
    chosen = np.zeros((machine.order.warps, WARP), np.bool_)
    chosen[warps, :count] = True
    return chosen.reshape(-1)


def _read(machine: Machine, space: Space, flat: Array, lanes: Array, statement: Statement) -> tuple[Array, Array]:
    """Rows at the places that lanes give, and which of their elements are undefined."""
    granules = space.shadow.granules(flat, _ROW_BYTES)
    lane = lanes[:, None].astype(np.int32)
    warp = machine.order.warp_of[lane]
    # The warp reads the row together, whoever gave its address.
    who = Who(machine.order.warp_actor(warp), warp, machine.order.block_of[lane])
    nothing = machine.note_read(space, granules, who, statement)
    machine.count_access(space, machine.by_warp(flat, lanes), _ROW_BYTES, stores=False)
    rows = space.views[2][(flat // 2)[:, None] + np.arange(_ROW_BYTES // 2)]
    if nothing is None:
        return rows, np.zeros(rows.shape, np.bool_)
    per_byte = nothing.repeat(_ROW_BYTES // nothing.shape[1], axis=1)
    return rows, per_byte.reshape(len(rows), -1, 2).any(axis=2)


def _spread(rows: Array, number: int, transposes: bool) -> Array:
    """Two elements for each lane, of matrix ``number`` of each warp; ``rows`` are those that each lane gave."""
    given = rows.reshape(-1, WARP, _ROW_BYTES // 2)[:, number * _ROWS : (number + 1) * _ROWS]
    if transposes:
        given = given.transpose(0, 2, 1)
    return np.ascontiguousarray(given).reshape(-1, 2)
