"""The protocol of a backend: a place where a kernel can be run.

A backend knows binaries, launches and bytes. It does not know GEMM: which buffer is an operand, what a right result
is, and what a time means are the business of :mod:`wmmagen.trial`. Buffers travel as flat ``uint8`` arrays and
come back whole, so that guard bands around the data can be compared after a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wmmagen.arch import Arch
from wmmagen.nvrtc import Binary
from wmmagen.timing import Comparison, Timing, TimingProtocol

Bytes = npt.NDArray[np.uint8]
#: Of a pointer in memory.
POINTER_BYTES = 8


@dataclass(frozen=True)
class Pointer:
    """A kernel argument: an address ``offset`` bytes into buffer number ``buffer`` of the launch."""

    buffer: int
    offset: int = 0


class Double(float):
    """A kernel argument that is passed as a C ``double``."""


@dataclass(frozen=True)
class Table:
    """A kernel argument: the address of buffer number ``buffer``, which holds the addresses of ``pointers`` by then.

    The buffer is one of a launch behind those that it is given: see :meth:`Launch.tables`.
    """

    buffer: int
    pointers: tuple[Pointer, ...]


@dataclass(frozen=True)
class Wide:
    """A kernel argument: a number in 64 bits."""

    value: int


@dataclass(frozen=True)
class Zeroed:
    """Rows of a buffer that are zeroed before the kernel starts, as part of what the launch costs.

    Attributes:
        start: where the first row begins.
        pitch: bytes from one row to the next.
        width: bytes of a row.
        rows: how many.
    """

    start: Pointer
    pitch: int
    width: int
    rows: int


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes:
        entry: the symbol of the kernel in its binary.
        grid: blocks in x, y, z.
        block: threads in x, y, z.
        shared_bytes: dynamic shared memory per block.
        arguments: in the kernel's order; an ``int`` is passed as a 32-bit C ``int``, a ``float`` as a C ``float``, a
            :class:`Double` as a C ``double``, a :class:`Wide` as a C ``long long``.
        zeroed: what is zeroed before each launch, on the same stream; None for nothing.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[Pointer | Table | Wide | int | float, ...]
    zeroed: Zeroed | None = None

    def tables(self) -> tuple[Bytes, ...]:
        """The buffers of its tables, in the order of their numbers, without an address in them yet."""
        found = sorted((a for a in self.arguments if isinstance(a, Table)), key=lambda table: table.buffer)
        return tuple(np.zeros(POINTER_BYTES * len(table.pointers), np.uint8) for table in found)


@dataclass(frozen=True)
class Subject:
    """A kernel to be timed: its binary, its launch, and the buffers that the launch works on."""

    binary: Binary
    launch: Launch
    buffers: tuple[Bytes, ...]


@dataclass(frozen=True)
class Series:
    """Launches that follow each other on one stream, to be timed as one.

    Attributes:
        steps: each a binary and the launch of one of its kernels, without tables.
        buffers: that all of them work on.
    """

    steps: tuple[tuple[Binary, Launch], ...]
    buffers: tuple[Bytes, ...]


class Backend(Protocol):
    """Where kernels run. Every method may raise :class:`wmmagen.errors.Fault` and stays usable after it."""

    @property
    def name(self) -> str:
        """``gpu`` or ``cpu``: the word of ``--backend`` and of the records."""

    @property
    def device(self) -> str:
        """What runs here, for people: ``NVIDIA H200 (sm_90)``."""

    @property
    def clocked(self) -> bool:
        """Whether :meth:`time` measures anything here."""

    @property
    def multiprocessors(self) -> int:
        """How many run here side by side."""

    @property
    def l2_bytes(self) -> int:
        """Size of the L2; 0 where there is none."""

    def runs(self, arch: Arch) -> bool:
        """Whether a kernel compiled for ``arch`` can be run here, as it is or assembled again."""

    def foreign(self, arch: Arch) -> bool:
        """Whether it has to be assembled again for this place, so that its times say nothing about ``arch``."""

    def run(self, binary: Binary, launch: Launch, buffers: Sequence[Bytes], *, limit_s: float = 10.0) -> list[Bytes]:
        """Run the kernel once over copies of ``buffers`` and return all of them as the kernel left them.

        Raises:
            Fault: it could not be launched, did not end within ``limit_s`` seconds, or ended its context.
        """

    def time(
        self,
        binary: Binary,
        launch: Launch,
        buffers: Sequence[Bytes],
        protocol: TimingProtocol,
        *,
        limit_s: float = 60.0,
    ) -> Timing:
        """Time the kernel over copies of ``buffers`` by ``protocol``.

        Raises:
            Fault: as for :meth:`run`.
            RequestError: this backend has no clock.
        """

    def compare(self, subjects: Sequence[Any], protocol: TimingProtocol, *, limit_s: float = 60.0) -> Comparison:
        """Time kernels in turns, each over copies of its own buffers; see :func:`wmmagen.timing.compare`.

        Args:
            subjects: each a :class:`Subject`, a :class:`Series`, or what the library of the same place makes of a
                product.
            protocol: how they are timed.
            limit_s: seconds for all of it.

        Raises:
            Fault: as for :meth:`run`, of any of them.
            RequestError: this backend has no clock.
        """

    def close(self) -> None:
        """Give back what the backend holds. It may not be used afterwards."""
