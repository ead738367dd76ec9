"""What was measured of a device's limits, as a record that can be kept, read again and looked things up in.

Rates are in 10^12 operations per second of matrix products (a multiply-add being two) and in 10^9 bytes per second of
memory. A record holds no date: which compiler, clock and power belong to a figure stands beside it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from wmmagen.errors import RequestError
from wmmagen.timing import Timing

#: Where records are kept, below the current folder, as studies are.
FOLDER = Path("sweeps", "ceilings")

Kind = Literal["register", "shared", "memory"]


@dataclass(frozen=True)
class Choice:
    """A way to fill the device that was tried.

    Attributes:
        warps: of each multiprocessor.
        rate: what came of it.
    """

    warps: int
    rate: float


@dataclass(frozen=True)
class Figure:
    """One limit.

    Attributes:
        kind: what feeds it.
        words: what tells it from the others of its kind: element types, shape, warp tile and data, or level and access.
        amount: operations or bytes of a launch.
        warps: of each multiprocessor, in the best of the ways that were tried; 0 without a time.
        registers: of each thread.
        compiler: name and version of what compiled it.
        timing: of a launch; None where there is none.
        reason: why there is none; empty where there is one.
        tried: every way to fill the device.
        bytes: what the buffers of an access to memory hold together; 0 for products.
    """

    kind: Kind
    words: Mapping[str, str]
    amount: float = 0.0
    warps: int = 0
    registers: int = 0
    compiler: str = ""
    timing: Timing | None = None
    reason: str = ""
    tried: tuple[Choice, ...] = ()
    bytes: int = 0

    @property
    def unit(self) -> str:
        """Of :attr:`rate`."""
        return "GB/s" if self.kind == "memory" else "TFLOP/s"

    @property
    def rate(self) -> float | None:
        """In :attr:`unit`; None without a time."""
        return rate(self.kind, self.amount, self.timing.median_us) if self.timing else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of :attr:`rate`."""
        if self.timing is None:
            return None
        low, high = self.timing.interval_us
        return rate(self.kind, self.amount, high), rate(self.kind, self.amount, low)

    def as_json(self) -> dict[str, Any]:
        """An element of ``rows`` of ``ceiling --json``."""
        return {
            "kind": self.kind,
            "words": dict(self.words),
            "rate": self.rate,
            "interval": list(self.interval) if self.interval else None,
            "unit": self.unit,
            "amount": self.amount,
            "bytes": self.bytes,
            "warps": self.warps,
            "registers": self.registers,
            "compiler": self.compiler,
            "tried": [{"warps": one.warps, "rate": one.rate} for one in self.tried],
            "timing": self.timing.to_json() if self.timing else None,
            "reason": self.reason,
        }


def rate(kind: Kind, amount: float, us: float) -> float:
    """10^12 operations or 10^9 bytes per second, of ``amount`` in so many microseconds."""
    return amount / us / (1e3 if kind == "memory" else 1e6)


@dataclass(frozen=True)
class Record:
    """The limits of one device.

    Attributes:
        device: as a backend names it, ``NVIDIA H200 (sm_90)``.
        arch: the architecture that the loops were compiled for.
        multiprocessors: of the device.
        l2_bytes: size of its L2.
        figures: in the order in which they were measured.
    """

    device: str
    arch: str
    multiprocessors: int
    l2_bytes: int
    figures: tuple[Figure, ...]

    @property
    def whole(self) -> bool:
        """Whether everything that was asked for has a figure."""
        return all(figure.timing is not None for figure in self.figures)

    def find(self, kind: Kind, **words: str) -> Figure | None:
        """The first figure of ``kind`` that has all of ``words`` and a time."""
        held = (f for f in self.figures if f.kind == kind and f.timing is not None)
        return next((f for f in held if words.items() <= f.words.items()), None)

    def over(self, older: Record | None) -> Record:
        """This record with those figures of an older one of the same device that it has not measured itself."""
        if older is None or (older.device, older.arch) != (self.device, self.arch):
            return self
        own = [(f.kind, dict(f.words)) for f in self.figures]
        kept = tuple(f for f in older.figures if (f.kind, dict(f.words)) not in own)
        return dataclasses.replace(self, figures=(*self.figures, *kept))

    def as_json(self) -> dict[str, Any]:
        """The document of ``ceiling --json``."""
        return {
            "device": self.device,
            "arch": self.arch,
            "multiprocessors": self.multiprocessors,
            "l2_bytes": self.l2_bytes,
            "rows": [figure.as_json() for figure in self.figures],
        }

    def to_text(self) -> str:
        """As a file."""
        return json.dumps(self.as_json(), indent=2) + "\n"


def from_json(document: Mapping[str, Any]) -> Record:
    """The record that :meth:`Record.as_json` wrote.

    Raises:
        ValueError: a field is missing or is not what it should be.
    """
    try:
        return Record(
            device=str(document["device"]),
            arch=str(document["arch"]),
            multiprocessors=_count(document["multiprocessors"]),
            l2_bytes=_count(document["l2_bytes"]),
            figures=tuple(_figure(row) for row in document["rows"]),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"this is no record of ceilings: {error}") from error


def _figure(row: Mapping[str, Any]) -> Figure:
    if row["kind"] not in get_args(Kind):
        raise ValueError(f"this is no record of ceilings: a row of kind {row['kind']!r}")
    return Figure(
        kind=cast(Kind, row["kind"]),
        words={str(key): str(value) for key, value in row["words"].items()},
        amount=_amount(row["amount"]),
        warps=_count(row["warps"]),
        registers=_count(row["registers"]),
        compiler=str(row["compiler"]),
        timing=None if row["timing"] is None else Timing.from_json(row["timing"]),
        reason=str(row["reason"]),
        tried=tuple(Choice(_count(one["warps"]), _amount(one["rate"])) for one in row["tried"]),
        bytes=_count(row["bytes"]),
    )


def _amount(value: Any) -> float:
    amount = float(value)
    if not 0 <= amount < math.inf:
        raise ValueError(f"this is no record of ceilings: {value} is no amount")
    return amount


def _count(value: Any) -> int:
    return int(_amount(value))


def read(path: Path) -> Record:
    """The record in a file.

    Raises:
        RequestError: it cannot be read, or holds none.
    """
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:  # the last is what Python says of too many brackets
        raise RequestError(
            f"{path} holds no record of ceilings: {error}", "wmmagen ceiling --to FILE makes one"
        ) from None


def file_name(device: str) -> str:
    """What the record of a device is called: its name without the architecture, in one word."""
    name = device.partition(" (sm_")[0]
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name) + ".json"
