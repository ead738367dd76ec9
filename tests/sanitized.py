"""What compute-sanitizer looks at: small kernels in which every branch of the templates is, and the calls of each."""

from __future__ import annotations

import itertools
from dataclasses import replace

from tests import ragged
from tests.gpu import prove_split
from wmmagen import reference, rules, trial
from wmmagen.arch import Arch
from wmmagen.config import KernelConfig, Problem, Residue
from wmmagen.defaults import read_config

_SMALL = "warps=2x2,frags=2x2"
_TINY = "warps=2x1,frags=1x2,k_steps=2"
#: Every way to feed, to copy, to arrange, to store and to order blocks, of f16.
HALVES = (
    f"{_SMALL},feed=global,acc=f16,d=f32,layout=rc,raster=panels2",
    f"{_SMALL},copy=ld,stages=2,fragment_buffers=2,raster=grouped2",
    f"{_SMALL},copy=ld,stages=2,align_a=1,align_b=2,align_d=1,d=f16",
    f"{_SMALL},copy=cpasync,stages=2,align_a=4,align_b=2,fragment_buffers=1",
    f"{_SMALL},copy=cpasync,stages=3,layout=rc,k_steps=3,fragment_buffers=1",
    f"{_SMALL},copy=cpasync,stages=3,layout=rc,k_steps=3,fragment_buffers=1,residue=predicated",
    f"{_SMALL},copy=cpasync,stages=5,epilogue=linear,d=f16,layout=rc",
    f"{_SMALL},copy=cpasync,stages=3,residency=global,min_blocks=3",
    f"{_SMALL},a=bf16,copy=cpasync,stages=3,inst=8x32x16,layout=cr,fragment_buffers=2",
    f"{_SMALL},copy=cpasync,stages=3,layout=cc,arrange_a=tiles,arrange_b=tiles,store=staged,min_blocks=2",
    f"{_SMALL},copy=ld,stages=1,arrange_a=tiles,arrange_b=tiles,store=staged,epilogue=linear",
    f"{_SMALL},feed=global,layout=cr,residency=global,raster=grouped2",
    f"{_SMALL},copy=cpasync,stages=3,split_k=3,fragment_buffers=2",
    f"{_SMALL},feed=global,split_k=3,reduction=atomic",
)
#: Steps behind the sums: of fragments alone and of places, each function in each precision, and what is added.
CHAINS = (
    f"{_TINY},feed=global,epilogue=scale+clamp",
    f"{_TINY},copy=cpasync,stages=3,store=staged,epilogue=biascol+gelu+residual",
    f"{_TINY},copy=ld,stages=1,layout=cr,d=f16,c=f32,epilogue=scalecol+biasrow+gelutanh",
    f"{_TINY},copy=ld,stages=2,residue=predicated,align_d=1,epilogue=scalerow+silu",
    f"{_TINY},copy=cpasync,stages=2,residue=predicated,c=f16,epilogue=expr(max(acc*2-c,bias))",
    f"{_TINY},copy=ld,stages=1,residue=predicated,store=staged,epilogue=linear+expr(min(row<col?acc:-acc,col))",
    "a=f64,warps=1x2,frags=2x2,k_steps=4,copy=ld,stages=1,epilogue=biascol+gelu+silu,residue=predicated",
    "a=u8,d=u8,warps=2x1,frags=1x2,k_steps=2,copy=ld,stages=1,epilogue=scalecol+biascol+relu,residue=predicated",
    "a=s8,d=s8,c=s32,overflow=saturate,warps=2x1,frags=1x2,k_steps=2,copy=cpasync,stages=2,epilogue=biascol+scale",
)
#: D in columns, and C across it.
COLUMNS = (
    f"{_TINY},cd=cc,copy=cpasync,stages=3,fragment_buffers=2,layout=cr,residue=predicated",
    f"{_TINY},cd=rc,copy=ld,stages=1,store=staged,d=f16,layout=cc,epilogue=linear,residue=predicated",
    "warps=2x1,frags=3x2,k_steps=2,cd=rc,copy=ld,stages=2,align_d=2,residue=predicated,"
    "epilogue=linear+scalerow+biascol+residual",
    f"{_TINY},cd=rc,feed=global,store=direct,epilogue=linear+residual",
    "a=tf32,warps=1x2,frags=2x1,k_steps=2,feed=global,cd=cr,epilogue=linear",
    "a=f64,warps=1x2,frags=2x1,k_steps=4,copy=cpasync,stages=3,cd=rc,epilogue=linear,store=direct",
    f"{_TINY},cd=cc,copy=cpasync,stages=2,split_k=2,reduction=atomic,layout=rc",
)
#: Groups of warps that share slices.
GROUPS = (
    "warps_k=2,warps=1x1,frags=2x2,k_steps=4,copy=ld,stages=2,fragment_buffers=2,store=staged",
    "warps_k=3,warps=2x1,frags=3x2,k_steps=3,feed=global,store=direct,layout=cc",
    "warps_k=4,warps=1x1,frags=3x1,k_steps=8,copy=cpasync,stages=3,fragment_buffers=2,batch=strided,cd=cc,"
    "epilogue=biasrow+relu",
    "warps_k=2,warps=2x1,frags=3x2,k_steps=2,copy=ld,stages=1,split_k=2,epilogue=linear",
    "a=f64,warps_k=2,warps=1x1,frags=2x2,k_steps=4,copy=ld,stages=2,residue=predicated,epilogue=linear+biascol",
    "a=s8,warps_k=2,warps=1x1,frags=2x2,k_steps=2,copy=cpasync,stages=2,fragment_buffers=1",
)
#: Batches beside those of splits.
BATCHES = (
    f"{_TINY},batch=pointers,copy=cpasync,stages=3,fragment_buffers=1,layout=rc,store=direct,raster=panels2",
    f"{_TINY},batch=strided,copy=ld,stages=2,d=f16,epilogue=linear+biasrow+biascol+scalecol+residual+relu",
    f"{_TINY},batch=pointers,copy=ld,stages=1,residue=predicated,layout=cr,c=f32,d=f16,epilogue=linear+biascol+gelu",
)
CASES = (
    *HALVES,
    *(f"residue=predicated,{text}" for text in ragged.VARIANTS),
    *prove_split.BESIDE,
    *CHAINS,
    *COLUMNS,
    *GROUPS,
    *BATCHES,
)
#: Of each kernel for all sizes beside its hostile set: every extent of the ragged sizes as M, as N and as K.
SIZES = tuple(zip(ragged.EXTENTS, *(ragged.EXTENTS[by:] + ragged.EXTENTS[:by] for by in (5, 8)), strict=True))


def configs(arch: Arch) -> list[KernelConfig]:
    """All of them.

    Raises:
        IllegalConfig: one is illegal on ``arch``.
    """
    found = [read_config(text, arch) for text in CASES]
    for config in found:
        rules.demand(config, arch)
    return found


def problems(config: KernelConfig) -> tuple[Problem, ...]:
    """The hostile set of ``config``, and :data:`SIZES` where it takes them, with the numbers of that set in turn."""
    hostile = trial.validation_problems(config)
    if config.operation.residue is Residue.EXACT:
        return hostile
    sized = (_sized(config, size, like) for size, like in zip(SIZES, itertools.cycle(hostile), strict=False))
    return (*hostile, *sized)


def _sized(config: KernelConfig, size: tuple[int, int, int], like: Problem) -> Problem:
    """A problem of ``size``, lines no further aligned than promised; a batch has two products."""
    o = config.operation
    numbers = {name: getattr(like, name) for name in o.epilogue.scalars}
    one = replace(reference.spaced_problem(o, *size, trial.units(config)), **numbers)
    return replace(one, batch=2).apart() if o.batched else one
