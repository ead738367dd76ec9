"""The measuring protocol and its statistics. Knows launches, bytes and clocks, no GEMM and no CUDA.

A place with a clock supplies :class:`Replays`: it packs a number of launches into one replay, queues replays, and says
how long each took. :func:`measure` times one of them, :func:`compare` several at a time, in turns. They decide how many
launches, how long to warm up, when enough has been seen, and what may be claimed.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, get_args

from wmmagen.errors import LaunchFault

Mode = Literal["warm", "cold"]
Data = Literal["normal", "integers"]
Clock = Callable[[], float]
Rest = Callable[[float], None]

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
#: Heat or the hardware slowed the device while it was sampled, and repeating did not help.
SLOWED = "slowed"
#: Nothing here tells clock and throttle reasons, so neither was watched.
NO_SENSOR = "no-sensor"
#: ``cold`` was asked for, but the copies of the buffers together are not large enough to leave nothing in the L2.
PARTLY_COLD = "partly-cold"

#: Reasons for which a device lowers its clock, in the words of the records.
POWER_CAP = "power-cap"
HW_SLOWDOWN = "hw-slowdown"
HW_THERMAL = "hw-thermal"
HW_POWER_BRAKE = "hw-power-brake"
SW_THERMAL = "sw-thermal"
#: Those after which a measurement is repeated. The power cap is none of them: large products live at it.
SLOWDOWNS = frozenset({HW_SLOWDOWN, HW_THERMAL, HW_POWER_BRAKE, SW_THERMAL})

#: The copies that a cold replay rotates over hold this many times the L2. A cache that evicts at random still finds a
#: share h = exp(-f·(1 - h)) of what was last used f times its size ago: 2 % for f = 4, 6 % for 3, 20 % for 2.
COLD_FACTOR = 4
#: Below this time of a launch, in microseconds, that of an empty kernel belongs beside it.
SHORT_LAUNCH_US = 10.0
#: A floor is a fault only with certainty: clocks are read now and then, and a published bandwidth is rounded.
FLOOR_MARGIN = 1.05

#: A first replay of one launch is mostly launch latency; each further look is nearer to the kernel itself.
_SIZING_ROUNDS = 4
#: Replays vary: one sized to the limit exactly would be too short every other time.
_SIZING_HEADROOM = 1.2
#: Looking at the interval after every sample would stop at the lucky moments; it is looked at when this much grew.
_LOOK_GROWTH = 1.25
#: The host's way to an idle device, tens of microseconds, is below 0.1 % of a replay as long as this.
_UNPRIMED_US = 100_000.0


class Replay(Protocol):
    """Launches that are queued together."""

    @property
    def launches(self) -> int:
        """How many launches it holds."""

    def start(self) -> Callable[[], float]:
        """Queue it once, behind everything that was queued before.

        Returns:
            A function that waits for its end and returns how long it took, in microseconds, from the end of what was
            queued before it, or, on an idle device, from the moment at which the host queued it.
        """


class Replays(Protocol):
    """A kernel that can be replayed."""

    @property
    def flags(self) -> tuple[str, ...]:
        """What the protocol asks for and this place cannot give."""

    def prepare(self, launches: int) -> Replay:
        """Pack ``launches`` launches into one replay; a few more where only whole turns of a rotation are fair.

        Preparing again ends the life of the replay prepared before, of this kernel and of no other.
        """


@dataclass(frozen=True)
class Reading:
    """What the sensors of a device said at one moment.

    Attributes:
        clock_mhz: of its multiprocessors.
        throttle: why the clock is not higher; reasons that need no repeat among them.
        power_w: drawn by the device; None where it does not tell.
        temperature_c: of the chip, in degrees Celsius; None where it does not tell.
    """

    clock_mhz: int
    throttle: frozenset[str] = frozenset()
    power_w: float | None = None
    temperature_c: int | None = None


class Sensor(Protocol):
    """The sensors of the device that the replays run on."""

    def read(self) -> Reading:
        """What they say now. May take milliseconds; it is asked while replays are queued."""


@dataclass(frozen=True)
class TimingProtocol:
    """How a kernel is timed.

    Attributes:
        mode: ``warm``, every launch on the same buffers; ``cold``, each on buffers that are no longer in the L2.
        data: what the buffers hold; carried into the :class:`Timing`, for the backend cannot know it.
        warmup_min_s: seconds of warm-up at least: a clock that has not begun to rise looks steady too.
        warmup_max_s: seconds of warm-up at most, for each of the kernels that are timed together.
        window: replays per window of the warm-up; fewer where one replay is so long that the windows would not fit.
        steady_windows: successive windows whose medians have to agree.
        steady_relative: their largest spread, relative to the smallest of them.
        steady_clock_relative: the same of the clock readings of those windows. Wider, because a clock at the power cap
            moves by several steps while the medians stand still.
        min_replay_us: microseconds of one replay at least, so that it is far longer than the gap before it.
        max_launches: launches of one replay at most.
        min_samples: samples at least, unless ``max_seconds`` ends the measurement.
        max_samples: samples at most.
        target_half_width: half the width of an interval relative to its median, at which sampling stops.
        max_seconds: of the whole measurement, warm-up and repeats included, for each of the kernels that are timed
            together. It is looked at between batches of replays.
        repeats: how often a measurement is repeated during which heat or the hardware slowed the device.
        rest_s: seconds of rest before such a repeat.
    """

    mode: Mode = "warm"
    data: Data = "normal"
    warmup_min_s: float = 0.1
    warmup_max_s: float = 2.0
    window: int = 5
    steady_windows: int = 3
    steady_relative: float = 0.01
    steady_clock_relative: float = 0.05
    min_replay_us: float = 2000.0
    max_launches: int = 4096
    min_samples: int = 15
    max_samples: int = 400
    target_half_width: float = 0.005
    max_seconds: float = 10.0
    repeats: int = 2
    rest_s: float = 1.0

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
        spreads = self.steady_relative, self.steady_clock_relative, self.target_half_width
        if min(*spreads, self.min_replay_us, self.max_seconds) <= 0:
            raise ValueError("spreads, widths and limits must be positive")
        if min(self.repeats, self.rest_s) < 0:
            raise ValueError("repeats and their rest cannot be negative")


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
        clock_mhz: median of the clock of the multiprocessors while it was sampled; None without a sensor.
        clock_range_mhz: the lowest and the highest reading of it.
        power_w: the highest reading, in watts.
        temperature_c: the highest reading, in degrees Celsius.
        throttle: every reason for a lowered clock that was seen, sorted.
        empty_us: microseconds of a launch of an empty kernel by the same protocol, where one of this kernel is so short
            that it matters.
    """

    median_us: float
    interval_us: tuple[float, float]
    samples: int
    launches: int
    mode: Mode = "warm"
    data: Data = "normal"
    steady: bool = True
    flags: tuple[str, ...] = ()
    clock_mhz: float | None = None
    clock_range_mhz: tuple[int, int] | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle: tuple[str, ...] = ()
    empty_us: float | None = None

    def to_json(self) -> dict[str, object]:
        """As plain JSON values; :meth:`from_json` reads it back."""
        fields: dict[str, object] = dataclasses.asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}

    @classmethod
    def from_json(cls, document: Mapping[str, object]) -> Timing:
        """The timing that :meth:`to_json` wrote, also where it knew no sensors yet.

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
                flags=_words(document["flags"]),
                **_sensed(document),
            )
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"this is no timing: {error}") from error
        if not timing.possible:
            raise ValueError(f"this is no timing: {timing.median_us} us in {timing.interval_us}")
        return timing

    @property
    def possible(self) -> bool:
        """Whether the times are numbers, positive and in order."""
        low, high = self.interval_us
        return 0 < low <= self.median_us <= high < math.inf


def _words(values: object) -> tuple[str, ...]:
    return tuple(str(x) for x in cast(Sequence[str], values))


def _sensed(document: Mapping[str, object]) -> dict[str, Any]:
    """The fields that timings did not always have."""

    def number(key: str, kind: type) -> Any:
        value = document.get(key)
        return None if value is None else kind(value)

    ends = cast(Sequence[int] | None, document.get("clock_range_mhz"))
    return {
        "clock_mhz": number("clock_mhz", float),
        "clock_range_mhz": None if ends is None else (int(ends[0]), int(ends[1])),
        "power_w": number("power_w", float),
        "temperature_c": number("temperature_c", int),
        "throttle": _words(document.get("throttle", ())),
        "empty_us": number("empty_us", float),
    }


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as a baseline something is, from pairs of samples that were taken side by side.

    Attributes:
        median: of the baseline's time over its own, over the pairs.
        low, high: the 95 % confidence interval of that median; ``low`` is what may be claimed.
    """

    median: float
    low: float
    high: float

    @property
    def tie(self) -> bool:
        """Whether the interval leaves open which of the two is faster."""
        return self.low <= 1.0 <= self.high

    def scaled(self, factor: float) -> Ratio:
        """The same of rates, where a launch of the one does ``factor`` times the work of a launch of the baseline."""
        return Ratio(self.median * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Comparison:
    """Kernels that were timed in turns.

    Attributes:
        timings: of each of them.
        samples: of each of them, microseconds of one launch; those of the same place were taken in the same round.
    """

    timings: tuple[Timing, ...]
    samples: tuple[tuple[float, ...], ...]

    def ratio(self, subject: int, baseline: int) -> Ratio:
        """How many times as fast as number ``baseline`` number ``subject`` is: the one's time over the other's.

        The clock moves from run to run, and by more than what tells two good kernels apart. Within a round it hardly
        does, so the quotients of rounds say what the quotient of two medians cannot.
        """
        quotients = [b / s for s, b in zip(self.samples[subject], self.samples[baseline], strict=True)]
        low, high = median_interval(quotients)
        return Ratio(statistics.median(quotients), low, high)


def measure(
    replays: Replays,
    protocol: TimingProtocol,
    *,
    sensor: Sensor | None = None,
    clock: Clock = time.monotonic,
    rest: Rest = time.sleep,
) -> Timing:
    """Time a kernel: size the replay, warm up until it is steady, sample until the interval is narrow.

    Args:
        replays: the kernel.
        protocol: how to time it.
        sensor: of the device that it runs on; None where there is none, which is flagged.
        clock: seconds, from any origin; it bounds the measurement, it measures nothing.
        rest: waits for so many seconds.

    Raises:
        LaunchFault: a replay took no time, or a time that is no number.
    """
    return compare([replays], protocol, sensor=sensor, clock=clock, rest=rest).timings[0]


def compare(
    subjects: Sequence[Replays],
    protocol: TimingProtocol,
    *,
    sensor: Sensor | None = None,
    clock: Clock = time.monotonic,
    rest: Rest = time.sleep,
) -> Comparison:
    """Time kernels in turns, so that whatever the device does to one it does to all.

    A round replays each of them once, in the order of :func:`round_order`: what rises or falls with time cancels, and
    so does what a kernel leaves behind for the next one. All have the same number of samples.

    Args:
        subjects: the kernels, at least one; the other arguments are those of :func:`measure`.

    Raises:
        LaunchFault: a replay took no time, or a time that is no number.
    """
    if not subjects:
        raise ValueError("there is nothing to compare")
    return _Session(subjects, protocol, sensor, clock, rest).comparison()


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


@dataclass(frozen=True)
class Rotation:
    """How a cold replay rotates.

    Attributes:
        copies: of the buffers; launch number i of a replay works on copy i modulo ``copies``.
        cold: whether a launch finds nothing of its copy in the L2.
    """

    copies: int
    cold: bool


def rotation(footprint_bytes: int, l2_bytes: int, memory_bytes: int, max_launches: int) -> Rotation:
    """As many copies of the buffers as together hold :data:`COLD_FACTOR` times the L2, and at least two.

    Args:
        footprint_bytes: of one copy, what is read and what is written. Guard bands count with the rest; the factor has
            room for them.
        l2_bytes: size of the L2.
        memory_bytes: what all copies together may take.
        max_launches: every copy is used once in a replay, so there are no more copies than launches.
    """
    if not footprint_bytes:
        return Rotation(1, True)
    wanted = max(2, -(-COLD_FACTOR * l2_bytes // footprint_bytes))
    copies = max(1, min(wanted, memory_bytes // footprint_bytes, max_launches))
    return Rotation(copies, copies == wanted)


def floor_us(
    mode: Mode,
    *,
    operations: float,
    moved_bytes: float,
    operations_per_s: float | None = None,
    l2_bytes_per_s: float | None = None,
    dram_bytes_per_s: float | None = None,
) -> float:
    """Microseconds below which no launch can be, whatever runs it.

    Args:
        mode: warm data come through the L2 at best, cold ones from DRAM.
        operations: of one launch.
        moved_bytes: that it has to read and to write, each once. What it writes counts in cold mode, too: with every
            copy larger than its share of the L2, a launch's worth of lines is written back per launch.
        operations_per_s: of the unit that does them, at its peak; None where it is not known, like the other two.
        l2_bytes_per_s: of the L2.
        dram_bytes_per_s: of the memory.
    """
    bandwidth = l2_bytes_per_s if mode == "warm" else dram_bytes_per_s
    seconds = [0.0]
    if operations_per_s is not None:
        seconds.append(operations / operations_per_s)
    if bandwidth is not None:
        seconds.append(moved_bytes / bandwidth)
    return max(seconds) * 1e6 / FLOOR_MARGIN


def _checked(microseconds: float) -> float:
    if not math.isfinite(microseconds) or microseconds <= 0:
        raise LaunchFault(
            f"the clock said {microseconds:g} us for a replay; a launch that did not happen is never a time",
            "see whether the launch is refused without an error, and whether the device is healthy",
        )
    return microseconds


@dataclass(frozen=True)
class _Sized:
    """A replay and how long it took when last seen, in microseconds."""

    replay: Replay
    replay_us: float


def _size(replays: Replays, protocol: TimingProtocol) -> _Sized:
    """A replay that is long enough, as far as a cold device can tell."""
    sized = _first_look(replays.prepare(1))
    for _ in range(_SIZING_ROUNDS):
        longer = _lengthen(sized, replays, protocol)
        if longer is sized:
            break
        sized = longer
    return sized


def _first_look(replay: Replay) -> _Sized:
    return _Sized(replay, _checked(replay.start()()))


def _lengthen(sized: _Sized, replays: Replays, protocol: TimingProtocol) -> _Sized:
    """More launches, where the replay is too short; the same replay where it is not, or cannot be longer."""
    if sized.replay_us >= protocol.min_replay_us:
        return sized
    now = sized.replay.launches
    wanted = math.ceil(_SIZING_HEADROOM * protocol.min_replay_us * now / sized.replay_us)
    launches = min(wanted, protocol.max_launches)
    return sized if launches <= now else _first_look(replays.prepare(launches))


#: Microseconds of replays: of each subject those of one batch or of all of them, in the order of the rounds.
_Series = list[list[float]]


@dataclass
class _Attempt:
    """One warm-up and the samples that followed it; ``seconds`` in all."""

    steady: bool
    samples: _Series
    readings: list[Reading]
    seconds: float

    @property
    def slowed(self) -> bool:
        return any(reading.throttle & SLOWDOWNS for reading in self.readings)


def round_order(count: int, place: int) -> list[int]:
    """In which order round number ``place`` replays ``count`` subjects: Williams' design, each row and its reverse.

    Every other round is the one before it backwards, and within ``count`` rounds (twice as many where it is odd) each
    subject follows each other one equally often: at the power cap a replay's clock depends on what ran before it.

    Source: E. J. Williams, Experimental designs balanced for the estimation of residual effects of treatments, 1949.
    """
    zigzag = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(count)]
    row = [(step + place // 2) % count for step in zigzag]
    return row[::-1] if place % 2 else row


class _Session:
    """One measurement of one or more subjects, from sizing to summary."""

    def __init__(
        self, subjects: Sequence[Replays], protocol: TimingProtocol, sensor: Sensor | None, clock: Clock, rest: Rest
    ) -> None:
        self._subjects = subjects
        self._protocol = protocol
        self._sensor = sensor
        self._clock = clock
        self._rest = rest
        self._deadline = clock() + protocol.max_seconds * len(subjects)
        self._sized = [_size(subject, protocol) for subject in subjects]

    def comparison(self) -> Comparison:
        attempt = self._attempt()
        for _ in range(self._protocol.repeats):
            if not attempt.slowed or self._clock() + self._protocol.rest_s + attempt.seconds > self._deadline:
                break
            self._rest(self._protocol.rest_s)
            attempt = self._attempt()
        numbers = range(len(self._subjects))
        launches = [sized.replay.launches for sized in self._sized]
        return Comparison(
            timings=tuple(self._summary(attempt, number) for number in numbers),
            samples=tuple(tuple(us / launches[n] for us in attempt.samples[n]) for n in numbers),
        )

    @property
    def _late(self) -> bool:
        return self._clock() >= self._deadline

    @property
    def _round_us(self) -> float:
        return sum(sized.replay_us for sized in self._sized)

    def _attempt(self) -> _Attempt:
        start = self._clock()
        steady = self._warm_up()
        pairs = zip(self._sized, self._subjects, strict=True)
        self._sized = [_lengthen(sized, subject, self._protocol) for sized, subject in pairs]
        samples, readings = self._sample()
        return _Attempt(steady, samples, readings, self._clock() - start)

    def _warm_up(self) -> bool:
        """Replay in turns until successive windows agree for every subject, and the clock with them.

        Returns:
            Whether they did before the limit.
        """
        p, start = self._protocol, self._clock()
        longest = p.warmup_max_s * len(self._subjects)
        limit = min(start + longest, self._deadline)
        fitting = int(longest * 1e6 / (2 * p.steady_windows * self._round_us))
        windows: list[list[float]] = []
        readings: list[Reading] = []
        while self._clock() < limit:
            samples, reading = self._batch(0, max(1, min(p.window, fitting)))
            windows.append([statistics.median(series) for series in samples])
            readings += reading
            self._sized = [_Sized(s.replay, us) for s, us in zip(self._sized, windows[-1], strict=True)]
            if self._clock() - start >= p.warmup_min_s and self._agree(windows, readings):
                return True
        return False

    def _agree(self, windows: Sequence[Sequence[float]], readings: Sequence[Reading]) -> bool:
        p = self._protocol
        if len(windows) < p.steady_windows:
            return False
        clocks = [reading.clock_mhz for reading in readings[-p.steady_windows :]]
        times = zip(*windows[-p.steady_windows :], strict=True)
        return all(_spread(last) <= p.steady_relative for last in times) and (
            not clocks or _spread(clocks) <= p.steady_clock_relative
        )

    def _sample(self) -> tuple[_Series, list[Reading]]:
        """At least one round; more until every interval is narrow or a limit is reached."""
        p = self._protocol
        samples: _Series = [[] for _ in self._subjects]
        readings: list[Reading] = []
        look = p.min_samples
        while True:
            done = len(samples[0])
            batch, reading = self._batch(done, self._rounds(min(look, p.max_samples) - done))
            readings += reading
            for series, more in zip(samples, batch, strict=True):
                series += more
            done = len(samples[0])
            if self._late or done >= p.max_samples:
                return samples, readings
            if done >= look:
                if self._narrow(samples):
                    return samples, readings
                look = math.ceil(done * _LOOK_GROWTH)

    def _rounds(self, wanted: int) -> int:
        """How many rounds of ``wanted`` the next batch has: those that fit into the time that is left, at least one."""
        fitting = int((self._deadline - self._clock()) * 1e6 / self._round_us)
        return max(1, min(wanted, self._protocol.window, fitting))

    def _batch(self, first: int, rounds: int) -> tuple[_Series, list[Reading]]:
        """Rounds of replays that are queued as a whole before the first of them is waited for.

        So the device never runs dry within a batch, however long the host takes to queue or the sensor to answer: it is
        read while they run. The replay at the front has the host's way to an idle device in it and is thrown away.
        """
        order = [number for place in range(first, first + rounds) for number in self._order(place)]
        primer = order[:1] if self._sized[order[0]].replay_us < _UNPRIMED_US else []
        waits = [(number, self._sized[number].replay.start()) for number in (*primer, *order)]
        readings = [self._sensor.read()] if self._sensor else []
        times = [(number, _checked(wait())) for number, wait in waits][len(primer) :]
        return [[us for number, us in times if number == n] for n in range(len(self._subjects))], readings

    def _order(self, place: int) -> Sequence[int]:
        return round_order(len(self._subjects), place)

    def _narrow(self, samples: _Series) -> bool:
        """Whether the intervals of all times and of all ratios are as narrow as the protocol asks."""
        ratios = [[b / a for a, b in zip(*pair, strict=True)] for pair in itertools.combinations(samples, 2)]
        return all(_half_width(series) <= self._protocol.target_half_width for series in (*samples, *ratios))

    def _summary(self, attempt: _Attempt, number: int) -> Timing:
        p, samples, launches = self._protocol, attempt.samples[number], self._sized[number].replay.launches
        median = statistics.median(samples)
        low, high = median_interval(samples)
        few = not _rank(len(samples))
        flags = {
            UNSTEADY: not attempt.steady,
            WIDE: not few and _half_width(samples) > p.target_half_width,
            SHORT_REPLAY: median < p.min_replay_us,
            FEW_SAMPLES: few,
            OUT_OF_TIME: self._late,
            SLOWED: attempt.slowed,
            NO_SENSOR: self._sensor is None,
        }
        return Timing(
            median_us=median / launches,
            interval_us=(low / launches, high / launches),
            samples=len(samples),
            launches=launches,
            mode=p.mode,
            data=p.data,
            steady=attempt.steady,
            flags=(*(flag for flag, holds in flags.items() if holds), *self._subjects[number].flags),
            **_telemetry(attempt.readings),
        )


def _spread(values: Sequence[float]) -> float:
    """From the smallest to the largest, relative to the smallest."""
    return (max(values) - min(values)) / min(values) if min(values) > 0 else math.inf


def _half_width(samples: Sequence[float]) -> float:
    if not _rank(len(samples)):
        return math.inf
    low, high = median_interval(samples)
    return (high - low) / 2 / statistics.median(samples)


def _telemetry(readings: Sequence[Reading]) -> dict[str, Any]:
    """The fields of a timing that come from the sensor."""
    if not readings:
        return {}
    clocks = [reading.clock_mhz for reading in readings]
    powers = [reading.power_w for reading in readings if reading.power_w is not None]
    temperatures = [reading.temperature_c for reading in readings if reading.temperature_c is not None]
    return {
        "clock_mhz": float(statistics.median(clocks)),
        "clock_range_mhz": (min(clocks), max(clocks)),
        "power_w": max(powers, default=None),
        "temperature_c": max(temperatures, default=None),
        "throttle": tuple(sorted(frozenset().union(*(reading.throttle for reading in readings)))),
    }
