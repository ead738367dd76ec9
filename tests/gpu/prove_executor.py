"""The executor's proof: the same launches on the CPU executor and on a GPU leave the same bytes. Writes its records.

    python tests/gpu/prove_executor.py [--arch sm_90] [--draws 320] [--jobs N] [--to tests/gpu/records]

Configurations are drawn over all axes by a fixed seed, as many of each kind as of the others. Each is compiled once:
the executor runs the PTX, the GPU the machine code that was assembled from it. Both get the same arguments and the same
bytes, on the configuration's hostile problems, and every buffer that they return is compared whole, the guards around
the matrices among it; D has to be the exact result besides. Exit status 0 where all bytes are equal, all results are
exact, and the executor found nothing.

Beside that, as information: normal-distributed inputs, of which the executor's sums, rounded once for each matrix
instruction, are a model. The record says how many configurations agree bit for bit there, and how far the others are
apart. What lies outside of D's elements has to be equal there, too.

``--backend cpu`` is a rehearsal without a GPU: the executor against itself, with other fragment layouts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.draws import spread
from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import derive, emit, layout, reference, render, trial
from wmmagen.backends import Backend, Bytes, Launch
from wmmagen.backends.cpu import CpuBackend
from wmmagen.backends.pick import pick
from wmmagen.config import KernelConfig, Problem, name
from wmmagen.errors import Fault
from wmmagen.foundry import Foundry, Order, usable_cores
from wmmagen.layout import Image
from wmmagen.nvrtc import Binary
from wmmagen.verdict import judge

EXACT, NORMAL = "exact", "normal"
#: Configurations under way or waiting, for each process; their results hold some megabytes each.
AHEAD = 2
#: Fragment layouts of the rehearsal; the executor's own runs count from 0.
OTHER_LAYOUTS = 1_000_000


@dataclass(frozen=True)
class Run:
    """What the executor made of one launch.

    Attributes:
        problem: what was computed.
        data: ``exact`` or ``normal``.
        launch, buffers: what the GPU is to be given as well.
        image: of D in the last buffer.
        outputs: every matrix as the executor left it; empty where it found something.
        fault: what it found, in words.
        exact: whether D is the exact result; None of normal-distributed inputs, which have none.
    """

    problem: Problem
    data: str
    launch: Launch
    buffers: tuple[Bytes, ...]
    image: Image
    outputs: tuple[Bytes, ...]
    fault: str
    exact: bool | None


@dataclass(frozen=True)
class Compared:
    """One launch on both sides.

    Attributes:
        problem: with its leading dimensions and factors.
        data: ``exact`` or ``normal``.
        equal: every byte of every buffer is.
        outside_equal: every byte is that belongs to no element of D.
        exact: as in :class:`Run`.
        elements, different: of D.
        ulp: the largest difference of two elements, in units in the last place of the smaller one's type.
        ulp_of_largest: the same in units in the last place of D's largest element.
        fault: what went wrong on either side; empty where nothing did.
    """

    problem: str
    data: str
    equal: bool
    outside_equal: bool
    exact: bool | None
    elements: int
    different: int
    ulp: int
    ulp_of_largest: float
    fault: str = ""

    @property
    def right(self) -> bool:
        """Whether nothing speaks against the executor."""
        if self.fault or not self.outside_equal:
            return False
        return self.data == NORMAL or (self.equal and self.exact is True)


# The executor's side, in processes of its own ------------------------------------------------------------------------


def normal_problems(problems: Sequence[Problem]) -> list[Problem]:
    """The longest sums among them, one with spaced and one with packed rows; factors that are no powers of two."""
    spaced, packed = problems[:-2], problems[-2]
    longest = [max(spaced, key=lambda p: p.k), packed]
    return [replace(p, alpha=-1.5, beta=0.75) if p.operation.scaled else p for p in longest]


def executed(config: KernelConfig, binary: Binary, seed: int) -> list[Run]:
    """Every launch of ``config``, on the executor."""
    backend = CpuBackend(seed)
    problems = trial.validation_problems(config)
    exact = [run_exact(config, binary, problem, backend) for problem in problems]
    return [*exact, *(run_normal(config, binary, problem, backend) for problem in normal_problems(problems))]


def run_exact(config: KernelConfig, binary: Binary, problem: Problem, backend: CpuBackend) -> Run:
    """A launch on exact inputs, with pointers that are aligned as far as they must be."""
    case = trial.exact_case(problem, shifts=trial.pointer_shifts(config), above=None)
    launch = trial.launch_of(binary.entry, config, problem, case.images)
    buffers = trial.launched(config, problem, case.buffers)
    outputs, fault = attempt(backend, binary, launch, buffers, len(case.images))
    exact = bool(outputs) and judge(case.inputs, case.images[-1], outputs[-1], case.want, None).exact
    return Run(problem, EXACT, launch, buffers, case.images[-1], outputs, fault, exact)


def run_normal(config: KernelConfig, binary: Binary, problem: Problem, backend: CpuBackend) -> Run:
    """A launch on normal-distributed inputs."""
    *operands, d = layout.images(problem, shifts=trial.pointer_shifts(config))
    values = reference.normal_inputs(problem)
    matrices = (*(image.pack(v) for image, v in zip(operands, values, strict=True)), d.blank())
    buffers = trial.launched(config, problem, matrices)
    launch = trial.launch_of(binary.entry, config, problem, (*operands, d))
    outputs, fault = attempt(backend, binary, launch, buffers, len(matrices))
    return Run(problem, NORMAL, launch, buffers, d, outputs, fault, None)


def attempt(
    backend: Backend, binary: Binary, launch: Launch, buffers: Sequence[Bytes], matrices: int
) -> tuple[tuple[Bytes, ...], str]:
    """What a launch leaves of so many matrices, D last, or nothing and why."""
    try:
        return tuple(backend.run(binary, launch, buffers)[:matrices]), ""
    except Fault as fault:
        return (), f"{backend.name}: {fault.message}"


def ahead(
    pool: ProcessPoolExecutor, work: Iterable[tuple[KernelConfig, Binary]], most: int
) -> Iterator[tuple[KernelConfig, Binary, list[Run]]]:
    """What the executor makes of each, in their order; ``most`` are begun before the first is waited for."""
    numbered = enumerate(work)

    def begin() -> Iterator[tuple[KernelConfig, Binary, Any]]:
        for number, (config, binary) in numbered:
            yield config, binary, pool.submit(executed, config, binary, 100 * number)

    begun = begin()
    waiting = deque(islice(begun, most))
    while waiting:
        config, binary, future = waiting.popleft()
        runs = future.result()
        waiting.extend(islice(begun, 1))
        yield config, binary, runs


# The comparison ------------------------------------------------------------------------------------------------------


def compare(run: Run, binary: Binary, backend: Backend) -> Compared:
    """Run the same launch on ``backend`` and hold everything that it left against the executor's."""
    got: tuple[Bytes, ...] = ()
    fault = run.fault
    if run.outputs:
        got, fault = attempt(backend, binary, run.launch, run.buffers, len(run.outputs))
    p = run.problem
    words = f"{p} {p.operation.layout} ld {p.lda} {p.ldb} {p.ldc} {p.ldd} alpha {p.alpha:g} beta {p.beta:g}"
    if not got:
        return Compared(words, run.data, False, False, run.exact, p.m * p.n, p.m * p.n, 0, 0.0, fault)
    equal = all(np.array_equal(ours, theirs) for ours, theirs in zip(run.outputs, got, strict=True))
    ours, theirs = run.image.bits(run.outputs[-1]), run.image.bits(got[-1])
    return Compared(
        words,
        run.data,
        equal,
        outside_equal(run, got),
        run.exact,
        ours.size,
        int(np.count_nonzero(ours != theirs)),
        int(np.abs(ordered(ours) - ordered(theirs)).max()),
        in_ulp_of_largest(run, got[-1]),
    )


def outside_equal(run: Run, got: Sequence[Bytes]) -> bool:
    """Whether the operands and the guards are the same, whatever D's elements are."""
    ours, theirs = run.outputs[-1].copy(), got[-1].copy()
    for buffer in (ours, theirs):
        run.image.bits(buffer)[:] = 0
    pairs = [*zip(run.outputs[:-1], got[:-1], strict=True), (ours, theirs)]
    return all(np.array_equal(one, other) for one, other in pairs)


def ordered(bits: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Bit patterns of floating-point numbers as integers in their order: neighbours differ by 1, both zeros are 0."""
    width = bits.dtype.itemsize * 8
    magnitude = bits.astype(np.int64) & ((1 << width - 1) - 1)
    return np.where(bits >> (width - 1), -magnitude, magnitude)


def in_ulp_of_largest(run: Run, got: Bytes) -> float:
    """The largest difference of two elements, in units in the last place of the executor's largest one."""
    ours, theirs = run.image.unpack(run.outputs[-1]), run.image.unpack(got)
    largest = np.abs(ours).max()
    difference = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max()
    return float(difference / np.spacing(largest)) if largest else 0.0


# The records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One configuration with all of its launches."""

    config: KernelConfig
    runs: tuple[Compared, ...]

    def of(self, data: str) -> list[Compared]:
        """The launches on these inputs."""
        return [run for run in self.runs if run.data == data]

    @property
    def right(self) -> bool:
        return all(run.right for run in self.runs)

    def as_json(self, arch: str, device: str, compiler: str) -> str:
        """Its line of the record."""
        exact, normal = self.of(EXACT), self.of(NORMAL)
        line = {
            "name": name(self.config),
            "arch": arch,
            "device": device,
            "compiler": compiler,
            "right": self.right,
            "launches": len(exact),
            "equal": sum(run.equal for run in exact),
            "normal_launches": len(normal),
            "normal_equal": sum(run.equal for run in normal),
            "normal_elements": sum(run.elements for run in normal),
            "normal_different": sum(run.different for run in normal),
            "normal_ulp": max(run.ulp for run in normal),
            "normal_ulp_of_largest": round(max(run.ulp_of_largest for run in normal), 3),
            "problems": [run.problem for run in exact],
            "wrong": [asdict(run) for run in self.runs if not run.right],
        }
        return json.dumps(line, sort_keys=True)


def summary(entries: Sequence[Entry], device: str, seconds: float) -> str:
    """What is committed beside the record."""
    exact = [run for entry in entries for run in entry.of(EXACT)]
    wrong = sum(not entry.right for entry in entries)
    lines = [
        f"CPU executor against {device}: {len(entries)} configurations in {seconds:.0f} s",
        f"exact inputs: {sum(run.equal for run in exact)} of {len(exact)} launches bitwise equal, guards and operands "
        f"among it, {sum(bool(run.exact) for run in exact)} exact; "
        f"{wrong} configurations with a difference or a finding",
        *kinds(entries),
        "normal-distributed inputs, the executor's sums being a model (no condition):",
    ]
    by_types: dict[str, list[Entry]] = {}
    for entry in entries:
        by_types.setdefault(types_of(entry), []).append(entry)
    lines += [f"  {types}: {normal_words(some)}" for types, some in sorted(by_types.items())]
    return "\n".join(lines) + "\n"


def types_of(entry: Entry) -> str:
    """Accumulator and D, the two that round."""
    operation = entry.config.operation
    return f"sums in {operation.acc.name}, D in {operation.d.name}"


def normal_words(entries: Sequence[Entry]) -> str:
    """How far the two sides are apart."""
    agreeing = [entry for entry in entries if all(run.equal for run in entry.of(NORMAL))]
    rest = [run for entry in entries if entry not in agreeing for run in entry.of(NORMAL)]
    words = f"{len(agreeing)} of {len(entries)} configurations bitwise equal"
    if not rest:
        return words
    different, elements = sum(run.different for run in rest), sum(run.elements for run in rest)
    return (
        f"{words}; of the others {different / elements:.2%} of the elements differ, by up to "
        f"{max(run.ulp for run in rest)} ulp of the element, {max(run.ulp_of_largest for run in rest):.3g} ulp of "
        "the largest element of D"
    )


def kinds(entries: Sequence[Entry]) -> list[str]:
    """How often each value of each axis was among them."""
    axes: dict[str, Counter[str]] = {}
    for entry in entries:
        config, operation = entry.config, entry.config.operation
        for axis, value in (
            ("acc", operation.acc.name),
            ("d", operation.d.name),
            ("layout", operation.layout),
            ("epilogue", operation.epilogue),
            ("align_a", operation.align_a),
            ("align_b", operation.align_b),
            ("align_d", operation.align_d),
            ("inst", config.inst),
            ("feed", config.feed),
            ("copy", config.copy),
            ("stages", config.stages),
            ("residency", config.residency),
            ("store", config.store),
            ("raster", config.raster),
            ("warps", derive.values(config)["THREADS"] // 32),
        ):
            axes.setdefault(axis, Counter())[str(value)] += 1
    return [
        f"  {axis}: {', '.join(f'{value} {count}' for value, count in sorted(counts.items()))}"
        for axis, counts in axes.items()
    ]


def main() -> int:
    """Draw, compile, run on both, compare, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--draws", type=int, default=320)
    parser.add_argument("--jobs", type=int, default=usable_cores())
    parser.add_argument("--backend", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    begin = time.monotonic()
    # One process for each core is enough: libraries of NumPy would start as many threads again in each of them.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    wanted = spread(arch, asked.draws)
    with pick("gpu", arch) if asked.backend == "gpu" else pick("cpu", arch) as place:
        backend = CpuBackend(OTHER_LAYOUTS) if asked.backend == "cpu" else place.demanded()
        print(f"{len(wanted)} configurations, CPU executor against {backend.device}", flush=True)
        binaries = compiled(wanted, arch, asked.jobs)
        print(f"compiled after {time.monotonic() - begin:.0f} s", flush=True)
        entries = proved(zip(wanted, binaries, strict=True), backend, asked.jobs)
        device = backend.device
    text = summary(entries, device, time.monotonic() - begin)
    stem = f"executor_{arch}_on_{device.split(' (')[0].replace(' ', '_')}"
    lines = [entry.as_json(arch.name, device, binaries[0].compiler) for entry in entries]
    emit.write(asked.to / f"{stem}.jsonl", "\n".join(lines) + "\n")
    emit.write(asked.to / f"{stem}.txt", text)
    print(text, end="")
    return 0 if entries and all(entry.right for entry in entries) else 1


def compiled(wanted: Sequence[KernelConfig], arch: archs.Arch, jobs: int) -> list[Binary]:
    """A binary for each; a source that the compiler refuses ends the proof."""
    with Foundry(jobs) as foundry:
        sources = [render.render(config, arch) for config in wanted]
        for source in sources:
            foundry.begin(Order(source.text, source.kernel, arch))
        return [foundry.compile(source.text, source.kernel, arch) for source in sources]


def proved(work: Iterable[tuple[KernelConfig, Binary]], backend: Backend, jobs: int) -> list[Entry]:
    """Both sides of every launch, compared."""
    entries: list[Entry] = []
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawned) as pool:
        for config, binary, runs in ahead(pool, work, AHEAD * jobs):
            entries.append(Entry(config, tuple(compare(run, binary, backend) for run in runs)))
            for run in entries[-1].runs:
                if not run.right:
                    print(f"not right: {name(config)}: {run}", file=sys.stderr, flush=True)
    return entries


if __name__ == "__main__":
    sys.exit(ended(main))
