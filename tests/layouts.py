"""Kernels whose C and D lie in rows or in columns, and the mirrored kernel of each: its transpose, D^T = B^T·A^T."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from wmmagen import coverage, epilogue, rules
from wmmagen.arch import Arch
from wmmagen.config import Grid, KernelConfig, Layout, Order, Problem, Raster, Shape
from wmmagen.defaults import read_config
from wmmagen.epilogue import Epilogue

#: Operands, sums and results.
TYPES = (
    "a=f16", "a=f16,d=f16", "a=f16,acc=f16", "a=bf16", "a=bf16,d=bf16", "a=tf32", "a=f64", "a=s8", "a=s8,d=s8", "a=u8",
    "a=s8,d=f32", "a=u8,d=u8",
)  # fmt: skip
#: Without C, with it, and with whatever belongs to rows and to columns.
EPILOGUES = (
    "none", "linear", "linear+biasrow+relu", "linear+biascol+residual", "scalerow+biascol+residual",
    "scalecol+biasrow+clamp", "linear+residual", "expr(row<col?acc:c-acc)", "linear+expr(acc+row*2-col+bias)",
    "linear+biasrow+biascol",
)  # fmt: skip
#: Every way to feed, to copy, to store, to share K among blocks and groups of warps, and to batch; shapes that are no
#: squares; orders of blocks.
KERNELS = (
    "warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=1,store=direct",
    "warps=2x1,frags=1x2,k_steps=2,copy=cpasync,stages=3,fragment_buffers=2,store=staged",
    "warps=2x1,frags=2x1,k_steps=2,feed=global,store=direct",
    "warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=2,store=staged,align_d=1",
    "warps=1x1,frags=3x1,k_steps=2,copy=ld,stages=2,fragment_buffers=2,store=staged",
    "inst=32x8x16,warps=1x2,frags=1x2,k_steps=2,copy=ld,stages=1",
    "inst=8x32x16,warps=2x1,frags=2x1,k_steps=2,copy=cpasync,stages=2,fragment_buffers=1",
    "residency=global,store=direct,warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=1",
    "warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=1,split_k=2,reduction=workspace",
    "warps=2x1,frags=1x1,k_steps=2,copy=cpasync,stages=2,split_k=3,reduction=atomic,store=staged",
    "batch=strided,warps=1x2,frags=1x1,k_steps=2,copy=ld,stages=2",
    "batch=pointers,warps=2x1,frags=1x1,k_steps=2,feed=global",
    "raster=grouped2,warps=1x2,frags=1x1,k_steps=2,copy=ld,stages=1,store=staged,align_d=2",
    "raster=panels2,warps=2x1,frags=1x1,k_steps=2,copy=cpasync,stages=3",
    "warps_k=2,warps=1x1,frags=2x2,k_steps=4,copy=ld,stages=2,fragment_buffers=2,store=staged",
    "warps_k=2,warps=2x1,frags=1x3,k_steps=2,copy=ld,stages=1,split_k=2,reduction=workspace",
    "warps_k=4,warps=1x1,frags=3x1,k_steps=4,copy=cpasync,stages=3,batch=strided",
    "warps_k=2,warps=1x2,frags=2x1,k_steps=2,feed=global,store=direct",
    "batch=strided,warps=1x2,frags=1x1,k_steps=2,copy=ld,stages=1,split_k=2,reduction=workspace,store=direct",
)
LAYOUTS = tuple(Layout)
#: C and D both in rows are what all other proofs have.
OTHERS = (Layout.CC, Layout.RC, Layout.CR)


def configs(targets: Sequence[Arch], each: int) -> Iterator[tuple[Arch, KernelConfig]]:
    """``each`` legal kernels of every type, residue and layout of A, B, C and D, as far as there are any.

    Kernels, epilogues and architectures take turns, so that they meet in many ways.
    """
    turns = zip(itertools.cycle(EPILOGUES), itertools.cycle(KERNELS), itertools.cycle(targets), strict=False)
    for types, residue, cd, layout in itertools.product(TYPES, ("exact", "predicated"), OTHERS, LAYOUTS):
        asked = f"residue={residue},cd={cd},layout={layout}"
        # Every turn may be one that a type or layout has not; after a round for each architecture there is none.
        legal = (
            (arch, config)
            for steps, kernel, arch in itertools.islice(turns, _ROUND * len(targets))
            if _worth_asking(types, residue, cd, layout, steps, kernel, arch)
            and (config := _legal(f"{types},{kernel},epilogue={steps},{asked}", arch))
        )
        yield from itertools.islice(legal, each)


#: Numbers without a common divisor, so that every epilogue meets every kernel.
_ROUND = len(EPILOGUES) * len(KERNELS)


def _worth_asking(types: str, residue: str, cd: Layout, layout: Layout, steps: str, kernel: str, arch: Arch) -> bool:
    """Whether a kernel may be legal. The rules say the same, after defaults have looked for long."""
    in_bytes, chain = types.startswith(("a=s8", "a=u8")), steps not in ("none", "linear")
    whole = in_bytes and ("d=" not in types)
    refused = (
        in_bytes and (layout is not Layout.RC or whole is not (steps == "none")),
        in_bytes and not whole and not steps.startswith(("linear", "scale")),
        cd is not Layout.CC and steps != "linear" and "residual" not in steps and "c" not in _letters(steps),
        chain and steps != "linear+residual" and "store=direct" in kernel and residue == "exact",
        residue == "predicated" and "global" in kernel,
        "atomic" in kernel and (steps != "none" or "d=" in types or "acc=f16" in types),
        "store=direct" in kernel and "d=" in types,
        "inst=" in kernel and types[2:5] in ("tf3", "f64"),
        arch.sm < 80 and (types[2:4] in ("bf", "tf", "f6") or "cpasync" in kernel),
        arch.sm < 80 and "stages=3" in kernel,
    )
    return not any(refused)


def _letters(steps: str) -> set[str]:
    """The names of one letter in an expression."""
    return set(re.findall(r"\b[a-z]\b", steps))


def _legal(pairs: str, arch: Arch) -> KernelConfig | None:
    config = read_config(pairs, arch)
    return config if rules.legal(config, arch) and not coverage.missing(config) else None


def mirrored(config: KernelConfig) -> KernelConfig:
    """The kernel that computes D^T = B^T·A^T: all of A is B's, all of rows is columns', and memory is the same.

    Raises:
        ValueError: an expression, in whose text rows and columns would have to change places.
    """
    c, o = config, config.operation
    operation = replace(
        o,
        layout=_of(not o.b_row_major, not o.a_row_major),
        cd=_of(not o.c_row_major, not o.d_row_major),
        epilogue=_turned(o.epilogue),
        align_a=o.align_b,
        align_b=o.align_a,
    )
    return replace(
        c,
        operation=operation,
        inst=Shape(c.inst.n, c.inst.m, c.inst.k),
        warps=Grid(c.warps.n, c.warps.m),
        frags=Grid(c.frags.n, c.frags.m),
        pad_a=c.pad_b,
        pad_b=c.pad_a,
        arrange_a=c.arrange_b,
        arrange_b=c.arrange_a,
        raster=Raster(_ORDERS[c.raster.order], c.raster.width),
    )


#: Along the rows of D is across those of D^T, which is no order that there is; each block is a tile of its own anyhow.
_ORDERS = {Order.LINEAR: Order.LINEAR, Order.GROUPED: Order.PANELS, Order.PANELS: Order.GROUPED}
#: What names of vectors and of their steps end with.
_ENDS = {"row": "col", "col": "row"}


def _of(first: bool, second: bool) -> Layout:
    return Layout("".join("r" if rows else "c" for rows in (first, second)))


def _turned(steps: Epilogue) -> Epilogue:
    if "expr" in str(steps):
        raise ValueError(f"{steps} says rows and columns in its text")
    if steps.simple:
        return steps
    words = [word[:-3] + _ENDS[word[-3:]] if word[-3:] in _ENDS else word for word in str(steps).split("+")]
    return epilogue.read("+".join(words))


def of_mirror(problem: Problem, operation: KernelConfig) -> Problem:
    """The same call of the mirrored kernel ``operation``."""
    p = problem
    vectors = {f"stride_{v}": p.stride_of(f"{v[:-3]}{_ENDS[v[-3:]]}") for v in epilogue.VECTORS}
    return replace(
        p,
        operation=operation.operation,
        m=p.n,
        n=p.m,
        lda=p.ldb,
        ldb=p.lda,
        stride_a=p.stride_b,
        stride_b=p.stride_a,
        **vectors,
    )
