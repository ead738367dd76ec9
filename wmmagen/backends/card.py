"""One GPU through the CUDA driver: load, copy, launch, replay. Imported by the child process alone."""

from __future__ import annotations

import collections
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# The CUDA packages keep their stubs and markers where mypy does not look.
from cuda.bindings import driver
from cuda.core import Device, EventOptions, Kernel, LaunchConfig, ObjectCode, Stream
from cuda.core import launch as enqueue

# Every public function raises it, no public module exports it.
from cuda.core._utils.cuda_utils import CUDAError
from cuda.core.graph import Graph

from wmmagen.backends import Bytes, Launch, Pointer
from wmmagen.errors import LaunchFault
from wmmagen.timing import Timing, TimingProtocol, measure

#: What every instruction that wmmagen generates may count on.
ALIGNMENT = 256
_LOADED_MODULES = 8
_INT32 = range(-(2**31), 2**31)
_DIMENSION = range(1, 2**31)
_POINTER_BYTES = 8
_NUMBER_BYTES = 4
_FLOAT_MAX = float(np.finfo(np.float32).max)

_Argument = int | np.int32 | np.float32


class DriverError(Exception):
    """A call of the driver returned something other than success."""

    def __init__(self, code: Any, call: str) -> None:
        _, text = driver.cuGetErrorString(code)
        super().__init__(f"{code.name}: {text.decode() if text else 'unknown'} ({call})")
        self.name: str = code.name


def call(function: Callable[..., Any], *arguments: object) -> Any:
    """The value of a driver call.

    Raises:
        DriverError: it did not succeed.
    """
    code, *values = function(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(code, getattr(function, "__name__", "driver"))
    return values[0] if values else None


class Card:
    """A GPU with a context, a stream, the modules that were used last, and one set of buffers.

    Args:
        device_index: the driver's number of the device.
    """

    #: What its methods raise beside :class:`wmmagen.errors.Fault`.
    errors: tuple[type[Exception], ...] = (CUDAError, DriverError)

    def __init__(self, device_index: int) -> None:
        self._device = Device(device_index)
        self._device.set_current()
        self._handle = call(driver.cuDeviceGet, device_index)
        self._stream = self._device.create_stream()
        self._modules: collections.OrderedDict[bytes, ObjectCode] = collections.OrderedDict()
        self._sizes: list[int] = []
        self._addresses: list[int] = []

    def alive(self) -> bool:
        """Whether the context still works. A kernel that broke it breaks this call too."""
        return bool(driver.cuCtxSynchronize()[0] == driver.CUresult.CUDA_SUCCESS)

    def run(self, cubin: bytes, launch: Launch, buffers: Sequence[Bytes]) -> list[Bytes]:
        """Run the kernel once and return all buffers as it left them."""
        prepared = self._prepare(cubin, launch, buffers)
        prepared.enqueue(self._stream)
        self._stream.sync()
        return self._fetch()

    def time(self, cubin: bytes, launch: Launch, buffers: Sequence[Bytes], protocol: TimingProtocol) -> Timing:
        """Time the kernel by ``protocol``."""
        prepared = self._prepare(cubin, launch, buffers)
        # Code is loaded to the device by the first launch, which belongs into no replay.
        prepared.enqueue(self._stream)
        self._stream.sync()
        replays = _Replays(self._device, self._stream, prepared)
        try:
            return measure(replays, protocol)
        finally:
            replays.close()

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

    def _prepare(self, cubin: bytes, launch: Launch, buffers: Sequence[Bytes]) -> _Prepared:
        _check_numbers(launch)
        kernel = self._kernel(cubin, launch.entry)
        _check_signature(kernel, launch)
        self._allow_shared(kernel, launch.shared_bytes)
        self._place(buffers)
        arguments = [self._argument(number, value) for number, value in enumerate(launch.arguments)]
        config = LaunchConfig(grid=launch.grid, block=launch.block, shmem_size=launch.shared_bytes)
        return _Prepared(kernel, config, arguments)

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

    def _place(self, buffers: Sequence[Bytes]) -> None:
        """Copy the buffers to the device, into the memory of the last ones where the sizes are the same."""
        sizes = [buffer.nbytes for buffer in buffers]
        if sizes != self._sizes:
            self._allocate(sizes)
        for address, buffer in zip(self._addresses, buffers, strict=True):
            if buffer.nbytes:
                call(driver.cuMemcpyHtoDAsync, address, buffer.ctypes.data, buffer.nbytes, self._stream.handle)
        # The host's arrays may go once they are copied.
        self._stream.sync()

    def _allocate(self, sizes: Sequence[int]) -> None:
        self._sizes = []
        while self._addresses:
            call(driver.cuMemFree, self._addresses.pop())
        for size in sizes:
            address = int(call(driver.cuMemAlloc, max(size, 1)))
            if address % ALIGNMENT:
                raise LaunchFault(f"the driver allocated at {address:#x}, which is not aligned to {ALIGNMENT} bytes")
            self._addresses.append(address)
        self._sizes = list(sizes)

    def _fetch(self) -> list[Bytes]:
        results = [np.empty(size, np.uint8) for size in self._sizes]
        for address, result in zip(self._addresses, results, strict=True):
            if result.nbytes:
                call(driver.cuMemcpyDtoHAsync, result.ctypes.data, address, result.nbytes, self._stream.handle)
        self._stream.sync()
        return results

    def _argument(self, number: int, value: Pointer | int | float) -> _Argument:
        """The argument in the type by which cuda.core tells its width: a Python int is taken for an address."""
        if isinstance(value, float):
            return np.float32(value)
        if not isinstance(value, Pointer):
            return np.int32(value)
        if not 0 <= value.buffer < len(self._addresses):
            raise LaunchFault(
                f"argument {number} points into buffer {value.buffer}, but there are {len(self._addresses)} buffers"
            )
        return self._addresses[value.buffer] + value.offset


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
        if isinstance(value, float) and math.isfinite(value) and abs(value) > _FLOAT_MAX:
            raise LaunchFault(f"argument {number} = {value} does not fit a 32-bit float")


def _check_signature(kernel: Kernel, launch: Launch) -> None:
    """Refuse arguments that are not the kernel's: the driver would read past them without a word."""
    try:
        expected = [info.size for info in kernel.arguments_info]
    except NotImplementedError:
        # Drivers before 12.4 do not tell.
        return
    given = [_POINTER_BYTES if isinstance(value, Pointer) else _NUMBER_BYTES for value in launch.arguments]
    if given != expected:
        raise LaunchFault(f"the kernel takes arguments of {expected} bytes, and the launch gives {given}")


class _Prepared:
    """A kernel with everything that one launch of it needs."""

    def __init__(self, kernel: Kernel, config: LaunchConfig, arguments: Sequence[_Argument]) -> None:
        self._kernel = kernel
        self._config = config
        self._arguments = tuple(arguments)

    def enqueue(self, stream: Any) -> None:
        """Launch on a stream, or into a graph that is being built."""
        enqueue(stream, self._config, self._kernel, *self._arguments)


class _Replays:
    """CUDA graphs of a launch, for :func:`wmmagen.timing.measure`."""

    def __init__(self, device: Device, stream: Stream, prepared: _Prepared) -> None:
        self._device = device
        self._stream = stream
        self._prepared = prepared
        self._graph: Graph | None = None

    def prepare(self, launches: int) -> Callable[[], float]:
        self.close()
        self._graph = self._capture(launches)
        self._graph.upload(self._stream)
        return _Replay(self._device, self._stream, self._graph)

    def close(self) -> None:
        """Wait for what is still queued, then give the graph back."""
        if self._graph is not None:
            graph, self._graph = self._graph, None
            self._stream.sync()
            graph.close()

    def _capture(self, launches: int) -> Graph:
        builder = self._device.create_graph_builder()
        try:
            builder.begin_building()
            for _ in range(launches):
                self._prepared.enqueue(builder)
            return builder.end_building().complete()
        finally:
            # Also ends a capture that failed half-way, during which the context could not be asked whether it lives.
            builder.close()


class _Replay:
    """Replays a graph and tells how long each replay took.

    The next replay is queued before the last one is waited for, so that the device never runs dry: the time between
    two neighbouring events is then that of the launches alone, without the host's way to the first of them.
    """

    def __init__(self, device: Device, stream: Stream, graph: Graph) -> None:
        self._stream = stream
        self._graph = graph
        self._marks = [device.create_event(EventOptions(timing_enabled=True)) for _ in range(3)]
        self._queued = 0

    def __call__(self) -> float:
        """Microseconds of one replay."""
        if not self._queued:
            self._stream.record(self._marks[0])
            self._enqueue()
        self._enqueue()
        begin, end = self._mark(self._queued - 2), self._mark(self._queued - 1)
        end.sync()
        return float(end - begin) * 1e3

    def _enqueue(self) -> None:
        self._graph.launch(self._stream)
        self._queued += 1
        self._stream.record(self._mark(self._queued))

    def _mark(self, number: int) -> Any:
        return self._marks[number % len(self._marks)]
