"""Kernels beside their denominators: proved right, timed in turns in one process, and divided.

A share is the lower end of the interval of quotients of one comparison, never the quotient of two medians from two
runs: the library itself moves by several per cent between runs, through the clock. What could not be measured has a
reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wmmagen import denominators, foundry, rules, trial
from wmmagen.arch import Arch
from wmmagen.backends import Subject
from wmmagen.backends.pick import Place
from wmmagen.backends.product import Library
from wmmagen.config import KernelConfig, Problem, name
from wmmagen.denominators import Denominator, Figure, Kind
from wmmagen.errors import CompileError, Fault, MissingPiece, RequestError
from wmmagen.foundry import Compiler
from wmmagen.nvrtc import Binary
from wmmagen.records import Outcome
from wmmagen.timing import Ratio, Timing, TimingProtocol

#: An interval of a quotient that holds 1: neither of the two is faster.
TIE = "tie"
#: The kernel was assembled again for this card: its time says nothing of the card that it was compiled for.
FOREIGN = "foreign"


@dataclass(frozen=True)
class Row:
    """One kernel.

    Attributes:
        name: its canonical name.
        problem: what was computed.
        outcome: ok where it was right, before and after it was timed.
        detail: why it is not; empty where it is.
        timing: None where it is not ok.
        ratios: the denominator's time over the kernel's, by kind; without what has no figure. Empty where the kernel is
            foreign.
        foreign: see :data:`FOREIGN`.
    """

    name: str
    problem: Problem
    outcome: Outcome
    detail: str = ""
    timing: Timing | None = None
    ratios: dict[Kind, Ratio] = dataclasses.field(default_factory=dict)
    foreign: bool = False

    @property
    def tflops(self) -> float | None:
        """10^12 operations per second; None without a time."""
        return trial.tflops(self.problem, self.timing.median_us) if self.timing else None

    def as_json(self) -> dict[str, Any]:
        """An element of ``rows`` of ``bench --json``."""
        kinds: dict[Kind, str] = {"same types": "cublas_same_types", "FP32": "cublas_fp32"}
        timing = self.timing
        return {
            "name": self.name,
            "problem": str(self.problem),
            "outcome": self.outcome.value,
            "detail": self.detail,
            "mode": timing.mode if timing else None,
            "data": timing.data if timing else None,
            "median_us": timing.median_us if timing else None,
            "interval_us": list(timing.interval_us) if timing else None,
            "tflops": self.tflops,
            # No ceiling of WMMA is measured by any command yet.
            "share": {key: self.ratios[kind].low if kind in self.ratios else None for kind, key in kinds.items()}
            | {"ceiling": None},
            "flags": list(self.flags),
            **_around(timing),
        }

    @property
    def flags(self) -> tuple[str, ...]:
        """What a reader has to know of the time: the protocol's flags, and where it does not rank."""
        own = self.timing.flags if self.timing else ()
        ties = tuple(f"{TIE}: {kind}" for kind, ratio in self.ratios.items() if ratio.tie)
        return (*own, *ties, *([FOREIGN] if self.foreign else []))


@dataclass(frozen=True)
class Baseline:
    """One denominator.

    Attributes:
        figure: its candidates; None where there was nobody to ask.
        timing: of the best of them, in turns with the kernels; None where there is no figure.
        denominator: of what.
        reason: why there is no time; empty where there is one.
    """

    denominator: Denominator
    figure: Figure | None = None
    timing: Timing | None = None
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """An element of ``denominators`` of ``bench --json``."""
        figure, timing, problem = self.figure, self.timing, self.denominator.problem
        return {
            "kind": self.denominator.kind,
            "types": [problem.operation.a.name, problem.operation.acc.name, problem.operation.d.name],
            "problem": str(problem),
            "median_us": timing.median_us if timing else None,
            "interval_us": list(timing.interval_us) if timing else None,
            "tflops": trial.tflops(problem, timing.median_us) if timing else None,
            "version": figure.version if figure else None,
            "candidate": str(figure.best.candidate) if figure and figure.best else None,
            "proposed": len(figure.tried) if figure else 0,
            "exact": sum(not one.wrong for one in figure.tried) if figure else 0,
            "reason": self.reason,
            "flags": list(timing.flags) if timing else [],
            **_around(timing),
        }


def _around(timing: Timing | None) -> dict[str, Any]:
    """What the sensors said while it was measured."""
    return {
        "clock_mhz": timing.clock_mhz if timing else None,
        "power_w": timing.power_w if timing else None,
        "temperature_c": timing.temperature_c if timing else None,
        "throttle": list(timing.throttle) if timing else [],
        "empty_us": timing.empty_us if timing else None,
    }


@dataclass(frozen=True)
class Table:
    """What :func:`measure` found: rows and baselines in the order of the request."""

    device: str
    rows: tuple[Row, ...]
    baselines: tuple[Baseline, ...]

    @property
    def right(self) -> bool:
        """Whether every kernel was right and has a time."""
        return all(row.outcome is Outcome.OK for row in self.rows)


@dataclass(frozen=True)
class _Contender:
    config: KernelConfig
    binary: Binary
    subject: Subject


def measure(
    configs: Sequence[KernelConfig],
    arch: Arch,
    size: tuple[int, int, int],
    place: Place,
    protocol: TimingProtocol,
    compiler: Compiler = foundry.compile_source,
) -> Table:
    """Check, time and compare kernels on one size, those of one operation in turns with each other.

    Args:
        configs: at least one; each is legal on ``arch`` for ``size``.
        size: M, N and K.
        place: where; its library, where it has one, gives the denominators.
        protocol: how they are timed, and on which data.

    Raises:
        IllegalConfig: one of ``configs`` does not take ``size``.
        MissingPiece: nothing here can run or time them.
        RequestError: ``size`` has nothing to multiply.
        ConfigError: no exact inputs can be made for ``size``.
    """
    backend = place.demanded()
    if 0 in size:
        raise RequestError(f"{'x'.join(map(str, size))} has no product to time", "give a --problem without a 0")
    if not backend.clocked:
        raise MissingPiece(f"{backend.device} has no clock that counts", "run it where there is a GPU")
    problems = [Problem.packed(config.operation, *size) for config in configs]
    for config, problem in zip(configs, problems, strict=True):
        rules.demand(config, arch, problem)
    rows: dict[KernelConfig, Row] = {}
    baselines: list[Baseline] = []
    for problem in dict.fromkeys(problems):
        group = [config for config, own in zip(configs, problems, strict=True) if own == problem]
        found, beside = _group(list(dict.fromkeys(group)), arch, problem, place, protocol, compiler)
        rows |= found
        baselines += beside
    return Table(backend.device, tuple(rows[config] for config in configs), tuple(baselines))


def _group(
    configs: Sequence[KernelConfig],
    arch: Arch,
    problem: Problem,
    place: Place,
    protocol: TimingProtocol,
    compiler: Compiler,
) -> tuple[dict[KernelConfig, Row], list[Baseline]]:
    """The rows of kernels of one problem, and its baselines."""
    backend, rows, contenders = place.demanded(), {}, []
    for config in configs:
        ready = _contender(config, arch, problem, place, protocol, compiler)
        if isinstance(ready, Row):
            rows[config] = ready
        else:
            contenders.append(ready)
    baselines = [_baseline(one, place.library, protocol) for one in denominators.denominators(problem)]
    if not contenders:
        return rows, baselines
    opponents = [(number, _recipe(one, place.library, protocol)) for number, one in enumerate(baselines) if one.figure]
    subjects: list[Any] = [one.subject for one in contenders] + [recipe for _, recipe in opponents]
    try:
        comparison = trial.compare(subjects, backend, protocol)
    except Fault as fault:
        # Each ran alone a moment ago, and each can be asked for alone: nobody is blamed for the others.
        detail = f"in turns with {len(subjects) - 1} others: {fault.message}"
        failed = {c.config: Row(name(c.config), problem, Outcome(fault.outcome), detail) for c in contenders}
        return rows | failed, baselines
    for place_in_turn, (number, _) in enumerate(opponents, start=len(contenders)):
        baselines[number] = dataclasses.replace(baselines[number], timing=comparison.timings[place_in_turn])
    foreign = backend.foreign(arch)
    for number, one in enumerate(contenders):
        ratios = {
            baselines[which].denominator.kind: comparison.ratio(number, at)
            for at, (which, _) in enumerate(opponents, start=len(contenders))
        }
        timed = Row(
            name(one.config), problem, Outcome.OK, "", comparison.timings[number], {} if foreign else ratios, foreign
        )
        rows[one.config] = _checked_again(timed, one, place)
    return rows, baselines


def _contender(
    config: KernelConfig, arch: Arch, problem: Problem, place: Place, protocol: TimingProtocol, compiler: Compiler
) -> _Contender | Row:
    """A kernel that is right, ready to be timed; the row of one that is not."""
    backend = place.demanded()
    try:
        _, binary = trial.build(config, arch, compiler)
        runs = trial.validate(config, binary, backend, [*trial.validation_problems(config), problem])
    except CompileError as error:
        return Row(name(config), problem, Outcome.COMPILE, error.message)
    except Fault as fault:
        return Row(name(config), problem, Outcome(fault.outcome), fault.message)
    if not runs[-1].exact:
        return Row(name(config), problem, Outcome.WRONG, runs[-1].mismatch)
    return _Contender(config, binary, trial.subject_of(config, binary, problem, protocol.data))


def _checked_again(row: Row, one: _Contender, place: Place) -> Row:
    """``row`` where the kernel is still right and its time can be; a kernel that is wrong after a thousand is wrong."""
    backend = place.demanded()
    assert row.timing is not None
    try:
        trial.demand_possible(row.problem, row.timing, backend.device)
        run = trial.check_run(one.config, one.binary, backend, row.problem)
    except Fault as fault:
        return Row(row.name, row.problem, Outcome(fault.outcome), fault.message, foreign=row.foreign)
    if not run.exact:
        return Row(row.name, row.problem, Outcome.WRONG, f"after timing: {run.mismatch}", foreign=row.foreign)
    return row


def _baseline(denominator: Denominator, library: Library | None, protocol: TimingProtocol) -> Baseline:
    if library is None:
        return Baseline(denominator, reason="there is no library of products where the kernels run")
    try:
        figure = denominators.measure(denominator, library, protocol)
    except MissingPiece as missing:
        return Baseline(denominator, reason=f"{missing.message}; {missing.fix}")
    if figure.best is None:
        return Baseline(denominator, reason=figure.reason)
    return Baseline(denominator, figure)


def _recipe(baseline: Baseline, library: Library | None, protocol: TimingProtocol) -> Any:
    assert baseline.figure is not None and library is not None
    return denominators.recipe(baseline.figure, library, protocol.data)
