"""The backend that runs kernels on a GPU of this machine, each one in a child process that it may break.

The parent asks the driver which devices there are and creates no context: those live and die with the children.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from wmmagen import foundry
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import Bytes, Launch, Series, Subject
from wmmagen.backends.library import CardLibrary
from wmmagen.backends.worker import Attributes, Compare, KernelRecipe, Run, SeriesRecipe, serve
from wmmagen.errors import MissingPiece, RequestError
from wmmagen.nvrtc import Binary
from wmmagen.supervisor import Supervisor
from wmmagen.timing import SHORT_LAUNCH_US, Comparison, Timing, TimingProtocol

if TYPE_CHECKING:
    from wmmagen.backends.card import Recipe

_ASSEMBLED = 64
_NAME_BYTES = 256
#: What the launch itself costs: one block of one warp that does nothing.
_EMPTY_KERNEL = 'extern "C" __global__ void empty() {}\n'
_EMPTY_LAUNCH = Launch("empty", (1, 1, 1), (32, 1, 1), 0, ())
_NO_DRIVER = "install the NVIDIA display driver, or run where a GPU is"


@dataclass(frozen=True)
class DeviceInfo:
    """One GPU.

    Attributes:
        index: the driver's number of it.
        name: ``NVIDIA H200``.
        sm: 10 * major + minor of its compute capability.
        memory_bytes: all of its memory.
        multiprocessors: how many it has.
        l2_bytes: size of its L2.
    """

    index: int
    name: str
    sm: int
    memory_bytes: int
    multiprocessors: int
    l2_bytes: int

    def __str__(self) -> str:
        return f"{self.name} (sm_{self.sm})"


def devices() -> tuple[DeviceInfo, ...]:
    """The GPUs of this machine, at least one.

    Raises:
        MissingPiece: there is no driver, it does not start, or it sees no device.
    """
    driver = _initialised()
    count = _call(driver, driver.cuDeviceGetCount)
    if not count:
        raise MissingPiece("the CUDA driver sees no GPU", "see `nvidia-smi`, and whether CUDA_VISIBLE_DEVICES hides it")
    return tuple(_describe(driver, index) for index in range(count))


def driver_version() -> str:
    """The newest CUDA version that the driver supports, ``13.0``.

    Raises:
        MissingPiece: there is no driver, it does not start, or it sees no device.
    """
    driver = _initialised()
    version = _call(driver, driver.cuDriverGetVersion)
    return f"{version // 1000}.{version % 1000 // 10}"


def _describe(driver: types.ModuleType, index: int) -> DeviceInfo:
    handle = _call(driver, driver.cuDeviceGet, index)
    name = _call(driver, driver.cuDeviceGetName, _NAME_BYTES, handle)
    attribute = driver.CUdevice_attribute
    major = _call(driver, driver.cuDeviceGetAttribute, attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle)
    minor = _call(driver, driver.cuDeviceGetAttribute, attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle)
    memory = _call(driver, driver.cuDeviceTotalMem, handle)
    processors = _call(driver, driver.cuDeviceGetAttribute, attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle)
    l2_bytes = _call(driver, driver.cuDeviceGetAttribute, attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, handle)
    word = name.split(b"\0")[0].decode(errors="replace")
    return DeviceInfo(index, word, 10 * major + minor, memory, processors, l2_bytes)


def _initialised() -> types.ModuleType:
    """The driver's bindings, after ``cuInit``; that makes devices visible and creates no context."""
    try:
        from cuda import pathfinder
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingPiece(
            f"the CUDA bindings for Python cannot be imported: {error}", "pip install cuda-core cuda-bindings"
        ) from error
    try:
        _call(driver, driver.cuInit, 0)
    except pathfinder.DynamicLibNotFoundError as error:
        raise MissingPiece("there is no CUDA driver library (libcuda) on this machine", _NO_DRIVER) from error
    return cast(types.ModuleType, driver)


def _call(driver: types.ModuleType, function: Callable[..., Any], *arguments: object) -> Any:
    code, *values = function(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise MissingPiece(f"the CUDA driver does not work here: {function.__name__} says {code.name}", _NO_DRIVER)
    return values[0] if values else None


class GpuBackend:
    """A GPU of this machine; see :class:`wmmagen.backends.Backend`.

    Args:
        device_index: the driver's number of the device.

    Raises:
        MissingPiece: there is no usable GPU.
        RequestError: there are GPUs, but none of that number, or one that wmmagen's tables do not know.
    """

    def __init__(self, device_index: int = 0) -> None:
        self._info = _chosen(device_index)
        self._arch = _known(self._info)
        self._assembled: collections.OrderedDict[tuple[str, bytes], Binary] = collections.OrderedDict()
        self._empty_us: float | None = None
        self._supervisor = Supervisor(serve, (device_index,), name="GPU worker")

    @property
    def name(self) -> str:
        return "gpu"

    @property
    def device(self) -> str:
        return str(self._info)

    @property
    def clocked(self) -> bool:
        return True

    @property
    def arch(self) -> Arch:
        """The architecture of the device."""
        return self._arch

    @property
    def multiprocessors(self) -> int:
        return self._info.multiprocessors

    @property
    def l2_bytes(self) -> int:
        return self._info.l2_bytes

    @property
    def worker_pid(self) -> int | None:
        """The child that holds the context now; None before the first request and after a fault that ended it."""
        return self._supervisor.pid

    @property
    def library(self) -> CardLibrary:
        """The cuBLASLt of this device, in the same child process as the kernels."""
        return CardLibrary(
            self._supervisor.ask,
            self.device,
            lambda source, entry: foundry.compile_source(source, entry, self._arch).cubin,
        )

    def runs(self, arch: Arch) -> bool:
        return arch.sm <= self._arch.sm

    def foreign(self, arch: Arch) -> bool:
        return arch.sm != self._arch.sm

    def run(self, binary: Binary, launch: Launch, buffers: Sequence[Bytes], *, limit_s: float = 10.0) -> list[Bytes]:
        request = Run(self.recipe(Subject(binary, launch, tuple(buffers))))
        answer = self._supervisor.ask(request, limit_s=limit_s, what=self._what(launch.entry))
        return request.left(answer)[: len(buffers)]

    def time(
        self,
        binary: Binary,
        launch: Launch,
        buffers: Sequence[Bytes],
        protocol: TimingProtocol,
        *,
        limit_s: float = 60.0,
    ) -> Timing:
        recipe = self.recipe(Subject(binary, launch, tuple(buffers)))
        what = f"timing {self._what(launch.entry)}"
        (timing,) = self._compare([recipe], protocol, limit_s, what).timings
        return timing

    def compare(
        self, subjects: Sequence[Subject | Series | Recipe], protocol: TimingProtocol, *, limit_s: float = 60.0
    ) -> Comparison:
        """As :meth:`wmmagen.backends.Backend.compare`; takes what is no kernel of ours, too.

        Args:
            subjects: kernels, series of them, and recipes of whatever else the card can launch; these travel to the
                child process, so they must be picklable.
            protocol: how they are timed.
            limit_s: seconds for all of it.
        """
        recipes = [self.recipe(s) if isinstance(s, Subject | Series) else s for s in subjects]
        return self._compare(recipes, protocol, limit_s, f"comparing {len(recipes)} kernels on {self.device}")

    def recipe(self, subject: Subject | Series) -> Recipe:
        """How the card comes to ``subject``."""
        if isinstance(subject, Series):
            steps = tuple((self._native(binary).cubin, launch) for binary, launch in subject.steps)
            return SeriesRecipe(steps, _flat(subject.buffers))
        buffers = (*_flat(subject.buffers), *subject.launch.tables())
        return KernelRecipe(self._native(subject.binary).cubin, subject.launch, buffers)

    def empty_us(self, protocol: TimingProtocol) -> float:
        """Microseconds of a launch of an empty kernel by ``protocol``, measured at the first call and kept.

        Raises:
            Fault: it could not be launched or timed.
            MissingPiece: there is no compiler here.
        """
        if self._empty_us is None:
            binary = foundry.compile_source(_EMPTY_KERNEL, _EMPTY_LAUNCH.entry, self._arch)
            recipe = KernelRecipe(binary.cubin, _EMPTY_LAUNCH, ())
            self._empty_us = (
                self._ask(Compare((recipe,), protocol), 60.0, "timing an empty kernel").timings[0].median_us
            )
        return self._empty_us

    def _compare(self, recipes: Sequence[Recipe], protocol: TimingProtocol, limit_s: float, what: str) -> Comparison:
        comparison = self._ask(Compare(tuple(recipes), protocol), limit_s, what)
        timings = tuple(self._beside_empty(timing, protocol) for timing in comparison.timings)
        return dataclasses.replace(comparison, timings=timings)

    def _ask(self, request: Compare, limit_s: float, what: str) -> Comparison:
        result: Comparison = self._supervisor.ask(request, limit_s=limit_s, what=what)
        return result

    def _beside_empty(self, timing: Timing, protocol: TimingProtocol) -> Timing:
        """A short time with that of an empty kernel beside it, where a compiler is here to make one."""
        if timing.median_us >= SHORT_LAUNCH_US:
            return timing
        try:
            return dataclasses.replace(timing, empty_us=self.empty_us(protocol))
        except MissingPiece:
            return timing

    def attributes(self, binary: Binary, *, limit_s: float = 10.0) -> dict[str, int]:
        """What the driver says about the loaded kernel.

        Returns:
            ``registers`` and ``local_bytes`` per thread, ``static_shared_bytes`` and ``max_threads`` per block, ``sm``.

        Raises:
            Fault: it could not be loaded.
        """
        request = Attributes(self._native(binary).cubin, binary.entry)
        result: dict[str, int] = self._supervisor.ask(request, limit_s=limit_s, what=self._what(binary.entry))
        return result

    def close(self) -> None:
        self._supervisor.close()
        self._assembled.clear()

    def _what(self, entry: str) -> str:
        return f"{entry} on {self.device}"

    def _native(self, binary: Binary) -> Binary:
        """The binary as machine code of this device, assembled again where it is of another architecture."""
        if not self.runs(binary.arch):
            self._refuse(binary)
        if not self.foreign(binary.arch):
            return binary
        key = (binary.entry, hashlib.sha256(binary.ptx.encode()).digest())
        if key not in self._assembled:
            self._assembled[key] = foundry.assemble(binary, self._arch)
        self._assembled.move_to_end(key)
        if len(self._assembled) > _ASSEMBLED:
            self._assembled.popitem(last=False)
        return self._assembled[key]

    def _refuse(self, binary: Binary) -> NoReturn:
        raise RequestError(
            f"{binary.entry} was compiled for {binary.arch}, which is newer than {self.device}",
            f"compile it for {self._arch} or older, or use --backend cpu",
        )


def _chosen(index: int) -> DeviceInfo:
    found = devices()
    for info in found:
        if info.index == index:
            return info
    listed = ", ".join(f"{info.index} {info}" for info in found)
    raise RequestError(f"there is no GPU number {index}", f"there are: {listed}")


def _known(info: DeviceInfo) -> Arch:
    if info.sm not in ARCHS:
        known = ", ".join(arch.name for arch in ARCHS.values())
        raise RequestError(
            f"GPU {info.index} is a {info}, an architecture that wmmagen does not know", f"known: {known}"
        )
    return ARCHS[info.sm]


def _flat(buffers: Sequence[Bytes]) -> tuple[Bytes, ...]:
    """The buffers as they travel; one that is flat stays itself, so that what subjects share is sent once."""
    return tuple(
        buffer
        if buffer.ndim == 1 and buffer.flags.c_contiguous and buffer.dtype == np.uint8
        else np.ascontiguousarray(buffer, dtype=np.uint8).reshape(-1)
        for buffer in buffers
    )
