"""The proof of the denominators: cuBLASLt exact, and its times those that PyTorch sees. Writes its record.

    python tests/gpu/prove_cublas.py [--sizes 1024,2048,4096] [--to tests/gpu/records] [--budget 105]

Needs the extra ``cublas``, and PyTorch for the comparison. Three parts, all on the card in this process:

1. Every candidate of the heuristic on the hostile problems, for each combination of types that is documented.
2. The same product as PyTorch computes it (f16 operands and result, sums in f32), timed by the protocol of wmmagen and,
   in turns with that, by PyTorch's own CUDA graphs and events. Like is compared with like: the candidate that runs the
   kernel which PyTorch runs. PyTorch is asked twice, over cuBLASLt and over cuBLAS.
3. The denominators of f16 kernels: the same types with either accumulator, and FP32, as far as the budget of seconds
   allows.

Exit status 0 where every hostile problem has an exact candidate, PyTorch's time is within 3 % of ours for the same
kernel, and the best candidate is no slower than PyTorch by more than that.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu.proof import ended
from wmmagen import denominators, emit, layout, reference
from wmmagen.backends import worker
from wmmagen.backends.card import Card
from wmmagen.backends.gpu import DeviceInfo, devices
from wmmagen.backends.library import CardLibrary, LibraryRecipe
from wmmagen.backends.product import REQUESTED, WORKSPACE_BYTES, Candidate
from wmmagen.config import Operation, Problem
from wmmagen.denominators import Denominator, Figure
from wmmagen.dtypes import BF16, F16, F32
from wmmagen.epilogue import Epilogue
from wmmagen.errors import LaunchFault, WmmagenError
from wmmagen.layout import Array
from wmmagen.timing import TimingProtocol

WITHIN = 0.03
ROUNDS = 5
PROTOCOL = TimingProtocol(warmup_min_s=0.15, warmup_max_s=0.6, max_samples=60, max_seconds=1.5)
CHECKED = (
    Operation(F16, F32, F32),
    Operation(F16, F16, F16),
    Operation(F16, F32, F16),
    Operation(BF16, F32, F32),
    Operation(BF16, F32, BF16),
    Operation(F32, F32, F32),
    Operation(F16, F32, F32, epilogue=Epilogue.LINEAR),
    Operation(F16, F32, F16, epilogue=Epilogue.LINEAR),
    Operation(F32, F32, F32, epilogue=Epilogue.LINEAR),
)
#: What torch.mm computes from f16 operands when it may not reduce in half precision.
AS_PYTORCH = Operation(F16, F32, F16)
TIMED = (Operation(F16, F32, F32), Operation(F16, F16, F16))
#: How PyTorch's two ways to a product are called by itself.
WAYS = ("cublaslt", "cublas")
#: PyTorch's name for a kernel, by way and by number of our candidate.
Names = dict[str, str]


def asked(card: Card, request: Any, *, limit_s: float, what: str) -> Any:
    """As the supervisor asks a child process, in this one, which has PyTorch in it."""
    reply = worker.answer(card, request)
    if reply[0] != "ok":
        raise LaunchFault(f"{what}: {reply[-1]}")
    return reply[1]


@dataclass
class Proof:
    """The card, the lines of the record, and whether all was as it should be."""

    info: DeviceInfo
    card: Card
    lines: list[str] = field(default_factory=list)
    right: bool = True

    @property
    def library(self) -> CardLibrary:
        return CardLibrary(functools.partial(asked, self.card), str(self.info))

    def say(self, line: str, right: bool = True) -> None:
        self.right = self.right and right
        self.lines.append(line if right else f"WRONG: {line}")
        print(self.lines[-1], flush=True)


# 1. Exactness --------------------------------------------------------------------------------------------------------


def prove_exactness(proof: Proof) -> None:
    """Every candidate on every hostile problem; a problem without an exact one is wrong."""
    for operation in CHECKED:
        o = operation
        what = f"{o.a.name} {o.acc.name} {o.d.name} {o.epilogue}"
        try:
            checked = list(denominators.prove(operation, proof.library))
        except WmmagenError as error:
            proof.say(f"{what}: {error.message}", right=False)
            continue
        tried = [one for each in checked for one in each.tried]
        without = [each for each in checked if all(one.wrong for one in each.tried)]
        exact = sum(not one.wrong for one in tried)
        proof.say(
            f"{what}: {len(checked)} problems, {len(checked) - len(without)} with an exact candidate; "
            f"{exact} of {len(tried)} candidates exact",
            right=bool(checked) and not without,
        )
        for each in checked:
            p = each.problem
            where = f"  {p} {p.operation.layout} lda={p.lda} ldb={p.ldb} ldc={p.ldc} ldd={p.ldd} {each.shifts}"
            if each.answer.reason:
                proof.say(f"{where}: {each.answer.reason}")
            for one in each.tried:
                if one.wrong:
                    proof.say(f"{where}: dropped {one.candidate}: {one.wrong.splitlines()[0]}")
    refused = Denominator("same types", square(64, Operation(F16, F16, F32)), square(64, Operation(F16, F16, F32)))
    proof.say(f"said, not guessed: {denominators.measure(refused, proof.library, PROTOCOL)}")


def square(size: int, operation: Operation) -> Problem:
    """A packed problem of three equal extents."""
    return Problem.packed(operation, size, size, size)


# 2. PyTorch ----------------------------------------------------------------------------------------------------------


class TorchProduct:
    """D = A·B by ``torch.mm`` into a D that is there.

    Args:
        torch: the module.
        values: A and B, f16.
        way: the library by which PyTorch computes; see :data:`WAYS`.
    """

    def __init__(self, torch: Any, values: Sequence[Array], way: str) -> None:
        self._torch = torch
        self._way = way
        self._a, self._b = (torch.from_numpy(x).cuda() for x in values)
        self._d = torch.empty((self._a.shape[0], self._b.shape[1]), dtype=torch.float16, device="cuda")
        self._graph: Any = None
        self._launches = 0

    def launch(self) -> None:
        self._torch.backends.cuda.preferred_blas_library(self._way)
        self._torch.mm(self._a, self._b, out=self._d)

    def capture(self, launches: int) -> None:
        """Many launches in one graph, after some that load and allocate what PyTorch needs."""
        torch = self._torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.launch()
        torch.cuda.current_stream().wait_stream(side)
        self._graph, self._launches = torch.cuda.CUDAGraph(), launches
        with torch.cuda.graph(self._graph):
            for _ in range(launches):
                self.launch()

    def median_us(self, samples: int = 30) -> float:
        """Microseconds of one launch: the median over replays that are queued back to back, after a warm-up."""
        torch = self._torch
        end = time.monotonic() + PROTOCOL.warmup_min_s
        while time.monotonic() < end:
            for _ in range(PROTOCOL.window):
                self._graph.replay()
            torch.cuda.synchronize()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(samples + 2)]
        marks[0].record()
        for mark in marks[1:]:
            self._graph.replay()
            mark.record()
        torch.cuda.synchronize()
        # The first replay has the host's way to an idle device in it.
        times = [float(begin.elapsed_time(end)) for begin, end in itertools.pairwise(marks[1:])]
        return statistics.median(times) * 1e3 / self._launches


def torch_module() -> Any:
    """PyTorch, told not to reduce in half precision, and to give cuBLASLt the workspace that we give it.

    Raises:
        ImportError: it is not here.
    """
    os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", str(WORKSPACE_BYTES >> 10))
    torch = importlib.import_module("torch")
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    return torch


@dataclass(frozen=True)
class Ours:
    """The same product by one of our candidates."""

    card: Card
    recipe: LibraryRecipe

    def median_us(self) -> float:
        """Microseconds of one launch by the protocol."""
        return self.card.compare([self.recipe], PROTOCOL).timings[0].median_us


def compare_with_torch(proof: Proof, torch: Any, size: int, names: Names) -> None:
    """Ours and PyTorch's in turns, and whether they agree on what the same kernel takes."""
    denominator = denominators.denominators(square(size, AS_PYTORCH))[0]
    figure = denominators.measure(denominator, proof.library, PROTOCOL)
    proof.say(str(figure), right=figure.best is not None)
    if figure.best is None:
        return
    alike = {way: same_kernel(figure, names, way) for way in WAYS}
    product = denominators.product_of(denominator.problem, layout.images(denominator.problem))
    buffers, values = denominator.normal_buffers(), reference.normal_inputs(denominator.problem)
    runs: dict[str, Callable[[], float]] = {}
    for candidate in {figure.best.candidate, *(one for one in alike.values() if one is not None)}:
        runs[f"candidate {candidate.number}"] = Ours(proof.card, LibraryRecipe(product, candidate, buffers)).median_us
    for way in WAYS:
        theirs = TorchProduct(torch, values, way)
        assert figure.best.timing is not None
        theirs.capture(figure.best.timing.launches)
        runs[way] = theirs.median_us
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(ROUNDS):
        for name in list(runs)[:: -1 if turn % 2 else 1]:
            times[name].append(runs[name]())
    for name, series in times.items():
        kernel = names.get(f"{size} {name}", "a kernel without a name")
        listed = " ".join(f"{us:.2f}" for us in series)
        proof.say(f"  {name:<13} median {statistics.median(series):9.2f} us of rounds {listed}; {kernel}")
    best = times[f"candidate {figure.best.candidate.number}"]
    told = False
    for way, same in alike.items():
        if same is None:
            proof.say(f"  torch over {way}: none of our candidates is known to run its kernel")
            continue
        ratio = quotient(times[f"candidate {same.number}"], times[way])
        # Over cuBLASLt PyTorch takes what the heuristic names first, as we can; cuBLAS decides by itself.
        judged = way == WAYS[0] or not told
        told = told or judged
        within = abs(ratio - 1) <= WITHIN
        proof.say(
            f"  like with like: candidate {same.number} takes {ratio:.4f} of torch over {way}, "
            f"{'within' if within else 'not within'} {WITHIN:.0%}",
            right=within or not judged,
        )
    if not told:
        proof.say("  nothing was compared like with like", right=False)
    for way in WAYS:
        ratio = quotient(best, times[way])
        proof.say(f"  the denominator takes {ratio:.4f} of torch over {way}", right=ratio <= 1 + WITHIN)


def quotient(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over the rounds of one time over the other."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def same_kernel(figure: Figure, names: Names, way: str) -> Candidate | None:
    """The first exact candidate that runs the kernel which PyTorch runs.

    Where kernels could not be named, the heuristic's first for PyTorch over cuBLASLt, which asks the same heuristic.
    """
    size = figure.denominator.problem.m
    exact = [one.candidate for one in figure.tried if one.timing is not None]
    theirs = names.get(f"{size} {way}")
    if not names:
        return exact[0] if way == WAYS[0] else None
    return next((one for one in exact if theirs and names.get(f"{size} candidate {one.number}") == theirs), None)


# Kernels by their names, in a process of its own: a profiler leaves its traces in the process that it looked at.


def name_kernels(sizes: Sequence[int]) -> Names:
    """What the profiler calls the kernels of PyTorch and of our candidates."""
    torch, card = torch_module(), Card(0)
    library = CardLibrary(functools.partial(asked, card), "the card")
    names: Names = {}
    for size in sizes:
        problem = square(size, AS_PYTORCH)
        images = layout.images(problem)
        product, buffers = denominators.product_of(problem, images), tuple(image.blank() for image in images)
        values = [np.zeros((size, size), np.float16)] * 2
        works: dict[str, Callable[[], object]] = {way: TorchProduct(torch, values, way).launch for way in WAYS}
        for candidate in library.candidates(product).found:
            recipe = LibraryRecipe(product, candidate, buffers)
            works[f"candidate {candidate.number}"] = functools.partial(card.run, recipe)
        for what, work in works.items():
            names[f"{size} {what}"] = " + ".join(profiled(torch, work))
    return names


def profiled(torch: Any, work: Callable[[], object]) -> Iterator[str]:
    """The kernels of ``work``, each once, sorted; no copies."""
    work()  # what only the first call does is not looked at
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    on_device = {event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA}
    return (name for name in sorted(on_device) if not name.startswith(("Memcpy", "Memset")))


def named_elsewhere(proof: Proof, sizes: Sequence[int]) -> Names:
    """The answer of :func:`name_kernels` from another process; empty where it has none."""
    command = [sys.executable, __file__, "--name-kernels", "--sizes", ",".join(map(str, sizes))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        names: Names = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
        why = done.stderr.strip().splitlines()[-1:] if not names else []
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        names, why = {}, [str(error)]
    if not all(names.values()):
        names = {}
    if not names:
        proof.say(f"kernels could not be named, so the heuristic's first is taken for PyTorch's: {' '.join(why)}")
    return names


# 3. The figures ------------------------------------------------------------------------------------------------------


def measure_denominators(proof: Proof, sizes: Sequence[int], late: Callable[[], bool]) -> None:
    """The denominators of f16 kernels; a product in FP32 is the same for both of them."""
    wanted = [denominators.denominators(square(size, operation))[0] for operation in TIMED for size in sizes]
    wanted += [denominators.denominators(square(size, TIMED[0]))[1] for size in sizes]
    for denominator in wanted:
        if late():
            proof.say(f"{denominator}: not measured, the budget is over")
            continue
        try:
            figure = denominators.measure(denominator, proof.library, PROTOCOL)
        except WmmagenError as error:
            proof.say(f"{denominator}: {error.message}", right=False)
            continue
        proof.say(str(figure), right=figure.best is not None)
        if figure.best is not None and figure.best.timing is not None:
            t = figure.best.timing
            sensed = f"{t.clock_mhz} MHz, {t.power_w} W, {t.temperature_c} C, {' '.join(t.throttle) or 'no throttle'}"
            proof.say(f"  {sensed}; {' '.join(t.flags) or 'no flags'}; {t.samples} samples of {t.launches} launches")
        for one in figure.tried:
            took = f"{one.timing.median_us:.2f} us" if one.timing else f"dropped: {one.wrong.splitlines()[0]}"
            proof.say(f"  {one.candidate}: {took}")


def main() -> int:
    """Prove, compare, measure, record."""
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=lambda text: [int(x) for x in text.split(",")], default=[1024, 2048, 4096])
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    parser.add_argument("--budget", type=float, default=105.0, help="seconds after which no figure is begun")
    parser.add_argument("--name-kernels", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.name_kernels:
        print(json.dumps(name_kernels(options.sizes)))
        return 0
    info = devices()[0]
    proof = Proof(info, Card(info.index))
    proof.say(f"{info}; {REQUESTED} candidates asked for, workspace of {WORKSPACE_BYTES >> 20} MiB")
    try:
        prove_exactness(proof)
        prove_against_torch(proof, options.sizes)
        measure_denominators(proof, options.sizes, lambda: time.monotonic() - begin > options.budget)
    except WmmagenError as error:
        proof.say(f"{error.message}; {error.fix}", right=False)
    finally:
        proof.say(f"{'all right' if proof.right else 'not all right'}, after {time.monotonic() - begin:.0f} s")
        device = info.name.replace(" ", "_")
        emit.write(options.to / f"cublas_sm_{info.sm}_on_{device}.txt", "\n".join(proof.lines) + "\n")
    return 0 if proof.right else 1


def prove_against_torch(proof: Proof, sizes: Sequence[int]) -> None:
    """The second part; without PyTorch nothing is proved by it."""
    try:
        torch = torch_module()
    except ImportError as error:
        proof.say(f"PyTorch is not here, so nothing was compared with it: {error}", right=False)
        return
    proof.say(f"PyTorch {torch.__version__}")
    names = named_elsewhere(proof, sizes)
    # RuntimeError is what PyTorch raises for everything that it cannot do.
    refusals: tuple[type[Exception], ...] = (WmmagenError, RuntimeError, *proof.card.errors)
    for size in sizes:
        try:
            compare_with_torch(proof, torch, size, names)
        except refusals as error:
            proof.say(f"{size}: {error}", right=False)


if __name__ == "__main__":
    sys.exit(ended(main))
