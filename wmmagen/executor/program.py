"""A kernel made ready to run: every instruction as a function of the machine, register names as numbers.

Immediate operands, special registers and addresses of variables are registers, too, which are filled before the launch;
so an instruction only ever reads numbered registers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from wmmagen.errors import PtxError
from wmmagen.executor import alu, control, matrix, memory, ptx
from wmmagen.executor.alu import UnknownInstruction
from wmmagen.executor.machine import WINDOWS, Copies, Machine, as_bits, flagged
from wmmagen.executor.matrix import Fragment, Move, Values
from wmmagen.executor.memory import WARP, Space, Who
from wmmagen.executor.numbers import UNSIGNED, resize
from wmmagen.executor.ptx import TYPE_BITS, Address, Immediate, Kernel, Module, Operand, Register, Statement, Symbol

Step = Callable[[Machine], None]

_PROGRAMS_KEPT = 16
_GENERIC = ""
_SPACES = ("global", "shared", "local", "param", "const")
_CACHE_WORDS = frozenset(("nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "weak", "volatile"))
_HINT = re.compile(r"L[12]::[\w:]+")
_FENCES = ("membar", "fence")
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


@dataclass(frozen=True)
class Block:
    """A basic block ready to run.

    Attributes:
        steps: its instructions.
        last: the statement that ends it; None where the next block follows.
        guard: the register of that statement's predicate; -1 for none.
        operands: the registers of a barrier's operands.
        target, follows, meeting: as in :class:`wmmagen.executor.control.Block`.
        size: instructions, with the last one.
        classes: how many instructions of each class it has.
    """

    steps: tuple[Step, ...]
    last: Statement | None
    guard: int
    operands: tuple[int, ...]
    target: int
    follows: int
    meeting: int
    size: int
    classes: Counter[str]


@dataclass(frozen=True)
class Program:
    """A kernel ready to run.

    Attributes:
        kernel: its text.
        blocks: the first is where it begins.
        constants: what the registers hold before the launch.
        unwritten: those that hold nothing then.
        specials: the registers that hold special registers, by name.
        addresses: those that hold the address of a variable: its name and how many bits wide.
        granules: the narrowest access of each state space, in bytes.
        globals: variables of the module in global memory; ``shared`` and ``local`` ones beside them.
    """

    kernel: Kernel
    blocks: tuple[Block, ...]
    constants: tuple[Any, ...]
    unwritten: frozenset[int]
    specials: dict[str, int]
    addresses: dict[tuple[str, int], int]
    granules: dict[str, int]
    variables: dict[str, ptx.Variable]


@lru_cache(maxsize=_PROGRAMS_KEPT)
def load(text: str, entry: str) -> Program:
    """Read and decode a kernel.

    Raises:
        PtxError: the text holds no such kernel, does not follow the grammar, or has an instruction that is not known;
            names the instruction and its line.
    """
    module = ptx.parse(text)
    if entry not in module.kernels:
        raise PtxError(f"the PTX has no kernel {entry}; it has {', '.join(module.kernels) or 'none'}")
    return _Decoder(module, module.kernels[entry]).program()


class _Decoder:
    """Decodes the statements of one kernel."""

    def __init__(self, module: Module, kernel: Kernel) -> None:
        self.kernel = kernel
        self.constants: list[Any] = []
        self.unwritten: set[int] = set()
        self._numbers: dict[object, int] = {}
        self.specials: dict[str, int] = {}
        self.addresses: dict[tuple[str, int], int] = {}
        self.variables = {v.name: v for v in (*module.variables, *kernel.variables)}
        self.granules = {"global": 16, "shared": 16}
        self._offsets: dict[str, tuple[int, ptx.Parameter]] = {}
        at = 0
        for parameter in kernel.parameters:
            element = TYPE_BITS[parameter.type] // 8
            at = -(-at // element) * element
            self._offsets[parameter.name] = (at, parameter)
            at += parameter.size

    def program(self) -> Program:
        blocks = tuple(self._block(block) for block in control.blocks_of(self.kernel))
        return Program(
            self.kernel,
            blocks,
            tuple(self.constants),
            frozenset(self.unwritten),
            self.specials,
            self.addresses,
            self.granules,
            self.variables,
        )

    def _block(self, block: control.Block) -> Block:
        decoded = [self._statement(statement) for statement in block.statements]
        classes: Counter[str] = Counter(kind for _, kind in decoded)
        last, operands = block.last, ()
        if last is not None:
            classes["control"] += 1
            if control.is_block_barrier(last):
                operands = self._barrier(last)
        return Block(
            tuple(step for step, _ in decoded if step is not None),
            last,
            -1 if last is None or last.guard is None else self.register(last.guard, last),
            operands,
            block.target,
            block.follows,
            block.meeting,
            len(decoded) + (last is not None),
            classes,
        )

    def _barrier(self, statement: Statement) -> tuple[int, ...]:
        words = [word for word in statement.words[1:] if word not in ("cta", "aligned")]
        if words != ["sync"] or len(statement.operands) not in (1, 2):
            raise _unknown(statement)
        return tuple(self.source(operand, "u32", statement) for operand in statement.operands)

    def _statement(self, statement: Statement) -> tuple[Step | None, str]:
        try:
            step, kind = self._decode(statement)
        except UnknownInstruction:
            raise _unknown(statement) from None
        if statement.guard is not None and step is not None:
            step = _guarded(step, self.register(statement.guard, statement), statement)
        return step, kind

    def _decode(self, statement: Statement) -> tuple[Step | None, str]:
        first, words = statement.words[0], statement.words
        if first in _FENCES:
            return None, "control"
        maker = _MAKERS.get(words[:2]) or _MAKERS.get(words[:1])
        if maker is not None:
            return maker(self, statement)
        return self._arithmetic(statement)

    # Operands --------------------------------------------------------------------------------------------------------

    def _number(self, key: object, value: Any) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.constants)
            self.constants.append(value)
        return number

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
            raise _unknown(statement, "an operand has to be a register")
        return self.kernel.bits_of(operand, statement.line)

    def target(self, operand: Operand, bits: int, statement: Statement, *, wider: bool = False) -> int:
        """The number of a destination register of ``bits``, or of more where ``wider``."""
        own = self.bits(operand, statement)
        if own != bits and not (wider and own > bits):
            raise _unknown(statement, f"a destination of {own} bits")
        return self.register(operand, statement)  # type: ignore[arg-type]

    def source(self, operand: Operand, kind: str, statement: Statement, *, wider: bool = False) -> int:
        """The number of the register that holds a source operand of type ``kind``."""
        bits = TYPE_BITS[kind]
        if isinstance(operand, Register):
            own = self.kernel.bits_of(operand, statement.line)
            if own != bits and not (wider and own > bits):
                raise _unknown(statement, f"a register of {own} bits where {kind} is read")
            return self.register(operand, statement)
        if isinstance(operand, Immediate):
            return self._immediate(operand, kind, statement)
        if isinstance(operand, Symbol):
            return self._symbol(operand, bits, statement)
        raise _unknown(statement, "an operand of this form")

    def _immediate(self, operand: Immediate, kind: str, statement: Statement) -> int:
        bits, value = TYPE_BITS[kind], operand.value
        if operand.float_bits and operand.float_bits != bits:
            if kind != "f32":
                raise _unknown(statement, "a floating point number of another width")
            wide = np.array(value, np.uint64).view(np.float64)
            value = int(wide.astype(np.float32).view(np.uint32))
        made = np.bool_(value) if bits == 1 else UNSIGNED[bits](value % (1 << bits))  # type: ignore[call-arg]
        return self._number((value, bits), made)

    def _symbol(self, operand: Symbol, bits: int, statement: Statement) -> int:
        if operand.name.startswith("%"):
            if operand.name not in _SPECIALS:
                raise _unknown(statement, f"the special register {operand.name}")
            number = self._number((operand, bits), UNSIGNED[bits](0))
            self.specials[operand.name] = number
            return number
        if operand.name not in self.variables or bits < 32:
            raise _unknown(statement, f"{operand.name}, which is no variable")
        number = self._number((operand, bits), UNSIGNED[bits](0))
        self.addresses[operand.name, bits] = number
        return number

    def address(self, operand: Operand, statement: Statement) -> tuple[int, int]:
        """The register that holds an address operand's base, and its offset."""
        if not isinstance(operand, Address):
            raise _unknown(statement, "an operand that is no address")
        base = operand.base
        if isinstance(base, Register):
            if self.kernel.bits_of(base, statement.line) not in (32, 64):
                raise _unknown(statement, "an address of neither 32 nor 64 bits")
            return self.register(base, statement), operand.offset
        return self.source(base, "u64", statement), operand.offset

    # Kinds of instructions -------------------------------------------------------------------------------------------

    def _arithmetic(self, statement: Statement) -> tuple[Step, str]:
        found = alu.decode(statement.words)
        wider = statement.words[0] == "cvt"
        if len(statement.operands) != len(found.sources) + 1:
            raise _unknown(statement, f"{len(statement.operands)} operands")
        target = self.target(statement.operands[0], TYPE_BITS[found.result], statement, wider=wider)
        sources = [
            self.source(operand, kind, statement, wider=wider)
            for operand, kind in zip(statement.operands[1:], found.sources, strict=True)
        ]
        function, rule = found.function, found.undefined
        own = self.bits(statement.operands[0], statement)
        if own != TYPE_BITS[found.result]:
            function = _widened(function, own, signed=found.signed)
            rule = None if rule is None else _widened(rule, own, signed=found.signed)
        return _computes(function, target, sources, rule), found.kind

    def mov(self, statement: Statement) -> tuple[Step, str]:
        """Copies, and packs or unpacks vectors."""
        if len(statement.words) != 2 or len(statement.operands) != 2 or statement.words[1] not in TYPE_BITS:
            raise UnknownInstruction
        target, source = statement.operands
        kind = statement.words[1]
        if isinstance(source, ptx.Vector):
            return self._pack(target, source, kind, statement), "move"
        if isinstance(target, ptx.Vector):
            return self._unpack(target, source, kind, statement), "move"
        to = self.target(target, TYPE_BITS[kind], statement)
        return _moves(to, self.source(source, kind, statement)), "move"

    def _pack(self, target: Operand, source: ptx.Vector, kind: str, statement: Statement) -> Step:
        bits = TYPE_BITS[kind]
        width = bits // len(source.parts)
        to = self.target(target, bits, statement)
        parts = [self.source(part, f"b{width}", statement) for part in source.parts]
        wide = UNSIGNED[bits]

        def pack(*values: Any) -> Any:
            packed = values[0].astype(wide)
            for place, value in enumerate(values[1:], 1):
                packed = packed | (value.astype(wide) << wide(place * width))  # type: ignore[call-arg]
            return packed

        return _computes(pack, to, parts, lambda values, masks: pack(*masks))

    def _unpack(self, target: ptx.Vector, source: Operand, kind: str, statement: Statement) -> Step:
        bits = TYPE_BITS[kind]
        width = bits // len(target.parts)
        number = self.source(source, kind, statement)
        wide, narrow = UNSIGNED[bits], UNSIGNED[width]
        targets = [
            (place, self.target(part, width, statement))
            for place, part in enumerate(target.parts)
            if part != Symbol("_")
        ]

        def step(machine: Machine) -> None:
            value, state = machine.registers[number], machine.undefined[number]
            mask = None if state is None else as_bits(state, value)
            for place, to in targets:
                shift = wide(place * width)  # type: ignore[call-arg]
                wrong = None if mask is None else (mask >> shift).astype(narrow)
                machine.put(to, (value >> shift).astype(narrow), None if wrong is None or not wrong.any() else wrong)

        return step

    def cvta(self, statement: Statement) -> tuple[Step, str]:
        """Between a state space's own addresses and generic ones."""
        words = [word for word in statement.words[1:] if word != "to"]
        if len(words) != 2 or words[0] not in WINDOWS or words[1] != "u64":
            raise UnknownInstruction
        window = np.uint64(WINDOWS[words[0]])
        to = self.target(statement.operands[0], 64, statement)
        source = self.source(statement.operands[1], "u64", statement)
        if not window:
            return _moves(to, source), "move"
        leaves = "to" in statement.words
        return _computes(lambda a: a - window if leaves else a + window, to, [source]), "integer"

    def memory_words(self, statement: Statement) -> tuple[str, int, str]:
        """State space (empty for generic), number of elements, and type of a load or store."""
        space, count, kind = _GENERIC, 1, statement.words[-1]
        for word in statement.words[1:-1]:
            if word in _SPACES and not space:
                space = word
            elif word in ("v2", "v4", "v8") and count == 1:
                count = int(word[1])
            elif word not in _CACHE_WORDS and not _HINT.fullmatch(word):
                raise UnknownInstruction
        if kind not in TYPE_BITS or TYPE_BITS[kind] < 8 or TYPE_BITS[kind] // 8 * count > 32:
            raise UnknownInstruction
        return space, count, kind

    def note_width(self, space: str, nbytes: int) -> None:
        """Remember the narrowest access of a space; a generic one may be any."""
        for name in ("global", "shared"):
            if space in (name, _GENERIC):
                self.granules[name] = min(self.granules[name], nbytes)

    def elements(self, operand: Operand, count: int, statement: Statement) -> tuple[Operand, ...]:
        """The registers of a vector operand, or the one register."""
        parts = operand.parts if isinstance(operand, ptx.Vector) else (operand,)
        if len(parts) != count:
            raise _unknown(statement, f"{len(parts)} elements")
        return parts

    def ld(self, statement: Statement) -> tuple[Step, str]:
        """Loads."""
        space, count, kind = self.memory_words(statement)
        if len(statement.operands) != 2:
            raise UnknownInstruction
        width = TYPE_BITS[kind]
        parts = self.elements(statement.operands[0], count, statement)
        targets = [
            (place, self.target(part, width, statement, wider=True), self.bits(part, statement))
            for place, part in enumerate(parts)
            if part != Symbol("_")
        ]
        if space == "param":
            return self._parameter(statement, targets, kind), "parameter"
        if space == "const":
            space = "global"
        base, offset = self.address(statement.operands[1], statement)
        self.note_width(space, width // 8)
        access = _Access(statement, space, base, offset, width // 8, count)
        return _loads(access, targets, signed=kind[0] == "s"), f"load {space or 'generic'}"

    def _parameter(self, statement: Statement, targets: list[tuple[int, int, int]], kind: str) -> Step:
        address = statement.operands[1]
        if not isinstance(address, Address) or not isinstance(address.base, Symbol):
            raise UnknownInstruction
        if address.base.name not in self._offsets:
            raise _unknown(statement, f"{address.base.name}, which is no parameter")
        start, parameter = self._offsets[address.base.name]
        width = TYPE_BITS[kind] // 8
        if address.offset + width * len(targets) > parameter.size:
            raise _unknown(statement, "more bytes than the parameter has")
        dtype = UNSIGNED[width * 8]

        def step(machine: Machine) -> None:
            for place, to, bits in targets:
                at = start + address.offset + place * width
                value = np.frombuffer(machine.parameters, dtype, 1, at)[0]
                machine.put(to, resize(value, bits, signed=kind[0] == "s"), None)

        return step

    def st(self, statement: Statement) -> tuple[Step, str]:
        """Stores."""
        space, count, kind = self.memory_words(statement)
        if len(statement.operands) != 2 or space in ("param", "const"):
            raise UnknownInstruction
        width = TYPE_BITS[kind]
        parts = self.elements(statement.operands[1], count, statement)
        sources = [self.source(part, kind, statement, wider=True) for part in parts]
        base, offset = self.address(statement.operands[0], statement)
        self.note_width(space, width // 8)
        access = _Access(statement, space, base, offset, width // 8, count)
        return _stores(access, sources), f"store {space or 'generic'}"

    def cp(self, statement: Statement) -> tuple[Step, str]:
        """Asynchronous copies and their groups."""
        words = tuple(word for word in statement.words[1:] if not _HINT.fullmatch(word))
        if words == ("async", "commit_group") and not statement.operands:
            return _commit, "asynchronous copy"
        if words == ("async", "wait_all") and not statement.operands:
            return _wait_all, "asynchronous copy"
        if words == ("async", "wait_group") and len(statement.operands) == 1:
            left = statement.operands[0]
            if isinstance(left, Immediate) and left.value >= 0:
                return _waits(left.value), "asynchronous copy"
        if words not in (("async", "ca", "shared", "global"), ("async", "cg", "shared", "global")):
            raise UnknownInstruction
        return self._copy(statement), "asynchronous copy"

    def _copy(self, statement: Statement) -> Step:
        sizes = [operand.value for operand in statement.operands[2:] if isinstance(operand, Immediate)]
        legal = (16,) if statement.words[2] == "cg" else (4, 8, 16)
        if len(sizes) != len(statement.operands) - 2 or len(sizes) not in (1, 2) or sizes[0] not in legal:
            raise UnknownInstruction
        read = sizes[-1]
        if not 0 <= read <= sizes[0] or read % 4:
            raise UnknownInstruction
        target, source = (self.address(operand, statement) for operand in statement.operands[:2])
        self.note_width("global", 4)
        self.note_width("shared", 4)
        return _copies(
            _Access(statement, "shared", *target, sizes[0], 1),
            _Access(statement, "global", *source, sizes[0], 1),
            read,
        )

    def warp_barrier(self, statement: Statement) -> tuple[Step | None, str]:
        """``bar.warp.sync``."""
        if statement.words != ("bar", "warp", "sync") or len(statement.operands) != 1:
            raise UnknownInstruction
        return _meets(self.source(statement.operands[0], "b32", statement), statement), "warp barrier"

    def wmma(self, statement: Statement) -> tuple[Step, str]:
        """Matrix loads, stores and products."""
        words = statement.words
        if len(words) > 2 and words[1] in ("load", "store"):
            return self._move(statement, matrix.decode_move(words)), f"matrix {words[1]}"
        if len(words) > 2 and words[1] == "mma":
            return self._product(statement), "matrix product"
        raise UnknownInstruction

    def _move(self, statement: Statement, move: Move) -> Step:
        fragment, loads = move.fragment, statement.words[1] == "load"
        if len(statement.operands) not in (2, 3):
            raise UnknownInstruction
        ldm = Immediate(move.length) if len(statement.operands) == 2 else statement.operands[2]
        held, where = statement.operands[:2] if loads else (statement.operands[1], statement.operands[0])
        parts = self.elements(held, fragment.registers, statement)
        registers = [self.register_of(part, fragment.register_bits, statement) for part in parts]
        base, offset = self.address(where, statement)
        self.note_width(move.space, fragment.bits // 8)
        stride = self.source(ldm, "u32", statement)
        mover = _Mover(statement, move, base, offset, stride, registers)
        return mover.load if loads else mover.store

    def register_of(self, operand: Operand, bits: int, statement: Statement) -> int:
        """A fragment's register, or for a source a number."""
        return self.source(operand, f"b{bits}", statement)

    def _product(self, statement: Statement) -> Step:
        product = matrix.decode_product(statement.words)
        if len(statement.operands) != 4:
            raise UnknownInstruction
        fragments = (product.d, product.a, product.b, product.c)
        registers = [
            [
                self.register_of(part, fragment.register_bits, statement)
                for part in self.elements(operand, fragment.registers, statement)
            ]
            for operand, fragment in zip(statement.operands, fragments, strict=True)
        ]
        return _multiplies(statement, product, registers)


_MAKERS: dict[tuple[str, ...], Callable[[_Decoder, Statement], tuple[Step | None, str]]] = {
    ("mov",): _Decoder.mov,
    ("cvta",): _Decoder.cvta,
    ("ld",): _Decoder.ld,
    ("st",): _Decoder.st,
    ("cp",): _Decoder.cp,
    ("bar", "warp"): _Decoder.warp_barrier,
    ("wmma",): _Decoder.wmma,
}
_SPECIALS = frozenset(
    [*(f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"), "%laneid", "%warpid"]
)


def _unknown(statement: Statement, why: str = "") -> PtxError:
    return PtxError(
        f"PTX line {statement.line}: the executor does not know {statement.name}" + (f" with {why}" if why else ""),
        "run the kernel on a GPU instead",
    )


# Steps ---------------------------------------------------------------------------------------------------------------


def _widened(function: alu.Function, bits: int, *, signed: bool) -> alu.Function:
    return lambda *values: resize(function(*values), bits, signed=signed)


def _either(states: Sequence[Any]) -> Any:
    """The lanes for which one of the states is undefined; None where none is."""
    found = None
    for state in states:
        if state is not None:
            flags = flagged(state)
            found = flags if found is None else found | flags
    return found


_Undefined = Callable[[Sequence[Any], Sequence[Any]], Any]


def _computes(function: alu.Function, target: int, sources: Sequence[int], rule: _Undefined | None = None) -> Step:
    """An instruction from ``sources`` to ``target``; ``rule`` says which bits of the result are undefined."""

    def spoiled(machine: Machine) -> Any:
        states = [machine.undefined[number] for number in sources]
        if rule is None:
            return _either(states)
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


def _moves(target: int, source: int) -> Step:
    def step(machine: Machine) -> None:
        machine.put(target, machine.registers[source], machine.undefined[source])

    return step


def _guarded(step: Step, guard: int, statement: Statement) -> Step:
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
class _Access:
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
        return _by_window(machine, address, lanes)


def _by_window(machine: Machine, address: Any, lanes: Any) -> list[tuple[Space, Any, Any]]:
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


def _loads(access: _Access, targets: list[tuple[int, int, int]], *, signed: bool) -> Step:
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
            nothing = machine.note_read(space, granules, machine.who(lanes), statement)
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


def _stores(access: _Access, sources: list[int]) -> Step:
    width, nbytes, statement = access.width, access.nbytes, access.statement

    def step(machine: Machine) -> None:
        for number in dict.fromkeys(sources):
            machine.demand_defined(number, "poison-stored", "what is stored", statement)
        wrong = _either([machine.undefined[number] for number in sources])
        for space, address, wanted in access.parts(machine):
            flat, lanes = machine.locate(space, address, wanted, nbytes, statement)
            if not lanes.size:
                continue
            undefined = None if wrong is None else machine.full(wrong)[lanes][:, None]
            granules = space.shadow.granules(flat, nbytes)
            machine.note_write(space, granules, machine.who(lanes), statement, undefined)
            first = flat // width
            view = space.views[width]
            for place, number in enumerate(sources):
                value = resize(machine.full(machine.registers[number]), width * 8)
                view[first + place] = value if lanes is machine.every else value[lanes]
            if space.name == "global":
                machine.counts.stored_bytes += nbytes * len(lanes)
            machine.count_access(space, machine.by_warp(flat, lanes), nbytes, stores=True)

    return step


def _copies(target: _Access, source: _Access, read: int) -> Step:
    statement, nbytes = target.statement, target.nbytes

    def step(machine: Machine) -> None:
        shared, origin = machine.spaces["shared"], machine.spaces["global"]
        lanes = machine.lanes
        to, from_ = target.address(machine, lanes), source.address(machine, lanes)
        flat, left = machine.locate(shared, to, lanes, nbytes, statement)
        if left is not lanes:
            from_ = from_[np.isin(lanes, left)]
        inside, kept = machine.locate(origin, from_, left, nbytes, statement)
        if kept is not left:
            flat = flat[np.isin(left, kept)]
        if not kept.size:
            return
        granules = shared.shadow.granules(flat, nbytes)
        who = machine.who(kept)
        # The copy may write at any moment from now on, so whoever touches the bytes now has to be done with them.
        machine.report_pending(shared, granules, shared.shadow.pending_at(granules), who, statement, writes=True)
        machine.report_race(shared, granules, shared.shadow.touches(granules, who), who, statement, "a copy into")
        shared.shadow.promise(granules)
        machine.copies.append(Copies(statement, kept, machine.committed[kept], flat, inside, read, nbytes))
        if read:
            machine.count_access(origin, machine.by_warp(inside, kept), nbytes, stores=False)
        machine.count_access(shared, machine.by_warp(flat, kept), nbytes, stores=True)

    return step


def _commit(machine: Machine) -> None:
    machine.committed[machine.lanes] += 1


def _wait_all(machine: Machine) -> None:
    _commit(machine)
    machine.land(machine.committed)


def _waits(left: int) -> Step:
    return lambda machine: machine.land(machine.committed - left)


def _meets(members: int, statement: Statement) -> Step:
    every = np.uint32(0xFFFFFFFF)

    def step(machine: Machine) -> None:
        value = machine.registers[members]
        if machine.mask is None and np.ndim(value) == 0 and value == every:
            machine.order.warps_meet(None)
            machine.counts.warp_barriers += machine.order.warps
            return
        running = np.zeros(machine.order.lanes, np.bool_)
        running[machine.lanes] = True
        rows = running.reshape(-1, WARP)
        warps = np.flatnonzero(rows.any(axis=1))
        bits = (rows[warps] * (1 << np.arange(WARP, dtype=np.int64))).sum(axis=1)
        asked = np.where(rows[warps], machine.full(value).reshape(-1, WARP)[warps].astype(np.int64), bits[:, None])
        wrong = (asked != bits[:, None]).any(axis=1)
        if wrong.any():
            warp = int(warps[np.argmax(wrong)])
            lane = warp * WARP + int(np.argmax(rows[warp]))
            message = "bar.warp.sync is not reached by just the lanes that its mask names"
            machine.report("partial-warp", message, statement, lane, count=int(wrong.sum()))
        # A barrier of some lanes only orders nothing here: the shadow knows warps, not parts of them.
        machine.order.warps_meet(warps[bits == int(every)])
        machine.counts.warp_barriers += len(warps)

    return step


class _Mover:
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
        fragment = self._move.fragment
        for number in dict.fromkeys(self._registers):
            machine.demand_defined(number, "poison-stored", "what is stored", self._statement)
        held = np.stack([machine.full(machine.registers[number]) for number in self._registers])
        elements = matrix.gathered(held, fragment, machine.layouts)
        for warps, space, address, ldm in self._groups(machine):
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
        if self._move.space:
            parts = [(machine.spaces[self._move.space], address, warps)]
        else:
            parts = _by_window(machine, address, warps)
        groups: list[tuple[Any, Space, Any, int]] = []
        for space, where, some in parts:
            own = strides[np.searchsorted(warps, some)]
            groups += [(some[own == ldm], space, where[own == ldm], int(ldm)) for ldm in np.unique(own)]
        return groups

    def _places(self, machine: Machine, space: Space, address: Any, warps: Any, ldm: int) -> tuple[Any, Any]:
        """The warps whose tile lies in memory and on whole elements, and where; reports the others and the rulebooks."""
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

    def _report_outside(
        self, machine: Machine, space: Space, address: Any, warps: Any, inside: Any, ldm: int
    ) -> None:
        first, element = int(np.argmin(inside)), self._move.fragment.bits // 8
        places = int(address[first]) + np.sort(self._move.offsets(ldm)) * element
        lanes = np.full(len(places), int(warps[first]) * WARP)
        _, each = space.locate(places, lanes, element)
        byte = int(places[0 if each is None else int(np.argmin(each))])
        name, offset = space.name_of(byte)
        message = f"a fragment reaches byte {offset}, outside of {name}"
        count = int((~inside).sum())
        machine.report(
            "out-of-bounds", message, self._statement, int(lanes[0]), offset, count=count, whole_warp=True
        )

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
                message = f"a leading dimension of {ldm} elements, {ldm * element} bytes, is no multiple of {unit} bytes"
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
        """A tile moves in 8x8 matrices of 16 bits, or what is as wide: 8 lines of 16 bytes, 128 bytes at once.

        Accumulators of 32 bits go in pairs, 4 lines of 32 bytes.
        """
        element = self._move.fragment.bits // 8
        pairs = self._move.fragment.use == "acc" and element == 4
        length = self._move.length * element
        if space.name == "global":
            # A request of 32 lanes, 4 bytes each, or 8 bytes each of accumulators in pairs.
            pieces = self._pieces(flat, ldm * element, min(16, length))
            per_request = (256 if pairs else 128) // min(16, length)
            machine.count_access(space, pieces.reshape(-1, min(per_request, pieces.shape[1])), 16, stores=stores)
            return
        wide = min(32 if pairs else 16, length)
        pieces = self._pieces(flat, ldm * element, wide)
        if pieces.size % (128 // wide) == 0:
            machine.count_access(space, pieces.reshape(-1, 128 // wide), wide, stores=stores)

    def _pieces(self, flat: Any, stride: int, wide: int) -> Any:
        """Where the pieces of each tile begin, lines first; tiles × pieces."""
        lines = np.arange(self._move.lines) * stride
        across = np.arange(self._move.length * (self._move.fragment.bits // 8) // wide) * wide
        return flat[:, None] + (across[:, None] + lines).reshape(-1)


def _multiplies(statement: Statement, product: matrix.Product, registers: list[list[int]]) -> Step:
    to, *sources = registers
    fragments = (product.a, product.b, product.c)

    def step(machine: Machine) -> None:
        warps = machine.whole_warps(statement)
        if not warps.size:
            return
        operands = [_tile(machine, *each) for each in zip(sources, fragments, strict=True)]
        bits = matrix.multiply(product, *operands)
        undefined = _either([machine.undefined[number] for group in sources for number in group])
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
    known = machine.tile(key, held)
    if known is None:
        full = np.stack([machine.full(value) for value in held])
        known = matrix.values_of(matrix.gathered(full, fragment, machine.layouts), fragment)
        machine.keep_tile(key, held, known)
    return known
