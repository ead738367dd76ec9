"""The legal search space of one operation on one architecture, in counts. No Optuna.

The raw space is the product of its axes, billions of points. Some axes are counts, which become NumPy columns; the
others select structure, which flags and registers depend on. What is legal of their product is said by the very
expressions of the rules table (:mod:`wmmagen.prune`) and kept as bits (:mod:`wmmagen.cells`); nothing here knows it.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from wmmagen import coverage, derive, instructions
from wmmagen.arch import FULL_GRID, Arch
from wmmagen.cells import Cell
from wmmagen.config import (
    LINEAR,
    OPERATION_KEYS,
    WIDEST_BITS,
    Arrange,
    Copy,
    Feed,
    Grid,
    KernelConfig,
    Operation,
    Order,
    Problem,
    Raster,
    Reduction,
    Residency,
    Residue,
    Shape,
    Store,
    build,
    spell,
    values_of,
)
from wmmagen.errors import ConfigError, RequestError
from wmmagen.prune import Pruning, Structure

_WARPS = (1, 2, 4, 8)
_FRAGS = (1, 2, 3, 4, 6, 8)
_GRIDS = ("warps", "frags")
#: Where no problem is given; each number of splits is one more column of the product.
_MOST_SPLITS = 8

#: Rows by columns of D up to which tiles alone may leave multiprocessors, or their tensor units, idle: one with 64 x 64
#: of it for each of a few hundred blocks.
_FEW = 512 * 64 * 64
#: And the least K of which each of several groups of warps has more than a few steps.
_LONG = 256

Value = Any
Names = dict[str, Any]


class Space:
    """Every legal configuration of an operation on an architecture whose values are worth a search.

    The order of the points is that of their axes' values, the last axis varying fastest, and the same on every machine.

    Attributes:
        operation: what the configurations compute.
        arch: what they are legal on.
        problem: what they are legal for; None for whatever problem fits.
        strict_isa: whether the strict reading of alignment was asked for.
        fixed: the keys of a configuration that were given one value.
        axes: each axis with the values it was searched on.
        live: each axis with those of its values that some legal point has.
        raw: points of the product of the axes.
        removed: for each rule id, how many raw points break it; a point that breaks two is counted by both.
    """

    def __init__(
        self,
        operation: Operation,
        arch: Arch,
        fixed: Mapping[str, Value] | None = None,
        *,
        problem: Problem | None = None,
        strict_isa: bool = False,
    ) -> None:
        """Enumerate the space.

        Args:
            fixed: values for some keys of a configuration; each becomes the only one of its axis, also where it is
                none of the usual ones.

        Raises:
            ConfigError: ``fixed`` names a key that is none, or another operation.
        """
        self.operation = operation
        self.arch = arch
        self.problem = problem
        self.strict_isa = strict_isa
        self.fixed = _searched(fixed or {}, operation)
        self.axes = _axes(operation, self.fixed, problem)
        self.raw = math.prod(len(values) for values in self.axes.values())
        legal = _legal(operation, arch, tuple(self.axes.items()), problem, strict_isa)
        self._counts, self._structures = legal.counts, legal.structures
        self._blocks, self._starts, self._numbers = legal.blocks, legal.starts, legal.numbers
        self.removed, self.live = dict(legal.removed), dict(legal.live)

    def __len__(self) -> int:
        return self._starts[-1]

    def at(self, index: int) -> KernelConfig:
        """The point at ``index`` of the order.

        Raises:
            IndexError: there is none.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"{index} is none of the {len(self)} points of the space")
        number = bisect.bisect_right(self._starts, index) - 1
        structure, cells = self._blocks[number]
        return self._point(structure, cells.at(index - self._starts[number]))

    def _point(self, structure: Structure, cell: Cell) -> KernelConfig:
        places = zip((*self._structures, *self._counts), (*structure, *cell), strict=True)
        return config_of(self.operation, {name: self.axes[name][place] for name, place in places})

    def configs(self) -> Iterator[KernelConfig]:
        """Every point, in the order."""
        for structure, cells in self._blocks:
            for cell in cells:
                yield self._point(structure, cell)

    def index(self, config: KernelConfig) -> int | None:
        """The place of ``config`` in the order; None where it is no point of the space."""
        return self.index_of(point_of(config)) if config.operation == self.operation else None

    def index_of(self, point: Mapping[str, Value]) -> int | None:
        """The place of the point with these values, one for each axis; None where it is no point of the space."""
        if any(point[name] not in values for name, values in self.axes.items()):
            return None
        places = {name: values.index(point[name]) for name, values in self.axes.items()}
        number = self._numbers.get(tuple(places[name] for name in self._structures))
        if number is None:
            return None
        place = self._blocks[number][1].place(tuple(places[name] for name in self._counts))
        return self._starts[number] + place if place is not None else None

    def contains(self, config: KernelConfig) -> bool:
        """Whether ``config`` is a point of the space."""
        return self.index(config) is not None

    def sample(self, rng: random.Random, n: int) -> list[KernelConfig]:
        """``n`` different points, or all of them where there are fewer, each as likely as any other."""
        return [self.at(i) for i in rng.sample(range(len(self)), min(n, len(self)))]

    def neighbours(self, config: KernelConfig) -> list[KernelConfig]:
        """The points that differ from ``config`` by one step on one axis, in the order of the axes.

        A step leads to the next count up or down among those that occur, or to any other value of an axis that has no
        order.
        """
        point = point_of(config)
        moved = [
            {**point, name: value}
            for name, values in self.live.items()
            if point[name] in values
            for value in self._steps(name, values.index(point[name]))
        ]
        return [self.at(i) for i in map(self.index_of, moved) if i is not None]

    def _steps(self, name: str, here: int) -> list[Value]:
        reach = 1 if name in self._counts else len(self.live[name])
        return [v for i, v in enumerate(self.live[name]) if i != here and abs(i - here) <= reach]

    @property
    def ordered(self) -> tuple[str, ...]:
        """The axes that are counts, so that their values have an order."""
        return self._counts

    def demand(self) -> None:
        """Return where the space can be swept.

        Raises:
            RequestError: no point is legal.
            NotGeneratedYet: no template makes its points.
        """
        if not len(self):
            # Whether all sizes are taken is no axis: it belongs to the operation, as what was asked or what had to be.
            fixed = {"residue": self.operation.residue} | self.fixed
            words = ", ".join(f"{key}={spell(value)}" for key, value in fixed.items())
            most = sorted(self.removed, key=lambda r: -self.removed[r])[:3]
            rules = ", ".join(f"{r} removes {self.removed[r]}" for r in most)
            target = f"{self.arch}" + (f" for {self.problem}" if self.problem else "")
            raise RequestError(
                f"with {words}, none of {self.raw} configurations is legal on {target} ({rules})",
                self._other_sizes()
                or "fix other values, or fewer; `wmmagen check` says why one configuration is illegal",
            )
        # What decides coverage beside the axes, which hold made values only, is the same for every point.
        coverage.demand(self.at(0))

    def _other_sizes(self) -> str:
        """What to say where it is the size that no point takes; empty where no size helps.

        Sizes are whole block tiles. The nearest ones below and above are proposed where they have legal points.
        A kernel for all sizes may promise more of rows than those of the size keep.
        """
        if self.problem is None:
            return ""
        free = Space(self.operation, self.arch, self.fixed, strict_isa=self.strict_isa)
        if not len(free):
            return ""
        if self.operation.residue is Residue.PREDICATED:
            kept = self.problem.alignments
            less = [f"{key}={value}" for key, value in kept.items() if value != getattr(self.operation, key)]
            return (
                f"packed rows of that size keep no more than {','.join(less)}" if less else "choose another --problem"
            )
        # Taller shapes are narrower, so that the extents of two shapes do not go together.
        shapes = list(free.live["inst"])
        near = dict.fromkeys(filter(None, (self._first_legal(free, shapes, up=up) for up in (False, True))))
        words = "M, N and K have to be multiples of a kernel's block tile, or --fix residue=predicated"
        return (
            f"{words}; nearest legal: --problem {' or '.join(near)}" if near else f"{words}; choose another --problem"
        )

    def _first_legal(self, free: Space, shapes: Sequence[Shape], *, up: bool) -> str:
        """The size next to the problem's, below or above in every extent, that a kernel of some shape takes."""
        assert self.problem is not None
        asked = (self.problem.m, self.problem.n, self.problem.k)
        found = []
        for shape in shapes:
            tiles = [free._extents(shape, axis) for axis in "mnk"]
            if up:
                size = tuple(min(-(-s // t) * t for t in own) for s, own in zip(asked, tiles, strict=True))
            else:
                size = tuple(max(s // t * t for t in own) for s, own in zip(asked, tiles, strict=True))
            found.append((sum(abs(a - b) for a, b in zip(size, asked, strict=True)), size, shape))
        for _, (m, n, k), shape in sorted(found, key=lambda each: each[:2]):
            problem = Problem.packed(self.operation, m, n, k, batch=self.problem.batch)
            fixed = {**self.fixed, "inst": shape}
            if 0 not in (m, n, k) and len(
                Space(self.operation, self.arch, fixed, problem=problem, strict_isa=self.strict_isa)
            ):
                return str(problem)
        return ""

    def _extents(self, shape: Shape, axis: str) -> set[int]:
        """The extents of block tiles of ``shape`` along ``axis``, m, n or k, in elements."""
        counts = [self.live["k_steps"]] if axis == "k" else [self.live[f"warps_{axis}"], self.live[f"frags_{axis}"]]
        return {math.prod((getattr(shape, axis), *many)) for many in itertools.product(*counts)}


class _Legal:
    """What the rules leave of the product of some axes. It is only read, so that spaces can share it.

    Attributes:
        counts: the axes that are numbers of the rules, and so columns.
        structures: the others, which select structure.
        removed: as of :class:`Space`.
        live: as of :class:`Space`.
        blocks: each structure that has legal points, in the order, with its cells; some share cells.
        starts: how many points come before each block, and of all of them.
        numbers: which block a structure is.
    """

    def __init__(
        self,
        operation: Operation,
        arch: Arch,
        axes: Mapping[str, tuple[Value, ...]],
        problem: Problem | None,
        strict_isa: bool,
    ) -> None:
        self._operation, self._strict_isa = operation, strict_isa
        first = {name: values[0] for name, values in axes.items()}
        # Which axes are numbers of the rules is asked of the derived numbers.
        numbers = derive.given(config_of(operation, first))
        self.counts = tuple(name for name in axes if name.upper() in numbers)
        self.structures = tuple(name for name in axes if name not in self.counts)
        shared: Names = dict(derive.of_arch(arch))
        if problem is not None:
            shared.update(derive.of_problem(problem))
        # The names that rules read: those of the first point, the counts as columns, and those of other structures.
        views = [[shared | self._given({**first, n: value}) for value in axes[n]] for n in self.structures]
        meshes = np.meshgrid(
            *(np.array(axes[name], dtype=np.int64) for name in self.counts), indexing="ij", sparse=True
        )
        columns = {name.upper(): mesh for name, mesh in zip(self.counts, meshes, strict=True)}
        pruning = Pruning(shared | self._given(first), columns, views)
        self.removed = pruning.removed
        self.blocks = pruning.blocks()
        self.starts = [0, *itertools.accumulate(len(cells) for _, cells in self.blocks)]
        self.numbers = {structure: number for number, (structure, _) in enumerate(self.blocks)}
        self.live = self._live(axes)

    def _given(self, point: Mapping[str, Value]) -> Names:
        config = config_of(self._operation, point)
        return {**derive.given(config), **derive.flags(config, strict_isa=self._strict_isa)}

    def _live(self, axes: Mapping[str, tuple[Value, ...]]) -> dict[str, tuple[Value, ...]]:
        found: dict[str, set[int]] = {name: set() for name in axes}
        for structure, _ in self.blocks:
            for name, place in zip(self.structures, structure, strict=True):
                found[name].add(place)
        for cells in {id(cells): cells for _, cells in self.blocks}.values():
            for name, places in zip(self.counts, cells.occurring(), strict=True):
                found[name].update(places)
        return {name: tuple(v for i, v in enumerate(values) if i in found[name]) for name, values in axes.items()}


@functools.lru_cache(maxsize=2)
def _legal(
    operation: Operation,
    arch: Arch,
    axes: tuple[tuple[str, tuple[Value, ...]], ...],
    problem: Problem | None,
    strict_isa: bool,
) -> _Legal:
    """One command asks for its space several times over; the largest take hundreds of megabytes, so few are kept."""
    return _Legal(operation, arch, dict(axes), problem, strict_isa)


def point_of(config: KernelConfig) -> dict[str, Value]:
    """A configuration as one value for each axis."""
    point: dict[str, Value] = {}
    for key, value in values_of(config).items():
        if key in _GRIDS:
            point.update({f"{key}_m": value.m, f"{key}_n": value.n})
        elif key not in OPERATION_KEYS:
            point[key] = value
    return point


def config_of(operation: Operation, point: Mapping[str, Value]) -> KernelConfig:
    """The inverse of :func:`point_of`."""
    values = {key: getattr(operation, key) for key in OPERATION_KEYS} | dict(point)
    for key in _GRIDS:
        values[key] = Grid(values.pop(f"{key}_m"), values.pop(f"{key}_n"))
    return build(values)


def _searched(fixed: Mapping[str, Value], operation: Operation) -> dict[str, Value]:
    """``fixed`` without the operation's keys."""
    for key, value in fixed.items():
        own = operation.added if key == "c" else getattr(operation, key, None)
        if key in OPERATION_KEYS and value != own:
            held = spell(own)
            raise ConfigError(
                f"{key}={spell(value)} is fixed, but the operation has {key}={held}",
                f"leave it out, or ask for {key}={held}",
            )
    return {key: value for key, value in fixed.items() if key not in OPERATION_KEYS}


def axes_of(operation: Operation, problem: Problem | None = None) -> dict[str, tuple[Value, ...]]:
    """Each axis of the space of ``operation`` with its values, where nothing is fixed."""
    return {name: _made(name, values) for name, values in _worth(operation, problem).items()}


def _axes(operation: Operation, fixed: Mapping[str, Value], problem: Problem | None) -> dict[str, tuple[Value, ...]]:
    axes = axes_of(operation, problem)
    for key, value in fixed.items():
        held = {f"{key}_m": value.m, f"{key}_n": value.n} if key in _GRIDS else {key: value}
        unknown = held.keys() - axes.keys()
        if unknown:
            raise ConfigError(f"{key!r} is no axis of a search", f"axes: {' '.join(axes)}")
        axes.update({name: (only,) for name, only in held.items()})
    return axes


def _made(name: str, values: tuple[Value, ...]) -> tuple[Value, ...]:
    made = coverage.GENERATED.get(name)
    return values if made is None else tuple(v for v in values if spell(v) in made)


def _splits(problem: Problem | None, least_slice: int) -> tuple[int, ...]:
    """Into how many parts K is worth splitting: doubling, as far as the smallest slices of the problem go."""
    most = _MOST_SPLITS if problem is None else min(problem.k // least_slice, FULL_GRID)
    return tuple(2**power for power in range(max(most, 1).bit_length()))


def _few_tiles(problem: Problem | None) -> bool:
    """Whether groups of warps may be worth their meeting; without a problem there is no telling."""
    return problem is not None and problem.k >= _LONG and problem.batch * problem.m * problem.n <= _FEW


def _worth(operation: Operation, problem: Problem | None) -> dict[str, tuple[Value, ...]]:
    """The values that are worth a search, whether a template makes them or not; structure first, counts after it."""
    rows = instructions.of_operand(operation.a) or instructions.INSTRUCTIONS
    # Types that no instruction has break a rule with every shape, which says so better than no shape at all.
    shapes = dict.fromkeys(Shape(i.m, i.n, i.k) for i in rows)
    few = _few_tiles(problem)
    unit, unit_d = WIDEST_BITS // operation.a.bits, WIDEST_BITS // operation.acc.bits
    return {
        "inst": tuple(shapes),
        "feed": tuple(Feed),
        "copy": tuple(Copy),
        "arrange_a": tuple(Arrange),
        "arrange_b": tuple(Arrange),
        "residency": tuple(Residency),
        "store": tuple(Store),
        "reduction": tuple(Reduction),
        "raster": (LINEAR, *(Raster(order, width) for order in (Order.GROUPED, Order.PANELS) for width in (4, 8))),
        "warps_m": _WARPS,
        "warps_n": _WARPS,
        "frags_m": _FRAGS,
        "frags_n": _FRAGS,
        "k_steps": (1, 2, 4, 8) if few else (1, 2, 4),
        "stages": (1, 2, 3, 4, 5),
        "pad_a": (0, unit, 2 * unit),
        "pad_b": (0, unit, 2 * unit),
        "pad_d": (0, unit_d, 2 * unit_d),
        "fragment_buffers": (1, 2),
        "min_blocks": (1, 2, 3),
        "split_k": _splits(problem, min(shape.k for shape in shapes)),
        "warps_k": (1, 2, 4) if few else (1,),
    }
