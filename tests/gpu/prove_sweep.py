"""The sweep proof: a real study on a GPU with sabotaged candidates among the good ones. Writes its record.

    python tests/gpu/prove_sweep.py [--arch sm_90] [--problem 2048] [--trials 60] [--to sweeps/records]

Three candidates are changed behind the renderer's back: one writes out of bounds, one never ends, one leaves out its
last slice of K. The study has to record each under its own outcome, go on, and accept nothing wrong. Exit status 0
where it does, and, with --at-least, where the best reaches so many TFLOP/s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import emit, job, show, trial
from wmmagen.arch import Arch
from wmmagen.backends.pick import pick
from wmmagen.config import KernelConfig, Operation, read_size
from wmmagen.dtypes import F16, F32
from wmmagen.foundry import Compiler, compile_source
from wmmagen.mistakes import Edit
from wmmagen.nvrtc import Binary
from wmmagen.records import Outcome, Record, to_text
from wmmagen.render import Source, render
from wmmagen.trial import tflops

#: Store a terabyte behind D; never leave the first phase; sum one slice of K too few.
OUT_OF_BOUNDS = Edit("d_tile = D + ", "d_tile = D + (1LL << 40) + ")
ENDLESS = Edit("  const int warp = ", "  while (clock64() != 0) {\n  }\n  const int warp = ")
LAST_SLICE_DROPPED = Edit("const int slices = K / BLOCK_K;", "const int slices = K / BLOCK_K - 1;")

#: Which candidate, counted from 1, is sabotaged how, and what its record has to say.
SABOTAGE: dict[int, tuple[Edit, Outcome]] = {
    3: (OUT_OF_BOUNDS, Outcome.CRASH),
    7: (ENDLESS, Outcome.TIMEOUT),
    12: (LAST_SLICE_DROPPED, Outcome.WRONG),
}


class Saboteur:
    """Builds candidates as :func:`wmmagen.trial.build` does, but for those on its list."""

    def __init__(self) -> None:
        self.built = 0
        self.victims: dict[str, Outcome] = {}

    def __call__(self, config: KernelConfig, arch: Arch, compiler: Compiler = compile_source) -> tuple[Source, Binary]:
        """Render, perhaps change, compile."""
        self.built += 1
        source = render(config, arch)
        text = source.text
        if self.built in SABOTAGE:
            change, outcome = SABOTAGE[self.built]
            text = change.applied(text)
            self.victims[str(config)] = outcome
        return source, compiler(text, source.kernel, arch)


def complaints(records: list[Record], victims: dict[str, Outcome], best: float, at_least: float) -> list[str]:
    """What is not as it has to be; empty where the proof stands."""
    found = [
        f"{record.name}: recorded as {record.outcome}, sabotaged for {victims[record.name]}"
        for record in records
        if record.name in victims and record.outcome is not victims[record.name]
    ]
    found += [
        f"{record.name}: {record.outcome}: {record.detail}"
        for record in records
        if record.name not in victims and record.outcome is not Outcome.OK
    ]
    if len(victims) != len(SABOTAGE):
        found.append(f"only {len(victims)} of {len(SABOTAGE)} were planted")
    if best < at_least:
        found.append(f"the best reaches {best:.1f} TFLOP/s, asked for {at_least}")
    return found


def main() -> int:
    """Sweep, sabotage, judge, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--problem", default="2048")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--at-least", type=float, default=0.0)
    parser.add_argument("--to", type=Path, default=Path("sweeps/records"))
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    saboteur = Saboteur()
    trial.build = saboteur
    with tempfile.TemporaryDirectory() as folder, pick("gpu", arch) as place:
        print(place.first_line)
        request = job.Request(
            operation=Operation(F16, F32, F32),
            arch=arch,
            size=read_size(asked.problem),
            trials=asked.trials,
            storage=f"sqlite:///{folder}/proof.db",
            generated=Path(folder) / "generated",
        )
        with show.LiveLine(request.problem) as live:
            result = job.sweep(request, place, live)
        device = place.demanded().device
    best = result.choice.best if result.choice else None
    rate = tflops(request.problem, best.timing.median_us) if best and best.ranks and best.timing else 0.0
    again = f"python tests/gpu/prove_sweep.py --arch {arch} --problem {asked.problem} --trials {asked.trials}"
    found = complaints(list(result.records), saboteur.victims, rate, asked.at_least)
    planted = "\n".join(f"planted: {name}: {outcome}" for name, outcome in saboteur.victims.items())
    text = "\n".join([f"{device}, best {rate:.1f} TFLOP/s", planted, show.sweep_result(result, again), *found]) + "\n"
    stem = f"{request.study_name}_on_{device.split(' (')[0].replace(' ', '_')}"
    emit.write(asked.to / f"{stem}.jsonl", to_text(result.records))
    emit.write(asked.to / f"{stem}.txt", text.replace(folder, "…"))
    print(text, end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(ended(main))
