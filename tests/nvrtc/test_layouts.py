"""C and D in rows and in columns: right, made as promised, and as much work as the mirrored kernel."""

from __future__ import annotations

import pytest

from tests import layouts
from wmmagen import lint, profile, trial, work
from wmmagen.arch import ARCHS
from wmmagen.backends.cpu import CpuBackend
from wmmagen.defaults import read_config

pytestmark = pytest.mark.usefixtures("headers_once")

SM80 = ARCHS[80]
SMALL = "warps=1x2,frags=2x1,k_steps=2"
#: Fragments straight to D and through memory, C across D in both, what belongs to rows and to columns, edges of D.
KERNELS = (
    f"cd=cc,layout=rr,{SMALL},copy=ld,stages=1,store=direct",
    f"cd=cc,layout=cc,{SMALL},copy=cpasync,stages=2,d=f16,epilogue=linear+biasrow+scalecol",
    f"cd=cr,layout=rc,{SMALL},copy=ld,stages=1,store=direct,acc=f16,epilogue=linear",
    f"cd=rc,residue=predicated,layout=cr,{SMALL},copy=ld,stages=1,store=staged,align_d=2,epilogue=linear",
    f"cd=rc,a=tf32,layout=rr,{SMALL},copy=cpasync,stages=2,store=direct,epilogue=linear",
    "cd=cc,inst=32x8x16,layout=rc,warps=1x1,frags=1x2,k_steps=2,feed=global,split_k=2,reduction=workspace",
)


@pytest.mark.parametrize("text", KERNELS)
def test_a_kernel_is_right_and_made_as_promised(text: str) -> None:
    config = read_config(text, SM80)
    _, binary = trial.build(config, SM80)
    # Where extents are all different, with factors of which none is 0.
    problem = next(p for p in trial.validation_problems(config) if p.k and p.alpha and (p.beta or not p.reads_c))
    run = trial.check_run(config, binary, CpuBackend(seed=KERNELS.index(text)), problem)
    assert run.exact and run.guaranteed, run.mismatch
    told = lint.examine(config, binary)
    assert told.undone or (told.defects == () and told.figures is not None)
    if config.operation.residue == "exact":
        assert profile.work_of(config, binary) == work.of(config) == work.of(layouts.mirrored(config))
