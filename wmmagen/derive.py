"""Every derived number, stated once: in Python for one configuration, on NumPy columns for a space, in C++ for a file.

Names in CAPITALS are numbers; the generated files carry them under the same names. Names in small letters are flags:
structure that is settled when a file is rendered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

from wmmagen import instructions
from wmmagen.arch import MAX_THREADS_PER_BLOCK, WARP_SIZE, Arch
from wmmagen.config import (
    OPERATION_KEYS,
    STRIDES,
    WIDEST_BITS,
    Arrange,
    Batch,
    Copy,
    Feed,
    KernelConfig,
    Layout,
    Operation,
    Order,
    Overflow,
    Problem,
    Reduction,
    Residency,
    Residue,
    Store,
)
from wmmagen.dtypes import ELEMENT_TYPES
from wmmagen.epilogue import VECTORS
from wmmagen.expr import Expr, parse


@dataclass(frozen=True)
class Constant:
    """A number of a kernel.

    Attributes:
        name: in Python, C++ and messages.
        meaning: the comment beside it in a generated file.
        expr: how it follows from the numbers above it; None for a number that the configuration gives.
        columns: the comment where D is column-major and that makes it another one.
    """

    name: str
    meaning: str
    expr: Expr | None = None
    columns: str = ""


def _given(name: str, meaning: str, *, columns: str = "") -> Constant:
    return Constant(name, meaning, columns=columns)


def _derived(name: str, text: str, meaning: str, *, columns: str = "") -> Constant:
    return Constant(name, meaning, parse(text), columns)


#: What a tile's count of finished blocks takes: whole fragments' rows, so that the next tile's sums are aligned, too.
TICKET_BITS = 256

#: Written out where only one of the two takes shared memory, so that no constant is another name of the next.
_STAGED_BYTES = "STAGES * (A_STAGE + B_STAGE) * A_BITS // 8"
_D_BYTES = "WARPS_M * WARPS_N * WARPS_K * D_STRIP * ACC_BITS // 8"
#: Without groups of warps.
_UNGROUPED_BYTES = (
    "(STAGED_BYTES if STAGED_BYTES > D_BYTES else D_BYTES) if feed_shared and (store_staged or residue_predicated) else"
    f" ({_STAGED_BYTES} if feed_shared else ({_D_BYTES} if store_staged else 0))"
)

#: In the order of a generated file, in the groups it shows. A constant may use only what stands above it.
GROUPS: tuple[tuple[Constant, ...], ...] = (
    (
        _given("A_BITS", "bits of an element of A or B"),
        _given("ACC_BITS", "bits of an element of the accumulator"),
        _given("D_BITS", "bits of an element of D"),
        _given("C_BITS", "bits of an element of what is added"),
        _given("ALIGN_A", "A's pointer and lda are multiples of so many elements"),
        _given("ALIGN_B", "the same of B and ldb"),
        _given("ALIGN_D", "the same of D and ldd"),
        _given("INST_M", "one matrix instruction: rows of D"),
        _given("INST_N", "columns of D"),
        _given("INST_K", "products that it sums"),
        _given("WARPS_M", "warps of a block, down"),
        _given("WARPS_N", "and across"),
        _given("FRAGS_M", "accumulator fragments of a warp, down"),
        _given("FRAGS_N", "and across"),
        _given("K_STEPS", "instructions along K in one slice"),
        _given("STAGES", "slices in shared memory at a time"),
        _given("PAD_A", "extra elements on a staged row of A"),
        _given("PAD_B", "and of B"),
        _given("PAD_D", "extra elements on a staged row of sums", columns="extra elements on a staged column of sums"),
        _given("MIN_BLOCKS", "blocks that a multiprocessor is to hold at a time, which limits registers"),
        _given("RASTER_WIDTH", "block rows of a group, or block columns of a panel"),
        _given("SPLIT_K", "blocks that share one tile of D along K"),
        _given("WARPS_K", "groups of these warps that share the steps of a slice"),
    ),
    (
        _derived("WARP_M", "FRAGS_M * INST_M", "the tile of D of one warp: rows"),
        _derived("WARP_N", "FRAGS_N * INST_N", "and columns"),
        _derived("BLOCK_M", "WARPS_M * WARP_M", "the tile of D of one block: rows"),
        _derived("BLOCK_N", "WARPS_N * WARP_N", "and columns"),
        _derived("BLOCK_K", "K_STEPS * INST_K", "one slice of K"),
        _derived("GROUP_STEPS", "K_STEPS // WARPS_K", "instructions along K of one group in one slice"),
        _derived("THREADS", f"WARPS_M * WARPS_N * WARPS_K * {WARP_SIZE}", "threads of a block"),
        _derived("VECTOR", f"{WIDEST_BITS} // A_BITS", "elements of A or B in 16 bytes"),
        _derived("ACC_VECTOR", f"{WIDEST_BITS} // ACC_BITS", "elements of the accumulator in 16 bytes"),
        _derived("A_TILE_ROWS", "INST_M if a_row_major else INST_K", "rows of an instruction tile of A as it lies"),
        _derived("A_TILE_COLS", "INST_K if a_row_major else INST_M", "elements in a row of an instruction tile of A"),
        _derived("B_TILE_ROWS", "INST_K if b_row_major else INST_N", "rows of an instruction tile of B as it lies"),
        _derived("B_TILE_COLS", "INST_N if b_row_major else INST_K", "elements in a row of an instruction tile of B"),
        _derived(
            "D_TILE_COLS",
            "INST_N if d_row_major else INST_M",
            "elements in a row of an instruction tile of D",
            columns="elements in a column of an instruction tile of D",
        ),
    ),
    (
        _derived("A_ROWS", "BLOCK_M if a_row_major else BLOCK_K", "the slice of A as it lies: rows"),
        _derived("A_COLS", "BLOCK_K if a_row_major else BLOCK_M", "elements in a row of it"),
        _derived("B_ROWS", "BLOCK_K if b_row_major else BLOCK_N", "the slice of B as it lies: rows"),
        _derived("B_COLS", "BLOCK_N if b_row_major else BLOCK_K", "elements in a row of it"),
        _derived(
            "LDS_A", "(A_TILE_COLS if arrange_a_tiles else A_COLS) + PAD_A", "leading dimension of A in shared memory"
        ),
        _derived("LDS_B", "(B_TILE_COLS if arrange_b_tiles else B_COLS) + PAD_B", "and of B"),
        _derived("A_TILE", "A_TILE_ROWS * LDS_A", "elements of a staged tile of A"),
        _derived("B_TILE", "B_TILE_ROWS * LDS_B", "elements of a staged tile of B"),
        _derived(
            "A_STEP_M",
            "K_STEPS * A_TILE if arrange_a_tiles else (INST_M * LDS_A if a_row_major else INST_M)",
            "from one staged tile of A to the next on M",
        ),
        _derived("A_STEP_K", "A_TILE if arrange_a_tiles else (INST_K if a_row_major else INST_K * LDS_A)", "and on K"),
        _derived(
            "B_STEP_N",
            "K_STEPS * B_TILE if arrange_b_tiles else (INST_N if b_row_major else INST_N * LDS_B)",
            "from one staged tile of B to the next on N",
        ),
        _derived("B_STEP_K", "B_TILE if arrange_b_tiles else (INST_K * LDS_B if b_row_major else INST_K)", "and on K"),
        _derived(
            "A_STAGE",
            "WARPS_M * FRAGS_M * A_STEP_M if arrange_a_tiles else A_ROWS * LDS_A",
            "elements of A in one stage",
        ),
        _derived("B_STAGE", "WARPS_N * FRAGS_N * B_STEP_N if arrange_b_tiles else B_ROWS * LDS_B", "and of B"),
        _derived("B_BASE", "STAGES * A_STAGE", "where the stages of B begin, in elements"),
        _derived("A_ROW_VECTORS", "A_COLS // ALIGN_A", "copies that make a row of A's slice"),
        _derived("B_ROW_VECTORS", "B_COLS // ALIGN_B", "and of B's"),
        _derived("A_ROW_STEP", "THREADS * ALIGN_A // A_COLS", "rows that the block copies of A's slice at a time"),
        _derived("B_ROW_STEP", "THREADS * ALIGN_B // B_COLS", "and of B's"),
        _derived("A_COPIES", "A_ROWS * A_ROW_VECTORS // THREADS", "copies of A that a thread makes per slice"),
        _derived("B_COPIES", "B_ROWS * B_ROW_VECTORS // THREADS", "and of B"),
    ),
    (
        _derived("LDS_D", "D_TILE_COLS + PAD_D", "leading dimension of a staged tile of sums"),
        _derived("D_TILE", "(INST_M if d_row_major else INST_N) * LDS_D", "elements of it"),
        _derived(
            "D_STRIP",
            "(FRAGS_N if d_row_major else FRAGS_M) * D_TILE",
            "sums that a warp stages at a time: one row of its tiles",
            columns="sums that a warp stages at a time: one column of its tiles",
        ),
        _derived(
            "D_ROW_VECTORS",
            "(WARP_N if d_row_major else WARP_M) // ALIGN_D",
            "stores that make a row of a warp's tile of D",
            columns="stores that make a column of a warp's tile of D",
        ),
        _derived(
            "D_STORES",
            f"(INST_M if d_row_major else INST_N) * D_ROW_VECTORS // {WARP_SIZE}",
            "stores of a lane for one row of tiles",
            columns="stores of a lane for one column of tiles",
        ),
        _derived("OUTPUT_BYTES", "ALIGN_D * D_BITS // 8", "one store of D"),
        _derived("SUMS_BYTES", "ALIGN_D * ACC_BITS // 8", "and the sums for it"),
        _derived("ADDED_BYTES", "ALIGN_D * C_BITS // 8", "and what is added to it"),
        _derived(
            "SCALES_BYTES",
            "ALIGN_D * (8 if acc_f64 else 4)",
            "and the scales of its columns",
            columns="and the scales of its rows",
        ),
    ),
    (
        _derived("PARTIAL", "BLOCK_M * BLOCK_N", "sums of one block in the workspace"),
        _derived("TICKET", f"{TICKET_BITS} // ACC_BITS", "elements that a tile's count of blocks takes there"),
        _derived("TILE_WORK", "SPLIT_K * PARTIAL + TICKET", "elements of the workspace for one tile of D"),
        _derived("TILE_WORK_BYTES", "TILE_WORK * ACC_BITS // 8", "bytes of the workspace for one tile of D"),
    ),
    (
        _derived("STAGED_BYTES", _STAGED_BYTES, "memory of all stages"),
        _derived("D_BYTES", _D_BYTES, "and of all strips, in the same place"),
        _derived("GROUP_BYTES", "BLOCK_M * BLOCK_N * ACC_BITS // 8", "the sums of one group of warps"),
        _derived("MET_BYTES", "(WARPS_K - 1) * GROUP_BYTES", "those that are passed on"),
        _derived("OWN_BYTES", _UNGROUPED_BYTES, "what stages and strips take"),
        _derived(
            "SHARED_BYTES",
            f"({_UNGROUPED_BYTES}) if WARPS_K == 1 else (MET_BYTES if feed_global and store_direct else"
            " (OWN_BYTES if OWN_BYTES > MET_BYTES else MET_BYTES))",
            "dynamic shared memory of a block",
        ),
    ),
)
CONSTANTS: tuple[Constant, ...] = tuple(constant for group in GROUPS for constant in group)

#: Numbers that rules, reports and the choice of a text use, and that no generated file needs by name.
COSTS: tuple[Constant, ...] = (
    _given("A_FRAGMENT_BITS", "bits of A's fragment in one thread"),
    _given("B_FRAGMENT_BITS", "bits of B's fragment in one thread"),
    _given("ACC_FRAGMENT_BITS", "bits of the accumulator's fragment in one thread"),
    _derived(
        "ACC_REGISTERS",
        f"WARP_M * WARP_N * ACC_BITS // {32 * WARP_SIZE}",
        "registers of each thread that hold partial sums",
    ),
    _derived(
        "C_TILE_COLS", "INST_N if c_row_major else INST_M", "elements in a row of an instruction tile of C as it lies"
    ),
    _derived("D_TILE_ROWS", "INST_M if d_row_major else INST_N", "rows of an instruction tile of D as it lies"),
    _derived("A_COPY_BYTES", "ALIGN_A * A_BITS // 8", "one copy of A"),
    _derived("B_COPY_BYTES", "ALIGN_B * A_BITS // 8", "and of B"),
)

#: What follows from the configuration alone, in an order in which each stands below what it uses.
_DERIVED = tuple((constant.name, constant.expr) for constant in CONSTANTS + COSTS if constant.expr is not None)

#: Limits of an architecture, by the names that rules use.
ARCH_LIMITS: tuple[Constant, ...] = (
    _given("MAX_SHARED_BYTES", "shared memory that a block can ask for"),
    _given("MULTIPROCESSOR_THREADS", "threads that a multiprocessor holds at a time"),
    _given("MULTIPROCESSOR_BLOCKS", "and blocks"),
    _given("MULTIPROCESSOR_SHARED_BYTES", "its shared memory, for all of them"),
    _given("RESERVED_SHARED_BYTES", "what the system takes of it for each"),
)
ARCH_NAMES = ("SM", *(limit.name for limit in ARCH_LIMITS))
#: The numbers of a call.
LAUNCH_NAMES = (
    *("M", "N", "K", "LDA", "LDB", "LDD", "LDC", "ALPHA", "BETA", "LDR", "BATCH"), *map(str.upper, STRIDES),
)  # fmt: skip
#: The addresses of a call, in bytes, and the size of its workspace; known to a launcher only.
ADDRESS_NAMES = (
    *(f"{matrix}_ADDRESS" for matrix in "ABCRD"),
    *(f"{vector.upper()}_ADDRESS" for vector in VECTORS),
    *("WORKSPACE_ADDRESS", "WORKSPACE_BYTES"),
)
#: What follows from a call.
#: Block rows and block columns of a grid in which a part of a block tile has a block of its own.
BLOCK_ROWS, BLOCK_COLS = (f"({x} // BLOCK_{x} + (0 if {x} % BLOCK_{x} == 0 else 1))" for x in "MN")
CALL: tuple[Constant, ...] = (
    _derived(
        "BLOCKS",
        f"M // BLOCK_M * (N // BLOCK_N) if residue_exact else {BLOCK_ROWS} * {BLOCK_COLS}",
        "blocks of the grid",
    ),
)
MAX_THREADS = MAX_THREADS_PER_BLOCK
#: Products of a batch: what the second dimension of a grid counts to. Source: CUDA C++ Programming Guide, Compute
#: Capabilities, Technical Specifications.
MAX_BATCH = 65_535


#: Each key of a configuration that is structure, with its values: the flag of one is ``key_value``.
_STRUCTURE: dict[str, tuple[str, ...]] = {
    "a": tuple(ELEMENT_TYPES),
    "acc": tuple(ELEMENT_TYPES),
    "d": tuple(ELEMENT_TYPES),
    "c": tuple(ELEMENT_TYPES),
    "layout": tuple(Layout),
    "cd": tuple(Layout),
    "batch": tuple(Batch),
    "residue": tuple(Residue),
    "overflow": tuple(Overflow),
    "feed": tuple(Feed),
    "copy": tuple(Copy),
    "arrange_a": tuple(Arrange),
    "arrange_b": tuple(Arrange),
    "residency": tuple(Residency),
    "store": tuple(Store),
    "raster": tuple(Order),
    "reduction": tuple(Reduction),
}


def _path(key: str) -> str:
    """Where a configuration has the word for the value of a key that is structure."""
    words = {"raster": "raster.order", "c": "operation.added.name"}
    words |= {of: f"operation.{of}.name" for of in ("a", "acc", "d")}
    return words.get(key, f"operation.{key}" if key in OPERATION_KEYS else key)


_structure_of = attrgetter(*map(_path, _STRUCTURE))
#: What an epilogue is made of: whether it is nothing, begins with alpha and beta, reads C, R and each vector, has
#: anything of C's type, and whether that is D's; whether elements have to know their places;
#: and whether it scales sums.
_EPILOGUE_FLAGS = (
    "epilogue_none", "epilogue_linear", "with_c", "with_r", *(f"with_{vector}" for vector in VECTORS),
    "epilogue_adds", "c_like_d", "c_like_acc", "epilogue_positional", "epilogue_scales",
)  # fmt: skip
_MORE_FLAGS = ("a_row_major", "b_row_major", "c_row_major", "d_row_major", *_EPILOGUE_FLAGS, "strict_isa")


def _epilogue_flags(operation: Operation) -> tuple[bool, ...]:
    o, e = operation, operation.epilogue
    read = (e.has("c"), e.has("r"), *map(e.has, VECTORS))
    return (not e.steps, e.scaled, *read, e.adds, o.added == o.d, o.added == o.acc, e.positional, e.scales)


def flags(config: KernelConfig, *, strict_isa: bool = False) -> dict[str, bool]:
    """Every flag of a configuration: ``feed_shared``, ``a_f16``, ``a_row_major``, …"""
    o = config.operation
    rows = (o.a_row_major, o.b_row_major, o.c_row_major, o.d_row_major)
    return dict(_flags(_structure_of(config), (*rows, *_epilogue_flags(o), strict_isa)))


@lru_cache(maxsize=1 << 10)
def _flags(structure: tuple[str, ...], more: tuple[bool, ...]) -> dict[str, bool]:
    """Many configurations have one structure, and are asked for it one after the other."""
    values = zip(_STRUCTURE.items(), structure, strict=True)
    held = {f"{key}_{member}": value == member for (key, members), value in values for member in members}
    return {**held, **dict(zip(_MORE_FLAGS, more, strict=True))}


def given(config: KernelConfig) -> dict[str, int]:
    """The numbers that the configuration and the tables give, before anything is derived."""
    c, o = config, config.operation
    row = instructions.find(o.a, o.acc, *c.multiplied)
    # A shape that no instruction has breaks its own rule; the widest fragment keeps the others meaningful.
    first, second, sums = (row.a_registers, row.b_registers, row.acc_registers) if row else (8, 8, 8)
    registers = (first, second, sums) if o.d_row_major else (second, first, sums)
    return {
        "A_BITS": o.a.bits,
        "ACC_BITS": o.acc.bits,
        "D_BITS": o.d.bits,
        "C_BITS": o.added.bits,
        "ALIGN_A": o.align_a,
        "ALIGN_B": o.align_b,
        "ALIGN_D": o.align_d,
        "INST_M": c.inst.m,
        "INST_N": c.inst.n,
        "INST_K": c.inst.k,
        "WARPS_M": c.warps.m,
        "WARPS_N": c.warps.n,
        "FRAGS_M": c.frags.m,
        "FRAGS_N": c.frags.n,
        "K_STEPS": c.k_steps,
        "STAGES": c.stages,
        "PAD_A": c.pad_a,
        "PAD_B": c.pad_b,
        "PAD_D": c.pad_d,
        "MIN_BLOCKS": c.min_blocks,
        "RASTER_WIDTH": c.raster.width,
        "FRAGMENT_BUFFERS": c.fragment_buffers,
        "SPLIT_K": c.split_k,
        "WARPS_K": c.warps_k,
        "A_FRAGMENT_BITS": registers[0] * instructions.REGISTER_BITS,
        "B_FRAGMENT_BITS": registers[1] * instructions.REGISTER_BITS,
        "ACC_FRAGMENT_BITS": registers[2] * instructions.REGISTER_BITS,
    }


def settled(config: KernelConfig, *, strict_isa: bool = False) -> dict[str, Any]:
    """What a file of a configuration is rendered with: its flags, and the number of a mechanism that is not there."""
    return {**flags(config, strict_isa=strict_isa), **({"WARPS_K": 1} if config.warps_k == 1 else {})}


def extend(base: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` and everything that follows from it; ints stay ints, columns stay columns."""
    values = dict(base)
    for name, formula in _DERIVED:
        values[name] = formula(values)
    return values


def follow(known: Mapping[str, Any]) -> dict[str, Any]:
    """``known`` with everything that follows from its first numbers anew, that of a call included where it has one."""
    values = extend(known)
    for constant in CALL:
        if constant.expr is not None and constant.name in known:
            values[constant.name] = constant.expr(values)
    return values


def same_columns(known: Mapping[str, Any]) -> bool:
    """Whether the lanes of a warp cover whole lines of D, so that every store of a lane has the same places."""
    return bool(known["D_ROW_VECTORS"] > 0 and WARP_SIZE % known["D_ROW_VECTORS"] == 0)


def of_arch(arch: Arch) -> dict[str, int]:
    """The limits of an architecture, by the names that rules use."""
    limits = (arch.shared_block, arch.warps_sm * WARP_SIZE, arch.blocks_sm, arch.shared_sm, arch.shared_reserved)
    return dict(zip(ARCH_NAMES, (arch.sm, *limits), strict=True))


def of_problem(problem: Problem) -> dict[str, int | float]:
    """The numbers of a call, by the names that rules use."""
    p = problem
    numbers = (p.m, p.n, p.k, p.lda, p.ldb, p.ldd, p.ldc, p.alpha, p.beta, p.ldr, p.batch)
    strides = (p.stride_of(stride.removeprefix("stride_")) for stride in STRIDES)
    return dict(zip(LAUNCH_NAMES, (*numbers, *strides), strict=True))


def values(
    config: KernelConfig, arch: Arch | None = None, problem: Problem | None = None, *, strict_isa: bool = False
) -> dict[str, Any]:
    """Every number and flag that is known about a configuration, an architecture and a call."""
    known = extend({**given(config), **flags(config, strict_isa=strict_isa)})
    if arch is not None:
        known.update(of_arch(arch))
    if problem is not None:
        known.update(of_problem(problem))
        known.update({constant.name: constant.expr(known) for constant in CALL if constant.expr})
    return known


#: Every name that an expression may read.
NAMES = frozenset(
    {c.name for c in CONSTANTS + COSTS + CALL}
    | {"FRAGMENT_BUFFERS", *ARCH_NAMES, *LAUNCH_NAMES, *ADDRESS_NAMES, *_MORE_FLAGS}
    | {f"{key}_{member}" for key, members in _STRUCTURE.items() for member in members}
)
