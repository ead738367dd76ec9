"""What accumulators and types of D cost: the figures, their bound, and what breaks it."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests import fake_cublas
from tests.fake_cublas import FakeCard, FakeLt, Spoil
from tests.fakes import NumpyBackend
from wmmagen import accuracy, cli, coverage, instructions, precise, reference, show
from wmmagen.accuracy import Pair, Report
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import cublas
from wmmagen.backends.library import CardLibrary
from wmmagen.backends.pick import Place
from wmmagen.config import Operation, Problem, read_pairs
from wmmagen.dtypes import BF16, ELEMENT_TYPES, F16, F32, F64, ElementType
from wmmagen.errors import IllegalConfig, LaunchFault, RequestError
from wmmagen.layout import Array
from wmmagen.nvrtc import Binary

SM = ARCHS[75]
SMALL = "warps=1x1,frags=1x1,k_steps=2"
SIZE = (16, 32, 64)


def compiler(text: str, entry: str, arch: Arch) -> Binary:
    """Nothing reads what it makes."""
    return Binary(entry, arch, b"", "", 0, 0, 0, 0, "", 0.0, "nobody")


def measured(fix: str = SMALL, library: Any = None, **backend: Any) -> Report:
    pairs, left_out = accuracy.kernels(read_pairs(fix), SM)
    place = Place(NumpyBackend(**backend), SM, library=library)
    return accuracy.measure(pairs, SIZE, SM, place, left_out, compiler)


# ---------------------------------------------------------------------------------------------------------------------
# Sums that are more precise.


def fractions(a: Array, b: Array) -> list[Fraction]:
    left, right = ([[Fraction(float(x)) for x in line] for line in matrix] for matrix in (a, b.T))
    return [sum((x * y for x, y in zip(row, col, strict=True)), Fraction()) for row in left for col in right]


def normal(a: ElementType, k: int) -> tuple[Array, Array]:
    rows = instructions.of_operand(a)
    operation = Operation(a, rows[0].acc, rows[0].acc)
    return reference.normal_inputs(Problem.packed(operation, 5, 7, k))[:2]


@pytest.mark.parametrize("a", [F16, BF16, ELEMENT_TYPES["tf32"], F64], ids=lambda a: a.name)
@pytest.mark.parametrize("k", [1, 67])
def test_sums_are_the_exact_ones_within_what_they_say(a: ElementType, k: int) -> None:
    left, right = normal(a, k)
    left[0] *= left.dtype.type(2.0**-9)
    left[1] = 0
    sums = precise.multiply(left, right)
    exact = fractions(left, right)
    found = zip(sums.high.flat, sums.low.flat, sums.slack.flat, sums.magnitudes.flat, exact, strict=True)
    sizes = fractions(np.abs(left), np.abs(right))
    for (high, low, slack, magnitude, true), size in zip(found, sizes, strict=True):
        assert float(true) == high and abs(Fraction(high) + Fraction(low) - true) <= slack
        assert size <= magnitude <= size * (1 + Fraction(1, 2**40))
    assert bool(sums.slack.any()) is (a is F64), "what is not float64 ends within its slices"
    # Beside the least error of float64 itself, the slack is nothing.
    assert (sums.slack <= 2.0**-70 * sums.magnitudes.max()).all()


def test_an_operand_that_is_cut_has_room_for_what_is_left_out() -> None:
    left, right = normal(F64, 33)
    left *= 2.0 ** -np.arange(0.0, 99.0, 3.0)
    sums = precise.multiply(left, right)
    off = [
        abs(Fraction(h) + Fraction(x) - t)
        for h, x, t in zip(sums.high.flat, sums.low.flat, fractions(left, right), strict=True)
    ]
    assert any(off) and all(error <= slack for error, slack in zip(off, sums.slack.flat, strict=True))


def test_errors_are_those_of_the_values_and_nothing_is_made_finite() -> None:
    sums = precise.multiply(*normal(F16, 67))
    values = sums.high.astype(np.float32)
    values[0, :2] = np.inf, np.nan
    error = sums.error_of(values)
    assert not np.isfinite(error[0, :2]).any()
    assert (np.abs(error.flat[2:]) <= 2.0**-24 * np.abs(sums.high.flat[2:])).all() and error.flat[2:].any()


# ---------------------------------------------------------------------------------------------------------------------
# Units and bounds.


@pytest.mark.parametrize(("element", "dtype"), [(F16, np.float16), (F32, np.float32), (F64, np.float64)])
def test_a_unit_in_the_last_place_is_the_spacing(element: ElementType, dtype: Any) -> None:
    values = np.array([1.0, 1.5, 2.0, 0.0, np.finfo(dtype).tiny, np.finfo(dtype).tiny / 4, 65503.0 / 4], dtype)
    assert (accuracy.ulp(-values.astype(np.float64), element) == np.spacing(values)).all()


def test_units_of_bf16_are_those_of_its_eight_bits() -> None:
    assert accuracy.ulp(np.array([1.0, 255.0, 0.0]), BF16).tolist() == [2.0**-7, 1.0, 2.0**-133]


def cut(values: Array, unit: Array) -> Array:
    return np.trunc(values / unit) * unit


def as_a_tensor_core(a: Array, b: Array, acc: ElementType) -> Array:
    """Blocks of four products and the sum, aligned to the largest and cut off, and the sum of them cut off."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for k in range(0, a.shape[1], 4):
        terms = np.stack([total, *(np.outer(a[:, i], b[i]) for i in range(k, min(k + 4, a.shape[1])))])
        total = cut(terms, accuracy.ulp(np.abs(terms).max(0), acc)).sum(0)
        total = cut(total, accuracy.ulp(total, acc))
    return total


@pytest.mark.parametrize("acc", [F32, F16], ids=lambda acc: acc.name)
@pytest.mark.parametrize("k", [4, 30, 512])
@pytest.mark.parametrize("positive", [False, True])
def test_what_hardware_was_seen_to_do_obeys_the_bound(acc: ElementType, k: int, positive: bool) -> None:
    """With numbers of one sign all cuts go one way, which comes near to the bound."""
    a, b = (np.abs(x) if positive else x for x in (y.astype(np.float64) for y in normal(F16, k)))
    exact, bound = precise.multiply(a, b), accuracy.bound_of(acc, k)
    share = np.abs(exact.error_of(as_a_tensor_core(a, b, acc))) / bound.of(exact)
    assert 0.0 < share.max() <= 1.0
    assert not positive or share.max() > 0.05
    assert bound.losses == k + -(-k // 4)


def test_a_bound_that_float64_does_not_hold_is_refused() -> None:
    pairs, _ = accuracy.kernels(read_pairs(SMALL), SM)
    accuracy.demand(pairs, (16, 16, 2**16), SM)
    with pytest.raises(RequestError, match="sums of f16"):
        accuracy.demand(pairs, (16, 16, 2**20), SM)
    with pytest.raises(RequestError, match="nothing to sum"):
        accuracy.demand(pairs, (16, 16, 0), SM)
    with pytest.raises(IllegalConfig):
        accuracy.demand(pairs, (17, 16, 64), SM)


# ---------------------------------------------------------------------------------------------------------------------
# Which kernels.


def types(pairs: list[Pair]) -> set[tuple[str, str, str]]:
    operations = [kernel.operation for pair in pairs for kernel in (pair.sums, *pair.stored)]
    return {(o.a.name, o.acc.name, o.d.name) for o in operations}


@pytest.mark.parametrize("arch", [arch for arch in ARCHS.values() if arch.sm >= SM.sm], ids=str)
def test_every_accumulator_of_an_architecture_that_rounds_has_its_rows(arch: Arch) -> None:
    pairs, _ = accuracy.kernels({}, arch)
    rows = {(i.a.name, i.acc.name) for i in instructions.INSTRUCTIONS if i.min_sm <= arch.sm and not i.a.integer}
    made = coverage.GENERATED
    assert {(a, acc) for a, acc, _ in types(pairs)} == {
        (a, acc) for a, acc in rows if a in made["a"] and acc in made["acc"]
    }
    assert {("f16", acc, d) for acc in ("f16", "f32") for d in ("f16", "f32")} <= types(pairs)
    for pair in pairs:
        assert pair.sums.operation.d is pair.sums.operation.acc
        assert {(k.operation.a, k.operation.acc, k.inst) for k in pair.stored} <= {
            (pair.sums.operation.a, pair.sums.operation.acc, pair.sums.inst)
        }
    for on_card in (False, True):
        size = accuracy.default_size(pairs, on_card=on_card)
        accuracy.demand(pairs, size, arch)
        assert min(size) >= 2048 if on_card else size[0] * size[1] * size[2] <= 2**23


def test_keys_choose_rows_and_what_is_not_legal_is_told() -> None:
    pairs, left_out = accuracy.kernels(read_pairs("acc=f16,d=f32"), SM)
    assert types(pairs) == {("f16", "f16", "f16"), ("f16", "f16", "f32")} and not left_out
    pairs, left_out = accuracy.kernels(read_pairs("residency=global"), SM)
    assert types(pairs) == {("f16", "f32", "f32"), ("f16", "f16", "f16")}
    assert len(left_out) == 4 and left_out[0].startswith("f16 operands, f32 sums, f16 D: X614 ")
    with pytest.raises(RequestError, match="no kernel for sm_75 has sums that round with acc=s32"):
        accuracy.kernels(read_pairs("acc=s32"), SM)
    with pytest.raises(RequestError, match="A·B"):
        accuracy.kernels(read_pairs("epilogue=linear"), SM)


# ---------------------------------------------------------------------------------------------------------------------
# Figures.


def test_accumulation_and_storage_stand_apart() -> None:
    report = measured()
    assert report.right
    single, half = report.accumulation
    stored = {(row.acc, row.d): row for row in report.storage}
    narrowed, widened = stored["f32", "f16"], stored["f16", "f32"]
    # bf16 has 8 bits: half a unit of its own, 2^-9 of the value at most.
    for acc in ("f32", "f16"):
        short = stored[acc, "bf16"]
        assert short.differing == 0 and short.errors is not None and short.errors.largest_ulp <= 0.5
    assert (single.acc, half.acc) == ("f32", "f16")
    # Sums are rounded once to half here: half a unit at most, and no less for being stored in anything.
    assert half.kernel.errors is not None and 0.4 < half.kernel.errors.largest_ulp <= 0.51
    assert single.kernel.errors is not None and single.kernel.errors.frobenius < 1e-6
    assert (narrowed.acc, narrowed.d, narrowed.differing) == ("f32", "f16", 0)
    assert (
        narrowed.errors is not None
        and 0.4 < narrowed.errors.largest_ulp <= 0.5
        and 1e-4 < narrowed.errors.frobenius < 1e-3
    )
    # A wider D keeps sums of half as they are: their error is the accumulator's, and stands there alone.
    assert widened.errors is not None and (widened.d, widened.errors.largest_ulp, widened.errors.frobenius) == (
        "f32",
        0,
        0,
    )
    assert all(
        row.kernel.share <= 1 and row.bounds.largest_ulp > row.kernel.errors.largest_ulp for row in (single, half)
    )  # type: ignore[union-attr]


def in_half(name: str, d: np.ndarray) -> None:
    if "_f16_f32_f32_" in name:
        d[:] = d.astype(np.float16)


def cut_off(name: str, d: np.ndarray) -> None:
    if "_f16_f32_f16_" in name:
        d.view(np.uint16)[:] -= 1


def overflown(name: str, d: np.ndarray) -> None:
    if "_f16_f16_" in name and "_bf16_" not in name:
        d[3, :2] = np.inf


def infinite(name: str, d: np.ndarray) -> None:
    d.fill(np.inf if d.dtype.kind == "f" else 0x7F80)


def test_sums_of_another_accumulator_break_the_bound() -> None:
    report = measured(spoil=in_half)
    assert not report.right and report.accumulation[0].kernel.share > 1
    assert 0 < report.accumulation[0].kernel.broken < SIZE[0] * SIZE[1] and report.accumulation[1].right
    text = show.accuracy(report, modelled=False)
    assert f"BEYOND ITS BOUND in {report.accumulation[0].kernel.broken} elements" in text
    assert text.endswith("Not as it should be: see the lines in capitals.")


def test_a_d_that_is_not_the_sum_rounded_once_is_told() -> None:
    report = measured(spoil=cut_off)
    assert not report.right and all(row.right for row in report.accumulation)
    assert {(row.acc, row.d): row.differing for row in report.storage if row.differing} == {
        ("f32", "f16"): SIZE[0] * SIZE[1]
    }
    assert f"{SIZE[0] * SIZE[1]} elements NOT THE SUM ROUNDED ONCE" in show.accuracy(report, modelled=True)


def test_what_is_not_finite_is_counted_and_spoils_no_figure() -> None:
    report = measured(spoil=overflown)
    half = report.accumulation[1].kernel
    assert (half.broken, half.not_finite, report.right) == (2, 2, False) and half.errors is not None
    json.dumps(report.as_json(), allow_nan=False)
    assert "2 of them not finite" in show.accuracy(report, modelled=False)
    everything = measured("acc=f16," + SMALL, spoil=infinite)
    assert everything.accumulation[0].kernel.errors is None
    json.dumps(everything.as_json(), allow_nan=False)
    assert " - " in show.accuracy(everything, modelled=False)


def test_an_element_that_nobody_wrote_is_no_error_of_rounding() -> None:
    def unwritten(name: str, d: np.ndarray) -> None:
        d.view(np.uint32)[0, 0] = 0x7FC0DEAD

    with pytest.raises(LaunchFault, match="1 elements of D were not written"):
        measured("acc=f32,d=f32," + SMALL, spoil=unwritten)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CardLibrary]:
    def made(spoil: Spoil = lambda d: None, **more: Any) -> CardLibrary:
        lt = FakeLt(spoils=(spoil, lambda d: pytest.fail("not the first candidate")), **more)
        monkeypatch.setattr(cublas, "library", lambda: fake_cublas.library_of(lt))
        return CardLibrary(fake_cublas.asking(FakeCard()), "a card")

    return made


def test_the_library_stands_beside_on_the_same_inputs(library: Callable[..., CardLibrary]) -> None:
    report = measured(library=library())
    for row in report.accumulation:
        assert row.library is not None and row.library.errors is not None and row.reason == ""
        assert row.library.errors.largest_ulp <= 0.5 and row.library.by.startswith("cuBLASLt 13.1.2, candidate 0 ")
    assert show.accuracy(report, modelled=False).count("  cuBLASLt   ") == 2

    def off(d: np.ndarray) -> None:
        d[0, 0] += 100

    assert [row.library and row.library.broken for row in measured(library=library(off)).accumulation] == [1, 1]


def test_a_library_that_has_none_says_why(library: Callable[..., CardLibrary]) -> None:
    for lt in (
        {"states": [fake_cublas.Status.NOT_SUPPORTED] * 2},
        {"fails": {"matmul": fake_cublas.Status.EXECUTION_FAILED}},
    ):
        report = measured(library=library(**lt))
        assert report.right and all(row.library is None and row.reason for row in report.accumulation)
    assert "it runs on a GPU" in measured().accumulation[0].reason


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fix", "epilogue=linear"], "A·B"),
        (["--fix", "pad_a=4"], "L201"),
        (["--fix", "acc=s32"], "no kernel for sm_75"),
        (["--problem", "128x128x1048576"], "no bound"),
        (["--problem", "100"], "100"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["accuracy", "--arch", "sm_75", *arguments]) == 2
    assert words in capsys.readouterr().err
