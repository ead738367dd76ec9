"""Machine code in words: nvdisasm's text of one kernel as instructions, basic blocks and loops.

Knows no GEMM. What cannot be read is an error with its line wherever it decides something: control flow, accesses to
memory and matrix instructions. Opcodes that are none of these are counted by class, or as others.

Sources: CUDA Binary Utilities, "nvdisasm" and "Instruction Set Reference" (the opcodes of Turing to Blackwell); forms
and modifiers as NVRTC 13 and nvdisasm 13 write them for sm_75 to sm_120.
https://docs.nvidia.com/cuda/cuda-binary-utilities/index.html
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from wmmagen import nvrtc
from wmmagen.errors import DisassemblyError, MissingPiece

INSTALL = "pip install 'cuda-toolkit[nvdisasm]'"

#: A kernel of wmmagen takes a tenth of a second.
LIMIT_S = 60.0
#: Bytes from one instruction to the next, since Volta.
INSTRUCTION_BYTES = 16


class Space(StrEnum):
    """Which memory an access goes to."""

    GLOBAL = "global"
    SHARED = "shared"
    LOCAL = "local"
    GENERIC = "generic"  # the hardware finds out at run time


class Kind(StrEnum):
    """What an instruction is counted as."""

    MATRIX = "matrix"
    MEMORY = "memory"
    INTEGER = "integer"  # integer and address arithmetic, logic, comparisons and moves, of each thread
    UNIFORM = "uniform"  # the same once per warp, on the uniform datapath
    CONTROL = "control"
    BARRIER = "barrier"
    OTHER = "other"


@dataclass(frozen=True)
class Access:
    """What an instruction does to memory.

    Attributes:
        space: where; of ``LDGSTS``, which copies from global to shared memory, where it reads.
        loads, stores: whether it reads and writes there.
        bits: per thread.
        word: opcode and width in bits, ``LDG.128``; of matrix loads opcode and form, ``LDSM.MT88``.
    """

    space: Space
    loads: bool
    stores: bool
    bits: int
    word: str


@dataclass(frozen=True)
class Op:
    """One machine instruction.

    Attributes:
        address: its byte offset in the kernel.
        guard: the predicate before it, ``P0`` or ``!P0``; empty where there is none.
        opcode: without modifiers, ``LDG``.
        modifiers: ``("E", "128")``.
        operands: as they are written.
        line: of the text, from 1.
    """

    address: int
    guard: str
    opcode: str
    modifiers: tuple[str, ...]
    operands: str
    line: int

    @property
    def never(self) -> bool:
        """It is never carried out: the compiler writes such instructions to keep others apart."""
        return self.guard in ("!PT", "!UPT")

    @property
    def always(self) -> bool:
        """Every thread that reaches it carries it out."""
        return self.guard in ("", "PT", "UPT")

    def __str__(self) -> str:
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True)
class Block:
    """Instructions that are entered at the first and left at the last.

    Attributes:
        ops: at least one.
        successors: indices of the blocks that may follow.
    """

    ops: tuple[Op, ...]
    successors: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """A natural loop.

    Attributes:
        header: index of the block through which it is entered.
        blocks: indices of its blocks, the header's and those of inner loops among them.
        ops: their instructions, by address.
    """

    header: int
    blocks: frozenset[int]
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Kernel:
    """The machine code of one kernel.

    Attributes:
        entry: its symbol.
        blocks: by address.
        loops: by the address of their headers; two ways back to one header are one loop.
    """

    entry: str
    blocks: tuple[Block, ...]
    loops: tuple[Loop, ...]

    @property
    def ops(self) -> tuple[Op, ...]:
        """Every instruction, by address."""
        return tuple(op for block in self.blocks for op in block.ops)

    def innermost(self, kind: Kind) -> tuple[Loop, ...]:
        """The loops that hold instructions of ``kind`` and no smaller loop that does."""
        holding = [loop for loop in self.loops if any(kind_of(op) is kind for op in loop.ops)]
        return tuple(loop for loop in holding if not any(inner.blocks < loop.blocks for inner in holding))


# The tool ------------------------------------------------------------------------------------------------------------


def locate() -> Path:
    """The nvdisasm in use: from its wheel, else ``CUDA_HOME``, ``CUDA_PATH``, the PATH, ``/usr/local/cuda``.

    Raises:
        MissingPiece: there is none.
    """
    for path in _places():
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise MissingPiece("nvdisasm, which reads machine code, is not here", INSTALL)


def _places() -> Iterator[Path]:
    """Where nvdisasm may be, in the order in which it is looked for."""
    in_wheels = [path for root in nvrtc.wheel_roots() for path in root.glob("*/bin/nvdisasm")]
    yield from sorted(in_wheels, key=lambda path: (-_major(path.parents[1].name), str(path)))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield Path(root) / "bin/nvdisasm"
    if on_path := shutil.which("nvdisasm"):
        yield Path(on_path)
    yield Path("/usr/local/cuda/bin/nvdisasm")


def _major(folder: str) -> int:
    """13 of ``cu13``; 0 of folders that are named otherwise."""
    match = re.fullmatch(r"cu([0-9]+)", folder)
    return int(match[1]) if match else 0


@functools.cache
def title(tool: Path) -> str:
    """Name and version of the nvdisasm at ``tool``: ``nvdisasm 13.5``.

    Raises:
        MissingPiece: it does not start.
        DisassemblyError: it starts and does not say its version.
    """
    answer = _run(tool, "--version")
    match = re.search(r"\brelease ([0-9]+\.[0-9]+)", answer)
    if match is None:
        raise DisassemblyError(f"{tool} does not say its version", INSTALL)
    return f"nvdisasm {match[1]}"


def disassemble(tool: Path, cubin: bytes) -> str:
    """The text that the nvdisasm at ``tool`` makes of the code sections of ``cubin``.

    Raises:
        MissingPiece: it does not start.
        DisassemblyError: it refuses the cubin, for example because it is older than the architecture.
    """
    with tempfile.TemporaryDirectory(prefix="wmmagen-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        return _run(tool, "--print-code", str(file))


def _run(tool: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [str(tool), *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise MissingPiece(f"{tool} does not start: {error.strerror}", INSTALL) from error
    except subprocess.TimeoutExpired as error:
        raise DisassemblyError(f"{tool} did not end within {LIMIT_S:g} s", INSTALL) from error
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise DisassemblyError(f"{tool} refuses the cubin: {reason}", f"a later one may know it: {INSTALL}")
    return done.stdout


# Reading -------------------------------------------------------------------------------------------------------------

_SECTION = re.compile(r'\s*\.section\s+"?([^",\s]+)')
_LABEL = re.compile(r"\s*([.$\w]+):\s*")
#: The last label of a kernel stands in its size.
_SIZE = re.compile(r"\s*\.size\s+\S+?,\s*\(([.$\w]+) - ")
_DIRECTIVE = re.compile(r"\s*\.[a-z]\w*(\s|$)")
_INSTRUCTION = re.compile(
    r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P(?:T|[0-9]+))\s+)?([A-Z][A-Z0-9_]*)((?:\.[A-Za-z0-9_]+)*)(?:\s+([^;]*?))?\s*;\s*"
)
_TARGET = re.compile(r"`\(([^)]+)\)")


def parse(text: str, entry: str) -> Kernel:
    """The kernel ``entry`` of the text that nvdisasm wrote.

    Raises:
        DisassemblyError: there is no such kernel, or a line of it that cannot be read; says which.
    """
    ops, labels = _read(text, entry)
    blocks = _blocks(ops, labels)
    return Kernel(entry, blocks, _loops(blocks, _roots(ops, labels, blocks)))


def _unreadable(line: int, what: str) -> DisassemblyError:
    return DisassemblyError(f"line {line} of the disassembly: {what}", "report it with the configuration's name")


def _section(text: str, entry: str) -> list[tuple[int, str]]:
    """The numbered lines of the kernel's section."""
    found: list[tuple[int, str]] = []
    inside = False
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _SECTION.match(line):
            inside = match[1] == f".text.{entry}"
        elif inside:
            found.append((number, line))
    if not found:
        raise DisassemblyError(f"the disassembly holds no kernel {entry}", "disassemble the cubin of its compilation")
    return found


def _read(text: str, entry: str) -> tuple[list[Op], dict[str, int]]:
    """Instructions by address, and for each label how many of them stand before it."""
    ops: list[Op] = []
    labels: dict[str, int] = {}
    end, end_line = entry, 0
    for number, line in _section(text, entry):
        if match := _INSTRUCTION.fullmatch(line):
            ops.append(_op(match, number))
            if ops[-1].address != (len(ops) - 1) * INSTRUCTION_BYTES:
                raise _unreadable(number, f"address {ops[-1].address:#x} does not follow the one before it")
        elif match := _LABEL.fullmatch(line):
            if labels.setdefault(match[1], len(ops)) != len(ops):
                raise _unreadable(number, f"the label {match[1]} stands a second time")
        elif line.strip() and not line.lstrip().startswith("//") and not _DIRECTIVE.match(line):
            raise _unreadable(number, f"{line.strip()!r} is no instruction, label or directive")
        if match := _SIZE.search(line):
            end, end_line = match[1], number
    if end not in labels:
        raise _unreadable(end_line, f"the kernel ends at {end}, which the text never reaches")
    if not ops:
        raise DisassemblyError(f"the disassembly of {entry} holds no instruction", "compile it again")
    return ops, labels


def _op(match: re.Match[str], line: int) -> Op:
    address, guard, opcode, modifiers, operands = match.groups()
    return Op(int(address, 16), guard or "", opcode, tuple(modifiers.split(".")[1:]), operands or "", line)


# Control flow --------------------------------------------------------------------------------------------------------

_JUMPS = ("BRA", "JMP")
_ENDS = ("EXIT", "RET", "KILL")
#: Of the opcodes that begin like a jump, those that are none.
_NO_JUMPS = ("BREAK", "BREV")


def _target(op: Op, labels: dict[str, int]) -> int | None:
    """The index of the instruction that a jump goes to; None for what is no jump."""
    if op.opcode not in _JUMPS:
        if op.opcode.startswith(("BR", "JM")) and op.opcode not in _NO_JUMPS:
            raise _unreadable(op.line, f"where {op} goes is decided at run time")
        return None
    match = _TARGET.search(op.operands)
    if match is None or match[1] not in labels:
        raise _unreadable(op.line, f"{op} {op.operands} goes to no label of the kernel")
    return labels[match[1]]


def _falls_through(op: Op) -> bool:
    """Whether the next instruction may follow it."""
    if op.opcode in _ENDS:
        return not op.always
    if op.opcode in _JUMPS:
        # A condition is its guard, or stands before its target.
        return not op.always or not op.operands.startswith("`(")
    return True


def _blocks(ops: list[Op], labels: dict[str, int]) -> tuple[Block, ...]:
    targets = [_target(op, labels) for op in ops]
    leaders = {0, *(t for t in targets if t is not None), *labels.values()}
    leaders |= {i + 1 for i, op in enumerate(ops) if targets[i] is not None or op.opcode in _ENDS}
    starts = sorted(leader for leader in leaders if leader < len(ops))
    index = {start: block for block, start in enumerate(starts)}
    blocks = []
    for start, end in zip(starts, [*starts[1:], len(ops)], strict=True):
        last, target = ops[end - 1], targets[end - 1]
        following = [target] if target is not None and not last.never else []
        if _falls_through(last):
            following.append(end)
        if len(ops) in following and last.opcode != "NOP":
            raise _unreadable(last.line, f"the kernel ends with {last}, after which something must follow")
        blocks.append(Block(tuple(ops[start:end]), tuple(dict.fromkeys(index[f] for f in following if f < len(ops)))))
    return tuple(blocks)


def _roots(ops: list[Op], labels: dict[str, int], blocks: tuple[Block, ...]) -> list[int]:
    """Blocks through which code is entered: the first one, and the functions that it calls."""
    called = {0}
    for op in ops:
        match = _TARGET.search(op.operands) if op.opcode == "CALL" else None
        if match is not None and match[1] in labels:
            called.add(labels[match[1]] * INSTRUCTION_BYTES)
    return [index for index, block in enumerate(blocks) if block.ops[0].address in called]


def _loops(blocks: tuple[Block, ...], roots: list[int]) -> tuple[Loop, ...]:
    order = _postorder(blocks, roots)
    place = {block: number for number, block in enumerate(order)}
    dominators = _dominators(blocks, roots, order)
    bodies: dict[int, set[int]] = {}
    for block in order:
        for header in blocks[block].successors:
            if place[header] < place[block]:
                continue
            if header not in dominators[block]:
                raise _unreadable(blocks[header].ops[0].line, "the loop that begins here is entered at two places")
            bodies.setdefault(header, {header}).update(_body(blocks, order, header, block))
    return tuple(
        Loop(header, frozenset(body), tuple(op for index in sorted(body) for op in blocks[index].ops))
        for header, body in sorted(bodies.items())
    )


def _postorder(blocks: tuple[Block, ...], roots: list[int]) -> list[int]:
    """The blocks that can be reached, each after those that it leads to, but for the ways back in loops."""
    seen: set[int] = set()
    order: list[int] = []
    for root in roots:
        path = [] if root in seen else [(root, iter(blocks[root].successors))]
        seen.add(root)
        while path:
            block, successors = path[-1]
            following = next((s for s in successors if s not in seen), None)
            if following is None:
                order.append(block)
                path.pop()
            else:
                seen.add(following)
                path.append((following, iter(blocks[following].successors)))
    return order


def _dominators(blocks: tuple[Block, ...], roots: list[int], order: list[int]) -> dict[int, frozenset[int]]:
    """For each reachable block those that every way to it passes through, itself among them."""
    everything = frozenset(order)
    dominators = dict.fromkeys(order, everything) | {root: frozenset({root}) for root in roots}
    before = _predecessors(blocks, order)
    changed = True
    while changed:
        changed = False
        for block in reversed(order):
            if block in roots:
                continue
            shared = frozenset.intersection(*(dominators[p] for p in before[block])) | {block}
            changed |= shared != dominators[block]
            dominators[block] = shared
    return dominators


def _predecessors(blocks: tuple[Block, ...], order: Iterable[int]) -> dict[int, list[int]]:
    before: dict[int, list[int]] = {block: [] for block in order}
    for block in before:
        for successor in blocks[block].successors:
            before[successor].append(block)
    return before


def _body(blocks: tuple[Block, ...], order: list[int], header: int, back: int) -> set[int]:
    """The blocks from which ``back``, which jumps to ``header``, can be reached without passing the header."""
    before = _predecessors(blocks, order)
    body = {header}
    waiting = [back]
    while waiting:
        block = waiting.pop()
        if block not in body:
            body.add(block)
            waiting += before[block]
    return body


# What an instruction is ----------------------------------------------------------------------------------------------

_INTEGER = frozenset(
    "BMSK BREV CS2R FLO I2I IABS IADD IADD3 IDP IDP4A IMAD IMNMX IMUL ISCADD ISETP LEA LOP LOP3 MOV PLOP3 POPC PRMT "
    "SEL SGXT SHF SHL SHR VABSDIFF VABSDIFF4 VIADD VIADDMNMX VIMNMX VIMNMX3".split()
)
_BARRIERS = ("BAR", "WARPSYNC", "DEPBAR", "LDGDEPBAR", "SYNCS", "MEMBAR")
_CONTROL = (*_JUMPS, *_ENDS, "CALL", "BSSY", "BSYNC", "BREAK", "NOP", "YIELD")

#: Opcodes of memory: space, loads, stores.
_MEMORY = {
    "LD": (Space.GENERIC, True, False),
    "ST": (Space.GENERIC, False, True),
    "ATOM": (Space.GENERIC, True, True),
    "LDG": (Space.GLOBAL, True, False),
    "STG": (Space.GLOBAL, False, True),
    "LDGSTS": (Space.GLOBAL, True, False),
    "ATOMG": (Space.GLOBAL, True, True),
    "RED": (Space.GLOBAL, False, True),
    "REDG": (Space.GLOBAL, False, True),
    "LDS": (Space.SHARED, True, False),
    "STS": (Space.SHARED, False, True),
    "LDSM": (Space.SHARED, True, False),
    "STSM": (Space.SHARED, False, True),
    "ATOMS": (Space.SHARED, True, True),
    "LDL": (Space.LOCAL, True, False),
    "STL": (Space.LOCAL, False, True),
}
#: Of the opcodes that begin like an access to memory, those that are none: constants, barriers, sums over a warp.
_NO_MEMORY = ("LDC", "LDCU", "LDGDEPBAR", "REDUX")
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "32": 32, "64": 64, "128": 128, "256": 256}
#: 8x8 matrices of 16-bit elements, a quarter of a row for each thread.
_MATRIX_FORMS = ("M88", "MT88")
_MATRIX_BITS = 32

_MATRIX = ("HMMA", "IMMA", "DMMA", "BMMA")
_EXTENTS = {
    "884": 8 * 8 * 4,
    "1684": 16 * 8 * 4,
    "1688": 16 * 8 * 8,
    "16816": 16 * 8 * 16,
    "16832": 16 * 8 * 32,
    "16864": 16 * 8 * 64,
    "8816": 8 * 8 * 16,
    "8832": 8 * 8 * 32,
    "88128": 8 * 8 * 128,
    "168128": 16 * 8 * 128,
    "168256": 16 * 8 * 256,
}


def kind_of(op: Op) -> Kind:
    """What ``op`` is counted as; an instruction that is never carried out is ``OTHER``."""
    if op.never:
        return Kind.OTHER
    if op.opcode in _BARRIERS:
        return Kind.BARRIER
    if op.opcode in _CONTROL:
        return Kind.CONTROL
    if op.opcode in _INTEGER:
        return Kind.INTEGER
    if op.opcode.startswith("U") and op.opcode[1:] in _INTEGER:
        return Kind.UNIFORM
    if op.opcode.endswith("MMA"):
        return Kind.MATRIX
    return Kind.MEMORY if _is_memory(op) else Kind.OTHER


def _is_memory(op: Op) -> bool:
    return op.opcode.startswith(("LD", "ST", "ATOM", "RED")) and op.opcode not in _NO_MEMORY


def access(op: Op) -> Access | None:
    """What ``op`` does to memory; None where that is nothing.

    Raises:
        DisassemblyError: an access of a form that is not known.
    """
    if op.never or not _is_memory(op):
        return None
    if op.opcode not in _MEMORY:
        raise _unreadable(op.line, f"{op} is no access to memory that is known here")
    space, loads, stores = _MEMORY[op.opcode]
    if op.opcode in ("LDSM", "STSM"):
        form, bits = _matrix_form(op)
        return Access(space, loads, stores, bits, f"{op.opcode}.{form}")
    widths = [_WIDTHS[m] for m in op.modifiers if m in _WIDTHS]
    if len(widths) > 1:
        raise _unreadable(op.line, f"{op} names two widths")
    bits = widths[0] if widths else 32
    return Access(space, loads, stores, bits, f"{op.opcode}.{bits}")


def _matrix_form(op: Op) -> tuple[str, int]:
    """``M88`` or ``MT88`` (transposed on the way), and the bits that each thread gets."""
    match op.modifiers:
        case ("16", form) if form in _MATRIX_FORMS:
            return form, _MATRIX_BITS
        case ("16", form, ("2" | "4") as count) if form in _MATRIX_FORMS:
            return form, int(count) * _MATRIX_BITS
    raise _unreadable(op.line, f"{op} is no load of matrices that is known here")


@dataclass(frozen=True)
class Product:
    """What a matrix instruction does.

    Attributes:
        word: opcode and types, ``HMMA.F32``.
        volume: m·n·k of its extents, the multiplications of a warp.
    """

    word: str
    volume: int


def product(op: Op) -> Product | None:
    """What the matrix instruction ``op`` does; None for any other instruction.

    Raises:
        DisassemblyError: a matrix instruction of a form that is not known.
    """
    if kind_of(op) is not Kind.MATRIX:
        return None
    volume = _volume(op.modifiers[0]) if op.modifiers and op.opcode in _MATRIX else 0
    if not volume:
        raise _unreadable(op.line, f"{op} is no matrix instruction that is known here")
    return Product(".".join((op.opcode, *op.modifiers[1:])), volume)


def _volume(extents: str) -> int:
    if match := re.fullmatch(r"([0-9]+)x([0-9]+)x([0-9]+)", extents):
        return int(match[1]) * int(match[2]) * int(match[3])
    return _EXTENTS.get(extents, 0)
