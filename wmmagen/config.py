"""What is asked and how it is done: ``Operation``, ``Problem``, ``KernelConfig``, and the name that joins them.

``Operation`` says what a kernel computes, ``KernelConfig`` how, ``Problem`` on which sizes. Nothing here judges: what
is legal is said by :mod:`wmmagen.rules`, what is made today by :mod:`wmmagen.coverage`.

The name is injective and parsable, ``parse(name(config)) == config``; its grammar is published in ``NAMES.md``.
"""

from __future__ import annotations

import ctypes
import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any

from wmmagen import epilogue as epilogues
from wmmagen.dtypes import ABSENT_TYPES, ELEMENT_TYPES, F32, F64, ElementType
from wmmagen.epilogue import Epilogue
from wmmagen.errors import ConfigError

#: Counts and pads above these are slips of the keyboard.
MAX_COUNT = 64
#: Accumulators beyond 16x16 fragments fill a warp's registers many times over, and compilers for minutes.
MAX_FRAGS = 16
MAX_PAD = 1024
MAX_MIN_BLOCKS = 32
MAX_RASTER_WIDTH = 64
MAX_INST = 1024
MAX_SPLIT_K = 65_535
#: The widest access of one thread to memory.
WIDEST_BITS = 128
#: What a file system leaves of 255 bytes to a name, beside the longest ending that an emitted file adds to it.
MAX_NAME = 255 - len("_selftest.cu")
#: Sizes and leading dimensions are C ``int`` in the generated launchers.
MAX_SIZE = 2**31 - 1
#: Strides of a batch are C ``long long``.
MAX_STRIDE = 2**63 - 1


class Layout(StrEnum):
    """Layouts of two matrices, A and B or C and D, in this order: r is row-major, c is column-major."""

    RR = "rr"
    RC = "rc"
    CR = "cr"
    CC = "cc"


class Overflow(StrEnum):
    """What integer sums do beyond their type."""

    WRAP = "wrap"  # as the language's unsigned sums
    SATURATE = "saturate"  # stay at the end of the type, product by product


class Batch(StrEnum):
    """How many products a launch computes, and how it is told where their matrices lie."""

    NONE = "none"  # one
    STRIDED = "strided"  # a batch: one pointer and one stride for each operand
    POINTERS = "pointers"  # a batch: an array of pointers for each operand


class Residue(StrEnum):
    """Which sizes a kernel takes."""

    EXACT = "exact"  # multiples of the block tile
    PREDICATED = "predicated"  # all


class Feed(StrEnum):
    """Where fragments are loaded from."""

    SHARED = "shared"
    GLOBAL = "global"


class Copy(StrEnum):
    """How tiles reach shared memory."""

    NONE = "none"  # they do not: feed is global
    LD = "ld"  # through registers
    CPASYNC = "cpasync"  # cp.async, past the registers


class Arrange(StrEnum):
    """How a staged tile lies in shared memory."""

    ROWS = "rows"  # one padded tile
    TILES = "tiles"  # each instruction tile contiguous


class Residency(StrEnum):
    """Where partial sums live."""

    FRAGMENT = "fragment"
    GLOBAL = "global"


class Store(StrEnum):
    """How a finished tile reaches D."""

    DIRECT = "direct"  # fragments straight to global memory
    STAGED = "staged"  # through shared memory: rows in vectors, and the only way to another type


class Reduction(StrEnum):
    """How the sums of blocks meet that share a tile of D along K."""

    NONE = "none"  # nobody shares one: split_k is 1
    WORKSPACE = "workspace"  # through memory of the caller's, added in one order by the block that comes last
    ATOMIC = "atomic"  # each block adds its own to D, in whatever order


class Order(StrEnum):
    """The order of blocks over D."""

    LINEAR = "linear"  # row by row
    GROUPED = "grouped"  # groups of some block rows, down the columns of each
    PANELS = "panels"  # panels of some block columns, along the rows of each


@dataclass(frozen=True)
class Raster:
    """An order of blocks, and of how many block rows a group or block columns a panel is; 1 where there is neither."""

    order: Order
    width: int = 1

    def __str__(self) -> str:
        return self.order.value if self.order is Order.LINEAR else f"{self.order}{self.width}"


LINEAR = Raster(Order.LINEAR)


@dataclass(frozen=True)
class Shape:
    """Three extents, m×n×k, of an instruction; in elements."""

    m: int
    n: int
    k: int

    def __iter__(self) -> Iterator[int]:
        return iter((self.m, self.n, self.k))

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True)
class Grid:
    """Two counts, rows×columns: warps in a block, fragments in a warp."""

    m: int
    n: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}"


@dataclass(frozen=True)
class Operation:
    """What a kernel computes: D = A·B through its epilogue, on these types and layouts.

    Attributes:
        a: element type of A and of B.
        acc: accumulator type.
        d: element type of D.
        layout: of A and B.
        epilogue: from accumulator to D.
        residue: which sizes it takes.
        align_a, align_b, align_d: elements of which every call makes pointers and leading dimensions multiples; of A,
            of B, and of C and D. 16 bytes allow the widest copies.
        overflow: what integer sums do beyond their type.
        batch: whether a launch computes one product or a batch of them.
        c: element type of what an epilogue adds, of C, of R and of the biases, where it is not D's; else None.
        cd: layouts of C and D; R lies as C does.
    """

    a: ElementType
    acc: ElementType
    d: ElementType
    layout: Layout = Layout.RR
    epilogue: Epilogue = Epilogue.NONE
    residue: Residue = Residue.EXACT
    align_a: int = 0
    align_b: int = 0
    align_d: int = 0
    overflow: Overflow = Overflow.WRAP
    batch: Batch = Batch.NONE
    c: ElementType | None = None
    cd: Layout = Layout.RR

    def __post_init__(self) -> None:
        # 0 stands for the most that any copy can use; it is never kept.
        for field, element in (("align_a", self.a), ("align_b", self.a), ("align_d", self.d)):
            object.__setattr__(self, field, getattr(self, field) or WIDEST_BITS // element.bits)
        # What is D's type anyway is not said, so that it follows D's, and no two operations are one.
        object.__setattr__(self, "c", None if self.c == self.d else self.c)

    @property
    def a_row_major(self) -> bool:
        return self.layout in (Layout.RR, Layout.RC)

    @property
    def b_row_major(self) -> bool:
        return self.layout in (Layout.RR, Layout.CR)

    @property
    def c_row_major(self) -> bool:
        return self.cd in (Layout.RR, Layout.RC)

    @property
    def d_row_major(self) -> bool:
        return self.cd in (Layout.RR, Layout.CR)

    @property
    def layouts(self) -> str:
        """Those of A and B, and of C and D where these do not both lie in rows, as names say them."""
        return f"{self.layout}{'' if self.cd is Layout.RR else self.cd}"

    @property
    def factor(self) -> ElementType:
        """The type of alpha and beta, and of the arithmetic on them: f64 beside sums of f64, else f32."""
        return F64 if self.acc == F64 else F32

    @property
    def scaled(self) -> bool:
        """Whether the epilogue has alpha, beta and C."""
        return self.epilogue.scaled

    @property
    def added(self) -> ElementType:
        """The element type of what an epilogue adds."""
        return self.c or self.d

    def vector_type(self, vector: str) -> ElementType:
        """The element type of one of an epilogue's vectors: biases are added, scales are factors."""
        return self.added if vector in epilogues.BIASES else self.factor

    @property
    def batched(self) -> bool:
        """Whether a launch computes a batch of products."""
        return self.batch is not Batch.NONE


@dataclass(frozen=True)
class KernelConfig:
    """How a kernel computes its operation.

    Attributes:
        operation: what it computes.
        inst: instruction shape.
        warps: warps in a block, down and across.
        frags: accumulator fragments in a warp, down and across.
        k_steps: instructions along K in one slice.
        feed: where fragments are loaded from.
        copy: how tiles reach shared memory.
        stages: shared-memory buffers in flight.
        pad_a, pad_b, pad_d: extra elements on a staged row; of D, which is staged as sums, in accumulator elements.
        arrange_a, arrange_b: how a staged tile lies.
        fragment_buffers: operand fragments per position, 2 loads one K step ahead.
        residency: where partial sums live.
        store: how a finished tile reaches D.
        min_blocks: blocks that a multiprocessor is to hold at a time, for which the compiler limits registers.
        raster: block order over D.
        split_k: blocks that share one tile of D along K.
        reduction: how their sums meet.
        warps_k: groups of ``warps`` in a block that share the steps of every slice of K.
    """

    operation: Operation
    inst: Shape
    warps: Grid
    frags: Grid
    k_steps: int
    feed: Feed
    copy: Copy
    stages: int
    pad_a: int
    pad_b: int
    pad_d: int
    arrange_a: Arrange
    arrange_b: Arrange
    fragment_buffers: int
    residency: Residency
    store: Store
    min_blocks: int
    raster: Raster
    split_k: int
    reduction: Reduction
    warps_k: int

    @property
    def multiplied(self) -> Shape:
        """The extents of the instruction as the hardware has it: of D^T = B^T·A^T where D is column-major."""
        i = self.inst
        return i if self.operation.d_row_major else Shape(i.n, i.m, i.k)

    @property
    def crosses_slices(self) -> bool:
        """Whether the first fragments of a slice are loaded while the last step of the one before is multiplied.

        That takes a second set of fragments, and a second stage, which holds the next slice meanwhile.
        """
        return self.feed is Feed.SHARED and self.fragment_buffers == 2 and self.stages > 1

    def __str__(self) -> str:
        return name(self)


@dataclass(frozen=True)
class Problem:
    """An operation on sizes and factors: A is m×k, B is k×n, C and D are m×n; sizes and leading dimensions in elements.

    ``ldc``, ``alpha`` and ``beta`` belong to an epilogue that has them; for D = A·B they are 0, 1 and 0. So do ``ldr``,
    the leading dimension of R, and ``scale``, ``low`` and ``high``, elsewhere 0, 1, 0 and 0. Factors are kept as the C
    floats that a kernel is given, so what rounds to 0 is 0, and of the two zeros there is one.

    ``batch`` counts the products, and a stride is how many elements behind the matrix before each one begins; with a
    stride of 0 all products share the one matrix. With ``batch=pointers`` no call tells strides: they say where the
    matrices lie that are made here. Whatever an epilogue reads has a stride, vectors included. Without a batch there is
    one product, and all strides are 0.
    """

    operation: Operation
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldd: int
    ldc: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    ldr: int = 0
    scale: float = 1.0
    low: float = 0.0
    high: float = 0.0
    batch: int = 1
    stride_a: int = 0
    stride_b: int = 0
    stride_d: int = 0
    stride_c: int = 0
    stride_r: int = 0
    stride_bias_row: int = 0
    stride_bias_col: int = 0
    stride_scale_row: int = 0
    stride_scale_col: int = 0

    def __post_init__(self) -> None:
        for field in ("m", "n", "k", "lda", "ldb", "ldd", "ldc", "ldr", "batch"):
            value = getattr(self, field)
            if not 0 <= value <= MAX_SIZE:
                raise ConfigError(f"{field} = {value} is no size: the launchers take C ints", f"give 0 to {MAX_SIZE}")
        for field in STRIDES:
            value = getattr(self, field)
            if not 0 <= value <= MAX_STRIDE:
                raise ConfigError(f"{field} = {value} is no stride", f"give 0 to {MAX_STRIDE}")
        for field in epilogues.SCALARS:
            object.__setattr__(self, field, _as_float(field, getattr(self, field)))
        for field, neutral in _NEUTRAL.items():
            if getattr(self, field) != neutral and not self.operation.epilogue.has(_BELONGS.get(field, field)):
                raise ConfigError(
                    f"epilogue={self.operation.epilogue} has no {_BELONGS.get(field, field)}, so no {field}",
                    "ask for epilogue=linear" if field in ("ldc", "alpha", "beta", "stride_c") else "leave it out",
                )
        if not self.operation.batched and (self.batch != 1 or any(getattr(self, stride) for stride in STRIDES)):
            raise ConfigError("a kernel without a batch computes one product", "ask for batch=strided")

    @property
    def reads_c(self) -> bool:
        """Whether C is read: not where there is none, nor where its factor is 0."""
        return self.operation.epilogue.has("c") and not (self.operation.scaled and self.beta == 0)

    @property
    def added_bits(self) -> int:
        """Bits of what the epilogue reads of memory: C where it is read, R, and the vectors; of a batch, each once."""
        o, e = self.operation, self.operation.epilogue
        found = {m: self.m * self.n * o.added.bits for m in e.matrices if m == "r" or self.reads_c}
        found |= {v: (self.m if epilogues.along_row(v) else self.n) * o.vector_type(v).bits for v in e.vectors}
        return sum(bits * (self.batch if self.stride_of(name) else min(self.batch, 1)) for name, bits in found.items())

    @property
    def alignments(self) -> dict[str, int]:
        """As much of what its operation promises of each matrix as leading dimensions keep; in elements."""
        rows = {"align_a": (self.lda,), "align_b": (self.ldb,), "align_d": (self.ldc, self.ldr, self.ldd)}
        return {key: math.gcd(*lds, getattr(self.operation, key)) for key, lds in rows.items()}

    def doing(self, operation: Operation) -> Problem:
        """The same call of another operation; what that has nothing of is left out."""
        kept: dict[str, Any] = {f: getattr(self, f) for f in _NEUTRAL if operation.epilogue.has(_BELONGS.get(f, f))}
        others: dict[str, Any] = {f: neutral for f, neutral in _NEUTRAL.items() if f not in kept}
        return replace(self, operation=operation, **kept, **others)

    @classmethod
    def packed(
        cls,
        operation: Operation,
        m: int,
        n: int,
        k: int,
        extra: int = 0,
        *,
        alpha: float = 1.0,
        beta: float | None = None,
        batch: int = 1,
        **scalars: float,
    ) -> Problem:
        """A problem whose leading dimensions are its extents plus ``extra`` elements.

        Args:
            alpha, beta: the factors, for an epilogue that has them; beta is 1 there where it is not said.
            scalars: ``scale``, ``low`` and ``high``, for one that has them; where bounds are not said, from 0 to 6.
            batch: products, of an operation that has a batch; each matrix follows the last line of the one before.
        """
        lda = (k if operation.a_row_major else m) + extra
        ldb = (n if operation.b_row_major else k) + extra
        line_c, line_d = (n if rows else m for rows in (operation.c_row_major, operation.d_row_major))
        ldc, ldr = (line_c + extra if operation.epilogue.has(name) else 0 for name in epilogues.MATRICES)
        factor = beta if beta is not None else 1.0 if operation.scaled else 0.0
        numbers: dict[str, Any] = ({"high": 6.0} if operation.epilogue.has("high") else {}) | scalars
        one = cls(operation, m, n, k, lda, ldb, line_d + extra, ldc, alpha, factor, ldr=ldr, batch=batch, **numbers)
        return one.apart() if operation.batched else one

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """Of A, B, C and D, in elements."""
        return self.stride_a, self.stride_b, self.stride_c, self.stride_d

    def stride_of(self, name: str) -> int:
        """Of a matrix or vector by its name in a call, in elements."""
        known = dict(zip("ABCD", self.strides, strict=True))
        upper = name.upper()
        return known[upper] if upper in known else int(getattr(self, f"stride_{name.lower()}"))

    def apart(self, lines: int = 0) -> Problem:
        """The batch with each matrix behind the one before, gaps included, and so many of its own lines in between."""
        o, e = self.operation, self.operation.epilogue
        vectors = {v: self.m if epilogues.along_row(v) else self.n for v in e.vectors}
        lines_c = (self.m if o.c_row_major else self.n) + lines
        others = {
            **{f"stride_{m}": lines_c * getattr(self, f"ld{m}") for m in e.matrices},
            **{f"stride_{v}": (-(-n // _VECTOR_UNIT) + lines) * _VECTOR_UNIT for v, n in vectors.items()},
        }
        return replace(
            self,
            stride_a=((self.m if o.a_row_major else self.k) + lines) * self.lda,
            stride_b=((self.k if o.b_row_major else self.n) + lines) * self.ldb,
            stride_d=((self.m if o.d_row_major else self.n) + lines) * self.ldd,
            **others,
        )

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}" + (f"{_OF_BATCH}{self.batch}" if self.operation.batched else "")


#: The strides of a batch, as :class:`Problem` has them.
STRIDES = ("stride_a", "stride_b", "stride_c", "stride_d", "stride_r", *(f"stride_{v}" for v in epilogues.VECTORS))
#: Vectors of a batch begin this many elements apart, or multiples of it: as far as any promise of alignment goes.
_VECTOR_UNIT = 16
#: Between the size of a product and how many there are: ``64x64x64@1024``.
_OF_BATCH = "@"


#: What a problem says of an epilogue that has none of it, and under which name the epilogue has it.
_OF_WHAT_IS_ADDED = ("c", "r", *epilogues.VECTORS)
_NEUTRAL: dict[str, float] = {
    "ldc": 0,
    "ldr": 0,
    "alpha": 1.0,
    "beta": 0.0,
    "scale": 1.0,
    "low": 0.0,
    "high": 0.0,
    **{f"stride_{name}": 0 for name in _OF_WHAT_IS_ADDED},
}
_BELONGS = {"ldc": "c", "ldr": "r", **{f"stride_{name}": name for name in _OF_WHAT_IS_ADDED}}


def _as_float(word: str, value: float) -> float:
    single = ctypes.c_float(value).value
    if not math.isfinite(single):
        raise ConfigError(f"{word} = {value} is no finite float", "factors and bounds are C floats")
    return single + 0.0  # -0 becomes 0: the two are equal, and so are problems that have them


# ---------------------------------------------------------------------------------------------------------------------
# Reading values. Every reader takes the text as typed and raises ConfigError with the nearest known value.


def _enum_reader(kind: type[StrEnum]) -> Callable[[str, str], StrEnum]:
    def read(key: str, text: str) -> StrEnum:
        try:
            return kind(text)
        except ValueError:
            raise _unknown_value(key, text, [m.value for m in kind]) from None

    return read


def _read_residue(key: str, text: str) -> Residue:
    if text == "padded":
        raise ConfigError(
            "residue=padded is no kernel: one for multiples is called on padded copies",
            "residue=exact, and wmmagen emit --padded for the launcher that makes the copies",
        )
    return Residue(_enum_reader(Residue)(key, text))


def _read_type(key: str, text: str) -> ElementType:
    if text in ABSENT_TYPES:
        raise ConfigError(f"{key}={text}: {ABSENT_TYPES[text]}", "types: " + " ".join(ELEMENT_TYPES))
    if text not in ELEMENT_TYPES:
        raise _unknown_value(key, text, list(ELEMENT_TYPES))
    return ELEMENT_TYPES[text]


#: Of a value that may be 0: pads, of which this many elements are whole units of 16 bytes in every type.
_EXAMPLE = 8


def _read_int(low: int, high: int) -> Callable[[str, str], int]:
    def read(key: str, text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise ConfigError(
                f"{key}={text} is not a whole number from {low} to {high}", f"for example {key}={low or _EXAMPLE}"
            )
        return int(text)

    return read


def _read_extents(count: int, most: int) -> Callable[[str, str], tuple[int, ...]]:
    example = "x".join(["16"] * count if count == 3 else ["2"] * count)

    def read(key: str, text: str) -> tuple[int, ...]:
        parts = text.split("x")
        one = _read_int(1, most)
        if len(parts) != count:
            raise ConfigError(f"{key}={text} is not {count} numbers joined by x", f"for example {key}={example}")
        return tuple(one(key, part) for part in parts)

    return read


def _read_alignment(key: str, text: str) -> int:
    value = _read_int(1, WIDEST_BITS)(key, text)
    if value & (value - 1):
        raise ConfigError(f"{key}={text} is no power of two", f"for example {key}=8")
    return value


_ORDERS = "|".join(o for o in Order if o is not Order.LINEAR)
_RASTER = re.compile(rf"(?P<order>{_ORDERS})(?P<width>[1-9][0-9]?)")


def _read_raster(key: str, text: str) -> Raster:
    if text == Order.LINEAR:
        return LINEAR
    match = _RASTER.fullmatch(text)
    width = int(match["width"]) if match else 0
    if match is None or not 2 <= width <= MAX_RASTER_WIDTH:
        known = [Order.LINEAR.value, *(f"{o}8" for o in Order if o is not Order.LINEAR)]
        near = difflib.get_close_matches(text, known, n=1, cutoff=0.4)
        raise ConfigError(
            f"{key}={text} is not known",
            (f"did you mean {key}={near[0]}? " if near else "")
            + f"{key} is linear, or grouped or panels with a width of 2 to {MAX_RASTER_WIDTH}, for example: "
            + " ".join(known),
        )
    return Raster(Order(match["order"]), width)


def _read_shape(key: str, text: str) -> Shape:
    m, n, k = _read_extents(3, MAX_INST)(key, text)
    return Shape(m, n, k)


def _read_grid(most: int) -> Callable[[str, str], Grid]:
    def read(key: str, text: str) -> Grid:
        m, n = _read_extents(2, most)(key, text)
        return Grid(m, n)

    return read


def _unknown_value(key: str, text: str, known: list[str]) -> ConfigError:
    near = difflib.get_close_matches(text, known, n=1, cutoff=0.4)
    hint = f"did you mean {key}={near[0]}? " if near else ""
    return ConfigError(f"{key}={text} is not known", f"{hint}{key} is one of: {' '.join(known)}")


#: Keys of a configuration, in the order of cli.md, each with its reader. The operation's come first.
READERS: dict[str, Callable[[str, str], Any]] = {
    "a": _read_type,
    "acc": _read_type,
    "d": _read_type,
    "layout": _enum_reader(Layout),
    "epilogue": lambda key, text: epilogues.read(text),
    "residue": _read_residue,
    "align_a": _read_alignment,
    "align_b": _read_alignment,
    "align_d": _read_alignment,
    "overflow": _enum_reader(Overflow),
    "c": _read_type,
    "cd": _enum_reader(Layout),
    "batch": _enum_reader(Batch),
    "inst": _read_shape,
    "warps": _read_grid(MAX_COUNT),
    "frags": _read_grid(MAX_FRAGS),
    "k_steps": _read_int(1, MAX_COUNT),
    "feed": _enum_reader(Feed),
    "copy": _enum_reader(Copy),
    "stages": _read_int(1, MAX_COUNT),
    "pad_a": _read_int(0, MAX_PAD),
    "pad_b": _read_int(0, MAX_PAD),
    "pad_d": _read_int(0, MAX_PAD),
    "arrange_a": _enum_reader(Arrange),
    "arrange_b": _enum_reader(Arrange),
    "fragment_buffers": _read_int(1, 2),
    "residency": _enum_reader(Residency),
    "store": _enum_reader(Store),
    "min_blocks": _read_int(1, MAX_MIN_BLOCKS),
    "raster": _read_raster,
    "split_k": _read_int(1, MAX_SPLIT_K),
    "reduction": _enum_reader(Reduction),
    "warps_k": _read_int(1, MAX_COUNT),
}

#: Values that mean that a mechanism is not there, where names and studies say nothing of it.
NEUTRAL: dict[str, Any] = {
    "overflow": Overflow.WRAP,
    "cd": Layout.RR,
    "batch": Batch.NONE,
    "reduction": Reduction.NONE,
    "warps_k": 1,
}
OPERATION_KEYS = tuple(f.name for f in fields(Operation))
CONFIG_KEYS = tuple(READERS)
_values_in = attrgetter(*(f"operation.{key}" if key in OPERATION_KEYS else key for key in CONFIG_KEYS))


def read_value(key: str, text: str) -> Any:
    """The value of ``key`` that ``text`` spells.

    Raises:
        ConfigError: no such key, or no such value; names the nearest known one.
    """
    if key not in READERS:
        near = difflib.get_close_matches(key, CONFIG_KEYS, n=1, cutoff=0.4)
        counts = ""
        if key.startswith(("block", "warp_", "tile")):
            counts = (
                "tiles are given in counts, so that each is a whole number of instructions: "
                "BLOCK_M = warps x frags x inst (first numbers), BLOCK_N the same (second numbers), "
                "BLOCK_K = k_steps x inst k"
            )
        hint = f"did you mean {near[0]}? " if near and not counts else ""
        raise ConfigError(f"{key!r} is no key of a configuration", counts or f"{hint}keys: {' '.join(CONFIG_KEYS)}")
    return READERS[key](key, text)


def _at_commas(text: str) -> list[str]:
    """The parts between commas; those within parentheses belong to an expression."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def read_pairs(text: str) -> dict[str, Any]:
    """The values that ``key=value,…`` names; empty text names none.

    Raises:
        ConfigError: a part without ``=``, a key given twice, an unknown key or value.
    """
    values: dict[str, Any] = {}
    for part in filter(None, _at_commas(text)):
        key, equals, value = (s.strip() for s in part.partition("="))
        if not equals:
            raise ConfigError(f"{part!r} is not key=value", "for example inst=16x16x16,warps=2x2")
        if key in values:
            raise ConfigError(f"{key} is given twice", "give each key once")
        values[key] = read_value(key, value)
    return values


def build(values: Mapping[str, Any]) -> KernelConfig:
    """The configuration with exactly these values, one for every key of :data:`CONFIG_KEYS`.

    ``c`` alone may be left out; it is D's type then.
    """
    operation = Operation(**{k: values[k] for k in OPERATION_KEYS if k in values})
    return KernelConfig(operation=operation, **{k: values[k] for k in CONFIG_KEYS if k not in OPERATION_KEYS})


def values_of(config: KernelConfig) -> dict[str, Any]:
    """The inverse of :func:`build`: every key of a configuration with its value, in the published order.

    ``c`` is left out where it is D's type.
    """
    values = dict(zip(CONFIG_KEYS, _values_in(config), strict=True))
    if values["c"] is None:
        del values["c"]
    return values


def operation_values(operation: Operation) -> dict[str, Any]:
    """As :func:`values_of`, the keys of an operation alone."""
    values = {key: getattr(operation, key) for key in OPERATION_KEYS}
    return values if operation.c is not None else {key: value for key, value in values.items() if key != "c"}


def spell(value: Any) -> str:
    """A configuration value as it is typed: ``f16``, ``2x2``, ``8``, ``shared``."""
    return value.name if isinstance(value, ElementType) else str(value)


def read_size(text: str) -> tuple[int, int, int]:
    """``MxNxK``, or one number for the cube.

    Raises:
        ConfigError: not one or three whole numbers.
    """
    parts = text.strip().lower().split("x")
    if len(parts) == 1:
        parts *= 3
    if len(parts) != 3 or not all(re.fullmatch(r"[0-9]{1,10}", p) for p in parts):
        raise ConfigError(f"{text!r} is no problem size", "give MxNxK, for example 256x512x128, or 2048 for the cube")
    m, n, k = (int(p) for p in parts)
    if max(m, n, k) > MAX_SIZE:
        raise ConfigError(
            f"{text!r} is no problem size: the launchers take C ints", f"give at most {MAX_SIZE} in each direction"
        )
    return m, n, k


def read_sizes(text: str) -> list[tuple[int, int, int]]:
    """The sizes of a list with commas between them, each once.

    Raises:
        ConfigError: one of them is none.
    """
    return list(dict.fromkeys(map(read_size, text.split(","))))


def read_batches(text: str) -> list[tuple[tuple[int, int, int], int]]:
    """The sizes of a list with commas between them, each once, and how many products there are of each.

    Raises:
        ConfigError: one of them is none.
    """
    return list(dict.fromkeys(map(read_batch, text.split(","))))


def read_batch(text: str) -> tuple[tuple[int, int, int], int]:
    """``MxNxK@COUNT``: a size and how many products of it; without ``@`` one.

    Raises:
        ConfigError: as :func:`read_size`, or no whole number behind the ``@``.
    """
    size, of_batch, count = text.strip().partition(_OF_BATCH)
    if of_batch and not (re.fullmatch(r"[0-9]{1,10}", count) and int(count) <= MAX_SIZE):
        raise ConfigError(
            f"{text!r} has no count behind its {_OF_BATCH}", "give MxNxK@COUNT, for example 64x64x64@1024"
        )
    return read_size(size), int(count) if of_batch else 1


# ---------------------------------------------------------------------------------------------------------------------
# The name.

_RESIDENCY_WORD = {Residency.FRAGMENT: "resfrag", Residency.GLOBAL: "resglobal"}
_SPLIT = {v: k for k, v in _RESIDENCY_WORD.items()}


def _alternatives(kind: type[StrEnum]) -> str:
    return "|".join(sorted((m.value for m in kind), key=len, reverse=True))


#: Behind the accumulator's type; wrapping sums have no word.
_SATURATES = "sat"
_TYPES = "|".join(sorted(ELEMENT_TYPES, key=len, reverse=True))
_N = r"(?:0|[1-9][0-9]{0,4})"
_NAME = re.compile(
    rf"wmma_gemm_(?P<a>{_TYPES})_(?P<acc>{_TYPES})(?P<overflow>{_SATURATES})?_(?P<d>{_TYPES})(?:c(?P<c>{_TYPES}))?"
    rf"_(?P<layout>{_alternatives(Layout)})(?P<cd>{_alternatives(Layout)})?_(?P<epilogue>[a-z0-9]+)_(?P<residue>{_alternatives(Residue)})"
    rf"(?P<align_a>{_N})(?:x(?P<align_b>{_N})x(?P<align_d>{_N}))?"
    rf"(?:_(?P<batch>{'|'.join(b for b in Batch if b is not Batch.NONE)}))?"
    rf"__i(?P<inst>{_N}x{_N}x{_N})_w(?P<warps>{_N}x{_N})_f(?P<frags>{_N}x{_N})_k(?P<k_steps>{_N})"
    rf"_(?P<feed>{_alternatives(Feed)})_(?P<copy>{_alternatives(Copy)})(?P<stages>{_N})"
    rf"_p(?P<pad_a>{_N})x(?P<pad_b>{_N})x(?P<pad_d>{_N})"
    rf"_(?P<arrange_a>{_alternatives(Arrange)})(?P<arrange_b>{_alternatives(Arrange)})?"
    rf"_fb(?P<fragment_buffers>{_N})_(?P<residency>{'|'.join(_SPLIT)})_(?P<store>{_alternatives(Store)})"
    rf"_mb(?P<min_blocks>{_N})_(?P<raster>{Order.LINEAR}|(?:{_ORDERS}){_N})_sk(?P<split_k>{_N})"
    rf"(?:_(?P<reduction>{'|'.join(r for r in Reduction if r is not Reduction.NONE)}))?(?:_wk(?P<warps_k>{_N}))?"
)


def name(config: KernelConfig) -> str:
    """The one name of a configuration: symbol, file stem, record key and command-line argument.

    No field is left out because it has its default, so two configurations never share a name. A batch, a reduction
    and groups of warps are said where there are any: their absence is no default, but what the name has meant since
    before there were any.

    Raises:
        ConfigError: an expression makes it longer than a file's name can be.
    """
    o, c = config.operation, config
    # Said once where all operands are alike; the others' words follow only where they differ.
    aligns = (o.align_a, o.align_b, o.align_d)
    align = str(o.align_a) if len(set(aligns)) == 1 else "x".join(map(str, aligns))
    arrange = c.arrange_a if c.arrange_a == c.arrange_b else f"{c.arrange_a}{c.arrange_b}"
    acc = o.acc.name + (_SATURATES if o.overflow is Overflow.SATURATE else "")
    # C's type is D's but for a few.
    d = o.d.name if o.added == o.d else f"{o.d.name}c{o.added.name}"
    what = f"wmma_gemm_{o.a.name}_{acc}_{d}_{o.layouts}_{o.epilogue.in_name}_{o.residue}{align}"
    what += f"_{o.batch}" if o.batched else ""
    how = (
        f"i{c.inst}_w{c.warps}_f{c.frags}_k{c.k_steps}_{c.feed}_{c.copy}{c.stages}_p{c.pad_a}x{c.pad_b}x{c.pad_d}"
        f"_{arrange}_fb{c.fragment_buffers}_{_RESIDENCY_WORD[c.residency]}_{c.store}_mb{c.min_blocks}_{c.raster}_sk{c.split_k}"
    )
    if c.reduction is not Reduction.NONE:  # said where there is one: names are older than this field
        how += f"_{c.reduction}"
    how += f"_wk{c.warps_k}" if c.warps_k > 1 else ""  # the same
    whole = f"{what}__{how}"
    if len(whole) > MAX_NAME:
        raise ConfigError(
            f"epilogue={o.epilogue} makes a name of {len(whole)} characters: a kernel's name is that of its files, "
            f"which may have {MAX_NAME} before their endings",
            "a shorter expression",
        )
    return whole


def is_name(text: str) -> bool:
    """Whether ``text`` has the beginning of a kernel name, so that :func:`parse` is the one to read it."""
    return text.startswith("wmma_gemm_")


def parse(text: str) -> KernelConfig:
    """The configuration that ``text`` is the name of.

    Raises:
        ConfigError: not a name, or one with a value that no configuration has.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{text!r} is no kernel name", "the grammar is in NAMES.md; `wmmagen check key=value,…` prints the name"
        )
    found = match.groupdict()
    for key, first in (("arrange_b", "arrange_a"), ("align_b", "align_a"), ("align_d", "align_a")):
        found[key] = found[key] or found[first]
    found["overflow"] = found["overflow"] and Overflow.SATURATE.value
    found |= {key: spell(value) for key, value in NEUTRAL.items() if found[key] is None}
    found["residency"] = _SPLIT[found["residency"]].value
    found["c"] = found["c"] or found["d"]
    values = {key: read_value(key, found[key]) for key in CONFIG_KEYS if key != "epilogue"}
    config = build({**values, "epilogue": epilogues.from_name(found["epilogue"])})
    if name(config) != text:
        raise ConfigError(f"{text!r} is no kernel name: it is spelt {name(config)!r}", "use that spelling")
    return config
