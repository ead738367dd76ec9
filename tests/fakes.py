"""A backend of NumPy: it computes what the launch asks for, and fails in the way that it is told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import Bytes, Launch, Pointer
from wmmagen.errors import Fault
from wmmagen.nvrtc import Binary
from wmmagen.timing import Timing, TimingProtocol


@dataclass
class NumpyBackend:
    """Runs the GEMM that the arguments describe (row-major half operands), instead of the kernel.

    Attributes:
        arch: the card that it plays.
        fault_of: what a kernel of this name does instead; None for what is right.
        spoil: changes D behind the product.
        clocked: whether it has a clock.
    """

    arch: Arch = ARCHS[75]
    fault_of: Callable[[str], Fault | None] = lambda name: None
    spoil: Callable[[str, np.ndarray], None] = lambda name, d: None
    clocked: bool = True
    runs_done: list[str] = field(default_factory=list)
    name: str = "gpu"
    device: str = "a card of NumPy (sm_75)"

    def runs(self, arch: Arch) -> bool:
        return arch.sm <= self.arch.sm

    def foreign(self, arch: Arch) -> bool:
        return arch.sm != self.arch.sm

    def run(self, binary: Binary, launch: Launch, buffers: Sequence[Bytes], *, limit_s: float = 10.0) -> list[Bytes]:
        self._fail(launch)
        self.runs_done.append(launch.entry)
        back = [buffer.copy() for buffer in buffers]
        a, b, d, *numbers = launch.arguments
        n, k, lda, ldb, ldd = (int(x) for x in numbers if isinstance(x, int))
        rows = self._rows(launch, n)
        out = np.float32 if "_f32_f32_" in launch.entry else np.float16
        left = _view(back, a, np.float16, rows, k, lda).astype(np.float32)
        right = _view(back, b, np.float16, k, n, ldb).astype(np.float32)
        target = _view(back, d, out, rows, n, ldd)
        target[:] = (left @ right).astype(out)
        self.spoil(launch.entry, target)
        return back

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
        return Timing(median, (median - 0.01, median + 0.01), 15, 40, "warm", "normal", True, ())

    def close(self) -> None:
        pass

    def _fail(self, launch: Launch) -> None:
        fault = self.fault_of(launch.entry)
        if fault is not None:
            raise fault

    def _rows(self, launch: Launch, n: int) -> int:
        from wmmagen import derive
        from wmmagen.config import parse

        known = derive.values(parse(launch.entry.removesuffix("_kernel")))
        return int(launch.grid[0] // (n // known["BLOCK_N"]) * known["BLOCK_M"])


def _view(
    buffers: list[Bytes], pointer: Pointer | int, dtype: type[np.generic], rows: int, cols: int, ld: int
) -> np.ndarray:
    assert isinstance(pointer, Pointer)
    flat = buffers[pointer.buffer][pointer.offset :].view(np.uint8)
    size = np.dtype(dtype).itemsize
    needed = ((rows - 1) * ld + cols) * size
    typed = flat[:needed].view(dtype)
    return np.lib.stride_tricks.as_strided(typed, (rows, cols), (ld * size, size))
