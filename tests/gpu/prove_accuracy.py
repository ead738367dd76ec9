"""What accumulators and types of D cost on a card, beside cuBLASLt and the bound. Writes its record.

    python tests/gpu/prove_accuracy.py [--arch sm_90] [--problem 2048] [--to tests/gpu/records]

For each shape of the instructions that round, as ``wmmagen accuracy --fix inst=SHAPE``. Exit status 0 where every
error, the library's too, is within its bound and every D of another type is its sums rounded once. ``--backend cpu`` is
a rehearsal: it needs no GPU, takes a small problem, and writes no record unless ``--to`` is given.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.gpu.proof import ended
from wmmagen import accuracy, coverage, emit, foundry, instructions, show
from wmmagen import arch as archs
from wmmagen.arch import Arch
from wmmagen.backends.pick import Place, pick
from wmmagen.config import Shape, read_size

#: Where the record goes if nothing is said.
RECORDS = Path(__file__).parent / "records"


def shapes(arch: Arch) -> Iterator[Shape]:
    """The shapes of the instructions that round and that templates make, each once."""
    made = (
        row
        for row in instructions.INSTRUCTIONS
        if not row.a.integer
        and row.min_sm <= arch.sm
        and row.a.name in coverage.GENERATED["a"]
        and row.acc.name in coverage.GENERATED["acc"]
    )
    yield from dict.fromkeys(Shape(row.m, row.n, row.k) for row in made)


def measured(shape: Shape, arch: Arch, place: Place, size: tuple[int, int, int] | None) -> accuracy.Report:
    """The report of the kernels whose instruction is of ``shape``."""
    pairs, left_out = accuracy.kernels({"inst": shape}, arch)
    clocked = place.demanded().clocked
    if size is not None:
        accuracy.demand(pairs, size, arch)
    compiler = functools.partial(foundry.compile_source, line_info=place.names_lines)
    asked = size or accuracy.default_size(pairs, on_card=clocked)
    return accuracy.measure(pairs, asked, arch, place, left_out, compiler)


def main() -> int:
    """Measure, judge, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--problem", type=read_size, help="MxNxK [2048 on a GPU]")
    parser.add_argument("--backend", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--to", type=Path)
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    lines: list[str] = []
    documents: list[dict[str, object]] = []
    right = True
    with pick(asked.backend, arch) as place:
        device, clocked = str(place.device), place.demanded().clocked
        lines.append(f"{device}, {arch} kernels")
        for shape in shapes(arch):
            report = measured(shape, arch, place, asked.problem)
            right = right and report.right
            said = [f"\n{shape}: {show.accuracy(report, modelled=not clocked)}", "", "By:"]
            said += [f"  {row.kernel.by}" for row in report.accumulation]
            said += [f"  {row.by}" for row in report.storage]
            said += [f"  {row.library.by}" for row in report.accumulation if row.library is not None]
            lines += said
            print("\n".join(said), flush=True)
            documents.append({"arch": arch.name, "device": device, "shape": str(shape), **report.as_json()})
    folder = asked.to or (RECORDS if clocked else None)
    if folder is not None:
        stem = f"accuracy_{arch}_on_{device.split(' (')[0].replace(' ', '_')}"
        emit.write(folder / f"{stem}.txt", "\n".join(lines) + "\n")
        emit.write(folder / f"{stem}.jsonl", "".join(json.dumps(one, sort_keys=True) + "\n" for one in documents))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(ended(main))
