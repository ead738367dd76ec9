"""Times that were measured, for the estimate to be judged by, and how."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wmmagen.records import Record

RECORDS = Path(__file__).resolve().parents[1] / "sweeps" / "records"

#: Microseconds that two plain kernels took on a Tesla T4, with f32 sums, by the size of the cube. Only this is known of
#: them: a warp multiplies tiles of 16x16 straight from global memory, or after they were staged in shared memory.
_FROM_GLOBAL = {1024: 1571.0, 2048: 10998.0}
_STAGED = {1024: 1122.0, 2048: 5018.0}


@dataclass(frozen=True)
class Known:
    """A kernel of somebody else's, and the nearest one that the templates make.

    Attributes:
        what: it is.
        nearest: the configuration.
        us: microseconds by the size of the cube.
    """

    what: str
    nearest: str
    us: dict[int, float]


#: Both have one tile of 16x16 for each warp. 16 warps make a block of 64x64, a usual one of first kernels. The staged
#: one is the first rung of the ladder: single elements are copied, through registers, into rows without a pad, in one
#: stage.
T4 = (
    Known(
        "WMMA from global memory",
        "inst=16x16x16,feed=global,copy=none,warps=4x4,frags=1x1,k_steps=1,store=direct",
        _FROM_GLOBAL,
    ),
    Known(
        "WMMA, staged",
        "inst=16x16x16,copy=ld,stages=1,warps=4x4,frags=1x1,k_steps=4,pad_a=0,pad_b=0,align_a=1,align_b=1,store=direct",
        _STAGED,
    ),
)

#: A set of variants judges the estimate from this many on, and of each of these cubes there has to be one. A smaller
#: one is a later draw: nothing was fitted to it, and it is shown.
AT_LEAST, SIZES = 100, (1024, 2048, 4096)
#: A line of a sweep's ranking: the place, the median, its interval, the rate, the name.
_RANKED = re.compile(r" +\d+\. +([\d.]+) us \[[\d., ]+\] +[\d.]+ TFLOP/s +(\S+)")


def variants() -> list[Path]:
    """The records of variants that were drawn evenly."""
    return sorted(RECORDS.glob("variants_*.jsonl"))


def judging() -> list[Path]:
    """Those of them that the estimate is judged by."""
    return [path for path in variants() if len(read(path)) >= AT_LEAST]


def missing() -> list[int]:
    """The cubes of which no set judges."""
    found = {record.problem for path in judging() for record in read(path)}
    return [n for n in SIZES if f"{n}x{n}x{n}" not in found]


def sweeps() -> list[Path]:
    """What sweeps of the card's own architecture printed."""
    return sorted(RECORDS.glob("sm_90_*_sweep_*.txt"), key=_cube)


def ranking(path: Path) -> tuple[int, list[tuple[float, str]]]:
    """The cube of a printed sweep, and its best: microseconds and names."""
    lines = map(_RANKED.fullmatch, path.read_text(encoding="utf-8").splitlines())
    return _cube(path), [(float(line[1]), line[2]) for line in lines if line]


def _cube(path: Path) -> int:
    return int(path.name.split("_")[2])


def read(path: Path) -> list[Record]:
    """The records of a file that were right and timed on a card of their own architecture."""
    records = [Record.from_json(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return [record for record in records if record.ranks]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation; equal values share the mean of their ranks."""
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    column = np.asarray(values, dtype=float)
    _, inverse, counts = np.unique(column, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse])
