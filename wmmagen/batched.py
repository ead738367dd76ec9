"""A batch of products: where its matrices lie, inputs that tell each product from the others, and the verdict.

All matrices of an operand lie in one buffer, strides apart, guards before, between and behind them. Every product has
data of its own, so that a wrong index cannot cancel; an operand with a stride of 0 is one matrix for all of them. Each
product is judged as a single one is (:mod:`wmmagen.verdict`), and the guards of the buffer once for all.

Where pointers name the matrices, those lie in the buffer in the opposite order: whoever takes a stride for a pointer
finds another product's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from wmmagen import layout, reference, verdict
from wmmagen.config import STRIDES, Batch, Problem
from wmmagen.dtypes import ElementType
from wmmagen.epilogue import BIASES, SCALES
from wmmagen.errors import ConfigError
from wmmagen.layout import UNSHIFTED, Array, Bytes, Damage, Image, Mask, Shifts, bits_dtype, decode, encode
from wmmagen.pieces import same_bytes
from wmmagen.reference import Inputs, Span
from wmmagen.verdict import Error, Judged, Tiles, Verdict

#: Products whose matrices may be those that a wrong one has.
_LOOKED_AT = 64


@dataclass(frozen=True)
class Stack:
    """The matrices of one operand of a batch in one flat buffer of bytes; see :class:`wmmagen.layout.Image`.

    Attributes:
        one: one of them in a buffer of its own, without guards.
        places: where each begins, in elements from the first in memory; alike where products share a matrix.
        offset: of the first in memory, in bytes from the start of the buffer.
        total_bytes: size of the buffer.
    """

    one: Image
    places: tuple[int, ...]
    offset: int
    total_bytes: int

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each begins, in bytes from the start of the buffer."""
        return tuple(self.offset + place * self.one.element_bytes for place in self.places)

    def matrix(self, buffer: Bytes, number: int) -> Array:
        """The bit patterns of one matrix (rows × cols), a view into ``buffer``.

        Raises:
            ValueError: the buffer is not one of this stack.
        """
        one = self.one
        if buffer.dtype != np.uint8 or buffer.shape != (self.total_bytes,):
            raise ValueError(f"the stack has {self.total_bytes} bytes, not {buffer.dtype}{list(buffer.shape)}")
        lines = np.ndarray(
            (one.lines, one.length),
            bits_dtype(one.element),
            buffer.data,
            self.starts[number],
            (one.ld * one.element_bytes, one.element_bytes),
        )
        return lines if one.row_major else lines.T

    def pack(self, values: Sequence[Array]) -> Bytes:
        """A buffer that holds ``values`` (each rows × cols), rounded to the element type, amid guards."""
        return self._filled(encode(matrix, self.one.element) for matrix in values)

    def blank(self) -> Bytes:
        """A buffer whose matrices are all poison, amid guards: D before a checked run."""
        return self._filled(itertools.repeat(self.one.poison))

    def unreadable(self, *, infinite: bool = False) -> Bytes:
        """A buffer that shows in the result wherever it is read; as :meth:`wmmagen.layout.Image.unreadable`."""
        return self._filled(itertools.repeat(self.one.bits(self.one.unreadable(infinite=infinite))))

    def alone(self, buffer: Bytes, number: int) -> Bytes:
        """One matrix in a buffer of :attr:`one`."""
        single = self.one.blank()
        self.one.bits(single)[:] = self.matrix(buffer, number)
        return single

    def guard_damage(self, buffer: Bytes) -> Damage | None:
        """The first damage to a guard, in the order of addresses; None where every guard is intact."""
        size = self.one.element_bytes
        hit = np.flatnonzero((buffer.view(bits_dtype(self.one.element)) != self.one.guard) & ~self._owned())
        if not hit.size:
            return None
        first = int(hit[0])
        before = [number for number, start in enumerate(self.starts) if start <= first * size]
        nearest = max(before, key=lambda number: self.starts[number], default=None)
        where = "before the data" if nearest is None else f"behind or beside that of product {nearest}"
        intact = np.frombuffer(self.one.guard.to_bytes(size, "little"), np.uint8)
        at = first * size
        return Damage(at + int(np.flatnonzero(buffer[at : at + size] != intact)[0]), where, int(hit.size))

    def _filled(self, matrices: Iterator[Array] | Iterator[int]) -> Bytes:
        flat = np.full(self.total_bytes // self.one.element_bytes, self.one.guard, bits_dtype(self.one.element))
        buffer: Bytes = flat.view(np.uint8)
        for number, matrix in zip(range(len(self.places)), matrices, strict=False):
            self.matrix(buffer, number)[:] = matrix
        return buffer

    def _owned(self) -> Mask:
        """Which elements of the buffer belong to a matrix."""
        marks = np.zeros(self.total_bytes, np.uint8)
        for number in range(len(self.places)):
            self.matrix(marks, number)[:] = 1
        return np.asarray(marks.view(bits_dtype(self.one.element)) != 0)


def stacks(problem: Problem, *, guard_bytes: int = layout.GUARD_BYTES, shifts: Shifts = UNSHIFTED) -> tuple[Stack, ...]:
    """The stacks of A, B, what the epilogue reads, and D, in a kernel's order: D is last.

    Raises:
        ConfigError, ValueError: as :func:`wmmagen.layout.images`.
    """
    ones = layout.images(single(problem), guard_bytes=0)
    # What lies before and behind a single one does so here.
    guarded = layout.images(single(problem), guard_bytes=guard_bytes, shifts=shifts)
    return tuple(
        _stack(one, problem, problem.stride_of(name), alone.offset, alone.total_bytes - alone.offset - one.total_bytes)
        for name, one, alone in zip(names_of(problem), ones, guarded, strict=True)
    )


def _stack(one: Image, problem: Problem, stride: int, before: int, behind: int) -> Stack:
    order = range(problem.batch)
    places = tuple(stride * n for n in (reversed(order) if problem.operation.batch is Batch.POINTERS else order))
    held = max(places, default=0) * one.element_bytes + one.total_bytes
    return Stack(one, places, before, before + held + behind)


def names_of(problem: Problem) -> tuple[str, ...]:
    """The matrices and vectors of a product, in a kernel's order: D is last."""
    return (*layout.operand_names(problem.operation), "D")


def single(problem: Problem) -> Problem:
    """One product of the batch."""
    none = replace(problem.operation, batch=Batch.NONE)
    return replace(problem, operation=none, batch=1, **dict.fromkeys(STRIDES, 0))


# ---------------------------------------------------------------------------------------------------------------------
# Inputs.


def demand(problem: Problem, pattern: str) -> None:
    """Return where :func:`exact_inputs` has inputs for ``problem``, without making any.

    Raises:
        ConfigError, NotGeneratedYet: as :func:`exact_inputs`.
    """
    reference.demand(single(problem), pattern)
    if pattern == "positions":
        raise ConfigError(
            "pattern 'positions' has the same values in every product of a batch, where no wrong index would show",
            "use pattern 'auto' or 'field'",
        )


def exact_inputs(problem: Problem, *, seed: int = 0, pattern: str = "auto") -> tuple[Inputs, ...]:
    """Exact inputs of each product (:func:`wmmagen.reference.exact_inputs`), other ones for each.

    Raises:
        ConfigError, NotGeneratedYet: as there; or a pattern without other values.
    """
    demand(problem, pattern)
    one = single(problem)
    drawn = [reference.exact_inputs(one, seed=seed + number, pattern=pattern) for number in range(problem.batch)]
    shared = _shared(problem)

    def drawn_for(name: str, number: int) -> Inputs:
        return drawn[0 if shared.get(name) else number]

    def together(number: int) -> Inputs:
        a, b, c = (drawn_for(name, number) for name in "ABC")
        beside = {name: drawn_for(name, number).beside[name] for name in a.beside}
        return reference.combined(a, b, c, beside)

    return tuple(map(together, range(len(drawn))))


def normal_inputs(problem: Problem, seed: int = 0) -> tuple[tuple[Array, ...], ...]:
    """Normal operands of each product, as :func:`wmmagen.reference.normal_inputs` has them."""
    one = single(problem)
    drawn = [reference.normal_inputs(one, seed + number) for number in range(problem.batch)]
    shared = tuple(_shared(problem).values())
    return tuple(
        tuple(drawn[0 if shared[which] else n][which] for which in range(len(drawn[n]))) for n in range(len(drawn))
    )


def _shared(problem: Problem) -> dict[str, bool]:
    """Of each operand, in a kernel's order and by its name in formulas but for A, B and C: whether all have one."""
    names = layout.operand_names(problem.operation)
    return {name if name in "ABC" else name.lower(): problem.stride_of(name) == 0 for name in names}


# ---------------------------------------------------------------------------------------------------------------------
# Cases and their verdict.


@dataclass(frozen=True)
class BatchCase:
    """A batch made ready for checking; as :class:`wmmagen.trial.Case` is for a single product.

    Attributes:
        problem: the batch.
        products: each product made ready; only its inputs, its right D and the check that may stand for that count.
        images: of A, B, what the epilogue reads, and D, which is last.
        buffers: these.
    """

    problem: Problem
    products: tuple[verdict.Wanted, ...]
    images: tuple[Stack, ...] = field(repr=False)
    buffers: tuple[Bytes, ...] = field(repr=False)

    def judged(self, returned: Sequence[Bytes], tiles: Tiles | None = None) -> Judged:
        """The verdict on everything that a launch left, in words that name the product."""
        guaranteed = all(product.inputs.guaranteed for product in self.products)
        misses = [product.check.miss_bits for product in self.products if product.check]
        words = self._touched(returned)
        if words or (self._right is not None and same_bytes(returned[-1], self._right)):
            return Judged(not words, guaranteed, words, min(misses, default=None))
        d = self.images[-1]
        each = [
            verdict.judge(product.inputs, d.one, d.alone(returned[-1], number), product.want, product.check)
            for number, product in enumerate(self.products)
        ]
        words = self._wrong(returned[-1], each, tiles)
        errors = [told.error for told in each if told.error is not None]
        farthest = Error(max(e.seen for e in errors), max(e.bound for e in errors)) if errors and not words else None
        return Judged(not words, guaranteed, words, min(misses, default=None), farthest)

    @cached_property
    def _right(self) -> Bytes | None:
        """All of D's buffer as a right launch leaves it; None where that is not one pattern of bits.

        Equal bytes need no verdict on each of a thousand products; different ones get it.
        """
        wants = [product.want for product in self.products]
        if not all(isinstance(want, np.ndarray) and np.isfinite(want).all() for want in wants):
            return None
        return self.images[-1].pack([want for want in wants if isinstance(want, np.ndarray)])

    def _touched(self, returned: Sequence[Bytes]) -> str:
        names = layout.operand_names(self.problem.operation)
        for name, stack, sent, back in zip(names, self.images[:-1], self.buffers, returned, strict=False):
            if not same_bytes(sent, back):
                first = int((sent != back).argmax())
                return f"{name} was written to, first at byte {first - stack.offset} from the first one's start"
        return ""

    def _wrong(self, returned: Bytes, each: Sequence[Verdict], tiles: Tiles | None) -> str:
        """What is wrong with the outputs: the first wrong product, how many are, and the guards."""
        d = self.images[-1]
        found = [(number, told) for number, told in enumerate(each) if not told.exact]
        damage = d.guard_damage(returned)
        guards = f"guards: {damage}" if damage else ""
        if not found:
            return guards
        number, told = found[0]
        words = verdict.explain(told, tiles) if tiles else str(told)
        hint = self._another(d.matrix(returned, number), number)
        lines = (
            f"product {number} of 0 to {self.problem.batch - 1}, the first of {len(found)} wrong ones: {words}",
            f"hint: {hint}" if hint else "",
            guards,
        )
        return "\n".join(filter(None, lines))

    def _another(self, got: Array, number: int) -> str:
        """Whether a wrong product is right with a matrix of another product."""
        own = self.products[number].inputs
        element = self.problem.operation.d
        near = dict.fromkeys((0, number - 1, number + 1, *range(len(self.products))))
        others = [other for other in near if 0 <= other < len(self.products) and other != number]
        for other in others[:_LOOKED_AT]:
            whose = self.products[other].inputs
            stories = {
                "A is that": (whose, own, own, own.beside),
                "B is that": (own, whose, own, own.beside),
                "C is that": (own, own, whose, own.beside),
                **{f"{x} is that": (own, own, own, {**own.beside, x: whose.beside[x]}) for x in own.beside},
                "all matrices are those": (whose, whose, whose, whose.beside),
            }
            for words, parts in stories.items():
                inputs = reference.combined(*parts)
                right = None if _same(inputs, own) else reference.expected(inputs)
                if right is not None and _fits(got, right, element):
                    return f"{words} of product {other}: the index within the batch is wrong"
        return ""


def _same(one: Inputs, other: Inputs) -> bool:
    """Whether two products have the same matrices, so that neither can be told from the other."""
    pairs = [(one.a, other.a), (one.b, other.b), (one.c, other.c)]
    pairs += [(one.beside[name], other.beside[name]) for name in one.beside]
    return all(x is y or (x is not None and y is not None and np.array_equal(x, y)) for x, y in pairs)


def _fits(got: Array, right: Array | Span, element: ElementType) -> bool:
    """Whether bit patterns are right."""
    if isinstance(right, Span):
        return bool(right.holds(decode(got, element)).all())
    return np.array_equal(got, encode(right, element))


# ---------------------------------------------------------------------------------------------------------------------
# Problems to validate on.


def hostile(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Batches of the hostile ``problems`` of single products: every way in which matrices lie, in turn.

    Matrices lie apart; operands are shared, each alone and together; outputs lie side by side; and a batch has one
    product, or none. The longest K comes first, because it sees the most of a pipeline.
    """
    ways = (_apart, _b_shared, _a_shared, _side_by_side, _both_shared, _alone)
    longest = sorted((p for p in problems if p.k), key=lambda p: p.k, reverse=True)
    batches = [way(problem) for problem, way in zip(longest, itertools.cycle(ways), strict=False)]
    batches += [way(longest[-1]) for way in ways[len(batches) :]]
    # Without a slice of K every output is written all the same, and without a product none.
    return (*batches, *(_apart(p) for p in problems if not p.k), replace(_apart(longest[-1]), batch=0))


def _apart(problem: Problem, batch: int = 3) -> Problem:
    """Matrices with a line of guards between them: strides are odd multiples of what is promised, as lines are."""
    return replace(problem.apart(1), batch=batch)


def _a_shared(problem: Problem) -> Problem:
    return _sharing(problem, "a", "c", *BIASES)


def _b_shared(problem: Problem) -> Problem:
    return _sharing(problem, "b", "r", *SCALES)


def _sharing(problem: Problem, operand: str, *added: str) -> Problem:
    """Two products with one A or one B, and with one of each of what is added, as far as the epilogue has it."""
    has = problem.operation.epilogue.has
    shared: dict[str, Any] = {f"stride_{name}": 0 for name in (operand, *filter(has, added))}
    return replace(_apart(problem, 2), **shared)


def _both_shared(problem: Problem) -> Problem:
    """One product twice, in two outputs; with a C, two different ones."""
    return replace(_apart(problem, 2), stride_a=0, stride_b=0)


def _side_by_side(problem: Problem) -> Problem:
    """Outputs in rows, or columns, that hold all of them, as the heads of an attention lie."""
    apart, count = _apart(problem), 3
    # Whole units of 256 elements keep every alignment.
    stride = -(-(problem.n if problem.operation.d_row_major else problem.m) // 256) * 256
    return replace(apart, batch=count, stride_d=stride, ldd=count * stride + 256)


def _alone(problem: Problem) -> Problem:
    return replace(_apart(problem), batch=1)
