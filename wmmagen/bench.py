"""Kernels beside their denominators: proved right, timed in turns in one process, and divided.

A share is the lower end of the interval of quotients of one comparison, never the quotient of two medians from two
runs: the library itself moves by several per cent between runs, through the clock. What could not be measured has a
reason.

The ceiling, a loop of the same instruction on the same kind of data that loads nothing, takes turns with the kernels in
a comparison of its own: nothing draws as much power, and beside it kernels and library would run at a lower clock than
they do without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from wmmagen import ceiling, denominators, foundry, instructions, padding, render, rules, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend, Series, Subject
from wmmagen.backends.pick import Place
from wmmagen.backends.product import Library
from wmmagen.config import KernelConfig, Problem, Residue, name, parse
from wmmagen.denominators import Denominator, Figure, Kind
from wmmagen.errors import CompileError, Fault, MissingPiece, RequestError
from wmmagen.foundry import Compiler
from wmmagen.instructions import Instruction
from wmmagen.nvrtc import Binary
from wmmagen.records import Outcome
from wmmagen.timing import Ratio, Timing, TimingProtocol

#: An interval of a quotient that holds 1: neither of the two is faster.
TIE = "tie"
#: The kernel was assembled again for this card: its time says nothing of the card that it was compiled for.
FOREIGN = "foreign"
#: What the share of each denominator is called in ``--json``.
SHARES: dict[Kind, str] = {"same types": "cublas_same_types", "FP32": "cublas_fp32"}
#: The same of those that compute a whole chain of steps; only there beside a chain.
CHAIN_SHARES: dict[Kind, str] = {"own epilogue": "cublas_own_epilogue", "kernel behind": "cublas_kernel_behind"}
KINDS: tuple[Kind, ...] = get_args(Kind)
#: When a kernel for multiples gets its padded copies: not at all, with each call, or before the calls that are timed.
Padded = Literal["", "padded with each call", "padded before"]
#: What stands beside a kernel that was not timed.
NOTHING_BESIDE: dict[str, str | None] = dict.fromkeys((*SHARES.values(), "ceiling"))


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
        of_ceiling: the kernel's rate over that of its instruction's ceiling; None where there is none.
        gain: how many times as fast it is as the kernel before it in the comparison; None of the first one.
        padded: when its operands were padded; empty where they are those of the problem.
    """

    name: str
    problem: Problem
    outcome: Outcome
    detail: str = ""
    timing: Timing | None = None
    ratios: dict[Kind, Ratio] = dataclasses.field(default_factory=dict)
    foreign: bool = False
    of_ceiling: Ratio | None = None
    gain: Ratio | None = None
    padded: Padded = ""

    @property
    def tflops(self) -> float | None:
        """10^12 operations per second; None without a time."""
        return trial.tflops(self.problem, self.timing.median_us) if self.timing else None

    @property
    def gb_per_s(self) -> float | None:
        """10^9 bytes per second, of those that every kernel has to move; None without a time."""
        return trial.moved_bytes(self.problem) / self.timing.median_us / 1e3 if self.timing else None

    def as_json(self) -> dict[str, Any]:
        """What ``bench --json`` and ``ladder --json`` say of a kernel by itself."""
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
            "gb_per_s": self.gb_per_s,
            "share": {key: self.ratios[kind].low if kind in self.ratios else None for kind, key in SHARES.items()}
            | {"ceiling": self.of_ceiling.low if self.of_ceiling else None}
            | {key: self.ratios[kind].low for kind, key in CHAIN_SHARES.items() if kind in self.ratios},
            "flags": list(self.flags),
            **_around(timing),
        }

    @property
    def flags(self) -> tuple[str, ...]:
        """What a reader has to know of the time: the protocol's flags, and where it does not rank."""
        own = self.timing.flags if self.timing else ()
        ties = tuple(f"{TIE}: {kind}" for kind, ratio in self.ratios.items() if ratio.tie)
        return (*own, *ties, *([self.padded] if self.padded else []), *([FOREIGN] if self.foreign else []))


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

    def __str__(self) -> str:
        timing, problem = self.timing, self.denominator.problem
        if timing is None:
            return f"{self.denominator}: none: {self.reason}"
        return f"{self.denominator}: {timing.median_us:.2f} us, {trial.tflops(problem, timing.median_us):.1f} TFLOP/s"

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


@dataclass(frozen=True)
class Limit:
    """The ceiling of one instruction.

    Attributes:
        inst: which one.
        problem: of the kernels that it took turns with.
        loop: what measured it, in the best way to fill the device; None where it could not be.
        timing: in turns with the kernels; None where there is none.
        reason: why there is no time; empty where there is one.
    """

    inst: Instruction
    problem: Problem
    loop: ceiling.Ready | None = None
    timing: Timing | None = None
    reason: str = ""

    def __str__(self) -> str:
        inst, timing = self.inst, self.timing
        words = f"products of fragments in registers ({inst.a.name}, {inst.acc.name}, {inst.shape})"
        if timing is None:
            return f"{words}: none: {self.reason}"
        return f"{words}: {self.tflops:.1f} TFLOP/s on {timing.data} data"

    @property
    def tflops(self) -> float | None:
        """10^12 operations per second; None without a time."""
        return self.loop.operations / self.timing.median_us / 1e6 if self.loop and self.timing else None

    def as_json(self) -> dict[str, Any]:
        """An element of ``ceilings`` of ``bench --json``."""
        timing = self.timing
        return {
            "types": [self.inst.a.name, self.inst.acc.name],
            "shape": self.inst.shape,
            "problem": str(self.problem),
            "data": timing.data if timing else None,
            "median_us": timing.median_us if timing else None,
            "interval_us": list(timing.interval_us) if timing else None,
            "tflops": self.tflops,
            "warps": self.loop.warps if self.loop else None,
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
    """What :func:`measure` found: rows, baselines and ceilings in the order of the request."""

    device: str
    rows: tuple[Row, ...]
    baselines: tuple[Baseline, ...]
    limits: tuple[Limit, ...] = ()

    @property
    def right(self) -> bool:
        """Whether every kernel was right and has a time."""
        return all(row.outcome is Outcome.OK for row in self.rows)

    def beside(self, row: Row) -> dict[str, str | None]:
        """What each share of ``row`` is of, by the share's name, with its figure or the reason why there is none."""
        asked, inst = unpromised(row.problem), _instruction(parse(row.name))
        wanted = {one.asked for one in denominators.denominators(asked)}
        held = {one.denominator.kind: str(one) for one in self.baselines if one.denominator.asked in wanted}
        above = next((str(one) for one in self.limits if (one.inst, one.problem) == (inst, asked)), None)
        chain = {key: held[kind] for kind, key in CHAIN_SHARES.items() if kind in held}
        return NOTHING_BESIDE | {key: held.get(kind) for kind, key in SHARES.items()} | {"ceiling": above} | chain


@dataclass(frozen=True)
class _Contender:
    config: KernelConfig
    problem: Problem
    binary: Binary
    subject: Subject | Series
    padded: Padded = ""
    copiers: Binary | None = None

    @property
    def key(self) -> _Key:
        return self.config, self.padded

    def row(self, outcome: Outcome, detail: str = "", **more: Any) -> Row:
        return Row(name(self.config), self.problem, outcome, detail, padded=self.padded, **more)


#: A kernel, and when its operands are padded.
_Key = tuple[KernelConfig, Padded]


def demand(place: Place) -> None:
    """Return where kernels can be timed.

    Raises:
        MissingPiece: nothing here can run or time them.
    """
    backend = place.demanded()
    if not backend.clocked:
        why = f": {place.why}" if place.why else ""
        raise MissingPiece(
            f"kernels are timed on a GPU, and {backend.device} is none{why}", "run it where there is a GPU"
        )


def demand_product(size: tuple[int, int, int], batch: int = 1) -> None:
    """Return where ``batch`` products of ``size``, M, N and K, have something to multiply.

    Raises:
        RequestError: it has not.
    """
    if 0 in (*size, batch):
        raise RequestError(
            f"{'x'.join(map(str, size))}{'@0' if not batch else ''} has no product to time",
            "give a --problem without a 0",
        )


def measure(
    configs: Sequence[KernelConfig],
    arch: Arch,
    size: tuple[int, int, int],
    place: Place,
    protocol: TimingProtocol,
    compiler: Compiler = foundry.compile_source,
    *,
    ceilings: bool = False,
    kinds: Collection[Kind] = KINDS,
    batch: int = 1,
    padded: Sequence[KernelConfig] = (),
) -> Table:
    """Check, time and compare kernels on one size, those that compute the same D in turns with each other.

    Args:
        configs: each is legal on ``arch`` for ``size``; at least one, here or in ``padded``.
        size: M, N and K.
        place: where; its library, where it has one, gives the denominators.
        protocol: how they are timed, and on which data.
        compiler: what compiles them.
        ceilings: whether the ceilings of their instructions are measured, too.
        kinds: the denominators that are measured; of the others the table says that nobody asked for them.
        batch: how many products of that size a launch computes; more than one where ``configs`` take a batch.
        padded: kernels for multiples, which are called on padded copies. Each has two rows behind the others: padded
            with each call, and before the calls that are timed.

    Raises:
        IllegalConfig: one of ``configs`` does not take ``size``.
        MissingPiece: nothing here can run or time them.
        RequestError: ``size`` has nothing to multiply.
        ConfigError: no exact inputs can be made for ``size``.
    """
    demand(place)
    backend = place.demanded()
    demand_product(size, batch)
    keys: list[_Key] = [(config, "") for config in configs]
    keys += [(config, when) for config in padded for when in get_args(Padded) if when]
    problems = [Problem.packed(config.operation, *size, batch=batch) for config, _ in keys]
    for (config, when), problem in zip(keys, problems, strict=True):
        rules.demand(config, arch, padding.plan(config, problem).problem if when else problem)
    rows: dict[_Key, Row] = {}
    baselines: list[Baseline] = []
    limits: list[Limit] = []
    for problem in dict.fromkeys(map(unpromised, problems)):
        group = [key for key, own in zip(keys, problems, strict=True) if unpromised(own) == problem]
        contenders, found = _contenders(list(dict.fromkeys(group)), arch, problem, place, protocol, compiler)
        timed, beside = _in_turns(contenders, arch, problem, place, protocol, kinds)
        found |= timed
        baselines += beside
        if ceilings:
            right = [one for one in contenders if found[one.key].outcome is Outcome.OK]
            shares, above = _under_ceilings(right, arch, problem, backend, protocol, compiler)
            found |= {key: dataclasses.replace(found[key], of_ceiling=share) for key, share in shares.items()}
            limits += above
        rows |= found
    return Table(backend.device, tuple(rows[key] for key in keys), tuple(baselines), tuple(limits))


def unpromised(problem: Problem) -> Problem:
    """``problem`` without what its callers promise: kernels with different promises compute the same D of it."""
    asked = dataclasses.replace(problem.operation, residue=Residue.EXACT, align_a=0, align_b=0, align_d=0)
    return dataclasses.replace(problem, operation=asked)


def _contenders(
    keys: Sequence[_Key],
    arch: Arch,
    problem: Problem,
    place: Place,
    protocol: TimingProtocol,
    compiler: Compiler,
) -> tuple[list[_Contender], dict[_Key, Row]]:
    """Kernels of one problem that are right, and the rows of the others."""
    rows, contenders = {}, []
    for config, when in keys:
        ready = _contender(config, when, arch, problem, place, protocol, compiler)
        if isinstance(ready, Row):
            rows[config, when] = ready
        else:
            contenders.append(ready)
    return contenders, rows


def _in_turns(
    contenders: Sequence[_Contender],
    arch: Arch,
    problem: Problem,
    place: Place,
    protocol: TimingProtocol,
    kinds: Collection[Kind],
) -> tuple[dict[_Key, Row], list[Baseline]]:
    """The rows of kernels of one problem, and its baselines."""
    backend = place.demanded()
    rows: dict[_Key, Row] = {}
    baselines = [
        baseline(one, place.library, protocol) if one.kind in kinds else Baseline(one, reason="nobody asked for it")
        for one in denominators.denominators(problem)
    ]
    if not contenders:
        return rows, baselines
    opponents = [(number, recipe(one, place.library, protocol)) for number, one in enumerate(baselines) if one.figure]
    subjects: list[Any] = [one.subject for one in contenders] + [made for _, made in opponents]
    try:
        comparison = trial.compare(subjects, backend, protocol)
    except Fault as fault:
        # Each ran alone a moment ago, and each can be asked for alone: nobody is blamed for the others.
        detail = f"in turns with {len(subjects) - 1} others: {fault.message}"
        return {one.key: one.row(Outcome(fault.outcome), detail) for one in contenders}, baselines
    for place_in_turn, (number, _) in enumerate(opponents, start=len(contenders)):
        baselines[number] = dataclasses.replace(baselines[number], timing=comparison.timings[place_in_turn])
    foreign = backend.foreign(arch)
    for number, one in enumerate(contenders):
        ratios = {
            baselines[which].denominator.kind: comparison.ratio(number, at)
            for at, (which, _) in enumerate(opponents, start=len(contenders))
        }
        timed = one.row(
            Outcome.OK,
            timing=comparison.timings[number],
            ratios={} if foreign else ratios,
            foreign=foreign,
            gain=comparison.ratio(number, number - 1) if number else None,
        )
        rows[one.key] = _checked_again(timed, one, place)
    return rows, baselines


def _under_ceilings(
    contenders: Sequence[_Contender],
    arch: Arch,
    problem: Problem,
    backend: Backend,
    protocol: TimingProtocol,
    compiler: Compiler,
) -> tuple[dict[_Key, Ratio], list[Limit]]:
    """Each kernel's share of its instruction's ceiling, where there is one, and the ceilings; all timed in turns."""
    uses = {one.key: _instruction(one.config) for one in contenders}
    needed = dict.fromkeys(uses.values())
    if backend.foreign(arch):
        return {}, [Limit(inst, problem, reason="the kernels were assembled again for this card") for inst in needed]
    limits = [_limit(inst, problem, arch, backend, protocol, compiler) for inst in needed]
    loops = [limit.loop for limit in limits if limit.loop]
    if not loops:
        return {}, limits
    try:
        subjects = [*(one.subject for one in contenders), *(loop.subject for loop in loops)]
        comparison = trial.compare(subjects, backend, protocol)
    except Fault as fault:
        return {}, [limit if limit.reason else dataclasses.replace(limit, reason=fault.message) for limit in limits]
    places = {loop.loop.inst: at for at, loop in enumerate(loops, start=len(contenders))}
    shares = {}
    for number, one in enumerate(contenders):
        at = places.get(uses[one.key])
        if at is not None:
            # A time is of a launch, and launches differ in how much they do.
            work = trial.operations_of(problem) / loops[at - len(contenders)].operations
            shares[one.key] = comparison.ratio(number, at).scaled(work)
    timings = {inst: comparison.timings[at] for inst, at in places.items()}
    return shares, [dataclasses.replace(limit, timing=timings.get(limit.inst)) for limit in limits]


def _instruction(config: KernelConfig) -> Instruction:
    found = instructions.find(config.operation.a, config.operation.acc, *config.multiplied)
    assert found is not None, "a legal configuration has an instruction of the table"
    return found


def _limit(
    inst: Instruction, problem: Problem, arch: Arch, backend: Backend, protocol: TimingProtocol, compiler: Compiler
) -> Limit:
    """The loop that measures an instruction's ceiling, or why there is none."""
    try:
        quick = dataclasses.replace(ceiling.PROTOCOL, data=protocol.data)
        return Limit(inst, problem, ceiling.ready(inst, arch, backend, quick, compiler))
    except (CompileError, Fault) as error:
        return Limit(inst, problem, reason=error.message)


def _contender(
    config: KernelConfig,
    when: Padded,
    arch: Arch,
    problem: Problem,
    place: Place,
    protocol: TimingProtocol,
    compiler: Compiler,
) -> _Contender | Row:
    """A kernel that is right, ready to be timed; the row of one that is not.

    It is checked on what it promises, and timed on the buffers of ``problem``, which all kernels share.
    """
    backend, own = place.demanded(), dataclasses.replace(problem, operation=config.operation)
    copiers = None
    try:
        source, binary = trial.build(config, arch, compiler)
        hostile = trial.validation_problems(config)
        if when:
            entry = render.padding_entry(source.symbol)
            copiers = compiler(render.render_padding(config, arch), entry, arch)
        runs = trial.validate(config, binary, backend, hostile if when else [*hostile, own])
        said = runs[-1].mismatch if not runs[-1].exact else ""
        if copiers and not said:
            said = padding.check(config, binary, copiers, backend, own)
    except CompileError as error:
        return Row(name(config), own, Outcome.COMPILE, error.message, padded=when)
    except Fault as fault:
        return Row(name(config), own, Outcome(fault.outcome), fault.message, padded=when)
    if said:
        return Row(name(config), own, Outcome.WRONG, said, padded=when)
    if copiers is None:
        return _Contender(config, own, binary, trial.subject_of(config, binary, problem, protocol.data))
    pads = when == "padded with each call"
    series = padding.series_of(config, binary, copiers, problem, data=protocol.data, pads=pads)
    return _Contender(config, own, binary, series, when, copiers)


def _checked_again(row: Row, one: _Contender, place: Place) -> Row:
    """``row`` where the kernel is still right and its time can be; a kernel that is wrong after a thousand is wrong."""
    backend = place.demanded()
    assert row.timing is not None
    try:
        trial.demand_possible(row.problem, row.timing, backend.device)
        if one.copiers:
            said = padding.check(one.config, one.binary, one.copiers, backend, row.problem)
        else:
            run = trial.check_run(one.config, one.binary, backend, row.problem)
            said = "" if run.exact else run.mismatch
    except Fault as fault:
        return one.row(Outcome(fault.outcome), fault.message, foreign=row.foreign)
    return one.row(Outcome.WRONG, f"after timing: {said}", foreign=row.foreign) if said else row


def baseline(denominator: Denominator, library: Library | None, protocol: TimingProtocol) -> Baseline:
    """A denominator with its best candidate, which is not timed in turns with anything yet; or why it has none.

    Raises:
        ConfigError: no exact inputs can be made for the problem.
    """
    if library is None:
        return Baseline(denominator, reason="there is no library of products where the kernels run")
    try:
        figure = denominators.measure(denominator, library, protocol)
    except (MissingPiece, CompileError) as missing:
        return Baseline(denominator, reason=f"{missing.message}; {missing.fix}")
    if figure.best is None:
        return Baseline(denominator, reason=figure.reason)
    return Baseline(denominator, figure)


def recipe(one: Baseline, library: Library | None, protocol: TimingProtocol) -> Any:
    """The best candidate of a baseline that has one, ready to be timed in turns with kernels."""
    assert one.figure is not None and library is not None
    return denominators.recipe(one.figure, library, protocol.data)
