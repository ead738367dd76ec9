"""How far products of real numbers are from the true ones: what an accumulator costs, and apart from it what a D does.

Correctness is judged on exact inputs, bit for bit. Here inputs are normal-distributed, so sums round, and how much is a
property of the accumulator. What is stored of a sum is another matter: it is the sum rounded once to D's type. So
there are two tables, and no figure holds both errors. *Accumulation* is of kernels whose D has the accumulator's type,
which stores sums as they are. *Storage* compares the D of another type with those sums, and demands that it is they,
rounded once to nearest, bit for bit: both kernels have one instruction, and add along K in the same order.

The bound. NVIDIA specifies of a matrix instruction that products of f16 have the precision of single at least, those of
bf16 and tf32 "specified precision", and sums that of single (sums of f16 that of half) at least; order, rounding and
the handling of subnormal inputs are unspecified (PTX ISA, "Warp Level Matrix Instructions: wmma.mma", precision and
rounding). What was measured of V100, T4 and A100 (Fasi,
Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330, 2021), and
modelled bit for bit up to H100 and B200 (Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores",
arXiv:2512.07004), is this: products are exact; four or more of them and the addend are aligned to the largest and cut
off, and the sum of such a block is cut off again; subnormal numbers are kept.

So the model is: of a block of p products, p operands and the sum lose less than u of the largest magnitude each, where
u = 2^(1 - t) is a unit in the last place of 1 for an accumulator of t bits (rounding to nearest loses half of it,
cutting off all). With blocks of four at least that is n = K + K/4 losses, and, as in Blanchard, Higham, Lopez, Mary and
Pranesh, "Mixed precision block fused multiply-add", SIAM Journal on Scientific Computing 42(3), 2020,

    |sum - exact| <= ((1 + u)^n - 1) · Σ|a||b|  +  n · (1 + u)^n · (the smallest subnormal number)

in whatever order blocks are added. It holds for all n, unlike n·u/(1 - n·u), which sums of f16 leave at K = 819.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wmmagen import coverage, defaults, derive, foundry, instructions, layout, precise, reference, rules, trial
from wmmagen.arch import Arch
from wmmagen.backends.pick import Place
from wmmagen.backends.product import Library
from wmmagen.config import KernelConfig, Problem, name
from wmmagen.denominators import Denominator, product_of
from wmmagen.dtypes import ELEMENT_TYPES, RESULTS, ElementType
from wmmagen.epilogue import Epilogue
from wmmagen.errors import Fault, LaunchFault, MissingPiece, RequestError
from wmmagen.foundry import Compiler
from wmmagen.layout import Array
from wmmagen.precise import Sums

#: Products that hardware aligns and adds at once, at least: four on V100 and T4, more since (Fasi et al., table 1).
_LEAST_BLOCK = 4
#: Where every kernel is executed on the CPU: slices of K, at least so many elements.
_SHORT_K = 256
#: Extents where a GPU runs them.
_CARD_SIZE = 2048
#: Keys that choose rows of the report; all others are every kernel's.
CHOOSING = ("a", "acc", "d")


@dataclass(frozen=True)
class Errors:
    """Errors of a matrix.

    Attributes:
        largest_ulp, mean_ulp: of an element, in units in the last place of what it ought to be, in the type it has.
        frobenius: the Frobenius norm of the errors over that of the matrix.
    """

    largest_ulp: float
    mean_ulp: float
    frobenius: float


@dataclass(frozen=True)
class Bound:
    """The analytic bound of one accumulator for one K.

    Attributes:
        u: what one operation loses at most, of the largest magnitude in it.
        losses: how many there are.
        factor: on the sums of |a||b|.
        smallest: what is added for numbers below the normal ones.
    """

    u: float
    losses: int
    factor: float
    smallest: float

    def of(self, sums: Sums) -> Array:
        """The largest error that an element of ``sums`` may have, m×n."""
        return np.asarray(self.factor * sums.magnitudes + self.smallest)


@dataclass(frozen=True)
class Computed:
    """Sums that somebody computed.

    Attributes:
        by: the kernel's name, or the library's candidate in words.
        errors: of the elements that are finite; None where there is none.
        share: the largest error of an element over its bound.
        broken: elements beyond their bound, and those that are not finite.
        not_finite: the latter.
    """

    by: str
    errors: Errors | None
    share: float
    broken: int
    not_finite: int

    def as_json(self) -> dict[str, object]:
        """``kernel`` or ``cublas`` of an element of ``accumulation``."""
        errors = asdict(self.errors) if self.errors else dict.fromkeys(("largest_ulp", "mean_ulp", "frobenius"))
        rest = {"share_of_bound": self.share, "broken": self.broken, "not_finite": self.not_finite}
        return {"by": self.by, **errors, **rest}


@dataclass(frozen=True)
class Accumulation:
    """One accumulator: its sums, stored as they are, beside a library's and their bound.

    Attributes:
        a, acc: names of the types of the operands and of the sums.
        bound: in general.
        bounds: the bound in the units of the figures: that of the largest, of the mean, of the norm.
        kernel: the kernel's sums.
        library: the library's; None where there are none, and ``reason`` says why.
    """

    a: str
    acc: str
    bound: Bound
    bounds: Errors
    kernel: Computed
    library: Computed | None
    reason: str

    @property
    def right(self) -> bool:
        return not self.kernel.broken and not (self.library and self.library.broken)

    def as_json(self) -> dict[str, object]:
        """An element of ``accumulation`` of ``accuracy --json``."""
        bound = {"unit": self.bound.u, "losses": self.bound.losses, "factor": self.bound.factor, **asdict(self.bounds)}
        return {
            "a": self.a,
            "acc": self.acc,
            "kernel": self.kernel.as_json(),
            "cublas": self.library.as_json() if self.library else None,
            "cublas_reason": self.reason or None,
            "bound": bound,
        }


@dataclass(frozen=True)
class Storage:
    """What a D of one type keeps of the sums of an accumulator.

    Attributes:
        a, acc, d: names of the types of the operands, of the sums, and of D.
        by: the kernel's name.
        errors: of D against the sums, in units of D; None where nothing is finite in both.
        differing: elements of D that are not the sums rounded once.
    """

    a: str
    acc: str
    d: str
    by: str
    errors: Errors | None
    differing: int

    def as_json(self) -> dict[str, object]:
        """An element of ``storage`` of ``accuracy --json``."""
        errors = asdict(self.errors) if self.errors else dict.fromkeys(("largest_ulp", "mean_ulp", "frobenius"))
        return {"a": self.a, "acc": self.acc, "d": self.d, "by": self.by, **errors, "differing": self.differing}


@dataclass(frozen=True)
class Report:
    """Both tables, for one size.

    Attributes:
        size: M, N, K.
        accumulation, storage: the tables.
        left_out: in a sentence each, what the types would allow and this request or architecture does not.
    """

    size: tuple[int, int, int]
    accumulation: tuple[Accumulation, ...]
    storage: tuple[Storage, ...]
    left_out: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether every error is within its bound, and every D its sums rounded once."""
        return all(row.right for row in self.accumulation) and not any(row.differing for row in self.storage)

    def as_json(self) -> dict[str, object]:
        """The fields of ``accuracy --json`` that are the report's."""
        return {
            "problem": "x".join(map(str, self.size)),
            "within": self.right,
            "accumulation": [row.as_json() for row in self.accumulation],
            "storage": [row.as_json() for row in self.storage],
            "left_out": list(self.left_out),
        }


# ---------------------------------------------------------------------------------------------------------------------
# What is measured.


@dataclass(frozen=True)
class Pair:
    """An accumulator's kernel that stores sums as they are, and those that store them in other types."""

    sums: KernelConfig
    stored: tuple[KernelConfig, ...]


def kernels(fixed: Mapping[str, Any], arch: Arch, *, strict_isa: bool = False) -> tuple[list[Pair], list[str]]:
    """A pair for each accumulator of ``arch`` that rounds, as far as templates make it; and what is left out, and why.

    Args:
        fixed: keys that every kernel has; ``a``, ``acc`` and ``d`` choose among the rows instead. Sums are stored as
            they are whatever ``d`` is, for nothing can be said of D without them.

    Raises:
        RequestError: nothing is left, or D is to be more than A·B.
    """
    if fixed.get("epilogue", Epilogue.NONE) is not Epilogue.NONE:
        raise RequestError("accuracy is measured of D = A·B", "leave epilogue out of --fix")
    rest = {key: value for key, value in fixed.items() if key not in CHOOSING}
    made: list[Pair] = []
    left_out: list[str] = []
    for a, acc in _accumulators(fixed, arch):
        sums = _kernel(rest, a, acc, acc, arch, strict_isa, left_out)
        if sums is None:
            continue
        held = {**rest, "inst": sums.inst}
        results = (ELEMENT_TYPES[word] for word in RESULTS[acc.name])
        others = (d for d in results if d is not acc and fixed.get("d", d) is d)
        stored = (_kernel(held, a, acc, d, arch, strict_isa, left_out) for d in others)
        made.append(Pair(sums, tuple(kernel for kernel in stored if kernel is not None)))
    if not made:
        asked = " ".join(f"{key}={fixed[key].name}" for key in CHOOSING if key in fixed)
        raise RequestError(
            "\n".join([f"no kernel for {arch} has sums that round{f' with {asked}' if asked else ''}", *left_out]),
            "ask for a floating type that is generated, or leave keys of --fix out",
        )
    return made, left_out


def _floating() -> Iterator[ElementType]:
    return (element for element in ELEMENT_TYPES.values() if not element.integer)


def _accumulators(fixed: Mapping[str, Any], arch: Arch) -> Iterator[tuple[ElementType, ElementType]]:
    """Types of operands and of sums that the instruction table has for ``arch``, each pair once."""
    rows = (row for a in _floating() for row in instructions.of_operand(a) if row.min_sm <= arch.sm)
    pairs = dict.fromkeys((row.a, row.acc) for row in rows)
    return (pair for pair in pairs if all(fixed.get(k, t) is t for k, t in zip(("a", "acc"), pair, strict=True)))


def _kernel(
    rest: Mapping[str, Any],
    a: ElementType,
    acc: ElementType,
    d: ElementType,
    arch: Arch,
    strict_isa: bool,
    left_out: list[str],
) -> KernelConfig | None:
    """The kernel of these types; None where no template makes them, or no rule allows it, which is then said."""
    config = defaults.complete({**rest, "a": a, "acc": acc, "d": d}, arch, strict_isa=strict_isa, search=False)
    if coverage.missing(config):
        return None
    if broken := rules.check(config, arch, strict_isa=strict_isa):
        left_out.append(f"{a.name} operands, {acc.name} sums, {d.name} D: {broken[0].rule.id} {broken[0].message}")
        return None
    return config


def default_size(pairs: Sequence[Pair], *, on_card: bool) -> tuple[int, int, int]:
    """M, N, K that all kernels take: on a card about 2048 each, elsewhere one block, and 256 along K."""
    known = [derive.values(config) for pair in pairs for config in (pair.sums, *pair.stored)]

    def least(block: str, wanted: int) -> int:
        unit = math.lcm(*(numbers[block] for numbers in known))
        return -(-wanted // unit) * unit

    if on_card:
        return least("BLOCK_M", _CARD_SIZE), least("BLOCK_N", _CARD_SIZE), least("BLOCK_K", _CARD_SIZE)
    return least("BLOCK_M", 1), least("BLOCK_N", 1), least("BLOCK_K", _SHORT_K)


def demand(pairs: Sequence[Pair], size: tuple[int, int, int], arch: Arch, *, strict_isa: bool = False) -> None:
    """Return where all kernels take ``size`` and the bounds say something of it.

    Raises:
        IllegalConfig: one of them does not take it.
        RequestError: nothing is computed on it, or K is so long that a bound is no float64.
    """
    if not all(size):
        raise RequestError(f"{'x'.join(map(str, size))} has nothing to sum", "give sizes of 1 and more")
    for pair in pairs:
        for config in (pair.sums, *pair.stored):
            rules.demand(config, arch, Problem.packed(config.operation, *size), strict_isa=strict_isa)
        acc = pair.sums.operation.acc
        if not math.isfinite(_growth(acc, size[2])):
            raise RequestError(
                f"K = {size[2]} is so long that no bound can be given for sums of {acc.name}",
                "a shorter K, or --fix acc=f32",
            )


# ---------------------------------------------------------------------------------------------------------------------
# The bound.


def bound_of(acc: ElementType, k: int) -> Bound:
    """The bound of the module's first lines for sums of ``k`` products in ``acc``."""
    u, losses = _unit(acc), _losses(k)
    growth = _growth(acc, k)
    return Bound(u, losses, growth, losses * (1 + growth) * _smallest(acc))


def _losses(k: int) -> int:
    return k + -(-k // _LEAST_BLOCK)


def _unit(acc: ElementType) -> float:
    return 2.0 ** (1 - acc.precision)


def _growth(acc: ElementType, k: int) -> float:
    """(1 + u)^n - 1; infinite where float64 does not hold it."""
    power = _losses(k) * math.log1p(_unit(acc))
    return math.expm1(power) if power < math.log(np.finfo(np.float64).max) else math.inf


def _least_exponent(element: ElementType) -> int:
    """Of the smallest normal number; bf16 and tf32 are held in float32, whose exponents are theirs."""
    return int(np.finfo(layout.value_dtype(element)).minexp)


def _smallest(element: ElementType) -> float:
    """The smallest subnormal number."""
    return math.ldexp(1.0, _least_exponent(element) + 1 - element.precision)


def ulp(values: Array, element: ElementType) -> Array:
    """A unit in the last place of ``element`` at each of ``values`` (float64), subnormal numbers included."""
    least = _least_exponent(element)
    exponents = np.where(values == 0, least, np.maximum(np.frexp(values)[1] - 1, least))
    return np.asarray(np.ldexp(1.0, exponents + 1 - element.precision))


# ---------------------------------------------------------------------------------------------------------------------
# Measuring.


def measure(
    pairs: Sequence[Pair],
    size: tuple[int, int, int],
    arch: Arch,
    place: Place,
    left_out: Sequence[str] = (),
    compiler: Compiler = foundry.compile_source,
) -> Report:
    """Run every kernel on the normal-distributed inputs that kernels are timed on, and the library on the same.

    Args:
        pairs, left_out: of :func:`kernels`.
        size: M, N, K; of :func:`demand`.
        place: where kernels run; its library is asked where it has one.

    Raises:
        Fault: a launch failed, hung or crashed, or wrote where it must not.
        CompileError, MissingPiece: as :func:`wmmagen.trial.build`.
    """
    accumulation: list[Accumulation] = []
    storage: list[Storage] = []
    for _, same in itertools.groupby(pairs, lambda pair: pair.sums.operation.a):
        exact: Sums | None = None
        for pair in same:
            problem = Problem.packed(pair.sums.operation, *size)
            exact = exact or precise.multiply(*reference.normal_inputs(problem)[:2])
            sums = _run(pair.sums, problem, arch, place, compiler)
            accumulation.append(_accumulated(pair.sums, problem, exact, sums, place))
            for config in pair.stored:
                d = _run(config, Problem.packed(config.operation, *size), arch, place, compiler)
                storage.append(_stored(config, sums, d))
    return Report(size, tuple(accumulation), tuple(storage), tuple(left_out))


def _run(config: KernelConfig, problem: Problem, arch: Arch, place: Place, compiler: Compiler) -> Array:
    """D of ``config`` on normal-distributed inputs, m×n.

    Raises:
        LaunchFault: an element was not written, or a guard was.
    """
    _, binary = trial.build(config, arch, compiler)
    returned = trial.run_once(trial.subject_of(config, binary, problem), place.demanded())
    return _written(problem, returned, name(config))


def _written(problem: Problem, returned: Sequence[layout.Bytes], by: str) -> Array:
    *operands, image = layout.images(problem)
    d = returned[len(operands)]  # behind it there may be a workspace
    unwritten, damage = int(image.unwritten(d).sum()), image.guard_damage(d)
    if unwritten or damage:
        raise LaunchFault(f"{by}, {problem}: {damage or f'{unwritten} elements of D were not written'}")
    return image.unpack(d)


def _accumulated(config: KernelConfig, problem: Problem, exact: Sums, sums: Array, place: Place) -> Accumulation:
    o = config.operation
    bound = bound_of(o.acc, problem.k)
    largest = bound.of(exact)
    theirs, by, reason = _of_library(problem, place)
    return Accumulation(
        o.a.name,
        o.acc.name,
        bound,
        _errors(largest, exact.high, o.acc),
        _measured(name(config), sums, exact, largest, o.acc),
        None if theirs is None else _measured(by, theirs, exact, largest, o.acc),
        reason,
    )


def _of_library(problem: Problem, place: Place) -> tuple[Array | None, str, str]:
    """What the library's first candidate makes of ``problem``, the candidate in words; or None and why."""
    library: Library | None = place.library
    if library is None:
        return None, "", f"it runs on a GPU, and there is none of it on {place.demanded().device}"
    product = product_of(problem, layout.images(problem))
    try:
        answer = library.candidates(product)
        if not answer.found:
            return None, "", answer.reason
        by = f"cuBLASLt {answer.version}, {answer.found[0]}"
        buffers = Denominator("same types", problem, problem).normal_buffers()
        return _written(problem, library.run(product, answer.found[0], buffers), by), by, ""
    except MissingPiece as missing:
        return None, "", f"{missing.message}; {missing.fix}"
    except Fault as fault:
        return None, "", fault.message


def _measured(by: str, sums: Array, exact: Sums, largest: Array, acc: ElementType) -> Computed:
    error = np.abs(exact.error_of(sums))
    finite = np.isfinite(error)
    share = np.divide(error, largest, out=np.zeros_like(error), where=finite)
    # An error is beyond its bound where it is so by more than the reference itself may be off.
    broken = ~finite | (error > largest + exact.slack)
    errors = _errors(error[finite], exact.high[finite], acc) if finite.any() else None
    return Computed(by, errors, float(share.max()), int(broken.sum()), int((~finite).sum()))


def _stored(config: KernelConfig, sums: Array, d: Array) -> Storage:
    o = config.operation
    wanted = reference.round_once(sums.astype(np.float64), o.d)
    differing = int((layout.encode(d, o.d) != layout.encode(wanted, o.d)).sum())
    finite = np.isfinite(sums) & np.isfinite(d)
    held, true = d[finite].astype(np.float64), sums[finite].astype(np.float64)
    errors = _errors(np.abs(held - true), true, o.d) if finite.any() else None
    return Storage(o.a.name, o.acc.name, o.d.name, name(config), errors, differing)


def _errors(error: Array, true: Array, element: ElementType) -> Errors:
    """The figures of magnitudes of errors beside what is true; a matrix of zeros has the norm of its errors alone."""
    units = error / ulp(true, element)
    norm = float(np.linalg.norm(true))
    return Errors(float(units.max()), float(units.mean()), float(np.linalg.norm(error)) / (norm or 1.0))
