"""What a kernel does for a tile of D: once, and with every slice of K. Derived from the configuration, not compiled.

The figures are those that the CPU executor counts (:mod:`wmmagen.profile`), worked out from the derived numbers: each
copy and each piece of a fragment has an address, and the same meter judges the addresses. Tests prove that both agree,
but where NVRTC makes four stores of one of 16 bytes in PTX: there the executor counts more, and the machine code, in
which they are one again, does what stands here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from wmmagen import derive
from wmmagen.arch import WARP_SIZE
from wmmagen.config import KernelConfig
from wmmagen.epilogue import MATRICES, VECTORS
from wmmagen.executor.counts import WAVEFRONT, Counts, Meter

Array = npt.NDArray[Any]

#: Bytes of one access of a lane, at most.
_WIDEST = 16
#: Leading dimension of the matrices in global memory, in elements. Which sectors a warp touches depends on where a
#: row begins in a sector only, and rows of whole tiles begin alike whatever the dimension.
_LEADING = 8192


@dataclass(frozen=True)
class Load:
    """What a block asks of the machine. Figures may be negative where they are a correction of what slices do.

    Attributes:
        multiply_adds: in matrix instructions.
        tensor_instructions: matrix instructions of its warps, as PTX has them.
        shared_load_wavefronts, shared_store_wavefronts: passes through the banks of shared memory.
        global_load_requests, global_load_sectors: of its warps, and sectors of 32 bytes that they touch.
        global_store_requests, global_store_sectors: the same of stores.
        block_barriers: that it meets.
    """

    multiply_adds: int = 0
    tensor_instructions: int = 0
    shared_load_wavefronts: int = 0
    shared_store_wavefronts: int = 0
    global_load_requests: int = 0
    global_load_sectors: int = 0
    global_store_requests: int = 0
    global_store_sectors: int = 0
    block_barriers: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(*(getattr(self, name) + getattr(other, name) for name in _FIGURES))

    def __mul__(self, factor: int) -> Load:
        return Load(*(getattr(self, name) * factor for name in _FIGURES))

    def __sub__(self, other: Load) -> Load:
        return self + other * -1


_FIGURES = tuple(field.name for field in fields(Load))


@dataclass(frozen=True)
class Work:
    """What the blocks of one tile of D do, together: ``once``, and ``slice`` for each slice of K.

    There is one block, or several that share the slices of K.
    """

    once: Load
    slice: Load


def from_counts(shorter: Counts, longer: Counts, slices: tuple[int, int]) -> Work:
    """The work for a tile of D from counts of launches with one, on two lengths of K.

    Args:
        slices: of K in each of them.

    Raises:
        ValueError: the difference is no whole number of slices, so the kernel does not do the same in each.
    """
    first, second = (Load(*(getattr(counts, name) for name in _FIGURES)) for counts in (shorter, longer))
    more, steps = second - first, slices[1] - slices[0]
    if any(getattr(more, name) % steps for name in _FIGURES):
        raise ValueError(f"{steps} more slices add {more}")
    each = Load(*(getattr(more, name) // steps for name in _FIGURES))
    return Work(first - each * slices[0], each)


@lru_cache(maxsize=4096)
def of(config: KernelConfig) -> Work:
    """The work of ``config`` for a tile of D, where neither factor of the epilogue is 0 and each block has a slice."""
    return _Tile(config).work()


@lru_cache(maxsize=4096)
def finish(config: KernelConfig) -> Load:
    """The part of it that the block which comes last does alone: it adds the sums of all and stores the tile.

    Nothing where K is not split, or no block is the last one.
    """
    return _Tile(config).finish()


class _Tile:
    """The derived numbers of a configuration, and what its block does with them."""

    def __init__(self, config: KernelConfig) -> None:
        self._known = derive.values(config)
        self._ahead = config.crosses_slices
        self._meter = Meter()

    def __getattr__(self, name: str) -> Any:
        try:
            return self._known[name]
        except KeyError:
            raise AttributeError(f"{name} is no derived number") from None

    def work(self) -> Work:
        """Once, and for each slice."""
        warps = self.WARPS_M * self.WARPS_N
        steps = warps * self.K_STEPS
        products = steps * self.FRAGS_M * self.FRAGS_N
        each = Load(
            multiply_adds=products * self.INST_M * self.INST_N * self.INST_K,
            tensor_instructions=products,
        )
        # Atomics are every block's, another store that of one.
        once = self._stored() * (self.SPLIT_K if self._known["reduction_atomic"] else 1) + self._pointers()
        if self._known["reduction_workspace"]:
            once += self._left() * self.SPLIT_K + self._met()
        once += self._passed()
        if self._known["feed_shared"]:
            each += self._copies("A") + self._copies("B") + self._barriers()
            once += self._prologue() * self.SPLIT_K
        each += self._fragments() * self.K_STEPS
        if self._known["residency_global"]:
            # Sums are parked after every slice but the last, and come back before every slice but the first.
            there_and_back = self._sums(stores=True) + self._sums(stores=False)
            each, once = each + there_and_back, once - there_and_back
        return Work(once, each)

    def _pointers(self) -> Load:
        """Where arrays name the matrices of a batch, every warp loads the pointer to each of its own."""
        if not self._known["batch_pointers"]:
            return Load()
        read = sum(bool(self._known[f"with_{name}"]) for name in (*MATRICES, *VECTORS))
        loads: int = self.THREADS // WARP_SIZE * (3 + read)
        return Load(global_load_requests=loads, global_load_sectors=loads)

    def finish(self) -> Load:
        """What is done by the last block of a tile alone."""
        return self._met() + self._stored() if self._known["reduction_workspace"] else Load()

    def _left(self) -> Load:
        """What a block leaves in the workspace: its sums, tile after tile, and a ticket that it takes."""
        requests, sectors = self._requests(*self._sums_tile(self.D_TILE_COLS))
        return Load(
            global_store_requests=requests * self._tiles() + 1,
            global_store_sectors=sectors * self._tiles() + 1,
            block_barriers=2,
        )

    def _met(self) -> Load:
        """What the last block finds there: the sums of all."""
        requests, sectors = self._requests(*self._sums_tile(self.D_TILE_COLS))
        tiles = self._tiles() * self.SPLIT_K
        return Load(global_load_requests=requests * tiles, global_load_sectors=sectors * tiles)

    def _tiles(self) -> int:
        """Accumulator fragments of all warps."""
        return int(self.WARPS_M * self.WARPS_N * self.FRAGS_M * self.FRAGS_N)

    def _fragments(self) -> Load:
        """The operands of one step of K, of all warps."""
        a: int = self.WARPS_M * self.WARPS_N * self.FRAGS_M
        b: int = self.WARPS_M * self.WARPS_N * self.FRAGS_N
        return self._operand("A") * a + self._operand("B") * b

    def _prologue(self) -> Load:
        """What stands before the slices beside their own copies: a barrier, and where fragments cross slices a step.

        Every slice then loads the first step of the next one, and the last slice its own again: one step too many.
        """
        barrier = Load(block_barriers=1) if self._ahead or (self._known["copy_ld"] and self.STAGES == 2) else Load()
        return barrier + self._fragments() * int(self.WARPS_K) if self._ahead else barrier

    def _passed(self) -> Load:
        """What groups of warps pass on to those that store the sums: each lane its own, without conflicts."""
        if self.WARPS_K == 1:
            return Load()
        passes: int = (self.WARPS_K - 1) * self.GROUP_BYTES // WAVEFRONT * self.SPLIT_K
        return Load(
            shared_load_wavefronts=passes,
            shared_store_wavefronts=passes,
            block_barriers=(2 if self._known["feed_shared"] else 1) * self.SPLIT_K,
        )

    def _barriers(self) -> Load:
        single = self._known["copy_ld"] and self.STAGES == 1
        return Load(block_barriers=2 if single else 1)

    def _copies(self, operand: str) -> Load:
        """One slice of an operand on its way from global to shared memory."""
        element, align = self.A_BITS // 8, self._known[f"ALIGN_{operand}"]
        vectors, count = self._known[f"{operand}_ROW_VECTORS"], self._known[f"{operand}_COPIES"]
        copy = np.arange(count * self.THREADS)
        row, col = copy // vectors, copy % vectors * align
        _, sectors = self._meter.sectors(_by_warp((row * _LEADING + col) * element))
        staged = _by_warp(self._place(operand, row, col) * element)
        wavefronts, _ = self._meter.wavefronts(staged, self._known[f"{operand}_COPY_BYTES"])
        requests = len(copy) // WARP_SIZE
        return Load(shared_store_wavefronts=wavefronts, global_load_requests=requests, global_load_sectors=sectors)

    def _place(self, operand: str, row: Array, col: Array) -> Array:
        """Where an element of a slice lies in its stage."""
        lds = self._known[f"LDS_{operand}"]
        if not self._known[f"arrange_{operand.lower()}_tiles"]:
            return np.asarray(row * lds + col)
        rows, cols = self._known[f"{operand}_TILE_ROWS"], self._known[f"{operand}_TILE_COLS"]
        across, deep = self._known[f"{operand}_STEP_{'M' if operand == 'A' else 'N'}"], self._known[f"{operand}_STEP_K"]
        # Rows of a row-major A and of a column-major B run along K, so going down them leads across K.
        runs_along_k = self._known[f"{operand.lower()}_row_major"] is (operand == "A")
        along_rows, along_cols = (across, deep) if runs_along_k else (deep, across)
        return np.asarray(row // rows * along_rows + row % rows * lds + col // cols * along_cols + col % cols)

    def _operand(self, operand: str) -> Load:
        """One instruction tile of an operand as a fragment."""
        lines, length = self._known[f"{operand}_TILE_ROWS"], self._known[f"{operand}_TILE_COLS"]
        element = self.A_BITS // 8
        span = min(max(_WIDEST, 4 * element), length * element)
        leading = self._known[f"LDS_{operand}"] if self._known["feed_shared"] else _LEADING
        starts = _starts(lines, length * element, leading * element, span)
        if self._known["feed_shared"]:
            return Load(shared_load_wavefronts=self._passes(starts, span))
        requests, sectors = self._requests(starts, min(8, lines), span)
        return Load(global_load_requests=requests, global_load_sectors=sectors)

    def _passes(self, starts: Array, span: int) -> int:
        per_pass = WAVEFRONT // span
        return self._meter.wavefronts(starts.reshape(-1, per_pass), span)[0] if starts.size % per_pass == 0 else 0

    def _requests(self, starts: Array, lines: int, span: int) -> tuple[int, int]:
        pieces = starts[:, None] + np.arange(0, span, _WIDEST)
        return self._meter.sectors(pieces.reshape(-1, lines * pieces.shape[1]))

    def _sums_tile(self, leading: int, *, across: bool = False) -> tuple[Array, int, int]:
        """Where the pieces of a tile of sums begin, how many of them an instruction moves, and their bytes.

        A tile lies in lines of D, or ``across`` them. An instruction has lines of D as rows, so a lane holds neighbours
        of one; across, what is one piece along a line is an element of as many lines.
        """
        element = self.ACC_BITS // 8
        # Fragments 8 high are multiplied as their transposes: the two neighbours of a lane lie on two rows.
        lines, length = self.D_TILE_ROWS, self.D_TILE_COLS
        apart = element >= 4 and (lines == 8 and length == 32) is not across
        if across:
            lines, length = length, lines
        span = min(8 * element, length * element)
        starts = _starts(lines, length * element, leading * element, span, apart=apart)
        return starts, min(4 if apart else 8, lines), span

    def _sums(self, *, stores: bool, across: bool = False) -> Load:
        """All sums of the block between registers and global memory, as fragments."""
        requests, sectors = self._requests(*self._sums_tile(_LEADING, across=across))
        if stores:
            return Load(global_store_requests=requests, global_store_sectors=sectors) * self._tiles()
        return Load(global_load_requests=requests, global_load_sectors=sectors) * self._tiles()

    def _stored(self) -> Load:
        """The epilogue."""
        matrices = sum(bool(self._known[f"with_{matrix}"]) for matrix in MATRICES)
        if not self._known["store_staged"]:
            return self._sums(stores=True) + self._sums(stores=False, across=self._crossed) * matrices
        warps: int = self.WARPS_M * self.WARPS_N
        barrier = Load(block_barriers=1) if self._known["feed_shared"] or self.WARPS_K > 1 else Load()
        lane = np.arange(WARP_SIZE)
        once = self._columns_read(lane % self.D_ROW_VECTORS) if derive.same_columns(self._known) else Load()
        lines: int = self.FRAGS_M if self.d_row_major else self.FRAGS_N
        groups: int = self.WARPS_K
        return (self._row_of_tiles() * lines + once * groups) * warps + barrier

    @property
    def _crossed(self) -> bool:
        """Whether lines of C run across those of D."""
        return self.c_row_major is not self.d_row_major

    def _columns_read(self, vector: Array) -> Load:
        """The vectors of columns, of rows in a column-major D, of which each lane has number ``vector`` of a line."""
        found, of = Load(), "col" if self.d_row_major else "row"
        for name, nbytes in ((f"bias_{of}", self.ADDED_BYTES), (f"scale_{of}", self.SCALES_BYTES)):
            if self._known[f"with_{name}"]:
                found += self._pieces(vector * nbytes, nbytes)
        return found

    def _rows_read(self, row: Array) -> Load:
        """The vectors of rows, of columns in a column-major D, of which a lane has one element."""
        found, of = Load(), "row" if self.d_row_major else "col"
        for name, nbytes in ((f"bias_{of}", self.C_BITS // 8), (f"scale_{of}", 8 if self._known["acc_f64"] else 4)):
            if self._known[f"with_{name}"]:
                found += self._pieces(row * nbytes, nbytes)
        return found

    def _pieces(self, starts: Array, nbytes: int) -> Load:
        """Loads of ``nbytes`` from ``starts`` on, one for each lane, 16 bytes at a time at most."""
        found = Load()
        for piece in range(0, nbytes, _WIDEST):
            _, sectors = self._meter.sectors(_by_warp(starts + piece))
            found += Load(global_load_requests=starts.size // WARP_SIZE, global_load_sectors=sectors)
        return found

    def _row_of_tiles(self) -> Load:
        """One row of a warp's tiles, or one column, through its strip; rows and columns are those of the strip."""
        element = self.ACC_BITS // 8
        starts, _, span = self._sums_tile(self.LDS_D)
        into = self._passes(starts, span) * (self.FRAGS_N if self.d_row_major else self.FRAGS_M)
        store = np.arange(self.D_STORES * WARP_SIZE)
        row, col = store // self.D_ROW_VECTORS, store % self.D_ROW_VECTORS * self.ALIGN_D
        place = col // self.D_TILE_COLS * self.D_TILE + row * self.LDS_D + col % self.D_TILE_COLS
        read = 0
        for start in range(0, self.SUMS_BYTES, _WIDEST):
            nbytes = min(_WIDEST, self.SUMS_BYTES)
            read += self._meter.wavefronts(_by_warp(place * element + start), nbytes)[0]
        # A vector of D goes in one store, or element by element in atomics.
        elements = range(self.ALIGN_D if self._known["reduction_atomic"] else 1)
        places = ((row * _LEADING + col + e) * self.D_BITS // 8 for e in elements)
        sectors = sum(self._meter.sectors(_by_warp(place))[1] for place in places)
        out = Load(
            shared_store_wavefronts=into,
            shared_load_wavefronts=read,
            global_store_requests=self.D_STORES * len(elements),
            global_store_sectors=sectors,
        )
        for matrix in MATRICES:
            if self._known[f"with_{matrix}"] and not self._crossed:
                out += self._pieces((row * _LEADING + col) * self.C_BITS // 8, self.ADDED_BYTES)
            elif self._known[f"with_{matrix}"]:
                for e in range(self.ALIGN_D):
                    out += self._pieces(((col + e) * _LEADING + row) * self.C_BITS // 8, self.C_BITS // 8)
        out += self._rows_read(row)
        return out if derive.same_columns(self._known) else out + self._columns_read(store % self.D_ROW_VECTORS)


def _by_warp(addresses: Array) -> Array:
    return addresses.reshape(-1, WARP_SIZE)


def _starts(lines: int, length: int, stride: int, span: int, *, apart: bool = False) -> Array:
    """Where the pieces of a tile begin, lines first; lengths in bytes. Apart, even lines come before odd ones."""
    order = np.arange(lines)
    if apart:
        order = order.reshape(-1, 4, 2).swapaxes(1, 2).reshape(-1)
    return np.asarray((np.arange(0, length, span)[:, None] + order * stride).reshape(-1))
