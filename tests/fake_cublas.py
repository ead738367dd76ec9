"""A cuBLASLt of NumPy: it computes from descriptors and addresses alone, as the library does, and remembers them.

Memory is the host's. What a real candidate may do wrong, a fake one does on demand.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wmmagen.backends import Bytes
from wmmagen.backends.card import ALIGNMENT, Addresses, Recipe
from wmmagen.backends.cublas import CublasLt, LibraryError
from wmmagen.errors import LaunchFault
from wmmagen.timing import Comparison, Timing, TimingProtocol

#: Numbers as in the library's headers, cublas_api.h, cublasLt.h and library_types.h.
ComputeType = enum.IntEnum("ComputeType", {"COMPUTE_16F": 64, "COMPUTE_32F": 68})
Operation = enum.IntEnum("Operation", {"N": 0, "T": 1})
Status = enum.IntEnum("Status", {"SUCCESS": 0, "INVALID_VALUE": 7, "EXECUTION_FAILED": 13, "NOT_SUPPORTED": 15})
CudaDataType = enum.IntEnum("CudaDataType", {"CUDA_R_32F": 0, "CUDA_R_16F": 2, "CUDA_R_16BF": 14})
DescAttribute = enum.IntEnum("DescAttribute", {"TRANSA": 3, "TRANSB": 4, "EPILOGUE": 7, "BIAS_POINTER": 8})
Epilogue = enum.IntEnum("Epilogue", {"DEFAULT": 1, "RELU": 2, "BIAS": 4, "RELU_BIAS": 6, "GELU": 32, "GELU_BIAS": 36})
PreferenceAttribute = enum.IntEnum(
    "PreferenceAttribute",
    {"MAX_WORKSPACE_BYTES": 1} | {f"MIN_ALIGNMENT_{letter}_BYTES": 5 + i for i, letter in enumerate("ABCD")},
)
LayoutAttribute = enum.IntEnum("LayoutAttribute", {"BATCH_COUNT": 5, "STRIDED_BATCH_OFFSET": 6})
ConfigAttribute = enum.IntEnum(
    "ConfigAttribute",
    {"ID": 0, "TILE_ID": 1, "SPLITK_NUM": 2, "REDUCTION_SCHEME": 3, "CTA_SWIZZLING": 4, "CUSTOM_OPTION": 5}
    | {"STAGES_ID": 6, "CLUSTER_SHAPE_ID": 8},
)

ALGORITHM = np.dtype([("data_", "<u8", (8,))])
RESULT = np.dtype(
    [
        ("algo", ALGORITHM),
        ("workspace_size", "<u8"),
        ("state", "<i4"),
        ("waves_count", "<f4"),
        ("reserved", "<i4", (4,)),
    ]
)
_TYPES = {CudaDataType.CUDA_R_32F: np.float32, CudaDataType.CUDA_R_16F: np.float16}
_SUMS = {ComputeType.COMPUTE_16F: np.float16, ComputeType.COMPUTE_32F: np.float32}
#: What a candidate makes of D^T (n×m, a view of memory).
Spoil = Callable[[np.ndarray], None]


class cuBLASLtError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"CUBLAS_STATUS_{Status(status).name}")
        self.status = status


@dataclass
class Descriptor:
    what: tuple[int, ...]
    attributes: dict[int, Any] = field(default_factory=dict)


def _at(address: int, count: int, dtype: Any) -> np.ndarray:
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


#: Where buffers lie, as first byte and end: an access beyond them ends as on a card.
_placed_at: list[tuple[int, int]] = []


def _columns(address: int, layout: Descriptor, product: int) -> np.ndarray:
    """The matrix of a product of the batch, of columns, rows × cols, as a view of memory."""
    kind, rows, cols, ld = layout.what
    dtype, count = np.dtype(_TYPES[CudaDataType(kind)]), ld * (cols - 1) + rows
    address += product * layout.attributes.get(LayoutAttribute.STRIDED_BATCH_OFFSET, 0) * dtype.itemsize
    if not any(begin <= address and address + count * dtype.itemsize <= end for begin, end in _placed_at):
        raise cuBLASLtError(Status.EXECUTION_FAILED)
    flat = _at(address, count, dtype)
    step = flat.itemsize
    return np.lib.stride_tricks.as_strided(flat, (rows, cols), (step, ld * step))


@dataclass
class FakeLt:
    """The module ``nvmath.bindings.cublasLt``.

    Attributes:
        spoils: for each candidate, what it does to its result; the heuristic proposes as many as there are.
        round_operand: what happens to operands before they are multiplied.
        states: of the candidates.
        fails: functions that return a status instead.
    """

    spoils: Sequence[Spoil] = (lambda d: None,)
    round_operand: Callable[[np.ndarray], np.ndarray] = lambda x: x
    states: Sequence[int] = ()
    fails: dict[str, int] = field(default_factory=dict)
    alive: dict[int, Descriptor] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    asked: dict[str, Descriptor] = field(default_factory=dict)
    streams: list[int] = field(default_factory=list)

    cuBLASLtError = cuBLASLtError
    MatmulDescAttribute = DescAttribute
    Epilogue = Epilogue
    MatrixLayoutAttribute = LayoutAttribute
    MatmulPreferenceAttribute = PreferenceAttribute
    MatmulAlgoConfigAttribute = ConfigAttribute
    MatmulTile = enum.IntEnum("MatmulTile", {"TILE_128x256": 1})
    MatmulStages = enum.IntEnum("MatmulStages", {"STAGES_64xAUTO": 2})
    ClusterShape = enum.IntEnum("ClusterShape", {"SHAPE_2x1x1": 3})
    ReductionScheme = enum.IntEnum("ReductionScheme", {"NONE": 0})
    matmul_heuristic_result_dtype = RESULT

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1000)

    def get_version(self) -> int:
        return 130102

    def create(self) -> int:
        return 7

    def _made(self, name: str, *what: int) -> int:
        self._fail(name)
        number = next(self._numbers)
        self.alive[number] = Descriptor(what)
        return number

    def _fail(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise cuBLASLtError(self.fails[name])

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        return self._made("matmul_desc_create", compute, scale)

    def matrix_layout_create(self, kind: int, rows: int, cols: int, ld: int) -> int:
        return self._made("matrix_layout_create", kind, rows, cols, ld)

    def matmul_preference_create(self) -> int:
        return self._made("matmul_preference_create")

    def _destroy(self, number: int) -> None:
        del self.alive[number]

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = _destroy

    def matmul_desc_set_attribute(self, number: int, attribute: int, buffer: int, size: int) -> None:
        wide = attribute == DescAttribute.BIAS_POINTER
        assert size == (8 if wide else 4)
        self.alive[number].attributes[attribute] = int(_at(buffer, 1, np.uint64 if wide else np.int32)[0])

    def matrix_layout_set_attribute(self, number: int, attribute: int, buffer: int, size: int) -> None:
        wide = attribute == LayoutAttribute.STRIDED_BATCH_OFFSET
        assert size == (8 if wide else 4)
        self.alive[number].attributes[attribute] = int(_at(buffer, 1, np.int64 if wide else np.int32)[0])

    def matmul_preference_set_attribute(self, number: int, attribute: int, buffer: int, size: int) -> None:
        wide = attribute == PreferenceAttribute.MAX_WORKSPACE_BYTES
        assert size == (8 if wide else 4)
        self.alive[number].attributes[attribute] = int(_at(buffer, 1, np.uint64 if wide else np.uint32)[0])

    def matmul_algo_get_heuristic(self, handle: int, *rest: int) -> None:
        *descriptors, wanted, results, count = rest
        assert handle == 7
        names = ("operation", "a", "b", "c", "d", "preference")
        self.asked = {name: self.alive[number] for name, number in zip(names, descriptors, strict=True)}
        self._fail("matmul_algo_get_heuristic")
        found = _at(results, wanted, RESULT)
        _at(count, 1, np.int32)[0] = len(self.spoils)
        for number in range(len(self.spoils)):
            found[number]["algo"]["data_"][0] = number
            found[number]["workspace_size"] = 64 * number
            found[number]["state"] = self.states[number] if self.states else Status.SUCCESS

    def matmul_algo_config_get_attribute(self, algo: int, attribute: int, buffer: int, size: int, written: int) -> None:
        number = int(_at(algo, 8, np.uint64)[0])
        values = {ConfigAttribute.ID: 60 + number, ConfigAttribute.TILE_ID: 1, ConfigAttribute.STAGES_ID: 2}
        values |= {ConfigAttribute.CLUSTER_SHAPE_ID: 99, ConfigAttribute.SPLITK_NUM: 1 + number}
        _at(buffer, 1, f"<u{size}")[0] = values.get(ConfigAttribute(attribute), 0)

    def matmul(
        self, handle: int, operation: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int, beta: int, c: int,
        c_layout: int, d: int, d_layout: int, algo: int, workspace: int, workspace_size: int, stream: int,
    ) -> None:  # fmt: skip
        self._fail("matmul")
        assert handle == 7
        self.streams.append(stream)
        number = int(_at(algo, 8, np.uint64)[0])
        assert 64 * number <= workspace_size
        counts = {self.alive[x].attributes.get(LayoutAttribute.BATCH_COUNT, 1) for x in (a_layout, b_layout, d_layout)}
        (count,) = counts
        for product in range(count):
            self._multiply(
                product, number, operation, (alpha, beta), (a, b, c, d), (a_layout, b_layout, c_layout, d_layout)
            )

    def _multiply(
        self, product: int, number: int, operation: int, factors_at: tuple[int, int], at: tuple[int, ...],
        layouts: tuple[int, ...],
    ) -> None:  # fmt: skip
        (alpha, beta), (a, b, c, d), (a_layout, b_layout, c_layout, d_layout) = factors_at, at, layouts
        told = self.alive[operation]
        compute, scale = ComputeType(told.what[0]), _TYPES[CudaDataType(told.what[1])]

        def operand(address: int, layout: int, attribute: int) -> np.ndarray:
            stored = self.round_operand(_columns(address, self.alive[layout], product))
            return stored.T if told.attributes[attribute] == Operation.T else stored

        left, right = operand(a, a_layout, DescAttribute.TRANSA), operand(b, b_layout, DescAttribute.TRANSB)
        if (left.shape[0], left.shape[1], right.shape[1]) != (
            self.alive[d_layout].what[1], right.shape[0], self.alive[d_layout].what[2],
        ):  # fmt: skip
            raise cuBLASLtError(Status.INVALID_VALUE)
        with np.errstate(over="ignore"):
            sums = (left.astype(np.float64) @ right.astype(np.float64)).astype(_SUMS[compute])
        factors = [float(_at(factor, 1, scale)[0]) for factor in (alpha, beta)]
        result = _columns(d, self.alive[d_layout], product)
        total = factors[0] * sums.astype(np.float64)
        if factors[1]:
            total += factors[1] * _columns(c, self.alive[c_layout], product).astype(np.float64)
        result[:] = _after(told.attributes, total, result.dtype).astype(result.dtype)
        self.spoils[number](result)


def _after(told: dict[int, Any], total: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """What the library's epilogue makes of a product, rows of which are the rows of the bias."""
    words = Epilogue(told.get(DescAttribute.EPILOGUE, Epilogue.DEFAULT)).name.split("_")
    if "BIAS" in words:
        total = total + _at(told[DescAttribute.BIAS_POINTER], total.shape[0], dtype).astype(np.float64)[:, None]
    if "RELU" in words:
        total = np.maximum(total, 0)
    if "GELU" in words:
        # The hardware's tanh keeps eleven bits.
        tanh = np.tanh(0.7978845608028654 * (total + 0.044715 * total**3))
        total = total / 2 * (1 + tanh * (1 - 2.0**-12))
    return total


class FakeBlas:
    """The module ``nvmath.bindings.cublas``."""

    ComputeType = ComputeType
    Operation = Operation
    Status = Status


def library_of(lt: FakeLt) -> CublasLt:
    return CublasLt(lt, FakeBlas, CudaDataType, 0)


@dataclass
class FakeStream:
    handle: int = 77

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


@dataclass
class FakeCard:
    """A card on the host's memory: what a recipe makes runs at once, and takes as long as its candidate's number says.

    Attributes:
        times_us: of the candidates.
        kernel: what a kernel does, on the addresses of its buffers.
    """

    times_us: Sequence[float] = (10.0,)
    kernel: Callable[[Any, Addresses], None] = lambda launch, addresses: None

    def prepare(self, cubin: bytes, launch: Any, addresses: Addresses) -> Any:
        return _Kernel(functools.partial(self.kernel, launch, addresses))

    def run(self, recipe: Recipe) -> list[Bytes]:
        memory, addresses = placed(recipe.buffers)
        (copy,) = recipe.prepare(self, [addresses])  # type: ignore[arg-type]
        copy.enqueue(FakeStream())
        return [m.copy() for m in memory]

    def compare(self, recipes: Sequence[Any], protocol: TimingProtocol) -> Comparison:
        timings = []
        for recipe in recipes:
            self.run(recipe)
            us = self.times_us[recipe.candidate.number]
            timings.append(Timing(us, (us - 0.5, us + 0.5), 15, 200))
        return Comparison(tuple(timings), tuple((timing.median_us,) for timing in timings))


@dataclass
class _Kernel:
    work: Callable[[], None]

    def enqueue(self, stream: Any) -> None:
        self.work()


def placed(buffers: Sequence[Bytes]) -> tuple[list[Bytes], Addresses]:
    """Copies of the buffers that are aligned as device memory is."""
    memory = []
    for buffer in buffers:
        wide = np.empty(buffer.nbytes + ALIGNMENT, np.uint8)
        start = -wide.ctypes.data % ALIGNMENT
        memory.append(wide[start : start + buffer.nbytes])
        memory[-1][:] = buffer
    _placed_at[:] = [(m.ctypes.data, m.ctypes.data + m.nbytes) for m in memory]
    return memory, [m.ctypes.data for m in memory]


def ask(card: FakeCard, request: Any, *, limit_s: float, what: str) -> Any:
    """As the supervisor asks a child: an error of the library becomes a refused launch."""
    try:
        return request.carry_out(card)
    except LibraryError as error:
        raise LaunchFault(f"{what}: {error}") from error


def asking(card: FakeCard) -> Callable[..., Any]:
    return functools.partial(ask, card)
