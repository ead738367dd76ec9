"""The grid proof: every structure that is generated, exact on a GPU. Writes its records.

    python tests/gpu/prove_grid.py [--arch sm_90] [--draws 1100] [--jobs N] [--to tests/gpu/records]

Two lists of configurations, both the same every time:

- the grid: every accumulator, instruction shape and pair of layouts with every way of copying and number of stages;
- the draws: configurations over all axes at once, by a fixed seed: types of D, epilogue, promised alignments,
  arrangements, stores, residency, rasters, fragment buffers, launch bounds, tiles and pads.

Each is validated on its hostile problems. The record has a line for each. Exit status 0 where all are exact.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tests.draws import draws, grid
from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import emit, render, trial
from wmmagen.backends.pick import pick
from wmmagen.foundry import Foundry, Order, usable_cores
from wmmagen.records import Outcome, Record, to_text


def summary(labelled: list[tuple[str, Record]], device: str, seconds: float) -> str:
    """The counts, as committed beside the record."""
    lines = [f"{device}: {len(labelled)} configurations in {seconds:.0f} s"]
    for label in dict.fromkeys(label for label, _ in labelled):
        mine = [r for its, r in labelled if its == label]
        counts = Counter(r.outcome.value for r in mine)
        lines.append(f"{label}: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}")
        lines.append(f"  checked launches: {sum(r.runs for r in mine)}")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Draw, validate, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--draws", type=int, default=1100)
    parser.add_argument("--jobs", type=int, default=usable_cores())
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    begin = time.monotonic()
    wanted = [("grid", c) for c in grid(arch)] + [("draws", c) for c in draws(arch, asked.draws)]
    print(f"{len(wanted)} configurations drawn in {time.monotonic() - begin:.0f} s", flush=True)
    labelled: list[tuple[str, Record]] = []
    with pick("gpu", arch) as place, Foundry(asked.jobs) as foundry:
        print(place.first_line, flush=True)
        backend = place.demanded()
        for _, config in wanted:
            source = render.render(config, arch)
            foundry.begin(Order(source.text, source.kernel, arch))
        for label, config in wanted:
            problem = trial.validation_problems(config)[0]
            record = trial.try_out(config, arch, problem, backend, None, foundry.compile)
            labelled.append((label, record))
            if record.outcome is not Outcome.OK:
                print(f"{record.outcome}: {record.name}: {record.detail}", file=sys.stderr, flush=True)
    text = summary(labelled, backend.device, time.monotonic() - begin)
    stem = f"grid_{arch}_on_{backend.device.split(' (')[0].replace(' ', '_')}"
    emit.write(asked.to / f"{stem}.jsonl", to_text(r for _, r in labelled))
    emit.write(asked.to / f"{stem}.txt", text)
    print(text, end="")
    return 0 if all(r.outcome is Outcome.OK for _, r in labelled) else 1


if __name__ == "__main__":
    sys.exit(ended(main))
