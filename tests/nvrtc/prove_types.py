"""The proof of the types without a GPU: kernels of each on the executor, and their machine code. Writes its record.

    python tests/nvrtc/prove_types.py [--jobs N] [--to tests/nvrtc/records]

Every row of the table of instructions in every layout and every way of filling shared memory (`tests/kinds.py`),
validated as ever; the K from which sums of bytes leave s32, wrapping and saturating; and what has to be wrong: sums
that do the other. Exit status 0 where all of it is as it should be.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests import kinds
from wmmagen import emit, lint, nvrtc, trial
from wmmagen.arch import ARCHS
from wmmagen.backends import Bytes, Launch
from wmmagen.backends.cpu import CpuBackend
from wmmagen.config import KernelConfig, name
from wmmagen.errors import Fault
from wmmagen.foundry import usable_cores
from wmmagen.nvrtc import Binary

ARCHITECTURES = (75, 80, 90, 120)


@dataclass(frozen=True)
class Told:
    """What became of one kernel; ``wrong`` is empty where all is as it should be."""

    what: str
    launches: int
    undone: bool
    wrong: str


class Patient(CpuBackend):
    """The executor without a limit of seconds, which depend on who else is at work."""

    def run(self, binary: Binary, launch: Launch, buffers: Sequence[Bytes], *, limit_s: float = 0.0) -> list[Bytes]:
        """As ever, for an hour at most."""
        return super().run(binary, launch, buffers, limit_s=max(limit_s, 3600.0))


def prove(number: int, config: KernelConfig, sm: int) -> Told:
    """Validate one, and read its machine code."""
    _, binary = trial.build(config, ARCHS[sm])
    try:
        runs = trial.validate(
            config, binary, Patient(seed=1000 * number), trial.validation_problems(config), above=None
        )
    except Fault as fault:
        return Told(name(config), 0, True, f"{fault.outcome}: {fault.message}")
    report = lint.examine(config, binary)
    wrong = [f"{run.problem}: {run.mismatch}" for run in runs if not (run.exact and run.guaranteed)]
    return Told(name(config), len(runs), bool(report.undone), "; ".join([*wrong, *report.defects]))


def overflow(_: int, kind: str, flipped: str) -> Told:
    """All the largest products, as many as leave s32; where the text is flipped, the result has to be wrong."""
    overflows, a = kind.split()
    config, problem = kinds.overflowing(overflows, a)
    source = trial.render(config, ARCHS[80])
    other = (
        source.text.replace(", true);", ");")
        if overflows == "saturate"
        else source.text.replace("b[j], acc[i][j]);", "b[j], acc[i][j], true);")
    )
    binary = nvrtc.compile_source(other if flipped else source.text, source.kernel, ARCHS[80])
    run = trial.check_run(config, binary, Patient(), problem, pattern="extremes")
    what = f"{a}, all at the largest product, {problem}, {overflows}" + (
        ", but the text does the other" if flipped else ""
    )
    right = (other != source.text) and run.guaranteed and run.exact is not bool(flipped)
    return Told(what, 1, True, "" if right else run.mismatch or "not seen")


def work() -> Iterator[tuple[object, ...]]:
    """The calls, longest first."""
    for kind in ("wrap s8", "saturate s8", "wrap u8", "saturate u8"):
        yield from ((overflow, 0, kind, flipped) for flipped in ("", "flipped"))
    for sm in ARCHITECTURES:
        types = kinds.TYPES if sm == 80 else ("s8",) if sm == 75 else ("bf16", "tf32", "f64", "u8")
        # All on one architecture, some on the others.
        some = list(kinds.configs(ARCHS[sm], types))[:: 1 if sm == 80 else 7]
        yield from ((prove, number, config, sm) for number, config in enumerate(some))


def main() -> int:
    """Prove all, print, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=usable_cores())
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    start = time.perf_counter()
    told: list[Told] = []
    with ProcessPoolExecutor(asked.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in [pool.submit(*call) for call in work()]:  # type: ignore[arg-type]
            told.append(future.result())
            print(f"{'WRONG' if told[-1].wrong else 'right'}  {told[-1].what}  {told[-1].wrong}", flush=True)
    seconds = time.perf_counter() - start
    kernels = [one for one in told if one.what.startswith("wmma_gemm")]
    wrong = [one for one in told if one.wrong]
    launches = sum(one.launches for one in kernels)
    by_type = Counter(one.what.split("_")[2] for one in kernels)
    head = [
        f"{len(kernels)} kernels ({', '.join(f'{count} {a}' for a, count in by_type.items())}) for "
        f"{', '.join(f'sm_{sm}' for sm in ARCHITECTURES)}, {launches} checked launches on the CPU executor; "
        f"{nvrtc.title()}",
        f"machine code read of {sum(not one.undone for one in kernels)}, exact and without a defect "
        f"{sum(not one.wrong for one in kernels)}",
        f"{len(told) - len(kernels)} runs of sums beyond s32, half of them with the other kind, which must be wrong",
        f"{len(wrong)} not as they should be",
        f"{seconds:.0f} s with {asked.jobs} processes",
    ]
    print("\n".join(head))
    lines = [f"{'WRONG' if one.wrong else 'right'}  {one.what}{f'  {one.wrong}' if one.wrong else ''}" for one in told]
    emit.write(asked.to / "types.txt", "\n".join([*head, "", *lines]) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
