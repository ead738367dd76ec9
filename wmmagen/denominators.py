"""What the times of kernels are divided by: cuBLASLt with the same types, and cuBLASLt in FP32.

Of a chain of steps these are the product alone. Beside them stand two that do all of it: cuBLASLt with its own
epilogue, where it has one that is the same, and its product with a kernel of all other steps behind it, in one launch.
That kernel reads sums that were rounded to D, so what is right for it is what the steps make of those.

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

from wmmagen import elementwise, layout, reference
from wmmagen.backends import Bytes, Pointer
from wmmagen.backends.product import EPILOGUES, Behind, Candidate, Candidates, Library, LibraryProduct
from wmmagen.batched import BatchCase, Stack
from wmmagen.config import WIDEST_BITS, Layout, Operation, Problem
from wmmagen.dtypes import F32
from wmmagen.epilogue import Epilogue
from wmmagen.errors import Fault
from wmmagen.layout import Array, Image, Shifts
from wmmagen.reference import Span
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

Kind = Literal["same types", "FP32", "own epilogue", "kernel behind"]

#: Extents of the tile around which the checked problems are made, and their stages: small, and no power of two.
_TILE = (48, 80, 40)
_STAGES = 2
#: Sizes that are multiples of nothing, and how far leading dimensions are above them.
_ODD, _ODD_EXTRA = (67, 45, 51), 4


@dataclass(frozen=True)
class Denominator:
    """A problem as the library is asked for it.

    Attributes:
        kind: which of them.
        asked: the kernel's problem.
        problem: the library's: the same, or the same in f32 throughout, with the same leading dimensions in elements.
        reason: why the library cannot be asked for it; empty where it can.
    """

    kind: Kind
    asked: Problem
    problem: Problem
    reason: str = ""

    def __str__(self) -> str:
        o = self.problem.operation
        return f"cuBLASLt {self.kind} ({o.a.name}, {o.acc.name}, {o.d.name}) {self.problem}"

    def case(self) -> Case | BatchCase:
        """Exact inputs, and what is right for them.

        Raises:
            ConfigError: none can be made for the problem.
        """
        case = checked_case(self.problem)
        if isinstance(case, BatchCase) or self.kind not in _OF_CHAINS:
            return case
        return dataclasses.replace(case, want=_behind(case) if self.kind == "kernel behind" else _own(case), check=None)

    def product(self, library: Library) -> LibraryProduct:
        """What the library is asked for.

        Raises:
            CompileError: the kernel behind it is refused.
            MissingPiece: there is no compiler here.
        """
        problem, images = self.problem, images_of(self.problem)
        product = product_of(problem, images)
        if self.kind == "own epilogue":
            number = names_of(problem).index("bias_col") if problem.operation.epilogue.has("bias_col") else None
            return dataclasses.replace(
                product,
                epilogue=EPILOGUES[_words(problem.operation)],
                bias=None if number is None else Pointer(number, images[number].offset),
            )
        if self.kind == "kernel behind":
            rest = problem.doing(elementwise.rest_of(problem.operation))
            places = [(n, i) for n, i in zip(names_of(problem), images, strict=True) if isinstance(i, Image)]
            cubin = library.compiled(elementwise.text_of(rest), elementwise.ENTRY)
            return dataclasses.replace(product, behind=Behind(cubin, elementwise.launch_of(rest, places)))
        return product

    def buffers(self, data: Data) -> tuple[Bytes, ...]:
        """The buffers for timing: exact integers, or the normal values that the kernel is timed on, in these types.

        Raises:
            ConfigError: integers were asked for, and none can be proved exact for the problem.
        """
        return checked_case(self.problem).buffers if data == "integers" else self.normal_buffers()

    def normal_buffers(self) -> tuple[Bytes, ...]:
        """Normal values, those that the kernel is timed on."""
        return normal_buffers(self.problem, self.asked)


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


def denominators(problem: Problem) -> tuple[Denominator, ...]:
    """The same types, then FP32: of a chain of steps the product alone, without its steps.

    Behind them, where there is a chain and no batch, what does all of it.
    """
    asked = problem.doing(plain(problem.operation))
    single = dataclasses.replace(asked, operation=_in_f32(asked.operation))
    two = Denominator("same types", asked, asked), Denominator("FP32", asked, single)
    if problem.operation.epilogue.simple or problem.operation.batched:
        return two
    own, behind = _refusals(problem.operation)
    return (
        *two,
        Denominator("own epilogue", problem, problem, own),
        Denominator("kernel behind", problem, problem, behind),
    )


def _words(operation: Operation) -> tuple[str, ...]:
    """The steps that are neither alpha nor beta."""
    return tuple(step.word for step in elementwise.rest_of(operation).epilogue.steps)


def _refusals(operation: Operation) -> tuple[str, str]:
    """Why the library's own epilogue, and a kernel behind its product, cannot be asked for; empty where they can."""
    o = operation
    scaled = f"cuBLASLt takes C in D's type alone, {o.d.name}" if o.scaled and o.added != o.d else ""
    words = _words(o)
    if o.acc.integer:
        whole = "what the steps make of whole sums has another type than a library's product, where they would begin"
        return whole, whole
    if o.cd is not Layout.RR:
        rows = "what does a whole chain is asked for a C and a D in rows alone"
        return rows, rows
    if words not in EPILOGUES:
        return f"cuBLASLt has no epilogue that is {o.epilogue}; of these: {', '.join(map('+'.join, EPILOGUES))}", scaled
    if o.epilogue.adds and o.added != o.d:
        return f"cuBLASLt is asked for C and a bias in D's type alone, {o.d.name}", scaled
    return "", scaled


def names_of(problem: Problem) -> tuple[str, ...]:
    """The matrices and vectors of a call, in the order of its buffers."""
    return (*layout.operand_names(problem.operation), "D")


def plain(operation: Operation) -> Operation:
    """What a library has of an operation: factors and a C of D's type, and none of the steps behind them.

    Whole sums that another step than the factors makes smaller stay whole sums.
    """
    o = operation
    epilogue = Epilogue.LINEAR if o.scaled else Epilogue.NONE
    d = o.acc if o.acc.integer and not o.scaled else o.d
    return dataclasses.replace(o, epilogue=epilogue, c=None, d=d, align_d=min(o.align_d, WIDEST_BITS // d.bits))


def _in_f32(operation: Operation) -> Operation:
    return Operation(F32, F32, F32, operation.layout, operation.epilogue, batch=operation.batch, cd=operation.cd)


def product_of(problem: Problem, images: Sequence[Image | Stack]) -> LibraryProduct:
    """``problem`` as a library is asked for it, with its matrices where ``images`` (A, B, C if there is one, D) lie.

    A batch is always asked for by strides: where a kernel takes pointers, the matrices that they name lie evenly, too,
    and the library takes those in the order of memory.
    """
    p, o = problem, problem.operation
    at = {
        name: Pointer(number, image.offset)
        for number, (name, image) in enumerate(zip(names_of(p), images, strict=True))
    }
    # A user's formula may read a C that alpha and beta know nothing of.
    reads_c = p.reads_c and o.scaled
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
        a=at["A"],
        b=at["B"],
        d=at["D"],
        ldc=p.ldc if reads_c else 0,
        c=at["C"] if reads_c else None,
        alpha=p.alpha,
        beta=p.beta,
        batch=p.batch,
        strides=p.strides,
        c_row_major=o.c_row_major,
        d_row_major=o.d_row_major,
    )


# ---------------------------------------------------------------------------------------------------------------------
# What is right for those that compute a whole chain.

_OF_CHAINS: tuple[Kind, ...] = ("own epilogue", "kernel behind")
#: The largest relative error of the hardware's tanh, which a library may take. PTX ISA, tanh.approx.f32.
_TANH_ERROR = 2.0**-11


def _sums(inputs: reference.Inputs) -> Array:
    p = inputs.problem
    return reference.product(inputs) if p.alpha else np.zeros((p.m, p.n), np.int64)


def _behind(case: Case) -> Array | Span:
    """What the steps make of a product that was rounded to D."""
    p, inputs = case.problem, case.inputs
    product = p.doing(plain(p.operation))
    held = reference.round_once(reference.finish(product, _sums(inputs), inputs.c), p.operation.d)
    rest, read = p.doing(elementwise.rest_of(p.operation)), reference.whole(inputs)
    if rest.operation.epilogue.exact:
        return reference.round_once(reference.finish(rest, held, inputs.c, read), p.operation.d)
    return reference.span_of(rest, held, inputs.c, read)


def _own(case: Case) -> Array | Span | None:
    """What the library's epilogue may make of exact sums: where it has a tanh, that of the hardware is right, too."""
    p, inputs, want = case.problem, case.inputs, case.want
    if not isinstance(want, Span):
        return reference.expected(inputs) if want is None else want
    return reference.span_of(p, _sums(inputs), inputs.c, reference.whole(inputs), _TANH_ERROR)


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
        if operation.a == F32 and not operation.scaled:
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
    if denominator.reason:
        return Figure(denominator, "", (), denominator.reason)
    case, product = denominator.case(), denominator.product(library)
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
    best, denominator = figure.best, figure.denominator
    assert best is not None
    return library.recipe(denominator.product(library), best.candidate, denominator.buffers(data))


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
