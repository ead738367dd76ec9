"""Denominators: which candidates count, which one is the best, and what is said where there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests import fake_cublas
from tests.fake_cublas import FakeBlas, FakeCard, FakeLt, Spoil
from wmmagen import denominators, layout
from wmmagen.backends import Bytes, Pointer, cublas, product
from wmmagen.backends.library import CardLibrary
from wmmagen.backends.product import Candidate, LibraryProduct
from wmmagen.config import Epilogue, Layout, Operation, Problem
from wmmagen.denominators import Denominator, Figure
from wmmagen.dtypes import F16, F32
from wmmagen.errors import CrashFault
from wmmagen.layout import Array
from wmmagen.timing import Timing, TimingProtocol

F16_F32 = Operation(F16, F32, F32)
SMALL = Problem(F16_F32, 24, 40, 16, lda=24, ldb=48, ldd=56)
PROTOCOL = TimingProtocol()

Place = Callable[..., CardLibrary]


def right(d: Array) -> None:
    pass


def off_by_one(d: Array) -> None:
    d[1, 2] += 1


def into_the_gap(d: Array) -> None:
    wide = np.lib.stride_tricks.as_strided(d, (d.shape[0] + 1, d.shape[1]), d.strides)
    wide[-1, 0] = 0


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    def made(
        *spoils: Spoil, times_us: Sequence[float] = (10.0,), round_operand: Callable[[Array], Array] = lambda x: x
    ) -> CardLibrary:
        lt = FakeLt(spoils=spoils or (right,), round_operand=round_operand)
        monkeypatch.setattr(cublas, "library", lambda: fake_cublas.library_of(lt))
        return CardLibrary(fake_cublas.asking(FakeCard(times_us)), "a card")

    return made


def faults(operation: Operation, library: CardLibrary) -> list[tuple[Layout, str]]:
    checked = list(denominators.prove(operation, library))
    assert all(one.tried for one in checked), "a problem without a candidate proves nothing"
    return [(one.problem.operation.layout, tried.wrong) for one in checked for tried in one.tried if tried.wrong]


# Whether the library is right ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation",
    [
        F16_F32,
        Operation(F16, F16, F16),
        Operation(F16, F32, F16),
        Operation(F32, F32, F32),
        Operation(F16, F32, F32, epilogue=Epilogue.LINEAR),
        Operation(F32, F32, F32, epilogue=Epilogue.LINEAR),
        Operation(F16, F32, F32, epilogue=Epilogue.LINEAR, cd=Layout.CC),
    ],
    ids=lambda o: f"{o.a.name}-{o.acc.name}-{o.d.name}-{o.layouts}-{o.epilogue}",
)
def test_the_product_that_is_asked_for_is_the_right_one(operation: Operation, place: Place) -> None:
    assert faults(operation, place()) == []


def test_the_hostile_problems_are_hostile() -> None:
    cases = list(denominators.hostile_cases(F16_F32))
    problems = [case.problem for case, _ in cases]
    assert {p.operation.layout for p in problems} == set(Layout)
    assert all(len({p.m, p.n, p.k}) == 3 for p in problems)
    above = [p for p in problems if p.ldd > p.n and p.lda not in (p.m, p.k) and p.ldb not in (p.n, p.k)]
    assert {p.operation.layout for p in above} == set(Layout)
    assert {p.ldd % 2 for p in problems} == {0, 1}
    assert all(shifts.a and shifts.b and shifts.d for _, shifts in cases)
    assert all(case.inputs.guaranteed for case, _ in cases)


def test_a_transposition_that_is_left_out_is_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    told = product._stored
    monkeypatch.setattr(
        product, "_stored", lambda *extents, turned: replace(told(*extents, turned=turned), transposed=False)
    )
    assert {order for order, _ in faults(F16_F32, place())} == {Layout.RC, Layout.CR, Layout.CC}


def test_operands_in_the_wrong_order_are_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(problem: Problem, images: Sequence[layout.Image]) -> LibraryProduct:
        right = told(problem, images)
        return replace(right, m=right.n, n=right.m, a=right.b, b=right.a, lda=right.ldb, ldb=right.lda)

    told = denominators.product_of
    monkeypatch.setattr(denominators, "product_of", swapped)
    assert {order for order, _ in faults(F16_F32, place())} == set(Layout)


@pytest.mark.parametrize(
    ("spoil", "words"), [(off_by_one, "1 of "), (into_the_gap, "guard elements overwritten, the first in the gap")]
)
def test_a_wrong_candidate_is_seen_in_every_problem(spoil: Spoil, words: str, place: Place) -> None:
    checked = list(denominators.prove(F16_F32, place(right, spoil)))
    assert all([bool(one.wrong) for one in each.tried] == [False, True] for each in checked)
    # Without a gap, what would lie in it is an element of the next row.
    spaced = [each for each in checked if each.problem.ldd > each.problem.n]
    assert spaced and all(words in each.tried[1].wrong for each in spaced)


def test_single_precision_on_the_units_of_tf32_is_seen(place: Place) -> None:
    def to_tf32(values: Array) -> Array:
        return (values.view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view(np.float32)

    operation = Operation(F32, F32, F32)
    assert {order for order, _ in faults(operation, place(round_operand=to_tf32))} == set(Layout)


def test_sums_in_half_precision_are_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fake_cublas._SUMS, fake_cublas.ComputeType.COMPUTE_32F, np.float16)
    assert {order for order, _ in faults(F16_F32, place())} == set(Layout)


# Which figure counts -------------------------------------------------------------------------------------------------


def both(problem: Problem = SMALL) -> tuple[Denominator, Denominator]:
    return denominators.denominators(problem)


def same(problem: Problem = SMALL) -> Denominator:
    return both(problem)[0]


def test_the_fastest_exact_candidate_is_the_denominator(place: Place) -> None:
    library = place(right, off_by_one, right, right, times_us=(10.0, 1.0, 7.0, 8.0))
    figure = denominators.measure(same(), library, PROTOCOL)
    assert figure.best is not None and figure.best.candidate.number == 2
    assert [one.timing is None for one in figure.tried] == [False, True, False, False]
    assert "got" in figure.tried[1].wrong
    assert str(figure) == (
        "cuBLASLt same types (f16, f32, f32) 24x40x16: 7.00 us [6.50, 7.50], 0.0 TFLOP/s; candidate 2 "
        f"({figure.best.candidate.words}), the best of 3 exact of 4 proposed; cuBLASLt 13.1.2"
    )


def test_one_that_is_wrong_after_its_timing_makes_room_for_the_next(place: Place) -> None:
    runs: list[int] = []

    def tires(d: Array) -> None:
        runs.append(1)
        if len(runs) > 2:
            off_by_one(d)

    figure = denominators.measure(same(), place(tires, right, times_us=(5.0, 9.0)), PROTOCOL)
    assert figure.best is not None and figure.best.candidate.number == 1
    assert figure.tried[0].wrong.startswith("after timing: D[2, 1]")


def test_where_no_candidate_is_exact_there_is_no_figure(place: Place) -> None:
    figure = denominators.measure(same(), place(off_by_one, off_by_one), PROTOCOL)
    assert figure.best is None
    assert figure.reason.startswith("none of 2 candidates is exact; D[2, 1]")
    assert str(figure) == f"{same()}: none: {figure.reason}"


def test_what_the_library_does_not_offer_has_a_reason_and_no_figure(place: Place) -> None:
    mixed = replace(SMALL, operation=Operation(F16, F16, F32))
    figure = denominators.measure(same(mixed), place(), PROTOCOL)
    assert figure.best is None and not figure.tried
    assert figure.reason.startswith("cuBLASLt documents no product of f16/f16/f32")


def test_a_time_that_no_card_can_reach_is_none(place: Place) -> None:
    # 2 * 24 * 40 * 16 operations.
    figure = denominators.measure(same(), place(times_us=(0.6e-6,)), PROTOCOL)
    assert figure.best is None and "a fault, no time" in figure.reason


def test_a_candidate_that_breaks_its_process_costs_itself_alone(place: Place) -> None:
    class Crashing(CardLibrary):
        def run(self, product: LibraryProduct, candidate: Candidate, buffers: Sequence[Bytes]) -> list[Bytes]:
            if candidate.number == 0:
                raise CrashFault("it read beyond its matrix")
            return super().run(product, candidate, buffers)

        def time(
            self, product: LibraryProduct, candidate: Candidate, buffers: Sequence[Bytes], protocol: TimingProtocol
        ) -> Timing:
            if candidate.number == 1:
                raise CrashFault("it never ended")
            return super().time(product, candidate, buffers, protocol)

    ask = place(right, right, right, times_us=(1.0, 2.0, 3.0))._ask
    figure = denominators.measure(same(), Crashing(ask, "a card"), PROTOCOL)
    assert [one.wrong for one in figure.tried] == ["it read beyond its matrix", "it never ended", ""]
    assert figure.best is figure.tried[2]


# What is asked -------------------------------------------------------------------------------------------------------


def test_fp32_is_the_same_problem_in_f32_throughout_on_the_same_values() -> None:
    of_types, single = both(SMALL)
    assert of_types.problem == SMALL
    assert single.problem == replace(SMALL, operation=Operation(F32, F32, F32))
    values = [
        [image.unpack(buffer) for image, buffer in zip(layout.images(d.problem), d.normal_buffers(), strict=True)]
        for d in (of_types, single)
    ]
    for half, full in zip(values[0][:2], values[1][:2], strict=True):
        np.testing.assert_array_equal(half, full)
        assert np.unique(half).size > 100


@pytest.mark.parametrize("beta", [0.0, -1.0])
def test_c_is_asked_for_where_it_is_read(beta: float) -> None:
    linear = replace(F16_F32, epilogue=Epilogue.LINEAR)
    problem = Problem(linear, 24, 40, 16, lda=24, ldb=48, ldd=56, ldc=64, alpha=2.0, beta=beta)
    images = layout.images(problem)
    asked = denominators.product_of(problem, images)
    assert (asked.c, asked.ldc) == ((Pointer(2, images[2].offset), 64) if beta else (None, 0))
    assert (asked.d, asked.ldd, asked.alpha) == (Pointer(3, images[3].offset), 56, 2.0)


def test_the_status_of_a_refused_candidate_is_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    lt = FakeLt(fails={"matmul": FakeBlas.Status.INVALID_VALUE})
    monkeypatch.setattr(cublas, "library", lambda: fake_cublas.library_of(lt))
    figure: Figure = denominators.measure(same(), CardLibrary(fake_cublas.asking(FakeCard()), "a card"), PROTOCOL)
    assert "CUBLAS_STATUS_INVALID_VALUE" in figure.reason
