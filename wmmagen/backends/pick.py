"""Which backend a request gets on this machine, and what that means for its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from wmmagen import chips
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import Backend
from wmmagen.backends.product import Library
from wmmagen.chips import Chip
from wmmagen.errors import ConfigError, MissingPiece
from wmmagen.records import Outcome, Record

if TYPE_CHECKING:
    from wmmagen.backends.gpu import GpuBackend

KINDS = ("auto", "gpu", "cpu", "none")
#: The architecture that is meant where nobody names one and no GPU is here: the oldest that is supported.
OLDEST = ARCHS[75]


@dataclass(frozen=True)
class Place:
    """Where kernels run; ``backend`` is None where they cannot, and ``why`` says so.

    ``library`` is asked for what kernels' times are divided by; None where there is none.
    """

    backend: Backend | None
    arch: Arch
    why: str = ""
    library: Library | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.backend is not None:
            self.backend.close()

    def demanded(self) -> Backend:
        """The backend.

        Raises:
            MissingPiece: there is none.
        """
        if self.backend is None:
            raise MissingPiece(
                f"nothing here can run {self.arch} kernels: {self.why}",
                f"run it where there is an NVIDIA GPU of {self.arch} or later and its driver; `wmmagen doctor` looks",
            )
        return self.backend

    def settles(self, record: Record) -> bool:
        """Whether ``record`` says what a trial here would say, so that its point need not be tried again.

        Without a backend any record does. With one, what was only compiled is open, and a time or a verdict from
        another card is that card's; what the compiler or a rule refused stays refused. What has facts was compiled:
        then a card could not assemble it again, which is that card's, too.
        """
        refused = record.outcome in (Outcome.ILLEGAL, Outcome.COMPILE) and record.facts is None
        if self.backend is None or refused:
            return True
        return record.outcome is not Outcome.UNVERIFIED and record.device == self.backend.device

    @property
    def ranks(self) -> bool:
        """Whether times of here rank: there is a clock, and the card is of the architecture."""
        return self.backend is not None and self.backend.clocked and not self.foreign

    @property
    def stand_in(self) -> Chip | None:
        """The chip of another architecture whose estimates rank here; None where times do, or the table has a chip."""
        return None if self.ranks else chips.stand_in(self.arch.sm)

    @property
    def foreign(self) -> bool:
        """Whether kernels are assembled again for a card of another architecture: verdicts hold, times do not rank."""
        return self.backend is not None and self.backend.foreign(self.arch)

    @property
    def names_lines(self) -> bool:
        """Whether what runs here names lines of the source, for which binaries need line tables."""
        return self.name == "cpu"

    @property
    def device(self) -> str | None:
        """The card or processor that runs them; None where nothing does."""
        return self.backend.device if self.backend else None

    @property
    def name(self) -> str:
        """``gpu``, ``cpu`` or ``none``."""
        return self.backend.name if self.backend else "none"

    @property
    def first_line(self) -> str:
        """The first line of an output: what runs where, and what that means for the numbers."""
        if self.backend is None:
            return (
                f"backend none: {self.why}. Kernels are compiled for {self.arch} and not run: "
                "nothing is validated or timed."
            )
        if not self.backend.clocked:
            return (
                f"backend {self.name}: {self.backend.device} runs the PTX of {self.arch} kernels on small problems: "
                "verdicts hold, hazards are looked for, nothing is timed."
            )
        if self.foreign:
            return (
                f"backend {self.name}: {self.backend.device} runs {self.arch} kernels assembled again for it: "
                "verdicts hold, times are foreign and never rank."
            )
        return (
            f"backend {self.name}: {self.backend.device} runs {self.arch} kernels as they are: "
            "verdicts and times are this card's."
        )


def sweeping(place: Place) -> str:
    """The first line of a sweep: where no time ranks, it says what does."""
    return place.first_line if place.backend is None or place.ranks else f"{place.first_line} Estimates rank."


def pick(kind: str, arch: Arch, *, strict_isa: bool = False) -> Place:
    """The place for kernels of ``arch``.

    Args:
        kind: ``auto`` takes a GPU that can run them, and the CPU executor where there is none; ``gpu`` demands one,
            ``cpu`` demands the executor, and ``none`` compiles only.
        strict_isa: whether the executor also holds fragments to the PTX ISA's alignment. A GPU has no such check.

    Raises:
        ConfigError: ``kind`` is none of :data:`KINDS`.
        MissingPiece: a GPU was demanded and none here can run kernels of ``arch``.
    """
    if kind not in KINDS:
        raise ConfigError(f"--backend {kind!r} is not known", f"one of: {' '.join(KINDS)}")
    if kind == "none":
        return Place(None, arch, "none was asked for")
    if kind == "cpu":
        return Place(_executor(strict_isa), arch)
    try:
        backend = _best_gpu(arch)
    except MissingPiece as missing:
        if kind == "gpu":
            raise
        return Place(_executor(strict_isa), arch, missing.message)
    return Place(backend, arch, library=backend.library)


def _executor(strict_isa: bool) -> Backend:
    # Most commands run nothing, and to import it takes a fifth of their start.
    from wmmagen.backends.cpu import CpuBackend

    return CpuBackend(strict_isa=strict_isa)


def _best_gpu(arch: Arch) -> GpuBackend:
    """A GPU of exactly ``arch`` where there is one, else the first that can run it."""
    from wmmagen.backends import gpu

    found = gpu.devices()
    able = sorted((d for d in found if d.sm >= arch.sm and d.sm in ARCHS), key=lambda d: (d.sm != arch.sm, d.index))
    if not able:
        names = ", ".join(str(d) for d in found)
        raise MissingPiece(f"no GPU here can run {arch} kernels ({names})", "--arch of the card, or another card")
    return gpu.GpuBackend(able[0].index)


def chip(arch: Arch, device: str | None = None) -> Chip:
    """The chip that an estimate for ``arch`` means: ``device``, a GPU here, or the usual one of the architecture.

    A GPU of another architecture, or one that the table of chips does not have, does not count.

    Args:
        device: the driver's name of the GPU that runs what is estimated; None where none does.
    """
    known = chips.find(device or "")
    if known is not None:
        return known
    from wmmagen.backends import gpu

    try:
        found = gpu.devices()
    except MissingPiece:
        return chips.usual(arch.sm)
    here = (chips.find(str(device)) for device in found if device.sm == arch.sm)
    return next((one for one in here if one is not None), chips.usual(arch.sm))


def default_arch() -> Arch:
    """The architecture of the first GPU here, or the oldest supported one where there is none that is known."""
    from wmmagen.backends import gpu

    try:
        found = gpu.devices()
    except MissingPiece:
        return OLDEST
    return next((ARCHS[d.sm] for d in found if d.sm in ARCHS), OLDEST)
