"""The executor's proof without a GPU: right kernels are exact on it, and it finds nothing in them. Writes its records.

    python tests/nvrtc/prove_executor.py [--each 60] [--jobs N] [--to tests/nvrtc/records]

For each of seven architectures as many configurations of f16 operands are drawn, none of them twice: two thirds over
all axes at once, promised alignments among them (``tests/draws.py``), one third evenly from the search spaces of drawn
operations (``tests/fresh.py``). Each is compiled for its architecture and validated on its hostile problems and on a
larger one of a drawn size. Drawn by a fixed seed, so the same every time. The record has a line for each. Exit status 0
where all results are exact and nothing is found.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tests.draws import draws
from tests.fresh import from_spaces, larger
from wmmagen import emit, trial
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends.cpu import CpuBackend
from wmmagen.config import KernelConfig, Problem, name, spell, values_of
from wmmagen.errors import Fault
from wmmagen.foundry import Foundry, Order, usable_cores
from wmmagen.nvrtc import Binary
from wmmagen.render import Source, render

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
SEED = 20_260_801
#: Of three configurations, those that are drawn over all axes at once.
OVER_AXES = 2
#: Configurations under way or waiting, for each process.
_AHEAD = 3
_SAID_EVERY = 20


@dataclass(frozen=True)
class Case:
    """A configuration with its place in the list, which is the seed of its sizes and of its fragment layouts."""

    number: int
    arch: Arch
    config: KernelConfig
    source: Source


@dataclass(frozen=True)
class Proved:
    """What became of one; ``drawn`` is the problem of a drawn size, ``wrong`` empty where all is right."""

    problems: tuple[Problem, ...]
    drawn: Problem
    launches: int
    wrong: str


# What is drawn -------------------------------------------------------------------------------------------------------


def chosen(each: int) -> list[tuple[Arch, KernelConfig]]:
    """``each`` configurations for every architecture, no two of them alike."""
    seen: set[KernelConfig] = set()
    found: list[tuple[Arch, KernelConfig]] = []
    for sm in ARCHITECTURES:
        arch, over_axes = ARCHS[sm], each * OVER_AXES // 3
        fresh = (c for c in draws(arch, each * len(ARCHITECTURES)) if c not in seen)
        mine = list(islice(fresh, over_axes))
        seen.update(mine)
        mine += islice(from_spaces(arch, random.Random(SEED + sm), seen), each - over_axes)
        found += [(arch, config) for config in mine]
    return found


# What is proved ------------------------------------------------------------------------------------------------------


def prove(config: KernelConfig, binary: Binary, number: int) -> Proved:
    """Validate one; the random fragment layouts are other ones for every launch and every configuration."""
    problems = trial.validation_problems(config)
    drawn = larger(config, random.Random(SEED + number))
    backend = CpuBackend(seed=1000 * number)
    try:
        runs = trial.validate(config, binary, backend, [*problems, drawn], above=None)
    except Fault as fault:
        return Proved(problems, drawn, 0, f"{fault.outcome}: {fault.message}")
    wrong = [f"{run.problem}: {run.mismatch}" for run in runs if not (run.exact and run.guaranteed)]
    return Proved(problems, drawn, len(runs), "; ".join(wrong))


def proved(cases: Iterable[tuple[Case, Binary]], jobs: int) -> Iterator[tuple[Case, Binary, Proved]]:
    """What becomes of each, in their order; a few are begun before the first is waited for."""
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        begun: Iterator[tuple[Case, Binary, Future[Proved]]] = (
            (case, binary, pool.submit(prove, case.config, binary, case.number)) for case, binary in cases
        )
        waiting = deque(islice(begun, _AHEAD * jobs))
        while waiting:
            case, binary, future = waiting.popleft()
            answer = future.result()
            waiting.extend(islice(begun, 1))
            yield case, binary, answer


def compiled(cases: Sequence[Case], jobs: int) -> Iterator[tuple[Case, Binary]]:
    """Each with its binary; a source that the compiler refuses ends the proof."""
    with Foundry(jobs) as foundry:
        orders = (Order(case.source.text, case.source.kernel, case.arch) for case in cases)
        for case, answer in zip(cases, foundry.compile_many(orders), strict=True):
            if not isinstance(answer, Binary):
                raise answer
            yield case, answer


# The records ---------------------------------------------------------------------------------------------------------


def line(case: Case, binary: Binary, answer: Proved) -> str:
    """A line of the record: nothing in it depends on the machine or the hour."""
    document = {
        "arch": case.arch.name,
        "name": name(case.config),
        "fingerprint": case.source.fingerprint,
        "compiler": binary.compiler,
        "launches": answer.launches,
        "problems": [_described(problem) for problem in answer.problems],
        "drawn": _described(answer.drawn),
        "exact": not answer.wrong,
        "wrong": answer.wrong,
    }
    return json.dumps(document, sort_keys=True)


def _described(problem: Problem) -> str:
    p = problem
    factors = f" ldc {p.ldc} alpha {p.alpha:g} beta {p.beta:g}" if p.operation.scaled else ""
    return f"{p} lda {p.lda} ldb {p.ldb} ldd {p.ldd}{factors}"


def summary(done: Sequence[tuple[Case, Binary, Proved]], seconds: float, jobs: int) -> str:
    """What is committed beside the record; its first line alone depends on the machine."""
    wrong = [case for case, _, answer in done if answer.wrong]
    launches = sum(answer.launches for _, _, answer in done)
    per_arch = Counter(case.arch.name for case, _, _ in done)
    lines = [
        f"CPU executor, {jobs} processes: {len(done)} configurations in {seconds:.0f} s",
        f"compiled by {', '.join(sorted({binary.compiler for _, binary, _ in done}))}",
        f"{len(done) - len(wrong)} exact without a finding, {len(wrong)} not; {launches} checked launches, "
        f"{len(done)} of them on drawn sizes",
        f"architectures: {_counted(per_arch)}",
        *_axes([case.config for case, _, _ in done]),
    ]
    return "\n".join(lines) + "\n"


def _axes(configs: Sequence[KernelConfig]) -> list[str]:
    """How often each value of each key is among them; of keys with one value, nothing."""
    held = [values_of(config) for config in configs]
    columns = {key: Counter(spell(values[key]) for values in held) for key in held[0]}
    return [f"  {key}: {_counted(counts)}" for key, counts in columns.items() if len(counts) > 1]


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{value} {counts[value]}" for value in sorted(counts, key=_natural))


def _natural(word: str) -> list[tuple[int, str]]:
    """A key by which numbers within words stand in the order of numbers."""
    return [(int(number or 0), text) for text, number in re.findall(r"(\D*)(\d*)", word)]


def main() -> int:
    """Draw, compile, validate, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=usable_cores())
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    begin = time.monotonic()
    # One thread for each process is enough: NumPy's libraries would start as many again as there are cores.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    wanted = [
        Case(number, arch, config, render(config, arch)) for number, (arch, config) in enumerate(chosen(asked.each))
    ]
    print(f"{len(wanted)} configurations drawn in {time.monotonic() - begin:.0f} s", flush=True)
    done: list[tuple[Case, Binary, Proved]] = []
    for case, binary, answer in proved(compiled(wanted, asked.jobs), asked.jobs):
        done.append((case, binary, answer))
        if answer.wrong:
            print(f"not right on {case.arch}: {name(case.config)}: {answer.wrong}", file=sys.stderr, flush=True)
        if len(done) % _SAID_EVERY == 0:
            print(f"{len(done)} of {len(wanted)} after {time.monotonic() - begin:.0f} s", flush=True)
    text = summary(done, time.monotonic() - begin, asked.jobs)
    emit.write(asked.to / "executor.jsonl", "".join(f"{line(*entry)}\n" for entry in done))
    emit.write(asked.to / "executor.txt", text)
    print(text, end="")
    return 0 if done and not any(answer.wrong for _, _, answer in done) else 1


if __name__ == "__main__":
    sys.exit(main())
