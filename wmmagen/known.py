"""The best kernel that is known for a problem: of a study that is here, of the table of winners, or by estimate.

``winners.txt`` keeps what won sweeps on real cards, a line each: the architecture, the problem, the kernel's name. What
computes another operation, other sizes or runs on another architecture is another line.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from wmmagen import arch as archs
from wmmagen import config, coverage, estimate, job, rules, seeds
from wmmagen.arch import Arch
from wmmagen.chips import Chip
from wmmagen.config import KernelConfig, Operation, Problem
from wmmagen.errors import RequestError, StudyError
from wmmagen.space import Space

#: How a kernel came to be the best one that is known.
Origin = Literal["study", "winner", "estimate"]

FILE = Path(__file__).parent / "winners.txt"
#: A winner stands in for problems whose extents are within this factor of its own.
NEAR = 2
#: Points that the estimate chooses from beside the seeds of a sweep, and the seed of their draw: the same request has
#: the same answer.
_DRAWN, _SEED = 256, 0


@dataclass(frozen=True)
class Known:
    """A kernel, and how it is known.

    Attributes:
        config: the kernel.
        origin: of the study below ``sweeps/``, of the table of winners, or by estimate.
        words: the same in words.
    """

    config: KernelConfig
    origin: Origin
    words: str


@dataclass(frozen=True)
class Winner:
    """A line of the table."""

    arch: Arch
    size: tuple[int, int, int]
    config: KernelConfig


def best(operation: Operation, arch: Arch, size: tuple[int, int, int], chip: Chip, batch: int = 1) -> Known:
    """The best kernel that is known for a packed problem of ``operation``; a legal one, whoever knows it.

    Args:
        size: M, N and K.
        chip: that an estimate is of, where nothing was measured.
        batch: how many products of that size, of an operation that takes a batch.

    Raises:
        RequestError: no variant takes ``size``.
        ConfigError: nothing was measured, and the chip's rate of such products is not known.
    """
    problem = Problem.packed(operation, *size, batch=batch)
    return _of_study(problem, arch, size) or _of_winners(problem, arch, size) or _of_estimate(problem, arch, chip)


def _of_study(problem: Problem, arch: Arch, size: tuple[int, int, int]) -> Known | None:
    study = job.Request(problem.operation, arch, size, batch=problem.batch).study_name
    try:
        found, of, _ = job.best_of(study)
    except StudyError:
        return None
    right = of == arch and found.operation == problem.operation and _takes(found, arch, problem)
    return Known(found, "study", f"the winner of the study {study}") if right else None


def _of_winners(problem: Problem, arch: Arch, size: tuple[int, int, int]) -> Known | None:
    near = [
        one
        for one in winners()
        if one.arch == arch
        and one.config.operation == problem.operation
        and _apart(one.size, size) <= NEAR
        and _takes(one.config, arch, problem)
    ]
    if not near:
        return None
    one = min(near, key=lambda one: _apart(one.size, size))
    return Known(one.config, "winner", f"what won at {'x'.join(map(str, one.size))}")


def _of_estimate(problem: Problem, arch: Arch, chip: Chip) -> Known:
    space = Space(problem.operation, arch, {}, problem=problem)
    space.demand()
    fresh: Iterable[KernelConfig] = [*seeds.for_space(space), *space.sample(random.Random(_SEED), _DRAWN)]
    guessed: dict[KernelConfig, float] = {}
    while True:
        guessed |= {one: estimate.estimate(one, arch, chip, problem).us for one in fresh if one not in guessed}
        best = min(guessed, key=lambda one: (guessed[one], config.name(one)))
        # From there on to what is better by one step, until nothing is.
        fresh = [one for one in space.neighbours(best) if one not in guessed]
        if not fresh:
            return Known(best, "estimate", f"the best of {len(guessed)} by estimate")


def _takes(kernel: KernelConfig, arch: Arch, problem: Problem) -> bool:
    return not rules.check(kernel, arch, problem) and not coverage.missing(kernel)


def _apart(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    """The largest factor between extents of two sizes."""
    return max(max(a, b) / max(min(a, b), 1) for a, b in zip(one, other, strict=True))


@cache
def winners(file: Path = FILE) -> tuple[Winner, ...]:
    """The table, in its order.

    Raises:
        RequestError: a line is none.
    """
    return tuple(_winner(line) for line in file.read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#"))


def line_of(arch: Arch, size: tuple[int, int, int], kernel: KernelConfig) -> str:
    """The line of the table that says of a kernel that it won."""
    return f"{arch} {'x'.join(map(str, size))} {config.name(kernel)}"


def _winner(line: str) -> Winner:
    words = line.split()
    if len(words) != 3:
        raise RequestError(f"{line!r} is no line of winners", "ARCHITECTURE MxNxK NAME")
    return Winner(archs.find(words[0]), config.read_size(words[1]), config.parse(words[2]))
