"""The kernel of a chain's steps behind a library's product, on the CPU executor: exact, clean, and in wide accesses."""

from __future__ import annotations

from typing import Any

import pytest

from wmmagen import denominators, elementwise, epilogue, layout, nvrtc, reference
from wmmagen.arch import ARCHS
from wmmagen.backends.cpu import CpuBackend
from wmmagen.config import Operation, Problem
from wmmagen.dtypes import BF16, F16, F32
from wmmagen.trial import Case

SM80 = ARCHS[80]


@pytest.mark.parametrize(
    ("operation", "extra", "more"),
    [
        (Operation(F16, F32, F16, epilogue=epilogue.read("biascol+gelu")), 8, {}),
        (
            Operation(F16, F32, F32, epilogue=epilogue.read("linear+biasrow+scalecol+residual+clamp")),
            4,
            {"alpha": 2.0, "beta": -1.0, "low": -40.0, "high": 50.0},
        ),
        (Operation(F16, F32, BF16, epilogue=epilogue.read("scalerow+expr(max(acc,c)+row-col)"), c=F16), 3, {}),
    ],
    ids=["f16 gelu", "f32 exact", "bf16 by single elements"],
)
def test_steps_behind_a_product_are_right(operation: Operation, extra: int, more: dict[str, Any]) -> None:
    problem = Problem.packed(operation, 10, 48, 16, extra, **more)
    case = denominators.denominators(problem)[-1].case()
    assert isinstance(case, Case)
    rest = problem.doing(elementwise.rest_of(operation))
    places = list(zip(denominators.names_of(problem), case.images, strict=True))
    binary = nvrtc.compile_source(elementwise.text_of(rest), elementwise.ENTRY, SM80)
    assert not binary.spill_bytes and (".v4" in binary.ptx) is (extra != 3)
    product = problem.doing(denominators.plain(operation))
    sums = reference.finish(product, reference.product(case.inputs), case.inputs.c)
    d = case.images[-1]
    filled = d.blank()
    d.bits(filled)[:] = layout.encode(reference.round_once(sums, operation.d), operation.d)
    backend = CpuBackend()
    back = backend.run(binary, elementwise.launch_of(rest, places), [*case.buffers[:-1], filled])
    told = case.judged(back)
    assert told.exact, told.words
    # Without the steps, it is not.
    assert not case.judged([*case.buffers[:-1], filled]).exact
