"""Kernels beside their denominators, with a backend of NumPy and a library whose products run on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases_legality import config

from tests.fakes import NumpyBackend, binary_of, compiled
from wmmagen import bench, cli, show, trial
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import Launch, cublas, pick
from wmmagen.backends.library import CardLibrary
from wmmagen.backends.pick import Place
from wmmagen.config import KernelConfig, name
from wmmagen.errors import CompileError, CrashFault, IllegalConfig, LaunchFault, MissingPiece
from wmmagen.nvrtc import Binary
from wmmagen.records import Outcome
from wmmagen.timing import Timing, TimingProtocol

SM75 = ARCHS[75]
SMALL = "warps=1x1,frags=1x1,k_steps=1,copy=ld,stages=1"
ONE, OTHER = config(SMALL), config(f"{SMALL},pad_a=16")
HALF = config(f"{SMALL},acc=f16,d=f16")
SIZE = (48, 32, 64)


def measured(
    *configs: KernelConfig, library: Any = None, data: Any = "normal", arch: Arch = SM75, **card: Any
) -> bench.Table:
    place = Place(NumpyBackend(**card), arch, library=library)
    return bench.measure(configs, arch, SIZE, place, TimingProtocol(data=data), compiled)


def median_us(kernel: KernelConfig) -> float:
    backend, binary = NumpyBackend(), binary_of(kernel)
    subject = trial.subject_of(kernel, binary, trial.validation_problems(kernel)[0])
    return backend.time(binary, subject.launch, subject.buffers, TimingProtocol()).median_us


@pytest.mark.parametrize("data", ["normal", "integers"])
def test_rows_come_in_the_order_of_the_request_with_both_shares(data: str, library: CardLibrary) -> None:
    table = measured(OTHER, ONE, OTHER, library=library, data=data)
    assert [row.name for row in table.rows] == [name(OTHER), name(ONE), name(OTHER)]
    assert table.right and [one.denominator.kind for one in table.baselines] == ["same types", "FP32"]
    for row in table.rows:
        assert row.timing is not None and row.timing.data == data and row.flags == ()
        assert {kind: ratio.low for kind, ratio in row.ratios.items()} == dict.fromkeys(
            ("same types", "FP32"), 8.0 / row.timing.median_us
        )
    for one in table.baselines:
        assert one.timing is not None and one.timing.median_us == 8.0 and one.reason == ""


def test_kernels_that_are_timed_together_are_each_launched_as_they_are() -> None:
    """The problem that they share promises nothing, and so does not tell whose sizes are multiples."""
    timed = []

    class Watcher(NumpyBackend):
        def time(self, binary: Binary, launch: Launch, *rest: Any, **more: Any) -> Timing:
            timed.append(launch)
            return super().time(binary, launch, *rest, **more)

    everywhere = config(f"{SMALL},residue=predicated")
    table = bench.measure([ONE, everywhere], SM75, SIZE, Place(Watcher(), SM75), TimingProtocol(), compiled)
    assert table.right and len(timed) == 2
    pointers, leading = 3, (64, 32, 32)
    assert [launch.arguments[pointers:] for launch in timed] == [(*SIZE[1:], *leading), (*SIZE, *leading)]


def test_kernels_of_two_operations_have_denominators_of_their_own(library: CardLibrary) -> None:
    table = measured(ONE, HALF, library=library)
    types = [one.denominator.problem.operation.acc.name for one in table.baselines]
    assert table.right and types == ["f32", "f32", "f16", "f32"]


def test_who_is_as_fast_as_the_library_is_called_a_tie(library: CardLibrary) -> None:
    table = measured(ONE, library=library, library_us=median_us(ONE))
    assert table.rows[0].flags == ("tie: same types", "tie: FP32")


@pytest.mark.parametrize("runs", [0, 12], ids=["at once", "after its timing"])
def test_a_wrong_kernel_has_no_time_and_costs_nobody_else_theirs(library: CardLibrary, runs: int) -> None:
    seen = []

    def spoil(entry: str, d: np.ndarray) -> None:
        if entry == f"{ONE}_kernel":
            seen.append(entry)
            if len(seen) > runs:
                d[0, 0] += 1

    # As many runs as come before the timing.
    checked = len(trial.validation_problems(ONE)) + 2
    runs = checked if runs else 0
    table = measured(ONE, OTHER, library=library, spoil=spoil)
    wrong, right = table.rows
    assert (wrong.outcome, wrong.timing, wrong.ratios) == (Outcome.WRONG, None, {}) and not table.right
    assert wrong.detail.startswith("after timing: ") is bool(runs)
    assert right.outcome is Outcome.OK and set(right.ratios) == {"same types", "FP32"}


def test_what_the_compiler_refuses_is_a_row(library: CardLibrary) -> None:
    def refuses(source: str, entry: str, arch: Arch) -> Binary:
        if entry == f"{ONE}_kernel":
            raise CompileError("it refused", "read the log", "the log")
        return compiled(source, entry, arch)

    place = Place(NumpyBackend(), SM75, library=library)
    table = bench.measure([ONE, OTHER], SM75, SIZE, place, TimingProtocol(), refuses)
    assert [row.outcome for row in table.rows] == [Outcome.COMPILE, Outcome.OK]


def test_a_crash_is_a_row(library: CardLibrary) -> None:
    table = measured(
        ONE, OTHER, library=library, fault_of=lambda n: CrashFault("it broke") if n.startswith(f"{ONE}_") else None
    )
    assert [(row.outcome, row.detail) for row in table.rows] == [(Outcome.CRASH, "it broke"), (Outcome.OK, "")]


def test_a_comparison_that_fails_blames_nobody_alone(library: CardLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise LaunchFault("no memory")

    monkeypatch.setattr(NumpyBackend, "compare", breaks)
    table = measured(ONE, OTHER, library=library)
    assert {(row.outcome, row.detail) for row in table.rows} == {(Outcome.LAUNCH, "in turns with 3 others: no memory")}
    assert all(one.timing is None for one in table.baselines)


def test_without_a_library_the_reason_is_said(monkeypatch: pytest.MonkeyPatch, library: CardLibrary) -> None:
    for table in (measured(ONE), _without(monkeypatch, library)):
        assert table.right and table.rows[0].ratios == {}
        assert all(one.timing is None and one.reason for one in table.baselines)
    assert "pip install" in table.baselines[0].reason


def _without(monkeypatch: pytest.MonkeyPatch, library: CardLibrary) -> bench.Table:
    def absent() -> None:
        raise MissingPiece("it is not here", "pip install it")

    monkeypatch.setattr(cublas, "library", absent)
    return measured(ONE, library=library)


def test_a_foreign_time_has_no_share(library: CardLibrary) -> None:
    (row,) = measured(ONE, library=library, arch=SM75, device="a card of NumPy (sm_80)").rows
    assert row.ratios and not row.foreign
    place = Place(NumpyBackend(arch=ARCHS[80]), SM75, library=library)
    (row,) = bench.measure([ONE], SM75, SIZE, place, TimingProtocol(), compiled).rows
    assert row.foreign and row.ratios == {} and row.flags == ("foreign",) and row.timing is not None


# ---------------------------------------------------------------------------------------------------------------------
# The ceiling.


def under_ceilings(*configs: KernelConfig, data: Any = "normal", compiler: Any = compiled, **card: Any) -> bench.Table:
    place = Place(NumpyBackend(**card), SM75)
    return bench.measure(configs, SM75, SIZE, place, TimingProtocol(data=data), compiler, ceilings=True)


WIDE = config("warps=1x1,frags=2x1,k_steps=1,copy=ld,stages=1,inst=8x32x16")


@pytest.mark.parametrize("data", ["normal", "integers"])
def test_a_share_of_the_ceiling_is_a_quotient_of_rates(data: str) -> None:
    table = under_ceilings(ONE, HALF, WIDE, OTHER, data=data)
    limits = {(limit.inst.acc.name, limit.inst.shape): limit for limit in table.limits}
    assert set(limits) == {("f32", "16x16x16"), ("f16", "16x16x16"), ("f32", "8x32x16")} and len(table.limits) == 3
    for row, case in zip(table.rows, (ONE, HALF, WIDE, OTHER), strict=True):
        limit = limits[case.operation.acc.name, str(case.inst)]
        assert limit.timing is not None and limit.timing.data == data
        assert row.of_ceiling is not None and row.tflops is not None and limit.tflops is not None
        # The fake's clock does not vary, so the share is that of two times, and of the work of one launch each.
        assert row.timing is not None and limit.loop is not None
        faster = limit.timing.median_us / row.timing.median_us
        assert row.of_ceiling.low == faster * (2 * math.prod(SIZE) / limit.loop.operations)
        assert row.as_json()["share"]["ceiling"] == row.of_ceiling.low
        assert limit.as_json()["tflops"] == limit.tflops and limit.as_json()["warps"] == 16


def test_ceilings_take_turns_with_the_kernels_in_a_comparison_of_their_own(
    library: CardLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[list[str]] = []
    compare = NumpyBackend.compare

    def watch(self: NumpyBackend, subjects: Sequence[Any], *arguments: Any, **more: Any) -> Any:
        compared.append([s.launch.entry if hasattr(s, "launch") else "library" for s in subjects])
        return compare(self, subjects, *arguments, **more)

    monkeypatch.setattr(NumpyBackend, "compare", watch)
    place = Place(NumpyBackend(), SM75, library=library)
    bench.measure([ONE, OTHER], SM75, SIZE, place, TimingProtocol(), compiled, ceilings=True)
    kernels = [f"{ONE}_kernel", f"{OTHER}_kernel"]
    loop = "ceiling_registers_f16_f32_16x16x16"
    assert compared == [[*kernels, "library", "library"], [loop] * 3, [*kernels, loop]]


def test_a_ceiling_that_is_wrong_costs_its_share_and_nothing_else() -> None:
    def spoil(entry: str, d: np.ndarray) -> None:
        if entry.startswith("ceiling_") and "8x32x16" in entry:
            d[0, 0] ^= 1

    table = under_ceilings(ONE, WIDE, spoil=spoil)
    assert table.right and table.rows[0].of_ceiling is not None and table.rows[1].of_ceiling is None
    assert [bool(limit.reason) for limit in table.limits] == [False, True]
    text = show.bench(table, TimingProtocol())
    assert "of ceiling" in text and "f16, f32, 8x32x16" in text and "sums are wrong" in text
    assert f"{table.rows[0].of_ceiling.low:.3f}" in text


def test_turns_with_a_ceiling_that_fail_are_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = NumpyBackend.compare

    def breaks(self: NumpyBackend, subjects: Sequence[Any], *arguments: Any, **more: Any) -> Any:
        if len({s.launch.entry for s in subjects}) > 1:
            raise LaunchFault("no memory")
        return compare(self, subjects, *arguments, **more)

    monkeypatch.setattr(NumpyBackend, "compare", breaks)
    table = under_ceilings(ONE)
    assert table.right and table.rows[0].of_ceiling is None and table.limits[0].reason == "no memory"


def test_kernels_that_are_wrong_or_foreign_have_no_ceiling() -> None:
    wrong = under_ceilings(ONE, spoil=lambda entry, d: d.__setitem__((0, 0), 7))
    assert wrong.limits == () and wrong.rows[0].of_ceiling is None
    foreign = under_ceilings(ONE, arch=ARCHS[80])
    assert foreign.rows[0].of_ceiling is None and "assembled again" in foreign.limits[0].reason
    assert "of ceiling" not in show.bench(measured(ONE), TimingProtocol())


def test_who_has_no_clock_measures_nothing() -> None:
    with pytest.raises(MissingPiece, match=r"timed on a GPU, and a card of NumPy .* is none"):
        measured(ONE, clocked=False)


def test_a_size_that_a_kernel_does_not_take_is_refused_before_anything_runs(library: CardLibrary) -> None:
    place = Place(NumpyBackend(), SM75, library=library)
    with pytest.raises(IllegalConfig):
        bench.measure([ONE], SM75, (50, 32, 64), place, TimingProtocol(), compiled)


def test_the_text_shows_both_denominators_and_what_is_missing(library: CardLibrary) -> None:
    table = measured(ONE, library=library)
    text = show.bench(table, TimingProtocol())
    share = table.rows[0].ratios["FP32"].low
    assert name(ONE) in text and text.count(f"{share:.3f}") == 2 and text.count("8.00 us") == 2
    bare = show.bench(measured(ONE), TimingProtocol())
    assert bare.count("none  ") == 2 and bare.count("none: ") == 2 and "no library" in bare
    broken = replace(table, rows=(bench.Row(name(ONE), table.rows[0].problem, Outcome.WRONG, "D[0, 0]"),))
    assert f"[1] wrong: {name(ONE)}" in show.bench(broken, TimingProtocol())


def test_numbers_are_the_order_of_the_request_and_the_fastest_is_marked() -> None:
    table = measured(ONE, WIDE)

    def said(*medians: float) -> str:
        timings = [
            replace(row.timing, median_us=us, interval_us=(us - 1, us + 1))
            for row, us in zip(table.rows, medians, strict=True)
            if row.timing
        ]
        rows = tuple(replace(row, timing=timing) for row, timing in zip(table.rows, timings, strict=True))
        return show.bench(replace(table, rows=rows), TimingProtocol())

    assert " [1]      50.00 " in said(50, 40) and " [2]*     40.00 " in said(50, 40)
    assert "Kernels are numbered as they were asked for. * is the fastest.\n" in said(50, 40)
    assert "* is the fastest, in a tie with [2]: their intervals overlap.\n" in said(40, 41)
    assert "*" not in show.bench(measured(ONE), TimingProtocol())


def test_the_sensors_words_stand_below(library: CardLibrary) -> None:
    table = measured(ONE, library=library)
    timing = table.rows[0].timing
    assert timing is not None
    sensed = replace(
        timing, clock_mhz=1700.0, clock_range_mhz=(1695, 1710), power_w=680.4, temperature_c=55,
        throttle=("power-cap",), empty_us=0.5,
    )  # fmt: skip
    text = show.bench(replace(table, rows=(replace(table.rows[0], timing=sensed),)), TimingProtocol())
    assert "1695 to 1710 MHz, 680 W, 55 C, power-cap, an empty kernel takes 0.50 us" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mode", "hot"], "warm cold"),
        (["--data", "ones"], "normal integers"),
        (["--problem", "0"], "no product"),
        (["--problem", "64x64x0"], "no product"),
        (["--problem", "65"], "65"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: Sequence[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pick, "pick", lambda kind, arch, **more: Place(NumpyBackend(), arch))
    status = cli.run(["bench", SMALL, "--arch", "sm_75", *arguments])
    assert status == 2 and words in capsys.readouterr().err


def test_without_a_card_it_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pick, "pick", lambda kind, arch, **more: Place(None, arch, "there is no GPU"))
    assert cli.run(["bench", SMALL, "--arch", "sm_75"]) == 3
    assert "there is no GPU" in capsys.readouterr().err
