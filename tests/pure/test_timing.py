"""The measuring protocol on a clock that the test drives."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable

import pytest

from wmmagen import timing
from wmmagen.errors import LaunchFault
from wmmagen.timing import Timing, TimingProtocol, measure, median_interval


class Device:
    """A kernel of ``kernel_us(seconds)`` microseconds, with a launch latency before each replay."""

    def __init__(self, kernel_us: Callable[[float], float], latency_us: float = 6.0) -> None:
        self.kernel_us = kernel_us
        self.latency_us = latency_us
        self.now_s = 100.0
        self.start_s = self.now_s
        self.prepared: list[int] = []

    def clock(self) -> float:
        return self.now_s

    @property
    def spent_s(self) -> float:
        return self.now_s - self.start_s

    def prepare(self, launches: int) -> Callable[[], float]:
        self.prepared.append(launches)

        def replay() -> float:
            length = self.latency_us + launches * self.kernel_us(self.spent_s)
            self.now_s += max(length, 0.0) * 1e-6 if math.isfinite(length) else 0.0
            return length

        return replay

    def measure(self, protocol: TimingProtocol | None = None) -> Timing:
        return measure(self, protocol or TimingProtocol(), clock=self.clock)


def test_a_constant_kernel_is_sized_and_clean() -> None:
    device = Device(lambda _: 10.0)
    result = device.measure()
    assert result.flags == () and result.steady
    assert result.launches * 10.0 >= TimingProtocol().min_replay_us
    # The launch gap, spread over the launches of a replay, is all that is added.
    assert 10.0 < result.median_us < 10.05
    assert result.interval_us == (result.median_us, result.median_us)
    assert result.samples == TimingProtocol().min_samples
    assert device.prepared[0] == 1


def test_a_tiny_kernel_is_sized_although_the_probe_is_mostly_latency() -> None:
    result = Device(lambda _: 1.5).measure()
    assert result.launches * 1.5 >= TimingProtocol().min_replay_us
    assert timing.SHORT_REPLAY not in result.flags


def test_max_launches_bounds_the_replay_and_says_so() -> None:
    result = Device(lambda _: 1.0).measure(TimingProtocol(max_launches=100))
    assert result.launches == 100
    assert timing.SHORT_REPLAY in result.flags


def test_a_drift_is_warmed_away() -> None:
    device = Device(lambda t: 20.0 if t > 0.6 else 40.0 - 20.0 * t / 0.6)
    result = device.measure()
    assert result.steady and result.flags == ()
    assert result.launches * result.median_us >= TimingProtocol().min_replay_us
    assert 20.0 < result.median_us < 20.2


def test_what_is_never_steady_is_flagged() -> None:
    device = Device(lambda t: 20.0 * 1.5**t)
    result = device.measure(TimingProtocol(warmup_max_s=1.0, steady_relative=0.001))
    assert not result.steady
    assert timing.UNSTEADY in result.flags


def test_warm_up_lasts_its_minimum() -> None:
    device = Device(lambda _: 10.0)
    device.measure(TimingProtocol(warmup_min_s=0.7))
    assert device.spent_s >= 0.7


def test_a_huge_kernel_is_one_launch() -> None:
    device = Device(lambda _: 400_000.0)
    result = device.measure()
    assert result.launches == 1 and device.prepared == [1]
    assert result.steady
    assert result.median_us == 400_006.0


def test_max_seconds_is_respected_and_leaves_at_least_one_sample() -> None:
    device = Device(lambda _: 3_000_000.0)
    result = device.measure(TimingProtocol(max_seconds=4.0))
    assert result.samples >= 1
    assert device.spent_s <= 4.0 + 2 * 3.1
    assert {timing.OUT_OF_TIME, timing.FEW_SAMPLES, timing.UNSTEADY} <= set(result.flags)
    assert timing.WIDE not in result.flags


def test_a_noisy_kernel_takes_more_samples_and_stops_at_the_limit() -> None:
    noise = random.Random(7)
    device = Device(lambda _: 10.0 * noise.uniform(0.8, 1.2))
    result = device.measure(TimingProtocol(max_samples=60, steady_relative=1.0))
    assert result.samples == 60
    assert timing.WIDE in result.flags
    low, high = result.interval_us
    assert low < result.median_us < high
    low, high = result.interval_us
    assert (high - low) / 2 / result.median_us > TimingProtocol().target_half_width


@pytest.mark.parametrize("length", [0.0, -1.0, math.nan, math.inf])
def test_no_time_is_a_fault(length: float) -> None:
    device = Device(lambda _: length, latency_us=0.0)
    with pytest.raises(LaunchFault, match="the clock said"):
        device.measure()


def test_a_launch_that_stops_happening_is_a_fault() -> None:
    device = Device(lambda t: 10.0 if t < 0.12 else 0.0, latency_us=0.0)
    with pytest.raises(LaunchFault, match="the clock said 0 us"):
        device.measure()


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


def test_json_round_trip() -> None:
    result = Timing(12.5, (12.4, 12.75), 15, 160, "warm", "integers", False, (timing.UNSTEADY,))
    assert Timing.from_json(json.loads(json.dumps(result.to_json()))) == result


@pytest.mark.parametrize("document", [{}, {"median_us": 1.0}, {"interval_us": 3}])
def test_json_that_is_no_timing(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no timing"):
        Timing.from_json(document)


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "cold"},
        {"data": "zeros"},
        {"warmup_max_s": 0.0},
        {"window": 0},
        {"steady_windows": 1},
        {"max_samples": 3},
        {"max_seconds": 0.0},
    ],
)
def test_a_protocol_that_cannot_be(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        TimingProtocol(**change)  # type: ignore[arg-type]
