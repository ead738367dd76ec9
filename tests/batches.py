"""Kernels that take a batch, for proofs of them: every part of the templates beside both ways to find matrices."""

from __future__ import annotations

from collections.abc import Iterator

from wmmagen import rules
from wmmagen.arch import Arch
from wmmagen.config import KernelConfig
from wmmagen.defaults import read_config
from wmmagen.errors import RequestError

BATCHES = ("strided", "pointers")
_SMALL = "warps=2x1,frags=1x2"
#: One for each pipeline, store, epilogue, residency and raster; narrow promises, each layout, both accumulators.
KINDS = (
    f"{_SMALL},k_steps=2,copy=cpasync,stages=3,fragment_buffers=1,store=direct",
    f"{_SMALL},k_steps=4,copy=cpasync,stages=2,fragment_buffers=2,layout=rc,store=staged,d=f16,epilogue=linear",
    f"{_SMALL},k_steps=2,copy=cpasync,stages=4,fragment_buffers=2,layout=cr,raster=grouped2,epilogue=linear",
    f"{_SMALL},k_steps=2,copy=ld,stages=1,layout=cc,raster=panels3,store=direct",
    f"{_SMALL},k_steps=2,copy=ld,stages=2,align_a=2,align_b=4,align_d=1,store=staged,epilogue=linear",
    f"{_SMALL},k_steps=2,copy=ld,stages=2,fragment_buffers=2,layout=rc,acc=f16,d=f16,epilogue=linear",
    f"{_SMALL},k_steps=2,copy=ld,stages=1,residency=global,store=direct,layout=cr",
    f"{_SMALL},k_steps=2,feed=global,store=direct,epilogue=linear",
    f"{_SMALL},k_steps=2,feed=global,store=staged,layout=rc,d=f16,acc=f16,fragment_buffers=2",
    "inst=8x32x16,warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=1,arrange_a=tiles,layout=rc,store=staged",
    "inst=32x8x16,warps=1x1,frags=1x4,k_steps=2,copy=ld,stages=2,arrange_b=tiles,store=direct,epilogue=linear",
    f"{_SMALL},k_steps=2,copy=ld,stages=2,d=f16,epilogue=linear+biasrow+biascol+scalecol+residual+relu",
    f"{_SMALL},k_steps=2,copy=ld,stages=1,residue=predicated,layout=cr,c=f32,d=f16,epilogue=biascol+gelu",
)


def kernels(arch: Arch) -> Iterator[KernelConfig]:
    """Those of :data:`KINDS` that are legal on ``arch``, with strides and with arrays."""
    for kind in KINDS:
        for batch in BATCHES:
            try:
                config = read_config(f"batch={batch},{kind}", arch)
            except RequestError:
                continue
            if not rules.check(config, arch):
                yield config
