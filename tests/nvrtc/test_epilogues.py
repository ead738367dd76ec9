"""Chains of steps in real kernels on the executor; `prove_epilogues.py` takes all of them, and more targets."""

from __future__ import annotations

import re

import pytest

from tests.nvrtc.prove_epilogues import CHAINS, KERNELS, cases
from wmmagen import epilogue, foundry, trial
from wmmagen.arch import ARCHS
from wmmagen.backends.cpu import CpuBackend
from wmmagen.defaults import read_config
from wmmagen.render import render

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


#: What is written in the place of an argument: it is right at every integer, at every multiple of a half, or at floats.
_WHOLE, _HALVES = "rintf({})", "0.5f * rintf(2.0f * {})"


@pytest.mark.parametrize(
    ("chain", "argument", "rounded"),
    [
        ("gelu,store=direct", "normal_cdf(value)", "2.0f * rintf(0.5f * {})"),
        ("biascol+gelu,d=f16", "normal_cdf(value)", _WHOLE),
        ("silu,store=direct", "expf(-value)", _WHOLE),
        ("silu,a=f64,frags=2x2,k_steps=4,store=direct", "exp(-value)", "rint({})"),
        ("expr(erf(acc)*tanh(acc)),store=direct", "erff(value)", _WHOLE),
        ("expr(exp(acc/16)+erf(bias)),store=staged", "erff(bias_of_columns.of[e])", _WHOLE),
        ("linear+biascol+gelu,d=f16", "normal_cdf(value)", _HALVES),
        ("scalecol+biascol+gelu,a=s8,d=f16,c=f32,frags=1x2,k_steps=4", "normal_cdf(value)", _WHOLE),
    ],
)
def test_a_function_of_a_rounded_argument_is_wrong(chain: str, argument: str, rounded: str) -> None:
    """In one launch on one slice of K."""
    tiny = (pair for pair in TINY.split(",") if f",{pair.partition('=')[0]}=" not in chain)
    config = read_config(f"{','.join(tiny)},epilogue={chain}", SM80)
    source = render(config, SM80)
    function, inner = re.fullmatch(r"(\w+)\((.*)\)", argument).groups()  # type: ignore[union-attr]
    assert source.text.count(argument) == 1
    text = source.text.replace(argument, f"{function}({rounded.format(inner)})")
    broken = foundry.compile_source(text, source.kernel, SM80)
    run = trial.check_run(config, broken, CpuBackend(), trial.validation_problems(config)[0])
    assert not run.exact and run.guaranteed and not run.findings
    wrong = re.search(r"(\d+) of \d+ elements differ", run.mismatch)
    assert wrong is not None and int(wrong[1]) > 100


def test_a_tie_that_is_broken_the_wrong_way_shows_where_a_function_is_exact() -> None:
    """Beside the function's own error both neighbours of a tie are right; at 0 there is no error, and R is on ties."""
    config = read_config(f"{TINY},store=staged,d=f16,c=f32,epilogue=gelu+residual", SM80)
    source, right = trial.build(config, SM80)
    bits, stored = "__float_as_uint(value)", "__float2half(value)"
    assert source.text.count(stored) == 1
    away = f"__float2half(__uint_as_float({bits} + (({bits} & 0x1fff) == 0x1000)))"
    broken = foundry.compile_source(source.text.replace(stored, away), source.kernel, SM80)
    problem = trial.validation_problems(config)[0]
    good, bad = (trial.check_run(config, binary, CpuBackend(), problem) for binary in (right, broken))
    assert good.exact and not bad.exact


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
