"""The proof of the measuring protocol on a GPU. Writes its record.

    python tests/gpu/prove_timing.py [--arch sm_90] [--to tests/gpu/records]

Four parts, with the reasons in the record beside the figures:

- the same kernel first and last in a list agrees with itself, measured in turns;
- warm data are no slower than cold data;
- every time lies above its floor, and a short one has that of an empty kernel beside it;
- one kernel by one launch between two events, by many launches between two events, and by graph replays.

A part that fails says why, and the others go on. Exit status 0 where all hold. The samples are written beside the text,
one JSON object a line.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import defaults, emit, trial
from wmmagen.arch import Arch
from wmmagen.backends import Subject
from wmmagen.backends.gpu import GpuBackend, devices
from wmmagen.backends.pick import pick
from wmmagen.backends.worker import KernelRecipe
from wmmagen.config import KernelConfig, Problem, read_size
from wmmagen.errors import WmmagenError
from wmmagen.timing import Comparison, Timing, TimingProtocol, median_interval

#: The list whose first kernel is also its last.
LIST = ("warps=2x2,frags=4x4,k_steps=2", "warps=2x2,frags=2x4,k_steps=2", "warps=4x2,frags=4x4,k_steps=2")
LIST_SIZES = ("1024", "2048", "4096")
MODE_SIZES = ("256", "1024", "2048")
#: Where a cold launch may not be quicker than a warm one.
DECISIVE = "1024"
WAY_SIZES = ("256", "1024", "2048")
SINGLE_SAMPLES = 200
MANY_LAUNCHES = 1000
MANY_SAMPLES = 20
WARM_UP_S = 0.5
WHY = """
Why the graph replays are what is reported. One launch between two events holds the launch besides the kernel: the
events and the start of the grid on an idle device, some microseconds, which are most of a small product. Many launches
between two events are back to back only where the host queues a launch faster than the device carries one out; below
that, the figure is the host's. A graph is queued as a whole, so its launches follow each other at the device's own pace
whatever the host does, as they would in a program that keeps its GPU busy."""


class Proof:
    """Lines of the record, samples beside them, and what did not hold."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.samples: list[dict[str, Any]] = []
        self.complaints: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)
        print(text, flush=True)

    def demand(self, holds: bool, what: str) -> None:
        """Write what was to be shown, and whether it holds."""
        self.say(f"    {'holds' if holds else 'DOES NOT HOLD'}: {what}")
        if not holds:
            self.complaints.append(what)

    def keep(self, part: str, problem: Problem, kernel: str, samples: Any, timing: Timing | None = None) -> None:
        self.samples.append(
            {
                "part": part,
                "problem": str(problem),
                "kernel": kernel,
                "samples_us": [round(us, 4) for us in samples],
                "timing": timing.to_json() if timing else None,
            }
        )

    def part(
        self, what: str, sizes: Iterable[str], step: Callable[[str], None], errors: tuple[type[Exception], ...] = ()
    ) -> None:
        """Carry out one part; a size that ends in an error says so, and the next one follows."""
        self.say(f"\n{what}")
        anticipated: tuple[type[Exception], ...] = (WmmagenError, *errors)
        for size in sizes:
            try:
                step(size)
            except anticipated as error:
                self.demand(False, f"{size}: it ended in {type(error).__name__}: {error}")


def words(timing: Timing) -> str:
    """A timing with all that was recorded around it."""
    low, high = timing.interval_us
    text = (
        f"{timing.median_us:9.3f} us [{low:.3f}, {high:.3f}] {timing.samples:>3} x {timing.launches:<4} {timing.mode}"
    )
    if timing.clock_range_mhz is not None:
        low_mhz, high_mhz = timing.clock_range_mhz
        text += f"  {timing.clock_mhz:.0f} MHz ({low_mhz} to {high_mhz})"
    if timing.power_w is not None:
        text += f"  {timing.power_w:.0f} W"
    if timing.temperature_c is not None:
        text += f"  {timing.temperature_c} C"
    if timing.empty_us is not None:
        text += f"  empty kernel {timing.empty_us:.3f} us"
    return "  ".join([text, *timing.throttle, *(f"[{flag}]" for flag in timing.flags)])


class Bench:
    """Kernels of one architecture on one card."""

    def __init__(self, arch: Arch, backend: GpuBackend, proof: Proof) -> None:
        self.arch = arch
        self.backend = backend
        self.proof = proof
        (self.index,) = [info.index for info in devices() if str(info) == backend.device][:1]

    @functools.cached_property
    def card(self) -> Any:
        """The card in this process, which has a context from here on."""
        from wmmagen.backends.card import Card

        return Card(self.index)

    def subject(self, text: str, size: str) -> tuple[KernelConfig, Problem, Subject]:
        """A kernel on a square problem, with normal data."""
        config = defaults.read_config(text, self.arch)
        problem = Problem.packed(config.operation, *read_size(size))
        _, binary = trial.build(config, self.arch)
        return config, problem, trial.subject_of(config, binary, problem)

    def first_and_last(self, size: str) -> None:
        """A list in turns, which has to agree, and one kernel after the other, which is shown beside it."""
        width = TimingProtocol().target_half_width
        made = [self.subject(text, size) for text in (*LIST, LIST[0])]
        problem, subjects = made[0][1], [subject for _, _, subject in made]
        found = trial.compare(subjects, self.backend, TimingProtocol())
        self._listed("in turns", problem, found, [str(config) for config, _, _ in made])
        ratio = found.ratio(len(made) - 1, 0)
        self.proof.demand(
            ratio.low <= 1 + width and ratio.high >= 1 - width,
            f"{problem}: the last is {ratio.median:.5f} [{ratio.low:.5f}, {ratio.high:.5f}] times as fast as the first"
            f"{', a tie' if ratio.tie else ''}: 1 within the protocol's {width:.1%}",
        )
        lone = [trial.compare([subject], self.backend, TimingProtocol()) for subject in subjects]
        first, last = lone[0].timings[0], lone[-1].timings[0]
        apart = last.median_us / first.median_us - 1
        self.proof.say(f"    one after the other: first {words(first)}\n                         last  {words(last)}")
        self.proof.say(f"    the two medians differ by {apart:+.2%}")

    def _listed(self, way: str, problem: Problem, found: Comparison, names: list[str]) -> None:
        self.proof.say(f"  {problem}, {way}")
        for timing, samples, kernel in zip(found.timings, found.samples, names, strict=True):
            self.proof.say(f"    {words(timing)}  {kernel}")
            self.proof.keep(f"list, {way}", problem, kernel, samples, timing)

    def warm_and_cold(self, size: str) -> None:
        """Both modes of one kernel, and the floor of each."""
        config, problem, subject = self.subject(LIST[0], size)
        times: dict[str, Timing] = {}
        for mode in ("warm", "cold"):
            found = trial.compare([subject], self.backend, TimingProtocol(mode=mode))
            times[mode] = timing = found.timings[0]
            floor = trial.floor_us(problem, timing, self.backend.device)
            self.proof.say(f"  {problem} {words(timing)}  floor {floor:.3f} us")
            self.proof.keep(mode, problem, str(config), found.samples[0], timing)
            self.proof.demand(timing.median_us >= floor, f"{problem}, {mode}: not below its floor")
        share = times["cold"].median_us / times["warm"].median_us
        said = f"{problem}: cold takes {share:.3f} times as long as warm"
        if size == DECISIVE:
            self.proof.demand(share >= 1, said)
        else:
            self.proof.say(f"    {said}")

    def three_ways(self, size: str) -> None:
        """Events and graphs on the same launch, on a card that this process has to itself."""
        from wmmagen.backends import card as cards

        card = self.card
        config, problem, subject = self.subject(LIST[0], size)
        recipe = KernelRecipe(subject.binary.cubin, subject.launch, subject.buffers)
        with cards._Memory(card._stream) as memory:
            (launch,) = recipe.prepare(card, memory.place(recipe.buffers))
            single = [_timed(card, launch, 1) for _ in _warmed(card, launch, SINGLE_SAMPLES)]
            many = [_timed(card, launch, MANY_LAUNCHES) for _ in _warmed(card, launch, MANY_SAMPLES)]
        found = card.compare([recipe], TimingProtocol())
        self.proof.say(f"  {problem} {config}")
        self._way("one launch between two events", problem, config, single)
        self._way(f"{MANY_LAUNCHES} launches between two events", problem, config, many)
        self._way("graph replays", problem, config, found.samples[0], found.timings[0])
        self.proof.demand(
            found.timings[0].median_us <= statistics.median(single),
            f"{problem}: one launch between two events takes "
            f"{statistics.median(single) / found.timings[0].median_us:.2f} times as long as one in a graph",
        )

    def _way(
        self, way: str, problem: Problem, config: KernelConfig, samples: Any, timing: Timing | None = None
    ) -> None:
        low, high = median_interval(samples)
        median = statistics.median(samples)
        rate = trial.tflops(problem, median)
        self.proof.say(f"    {way:<34} {median:9.3f} us [{low:.3f}, {high:.3f}]  {rate:6.1f} TFLOP/s")
        self.proof.keep(way, problem, str(config), samples, timing)


def _warmed(card: Any, launch: Any, samples: int) -> range:
    """Keep the device busy for a while, so that the clock has risen; then count the samples."""
    until = time.monotonic() + WARM_UP_S
    while time.monotonic() < until:
        _timed(card, launch, 100)
    return range(samples)


def _timed(card: Any, launch: Any, launches: int) -> float:
    """Microseconds of one launch, of ``launches`` between two events on an idle device."""
    from cuda.core import EventOptions

    begin, end = (card._device.create_event(EventOptions(timing_enabled=True)) for _ in range(2))
    card._stream.sync()
    card._stream.record(begin)
    for _ in range(launches):
        launch.enqueue(card._stream)
    card._stream.record(end)
    end.sync()
    return float(end - begin) * 1e3 / launches


def main() -> int:
    """Measure, judge, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--to", type=Path, default=Path("tests/gpu/records"))
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    proof = Proof()
    with pick("gpu", arch) as place:
        backend = place.demanded()
        assert isinstance(backend, GpuBackend)
        proof.say(f"{backend.device}, {arch} kernels, normal data")
        bench = Bench(arch, backend, proof)
        proof.part("The same kernel first and last in a list", LIST_SIZES, bench.first_and_last)
        proof.part("Warm and cold", MODE_SIZES, bench.warm_and_cold)
        device = backend.device
    proof.part("Three ways to time one kernel", WAY_SIZES, bench.three_ways, _card_errors())
    proof.say(WHY)
    proof.say(f"\n{len(proof.complaints)} of the demands do not hold")
    stem = f"timing_{arch}_on_{device.split(' (')[0].replace(' ', '_')}"
    emit.write(asked.to / f"{stem}.txt", "\n".join(proof.lines) + "\n")
    emit.write(
        asked.to / f"{stem}.jsonl", "".join(json.dumps(sample, sort_keys=True) + "\n" for sample in proof.samples)
    )
    return 1 if proof.complaints else 0


def _card_errors() -> tuple[type[Exception], ...]:
    from wmmagen.backends.card import Card

    return Card.errors


if __name__ == "__main__":
    sys.exit(ended(main))
