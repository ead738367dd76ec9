"""Operands of instructions as numbered registers of the machine.

Immediate operands, special registers and addresses of variables are registers, too, which are filled before the launch;
so an instruction only ever reads numbered registers. Rooms that decode instructions are given an :class:`Operands`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wmmagen.errors import PtxError
from wmmagen.executor import ptx
from wmmagen.executor.numbers import UNSIGNED
from wmmagen.executor.ptx import TYPE_BITS, Address, Immediate, Kernel, Module, Operand, Register, Statement, Symbol

#: The special registers that are known.
SPECIALS = frozenset(
    [*(f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"), "%laneid", "%warpid"]
)


def unknown(statement: Statement, why: str = "") -> PtxError:
    """The error for an instruction that is not known, or not so."""
    return PtxError(
        f"PTX line {statement.line}: the executor does not know {statement.name}" + (f" with {why}" if why else ""),
        "run the kernel on a GPU instead",
    )


class Operands:
    """The registers of one kernel, and the operands that name them.

    Attributes:
        kernel: whose operands they are.
        constants, unwritten, specials, addresses, granules, variables, strong: as in
            :class:`wmmagen.executor.program.Program`.
        offsets: where each parameter begins, and the parameter, by name.
    """

    def __init__(self, module: Module, kernel: Kernel) -> None:
        self.kernel = kernel
        self.constants: list[Any] = []
        self.unwritten: set[int] = set()
        self._numbers: dict[object, int] = {}
        self.specials: dict[str, int] = {}
        self.addresses: dict[tuple[str, int], int] = {}
        self.variables = {v.name: v for v in (*module.variables, *kernel.variables)}
        self.granules = {"global": 16, "shared": 16}
        self.strong = False
        self.offsets: dict[str, tuple[int, ptx.Parameter]] = {}
        at = 0
        for parameter in kernel.parameters:
            element = TYPE_BITS[parameter.type] // 8
            at = -(-at // element) * element
            self.offsets[parameter.name] = (at, parameter)
            at += parameter.size

    def _number(self, key: object, value: Any) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.constants)
            self.constants.append(value)
        return number

    def note_strong(self, space: str) -> None:
        """Note a strong operation on a state space (empty for generic)."""
        self.strong = self.strong or space in ("", "global")

    def register(self, register: Register, statement: Statement) -> int:
        """The number of a register."""
        number = self._numbers.get(register)
        if number is None:
            bits = self.kernel.bits_of(register, statement.line)
            number = self._number(register, UNSIGNED[bits](0))
            self.unwritten.add(number)
        return number

    def bits(self, operand: Operand, statement: Statement) -> int:
        """Bits of a register operand."""
        if not isinstance(operand, Register):
            raise unknown(statement, "an operand has to be a register")
        return self.kernel.bits_of(operand, statement.line)

    def target(self, operand: Operand, bits: int, statement: Statement, *, wider: bool = False) -> int:
        """The number of a destination register of ``bits``, or of more where ``wider``."""
        own = self.bits(operand, statement)
        if own != bits and not (wider and own > bits):
            raise unknown(statement, f"a destination of {own} bits")
        return self.register(operand, statement)  # type: ignore[arg-type]

    def source(self, operand: Operand, kind: str, statement: Statement, *, wider: bool = False) -> int:
        """The number of the register that holds a source operand of type ``kind``."""
        bits = TYPE_BITS[kind]
        if isinstance(operand, Register):
            own = self.kernel.bits_of(operand, statement.line)
            if own != bits and not (wider and own > bits):
                raise unknown(statement, f"a register of {own} bits where {kind} is read")
            return self.register(operand, statement)
        if isinstance(operand, Immediate):
            return self._immediate(operand, kind, statement)
        if isinstance(operand, Symbol):
            return self._symbol(operand, bits, statement)
        raise unknown(statement, "an operand of this form")

    def _immediate(self, operand: Immediate, kind: str, statement: Statement) -> int:
        bits, value = TYPE_BITS[kind], operand.value
        if operand.float_bits and operand.float_bits != bits:
            if kind != "f32":
                raise unknown(statement, "a floating point number of another width")
            wide = np.array(value, np.uint64).view(np.float64)
            value = int(wide.astype(np.float32).view(np.uint32))
        made = np.bool_(value) if bits == 1 else UNSIGNED[bits](value % (1 << bits))
        return self._number((value, bits), made)

    def _symbol(self, operand: Symbol, bits: int, statement: Statement) -> int:
        if operand.name.startswith("%"):
            if operand.name not in SPECIALS:
                raise unknown(statement, f"the special register {operand.name}")
            number = self._number((operand, bits), UNSIGNED[bits](0))
            self.specials[operand.name] = number
            return number
        if operand.name not in self.variables or bits < 32:
            raise unknown(statement, f"{operand.name}, which is no variable")
        number = self._number((operand, bits), UNSIGNED[bits](0))
        self.addresses[operand.name, bits] = number
        return number

    def address(self, operand: Operand, statement: Statement) -> tuple[int, int]:
        """The register that holds an address operand's base, and its offset."""
        if not isinstance(operand, Address):
            raise unknown(statement, "an operand that is no address")
        base = operand.base
        if isinstance(base, Register):
            if self.kernel.bits_of(base, statement.line) not in (32, 64):
                raise unknown(statement, "an address of neither 32 nor 64 bits")
            return self.register(base, statement), operand.offset
        return self.source(base, "u64", statement), operand.offset

    def note_width(self, space: str, nbytes: int) -> None:
        """Remember the narrowest access of a space; a generic one may be any."""
        for name in ("global", "shared"):
            if space in (name, ""):
                self.granules[name] = min(self.granules[name], nbytes)

    def elements(self, operand: Operand, count: int, statement: Statement) -> tuple[Operand, ...]:
        """The registers of a vector operand, or the one register."""
        parts = operand.parts if isinstance(operand, ptx.Vector) else (operand,)
        if len(parts) != count:
            raise unknown(statement, f"{len(parts)} elements")
        return parts

    def fragment(
        self, operand: Operand, count: int, bits: int, statement: Statement, *, written: bool = False
    ) -> list[int]:
        """The numbers of the registers of a fragment, ``bits`` each; what is only read may be a number as written."""
        parts = self.elements(operand, count, statement)
        if written:
            return [self.target(part, bits, statement) for part in parts]
        return [self.source(part, f"b{bits}", statement) for part in parts]
