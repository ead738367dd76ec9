"""The proof of the types on a GPU: kernels of every type of operands, exact there. Writes its record.

    python tests/gpu/prove_types.py [--arch sm_90] [--to tests/gpu/records]

The configurations of ``tests/kinds.py``: every row of the table of instructions in every layout and every way of
filling shared memory, and with the tiles that defaults choose. Each is validated on its hostile problems and on 1024 or
so in each direction; kernels whose sums are integers also where these leave s32. Exit status 0 where all are exact.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import kinds
from tests.gpu.proof import ended
from tests.gpu.spread import spread
from wmmagen import arch as archs
from wmmagen import defaults, derive, emit, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend
from wmmagen.backends.pick import pick
from wmmagen.config import KernelConfig, Problem, name
from wmmagen.errors import Fault

#: No problem is smaller in any direction.
LARGE = 1024
#: With the tiles of defaults, which are those that are used.
WHOLE = (
    *(f"a={a}" for a in kinds.TYPES),
    "a=bf16,d=bf16,epilogue=linear",
    "a=tf32,layout=cc,epilogue=linear",
    "a=f64,epilogue=linear",
    "a=s8,overflow=saturate",
    "a=u8,overflow=saturate",
    "a=s8,d=s8",
    "a=u8,d=s8",
)


def configs(arch: Arch) -> Iterator[KernelConfig]:
    """All of them, those with the tiles of defaults first."""
    for text in WHOLE:
        yield defaults.read_config(text, arch)
    yield from kinds.configs(arch)


def large(config: KernelConfig) -> Problem:
    """The smallest problem whose extents are :data:`LARGE` at least, with the first factors that are checked."""
    known = derive.values(config)
    m, n, k = (-(-LARGE // known[f"BLOCK_{x}"]) * known[f"BLOCK_{x}"] for x in "MNK")
    first = trial.validation_problems(config)[0]
    factors: dict[str, Any] = {"alpha": first.alpha, "beta": first.beta} if config.operation.scaled else {}
    return Problem.packed(config.operation, m, n, k, **factors)


def judged(backend: Backend, case: tuple[KernelConfig, Arch]) -> tuple[int, str]:
    """Checked launches of a configuration, and what is wrong with it; empty where nothing is."""
    config, arch = case
    try:
        _, binary = trial.build(config, arch)
        runs = trial.validate(config, binary, backend, [*trial.validation_problems(config), large(config)])
    except Fault as fault:
        return 0, fault.message
    return len(runs), "; ".join(f"{run.problem}: {run.mismatch}" for run in runs if not (run.exact and run.guaranteed))


def main() -> int:
    """Validate all, print, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    target = archs.find(asked.arch)
    lines, wrong, launches, by_type = [], 0, 0, Counter[str]()
    start = time.perf_counter()
    with pick("gpu", target) as place:
        device = place.demanded().device
        wanted = list(configs(target))
        told = spread(judged, [(config, target) for config in wanted], target)
        for config, (runs, bad) in zip(wanted, told, strict=True):
            launches += runs
            wrong += bool(bad)
            by_type[config.operation.a.name] += 1
            lines.append(f"{'WRONG' if bad else 'exact'}  {name(config)}{'  ' + bad if bad else ''}")
            print(lines[-1], flush=True)
            counts = ", ".join(f"{count} {a}" for a, count in by_type.items())
            head = (
                f"{sum(by_type.values())} kernels ({counts}) for {target} on {device}, {launches} checked "
                f"launches, {wrong} wrong, {time.perf_counter() - start:.0f} s"
            )
            # After each, so that a run that is ended keeps what it has.
            emit.write(asked.to / f"types_{target}.txt", "\n".join([head, "", *lines]) + "\n")
    print(head)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(ended(main))
