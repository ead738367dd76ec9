"""What the times of kernels are divided by: cuBLASLt with the same types, and cuBLASLt in FP32.

Each is the best of the candidates that the library's own heuristic proposes, by the protocol that kernels are timed by.
A candidate is timed only where its result is the exact one, bit for bit, under the same verdict as a kernel's: one that
splits K and adds its parts in half precision may drop out here. What the library does not offer is said, never guessed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from wmmagen import layout, reference
from wmmagen.backends import Bytes, Pointer
from wmmagen.backends.product import Candidate, Candidates, Library, LibraryProduct
from wmmagen.batched import BatchCase, Stack
from wmmagen.config import Layout, Operation, Problem
from wmmagen.dtypes import F32
from wmmagen.epilogue import Epilogue
from wmmagen.errors import Fault
from wmmagen.layout import Image, Shifts
from wmmagen.timing import Data, Timing, TimingProtocol
from wmmagen.trial import (
    Case,
    case_of,
    checked_case,
    demand_possible,
    exact_case,
    images_of,
    normal_buffers,
    tflops,
)

Kind = Literal["same types", "FP32"]

#: Extents of the tile around which the checked problems are made, and their stages: small, and no power of two.
_TILE = (48, 80, 40)
_STAGES = 2
#: Sizes that are multiples of nothing, and how far leading dimensions are above them.
_ODD, _ODD_EXTRA = (67, 45, 51), 4


@dataclass(frozen=True)
class Denominator:
    """A problem as the library is asked for it.

    Attributes:
        kind: which of the two.
        asked: the kernel's problem.
        problem: the library's: the same, or the same in f32 throughout, with the same leading dimensions in elements.
    """

    kind: Kind
    asked: Problem
    problem: Problem

    def __str__(self) -> str:
        o = self.problem.operation
        return f"cuBLASLt {self.kind} ({o.a.name}, {o.acc.name}, {o.d.name}) {self.problem}"

    def buffers(self, data: Data) -> tuple[Bytes, ...]:
        """The buffers for timing: exact integers, or the normal values that the kernel is timed on, in these types.

        Raises:
            ConfigError: integers were asked for, and none can be proved exact for the problem.
        """
        return checked_case(self.problem).buffers if data == "integers" else self.normal_buffers()

    def normal_buffers(self) -> tuple[Bytes, ...]:
        """Normal values, those that the kernel is timed on."""
        if self.problem.operation.batched:
            return normal_buffers(self.problem, self.asked)
        *operands, d = layout.images(self.problem)
        values = reference.normal_inputs(self.asked)
        return (*(image.pack(v) for image, v in zip(operands, values, strict=True)), d.blank())


@dataclass(frozen=True)
class Tried:
    """One candidate's story.

    Attributes:
        candidate: who.
        wrong: why it is none; empty where every checked result was exact.
        timing: its time; None where it is wrong.
    """

    candidate: Candidate
    wrong: str = ""
    timing: Timing | None = None


@dataclass(frozen=True)
class Figure:
    """A denominator, measured.

    Attributes:
        denominator: of what.
        version: of the library.
        tried: every candidate that the heuristic proposed, in its order.
        reason: why there is no figure; empty where there is one.
    """

    denominator: Denominator
    version: str
    tried: tuple[Tried, ...]
    reason: str = ""

    @property
    def best(self) -> Tried | None:
        """The fastest exact candidate; None where there is none."""
        timed = [one for one in self.tried if one.timing is not None]
        return min(timed, key=_median_us, default=None)

    def __str__(self) -> str:
        best = self.best
        if best is None or best.timing is None:
            return f"{self.denominator}: none: {self.reason}"
        low, high = best.timing.interval_us
        exact = sum(one.timing is not None for one in self.tried)
        return (
            f"{self.denominator}: {best.timing.median_us:.2f} us [{low:.2f}, {high:.2f}], "
            f"{tflops(self.denominator.problem, best.timing.median_us):.1f} TFLOP/s; {best.candidate}, the best of "
            f"{exact} exact of {len(self.tried)} proposed; cuBLASLt {self.version}"
        )


def _median_us(one: Tried) -> float:
    assert one.timing is not None
    return one.timing.median_us


def denominators(problem: Problem) -> tuple[Denominator, Denominator]:
    """Both of them: the same types, then FP32. Of a chain of steps they are the product alone, without its steps."""
    asked = problem.doing(_plain(problem.operation))
    single = dataclasses.replace(asked, operation=_in_f32(asked.operation))
    return Denominator("same types", asked, asked), Denominator("FP32", asked, single)


def _plain(operation: Operation) -> Operation:
    """What a library has of an operation: factors and a C of D's type, and none of the steps behind them."""
    epilogue = Epilogue.LINEAR if operation.scaled else Epilogue.NONE
    return dataclasses.replace(operation, epilogue=epilogue, c=None)


def _in_f32(operation: Operation) -> Operation:
    return Operation(F32, F32, F32, operation.layout, operation.epilogue, batch=operation.batch, cd=operation.cd)


def product_of(problem: Problem, images: Sequence[Image | Stack]) -> LibraryProduct:
    """``problem`` as a library is asked for it, with its matrices where ``images`` (A, B, C if there is one, D) lie.

    A batch is always asked for by strides: where a kernel takes pointers, the matrices that they name lie evenly, too,
    and the library takes those in the order of memory.
    """
    p, o = problem, problem.operation
    a, b, *rest = (Pointer(number, image.offset) for number, image in enumerate(images))
    reads_c = p.reads_c
    return LibraryProduct(
        m=p.m,
        n=p.n,
        k=p.k,
        a_type=o.a.name,
        acc_type=o.acc.name,
        d_type=o.d.name,
        a_row_major=o.a_row_major,
        b_row_major=o.b_row_major,
        lda=p.lda,
        ldb=p.ldb,
        ldd=p.ldd,
        a=a,
        b=b,
        d=rest[-1],
        ldc=p.ldc if reads_c else 0,
        c=rest[0] if reads_c else None,
        alpha=p.alpha,
        beta=p.beta,
        batch=p.batch,
        strides=p.strides,
        c_row_major=o.c_row_major,
        d_row_major=o.d_row_major,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Whether the library is right.


@dataclass(frozen=True)
class Checked:
    """What became of a checked problem.

    Attributes:
        problem: what was computed.
        shifts: where its matrices began.
        answer: what the heuristic proposed for it.
        tried: each candidate with its verdict; none of them timed.
    """

    problem: Problem
    shifts: Shifts
    answer: Candidates
    tried: tuple[Tried, ...]


def prove(operation: Operation, library: Library) -> Iterator[Checked]:
    """Every candidate for every hostile problem of ``operation``, in all four layouts.

    Sizes are not square, leading dimensions are above the extents and all different, pointers are aligned as far as it
    is said and no further. FP32 has one more problem, whose operands tf32 does not hold.

    Raises:
        MissingPiece: the library is not here.
    """
    for case, shifts in hostile_cases(operation):
        product = product_of(case.problem, case.images)
        answer = library.candidates(product)
        tried = tuple(Tried(one, _wrong(library, product, one, case)) for one in answer.found)
        yield Checked(case.problem, shifts, answer, tried)


def hostile_cases(operation: Operation) -> Iterator[tuple[Case, Shifts]]:
    """The cases of :func:`prove`, with the shifts of their pointers."""
    size = operation.a.bits // 8, operation.d.bits // 8
    even, odd = Shifts(a=16, b=32, d=64), Shifts(a=size[0], b=3 * size[0], d=5 * size[1])
    for order in Layout:
        turned = dataclasses.replace(operation, layout=order)
        for problem in reference.problems_for(turned, *_TILE, _STAGES):
            # With an alpha of 0 a kernel must not read A and B; nothing says so of the library.
            if problem.alpha:
                yield exact_case(problem, shifts=even), even
        yield exact_case(Problem.packed(turned, *_ODD, _ODD_EXTRA), shifts=odd), odd
        if operation.a is F32 and not operation.scaled:
            yield case_of(_beyond_tf32(Problem.packed(turned, *_ODD, _ODD_EXTRA))), layout.UNSHIFTED


def _beyond_tf32(problem: Problem) -> reference.Inputs:
    """Inputs whose A needs more than the 11 bits of tf32 in nearly every element, exact in f32 nonetheless."""
    inputs = reference.exact_inputs(problem)
    largest = reference.accumulation_limit(problem.operation) // problem.k
    a = np.sign(inputs.a) * (largest - np.abs(inputs.a))
    return reference.given_inputs(problem, a, np.sign(inputs.b))


def _wrong(library: Library, product: LibraryProduct, candidate: Candidate, case: Case | BatchCase) -> str:
    """What is wrong with a candidate's result; empty where it is the exact one and nothing else was touched."""
    try:
        returned = library.run(product, candidate, case.buffers)
    except Fault as fault:
        return fault.message
    return case.judged(returned).words


# ---------------------------------------------------------------------------------------------------------------------
# How long it takes.


def measure(denominator: Denominator, library: Library, protocol: TimingProtocol) -> Figure:
    """Check and time every candidate for ``denominator``; the best one is checked again after it was timed.

    Raises:
        MissingPiece: the library is not here.
        ConfigError: no exact inputs can be made for the problem.
    """
    case = checked_case(denominator.problem)
    product = product_of(denominator.problem, case.images)
    answer = library.candidates(product)
    buffers = denominator.buffers(protocol.data)
    tried = [_try(library, product, one, case, buffers, protocol) for one in answer.found]
    figure = Figure(denominator, answer.version, tuple(tried), answer.reason)
    while (best := figure.best) and (wrong := _wrong(library, product, best.candidate, case)):
        tried[tried.index(best)] = Tried(best.candidate, f"after timing: {wrong}")
        figure = dataclasses.replace(figure, tried=tuple(tried))
    if figure.best is None and not figure.reason:
        return dataclasses.replace(figure, reason=f"none of {len(tried)} candidates is exact; {tried[0].wrong}")
    return figure


def recipe(figure: Figure, library: Library, data: Data) -> Any:
    """The best candidate of ``figure``, ready to be timed in turns with kernels on ``data``."""
    best, problem = figure.best, figure.denominator.problem
    assert best is not None
    product = product_of(problem, images_of(problem))
    return library.recipe(product, best.candidate, figure.denominator.buffers(data))


def _try(
    library: Library,
    product: LibraryProduct,
    candidate: Candidate,
    case: Case | BatchCase,
    buffers: Sequence[Bytes],
    protocol: TimingProtocol,
) -> Tried:
    if wrong := _wrong(library, product, candidate, case):
        return Tried(candidate, wrong)
    try:
        timing = library.time(product, candidate, buffers, protocol)
        demand_possible(case.problem, timing, library.device)
    except Fault as fault:
        return Tried(candidate, fault.message)
    return Tried(candidate, timing=timing)
