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
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from wmmagen import arch as archs
from wmmagen import defaults, derive, emit, render, rules, trial
from wmmagen.arch import Arch
from wmmagen.backends.pick import pick
from wmmagen.config import KernelConfig, read_pairs
from wmmagen.foundry import Foundry, Order, usable_cores
from wmmagen.records import Outcome, Record, to_text

SEED = 20_261_130
SHAPES = ("16x16x16", "8x32x16", "32x8x16")
LAYOUTS = ("rr", "rc", "cr", "cc")
PIPELINES = (
    "feed=global",
    "copy=ld,stages=1",
    "copy=ld,stages=2",
    *(f"copy=cpasync,stages={stages}" for stages in (2, 3, 4, 5)),
)
#: Values that are drawn for each key; pads are 16-byte units or halves of a fragment.
DRAWN: dict[str, tuple[str, ...]] = {
    "acc": ("f32", "f16"),
    "d": ("f32", "f16"),
    "layout": LAYOUTS,
    "epilogue": ("none", "linear"),
    "align_a": ("8", "8", "4", "2", "1"),
    "align_b": ("8", "8", "4", "2", "1"),
    "align_d": ("8", "4", "4", "2", "1"),
    "inst": SHAPES,
    "warps": ("1x1", "1x2", "2x1", "2x2", "2x4", "4x2"),
    "frags": ("1x1", "1x2", "2x1", "2x2", "2x4", "4x2", "3x2", "4x4"),
    "k_steps": ("1", "2", "4"),
    "feed": ("shared",) * 6 + ("global",),
    "copy": ("ld", "cpasync", "none"),
    "stages": ("1", "2", "3", "4", "5"),
    "pad_a": ("0", "8", "16"),
    "pad_b": ("0", "8", "16"),
    "pad_d": ("0", "4", "8"),
    "arrange_a": ("rows", "tiles"),
    "arrange_b": ("rows", "tiles"),
    "fragment_buffers": ("1", "2"),
    "residency": ("fragment", "fragment", "global"),
    "store": ("direct", "staged"),
    "min_blocks": ("1", "2", "3"),
    "raster": ("linear", "grouped2", "grouped8", "panels2", "panels8"),
}
#: Keys that mean nothing where operands are not staged, and where D is not; their one value is the default.
STAGED = ("copy", "stages", "pad_a", "pad_b", "arrange_a", "arrange_b", "align_a", "align_b")
STORED = ("d", "pad_d", "align_d")
#: Larger tiles of D than this make larger problems, and no other code.
MOST_ELEMENTS = 256 * 128


def grid(arch: Arch) -> Iterator[KernelConfig]:
    """Each combination that has a legal configuration on ``arch``, as the defaults complete it."""
    for acc in ("f32", "f16"):
        for shape in SHAPES:
            for layout in LAYOUTS:
                for pipeline in PIPELINES:
                    given = read_pairs(f"acc={acc},inst={shape},layout={layout},{pipeline}")
                    config = defaults.complete(given, arch, search=False)
                    if rules.legal(config, arch):
                        yield config


def draws(arch: Arch, count: int) -> Iterator[KernelConfig]:
    """``count`` different legal configurations over all axes, by the fixed seed."""
    rng = random.Random(SEED)
    seen: set[KernelConfig] = set()
    while len(seen) < count:
        chosen = {key: rng.choice(values) for key, values in DRAWN.items()}
        if chosen["feed"] == "global":
            chosen = {key: value for key, value in chosen.items() if key not in STAGED}
        if chosen["store"] == "direct":
            chosen = {key: value for key, value in chosen.items() if key not in STORED}
        config = defaults.complete(read_pairs(",".join(f"{k}={v}" for k, v in chosen.items())), arch, search=False)
        known = derive.values(config)
        small = known["BLOCK_M"] * known["BLOCK_N"] <= MOST_ELEMENTS
        if small and config not in seen and rules.legal(config, arch):
            seen.add(config)
            yield config


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
    sys.exit(main())
