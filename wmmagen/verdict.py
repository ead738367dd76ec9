"""The verdict on a kernel's output: bit for bit, everything that it touched, and why where it is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from wmmagen.config import Problem
from wmmagen.dtypes import ElementType
from wmmagen.epilogue import Step, along_row
from wmmagen.freivalds import Freivalds
from wmmagen.layout import Array, Bytes, Image, Mask, decode, encode
from wmmagen.reference import (
    F16_MAX,
    Inputs,
    Span,
    beside_at,
    expected,
    finish,
    is_chain,
    restrict,
    round_once,
    span_of,
    widened,
)

#: Wrong elements that an explanation has to account for, all of them, before it is given as a hint.
SAMPLE = 64
#: Fewer wrong elements than this agree with one of some hundred candidates by chance: sums can be as small as 2^11.
FEWEST = 4


@dataclass(frozen=True)
class Tiles:
    """Extents of a variant's tiles, in elements, and its pipeline's depth: what owns an element of D."""

    block_m: int
    block_n: int
    warp_m: int
    warp_n: int
    inst_m: int
    inst_n: int
    block_k: int
    stages: int

    def owner(self, row: int, col: int) -> str:
        """The block, the warp in it and the fragment tile in that that own an element."""
        in_block = row % self.block_m, col % self.block_n
        in_warp = in_block[0] % self.warp_m, in_block[1] % self.warp_n
        return (
            f"block ({row // self.block_m}, {col // self.block_n}), "
            f"warp ({in_block[0] // self.warp_m}, {in_block[1] // self.warp_n}) of it, "
            f"fragment ({in_warp[0] // self.inst_m}, {in_warp[1] // self.inst_n}) of that (row, column)"
        )


@dataclass(frozen=True, eq=False)
class Wanted:
    """What a right D is.

    Attributes:
        inputs: what the kernel is given.
        want: the exact result, or where it must lie; None where ``check`` stands for it.
        check: Freivalds' check of D.
    """

    inputs: Inputs
    want: Array | Span | None
    check: Freivalds | None


@dataclass(frozen=True)
class Judged:
    """A verdict on everything that a launch left, in words.

    Attributes:
        exact: every output is the exact one, and nothing else was touched.
        guaranteed: the bound of the inputs proves that every right kernel gives these bits.
        words: what is wrong; empty where exact.
        miss_bits: a wrong result passes with a probability of 2^-this at most; None where all of it was compared.
        error: of a right result of an epilogue with functions; None of all others.
    """

    exact: bool
    guaranteed: bool
    words: str
    miss_bits: int | None = None
    error: Error | None = None


@dataclass(frozen=True)
class Mismatch:
    """The first wrong element, in the order of rows.

    Attributes:
        index: row · ldd + col, or col · ldd + row: its index from D's first element in memory.
        row, col: its place.
        got: the value that the kernel left.
        want: the right value; where that is beyond D's type, the exact one.
        text: all of this in words.
    """

    index: int
    row: int
    col: int
    got: float
    want: float
    text: str


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a failed run left, for the hints.

    Attributes:
        inputs: what the kernel was given.
        got: m×n bit patterns of D as left.
        wrong: m×n, which elements are wrong.
        unwritten: m×n, which elements still hold the poison.
        rows, cols: of up to 64 wrong elements, the first one first.
    """

    inputs: Inputs
    got: Array
    wrong: Mask
    unwritten: Mask
    rows: Array
    cols: Array

    @property
    def element(self) -> ElementType:
        return self.inputs.problem.operation.d

    def sampled(self) -> Array:
        """The values left in the sampled elements."""
        return decode(self.got[self.rows, self.cols], self.element)

    def sampled_c(self) -> Array | None:
        """C beside the sampled elements; None where nothing reads C."""
        return _at(self.inputs.c, self.rows, self.cols)

    def fits(self, sums: Array) -> Array:
        """Which columns of ``sums`` (samples × candidates) give, through the epilogue, every sampled element."""
        return np.asarray(self.matches(self.inputs.problem, sums, self.sampled_c(), slice(None)).all(axis=0))

    def matches(self, problem: Problem, sums: Array, c: Array | None, which: Array | slice, **others: Array) -> Array:
        """Which of some sums give, through an epilogue, what was left in the sampled elements that ``which`` chooses.

        Args:
            problem: whose epilogue, with its factors.
            sums: samples, or samples × candidates.
            c: C beside the samples; None where it is not read.
            which: an index into the samples.
            others: what else the epilogue reads beside the samples, where it is not what lies in their own places.
        """
        beside = {**beside_at(self.inputs, self.rows[which], self.cols[which]), **others}
        left = self.got[self.rows, self.cols][which]
        if sums.ndim > 1:
            left, c = left[:, None], None if c is None else c[:, None]
            beside = {name: values[:, None] for name, values in beside.items()}
        if not problem.operation.epilogue.exact:
            return span_of(problem, sums, c, beside).holds(decode(left, self.element))
        bits = encode(round_once(finish(problem, sums, c, beside), self.element), self.element)
        return np.asarray(bits == left)


@dataclass(frozen=True)
class Error:
    """How far a right result lies from its float64 value, in ulp of D.

    Attributes:
        seen: the farthest element.
        bound: the farthest that an element could have been; proved (:mod:`wmmagen.rounding`).
    """

    seen: float
    bound: float

    def __str__(self) -> str:
        return f"within {self.seen:.3g} ulp of float64, proved bound {self.bound:.3g}"


@dataclass(frozen=True)
class Verdict:
    """The answer about one run.

    Attributes:
        exact: D equals the exact result bit for bit, or lies where it must where a step is a function, and nothing
            around it was touched.
        guaranteed: whether the inputs' bound makes every order of summation give these bits.
        mismatch: the first wrong element.
        wrong: how many elements are wrong.
        total: how many there are.
        damage: which guard was overwritten, in words; empty where none was.
        hint: a known cause that the wrong elements have in common; empty where none is known.
        evidence: what :func:`explain` looks at; None where no element is wrong.
        error: of a right result of an epilogue with functions; None of all others.
    """

    exact: bool
    guaranteed: bool
    mismatch: Mismatch | None
    wrong: int
    total: int
    damage: str
    hint: str
    evidence: Evidence | None = field(default=None, repr=False, compare=False)
    error: Error | None = None

    def __str__(self) -> str:
        if self.exact and self.error is not None:
            return str(self.error)
        if self.exact:
            return "exact" if self.guaranteed else "passed, not guaranteed by the bound"
        parts = [self.mismatch.text, f"{self.wrong} of {self.total} elements differ"] if self.mismatch else []
        return "; ".join([*parts, *filter(None, (self.damage, self.hint))])


def judge(
    inputs: Inputs,
    image_d: Image,
    returned_buffer: Bytes,
    want: Array | Span | None = None,
    check: Freivalds | None = None,
) -> Verdict:
    """Compare D with the exact result, bit for bit, and its guards with their pattern.

    NaN is never right, nor is an element whose exact result D cannot hold. Nor is -0, unless a negative alpha made it
    of +0: an accumulator starts at +0, and a sum in round-to-nearest is -0 only where every term is -0.

    Args:
        inputs: what the kernel was given.
        image_d: where D lies.
        returned_buffer: D's whole buffer as the kernel left it.
        want: :func:`expected` of these inputs, where it was computed before.
        check: compare by Freivalds' check of these inputs, and recompute only what fails it.

    Raises:
        ValueError: the image or the buffer is not one of this problem's D.
    """
    p = inputs.problem
    if (image_d.rows, image_d.cols, image_d.element) != (p.m, p.n, p.operation.d):
        raise ValueError(f"the image is no image of D of {p}")
    got = image_d.bits(returned_buffer)
    if check is None:
        want = expected(inputs) if want is None else want
        wrong = _differs(got, want, image_d.element)
    else:
        wrong = _fails(inputs, got, check, image_d.element)
    count = int(np.count_nonzero(wrong))
    damage = image_d.guard_damage(returned_buffer)
    text = "" if damage is None else str(damage)
    if not count:
        error = Error(want.seen(decode(got, image_d.element)), want.ulps) if isinstance(want, Span) else None
        return Verdict(damage is None, inputs.guaranteed, None, 0, wrong.size, text, "", error=error)
    evidence = _collect(inputs, got, wrong, image_d.unwritten(returned_buffer), count)
    mismatch = _mismatch(evidence, image_d)
    return Verdict(False, inputs.guaranteed, mismatch, count, wrong.size, text, _hint(evidence, None), evidence)


def _differs(got: Array, want: Array | Span, element: ElementType) -> Mask:
    """Where bit patterns are not those of the right values, or the right values are not finite."""
    if isinstance(want, Span):
        return ~(want.holds(decode(got, element)) & np.isfinite(want.low) & np.isfinite(want.high))
    wrong: Mask = np.asarray(got != encode(want, element))
    return wrong if element.integer else wrong | ~np.isfinite(want)


def _fails(inputs: Inputs, got: Array, check: Freivalds, element: ElementType) -> Mask:
    """Where D is wrong: zeros by their sign, all else where a failing row meets a failing column, recomputed."""
    values = decode(got, element)
    wrong: Mask = np.zeros(got.shape, np.bool_)
    if not element.integer:
        p = inputs.problem
        negative = p.operation.scaled and p.beta == 0 and p.alpha < 0
        wrong |= (values == 0) & (np.signbit(values) != negative)
    rows, cols = check.suspects(values)
    if not rows.size and not cols.size:
        return wrong
    where = np.ix_(rows, cols)
    wrong[where] |= _differs(got[where], expected(restrict(inputs, rows, cols)), element)
    # A failing sum is never a pass, even where the others happened to hide the element.
    return wrong if wrong.any() else _differs(got, expected(inputs), element)


def explain(verdict: Verdict, tiles: Tiles) -> str:
    """The verdict in words, with the tile that owns the first wrong element and the hint that the tiles allow."""
    if verdict.evidence is None or verdict.mismatch is None:
        return str(verdict)
    first = verdict.mismatch
    lines = [
        f"{first.text}; {verdict.wrong} of {verdict.total} elements differ",
        f"owner: {tiles.owner(first.row, first.col)}",
        f"guards: {verdict.damage}" if verdict.damage else "",
        f"hint: {hint}" if (hint := _hint(verdict.evidence, tiles)) else "",
    ]
    return "\n".join(filter(None, lines))


def _collect(inputs: Inputs, got: Array, wrong: Mask, unwritten: Mask, count: int) -> Evidence:
    """The evidence of a failed run; it keeps a copy of D, so that the caller may use the buffer again."""
    flat = np.flatnonzero(wrong)[:: max(1, count // SAMPLE)][:SAMPLE]
    rows, cols = np.divmod(flat, wrong.shape[1])
    return Evidence(inputs, got.copy(), wrong, unwritten & wrong, rows, cols)


def _at(values: Array | None, rows: Array, cols: Array) -> Array | None:
    return None if values is None else np.asarray(values[rows, cols])


def _sums_at(inputs: Inputs, rows: Array, cols: Array) -> Array:
    """The exact sums over K of some elements."""
    return np.asarray(_terms(inputs, rows, cols).sum(axis=1))


def _exact_at(inputs: Inputs, rows: Array, cols: Array) -> Array:
    """The exact results of some elements, before their rounding."""
    beside = beside_at(inputs, rows, cols)
    return finish(inputs.problem, _sums_at(inputs, rows, cols), _at(inputs.c, rows, cols), beside)


def _terms(inputs: Inputs, rows: Array, cols: Array) -> Array:
    """The products a·b that make up some elements: samples × k, wide enough for exact sums."""
    return np.asarray(widened(inputs.a[rows]) * widened(inputs.b[:, cols].T))


def _mismatch(evidence: Evidence, image: Image) -> Mismatch:
    row, col = int(evidence.rows[0]), int(evidence.cols[0])
    exact = _exact_at(evidence.inputs, evidence.rows[:1], evidence.cols[:1])
    rounded = round_once(exact, evidence.element)[0]
    want = float(rounded) if np.isfinite(rounded) else float(exact[0])
    got = float(evidence.sampled()[0])
    index = row * image.ld + col if image.row_major else col * image.ld + row
    note = " (never written)" if evidence.unwritten[row, col] else ""
    # repr keeps -0 and every digit; whole numbers lose their ".0", because most inputs are integers.
    text = f"D[{row}, {col}] (flat index {index}): got {_number(got)}{note}, want {_number(want)}"
    return Mismatch(index, row, col, got, want, text)


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")


# ---------------------------------------------------------------------------------------------------------------------
# Hints: each looks for one known cause and returns a sentence, or None. Those that need tiles return None without them.

_HintRule = Callable[[Evidence, Tiles | None], str | None]


def _hint(evidence: Evidence, tiles: Tiles | None) -> str:
    """The first known cause and the first known place, joined; empty where none is known."""
    found = (next(filter(None, (rule(evidence, tiles) for rule in rules)), None) for rules in (_CAUSES, _PLACES))
    return "; ".join(filter(None, found))


def _never_written(evidence: Evidence, tiles: Tiles | None) -> str | None:
    count = int(np.count_nonzero(evidence.unwritten))
    if not count:
        return None
    if count == evidence.unwritten.size:
        return "D was never written: nothing was launched, or it wrote elsewhere"
    row, col = (int(x) for x in np.argwhere(evidence.unwritten)[0])
    if tiles is not None:
        shapes = (("block", tiles.block_m, tiles.block_n), ("warp", tiles.warp_m, tiles.warp_n))
        for word, height, width in (*shapes, ("fragment", tiles.inst_m, tiles.inst_n)):
            top, left = row - row % height, col - col % width
            if evidence.unwritten[top : top + height, left : left + width].all():
                place = f"the whole {height}x{width} {word} tile at row {top}, column {left} was never written"
                return f"{place} ({count} unwritten elements in all)"
    return f"{count} elements were never written, the first at row {row}, column {col}"


def _overflowed(evidence: Evidence, tiles: Tiles | None) -> str | None:
    operation = evidence.inputs.problem.operation
    if "f16" not in (operation.acc.name, operation.d.name):
        return None
    sums = _sums_at(evidence.inputs, evidence.rows, evidence.cols)
    candidates = [("D's type f16, not the accumulator,", _exact_at(evidence.inputs, evidence.rows, evidence.cols))]
    if operation.acc.name == "f16":
        candidates.insert(0, ("the accumulator type f16", sums))
    for who, exact in candidates:
        # An infinite sum that a factor or C makes NaN of is still an overflow; a NaN from a guard has a small sum.
        over = ~np.isfinite(evidence.sampled()) & (np.abs(exact) > F16_MAX)
        if over.any():
            value = _number(float(exact[over][0]))
            return f"{who} overflowed: the exact result is {value}, the largest finite f16 is {F16_MAX}"
    return None


def _not_a_number(evidence: Evidence, tiles: Tiles | None) -> str | None:
    if evidence.element.integer:
        return None
    values = decode(evidence.got, evidence.element)
    nan = np.isnan(values) & ~evidence.unwritten
    if not nan.any():
        return None
    cause = "a read outside A or B, whose guards are NaN, or shared memory that was used before it was filled"
    p = evidence.inputs.problem
    if p.operation.epilogue.has("c") and not p.reads_c:
        cause = f"C was read although beta is 0, or {cause}"
    if p.operation.scaled and p.alpha == 0:
        cause = f"A or B was read although alpha is 0, or {cause}"
    return f"{'all' if nan.all() else int(np.count_nonzero(nan))} elements are NaN: {cause}"


def _zero(evidence: Evidence, tiles: Tiles | None) -> str | None:
    left = evidence.sampled()
    if not evidence.element.integer and not left.any() and np.signbit(left).all():
        return "zeros with a minus sign: an accumulator did not start at +0, or the result was negated"
    if not decode(evidence.got, evidence.element).any():
        return "every element is zero: the accumulators were stored without a product"
    return None


def _factors(evidence: Evidence, tiles: Tiles | None) -> str | None:
    """Whether the epilogue left something out, or took C from another place."""
    p, c = evidence.inputs.problem, evidence.sampled_c()
    if not p.operation.scaled or evidence.rows.size < FEWEST:
        return None
    everything = np.ones(evidence.rows.size, np.bool_)
    sums = _sums_at(evidence.inputs, evidence.rows, evidence.cols)
    stories: list[tuple[str, float, float, Array | None, Mask]] = []
    if p.alpha not in (0, 1):
        stories.append(("alpha was ignored", 1.0, p.beta, c, everything))
    if c is not None:
        inside = (evidence.cols < p.m) & (evidence.rows < p.n)
        there = evidence.cols * inside, evidence.rows * inside
        stories += [
            ("beta·C is missing", p.alpha, 0.0, None, everything),
            ("alpha·A·B is missing: D is beta·C", 0.0, p.beta, c, everything),
            ("C was read as its transpose", p.alpha, p.beta, _at(evidence.inputs.c, *there), inside),
        ]
        if p.beta != 1:
            stories.append(("beta was ignored: C was added as it is", p.alpha, 1.0, c, everything))
    for text, alpha, beta, other_c, where in stories:
        found = None if other_c is None else other_c[where]
        if np.count_nonzero(where) >= FEWEST:
            told = replace(p, alpha=alpha, beta=beta)
            if evidence.matches(told, sums[where], found, where).all():
                return text
    return None


def _steps(evidence: Evidence, tiles: Tiles | None) -> str | None:
    """Whether a chain left out a step, took two in another order, or read a vector at another place."""
    p, e, c = evidence.inputs.problem, evidence.inputs.problem.operation.epilogue, evidence.sampled_c()
    if not is_chain(p.operation) or evidence.rows.size < FEWEST:
        return None
    sums, all_ = _sums_at(evidence.inputs, evidence.rows, evidence.cols), slice(None)
    for text, steps in _other_chains(e.steps):
        other = replace(p.operation, epilogue=e.with_steps(steps))
        if evidence.matches(p.doing(other), sums, c, all_).all():
            return text
    for vector in e.vectors:
        values, own = evidence.inputs.beside[vector], along_row(vector)
        swapped = (evidence.cols if own else evidence.rows) % values.size
        word, others = ("column", "row") if own else ("row", "column")
        stories = [(f"{vector} was read by the {word} and not by the {others}", values[swapped])]
        at = evidence.rows if own else evidence.cols
        stories += [
            (
                f"{vector} was read {abs(off)} elements {'further' if off > 0 else 'before'}",
                values[(at + off) % values.size],
            )
            for off in (1, -1, *((tiles.inst_n, -tiles.inst_n) if tiles else ()))
        ]
        for text, read in stories:
            if evidence.matches(p, sums, c, all_, **{vector: read}).all():
                return text
    if "r" in e.matrices and evidence.matches(p, sums, c, all_, r=np.zeros(evidence.rows.size)).all():
        return "R was not added"
    return None


def _other_chains(steps: tuple[Step, ...]) -> Iterator[tuple[str, tuple[Step, ...]]]:
    """A chain with a step less, and with two neighbours in the other order."""
    for at, step in enumerate(steps):
        if step.word != "linear":
            yield f"the step {step.word} is missing", (*steps[:at], *steps[at + 1 :])
    for at in range(len(steps) - 1):
        first, second = steps[at : at + 2]
        if first.word != "linear":
            yield (
                f"the step {second.word} came before {first.word}",
                (*steps[:at], second, first, *steps[at + 2 :]),
            )


def _transposed(evidence: Evidence, tiles: Tiles | None) -> str | None:
    i, j = evidence.rows[:, None], evidence.cols[:, None]
    k = np.arange(evidence.inputs.problem.k)[None, :]
    if not k.size:
        return None
    candidates = [
        ("A was read as its transpose: row-major and column-major are swapped", (k, i), (k, j)),
        ("B was read as its transpose: row-major and column-major are swapped", (i, k), (j, k)),
        ("D was stored as its transpose", (j, k), (k, i)),
    ]
    if tiles is not None:
        t, u = tiles.inst_m, tiles.inst_n
        swapped_a = (i - i % t + k % t, k - k % t + i % t)
        swapped_b = (k - k % u + j % u, j - j % u + k % u)
        candidates += [
            (
                f"each {t}x{t} fragment of A was loaded as its transpose: the fragment's layout is wrong",
                swapped_a,
                (k, j),
            ),
            (
                f"each {u}x{u} fragment of B was loaded as its transpose: the fragment's layout is wrong",
                (i, k),
                swapped_b,
            ),
        ]
    for text, at_a, at_b in candidates:
        if _gathers(evidence, at_a, at_b):
            return text
    return None


def _gathers(evidence: Evidence, at_a: tuple[Array, Array], at_b: tuple[Array, Array]) -> bool:
    """Whether sums of A at ``at_a`` times B at ``at_b`` (samples × k each) give every sample whose places exist."""
    a, b = evidence.inputs.a, evidence.inputs.b
    shape = (evidence.rows.size, evidence.inputs.problem.k)
    (ra, ca), (rb, cb) = ([np.broadcast_to(x, shape) for x in at] for at in (at_a, at_b))
    inside = ((ra < a.shape[0]) & (ca < a.shape[1]) & (rb < b.shape[0]) & (cb < b.shape[1])).all(axis=1)
    if np.count_nonzero(inside) < FEWEST:
        return False
    terms = widened(a[ra[inside], ca[inside]]) * widened(b[rb[inside], cb[inside]])
    c = evidence.sampled_c()
    found = None if c is None else c[inside]
    return bool(evidence.matches(evidence.inputs.problem, terms.sum(axis=1), found, inside).all())


def _slices(evidence: Evidence, tiles: Tiles | None) -> str | None:
    """Which K slice, or stage of the pipeline, the difference is made of; by recomputing partial products."""
    k = evidence.inputs.problem.k
    if tiles is None or not k:
        return None
    # A race harms some tiles only: where no cause explains all samples, look at the first wrong fragment alone.
    for where, seen in (("", evidence), ("in the first wrong fragment, ", _first_fragment(evidence, tiles))):
        if seen.rows.size < FEWEST:
            continue
        for text, exact in _slice_stories(seen, tiles, np.arange(0, k, tiles.block_k)):
            hits = np.flatnonzero(seen.fits(exact))
            if hits.size:
                return where + text(int(hits[-1]))
    return None


def _first_fragment(evidence: Evidence, tiles: Tiles) -> Evidence:
    """The same evidence with samples from the fragment tile of the first wrong element only."""
    row, col = int(evidence.rows[0]), int(evidence.cols[0])
    top, left = row - row % tiles.inst_m, col - col % tiles.inst_n
    rows, cols = np.nonzero(evidence.wrong[top : top + tiles.inst_m, left : left + tiles.inst_n])
    return replace(evidence, rows=rows[:SAMPLE] + top, cols=cols[:SAMPLE] + left)


_Story = tuple[Callable[[int], str], Array]


def _slice_stories(evidence: Evidence, tiles: Tiles, starts: Array) -> Iterator[_Story]:
    """Candidate results (samples × candidates), each with what it would mean for the number of the candidate."""
    parts = np.add.reduceat(_terms(evidence.inputs, evidence.rows, evidence.cols), starts, axis=1)
    total, count, stages = parts.sum(axis=1, keepdims=True), starts.size, tiles.stages

    def slice_(s: int) -> str:
        return f"the last K slice ({s} of 0 to {s})" if s == count - 1 else f"K slice {s} (of 0 to {count - 1})"

    yield lambda s: f"{slice_(s)} is missing from the sum", total - parts
    yield lambda s: f"{slice_(s)} is counted twice", total + parts
    if count > 1:
        yield lambda s: f"D holds {slice_(s)} alone: the accumulators do not carry over", parts
    if count > stages:
        stage = [parts[:, r::stages].sum(axis=1) for r in range(stages)]
        yield lambda r: f"every K slice of stage {r} (of {stages}) is missing", total - np.stack(stage, axis=1)
    for distance in dict.fromkeys((stages, -stages, 1, -1)):
        if abs(distance) < count:
            yield from _stale_stories(evidence, tiles, parts, distance, slice_)


def _stale_stories(
    evidence: Evidence, tiles: Tiles, parts: Array, distance: int, slice_: Callable[[int], str]
) -> Iterator[_Story]:
    """Candidates in which a slice used the data of the slice ``distance`` before it (after, if negative)."""
    inputs, k, width = evidence.inputs, evidence.inputs.problem.k, tiles.block_k
    total, count = parts.sum(axis=1, keepdims=True), parts.shape[1]
    full = k // width  # a shorter last slice has no like-sized neighbour to be taken for
    slices = np.arange(max(distance, 0), full + min(distance, 0))
    slices = slices[slices < full]
    if not slices.size:
        return
    wide_a = widened(inputs.a[evidence.rows, : full * width]).reshape(-1, full, width)
    wide_b = widened(inputs.b[: full * width, evidence.cols].T).reshape(-1, full, width)
    stale = slices - distance
    age = f"{abs(distance)} {'earlier: stale' if distance > 0 else 'later: overwritten too early'}"

    def one(word: str) -> Callable[[int], str]:
        return lambda c: f"{slice_(int(slices[c]))} used {word} of the slice {age}"

    def every(word: str) -> Callable[[int], str]:
        return lambda r: f"every K slice of stage {r} (of {tiles.stages}) used {word} of the slice {age}"

    for word, slice_a, slice_b in (("A and B", stale, stale), ("A", stale, slices), ("B", slices, stale)):
        change = (wide_a[:, slice_a] * wide_b[:, slice_b]).sum(axis=2) - parts[:, slices]
        yield one(word), total + change
        if abs(distance) == tiles.stages and count > tiles.stages:
            stage = [change[:, slices % tiles.stages == r].sum(axis=1) for r in range(tiles.stages)]
            yield every(word), total + np.stack(stage, axis=1)


def _second_tiles(evidence: Evidence, tiles: Tiles | None) -> str | None:
    """Every second 8-wide tile: 8 two-byte elements are 16 bytes, half of a fragment pointer's alignment of 32."""
    for axis, word in ((0, "columns"), (1, "rows")):
        hit = evidence.wrong.any(axis=axis)
        tiles_hit = np.add.reduceat(hit, np.arange(0, hit.size, 8)) > 0
        for parity in (0, 1):
            if tiles_hit.size >= 4 and tiles_hit[parity::2].all() and not tiles_hit[1 - parity :: 2].any():
                return (
                    f"every second 8-wide tile of {word} is wrong: the pointer of a fragment is 16 bytes off "
                    "its 32-byte alignment"
                )
    return None


def _one_place(evidence: Evidence, tiles: Tiles | None) -> str | None:
    """The same warp of every block, or the same fragment of every warp."""
    if tiles is None:
        return None
    # Rows and columns apart: elements share one place exactly where both of these do, and it is cheap.
    rows, cols = (np.flatnonzero(evidence.wrong.any(axis=axis)) for axis in (1, 0))
    levels = (
        ("warp", "block", tiles.block_m, tiles.block_n, tiles.warp_m, tiles.warp_n),
        ("fragment", "warp", tiles.warp_m, tiles.warp_n, tiles.inst_m, tiles.inst_n),
    )
    for part, whole, outer_m, outer_n, inner_m, inner_n in levels:
        down, across = rows % outer_m // inner_m, cols % outer_n // inner_n
        spread = np.ptp(rows // outer_m) + np.ptp(cols // outer_n)
        several = outer_m // inner_m * (outer_n // inner_n) > 1
        if several and spread and np.ptp(down) == 0 and np.ptp(across) == 0:
            return f"only {part} ({down[0]}, {across[0]}) of each {whole} is wrong"
    return None


def _edge(evidence: Evidence, tiles: Tiles | None) -> str | None:
    if tiles is None:
        return None
    m, n = evidence.wrong.shape
    row, col = (m - 1) // tiles.block_m * tiles.block_m, (n - 1) // tiles.block_n * tiles.block_n
    bottom = row > 0 and not evidence.wrong[:row].any()
    right = col > 0 and not evidence.wrong[:, :col].any()
    sides = " and ".join(word for word, hit in (("bottom", bottom), ("right", right)) if hit)
    return f"only the blocks at the {sides} edge are wrong" if sides else None


_CAUSES: tuple[_HintRule, ...] = (
    _never_written,
    _overflowed,
    _not_a_number,
    _zero,
    _factors,
    _steps,
    _transposed,
    _slices,
)
_PLACES: tuple[_HintRule, ...] = (_second_tiles, _edge, _one_place)
