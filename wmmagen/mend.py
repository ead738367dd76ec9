"""The smallest change that makes an illegal configuration legal: what is proposed has passed every rule.

Whatever mends a configuration changes something that its first broken rule reads. So the search changes, one axis after
the other, what the rule that is broken first reads then, and asks the rules again: one change, then two, and so on. The
values are those of the search space, near ones first. It is the same on every machine, and ends after a fixed number of
configurations.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from wmmagen import coverage, derive, rules, space
from wmmagen.arch import Arch
from wmmagen.config import (
    OPERATION_KEYS,
    KernelConfig,
    Layout,
    Operation,
    Overflow,
    Problem,
    Residue,
    read_value,
    spell,
    values_of,
)
from wmmagen.rules import Rule

#: Changes that are proposed together, at most; who needs more of them has asked for another kernel.
MOST_CHANGES = 4
#: Configurations that are judged, at most: less than half a second.
_JUDGED = 2000
#: In which order axes are changed: first what costs little, then tiles, and what is computed last.
_ORDER = (
    "pad_a", "pad_b", "pad_d", "store", "stages", "copy", "arrange_a", "arrange_b", "fragment_buffers", "min_blocks",
    "k_steps", "frags_m", "frags_n", "warps_m", "warps_n", "residency", "feed", "raster", "split_k", "reduction",
    "warps_k", "residue", "inst", "overflow", "c", "acc", "d", "cd", "layout", "a",
)  # fmt: skip

#: Keys of an operation that are structure.
_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "layout": tuple(Layout),
    "cd": tuple(Layout),
    "overflow": tuple(Overflow),
    "residue": tuple(Residue),
}

Point = Mapping[str, Any]


def changes(
    config: KernelConfig, arch: Arch, problem: Problem | None = None, *, strict_isa: bool = False
) -> dict[str, str] | None:
    """The fewest keys, with their values, with which ``config`` is legal; empty where it is, None where none was found.

    ``problem`` stays as it is: what was asked is not changed, but how it is done.
    """
    search = _Search(arch, problem, strict_isa)
    for depth in range(MOST_CHANGES + 1):
        found = search.within(_point(config), frozenset(), depth)
        if found is not None:
            return _told(config, _config(found))
    return None


def _told(before: KernelConfig, after: KernelConfig) -> dict[str, str]:
    """What ``after`` has that ``before`` has not; ``c`` also where it is D's type, if one may have been said."""
    old, new = values_of(before), values_of(after)
    if before.operation.epilogue.adds or before.operation.c is not None:
        old["c"], new["c"] = before.operation.added, after.operation.added
    return {key: spell(value) for key, value in new.items() if value != old[key]}


def words(config: KernelConfig, arch: Arch, problem: Problem | None = None, *, strict_isa: bool = False) -> str:
    """The proposal of :func:`changes` as a sentence."""
    return sentence(changes(config, arch, problem, strict_isa=strict_isa))


def sentence(found: Mapping[str, str] | None) -> str:
    """What :func:`changes` found, for those who read it."""
    if found is None:
        return (
            f"no legal configuration was found within {MOST_CHANGES} changes; `wmmagen space` tells what is legal and "
            "which rules remove most"
        )
    return f"legal as a whole with {','.join(f'{key}={value}' for key, value in found.items())}"


class _Search:
    def __init__(self, arch: Arch, problem: Problem | None, strict_isa: bool) -> None:
        self._arch = arch
        self._problem = problem
        self._strict_isa = strict_isa
        self._left = _JUDGED
        # Most points of a search have one operation.
        self._axes_of = functools.cache(space.axes_of)
        # A deeper search begins with the points of the one before, and two changes come in either order.
        self._judged: dict[tuple[Any, ...], tuple[Rule | None, dict[str, Any]]] = {}
        self._moved: dict[tuple[Any, ...], list[Point]] = {}

    def within(self, point: Point, changed: frozenset[str], depth: int) -> Point | None:
        """A legal point that differs from ``point`` in ``depth`` further axes at most; None where none was found."""
        if self._left <= 0:
            return None
        self._left -= 1
        rule, read = self._broken(point)
        if rule is None or depth == 0:
            return point if rule is None else None
        for axis in _ORDER:
            if axis in changed:
                continue
            for other in self._others(point, axis, read):
                found = self.within(other, changed | {axis}, depth - 1)
                if found is not None:
                    return found
        return None

    def _broken(self, point: Point) -> tuple[Rule | None, dict[str, Any]]:
        """The first rule that ``point`` breaks, and what it reads there of what is given; None for none."""
        key = tuple(point.values())
        if key not in self._judged:
            known = self._known(point)
            rule = next((r for r in rules.LEGALITY if not r.kept(known)), None)
            read = rules.roots_of(rule) & self._given(point).keys() if rule is not None else ()
            self._judged[key] = rule, {name: known[name] for name in read}
        return self._judged[key]

    def _others(self, point: Point, axis: str, read: Mapping[str, Any]) -> Iterator[Point]:
        """``point`` with each other value of ``axis`` that changes something of ``read``."""
        key = (*point.values(), axis)
        if key in self._moved:
            yield from self._moved[key]
            return
        kept: list[Point] = []
        for value in self._values(axis, point):
            other = _moved(point, axis, value)
            given = self._given(other)
            if any(given[name] != held for name, held in read.items()):
                kept.append(other)
                yield other
        self._moved[key] = kept

    def _known(self, point: Point) -> dict[str, Any]:
        problem = None if self._problem is None else _asked(self._problem, _operation(point))
        return derive.values(_config(point), self._arch, problem, strict_isa=self._strict_isa)

    def _given(self, point: Point) -> dict[str, Any]:
        config = _config(point)
        return {**derive.given(config), **derive.flags(config, strict_isa=self._strict_isa)}

    def _values(self, axis: str, point: Point) -> Iterator[Any]:
        """Other values of ``axis``, near ones first."""
        present = point[axis]
        if axis in ("a", "acc", "d", "c"):
            values = tuple(read_value(axis, text) for text in coverage.GENERATED[axis])
            values = (None, *values) if axis == "c" else values  # D's type, and the others
        elif axis in _CHOICES:
            values = _CHOICES[axis]
        else:
            values = self._axes_of(_operation(point))[axis]
        others = [value for value in values if value != present]
        if isinstance(present, int):
            others.sort(key=lambda value: (abs(value - present), -value))
        yield from others


def _point(config: KernelConfig) -> Point:
    return {**{key: getattr(config.operation, key) for key in OPERATION_KEYS}, **space.point_of(config)}


def _operation(point: Point) -> Operation:
    return Operation(**{key: point[key] for key in OPERATION_KEYS})


def _config(point: Point) -> KernelConfig:
    return space.config_of(_operation(point), {key: value for key, value in point.items() if key not in OPERATION_KEYS})


def _asked(problem: Problem, operation: Operation) -> Problem:
    """The same call of another operation: sizes stay, and leading dimensions follow the layout where that changes."""
    if operation.layout == problem.operation.layout:
        return replace(problem, operation=operation)
    return Problem.packed(operation, problem.m, problem.n, problem.k, batch=problem.batch)


def _moved(point: Point, axis: str, value: Any) -> Point:
    """``point`` with another value; what is promised of another type stays the same in bytes."""
    promised = {"a": ("align_a", "align_b"), "d": ("align_d",)}.get(axis, ())
    return {**point, axis: value, **{key: point[key] * point[axis].bits // value.bits for key in promised}}
