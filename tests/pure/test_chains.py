"""Chains of steps: inputs are exact where they can be, results lie where they must, and mistakes are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from wmmagen import epilogue, freivalds, reference
from wmmagen.config import Layout, Operation, Problem
from wmmagen.dtypes import BF16, F16, F32, F64, S8, S32, TF32, U8, ElementType
from wmmagen.errors import ConfigError
from wmmagen.layout import UNSHIFTED, Shifts, decode, encode, images, operand_names
from wmmagen.reference import (
    LEAST_ROOM,
    Inputs,
    Span,
    combined,
    exact_inputs,
    expected,
    finish,
    given_inputs,
    normal_inputs,
    problems_for,
    product,
    round_once,
    sum_limit,
    whole,
)
from wmmagen.verdict import Tiles, Verdict, explain, judge

TILES = Tiles(block_m=32, block_n=64, warp_m=16, warp_n=32, inst_m=16, inst_n=16, block_k=16, stages=3)
EXACT = (
    "relu", "clamp", "scale", "biasrow", "linear+biascol+relu", "linear+residual+scalecol+clamp",
    "biasrow+scalerow+biascol",
    "expr(acc*2-c+bias)", "expr(row<col?acc:-acc)", "linear+expr(acc*0.375+row)", "expr(acc*acc)",
)  # fmt: skip
FUNCTIONS = ("gelu", "linear+biascol+gelutanh", "silu+residual", "expr(acc*0.1+c)", "expr(tanh(acc)/3)")


def inputs_of(chain: str, d: ElementType = F32, **more: Any) -> Inputs:
    operation = Operation(F16, F32, d, epilogue=epilogue.read(chain))
    return exact_inputs(Problem.packed(operation, 64, 96, 48, 16, **more))


def in_floats(inputs: Inputs) -> np.ndarray:
    """The chain as f32 computes it, step by step; a second time, and by nothing that the reference is made of."""
    p, f = inputs.problem, np.float32
    acc = product(inputs).astype(f)
    c = None if inputs.c is None else inputs.c.astype(f)
    held = {name: f(values) for name, values in inputs.beside.items()}
    row, col = np.arange(p.m, dtype=f)[:, None], np.arange(p.n, dtype=f)
    by_word: dict[str, Callable[[Any], Any]] = {
        "linear": lambda x: f(p.alpha) * x + (0 if c is None else f(p.beta) * c),
        "relu": lambda x: np.where(x < 0, f(0), x),
        "clamp": lambda x: np.minimum(np.maximum(x, f(p.low)), f(p.high)),
        "scale": lambda x: x * f(p.scale),
        "biasrow": lambda x: x + held["bias_row"][:, None],
        "biascol": lambda x: x + held["bias_col"],
        "scalerow": lambda x: x * held["scale_row"][:, None],
        "scalecol": lambda x: x * held["scale_col"],
        "residual": lambda x: x + held["r"],
        "expr(acc*2-c+bias)": lambda x: x * f(2) - c + held["bias_col"],
        "expr(row<col?acc:-acc)": lambda x: np.where(row < col, x, -x),
        "expr(acc*0.375+row)": lambda x: x * f(0.375) + row,
        "expr(acc*acc)": lambda x: x * x,
    }
    for step in p.operation.epilogue.steps:
        acc = by_word[str(step)](acc)
        assert acc.dtype == f
    return np.asarray(acc)


@pytest.mark.parametrize("chain", EXACT)
@pytest.mark.parametrize("d", [F32, F16], ids=str)
def test_exact_chains_have_inputs_that_f32_does_not_round(chain: str, d: ElementType) -> None:
    more = {"alpha": 2.0, "beta": -3.0} if chain.startswith("linear") else {}
    inputs = inputs_of(chain, d, **more)
    assert inputs.guaranteed and inputs.bound >= LEAST_ROOM // 2
    right = finish(inputs.problem, product(inputs), inputs.c, whole(inputs))
    computed = in_floats(inputs)
    assert (computed.astype(np.float64) == np.broadcast_to(right, computed.shape)).all()
    want = expected(inputs)
    assert isinstance(want, np.ndarray) and np.isfinite(want).all() and want.shape == (64, 96)
    assert len(np.unique(want)) > 6, "a mistake has to show"


@pytest.mark.parametrize("chain", FUNCTIONS)
@pytest.mark.parametrize("d", [F32, F16], ids=str)
def test_functions_have_results_between_two_ends(chain: str, d: ElementType) -> None:
    want = expected(inputs_of(chain, d))
    assert isinstance(want, Span)
    assert (want.low <= want.high).all() and want.holds(want.low).all() and want.holds(want.high).all()
    near = np.asarray(round_once(want.value, d), np.float64)
    assert want.ulps >= 0.4 and want.seen(near) <= 0.5
    # In f32 a sum may cancel, and what is left is all error.
    assert want.ulps < 200 or d is F32
    assert not want.holds(np.full(want.low.shape, np.nan)).any()


#: Operations with a function, with the least number of different arguments that it has to be given.
FINE = (
    ("gelu", Operation(F16, F32, F16), 3000),
    ("linear+biascol+gelu", Operation(F16, F32, F16), 3000),
    ("gelu", Operation(F16, F16, F16), 400),
    ("biascol+silu", Operation(BF16, F32, F32, c=BF16), 3000),
    ("expr(tanh(acc)/3)", Operation(TF32, F32, F32), 3000),
    ("silu", Operation(F64, F64, F64), 3000),
    ("scalecol+biascol+gelu", Operation(S8, S32, S8, Layout.RC, c=F16), 3000),
    ("biascol+scale+silu", Operation(S8, S32, F32, Layout.RC, c=S32), 2000),
    ("scalerow+gelutanh", Operation(U8, S32, F32, Layout.RC), 1000),
)


def arguments_of(inputs: Inputs) -> np.ndarray:
    """What the last step is given, m×n."""
    p, e = inputs.problem, inputs.problem.operation.epilogue
    before = p.doing(replace(p.operation, epilogue=e.with_steps(e.steps[:-1])))
    found = finish(before, product(inputs), inputs.c, whole(inputs))
    return np.array(np.broadcast_to(found, (p.m, p.n)), np.float64)


@pytest.mark.parametrize(("chain", "operation", "different"), FINE)
@pytest.mark.parametrize("k", [16, 96, 1000])
def test_functions_see_thousands_of_fractions_near_0_and_where_they_are_flat(
    chain: str, operation: Operation, different: int, k: int
) -> None:
    operation = replace(operation, epilogue=epilogue.read(chain))
    scale = 2.0**-8 if operation.epilogue.has("scale") else 1.0
    inputs = exact_inputs(Problem.packed(operation, 64, 96, k, 16, beta=-3.0 * operation.scaled, scale=scale))
    seen = arguments_of(inputs)
    assert len(np.unique(seen)) >= different
    assert np.mean(seen != np.rint(seen)) > 0.6 and np.mean(np.abs(seen) < 4) > 0.2
    assert 8 < np.abs(seen).max() < 128 and (product(inputs)[15] == 0).all()


@pytest.mark.parametrize(("chain", "operation", "different"), FINE)
@pytest.mark.parametrize("k", [1, 48, 3000])
def test_fine_sums_are_exact_in_the_accumulator_in_any_order(
    chain: str, operation: Operation, different: int, k: int
) -> None:
    o = replace(operation, epilogue=epilogue.read(chain))
    inputs = exact_inputs(Problem.packed(o, 32, 16, k, beta=-3.0 * o.scaled))
    assert inputs.guaranteed and (inputs.scale_bits > 0) is not o.acc.integer
    # Every value is one of its type, and A is so many units.
    units = np.ldexp(inputs.a.astype(np.float64), inputs.scale_bits)
    assert (units == np.rint(units)).all() and np.issubdtype(inputs.b.dtype, np.integer)
    assert (decode(encode(inputs.a, o.a), o.a).astype(np.float64) == inputs.a).all()
    for name, values in {"c": inputs.c, **inputs.beside}.items():
        if values is not None and not name.startswith("scale"):
            assert (decode(encode(values, o.added), o.added).astype(np.float64) == values).all()
    assert (np.abs(units).astype(np.int64) @ np.abs(inputs.b.astype(np.int64))).max() <= inputs.bound <= inputs.limit
    held = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "s32": np.int32}[o.acc.name]
    order = np.random.default_rng(k).permutation(k)
    terms = inputs.a[:, order, None].astype(held) * inputs.b[None, order].astype(held)
    sums = np.add.accumulate(terms, axis=1, dtype=held)[:, -1]
    assert (sums == product(inputs)).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 300.0, 1e20])
@pytest.mark.parametrize(
    "operation", [Operation(F16, F32, F32), Operation(S8, S32, F32, Layout.RC)], ids=lambda o: o.a.name
)
@pytest.mark.parametrize("k", [1, 64, 5000])
def test_whatever_a_call_scales_by_its_inputs_are_proved(scale: float, operation: Operation, k: int) -> None:
    operation = replace(operation, epilogue=epilogue.read("scale+expr(tanh(acc))"))
    inputs = exact_inputs(Problem.packed(operation, 64, 32, k, scale=scale))
    assert inputs.guaranteed and len(np.unique(product(inputs))) > 10
    assert (decode(encode(inputs.a, operation.a), operation.a).astype(np.float64) == inputs.a).all()
    if scale in (1e-3, 1.0, 300.0) and not operation.acc.integer and k > 1:
        assert 2 < np.abs(arguments_of(inputs)).max() < 100


def test_only_what_rounds_is_given_fractions() -> None:
    for chain in ("linear+biascol+relu", "expr(acc*0.375+row)", "clamp"):
        inputs = inputs_of(chain)
        assert inputs.scale_bits == 0 and np.issubdtype(inputs.a.dtype, np.integer)
    for pattern in ("field", "positions"):
        operation = Operation(F16, F32, F32, epilogue=epilogue.read("biascol+gelu"))
        inputs = exact_inputs(Problem.packed(operation, 64, 96, 48), pattern=pattern)
        assert inputs.scale_bits == 0
        assert all(np.issubdtype(x.dtype, np.integer) for x in (inputs.a, inputs.beside["bias_col"]))
    # A whole sum that no scale comes before is all that a function can see.
    operation = Operation(S8, S32, F32, Layout.RC, epilogue=epilogue.read("expr(tanh(acc/64))"))
    inputs = exact_inputs(Problem.packed(operation, 64, 96, 64))
    assert inputs.scale_bits == 0 and inputs.bound <= 32


def test_fine_inputs_of_several_draws_are_proved_together() -> None:
    problem = inputs_of("linear+biascol+gelu", beta=-3.0).problem
    one, other = (exact_inputs(problem, seed=seed) for seed in (0, 1))
    both = combined(one, other, one)
    assert both.guaranteed and both.scale_bits == one.scale_bits > 0 and "units of 2^-" in str(both)
    assert (product(both) == one.a.astype(np.float64) @ other.b.astype(np.float64)).all()


@pytest.mark.parametrize("chain", ["biascol+gelu", "linear+silu+residual"])
def test_what_is_looked_up_is_what_is_computed(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = inputs_of(chain)
    drawn = {}
    for large in (1, 1 << 20):
        monkeypatch.setattr(reference, "_LARGE", large)
        drawn[large] = exact_inputs(inputs.problem)
    for some in drawn.values():
        spans = []
        for large in (1, 1 << 20):
            monkeypatch.setattr(reference, "_LARGE", large)
            spans.append(expected(some))
        assert isinstance(spans[0], Span) and isinstance(spans[1], Span)
        for end in ("low", "high", "value"):
            assert (getattr(spans[0], end) == getattr(spans[1], end)).all()
    few = arguments_of(drawn[1])
    assert len(np.unique(few)) > 300 and np.mean(few != np.rint(few)) > 0.6


@pytest.mark.parametrize(
    ("chain", "operation", "ends"),
    [
        ("scalecol+biascol+relu", Operation(S8, S32, S8, Layout.RC, c=F32), (0, 127)),
        ("biascol+scale", Operation(U8, S32, U8, Layout.RC, c=S32), (0, 255)),
        ("linear+clamp", Operation(S8, S32, U8, Layout.RC, c=F32), (0, 6)),
        ("linear+scalerow", Operation(S8, S32, S8, Layout.RC), (-128, 127)),
    ],
)
def test_whole_sums_become_bytes_with_both_ends_and_much_between(
    chain: str, operation: Operation, ends: tuple[int, int]
) -> None:
    operation = replace(operation, epilogue=epilogue.read(chain))
    seen: set[int] = set()
    for problem in problems_for(operation, 32, 64, 16, 2):
        inputs = exact_inputs(problem)
        want = expected(inputs)
        assert inputs.guaranteed and isinstance(want, np.ndarray)
        seen |= set(want.ravel().tolist())
    assert {*ends} <= seen and len(seen) >= 6


def test_chains_of_doubles_are_exact_beyond_floats_and_bounded_in_their_ulp() -> None:
    operation = Operation(F64, F64, F64, epilogue=epilogue.read("linear+biascol+relu"))
    inputs = exact_inputs(Problem.packed(operation, 64, 96, 48, 16, alpha=2.0, beta=-3.0))
    assert inputs.guaranteed and inputs.bound > 2**30
    right = finish(inputs.problem, product(inputs), inputs.c, whole(inputs))
    assert verdict_on(inputs, right).exact
    assert not verdict_on(inputs, right.astype(np.float32).astype(np.float64)).exact
    gelu = replace(operation, epilogue=epilogue.read("biascol+gelu"))
    inputs = exact_inputs(Problem.packed(gelu, 64, 96, 48))
    want = expected(inputs)
    assert isinstance(want, Span) and 0 < want.ulps < 10_000
    assert verdict_on(inputs, want.value).exact
    assert not verdict_on(inputs, want.value.astype(np.float32).astype(np.float64)).exact


def verdict_on(inputs: Inputs, results: np.ndarray) -> Verdict:
    image = images(inputs.problem)[-1]
    return judge(inputs, image, image.pack(round_once(results, inputs.problem.operation.d)))


@pytest.mark.parametrize("chain", [*EXACT, *FUNCTIONS])
def test_what_is_right_is_right_and_what_is_next_to_it_is_not(chain: str) -> None:
    inputs = inputs_of(chain)
    right = np.array(np.broadcast_to(finish(inputs.problem, product(inputs), inputs.c, whole(inputs)), (64, 96)))
    good = verdict_on(inputs, right)
    assert good.exact and (good.error is None) is (chain in EXACT)
    if good.error is not None:
        assert str(good) == f"within {good.error.seen:.3g} ulp of float64, proved bound {good.error.bound:.3g}"
    for spoilt in (
        np.nan,
        float(np.nextafter(np.float32(right[3, 5]), np.float32(np.inf))) + 0.01 * (chain in FUNCTIONS),
    ):
        wrong = right.copy()
        wrong[3, 5] = spoilt
        verdict = verdict_on(inputs, wrong)
        assert not verdict.exact and verdict.mismatch is not None
        assert (verdict.mismatch.row, verdict.mismatch.col, verdict.wrong) == (3, 5, 1)


def shifted(inputs: Inputs, vector: str, values: np.ndarray) -> np.ndarray:
    changed = replace(inputs, beside={**inputs.beside, vector: values})
    return np.asarray(finish(inputs.problem, product(inputs), inputs.c, whole(changed)))


@pytest.mark.parametrize("chain", ["linear+biascol+relu", "linear+biascol+gelu"])
def test_mistakes_of_a_chain_are_told(chain: str) -> None:
    inputs = inputs_of(chain)
    bias, p = inputs.beside["bias_col"], inputs.problem
    last = chain.rsplit("+", 1)[1]

    def told(results: np.ndarray) -> str:
        return explain(verdict_on(inputs, np.broadcast_to(results, (64, 96))), TILES)

    def of_chain(words: str) -> np.ndarray:
        steps = tuple(epilogue.STEPS[word] for word in words.split("+"))
        other = replace(p.operation, epilogue=p.operation.epilogue.with_steps(steps))
        return finish(p.doing(other), product(inputs), inputs.c, whole(inputs))

    assert "the step biascol is missing" in told(of_chain(f"linear+{last}"))
    assert f"the step {last} is missing" in told(of_chain("linear+biascol"))
    assert f"the step {last} came before biascol" in told(of_chain(f"linear+{last}+biascol"))
    assert "bias_col was read 1 elements further" in told(shifted(inputs, "bias_col", np.roll(bias, -1)))
    assert "bias_col was read 16 elements before" in told(shifted(inputs, "bias_col", np.roll(bias, 16)))
    by_row = finish(p, product(inputs), inputs.c, {**whole(inputs), "bias_col": bias[: p.m, None]})
    assert "bias_col was read by the row and not by the column" in told(by_row)
    assert "beta·C is missing" in told(finish(replace(p, beta=0.0), product(inputs), None, whole(inputs)))


def test_a_residual_that_is_left_out_is_told() -> None:
    inputs = inputs_of("relu+residual")
    none = finish(inputs.problem, product(inputs), None, {**whole(inputs), "r": np.zeros((64, 96))})
    assert "the step residual is missing" in explain(verdict_on(inputs, none), TILES)


def test_sums_leave_something_between_bounds() -> None:
    """With the largest sums that are exact, a clamp would make two numbers of everything."""
    for problem in problems_for(inputs_of("biascol+clamp").problem.operation, 32, 64, 16, 2):
        want = expected(exact_inputs(problem))
        assert isinstance(want, np.ndarray)
        assert len(np.unique(want)) > 10 and {problem.low, problem.high} <= set(np.unique(want).tolist())


@pytest.mark.parametrize("chain", ["expr(acc*acc*acc*acc*acc*acc)", "expr(acc*row*row*col*col)", "expr(acc*2047*2047)"])
def test_chains_that_hardly_any_inputs_are_exact_for_are_refused(chain: str) -> None:
    with pytest.raises(ConfigError, match="may reach"):
        inputs_of(chain)


def test_what_a_caller_gives_is_what_the_epilogue_reads() -> None:
    problem = inputs_of("linear+biascol+relu").problem
    a, b, c = np.ones((64, 48), int), np.ones((48, 96), int), np.ones((64, 96), int)
    inputs = given_inputs(problem, a, b, c, {"bias_col": np.arange(96)})
    assert inputs.guaranteed and expected(inputs)[0].tolist() == (49 + np.arange(96)).tolist()  # type: ignore[index]
    with pytest.raises(ConfigError, match="reads"):
        given_inputs(problem, a, b, c)
    assert sum_limit(problem, 1, {"bias_col": np.arange(96)}) < sum_limit(problem, 1, {"bias_col": np.ones(96)})
    assert freivalds.prepare(inputs) is None


def test_images_lie_in_a_calls_order_and_as_far_aligned_as_is_said() -> None:
    chain = "linear+biasrow+biascol+scalerow+scalecol+residual"
    operation = Operation(F16, F32, F16, epilogue=epilogue.read(chain), c=F32)
    problem = Problem.packed(operation, 64, 96, 48)
    names = ("A", "B", "C", "R", "bias_row", "bias_col", "scale_row", "scale_col")
    assert operand_names(operation) == names
    found = dict(zip((*names, "D"), images(problem, shifts=Shifts(16, 16, 8, 4, 12)), strict=True))
    assert {name: image.offset % 256 for name, image in found.items()} == {
        "A": 16, "B": 16, "C": 4, "R": 4, "bias_row": 4, "bias_col": 4, "scale_row": 4, "scale_col": 12, "D": 8,
    }  # fmt: skip
    assert [found[name].cols for name in names[4:]] == [64, 96, 64, 96]
    assert found["C"].element is F32 and found["scale_row"].element is F32
    assert all(image.offset % 256 == 0 for image in images(problem, shifts=UNSHIFTED))
    drawn = normal_inputs(problem)
    assert [values.shape for values in drawn[2:]] == [(64, 96), (64, 96), (1, 64), (1, 96), (1, 64), (1, 96)]
