"""What a device can do: loops compiled, proved right, timed, each in the best of several ways to fill the device.

A loop is timed only where its result on integers is exact, before and after; :mod:`wmmagen.loops` says why one that
leaves something out cannot pass. What could not be measured has a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from wmmagen import ceilings, chips, foundry, loops, trial
from wmmagen.arch import WARP_SIZE, Arch, occupancy
from wmmagen.backends import Backend, Bytes, Subject
from wmmagen.backends.pick import Place
from wmmagen.ceilings import Choice, Figure, Kind, Record
from wmmagen.errors import CompileError, Fault, LaunchFault, MissingPiece, RequestError
from wmmagen.foundry import Compiler, Order
from wmmagen.instructions import Instruction
from wmmagen.loops import MemoryLoop, Products, RegisterLoop, SharedLoop
from wmmagen.nvrtc import Binary
from wmmagen.timing import COLD_FACTOR, Data, Timing, TimingProtocol, floor_us

#: Blocks of each multiprocessor that are tried, where so many fit; beside them as many as fit.
BLOCKS = (1, 2)
#: The buffers of an L2 figure hold this part of it: chips whose L2 has two halves keep copies in both.
L2_PART = 4
#: Passes through buffers in one launch: enough for a hundred microseconds.
L2_PASSES = 128
DRAM_PASSES = 4
ACCESSES: tuple[loops.Access, ...] = ("read", "write", "copy")

#: Operands of the products that are measured where nobody says which.
TYPES = ("f16",)

#: Launches last milliseconds and do the same all the time, so that less of a warm-up and fewer samples do.
PROTOCOL = TimingProtocol(warmup_max_s=0.5, max_samples=100, max_seconds=2.0)

Tell = Callable[[Figure], None]


@dataclass(frozen=True)
class Ready:
    """A loop that was proved right, ready to be timed in turns with others.

    Attributes:
        loop: what it computes.
        binary: as it was compiled.
        blocks: of its launch.
        warps: of each multiprocessor.
        subject: with the data that was asked for.
    """

    loop: Products
    binary: Binary
    blocks: int
    warps: int
    subject: Subject

    @property
    def operations(self) -> float:
        """Of a launch."""
        return loops.operations(self.loop, self.blocks)


def measure(
    arch: Arch,
    place: Place,
    kinds: Sequence[Kind],
    data: Sequence[Data],
    protocol: TimingProtocol,
    compiler: Compiler = foundry.compile_source,
    tell: Tell = lambda figure: None,
    types: Sequence[str] = TYPES,
) -> Record:
    """Every limit of the kinds that are asked for.

    Args:
        arch: what the loops are compiled for; the device's own.
        place: where they run.
        kinds: which of them.
        data: on which data products are timed.
        protocol: how they are timed; its data are those of each figure.
        compiler: what compiles them.
        tell: is told each figure as soon as it is there.
        types: of the operands of products.

    Raises:
        MissingPiece: nothing here can time them, or there is no compiler.
        RequestError: the device is of another architecture.
    """
    backend = demanded(place, arch)
    figures = []
    for figure in _figures(arch, backend, kinds, data, protocol, compiler, types):
        tell(figure)
        figures.append(figure)
    return Record(backend.device, arch.name, backend.multiprocessors, backend.l2_bytes, tuple(figures))


def orders(arch: Arch, kinds: Sequence[Kind], types: Sequence[str] = TYPES) -> Iterator[Order]:
    """What :func:`measure` will have compiled, in its order, for those who compile ahead."""
    for _, loop in products_of(arch, kinds, types):
        yield Order(loop.text(arch), loop.entry, arch)
    if "memory" in kinds:
        for access in ACCESSES:
            yield Order(loops.memory_text(access), loops.memory_entry(access), arch)


def demanded(place: Place, arch: Arch) -> Backend:
    """The backend of ``place``, where times of ``arch`` are its own.

    Raises:
        MissingPiece: nothing here has a clock.
        RequestError: the device is of another architecture.
    """
    backend = place.demanded()
    if not backend.clocked:
        raise MissingPiece(f"{backend.device} has no clock that counts", "run it where there is a GPU")
    if backend.foreign(arch):
        raise RequestError(
            f"{backend.device} would run {arch} loops assembled again for it, and they would tell neither's limits",
            "leave --arch out",
        )
    return backend


def _figures(
    arch: Arch,
    backend: Backend,
    kinds: Sequence[Kind],
    data: Sequence[Data],
    protocol: TimingProtocol,
    compiler: Compiler,
    types: Sequence[str],
) -> Iterator[Figure]:
    for kind, loop in products_of(arch, kinds, types):
        yield from _products(kind, loop, arch, backend, data, protocol, compiler)
    if "memory" in kinds:
        for level in ("L2", "DRAM"):
            for access in ACCESSES:
                yield _memory(level, access, arch, backend, protocol, compiler)


def products_of(arch: Arch, kinds: Sequence[Kind], types: Sequence[str] = TYPES) -> Iterator[tuple[Kind, Products]]:
    """The loops of products that ``arch`` can run, by kind, on operands of ``types``."""
    able = [i for i in loops.made(types) if i.min_sm <= arch.sm]
    if "register" in kinds:
        yield from (("register", RegisterLoop(inst)) for inst in able)
    if "shared" in kinds:
        for inst in able:
            for tile in loops.tiles_of(inst):
                yield "shared", SharedLoop(inst, tile)


def register_words(inst: Instruction, data: Data) -> dict[str, str]:
    """What a register-only figure is called."""
    return {"a": inst.a.name, "acc": inst.acc.name, "shape": inst.shape, "data": data}


def _products(
    kind: Kind,
    loop: Products,
    arch: Arch,
    backend: Backend,
    data: Sequence[Data],
    protocol: TimingProtocol,
    compiler: Compiler,
) -> Iterator[Figure]:
    tile = {"tile": f"{loop.tile[0]}x{loop.tile[1]}"} if isinstance(loop, SharedLoop) else {}
    words = [(one, register_words(loop.inst, one) | tile) for one in data]
    try:
        binary = compiler(loop.text(arch), loop.entry, arch)
        counts = ways(loop, binary, arch, backend)
        for blocks in counts:
            demand_right(loop, binary, blocks, backend)
    except (CompileError, Fault) as error:
        yield from (Figure(kind, held, reason=error.message) for _, held in words)
        return
    for one, held in words:
        yield _timed(kind, held, loop, binary, counts, backend, replace(protocol, data=one))


def ways(loop: Products, binary: Binary, arch: Arch, backend: Backend) -> list[int]:
    """Numbers of blocks that fill the device evenly, fewest first.

    Raises:
        LaunchFault: not one block fits.
    """
    shared = loop.shared_bytes + binary.static_shared_bytes
    most = occupancy(arch, WARP_SIZE * loop.warps, binary.registers, shared)
    if not most:
        raise LaunchFault(f"no multiprocessor of {arch} holds a block of {loop.entry}")
    each = sorted({*(b for b in BLOCKS if b < most), most})
    return [backend.multiprocessors * blocks for blocks in each]


def demand_right(loop: Products, binary: Binary, blocks: int, backend: Backend) -> None:
    """Return where a launch of the loop on integers leaves the exact sums.

    Raises:
        LaunchFault: it does not.
        Fault: it could not be run.
    """
    held = loops.buffers(loop, blocks, "integers")
    returned = backend.run(binary, loops.launch(loop, blocks), held, limit_s=_limit(held))
    if text := loops.wrong(loop, blocks, loop.turns, returned):
        raise LaunchFault(text)


def _limit(buffers: Sequence[Bytes]) -> float:
    return trial.RUN_LIMIT_S + 2 * sum(buffer.nbytes for buffer in buffers) / trial.BYTES_PER_S


def subject(loop: Products, binary: Binary, blocks: int, data: Data) -> Subject:
    """What a backend times."""
    return Subject(binary, loops.launch(loop, blocks), loops.buffers(loop, blocks, data))


def _timed(
    kind: Kind,
    words: dict[str, str],
    loop: Products,
    binary: Binary,
    counts: Sequence[int],
    backend: Backend,
    protocol: TimingProtocol,
) -> Figure:
    """The best of the ways to fill the device, all of them timed in turns."""
    try:
        found = trial.compare([subject(loop, binary, n, protocol.data) for n in counts], backend, protocol)
        amounts = [loops.operations(loop, n) for n in counts]
        rates = [ceilings.rate(kind, a, t.median_us) for a, t in zip(amounts, found.timings, strict=True)]
        best = rates.index(max(rates))
        _demand_possible(found.timings[best], backend, operations=amounts[best], inst=loop.inst)
        demand_right(loop, binary, counts[best], backend)
    except Fault as fault:
        return Figure(kind, words, reason=fault.message)
    warps = [n // backend.multiprocessors * loop.warps for n in counts]
    return Figure(
        kind=kind,
        words=words,
        amount=amounts[best],
        warps=warps[best],
        registers=binary.registers,
        compiler=binary.compiler,
        timing=found.timings[best],
        tried=tuple(Choice(w, r) for w, r in zip(warps, rates, strict=True)),
    )


def _demand_possible(
    measured: Timing,
    backend: Backend,
    *,
    operations: float = 0.0,
    inst: Instruction | None = None,
    from_dram: float = 0.0,
) -> None:
    """Return where ``measured`` is within the published peaks of the device.

    Raises:
        LaunchFault: it is not, so the loop cannot have done what it should have.
    """
    chip = chips.find(backend.device)
    if chip is None:
        return
    clock_mhz = measured.clock_range_mhz[1] if measured.clock_range_mhz else None
    floor = floor_us(
        "cold",
        operations=operations,
        moved_bytes=from_dram,
        operations_per_s=None if inst is None else chip.per_s(inst.a.name, inst.acc.name, clock_mhz),
        dram_bytes_per_s=chip.dram_gb_per_s * 1e9,
    )
    if measured.median_us < floor:
        raise LaunchFault(f"{measured.median_us:g} us lies below the floor of {backend.device}, {floor:g} us: a fault")


def ready(inst: Instruction, arch: Arch, backend: Backend, protocol: TimingProtocol, compiler: Compiler) -> Ready:
    """The register-only loop of an instruction in the best way to fill the device, on the data of ``protocol``.

    Raises:
        CompileError: the compiler refuses it.
        Fault: it is wrong, or could not be run or timed.
        MissingPiece: there is no compiler.
    """
    loop = RegisterLoop(inst)
    binary = compiler(loop.text(arch), loop.entry, arch)
    counts = ways(loop, binary, arch, backend)
    for blocks in counts:
        demand_right(loop, binary, blocks, backend)
    figure = _timed("register", {}, loop, binary, counts, backend, protocol)
    if figure.timing is None:
        raise LaunchFault(figure.reason)
    blocks = figure.warps // loop.warps * backend.multiprocessors
    return Ready(loop, binary, blocks, figure.warps, subject(loop, binary, blocks, protocol.data))


# Memory --------------------------------------------------------------------------------------------------------------


def memory_loop(level: str, access: loops.Access, blocks_sm: int, backend: Backend) -> MemoryLoop:
    """The loop of an access: its buffers fit well into the L2, or hold several times of it.

    Raises:
        LaunchFault: the L2 is too small for the threads of a launch.
    """
    together = backend.l2_bytes * COLD_FACTOR if level == "DRAM" else backend.l2_bytes // L2_PART
    each = together // (2 if access == "copy" else 1)
    block = loops.MEMORY_THREADS * loops.VECTOR_BYTES
    # Threads without a vector of their own would read what others read.
    blocks_sm = min(blocks_sm, each // (block * backend.multiprocessors))
    if not blocks_sm:
        raise LaunchFault(f"an L2 of {backend.l2_bytes} bytes has no room for a block on each multiprocessor")
    threads = loops.MEMORY_THREADS * blocks_sm * backend.multiprocessors
    rounds = each // (threads * loops.VECTOR_BYTES)
    return MemoryLoop(access, threads, rounds, DRAM_PASSES if level == "DRAM" else L2_PASSES)


def _memory(
    level: str, access: loops.Access, arch: Arch, backend: Backend, protocol: TimingProtocol, compiler: Compiler
) -> Figure:
    words = {"level": level, "access": access}
    try:
        binary = compiler(loops.memory_text(access), loops.memory_entry(access), arch)
        loop = memory_loop(level, access, occupancy(arch, loops.MEMORY_THREADS, binary.registers, 0), backend)
        held = loop.buffers
        _demand_moved(loop, binary, held, backend)
        (timing,) = trial.compare([Subject(binary, loop.launch, held)], backend, protocol).timings
        _demand_possible(timing, backend, from_dram=loop.moved_bytes if level == "DRAM" else 0.0)
        _demand_moved(loop, binary, held, backend)
    except (CompileError, Fault) as error:
        return Figure("memory", words, reason=error.message)
    warps = loop.threads // WARP_SIZE // backend.multiprocessors
    reached = Choice(warps, ceilings.rate("memory", loop.moved_bytes, timing.median_us))
    return Figure(
        kind="memory",
        words=words,
        amount=loop.moved_bytes,
        warps=warps,
        registers=binary.registers,
        compiler=binary.compiler,
        timing=timing,
        tried=(reached,),
        bytes=sum(buffer.nbytes for buffer in held),
    )


def _demand_moved(loop: MemoryLoop, binary: Binary, held: Sequence[Bytes], backend: Backend) -> None:
    if text := loop.wrong(backend.run(binary, loop.launch, held, limit_s=_limit(held))):
        raise LaunchFault(text)
