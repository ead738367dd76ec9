"""Configurations of every type of operands, for the proofs of types: on the executor and on a card.

Each row of the table of instructions that is made stands in every layout that is legal, in every way of filling shared
memory; ways of storing, epilogues and types of D take turns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from wmmagen import coverage, loops, rules, trial
from wmmagen.arch import ARCHS, Arch
from wmmagen.config import KernelConfig, Problem
from wmmagen.defaults import read_config
from wmmagen.dtypes import RESULTS
from wmmagen.instructions import Instruction

#: f16 has proofs of its own; here are the others, and what became new for its sums.
TYPES = tuple(a for a in coverage.GENERATED["a"] if a != "f16")
HALVES = ("a=f16,d=bf16,warps=1x2,frags=2x1", "a=f16,acc=f16,d=bf16,epilogue=linear,warps=2x1,frags=1x2,copy=ld")
PIPELINES = (
    "copy=cpasync,stages=3,fragment_buffers=2,k_steps=2",
    "copy=cpasync,stages=2,fragment_buffers=1,k_steps=1",
    "copy=ld,stages=2,fragment_buffers=2,k_steps=4",
    "copy=ld,stages=1,fragment_buffers=1,k_steps=2",
    "feed=global,k_steps=2",
)
TILES = ("warps=2x1,frags=1x2", "warps=1x2,frags=2x1", "warps=2x2,frags=1x1", "warps=1x1,frags=2x2")


def configs(arch: Arch, types: tuple[str, ...] = TYPES) -> Iterator[KernelConfig]:
    """Those that are legal on ``arch`` and made; what is not legal with its tiles gets others, or a longer slice.

    Of bytes, which have one layout, every way of storing is taken.
    """
    turn = itertools.count()
    for inst in loops.made(types):
        if inst.min_sm > arch.sm:
            continue
        for layout, pipeline in itertools.product(inst.whole_layouts, PIPELINES):
            number, ends = next(turn), list(_ends(inst))
            first = [ends[number % len(ends)]] if not inst.acc.integer else ends
            for end in first:
                rows = [f"a={inst.a.name},acc={inst.acc.name},inst={inst.shape},layout={layout}", pipeline, end]
                yield from itertools.islice(_legal(rows, arch, number), 1)
    for text in HALVES:
        if "copy=ld" in text or arch.sm >= 80:
            yield read_config(text, arch)


def _legal(rows: list[str], arch: Arch, number: int) -> Iterator[KernelConfig]:
    for longer, tiles in itertools.product((1, 2, 4), range(len(TILES))):
        what, pipeline, end = rows
        before, key, steps = pipeline.partition("k_steps=")
        deep = f"{before}{key}{int(steps) * longer}"
        config = read_config(f"{what},{deep},{TILES[(number + tiles) % len(TILES)]},{end}", arch)
        if rules.legal(config, arch) and not coverage.missing(config):
            yield config


def _ends(inst: Instruction) -> Iterator[str]:
    """From sums to D: as they are, then each other type, with and without factors."""
    same = inst.acc.name
    if inst.acc.integer:
        yield from (f"d={same},store=direct", "d=s8,store=staged,epilogue=linear", f"d={same},store=staged")
        yield f"d={same},store=direct,overflow=saturate"
        return
    yield f"d={same},store=direct"
    for d in RESULTS[same]:
        yield f"d={d},store=staged,epilogue=linear"
        yield f"d={d},store=staged"
    yield f"d={same},store=direct,epilogue=linear"
    yield f"d={same},store=direct,residency=global"


def overflowing(overflow: str, a: str) -> tuple[KernelConfig, Problem]:
    """A kernel of bytes, and the problem on which all the largest products together leave s32."""
    config = read_config(
        f"a={a},overflow={overflow},warps=1x1,frags=1x1,k_steps=4,copy=cpasync,stages=2,fragment_buffers=1", ARCHS[80]
    )
    problem = trial.overflowing(config)
    assert problem is not None
    return config, problem
