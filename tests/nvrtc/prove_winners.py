"""The proof that what is handed out as best has no defect: the lint of every known winner. Writes its record.

    python tests/nvrtc/prove_winners.py [--jobs N] [--to FOLDER]

The kernels of ``wmmagen/winners.txt``, each for its own architecture. Exit status 0 where the machine code of all was
read and none has a defect. A line of the record has the figures of a kernel's main loop.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from wmmagen import emit, foundry, gate, known, nvrtc, sass
from wmmagen.config import name
from wmmagen.foundry import Foundry
from wmmagen.known import Winner
from wmmagen.lint import Report
from wmmagen.render import render


def looked_at(winners: Sequence[Winner], jobs: int) -> list[Report]:
    """The lint of each, in their order."""
    with Foundry(jobs) as makers:
        for one in winners:
            source = render(one.config, one.arch)
            makers.begin(makers.order(source.text, source.kernel, one.arch))
        return [gate.look(one.config, one.arch, makers.compile) for one in winners]


def wrong(report: Report) -> str:
    """What is wrong, or was not looked at; empty where nothing is."""
    return "; ".join([*report.defects, *([f"not looked at: {report.undone}"] if report.undone else [])])


def line(winner: Winner, report: Report) -> str:
    """A line of the record: nothing in it depends on the machine or the hour."""
    said = wrong(report)
    size = "x".join(map(str, winner.size))
    figures = report.figures
    loop = f"{figures.matrix} matrix, {figures.integer} integer of {figures.instructions}; " if figures else ""
    return f"{'WRONG' if said else 'ok':<6}{winner.arch} {size:<16} {loop}{name(winner.config)}{f': {said}' if said else ''}"


def main() -> int:
    """Compile, read, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=foundry.usable_cores())
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    begin, winners = time.monotonic(), known.winners()
    reports = looked_at(winners, asked.jobs)
    bad = sum(bool(wrong(report)) for report in reports)
    told = [
        f"{len(winners)} winners, {bad} with defects or not looked at; {nvrtc.title()}, {sass.title(sass.locate())}",
        *map(line, winners, reports),
    ]
    emit.write(asked.to / "winners.txt", "\n".join(told) + "\n")
    print("\n".join(told))
    print(f"{time.monotonic() - begin:.0f} s with {asked.jobs} processes")
    return 1 if bad or not winners else 0


if __name__ == "__main__":
    sys.exit(main())
