"""Benches of several sizes: lists of shapes, given kernels and the best that are known, and how many of them win."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wmmagen import bench, coverage, instructions, known, rules, shapes
from wmmagen.arch import Arch
from wmmagen.backends.pick import Place
from wmmagen.bench import Row, Table
from wmmagen.chips import Chip
from wmmagen.config import Batch, KernelConfig, Operation, Problem, Residue, name
from wmmagen.denominators import Kind
from wmmagen.errors import RequestError
from wmmagen.records import Outcome
from wmmagen.shapes import Shape
from wmmagen.timing import TimingProtocol


@dataclass(frozen=True)
class Plan:
    """One size of a series.

    Attributes:
        shape: the size, with its name where it is of a list.
        kernels: those that take it, each with how it is known; nothing of those that were given.
        refused: rows of those that were asked for and do not.
        padded: kernels for multiples that do not take it, and are called on padded copies.
    """

    shape: Shape
    kernels: dict[KernelConfig, str]
    refused: tuple[Row, ...] = ()
    padded: tuple[KernelConfig, ...] = ()


@dataclass(frozen=True)
class Measured:
    """One size of a series, measured.

    Attributes:
        plan: what was asked.
        table: what came of it; the rows of kernels that do not take the size are last.
    """

    plan: Plan
    table: Table

    def origin(self, row: Row) -> str:
        """How the kernel of ``row`` is known; empty where it was given."""
        return next((words for config, words in self.plan.kernels.items() if name(config) == row.name), "")

    @property
    def rows(self) -> tuple[Row, ...]:
        return (*self.table.rows, *self.plan.refused)


def listed(text: str) -> list[Shape]:
    """The shapes of the list of that name.

    Raises:
        RequestError: there is none.
    """
    return list(shapes.named(text))


def unnamed(sizes: Sequence[tuple[int, int, int]]) -> list[Shape]:
    """Sizes that were typed."""
    return [Shape("", *size) for size in sizes]


def counted(batches: Sequence[tuple[tuple[int, int, int], int]]) -> list[Shape]:
    """Sizes that were typed, each with how many products there are of it."""
    return [Shape("", *size, batch) for size, batch in batches]


def suited(operation: Operation, shape: Shape) -> Operation:
    """``operation`` with what a kernel of ``shape`` has to have, where it does not ask for that itself.

    A batch is taken by strides. Extents that are multiples of no instruction's are taken by kernels for all sizes.
    """
    if shape.batch > 1 and not operation.batched:
        operation = replace(operation, batch=Batch.STRIDED)
    rows = instructions.of_operand(operation.a)
    if rows and not any(shape.m % i.m == shape.n % i.n == shape.k % i.k == 0 for i in rows):
        operation = replace(operation, residue=Residue.PREDICATED)
    return operation


def plan(
    wanted: Sequence[Shape],
    kernels: Sequence[KernelConfig],
    arch: Arch,
    operation: Operation | None,
    chip: Chip,
    *,
    padded: bool = False,
) -> list[Plan]:
    """Which kernels are measured at which sizes.

    Of one size all kernels have to take it. Of several, each is measured where it can be, and said elsewhere.

    Args:
        operation: of which the best known kernel is measured, too, as suits the shapes of lists; None for none.
        chip: that estimates are of, where no better is known.
        padded: whether kernels for multiples that do not take a size are called on padded copies there.

    Raises:
        IllegalConfig: a kernel does not take the only size.
        NotGeneratedYet: one for multiples cannot be called on padded copies.
        RequestError: none takes one of the sizes, no variant of ``operation`` does, or it has nothing to multiply.
    """
    plans = []
    for shape in wanted:
        bench.demand_product(shape.size, shape.batch)
        held: dict[KernelConfig, str] = {}
        copied: list[KernelConfig] = []
        refused: list[Row] = []
        for kernel in kernels:
            problem = Problem.packed(kernel.operation, *shape.size, batch=shape.batch)
            found = rules.check(kernel, arch, problem)
            if found and padded and kernel.operation.residue is Residue.EXACT:
                coverage.demand_padding(kernel)
                copied.append(kernel)
            elif found and len(wanted) > 1:
                words = "; ".join(f"{one.rule.id} {one.message}" for one in found)
                refused.append(Row(name(kernel), problem, Outcome.ILLEGAL, words))
            else:
                rules.demand(kernel, arch, problem)
                held[kernel] = ""
        if operation is not None:
            # Who asks for a list of shapes asks for kernels that take them; a size that is typed is taken as it is.
            asked = suited(operation, shape) if shape.words else operation
            top = known.best(asked, arch, shape.size, chip, shape.batch)
            held.setdefault(top.config, top.words)
        if not held and not copied:
            raise RequestError(
                f"none of the kernels takes {shape.m}x{shape.n}x{shape.k}: {refused[0].detail}", "--best"
            )
        plans.append(Plan(shape, held, tuple(refused), tuple(dict.fromkeys(copied))))
    return plans


def measure(
    one: Plan,
    arch: Arch,
    place: Place,
    protocol: TimingProtocol,
    *,
    ceilings: bool,
    kinds: Collection[Kind] = bench.KINDS,
) -> Measured:
    """Measure one size; raises as :func:`wmmagen.bench.measure` does."""
    shape, kernels = one.shape, list(one.kernels)
    table = bench.measure(
        kernels,
        arch,
        shape.size,
        place,
        protocol,
        ceilings=ceilings,
        kinds=kinds,
        batch=shape.batch,
        padded=one.padded,
    )
    return Measured(one, table)


def wins(tables: Sequence[Measured]) -> tuple[int, int]:
    """At how many sizes a kernel beats cuBLASLt with the same types beyond the noise, and of how many that is told."""
    shares = [[row.ratios["same types"] for row in one.rows if "same types" in row.ratios] for one in tables]
    told = [ratios for ratios in shares if ratios]
    return sum(any(ratio.low > 1 for ratio in ratios) for ratios in told), len(told)


def document(tables: Sequence[Measured]) -> dict[str, Any]:
    """What ``bench --json`` says of the kernels and of what they stand beside."""
    won, told = wins(tables)
    return {
        "rows": [
            row.as_json()
            | {"beside": one.table.beside(row)}
            | {"shape": one.plan.shape.words, "batch": one.plan.shape.batch, "origin": one.origin(row)}
            for one in tables
            for row in one.rows
        ],
        "wins": {"won": won, "of": told},
        "denominators": [baseline.as_json() for one in tables for baseline in one.table.baselines],
        "ceilings": [limit.as_json() for one in tables for limit in one.table.limits],
    }
