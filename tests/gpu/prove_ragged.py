"""Kernels for all sizes on a GPU: exact wherever a matrix ends, guard bands untouched. Writes its record.

    python tests/gpu/prove_ragged.py [--arch sm_90] [--budget 480] [--to tests/gpu/records]

Every extent of {1, 7, 8, 15, 16, 17, 31, 33, 63, 65, 100, 129} as M, as N and as K, 1,728 problems, for one variant of
each set of types. Leading dimensions are aligned as promised and no further; NaN stands around A and B and in the gaps
of their rows, a pattern around D and in its gaps. Beside them sizes with one row or few, and with thousands of columns.
Where the budget of seconds is over, what was not tried is said, and that is no success. Exit status 0 where all are
exact.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.gpu.proof import ended
from tests.ragged import VARIANTS, orders, problem_of
from wmmagen import arch as archs
from wmmagen import defaults, emit, trial
from wmmagen.backends.pick import pick
from wmmagen.config import name
from wmmagen.errors import Fault
from wmmagen.foundry import Foundry, Order, usable_cores
from wmmagen.render import render

#: What decoding asks for: from one row to 64, and matrices of thousands of columns whose sizes are odd or not.
DECODE = tuple((m, n, k) for m in (1, 3, 8, 17, 33, 64) for n, k in ((4096, 4096), (5119, 2049), (1000, 8190)))
#: Wrong problems of one variant that are written down.
_TOLD = 5


def main() -> int:
    """Run, judge, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--budget", type=float, default=480.0)
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    begin = time.monotonic()
    configs = [defaults.read_config(f"residue=predicated,{text}", arch) for text in VARIANTS]
    problems = [*orders(), *DECODE]
    lines, right = [], True
    with pick("gpu", arch) as place, Foundry(usable_cores()) as foundry:
        print(place.first_line, flush=True)
        backend = place.demanded()
        for source in (render(config, arch) for config in configs):
            foundry.begin(Order(source.text, source.kernel, arch))
        for config in configs:
            start, tried, wrong = time.monotonic(), 0, []
            _, binary = trial.build(config, arch, foundry.compile)
            for number, size in enumerate(problems):
                if time.monotonic() - begin > asked.budget:
                    break
                try:
                    run = trial.check_run(config, binary, backend, problem_of(config, size, number))
                    said = "" if run.exact else run.mismatch
                except Fault as fault:
                    said = fault.message
                tried += 1
                if said:
                    wrong.append(f"    {'x'.join(map(str, size))}: {said}")
            whole = tried == len(problems)
            right = right and whole and not wrong
            lines.append(
                f"{tried - len(wrong)} of {len(problems)} exact, {len(wrong)} not"
                f"{'' if whole else ', THE OTHERS NOT TRIED'}: {name(config)}"
            )
            print(f"{lines[-1]} ({time.monotonic() - start:.0f} s)", flush=True)
            lines += wrong[:_TOLD]
            print("\n".join(wrong[:_TOLD]), end="\n" if wrong else "", file=sys.stderr, flush=True)
        device = backend.device
    seconds = time.monotonic() - begin
    head = f"{device}, {arch} kernels: {len(configs)} variants on {len(problems)} sizes in {seconds:.0f} s"
    print(head)
    emit.write(asked.to / f"ragged_{arch}.txt", "\n".join([head, *lines]) + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(ended(main))
