"""The CPU executor: runs the PTX of a kernel on NumPy arrays, and looks for what its values do not show.

It knows PTX and no GEMM. Where the hardware leaves something open it takes the worst: fragment layouts are random,
asynchronous copies land at the last moment that the waits allow, memory and registers hold nothing until they are
written, and two lanes that touch one byte without a barrier in between are reported whatever the values.

::

    result = executor.launch(ptx, "kernel", (4, 1, 1), (128, 1, 1), [Pointer(0), Pointer(1), 64], 0, buffers=[a, d])
    result.outputs[1]    # the bytes of d after the launch
    result.findings      # what went wrong, with code, PTX line, block, warp, lane and advice
    result.counts        # sectors, wavefronts, conflicts, matrix instructions, barriers …
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from wmmagen.errors import LaunchFault
from wmmagen.executor.clocks import Clocks
from wmmagen.executor.counts import SECTOR, Counts
from wmmagen.executor.findings import Finding
from wmmagen.executor.machine import Machine, make_spaces
from wmmagen.executor.memory import LOCAL_BEGIN, SHARED_BEGIN, SLOT_BITS, WARP, GlobalSpace, Order, buffer_addresses
from wmmagen.executor.program import Program, load
from wmmagen.executor.ptx import TYPE_BITS, Parameter, Variable
from wmmagen.executor.scheduler import Scheduler

__all__ = ["BUDGET", "Argument", "Counts", "Finding", "Pointer", "Result", "Table", "launch"]

Bytes = npt.NDArray[np.uint8]

#: Instructions that a launch may run, those of all lanes that run together counted once.
BUDGET = 20_000_000
MAX_THREADS = 1024
MAX_GRID, MAX_BLOCK = (2**31 - 1, 65_535, 65_535), (1024, 1024, 64)
#: What the state of a launch may need, in bytes; see :func:`_demand_memory`.
MAX_STATE = 4 << 30
#: Of each granule of memory: what is known of it. Of each lane: a register of 64 bits, and who it is.
_PER_GRANULE, _PER_REGISTER, _PER_LANE = 20, 8, 64
#: Of each granule and block, where strong operations are followed: its last read.
_PER_READ = 4
_POINTER_TYPES = ("u64", "b64", "s64")


@dataclass(frozen=True)
class Pointer:
    """A kernel argument: an address ``offset`` bytes into buffer number ``buffer`` of the launch."""

    buffer: int
    offset: int = 0


@dataclass(frozen=True)
class Table:
    """A kernel argument: the address of buffer number ``buffer``, which begins with the addresses of ``pointers``."""

    buffer: int
    pointers: tuple[Pointer, ...]


#: What a launch gives a kernel.
Argument = Pointer | Table | int | float


@dataclass(frozen=True)
class Result:
    """What a launch left behind.

    Attributes:
        outputs: the bytes of every buffer.
        findings: what went wrong, the first of each kind at each instruction.
        counts: what it moved and computed.
    """

    outputs: tuple[Bytes, ...]
    findings: tuple[Finding, ...]
    counts: Counts


def launch(
    ptx: str,
    entry: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    args: Sequence[Argument],
    shared_bytes: int,
    *,
    buffers: Sequence[npt.NDArray[Any]] = (),
    seed: int = 0,
    strict_isa: bool = False,
    budget: int = BUDGET,
    limit_s: float | None = None,
    argument_bytes: Sequence[int] | None = None,
) -> Result:
    """Run a kernel.

    Args:
        ptx: the text.
        entry: the symbol of the kernel.
        grid: blocks in x, y, z.
        block: threads in x, y, z.
        args: in the kernel's order; a number is passed in the type of its parameter.
        shared_bytes: dynamic shared memory per block.
        buffers: global memory, arrays of any type and shape; they are copied, not changed.
        seed: of the fragment layouts.
        strict_isa: whether rows of fragments are also held to the PTX ISA's alignment.
        budget: see :data:`BUDGET`.
        limit_s: seconds that the launch may take; None for any number.
        argument_bytes: how many bytes of each of ``args`` a driver would be given; None where no other one is asked.

    Raises:
        PtxError: the text cannot be read, or has an instruction that is not known; names it and its line.
        LaunchFault: the launch is not the kernel's: symbol, sizes, arguments; or it needs too much memory here.
        TimeoutFault: it did not end within ``budget`` instructions or ``limit_s`` seconds.
    """
    program = load(ptx, entry)
    _check_sizes(program, grid, block, shared_bytes)
    _check_signature(program, argument_bytes)
    copies = [np.ascontiguousarray(buffer).reshape(-1).view(np.uint8) for buffer in buffers]
    for number, table in enumerate(args):
        if isinstance(table, Table):
            copies[table.buffer] = _filled(number, table, copies)
    machine = _machine(program, grid, block, args, shared_bytes, copies, seed, strict_isa=strict_isa)
    # Infinities and NaN are values here, and integers wrap.
    with np.errstate(all="ignore"):
        Scheduler(program, machine, budget, limit_s).run()
    machine.finish()
    memory = machine.spaces["global"]
    assert isinstance(memory, GlobalSpace)
    outputs = tuple(memory.buffer(number) for number in range(len(copies)))
    return Result(outputs, machine.log.all(), machine.counts)


def _filled(number: int, table: Table, buffers: Sequence[Bytes]) -> Bytes:
    """The buffer of a table with the addresses in it.

    Raises:
        LaunchFault: it, or what a pointer of it points into, is no buffer of the launch, or has no room for them.
    """
    places = buffer_addresses(len(buffers))
    held = np.array([_address(number, pointer, places) for pointer in table.pointers], np.int64).view(np.uint8)
    _address(number, Pointer(table.buffer), places)
    buffer = buffers[table.buffer].copy()
    if held.size > buffer.size:
        raise LaunchFault(f"argument {number} needs {held.size} bytes in buffer {table.buffer} of {buffer.size}")
    buffer[: held.size] = held
    return buffer


def _address(number: int, pointer: Pointer, starts: npt.NDArray[Any]) -> int:
    if not 0 <= pointer.buffer < len(starts):
        raise LaunchFault(f"argument {number} points into buffer {pointer.buffer} of {len(starts)}")
    return int(starts[pointer.buffer]) + pointer.offset


def _check_sizes(program: Program, grid: Sequence[int], block: Sequence[int], shared_bytes: int) -> None:
    threads = block[0] * block[1] * block[2]
    most = program.kernel.max_threads or MAX_THREADS
    if min(*grid, *block) < 1 or threads > most:
        raise LaunchFault(f"a grid of {tuple(grid)} and a block of {tuple(block)}: threads must be 1 to {most}")
    for what, sizes, limits in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        if any(size > limit for size, limit in zip(sizes, limits, strict=True)):
            raise LaunchFault(f"a {what} of {tuple(sizes)} is larger than {limits}")
    if shared_bytes < 0:
        raise LaunchFault(f"{shared_bytes} bytes of shared memory cannot be asked for")


def _check_signature(program: Program, given: Sequence[int] | None) -> None:
    """Refuse arguments of other widths than the parameters', as a card does, which reads past them otherwise."""
    expected = [parameter.size for parameter in program.kernel.parameters]
    if given is not None and list(given) != expected:
        raise LaunchFault(f"the kernel takes arguments of {expected} bytes, and the launch gives {list(given)}")


def _machine(
    program: Program,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    args: Sequence[Argument],
    shared_bytes: int,
    buffers: list[Bytes],
    seed: int,
    *,
    strict_isa: bool,
) -> Machine:
    blocks = grid[0] * grid[1] * grid[2]
    warps_per_block = -(-block[0] * block[1] * block[2] // WARP)
    wanted = {name: program.variables[name] for name, _ in program.addresses}
    module = [variable for variable in wanted.values() if variable.space in ("global", "const")]
    shared, shared_size = _placed(wanted.values(), "shared", SHARED_BEGIN, shared_bytes)
    local, local_size = _placed(wanted.values(), "local", LOCAL_BEGIN, 0)
    in_global = sum(buffer.nbytes for buffer in buffers) + sum(variable.size for variable in module)
    _demand_memory(program, blocks, blocks * warps_per_block * WARP, shared_size, local_size, in_global)
    order = Order(blocks * warps_per_block, blocks)
    memories = [*buffers, *(_initial(variable) for variable in module)]
    spaces = make_spaces(memories, shared_size, local_size, program.granules, order)
    starts = spaces["global"].starts  # type: ignore[attr-defined]
    places = {**shared, **local, **{v.name: int(starts[len(buffers) + n]) for n, v in enumerate(module)}}
    parameters = _parameters(program, args, starts[: len(buffers)])
    machine = Machine(
        program.constants, program.unwritten, grid, block, spaces, order, parameters, seed, strict_isa=strict_isa
    )
    if program.strong:
        order.clocks = Clocks(order.lanes, blocks, order.warp_since, order.block_since, machine.absent)
        spaces["global"].shadow.follow_strong(order.clocks)
    for (name, bits), number in program.addresses.items():
        machine.registers[number] = (np.uint32 if bits == 32 else np.uint64)(places[name])
    for name, number in program.specials.items():
        kept = machine.registers[number].dtype
        machine.registers[number] = _special(machine, name).astype(kept)
    return machine


def _demand_memory(program: Program, blocks: int, lanes: int, shared: int, local: int, in_global: int) -> None:
    """Refuse a launch whose state would not fit, before anything is allocated; sizes in bytes of one owner.

    Raises:
        LaunchFault: it needs more than :data:`MAX_STATE`.
    """
    granules = shared * blocks // program.granules["shared"] + in_global // program.granules["global"] + local * lanes
    needed = (
        lanes * (len(program.constants) * _PER_REGISTER + _PER_LANE)
        + granules * _PER_GRANULE
        + shared * blocks
        + in_global
    )
    needed += blocks * (in_global // SECTOR)
    if program.strong:
        needed += blocks * in_global // program.granules["global"] * _PER_READ
    if needed > MAX_STATE:
        raise LaunchFault(
            f"{blocks} blocks, {lanes} threads and their memory need {needed >> 20} MiB, and the CPU executor takes "
            f"{MAX_STATE >> 20} MiB at most",
            "run a smaller problem here, or this one on a GPU",
        )


def _placed(variables: Any, space: str, begin: int, dynamic: int) -> tuple[dict[str, int], int]:
    """Addresses of the variables of a space, and how many bytes they need; what is dynamic comes last.

    Each starts at an odd multiple of its alignment, so that nobody counts on more.
    """
    places: dict[str, int] = {}
    at = begin
    for variable in sorted((v for v in variables if v.space == space), key=lambda v: (v.size == 0, v.name)):
        at = -(-at // variable.align) * variable.align
        if at // variable.align % 2 == 0:
            at += variable.align
        places[variable.name] = at
        # All arrays without a size are one: the dynamic memory.
        at += variable.size
    return places, at - begin + dynamic


def _initial(variable: Variable) -> Bytes:
    data = np.zeros(variable.size, np.uint8)
    data[: len(variable.data)] = np.frombuffer(variable.data, np.uint8)
    return data


def _special(machine: Machine, name: str) -> npt.NDArray[Any]:
    """A special register of every lane."""
    lanes = machine.every
    within = lanes % machine.per_block
    if name == "%laneid":
        return lanes % WARP
    if name == "%warpid":
        return within // WARP
    axis = "xyz".index(name[-1])
    sizes = machine.block if "tid" in name and "ctaid" not in name else machine.grid
    if name.startswith(("%ntid", "%nctaid")):
        return np.asarray(sizes[axis])
    number = within if name.startswith("%tid") else lanes // machine.per_block
    return np.asarray(number // int(np.prod(sizes[:axis])) % sizes[axis])


def _parameters(program: Program, args: Sequence[Argument], starts: npt.NDArray[Any]) -> bytes:
    """The kernel's parameters as it finds them in memory."""
    parameters = program.kernel.parameters
    if len(args) != len(parameters):
        raise LaunchFault(f"the kernel takes {len(parameters)} arguments, and the launch gives {len(args)}")
    packed = b""
    for number, (parameter, value) in enumerate(zip(parameters, args, strict=True)):
        packed += b"\0" * (-len(packed) % (TYPE_BITS[parameter.type] // 8))
        packed += _argument(number, parameter, value, starts)
    return packed


def _argument(number: int, parameter: Parameter, value: Argument, starts: npt.NDArray[Any]) -> bytes:
    bits, floating = TYPE_BITS[parameter.type], parameter.type[0] == "f"
    refused = LaunchFault(f"argument {number} = {value} does not fit the kernel's parameter of type {parameter.type}")
    if parameter.size != bits // 8:
        raise refused
    if isinstance(value, Table):
        value = Pointer(value.buffer)
    if isinstance(value, Pointer):
        if abs(value.offset) >= 1 << SLOT_BITS:
            raise refused
        if parameter.type not in _POINTER_TYPES:
            raise refused
        return struct.pack("<q", _address(number, value, starts))
    if not isinstance(value, Real):
        raise refused
    if floating or not isinstance(value, Integral):
        if (not floating and parameter.type not in ("b32", "b64")) or bits < 32:
            raise refused
        try:
            return struct.pack("<f" if bits == 32 else "<d", float(value))
        except OverflowError:
            raise refused from None
    value = int(value)
    if not -(1 << bits - 1) <= value < 1 << bits:
        raise refused
    return (value % (1 << bits)).to_bytes(bits // 8, "little")
