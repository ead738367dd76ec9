"""The backend that runs a kernel's PTX on the CPU, through :mod:`wmmagen.executor`.

It runs in the caller's process: it is Python and cannot crash it, and a kernel that does not end is ended by its time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from wmmagen import executor
from wmmagen.arch import Arch
from wmmagen.backends import Bytes, Launch, Pointer, Table, Wide, Zeroed
from wmmagen.errors import CrashFault, HazardFault, PtxError, RequestError
from wmmagen.nvrtc import Binary
from wmmagen.timing import Comparison, Timing, TimingProtocol

#: Limits are given for cards. What ends on a card within a fraction of a second may take so many times as long here.
PATIENCE = 6


def execute(
    binary: Binary,
    launch: Launch,
    buffers: Sequence[Bytes],
    *,
    seed: int = 0,
    budget: int = executor.BUDGET,
    strict_isa: bool = False,
    limit_s: float | None = None,
) -> executor.Result:
    """What a launch leaves behind on the executor, with its counts; the arguments are those of its ``launch``.

    Raises:
        HazardFault: it did what no kernel may do, whatever its values.
        LaunchFault, PtxError, TimeoutFault: as :func:`wmmagen.executor.launch`.
    """
    result = executor.launch(
        binary.ptx,
        launch.entry,
        launch.grid,
        launch.block,
        [_argument(value) for value in launch.arguments],
        launch.shared_bytes,
        buffers=[*_zeroed(buffers, launch.zeroed), *launch.tables()],
        seed=seed,
        budget=budget,
        strict_isa=strict_isa,
        limit_s=limit_s,
        argument_bytes=launch.argument_bytes,
    )
    if result.findings:
        words = "; ".join(str(finding) for finding in result.findings)
        raise HazardFault(words, [finding.as_json() for finding in result.findings])
    return dataclasses.replace(result, outputs=result.outputs[: len(buffers)])


def _argument(value: Pointer | Table | Wide | int | float) -> executor.Argument:
    if isinstance(value, Pointer):
        return executor.Pointer(value.buffer, value.offset)
    if isinstance(value, Table):
        return executor.Table(value.buffer, tuple(executor.Pointer(p.buffer, p.offset) for p in value.pointers))
    return value.value if isinstance(value, Wide) else value


def _zeroed(buffers: Sequence[Bytes], rows: Zeroed | None) -> list[Bytes]:
    """The buffers as the kernel finds them."""
    found = list(buffers)
    if rows is not None:
        changed = found[rows.start.buffer] = found[rows.start.buffer].copy()
        for begin in range(rows.start.offset, rows.start.offset + rows.rows * rows.pitch, rows.pitch):
            changed[begin : begin + rows.width] = 0
    return found


class CpuBackend:
    """The CPU executor; see :class:`wmmagen.backends.Backend`. It runs kernels of every architecture, and has no clock.

    Args:
        seed: of the fragment layouts of the first run; every run has other ones.
        budget: instructions that a launch may run; see :data:`wmmagen.executor.BUDGET`.
        strict_isa: whether rows of fragments are also held to the PTX ISA's alignment.
    """

    def __init__(self, seed: int = 0, budget: int = executor.BUDGET, *, strict_isa: bool = False) -> None:
        self._seed, self._budget, self._strict_isa = seed, budget, strict_isa

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def device(self) -> str:
        return "CPU executor"

    @property
    def clocked(self) -> bool:
        return False

    @property
    def multiprocessors(self) -> int:
        return 1

    @property
    def l2_bytes(self) -> int:
        return 0

    def runs(self, arch: Arch) -> bool:
        return True

    def foreign(self, arch: Arch) -> bool:
        return False

    def run(self, binary: Binary, launch: Launch, buffers: Sequence[Bytes], *, limit_s: float = 10.0) -> list[Bytes]:
        """Run the kernel once; see :meth:`wmmagen.backends.Backend.run`.

        Raises:
            HazardFault: it did what no kernel may do, whatever its values.
            LaunchFault: it could not be launched.
            TimeoutFault: it did not end within :data:`PATIENCE` times ``limit_s`` seconds, or its budget.
            CrashFault: its PTX holds what the executor does not know.
        """
        seed, self._seed = self._seed, self._seed + 1
        try:
            result = execute(
                binary,
                launch,
                buffers,
                seed=seed,
                budget=self._budget,
                strict_isa=self._strict_isa,
                limit_s=PATIENCE * limit_s,
            )
        except PtxError as error:
            raise CrashFault(error.message, error.fix) from error
        return list(result.outputs)

    def time(
        self,
        binary: Binary,
        launch: Launch,
        buffers: Sequence[Bytes],
        protocol: TimingProtocol,
        *,
        limit_s: float = 60.0,
    ) -> Timing:
        """Refuse: there is no clock.

        Raises:
            RequestError: always.
        """
        raise _no_clock()

    def compare(self, subjects: Sequence[Any], protocol: TimingProtocol, *, limit_s: float = 60.0) -> Comparison:
        """Refuse: there is no clock.

        Raises:
            RequestError: always.
        """
        raise _no_clock()

    def close(self) -> None:
        """Nothing is held."""


def _no_clock() -> RequestError:
    return RequestError("the CPU executor has no clock", "time kernels on a GPU: --backend gpu")
