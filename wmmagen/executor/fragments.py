"""Matrix instructions as functions of the machine: loads and stores of fragments, and their products.

An *element* of a move is what is stored: a byte where the type is smaller.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wmmagen.executor import matrix
from wmmagen.executor.counts import WAVEFRONT
from wmmagen.executor.machine import Machine
from wmmagen.executor.matrix import Fragment, Move, Values
from wmmagen.executor.memory import WARP, Space, Who
from wmmagen.executor.numbers import UNSIGNED
from wmmagen.executor.ptx import Statement
from wmmagen.executor.steps import Step, by_window, either

#: Alignment that the C++ guide asks of a fragment's pointer, and unit of its leading dimension; in bytes.
_POINTER_ALIGNMENT, _LDM_UNIT = 32, 16
#: Rules of the alignment rulebooks, by state space and letter of the operand.
_POINTER_RULES = {("shared", "a"): "P301", ("shared", "b"): "P302", ("global", "a"): "P303", ("global", "b"): "P304",
                  ("global", "c"): "P305", ("global", "d"): "P305"}  # fmt: skip
_LDM_RULES = {("shared", "a"): "L201", ("shared", "b"): "L202", ("shared", "c"): "L203", ("shared", "d"): "L203",
              ("global", "a"): "L221", ("global", "b"): "L222", ("global", "c"): "L224", ("global", "d"): "L223",
              }  # fmt: skip
_STRICT_RULES = {("shared", "a"): "L211", ("shared", "b"): "L212", ("shared", "c"): "L213", ("shared", "d"): "L213",
                 ("global", "a"): "L231", ("global", "b"): "L232", ("global", "c"): "L234", ("global", "d"): "L233",
                 }  # fmt: skip


class Mover:
    """A load or store of a fragment."""

    def __init__(
        self, statement: Statement, move: Move, base: int, offset: int, stride: int, registers: list[int]
    ) -> None:
        self._statement, self._move = statement, move
        self._base, self._offset, self._stride, self._registers = base, offset, stride, registers

    def load(self, machine: Machine) -> None:
        """Run a load."""
        fragment = self._move.fragment
        for warps, space, address, ldm in self._groups(machine):
            element = fragment.bits // 8
            elements = np.zeros((machine.order.warps, fragment.elements), UNSIGNED[fragment.bits])
            undefined = np.zeros(elements.shape, np.bool_)
            kept, flat = self._places(machine, space, address, warps, ldm)
            undefined[np.setdiff1d(warps, kept)] = True
            if kept.size:
                places = (flat // element)[:, None] + self._move.offsets(ldm)
                elements[kept] = space.views[element][places]
                granules = self._granules(space, places, element)
                machine.count_reloads(space, granules)
                nothing = machine.note_read(space, granules, self._who(machine, kept, space), self._statement)
                if nothing is not None:
                    undefined[kept] = nothing.reshape(len(kept), fragment.elements, -1).any(axis=2)
                self._count(machine, space, flat, ldm, stores=False)
                self._note_sectors(machine, space, kept, flat, ldm)
            self._fill(machine, warps, elements, undefined)

    def _fill(self, machine: Machine, warps: Any, elements: Any, undefined: Any) -> None:
        fragment = self._move.fragment
        values = matrix.scattered(elements, fragment, machine.layouts)
        wrong = None
        if undefined.any():
            # One flag for a lane's register: undefined where one of its elements is.
            held, _ = machine.layouts.of(fragment)
            spread = undefined[:, held.reshape(fragment.registers, WARP, fragment.per_register)]
            wrong = spread.any(axis=3).transpose(1, 0, 2).reshape(fragment.registers, -1)
        everyone = len(warps) == machine.order.warps
        before = machine.mask
        if not everyone:
            chosen = np.zeros((machine.order.warps, WARP), np.bool_)
            chosen[warps] = True
            machine.run_under(chosen.reshape(-1))
        for place, register in enumerate(self._registers):
            bad = None if wrong is None or not wrong[place].any() else wrong[place]
            machine.put(register, values[place], bad)
        if not everyone:
            machine.run_under(before)

    def store(self, machine: Machine) -> None:
        """Run a store."""
        fragment, groups = self._move.fragment, self._groups(machine)
        if not groups:
            return
        for number in dict.fromkeys(self._registers):
            machine.demand_defined(number, "poison-stored", "what is stored", self._statement)
        held = np.stack([machine.full(machine.registers[number]) for number in self._registers])
        elements = matrix.gathered(held, fragment, machine.layouts)
        for warps, space, address, ldm in groups:
            element = fragment.bits // 8
            kept, flat = self._places(machine, space, address, warps, ldm)
            if not kept.size:
                continue
            places = (flat // element)[:, None] + self._move.offsets(ldm)
            granules = self._granules(space, places, element)
            machine.note_write(space, granules, self._who(machine, kept, space), self._statement)
            space.views[element][places] = elements[kept]
            if space.name == "global":
                machine.counts.stored_bytes += element * fragment.elements * len(kept)
            self._count(machine, space, flat, ldm, stores=True)

    def _groups(self, machine: Machine) -> list[tuple[Any, Space, Any, int]]:
        """Warps that access one space with one leading dimension, and their addresses in that space."""
        warps = machine.whole_warps(self._statement)
        if not warps.size:
            return []
        machine.demand_defined(self._base, "poison-address", "the address", self._statement)
        machine.demand_defined(self._stride, "poison-address", "the leading dimension", self._statement)
        address = machine.same_in_warp(machine.registers[self._base], warps, self._statement, "the pointer")
        strides = machine.same_in_warp(machine.registers[self._stride], warps, self._statement, "the leading dimension")
        address = address.astype(np.int64) + self._offset
        strides = self._stored(machine, strides, warps)
        if self._move.space:
            parts = [(machine.spaces[self._move.space], address, warps)]
        else:
            parts = by_window(machine, address, warps)
        groups: list[tuple[Any, Space, Any, int]] = []
        for space, where, some in parts:
            own = strides[np.searchsorted(warps, some)]
            groups += [(some[own == ldm], space, where[own == ldm], int(ldm)) for ldm in np.unique(own)]
        return groups

    def _stored(self, machine: Machine, strides: Any, warps: Any) -> Any:
        """Leading dimensions in what is stored, which is bytes where elements are smaller."""
        packed = self._move.fragment.packed
        if packed == 1:
            return strides
        crooked = strides % packed != 0
        if crooked.any():
            first = int(np.argmax(crooked))
            message = f"a leading dimension of {int(strides[first])} elements, which is no whole number of bytes"
            lane = int(warps[first]) * WARP
            machine.report("fragment-ldm", message, self._statement, lane, count=int(crooked.sum()), whole_warp=True)
        return strides // packed

    def _places(self, machine: Machine, space: Space, address: Any, warps: Any, ldm: int) -> tuple[Any, Any]:
        """The warps whose tile lies in memory, on whole elements, and where; reports the others and the rulebooks."""
        move, element = self._move, self._move.fragment.bits // 8
        self._check_alignment(machine, space, address, warps, ldm)
        lanes = warps * WARP
        flat, inside = space.locate(address, lanes, move.extent(ldm))
        good = np.ones(len(warps), np.bool_) if inside is None else inside
        if inside is not None:
            self._report_outside(machine, space, address, warps, inside, ldm)
        crooked = address % element != 0
        if crooked.any():
            first = int(np.argmax(crooked))
            message = f"a fragment at an address that is no multiple of its elements' {element} bytes"
            machine.report("misaligned", message, self._statement, int(lanes[first]), whole_warp=True)
        good = good & ~crooked
        return warps[good], flat[good]

    def _report_outside(self, machine: Machine, space: Space, address: Any, warps: Any, inside: Any, ldm: int) -> None:
        first, element = int(np.argmin(inside)), self._move.fragment.bits // 8
        places = int(address[first]) + np.sort(self._move.offsets(ldm)) * element
        lanes = np.full(len(places), int(warps[first]) * WARP)
        _, each = space.locate(places, lanes, element)
        byte = int(places[0 if each is None else int(np.argmin(each))])
        name, offset = space.name_of(byte)
        message = f"a fragment reaches byte {offset}, outside of {name}"
        count = int((~inside).sum())
        machine.report("out-of-bounds", message, self._statement, int(lanes[0]), offset, count=count, whole_warp=True)

    def _check_alignment(self, machine: Machine, space: Space, address: Any, warps: Any, ldm: int) -> None:
        move, element, key = self._move, self._move.fragment.bits // 8, (space.name, self._move.letter)
        crooked = address % _POINTER_ALIGNMENT != 0
        if crooked.any():
            first = int(np.argmax(crooked))
            machine.report(
                "fragment-pointer",
                f"a fragment pointer {int(address[first]) % _POINTER_ALIGNMENT} bytes past a multiple of 32",
                self._statement,
                int(warps[first]) * WARP,
                rule=_POINTER_RULES.get(key, ""),
                count=int(crooked.sum()),
                whole_warp=True,
            )
        readings = [("fragment-ldm", _LDM_UNIT, _LDM_RULES)]
        if machine.strict_isa:
            readings.append(("fragment-ldm-strict", move.fragment.lane_bytes, _STRICT_RULES))
        for code, unit, rules in readings:
            if ldm * element % unit:
                elements = ldm * move.fragment.packed
                message = (
                    f"a leading dimension of {elements} elements, {ldm * element} bytes, is no multiple of {unit} bytes"
                )
                lane = int(warps[0]) * WARP
                machine.report(
                    code, message, self._statement, lane, rule=rules.get(key, ""), count=len(warps), whole_warp=True
                )

    def _granules(self, space: Space, places: Any, element: int) -> Any:
        per_element = element // space.shadow.granule
        if per_element == 1:
            return places
        spread = places[:, :, None] * per_element + np.arange(per_element)
        return spread.reshape(len(places), -1)

    def _who(self, machine: Machine, warps: Any, space: Space) -> Who:
        """Who touches the elements: of accumulators the lane that holds each, of operands just the warp."""
        order, fragment = machine.order, self._move.fragment
        warp = warps[:, None].astype(np.int32)
        block = order.block_of[warp * WARP]
        if fragment.use != "acc":
            return Who(order.warp_actor(warp), warp, block)
        lanes = machine.layouts.lanes(fragment).repeat(fragment.bits // 8 // space.shadow.granule)
        return Who((warp * WARP + lanes).astype(np.int32), warp, block)

    def _count(self, machine: Machine, space: Space, flat: Any, ldm: int, *, stores: bool) -> None:
        """Count what the hardware makes of it: requests of a few lines, and wavefronts of 128 bytes."""
        lines, span = self._request()
        starts = self._starts(flat, ldm, span)
        if space.name == "global":
            pieces = starts[:, :, None] + np.arange(0, span, _LDM_UNIT)
            machine.count_access(space, pieces.reshape(-1, lines * pieces.shape[2]), _LDM_UNIT, stores=stores)
        elif starts.size % (WAVEFRONT // span) == 0:
            machine.count_access(space, starts.reshape(-1, WAVEFRONT // span), span, stores=stores)

    def _request(self) -> tuple[int, int]:
        """The lines of a tile that one instruction of a warp moves, and how many bytes of each.

        Four lanes share a row of 8x8 elements, or of what is as wide: operands have 4 bytes or an element in each lane,
        accumulators two neighbours of a row.
        """
        fragment = self._move.fragment
        element = fragment.bits // 8
        span = 8 * element if fragment.use == "acc" else max(_LDM_UNIT, 4 * element)
        return min(4 if self._apart else 8, self._move.lines), min(span, self._move.length * element)

    @property
    def _apart(self) -> bool:
        """Whether the neighbours that a lane holds lie on two lines, so that each is moved alone.

        Fragments 8 high are multiplied as their transposes, whose rows are columns. Halves are transposed back first.
        """
        fragment = self._move.fragment
        along = self._move.row_major != fragment.shape.startswith("m8n32")
        return fragment.use == "acc" and fragment.bits >= 32 and not along

    def _starts(self, flat: Any, ldm: int, span: int) -> Any:
        """Where the pieces of ``span`` bytes of each tile begin, in the order of instructions; tiles × pieces."""
        element = self._move.fragment.bits // 8
        lines = np.arange(self._move.lines)
        if self._apart:
            # Of eight lines first the even, then the odd ones.
            lines = lines.reshape(-1, 4, 2).swapaxes(1, 2).reshape(-1)
        across = np.arange(0, self._move.length * element, span)
        return flat[:, None] + (across[:, None] + lines * (ldm * element)).reshape(-1)

    def _note_sectors(self, machine: Machine, space: Space, warps: Any, flat: Any, ldm: int) -> None:
        """Note what of global memory a load reads, in pieces that lie within a sector each."""
        if space.name == "global":
            element = self._move.fragment.bits // 8
            length = self._move.length * element
            across = np.arange(0, length, min(_LDM_UNIT, length))
            places = across[:, None] + np.arange(self._move.lines) * (ldm * element)
            blocks = machine.order.block_of[warps * WARP][:, None]
            machine.note_loaded(space, flat[:, None] + places.reshape(-1), blocks)


def multiplies(statement: Statement, product: matrix.Product, registers: list[list[int]]) -> Step:
    """A product of fragments; ``registers`` are those of D, A, B and C."""
    to, *sources = registers
    fragments = (product.a, product.b, product.c)

    def step(machine: Machine) -> None:
        warps = machine.whole_warps(statement)
        if not warps.size:
            return
        operands = [_tile(machine, *each) for each in zip(sources, fragments, strict=True)]
        bits = matrix.multiply(product, *operands)
        undefined = either([machine.undefined[number] for group in sources for number in group])
        if undefined is not None:
            # A lane's undefined register is some element of its warp's tiles, and those reach all of D.
            spoiled = machine.full(undefined).reshape(-1, WARP).any(axis=1)
            undefined = spoiled.repeat(WARP) if spoiled.any() else None
        values = matrix.scattered(bits, product.d, machine.layouts)
        kept = tuple(values)
        for number, value in zip(to, kept, strict=True):
            machine.put(number, value, undefined)
        if machine.mask is None:
            machine.keep_tile((product.d, *map(id, kept)), kept, matrix.values_of(bits, product.d))
        machine.counts.tensor_instructions += len(warps)
        machine.counts.multiply_adds += len(warps) * product.multiply_adds

    return step


def _tile(machine: Machine, numbers: list[int], fragment: Fragment) -> Values:
    """The numbers in a fragment's registers; made once for the same arrays."""
    held = tuple(machine.registers[number] for number in numbers)
    key = (fragment, *map(id, held))
    known = machine.tile(key)
    if known is None:
        full = np.stack([machine.full(value) for value in held])
        known = matrix.values_of(matrix.gathered(full, fragment, machine.layouts), fragment)
        machine.keep_tile(key, held, known)
    return known
