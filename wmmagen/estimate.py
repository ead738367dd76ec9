"""How long a kernel should take on a chip, from what its blocks do and what the chip does per clock.

It is never a measurement.

The model is that of a roof with steps. Blocks run in waves: as many at a time as the chip holds, and the last wave may
be a small one. In a wave, all resident blocks of a multiprocessor make one slice of K after another. A slice asks each
resource of the multiprocessor for some cycles: the tensor units, the banks of shared memory, the issue slots, the L2,
the DRAM. Were they all to overlap perfectly, a slice would take as long as the slowest of them; were none to, their
sum. Kernels are in between: the work takes the root of the sum of squares, which is the slowest where it stands out,
and more where several are alike.

To the work come waits, in which a block multiplies nothing: for fragments, where no second set of them is loaded
meanwhile, for barriers, for a slice that is not there yet. Other resident blocks work meanwhile, so only the time in
which all of them wait at once is added. The limiting resource is the one with the largest time of its own.

What a block does is derived (:mod:`wmmagen.work`) or counted from its PTX (:mod:`wmmagen.profile`); registers and
spills are the compiler's where there is a binary, and predicted where not. What a chip does is in :mod:`wmmagen.chips`.
The constants below have a meaning each and no variant has one of its own. Where a document gives none, their value is
what put 120 variants on an H200 in their order (``sweeps/records/variants_sm_90_*_seed1_*``); another draw judges them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from wmmagen import derive, work
from wmmagen.arch import MAX_REGISTERS_PER_THREAD, REGISTERS_PER_SM, SCHEDULERS, WARP_SIZE, Arch, occupancy
from wmmagen.chips import Chip
from wmmagen.config import Batch, Copy, Feed, KernelConfig, Operation, Order, Problem, Reduction, Residency
from wmmagen.errors import ConfigError
from wmmagen.executor.counts import SECTOR
from wmmagen.records import Facts
from wmmagen.work import Load, Work

#: Microseconds of a launch in a graph that are no work of the kernel: those of an empty one on an H200
#: (``sweeps/records/sm_90_1024_sweep_NVIDIA_H200.txt``).
LAUNCH_US = 0.5
#: Cycles until a loaded value is there. From the L2: 188 on a T4 ("Dissecting the NVIDIA Turing T4 GPU via
#: Microbenchmarking"), about 260 on A100 and H100 ("Benchmarking and Dissecting the Nvidia Hopper GPU Architecture",
#: W. Luo and others, 2024), more under load. From shared memory about 30 on all of them (both).
L2_LATENCY, SHARED_LATENCY = 270, 30
#: What a byte that is written to the L2 costs, in bytes that are read from it: 8,415 GB/s and 4,239 GB/s on an H200
#: (``sweeps/records/ceiling_sm_90_NVIDIA_H200.txt``).
L2_WRITE = 2
#: Cycles of a dependent matrix instruction: 33 of m16n8k16 with f32 sums on an H100 (the latter).
MATRIX_LATENCY = 33
#: Cycles that a block's warps wait for the last of them at a barrier.
BARRIER_CYCLES = 30
#: Cycles in which a block begins: its addresses, its zeroed sums, its first instructions from memory.
BEGIN_CYCLES = 500
#: Bytes of spilled registers that a multiprocessor moves per clock: half of what shared memory does.
LOCAL_BYTES_PER_CLOCK = 64
#: Bytes of an operand that one load of four 8x8 matrices brings.
_LDSM_BYTES = 512
#: Machine instructions: of a copy past the registers and through them, with their addresses; of a load of matrices with
#: its address; of a slice's loop.
_ASYNC_COPY, _COPY, _MATRIX_LOAD, _LOOP = 3, 4, 2, 20
#: Multiply-adds of one machine instruction: HMMA.1688 of Turing, HMMA.16816 of its successors.
_TURING_PRODUCTS, _PRODUCTS = 1024, 2048
#: Of types whose machine instruction is another one: HMMA.1688 of tf32, DMMA.884.
_OTHER_PRODUCTS = {"tf32": 1024, "f64": 256}
#: Bytes that a warp loads of fragments by one instruction, where that is no LDSM: LDS.32 of tf32, LDS.64 of f64.
_OTHER_LOADS = {"tf32": 128, "f64": 256}
#: 2^10 bytes of L1 and shared memory together, by the first compute capability that has them.
#: Source: CUDA C++ Programming Guide, "Compute Capabilities", unified data cache.
_DATA_CACHE_KB = {75: 96, 80: 192, 86: 128, 87: 192, 89: 128, 90: 256, 120: 128}

#: Registers beside sums, operands and copies: places, counters, what the compiler keeps at hand.
_OTHER_REGISTERS = 32
#: Registers of a copy: a 64-bit pointer and an offset.
_COPY_REGISTERS = 3
#: What a compiler that is short of registers can do without: it computes pointers and places again.
_SPARE_REGISTERS, _SPARE_COPY_REGISTERS = 24, 2
#: Steps of Newton's method, which begin below the root of an increasing concave function and so never pass it.
_NEWTON = 8
#: A register that does not fit is stored and loaded again, 4 bytes each, in every step along K.
_SPILL_BYTES = 8


@dataclass(frozen=True)
class Footprint:
    """What a block takes of a multiprocessor.

    Attributes:
        registers: per thread.
        spill_bytes: stores and loads of spilled registers, per thread.
        stack_bytes: where they lie, per thread.
        resident: blocks on one multiprocessor.
        compiled: the compiler said so; else predicted.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    resident: int
    compiled: bool


def compiled(facts: Facts) -> Footprint:
    """What the compiler said."""
    return Footprint(facts.registers, facts.spill_bytes, facts.stack_bytes, max(facts.occupancy, 1), True)


def predicted(config: KernelConfig, arch: Arch) -> Footprint:
    """What the compiler is likely to say.

    Sums and operands of a step are in registers, a slice on its way through them too, and every copy has a pointer. In
    one stage a slice waits there while no operand is held; in two stages both are. Against 120 variants for sm_90, the
    registers of those that were free of limits were within 10 of this (standard deviation).
    """
    known = derive.values(config)
    tiles = (known["WARP_M"] + known["WARP_N"]) * config.inst.k
    operands = tiles * known["A_BITS"] // (32 * WARP_SIZE)
    staged = config.feed is Feed.SHARED
    copies = (known["A_COPIES"] + known["B_COPIES"]) if staged else config.frags.m + config.frags.n
    if staged and config.copy is Copy.LD:
        bits = known["A_COPIES"] * known["ALIGN_A"] + known["B_COPIES"] * known["ALIGN_B"]
        held = -(-bits * known["A_BITS"] // 32)
        operands = max(operands, held) if config.stages == 1 else operands + held
    wanted = known["ACC_REGISTERS"] + operands + _COPY_REGISTERS * copies + _OTHER_REGISTERS
    needed = wanted - _SPARE_REGISTERS - _SPARE_COPY_REGISTERS * copies
    limit = min(MAX_REGISTERS_PER_THREAD, REGISTERS_PER_SM // (known["THREADS"] * config.min_blocks) // 8 * 8)
    registers, excess = min(wanted, limit), max(needed - limit, 0)
    resident = occupancy(arch, known["THREADS"], registers, known["SHARED_BYTES"])
    return Footprint(registers, _SPILL_BYTES * known["GROUP_STEPS"] * excess, 4 * excess, max(resident, 1), False)


@dataclass(frozen=True)
class Estimate:
    """An estimated time, and what it is made of. Every time is in microseconds.

    Attributes:
        us: of one launch.
        limiting: the resource that alone would take longest.
        resources: how long each would take alone: ``tensor``, ``shared``, ``issue``, ``l2``, ``dram``; and ``latency``,
            in which all resident blocks wait at once.
        fill_us: of beginning and ending blocks, in which no slice is multiplied.
        launch_us: between launches.
        waves: of blocks; a whole number where the last one is full.
        footprint: of a block.
        chip: its name.
        tflops: 10^12 operations per second that ``us`` would be.
    """

    us: float
    limiting: str
    resources: Mapping[str, float]
    fill_us: float
    launch_us: float
    waves: float
    footprint: Footprint
    chip: str
    tflops: float

    @property
    def quantization(self) -> float:
        """The whole waves that run, for each wave of work; 1 where the last one is full."""
        return math.ceil(self.waves) / self.waves if self.waves else 1.0

    def as_json(self) -> dict[str, Any]:
        """An element of ``rows`` of ``estimate --json``, without the name."""
        return {
            "estimated_us": self.us,
            "tflops": self.tflops,
            "limiting": self.limiting,
            "resources": dict(self.resources),
            "fill_us": self.fill_us,
            "launch_us": self.launch_us,
            "waves": self.waves,
            "quantization": self.quantization,
            **asdict(self.footprint),
        }


def priced(operation: Operation, chip: Chip) -> bool:
    """Whether the chip's rate of the operation's products is known, so that there can be an estimate."""
    return _published(operation, chip) is not None


def estimate(
    config: KernelConfig,
    arch: Arch,
    chip: Chip,
    problem: Problem,
    *,
    footprint: Footprint | None = None,
    counted: Work | None = None,
) -> Estimate:
    """The time that one launch of ``config`` should take.

    Args:
        arch: that it is compiled for.
        chip: that it runs on.
        problem: warm: what fits into the L2 is there already.
        footprint: what the compiler said; None where it was not asked.
        counted: what its PTX does; None for what follows from the configuration.

    Raises:
        ConfigError: the chip's rate of such products is not known.
    """
    return _Launch(config, arch, chip, problem, footprint or predicted(config, arch), counted or work.of(config)).told()


class _Launch:
    """One launch on one chip."""

    def __init__(
        self, config: KernelConfig, arch: Arch, chip: Chip, problem: Problem, footprint: Footprint, done: Work
    ) -> None:
        self._config, self._chip, self._problem, self._footprint, self._work = config, chip, problem, footprint, done
        self._known = derive.values(config)
        self._sm = arch.sm
        self._rate = _rate(config, chip)
        self._warps = self._known["THREADS"] // WARP_SIZE
        #: Along K, of a warp in a slice.
        self._steps: int = self._known["GROUP_STEPS"]
        # A part of a block tile, or of a slice, costs as much as a whole one.
        sizes = zip((problem.m, problem.n, problem.k), "MNK", strict=True)
        *grid, slices = (-(-size // self._known[f"BLOCK_{axis}"]) for size, axis in sizes)
        self._grid = grid[0], grid[1]
        #: Of the block that has most of them; splits without one cost a beginning only.
        self._slices = -(-slices // config.split_k)
        #: What one block does once beside its slices, and what the last one of a tile does behind all of them.
        self._finish = work.finish(config)
        self._once = done.once - self._finish

    def told(self) -> Estimate:
        """The estimate."""
        blocks = self._grid[0] * self._grid[1] * self._problem.batch * self._config.split_k
        capacity = self._chip.multiprocessors * self._footprint.resident
        waves = blocks / capacity
        alone: dict[str, float] = {}
        cycles = fill = 0.0
        for count, number in ((capacity, blocks // capacity), (blocks % capacity, 1)):
            if not count or not number:
                continue
            resources, begun = self._slice(count), self._ends(count)
            busy = math.sqrt(sum(v * v for v in resources.values()))
            each = -(-count // self._chip.multiprocessors)
            took = _with_waits(busy, self._waits(busy, resources["l2"] / each), self._covering(each))
            for name, value in {**resources, "latency": took - busy}.items():
                alone[name] = alone.get(name, 0.0) + number * self._slices * value
            cycles += number * (self._slices * took + begun)
            fill += number * begun
        finished = self._finished() if blocks else 0.0
        cycles, fill = cycles + finished, fill + finished
        clock = self._chip.clock_mhz
        launch_us = LAUNCH_US + self._zeroed_us()
        us = cycles / clock + launch_us
        p = self._problem
        return Estimate(
            us=us,
            limiting=max(alone, key=lambda name: alone[name]) if alone and self._slices else "launch",
            resources={name: value / clock for name, value in alone.items()},
            fill_us=fill / clock,
            launch_us=launch_us,
            waves=waves,
            footprint=self._footprint,
            chip=self._chip.name,
            tflops=2.0 * p.batch * p.m * p.n * p.k / us / 1e6,
        )

    def _slice(self, blocks: int) -> dict[str, float]:
        """Cycles that each resource takes while ``blocks`` blocks of the grid make one slice each."""
        chip, one, spilled = self._chip, self._work.slice, self._spilled()
        each = -(-blocks // chip.multiprocessors)
        active = min(blocks, chip.multiprocessors)
        # A scheduler has its own tensor unit and issue slot: fewer warps than schedulers leave some idle.
        busy = min(SCHEDULERS, each * self._warps)
        sectors = one.global_load_sectors + L2_WRITE * one.global_store_sectors
        wavefronts = one.shared_load_wavefronts + one.shared_store_wavefronts
        far, farther = self._overflow(each, active)
        l2 = SECTOR * sectors + spilled * far
        return {
            "tensor": each * 2 * one.multiply_adds / self._rate * SCHEDULERS / busy,
            "shared": each * (wavefronts + spilled / LOCAL_BYTES_PER_CLOCK),
            "issue": each * self._issued() / busy,
            "l2": each * l2 / self._l2_share(active),
            "dram": self._operands_from_dram(blocks) + self._dram_cycles(blocks * spilled * farther),
        }

    def _covering(self, each: int) -> float:
        """How many wait on their own: blocks, or where no barrier binds the warps of a block, those of a scheduler."""
        return each if self._config.feed is Feed.SHARED else max(each * self._warps / SCHEDULERS, 1.0)

    def _l2_share(self, active: int) -> float:
        """Bytes per clock for each of ``active`` multiprocessors: one alone cannot take much more than its share."""
        chip = self._chip
        return chip.l2_bytes_per_clock * min(chip.multiprocessors / active, 2.0)

    def _dram_cycles(self, nbytes: float) -> float:
        return nbytes / (self._chip.dram_read * 1e3 / self._chip.clock_mhz)

    def _spilled(self) -> float:
        """Bytes of spilled registers that a block moves in a slice."""
        return float(self._footprint.spill_bytes * self._known["THREADS"])

    def _overflow(self, each: int, active: int) -> tuple[float, float]:
        """Which part of the spilled registers does not fit into the L1, and which not into the L2 either."""
        lying = each * self._footprint.stack_bytes * self._known["THREADS"]
        if not lying:
            return 0.0, 0.0
        first = max(_data_cache_bytes(self._sm) - each * self._known["SHARED_BYTES"], 0)
        far = max(0.0, 1 - first / lying)
        return far, far * max(0.0, 1 - self._chip.l2_mb * 2**20 / (lying * active))

    def _issued(self) -> float:
        """Machine instructions of a block's warps in a slice."""
        c, known, one = self._config, self._known, self._work.slice
        a = c.operation.a
        products = one.multiply_adds / (_TURING_PRODUCTS if self._sm < 80 else _OTHER_PRODUCTS.get(a.name, _PRODUCTS))
        tiles = (known["WARP_M"] + known["WARP_N"]) * c.inst.k * known["A_BITS"] // 8
        loads = max(tiles // _OTHER_LOADS.get(a.name, _LDSM_BYTES), 1) * self._steps * self._warps
        # What is rounded behind its load takes an instruction for each register.
        rounded = tiles // (4 * WARP_SIZE) * self._steps * self._warps if a.rounded else 0
        copies = 0
        if c.feed is Feed.SHARED:
            copies = one.global_load_requests * (_COPY if c.copy is Copy.LD else _ASYNC_COPY)
        else:
            loads = one.global_load_requests
        spilled = self._spilled() / (4 * WARP_SIZE)
        return float(products + _MATRIX_LOAD * loads + rounded + copies + spilled + _LOOP * self._warps)

    def _waits(self, busy: float, transfer: float) -> float:
        """Cycles of a slice in which no warp of a block can multiply, were the block alone.

        Args:
            busy: cycles that the slices of all resident blocks take; what was begun before is on its way meanwhile.
            transfer: cycles in which the L2 gives a block its slice.
        """
        c = self._config
        # With few tiles, a step's products wait for those of the step before, whose sums they go on with.
        waits = max(self._step_waits(), self._steps * MATRIX_LATENCY - busy)
        if c.residency is Residency.GLOBAL:
            waits += 2 * L2_LATENCY
        if c.feed is not Feed.SHARED:
            return waits
        if c.stages == 1:
            # All of it stands between products: the slice comes, is stored behind a barrier, and read behind another.
            return waits + L2_LATENCY + self._work.slice.shared_store_wavefronts + 2 * BARRIER_CYCLES
        if c.stages == 2 and c.copy is Copy.CPASYNC:
            # Its copies are begun step by step beside the products before, and a barrier behind those waits for all.
            # Through registers, the next slice is stored beside the last products.
            late = L2_LATENCY + transfer - busy / self._steps
        else:
            # The next slices come while those before them are multiplied, STAGES - 1 of them at a time.
            late = L2_LATENCY / (c.stages - 1) - busy
        return max(waits, late) + BARRIER_CYCLES

    def _step_waits(self) -> float:
        """Of these, those for fragments: before each step with one set of them, before the first of a slice with two.

        Where two sets of them cross slices there are none. The warps of a block begin a step together, so a scheduler
        waits until the first of its warps has its fragments: while half of as many warps as there are schedulers load.
        """
        c = self._config
        if c.crosses_slices:
            return 0.0
        one = self._work.slice.shared_load_wavefronts / (self._warps * self._steps)
        loaded = SHARED_LATENCY + one * min(self._warps, SCHEDULERS) / 2 if c.feed is Feed.SHARED else L2_LATENCY
        return (self._steps if c.fragment_buffers == 1 else 1) * loaded

    def _ends(self, blocks: int) -> float:
        """Cycles of a block's beginning and end: the first slice is waited for, and D is stored."""
        # A pointer out of an array comes before what it points to.
        found = L2_LATENCY if self._config.operation.batch is Batch.POINTERS else 0
        # Groups of warps pass their sums on between two barriers.
        passed = 2 * BARRIER_CYCLES + SHARED_LATENCY if self._config.warps_k > 1 else 0
        return BEGIN_CYCLES + 2 * L2_LATENCY + found + passed + self._moved(self._once, blocks) / self._config.split_k

    def _finished(self) -> float:
        """Cycles behind the last slice in which the last blocks of the tiles add the sums of all and store them."""
        if self._config.reduction is not Reduction.WORKSPACE:
            return 0.0
        # The ticket is a way to the L2 and back; then all sums of a tile come to one multiprocessor.
        return 2 * L2_LATENCY + self._moved(self._finish, self._grid[0] * self._grid[1])

    def _moved(self, once: Load, blocks: int) -> float:
        """Cycles in which ``blocks`` blocks move what stands beside slices, through the L2 and shared memory."""
        each = -(-blocks // self._chip.multiprocessors)
        sectors = L2_WRITE * max(once.global_store_sectors, 0) + max(once.global_load_sectors, 0)
        stored = each * SECTOR * sectors / self._l2_share(min(blocks, self._chip.multiprocessors))
        passes = each * max(once.shared_load_wavefronts + once.shared_store_wavefronts, 0)
        return float(max(stored, passes))

    def _zeroed_us(self) -> float:
        """Microseconds of zeroing D before a launch whose blocks add to it: a launch of its own, and its bytes."""
        if self._config.reduction is not Reduction.ATOMIC:
            return 0.0
        p, chip = self._problem, self._chip
        nbytes = L2_WRITE * p.m * p.n * self._known["D_BITS"] / 8
        return float(LAUNCH_US + nbytes / (chip.l2_bytes_per_clock * chip.multiprocessors) / chip.clock_mhz)

    def _operands_from_dram(self, blocks: int) -> float:
        """Cycles of the DRAM for one slice of a wave: what the L2 holds not from one wave, or launch, to the next."""
        p, known = self._problem, self._known
        element, size = known["A_BITS"] / 8, self._chip.l2_mb * 2**20
        # A matrix that all products of a batch share comes once.
        matrices = (p.batch if p.stride_a else 1) * p.m + (p.batch if p.stride_b else 1) * p.n
        operands = matrices * p.k * element
        result = p.batch * p.m * p.n * known["D_BITS"] / 8
        if operands + result <= size:
            return 0.0
        share = blocks / (self._grid[0] * self._grid[1] * p.batch * self._config.split_k)
        wave = self._wave_rows(blocks) * known["BLOCK_K"] * element
        if operands <= size:
            wave = min(wave, share * operands / max(self._slices, 1))
        return self._dram_cycles(wave + share * result / max(self._slices, 1))

    def _wave_rows(self, blocks: int) -> int:
        """Rows of A and columns of B that ``blocks`` blocks read: of whole products or splits, and a part."""
        p, known = self._problem, self._known
        whole, rest = divmod(blocks, self._grid[0] * self._grid[1])
        rows, cols = _together(self._config, rest, self._grid) if rest else (0, 0)
        sides = ((p.m, rows * known["BLOCK_M"], p.stride_a), (p.n, cols * known["BLOCK_N"], p.stride_b))
        # Where all products share a matrix, its lines come once.
        return sum(
            whole * full + part if stride or self._config.split_k > 1 else max(bool(whole) * full, part)
            for full, part, stride in sides
        )


def _with_waits(busy: float, waits: float, waiting: float) -> float:
    """How long ``busy`` cycles of work take, where each of ``waiting`` waits for ``waits`` cycles meanwhile.

    Nothing is done while all of them wait at once. Each waits for the part waits / t of the time t, at times of its
    own, so t (1 - (waits / t)^waiting) = busy. Alone, t is the sum; with many, the longer of both.
    """
    took = max(busy, waits)
    if not waits:
        return took
    for _ in range(_NEWTON):
        idle = waits * (waits / took) ** (waiting - 1)
        took += (busy + idle - took) / (1 + (waiting - 1) * idle / took)
    return max(took, busy)


def _rate(config: KernelConfig, chip: Chip) -> float:
    """Operations of matrix products that a multiprocessor does per clock, as WMMA reaches them."""
    o = config.operation
    rate = _published(o, chip)
    if rate is None:
        raise ConfigError(
            f"the rate of {chip.name} for {o.a.name} products summed in {o.acc.name} is not in the table of chips",
            "choose another --chip",
        )
    return rate * chip.share(o.a.name)


def _published(o: Operation, chip: Chip) -> float | None:
    return chip.per_clock(o.a.name, o.acc.name)


def _data_cache_bytes(sm: int) -> int:
    return _DATA_CACHE_KB[max((first for first in _DATA_CACHE_KB if first <= sm), default=75)] * 1024


def _together(config: KernelConfig, blocks: int, grid: tuple[int, int]) -> tuple[int, int]:
    """Block rows and block columns of D that the first ``blocks`` blocks of a launch lie in."""
    high, wide = grid
    if config.raster.order is Order.LINEAR:
        return min(-(-blocks // wide), high), min(blocks, wide)
    along, across = (high, wide) if config.raster.order is Order.GROUPED else (wide, high)
    group = min(config.raster.width, along)
    whole, rest = divmod(blocks, group * across)
    lines = min((whole + bool(rest)) * group, along)
    deep = across if whole else min(-(-rest // group), across)
    return (lines, deep) if config.raster.order is Order.GROUPED else (deep, lines)
