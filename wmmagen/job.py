"""The main job: from a request to a study, its ranking, and the winner's file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from wmmagen import arch as archs
from wmmagen import bench, choose, emit, estimate, foundry, gate, lint, nvrtc, tune
from wmmagen.arch import Arch
from wmmagen.backends import pick
from wmmagen.backends.pick import Place
from wmmagen.bench import Table
from wmmagen.choose import Choice
from wmmagen.config import KernelConfig, Operation, Problem, parse
from wmmagen.errors import CompileError, RequestError, StudyError
from wmmagen.foundry import ORDERS_PER_PROCESS, Compiler, Foundry, usable_cores
from wmmagen.lint import Report
from wmmagen.manifest import Evidence
from wmmagen.records import Outcome, Record, Tally, tally
from wmmagen.render import render
from wmmagen.space import Space
from wmmagen.timing import TimingProtocol
from wmmagen.trial import try_out

DEFAULT_TRIALS = 40
#: How many candidates are shown where none may be called best.
LEADING = 5
#: How many leaders are measured again, in turns.
FINALISTS = 3


@dataclass(frozen=True)
class Request:
    """What a sweep is asked to do.

    Attributes:
        operation: what the kernels compute.
        arch: the architecture they are compiled for.
        size: m, n, k of the timed problem, in elements.
        fixed: keys that every candidate shares, by :func:`wmmagen.config.read_pairs`.
        trials: how many candidates in all, those of earlier runs of the study included; None for no limit.
        exhaustive: every legal point, in the space's order.
        budget_s: seconds after which no further candidate is begun and no compilation is waited for; None for no limit.
        jobs: how many processes compile; None for one on each usable core.
        storage: the storage's URL or file; None for ``sweeps/<study>.db``.
        study: the study's name; None for one made of architecture, types and size.
        generated: the folder below which the winner's file is written.
        batch: how many products of that size a launch computes, of an operation that takes a batch.
    """

    operation: Operation
    arch: Arch
    size: tuple[int, int, int]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    trials: int | None = DEFAULT_TRIALS
    exhaustive: bool = False
    budget_s: float | None = None
    jobs: int | None = None
    storage: str | None = None
    study: str | None = None
    generated: Path = Path("generated")
    batch: int = 1
    protocol: TimingProtocol = field(default_factory=TimingProtocol)

    @property
    def counted(self) -> bool:
        """Whether it is known beforehand how many candidates there will be: not where only the clock ends it."""
        return self.trials is not None or self.exhaustive or self.budget_s is None

    @property
    def problem(self) -> Problem:
        """The timed problem, packed."""
        return Problem.packed(self.operation, *self.size, batch=self.batch)

    @property
    def study_name(self) -> str:
        """``sm_75_f16_f32_f32_rr_2048x2048x2048`` where none was given; another operation has another name.

        Plain products of operands that are aligned for the widest copies have no word for that.
        """
        o = self.operation
        widest = Operation(o.a, o.acc, o.d)
        words = [str(self.arch), o.a.name, o.acc.name, o.d.name, o.layouts]
        if o.added != o.d:
            words.append(f"c{o.added.name}")
        if o.epilogue != widest.epilogue:
            words.append(o.epilogue.in_name)
        words += [
            str(getattr(o, key)) for key in ("residue", "overflow", "batch") if getattr(o, key) != getattr(widest, key)
        ]
        if (o.align_a, o.align_b, o.align_d) != (widest.align_a, widest.align_b, widest.align_d):
            words.append(f"align{o.align_a}x{o.align_b}x{o.align_d}")
        # A file has the name, too, and an @ in it would be one for some tools.
        return self.study or "_".join([*words, str(self.problem).replace("@", "-")])


@dataclass(frozen=True)
class Result:
    """How a sweep ended.

    Attributes:
        request: what was asked.
        place: where candidates ran.
        space: what was searched.
        records: candidates of the space that are known from this place, those of earlier runs included.
        new: candidates of this run.
        choice: the best right and ranked one with its runner-up, by times or, where none ranks, by estimates; None
            where none may be called best.
        leading: the leading candidates where none may be called best.
        finals: the leaders beside their denominators, measured again in turns; None where no time ranks, or where the
            leader was measured so before.
        file: the winner's file.
        seconds: of this run.
        timed: whether the study holds times that rank, of here or of another place.
        report: what the lint says of the winner's machine code; None where there is no winner.
    """

    request: Request
    place: Place
    space: Space
    records: tuple[Record, ...]
    new: int
    choice: Choice | None
    leading: tuple[Record, ...]
    finals: Table | None
    file: Path | None
    seconds: float
    timed: bool = False
    report: Report | None = None

    @property
    def problem(self) -> Problem:
        """What was timed."""
        return self.request.problem

    @property
    def reference(self) -> str:
        """What finds the study again: its storage where one was given, else its name."""
        return self.request.storage or self.request.study_name

    @property
    def tally(self) -> Tally:
        return tally(self.records)

    @property
    def ranking(self) -> list[Record]:
        """By times; by estimates where the choice is."""
        if self.choice is not None and self.choice.estimated:
            return choose.estimated(self.records)
        return choose.ranking(self.records)

    @property
    def exit_status(self) -> int:
        """0 where at least one variant is right, or, without a backend, compiled; else 1."""
        good = Outcome.OK if self.place.backend else Outcome.UNVERIFIED
        return 0 if any(record.outcome in (good, Outcome.OK) for record in self.records) else 1

    def _best(self, best: Record) -> dict[str, object]:
        assert self.report is not None, "what won was looked at"
        return {"name": best.name, **_time_of(best), "file": str(self.file), **self.report.verdict()}

    def as_json(self) -> dict[str, object]:
        """The document of ``sweep --json``."""
        best, other = self.choice.best if self.choice else None, self.place.stand_in
        return {
            "study": self.request.study_name,
            "arch": self.place.arch.name,
            "backend": self.place.name,
            "device": self.place.device,
            "foreign": self.place.foreign,
            "problem": str(self.problem),
            "outcomes": self.tally.counts,
            "best": None if best is None else self._best(best),
            "space": {"legal": len(self.space), "raw": self.space.raw, "removed": self.space.removed},
            "leading": [record.name for record in self.leading],
            "finals": None
            if self.finals is None
            else [
                {key: row[key] for key in ("name", "outcome", "median_us", "interval_us", "tflops", "share", "flags")}
                for row in (row.as_json() for row in self.finals.rows)
            ],
            "trials": len(self.records),
            "new": self.new,
            "seconds": round(self.seconds, 3),
            "stand_in": other.name if other is not None else None,
        }


def _look(winner: KernelConfig, arch: Arch, compiler: Compiler) -> Report:
    """The lint of what won; where the compiler of today refuses what won before, that, and no end of the sweep."""
    try:
        return gate.look(winner, arch, compiler)
    except CompileError as error:
        return lint.not_done(error)


def _time_of(best: Record) -> dict[str, object]:
    """Its time, or where it has none that ranks its estimate, under a name of its own."""
    if best.ranks and best.timing is not None:
        timing = best.timing
        return {
            "median_us": timing.median_us,
            "interval_us": list(timing.interval_us),
            "flags": list(timing.flags),
        }
    assert best.estimate is not None, "what is best was timed or estimated"
    guess = best.estimate
    return {"estimated_us": guess.us, "chip": guess.chip, "limiting": guess.limiting}


def check_name(request: Request) -> None:
    """Return where the request's study can have its name.

    Raises:
        StudyError: it cannot.
    """
    tune.check_name(request.study_name)


OnRecord = Callable[[Record, tune.Progress], None]


def sweep(request: Request, place: Place, on_record: OnRecord) -> Result:
    """Run the study that ``request`` describes, going on where an earlier run of it stopped.

    Raises:
        RequestError: the request leaves no legal variant.
        StudyError: the study exists and was made for something else.
        MissingPiece: no compiler here.
        KeyboardInterrupt: everything finished so far is kept.
    """
    if 0 in (*request.size[:2], request.batch):
        raise RequestError(f"--problem {request.problem} has no element of D to time", "give sizes above 0")
    if not emit.may_write(request.generated):
        raise RequestError(f"--generated {request.generated} cannot be written", "choose another folder")
    space = Space(request.operation, request.arch, request.fixed, problem=request.problem)
    space.demand()
    study = tune.open_study(
        request.study_name,
        request.storage,
        arch=request.arch,
        operation=request.operation,
        problem=str(request.problem),
        fixed=request.fixed,
    )
    with _foundry(request, place) as foundry:
        done = tune.sweep(
            space,
            lambda config: try_out(
                config, request.arch, request.problem, place.backend, request.protocol, foundry.compile
            ),
            study,
            trials=request.trials,
            budget_s=request.budget_s,
            exhaustive=request.exhaustive,
            counts=lambda record: settles(record, place, request.arch),
            ahead=_ahead(foundry, request, place),
            guess=_guess(request, place),
            on_record=on_record,
        )
    return _conclude(request, place, space, study, done)


def _guess(request: Request, place: Place) -> tune.Guess | None:
    """What orders the first trials: the estimate for the card that is here, or for the usual one of ``arch``."""
    arch, problem = request.arch, request.problem
    chip = pick.chip(arch, place.device if place.ranks else None)
    if not estimate.priced(request.operation, chip):
        return None
    return lambda config: estimate.estimate(config, arch, chip, problem).us


def _foundry(request: Request, place: Place) -> Foundry:
    until = None if request.budget_s is None else time.monotonic() + request.budget_s
    # Compilers that work while the card is timed must not keep the process that times it from its core.
    return Foundry(
        request.jobs or usable_cores(),
        until=until,
        gives_way=place.backend is not None,
        line_info=place.names_lines,
    )


def _ahead(foundry: Foundry, request: Request, place: Place) -> tune.Ahead:
    """Compile the candidates that are certain to come while those before them are compiled, run and timed."""

    def begin(config: KernelConfig) -> None:
        source = render(config, request.arch)
        foundry.begin(foundry.order(source.text, source.kernel, request.arch))

    return tune.Ahead(begin, foundry.jobs * ORDERS_PER_PROCESS, costed=place.backend is not None)


def settles(record: Record, place: Place, arch: Arch) -> bool:
    """Whether ``record`` says what a trial would say here and now, so that its point need not be tried again.

    Not where the templates make another text of it today, where another compiler is at work, or where ``place`` can do
    more, or is another card.
    """
    if record.facts is not None and record.facts.compiler != nvrtc.title():
        return False
    return place.settles(record) and record.fingerprint == _fingerprint(record.name, arch)


@cache
def _fingerprint(name: str, arch: Arch) -> str:
    try:
        return render(parse(name), arch).fingerprint
    except RequestError:
        return ""  # a name of another version, or what no template makes any more


def _conclude(request: Request, place: Place, space: Space, study: tune.Study, done: tune.SweepResult) -> Result:
    """What the records of this request and this place amount to; a study may hold others."""

    def known() -> list[Record]:
        all_ = study.records()
        here = choose.latest(r for r in all_ if settles(r, place, request.arch) and _belongs(r, space))
        # What another place found wrong is wrong here, too.
        refuted = {r.name: r for r in choose.latest(all_) if r.refutes}
        return [refuted.get(r.name, r) for r in here]

    records = known()
    finals = _finals(request, place, study, records)
    if finals is not None and not finals.right:
        records = known()  # a leader that was wrong in the end is none
    choice = None
    timed = any(record.ranks for record in _of_today(study.records(), request.arch))
    if place.backend:
        choice = choose.decided(records, study.finals())
        if choice is None and not timed:
            choice = choose.by_estimate(records)
    file = report = None
    if choice is not None:
        file = request.generated / request.arch.name / f"{choice.best.name}.cu"
        winner = parse(choice.best.name)
        emit.write(file, render(winner, request.arch).text)
        # As it was compiled for its trial, so that it is found again.
        compiler = partial(foundry.compile_source, line_info=place.names_lines)
        report = _look(winner, request.arch, compiler)
    leading = () if choice else tuple(choose.leading(records, request.arch)[:LEADING])
    return Result(
        request, place, space, tuple(records), done.new, choice, leading, finals, file, done.seconds, timed, report
    )


def _finals(request: Request, place: Place, study: tune.Study, records: Sequence[Record]) -> Table | None:
    """Measure the leaders again, in turns with each other and with their denominators, and keep what that says.

    Not where no time ranks, nor where the fastest was measured so before.
    """
    leaders = choose.ranking(records)[:FINALISTS] if place.ranks else []
    if not leaders or choose.measured_again(leaders[:1], study.finals()):
        return None
    configs = [parse(record.name) for record in leaders]
    table = bench.measure(configs, request.arch, request.size, place, request.protocol, batch=request.batch)
    again = [
        replace(record, outcome=row.outcome, detail=row.detail, timing=row.timing)
        for record, row in zip(leaders, table.rows, strict=True)
    ]
    for record in again:
        if record.outcome is not Outcome.OK:
            study.add(record)
    study.keep_finals([record for record in again if record.outcome is Outcome.OK])
    return table


def _belongs(record: Record, space: Space) -> bool:
    return _has_name(record) and space.contains(parse(record.name))


def _has_name(record: Record) -> bool:
    """Whether a record's name is one today; those of another version may not be."""
    try:
        parse(record.name)
    except RequestError:
        return False
    return True


def best_of(study: str) -> tuple[KernelConfig, Arch, Evidence]:
    """The winner of a study, its architecture, and what became of it there, for ``emit --best``.

    Args:
        study: its name below ``sweeps/``, its file, or its storage's URL.

    Raises:
        StudyError: no such study, or none of its candidates may be called best.
    """
    found = tune.find_study(study)
    arch = archs.find(found.about.arch)
    records, finals = found.records(), found.finals()
    choice = _best(_of_today(records, arch), finals)
    if choice is None and (former := _best(records, finals)):
        raise StudyError(
            f"the winner of study {found.name}, {former.best.name}, was proved with other templates than today's",
            "sweep again: the same command tries again what has changed",
        )
    if choice is None:
        leading = choose.leading(filter(_has_name, records), arch)
        fix = "sweep first"
        if leading:
            command = f"wmmagen emit {leading[0].name} --arch {arch} --to DIR"
            right = leading[0].outcome is Outcome.OK and _of_today(leading[:1], arch)
            what = "is verified, but ranks by no time or estimate" if right else "nobody has verified"
            fix = f"`{command}` emits its leading candidate, which {what}"
        raise StudyError(
            f"study {found.name} holds no candidate verified and timed on its own architecture, or estimated",
            fix,
        )
    return parse(choice.best.name), arch, Evidence(found.name, choice.best)


def _best(records: Sequence[Record], finals: Sequence[Record]) -> Choice | None:
    return choose.decided(records, finals) or choose.by_estimate(records)


def _of_today(records: Sequence[Record], arch: Arch) -> list[Record]:
    """The records of what the templates make today; of another text nothing is known by them."""
    return [r for r in records if "" != r.fingerprint == _fingerprint(r.name, arch)]
