"""Batches of products: where they lie, what is asked, and a verdict that knows which product is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests import fake_cublas
from tests.fake_cublas import FakeCard, FakeLt
from tests.fakes import NumpyBackend, binary_of
from wmmagen import (
    batched,
    bench,
    config,
    denominators,
    derive,
    estimate,
    layout,
    reference,
    render,
    rules,
    selftest,
    series,
    shapes,
    trial,
    work,
)
from wmmagen.arch import ARCHS
from wmmagen.backends import Pointer, Table, Wide, cublas
from wmmagen.backends.library import CardLibrary
from wmmagen.backends.product import LibraryProduct
from wmmagen.chips import usual
from wmmagen.config import KernelConfig, Problem
from wmmagen.defaults import read_config
from wmmagen.errors import ConfigError, LaunchFault
from wmmagen.rules import Status
from wmmagen.timing import TimingProtocol

SM80 = ARCHS[80]
TINY = "inst=16x16x16,warps=1x1,frags=1x2,k_steps=1,store=direct,pad_a=8,pad_b=8"
CONFIGS = [
    read_config(f"{TINY},copy=ld,stages=2,batch={batch},{rest}", SM80)
    for batch in ("strided", "pointers")
    for rest in ("layout=rr", "layout=cc,epilogue=linear", "layout=cr,d=f16,acc=f16,epilogue=linear")
]
STRIDED, POINTERS = CONFIGS[0], CONFIGS[3]
configs = pytest.mark.parametrize("kernel", CONFIGS, ids=str)


def packed(kernel: KernelConfig, batch: int = 3, **changes: Any) -> Problem:
    return replace(Problem.packed(kernel.operation, 32, 64, 48, batch=batch), **changes)


def check(kernel: KernelConfig, problem: Problem, backend: NumpyBackend | None = None) -> trial.Run:
    return trial.check_run(kernel, binary_of(kernel), backend or NumpyBackend(arch=SM80), problem)


# What is asked.


def test_a_batch_is_said_in_the_problem_and_read_back() -> None:
    assert str(packed(STRIDED, 7)) == "32x64x48@7"
    assert config.read_batch("32x64x48@7") == ((32, 64, 48), 7)
    assert config.read_batch(" 64 ") == ((64, 64, 64), 1)
    for text in ("64@", "64@x", "64@-1", "64@3@4", "64@1.5", "@4", "64@99999999999"):
        with pytest.raises(ConfigError):
            config.read_batch(text)


def test_what_is_no_batch_is_refused() -> None:
    single = read_config(TINY, SM80).operation
    for changes in ({"batch": 2}, {"stride_d": 64}):
        with pytest.raises(ConfigError, match="one product"):
            replace(Problem.packed(single, 32, 64, 48), **changes)
    with pytest.raises(ConfigError, match="no stride_c"):
        packed(STRIDED, stride_c=64)
    with pytest.raises(ConfigError, match="is no stride"):
        packed(STRIDED, stride_a=-8)
    with pytest.raises(ValueError, match="is a batch"):
        trial.exact_case(packed(STRIDED))


@pytest.mark.parametrize("kernel", [STRIDED, CONFIGS[1], POINTERS, CONFIGS[4]], ids=str)
def test_the_arguments_are_the_kernel_s(kernel: KernelConfig) -> None:
    problem = packed(kernel)
    launch = trial.launch_of("k", kernel, problem, trial.images_of(problem))
    assert launch.grid == (derive.values(kernel, problem=problem)["BLOCKS"], 3, 1)
    scaled = kernel.operation.scaled
    matrices = launch.arguments[: 3 + scaled]
    if kernel.operation.batch is config.Batch.POINTERS:
        for number, table in enumerate(matrices):
            assert isinstance(table, Table) and table.buffer == len(matrices) + number
            assert {p.buffer for p in table.pointers} == {number}
            places = [p.offset for p in table.pointers]
            assert places == sorted(places, reverse=True) and len(set(places)) == 3
        assert [t.size for t in launch.tables()] == [24] * len(matrices)
        assert isinstance(launch.arguments[-1], float if scaled else int)
    else:
        assert all(isinstance(p, Pointer) for p in matrices)
        strides = [problem.stride_a, problem.stride_b, *([problem.stride_c] if scaled else []), problem.stride_d]
        assert launch.arguments[-len(strides) :] == tuple(map(Wide, strides))
        assert launch.tables() == ()


def test_the_table_of_what_is_not_read_is_empty() -> None:
    kernel = CONFIGS[4]
    for changes, empty in (({"beta": 0.0}, [2]), ({"alpha": 0.0}, [0, 1]), ({"k": 0}, [0, 1])):
        problem = packed(kernel, **changes)
        launch = trial.launch_of("k", kernel, problem, trial.images_of(problem))
        tables = [table for table in launch.arguments if isinstance(table, Table)]
        assert [number for number, table in enumerate(tables) if not table.pointers] == empty


# Where matrices lie.


@pytest.mark.parametrize("kernel", [CONFIGS[1], CONFIGS[4]], ids=str)
def test_a_stack_holds_each_matrix_in_its_place_and_guards_around(kernel: KernelConfig) -> None:
    (problem, *_) = batched.hostile([packed(kernel, 1)])
    for stack in batched.stacks(problem):
        one = stack.one
        values = [np.full((one.rows, one.cols), n + 1) for n in range(problem.batch)]
        buffer = stack.pack(values)
        for number, value in enumerate(values):
            got = layout.decode(stack.matrix(buffer, number), one.element)
            np.testing.assert_array_equal(got, value)
            np.testing.assert_array_equal(one.unpack(stack.alone(buffer, number)), value)
        assert stack.guard_damage(buffer) is None
        guards = buffer.view(layout.bits_dtype(one.element)) == one.guard
        assert np.count_nonzero(~guards) == problem.batch * one.rows * one.cols
        for place in np.random.default_rng(1).integers(0, guards.size, 40):
            assert _spoilt(stack, buffer, int(place) * one.element_bytes) is bool(guards[place])


def _spoilt(stack: batched.Stack, buffer: np.ndarray, at: int) -> bool:
    """Whether another byte at ``at`` is a damage; the buffer is left as it was."""
    held = buffer[at]
    buffer[at] ^= 1
    damage = stack.guard_damage(buffer)
    buffer[at] = held
    assert damage is None or damage.offset == at
    return damage is not None


def test_a_damage_says_beside_which_product_it_is() -> None:
    stack = batched.stacks(replace(packed(STRIDED), stride_d=packed(STRIDED).stride_d + 64))[-1]
    buffer = stack.blank()
    for at, words in ((8, "before the data"), (stack.starts[2] - 4, "product 1"), (buffer.size - 4, "product 2")):
        buffer[at] ^= 1
        assert words in str(stack.guard_damage(buffer))
        buffer[at] ^= 1


# The launcher's side.


@pytest.mark.parametrize("tile", ["warps=8x1,frags=4x1", "warps=1x8,frags=1x4", "warps=1x1,frags=1x1"])
@pytest.mark.parametrize("batch", ["strided", "pointers"])
@pytest.mark.parametrize(
    "feed",
    [
        "copy=ld,stages=1,epilogue=linear", "feed=global", "feed=global,split_k=3",
        "copy=ld,stages=1,residue=predicated,epilogue=biasrow+scalecol+residual",
    ],
)  # fmt: skip
def test_the_self_test_knows_calls_that_are_taken_and_calls_that_are_not(tile: str, batch: str, feed: str) -> None:
    kernel = read_config(f"batch={batch},{tile},k_steps=2,store=staged,{feed}", SM80)
    call = selftest.acceptable(kernel)
    assert selftest.answer(kernel, call) is Status.OK
    assert selftest.answer(kernel, {**call, "batch": 0}) is Status.OK
    spoilt = selftest.spoilt_calls(kernel)
    # What a null pointer is depends on factors, which a plain call does not have.
    told = [one for one in spoilt if kernel.operation.scaled or not one.what.startswith("no ")]
    for one in told:
        assert selftest.answer(kernel, {**call, **one.changes}) is one.status is not Status.OK, one.what
    fields = {field for one in spoilt for field in one.changes}
    assert fields >= {"batch", *(selftest.strides(kernel) if batch == "strided" else ())}


# Inputs.


def test_every_product_has_other_values_but_for_what_is_shared() -> None:
    kernel = CONFIGS[1]
    inputs = batched.exact_inputs(packed(kernel, stride_b=0, beta=1.0))
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert not np.array_equal(inputs[one].a, inputs[other].a)
        assert inputs[one].b is inputs[other].b
        assert not np.array_equal(inputs[one].c, inputs[other].c)  # type: ignore[arg-type]
    assert all(one.guaranteed for one in inputs)
    normal = batched.normal_inputs(packed(kernel, stride_b=0))
    assert normal[0][1] is normal[2][1] and not np.array_equal(normal[0][0], normal[2][0])


def test_a_pattern_without_other_values_is_refused() -> None:
    with pytest.raises(ConfigError, match="no wrong index would show"):
        batched.demand(packed(STRIDED), "positions")


# The verdict.


@configs
def test_the_hostile_set_is_legal_right_and_has_every_way_to_lie(kernel: KernelConfig) -> None:
    problems = trial.validation_problems(kernel)
    for problem in problems:
        rules.demand(kernel, SM80, problem)
        assert check(kernel, problem).exact
    assert {0, 1, 2, 3} <= {p.batch for p in problems}
    several = [p for p in problems if p.batch > 1]
    for wanted in ((True, False), (False, True), (True, True), (False, False)):
        assert any((p.stride_a == 0, p.stride_b == 0) == wanted for p in several)
    assert any(p.stride_d < p.ldd for p in several) and any(p.stride_d > p.m * p.ldd for p in several)
    assert any(p.k == 0 for p in several)


def test_no_product_launches_nothing() -> None:
    backend = NumpyBackend(arch=SM80)
    assert check(STRIDED, packed(STRIDED, 0), backend).exact
    assert backend.runs_done == []


Spoil = Callable[[str, np.ndarray], None]


def only(product: int, spoil: Callable[[np.ndarray], None]) -> Spoil:
    """``spoil`` of one product of each launch; products come in their order."""
    counted = iter(range(1000))
    return lambda name, d: spoil(d) if next(counted) == product else None


@pytest.mark.parametrize("kernel", [STRIDED, POINTERS], ids=str)
def test_a_wrong_element_is_told_with_its_product(kernel: KernelConfig) -> None:
    def wrong(d: np.ndarray) -> None:
        d[5, 7] += 1

    run = check(kernel, packed(kernel), NumpyBackend(arch=SM80, spoil=only(1, wrong)))
    assert not run.exact and "product 1 of 0 to 2, the first of 1 wrong ones: D[5, 7]" in run.mismatch
    assert "owner: block (0, 0)" in run.mismatch
    assert run.as_json()["strides"] == [32 * 48, 48 * 64, 32 * 64]


@pytest.mark.parametrize("letter", "abc")
def test_a_matrix_of_another_product_is_told(letter: str) -> None:
    kernel = CONFIGS[1]
    problem = packed(kernel, alpha=2.0, beta=-1.0)
    inputs = batched.exact_inputs(problem)

    def other(d: np.ndarray) -> None:
        parts = {one: inputs[0 if one == letter else 2] for one in "abc"}
        d[:] = reference.expected(reference.combined(parts["a"], parts["b"], parts["c"]))

    run = check(kernel, problem, NumpyBackend(arch=SM80, spoil=only(2, other)))
    assert f"{letter.upper()} is that of product 0: the index within the batch is wrong" in run.mismatch


def test_a_write_between_the_outputs_is_told() -> None:
    problem = replace(packed(STRIDED), ldd=80, stride_d=32 * 80)

    def beside(d: np.ndarray) -> None:
        np.lib.stride_tricks.as_strided(d, (32, 65), d.strides)[3, 64] = 0

    run = check(STRIDED, problem, NumpyBackend(arch=SM80, spoil=only(1, beside)))
    assert not run.exact and run.mismatch.startswith("guards: 1 guard elements overwritten")
    assert "beside that of product 1" in run.mismatch


def test_work_and_least_bytes_count_what_is_shared_once() -> None:
    whole, shared = packed(STRIDED), packed(STRIDED, stride_b=0)
    assert trial.operations_of(whole) == 3 * 2 * 32 * 64 * 48
    assert trial.moved_bytes(whole) - trial.moved_bytes(shared) == 2 * 48 * 64 * 2
    known = work.of(POINTERS).once, work.of(STRIDED).once
    assert known[0].global_load_requests - known[1].global_load_requests == 3


def test_a_batch_fills_the_chip_that_one_product_leaves_idle() -> None:
    one, many = (estimate.estimate(STRIDED, SM80, usual(80), packed(STRIDED, batch)) for batch in (1, 64))
    assert many.waves == 64 * one.waves  # a power of two, so no rounding
    assert many.us < 2 * one.us and many.tflops > 32 * one.tflops


# Beside the library.


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> CardLibrary:
    lt = FakeLt()
    monkeypatch.setattr(cublas, "library", lambda: fake_cublas.library_of(lt))
    return CardLibrary(fake_cublas.asking(FakeCard()), "a card")


@configs
@pytest.mark.parametrize("shared", [False, True])
def test_the_library_computes_the_same_batch(kernel: KernelConfig, shared: bool, library: CardLibrary) -> None:
    problem = packed(kernel, **({"stride_b": 0} if shared else {}))
    for denominator in denominators.denominators(problem):
        figure = denominators.measure(denominator, library, TimingProtocol())
        assert figure.best is not None, figure
        assert figure.denominator.problem.batch == 3


def test_a_batch_whose_strides_are_not_the_library_s_is_seen(
    library: CardLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped(problem: Problem, images: Sequence[Any]) -> LibraryProduct:
        right = told(problem, images)
        b, a, *rest = right.strides
        return replace(right, strides=(a, b, *rest))

    told = denominators.product_of
    monkeypatch.setattr(denominators, "product_of", swapped)
    figure = denominators.measure(denominators.denominators(packed(STRIDED))[0], library, TimingProtocol())
    assert figure.best is None


# On the card.


def test_a_card_fills_tables_and_passes_wide_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    card = pytest.importorskip("wmmagen.backends.card")
    assert card._argument([512, 4096], 1, Table(1, (Pointer(0),))) == 4096
    wide = card._argument([], 0, Wide(2**40))
    assert (wide, type(wide)) == (2**40, np.int64)
    with pytest.raises(LaunchFault, match="points into buffer 2"):
        card._argument([512, 4096], 1, Table(2, ()))
    launch = trial.launch_of("k", POINTERS, packed(POINTERS), trial.images_of(packed(POINTERS)))
    with pytest.raises(LaunchFault, match="does not fit a 64-bit int"):
        card._check_numbers(replace(launch, arguments=(Wide(2**63),)))
    written: dict[int, list[int]] = {}

    def copied(function: Any, target: int, source: int, size: int, stream: Any) -> None:
        written[target] = list(np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint64 * (size // 8)).from_address(source)))

    monkeypatch.setattr(card, "call", copied)
    one = card.Card.__new__(card.Card)
    one._stream = type("Stream", (), {"handle": 7, "sync": lambda self: None})()
    addresses = [10_000, 20_000, 30_000, 1, 2, 3]
    one._fill_tables(launch, addresses)
    for number, table in enumerate(launch.arguments[:3]):
        assert written[number + 1] == [addresses[number] + p.offset for p in table.pointers]


def test_the_shapes_to_time_are_named_once_and_small() -> None:
    listed = shapes.named("batched")
    assert len({shape.words for shape in listed}) == len(listed) >= 5
    for shape in listed:
        # What small instructions have as their shortest side, and no more than a table of attention.
        assert all(extent % 8 == 0 and extent <= 1024 for extent in shape.size)
        assert 1 < shape.batch <= derive.MAX_BATCH
    whole = [shape for shape in listed if all(extent % 64 == 0 for extent in shape.size)]
    assert 5 <= len(whole) < len(listed)
    plans = series.plan(whole, [STRIDED], SM80, None, usual(80))
    assert [plan.kernels for plan in plans] == [{STRIDED: ""}] * len(whole)


def test_kernels_of_a_batch_stand_beside_the_library_s(library: CardLibrary) -> None:
    place = type("Place", (), {"library": library, "why": "", "demanded": lambda self: NumpyBackend(arch=SM80)})()
    table = bench.measure([STRIDED], SM80, (32, 64, 48), place, TimingProtocol(), batch=3)  # type: ignore[arg-type]
    assert table.right and table.rows[0].as_json()["problem"] == "32x64x48@3"
    assert all(baseline.timing for baseline in table.baselines)


@pytest.mark.parametrize(
    "more", ["", "store=staged,d=f16,epilogue=linear", "copy=cpasync,align_a=2,align_b=4,align_d=4"]
)
def test_what_pointers_name_is_aligned_as_a_single_product_asks(more: str) -> None:
    """As validation places it, and not as the array of pointers is, which is all that the launcher sees."""
    kernel = read_config(f"batch=pointers,{more}", SM80)
    placed, asked = selftest.alignments(kernel), trial.pointer_shifts(kernel)
    assert (placed["A"], placed["B"], placed["D"]) == (asked.a, asked.b, asked.d)
    assert f"aligned to {asked.a} bytes for A, {asked.b} for B and {asked.d} for " in render.render_header(kernel, SM80)
