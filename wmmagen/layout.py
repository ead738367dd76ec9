"""Where a matrix lies in bytes: element encodings, and images of matrices that are surrounded by guards.

An image is hostile by default. Bands before and after the data and the gap between the end of a line (a row of a
row-major matrix, a column of a column-major one) and the leading dimension hold a guard pattern. Around an operand the
guard is NaN, so that a read outside shows in the result; around D it is a pattern of its own, and D itself is filled
with a NaN that no arithmetic produces, so that an element which was never written shows. An operand that must not be
read at all (C where beta is 0, A and B where alpha is 0) can hold nothing but NaN or infinities.

In NumPy a bf16 matrix is held as ``float32`` values and a tf32 matrix as ``float32``; every other type has its own
dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wmmagen.config import Operation, Problem, Residue
from wmmagen.dtypes import ElementType
from wmmagen.epilogue import BIASES, along_row
from wmmagen.errors import ConfigError
from wmmagen.pieces import over_rows

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

#: Guards are multiples of this, so that data keep the alignment of the buffer that they lie in; in bytes.
GUARD_UNIT = 256
#: Size of one guard band; in bytes.
GUARD_BYTES = 4096

_BITS: dict[int, type[np.unsignedinteger[Any]]] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_VALUES: dict[str, type[np.number[Any]]] = {
    "f16": np.float16,
    "bf16": np.float32,
    "tf32": np.float32,
    "f32": np.float32,
    "f64": np.float64,
    "s8": np.int8,
    "u8": np.uint8,
    "s32": np.int32,
}
#: Around an operand: quiet NaN; for integers the value that the generators of inputs never use, or seldom.
_OPERAND_GUARD = {
    "f16": 0x7E01,
    "bf16": 0x7FC1,
    "tf32": 0x7FC00001,
    "f32": 0x7FC00001,
    "f64": 0x7FF8000000000001,
    "s8": 0x80,
    "u8": 0xFF,
    "s32": 0x80000001,
}
#: D before a run: a quiet NaN whose payload is not the canonical one that hardware returns; far off for integers.
_POISON = {
    "f16": 0x7EAD,
    "bf16": 0x7FED,
    "tf32": 0x7FC0DEAD,
    "f32": 0x7FC0DEAD,
    "f64": 0x7FF8DEADDEADDEAD,
    "s8": 0x80,
    "u8": 0xFF,
    "s32": 0x8BADF00D,
}
_OUTPUT_GUARD_BYTE = 0xC3


def require_bytes(element: ElementType) -> None:
    """Refuse an element type whose elements do not fill bytes of their own.

    Raises:
        ConfigError: for s4, u4 and b1.
    """
    if element.name not in _VALUES:
        raise ConfigError(
            f"{element.name} elements share a byte; no image of them is made", "types: " + " ".join(_VALUES)
        )


def value_dtype(element: ElementType) -> np.dtype[Any]:
    """The NumPy dtype that holds every value of ``element``; ``float32`` for bf16."""
    require_bytes(element)
    return np.dtype(_VALUES[element.name])


def bits_dtype(element: ElementType) -> np.dtype[Any]:
    """The unsigned NumPy dtype as wide as ``element``."""
    require_bytes(element)
    return np.dtype(_BITS[element.bits])


def _bf16_bits(values: Array) -> Array:
    """Bits of ``values`` (any shape) in bf16: ``float32`` first, then round to nearest, ties to even."""
    with np.errstate(over="ignore"):  # infinite in f32 is infinite in bf16
        single = np.ascontiguousarray(values, np.float32).reshape(values.shape)
    wide = single.view(np.uint32)
    kept = (wide + np.uint32(0x7FFF) + ((wide >> 16) & 1)) >> 16
    # Rounding would carry a NaN with a small payload into infinity; keep its upper half and make it quiet.
    return np.where(np.isnan(single), (wide >> 16) | 0x40, kept).astype(np.uint16)


def encode(values: Array, element: ElementType) -> Array:
    """The bit patterns of ``values`` in ``element``, rounded once to nearest, ties to even.

    Args:
        values: any shape; numbers. bf16 is rounded from ``float32``, so its values should be exact there.
        element: the type to store; tf32 is stored as f32, as it is in memory.

    Returns:
        Unsigned integers of the element's width, same shape. May share memory with ``values``.

    Raises:
        ConfigError: an integer type that cannot hold one of the values, or a sub-byte type.
    """
    target = value_dtype(element)
    if element.integer and values.dtype != target:
        low, high = int(np.iinfo(target).min), int(np.iinfo(target).max)
        if values.size and not (low <= values.min() and values.max() <= high):
            raise ConfigError(f"a value lies outside {element.name}", f"{element.name} holds {low} to {high}")
    if element.name == "bf16":
        return _bf16_bits(values)
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(values, target).reshape(values.shape)
    return stored.view(bits_dtype(element))


def decode(bits: Array, element: ElementType) -> Array:
    """The values of bit patterns, in the dtype of :func:`value_dtype`; the inverse of :func:`encode`."""
    if element.name == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(bits).reshape(bits.shape).view(value_dtype(element))


@dataclass(frozen=True)
class Damage:
    """The first byte of a guard that a kernel overwrote.

    Attributes:
        offset: of that byte from the start of the buffer.
        where: ``before the data``, ``in the gap of row 3`` or ``after the data``.
        elements: how many guard elements are overwritten in all.
    """

    offset: int
    where: str
    elements: int

    def __str__(self) -> str:
        return (
            f"{self.elements} guard elements overwritten, the first {self.where}, at byte {self.offset} of the buffer"
        )


@dataclass(frozen=True)
class Image:
    """A matrix inside a flat buffer of bytes, with guards around it.

    Attributes:
        rows, cols: extents of the matrix, in elements.
        ld: leading dimension, in elements; at least the length of a line.
        element: its element type.
        row_major: whether lines are rows.
        output: whether it is D: poisoned, and guarded by a pattern that is not NaN.
        offset: of the first element, in bytes from the start of the buffer; aligned as far as was asked for.
        total_bytes: size of the buffer.
    """

    rows: int
    cols: int
    ld: int
    element: ElementType
    row_major: bool
    output: bool
    offset: int
    total_bytes: int

    @property
    def lines(self) -> int:
        """Rows of a row-major matrix, columns of a column-major one."""
        return self.rows if self.row_major else self.cols

    @property
    def length(self) -> int:
        """Elements in a line, without the gap."""
        return self.cols if self.row_major else self.rows

    @property
    def element_bytes(self) -> int:
        return self.element.bits // 8

    @property
    def guard(self) -> int:
        """The bit pattern of a guard element."""
        if self.output:
            return int.from_bytes(bytes([_OUTPUT_GUARD_BYTE]) * self.element_bytes, "little")
        return _OPERAND_GUARD[self.element.name]

    @property
    def poison(self) -> int:
        """The bit pattern of an element that was never written."""
        return _POISON[self.element.name]

    def _parts(self, buffer: Bytes) -> tuple[Array, Array, Array, Array]:
        """Views of a buffer as bit patterns: before (flat), lines (lines × length), gaps behind lines, after (flat).

        Behind the last line there is no gap where the buffer ends with it.
        """
        if buffer.dtype != np.uint8 or buffer.shape != (self.total_bytes,):
            raise ValueError(f"the image has {self.total_bytes} bytes, not {buffer.dtype}{list(buffer.shape)}")
        flat = buffer.view(bits_dtype(self.element))
        start = self.offset // self.element_bytes
        within = flat[start:]
        whole = min(within.size // self.ld, self.lines) if self.ld else 0
        gaps = within[: whole * self.ld].reshape(whole, self.ld)[:, self.length :]
        step = within.strides[0]
        lines = np.lib.stride_tricks.as_strided(within, (self.lines, self.length), (self.ld * step, step))
        return flat[:start], lines, gaps, within[self.lines * self.ld :]

    def _framed(self) -> tuple[Bytes, Array]:
        """A fresh buffer full of guards, and the view (rows × cols) in it where the matrix goes."""
        flat = np.full(self.total_bytes // self.element_bytes, self.guard, bits_dtype(self.element))
        buffer = flat.view(np.uint8)
        return buffer, self.bits(buffer)

    def bits(self, buffer: Bytes) -> Array:
        """The bit patterns of the matrix (rows × cols), a view into ``buffer``.

        Raises:
            ValueError: the buffer is not one of this image.
        """
        lines = self._parts(buffer)[1]
        return lines if self.row_major else lines.T

    def pack(self, values: Array) -> Bytes:
        """A buffer that holds ``values`` (rows × cols), rounded to the element type, amid guards.

        Raises:
            ValueError: another shape.
            ConfigError: an integer type that cannot hold one of the values.
        """
        if values.shape != (self.rows, self.cols):
            raise ValueError(f"the image is {self.rows}x{self.cols}, the values are {list(values.shape)}")
        buffer, matrix = self._framed()
        lines, given = (matrix, values) if self.row_major else (matrix.T, values.T)

        def some(first: int, end: int) -> None:
            lines[first:end] = encode(given[first:end], self.element)

        over_rows(self.lines, self.length, some)
        return buffer

    def blank(self) -> Bytes:
        """A buffer whose matrix is all poison, amid guards: D before a checked run."""
        buffer, matrix = self._framed()
        matrix[:] = self.poison
        return buffer

    def unreadable(self, *, infinite: bool = False) -> Bytes:
        """A buffer that shows in the result wherever it is read: the matrix, too, is all guards, or all infinities.

        Args:
            infinite: infinities in turn of either sign, which a factor of 0 turns into NaN; types without them keep
                the guards.
        """
        buffer, matrix = self._framed()
        if infinite and not self.element.integer:
            signs = 1 - 2 * ((np.arange(self.rows)[:, None] + np.arange(self.cols)) % 2)
            matrix[:] = encode(signs * np.inf, self.element)
        return buffer

    def unpack(self, buffer: Bytes) -> Array:
        """The values (rows × cols) that lie in ``buffer``, in the dtype of :func:`value_dtype`.

        Raises:
            ValueError: the buffer is not one of this image.
        """
        return decode(self.bits(buffer), self.element)

    def unwritten(self, buffer: Bytes) -> Mask:
        """Which elements (rows × cols) still hold the poison."""
        return np.asarray(self.bits(buffer) == self.poison)

    def guard_damage(self, buffer: Bytes) -> Damage | None:
        """The first damage to a guard, in the order of addresses; None where every guard is intact.

        Raises:
            ValueError: the buffer is not one of this image.
        """
        before, _, gaps, after = self._parts(buffer)
        hit_before, hit_gap, hit_after = (np.flatnonzero(part != self.guard) for part in (before, gaps, after))
        size, gap = self.element_bytes, self.ld - self.length
        if hit_before.size:
            element, where = int(hit_before[0]), "before the data"
        elif hit_gap.size:
            line, place = divmod(int(hit_gap[0]), gap)
            element = self.offset // size + line * self.ld + self.length + place
            where = f"in the gap of {'row' if self.row_major else 'column'} {line}"
        elif hit_after.size:
            element, where = self.offset // size + self.lines * self.ld + int(hit_after[0]), "after the data"
        else:
            return None
        found = buffer[element * size : (element + 1) * size]
        intact = np.frombuffer(self.guard.to_bytes(size, "little"), np.uint8)
        first = element * size + int(np.flatnonzero(found != intact)[0])
        return Damage(first, where, int(hit_before.size + hit_gap.size + hit_after.size))


def image(
    rows: int,
    cols: int,
    ld: int,
    element: ElementType,
    *,
    row_major: bool = True,
    output: bool = False,
    guard_bytes: int = GUARD_BYTES,
    shift: int = 0,
    ends: bool = False,
) -> Image:
    """An image of a rows × cols matrix with a guard band of ``guard_bytes`` on either side.

    Args:
        ends: whether the buffer ends with the last element of the matrix, so that a read behind it is none of the
            buffer's, whatever becomes of what was read.
        shift: bytes from a boundary of 256 bytes to the first element; a whole number of elements.

    Raises:
        ConfigError: a sub-byte type, or a leading dimension below the length of a line.
        ValueError: ``guard_bytes`` is no multiple of 256, or ``shift`` is no whole number of elements below 256 bytes.
    """
    require_bytes(element)
    if guard_bytes < 0 or guard_bytes % GUARD_UNIT:
        raise ValueError(f"guard_bytes = {guard_bytes} is no multiple of {GUARD_UNIT}")
    if shift not in range(0, GUARD_UNIT, element.bits // 8):
        raise ValueError(f"shift = {shift} is no whole number of {element.name} elements below {GUARD_UNIT} bytes")
    lines, length = (rows, cols) if row_major else (cols, rows)
    if ld < length:
        raise ConfigError(f"leading dimension {ld} is below the {length} elements of a line", f"give at least {length}")
    held = max((lines - 1) * ld + length, 0) if ends else lines * ld
    total = (1 if ends else 2) * guard_bytes + shift + held * element.bits // 8
    return Image(rows, cols, ld, element, row_major, output, guard_bytes + shift, total)


@dataclass(frozen=True)
class Shifts:
    """How far behind a boundary of 256 bytes the matrices of a call begin; in bytes.

    Attributes:
        a, b: of A and of B.
        d: of D, and of C and R where they have its type.
        added: of C and R where they have another type, and of the biases of places in a line of D, columns where it is
            row-major; those of lines begin one element behind a boundary where anything is shifted.
        scales: of the scales of places.
    """

    a: int = 0
    b: int = 0
    d: int = 0
    added: int = 0
    scales: int = 0


UNSHIFTED = Shifts()


def operand_names(operation: Operation) -> tuple[str, ...]:
    """What a kernel of ``operation`` reads, by the names of its parameters, in their order; D comes behind them."""
    e = operation.epilogue
    return ("A", "B", *(matrix.upper() for matrix in e.matrices), *e.vectors)


def images(problem: Problem, *, guard_bytes: int = GUARD_BYTES, shifts: Shifts = UNSHIFTED) -> tuple[Image, ...]:
    """The images of A (m×k), B (k×n), of what the epilogue reads and of D (m×n), in the order of :func:`operand_names`.

    Vectors are images of one row. D is last. Behind what the epilogue reads the buffer ends, and behind A and B of
    kernels for all sizes: what is read there beside an edge of D may be stored nowhere, so that no value shows it.

    Raises:
        ConfigError: a sub-byte type, or a leading dimension below the length of a line.
        ValueError: a guard or a shift that :func:`image` refuses.
    """
    o, p = problem.operation, problem
    edged = o.residue is Residue.PREDICATED
    found = [
        image(p.m, p.k, p.lda, o.a, row_major=o.a_row_major, guard_bytes=guard_bytes, shift=shifts.a, ends=edged),
        image(p.k, p.n, p.ldb, o.a, row_major=o.b_row_major, guard_bytes=guard_bytes, shift=shifts.b, ends=edged),
    ]
    of_d = shifts.d if o.added == o.d else shifts.added
    for matrix in o.epilogue.matrices:
        # A C that nobody reads may have any leading dimension; its image lies behind what would be read.
        ld = p.ldr if matrix == "r" else p.ldc if p.reads_c else max(p.ldc, p.n if o.c_row_major else p.m)
        found.append(
            image(p.m, p.n, ld, o.added, row_major=o.c_row_major, guard_bytes=guard_bytes, shift=of_d, ends=True)
        )
    for vector in o.epilogue.vectors:
        element, extent = o.vector_type(vector), p.m if along_row(vector) else p.n
        shift = shifts.added if vector in BIASES else shifts.scales
        if along_row(vector) is o.d_row_major:
            shift = element.bits // 8 if shifts != UNSHIFTED else 0
        found.append(image(1, extent, extent, element, guard_bytes=guard_bytes, shift=shift, ends=True))
    d = image(p.m, p.n, p.ldd, o.d, row_major=o.d_row_major, output=True, guard_bytes=guard_bytes, shift=shifts.d)
    found.append(d)
    return tuple(found)


#: Whatever a kernel finds in a workspace but counts it must not use: a quiet NaN in f32, and in f16 two.
_STALE_BYTES = bytes((0x01, 0x7E, 0xC1, 0x7F))
_COUNT_BYTES = 4


def make_stale(memory: Bytes) -> None:
    """Fill a workspace with what no result may come from, in place, since one may have gigabytes."""
    done = min(len(_STALE_BYTES), memory.size)
    memory[:done] = np.frombuffer(_STALE_BYTES, np.uint8)[:done]
    while done < memory.size:
        more = min(done, memory.size - done)
        memory[done : done + more] = memory[:more]
        done += more


@dataclass(frozen=True)
class Workspace:
    """The memory in which the blocks that share a tile of D meet, with guards around it.

    A tile's piece begins with the sums of its blocks and ends with their count, which is 0 before and after a launch.

    Attributes:
        tiles: of D.
        tile_bytes: of one tile's piece.
        count_offset: where the count lies in it; in bytes.
        offset: of the first piece from the start of the buffer; in bytes.
        total_bytes: size of the buffer.
    """

    tiles: int
    tile_bytes: int
    count_offset: int
    offset: int
    total_bytes: int

    def _counts(self, buffer: Bytes) -> Bytes:
        """The bytes of the counts (tiles x 4), a view into ``buffer``."""
        pieces = buffer[self.offset : self.offset + self.tiles * self.tile_bytes].reshape(self.tiles, self.tile_bytes)
        return pieces[:, self.count_offset : self.count_offset + _COUNT_BYTES]

    def blank(self) -> Bytes:
        """A buffer whose counts are 0, and whose sums are NaN."""
        buffer = np.full(self.total_bytes, _OUTPUT_GUARD_BYTE, np.uint8)
        make_stale(buffer[self.offset : self.offset + self.tiles * self.tile_bytes])
        self._counts(buffer)[:] = 0
        return buffer

    def damage(self, buffer: Bytes) -> str:
        """What a launch left wrong, in words; empty for nothing."""
        end = self.offset + self.tiles * self.tile_bytes
        for word, part in (("before", buffer[: self.offset]), ("behind", buffer[end:])):
            if (part != _OUTPUT_GUARD_BYTE).any():
                return f"memory {word} the workspace was written to"
        left = np.flatnonzero(self._counts(buffer).any(axis=1))
        if left.size:
            return (
                f"the workspace's count of blocks is not 0 again for {left.size} of {self.tiles} tiles, the first of "
                f"them tile {left[0]}: the next launch would go wrong"
            )
        return ""


def workspace(
    tiles: int, tile_bytes: int, count_offset: int, *, guard_bytes: int = GUARD_BYTES, shift: int = 0
) -> Workspace:
    """A workspace of so many tiles with a guard band of ``guard_bytes`` on either side.

    Args:
        shift: bytes from a boundary of 256 bytes to the first piece.
    """
    offset = guard_bytes + shift
    return Workspace(tiles, tile_bytes, count_offset, offset, offset + tiles * tile_bytes + guard_bytes)
