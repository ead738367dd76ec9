"""Configurations to start a search from, in counts. A few known good ones help every way of searching.

They are what well-built WMMA kernels of each architecture use. A seed need not be legal or made for what is searched:
the space says which of them are in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from wmmagen.config import Copy, KernelConfig
from wmmagen.dtypes import F16
from wmmagen.space import Space, Value, config_of


@dataclass(frozen=True)
class Seed:
    """The tiles of a kernel of f16, in elements, as they are known by.

    Other operands have slices of as many bytes; where sums have 64 bits, tiles are half as high and wide.

    Attributes:
        block: rows and columns of a block's tile of D.
        depth: one slice of K.
        stages: shared-memory buffers in flight.
        warp: rows and columns of a warp's tile of D.
        copy: how tiles reach shared memory.
        buffers: sets of operand fragments; with two, fragments are loaded a step ahead.
        min_blocks: blocks that a multiprocessor is to hold.
        acc_bits: the widest accumulator whose partial sums of a warp's tile fit into its registers.
    """

    block: tuple[int, int]
    depth: int
    stages: int
    warp: tuple[int, int] = (64, 64)
    copy: Copy = Copy.CPASYNC
    buffers: int = 2
    min_blocks: int = 1
    acc_bits: int = 32


_SMALL = (Seed((64, 64), 64, 4, (32, 32)), Seed((64, 64), 32, 3, (32, 32)))
_TURING = (
    Seed((256, 256), 32, 1, (128, 64), Copy.LD, buffers=1, acc_bits=16),
    Seed((256, 128), 32, 2, copy=Copy.LD, acc_bits=16),
    Seed((128, 128), 32, 2, copy=Copy.LD),
    Seed((128, 128), 32, 2, copy=Copy.LD, buffers=1),
    Seed((128, 128), 32, 1, copy=Copy.LD, buffers=1),
    Seed((256, 128), 32, 1, copy=Copy.LD, buffers=1),
    Seed((64, 64), 64, 2, (32, 32), Copy.LD),
    Seed((64, 64), 32, 2, (32, 32), Copy.LD),
)
_AMPERE = (Seed((256, 128), 32, 3), Seed((128, 128), 64, 3), Seed((128, 128), 32, 4), *_SMALL)
_AMPERE_SMALL = (Seed((256, 128), 32, 3), Seed((128, 128), 32, 3), Seed((128, 128), 32, 4), *_SMALL)
_HOPPER = (
    Seed((256, 128), 64, 3),
    Seed((128, 256), 64, 3),
    Seed((128, 64), 64, 4, (64, 32)),
    Seed((64, 64), 64, 4, (32, 32), min_blocks=2),
    Seed((256, 128), 32, 4),
    Seed((128, 128), 64, 3),
    Seed((128, 128), 32, 4),
)

#: By the first architecture that they suit; those in between take the nearest below them.
SEEDS: dict[int, tuple[Seed, ...]] = {
    70: _TURING,
    80: _AMPERE,
    86: _AMPERE_SMALL,
    87: _AMPERE,
    89: _AMPERE_SMALL,
    90: _HOPPER,
    120: _AMPERE_SMALL,
}


def for_space(space: Space) -> list[KernelConfig]:
    """The seeds of the space's architecture that are in the space, each with the values that the space leaves it."""
    found: dict[KernelConfig, None] = {}
    for seed in _suited(space.arch.sm):
        legal = [config for config in _configs(seed, space) if space.contains(config)]
        # The smallest pad that is none: rows an odd number of 16-byte units apart are read without conflicts.
        found.update(dict.fromkeys(sorted(legal, key=lambda c: (c.pad_a == 0, c.pad_a))[:1]))
    return list(found)


def _suited(sm: int) -> tuple[Seed, ...]:
    return SEEDS[max((first for first in SEEDS if first <= sm), default=min(SEEDS))]


def _configs(seed: Seed, space: Space) -> Iterator[KernelConfig]:
    """The seed in counts of the space's first instruction, with each pad; nothing where they would not be whole."""
    live = space.live
    o = space.operation
    smaller = 2 if o.acc.bits == 64 else 1
    if not all(live.values()) or o.acc.bits // smaller > seed.acc_bits:
        return
    inst = live["inst"][0]
    divisions = {
        "warps_m": (seed.block[0], seed.warp[0]),
        "warps_n": (seed.block[1], seed.warp[1]),
        "frags_m": (seed.warp[0] // smaller, inst.m),
        "frags_n": (seed.warp[1] // smaller, inst.n),
        "k_steps": (seed.depth * F16.bits // o.a.bits, inst.k),
    }
    if any(whole % part for whole, part in divisions.values()):
        return
    point: dict[str, Value] = {name: values[0] for name, values in live.items()}
    point |= {name: whole // part for name, (whole, part) in divisions.items()}
    point |= {"copy": seed.copy, "stages": seed.stages}
    point |= {"fragment_buffers": seed.buffers, "min_blocks": seed.min_blocks}
    settled = {name: values[0] for name, values in live.items() if len(values) == 1}
    # Rows first; bytes lie in tiles.
    arrangements = itertools.product(live["arrange_a"], live["arrange_b"])
    for (a, b), pad in itertools.product(arrangements, live["pad_a"]):
        point |= {"arrange_a": a, "arrange_b": b, "pad_a": pad, "pad_b": pad}
        yield config_of(o, point | settled)
