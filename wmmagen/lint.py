"""What is wrong with a compiled kernel although it is right: defects of its machine code, and figures of its main loop.

The main loop is the innermost loop that holds matrix instructions; where the compiler made several of one (an unrolled
one and one for the rest), the one that holds most of them, the first of equals. What is forbidden in it is forbidden in
all of them. What it must hold stands in the instruction table, in :class:`wmmagen.instructions.MachineCode`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wmmagen import derive, instructions, sass
from wmmagen.config import WIDEST_BITS, Copy, Feed, KernelConfig, Overflow, Reduction, Residency, Residue, Store
from wmmagen.errors import DisassemblyError, MissingPiece, WmmagenError
from wmmagen.instructions import MachineCode
from wmmagen.nvrtc import Binary
from wmmagen.sass import Access, Kernel, Kind, Loop, Op, Space


@dataclass(frozen=True)
class Figures:
    """Counts of the main loop, in instructions as they stand, not as often as they run.

    Attributes:
        first, last: addresses of its first and last instruction, in bytes.
        loops: how many innermost loops hold matrix instructions; these figures are of one of them.
        matrix: matrix instructions.
        matrix_elsewhere: those of the kernel that stand outside of it.
        integer: integer and address arithmetic, comparisons and moves of each thread.
        uniform: the same on the uniform datapath.
        barriers: of the block, and waits for copies.
        instructions: all of them.
        accesses: how often each access to memory stands there, by its word.
        disassembler: name and version.
    """

    first: int
    last: int
    loops: int
    matrix: int
    matrix_elsewhere: int
    integer: int
    uniform: int
    barriers: int
    instructions: int
    accesses: dict[str, int]
    disassembler: str

    @property
    def integer_per_matrix(self) -> float:
        """Integer instructions per matrix instruction; the instruction's size differs between architectures."""
        return self.integer / self.matrix

    def as_json(self) -> dict[str, Any]:
        """``sass`` of ``compile --json``."""
        return {
            "main_loop": [self.first, self.last],
            "loops": self.loops,
            "matrix_instructions": self.matrix,
            "matrix_instructions_elsewhere": self.matrix_elsewhere,
            "integer_instructions": self.integer,
            "uniform_instructions": self.uniform,
            "integer_per_matrix_instruction": round(self.integer_per_matrix, 3),
            "barriers": self.barriers,
            "instructions": self.instructions,
            "accesses": self.accesses,
            "disassembler": self.disassembler,
        }


@dataclass(frozen=True)
class Report:
    """What the lint says of one kernel.

    Attributes:
        defects: a sentence each; empty where nothing is wrong, or nothing could be looked at.
        figures: of the main loop; None where there is none, or nothing could be looked at.
        undone: why the machine code was not looked at, and the command that mends it; empty where it was.
    """

    defects: tuple[str, ...]
    figures: Figures | None
    undone: str

    def verdict(self) -> dict[str, Any]:
        """The keys ``lint`` and ``lint_undone`` of what ``--json`` says of a kernel."""
        return {"lint": list(self.defects), "lint_undone": self.undone or None}

    def as_json(self) -> dict[str, Any]:
        """The verdict and ``sass``, the figures, of ``compile --json``."""
        return {**self.verdict(), "sass": self.figures.as_json() if self.figures else None}


def examine(config: KernelConfig, binary: Binary) -> Report:
    """The lint of ``binary``, which was compiled from the kernel of ``config``.

    Spills are told by the compiler; everything else needs nvdisasm. Where that is missing or cannot be read, the report
    says so, and what it does not say of the machine code is no praise.
    """
    told = compiler_defects(binary)
    try:
        tool = sass.locate()
        kernel = sass.parse(sass.disassemble(tool, binary.cubin), binary.entry)
        return Report((*told, *defects(config, kernel)), figures(kernel, sass.title(tool)), "")
    except (MissingPiece, DisassemblyError) as error:
        return not_done(error, told)


def not_done(error: WmmagenError, told: tuple[str, ...] = ()) -> Report:
    """That the machine code was not looked at because of ``error``; ``told`` is what is known without that."""
    return Report(told, None, f"{error.message}: {error.fix}" if error.fix else error.message)


def compiler_defects(binary: Binary) -> tuple[str, ...]:
    """Spills and stack, which the compiler tells without a disassembler."""
    if binary.spill_bytes:
        mend = "fewer frags, or more warps for the tile"
        return (f"{binary.spill_bytes} bytes per thread are spilled to local memory: {mend}",)
    if binary.stack_bytes:
        return (f"{binary.stack_bytes} bytes of stack per thread: something is held in local memory, not in registers",)
    return ()


def figures(kernel: Kernel, disassembler: str) -> Figures | None:
    """Counts of the main loop; None where no loop holds matrix instructions.

    Raises:
        DisassemblyError: an access to memory or a matrix instruction of a form that is not known.
    """
    loops = kernel.innermost(Kind.MATRIX)
    if not loops:
        return None
    loop = main_loop(loops)
    counts = Counter(sass.kind_of(op) for op in loop.ops)
    everywhere = sum(sass.kind_of(op) is Kind.MATRIX for op in kernel.ops)
    return Figures(
        first=loop.ops[0].address,
        last=loop.ops[-1].address,
        loops=len(loops),
        matrix=counts[Kind.MATRIX],
        matrix_elsewhere=everywhere - counts[Kind.MATRIX],
        integer=counts[Kind.INTEGER],
        uniform=counts[Kind.UNIFORM],
        barriers=counts[Kind.BARRIER],
        instructions=len(loop.ops),
        accesses=dict(sorted(Counter(a.word for _, a in _accesses(loop.ops)).items())),
        disassembler=disassembler,
    )


def main_loop(loops: Sequence[Loop]) -> Loop:
    """Of several loops the one with most matrix instructions, the first of equals."""
    return max(loops, key=lambda loop: sum(sass.kind_of(op) is Kind.MATRIX for op in loop.ops))


# Defects -------------------------------------------------------------------------------------------------------------


def defects(config: KernelConfig, kernel: Kernel) -> tuple[str, ...]:
    """What is wrong with the machine code of ``config``, a sentence each.

    Raises:
        DisassemblyError: an access to memory or a matrix instruction of a form that is not known.
    """
    o, inst = config.operation, config.inst
    row = instructions.find(o.a, o.acc, *config.multiplied)
    machine = row.machine if row is not None else None
    loops = kernel.innermost(Kind.MATRIX)
    found = [*_mistaken(kernel), *_hidden_spaces(kernel, loops, machine)]
    if not loops:
        return (*found, "no loop holds a matrix instruction: nothing is multiplied along K")
    if machine is None:
        return (*found, f"the table does not say yet what {o.a.name}->{o.acc.name} {inst} must become in machine code")
    found += _products(config, kernel, loops, machine)
    for loop in loops:
        found += _operands(config, loop, machine)
    found += _copies(config, kernel, loops, machine)
    found += _passed(config, kernel, loops)
    return (*found, *_stores(config, kernel, loops, machine))


def _accesses(ops: Iterable[Op]) -> list[tuple[Op, Access]]:
    return [(op, access) for op in ops if (access := sass.access(op)) is not None]


def _outside(kernel: Kernel, loops: Sequence[Loop]) -> list[Op]:
    inside = {op.address for loop in loops for op in loop.ops}
    return [op for op in kernel.ops if op.address not in inside]


def _listed(ops: Sequence[tuple[Op, Access]]) -> str:
    """``3 LD.32 (first at 0x1a0)``, for each word."""
    counts = Counter(access.word for _, access in ops)
    first = {access.word: op.address for op, access in reversed(ops)}
    return ", ".join(f"{count} {word} (first at {first[word]:#x})" for word, count in sorted(counts.items()))


def _start(loop: Loop) -> str:
    return f"{loop.ops[0].address:#x}"


def _mistaken(kernel: Kernel) -> list[str]:
    """What ptxas is known to make of code that says something else.

    Source: ``tests/gpu/test_parts_on_card.py``. ptxas 13.0.88 makes ``max(min(x, bound), 0) == bound`` the predicate
    of a VIMNMX.RELU, which an H200 sets where ``x`` is less, too; ptxas 13.5 compares.
    """
    clamps = [(op, place, set_too) for place, op in enumerate(kernel.ops, start=1) if (set_too := _clamps(op))]
    taken = [op for op, place, set_too in clamps if _is_read(set_too, kernel.ops[place:])]
    if not taken:
        return []
    return [
        f"{len(taken)} VIMNMX.RELU (first at {taken[0].address:#x}) set a predicate, which ptxas 13.0 takes for "
        '"clamped to its bound" and which holds below it, too: compile with another version, or compare by >='
    ]


def _clamps(op: Op) -> str:
    """The predicate that a clamp sets beside its result; empty where it sets none, or ``op`` is no clamp."""
    found = re.match(r"U?R\w+, (P\d)\b", op.operands) if op.opcode == "VIMNMX" and "RELU" in op.modifiers else None
    return found[1] if found else ""


def _is_read(predicate: str, following: Sequence[Op]) -> bool:
    """Whether the next operation that has the predicate reads it, as the code stands, and does not set it."""
    for op in following:
        if op.guard.lstrip("!") == predicate:
            return True
        if places := [n for n, word in enumerate(op.operands.split(", ")) if word.lstrip("!") == predicate]:
            return places[-1] > 1  # the first two are what is set
    return False


def _hidden_spaces(kernel: Kernel, loops: Sequence[Loop], machine: MachineCode | None) -> list[str]:
    """Generic accesses and local memory, anywhere in the kernel."""
    promised = machine.stores if machine else ()
    places = {
        "the main loop": [pair for loop in loops for pair in _accesses(loop.ops)],
        # A row may promise that D is stored through generic addresses; nobody stores D in the main loop.
        "the code around the main loop": [
            pair for pair in _accesses(_outside(kernel, loops)) if pair[1].word not in promised
        ],
    }
    found = []
    for place, pairs in places.items():
        if generic := [pair for pair in pairs if pair[1].space is Space.GENERIC]:
            found.append(
                f"generic accesses in {place}: {_listed(generic)}; the compiler cannot tell which memory they go to: "
                "address one base by offsets"
            )
        if local := [pair for pair in pairs if pair[1].space is Space.LOCAL]:
            found.append(
                f"local memory in {place}: {_listed(local)}; fewer frags, or indices that are known when it is compiled"
            )
    return found


def _products(config: KernelConfig, kernel: Kernel, loops: Sequence[Loop], machine: MachineCode) -> list[str]:
    """Matrix instructions of another kind than the row's, and loops that hold no whole number of a K step's."""
    found = []
    words = Counter(product.word for op in kernel.ops if (product := sass.product(op)) is not None)
    promised = machine.matrix + (".SAT" if config.operation.overflow is Overflow.SATURATE else "")
    if wrong := {word: count for word, count in sorted(words.items()) if word != promised}:
        listed = ", ".join(f"{count} {word}" for word, count in wrong.items())
        found.append(f"matrix instructions {listed}, where {promised} is promised")
    frags, inst = config.frags, config.inst
    # Partial sums that live in global memory need no fragment each, and their loops need not be unrolled.
    count = 1 if config.residency is Residency.GLOBAL else frags.m * frags.n
    for loop in loops:
        volume = sum(product.volume for op in loop.ops if (product := sass.product(op)) is not None)
        if volume % (count * inst.m * inst.n * inst.k):
            found.append(
                f"the loop at {_start(loop)} multiplies {volume} times per warp, no multiple of the {count} "
                f"products {inst} of a K step: some are missing"
            )
    return found


def _operand_words(config: KernelConfig, machine: MachineCode) -> set[str]:
    """The loads of A's and of B's fragments that the row promises."""
    along, across = machine.shared if config.feed is Feed.SHARED else machine.from_global
    o = config.operation
    return {along if o.a_row_major else across, across if o.b_row_major else along}


def _operands(config: KernelConfig, loop: Loop, machine: MachineCode) -> list[str]:
    """Fragments in the main loop that are not loaded as the row promises."""
    promised = _operand_words(config, machine)
    loads = [pair for pair in _accesses(loop.ops) if pair[1].loads]
    words = {access.word for _, access in loads}
    found = []
    if absent := sorted(promised - words):
        found.append(
            f"the loop at {_start(loop)} holds no {' and no '.join(absent)}, which loads of its fragments from "
            f"{config.feed} memory must become"
        )
    space = Space.SHARED if config.feed is Feed.SHARED else Space.GLOBAL
    allowed = promised | _sums(config, machine)
    # Nothing is read from shared memory where fragments are fed from global memory; copies read global memory.
    if other := [pair for pair in loads if pair[1].space in (space, Space.SHARED) and pair[1].word not in allowed]:
        found.append(
            f"the loop at {_start(loop)} loads by {_listed(other)}; its fragments are promised as "
            f"{' and '.join(sorted(promised))}"
        )
    return found


def _sums(config: KernelConfig, machine: MachineCode) -> set[str]:
    """Accesses of the main loop to partial sums: none where they stay in registers."""
    if config.residency is Residency.FRAGMENT:
        return set()
    return {*machine.stores, *(word.replace("STG", "LDG") for word in machine.stores if word.startswith("STG"))}


def _copy_bits(config: KernelConfig) -> set[int]:
    """Bits that a thread copies at a time from global to shared memory: a whole vector of either operand."""
    o = config.operation
    return {o.align_a * o.a.bits, o.align_b * o.a.bits}


def _copies(config: KernelConfig, kernel: Kernel, loops: Sequence[Loop], machine: MachineCode) -> list[str]:
    """Copies of tiles to shared memory that are not of the promised kind and width."""
    opcodes = {Copy.LD: ("LDG", "STS"), Copy.CPASYNC: ("LDGSTS",), Copy.NONE: ()}[config.copy]
    found = []
    if absent := [opcode for opcode in opcodes if all(op.opcode != opcode for op in kernel.ops)]:
        found.append(f"no {' and no '.join(absent)} in the kernel, which copies to shared memory by copy={config.copy}")
    promised = {f"{opcode}.{bits}" for opcode in opcodes for bits in _copy_bits(config)}
    # Where fragments are fed from global memory, its loads are theirs.
    kinds = ("LDGSTS", "STS", "LDG") if config.feed is Feed.SHARED else ("LDGSTS", "STS")
    allowed = promised | _sums(config, machine)
    for loop in loops:
        copies = [(op, access) for op, access in _accesses(loop.ops) if op.opcode in kinds]
        if other := [pair for pair in copies if pair[1].word not in allowed]:
            promise = f"only {' and '.join(sorted(promised))}" if promised else "nothing"
            found.append(f"the loop at {_start(loop)} copies by {_listed(other)}, where {promise} is promised")
    return found


def _passed(config: KernelConfig, kernel: Kernel, loops: Sequence[Loop]) -> list[str]:
    """Sums that groups of warps pass on in other accesses than those of 16 bytes, which are too few then."""
    known = derive.values(config)
    each = known["FRAGS_M"] * known["FRAGS_N"] * known["ACC_FRAGMENT_BITS"] // WIDEST_BITS if config.warps_k > 1 else 0
    made = Counter(access.word for _, access in _accesses(_outside(kernel, loops)))
    least = {f"STS.{WIDEST_BITS}": each, f"LDS.{WIDEST_BITS}": each * (config.warps_k - 1)}
    if few := [f"{made[word]} {word} of {count}" for word, count in least.items() if made[word] < count]:
        return [f"groups of warps pass their sums on by {' and '.join(few)} that are promised"]
    return []


def _stores(config: KernelConfig, kernel: Kernel, loops: Sequence[Loop], machine: MachineCode) -> list[str]:
    """Stores of D that are not what the row promises, where fragments go straight to D."""
    if config.store is not Store.DIRECT:
        return []
    stores = [(op, a) for op, a in _accesses(_outside(kernel, loops)) if a.space is Space.GLOBAL and a.stores]
    if config.residency is Residency.GLOBAL:
        stores += [(op, a) for loop in loops for op, a in _accesses(loop.ops) if a.space is Space.GLOBAL and a.stores]
    if config.reduction is Reduction.WORKSPACE:
        # Where sums meet, an atomic counts the blocks, and D has no share in it.
        stores = [(op, a) for op, a in stores if op.opcode not in ("ATOM", "ATOMG")]
    promised = (*machine.stores, *_of_parts(config))
    if other := [pair for pair in stores if pair[1].word not in promised]:
        return [f"D is stored by {_listed(other)}, where {' or '.join(promised)} is promised"]
    return []


def _of_parts(config: KernelConfig) -> tuple[str, ...]:
    """Stores of a part of a tile: vectors that lie in D whole, and single elements."""
    o = config.operation
    if o.residue is not Residue.PREDICATED:
        return ()
    return tuple(dict.fromkeys(f"STG.{bits}" for bits in (o.align_d * o.d.bits, o.d.bits)))
