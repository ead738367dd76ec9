"""The measuring protocol on a clock that the test drives."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from wmmagen import timing
from wmmagen.errors import LaunchFault
from wmmagen.records import Record
from wmmagen.timing import (
    Comparison,
    Reading,
    Rotation,
    Timing,
    TimingProtocol,
    compare,
    measure,
    median_interval,
    round_order,
)

RECORDS = Path(__file__).resolve().parents[2] / "sweeps" / "records"


class Device:
    """A clock, a queue and a sensor. A replay that finds the device idle has the host's way to it in its time."""

    def __init__(self, latency_us: float = 6.0, sensor: Callable[[float], Reading] | None = None) -> None:
        self.latency_us = latency_us
        self.reading = sensor or (lambda seconds: Reading(1980))
        self.now_s = 100.0
        self.start_s = self.now_s
        self.queued = 0
        self.deepest = 0
        self.idle_reads = 0
        self.rests: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now_s += seconds

    def read(self) -> Reading:
        self.idle_reads += not self.queued
        return self.reading(self.spent_s)

    @property
    def spent_s(self) -> float:
        return self.now_s - self.start_s

    def kernel(self, kernel_us: Callable[[float], float], **more: Sequence[str]) -> Kernel:
        return Kernel(self, kernel_us, **more)

    def compare(self, *subjects: Kernel, protocol: TimingProtocol | None = None) -> Comparison:
        return compare(subjects, protocol or TimingProtocol(), sensor=self, clock=self.clock, rest=self.rest)

    def measure(self, subject: Kernel, protocol: TimingProtocol | None = None) -> Timing:
        return measure(subject, protocol or TimingProtocol(), sensor=self, clock=self.clock, rest=self.rest)


class Kernel:
    """A kernel of ``kernel_us(seconds)`` microseconds, of whose launches only whole turns make a replay."""

    def __init__(
        self, device: Device, kernel_us: Callable[[float], float], turn: int = 1, flags: tuple[str, ...] = ()
    ) -> None:
        self.device = device
        self.kernel_us = kernel_us
        self.turn = turn
        self.flags = flags
        self.prepared: list[int] = []

    def prepare(self, launches: int) -> Queued:
        self.prepared.append(-(-launches // self.turn) * self.turn)
        return Queued(self, self.prepared[-1])


class Queued:
    def __init__(self, kernel: Kernel, launches: int) -> None:
        self.kernel = kernel
        self.launches = launches

    def start(self) -> Callable[[], float]:
        device = self.kernel.device
        idle = not device.queued
        device.queued += 1
        device.deepest = max(device.deepest, device.queued)
        return lambda: self._end(idle)

    def _end(self, idle: bool) -> float:
        device = self.kernel.device
        device.queued -= 1
        # Halfway through, so that what rises in a straight line is met at its mean.
        length = self.launches * self.kernel.kernel_us(device.spent_s) + (device.latency_us if idle else 0.0)
        device.now_s += max(length, 0.0) * 1e-6 if math.isfinite(length) else 0.0
        return length


def measured(kernel_us: Callable[[float], float], protocol: TimingProtocol | None = None, **more: float) -> Timing:
    device = Device(**more)
    return device.measure(device.kernel(kernel_us), protocol)


def test_a_constant_kernel_is_sized_and_clean() -> None:
    device = Device()
    kernel = device.kernel(lambda _: 10.0)
    result = device.measure(kernel)
    assert result.flags == () and result.steady
    assert result.launches * 10.0 >= TimingProtocol().min_replay_us
    assert (result.median_us, result.interval_us) == (10.0, (10.0, 10.0))
    assert result.samples == TimingProtocol().min_samples
    assert kernel.prepared[0] == 1


def test_no_sample_has_the_way_to_an_idle_device_in_it() -> None:
    assert measured(lambda _: 10.0, latency_us=5000.0).interval_us == (10.0, 10.0)


def test_the_sensor_is_read_while_replays_are_queued() -> None:
    device = Device()
    device.measure(device.kernel(lambda _: 10.0))
    assert device.idle_reads == 0
    # A whole window and the replay in front of it.
    assert device.deepest == TimingProtocol().window + 1


def test_a_tiny_kernel_is_sized_although_the_probe_is_mostly_latency() -> None:
    result = measured(lambda _: 1.5)
    assert result.launches * 1.5 >= TimingProtocol().min_replay_us
    assert timing.SHORT_REPLAY not in result.flags


def test_max_launches_bounds_the_replay_and_says_so() -> None:
    result = measured(lambda _: 1.0, TimingProtocol(max_launches=100))
    assert result.launches == 100
    assert timing.SHORT_REPLAY in result.flags


def test_a_drift_is_warmed_away() -> None:
    result = measured(lambda t: 20.0 if t > 0.6 else 40.0 - 20.0 * t / 0.6)
    assert result.steady and result.flags == ()
    assert result.launches * result.median_us >= TimingProtocol().min_replay_us
    assert 20.0 <= result.median_us < 20.2


def test_a_clock_that_still_rises_is_not_steady_although_the_times_agree() -> None:
    def measured_until(top_s: float) -> Device:
        device = Device(sensor=lambda t: Reading(300 + int(6000 * min(t, top_s))))
        assert device.measure(device.kernel(lambda _: 10.0)).flags == ()
        return device

    # Three windows of a rising clock last 40 ms, in which it rises by 240 MHz.
    assert measured_until(0.3).spent_s - measured_until(0.02).spent_s >= 0.15


def test_what_is_never_steady_is_flagged() -> None:
    result = measured(lambda t: 20.0 * 1.5**t, TimingProtocol(warmup_max_s=1.0, steady_relative=0.001))
    assert not result.steady
    assert timing.UNSTEADY in result.flags


def test_warm_up_lasts_its_minimum() -> None:
    device = Device()
    device.measure(device.kernel(lambda _: 10.0), TimingProtocol(warmup_min_s=0.7))
    assert device.spent_s >= 0.7


def test_a_huge_kernel_is_one_launch() -> None:
    device = Device()
    kernel = device.kernel(lambda _: 400_000.0)
    result = device.measure(kernel)
    assert result.launches == 1 and kernel.prepared == [1]
    assert result.steady
    assert 400_000.0 <= result.median_us <= 400_006.0


def test_max_seconds_is_respected_and_leaves_at_least_one_sample() -> None:
    device = Device()
    result = device.measure(device.kernel(lambda _: 3_000_000.0), TimingProtocol(max_seconds=4.0))
    assert result.samples >= 1
    assert device.spent_s <= 4.0 + 2 * 3.1
    assert {timing.OUT_OF_TIME, timing.FEW_SAMPLES, timing.UNSTEADY} <= set(result.flags)
    assert timing.WIDE not in result.flags


def test_a_noisy_kernel_takes_more_samples_and_stops_at_the_limit() -> None:
    noise = random.Random(7)
    result = measured(lambda _: 10.0 * noise.uniform(0.8, 1.2), TimingProtocol(max_samples=60, steady_relative=1.0))
    assert result.samples == 60
    assert timing.WIDE in result.flags
    low, high = result.interval_us
    assert low < result.median_us < high
    assert (high - low) / 2 / result.median_us > TimingProtocol().target_half_width


@pytest.mark.parametrize("length", [0.0, -1.0, math.nan, math.inf])
def test_no_time_is_a_fault(length: float) -> None:
    with pytest.raises(LaunchFault, match="the clock said"):
        measured(lambda _: length, latency_us=0.0)


def test_a_launch_that_stops_happening_is_a_fault() -> None:
    with pytest.raises(LaunchFault, match="the clock said 0 us"):
        measured(lambda t: 10.0 if t < 0.12 else 0.0, latency_us=0.0)


# ---------------------------------------------------------------------------------------------------------------------
# Several kernels in turns.


def falling(seconds: float) -> float:
    """The factor by which a clock that falls makes everything slower: a third in two seconds."""
    return 1.0 + seconds / 6.0


UNHURRIED = TimingProtocol(warmup_max_s=0.2, steady_relative=1.0, max_samples=200)


def test_a_falling_clock_does_not_bias_a_ratio() -> None:
    device = Device()
    slow, quick = device.kernel(lambda t: 10.0 * falling(t)), device.kernel(lambda t: 9.0 * falling(t))
    result = device.compare(slow, quick, protocol=UNHURRIED)
    ratio = result.ratio(1, 0)
    assert ratio.low <= 10 / 9 <= ratio.high
    # Within a round the clock falls by 0.1 %; over the measurement by so much that medians of their own say little.
    assert ratio.high - ratio.low < 0.002
    low, high = result.timings[0].interval_us
    assert high - low > 0.02
    assert not ratio.tie and ratio.low > 1


def test_the_same_kernel_first_and_last_is_a_tie_whatever_the_clock_does() -> None:
    device = Device()
    first, other, last = (device.kernel(lambda t, us=us: us * falling(t)) for us in (10.0, 30.0, 10.0))
    result = device.compare(first, other, last, protocol=UNHURRIED)
    assert result.ratio(0, 2).tie and result.ratio(2, 0).tie
    assert not result.ratio(0, 1).tie
    # Taken one after the other, the clock would have told them apart.
    lone = Device()
    before = lone.measure(lone.kernel(lambda t: 10.0 * falling(t)), UNHURRIED)
    after = lone.measure(lone.kernel(lambda t: 10.0 * falling(t)), UNHURRIED)
    assert before.interval_us[1] < after.interval_us[0]


def test_every_subject_has_as_many_samples_and_every_other_round_goes_backwards() -> None:
    device = Device()
    played: list[str] = []

    def kernel(name: str, us: float) -> Kernel:
        return device.kernel(lambda _: played.append(name) or us)

    result = device.compare(kernel("a", 3000.0), kernel("b", 4000.0), kernel("c", 5000.0))
    assert [t.samples for t in result.timings] == [15] * 3 == [len(s) for s in result.samples]
    # Three batches of five rounds, each with the replay in front of it that is thrown away.
    batches = [played[-48:][n : n + 16] for n in (0, 16, 32)]
    assert "".join(batches[0]) == "a" + "abc" + "cba" + "bca" + "acb" + "cab"
    assert "".join(batches[1]) == "b" + "bac" + "abc" + "cba" + "bca" + "acb"


@pytest.mark.parametrize("count", range(2, 10))
def test_each_subject_follows_each_other_one_equally_often(count: int) -> None:
    rounds = count * (1 + count % 2)
    orders = [round_order(count, place) for place in range(rounds)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    assert all(late == early[::-1] for early, late in zip(orders[::2], orders[1::2], strict=True))
    followers = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert set(followers) == set(itertools.permutations(range(count), 2)) and len(set(followers.values())) == 1
    places = Counter((at, number) for order in orders for at, number in enumerate(order))
    assert set(places.values()) == {rounds // count}


def test_one_subject_alone_has_one_order() -> None:
    assert [round_order(1, place) for place in range(3)] == [[0]] * 3


def test_noise_that_hits_a_round_as_a_whole_leaves_ratios_narrow() -> None:
    device = Device()
    noise = random.Random(3)
    level = [1.0]

    def first(_: float) -> float:
        level[0] = noise.uniform(0.9, 1.1)
        return 2500.0 * level[0]

    result = device.compare(
        device.kernel(first),
        device.kernel(lambda _: 5000.0 * level[0]),
        protocol=dataclasses.replace(UNHURRIED, window=1),
    )
    assert timing.WIDE in result.timings[0].flags
    assert result.ratio(0, 1).median == 2.0


def test_two_noisy_kernels_that_are_the_same_tie_and_two_that_differ_do_not() -> None:
    def ratio(seed: int, us: float) -> timing.Ratio:
        noise = random.Random(seed)
        device = Device()
        subjects = [device.kernel(lambda _, us=us: us * noise.gauss(1.0, 0.01)) for us in (3000.0, us)]
        return device.compare(*subjects, protocol=UNHURRIED).ratio(0, 1)

    assert sum(ratio(seed, 3000.0).tie for seed in range(20)) >= 17
    assert all(not ratio(seed, 3150.0).tie and ratio(seed, 3150.0).low > 1 for seed in range(5))


def test_max_seconds_grows_with_the_subjects() -> None:
    device = Device()
    subjects = [device.kernel(lambda _: 500_000.0) for _ in range(3)]
    result = device.compare(*subjects, protocol=TimingProtocol(max_seconds=5.0, target_half_width=1e-9))
    assert result.timings[0].samples == 15 or timing.OUT_OF_TIME in result.timings[0].flags
    assert 10.0 < device.spent_s <= 15.0 + 2 * 1.5


def test_nothing_to_compare() -> None:
    with pytest.raises(ValueError, match="nothing"):
        compare([], TimingProtocol())


# ---------------------------------------------------------------------------------------------------------------------
# The sensor.


def test_what_the_sensor_says_is_recorded() -> None:
    def sensor(seconds: float) -> Reading:
        capped = frozenset({timing.POWER_CAP}) if seconds > 0.12 else frozenset()
        return Reading(1980 - 15 * int(seconds * 100 % 3), capped, 650.0 + seconds, 61)

    device = Device(sensor=sensor)
    result = device.measure(device.kernel(lambda _: 10.0))
    # The power cap is where large products live: recorded, not repeated, no flag.
    assert (result.flags, result.throttle, device.rests) == ((), (timing.POWER_CAP,), [])
    assert result.clock_range_mhz is not None and result.clock_mhz is not None
    low, high = result.clock_range_mhz
    assert 1950 <= low <= result.clock_mhz <= high <= 1980
    assert result.temperature_c == 61
    assert result.power_w is not None and 650.0 < result.power_w <= 650.0 + device.spent_s


def test_a_device_that_tells_no_power_and_no_temperature() -> None:
    result = measured(lambda _: 10.0)
    assert (result.clock_mhz, result.power_w, result.temperature_c) == (1980.0, None, None)


@pytest.mark.parametrize("reason", sorted(timing.SLOWDOWNS))
def test_a_slowdown_is_repeated_and_forgotten_where_it_does_not_return(reason: str) -> None:
    device = Device(sensor=lambda t: Reading(1980, frozenset({reason}) if t < 0.5 else frozenset()))
    result = device.measure(device.kernel(lambda t: 20.0 if t < 0.5 else 10.0))
    assert device.rests == [1.0]
    assert (result.flags, result.throttle, result.median_us) == ((), (), 10.0)


def test_a_slowdown_that_stays_is_flagged_after_the_repeats() -> None:
    device = Device(sensor=lambda t: Reading(1200, frozenset({timing.HW_THERMAL, timing.POWER_CAP})))
    result = device.measure(device.kernel(lambda _: 20.0))
    assert device.rests == [1.0, 1.0]
    assert result.flags == (timing.SLOWED,)
    assert result.throttle == (timing.HW_THERMAL, timing.POWER_CAP)


def test_a_slowdown_is_not_repeated_where_the_time_is_over() -> None:
    device = Device(sensor=lambda t: Reading(1200, frozenset({timing.SW_THERMAL})))
    result = device.measure(device.kernel(lambda _: 20.0), TimingProtocol(max_seconds=1.0))
    assert device.rests == [] and device.spent_s < 1.0
    assert result.flags == (timing.SLOWED,)


def test_without_a_sensor_the_times_are_flagged() -> None:
    device = Device()
    result = measure(device.kernel(lambda _: 10.0), TimingProtocol(), clock=device.clock)
    assert result.flags == (timing.NO_SENSOR,)
    assert (result.clock_mhz, result.clock_range_mhz, result.throttle) == (None, None, ())


# ---------------------------------------------------------------------------------------------------------------------
# Cold.


MIB = 2**20


@pytest.mark.parametrize(
    ("footprint", "l2", "memory", "launches", "expected"),
    [
        (MIB, 50 * MIB, 10_000 * MIB, 4096, Rotation(200, True)),
        (3 * MIB, 50 * MIB, 10_000 * MIB, 4096, Rotation(67, True)),  # rounded up
        (1000 * MIB, 50 * MIB, 10_000 * MIB, 4096, Rotation(2, True)),  # never the same buffers twice running
        (200 * MIB, 50 * MIB, 10_000 * MIB, 4096, Rotation(2, True)),
        (1000 * MIB, 50 * MIB, 1999 * MIB, 4096, Rotation(1, False)),  # no room for a second one
        (1000 * MIB, 50 * MIB, 0, 4096, Rotation(1, False)),
        (MIB, 50 * MIB, 150 * MIB, 4096, Rotation(150, False)),
        (MIB, 50 * MIB, 10_000 * MIB, 100, Rotation(100, False)),
        (1, 50 * MIB, 10_000 * MIB, 4096, Rotation(4096, False)),
        (0, 50 * MIB, 10_000 * MIB, 4096, Rotation(1, True)),  # no data, none of it in the L2
    ],
)
def test_copies_fill_the_l2_several_times_where_they_can(
    footprint: int, l2: int, memory: int, launches: int, expected: Rotation
) -> None:
    found = timing.rotation(footprint, l2, memory, launches)
    assert found == expected
    assert not found.cold or not footprint or found.copies * footprint >= timing.COLD_FACTOR * l2


def test_a_replay_holds_whole_turns() -> None:
    device = Device()
    kernel = device.kernel(lambda _: 10.0, turn=67)
    result = device.measure(kernel, TimingProtocol(mode="cold"))
    assert result.launches % 67 == 0 and result.launches * 10.0 >= 2000.0
    assert (result.mode, result.flags, result.median_us) == ("cold", (), 10.0)


def test_a_place_that_cannot_be_cold_says_so() -> None:
    device = Device()
    result = device.measure(device.kernel(lambda _: 10.0, flags=(timing.PARTLY_COLD,)), TimingProtocol(mode="cold"))
    assert result.flags == (timing.PARTLY_COLD,)


# ---------------------------------------------------------------------------------------------------------------------
# The floor.


def test_the_floor_is_of_the_slower_of_the_two_ways() -> None:
    peaks = {"operations_per_s": 1e15, "l2_bytes_per_s": 5e12, "dram_bytes_per_s": 1e12}

    def floor(mode: timing.Mode, operations: float, moved: float) -> float:
        return timing.floor_us(mode, operations=operations, moved_bytes=moved, **peaks) * timing.FLOOR_MARGIN

    assert floor("warm", 2e9, 0.0) == floor("cold", 2e9, 0.0) == 2.0
    assert (floor("warm", 2e9, 2e7), floor("cold", 2e9, 2e7)) == (4.0, 20.0)
    assert floor("cold", 2e9, 1.0) == 2.0


def test_what_is_not_known_sets_no_floor() -> None:
    assert timing.floor_us("warm", operations=1e12, moved_bytes=1e9) == 0.0
    assert timing.floor_us("warm", operations=1e12, moved_bytes=1e9, dram_bytes_per_s=1e12) == 0.0


# ---------------------------------------------------------------------------------------------------------------------
# Statistics and text.


@pytest.mark.parametrize(("count", "rank"), [(5, 0), (6, 1), (8, 1), (9, 2), (15, 4), (20, 6), (100, 40)])
def test_ranks_are_those_of_the_sign_test(count: int, rank: int) -> None:
    values = [float(v) for v in range(1, count + 1)]
    low, high = median_interval(values)
    assert (low, high) == ((1.0, float(count)) if not rank else (float(rank), float(count + 1 - rank)))


def test_the_interval_covers_the_median_of_a_skewed_distribution() -> None:
    draw = random.Random(11)
    true_median = math.log(2)
    hits = 0
    for _ in range(1000):
        low, high = median_interval([draw.expovariate(1.0) for _ in range(25)])
        hits += low <= true_median <= high
    assert hits >= 930


SENSED = Timing(
    12.5, (12.4, 12.75), 15, 160, "cold", "integers", False, (timing.UNSTEADY,), 1965.0, (1950, 1980), 701.5, 64,
    (timing.POWER_CAP,), 1.25,
)  # fmt: skip


@pytest.mark.parametrize("result", [SENSED, Timing(12.5, (12.4, 12.75), 15, 160)])
def test_json_round_trip(result: Timing) -> None:
    assert Timing.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_timings_from_before_the_sensors_are_read() -> None:
    # Those of shapes hold rows of benches, not candidates.
    studies = [path for path in sorted(RECORDS.glob("*.jsonl")) if not path.name.startswith("shapes_")]
    lines = [line for path in studies for line in path.read_text().splitlines()]
    timings = [Record.from_json(json.loads(line)).timing for line in lines]
    assert sum(timing is not None for timing in timings) > 50
    old = {
        key: SENSED.to_json()[key] for key in "median_us interval_us samples launches mode data steady flags".split()
    }
    assert Timing.from_json(old) == dataclasses.replace(
        SENSED, clock_mhz=None, clock_range_mhz=None, power_w=None, temperature_c=None, throttle=(), empty_us=None
    )


@pytest.mark.parametrize(
    "document", [{}, {"median_us": 1.0}, {"interval_us": 3}, {**SENSED.to_json(), "clock_range_mhz": 7}]
)
def test_json_that_is_no_timing(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no timing"):
        Timing.from_json(document)


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "tepid"},
        {"data": "zeros"},
        {"warmup_max_s": 0.0},
        {"window": 0},
        {"steady_windows": 1},
        {"max_samples": 3},
        {"max_seconds": 0.0},
        {"steady_clock_relative": 0.0},
        {"repeats": -1},
        {"rest_s": -0.5},
    ],
)
def test_a_protocol_that_cannot_be(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        TimingProtocol(**change)  # type: ignore[arg-type]


def test_a_ratio_of_times_becomes_one_of_rates_by_the_work_of_a_launch() -> None:
    ratio = timing.Ratio(2.0, 1.5, 2.5).scaled(0.5)
    assert (ratio.median, ratio.low, ratio.high) == (1.0, 0.75, 1.25) and ratio.tie
