"""The validator's own test: kernels with a known mistake, each of which it has to reject, for the right reason.

A mutant is killed where validation rejects it and says why as :mod:`wmmagen.mistakes` expects. One that does not
compile, or whose PTX is that of the right kernel, is no mutant: the table is wrong, and that is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from wmmagen import foundry, rules, trial
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import Backend
from wmmagen.backends.cpu import CpuBackend
from wmmagen.config import KernelConfig, Reduction
from wmmagen.defaults import read_config
from wmmagen.errors import CompileError, Fault, MutantError, RequestError
from wmmagen.foundry import Compiler, Foundry, Order
from wmmagen.mistakes import KINDS, MUTANTS, Mutant, break_source
from wmmagen.nvrtc import Binary
from wmmagen.render import Source, render

#: Instructions that the executor grants a launch of a mutant, twenty times what the right kernels of the table take. So
#: what never ends is told within seconds, and by a number that does not depend on the machine.
BUDGET = 45_000
#: The same where blocks meet along K: with every second seed each of them runs by itself.
BUDGET_OF_MEETING = 150_000
#: Where nobody names an architecture: the oldest one that has every part of the templates.
DEFAULT = ARCHS[80]


@dataclass(frozen=True)
class Case:
    """A mutant of one configuration for one architecture."""

    mutant: Mutant
    text: str
    arch: Arch

    @property
    def config(self) -> KernelConfig:
        return read_config(self.text, self.arch)

    def source(self) -> Source:
        """The right kernel."""
        return _rendered(self.text, self.arch)

    def order(self) -> Order:
        """What to compile.

        Raises:
            MutantError: an edit does not apply as it says.
        """
        source = self.source()
        return Order(break_source(source.text, self.mutant), source.kernel, self.arch)

    def __str__(self) -> str:
        return f"{self.mutant.kind} of {self.text} for {self.arch}"


@dataclass(frozen=True)
class Row:
    """What became of one mutant.

    Attributes:
        case: which.
        by: what rejected it: the code of a finding, ``values``, ``crash``, ``timeout``, ``launch``; empty for nothing.
        killed: whether it was rejected for the right reason; what is rejected for another one has not been understood.
        counted: whether it has to die here: on a GPU only what is visible in values does.
        problem: the problem that it was rejected on; empty for none.
        detail: the reason in words.
    """

    case: Case
    by: str
    killed: bool
    counted: bool
    problem: str
    detail: str

    @property
    def survived(self) -> bool:
        """Whether it had to die here and did not."""
        return self.counted and not self.killed

    def as_json(self) -> dict[str, object]:
        """An element of ``rows`` of ``mutants --json``."""
        mutant = self.case.mutant
        return {
            "kind": mutant.kind,
            "wrong": mutant.wrong,
            "origin": mutant.origin,
            "config": self.case.text,
            "arch": self.case.arch.name,
            "killed": self.killed,
            "by": self.by,
            "expected": mutant.expected,
            "visible": mutant.visible,
            "counted": self.counted,
            "problem": self.problem,
            "detail": self.detail,
        }


def chosen(kinds: Iterable[str]) -> tuple[Mutant, ...]:
    """The mutants of some kinds; all of them where none is named.

    Raises:
        RequestError: there is no such kind.
    """
    names = list(kinds)
    if unknown := [name for name in names if name not in KINDS]:
        raise RequestError(f"no mutant is called {' or '.join(unknown)}", f"one of: {' '.join(KINDS)}")
    return tuple(mutant for mutant in MUTANTS if not names or mutant.kind in names)


def cases(mutants: Iterable[Mutant], archs: Sequence[Arch]) -> Iterator[Case]:
    """Every mutant of each of its configurations, for each architecture on which that is legal."""
    for mutant in mutants:
        for text in mutant.configs:
            yield from (Case(mutant, text, arch) for arch in archs if _legal(text, arch))


@lru_cache
def _legal(text: str, arch: Arch) -> bool:
    try:
        return not rules.check(read_config(text, arch), arch)
    except RequestError:
        # No default is legal beside what the text asks for.
        return False


@lru_cache
def _rendered(text: str, arch: Arch) -> Source:
    return render(read_config(text, arch), arch)


def judge(case: Case, backend: Backend, compiler: Compiler = foundry.compile_source) -> Row:
    """Break, compile, validate, and look at the reason.

    Args:
        case: what.
        backend: where it runs. Without findings (on a GPU) what values do not show is not counted, and any rejection
            of what a finding should tell is right.
        compiler: what compiles it, and the right kernel beside it.

    Raises:
        MutantError: the mutant is none.
        MissingPiece: there is no compiler here, or the backend is gone for good.
    """
    binary = _mutated(case, compiler)
    config = case.config
    looks_inside = not backend.clocked
    counted = looks_inside or case.mutant.visible
    try:
        last = trial.validate(config, binary, backend, trial.validation_problems(config))[-1]
    except Fault as fault:
        right = _told(case.mutant, [fault.outcome], fault.message, looks_inside)
        return Row(case, fault.outcome, right, counted, "", fault.message)
    if last.exact:
        return Row(case, "", False, counted, "", "validated as exact")
    codes = list(dict.fromkeys(str(finding["code"]) for finding in last.findings))
    right = _told(case.mutant, codes or ["values"], last.mismatch, looks_inside)
    by = next((code for code in codes if code in case.mutant.codes), codes[0] if codes else "values")
    return Row(case, by, right, counted, str(last.problem), last.mismatch)


def _told(mutant: Mutant, codes: Sequence[str], words: str, looks_inside: bool) -> bool:
    """Whether a rejection has the right reason. A verdict on values stands for findings where nobody looks for them."""
    if set(codes) & set(mutant.codes):
        return True
    if mutant.codes and not looks_inside:
        return True
    found = any(code not in ("values", "crash", "timeout", "launch") for code in codes)
    return bool(mutant.words) and not found and re.search(mutant.words, words) is not None


def _mutated(case: Case, compiler: Compiler) -> Binary:
    order, right = case.order(), case.source()
    try:
        binary = compiler(order.source, order.entry, order.arch)
    except CompileError as error:
        raise MutantError(f"{case} does not compile: {error.message}\n{error.log}", "mend its edits") from error
    if binary.ptx == _right_ptx(case.text, case.arch, compiler, right):
        raise MutantError(f"{case} changes nothing: its PTX is the right kernel's", "another edit or configuration")
    return binary


def _right_ptx(text: str, arch: Arch, compiler: Compiler, source: Source) -> str:
    key = (text, arch.sm)
    if key not in _RIGHT:
        _RIGHT[key] = compiler(source.text, source.kernel, arch).ptx
    return _RIGHT[key]


#: PTX of right kernels, by configuration and architecture.
_RIGHT: dict[tuple[str, int], str] = {}


def executor(case: Case | None = None) -> CpuBackend:
    """The CPU executor with the patience that a mutant needs, of blocks that meet where none is named."""
    alone = case is not None and case.config.reduction is Reduction.NONE
    return CpuBackend(budget=BUDGET if alone else BUDGET_OF_MEETING)


def judge_all(
    some: Sequence[Case], backend: Backend, *, jobs: int = 1, told: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    """Judge one after the other; all are compiled ahead, in ``jobs`` processes.

    Args:
        some: which.
        backend: where they run. Each mutant meets an executor of its own, so that its fragment layouts do not depend on
            those before it.
        told: is called with each row as it comes.

    Raises:
        MutantError, MissingPiece: as :func:`judge` raises them.
    """
    rows = []
    with Foundry(jobs) as maker:
        for case in some:
            maker.begin(case.order())
        for case in some:
            here = executor(case) if isinstance(backend, CpuBackend) else backend
            rows.append(judge(case, here, maker.compile))
            told(rows[-1])
    return rows
