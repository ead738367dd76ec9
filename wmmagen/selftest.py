"""What the self-test of an emitted kernel tries: how far its promises go, and calls that its launcher must refuse.

Both are asked of the table of rules, so that the self-test tries what the launcher checks and nothing besides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from wmmagen import derive, rules
from wmmagen.config import Batch, KernelConfig, Operation, Order, Problem
from wmmagen.epilogue import SCALES, VECTORS
from wmmagen.rules import Scope, Status

#: Where the matrices of a call lie that nobody launches; aligned to whatever a launcher may ask for.
ADDRESSES = {
    name: 4096 * number for number, name in enumerate(("A", "B", "C", "D", "R", *VECTORS, "workspace"), start=1)
}
#: Products of the batch of such a call.
_PRODUCTS = 2
#: No launcher asks for more than this; in bytes, and in elements.
_MOST_ASKED = 256

#: The arguments of a call by their names in C: addresses, sizes, leading dimensions, factors.
Call = Mapping[str, int | float]


@dataclass(frozen=True)
class Spoilt:
    """A call that is acceptable but for one thing.

    Attributes:
        what: the thing, in words.
        status: what the launcher answers.
        changes: the arguments that are not those of :func:`acceptable`.
    """

    what: str
    status: Status
    changes: Call


#: The numbers of an acceptable call; those of an epilogue that has other ones are tried in its self-test.
SCALARS = {"alpha": 2.0, "beta": -1.0, "scale": 0.5, "low": -6.0, "high": 8.0}


#: Magnitudes of A and of what an epilogue adds, before they are fractions, and of sums in a chain that rounds.
MOST_A, MOST_ADDED, MOST_OF_FUNCTIONS = 3, 4, 64
#: Fractions of A are as fine as a hash of 24 bits tells apart, but no finer than what D of a float shows.
_FINEST_BITS, _FLOAT_BITS = 20, 9
#: Of whole sums, the power of two by which a vector scales them before a function.
_SCALED_BITS = 6


@dataclass(frozen=True)
class Fractions:
    """What makes fractions of integers, where a function sees them; all 0 where all steps are exact.

    Attributes:
        a_bits: A is a multiple of 2^-this, and so is every sum.
        added_bits: so are C, R and biases of 2^-this.
        scaled_bits: scales of rows or columns are smaller by 2^-this.
    """

    a_bits: int = 0
    added_bits: int = 0
    scaled_bits: int = 0

    #: What a template writes of A and of what is added.
    most_a, most_added = MOST_A, MOST_ADDED


def fractions(operation: Operation) -> Fractions:
    """How fine the values of a self-test are: as fine as the types hold them and sums of them exactly."""
    o = operation
    if o.epilogue.exact:
        return Fractions()

    def held(limit: int, most: int) -> int:
        """With how many bits behind the point numbers up to ``most`` are integers up to ``limit``."""
        return (limit // most).bit_length() - 1

    finest = _FINEST_BITS if o.factor.bits == 64 else _FLOAT_BITS
    added = 0 if o.added.integer or not o.epilogue.adds else min(held(o.added.exact_limit, MOST_ADDED), finest)
    if o.acc.integer:
        scaled = [name for name in o.epilogue.scales_first if name in SCALES]
        return Fractions(0, added, _SCALED_BITS if len(scaled) == 1 else 0)
    sums = min(o.acc.exact_limit, o.factor.exact_limit)
    bits = min(held(o.a.exact_limit, MOST_A), held(sums, MOST_OF_FUNCTIONS), finest)
    return Fractions(bits, min(added, bits))


def matrices(config: KernelConfig) -> tuple[str, ...]:
    """The matrices of a call, in the order of the launcher's arguments."""
    return ("A", "B", *(matrix.upper() for matrix in config.operation.epilogue.matrices), "D")


def pointers(config: KernelConfig) -> tuple[str, ...]:
    """The pointers of a call, in the order of the launcher's arguments."""
    *read, d = matrices(config)
    return (*read, *config.operation.epilogue.vectors, d)


def strides(config: KernelConfig) -> tuple[str, ...]:
    """The strides of a call, in the order of the launcher's arguments."""
    return tuple(f"stride_{name.lower()}" for name in pointers(config))


def acceptable(config: KernelConfig) -> dict[str, int | float]:
    """A call of one block and one slice that breaks no rule, in the order of the launcher's arguments."""
    known = derive.values(config)
    m, n, k = known["BLOCK_M"], known["BLOCK_N"], known["BLOCK_K"]
    p = Problem.packed(config.operation, m, n, k)
    call: dict[str, int | float] = {name: ADDRESSES[name] for name in pointers(config)}
    call |= {"M": m, "N": n, "K": k}
    call |= {f"ld{letter.lower()}": getattr(p, f"ld{letter.lower()}") for letter in matrices(config)}
    call |= {name: SCALARS[name] for name in config.operation.epilogue.scalars}
    if config.operation.batched:
        call["batch"] = _PRODUCTS
    if config.operation.batch is Batch.STRIDED:
        # Room for whatever leading dimension is tried, of a block as high and as narrow as can be.
        apart = p.apart(_MOST_ASKED * max(m, n, k))
        call |= {stride: getattr(apart, stride) for stride in strides(config)}
    if known["reduction_workspace"]:
        tiles = _PRODUCTS if config.operation.batched else 1
        call |= {"workspace": ADDRESSES["workspace"], "workspace_bytes": tiles * known["TILE_WORK_BYTES"]}
    return call


def answer(config: KernelConfig, call: Call) -> Status:
    """What the launcher of ``config`` answers to ``call`` before it asks the device; OK where no rule is broken."""
    given = {name.upper(): value for name, value in call.items() if name not in ADDRESSES}
    given_addresses = {f"{name.upper()}_ADDRESS": call[name] for name in ADDRESSES.keys() & call}
    known = derive.values(config) | given | given_addresses
    addresses = set(derive.ADDRESS_NAMES)
    products = call.get("batch", 1)
    broken = [rule for rule in rules.broken(known) if rule.scope is Scope.LAUNCH]
    # Pointers are looked at last, and not at all where D has no element.
    for rule in sorted(broken, key=lambda rule: bool(rule.expr.names & addresses)):
        if rule.status is not None and not (rule.expr.names & addresses and 0 in (call["M"], call["N"], products)):
            return rule.status
    return Status.OK


def least_steps(config: KernelConfig) -> dict[str, int]:
    """The least alignment that the launcher takes: of ``A`` … ``D`` and a workspace in bytes, of ``lda`` … ``ldd`` in
    elements.
    """
    call = acceptable(config)
    names = [*(name for name in ADDRESSES if name in call), *(f"ld{letter.lower()}" for letter in matrices(config))]
    names += strides(config) if config.operation.batch is Batch.STRIDED else ()
    steps = [2**power for power in range(_MOST_ASKED.bit_length())]
    return {
        name: next(step for step in steps if answer(config, {**call, name: call[name] + step}) is Status.OK)
        for name in names
    }


def alignments(config: KernelConfig) -> dict[str, int]:
    """Bytes of which the address of each matrix and vector is a multiple, and of no more.

    Of an array of pointers the launcher sees no more than the array; what lies behind it has to be aligned as for the
    launcher of a single product.
    """
    one = replace(config, operation=replace(config.operation, batch=Batch.NONE))
    least = least_steps(one if config.operation.batch is Batch.POINTERS else config)
    return {name: least[name] for name in pointers(config)}


def block_counts(config: KernelConfig) -> tuple[int, int]:
    """Blocks down and across, of the largest D that is tried: more than one group of the raster, the last not full."""
    width = config.raster.width + 1
    return {Order.LINEAR: (3, 2), Order.GROUPED: (width, 2), Order.PANELS: (2, width)}[config.raster.order]


def spoilt_calls(config: KernelConfig) -> list[Spoilt]:
    """One call for each thing that the launcher of ``config`` refuses."""
    call, least = acceptable(config), least_steps(config)
    found = [*_sizes(config, call)]
    for letter in matrices(config):
        ld = f"ld{letter.lower()}"
        short = Spoilt(f"an {ld} that is less than a row", Status.LEADING_DIMENSION, {ld: call[ld] - least[ld]})
        found += [short, *_unaligned(letter, call, least)]
        found.append(Spoilt(f"no {letter}", Status.POINTER, {letter: 0}))
    for vector in config.operation.epilogue.vectors:
        if least[vector] > 1:
            other = {vector: call[vector] + least[vector] // 2}
            found.append(Spoilt(f"a misaligned {vector}", Status.POINTER, other))
        found.append(Spoilt(f"no {vector}", Status.POINTER, {vector: 0}))
    for matrix in config.operation.epilogue.matrices:
        # With residency=global it may not even be D with D's leading dimension.
        other = {matrix.upper(): call["D"], f"ld{matrix}": call[f"ld{matrix}"] + least[f"ld{matrix}"]}
        found.append(Spoilt(f"a {matrix.upper()} that is D with another ld{matrix}", Status.POINTER, other))
    if "workspace" in call:
        found += [
            Spoilt("no workspace", Status.WORKSPACE, {"workspace": 0}),
            Spoilt(
                "a misaligned workspace",
                Status.WORKSPACE,
                {"workspace": call["workspace"] + least["workspace"] // 2},
            ),
            Spoilt("a small workspace", Status.WORKSPACE, {"workspace_bytes": call["workspace_bytes"] - 1}),
        ]
    return [*found, *_batches(config, call, least)]


def _batches(config: KernelConfig, call: Call, least: Mapping[str, int]) -> Iterator[Spoilt]:
    if not config.operation.batched:
        return
    yield Spoilt("a negative batch", Status.SIZE, {"batch": -1})
    yield Spoilt("more products than a grid counts", Status.SIZE, {"batch": derive.MAX_BATCH + 1})
    if config.operation.batch is not Batch.STRIDED:
        return
    for stride in strides(config):
        yield Spoilt(f"a negative {stride}", Status.LEADING_DIMENSION, {stride: -call[stride]})
        if least[stride] > 1:
            between = call[stride] + least[stride] // 2
            yield Spoilt(f"a {stride} between its steps", Status.LEADING_DIMENSION, {stride: between})
    yield Spoilt("one D for all products", Status.LEADING_DIMENSION, {"stride_d": 0})
    lines = call["M" if config.operation.d_row_major else "N"]
    overlapping = {"stride_d": lines * call["ldd"] - least["stride_d"]}
    yield Spoilt("outputs that overlap", Status.LEADING_DIMENSION, overlapping)
    for matrix in config.operation.epilogue.matrices:
        stride = f"stride_{matrix}"
        other = {matrix.upper(): call["D"], stride: call[stride] + least[stride]}
        yield Spoilt(f"a {matrix.upper()} that is D with another {stride}", Status.POINTER, other)


def _sizes(config: KernelConfig, call: Call) -> Iterator[Spoilt]:
    for name in "MNK":
        yield Spoilt(f"a negative {name}", Status.SIZE, {name: -call[name]})
        if answer(config, {**call, name: call[name] + 1}) is Status.SIZE:
            yield Spoilt(f"one {name} too many", Status.SIZE, {name: call[name] + 1})


def _unaligned(letter: str, call: Call, least: Mapping[str, int]) -> Iterator[Spoilt]:
    ld = f"ld{letter.lower()}"
    if least[ld] > 1:
        yield Spoilt(f"an {ld} between its steps", Status.LEADING_DIMENSION, {ld: call[ld] + least[ld] // 2})
    if least[letter] > 1:
        yield Spoilt(f"a misaligned {letter}", Status.POINTER, {letter: call[letter] + least[letter] // 2})
