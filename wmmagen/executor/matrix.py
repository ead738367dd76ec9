"""Matrix instructions: fragments whose layout is drawn anew for every run, and products that are rounded once.

Which lane of a WMMA fragment holds which element is unspecified, so each fragment type (use, shape, type and, of A and
B, layout) gets a random map per run. Code that relies on the hardware's map fails; uniform work on all elements still
passes. The fragments of ``mma.sync`` are specified, and have just that map.

Elements of less than a byte are kept, moved and scattered in whole bytes, as the lines of their tiles lie in memory.

A product is the exact sum of exact products and the addend, rounded once to the accumulator's type. For inputs whose
sums are exact that is what every device gives, bit for bit. For others it is a model: devices differ in how many bits
they keep between the additions.

Source: PTX ISA, "Matrix Fragments for WMMA" and "wmma.load", "wmma.store", "wmma.mma"; "Matrix Fragments for
mma.m16n8k16" and its like.
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#warp-level-matrix-instructions-wmma-mma
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wmmagen import instructions
from wmmagen.arch import WARP_SIZE
from wmmagen.dtypes import ELEMENT_TYPES
from wmmagen.executor import numbers
from wmmagen.executor.alu import UnknownInstruction
from wmmagen.instructions import Instruction

#: An array of NumPy, or one of its scalars where all lanes have one value; its type checker knows no word for both.
Array = Any

_REGISTER_BITS = 32
_EXACT = 2.0**53
_LAYOUTS = ("row", "col")
_BYTE = 8
_BIT_PRODUCTS = ("xor", "and")
#: Of ``mma.sync``: types with the same shapes, the type of their sums, and the shapes.
_FAMILIES = {"f16": "16", "bf16": "16", "tf32": "32", "s8": "8", "u8": "8", "f64": "64"}
_SUMS = {"bf16": "f32", "tf32": "f32", "s8": "s32", "u8": "s32", "f64": "f64"}
_FIXED = {
    ("m16n8k8", "16"): (16, 8, 8),
    ("m16n8k16", "16"): (16, 8, 16),
    ("m16n8k4", "32"): (16, 8, 4),
    ("m16n8k8", "32"): (16, 8, 8),
    ("m8n8k16", "8"): (8, 8, 16),
    ("m16n8k16", "8"): (16, 8, 16),
    ("m16n8k32", "8"): (16, 8, 32),
    ("m8n8k4", "64"): (8, 8, 4),
}
_SPACES = ("global", "shared")


@dataclass(frozen=True)
class Fragment:
    """A fragment type.

    Attributes:
        use: ``a``, ``b`` or ``acc``.
        rows, cols: of its tile, in what is stored: bytes along K where an element is less than one.
        kind: element type, in PTX's word.
        layout: ``row`` or ``col`` of A and B; empty for accumulators, which have none.
        shape: of the instruction, ``m16n16k16``.
        registers: of each lane.
        fixed: whether the ISA says which lane holds what.
    """

    use: str
    rows: int
    cols: int
    kind: str
    layout: str
    shape: str
    registers: int
    fixed: bool = False

    @property
    def bits(self) -> int:
        """Of what is stored: an element, or a byte of smaller ones."""
        return max(ELEMENT_TYPES[self.kind].bits, _BYTE)

    @property
    def packed(self) -> int:
        """Elements in what is stored."""
        return self.bits // ELEMENT_TYPES[self.kind].bits

    @property
    def register_bits(self) -> int:
        return 64 if self.kind == "f64" else _REGISTER_BITS

    @property
    def per_register(self) -> int:
        return self.register_bits // self.bits

    @property
    def elements(self) -> int:
        return self.rows * self.cols

    @property
    def lane_bytes(self) -> int:
        """What a lane holds of a tile, which the strict reading aligns rows to."""
        return self.registers * self.register_bits // 8


@dataclass(frozen=True)
class Move:
    """A ``wmma.load`` or ``wmma.store``: the fragment, the layout in memory, and the state space, empty for generic."""

    fragment: Fragment
    letter: str
    row_major: bool
    space: str

    def offsets(self, ldm: int) -> Array:
        """Where each element, row by row, lies behind the pointer; in what is stored, as is ``ldm``."""
        rows, cols = np.divmod(np.arange(self.fragment.elements), self.fragment.cols)
        return np.asarray(rows * ldm + cols if self.row_major else cols * ldm + rows)

    @property
    def lines(self) -> int:
        """Rows of a row-major tile, columns of the other."""
        return self.fragment.rows if self.row_major else self.fragment.cols

    @property
    def length(self) -> int:
        """Elements of a line."""
        return self.fragment.cols if self.row_major else self.fragment.rows

    def extent(self, ldm: int) -> int:
        """From the pointer to the end of the last element; in bytes."""
        return ((self.lines - 1) * ldm + self.length) * self.fragment.bits // 8


@dataclass(frozen=True)
class Product:
    """A product of fragments.

    Attributes:
        a, b, c, d: the fragments of its operands.
        depth: the extent K.
        saturates: whether integers do; else they wrap.
        product: ``mul``, or of bits ``xor`` or ``and``, whose ones are counted.
    """

    a: Fragment
    b: Fragment
    c: Fragment
    d: Fragment
    depth: int
    saturates: bool
    product: str = "mul"

    @property
    def multiply_adds(self) -> int:
        return self.d.elements * self.depth


class Layouts:
    """The random map of each fragment type of one run.

    Args:
        seed: of the maps.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._maps: dict[Fragment, tuple[Array, Array]] = {}

    def of(self, fragment: Fragment) -> tuple[Array, Array]:
        """The element in each slot, and a slot of each element.

        Slots are numbered register by register, within a register lane by lane. Where there are more slots than
        elements each element has several, as many as every other one.
        """
        found = self._maps.get(fragment)
        if found is None:
            slots = WARP_SIZE * fragment.registers * fragment.per_register
            if fragment.fixed:
                held = specified(fragment)
            else:
                held = self._random.permutation(np.tile(np.arange(fragment.elements), slots // fragment.elements))
            first = np.empty(fragment.elements, np.int64)
            first[held] = np.arange(slots)
            found = self._maps[fragment] = (held, first)
        return found

    def lanes(self, fragment: Fragment) -> Array:
        """A lane that holds each element."""
        return np.asarray(self.of(fragment)[1] // fragment.per_register % WARP_SIZE)


def specified(fragment: Fragment) -> Array:
    """The element in each slot of a fragment of ``mma.sync``, slots as in :class:`Layouts`.

    A quad of lanes holds a row of A and of C, and a column of B. Along K, or along N of C, each of its lanes holds what
    fills a register (of C of 32 bits: two registers); further registers lie 8 rows below, then behind.
    """
    register = np.arange(fragment.registers)[:, None, None]
    group, lane = np.divmod(np.arange(WARP_SIZE), 4)
    group, lane = group[:, None], lane[:, None]
    each = np.arange(fragment.per_register)
    if fragment.use == "acc" and fragment.per_register == 1:
        row, col = group + 8 * (register // 2), lane * 2 + register % 2 + each
        return np.asarray(row * fragment.cols + col).reshape(-1)
    along = lane * fragment.per_register + each
    if fragment.use == "b":
        row, col = along + register * 4 * fragment.per_register, group + 0 * register
    else:
        below = fragment.rows // 8
        row, col = group + 8 * (register % below), along + register // below * 4 * fragment.per_register
    return np.asarray(row * fragment.cols + col).reshape(-1)


def decode_move(words: tuple[str, ...]) -> Move:
    """The fragment that a ``wmma.load`` or ``wmma.store`` moves.

    Raises:
        UnknownInstruction: the words name none.
    """
    if words[3:5] != ("sync", "aligned") or len(words) not in (8, 9):
        raise UnknownInstruction
    letter, layout, shape = words[2], words[5], words[6]
    space = words[7] if len(words) == 9 else ""
    if layout not in _LAYOUTS or (space and space not in _SPACES):
        raise UnknownInstruction
    if letter not in (("a", "b", "c") if words[1] == "load" else ("d",)):
        raise UnknownInstruction
    kind = words[-1]
    if letter in "ab":
        fragment = _operand(letter, shape, kind, layout)
    else:
        fragment = _accumulator(shape, kind)
    return Move(fragment, letter, layout == "row", space)


def decode_product(words: tuple[str, ...]) -> Product:
    """The fragments of a ``wmma.mma``.

    Raises:
        UnknownInstruction: the words name none.
    """
    product = "mul"
    if words[2] in _BIT_PRODUCTS and words[3:4] == ("popc",):
        product, words = words[2], (*words[:2], *words[4:])
    if words[2:4] != ("sync", "aligned") or len(words) < 9:
        raise UnknownInstruction
    row, column, shape, kinds = words[4], words[5], words[6], list(words[7:])
    # The ISA puts the rounding before the types, NVRTC behind them.
    if "rn" in (kinds[0], kinds[-1]):
        kinds.remove("rn")
    saturates = kinds[-1] == "satfinite"
    if saturates:
        kinds.pop()
    if len(kinds) == 2:
        d, c = kinds
        a = b = "f16"
    elif len(kinds) == 4:
        d, a, b, c = kinds
    else:
        raise UnknownInstruction
    if a != b or row not in _LAYOUTS or column not in _LAYOUTS or (saturates and d != "s32"):
        raise UnknownInstruction
    rows = _rows(shape, a, d, product)
    _rows(shape, a, c, product)
    return Product(
        _operand("a", shape, a, row),
        _operand("b", shape, b, column),
        _accumulator(shape, c),
        _accumulator(shape, d),
        rows.k,
        saturates,
        product,
    )


def decode_fixed_product(words: tuple[str, ...]) -> Product:
    """The fragments of a ``mma.sync``.

    Raises:
        UnknownInstruction: the words name none that is known.
    """
    kinds = list(words[6:])
    saturates = kinds[-1] == "satfinite"
    if saturates:
        kinds.pop()
    if words[1:3] != ("sync", "aligned") or words[4:6] != ("row", "col") or len(kinds) != 4:
        raise UnknownInstruction
    shape, (d, a, b, c) = words[3], kinds
    extents = _FIXED.get((shape, _FAMILIES.get(a, "")))
    legal = ("f32", "f16") if a == "f16" else (_SUMS.get(a, ""),)
    # f16 and bf16 are of one family, and have to be the same one; of bytes each has its own sign.
    alike = a == b or (_FAMILIES.get(b) == _FAMILIES.get(a) == "8")
    if extents is None or not alike or c != d or d not in legal or (saturates and d != "s32"):
        raise UnknownInstruction
    m, n, k = extents
    per_register = (64 if a == "f64" else _REGISTER_BITS) // ELEMENT_TYPES[a].bits
    per_sum = (64 if d == "f64" else _REGISTER_BITS) // ELEMENT_TYPES[d].bits
    sums = Fragment("acc", m, n, d, "", shape, m * n // WARP_SIZE // per_sum, fixed=True)
    return Product(
        Fragment("a", m, k, a, "row", shape, m * k // WARP_SIZE // per_register, fixed=True),
        Fragment("b", k, n, b, "col", shape, k * n // WARP_SIZE // per_register, fixed=True),
        sums,
        sums,
        k,
        saturates,
    )


def _rows(shape: str, a: str, acc: str, product: str = "") -> Instruction:
    """The row of the instruction table; also where only some of the others are known (what is not is empty)."""
    for row in instructions.INSTRUCTIONS:
        same = (not a or row.a.name == a) and (not acc or row.acc.name == acc)
        if same and product in ("", row.product) and f"m{row.m}n{row.n}k{row.k}" == shape:
            return row
    raise UnknownInstruction


def _operand(use: str, shape: str, kind: str, layout: str) -> Fragment:
    row = _rows(shape, kind, "")
    letter = "r" if layout == "row" else "c"
    if not any(both["ab".index(use)] == letter for both in row.layouts):
        raise UnknownInstruction
    packed = max(_BYTE // row.a.bits, 1)
    rows, cols, registers = (
        (row.m, row.k // packed, row.a_registers) if use == "a" else (row.k // packed, row.n, row.b_registers)
    )
    return Fragment(use, rows, cols, kind, layout, shape, registers // (2 if kind == "f64" else 1))


def _accumulator(shape: str, kind: str) -> Fragment:
    row = _rows(shape, "", kind)
    return Fragment("acc", row.m, row.n, kind, "", shape, row.acc_registers // (2 if kind == "f64" else 1))


def gathered(registers: Array, fragment: Fragment, layouts: Layouts) -> Array:
    """The elements that registers (count × lanes) hold, as warps × elements of unsigned bits."""
    _, slot = layouts.of(fragment)
    warps = registers.shape[1] // WARP_SIZE
    elements = registers.view(numbers.UNSIGNED[fragment.bits])
    per_row = WARP_SIZE * fragment.per_register
    spread = elements.reshape(fragment.registers, warps, per_row)
    return np.asarray(spread[slot // per_row, :, slot % per_row].T)


def scattered(elements: Array, fragment: Fragment, layouts: Layouts) -> Array:
    """The registers (count × lanes) that hold ``elements`` (warps × elements of unsigned bits)."""
    held, _ = layouts.of(fragment)
    by_register = held.reshape(fragment.registers, WARP_SIZE * fragment.per_register)
    spread = np.ascontiguousarray(elements[:, by_register].transpose(1, 0, 2))
    return spread.view(numbers.UNSIGNED[fragment.register_bits]).reshape(fragment.registers, -1)


@dataclass(frozen=True)
class Values:
    """The tile of each warp in numbers that can be multiplied.

    Attributes:
        values: warps × rows × cols, float64.
        largest: of their magnitudes; infinite where not all are whole numbers.
    """

    values: Array
    largest: float


def values_of(elements: Array, fragment: Fragment) -> Values:
    """Elements (warps × elements, unsigned bits) as numbers."""
    kind = fragment.kind
    if fragment.packed > 1:
        return _unpacked(elements, fragment)
    if kind in ("s8", "u8", "s32"):
        wide = elements.view(numbers.SIGNED[fragment.bits]) if kind[0] == "s" else elements
        values = wide.astype(np.float64)
    else:
        # The hardware reads the upper 19 bits of a tf32 operand; rounding is the business of who stores it.
        bits = elements & np.uint32(0xFFFFE000) if kind == "tf32" else elements
        values = numbers.to_float(np.ascontiguousarray(bits), "f32" if kind == "tf32" else kind).astype(np.float64)
    whole = bool((np.rint(values) == values).all())
    largest = float(np.abs(values).max()) if whole and values.size else np.inf
    return Values(values.reshape(-1, fragment.rows, fragment.cols), largest)


def _unpacked(elements: Array, fragment: Fragment) -> Values:
    """Elements of less than a byte; the first one lies in the lowest bits."""
    width = _BYTE // fragment.packed
    stored = elements.reshape(-1, fragment.rows, fragment.cols)
    parts = (stored[..., None] >> (np.arange(fragment.packed, dtype=np.uint8) * np.uint8(width))) & (2**width - 1)
    if fragment.kind[0] == "s":
        parts = parts.astype(np.int64)
        parts = np.where(parts >= 1 << width - 1, parts - (1 << width), parts)
    if fragment.use == "b":
        parts = parts.transpose(0, 1, 3, 2).reshape(len(stored), -1, fragment.cols)
    else:
        parts = parts.reshape(len(stored), fragment.rows, -1)
    return Values(parts.astype(np.float64), float(2**width))


def multiply(product: Product, a: Values, b: Values, c: Values) -> Array:
    """The bits of D (warps × elements) = A·B + C, each element rounded once."""
    kind = product.d.kind
    if a.largest * b.largest * product.depth + c.largest <= _EXACT:
        # Whole numbers below 2^53: float64 holds every partial sum.
        total = np.matmul(a.values, b.values) + c.values
        if product.product == "xor":
            # The ones of a ^ b are those of a and of b without those of both, counted twice.
            ones = a.values.sum(axis=2)[:, :, None] + b.values.sum(axis=1)[:, None, :]
            total = ones - 2 * (total - c.values) + c.values
    else:
        total = _summed(a.values, b.values, c.values, double=kind == "f64")
    # An exact zero is positive, whichever way it was summed.
    flat = total.reshape(len(total), -1) + 0.0
    if kind != "s32":
        return numbers.narrow(flat, kind)
    whole = flat.astype(np.int64)
    if product.saturates:
        whole = np.clip(whole, -(2**31), 2**31 - 1)
    return whole.astype(np.uint32)


def _summed(a: Array, b: Array, c: Array, *, double: bool) -> Array:
    """A·B + C rounded to odd in float64, or for f64 to nearest.

    Each step keeps its rounding error. Where all errors are 0 the float64 sum is exact; the few other elements are
    summed again in integers of any size.
    """
    total = np.array(np.broadcast_to(c, (len(a), a.shape[1], b.shape[2])), copy=True)
    inexact = np.zeros(total.shape, np.bool_)
    plain = double and bool(numbers.plain_factors(a).all() and numbers.plain_factors(b).all())
    for k in range(a.shape[2]):
        term = a[:, :, k, None] * b[:, None, k, :]
        following = total + term
        part = following - total
        inexact |= (total - (following - part)) + (term - part) != 0
        if plain:
            # Products of float64 are not exact themselves.
            inexact |= numbers.product_error(a[:, :, k, None], b[:, None, k, :], term) != 0
        total = following
    if double and not plain:
        inexact[:] = True
    inexact &= np.isfinite(total)
    for place in zip(*np.nonzero(inexact), strict=True):
        w, i, j = place
        total[place] = _summed_exactly(a[w, i], b[w, :, j], float(c[place]), double=double)
    return total


def _summed_exactly(left: Array, right: Array, addend: float, *, double: bool) -> float:
    terms = [_parts(float(addend))]
    for x, y in zip(left, right, strict=True):
        (m, e), (n, f) = _parts(float(x)), _parts(float(y))
        terms.append((m * n, e + f))
    least = min(e for _, e in terms)
    total = sum(m << e - least for m, e in terms)
    if double:
        return numbers.rounded(total << max(least, 0), 1 << max(-least, 0))
    return numbers.odd_double(total, least)


def _parts(value: float) -> tuple[int, int]:
    """Value = m · 2^e, both whole."""
    numerator, denominator = value.as_integer_ratio()
    return numerator, -(denominator.bit_length() - 1)
