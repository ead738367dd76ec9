"""Chains of steps in real kernels on the executor; `prove_epilogues.py` takes all of them, and more targets."""

from __future__ import annotations

import re

import pytest

from tests.nvrtc.prove_epilogues import CHAINS, KERNELS, cases
from wmmagen import epilogue, trial
from wmmagen.arch import ARCHS
from wmmagen.backends.cpu import CpuBackend
from wmmagen.defaults import read_config

pytestmark = pytest.mark.usefixtures("headers_once")

SM80 = ARCHS[80]
TINY = "warps=1x1,frags=1x1,k_steps=1,copy=ld,stages=1"


@pytest.mark.parametrize(
    ("chain", "error"),
    [
        ("linear+biascol+gelu,d=f16", True),
        ("linear+relu+residual,store=direct", False),
        ("scalecol+biasrow+expr(max(acc,c)-bias*row),align_d=1,frags=1x3,d=f16,c=f32", False),
        ("biascol+biasrow+scalecol+residual,residue=predicated,batch=pointers", False),
        ("scalecol+biascol,a=s8,d=s8,c=f32,frags=1x2,k_steps=4", False),
        ("linear+biascol,a=f64,residue=predicated,frags=2x2,k_steps=4", False),
    ],
)
def test_a_chain_is_right_in_fragments_and_in_rows(chain: str, error: bool) -> None:
    tiny = (pair for pair in TINY.split(",") if f",{pair.partition('=')[0]}=" not in chain)
    config = read_config(f"{','.join(tiny)},epilogue={chain}", SM80)
    binary = trial.build(config, SM80)[1]
    assert "warning" not in binary.log and binary.spill_bytes == 0
    runs = trial.validate(config, binary, CpuBackend(), trial.validation_problems(config))
    assert all(run.exact and run.guaranteed for run in runs), [run.mismatch for run in runs]
    for run in runs:
        assert (run.error is not None) is error
        assert run.error is None or run.error.seen <= run.error.bound
        document = run.as_json()
        assert (document["error_ulps"] is None) is not error
        assert set(document["scalars"]) == set(config.operation.epilogue.scalars)  # type: ignore[arg-type]


def test_the_proof_has_every_step_every_operation_and_every_way_to_make_them() -> None:
    spelt = [re.sub(r"(,(a|c|d|layout)=\w+)+$", "", chain) for chain in CHAINS]
    words = {step.word for chain in spelt for step in epilogue.read(chain).steps}
    assert words == {*epilogue.STEPS, epilogue.EXPR}
    own = " ".join(chain for chain in CHAINS if "expr" in chain)
    for operation in ("+", "-", "*", "/", "<", "<=", "==", ">=", "!=", *epilogue.formula.FUNCTIONS, "pi", "?"):
        assert operation in own
    made = list(cases([SM80]))
    assert {case.config.operation.added.name for case in made} == {"f16", "bf16", "f32", "f64", "s8", "s32"}
    assert {case.config.operation.d.name for case in made} == {"f16", "bf16", "f32", "f64", "s8", "u8"}
    assert {(str(o.residue), str(o.batch)) for o in (case.config.operation for case in made)} >= {
        ("exact", "none"), ("predicated", "none"), ("exact", "strided"), ("exact", "pointers"),
        ("predicated", "pointers"),
    }  # fmt: skip
    assert {str(case.config.store) for case in made} == {"direct", "staged"}
    assert len({re.sub(r"_[a-z0-9]+_exact", "", str(case.config)) for case in made}) >= 2 * len(KERNELS)
