"""Every way in which wmmagen says no, and the exit status each one carries.

::

    WmmagenError
    ├── RequestError          2   the request cannot be; nothing was compiled or written
    │   ├── ConfigError           a configuration, a name or a size that cannot be read
    │   ├── IllegalConfig         rules are broken; carries every violation
    │   ├── NotGeneratedYet       known and legal, but no template makes it today
    │   └── StudyError            a study that is not there, or does not hold what was asked
    ├── AnswerIsNo            1   the work ran, and its answer is no
    │   ├── CompileError          the compiler refused the source; carries its log
    │   ├── DisassemblyError      machine code that could not be read
    │   ├── LintError             machine code that was read, and has defects
    │   ├── PtxError              PTX that could not be read, or holds what the executor does not know
    │   └── MutantError           a mutant that is none: it does not apply, does not compile, or changes nothing
    ├── OutOfTime             1   the time that was given ended before the work did
    ├── MissingPiece          3   the machine lacks something; says how to get it
    └── Fault                 1   a kernel that ran badly; carries its outcome
        ├── LaunchFault           the launch itself was refused
        ├── TimeoutFault          it did not end within its limit
        ├── CrashFault            it ended the context or the worker process
        └── HazardFault           it did what no kernel may do, whatever its values; carries what was found

``message`` says what was asked and what is wrong, ``fix`` what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class WmmagenError(Exception):
    """The root of every error that wmmagen raises on purpose.

    Attributes:
        message: what was asked and what is wrong.
        fix: what to do about it; empty where nothing can be done.
    """

    kind: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message if not fix else f"{message}\n{fix}")
        self.message = message
        self.fix = fix

    def as_json(self) -> dict[str, object]:
        """The ``error`` object of the command line's ``--json`` contract."""
        return {"kind": self.kind, "message": self.message, "fix": self.fix}


class RequestError(WmmagenError):
    """The request cannot be carried out as it stands. Nothing was compiled or written."""

    kind = "request"
    exit_status = 2


class ConfigError(RequestError):
    """A configuration, a kernel name, an architecture or a size that cannot be read."""

    kind = "config"


class IllegalConfig(RequestError):
    """Rules are broken. ``violations`` holds all of them, in the order of the table."""

    kind = "illegal"

    def __init__(self, message: str, fix: str, violations: Sequence[object]) -> None:
        super().__init__(message, fix)
        self.violations = tuple(violations)


class NotGeneratedYet(RequestError):
    """Known to the tables, refused by no rule, but made by no template today."""

    kind = "not-generated-yet"


class StudyError(RequestError):
    """A study that is not there, or that does not hold what was asked of it."""

    kind = "study"


class AnswerIsNo(WmmagenError):
    """The work ran to its end, and its answer is no."""

    kind = "no"
    exit_status = 1


class CompileError(AnswerIsNo):
    """The compiler refused a source. ``log`` is its whole answer."""

    kind = "compile"

    def __init__(self, message: str, fix: str = "", log: str = "") -> None:
        super().__init__(message, fix)
        self.log = log


class DisassemblyError(AnswerIsNo):
    """Machine code that nvdisasm or :mod:`wmmagen.sass` could not read; says where."""

    kind = "disassembly"


class LintError(AnswerIsNo):
    """Machine code with defects that nobody asked to have anyway. Nothing was written."""

    kind = "lint"


class PtxError(AnswerIsNo):
    """PTX that does not follow its grammar, or an instruction that the executor does not know; says in which line."""

    kind = "ptx"


class MutantError(AnswerIsNo):
    """A mutant that is none: an edit that does not apply, a source that does not compile, or the same kernel."""

    kind = "mutant"


class OutOfTime(WmmagenError):
    """The time that was given ended before the work did. Nothing of it is kept."""

    kind = "time"


class MissingPiece(WmmagenError):
    """The machine lacks a compiler, a header or a GPU. ``fix`` is the command that brings it."""

    kind = "missing"
    exit_status = 3


class Fault(WmmagenError):
    """A kernel that ran badly. ``outcome`` is the word that the records keep."""

    kind = "fault"
    exit_status = 1
    outcome: ClassVar[str] = "crash"


class LaunchFault(Fault):
    """The launch was refused: too many threads, registers or bytes of shared memory, no such symbol."""

    outcome = "launch"


class TimeoutFault(Fault):
    """The kernel did not end within its limit; its process was killed."""

    outcome = "timeout"


class CrashFault(Fault):
    """The kernel ended its context (an illegal address, a trap) or its process."""

    outcome = "crash"


class HazardFault(Fault):
    """A race, a read of nothing, a broken alignment: what no kernel may do, whatever its values.

    ``findings`` holds each as it is in ``runs`` of ``validate --json``.
    """

    outcome = "wrong"

    def __init__(self, message: str, findings: Sequence[dict[str, object]]) -> None:
        super().__init__(message)
        self.findings = tuple(findings)
