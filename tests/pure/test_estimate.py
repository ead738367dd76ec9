"""The estimate: in the order of what was measured, and with the properties that every such model has."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import random

import pytest

from tests import measured
from wmmagen import chips, derive, estimate, work
from wmmagen.arch import ARCHS, REGISTERS_PER_SM, Arch
from wmmagen.chips import Chip
from wmmagen.config import KernelConfig, Operation, Problem, parse, read_size
from wmmagen.defaults import read_config
from wmmagen.dtypes import F16, F32
from wmmagen.errors import ConfigError
from wmmagen.estimate import Estimate, Footprint
from wmmagen.records import Record
from wmmagen.space import Space

PLAIN = Operation(F16, F32, F32)
T4, H200 = chips.named("t4"), chips.named("h200")
SM75, SM90 = ARCHS[75], ARCHS[90]


@functools.cache
def drawn(seed: int = 7, count: int = 40) -> tuple[KernelConfig, ...]:
    return tuple(space().sample(random.Random(seed), count))


@functools.cache
def space() -> Space:
    return Space(PLAIN, SM90, problem=Problem.packed(PLAIN, 4096, 4096, 4096))


def cube(n: int) -> Problem:
    return Problem.packed(PLAIN, n, n, n)


def guess(config: KernelConfig, problem: Problem, chip: Chip = H200, arch: Arch = SM90, **more: object) -> Estimate:
    return estimate.estimate(config, arch, chip, problem, **more)  # type: ignore[arg-type]


def of_record(record: Record, *, facts: bool) -> float:
    config = parse(record.name)
    size = [int(part) for part in record.problem.split("x")]
    known = estimate.compiled(record.facts) if facts and record.facts else None
    chip = chips.find(record.device)
    assert chip is not None
    return guess(config, Problem.packed(config.operation, *size), chip, footprint=known).us


def test_of_each_cube_a_set_judges() -> None:
    assert measured.judging() and not measured.missing()


@pytest.mark.parametrize("facts", [False, True], ids=["nothing is compiled", "the compiler's facts"])
@pytest.mark.parametrize("path", measured.judging(), ids=lambda path: path.stem)
def test_the_order_is_that_of_the_measured_times(path: object, facts: bool) -> None:
    """The demand is 0.8; what is reached lies above 0.93, and a change of the model must not lose it unseen."""
    records = measured.read(path)  # type: ignore[arg-type]
    times = [record.timing.median_us for record in records if record.timing]
    guessed = [of_record(record, facts=facts) for record in records]
    assert measured.spearman(times, guessed) > 0.9
    # The best of the five that are estimated to be fastest is hardly slower than the fastest.
    leaders = sorted(zip(guessed, times, strict=True))[:5]
    assert min(time for _, time in leaders) < 1.3 * min(times)


def test_the_known_kernels_of_a_t4_are_in_order_and_within_a_factor_of_two() -> None:
    pairs = []
    for known in measured.T4:
        config = read_config(known.nearest, SM75)
        pairs += [(us, guess(config, cube(n), T4, SM75).us) for n, us in known.us.items()]
    assert all(0.5 < guessed / us < 2 for us, guessed in pairs)
    for one, other in ((a, b) for a in pairs for b in pairs if a[0] > 1.15 * b[0]):
        assert one[1] > other[1]


@pytest.mark.parametrize("field", ["l2_bytes_per_clock", "dram_read_gb_per_s", "l2_mb", "wmma_share"])
def test_more_of_a_resource_is_never_slower(field: str) -> None:
    richer = dataclasses.replace(H200, **{field: 2 * getattr(H200, field)})
    for config in drawn():
        assert guess(config, cube(4096), richer).us <= guess(config, cube(4096)).us


def test_a_higher_clock_is_never_slower() -> None:
    faster = dataclasses.replace(H200, sustained_mhz=2 * 1980)
    assert all(guess(config, cube(4096), faster).us <= guess(config, cube(4096)).us for config in drawn())


def test_twice_the_depth_takes_longer_and_not_more_than_twice() -> None:
    for config in drawn():
        once = guess(config, Problem.packed(PLAIN, 4096, 4096, 4096)).us
        twice = guess(config, Problem.packed(PLAIN, 4096, 4096, 8192)).us
        assert once < twice <= 2 * once


def test_spills_and_fewer_resident_blocks_are_never_faster() -> None:
    for config in drawn():
        free = dataclasses.replace(estimate.predicted(config, SM90), spill_bytes=0, stack_bytes=0)
        spilled = dataclasses.replace(free, spill_bytes=800, stack_bytes=400)
        assert guess(config, cube(4096), footprint=spilled).us > guess(config, cube(4096), footprint=free).us


def test_one_block_more_than_fits_is_another_wave() -> None:
    config = read_config("warps=2x2,frags=4x4,copy=cpasync,stages=3", SM90)
    foot = Footprint(200, 0, 0, 1, compiled=True)
    block = derive.values(config)["BLOCK_M"]

    def blocks(number: int) -> Estimate:
        wide = Problem.packed(PLAIN, block, number * derive.values(config)["BLOCK_N"], 2048)
        return guess(config, wide, footprint=foot)

    full, more, two = (blocks(n) for n in (132, 133, 264))
    assert (full.waves, full.quantization) == (1.0, 1.0)
    assert more.quantization == 2 / (133 / 132)
    assert blocks(131).us <= full.us < 0.7 * more.us
    assert more.us <= two.us


def test_the_limiting_resource_is_the_one_with_the_most_time() -> None:
    for config in drawn():
        made = guess(config, cube(2048))
        assert made.limiting == max(made.resources, key=lambda name: made.resources[name])
        alone = max(made.resources.values())
        assert alone < made.us <= sum(made.resources.values()) + made.fill_us + made.launch_us
        assert made.tflops == 2 * 2048**3 / made.us / 1e6


def test_known_kernels_are_limited_by_what_limits_them() -> None:
    conflicts = "warps=2x2,frags=4x4,copy=cpasync,stages=3,k_steps=4,pad_a=0,pad_b=0"
    assert guess(read_config(conflicts, SM90), cube(4096)).limiting == "shared"
    assert guess(read_config("residency=global,warps=2x2,frags=2x2", SM90), cube(2048)).limiting == "l2"
    assert guess(read_config("feed=global,warps=1x1,frags=1x1", SM75), cube(2048), T4, SM75).limiting == "l2"


def done(took: float, waits: float, waiting: float) -> float:
    """Work that is done in a time, but while all wait at once."""
    return took * (1 - (waits / took) ** waiting)


def test_waits_that_nobody_covers_are_added() -> None:
    """Alone, waits are added to the work; of many, only the time in which all wait at once."""
    for busy, waits in ((1000.0, 300.0), (300.0, 1000.0), (1000.0, 0.0), (5.0, 5.0)):
        alone = estimate._with_waits(busy, waits, 1)
        assert alone == busy + waits
        for waiting in (1.5, 2, 3, 8, 32):
            took = estimate._with_waits(busy, waits, waiting)
            # Newton's steps end within rounding of the root, so it lies between two neighbours at 2^-40.
            assert done(took * (1 - 2**-40), waits, waiting) < busy < done(took * (1 + 2**-40), waits, waiting)
            assert max(busy, waits) <= took <= alone
            alone = took
    assert estimate._with_waits(1000, 300, 32) == 1000
    assert 1000 < estimate._with_waits(5, 1000, 32) < 1001


def test_fragments_across_slices_are_worth_what_they_were_on_an_h200() -> None:
    """395 over 346 TFLOP/s were measured (wmmagen/DESIGN.md), 256x128x64 in three stages at 4096."""
    kernel = "warps=4x2,frags=4x4,k_steps=4,copy=cpasync,stages=3,pad_a=8,pad_b=8,store=direct,fragment_buffers={}"
    one, two = (guess(read_config(kernel.format(sets), SM90), cube(4096)) for sets in (1, 2))
    assert 1.05 < one.us / two.us < 1.25
    assert one.resources["latency"] > 5 * two.resources["latency"]
    # Two blocks of half the size cover most of each other's waits.
    half = guess(read_config("warps=2x2,min_blocks=2," + kernel.format(1)[len("warps=4x2,") :], SM90), cube(4096))
    assert half.footprint.resident == 2 and half.resources["latency"] < one.resources["latency"] / 3


@pytest.mark.parametrize("tile", ["warps=2x2,frags=4x4", "warps=2x4,frags=4x2", "warps=4x4,frags=2x2"])
def test_on_turing_a_second_stage_is_worth_more_than_a_second_block(tile: str) -> None:
    """Loads that pass through registers while the other stage is multiplied, as published kernels for Turing do."""
    kernel = f"{tile},k_steps=2,copy=ld,pad_a=8,pad_b=8,store=direct"
    one, two, both = (
        guess(read_config(f"{kernel},{more}", SM75), cube(2048), T4, SM75).us
        for more in ("stages=1", "stages=2,fragment_buffers=1", "stages=2,fragment_buffers=2")
    )
    assert both < two and both < one


def test_the_best_kernels_of_sweeps_take_about_as_long_as_estimated() -> None:
    """They were measured with today's templates, and nothing was fitted to them."""
    assert len(measured.sweeps()) >= 5
    for path in measured.sweeps():
        n, rows = measured.ranking(path)
        ratios = sorted(guess(parse(name), cube(n)).us / us for us, name in rows)
        assert len(ratios) == 10 and 0.8 < ratios[len(ratios) // 2] < 1.25


def test_nothing_to_launch_takes_the_launch_and_no_more() -> None:
    made = guess(drawn()[0], Problem.packed(PLAIN, 0, 64, 64))
    assert (made.us, made.limiting, dict(made.resources)) == (estimate.LAUNCH_US, "launch", {})
    assert guess(drawn()[0], Problem.packed(PLAIN, 4096, 4096, 0)).limiting == "launch"


def test_types_without_a_rate_have_no_estimate() -> None:
    config = read_config("a=f64", ARCHS[89])
    ada = chips.named("4090")
    assert not estimate.priced(config.operation, ada) and estimate.priced(config.operation, H200)
    with pytest.raises(ConfigError, match="rate of RTX 4090 for f64"):
        estimate.estimate(config, ARCHS[89], ada, Problem.packed(config.operation, 4096, 4096, 4096))


SKINNY = "warps=2x2,frags=2x2,k_steps=4,copy=cpasync,stages=4,fragment_buffers=2"


@pytest.mark.parametrize("reduction", ["workspace", "atomic"])
def test_splits_help_where_tiles_are_few_and_only_there(reduction: str) -> None:
    def times(*size: int) -> list[float]:
        whole = read_config(SKINNY, SM90)
        split = [read_config(f"{SKINNY},split_k={n},reduction={reduction}", SM90) for n in (4, 16, 1024)]
        return [guess(c, Problem.packed(c.operation, *size)).us for c in (whole, *split)]

    few, many = times(64, 64, 65536), times(2048, 2048, 2048)
    assert few[0] > 2 * few[1] > 4 * few[2] and few[3] > few[2]
    assert many == sorted(many)


def test_zeroing_is_part_of_the_time() -> None:
    made = [
        guess(c, Problem.packed(c.operation, 64, 64, 8192))
        for c in (read_config(f"{SKINNY},split_k=8,reduction={r}", SM90) for r in ("workspace", "atomic"))
    ]
    assert made[1].launch_us > 2 * made[0].launch_us == 2 * estimate.LAUNCH_US


def test_what_is_predicted_keeps_the_limits() -> None:
    for config in drawn(8, 300):
        foot = estimate.predicted(config, SM90)
        threads = derive.values(config)["THREADS"]
        assert 0 < foot.registers <= 255 and foot.registers * threads * config.min_blocks <= REGISTERS_PER_SM
        assert (foot.spill_bytes > 0) == (foot.stack_bytes > 0) and foot.resident >= 1 and not foot.compiled


def test_the_work_of_all_blocks_is_the_problem() -> None:
    problem = cube(4096)
    for config in drawn():
        known = derive.values(config, problem=problem)
        done, slices = work.of(config), problem.k // known["BLOCK_K"]
        total = known["BLOCKS"] * (done.once + done.slice * slices).multiply_adds
        assert total == math.prod((problem.m, problem.n, problem.k))
        if known["residency_fragment"]:
            least = problem.m * problem.n * known["D_BITS"] // 8 // 32
            assert known["BLOCKS"] * done.once.global_store_sectors >= least
            assert done.slice.global_store_sectors == 0


def test_a_pad_of_sixteen_bytes_removes_conflicts() -> None:
    rows = "inst=16x16x16,warps=2x2,frags=4x4,k_steps=4,copy=cpasync,stages=2,pad_a={0},pad_b={0}"
    bare, padded = (work.of(read_config(rows.format(pad), SM90)).slice for pad in (0, 8))
    assert bare.shared_load_wavefronts == 8 * padded.shared_load_wavefronts
    assert bare.global_load_sectors == padded.global_load_sectors


def test_a_third_stage_is_worth_what_was_measured() -> None:
    """Of kernels that won on an H200, with two stages beside their own.

    Within a factor of 1.3, in which two thirds of all estimates lie (:func:`estimate.estimate`'s record); the farthest
    of these, at 2048, is at 1.29.
    """
    path = measured.RECORDS / "slots_sm_90_NVIDIA_H200.json"
    cells = [
        one
        for one in json.loads(path.read_text(encoding="utf-8"))["measurements"]
        if one["change"] == "stages=2" and one["ratio"]
    ]
    assert len(cells) >= 5
    for cell in cells:
        base, changed = parse(cell["base"]), parse(cell["name"])
        problem = Problem.packed(base.operation, *read_size(cell["problem"]))
        estimated, took = guess(changed, problem).us / guess(base, problem).us, 1 / cell["ratio"]["median"]
        assert estimated > 1.1 and 1 / 1.3 < estimated / took < 1.3, (cell["problem"], estimated, took)
