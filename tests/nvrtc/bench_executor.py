"""How long the executor takes to check a variant with block tiles of 128x128: 2x2 blocks, 3 slices of K.

Run from the repository's root: ``python tests/nvrtc/bench_executor.py [VARIANTS]``. Prints the median and the slowest
of the launches: the first one, which reads and decodes the PTX, and the following one. Compiling is not counted. Times
are by the clock, and of the processor, which say the same where nobody else uses the cores.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

from wmmagen import derive, dtypes, executor, nvrtc, trial
from wmmagen.arch import ARCHS
from wmmagen.backends import Pointer
from wmmagen.config import Epilogue, KernelConfig, Layout, Operation, Problem
from wmmagen.render import render
from wmmagen.space import Space
from wmmagen.verdict import judge

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
BLOCK = 128
SLICES = 3


def variants(count: int) -> list[tuple[int, KernelConfig]]:
    """As many variants of the block tile, drawn over types, layouts, epilogues and architectures."""
    draw = random.Random(7)
    found: list[tuple[int, KernelConfig]] = []
    while len(found) < count:
        sm = ARCHITECTURES[len(found) % len(ARCHITECTURES)]
        acc, d = (draw.choice((dtypes.F32, dtypes.F16)) for _ in range(2))
        operation = Operation(
            dtypes.F16, acc, d, draw.choice(list(Layout)), draw.choice((Epilogue.NONE, Epilogue.LINEAR))
        )
        for config in Space(operation, ARCHS[sm]).sample(draw, 400):
            known = derive.values(config)
            if known["BLOCK_M"] == known["BLOCK_N"] == BLOCK:
                found.append((sm, config))
                break
    return found


def check(sm: int, config: KernelConfig) -> list[tuple[float, float]]:
    """Seconds of the first and the second launch, by the clock and of the processor."""
    source = render(config, ARCHS[sm])
    ptx = nvrtc.compile_source(source.text, source.kernel, ARCHS[sm], line_info=True).ptx
    k = SLICES * derive.values(config)["BLOCK_K"]
    case = trial.exact_case(Problem.packed(config.operation, 2 * BLOCK, 2 * BLOCK, k, 32), above=None)
    launch = trial.launch_of(source.kernel, config, case.problem, case.images)
    args = [executor.Pointer(a.buffer, a.offset) if isinstance(a, Pointer) else a for a in launch.arguments]
    seconds = []
    for _ in range(2):
        start, processor = time.perf_counter(), time.process_time()
        got = executor.launch(
            ptx, source.kernel, launch.grid, launch.block, args, launch.shared_bytes, buffers=case.buffers
        )
        seconds.append((time.perf_counter() - start, time.process_time() - processor))
        if got.findings or not judge(case.inputs, case.images[-1], got.outputs[-1], case.want, None).exact:
            raise SystemExit(f"{config} on sm_{sm} is not right: {[str(f) for f in got.findings]}")
    return seconds


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 28
    times = [check(sm, config) for sm, config in variants(count)]
    for launch, name in enumerate(("first launch", "second launch")):
        for column, kind in enumerate(("clock", "processor")):
            values = [seconds[launch][column] for seconds in times]
            print(f"{name}, {kind}: median {statistics.median(values):.3f} s, slowest {max(values):.3f} s of {count}")


if __name__ == "__main__":
    main()
