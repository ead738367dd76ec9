"""Configurations to prove something on: a grid over structures, and draws over all axes; the same every time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from wmmagen import defaults, derive, rules
from wmmagen.arch import Arch
from wmmagen.config import KernelConfig, read_pairs

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


def spread(arch: Arch, count: int) -> list[KernelConfig]:
    """``count`` of the draws, taken in turn from each kind that is among them, so that no rare one is left out.

    A kind is what the accumulator, D, the copies, residency and the store are.
    """
    kinds: dict[tuple[str, ...], list[KernelConfig]] = {}
    for config in draws(arch, 5 * count):
        o = config.operation
        kind = (o.acc.name, o.d.name, config.feed, config.copy, config.residency, config.store)
        kinds.setdefault(kind, []).append(config)
    turns = (config for turn in itertools.zip_longest(*kinds.values()) for config in turn if config is not None)
    return list(itertools.islice(turns, count))
