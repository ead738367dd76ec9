"""The proof of layouts that needs no GPU: A, B, C and D in rows and in columns, on the executor. Writes its record.

    python tests/nvrtc/prove_layouts.py [--archs sm_75,sm_80,sm_90] [--each 1] [--jobs N] [--to FOLDER]

The kernels of ``tests/layouts.py``: every type, residue and layout of A, B, C and D. Each is compiled, linted, and
validated on its hostile problems, and the work that is derived of it is that of its mirrored kernel. Of some with a
column-major D, the mirrored kernel is compiled, too: what the executor counts of both in global memory has to be the
same, and so have the stores of D in their machine code. Exit status 0 where all of that is so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tests import layouts
from wmmagen import arch as archs
from wmmagen import emit, foundry, lint, nvrtc, profile, sass, trial, work
from wmmagen.arch import Arch
from wmmagen.backends.cpu import CpuBackend
from wmmagen.config import KernelConfig, name
from wmmagen.errors import Fault
from wmmagen.foundry import Foundry, Order
from wmmagen.nvrtc import Binary
from wmmagen.render import render

#: Of the kernels that have a mirrored one, every so many are compared with it.
STEP = 6
#: What of the executor's counts has to be alike. Stores to shared memory are derived only: of copies of 16 bytes the
#: compiler makes four in one kernel and not in the other.
_MOVED = (
    "global_load_requests", "global_load_sectors", "global_store_requests", "global_store_sectors", "stored_bytes",
    "distinct_stored_bytes", "reloaded_bytes", "shared_load_wavefronts", "tensor_instructions", "multiply_adds",
    "block_barriers",
)  # fmt: skip


@dataclass(frozen=True)
class Proved:
    """What became of one: ``wrong`` is empty where all is right."""

    launches: int
    wrong: str


def prove(config: KernelConfig, binary: Binary, number: int) -> Proved:
    """Validate one and hold its machine code to the promises."""
    try:
        runs = trial.validate(config, binary, CpuBackend(seed=1000 * number), trial.validation_problems(config))
    except Fault as fault:
        return Proved(0, f"{fault.outcome}: {fault.message}")
    wrong = [f"{run.problem}: {run.mismatch}" for run in runs if not (run.exact and run.guaranteed)]
    told = lint.examine(config, binary)
    return Proved(len(runs), "; ".join([*wrong, *told.defects, *([told.undone] if told.undone else [])]))


def moved(config: KernelConfig, binary: Binary, mirror_of: KernelConfig | None = None) -> dict[str, int]:
    """What a launch of its first hostile problem with a slice of K moves, and the stores in its machine code, by width.

    Loads in the code are counted as they run: how often a loop is unrolled is the compiler's choice.

    Args:
        mirror_of: whose problem, as the mirrored call, where it is not its own.
    """
    problem = next(p for p in trial.validation_problems(mirror_of or config) if p.k and p.alpha and p.beta in (0, 1))
    if mirror_of is not None:
        problem = layouts.of_mirror(problem, config)
    counts = asdict(profile.count(config, binary, problem))
    kernel = sass.parse(sass.disassemble(sass.locate(), binary.cubin), binary.entry)
    accesses = [access for op in kernel.ops if (access := sass.access(op)) is not None]
    words = Counter(one.word for one in accesses if one.stores and one.space is sass.Space.GLOBAL)
    return {key: counts[key] for key in _MOVED} | dict(words)


def compared(config: KernelConfig, own: Binary, other: Binary) -> str:
    """In what a kernel and its mirrored one differ; empty for nothing."""
    mirror = layouts.mirrored(config)
    try:
        first, second = moved(config, own), moved(mirror, other, config)
    except Fault as fault:
        return f"{fault.outcome}: {fault.message}"
    keys = sorted(first.keys() | second.keys())
    return ", ".join(f"{k} {first.get(k)} {second.get(k)}" for k in keys if first.get(k) != second.get(k))


def has_mirror(config: KernelConfig) -> bool:
    """Whether there is a mirrored kernel; an expression says rows and columns in its text."""
    return "expr" not in str(config.operation.epilogue)


def line(arch: Arch, config: KernelConfig, answer: Proved) -> str:
    """A line of the record: nothing in it depends on the machine or the hour."""
    document = {
        "arch": arch.name,
        "name": name(config),
        "fingerprint": render(config, arch).fingerprint,
        "launches": answer.launches,
        "right": not answer.wrong,
        "wrong": answer.wrong,
    }
    return json.dumps(document, sort_keys=True)


def binaries(orders: Sequence[tuple[Arch, KernelConfig]], jobs: int) -> list[Binary]:
    """All of them, in the order.

    Raises:
        CompileError: of one that does not compile.
    """
    sources = [render(config, arch) for arch, config in orders]
    with Foundry(jobs) as makers:
        made = list(makers.compile_many(Order(s.text, s.kernel, a) for s, (a, _) in zip(sources, orders, strict=True)))
    found = []
    for answer in made:
        if not isinstance(answer, Binary):
            raise answer
        found.append(answer)
    return found


def main() -> int:
    """Compile, validate, compare, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--archs", default="sm_75,sm_80,sm_90")
    parser.add_argument("--each", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=foundry.usable_cores())
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    targets = [archs.find(word) for word in asked.archs.split(",")]
    begin, wanted = time.monotonic(), list(layouts.configs(targets, asked.each))
    own = binaries(wanted, asked.jobs)
    paired = [n for n, (_, c) in enumerate(wanted) if not c.operation.d_row_major and has_mirror(c)][::STEP]
    others = binaries([(wanted[n][0], layouts.mirrored(wanted[n][1])) for n in paired], asked.jobs)
    with ProcessPoolExecutor(asked.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        configs = [config for _, config in wanted]
        done = list(pool.map(prove, configs, own, range(len(own))))
        unlike = list(pool.map(compared, (configs[n] for n in paired), (own[n] for n in paired), others))
    known = [c for c in configs if has_mirror(c)]
    derived = [c for c in known if work.of(c) != work.of(layouts.mirrored(c))]
    wrong = [f"{name(c)}: {answer.wrong}" for c, answer in zip(configs, done, strict=True) if answer.wrong]
    wrong += [
        f"{name(configs[n])} moves something else than its mirror: {words}"
        for n, words in zip(paired, unlike, strict=True)
        if words
    ]
    wrong += [f"{name(c)}: the work derived of it is not that of its mirror" for c in derived]
    by_type = Counter(c.operation.a.name for c in configs)
    cells = {(c.operation.layout, c.operation.cd) for c in configs}
    told = [
        f"{len(configs)} kernels ({', '.join(f'{n} {a}' for a, n in by_type.items())}) in {len(cells)} layouts of "
        f"A, B, C and D, for {', '.join(t.name for t in targets)}, on the CPU executor; {nvrtc.title()}",
        f"{sum(answer.launches for answer in done)} checked launches, {sum(bool(a.wrong) for a in done)} kernels wrong",
        f"derived work like that of the mirrored kernel: {len(known) - len(derived)} of {len(known)}",
        f"counts of global memory and stores in machine code like those of the mirrored kernel: "
        f"{sum(not u for u in unlike)} of {len(unlike)} with a column-major D",
        f"{time.monotonic() - begin:.0f} s with {asked.jobs} processes",
    ]
    print("\n".join(wrong), file=sys.stderr)
    text = "".join(f"{line(arch, c, answer)}\n" for (arch, c), answer in zip(wanted, done, strict=True))
    emit.write(asked.to / "layouts.jsonl", text)
    emit.write(asked.to / "layouts.txt", "\n".join(told) + "\n")
    print("\n".join(told))
    return 1 if wrong or not done else 0


if __name__ == "__main__":
    sys.exit(main())
