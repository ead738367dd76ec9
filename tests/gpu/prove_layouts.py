"""The proof of layouts on a GPU: C and D in rows and in columns, exact there and as fast. Writes its record.

    python tests/gpu/prove_layouts.py [--arch sm_90] [--backend gpu] [--to tests/gpu/records]

The kernels of ``tests/layouts.py`` are validated on their hostile problems, guard bands included; those of
:data:`VARIANTS` also at 1024 or so in each direction. On a GPU, these are timed in turns with their mirrored kernels at
4096: a column-major D is demanded to have at least :data:`OF_MIRROR` of the speed of the row-major D of the transposed
problem, by the lower end of the interval. What a C across D costs is shown.

``--backend cpu`` is the rehearsal, of every twelfth of the small kernels. Exit status 0 where all holds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tests import layouts
from tests.gpu.proof import ended
from tests.gpu.prove_types import judged
from tests.gpu.spread import spread
from wmmagen import arch as archs
from wmmagen import defaults, emit, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend
from wmmagen.backends.pick import pick
from wmmagen.config import KernelConfig, Problem, name
from wmmagen.errors import Fault
from wmmagen.timing import TimingProtocol

#: Kernels of a size that is used, each with a D in columns and its mirrored one. Blocks in groups and panels have a
#: mirrored order; one along the rows of D has not.
VARIANTS = (
    "cd=cc,warps=4x2,frags=4x4,k_steps=4,copy=cpasync,stages=3,fragment_buffers=2,store=direct,raster=panels8",
    "cd=cc,warps=2x2,frags=4x4,k_steps=4,copy=cpasync,stages=3,fragment_buffers=2,store=staged,d=f16,layout=rc,"
    "raster=grouped8",
    "cd=cc,warps=2x2,frags=4x4,k_steps=2,copy=cpasync,stages=4,fragment_buffers=1,epilogue=linear,layout=cc,"
    "raster=panels8",
)
#: Beside C in D's layout: across it, in fragments and element by element.
ACROSS = (
    ("cd=rr", "cd=cr", "warps=4x2,frags=4x4,k_steps=4,copy=cpasync,stages=3,fragment_buffers=2,epilogue=linear"),
    ("cd=cc", "cd=rc", "warps=2x2,frags=4x4,k_steps=4,copy=cpasync,stages=3,store=staged,d=f16,epilogue=linear"),
)
SIZE = 4096
OF_MIRROR = 0.97
#: Which of the small kernels a rehearsal has.
REHEARSED = 12


def checked(backend: Backend, case: tuple[KernelConfig, Arch]) -> tuple[int, str]:
    """Checked launches of one small configuration, and what is wrong with it; empty where nothing is."""
    config, arch = case
    try:
        _, binary = trial.build(config, arch)
        runs = trial.validate(config, binary, backend, trial.validation_problems(config))
    except Fault as fault:
        return 0, fault.message
    return len(runs), "; ".join(f"{run.problem}: {run.mismatch}" for run in runs if not (run.exact and run.guaranteed))


def timed(kernels: list[KernelConfig], arch: Arch, backend: Backend) -> tuple[list[str], float, float]:
    """A line for each kernel at :data:`SIZE`, and the speed of the second beside the first: median and lower end."""
    problems = [Problem.packed(config.operation, SIZE, SIZE, SIZE) for config in kernels]
    subjects = [trial.subject_of(c, trial.build(c, arch)[1], p) for c, p in zip(kernels, problems, strict=True)]
    found = trial.compare(subjects, backend, TimingProtocol())
    lines = [
        f"    {timing.median_us:9.2f} us {trial.tflops(problem, timing.median_us):6.1f} TFLOP/s  {name(config)}"
        for config, problem, timing in zip(kernels, problems, found.timings, strict=True)
    ]
    ratio = found.ratio(1, 0)
    return lines, ratio.median, ratio.low


def speeds(arch: Arch, backend: Backend) -> Iterator[tuple[bool, str]]:
    """Lines of the second part of the record, each with whether it holds."""
    for text in VARIANTS:
        config = defaults.read_config(text, arch)
        lines, median, low = timed([layouts.mirrored(config), config], arch, backend)
        yield from ((True, each) for each in lines)
        holds = low >= OF_MIRROR
        words = "holds" if holds else "DOES NOT HOLD"
        yield holds, f"  {words}: {median:.3f} of its mirror's speed, {low:.3f} at the lower end; at least {OF_MIRROR}"
    for same, across, text in ACROSS:
        pair = [defaults.read_config(f"{cd},{text}", arch) for cd in (same, across)]
        lines, median, low = timed(pair, arch, backend)
        yield from ((True, each) for each in lines)
        yield True, f"  shown: {median:.3f} of the speed with C in D's layout, {low:.3f} at the lower end"


def main() -> int:
    """Validate, time, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--backend", default="gpu", choices=("gpu", "cpu"))
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    target = archs.find(asked.arch)
    small = [config for _, config in layouts.configs([target], 1)]
    lines, complaints = [], 0
    with pick(asked.backend, target) as place:
        backend = place.demanded()
        small = small if backend.clocked else small[::REHEARSED]
        told = spread(checked, [(config, target) for config in small], target, kind=asked.backend)
        answers = list(zip(small, told, strict=True))
        if backend.clocked:
            whole = [defaults.read_config(text, target) for text in VARIANTS]
            answers += [(config, judged(backend, (config, target))) for config in whole]
        for config, (_, bad) in answers:
            complaints += bool(bad)
            lines.append(f"{'WRONG' if bad else 'exact'}  {name(config)}{'  ' + bad if bad else ''}")
        launches = sum(count for _, (count, _) in answers)
        head = (
            f"{len(answers)} kernels for {target} on {backend.device}, {launches} checked launches, {complaints} wrong"
        )
        for holds, text in speeds(target, backend) if backend.clocked else ():
            complaints += not holds
            lines.append(text)
            print(text, flush=True)
            emit.write(asked.to / f"layouts_{target}.txt", "\n".join([head, "", *lines]) + "\n")
    print("\n".join([head, *(text for text in lines if text.startswith("WRONG"))]))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(ended(main))
