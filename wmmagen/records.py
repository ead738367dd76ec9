"""What became of a candidate: one outcome, the facts behind it, and their text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from wmmagen.timing import Timing


class Outcome(StrEnum):
    """How a candidate ended. The words of the records, of ``--json`` and of the histogram."""

    OK = "ok"  # compiled, right, and timed where there is a clock
    UNVERIFIED = "unverified"  # compiled; nothing here could run it
    ILLEGAL = "illegal"  # a rule is broken
    COMPILE = "compile"  # the compiler refused it
    LAUNCH = "launch"  # the launch was refused
    TIMEOUT = "timeout"  # it did not end within its limit
    CRASH = "crash"  # it ended the context or the process
    WRONG = "wrong"  # it ran, and its result is not the exact one


@dataclass(frozen=True)
class Facts:
    """What the compiler said about one candidate; per thread, per block, per multiprocessor.

    Attributes:
        registers: per thread.
        spill_bytes: per thread.
        stack_bytes: frame of the stack, per thread.
        shared_bytes: static and dynamic, per block.
        threads: per block.
        occupancy: blocks resident on one multiprocessor of the asked architecture.
        compile_seconds: wall time.
        compiler: name and version.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    threads: int
    occupancy: int
    compile_seconds: float
    compiler: str


@dataclass(frozen=True)
class Estimated:
    """A time that nobody measured.

    Attributes:
        us: of one launch, in microseconds.
        chip: that it was estimated for.
        limiting: the resource that would take longest.
    """

    us: float
    chip: str
    limiting: str

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Estimated:
        """The inverse of :func:`dataclasses.asdict`.

        Raises:
            TypeError: a field is missing, or is one too many.
            ValueError: a field is not what it should be.
        """
        made = cls(**plain)
        known = isinstance(made.us, int | float) and isinstance(made.chip, str) and isinstance(made.limiting, str)
        # Truth values are numbers to Python.
        if not known or isinstance(made.us, bool) or not (math.isfinite(made.us) and made.us > 0):
            raise ValueError(f"this is no estimate: {plain}")
        return made


@dataclass(frozen=True)
class Record:
    """One candidate's whole story.

    Attributes:
        name: the kernel's.
        arch: the architecture it was compiled for, ``sm_75``.
        problem: the size it was timed on, ``MxNxK``.
        outcome: how it ended.
        detail: for people: what is wrong, or empty.
        backend: ``gpu``, ``cpu`` or ``none``.
        device: what ran it; empty for none.
        foreign: assembled again for another card: its time says nothing about ``arch`` and never ranks.
        fingerprint: of the source that was compiled; empty where none was rendered.
        guaranteed: the inputs' bound proves that every right kernel gives these bits.
        runs: how many problems it was checked on.
        facts: what the compiler said; None where it was not reached.
        timing: None where it was not timed.
        estimate: of one that was compiled where no time of ``arch`` can be measured; else None.
    """

    name: str
    arch: str
    problem: str
    outcome: Outcome
    detail: str = ""
    backend: str = "none"
    device: str = ""
    foreign: bool = False
    guaranteed: bool = True
    fingerprint: str = ""
    runs: int = 0
    facts: Facts | None = None
    timing: Timing | None = None
    estimate: Estimated | None = None

    @property
    def ranks(self) -> bool:
        """Whether its time may be compared with others: right, timed, and on a card of its architecture."""
        return self.outcome is Outcome.OK and self.timing is not None and not self.foreign

    @property
    def ranks_by_estimate(self) -> bool:
        """Whether its estimate may be compared with others: right, and no time of it ranks."""
        return self.outcome is Outcome.OK and self.estimate is not None and not self.ranks

    @property
    def refutes(self) -> bool:
        """Whether it says that the kernel is wrong, which it is wherever it runs."""
        return self.outcome in (Outcome.WRONG, Outcome.CRASH)

    def to_json(self) -> dict[str, Any]:
        """The record as plain values, for :func:`json.dumps`."""
        plain = asdict(self)
        plain["outcome"] = self.outcome.value
        plain["timing"] = self.timing.to_json() if self.timing else None
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Record:
        """The inverse of :meth:`to_json`.

        Raises:
            ValueError: not the plain values of a record.
        """
        try:
            facts = Facts(**plain["facts"]) if plain["facts"] else None
            timing = Timing.from_json(plain["timing"]) if plain["timing"] else None
            # Records of the versions before the estimate have none.
            estimate = Estimated.from_json(plain["estimate"]) if plain.get("estimate") else None
            made = {"outcome": Outcome(plain["outcome"]), "facts": facts, "timing": timing, "estimate": estimate}
            record = cls(**{**plain, **made})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a record: {error}") from None
        if not (isinstance(record.name, str) and isinstance(record.arch, str) and isinstance(record.detail, str)):
            raise ValueError("not a record: a text is something else")
        return record


@dataclass(frozen=True)
class Tally:
    """How many candidates ended how, and the first reason of each kind."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)


def tally(records: Iterable[Record]) -> Tally:
    """Count outcomes, in the order of :class:`Outcome`; outcomes that did not occur count 0."""
    counts = dict.fromkeys((o.value for o in Outcome), 0)
    examples: dict[str, str] = {}
    for record in records:
        counts[record.outcome.value] += 1
        if record.detail:
            examples.setdefault(record.outcome.value, f"{record.name}: {record.detail}")
    return Tally(counts, examples)


def to_text(records: Iterable[Record]) -> str:
    """Records as text, one JSON object a line, keys in a fixed order: what is committed under ``sweeps/``."""
    return "".join(json.dumps(record.to_json(), sort_keys=True) + "\n" for record in records)
