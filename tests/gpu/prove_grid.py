"""The grid proof: every structure that is generated, in many sizes of tile, exact on a GPU. Writes its record.

    python tests/gpu/prove_grid.py [--arch sm_90] [--per-structure 10] [--to tests/gpu/records]

A structure is an accumulator, an instruction shape, a feed, a copy and a number of stages. From each, tile
hierarchies and pads are drawn by a fixed seed; each is validated on its hostile problems. The record has a line for
each configuration; for one seed it names the same configurations every time. Exit status 0 where all are exact.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from wmmagen import arch as archs
from wmmagen import emit, trial
from wmmagen.arch import Arch
from wmmagen.backends.pick import pick
from wmmagen.config import KernelConfig, Operation, read_value
from wmmagen.dtypes import F16, F32
from wmmagen.records import Outcome, Record, to_text
from wmmagen.space import Space

SEED = 20_261_130
PIPELINES = [("global", "none", 1), ("shared", "ld", 1), ("shared", "ld", 2)] + [
    ("shared", "cpasync", stages) for stages in (2, 3, 4, 5)
]
SHAPES = ("16x16x16", "8x32x16", "32x8x16")


def structures(arch: Arch) -> Iterator[tuple[str, Space]]:
    """Each structure that has a legal configuration on ``arch``, with its space."""
    for acc in (F32, F16):
        for shape in SHAPES:
            for feed, copy, stages in PIPELINES:
                words = {"inst": shape, "feed": feed, "copy": copy, "stages": str(stages)}
                fixed = {key: read_value(key, text) for key, text in words.items()}
                space = Space(Operation(F16, acc, acc), arch, fixed)
                if len(space):
                    yield f"{acc.name} {shape} {feed} {copy}{stages}", space


def draw(arch: Arch, per_structure: int) -> list[tuple[str, KernelConfig]]:
    """Configurations of every structure, by the fixed seed."""
    rng = random.Random(SEED)
    return [(label, c) for label, space in structures(arch) for c in space.sample(rng, min(per_structure, len(space)))]


def summary(labelled: list[tuple[str, Record]], device: str, seconds: float) -> str:
    """The counts, a line for each structure, as committed beside the record."""
    lines = [f"{device}: {len(labelled)} configurations in {seconds:.0f} s"]
    lines += [f"{outcome}: {count}" for outcome, count in Counter(r.outcome.value for _, r in labelled).items()]
    lines.append(f"checked launches: {sum(r.runs for _, r in labelled)}")
    for label in dict.fromkeys(label for label, _ in labelled):
        mine = [r for its, r in labelled if its == label]
        right = sum(r.outcome is Outcome.OK for r in mine)
        lines.append(f"  {label:<36} {right} of {len(mine)} exact")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Draw, validate, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--per-structure", type=int, default=10)
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    begin = time.monotonic()
    labelled: list[tuple[str, Record]] = []
    with pick("gpu", arch) as place:
        print(place.first_line)
        backend = place.demanded()
        for label, config in draw(arch, asked.per_structure):
            record = trial.try_out(config, arch, trial.validation_problems(config)[-1], backend, None)
            labelled.append((label, record))
            if record.outcome is not Outcome.OK:
                print(f"{record.outcome}: {record.name}: {record.detail}", file=sys.stderr)
    text = summary(labelled, backend.device, time.monotonic() - begin)
    stem = f"grid_{arch}_on_{backend.device.split(' (')[0].replace(' ', '_')}"
    emit.write(asked.to / f"{stem}.jsonl", to_text(r for _, r in labelled))
    emit.write(asked.to / f"{stem}.txt", text)
    print(text, end="")
    return 0 if all(r.outcome is Outcome.OK for _, r in labelled) else 1


if __name__ == "__main__":
    sys.exit(main())
