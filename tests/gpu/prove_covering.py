"""The proof of all slots together on a GPU: the configurations of the covering array, exact there. Writes its record.

    python tests/gpu/prove_covering.py [--arch sm_90] [--only TEXT] [--jobs N] [--backend gpu] [--to tests/gpu/records]

``tests/nvrtc/prove_covering.py`` makes the array and proves it on the executor; its record names the configurations,
for whatever architecture each was compiled there. Here all are compiled for one, and validated on their hostile
problems. Exit status 0 where all are exact, and there are as many as asked for.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests import covered
from tests.covered import Case, Told
from tests.gpu.proof import ended
from tests.gpu.spread import spread
from wmmagen import arch as archs
from wmmagen import coverage, emit, rules, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend
from wmmagen.backends.pick import pick
from wmmagen.config import KernelConfig, name
from wmmagen.errors import CompileError, Fault

#: Configurations between two writings of the record.
_KEPT_EVERY = 20


def judged(backend: Backend, case: Case) -> Told:
    """What becomes of one on ``backend``."""
    config, arch = case.config, case.arch
    try:
        binary = trial.build(config, arch)[1]
        runs = trial.validate(config, binary, backend, trial.validation_problems(config))
    except (CompileError, Fault) as error:
        return Told(arch.name, name(config), 0, f"{type(error).__name__}: {error.message}")
    wrong = [f"{run.problem}: {run.mismatch}" for run in runs if not (run.exact and run.guaranteed)]
    return Told(arch.name, name(config), len(runs), "; ".join(wrong))


def wanted(arch: Arch, only: str, record: Path = covered.RECORD) -> tuple[list[KernelConfig], list[KernelConfig]]:
    """The configurations of the record: those that ``arch`` takes and that are made, and the others."""
    configs = list(dict.fromkeys(told.case.config for told in covered.read(record) if only in told.name))
    taken = [c for c in configs if rules.legal(c, arch) and not coverage.missing(c)]
    return taken, [c for c in configs if c not in set(taken)]


def summary(done: Sequence[Told], others: Sequence[KernelConfig], arch: Arch, device: str, seconds: float) -> list[str]:
    """The record."""
    wrong = [told for told in done if told.wrong]
    return [
        f"{len(done)} configurations for {arch} on {device}, {sum(told.launches for told in done)} checked launches: "
        f"{len(done) - len(wrong)} exact, {len(wrong)} not; {seconds:.0f} s",
        f"{len(others)} of the record are none for {arch}",
        *(f"  {name(config)}" for config in others),
        *covered.counted(told.case for told in done),
        "",
        *(f"{'WRONG' if told.wrong else 'exact'}  {told.name}  {told.wrong}".rstrip() for told in done),
    ]


def main() -> int:
    """Validate all, print, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--only", default="", help="configurations whose name has this in it")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--backend", default="gpu", choices=("gpu", "cpu"), help="cpu is a rehearsal")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    begin = time.monotonic()
    configs, others = wanted(arch, asked.only)
    done: list[Told] = []
    with pick(asked.backend, arch) as place:
        device = place.demanded().device
        told = spread(judged, [Case(c, arch) for c in configs], arch, kind=asked.backend, jobs=asked.jobs)
        for one in told:
            done.append(one)
            if one.wrong:
                print(f"WRONG  {one.name}: {one.wrong}", file=sys.stderr, flush=True)
            if len(done) % _KEPT_EVERY == 0 or len(done) == len(configs):
                # So that a run that is ended keeps what it has.
                lines = summary(done, others, arch, device, time.monotonic() - begin)
                emit.write(asked.to / f"covering_{arch}.txt", "\n".join(lines) + "\n")
                print(lines[0], flush=True)
    enough = len(done) >= covered.AT_LEAST or bool(asked.only)
    return 0 if done and enough and not any(one.wrong for one in done) else 1


if __name__ == "__main__":
    sys.exit(ended(main))
