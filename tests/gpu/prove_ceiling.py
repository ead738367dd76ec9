"""The limits of a GPU, measured and kept: what `wmmagen ceiling` measures, in full, and what has to hold between them.

    python tests/gpu/prove_ceiling.py [--arch sm_90] [--to sweeps/records] [--read RECORD]

Writes `ceiling_<arch>_<device>.json`, the record that `wmmagen ceiling` writes, and a text beside it. Ends with 0 where
everything has a figure and all of this holds:

- what is fed from shared memory is not faster than what stays in registers;
- of one shape and accumulator, normal data are not faster than integers;
- DRAM is not faster than the L2 (on an H200 stores to both go at the same rate);
- the same figure measured twice agrees within 3 %, so "not faster" means not by more than that.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import ceiling, ceilings, emit, show
from wmmagen.arch import Arch
from wmmagen.backends.pick import pick
from wmmagen.ceilings import Figure, Record
from wmmagen.foundry import Foundry, usable_cores
from wmmagen.timing import Data

#: How far a figure may be from its repetition, and above one that it cannot pass: the clock at the power cap moves
#: between two measurements, so an order closer than a repetition says nothing.
APART = 0.03


def complaints(record: Record) -> list[str]:
    """What does not hold."""
    found = [f"{' '.join(f.words.values())}: {f.reason}" for f in record.figures if f.timing is None]
    for figure in record.figures:
        above = _above(record, figure)
        if figure.rate is not None and above is not None and above.rate is not None:
            if figure.rate > above.rate * (1 + APART):
                found.append(f"{_named(figure)} is faster than {_named(above)}: {figure.rate:.1f} and {above.rate:.1f}")
    return found


def _above(record: Record, figure: Figure) -> Figure | None:
    """The figure that ``figure`` cannot pass."""
    words = dict(figure.words)
    if figure.kind == "memory":
        return record.find("memory", level="L2", access=words["access"]) if words["level"] == "DRAM" else None
    if figure.kind == "shared":
        words.pop("tile")
        return record.find("register", **words)
    return record.find("register", **words | {"data": "integers"}) if words["data"] == "normal" else None


def _named(figure: Figure) -> str:
    return f"{figure.kind} {' '.join(figure.words.values())}"


def repeated(record: Record, again: Record) -> list[str]:
    """What differs too much between two measurements."""
    found = []
    for figure in again.figures:
        first = record.find(figure.kind, **figure.words)
        if first is not None and first.rate and figure.rate and abs(figure.rate / first.rate - 1) > APART:
            found.append(f"{_named(figure)}: {first.rate:.1f}, and again {figure.rate:.1f}")
    return found


def main() -> int:
    """Measure, judge, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--to", type=Path, default=Path("sweeps/records"))
    parser.add_argument("--read", type=Path, help="judge this record, which was measured before; repeats nothing")
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    if asked.read:
        record = ceilings.read(asked.read)
        return conclude(record, complaints(record), arch, asked.to)
    kinds, start = get_args(ceilings.Kind), time.monotonic()
    with pick("gpu", arch) as place, Foundry(usable_cores(), gives_way=True) as foundry:
        for order in ceiling.orders(arch, kinds):
            foundry.begin(order)

        def measured(kinds: Sequence[ceilings.Kind], data: Sequence[Data]) -> Record:
            return ceiling.measure(
                arch, place, kinds, data, ceiling.PROTOCOL, foundry.compile,
                lambda f: print(f"{time.monotonic() - start:6.1f} s {show.ceiling(f)}", flush=True),
            )  # fmt: skip

        record = measured(kinds, get_args(Data))
        found = complaints(record) + repeated(record, measured(("register",), ("normal",)))
    return conclude(record, found, arch, asked.to)


def conclude(record: Record, found: Sequence[str], arch: Arch, to: Path) -> int:
    """Print and keep the record and what does not hold; 0 where all does."""
    name = f"ceiling_{arch}_{Path(ceilings.file_name(record.device)).stem}"
    holds = [f"DOES NOT HOLD: {text}" for text in found] or ["All of it holds."]
    text = "\n".join([show.ceilings(record), "", *holds])
    print(text)
    emit.write(to / f"{name}.json", record.to_text())
    emit.write(to / f"{name}.txt", f"{text}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(ended(main))
