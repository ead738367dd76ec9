"""The main job: from a request to a study, its ranking, and the winner's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wmmagen import arch as archs
from wmmagen import choose, emit, tune
from wmmagen.arch import Arch
from wmmagen.backends.pick import Place
from wmmagen.choose import Choice
from wmmagen.config import KernelConfig, Operation, Problem, parse
from wmmagen.errors import StudyError
from wmmagen.records import Outcome, Record, Tally, tally
from wmmagen.render import render
from wmmagen.space import Space
from wmmagen.timing import TimingProtocol
from wmmagen.trial import operation_of, try_out

DEFAULT_TRIALS = 40
#: How many candidates are shown where none may be called best.
LEADING = 5


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
        budget_s: seconds after which no further candidate is begun; None for no limit.
        storage: the storage's URL or file; None for ``sweeps/<study>.db``.
        study: the study's name; None for one made of architecture, types and size.
        generated: the folder below which the winner's file is written.
    """

    operation: Operation
    arch: Arch
    size: tuple[int, int, int]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    trials: int | None = DEFAULT_TRIALS
    exhaustive: bool = False
    budget_s: float | None = None
    storage: str | None = None
    study: str | None = None
    generated: Path = Path("generated")
    protocol: TimingProtocol = field(default_factory=TimingProtocol)

    @property
    def problem(self) -> Problem:
        """The timed problem, packed."""
        return Problem.packed(self.operation, *self.size)

    @property
    def study_name(self) -> str:
        """``sm_75_f16_f32_f32_rr_2048x2048x2048`` where none was given."""
        return self.study or f"{self.arch}_{operation_of(self.operation)}_{self.problem}"


@dataclass(frozen=True)
class Result:
    """How a sweep ended.

    Attributes:
        study: its name.
        place: where candidates ran.
        problem: what was timed.
        records: every candidate of the study, as what is known of it last; those of earlier runs included.
        new: candidates of this run.
        choice: the best right and ranked one with its runner-up; None where none may be called best.
        leading: the leading candidates where none may be called best.
        file: the winner's file.
        seconds: of this run.
    """

    study: str
    place: Place
    problem: Problem
    records: tuple[Record, ...]
    new: int
    choice: Choice | None
    leading: tuple[Record, ...]
    file: Path | None
    seconds: float

    @property
    def tally(self) -> Tally:
        return tally(self.records)

    @property
    def ranking(self) -> list[Record]:
        return choose.ranking(self.records)

    @property
    def exit_status(self) -> int:
        """0 where at least one variant is right, or where nothing could be run; 1 where all that ran failed."""
        outcomes = {record.outcome for record in self.records}
        return 0 if outcomes & {Outcome.OK, Outcome.UNVERIFIED} else 1

    def as_json(self) -> dict[str, object]:
        """The document of ``sweep --json``."""
        best = self.choice.best if self.choice else None
        return {
            "study": self.study,
            "arch": self.place.arch.name,
            "backend": self.place.name,
            "problem": str(self.problem),
            "outcomes": self.tally.counts,
            "best": None
            if best is None or best.timing is None
            else {"name": best.name, "median_us": best.timing.median_us, "file": str(self.file)},
            "leading": [record.name for record in self.leading],
            "trials": len(self.records),
            "new": self.new,
            "seconds": round(self.seconds, 3),
        }


OnRecord = Callable[[Record, tune.Progress], None]


def sweep(request: Request, place: Place, on_record: OnRecord) -> Result:
    """Run the study that ``request`` describes, going on where an earlier run of it stopped.

    Raises:
        RequestError: the request leaves no legal variant.
        StudyError: the study exists and was made for something else.
        MissingPiece: no compiler here.
        KeyboardInterrupt: everything finished so far is kept.
    """
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
    done = tune.sweep(
        space,
        lambda config: try_out(config, request.arch, request.problem, place.backend, request.protocol),
        study,
        trials=request.trials,
        budget_s=request.budget_s,
        exhaustive=request.exhaustive,
        counts=place.settles,
        on_record=on_record,
    )
    return _conclude(request, place, done)


def _conclude(request: Request, place: Place, done: tune.SweepResult) -> Result:
    choice = choose.choose(done.records)
    file = None
    if choice is not None:
        file = request.generated / request.arch.name / f"{choice.best.name}.cu"
        emit.write(file, render(parse(choice.best.name), request.arch).text)
    leading = () if choice else tuple(choose.leading(done.records, request.arch)[:LEADING])
    latest = tuple(choose.latest(done.records))
    return Result(request.study_name, place, request.problem, latest, done.new, choice, leading, file, done.seconds)


def best_of(study: str) -> tuple[KernelConfig, Arch]:
    """The winner of a study and its architecture, for ``emit --best``.

    Args:
        study: its name below ``sweeps/``, its file, or its storage's URL.

    Raises:
        StudyError: no such study, or none of its candidates may be called best.
    """
    found = tune.find_study(study)
    arch = archs.find(found.about.arch)
    records = found.records()
    choice = choose.choose(records)
    if choice is None:
        leading = choose.leading(records, arch)
        fix = "sweep first"
        if leading:
            command = f"wmmagen emit {leading[0].name} --arch {arch} --to DIR"
            fix = f"`{command}` emits its leading candidate, which no time ranks"
        raise StudyError(f"study {found.name} holds no candidate verified and timed on its own architecture", fix)
    return parse(choice.best.name), arch
