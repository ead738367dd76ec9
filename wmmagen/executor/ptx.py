"""PTX text as statements with line numbers.

The reader knows the grammar of PTX, not what instructions mean: an instruction is a name with its modifiers and
operands. What does not fit the grammar is an error with its line. Debug sections are passed over; ``.loc`` becomes the
line of the kernel's own source, through one level of inlining.

Source: PTX ISA, "Syntax" and "State Spaces, Types, and Variables".
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#syntax
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from wmmagen.errors import PtxError

#: Bits of each fundamental type; a predicate counts as 1.
TYPE_BITS: dict[str, int] = {
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "f16x2": 32, "bf16x2": 32, "tf32": 32, "pred": 1,
}  # fmt: skip
_PARSED_KEPT = 16


class Register(NamedTuple):
    """A register by its full name: the name as written, with the number of its scope where that is an inner one."""

    name: str


class Immediate(NamedTuple):
    """A number as written: an integer, or the bits of a floating point number and how many."""

    value: int
    float_bits: int = 0


class Symbol(NamedTuple):
    """The name of a variable, a label or a special register (which begins with ``%``)."""

    name: str


class Vector(NamedTuple):
    """Operands in braces."""

    parts: tuple[Register | Immediate | Symbol, ...]


class Pair(NamedTuple):
    """Two destinations with a bar between them: ``%r1|%p1``."""

    first: Register | Immediate | Symbol
    second: Register | Immediate | Symbol


class Address(NamedTuple):
    """Operand in brackets: a base and an offset in bytes."""

    base: Register | Symbol | Immediate
    offset: int


Operand = Register | Immediate | Symbol | Vector | Pair | Address


class Statement(NamedTuple):
    """One instruction.

    Attributes:
        words: opcode and modifiers: ``("ld", "shared", "v4", "b32")``.
        operands: in the order as written.
        guard: the predicate that it runs under; None for none.
        negated: whether it runs where the guard is false.
        line: in the PTX text, from 1.
        source_line: of the kernel's own source; 0 where unknown.
    """

    words: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    negated: bool
    line: int
    source_line: int

    @property
    def name(self) -> str:
        """Opcode and modifiers as written."""
        return ".".join(self.words)


@dataclass(frozen=True)
class Variable:
    """A variable in memory.

    Attributes:
        name: its symbol.
        space: ``global``, ``const``, ``shared`` or ``local``.
        align: of its address, in bytes.
        size: in bytes; 0 for the block's dynamic shared memory.
        data: initial bytes; empty for none.
    """

    name: str
    space: str
    align: int
    size: int
    data: bytes = b""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: its name, its type, and its size in bytes."""

    name: str
    type: str
    size: int


@dataclass
class Kernel:
    """An entry of a module.

    Attributes:
        name: its symbol.
        line: where it begins.
        parameters: in order.
        registers: bits of each register that is declared by itself, by full name.
        families: bits and number of each ``%r<n>``, by prefix.
        variables: those declared in it.
        statements: in order.
        labels: the number of the statement that each one stands before.
        max_threads: of a block, where it says so; 0 elsewhere.
    """

    name: str
    line: int
    parameters: tuple[Parameter, ...] = ()
    registers: dict[str, int] = field(default_factory=dict)
    families: dict[str, tuple[int, int]] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    max_threads: int = 0
    _widths: dict[str, int] = field(default_factory=dict)

    def bits_of(self, register: Register, line: int) -> int:
        """Bits of a register.

        Raises:
            PtxError: it is not declared.
        """
        known = self._widths.get(register.name)
        if known is None:
            known = self._widths[register.name] = self._declared(register, line)
        return known

    def _declared(self, register: Register, line: int) -> int:
        own = self.registers.get(register.name)
        if own is not None:
            return own
        match = _NUMBERED.fullmatch(register.name)
        bits, count = self.families.get(match[1], (0, 0)) if match else (0, 0)
        if not match or int(match[2]) >= count:
            raise PtxError(f"PTX line {line}: the register {register.name} is not declared")
        return bits


@dataclass(frozen=True)
class Module:
    """A PTX text: its kernels by name, and the variables outside of them."""

    kernels: dict[str, Kernel]
    variables: tuple[Variable, ...]


#: Numbers in a text are bounded before they are read: Python refuses to read very long ones.
_NUMBERED = re.compile(r"(.*?[^0-9])([0-9]{1,9})")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_LOC = re.compile(r"\.loc\s+(\d{1,9})\s+(\d{1,9})\s+\d+(?:.*\binlined_at\s+(\d{1,9})\s+(\d{1,9}))?")
_INSTRUCTION = re.compile(r"(?:@(!?)\s*([\w%$]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_REG = re.compile(r"\.reg\s+\.(\w+)\s+(.*)", re.DOTALL)
_FAMILY = re.compile(r"([%\w$]+)<(\d{1,9})>")
_VARIABLE = re.compile(
    r"(?:\.(?:extern|visible|weak|common)\s+)*\.(global|const|shared|local)\s+"
    r"(?:\.align\s+(\d{1,9})\s+)?(?:\.attribute\([^)]*\)\s*)?\.(\w+)\s+([\w$%]+)\s*((?:\[\s*\d{0,15}\s*\])*)\s*(?:=\s*(.*))?",
    re.DOTALL,
)
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(?:\.ptr\s+)?(?:\.\w+\s+)*?(?:\.align\s+\d+\s+)?"
                        r"([\w$%]+)\s*(?:\[(\d{1,15})\])?")  # fmt: skip
_ENTRY = re.compile(r"(?:\.(?:visible|weak|extern)\s+)*\.entry\s+([\w$]+)")
_NUMBER = re.compile(r"(-?)(0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)U?")
_FLOAT = re.compile(r"0([fFdD])([0-9a-fA-F]+)")
_DECIMAL = re.compile(r"-?\d+\.\d*(?:[eE][-+]?\d+)?")
_NAME = re.compile(r"[A-Za-z_$%][\w$]*(?:\.[xyzw])?(?:::\w+)*")
_UNTERMINATED = (
    ".version",
    ".target",
    ".address_size",
    ".file",
    ".maxnreg",
    ".minnctapersm",
    ".reqntid",
    ".maxnctapersm",
)


@lru_cache(maxsize=_PARSED_KEPT)
def parse(text: str) -> Module:
    """Read a PTX text.

    Raises:
        PtxError: it does not follow the grammar, or ends too early; names the line.
    """
    return _Reader(text).module()


class _Reader:
    """Reads a text from top to bottom, line by line, because some directives end with their line."""

    def __init__(self, text: str) -> None:
        self._lines = _without_block_comments(text).split("\n")
        self._kernels: dict[str, Kernel] = {}
        self._variables: list[Variable] = []
        self._kernel: Kernel | None = None
        self._header = ""
        self._scopes: list[dict[str, str]] = []
        self._scope_count = 0
        self._source_line = 0
        self._main_file = 0
        self._pending: list[str] = []
        self._gathered = 0
        self._started = 0
        self._skipping = 0
        # What operands in the kernel's own scope are, by their text: most are written many times.
        self._known: dict[str, Operand] = {}

    def module(self) -> Module:
        for number, line in enumerate(self._lines, 1):
            cut = line.find("//")
            words = (line if cut < 0 else line[:cut]).strip()
            if words:
                self._line(words, number)
        last = len(self._lines)
        if self._kernel is not None and (self._scopes or self._header):
            raise PtxError(f"PTX line {last}: the text ends inside of the kernel {self._kernel.name}")
        if self._skipping or self._pending:
            raise PtxError(f"PTX line {last}: the text ends inside of what begins in line {self._started}")
        if not self._kernels and not self._variables:
            raise PtxError(f"PTX line {last}: the text holds no kernel")
        return Module(self._kernels, tuple(self._variables))

    def _line(self, words: str, number: int) -> None:
        if self._skipping:
            self._skip(words)
        elif self._header:
            self._read_header(words, number)
        elif not self._pending and words[0] == ".":
            self._directive(words, number)
        else:
            self._read(words, number)

    def _skip(self, words: str) -> None:
        """Past a section in braces; 1 means that its brace has not opened yet."""
        self._skipping += words.count("{") - words.count("}")
        if self._skipping == 1 and "}" in words:
            self._skipping = 0

    def _directive(self, words: str, number: int) -> None:
        first = words.split(None, 1)[0]
        if first == ".loc":
            self._locate(words, number)
        elif first == ".section":
            self._skipping, self._started = 1, number
            self._skip(words[len(first) :])
        elif first in _UNTERMINATED:
            pass
        elif _ENTRY.match(words):
            self._open_kernel(words, number)
        else:
            self._read(words, number)

    def _locate(self, words: str, number: int) -> None:
        match = _LOC.match(words)
        if not match:
            raise PtxError(f"PTX line {number}: {words!r} is no .loc")
        own, line, outer, outer_line = match.groups()
        # The first location of a kernel is its own opening line, which tells the kernel's file from headers.
        self._main_file = self._main_file or int(own)
        if int(own) == self._main_file:
            self._source_line = int(line)
        elif outer is not None and int(outer) == self._main_file:
            self._source_line = int(outer_line)

    def _open_kernel(self, words: str, number: int) -> None:
        match = _ENTRY.match(words)
        if match is None or self._kernel is not None:
            raise PtxError(f"PTX line {number}: a kernel inside of a kernel")
        self._kernel, self._main_file, self._source_line = Kernel(match[1], number), 0, 0
        self._header = " "
        self._known.clear()
        self._read_header(words[match.end() :], number)

    def _read_header(self, words: str, number: int) -> None:
        kernel = self._inside(number)
        if words.startswith(".loc"):
            self._locate(words, number)
            return
        self._header += words + " "
        if len(self._header) > _LONGEST_HEADER:
            raise PtxError(f"PTX line {number}: the kernel {kernel.name} has no body")
        brace = self._header.find("{")
        if brace < 0:
            return
        header, rest = self._header[:brace], self._header[brace:].strip()
        self._header = ""
        kernel.parameters = tuple(_parameters(header, number))
        threads = re.search(r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", header)
        if threads:
            if any(size and len(size) > _THREAD_DIGITS for size in threads.groups()):
                raise PtxError(f"PTX line {number}: the kernel {kernel.name} names more threads than a block can have")
            x, y, z = (int(size or 1) for size in threads.groups())
            kernel.max_threads = x * y * z
        self._read(rest, number)

    def _inside(self, number: int) -> Kernel:
        if self._kernel is None:
            raise PtxError(f"PTX line {number}: an instruction outside of a kernel")
        return self._kernel

    def _read(self, words: str, number: int) -> None:
        """Take statements, labels and braces off the text that has gathered."""
        at, end = 0, len(words)
        while at < end:
            if words[at].isspace():
                at += 1
                continue
            if not self._pending:
                self._started = number
                if words[at] == ";":
                    at += 1
                    continue
                if words[at] in "{}":
                    self._brace(words[at], number)
                    at += 1
                    continue
                label = _LABEL.match(words, at)
                if label:
                    self._label(label[1], number)
                    at = label.end()
                    continue
            stop = words.find(";", at)
            if stop < 0:
                self._gather(words[at:])
                return
            statement = "".join((*self._pending, words[at:stop]))
            self._pending, self._gathered, at = [], 0, stop + 1
            self._statement(statement.strip(), self._started)

    def _gather(self, words: str) -> None:
        """Keep the beginning of a statement that goes on in the next line."""
        self._pending += (words, " ")
        self._gathered += len(words)
        if self._gathered > _LONGEST_STATEMENT:
            raise PtxError(f"PTX line {self._started}: a statement that does not end")

    def _brace(self, sign: str, number: int) -> None:
        if sign == "{":
            self._open(number)
        else:
            self._close(number)

    def _open(self, number: int) -> None:
        self._inside(number)
        if len(self._scopes) == _DEEPEST:
            raise PtxError(f"PTX line {number}: more than {_DEEPEST} scopes within each other")
        self._scopes.append({})
        self._scope_count += 1

    def _close(self, number: int) -> None:
        if not self._scopes:
            raise PtxError(f"PTX line {number}: a brace closes nothing")
        self._scopes.pop()
        if not self._scopes and self._kernel is not None:
            if self._kernel.name in self._kernels:
                raise PtxError(f"PTX line {number}: a second kernel {self._kernel.name}")
            self._kernels[self._kernel.name] = self._kernel
            self._kernel = None

    def _label(self, name: str, number: int) -> None:
        kernel = self._inside(number)
        if name in kernel.labels:
            raise PtxError(f"PTX line {number}: a second label {name}")
        kernel.labels[name] = len(kernel.statements)

    def _statement(self, words: str, number: int) -> None:
        if not words or words.startswith(".pragma"):
            return
        if words[0] == ".":
            self._declaration(words, number)
            return
        kernel = self._inside(number)
        match = _INSTRUCTION.fullmatch(words)
        if not match:
            raise PtxError(f"PTX line {number}: {_short(words)} is no instruction")
        negated, guard, name, rest = match.groups()
        operands = tuple(self._operand(part, number) for part in _split(rest, number)) if rest else ()
        kernel.statements.append(
            Statement(
                tuple(name.split(".")),
                operands,
                self._register(guard) if guard else None,
                bool(negated),
                number,
                self._source_line,
            )
        )

    def _declaration(self, words: str, number: int) -> None:
        registers = _REG.fullmatch(words)
        if registers:
            self._registers(registers[1], registers[2], number)
            return
        if re.match(r"(?:\.(?:extern|visible|weak)\s+)*\.func\b", words):
            if "{" in words:
                raise PtxError(f"PTX line {number}: functions with a body are not known to the executor")
            return
        variable = _variable(words, number)
        if self._kernel is None:
            self._variables.append(variable)
        else:
            self._kernel.variables.append(variable)

    def _registers(self, kind: str, names: str, number: int) -> None:
        kernel = self._inside(number)
        self._known.clear()
        if kind not in TYPE_BITS:
            raise PtxError(f"PTX line {number}: .{kind} is no type of a register")
        for name in (part.strip() for part in names.split(",")):
            family = _FAMILY.fullmatch(name)
            if family:
                kernel.families[family[1]] = (TYPE_BITS[kind], int(family[2]))
            elif not _NAME.fullmatch(name):
                raise PtxError(f"PTX line {number}: {_short(name)} is no name of a register")
            else:
                full = name if len(self._scopes) < 2 else f"{name}@{self._scope_count}"
                self._scopes[-1][name] = full
                kernel.registers[full] = TYPE_BITS[kind]

    def _register(self, name: str) -> Register:
        for scope in reversed(self._scopes):
            if name in scope:
                return Register(scope[name])
        return Register(name)

    def _operand(self, text: str, number: int) -> Operand:
        if len(self._scopes) != 1:
            return self._read_operand(text, number)
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._read_operand(text, number)
        return found

    def _read_operand(self, text: str, number: int) -> Operand:
        if text[0] == "[":
            return self._address(text, number)
        if text[0] == "{":
            return Vector(tuple(self._scalar(part, number) for part in _split(text[1:-1], number)))
        if "|" in text:
            return self._pair(text, number)
        return self._scalar(text, number)

    def _pair(self, text: str, number: int) -> Pair:
        first, _, second = (part.strip() for part in text.partition("|"))
        if not first or not second:
            raise PtxError(f"PTX line {number}: {_short(text)} lacks one of its two operands")
        return Pair(self._scalar(first, number), self._scalar(second, number))

    def _scalar(self, text: str, number: int) -> Register | Immediate | Symbol:
        if text[0].isdigit() or text[0] == "-":
            return _immediate(text, number)
        if not _NAME.fullmatch(text):
            raise PtxError(f"PTX line {number}: {_short(text)} is no operand")
        kernel = self._inside(number)
        register = self._register(text)
        if register.name in kernel.registers:
            return register
        match = _NUMBERED.fullmatch(text)
        if match and match[1] in kernel.families:
            return Register(text)
        return Symbol(text)

    def _address(self, text: str, number: int) -> Address:
        match = re.fullmatch(r"\[\s*(.+?)\s*(?:([+-])\s*(-?\w+))?\s*\]", text)
        if not match:
            raise PtxError(f"PTX line {number}: {_short(text)} is no address")
        base = self._scalar(match[1], number)
        offset = _immediate(match[3], number).value if match[3] else 0
        # Addresses have 64 bits and wrap.
        wrapped = ((-offset if match[2] == "-" else offset) + (1 << 63)) % (1 << 64) - (1 << 63)
        return Address(base, wrapped)


#: Longer than any statement that a compiler writes; what is longer has lost its semicolon. In characters.
_LONGEST_STATEMENT = 1_000_000
#: The same of a kernel's parameters. In characters.
_LONGEST_HEADER = 100_000
#: Digits of a number of threads, and the largest number of 64 bits.
_THREAD_DIGITS, _LARGEST = 9, (1 << 64) - 1
#: Scopes within each other: compilers write two or three.
_DEEPEST = 64
_SHOWN = 60


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _without_block_comments(text: str) -> str:
    """The text with the same lines, but no ``/* */``."""
    if "/*" not in text:
        return text
    return re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.DOTALL)


def _split(text: str, number: int) -> Iterator[str]:
    """Operands between the commas that are outside of braces and brackets."""
    text = text.strip()
    if "{" not in text and "[" not in text:
        parts = text.split(",")
    else:
        parts, depth, start = [], 0, 0
        for place, sign in enumerate(text):
            if sign in "{[":
                depth += 1
            elif sign in "}]":
                depth -= 1
            elif sign == "," and not depth:
                parts.append(text[start:place])
                start = place + 1
        parts.append(text[start:])
        if depth:
            raise PtxError(f"PTX line {number}: {_short(text)} has a brace or bracket too many")
    for part in parts:
        stripped = part.strip()
        if not stripped:
            raise PtxError(f"PTX line {number}: an operand is missing in {_short(text)}")
        yield stripped


#: In binary, the longest way to write one.
_LONGEST_NUMBER = 70


def _immediate(text: str, number: int) -> Immediate:
    match = _FLOAT.fullmatch(text)
    if match and len(match[2]) == (8 if match[1] in "fF" else 16):
        return Immediate(int(match[2], 16), 4 * len(match[2]))
    match = _NUMBER.fullmatch(text)
    if match and len(match[2]) <= _LONGEST_NUMBER:
        magnitude = int(match[2], 8 if re.fullmatch(r"0[0-7]+", match[2]) else 0)
        if magnitude > _LARGEST:
            raise PtxError(f"PTX line {number}: {_short(text)} has more than 64 bits")
        return Immediate(-magnitude if match[1] else magnitude)
    if _DECIMAL.fullmatch(text):
        return Immediate(int.from_bytes(struct.pack("<d", float(text)), "little"), 64)
    raise PtxError(f"PTX line {number}: {_short(text)} is no number")


def _parameters(header: str, number: int) -> Iterator[Parameter]:
    start, end = header.find("("), header.rfind(")")
    inside = header[start + 1 : end].strip() if 0 <= start < end else ""
    for part in _split(inside, number) if inside else ():
        match = _PARAMETER.fullmatch(part)
        if not match or match[1] not in TYPE_BITS:
            raise PtxError(f"PTX line {number}: {_short(part)} is no parameter")
        yield Parameter(match[2], match[1], TYPE_BITS[match[1]] // 8 * int(match[3] or 1))


def _variable(words: str, number: int) -> Variable:
    match = _VARIABLE.fullmatch(words)
    if not match or match[3] not in TYPE_BITS:
        raise PtxError(f"PTX line {number}: {_short(words)} is no declaration that the executor knows")
    space, align, kind, name, extents, initial = match.groups()
    element = TYPE_BITS[kind] // 8
    count = 1
    for extent in re.findall(r"\[\s*(\d*)\s*\]", extents):
        count *= int(extent or 0)
    data = _initial(initial, element, number) if initial else b""
    if align and int(align).bit_count() != 1:
        raise PtxError(f"PTX line {number}: {name} is aligned to {align} bytes, which is no power of two")
    if len(data) > count * element:
        raise PtxError(f"PTX line {number}: more initial values than {name} has elements")
    return Variable(name, space, int(align or element), count * element, data)


def _initial(text: str, element: int, number: int) -> bytes:
    parts = _split(text.strip().strip("{}"), number)
    values = (_immediate(part, number).value for part in parts)
    return b"".join((value % (1 << 8 * element)).to_bytes(element, "little") for value in values)
