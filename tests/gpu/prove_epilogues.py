"""The proof of epilogues on a GPU: the CPU's chains on a card, and what a fused chain costs. Writes its record.

    python tests/gpu/prove_epilogues.py [--arch sm_90] [--problem 4096] [--jobs N] [--to tests/gpu/records]

Every kernel of ``tests/nvrtc/prove_epilogues.py`` is validated on the card, bit for bit or within the proved bound, and
so is each chain of :data:`TIMED` at full size. Those are then timed in turns with the same kernel without steps, on
normal data. Exit status 0 where all results are right; what a chain costs is told, and decides nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.gpu.proof import ended
from tests.gpu.spread import spread
from tests.nvrtc.prove_epilogues import Case, cases
from wmmagen import arch as archs
from wmmagen import config as configs
from wmmagen import emit, rules, show, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend
from wmmagen.backends.pick import pick
from wmmagen.config import Problem, name
from wmmagen.defaults import read_config
from wmmagen.errors import Fault
from wmmagen.timing import TimingProtocol

#: A quick kernel of sm_80 and later, whose epilogue is the only thing that changes; the first one has no steps.
QUICK = "warps=4x2,frags=4x4,k_steps=4,copy=cpasync,stages=3,fragment_buffers=2,d=f16,store=staged,raster=grouped8"
TIMED = (
    "none", "biascol", "biascol+relu", "biascol+gelu", "biascol+gelutanh", "biascol+silu", "linear+biascol+gelu",
    "biascol+gelu+residual",
)  # fmt: skip


def judged(backend: Backend, case: Case) -> dict[str, object]:
    """A line of the record for a kernel."""
    wrong, seen, bound = "", 0.0, 0.0
    source, binary = trial.build(case.config, case.arch)
    try:
        runs = trial.validate(case.config, binary, backend, trial.validation_problems(case.config))
        wrong = "; ".join(f"{run.problem}: {run.mismatch}" for run in runs if not (run.exact and run.guaranteed))
        errors = [run.error for run in runs if run.error is not None]
        seen, bound = max((e.seen for e in errors), default=0.0), max((e.bound for e in errors), default=0.0)
    except Fault as fault:
        wrong = f"{fault.outcome}: {fault.message}"
    return {
        "name": name(case.config),
        "fingerprint": source.fingerprint,
        "wrong": wrong,
        "error_ulps": seen,
        "error_bound_ulps": bound,
    }


def validated(wanted: list[Case], arch: Arch, jobs: int | None) -> list[dict[str, object]]:
    """A line of the record for each kernel."""
    lines = []
    for line in spread(judged, wanted, arch, jobs=jobs):
        print(f"{'WRONG' if line['wrong'] else 'right'}  {line['name']}  {line['wrong']}".rstrip(), flush=True)
        lines.append(line)
    return lines


def timed(arch: Arch, size: tuple[int, int, int], backend: Backend) -> tuple[list[str], bool]:
    """The times of the chains beside the plain kernel, in turns, and whether all of them are right at this size."""
    told, subjects, right = [], [], True
    for chain in TIMED:
        config = read_config(f"epilogue={chain},{QUICK}", arch)
        problem = Problem.packed(config.operation, *size)
        rules.demand(config, arch, problem)
        _, binary = trial.build(config, arch)
        run = trial.check_run(config, binary, backend, problem)
        right = right and run.exact
        told.append(f"{show.runs([run]).strip()}; {binary.registers} registers, {binary.spill_bytes} bytes spilled")
        subjects.append(trial.subject_of(config, binary, problem))
    found = trial.compare(subjects, backend, TimingProtocol())
    lines = []
    for number, (chain, timing, words) in enumerate(zip(TIMED, found.timings, told, strict=True)):
        cost = found.ratio(0, number)
        share = f"  {cost.median:.3f} [{cost.low:.3f}, {cost.high:.3f}] times the time without steps" if number else ""
        low, high = timing.interval_us
        lines.append(f"  {chain:<24} {timing.median_us:9.2f} us [{low:.2f}, {high:.2f}]{share}\n      {words}")
    return lines, right


def main() -> int:
    """Validate, time, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--problem", default="4096")
    parser.add_argument("--jobs", type=int, help="processes that share the card; by default as many as are worth it")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    arch, size, begin = archs.find(asked.arch), configs.read_size(asked.problem), time.monotonic()
    wanted = list(cases([arch]))
    with pick("gpu", arch) as place:
        print(place.first_line, flush=True)
        backend = place.demanded()
        lines = validated(wanted, arch, asked.jobs)
        times, right = timed(arch, size, backend)
    wrong = sum(bool(line["wrong"]) for line in lines)
    exact = sum(case.config.operation.epilogue.exact for case in wanted)
    text = [
        f"{backend.device}: {len(lines) - wrong} of {len(lines)} kernels with steps right, {exact} of them bit for bit",
        f"at {asked.problem}, in turns, on normal data:",
        *times,
    ]
    stem = f"epilogues_{arch}_on_{backend.device.split(' (')[0].replace(' ', '_')}"
    emit.write(asked.to / f"{stem}.jsonl", "".join(f"{json.dumps(line, sort_keys=True)}\n" for line in lines))
    emit.write(asked.to / f"{stem}.txt", "\n".join(text) + "\n")
    print("\n".join(text), f"{time.monotonic() - begin:.0f} s", sep="\n")
    return 0 if right and not wrong else 1


if __name__ == "__main__":
    sys.exit(ended(main))
