"""Loops that measure what a chip can do: their texts, their operands, and the results that prove what they computed.

Three kinds: products of fragments that stay in registers, products of fragments that are loaded from shared memory, and
copies. A loop is a pure value; :mod:`wmmagen.ceiling` compiles, checks and times it.

Operands come in two kinds of data. *Integers* have sums that are exact in any order and differ for every number of
turns, so that a loop which leaves something out is wrong; *normal* ones are what times are taken on. In both, a sum
loses in the second half of a turn what it gathered in the first, but for one product in the integers. So sums stay as
small as those of a real product, without infinities, however long the loop is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from wmmagen import coverage, layout
from wmmagen.arch import WARP_SIZE, Arch
from wmmagen.backends import Bytes, Launch, Pointer
from wmmagen.dtypes import ElementType
from wmmagen.instructions import INSTRUCTIONS, Instruction
from wmmagen.render import render_loop
from wmmagen.timing import Data

Array = npt.NDArray[Any]
Access = Literal["read", "write", "copy"]

#: Elements of a warp's tile, each way, in the loop that loads nothing: 16 independent sums of the usual shapes. Sums of
#: 64 bits would fill the registers, so these tiles and those below are half as high and wide there.
REGISTER_TILE = 64
#: Warps of its block: one for each scheduler of a multiprocessor.
REGISTER_WARPS = 4
#: Steps of one launch of it, of products 16 deep: a millisecond on a large card, beside which stores and the launch
#: itself weigh little.
REGISTER_STEPS = 4096
_DEPTH = 16
#: Warp tiles of the loop that is fed from shared memory, in elements.
SHARED_TILES = ((32, 32), (32, 64), (64, 32), (64, 64))
SHARED_WARPS = 2, 2
#: Steps of a turn: the second half of them takes back what the first half adds.
SHARED_K_STEPS = 4
SHARED_STEPS = 4096
#: Bits behind each row of shared memory: its stride is then an odd multiple of 16 bytes.
SHARED_PAD_BITS = 128
#: The guide aligns every fragment to as many bits.
_FRAGMENT_BITS = 256
MEMORY_THREADS = 256
MEMORY_UNROLL = 4
VECTOR_BYTES = 16

#: Largest magnitudes of the operand whose halves cancel and of the other one, by accumulator. Those of f32 are what a
#: product of K = 4096 allows; in f16 every sum of a launch stays below 2^11.
_MAGNITUDES = {"f32": (64, 64), "f16": (2, 1), "f64": (64, 64), "s32": (64, 64)}
#: Deviation of normal integers of 8 bits, and the middle of those without a sign.
_SIGMA, _MIDDLE = 32.0, 128.0
_SEED = 20


def made(types: Sequence[str] = ("f16",)) -> tuple[Instruction, ...]:
    """The instructions on operands of ``types`` for which kernels are generated today, and therefore loops."""
    known, sums = coverage.GENERATED["a"], coverage.GENERATED["acc"]
    return tuple(i for i in INSTRUCTIONS if i.a.name in types and i.a.name in known and i.acc.name in sums)


def _halved(extent: int, inst: Instruction) -> int:
    """An extent of a warp's tile, half of it where sums have 64 bits."""
    return extent // (inst.acc.bits // 32) if inst.acc.bits > 32 else extent


class Products(Protocol):
    """A loop of matrix products."""

    @property
    def inst(self) -> Instruction:
        """What it multiplies by."""

    @property
    def entry(self) -> str:
        """The kernel's symbol."""

    @property
    def warps(self) -> int:
        """Warps of a block."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""

    @property
    def turns(self) -> int:
        """Turns of a launch that is timed."""

    def text(self, arch: Arch) -> str:
        """The source."""

    def products(self, turns: int) -> int:
        """Matrix instructions of the table, of one warp."""

    def operands(self, data: Data) -> tuple[Array, Array]:
        """A and B as they lie in memory."""

    def sums(self, turns: int) -> Array:
        """The exact sums of each block on integers, as they lie in D: warps, fragments, rows, columns."""


def operations(loop: Products, blocks: int, turns: int | None = None) -> float:
    """Operations of one launch, a multiply-add being two."""
    i = loop.inst
    return 2.0 * i.m * i.n * i.k * blocks * loop.warps * loop.products(loop.turns if turns is None else turns)


def launch(loop: Products, blocks: int, turns: int | None = None) -> Launch:
    """A launch of so many blocks; of the loop's own number of turns where none is given."""
    turns = loop.turns if turns is None else turns
    pointers = (Pointer(0), Pointer(1), Pointer(2))
    return Launch(loop.entry, (blocks, 1, 1), (WARP_SIZE * loop.warps, 1, 1), loop.shared_bytes, (*pointers, turns))


def buffers(loop: Products, blocks: int, data: Data) -> tuple[Bytes, ...]:
    """A, B, and D filled with NaN."""
    a, b = (_packed(values, loop.inst) for values in loop.operands(data))
    d = np.full(blocks * loop.sums(0).size * loop.inst.acc.bits // 8, 0xFF, np.uint8)
    return a, b, d


def wrong(loop: Products, blocks: int, turns: int, returned: Sequence[Bytes]) -> str:
    """What is wrong with the result of a launch on integers; empty where all of it is exact, bit for bit."""
    want = _bits(loop.sums(turns), loop)
    have = np.ascontiguousarray(returned[-1]).view(want.dtype).reshape(blocks, *want.shape)
    bad = have != want
    if not bad.any():
        return ""
    place = tuple(int(x) for x in np.argwhere(bad)[0])
    held = layout.decode(have[place].reshape(1), loop.inst.acc)[0]
    right = layout.decode(want[place[1:]].reshape(1), loop.inst.acc)[0]
    return (
        f"{loop.entry}: {int(bad.sum())} of {bad.size} sums are wrong, first block {place[0]}, warp {place[1]}, "
        f"fragment {place[2]}, row {place[3]}, column {place[4]}: {held} for {right}"
    )


def _bits(sums: Array, loop: Products) -> Array:
    return layout.encode(sums.astype(layout.value_dtype(loop.inst.acc)), loop.inst.acc)


def _packed(values: Array, inst: Instruction) -> Bytes:
    bits = layout.encode(values.astype(layout.value_dtype(inst.a)), inst.a)
    return np.ascontiguousarray(bits).reshape(-1).view(np.uint8)


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], data: Data, most: int, element: ElementType) -> Array:
    """Normal values, or integers without zeros up to ``most``."""
    signed = element.name != "u8"
    if data == "normal":
        normal: Array = rng.standard_normal(shape, np.float32)
        if not element.integer:
            return normal
        # Both ends of the type, without the lowest value, whose negative is beyond it.
        middle = 0.0 if signed else _MIDDLE
        return np.clip(np.rint(normal * _SIGMA + middle), -element.exact_limit if signed else 0, element.exact_limit)
    integers: Array = rng.integers(1, most + 1, shape)
    return integers * rng.choice((-1, 1), shape) if signed else integers


def _cancelling(rng: np.random.Generator, shape: tuple[int, ...], data: Data, most: int, element: ElementType) -> Array:
    """Values whose second half, along the second axis, is the first half's negative.

    Integers without a sign have no negatives: their sums grow and wrap, which is exact.
    """
    if element.name == "u8":
        return _drawn(rng, shape, data, most, element)
    first = _drawn(rng, (shape[0], shape[1] // 2, *shape[2:]), data, most, element)
    return np.concatenate([first, -first], axis=1)


@dataclass(frozen=True)
class RegisterLoop:
    """Products of fragments that stay in registers.

    The operand with more fragments takes turns: in each step every sum meets the next one of them.

    Attributes:
        inst: what it multiplies by.
    """

    inst: Instruction

    @property
    def entry(self) -> str:
        return f"ceiling_registers_{self.inst.a.name}_{self.inst.acc.name}_{self.inst.shape}"

    @property
    def frags(self) -> tuple[int, int]:
        """Fragments of A and of B that a warp holds."""
        tile = _halved(REGISTER_TILE, self.inst)
        return tile // self.inst.m, tile // self.inst.n

    @property
    def rotates_a(self) -> bool:
        """Whether it is A whose fragments take turns."""
        return self.frags[0] >= self.frags[1]

    @property
    def steps(self) -> int:
        """Steps of a turn."""
        return max(self.frags)

    @property
    def warps(self) -> int:
        return REGISTER_WARPS

    @property
    def shared_bytes(self) -> int:
        return 0

    @property
    def turns(self) -> int:
        return REGISTER_STEPS * _DEPTH // self.inst.k // self.steps

    def text(self, arch: Arch) -> str:
        i, (frags_m, frags_n) = self.inst, self.frags
        constants = {
            "INST_M": (i.m, "rows of a matrix instruction"),
            "INST_N": (i.n, "columns of it"),
            "INST_K": (i.k, "products in each of its sums"),
            "FRAGS_M": (frags_m, "fragments of A that a warp holds"),
            "FRAGS_N": (frags_n, "fragments of B"),
            "STEPS": (self.steps, "steps of a turn"),
            "WARPS": (self.warps, "warps of a block"),
        }
        return render_loop("registers", self.entry, i, constants, {"rotates_a": self.rotates_a})

    def products(self, turns: int) -> int:
        return turns * self.steps * self.frags[0] * self.frags[1]

    def operands(self, data: Data) -> tuple[Array, Array]:
        """A as warps × fragments × m × k, B as warps × fragments × k × n."""
        return _register_operands(self, data)

    def sums(self, turns: int) -> Array:
        a, b = (x.astype(np.int64) for x in self.operands("integers"))
        frags_m, frags_n = self.frags
        # Over a turn each sum meets every fragment of the operand that takes turns, and one of the other.
        if self.rotates_a:
            a = np.repeat(a.sum(axis=1, keepdims=True), frags_m, axis=1)
        else:
            b = np.repeat(b.sum(axis=1, keepdims=True), frags_n, axis=1)
        tiles: Array = turns * np.einsum("wimk,wjkn->wijmn", a, b)
        return tiles.reshape(self.warps, frags_m * frags_n, self.inst.m, self.inst.n)


@lru_cache(maxsize=4)
def _register_operands(loop: RegisterLoop, data: Data) -> tuple[Array, Array]:
    rng, inst = np.random.default_rng(_SEED), loop.inst
    rotating, other = _MAGNITUDES[inst.acc.name]
    frags_m, frags_n = loop.frags
    a_shape, b_shape = (loop.warps, frags_m, inst.m, inst.k), (loop.warps, frags_n, inst.k, inst.n)
    if loop.rotates_a:
        a, b = _cancelling(rng, a_shape, data, rotating, inst.a), _drawn(rng, b_shape, data, other, inst.a)
    else:
        a, b = _drawn(rng, a_shape, data, other, inst.a), _cancelling(rng, b_shape, data, rotating, inst.a)
    if data == "integers":
        # What is left over of a turn: one product in each row or column, which tells how many turns there were.
        if loop.rotates_a:
            a[:, 0, np.arange(inst.m), np.arange(inst.m) % inst.k] += 1
        else:
            b[:, 0, np.arange(inst.n) % inst.k, np.arange(inst.n)] += 1
    return a, b


def tiles_of(inst: Instruction) -> tuple[tuple[int, int], ...]:
    """The warp tiles of its loops that are fed from shared memory, in elements."""
    return tuple((_halved(m, inst), _halved(n, inst)) for m, n in SHARED_TILES)


@dataclass(frozen=True)
class SharedLoop:
    """Products of fragments that are loaded from shared memory in every step.

    Rows are padded. Where a step along K is less than a fragment's alignment, as it is of bytes, the tiles of each step
    lie together instead, and their rows without a gap.

    Attributes:
        inst: what it multiplies by.
        tile: rows and columns of a warp's tile, in elements.
    """

    inst: Instruction
    tile: tuple[int, int]

    @property
    def entry(self) -> str:
        i, (m, n) = self.inst, self.tile
        return f"ceiling_shared_{i.a.name}_{i.acc.name}_{i.shape}_{m}x{n}"

    @property
    def frags(self) -> tuple[int, int]:
        """Fragments of A and of B in a step of a warp."""
        return self.tile[0] // self.inst.m, self.tile[1] // self.inst.n

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of the block's tile, in elements."""
        return self.tile[0] * SHARED_WARPS[0], self.tile[1] * SHARED_WARPS[1]

    @property
    def depth(self) -> int:
        """Elements along K that lie in shared memory."""
        return SHARED_K_STEPS * self.inst.k

    @property
    def warps(self) -> int:
        return SHARED_WARPS[0] * SHARED_WARPS[1]

    @property
    def shared_bytes(self) -> int:
        return sum(self.block) * (self.depth + self.pad) * self.inst.a.bits // 8

    @property
    def apart(self) -> bool:
        """Whether the tiles of each step along K lie together, apart from those of other steps."""
        return self.inst.k * self.inst.a.bits % _FRAGMENT_BITS != 0

    @property
    def pad(self) -> int:
        """Elements behind each row."""
        return 0 if self.apart else SHARED_PAD_BITS // self.inst.a.bits

    @property
    def turns(self) -> int:
        return SHARED_STEPS * _DEPTH // self.inst.k // SHARED_K_STEPS

    def text(self, arch: Arch) -> str:
        i, (frags_m, frags_n), (block_m, block_n) = self.inst, self.frags, self.block
        constants = {
            "INST_M": (i.m, "rows of a matrix instruction"),
            "INST_N": (i.n, "columns of it"),
            "INST_K": (i.k, "products in each of its sums"),
            "FRAGS_M": (frags_m, "fragments of A in a step of a warp"),
            "FRAGS_N": (frags_n, "fragments of B"),
            "WARPS_M": (SHARED_WARPS[0], "warps of a block, down its tile"),
            "WARPS_N": (SHARED_WARPS[1], "and across"),
            "K_STEPS": (SHARED_K_STEPS, "steps of a turn"),
            "DEPTH": (self.depth, "elements along K in shared memory"),
            "BLOCK_M": (block_m, "rows of the block's tile"),
            "BLOCK_N": (block_n, "columns of it"),
            "LDS": (
                i.k if self.apart else self.depth + self.pad,
                "elements from row to row of A in shared memory, from column to column of B",
            ),
        }
        return render_loop("shared", self.entry, i, constants, {"apart": self.apart})

    def products(self, turns: int) -> int:
        return turns * SHARED_K_STEPS * self.frags[0] * self.frags[1]

    def operands(self, data: Data) -> tuple[Array, Array]:
        """A as rows × depth, B as columns × depth."""
        return _shared_operands(self, data)

    def sums(self, turns: int) -> Array:
        a, b = (x.astype(np.int64) for x in self.operands("integers"))
        i, (frags_m, frags_n), (warps_m, warps_n) = self.inst, self.frags, SHARED_WARPS
        d = turns * (a @ b.T)
        tiles: Array = d.reshape(warps_m, frags_m, i.m, warps_n, frags_n, i.n).transpose(0, 3, 1, 4, 2, 5)
        return tiles.reshape(self.warps, frags_m * frags_n, i.m, i.n)


@lru_cache(maxsize=4)
def _shared_operands(loop: SharedLoop, data: Data) -> tuple[Array, Array]:
    rng = np.random.default_rng(_SEED)
    cancelling, other = _MAGNITUDES[loop.inst.acc.name]
    (block_m, block_n), half = loop.block, loop.depth // 2
    a = _cancelling(rng, (block_m, loop.depth), data, cancelling, loop.inst.a)
    b = np.tile(_drawn(rng, (block_n, half), data, other, loop.inst.a), (1, 2))
    if data == "integers":
        a[np.arange(block_m), np.arange(block_m) % half] += 1
    return a, b


@dataclass(frozen=True)
class MemoryLoop:
    """Accesses of 16 bytes that begin again at the front of their buffers, past the L1.

    Attributes:
        access: what is done.
        threads: of the whole launch.
        rounds: vectors of each thread in a buffer: together they hold ``rounds · threads`` vectors.
        passes: how often a launch goes through the buffers.
    """

    access: Access
    threads: int
    rounds: int
    passes: int

    @property
    def entry(self) -> str:
        """The kernel's symbol."""
        return memory_entry(self.access)

    @property
    def vectors(self) -> int:
        """Vectors of a buffer."""
        return self.rounds * self.threads

    @property
    def accesses(self) -> int:
        """Vectors that each thread reads, writes or copies in a launch."""
        return self.passes * self.rounds

    @property
    def moved_bytes(self) -> float:
        """Bytes that a launch reads and writes; of a copy both."""
        return float(VECTOR_BYTES * self.threads * self.accesses * (2 if self.access == "copy" else 1))

    def text(self, arch: Arch) -> str:
        """The source."""
        return memory_text(self.access)

    @property
    def launch(self) -> Launch:
        """The launch."""
        if self.accesses % MEMORY_UNROLL or self.threads % MEMORY_THREADS:
            raise ValueError(f"{self}: accesses and threads must be multiples of {MEMORY_UNROLL} and {MEMORY_THREADS}")
        blocks = self.threads // MEMORY_THREADS
        arguments = (Pointer(0), Pointer(1), self.vectors, self.accesses)
        return Launch(self.entry, (blocks, 1, 1), (MEMORY_THREADS, 1, 1), 0, arguments)

    @property
    def buffers(self) -> tuple[Bytes, ...]:
        """What is read, and what is written; of nothing a vector."""
        read = self.vectors if self.access != "write" else 1
        written = self.threads if self.access == "read" else self.vectors
        source = np.random.default_rng(_SEED).integers(0, 2**32, (read, 4), np.uint32)
        return source.reshape(-1).view(np.uint8), np.full(written * VECTOR_BYTES, 0xFF, np.uint8)

    def wrong(self, returned: Sequence[Bytes]) -> str:
        """What is wrong with what a launch wrote; empty where all of it is right."""
        source, have = (np.ascontiguousarray(x).view(np.uint32).reshape(-1, 4) for x in returned)
        want = self._written(source)
        bad = (have != want).any(axis=1)
        if not bad.any():
            return ""
        return f"{self.entry}: {int(bad.sum())} of {bad.size} vectors are wrong, first number {int(bad.argmax())}"

    def _written(self, source: Array) -> Array:
        if self.access == "read":
            # Counts wrap as the kernel's do.
            sums = source.reshape(self.rounds, self.threads, 4).sum(axis=0, dtype=np.uint32)
            return np.asarray(sums * np.uint32(self.passes))
        if self.access == "write":
            places: Array = np.zeros((self.vectors, 4), np.uint32)
            places[:, 0] = np.arange(self.vectors, dtype=np.uint32)
        else:
            places = source.copy()
        # The last access to a vector was that of the last pass.
        last = self.accesses - self.rounds + np.arange(self.rounds, dtype=np.uint32)
        places[:, 3] += np.repeat(last.astype(np.uint32), self.threads)
        return places


def memory_entry(access: Access) -> str:
    """The symbol of the loop of an access."""
    return f"ceiling_memory_{access}"


def memory_text(access: Access) -> str:
    """The source of the loop of an access; it is the same for every size."""
    constants = {
        "THREADS": (MEMORY_THREADS, "of a block"),
        "UNROLL": (MEMORY_UNROLL, "accesses of a thread that are under way at a time; `accesses` is a multiple of it"),
    }
    more = {"reads": access != "write", "writes": access != "read"}
    return render_loop("memory", memory_entry(access), None, constants, more)
