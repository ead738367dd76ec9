"""Configurations to start a search from, in counts. A few known good ones help every way of searching.

They are what well-built WMMA kernels of each architecture use. A seed need not be legal or made for what is searched:
the space says which of them are in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wmmagen.config import Copy, KernelConfig, Reduction, Store
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
        splits: whether K is split.
        groups: of warps, which share the steps of a slice.
    """

    block: tuple[int, int]
    depth: int
    stages: int
    warp: tuple[int, int] = (64, 64)
    copy: Copy = Copy.CPASYNC
    buffers: int = 2
    min_blocks: int = 1
    acc_bits: int = 32
    splits: bool = False
    groups: int = 1


_SMALL = (
    Seed((64, 64), 64, 4, (32, 32)),
    Seed((64, 64), 32, 3, (32, 32)),
    Seed((64, 64), 64, 4, (32, 32), splits=True),
    Seed((64, 64), 64, 4, (32, 32), groups=2),
    Seed((16, 64), 128, 4, (16, 32), groups=4),
)
_TURING = (
    Seed((256, 256), 32, 1, (128, 64), Copy.LD, buffers=1, acc_bits=16),
    Seed((256, 128), 32, 2, copy=Copy.LD, acc_bits=16),
    Seed((128, 128), 32, 2, copy=Copy.LD),
    Seed((128, 128), 32, 2, copy=Copy.LD, buffers=1),
    Seed((128, 128), 32, 1, copy=Copy.LD, buffers=1),
    Seed((256, 128), 32, 1, copy=Copy.LD, buffers=1),
    Seed((64, 64), 64, 2, (32, 32), Copy.LD),
    Seed((64, 64), 32, 2, (32, 32), Copy.LD),
    Seed((64, 64), 64, 2, (32, 32), Copy.LD, splits=True),
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
    Seed((64, 64), 64, 4, (32, 32), splits=True),
    Seed((128, 128), 64, 3, groups=2),
    Seed((128, 64), 64, 4, (64, 32), groups=2),
    Seed((64, 64), 64, 4, (32, 32), groups=2),
    Seed((64, 64), 128, 3, (32, 32), groups=4),
    Seed((32, 64), 128, 4, (32, 32), groups=4),
    Seed((16, 64), 128, 4, (16, 32), groups=4),
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
        legal.sort(key=lambda c: (c.pad_a == 0, c.pad_a, -c.split_k))
        ways = dict.fromkeys(c.reduction for c in legal)
        found.update(dict.fromkeys(next(c for c in legal if c.reduction is way) for way in ways))
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
    point |= {"copy": seed.copy, "stages": seed.stages, "warps_k": seed.groups}
    point |= {"fragment_buffers": seed.buffers, "min_blocks": seed.min_blocks}
    settled = {name: values[0] for name, values in live.items() if len(values) == 1}
    # Without a problem there is no telling what is worth splitting.
    slices = space.problem.k // seed.depth if space.problem else 0
    # Rows first; bytes lie in tiles.
    arrangements = itertools.product(live["arrange_a"], live["arrange_b"])
    splits = list(_splits(seed, live, slices))
    for (a, b), pad, (split_k, reduction) in itertools.product(arrangements, live["pad_a"], splits):
        # Atomics need the places of sums, which only a staged store knows.
        store = Store.STAGED if reduction is Reduction.ATOMIC else point["store"]
        point |= {"arrange_a": a, "arrange_b": b, "pad_a": pad, "pad_b": pad}
        split = {"split_k": split_k, "reduction": reduction, "store": store}
        yield config_of(o, point | split | settled)


def _splits(seed: Seed, live: Mapping[str, Sequence[Value]], slices: int) -> Iterator[tuple[Value, Value]]:
    """Parts of K and how their sums meet.

    More parts have fewer slices each, and more sums to add: about as many as make both equal are best.
    """
    if not seed.splits:
        yield live["split_k"][0], live["reduction"][0]
        return
    ways = [reduction for reduction in live["reduction"] if reduction is not Reduction.NONE]
    yield from itertools.product([count for count in live["split_k"] if 1 < count**2 <= 2 * slices], ways)
