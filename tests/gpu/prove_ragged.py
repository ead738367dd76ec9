"""Kernels for all sizes on a GPU: exact wherever a matrix ends, guard bands untouched. Writes its record.

    python tests/gpu/prove_ragged.py [--arch sm_90] [--budget 240] [--jobs N] [--to tests/gpu/records]

Every extent of {1, 7, 8, 15, 16, 17, 31, 33, 63, 65, 100, 129} as M, as N and as K, 1,728 problems, for several
variants of f16 operands and one of each other type. Leading dimensions are aligned as promised and no further; NaN
stands around A and B and in the gaps of their rows, a pattern around D and in its gaps. Beside them sizes with one row
or few, and with thousands of columns. Variants are shared among processes, because most of the time is the host's.
Where the budget of seconds is over, what was not tried is said, and that is no success; ``--sizes`` tries the first so
many alone, and ``--backend cpu`` rehearses it so. Exit status 0 where all are exact.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.proof import ended
from tests.gpu.spread import spread
from tests.ragged import VARIANTS, orders, problem_of
from wmmagen import arch as archs
from wmmagen import defaults, emit, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend
from wmmagen.config import KernelConfig, name
from wmmagen.errors import Fault
from wmmagen.nvrtc import Binary

#: What decoding asks for: from one row to 64, and matrices of thousands of columns whose sizes are odd or not.
DECODE = tuple((m, n, k) for m in (1, 3, 8, 17, 33, 64) for n, k in ((4096, 4096), (5119, 2049), (1000, 8190)))
#: Wrong problems of one variant that are written down.
_TOLD = 5

Size = tuple[int, int, int]


@dataclass(frozen=True)
class Outcome:
    """What became of one variant.

    Attributes:
        name: of the kernel.
        device: where it ran.
        asked, tried: how many problems.
        wrong: a line for each that is not exact.
        seconds: of this variant.
    """

    name: str
    device: str
    asked: int
    tried: int
    wrong: tuple[str, ...]
    seconds: float

    @property
    def right(self) -> bool:
        return self.tried == self.asked and not self.wrong

    def __str__(self) -> str:
        rest = "" if self.tried == self.asked else ", THE OTHERS NOT TRIED"
        return f"{self.tried - len(self.wrong)} of {self.asked} exact, {len(self.wrong)} not{rest}: {self.name}"


def tried(config: KernelConfig, binary: Binary, backend: Backend, sizes: Sequence[Size], until: float) -> Outcome:
    """One variant on ``sizes``, as far as the clock ``time.time`` stands before ``until``."""
    begin, done, wrong = time.time(), 0, []
    for number, size in enumerate(sizes):
        if time.time() > until:
            break
        try:
            run = trial.check_run(config, binary, backend, problem_of(config, size, number))
            said = "" if run.exact else run.mismatch
        except Fault as fault:
            said = fault.message
        done += 1
        if said:
            wrong.append(f"    {'x'.join(map(str, size))}: {said}")
    return Outcome(name(config), backend.device, len(sizes), done, tuple(wrong), time.time() - begin)


def prove(backend: Backend, case: tuple[str, Arch, tuple[Size, ...], float]) -> Outcome:
    """One variant, compiled and tried in one of the processes."""
    text, arch, sizes, until = case
    config = defaults.read_config(f"residue=predicated,{text}", arch)
    return tried(config, trial.build(config, arch)[1], backend, sizes, until)


def main() -> int:
    """Run, judge, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--backend", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--budget", type=float, default=240.0)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--sizes", type=int, default=None)
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    begin, arch = time.time(), archs.find(asked.arch)
    sizes = tuple(itertools.islice((*orders(), *DECODE), asked.sizes))
    lines, outcomes = [], []
    cases = [(text, arch, sizes, begin + asked.budget) for text in VARIANTS]
    for outcome in spread(prove, cases, arch, kind=asked.backend, jobs=asked.jobs):
        outcomes.append(outcome)
        lines += [str(outcome), *outcome.wrong[:_TOLD]]
        print(f"{outcome} ({outcome.seconds:.0f} s)", flush=True)
        print("\n".join(outcome.wrong[:_TOLD]), end="\n" if outcome.wrong else "", file=sys.stderr, flush=True)
    head = (
        f"{outcomes[0].device}, {arch} kernels: {len(outcomes)} variants on {len(sizes)} sizes in "
        f"{time.time() - begin:.0f} s"
    )
    print(head)
    emit.write(asked.to / f"ragged_{arch}.txt", "\n".join([head, *lines]) + "\n")
    return 0 if all(outcome.right for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(ended(main))
