"""Each type of operands as a kernel: its result, machine code, and what it moves. `prove_types.py` has many of each."""

from __future__ import annotations

import pytest

from tests import field
from wmmagen import lint, profile, trial, work
from wmmagen.arch import ARCHS
from wmmagen.backends.cpu import CpuBackend
from wmmagen.defaults import read_config

pytestmark = pytest.mark.usefixtures("headers_once")

SM80 = ARCHS[80]
KERNELS = (
    "a=bf16,inst=32x8x16,layout=cr,d=bf16,warps=1x2,frags=1x2,k_steps=2,copy=cpasync,stages=2",
    "a=bf16,inst=8x32x16,layout=rc,feed=global,warps=1x1,frags=2x1,k_steps=2",
    "a=tf32,layout=rr,epilogue=linear,warps=2x1,frags=1x2,k_steps=2,copy=cpasync,stages=3,fragment_buffers=2",
    "a=f64,layout=cc,store=staged,epilogue=linear,warps=2x1,frags=2x2,k_steps=2,copy=cpasync,stages=2",
    "a=s8,overflow=saturate,warps=1x2,frags=2x1,k_steps=4,copy=cpasync,stages=2,fragment_buffers=2",
    "a=u8,d=s8,inst=32x8x16,warps=1x1,frags=1x4,k_steps=2,copy=ld,stages=1",
    "a=bf16,d=bf16,c=f32,epilogue=linear+biascol+gelu+residual,warps=1x1,frags=1x2,k_steps=1,copy=ld,stages=1",
    "a=tf32,epilogue=linear+relu+residual,store=direct,warps=1x1,frags=2x1,k_steps=2,copy=cpasync,stages=2",
    "a=tf32,split_k=2,reduction=workspace,warps=1x1,frags=1x1,k_steps=1,copy=ld,stages=1",
    "d=bf16,epilogue=biasrow+scalecol+silu,c=bf16,align_d=4,warps=1x1,frags=1x1,k_steps=1,copy=ld,stages=1",
)


@pytest.mark.parametrize("more", ["layout=cr,copy=cpasync,stages=2", "layout=rc,copy=ld,stages=1"])
def test_tf32_is_rounded_away_from_zero(more: str) -> None:
    config = read_config(f"a=tf32,warps=1x1,frags=1x1,k_steps=1,{more}", SM80)
    found = field.everywhere(config, trial.build(config, SM80)[1], CpuBackend())
    assert found == {field.EVERYWHERE["tf32"][-1]}


@pytest.mark.parametrize("text", KERNELS)
def test_a_kernel_of_each_type_is_right_and_made_as_promised(text: str) -> None:
    config = read_config(text, SM80)
    source, binary = trial.build(config, SM80)
    backend = CpuBackend(seed=KERNELS.index(text))
    # A slice more than the pipeline holds, with whatever factors are in turn there.
    problem = max(trial.validation_problems(config), key=lambda p: p.k)
    run = trial.check_run(config, binary, backend, problem)
    assert run.exact and run.guaranteed, run.mismatch
    told = lint.examine(config, binary)
    assert told.undone or (told.defects == () and told.figures is not None)
    assert profile.work_of(config, binary) == work.of(config)
    assert ("acc[i][j], true);" in source.text) is (config.operation.overflow == "saturate")
