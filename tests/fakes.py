"""A backend of NumPy: it computes what the launch asks for, and fails in the way that it is told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wmmagen import derive
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import Bytes, Launch, Pointer, Subject, Table, Wide
from wmmagen.config import Batch, KernelConfig, Operation, Reduction, Residue, parse
from wmmagen.dtypes import ELEMENT_TYPES, ElementType
from wmmagen.errors import Fault
from wmmagen.layout import bits_dtype, encode, value_dtype
from wmmagen.nvrtc import Binary
from wmmagen.timing import Comparison, Timing, TimingProtocol


@dataclass
class NumpyBackend:
    """Runs the GEMM that the arguments describe (half operands), instead of the kernel.

    It reads what a kernel must read and nothing else: no C where beta is 0, no A and no B where alpha is 0.

    Attributes:
        arch: the card that it plays.
        fault_of: what a kernel of this name does instead; None for what is right.
        spoil: changes D behind the product.
        clocked: whether it has a clock.
        library_us: what a library's product takes in turns with kernels, in microseconds.
    """

    arch: Arch = ARCHS[75]
    fault_of: Callable[[str], Fault | None] = lambda name: None
    spoil: Callable[[str, np.ndarray], None] = lambda name, d: None
    clocked: bool = True
    library_us: float = 8.0
    runs_done: list[str] = field(default_factory=list)
    name: str = "gpu"
    device: str = "a card of NumPy (sm_75)"
    multiprocessors: int = 2
    l2_bytes: int = 1 << 20

    def runs(self, arch: Arch) -> bool:
        return arch.sm <= self.arch.sm

    def foreign(self, arch: Arch) -> bool:
        return arch.sm != self.arch.sm

    def run(self, binary: Binary, launch: Launch, buffers: Sequence[Bytes], *, limit_s: float = 10.0) -> list[Bytes]:
        self._fail(launch)
        self.runs_done.append(launch.entry)
        back = [buffer.copy() for buffer in buffers]
        if launch.entry.startswith("ceiling_"):
            _measure(launch, back)
            self.spoil(launch.entry, back[-1].reshape(1, -1))
            return back
        for product in range(launch.grid[1]):
            self._multiply(launch, _Call.read(launch, product), back)
        return back

    def _multiply(self, launch: Launch, call: _Call, back: list[Bytes]) -> None:
        o, m = call.operation, self._rows(launch, call.n) if call.m is None else call.m
        target = _view(back, call.d, o.d, m, call.n, call.ldd)
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.zeros((m, call.n), np.float32)
            if call.alpha:
                left = _view(back, call.a, o.a, m, call.k, call.lda, o.a_row_major).astype(np.float32)
                right = _view(back, call.b, o.a, call.k, call.n, call.ldb, o.b_row_major).astype(np.float32)
                sums = (left @ right).astype(value_dtype(o.acc)).astype(np.float32)
            if o.scaled:
                sums = np.float32(call.alpha) * sums
            if call.beta:
                sums = sums + np.float32(call.beta) * _view(back, call.c, o.d, m, call.n, call.ldc).astype(np.float32)
            target[:] = encode(sums, o.d) if o.d.name == "bf16" else sums.astype(target.dtype)
        self.spoil(launch.entry, target)

    def time(
        self,
        binary: Binary,
        launch: Launch,
        buffers: Sequence[Bytes],
        protocol: TimingProtocol,
        *,
        limit_s: float = 60.0,
    ) -> Timing:
        self._fail(launch)
        # Any function of the name will do, as long as it is the same every time.
        median = 10.0 + sum(launch.entry.encode()) % 97
        return Timing(median, (median - 0.01, median + 0.01), 15, 40, protocol.mode, protocol.data, True, ())

    def compare(self, subjects: Sequence[Any], protocol: TimingProtocol, *, limit_s: float = 60.0) -> Comparison:
        timings = [self._one(subject, protocol, limit_s) for subject in subjects]
        return Comparison(tuple(timings), tuple((timing.median_us,) * timing.samples for timing in timings))

    def close(self) -> None:
        pass

    def _one(self, subject: Any, protocol: TimingProtocol, limit_s: float) -> Timing:
        if isinstance(subject, Subject):
            return self.time(subject.binary, subject.launch, subject.buffers, protocol, limit_s=limit_s)
        us = self.library_us
        return Timing(us, (us - 0.01, us + 0.01), 15, 40, protocol.mode, protocol.data, True, ())

    def _fail(self, launch: Launch) -> None:
        fault = self.fault_of(launch.entry)
        if fault is not None:
            raise fault

    def _rows(self, launch: Launch, n: int) -> int:
        known = derive.values(_config(launch))
        return int(launch.grid[0] // (n // known["BLOCK_N"]) * known["BLOCK_M"])


def binary_of(config: KernelConfig, arch: Arch = ARCHS[80]) -> Binary:
    """A binary that nobody compiled, for a backend that does not read it."""
    return Binary(f"{config}_kernel", arch, b"", "", 0, 0, 0, 0, "", 0.0, "nobody")


def compiled(source: str, entry: str, arch: Arch) -> Binary:
    """What a compiler would make of a kernel or of a ceiling's loop; :class:`NumpyBackend` goes by the entry alone."""
    if entry.startswith("ceiling_"):
        return Binary(entry, arch, b"", "", 128, 0, 0, 0, "", 0.0, "nobody")
    return binary_of(parse(entry.removesuffix("_kernel")), arch)


def _config(launch: Launch) -> KernelConfig:
    return parse(launch.entry.removesuffix("_kernel"))


@dataclass(frozen=True)
class _Call:
    """The arguments of a kernel by their names, each of the type that its parameter has."""

    operation: Operation
    a: Pointer
    b: Pointer
    c: Pointer
    d: Pointer
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    ldd: int
    alpha: float
    beta: float
    workspace: Pointer | None = None
    m: int | None = None

    @classmethod
    def read(cls, launch: Launch, product: int) -> _Call:
        """The arguments, the pointers those of one product of a batch."""
        config = _config(launch)
        operation = config.operation
        arguments = list(launch.arguments)
        if operation.batch is Batch.STRIDED:
            pointers = 4 if operation.scaled else 3
            for number, stride in enumerate(arguments[-pointers:]):
                begin, element = arguments[number], operation.d if number >= 2 else operation.a
                assert isinstance(begin, Pointer) and isinstance(stride, Wide)
                offset = begin.offset + product * stride.value * element.bits // 8
                arguments[number] = Pointer(begin.buffer, offset)
            del arguments[-pointers:]
        for number, table in enumerate(arguments):
            if isinstance(table, Table):
                arguments[number] = table.pointers[product] if table.pointers else Pointer(-1)
        if operation.scaled:
            names = "a b c d n k lda ldb ldc ldd alpha beta".split()
            more: dict[str, Any] = {}
        else:
            names = "a b d n k lda ldb ldd".split()
            more = {"c": Pointer(-1), "ldc": 0, "alpha": 1.0, "beta": 0.0}
        if operation.residue is Residue.PREDICATED:
            names.insert(names.index("n"), "m")
        if config.reduction is Reduction.WORKSPACE:
            names.insert(names.index("d") + 1, "workspace")
        assert (launch.zeroed is not None) is (config.reduction is Reduction.ATOMIC)
        call = cls(operation=operation, **dict(zip(names, arguments, strict=True)), **more)
        for name in names:
            kind = Pointer if name in (*"abcd", "workspace") else float if name in ("alpha", "beta") else int
            assert type(getattr(call, name)) is kind, name
        return call


def _view(
    buffers: list[Bytes],
    pointer: Pointer,
    element: ElementType,
    rows: int,
    cols: int,
    ld: int,
    row_major: bool = True,
) -> np.ndarray:
    # bf16 has no values of its own here: D of it is seen as its bits.
    dtype = bits_dtype(element) if element.name == "bf16" else value_dtype(element)
    if not rows * cols:
        return np.zeros((rows, cols), dtype)
    lines, length = (rows, cols) if row_major else (cols, rows)
    flat = buffers[pointer.buffer][pointer.offset :].view(np.uint8)
    needed = ((lines - 1) * ld + length) * dtype.itemsize
    view = np.lib.stride_tricks.as_strided(
        flat[:needed].view(dtype), (lines, length), (ld * dtype.itemsize, dtype.itemsize)
    )
    return view if row_major else view.T


def _measure(launch: Launch, back: list[Bytes]) -> None:
    """What a loop that measures the device leaves behind; see the templates of that name."""
    _, kind, *words = launch.entry.split("_")
    if kind == "memory":
        _move(words[0], launch, back)
        return
    left, right = (buffer.view(np.float16).astype(np.float64) for buffer in back[:2])
    m, n, k = map(int, words[2].split("x"))
    turns = launch.arguments[-1]
    warps = launch.block[0] // 32
    sums = (_multiply_held if kind == "registers" else _multiply_shared)(left, right, m, n, k, warps, words)
    one = (float(turns) * sums).astype(value_dtype(ELEMENT_TYPES[words[1]])).reshape(-1).view(np.uint8)  # type: ignore[arg-type]
    back[2].reshape(-1, one.size)[:] = one


def _multiply_held(
    left: np.ndarray, right: np.ndarray, m: int, n: int, k: int, warps: int, words: list[str]
) -> np.ndarray:
    a, b = left.reshape(warps, -1, m, k), right.reshape(warps, -1, k, n)
    rows, cols = a.shape[1], b.shape[1]
    sums = np.zeros((warps, rows, cols, m, n))
    for step in range(max(rows, cols)):
        for i in range(rows):
            for j in range(cols):
                x, y = ((i + step) % rows, j) if rows >= cols else (i, (j + step) % cols)
                sums[:, i, j] += a[:, x] @ b[:, y]
    return sums


def _multiply_shared(
    left: np.ndarray, right: np.ndarray, m: int, n: int, k: int, warps: int, words: list[str]
) -> np.ndarray:
    rows, cols = map(int, words[3].split("x"))
    d = left.reshape(2 * rows, -1) @ right.reshape(2 * cols, -1).T
    tiles = [
        d[row : row + m, col : col + n]
        for warp in range(warps)
        for row in range(warp // 2 * rows, (warp // 2 + 1) * rows, m)
        for col in range(warp % 2 * cols, (warp % 2 + 1) * cols, n)
    ]
    return np.stack(tiles)


def _move(access: str, launch: Launch, back: list[Bytes]) -> None:
    source, target = (buffer.view(np.uint32).reshape(-1, 4) for buffer in back)
    *_, vectors, accesses = launch.arguments
    threads = launch.grid[0] * launch.block[0]
    rounds = vectors // threads  # type: ignore[operator]
    passes = accesses // rounds  # type: ignore[operator]
    for thread in range(threads) if access == "read" else ():
        target[thread] = source[thread::threads].sum(axis=0) * passes
    for number in range(rounds) if access != "read" else ():
        places = np.arange(number * threads, (number + 1) * threads)
        target[places] = 0
        target[places, 0] = places
        if access == "copy":
            target[places] = source[places]
        target[places, 3] += np.uint32((passes - 1) * rounds + number)
