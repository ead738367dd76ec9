"""The measuring protocol and its statistics. Knows launches and clocks, no GEMM and no CUDA.

A place with a clock supplies :class:`Replays`: it packs a number of launches into one replay and says how long that
replay took. :func:`measure` decides how many launches, how long to warm up, and when enough has been seen.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast, get_args

from wmmagen.errors import LaunchFault

Mode = Literal["warm"]
Data = Literal["normal", "integers"]
Replay = Callable[[], float]
Clock = Callable[[], float]

#: The warm-up ended at its limit, before the windows agreed.
UNSTEADY = "unsteady"
#: The interval is still wider than the protocol asks for.
WIDE = "wide"
#: One replay is shorter than the protocol asks for, so the gap between replays weighs more than it should.
SHORT_REPLAY = "short-replay"
#: Fewer samples than a 95 % interval needs: the interval is the whole range, and covers less.
FEW_SAMPLES = "few-samples"
#: ``max_seconds`` ended the measurement.
OUT_OF_TIME = "out-of-time"

#: A first replay of one launch is mostly launch latency; each further look is nearer to the kernel itself.
_SIZING_ROUNDS = 4
#: Replays vary: one sized to the limit exactly would be too short every other time.
_SIZING_HEADROOM = 1.2
#: Looking at the interval after every sample would stop at the lucky moments; it is looked at when this much grew.
_LOOK_GROWTH = 1.25


class Replays(Protocol):
    """A kernel that can be replayed."""

    def prepare(self, launches: int) -> Replay:
        """Pack ``launches`` launches into one replay.

        Preparing again ends the life of the replay prepared before.

        Returns:
            A function that replays them once and returns how long that took, in microseconds.
        """


@dataclass(frozen=True)
class TimingProtocol:
    """How a kernel is timed.

    Attributes:
        mode: ``warm``, every launch on the same buffers.
        data: what the buffers hold; carried into the :class:`Timing`, for the backend cannot know it.
        warmup_min_s: seconds of warm-up at least: a clock that has not begun to rise looks steady too.
        warmup_max_s: seconds of warm-up at most.
        window: replays per window of the warm-up; fewer where one replay is so long that the windows would not fit.
        steady_windows: successive windows whose medians have to agree.
        steady_relative: their largest spread, relative to the smallest of them.
        min_replay_us: microseconds of one replay at least, so that it is far longer than the gap before it.
        max_launches: launches of one replay at most.
        min_samples: samples at least, unless ``max_seconds`` ends the measurement.
        max_samples: samples at most.
        target_half_width: half the width of the interval relative to the median, at which sampling stops.
        max_seconds: of the whole measurement, warm-up included. It is looked at between replays.
    """

    mode: Mode = "warm"
    data: Data = "normal"
    warmup_min_s: float = 0.1
    warmup_max_s: float = 2.0
    window: int = 5
    steady_windows: int = 3
    steady_relative: float = 0.01
    min_replay_us: float = 2000.0
    max_launches: int = 4096
    min_samples: int = 15
    max_samples: int = 400
    target_half_width: float = 0.005
    max_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode) or self.data not in get_args(Data):
            allowed = f"{get_args(Mode)} and {get_args(Data)}"
            raise ValueError(f"mode {self.mode!r} and data {self.data!r} must be of {allowed}")
        if not 0 <= self.warmup_min_s <= self.warmup_max_s:
            raise ValueError(f"the warm-up must last from {self.warmup_min_s} s at least to no less at most")
        if min(self.window, self.max_launches, self.min_samples) < 1 or self.steady_windows < 2:
            raise ValueError("windows, launches and samples are counted from 1, windows to compare from 2")
        if self.max_samples < self.min_samples:
            raise ValueError(f"at most {self.max_samples} samples are fewer than at least {self.min_samples}")
        if min(self.steady_relative, self.min_replay_us, self.target_half_width, self.max_seconds) <= 0:
            raise ValueError("spreads, widths and limits must be positive")


@dataclass(frozen=True)
class Timing:
    """What was measured.

    Attributes:
        median_us: microseconds of one launch, the median of the samples.
        interval_us: 95 % confidence interval of that median, free of any assumption on the distribution.
        samples: replays that were sampled.
        launches: launches per replay.
        mode: see :class:`TimingProtocol`.
        data: see :class:`TimingProtocol`.
        steady: whether the warm-up became steady.
        flags: what the protocol asked for and did not get; empty for a clean measurement.
    """

    median_us: float
    interval_us: tuple[float, float]
    samples: int
    launches: int
    mode: Mode = "warm"
    data: Data = "normal"
    steady: bool = True
    flags: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """As plain JSON values; :meth:`from_json` reads it back."""
        fields: dict[str, object] = dataclasses.asdict(self)
        return fields | {"interval_us": list(self.interval_us), "flags": list(self.flags)}

    @classmethod
    def from_json(cls, document: Mapping[str, object]) -> Timing:
        """The timing that :meth:`to_json` wrote.

        Raises:
            ValueError: a field is missing or is not what it should be.
        """
        try:
            low, high = (float(x) for x in cast(Sequence[float], document["interval_us"]))
            timing = cls(
                median_us=float(cast(float, document["median_us"])),
                interval_us=(low, high),
                samples=int(cast(int, document["samples"])),
                launches=int(cast(int, document["launches"])),
                mode=cast(Mode, document["mode"]),
                data=cast(Data, document["data"]),
                steady=bool(document["steady"]),
                flags=tuple(str(x) for x in cast(Sequence[str], document["flags"])),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no timing: {error}") from error
        if not timing.possible:
            raise ValueError(f"this is no timing: {timing.median_us} us in {timing.interval_us}")
        return timing

    @property
    def possible(self) -> bool:
        """Whether the times are numbers, positive and in order."""
        low, high = self.interval_us
        return 0 < low <= self.median_us <= high < math.inf


def measure(replays: Replays, protocol: TimingProtocol, *, clock: Clock = time.monotonic) -> Timing:
    """Time a kernel: size the replay, warm up until it is steady, sample until the interval is narrow.

    Args:
        replays: the kernel.
        protocol: how to time it.
        clock: seconds, from any origin; it bounds the measurement, it measures nothing.

    Raises:
        LaunchFault: a replay took no time, or a time that is no number.
    """
    deadline = clock() + protocol.max_seconds
    sized = _size(replays, protocol)
    steady, replay_us = _warm_up(sized, protocol, clock, deadline)
    sized = _lengthen(_Sized(sized.replay, sized.launches, replay_us), replays, protocol)
    samples = _sample(sized.replay, protocol, clock, deadline)
    return _summary(samples, sized.launches, steady, clock() >= deadline, protocol)


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, by order statistics.

    Of ``n`` samples, the number below the true median is binomial with 1/2, whatever the distribution. The interval
    runs from the k-th smallest to the k-th largest sample, ``k`` as large as leaves 2.5 % on either side. Fewer than
    six samples leave no such ``k``; then it is their whole range.
    """
    ordered = sorted(samples)
    rank = max(1, _rank(len(ordered)))
    return ordered[rank - 1], ordered[-rank]


@functools.lru_cache(maxsize=1024)
def _rank(count: int) -> int:
    """The largest ``k`` with P(Bin(count, 1/2) < k) <= 1/40; 0 where there is none."""
    total = 2**count
    below = 0
    for k in range(count):
        below += math.comb(count, k)
        if 40 * below > total:
            return k
    return 0


def _take(replay: Replay) -> float:
    microseconds = replay()
    if not math.isfinite(microseconds) or microseconds <= 0:
        raise LaunchFault(
            f"the clock said {microseconds:g} us for a replay; a launch that did not happen is never a time",
            "see whether the launch is refused without an error, and whether the device is healthy",
        )
    return microseconds


@dataclass(frozen=True)
class _Sized:
    """A replay, its launches, and how long it took when last seen, in microseconds."""

    replay: Replay
    launches: int
    replay_us: float


def _size(replays: Replays, protocol: TimingProtocol) -> _Sized:
    """A replay that is long enough, as far as a cold device can tell."""
    replay = replays.prepare(1)
    sized = _Sized(replay, 1, _take(replay))
    for _ in range(_SIZING_ROUNDS):
        longer = _lengthen(sized, replays, protocol)
        if longer is sized:
            break
        sized = longer
    return sized


def _lengthen(sized: _Sized, replays: Replays, protocol: TimingProtocol) -> _Sized:
    """More launches, where the replay is too short; the same replay where it is not, or cannot be longer."""
    if sized.replay_us >= protocol.min_replay_us:
        return sized
    wanted = math.ceil(_SIZING_HEADROOM * protocol.min_replay_us * sized.launches / sized.replay_us)
    launches = min(wanted, protocol.max_launches)
    if launches <= sized.launches:
        return sized
    replay = replays.prepare(launches)
    return _Sized(replay, launches, _take(replay))


def _warm_up(sized: _Sized, protocol: TimingProtocol, clock: Clock, deadline: float) -> tuple[bool, float]:
    """Replay until successive windows agree.

    Returns:
        Whether they did before the limit, and the length of the last replays in microseconds.
    """
    start = clock()
    limit = min(start + protocol.warmup_max_s, deadline)
    fitting = int(protocol.warmup_max_s * 1e6 / (2 * protocol.steady_windows * sized.replay_us))
    window = max(1, min(protocol.window, fitting))
    medians: list[float] = []
    samples: list[float] = []
    while clock() < limit:
        samples.append(_take(sized.replay))
        if len(samples) < window:
            continue
        medians.append(statistics.median(samples))
        samples.clear()
        if clock() - start >= protocol.warmup_min_s and _agree(medians, protocol):
            return True, medians[-1]
    return False, medians[-1] if medians else sized.replay_us


def _agree(medians: Sequence[float], protocol: TimingProtocol) -> bool:
    last = medians[-protocol.steady_windows :]
    return len(last) == protocol.steady_windows and max(last) - min(last) <= protocol.steady_relative * min(last)


def _sample(replay: Replay, protocol: TimingProtocol, clock: Clock, deadline: float) -> list[float]:
    """At least one sample; more until the interval is narrow or a limit is reached."""
    samples = [_take(replay)]
    look = protocol.min_samples
    while clock() < deadline and len(samples) < protocol.max_samples:
        if len(samples) >= look:
            if _half_width(samples) <= protocol.target_half_width:
                break
            look = math.ceil(len(samples) * _LOOK_GROWTH)
        samples.append(_take(replay))
    return samples


def _half_width(samples: Sequence[float]) -> float:
    if not _rank(len(samples)):
        return math.inf
    low, high = median_interval(samples)
    return (high - low) / 2 / statistics.median(samples)


def _summary(
    samples: Sequence[float], launches: int, steady: bool, out_of_time: bool, protocol: TimingProtocol
) -> Timing:
    median = statistics.median(samples)
    low, high = median_interval(samples)
    few = not _rank(len(samples))
    flags = {
        UNSTEADY: not steady,
        WIDE: not few and _half_width(samples) > protocol.target_half_width,
        SHORT_REPLAY: median < protocol.min_replay_us,
        FEW_SAMPLES: few,
        OUT_OF_TIME: out_of_time,
    }
    return Timing(
        median_us=median / launches,
        interval_us=(low / launches, high / launches),
        samples=len(samples),
        launches=launches,
        mode=protocol.mode,
        data=protocol.data,
        steady=steady,
        flags=tuple(flag for flag, holds in flags.items() if holds),
    )
