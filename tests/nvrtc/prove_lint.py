"""The proof that what is shipped has no defect: the lint of committed kernels and known winners. Writes its record.

    python tests/nvrtc/prove_lint.py [--archs sm_75,sm_80,sm_86,sm_89,sm_90,sm_120] [--jobs N] [--to FOLDER]

The kernels of ``generated/shipped.txt``, each for its own architecture and for all later ones of these where it is
legal, and those of ``wmmagen/winners.txt``. Exit status 0 where the machine code of all was read and none has a defect.
A line of the record has the figures of a kernel's main loop.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import shipped
from wmmagen import arch as archs
from wmmagen import emit, foundry, gate, known, nvrtc, rules, sass
from wmmagen.arch import Arch
from wmmagen.config import KernelConfig
from wmmagen.config import name as name_of
from wmmagen.foundry import Foundry
from wmmagen.lint import Report
from wmmagen.render import render


@dataclass(frozen=True)
class Shipped:
    """A kernel, what it is compiled for, and in words why it is looked at."""

    arch: Arch
    config: KernelConfig
    why: str


def known_winners() -> list[Shipped]:
    """The kernels of the table of winners."""
    return [Shipped(w.arch, w.config, f"winner at {'x'.join(map(str, w.size))}") for w in known.winners()]


def committed(targets: Sequence[Arch]) -> Iterator[Shipped]:
    """The committed kernels, for their own architecture and for the later ones of ``targets``."""
    for name in shipped.NAMES:
        case, home = shipped.config_of(name), shipped.arch_of(name)
        for target in dict.fromkeys([home, *targets]):
            if target.sm >= home.sm and rules.legal(case, target):
                yield Shipped(target, case, f"committed for {home}")


def looked_at(kernels: Sequence[Shipped], jobs: int) -> list[Report]:
    """The lint of each, in their order."""
    with Foundry(jobs) as makers:
        for one in kernels:
            source = render(one.config, one.arch)
            makers.begin(makers.order(source.text, source.kernel, one.arch))
        return [gate.look(one.config, one.arch, makers.compile) for one in kernels]


def wrong(report: Report) -> str:
    """What is wrong, or was not looked at; empty where nothing is."""
    return "; ".join([*report.defects, *([f"not looked at: {report.undone}"] if report.undone else [])])


def line(one: Shipped, report: Report) -> str:
    """A line of the record: nothing in it depends on the machine or the hour."""
    said, figures = wrong(report), report.figures
    loop = f"{figures.matrix} matrix, {figures.integer} integer of {figures.instructions}; " if figures else ""
    told = f": {said}" if said else ""
    return f"{'WRONG' if said else 'ok':<6}{one.arch} {one.why:<21} {loop}{name_of(one.config)}{told}"


def main() -> int:
    """Compile, read, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=foundry.usable_cores())
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    parser.add_argument("--archs", default="sm_75,sm_80,sm_86,sm_89,sm_90,sm_120")
    asked = parser.parse_args()
    begin, targets = time.monotonic(), [archs.find(word) for word in asked.archs.split(",")]
    kernels = [*committed(targets), *known_winners()]
    reports = looked_at(kernels, asked.jobs)
    bad = sum(bool(wrong(report)) for report in reports)
    told = [
        f"{len(kernels)} kernels, {len(known.winners())} of them winners; {bad} with defects or not looked at; "
        f"{nvrtc.title()}, {sass.title(sass.locate())}",
        *map(line, kernels, reports),
    ]
    emit.write(asked.to / "lint.txt", "\n".join(told) + "\n")
    print("\n".join(told))
    print(f"{time.monotonic() - begin:.0f} s with {asked.jobs} processes")
    return 1 if bad or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
