"""A kernel made ready to run: every instruction as a function of the machine, register names as numbers.

Decoding happens once for each kernel; what an instruction means is said where it is made: arithmetic in
:mod:`wmmagen.executor.alu`, the others in rooms of their own.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from wmmagen.errors import LaunchFault
from wmmagen.executor import alu, atomics, barriers, control, fences, fragments, matrix, mma, ptx, steps, warp
from wmmagen.executor.alu import UnknownInstruction
from wmmagen.executor.machine import WINDOWS
from wmmagen.executor.matrix import Move
from wmmagen.executor.memory import WARP
from wmmagen.executor.numbers import UNSIGNED
from wmmagen.executor.operands import Operands, unknown
from wmmagen.executor.ptx import TYPE_BITS, Address, Immediate, Kernel, Operand, Register, Statement, Symbol
from wmmagen.executor.steps import Step
from wmmagen.executor.strong import Strength

_PROGRAMS_KEPT = 16
_BARRIERS = 16
#: More groups of copies than a kernel can have open.
_MANY = 1 << 30
_GENERIC = ""
_SPACES = ("global", "shared", "local", "param", "const")
_CACHE_WORDS = frozenset(("nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "weak", "volatile"))
_HINT = re.compile(r"L[12]::[\w:]+")
#: Hints, or they wait for what is over where one launch runs alone.
_WITHOUT_EFFECT = ("prefetch", "prefetchu", "griddepcontrol", "setmaxnreg", "nanosleep")


@dataclass(frozen=True)
class Vote:
    """What ``bar.red`` makes of a predicate of all threads that meet at it.

    Attributes:
        combine: of blocks x threads, what each said and who is there, a value for each block.
        target, source: the registers.
    """

    combine: Callable[[npt.NDArray[Any], npt.NDArray[Any]], npt.NDArray[Any]]
    target: int
    source: int


@dataclass(frozen=True)
class Block:
    """A basic block ready to run.

    Attributes:
        steps: its instructions.
        last: the statement that ends it; None where the next block follows.
        guard: the register of that statement's predicate; -1 for none.
        operands: the registers of a barrier's operands.
        vote: what such a barrier makes of a predicate; None where it does not.
        target, follows, meeting: as in :class:`wmmagen.executor.control.Block`.
        size: instructions, with the last one.
        classes: how many instructions of each class it has.
    """

    steps: tuple[Step, ...]
    last: Statement | None
    guard: int
    operands: tuple[int, ...]
    vote: Vote | None
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
        variables: those of the module and of the kernel, in every state space, by name.
        strong: whether it has strong operations that may mean global memory.
    """

    kernel: Kernel
    blocks: tuple[Block, ...]
    constants: tuple[Any, ...]
    unwritten: frozenset[int]
    specials: dict[str, int]
    addresses: dict[tuple[str, int], int]
    granules: dict[str, int]
    variables: dict[str, ptx.Variable]
    strong: bool


@lru_cache(maxsize=_PROGRAMS_KEPT)
def load(text: str, entry: str) -> Program:
    """Read and decode a kernel.

    Raises:
        LaunchFault: the text holds no such kernel.
        PtxError: it does not follow the grammar, or has an instruction that is not known; names the instruction and its
            line.
    """
    module = ptx.parse(text)
    if entry not in module.kernels:
        raise LaunchFault(f"the PTX has no kernel {entry}; it has {', '.join(module.kernels) or 'none'}")
    return _Decoder(module, module.kernels[entry]).program()


class _Decoder(Operands):
    """Decodes the statements of one kernel."""

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
            self.strong,
        )

    def _block(self, block: control.Block) -> Block:
        decoded = [self._statement(statement) for statement in block.statements]
        operands: tuple[int, ...] = ()
        vote = None
        classes: Counter[str] = Counter(kind for _, kind in decoded)
        last = block.last
        if last is not None:
            classes["control"] += 1
            if control.is_block_barrier(last):
                operands, vote = self._barrier(last)
        return Block(
            tuple(step for step, _ in decoded if step is not None),
            last,
            -1 if last is None or last.guard is None else self.register(last.guard, last),
            operands,
            vote,
            block.target,
            block.follows,
            block.meeting,
            len(decoded) + (last is not None),
            classes,
        )

    def _barrier(self, statement: Statement) -> tuple[tuple[int, ...], Vote | None]:
        """The registers of the barrier's number and of its number of threads, and what it asks them."""
        words = tuple(word for word in statement.words[1:] if word not in ("cta", "aligned"))
        given, vote = list(statement.operands), None
        if words in _BLOCK_VOTES and len(given) > 2:
            vote = self._vote(words, given.pop(0), given.pop(), statement)
        elif words != ("sync",):
            raise unknown(statement)
        if len(given) not in (1, 2):
            raise unknown(statement)
        number, *count = given
        if isinstance(number, Immediate) and not 0 <= number.value < _BARRIERS:
            raise unknown(statement, f"the number {number.value}: a block has {_BARRIERS} barriers")
        if any(isinstance(c, Immediate) and (c.value % WARP or c.value < WARP) for c in count):
            raise unknown(statement, f"a number of threads that is no multiple of {WARP}")
        return tuple(self.source(operand, "u32", statement) for operand in given), vote

    def _vote(self, words: tuple[str, ...], target: Operand, source: Operand, statement: Statement) -> Vote:
        bits = 1 if words[-1] == "pred" else TYPE_BITS[words[-1]]
        try:
            registers = self.target(target, bits, statement), self.source(source, "pred", statement)
        except UnknownInstruction:
            raise unknown(statement) from None
        return Vote(_BLOCK_VOTES[words], *registers)

    def _statement(self, statement: Statement) -> tuple[Step | None, str]:
        try:
            step, kind = self._decode(statement)
        except UnknownInstruction:
            raise unknown(statement) from None
        if statement.guard is not None and self.kernel.bits_of(statement.guard, statement.line) != 1:
            raise unknown(statement, "a guard that is no predicate")
        if statement.guard is not None and step is not None:
            step = steps.guarded(step, self.register(statement.guard, statement), statement)
        return step, kind

    def _decode(self, statement: Statement) -> tuple[Step | None, str]:
        first, words = statement.words[0], statement.words
        if first in _WITHOUT_EFFECT:
            return None, "control"
        maker = _MAKERS.get(words[:3]) or _MAKERS.get(words[:2]) or _MAKERS.get(words[:1])
        if maker is not None:
            return maker(self, statement)
        return self._arithmetic(statement)

    # Kinds of instructions -------------------------------------------------------------------------------------------

    def _arithmetic(self, statement: Statement) -> tuple[Step, str]:
        found = alu.decode(statement.words)
        wider = statement.words[0] == "cvt"
        if len(statement.operands) != len(found.sources) + 1:
            raise unknown(statement, f"{len(statement.operands)} operands")
        target = self.target(statement.operands[0], TYPE_BITS[found.result], statement, wider=wider)
        sources = [
            self.source(operand, kind, statement, wider=wider)
            for operand, kind in zip(statement.operands[1:], found.sources, strict=True)
        ]
        function, rule = found.function, found.undefined
        own = self.bits(statement.operands[0], statement)
        if own != TYPE_BITS[found.result]:
            function = steps.widened(function, own, signed=found.signed)
            rule = None if rule is None else steps.widened(rule, own, signed=found.signed)
        return steps.computes(function, target, sources, rule), found.kind

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
        return steps.moves(to, self.source(source, kind, statement)), "move"

    def _pack(self, target: Operand, source: ptx.Vector, kind: str, statement: Statement) -> Step:
        bits = TYPE_BITS[kind]
        width = bits // len(source.parts)
        to = self.target(target, bits, statement)
        parts = [self.source(part, f"b{width}", statement) for part in source.parts]
        wide = UNSIGNED[bits]

        def pack(*values: Any) -> Any:
            packed = values[0].astype(wide)
            for place, value in enumerate(values[1:], 1):
                packed = packed | (value.astype(wide) << wide(place * width))
            return packed

        return steps.computes(pack, to, parts, lambda values, masks: pack(*masks))

    def _unpack(self, target: ptx.Vector, source: Operand, kind: str, statement: Statement) -> Step:
        bits = TYPE_BITS[kind]
        width = bits // len(target.parts)
        number = self.source(source, kind, statement)
        targets = [
            (place, self.target(part, width, statement))
            for place, part in enumerate(target.parts)
            if part != Symbol("_")
        ]
        return steps.unpacks(number, targets, width)

    def cvta(self, statement: Statement) -> tuple[Step, str]:
        """Between a state space's own addresses and generic ones."""
        words = [word for word in statement.words[1:] if word != "to"]
        if len(words) != 2 or words[0] not in WINDOWS or words[1] != "u64":
            raise UnknownInstruction
        window = np.uint64(WINDOWS[words[0]])
        to = self.target(statement.operands[0], 64, statement)
        source = self.source(statement.operands[1], "u64", statement)
        if not window:
            return steps.moves(to, source), "move"
        leaves = "to" in statement.words
        return steps.computes(lambda a: a - window if leaves else a + window, to, [source]), "integer"

    def memory_words(self, statement: Statement) -> tuple[str, int, str, Strength | None]:
        """State space (empty for generic), number of elements, type, and strength of a load or store."""
        strength, words = fences.access_strength(statement.words)
        space, count, kind = _GENERIC, 1, words[-1]
        for word in words[1:-1]:
            if word in _SPACES and not space:
                space = word
            elif word in ("v2", "v4", "v8") and count == 1:
                count = int(word[1])
            elif word not in _CACHE_WORDS and not _HINT.fullmatch(word):
                raise UnknownInstruction
        if kind not in TYPE_BITS or TYPE_BITS[kind] < 8 or TYPE_BITS[kind] // 8 * count > 32:
            raise UnknownInstruction
        if strength is not None:
            self.note_strong(space)
        return space, count, kind, strength

    def ld(self, statement: Statement) -> tuple[Step, str]:
        """Loads."""
        space, count, kind, strength = self.memory_words(statement)
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
        access = steps.Access(statement, space, base, offset, width // 8, count)
        return steps.loads(access, targets, signed=kind[0] == "s", strength=strength), f"load {space or 'generic'}"

    def _parameter(self, statement: Statement, targets: list[tuple[int, int, int]], kind: str) -> Step:
        address = statement.operands[1]
        if not isinstance(address, Address) or not isinstance(address.base, Symbol):
            raise UnknownInstruction
        if address.base.name not in self.offsets:
            raise unknown(statement, f"{address.base.name}, which is no parameter")
        start, parameter = self.offsets[address.base.name]
        width = TYPE_BITS[kind] // 8
        if address.offset + width * len(targets) > parameter.size:
            raise unknown(statement, "more bytes than the parameter has")
        return steps.parameters(start + address.offset, width, targets, signed=kind[0] == "s")

    def st(self, statement: Statement) -> tuple[Step, str]:
        """Stores."""
        space, count, kind, strength = self.memory_words(statement)
        if len(statement.operands) != 2 or space in ("param", "const"):
            raise UnknownInstruction
        width = TYPE_BITS[kind]
        parts = self.elements(statement.operands[1], count, statement)
        sources = [self.source(part, kind, statement, wider=True) for part in parts]
        base, offset = self.address(statement.operands[0], statement)
        self.note_width(space, width // 8)
        access = steps.Access(statement, space, base, offset, width // 8, count)
        return steps.stores(access, sources, strength), f"store {space or 'generic'}"

    def cp(self, statement: Statement) -> tuple[Step, str]:
        """Asynchronous copies and their groups."""
        words = tuple(word for word in statement.words[1:] if not _HINT.fullmatch(word))
        if words == ("async", "commit_group") and not statement.operands:
            return steps.commit, "asynchronous copy"
        if words == ("async", "wait_all") and not statement.operands:
            return steps.wait_all, "asynchronous copy"
        if words == ("async", "wait_group") and len(statement.operands) == 1:
            left = statement.operands[0]
            if isinstance(left, Immediate) and left.value >= 0:
                return steps.waits(min(left.value, _MANY)), "asynchronous copy"
        if words not in (("async", "ca", "shared", "global"), ("async", "cg", "shared", "global")):
            raise UnknownInstruction
        return self._copy(statement), "asynchronous copy"

    def _copy(self, statement: Statement) -> Step:
        size, *rest = statement.operands[2:] or (None,)
        legal = (16,) if statement.words[2] == "cg" else (4, 8, 16)
        if not isinstance(size, Immediate) or size.value not in legal or len(rest) > 1:
            raise UnknownInstruction
        read = rest[0] if rest else size
        if isinstance(read, Register):
            # A predicate in this place says whether the source is ignored, which is another form.
            if self.bits(read, statement) != 32:
                raise UnknownInstruction
        elif not isinstance(read, Immediate) or not 0 <= read.value <= size.value:
            raise UnknownInstruction
        target, source = (self.address(operand, statement) for operand in statement.operands[:2])
        # A register may hold any number of bytes.
        narrowest = math.gcd(4, read.value) if isinstance(read, Immediate) else 1
        self.note_width("global", narrowest)
        self.note_width("shared", 4)
        return steps.copies(
            steps.Access(statement, "shared", *target, size.value, 1),
            steps.Access(statement, "global", *source, size.value, 1),
            self.source(read, "u32", statement),
        )

    def wmma(self, statement: Statement) -> tuple[Step, str]:
        """Matrix loads, stores and products."""
        words = statement.words
        if len(words) > 2 and words[1] in ("load", "store"):
            return self._move(statement, matrix.decode_move(words)), f"matrix {words[1]}"
        if len(words) > 2 and words[1] == "mma":
            return mma.multiplies(self, statement, matrix.decode_product(words)), "matrix product"
        raise UnknownInstruction

    def _move(self, statement: Statement, move: Move) -> Step:
        fragment, loads = move.fragment, statement.words[1] == "load"
        if len(statement.operands) not in (2, 3):
            raise UnknownInstruction
        ldm = Immediate(move.length * fragment.packed) if len(statement.operands) == 2 else statement.operands[2]
        held, where = statement.operands[:2] if loads else (statement.operands[1], statement.operands[0])
        registers = self.fragment(held, fragment.registers, fragment.register_bits, statement, written=loads)
        base, offset = self.address(where, statement)
        self.note_width(move.space, fragment.bits // 8)
        stride = self.source(ldm, "u32", statement)
        mover = fragments.Mover(statement, move, base, offset, stride, registers)
        return mover.load if loads else mover.store


#: Votes of a block, by the words of ``bar.red``.
_BLOCK_VOTES: dict[tuple[str, ...], Callable[[npt.NDArray[Any], npt.NDArray[Any]], npt.NDArray[Any]]] = {
    ("red", "and", "pred"): warp.VOTES["all"],
    ("red", "or", "pred"): warp.VOTES["any"],
    ("red", "popc", "u32"): lambda said, here: (said & here).sum(axis=1).astype(np.uint32),
}

_MAKERS: dict[tuple[str, ...], Callable[[_Decoder, Statement], tuple[Step | None, str]]] = {
    ("mov",): _Decoder.mov,
    ("cvta",): _Decoder.cvta,
    ("ld",): _Decoder.ld,
    ("st",): _Decoder.st,
    ("cp",): _Decoder.cp,
    ("cp", "async", "bulk"): barriers.copy,
    ("mbarrier",): barriers.decode,
    ("atom",): atomics.decode,
    ("red",): atomics.decode,
    ("bar", "warp"): warp.barrier,
    ("fence",): fences.fence,
    ("membar",): fences.fence,
    ("shfl",): warp.shuffle,
    ("vote",): warp.vote,
    ("activemask",): warp.active,
    ("redux",): warp.reduce,
    ("elect",): warp.elect,
    ("wmma",): _Decoder.wmma,
    ("mma",): mma.product,
    ("ldmatrix",): mma.load,
}
