"""What all sizes cost: kernels for them beside those for multiples, and on sizes that are none. Writes its record.

    python tests/gpu/prove_ragged_speed.py [--arch sm_90] [--budget 180] [--to tests/gpu/records]

Timed in turns, normal data. Demanded, of the lower end of the interval:

- on 2048 and 4096, whose whole tiles both take, at least 95 % of the speed of the same kernel for multiples;
- on 2047, 4095 and 4097, with rows that are aligned for the widest copies, at least 85 % of the speed on the next
  multiples of the block tile, in operations of each one's own problem. What of that is the part of tiles that nobody
  asked for, which no kernel of this tile avoids, is told beside it.

What padding costs is shown in a table: operands of these sizes whose rows follow each other without a gap, padded with
every call and padded beforehand, for the kernel for multiples; beside them the kernel for all sizes, whose rows are
aligned.

Rows of 2047 elements that follow each other without a gap are aligned to one element: how slow the narrow copies of
such a kernel are is shown. So are decoding shapes, beside the bytes that they have to read. What is demanded comes
first; where ``--budget`` seconds are over, what was not timed is said, and no demand is left out without a complaint.
Exit status 0 where all holds.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import defaults, derive, emit, padding, render, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend
from wmmagen.backends.pick import pick
from wmmagen.config import KernelConfig, Problem, name
from wmmagen.errors import WmmagenError
from wmmagen.foundry import compile_source
from wmmagen.timing import Ratio, TimingProtocol

#: The winners of committed sweeps, one that stores through memory, and one with one set of fragments.
VARIANTS = (
    "warps=4x2,frags=4x4,k_steps=4,copy=cpasync,stages=3,fragment_buffers=2,store=direct,raster=panels8",
    "warps=2x2,frags=4x4,k_steps=4,copy=cpasync,stages=3,fragment_buffers=2,store=staged,d=f16,layout=rc",
    "warps=2x2,frags=4x4,k_steps=2,copy=cpasync,stages=4,fragment_buffers=1,store=direct,layout=cc",
)
WHOLE, RAGGED = (2048, 4096), (2047, 4095, 4097)
OF_EXACT, OF_MULTIPLE = 0.95, 0.85
#: Through registers, two bytes at a time.
NARROW = "warps=2x2,frags=2x4,k_steps=2,copy=ld,stages=2,align_a=1,align_b=1,align_d=1,store=staged"
#: Few rows of A and all of B, which is what takes the time.
DECODE = "warps=1x4,frags=1x2,k_steps=4,copy=cpasync,stages=5,fragment_buffers=2,store=staged,layout=rc"
DECODED = ((1, 4096, 4096), (16, 4096, 11008), (64, 11008, 4096))


def aligned(config: KernelConfig, size: tuple[int, int, int]) -> Problem:
    """A problem whose rows begin as the kernel promises, and are as short as that allows."""
    o = config.operation
    packed = Problem.packed(o, *size)
    up = {"lda": o.align_a, "ldb": o.align_b, "ldd": o.align_d}
    return replace(packed, **{ld: -(-getattr(packed, ld) // unit) * unit for ld, unit in up.items()})


class Bench:
    """Kernels of one architecture on one card, timed in turns."""

    def __init__(self, arch: Arch, backend: Backend) -> None:
        self._arch, self._backend = arch, backend
        self.lines: list[str] = []
        self.complaints = 0

    def say(self, text: str) -> None:
        self.lines.append(text)
        print(text, flush=True)

    def demand(self, ratio: Ratio, least: float, what: str) -> None:
        """Write a share and whether it is enough."""
        holds = ratio.low >= least
        self.complaints += not holds
        self.say(
            f"  {'holds' if holds else 'DOES NOT HOLD'}: {ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}], "
            f"at least {least}: {what}"
        )

    def timed(self, kernels: list[tuple[KernelConfig, Problem]]) -> list[Ratio]:
        """How fast each is beside the first, in operations per second."""
        subjects = []
        for config, problem in kernels:
            binary = trial.build(config, self._arch)[1]
            run = trial.check_run(config, binary, self._backend, problem)
            if not run.exact:
                self.complaints += 1
                self.say(f"  WRONG: {problem} {name(config)}: {run.mismatch}")
            subjects.append(trial.subject_of(config, binary, problem))
        found = trial.compare(subjects, self._backend, TimingProtocol())
        for (config, problem), timing in zip(kernels, found.timings, strict=True):
            rate = trial.tflops(problem, timing.median_us)
            self.say(f"    {timing.median_us:9.2f} us {rate:6.1f} TFLOP/s  {problem}  {name(config)}")
        first = trial.operations_of(kernels[0][1])
        return [
            found.ratio(number, 0).scaled(trial.operations_of(problem) / first)
            for number, (_, problem) in enumerate(kernels)
        ]

    def beside_exact(self, text: str) -> None:
        """The same kernel for multiples and for all sizes, on multiples."""
        exact, every = (defaults.read_config(f"residue={r},{text}", self._arch) for r in ("exact", "predicated"))
        for size in WHOLE:
            ratio = self.timed([(c, Problem.packed(c.operation, size, size, size)) for c in (exact, every)])[1]
            self.demand(ratio, OF_EXACT, f"of the kernel for multiples, at {size}")

    def beside_multiples(self, text: str) -> None:
        """One kernel on a size that is no multiple, and on the next one that is."""
        config = defaults.read_config(f"residue=predicated,{text}", self._arch)
        known = derive.values(config)
        for size in RAGGED:
            whole = tuple(-(-size // known[f"BLOCK_{axis}"]) * known[f"BLOCK_{axis}"] for axis in "MNK")
            problems = [aligned(config, whole), aligned(config, (size, size, size))]
            ratio = self.timed([(config, problem) for problem in problems])[1]
            asked = trial.operations_of(problems[1]) / trial.operations_of(problems[0])
            what = f"{size} beside {problems[0]}, of whose operations it asks for {asked:.3f}"
            self.demand(ratio, OF_MULTIPLE, what)

    def padded(self, text: str) -> None:
        """What padding costs: the kernel for all sizes, and the one for multiples on padded copies."""
        every, exact = (defaults.read_config(f"residue={r},{text}", self._arch) for r in ("predicated", "exact"))
        kernel = trial.build(exact, self._arch)[1]
        entry = render.padding_entry("my_gemm")
        copiers = compile_source(render.render_padding(exact, self._arch, symbol="my_gemm"), entry, self._arch)
        all_sizes = trial.build(every, self._arch)[1]
        self.say("    size    all sizes       padded  padded beforehand  on multiples   in us")
        for size in RAGGED:
            packed = Problem.packed(exact.operation, size, size, size)
            said = padding.check(exact, kernel, copiers, self._backend, packed)
            if said:
                self.complaints += 1
                self.say(f"  WRONG: {packed} on padded copies: {said}")
            subjects = [
                trial.subject_of(every, all_sizes, aligned(every, (size, size, size))),
                *(padding.series_of(exact, kernel, copiers, packed, pads=pads) for pads in (True, False)),
                trial.subject_of(exact, kernel, padding.plan(exact, packed).problem),
            ]
            times = [t.median_us for t in trial.compare(subjects, self._backend, TimingProtocol()).timings]
            self.say("  {:>6} {:12.2f} {:12.2f} {:18.2f} {:13.2f}".format(size, *times))

    def shown(self, _: str) -> None:
        """Narrow copies, and few rows, of which nothing is demanded."""
        narrow = defaults.read_config(f"residue=predicated,{NARROW}", self._arch)
        wide = defaults.read_config(f"residue=predicated,{VARIANTS[0]}", self._arch)
        ratio = self.timed(
            [(wide, aligned(wide, (2047,) * 3)), (narrow, Problem.packed(narrow.operation, 2047, 2047, 2047))]
        )[1]
        self.say(f"  rows of 2047 elements without a gap have {ratio.median:.3f} of the speed of rows of 2048")
        decode = defaults.read_config(f"residue=predicated,{DECODE}", self._arch)
        for size in DECODED:
            self.timed([(decode, aligned(decode, size))])
            m, n, k = size
            self.say(
                f"    of which B alone is {n * k * 2 / 1e6:.0f} MB, and A and D {(m * k * 2 + m * n * 4) / 1e6:.1f} MB"
            )


def main() -> int:
    """Measure, judge, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--budget", type=float, default=180.0)
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    arch, begin = archs.find(asked.arch), time.monotonic()
    record = asked.to / f"ragged_speed_{arch}.txt"
    with pick("gpu", arch) as place:
        backend = place.demanded()
        bench = Bench(arch, backend)
        bench.say(f"{backend.device}, {arch} kernels, normal data, in turns")
        demanded = [(part, text) for text in VARIANTS for part in (bench.beside_exact, bench.beside_multiples)]
        told = [*((bench.padded, text) for text in VARIANTS), (bench.shown, "")]
        for part, text in [*demanded, *told]:
            bench.say(f"\n{part.__doc__} {text}".rstrip())
            if time.monotonic() - begin > asked.budget:
                bench.complaints += (part, text) in demanded
                bench.say("  NOT TIMED: the time was over")
                continue
            try:
                part(text)
            except WmmagenError as error:
                bench.complaints += 1
                bench.say(f"  ENDED: {error.message}")
            # After each, so that a run that is ended keeps what it has.
            emit.write(record, "\n".join(bench.lines) + "\n")
    bench.say(f"\n{bench.complaints} of the demands do not hold")
    emit.write(record, "\n".join(bench.lines) + "\n")
    return 1 if bench.complaints else 0


if __name__ == "__main__":
    sys.exit(ended(main))
