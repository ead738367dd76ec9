"""What is counted of a kernel: each slice adds the same, and a kernel with a hazard has no profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wmmagen import derive, lint, nvrtc, profile, trial, work
from wmmagen.arch import ARCHS, Arch, find
from wmmagen.config import Problem
from wmmagen.defaults import read_config
from wmmagen.errors import HazardFault

pytestmark = pytest.mark.usefixtures("headers_once")

SM75, SM80 = ARCHS[75], ARCHS[80]
CONFIG = read_config("warps=2x1,frags=2x1,k_steps=2,copy=cpasync,stages=3,store=direct", SM80)


def _problem(slices: int) -> Problem:
    known = derive.values(CONFIG)
    return Problem.packed(CONFIG.operation, known["BLOCK_M"], 2 * known["BLOCK_N"], slices * known["BLOCK_K"])


def test_each_slice_adds_the_same() -> None:
    binary = trial.build(CONFIG, SM80)[1]
    four, six, eight = (profile.count(CONFIG, binary, _problem(slices)) for slices in (4, 6, 8))
    for figure in ("global_load_sectors", "shared_load_wavefronts", "shared_store_wavefronts", "tensor_instructions"):
        assert getattr(six, figure) - getattr(four, figure) == getattr(eight, figure) - getattr(six, figure) > 0
    problem = _problem(4)
    assert four.multiply_adds == problem.m * problem.n * problem.k
    assert four.global_store_sectors == six.global_store_sectors
    assert four.stored_bytes == problem.m * problem.n * 4


def test_a_hazard_has_no_profile() -> None:
    source = trial.render(CONFIG, SM80)
    broken = nvrtc.compile_source(source.text.replace("__syncthreads();", "", 1), source.kernel, SM80)
    with pytest.raises(HazardFault, match="race"):
        profile.count(CONFIG, broken, _problem(4))


#: Every way of feeding, copying, storing and keeping sums, with each shape and arrangement somewhere.
KINDS = (
    ("sm_80", "warps=2x1,frags=2x4,copy=cpasync,stages=3,pad_a=8,pad_b=0,store=staged,k_steps=2"),
    ("sm_80", "inst=8x32x16,warps=1x2,frags=2x1,copy=cpasync,arrange_a=tiles,arrange_b=tiles,layout=cr,pad_a=8"),
    ("sm_80", "inst=32x8x16,warps=2x2,frags=1x2,copy=cpasync,residency=global,layout=rc,k_steps=4"),
    ("sm_80", "d=f16,epilogue=linear,layout=cc,warps=1x2,frags=2x2,copy=cpasync,fragment_buffers=2,k_steps=2"),
    ("sm_80", "epilogue=linear,store=direct,warps=1x2,frags=1x2,copy=cpasync,stages=2"),
    ("sm_80", "epilogue=linear+biascol+scalerow+residual+gelu,d=f16,c=f32,warps=1x2,frags=2x2,copy=cpasync,k_steps=2"),
    ("sm_80", "epilogue=biasrow+scalecol+biascol+relu,store=staged,warps=1x1,frags=1x3,copy=cpasync,k_steps=2"),
    ("sm_80", "epilogue=linear+relu+residual,store=direct,warps=1x2,frags=1x2,copy=cpasync,stages=2"),
    ("sm_80", "copy=cpasync,stages=4,fragment_buffers=1,k_steps=3,warps=2x1,frags=2x2,store=direct"),
    ("sm_80", "copy=cpasync,stages=4,fragment_buffers=2,k_steps=4,warps=1x1,frags=2x3,layout=rc"),
    ("sm_75", "copy=ld,stages=2,align_a=2,align_b=4,align_d=1,warps=2x2,frags=2x2,k_steps=2,fragment_buffers=2"),
    ("sm_80", "residue=predicated,copy=cpasync,stages=3,fragment_buffers=2,k_steps=2,warps=2x1,frags=2x2,store=direct"),
    ("sm_75", "feed=global,inst=8x32x16,warps=2x1,frags=2x2,fragment_buffers=2,k_steps=2"),
    ("sm_75", "feed=global,inst=8x32x16,warps=2x1,frags=2x2"),
    ("sm_75", "feed=global,acc=f16,d=f16,store=staged,warps=1x1,frags=1x2,layout=rc"),
    ("sm_75", "copy=ld,stages=2,align_a=2,align_b=4,align_d=1,warps=2x2,frags=2x2,k_steps=2"),
    ("sm_75", "copy=ld,stages=1,align_a=2,align_b=4,align_d=1,layout=cr,warps=1x2,frags=2x2"),
    ("sm_80", "batch=strided,copy=cpasync,stages=3,warps=2x1,frags=2x2,k_steps=2"),
    ("sm_80", "batch=pointers,epilogue=linear,copy=cpasync,stages=3,warps=2x1,frags=2x2,k_steps=2"),
    ("sm_80", "copy=cpasync,stages=3,split_k=2,d=f16,epilogue=linear,warps=2x1,frags=2x1"),
    ("sm_75", "feed=global,split_k=4,inst=8x32x16,acc=f16,warps=1x1,frags=1x2,layout=rc"),
    ("sm_80", "copy=cpasync,stages=2,split_k=4,reduction=atomic,warps=1x2,frags=1x2"),
    ("sm_75", "copy=ld,stages=1,split_k=2,reduction=atomic,align_d=1,warps=1x1,frags=2x1"),
    (
        "sm_80",
        "warps_k=2,copy=cpasync,stages=3,fragment_buffers=2,k_steps=4,warps=1x2,frags=3x1,epilogue=biascol,store=staged",
    ),
    ("sm_75", "warps_k=4,feed=global,batch=pointers,k_steps=4,warps=1x1,frags=2x2"),
    ("sm_75", "warps_k=2,copy=ld,stages=1,split_k=2,acc=f16,d=f32,warps=1x1,frags=1x2,k_steps=2"),
)


@pytest.mark.parametrize(("arch", "text"), KINDS)
def test_what_is_derived_is_what_is_counted(arch: str, text: str) -> None:
    target = find(arch)
    config = read_config(text, target)
    assert profile.work_of(config, trial.build(config, target)[1]) == work.of(config)


@pytest.mark.parametrize(
    ("text", "arch"),
    [
        ("copy=ld,stages=2,inst=16x16x16,warps=2x1,frags=4x2,k_steps=2,pad_a=8,pad_b=16", SM75),
        ("warps=2x1,frags=2x2,copy=ld,pad_a=8,pad_b=0,store=staged,k_steps=2", SM75),
        ("a=tf32,split_k=3,warps=1x2,frags=2x1,k_steps=1,copy=ld,stages=1", SM80),
    ],
)
def test_wide_accesses_are_counted_as_the_compiler_splits_them(text: str, arch: Arch) -> None:
    """What is derived is what the text says, and what the machine does.

    Of some accesses of 16 bytes NVRTC makes four of 4 in PTX, which is what is counted and conflicts; the machine code
    has one of 16 again.
    """
    config = read_config(text, arch)
    binary = trial.build(config, arch)[1]
    assert "st.shared.u32" in binary.ptx
    told = lint.examine(config, binary)
    assert told.undone or (told.figures is not None and {"STS.128"} == _stores(told.figures))
    derived, counted = work.of(config), profile.work_of(config, binary)
    assert _without_shared(counted) == _without_shared(derived)
    for each in ("shared_load_wavefronts", "shared_store_wavefronts"):
        assert getattr(counted.slice, each) >= getattr(derived.slice, each)
        eight = [getattr(done.once + done.slice * 8, each) for done in (counted, derived)]
        assert eight[0] >= eight[1]


def _stores(figures: lint.Figures) -> set[str]:
    return {access for access in figures.accesses if access.startswith("STS")}


def _without_shared(done: work.Work) -> work.Work:
    parts = (replace(part, shared_load_wavefronts=0, shared_store_wavefronts=0) for part in (done.once, done.slice))
    return work.Work(*parts)
