"""The proof that tells what fusing an epilogue costs, without a card."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from cases_legality import config

from tests.fakes import NumpyBackend, binary_of, compiled
from tests.gpu import prove_epilogue_cost as proof
from wmmagen import trial
from wmmagen.arch import ARCHS
from wmmagen.backends.pick import Place
from wmmagen.config import KernelConfig, Problem, Store
from wmmagen.errors import AnswerIsNo, RequestError
from wmmagen.timing import Ratio, TimingProtocol

SM75 = ARCHS[75]
PLAIN = config("warps=1x1,frags=1x1,k_steps=1,copy=ld,stages=1")
SIZE = (48, 32, 64)


def run_of(kernel: KernelConfig, problem: Problem, exact: bool = True) -> trial.Run:
    return trial.Run(problem, exact, True, "auto", "" if exact else "D[0, 0]")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> proof.Fused:
    monkeypatch.setattr(trial, "build", lambda kernel, arch, compiler: (None, binary_of(kernel)))
    # What NumPy's backend has no steps for.
    monkeypatch.setattr(trial, "validate", lambda k, b, c, problems: [run_of(k, p) for p in problems])
    monkeypatch.setattr(trial, "check_run", lambda k, b, c, problem: run_of(k, problem))
    return measure()


def measure() -> proof.Fused:
    forms = proof.fused(PLAIN, "biascol+gelu", SM75, SIZE)
    return proof.measure(PLAIN, forms, SM75, SIZE, Place(NumpyBackend(), SM75), TimingProtocol(), compiled, {})


def test_the_forms_of_a_chain_are_legal_and_those_of_the_plain_kernel() -> None:
    forms = proof.fused(PLAIN, "biascol+gelu", SM75, SIZE)
    assert [(one.store, one.pad_d) for one in forms] == [(Store.STAGED, pad) for pad in proof.PADS]
    assert proof.fused(PLAIN, "gelu", SM75, SIZE)[0].store is Store.DIRECT
    with pytest.raises(RequestError, match="no form"):
        proof.fused(replace(PLAIN, pad_a=1), "gelu", SM75, SIZE)


def test_a_chain_is_told_beside_the_plain_kernel_and_what_is_absent(measured: proof.Fused) -> None:
    assert [part.chain for part in measured.parts] == [False, True, True, True]
    assert measured.parts[0].kept == Ratio(1.0, 1.0, 1.0) and measured.more > 0
    assert [words.split(":")[0] for words in measured.absent] == ["same types", "own epilogue", "kernel behind"]
    told = json.loads(json.dumps(measured.as_json()))
    assert told["chain"] == "biascol+gelu" and len(told["parts"]) == 4
    assert all(part.name in str(measured) for part in measured.parts)


def with_kept(fused: proof.Fused, low: float) -> proof.Fused:
    part = replace(fused.parts[1], kept=Ratio(0.97, low, 0.98))
    return replace(fused, parts=(fused.parts[0], part))


def test_the_demand_is_on_bias_and_gelu_alone(measured: proof.Fused) -> None:
    held, broken = with_kept(measured, 0.95), with_kept(measured, 0.94)
    assert held.holds and not broken.holds and "holds" in str(held) and "DOES NOT HOLD" in str(broken)
    assert proof.verdict_of([held]) == (
        "A bias and a GELU: All of them keep 95% of the plain kernel's speed.",
        True,
    )
    assert not proof.verdict_of([held, broken])[1] and not proof.verdict_of([])[1]
    other = proof.epilogue.read("biascol+residual")
    told = replace(broken, problem=Problem.packed(replace(broken.problem.operation, epilogue=other), *SIZE))
    assert proof.verdict_of([held, told])[1]


def test_a_kernel_that_is_wrong_behind_its_timing_has_no_cost(
    measured: proof.Fused, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def check(kernel: KernelConfig, *rest: Any) -> trial.Run:
        seen.append(kernel)
        return run_of(kernel, rest[-1], exact=len(seen) <= len(measured.parts))

    monkeypatch.setattr(trial, "check_run", check)
    with pytest.raises(AnswerIsNo, match="is wrong on"):
        measure()
