"""The proof of batches on a GPU: exact by strides and by pointers, emitted, and beside cuBLASLt. Writes its record.

    python tests/gpu/prove_batched.py [--arch sm_90] [--no-bench | --only-bench [--shape NAME]] [--to tests/gpu/records]

- the kernels of ``tests/batches.py`` on their hostile batches, shared matrices among them;
- the batches of ``wmmagen bench --shapes batched``, with a B of each product's own and with one for all;
- strides of each matrix beyond 2^31 elements, which 32-bit offsets do not hold, and as many products as a grid counts;
- the self-test of emitted kernels, built by nvcc alone;
- the fastest of some tiles for each of those shapes, in turns with cuBLASLt's strided batch of the same types, one of
  them by pointers as well. These have a record of their own.

Needs about 20 GB on the card and 50 GB beside it. Exit status 0 where all results are exact; a time proves nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.batches import BATCHES, KINDS, kernels
from tests.gpu.proof import ended
from tests.gpu.spread import spread
from wmmagen import arch as archs
from wmmagen import bench, derive, emit, rules, shapes, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend
from wmmagen.backends.pick import Place, pick
from wmmagen.config import KernelConfig, Problem, name
from wmmagen.defaults import read_config
from wmmagen.errors import Fault
from wmmagen.foundry import Foundry
from wmmagen.timing import TimingProtocol

#: An element that no 32-bit offset reaches.
FAR = 2**31
#: The list of shapes: what each is called here, its size, and how many products.
SHAPES = tuple((f"{s.m}x{s.n}x{s.k}@{s.batch}", s.size, s.batch) for s in shapes.named("batched"))
#: Kernels of the shapes, from the smallest tile to the largest.
TILES = (
    "warps=1x2,frags=2x1,k_steps=4,copy=cpasync,stages=2",
    "warps=2x2,frags=2x2,k_steps=2,copy=cpasync,stages=2",
    "warps=2x2,frags=2x2,k_steps=4,copy=cpasync,stages=2",
    "warps=2x2,frags=2x2,k_steps=2,copy=cpasync,stages=4",
    "warps=2x2,frags=2x2,k_steps=2,copy=cpasync,stages=2,min_blocks=8",
    "warps=2x1,frags=2x4,k_steps=2,copy=cpasync,stages=3",
    "warps=2x2,frags=4x2,k_steps=2,copy=cpasync,stages=3",
    "warps=2x2,frags=2x4,k_steps=2,copy=cpasync,stages=3",
    "warps=2x2,frags=4x2,k_steps=4,copy=cpasync,stages=2",
    "warps=2x2,frags=4x4,k_steps=2,copy=cpasync,stages=3",
    "warps=4x2,frags=2x4,k_steps=4,copy=cpasync,stages=2",
    "warps=2x2,frags=2x2,k_steps=4,copy=cpasync,stages=2,store=staged",
    "warps=2x2,frags=4x4,k_steps=4,copy=cpasync,stages=2,store=staged",
)
TYPES = "acc=f32,d=f16"
#: The shape that is also timed by pointers.
BY_POINTERS = "64x64x64@1024"


def fitting(arch: Arch, batch: str, size: tuple[int, int, int], count: int) -> list[KernelConfig]:
    """The kernels of :data:`TILES` that take a shape, with D in f16 as attention has it."""
    found = []
    for tile in TILES:
        text = f"batch={batch},{TYPES},{tile}" + ("" if "store" in tile else ",store=staged")
        config = read_config(text, arch)
        if not rules.check(config, arch, Problem.packed(config.operation, *size, batch=count)):
            found.append(config)
    return list(dict.fromkeys(found))


def listed(arch: Arch) -> Iterator[tuple[str, KernelConfig, Problem]]:
    """Each named shape with the first kernel that takes it, by strides and by pointers, and with one B for all."""
    for label, size, count in SHAPES:
        for batch in BATCHES:
            for config in fitting(arch, batch, size, count)[:1]:
                packed = Problem.packed(config.operation, *size, batch=count)
                yield label, config, packed
                yield f"{label}, one B", config, replace(packed, stride_b=0)


def far(arch: Arch) -> Iterator[tuple[str, KernelConfig, Problem]]:
    """Two products whose matrices lie further apart than 32 bits tell, one at a time; all that a grid counts."""
    for kind, strides in ((KINDS[0], ("stride_a", "stride_b", "stride_d")), (KINDS[4], ("stride_c", "stride_d"))):
        config = read_config(f"batch=strided,{kind}", arch)
        known = derive.values(config)
        packed = Problem.packed(config.operation, *(2 * known[f"BLOCK_{x}"] for x in "MNK"), batch=2)
        if config.operation.scaled:
            packed = replace(packed, alpha=2.0, beta=-1.0)
        for stride in strides:
            far: dict[str, Any] = {stride: FAR + 2**20}
            yield stride, config, replace(packed, **far)
    for batch in BATCHES:
        config = read_config(f"batch={batch},warps=1x1,frags=1x1,k_steps=1,copy=ld,stages=1", arch)
        yield "all", config, Problem.packed(config.operation, 16, 16, 16, batch=derive.MAX_BATCH)


def exact(config: KernelConfig, arch: Arch, backend: Backend, problem: Problem) -> str:
    """What is wrong with one launch; empty where nothing is."""
    try:
        return trial.check_run(config, trial.build(config, arch)[1], backend, problem).mismatch
    except Fault as fault:
        return f"{fault.outcome}: {fault.message}"
    finally:
        # Each problem is used once, and some hold gigabytes.
        trial.forget_cases()


def hostile(backend: Backend, case: tuple[KernelConfig, Arch]) -> str:
    """A line for a kernel on its hostile batches."""
    config, arch = case
    try:
        runs = trial.validate(config, trial.build(config, arch)[1], backend, trial.validation_problems(config))
        wrong = "; ".join(f"{run.problem}: {run.mismatch}" for run in runs if not run.exact)
    except Fault as fault:
        wrong = f"{fault.outcome}: {fault.message}"
    return f"{'WRONG' if wrong else 'exact':<7} hostile batches of {name(config)}{': ' if wrong else ''}{wrong}"


def selftests(arch: Arch) -> Iterator[str]:
    """A line for each emitted kernel, whose self-test is built by nvcc alone."""
    for text in (f"batch=strided,{KINDS[4]}", f"batch=strided,{KINDS[0]}", f"batch=pointers,{KINDS[2]}"):
        config = read_config(text, arch)
        with tempfile.TemporaryDirectory() as folder:
            files = emit.emit(config, arch, Path(folder), symbol="my_gemm")
            done = subprocess.run(
                ["sh", "-c", emit.selftest_command(files, arch)],
                cwd=folder, capture_output=True, text=True, check=False, timeout=300,
            )  # fmt: skip
        said = (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()
        right = done.returncode == 0 and said[-1] == "PASS"
        told = "" if right else f": {' | '.join(line for line in said if not line.startswith(('exact', 'said')))}"
        yield f"{'exact' if right else 'WRONG':<7} self-test of {name(config)}, {len(said)} lines{told}"


def proved(arch: Arch, backend: Backend) -> Iterator[str]:
    """A line for everything that has to be exact."""
    yield from spread(hostile, [(config, arch) for config in kernels(arch)], arch)
    for label, config, problem in (*listed(arch), *far(arch)):
        wrong = exact(config, arch, backend, problem)
        yield f"{'WRONG' if wrong else 'exact':<7} {label}: {problem} {name(config)}{': ' if wrong else ''}{wrong}"
    yield from selftests(arch)


def timed(arch: Arch, place: Place, only: str | None) -> Iterator[str]:
    """A line for each shape and way to find matrices: the fastest kernel beside the library."""
    with Foundry(4) as foundry:
        for label, size, count in SHAPES:
            if only not in (None, label):
                continue
            for batch in BATCHES if label == BY_POINTERS else BATCHES[:1]:
                configs = fitting(arch, batch, size, count)
                table = bench.measure(configs, arch, size, place, TimingProtocol(), foundry.compile, batch=count)
                right = [row for row in table.rows if row.timing is not None]
                wrong = [f"{row.name}: {row.detail}" for row in table.rows if row.timing is None]
                if not right:
                    yield f"WRONG   {label} {batch}: {'; '.join(wrong)}"
                    continue
                best = min(right, key=lambda row: row.timing.median_us if row.timing else 0.0)
                assert best.timing is not None
                share = best.ratios.get("same types")
                (library, *_) = table.baselines
                them = f"{library.timing.median_us:.2f} us" if library.timing else library.reason
                times = f"{share.low:.2f} to {share.high:.2f}" if share else "no share"
                yield (
                    f"{'WRONG' if wrong else 'timed':<7} {label} {batch}: "
                    f"{best.timing.median_us:.2f} us, {best.tflops:.1f} TFLOP/s; cuBLASLt {them}; {times} of its rate; "
                    f"{best.name}, the fastest of {len(right)}{'; ' if wrong else ''}{'; '.join(wrong)}"
                )


def main() -> int:
    """Run, judge, time, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--no-bench", action="store_true", help="leave out the times")
    parts.add_argument("--only-bench", action="store_true", help="the times alone")
    parser.add_argument("--shape", choices=[label for label, _, _ in SHAPES], help="time this one only")
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    begin = time.monotonic()
    with pick("gpu", arch) as place:
        backend = place.demanded()
        records = {}
        if not asked.only_bench:
            records[f"batched_{arch}"] = proved(arch, backend)
        if not asked.no_bench:
            only = f"_{asked.shape}" if asked.shape else ""
            records[f"batched_times_{arch}{only}"] = timed(arch, place, asked.shape)
        right = True
        for stem, made in records.items():
            lines = [backend.device]
            for line in made:
                lines.append(line)
                print(f"{line} ({time.monotonic() - begin:.0f} s)", flush=True)
            emit.write(asked.to / f"{stem}.txt", "\n".join(lines) + "\n")
            right = right and not any(line.startswith("WRONG") for line in lines)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(ended(main))
