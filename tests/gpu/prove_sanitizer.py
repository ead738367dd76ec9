"""The sanitizer's answer on kernels that hold every branch of the templates. Writes its record.

    python tests/gpu/prove_sanitizer.py [--arch sm_90] [--tool TOOL] [--only TEXT] [--jobs 8] [--to tests/gpu/records]

The kernels of ``tests/sanitized.py`` run on their hostile problems, those for all sizes on further ones, under
compute-sanitizer's memcheck and racecheck, which find what values cannot show: accesses outside of allocations, and
shared memory that two threads meet in. Each kernel under each tool is a process of its own, some at a time. ``--tool``
takes one tool and ``--only`` kernels with a text in their names; such a part has a record only where ``--to`` says so.

Problems whose whole sums leave their type are left out: their accesses are those of every long K, and to watch each of
some thousand slices takes long. ``--backend cpu`` and a ``--sanitizer`` of another name try the script where there is
no GPU. Exit status 0 where there is no error, no hazard, and every result is right.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from tests import sanitized
from tests.gpu import sanitizer
from tests.gpu.proof import ended, recorded
from tests.gpu.spread import MOST
from wmmagen import arch as archs
from wmmagen import config, trial
from wmmagen.arch import Arch
from wmmagen.backends.pick import pick
from wmmagen.errors import MissingPiece, RequestError

TOOLS = ("memcheck", "racecheck")
RECORDS = Path(__file__).parent / "records"
#: What a process says at the end where every launch was right.
_RIGHT = "all launches right"


def run_one(name: str, arch: Arch, backend: str) -> int:
    """Check one kernel on its problems: what a process under a tool does."""
    kernel = config.parse(name)
    binary = trial.build(kernel, arch)[1]
    with pick(backend, arch) as place:
        here = place.demanded()
        for problem in sanitized.problems(kernel):
            run = trial.check_run(kernel, binary, here, problem)
            if not run.exact:
                print(f"{problem}: {run.mismatch}")
                return 1
    print(_RIGHT)
    return 0


def examine(name: str, tool: str, asked: argparse.Namespace) -> tuple[bool, str]:
    """Whether ``tool`` finds nothing and all is right, and a line that says so."""
    program = [sys.executable, __file__, "--one", name, "--arch", asked.arch, "--backend", asked.backend]
    said = sanitizer.under(tool, program, asked.limit, asked.sanitizer)
    held, words = judged(said, asked.limit)
    return held, f"{tool:<10} {name}: {words}"


def judged(said: sanitizer.Said, limit_s: float) -> tuple[bool, str]:
    """Whether nothing was found and all is right, and what there is to say."""
    found = f"{said.count} found" if said.count else "no summary" if said.count is None else "nothing found"
    found += f", first: {said.first}" if said.first else ""
    if said.over:
        return False, f"{found}; not done after {limit_s:g} s"
    if said.status != 0 or _RIGHT not in said.text:
        found += f"; not right: {said.text.strip()[-500:]}".replace("\n", " | ")
        return False, found
    return said.count == 0, found


def examined(names: list[str], asked: argparse.Namespace) -> Iterator[tuple[bool, str]]:
    """A line for each kernel under each tool, in this order."""
    tools = (asked.tool,) if asked.tool else TOOLS
    with ThreadPoolExecutor(asked.jobs) as pool:
        begun = [pool.submit(examine, name, tool, asked) for name, tool in product(names, tools)]
        try:
            for one in begun:
                yield one.result()
        finally:
            for one in begun:
                one.cancel()


def main() -> int:
    """Examine, print, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--backend", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--tool", choices=TOOLS)
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels with this in their names")
    parser.add_argument("--jobs", type=int, default=MOST, help="processes at a time")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of one process under a tool")
    parser.add_argument("--sanitizer", default=sanitizer.NAME)
    parser.add_argument("--one", metavar="NAME", help="check this kernel, and end")
    parser.add_argument("--to", type=Path, help="of all kernels by default tests/gpu/records")
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    if asked.one:
        return run_one(asked.one, arch, asked.backend)
    if shutil.which(asked.sanitizer) is None:
        raise MissingPiece(f"{asked.sanitizer} is not on the PATH", "install the CUDA toolkit, which brings it")
    names = [name for name in map(config.name, sanitized.configs(arch)) if asked.only in name]
    if not names:
        raise RequestError(f"no kernel has {asked.only!r} in its name", "leave --only out to see them all")
    to = asked.to or (None if asked.only or asked.tool else RECORDS)
    with pick(asked.backend, arch) as place:
        device = place.demanded().device
    head = f"{device}, {arch}: {len(names)} kernels under {asked.tool or ' and '.join(TOOLS)}"
    return recorded(to and to / f"sanitizer_{arch}.txt", head, examined(names, asked))


if __name__ == "__main__":
    sys.exit(ended(main))
