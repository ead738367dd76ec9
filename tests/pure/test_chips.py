"""The table of chips, and the floor that a trial makes of it."""

from __future__ import annotations

import dataclasses
import math

import pytest

from wmmagen import chips, timing, trial
from wmmagen.arch import ARCHS
from wmmagen.chips import CHIPS, UNKNOWN_CLOCK_FACTOR, Chip
from wmmagen.config import Epilogue, Operation, Problem
from wmmagen.dtypes import BF16, F16, F32, F64, S8, S32, TF32, U8
from wmmagen.errors import LaunchFault
from wmmagen.timing import Timing

H200 = "NVIDIA H200 (sm_90)"
T4 = "Tesla T4 (sm_75)"
#: Operations that a multiprocessor does per clock with f16 accumulators, multiprocessors, and the decimals of its rate.
UNITS = {
    "T4": (1024, 40, 1),
    "RTX 2080 Ti": (1024, 68, 1),
    "RTX 3090": (1024, 82, 0),
    "A10": (1024, 72, 0),
    "A100 40 GB": (2048, 108, 0),
    "A100 80 GB PCIe": (2048, 108, 0),
    "A100 80 GB SXM": (2048, 108, 0),
    "RTX 4090": (1024, 128, 1),
    "L4": (1024, 58, 0),
    "H100 PCIe": (4096, 114, 1),
    "H100 SXM": (4096, 132, 1),
    "H200": (4096, 132, 1),
    "RTX 5090": (1024, 170, 1),
}


def timed(us: float, **more: object) -> Timing:
    return dataclasses.replace(Timing(us, (us, us), 15, 40), **more)


def square(n: int, operation: Operation | None = None, **more: float) -> Problem:
    return Problem.packed(operation or Operation(F16, F32, F32), n, n, n, **more)


@pytest.mark.parametrize("chip", {chip.name: chip for chip in CHIPS.values()}.values(), ids=lambda chip: chip.name)
def test_a_published_rate_is_that_of_its_clock(chip: Chip) -> None:
    """What the units do per clock, times the clock beside it, rounded as its document rounds."""
    if chip.boost_mhz is None:
        assert chip.name == "B200"
    elif chip.name == "L40S":
        # Its document gives twice the rate, 733, in whole numbers.
        assert round(2 * 1024 * 142 * chip.boost_mhz / 1e6) == 2 * chip.f16_tflops["f16"] == 2 * chip.f16_tflops["f32"]
    else:
        per_clock, multiprocessors, decimals = UNITS[chip.name]
        rate = per_clock * multiprocessors * chip.boost_mhz / 1e6
        share = 2 if "RTX" in chip.name else 1
        assert chip.f16_tflops == {"f16": round(rate, decimals), "f32": round(rate / share, decimals)}


@pytest.mark.parametrize("chip", {chip.name: chip for chip in CHIPS.values()}.values(), ids=lambda chip: chip.name)
def test_units_of_other_operands_do_a_power_of_two_per_clock(chip: Chip) -> None:
    """What so many do at the clock beside it, as documents have it: rounded to tenths or whole, or cut to whole."""
    for operand, of_f16 in {"tf32": (4, 2), "f64": (16, 16), "s8": (0.5, 0.5)}.items():
        if operand in chip.tflops:
            published, ours, f16 = chip.tflops[operand], chip.per_clock(operand, ""), chip.per_clock("f16", "f16")
            assert ours is not None and f16 is not None
            units = 2 ** round(math.log2(f16)) / of_f16["RTX" not in chip.name]
            rate = published / ours * units
            assert published in (round(rate, 1), round(rate), math.floor(rate)), operand


def test_a_chip_is_found_by_its_whole_name() -> None:
    assert chips.find(H200) is chips.find("NVIDIA H200") is CHIPS["NVIDIA H200"]
    others = "NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090 D", "NVIDIA A10G", "NVIDIA L40", "H200", "", "NumPy (sm_75)"
    assert [chips.find(other) for other in others] == [None] * 7


def test_a_rate_follows_the_clock_upwards_only() -> None:
    t4 = CHIPS["Tesla T4"]
    published = 65.1 * 1e12
    assert t4.per_s("f16", "f32", 1590.0) == t4.per_s("f16", "f32", 585.0) == published
    assert t4.per_s("f16", "f32", 3180.0) == 2 * published
    assert t4.per_s("f16", "f32", None) == published * UNKNOWN_CLOCK_FACTOR
    assert CHIPS["NVIDIA B200"].per_s("f16", "f32", 1900.0) == 2250 * 1e12 * UNKNOWN_CLOCK_FACTOR
    assert t4.per_s("f16", "s32", 1590.0) is None


def test_the_floor_of_a_problem_is_its_operations_over_the_peak() -> None:
    at_boost = timed(500.0, clock_range_mhz=(1500, 1590))
    expected = 2 * 2048**3 / (65.1 * 1e12) * 1e6 / timing.FLOOR_MARGIN
    assert trial.floor_us(square(2048), at_boost, T4) == expected
    # GeForce: half the rate for f32 accumulators. A higher clock than the published one counts.
    ti = "NVIDIA GeForce RTX 2080 Ti (sm_75)"
    f16 = square(2048, Operation(F16, F16, F16))
    clock = timed(500.0, clock_range_mhz=(1635, 1635))
    assert trial.floor_us(square(2048), clock, ti) == 2 * trial.floor_us(f16, clock, ti)
    boosted = timed(500.0, clock_range_mhz=(1635, 3270))
    assert 2 * trial.floor_us(f16, boosted, ti) == trial.floor_us(f16, clock, ti)


def test_the_floor_of_cold_data_is_their_bytes_over_dram() -> None:
    cold = timed(500.0, mode="cold", clock_range_mhz=(1830, 1830))
    n = 256
    moved = (2 * n * n * 2 + n * n * 4) / 4.8e12 * 1e6 / timing.FLOOR_MARGIN
    assert trial.floor_us(square(n), cold, H200) == moved
    # What may still have been in the L2 sets no such floor, nor does warm data, for no L2's bandwidth is published.
    operations = 2 * n**3 / (989.4 * 1e12) * 1e6 / timing.FLOOR_MARGIN
    for other in (dataclasses.replace(cold, flags=(timing.PARTLY_COLD,)), dataclasses.replace(cold, mode="warm")):
        assert trial.floor_us(square(n), other, H200) == operations < moved


def test_a_matrix_that_a_factor_leaves_out_is_not_moved() -> None:
    linear = Operation(F16, F32, F32, epilogue=Epilogue.LINEAR)
    cold = timed(500.0, mode="cold", clock_range_mhz=(1830, 1830))

    def floor(alpha: float, beta: float) -> float:
        return trial.floor_us(square(256, linear, alpha=alpha, beta=beta), cold, H200)

    def of(matrices: int) -> float:
        return matrices * 256 * 256 * 4 / 4.8e12 * 1e6 / timing.FLOOR_MARGIN

    # A and B of two bytes an element together are as large as C or D of four.
    assert (floor(0.0, 0.0), floor(0.0, 1.0)) == (of(1), of(2))
    assert (floor(1.0, 0.0), floor(1.0, 1.0)) == (of(2), of(3))


def test_a_time_below_the_floor_is_a_fault() -> None:
    problem = square(4096)
    floor = trial.floor_us(problem, timed(1.0), H200)
    assert 2 * 4096**3 / floor / 1e6 > 989.4 * 1.3
    trial.demand_possible(problem, timed(floor), H200)
    with pytest.raises(LaunchFault, match=r"below the floor of NVIDIA H200 \(sm_90\) for 4096x4096x4096"):
        trial.demand_possible(problem, timed(0.999 * floor), H200)


def test_a_chip_or_a_type_without_a_row_has_the_limit_of_all() -> None:
    problem = square(4096)
    # Ada has no f64 in its tensor cores.
    ada = "NVIDIA GeForce RTX 4090 (sm_89)"
    for device, unknown in (("a card of NumPy (sm_75)", problem), (ada, square(4096, Operation(F64, F64, F64)))):
        assert trial.floor_us(unknown, timed(50.0), device) == 0.0
        trial.demand_possible(unknown, timed(14.0), device)
        with pytest.raises(LaunchFault, match="TFLOP/s: a fault"):
            trial.demand_possible(unknown, timed(13.0), device)


def test_each_type_has_the_floor_of_its_own_rate() -> None:
    clock = timed(500.0, clock_range_mhz=(1830, 1830))
    rates = ((BF16, F32, 989.4), (TF32, F32, 494.7), (F64, F64, 61.8), (S8, S32, 1978.9), (U8, S32, 1978.9))
    for a, acc, rate in rates:
        floor = trial.floor_us(square(4096, Operation(a, acc, acc)), clock, H200)
        assert floor == 2 * 4096**3 / (rate * 1e12) * 1e6 / timing.FLOOR_MARGIN


def test_nothing_to_compute_has_no_floor() -> None:
    empty = Problem.packed(Operation(F16, F32, F32), 64, 64, 0)
    assert trial.floor_us(empty, timed(2.0), H200) == 0.0


def test_every_chip_has_a_name_of_its_own_on_the_command_line() -> None:
    for text in ("t4", "2080ti", "3090", "a10", "l4", "l40s", "4090", "a100", "h100", "h200", "b200", "5090"):
        assert chips.named(text.upper()) is chips.named(text)
    assert chips.named("RTX 4090") is chips.named("4090") and chips.named("NVIDIA H200") is CHIPS["NVIDIA H200"]
    assert all(chips.named(chip.key) is chip for chip in CHIPS.values())


def test_what_an_estimate_counts_with_is_there() -> None:
    for chip in CHIPS.values():
        assert chip.sm in ARCHS and chip.multiprocessors > 0 and 1 <= chip.l2_mb <= 256
        assert 12 <= chip.l2_bytes_per_clock <= 64 and 0 < chip.wmma_share <= 1
        assert 0.8 * chip.dram_gb_per_s < chip.dram_read <= chip.dram_gb_per_s
        assert 500 < chip.clock_mhz <= 2600
        per_clock, multiprocessors, _ = UNITS.get(chip.name, (1024, 142, 0) if chip.name == "L40S" else (8192, 148, 0))
        assert chip.multiprocessors == multiprocessors
        # Documents round rates and clocks; units come in eights, and each rate is nearest to its own number of them.
        found = chip.per_clock("f16", "f16")
        assert found is not None and 8 * round(found / 8) == per_clock
        assert chip.per_clock("f16", "s32") is None


@pytest.mark.parametrize(
    ("sm", "name"), [(75, "T4"), (86, "RTX 3090"), (87, "RTX 3090"), (90, "H200"), (121, "RTX 5090")]
)
def test_an_architecture_stands_for_a_chip(sm: int, name: str) -> None:
    assert chips.usual(sm).name == name
