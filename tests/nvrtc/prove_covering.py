"""The proof of all slots together: a covering array of configurations, exact on the executor. Writes its records.

    python tests/nvrtc/prove_covering.py [--jobs N] [--seconds S] [--only TEXT] [--continue] [--to tests/nvrtc/records]

``tests/covering.py`` makes the configurations: every two values that go together of all slots and architectures stand
in one, and every three of the main slots. Each is compiled for its architecture, its machine code is read, and it is
launched on its longest hostile problem and on one other in turn: several tiles, ragged for kernels that take all sizes,
guards around every matrix, leading dimensions beyond the extents. ``tests/gpu/prove_covering.py`` takes them from the
record. With ``--seconds`` nothing is begun after that time, and with ``--continue`` what is right in the record is not
done again. Exit status 0 where all are exact, nothing is found in any, and there are 600 or more.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests import covered
from tests.covered import AT_LEAST, Case, Told
from tests.covering import MAIN, TRIPLES, Array, Model, cases, covering
from tests.nvrtc.prove_types import Patient
from wmmagen import emit, lint, nvrtc, trial
from wmmagen.config import Problem, name
from wmmagen.errors import CompileError, Fault
from wmmagen.foundry import usable_cores
from wmmagen.nvrtc import Binary

#: Multiply-adds of a problem, where there is a smaller one; what is larger has no other code, and takes seconds.
MOST_WORK = 1 << 22
_SAID_EVERY = 20


def problems(case: Case, number: int) -> list[Problem]:
    """The hostile problem with the longest K, which sees the whole pipeline, and another one in turn."""
    hostile = [p for p in trial.validation_problems(case.config) if p.batch]
    short = [p for p in hostile if work(p) <= MOST_WORK]
    first = max((p for p in short if p.k), key=lambda p: p.k, default=min(filter(lambda p: p.k, hostile), key=work))
    others = [p for p in short if p != first and work(p) <= MOST_WORK // 4]
    return [first, *others[number % max(len(others), 1) :][:1]]


def work(problem: Problem) -> int:
    """Multiply-adds of all products."""
    return problem.batch * problem.m * problem.n * problem.k


def prove(case: Case, number: int) -> Told:
    """Compile one, read its machine code, launch it; fragments lie in another way in each launch."""
    config = case.config
    try:
        binary = trial.build(config, case.arch)[1]
        backend = Patient(seed=1000 * number)
        runs = [trial.check_run(config, binary, backend, problem, above=None) for problem in problems(case, number)]
    except (CompileError, Fault) as error:
        return Told(case.arch.name, name(config), 0, f"{type(error).__name__}: {error.message}")
    wrong = [f"{run.problem}: {run.mismatch}" for run in runs if not (run.exact and run.guaranteed)]
    report = lint.examine(config, binary)
    slow = [defect for defect in report.defects if of_assembler(defect, binary)]
    said = "; ".join([*wrong, *(defect for defect in report.defects if defect not in slow)])
    return Told(case.arch.name, name(config), len(runs), said, not report.undone, binary.spill_bytes, "; ".join(slow))


def of_assembler(defect: str, binary: Binary) -> bool:
    """Whether a defect is none of the text: its tile is drawn too large for the registers, or a copy came in pieces.

    ptxas 13.5 was seen to store one of several copies of 16 or 8 bytes by stores of 4, for sm_75, sm_80, sm_87, sm_89.
    """
    if binary.spill_bytes and (defect in lint.compiler_defects(binary) or defect.startswith("local memory")):
        return True
    stored = re.search(r"copies by (\d+) STS\.32 \(first at \w+\), where only (.*) is promised", defect)
    if stored is None:
        return False
    wider = [int(bits) for bits in re.findall(r"\bSTS\.(\d+)", stored[2]) if int(bits) > 32]
    return any(int(stored[1]) % (bits // 32) == 0 for bits in wider)


# The record ----------------------------------------------------------------------------------------------------------


def coverage_of(model: Model, each: Array) -> Iterator[str]:
    """How many combinations there are, and of pairs of main slots those that no configuration has, with the reason."""
    total = len(each.covered) + len(each.refused)
    yield (
        f"every {each.strength} of {len(each.names)} axes in {len(each.rows)} rows: {len(each.covered)} of {total} "
        f"combinations, all that any configuration has; {len(each.refused)} have none"
    )
    if each.strength == 2:
        main = [c for c in (*each.covered, *each.refused) if all(axis in MAIN for axis, _ in c)]
        lost = {c: each.refused[c] for c in main if c in each.refused}
        yield f"  of the main axes {', '.join(MAIN)}: {len(main) - len(lost)} of {len(main)} pairs; none has the others"
        yield "  because of these rules, or of what is not made yet:"
        for combination in lost:
            words = " with ".join(f"{axis}={word}" for axis, word in model.words(dict(combination)).items())
            yield f"    {words}: {' '.join(sorted(model.needed(dict(combination))))}"
    else:
        yield f"  {', '.join(TRIPLES)}"


def summary(model: Model, arrays: Sequence[Array], done: Mapping[Case, Told], wanted: int) -> list[str]:
    """What is committed beside the record."""
    wrong = [told for told in done.values() if told.wrong]
    return [
        f"{len(done)} of {wanted} configurations on the CPU executor, {nvrtc.title()}: {len(done) - len(wrong)} exact "
        f"and without a finding or defect, {len(wrong)} not",
        f"{sum(told.launches for told in done.values())} checked launches; machine code read of "
        f"{sum(told.read for told in done.values())}; the assembler made "
        f"{sum(bool(told.slow) for told in done.values())} slow: {sum(told.spilled > 0 for told in done.values())} "
        f"spill registers, for which their drawn tiles are too large",
        *(f"  {told.arch} {told.name}: {told.slow}" for told in done.values() if told.slow),
        *covered.counted(done),
        *(line for each in arrays for line in coverage_of(model, each)),
    ]


def main() -> int:
    """Make the array, prove each configuration, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=usable_cores())
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--only", default="", help="configurations whose architecture and name have this in them")
    parser.add_argument("--continue", dest="goes_on", action="store_true", help="do not repeat what the record has")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    begin = time.monotonic()
    # One thread for each process is enough: NumPy's libraries would start as many again as there are cores.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    model = Model()
    arrays = covering(model)
    every = cases(model, arrays)
    wanted = [case for case in every if asked.only in f"{case.arch} {name(case.config)}"]
    print(f"{len(every)} configurations made in {time.monotonic() - begin:.0f} s", flush=True)
    path = asked.to / covered.RECORD.name
    known = {told.case: told for told in covered.read(path) if not told.wrong} if asked.goes_on else {}
    done = {case: known[case] for case in wanted if case in known}
    left = {case: number for number, case in enumerate(every) if case in set(wanted) - done.keys()}
    with ProcessPoolExecutor(asked.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(prove, case, number): case for case, number in left.items()}
        for future in as_completed(futures):
            if future.cancelled():
                continue
            done[futures[future]] = told = future.result()
            if told.wrong:
                print(f"WRONG on {told.arch}: {told.name}: {told.wrong}", file=sys.stderr, flush=True)
            if len(done) % _SAID_EVERY == 0:
                print(f"{len(done)} of {len(wanted)} after {time.monotonic() - begin:.0f} s", flush=True)
                # So that a run that is ended keeps what it has.
                emit.write(path, covered.written(done[c] for c in wanted if c in done))
            if time.monotonic() - begin > asked.seconds:
                for other in futures:
                    other.cancel()
    emit.write(path, covered.written(done[c] for c in wanted if c in done))
    lines = summary(model, arrays, {c: done[c] for c in wanted if c in done}, len(wanted))
    lines.append(f"{time.monotonic() - begin:.0f} s with {asked.jobs} processes")
    emit.write(asked.to / "covering.txt", "\n".join(lines) + "\n")
    print("\n".join(lines[:2] + lines[-1:]))
    right = len(done) == len(wanted) and not any(one.wrong for one in done.values())
    return 0 if right and (asked.only or len(every) >= AT_LEAST) else 1


if __name__ == "__main__":
    sys.exit(main())
