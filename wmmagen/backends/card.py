"""One GPU through the CUDA driver: load, copy, launch, replay. Imported by the child process alone."""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import math
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import numpy as np

# The CUDA packages keep their stubs and markers where mypy does not look.
from cuda.bindings import driver, nvml
from cuda.core import Device, EventOptions, Kernel, LaunchConfig, ObjectCode, Stream
from cuda.core import launch as enqueue

# Every public function raises it, no public module exports it.
from cuda.core._utils.cuda_utils import CUDAError
from cuda.core.graph import Graph

from wmmagen.backends import Bytes, Double, Launch, Pointer, Table, Wide, Zeroed, sensor
from wmmagen.errors import LaunchFault
from wmmagen.timing import PARTLY_COLD, Comparison, Rotation, TimingProtocol, compare, rotation

#: What every instruction that wmmagen generates may count on.
ALIGNMENT = 256
_LOADED_MODULES = 8
_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_DIMENSION = range(1, 2**31)
_FLOAT_MAX = float(np.finfo(np.float32).max)

#: Of the free memory, what the copies of cold subjects may take; the rest is for graphs and code.
_MEMORY_SHARE = 0.8
_WARM = Rotation(1, True)

_Argument = int | np.int32 | np.int64 | np.float32 | np.float64
#: Where the buffers of a launch lie, in their order.
Addresses = Sequence[int]


class DriverError(Exception):
    """A call of the driver returned something other than success."""

    def __init__(self, code: Any, call: str) -> None:
        _, text = driver.cuGetErrorString(code)
        super().__init__(f"{code.name}: {text.decode() if text else 'unknown'} ({call})")
        self.name: str = code.name


def driver_values(function: Callable[..., Any], *arguments: object) -> list[Any]:
    """The values of a driver call.

    Raises:
        DriverError: it did not succeed.
    """
    code, *values = function(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(code, getattr(function, "__name__", "driver"))
    return list(values)


def call(function: Callable[..., Any], *arguments: object) -> Any:
    """The first value of a driver call, None where it has none; raises as :func:`driver_values` does."""
    return next(iter(driver_values(function, *arguments)), None)


class Enqueued(Protocol):
    """What can be launched again and again: a kernel, or a call of a library."""

    def enqueue(self, stream: Any) -> None:
        """Launch on a stream of cuda.core, or into a graph builder of it."""


class Recipe(Protocol):
    """How the card comes to something that it can time: bytes to place, and what to launch on them."""

    @property
    def buffers(self) -> Sequence[Bytes]:
        """What is placed, once for each copy."""

    def prepare(self, card: Card, copies: Sequence[Addresses]) -> Sequence[Enqueued]:
        """For each copy of the buffers, the launch that works on it."""


class Card:
    """A GPU with a context, a stream, its sensors and the modules that were used last.

    Args:
        device_index: the driver's number of the device.
    """

    #: What its methods raise beside :class:`wmmagen.errors.Fault`.
    errors: tuple[type[Exception], ...] = (CUDAError, DriverError, nvml.NvmlError)

    def __init__(self, device_index: int) -> None:
        self._device = Device(device_index)
        self._device.set_current()
        self._handle = call(driver.cuDeviceGet, device_index)
        self._stream = self._device.create_stream()
        self._modules: collections.OrderedDict[bytes, ObjectCode] = collections.OrderedDict()
        self._sensor = sensor.find(self._device.pci_bus_id)

    def alive(self) -> bool:
        """Whether the context still works. A kernel that broke it breaks this call too."""
        return bool(driver.cuCtxSynchronize()[0] == driver.CUresult.CUDA_SUCCESS)

    def run(self, recipe: Recipe) -> list[Bytes]:
        """Launch what the recipe makes once and return all buffers as it left them."""
        with _Memory(self._stream) as memory:
            (addresses,) = memory.place(recipe.buffers)
            (copy,) = recipe.prepare(self, [addresses])
            copy.enqueue(self._stream)
            self._stream.sync()
            return memory.fetch(addresses, [buffer.nbytes for buffer in recipe.buffers])

    def compare(self, recipes: Sequence[Recipe], protocol: TimingProtocol) -> Comparison:
        """Time what the recipes make, in turns, by ``protocol``; all of it stays on the device until the end."""
        with contextlib.ExitStack() as stack:
            memory = stack.enter_context(_Memory(self._stream))
            subjects: list[_Replays] = []
            for number, recipe in enumerate(recipes):
                turning = self._rotation(recipe, protocol, len(recipes) - number)
                copies = recipe.prepare(self, memory.place(recipe.buffers, turning.copies))
                # Code is loaded to the device by the first launch, which belongs into no replay.
                copies[0].enqueue(self._stream)
                self._stream.sync()
                flags = () if turning.cold else (PARTLY_COLD,)
                subjects.append(stack.enter_context(_Replays(self._device, self._stream, copies, flags)))
            return compare(subjects, protocol, sensor=self._sensor)

    def _rotation(self, recipe: Recipe, protocol: TimingProtocol, subjects_left: int) -> Rotation:
        if protocol.mode == "warm":
            return _WARM
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
        free, _ = driver_values(driver.cuMemGetInfo)
        return rotation(
            sum(buffer.nbytes for buffer in recipe.buffers),
            call(driver.cuDeviceGetAttribute, attribute, self._handle),
            int(_MEMORY_SHARE * free) // subjects_left,
            protocol.max_launches,
        )

    def attributes(self, cubin: bytes, entry: str) -> dict[str, int]:
        """What the driver says about the kernel: registers and bytes per thread, bytes per block, threads."""
        attributes = self._kernel(cubin, entry).attributes
        return {
            "registers": attributes.num_regs,
            "local_bytes": attributes.local_size_bytes,
            "static_shared_bytes": attributes.shared_size_bytes,
            "max_threads": attributes.max_threads_per_block,
            "sm": attributes.binary_version,
        }

    def prepare(self, cubin: bytes, launch: Launch, addresses: Addresses) -> Enqueued:
        """The launch of a kernel on the buffers at ``addresses``.

        Raises:
            LaunchFault: it cannot be launched like that.
        """
        _check_numbers(launch)
        kernel = self._kernel(cubin, launch.entry)
        _check_signature(kernel, launch)
        self._allow_shared(kernel, launch.shared_bytes)
        self._fill_tables(launch, addresses)
        arguments = [_argument(addresses, number, value) for number, value in enumerate(launch.arguments)]
        config = LaunchConfig(grid=launch.grid, block=launch.block, shmem_size=launch.shared_bytes)
        return _Prepared(kernel, config, arguments, _zeroing(addresses, launch.zeroed))

    def _fill_tables(self, launch: Launch, addresses: Addresses) -> None:
        """Write the addresses that the launch's tables hold, each into its buffer."""
        for number, table in enumerate(launch.arguments):
            if isinstance(table, Table) and table.pointers:
                target = _address(addresses, number, table.buffer)
                held = np.array([_address(addresses, number, p.buffer) + p.offset for p in table.pointers], np.uint64)
                call(driver.cuMemcpyHtoDAsync, target, held.ctypes.data, held.nbytes, self._stream.handle)
                # The array goes when this ends.
                self._stream.sync()

    def _kernel(self, cubin: bytes, entry: str) -> Kernel:
        key = hashlib.sha256(cubin).digest()
        module = self._modules.pop(key, None) or ObjectCode.from_cubin(cubin)
        kernel = module.get_kernel(entry)
        self._modules[key] = module
        if len(self._modules) > _LOADED_MODULES:
            self._modules.popitem(last=False)
        return kernel

    def _allow_shared(self, kernel: Kernel, shared_bytes: int) -> None:
        """Opt in to more than 48 KB. Set for every launch: a module stays loaded, and so would the last one's value."""
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(driver.cuKernelSetAttribute, attribute, shared_bytes, kernel.handle, self._handle)


class _Memory:
    """Device memory that is given back on leaving."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._addresses: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        for address in self._addresses:
            # In a broken context this fails as well; what broke it is the error to be told.
            (code,) = driver.cuMemFree(address)
            if kind is None and code != driver.CUresult.CUDA_SUCCESS:
                raise DriverError(code, "cuMemFree")

    def place(self, buffers: Sequence[Bytes], copies: int = 1) -> list[Addresses]:
        """Copy the buffers to the device, ``copies`` times. The host's arrays may go afterwards."""
        placed = [[self._allocate(buffer.nbytes) for buffer in buffers] for _ in range(copies)]
        first, *others = placed
        for address, buffer in zip(first, buffers, strict=True):
            if buffer.nbytes:
                call(driver.cuMemcpyHtoDAsync, address, buffer.ctypes.data, buffer.nbytes, self._stream.handle)
        for other in others:
            for target, source, buffer in zip(other, first, buffers, strict=True):
                if buffer.nbytes:
                    call(driver.cuMemcpyDtoDAsync, target, source, buffer.nbytes, self._stream.handle)
        self._stream.sync()
        return list(placed)

    def _allocate(self, size: int) -> int:
        address = int(call(driver.cuMemAlloc, max(size, 1)))
        self._addresses.append(address)
        if address % ALIGNMENT:
            raise LaunchFault(f"the driver allocated at {address:#x}, which is not aligned to {ALIGNMENT} bytes")
        return address

    def fetch(self, addresses: Addresses, sizes: Sequence[int]) -> list[Bytes]:
        """What lies there now."""
        results = [np.empty(size, np.uint8) for size in sizes]
        for address, result in zip(addresses, results, strict=True):
            if result.nbytes:
                call(driver.cuMemcpyDtoHAsync, result.ctypes.data, address, result.nbytes, self._stream.handle)
        self._stream.sync()
        return results


def _argument(addresses: Addresses, number: int, value: Pointer | Table | Wide | int | float) -> _Argument:
    """The argument in the type by which cuda.core tells its width: a Python int is taken for an address."""
    if isinstance(value, Double):
        return np.float64(value)
    if isinstance(value, float):
        return np.float32(value)
    if isinstance(value, Wide):
        return np.int64(value.value)
    if isinstance(value, Table):
        return _address(addresses, number, value.buffer)
    if isinstance(value, Pointer):
        return _address(addresses, number, value.buffer) + value.offset
    return np.int32(value)


def _address(addresses: Addresses, number: int, buffer: int) -> int:
    """Where a buffer lies that argument ``number`` names.

    Raises:
        LaunchFault: there is none.
    """
    if not 0 <= buffer < len(addresses):
        raise LaunchFault(f"argument {number} points into buffer {buffer}, but there are {len(addresses)} buffers")
    return addresses[buffer]


def _zeroing(addresses: Addresses, rows: Zeroed | None) -> tuple[int, ...]:
    """The arguments with which the driver zeroes rows, without the stream; none where nothing is zeroed."""
    if rows is None:
        return ()
    return addresses[rows.start.buffer] + rows.start.offset, rows.pitch, 0, rows.width, rows.rows


def _check_numbers(launch: Launch) -> None:
    """Refuse what the driver's interface cannot even be told."""
    for what, sizes in (("grid", launch.grid), ("block", launch.block)):
        if not all(size in _DIMENSION for size in sizes):
            raise LaunchFault(f"a {what} of {sizes} cannot be launched: each size must be from 1 to {_DIMENSION[-1]}")
    if launch.shared_bytes not in range(2**31):
        raise LaunchFault(f"{launch.shared_bytes} bytes of shared memory cannot be asked for")
    for number, value in enumerate(launch.arguments):
        if isinstance(value, int) and value not in _INT32:
            raise LaunchFault(f"argument {number} = {value} does not fit a 32-bit int")
        if isinstance(value, Wide) and value.value not in _INT64:
            raise LaunchFault(f"argument {number} = {value.value} does not fit a 64-bit int")
        if isinstance(value, Double):
            continue
        if isinstance(value, float) and math.isfinite(value) and abs(value) > _FLOAT_MAX:
            raise LaunchFault(f"argument {number} = {value} does not fit a 32-bit float")


def _check_signature(kernel: Kernel, launch: Launch) -> None:
    """Refuse arguments that are not the kernel's: the driver would read past them without a word."""
    try:
        expected = [info.size for info in kernel.arguments_info]
    except NotImplementedError:
        # Drivers before 12.4 do not tell.
        return
    given = launch.argument_bytes
    if given != expected:
        raise LaunchFault(f"the kernel takes arguments of {expected} bytes, and the launch gives {given}")


class _Prepared:
    """A kernel with everything that one launch of it needs."""

    def __init__(
        self, kernel: Kernel, config: LaunchConfig, arguments: Sequence[_Argument], zeroing: tuple[int, ...]
    ) -> None:
        self._kernel = kernel
        self._config = config
        self._arguments = tuple(arguments)
        self._zeroing = zeroing

    def enqueue(self, stream: Any) -> None:
        """Launch on a stream, or into a graph that is being built; what is zeroed is so before every launch."""
        if self._zeroing:
            _, handle = stream.__cuda_stream__()
            call(driver.cuMemsetD2D8Async, *self._zeroing, handle)
        enqueue(stream, self._config, self._kernel, *self._arguments)


class _Replays:
    """CUDA graphs that launch copies in turn, for :func:`wmmagen.timing.compare`.

    Launch number i is that of copy i modulo their number, and a graph holds whole turns: from the last launch of a
    replay to the first of the next, the rotation goes on.
    """

    def __init__(self, device: Device, stream: Stream, copies: Sequence[Enqueued], flags: tuple[str, ...]) -> None:
        self.flags = flags
        self._device = device
        self._stream = stream
        self._copies = copies
        self._graph: Graph | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._close()

    def prepare(self, launches: int) -> _Replay:
        self._close()
        turns = -(-launches // len(self._copies))
        self._graph = self._capture(turns)
        self._graph.upload(self._stream)
        return _Replay(self._device, self._stream, self._graph, turns * len(self._copies))

    def _close(self) -> None:
        """Wait for what is still queued, then give the graph back."""
        if self._graph is not None:
            graph, self._graph = self._graph, None
            self._stream.sync()
            graph.close()

    def _capture(self, turns: int) -> Graph:
        builder = self._device.create_graph_builder()
        try:
            builder.begin_building()
            for _ in range(turns):
                for copy in self._copies:
                    copy.enqueue(builder)
            return builder.end_building().complete()
        finally:
            # Also ends a capture that failed half-way, during which the context could not be asked whether it lives.
            builder.close()


class _Replay:
    """A graph that can be queued, between two events of its own."""

    def __init__(self, device: Device, stream: Stream, graph: Graph, launches: int) -> None:
        self.launches = launches
        self._device = device
        self._stream = stream
        self._graph = graph

    def start(self) -> Callable[[], float]:
        begin, end = (self._device.create_event(EventOptions(timing_enabled=True)) for _ in range(2))
        self._stream.record(begin)
        self._graph.launch(self._stream)
        self._stream.record(end)
        return functools.partial(_microseconds, begin, end)


def _microseconds(begin: Any, end: Any) -> float:
    """Between two events, once the second has come."""
    end.sync()
    return float(end - begin) * 1e3
