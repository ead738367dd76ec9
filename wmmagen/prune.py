"""The rules on a whole product of axes at once: what they leave of it, and how much each one removes.

An axis is either a column, along a dimension of its own, or structure, whose values change flags and other names. Each
number and each verdict of a rule is worked out once for all structures that agree in what it reads, be it through
numbers that follow from others. So a rule costs as much as the axes it speaks of, and an axis that none reads costs
nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wmmagen.cells import Cells, Mask
from wmmagen.rules import FORMULAS, RULES, Rule, names_read, roots_of, roots_of_all, roots_of_name

#: A value of each structural axis, by its place.
Structure = tuple[int, ...]


class Pruning:
    """The rules' verdicts on every point of a product.

    Attributes:
        removed: for each rule id, how many points break it, where any does; a point that breaks two is counted by both.
    """

    def __init__(
        self, known: Mapping[str, Any], columns: Mapping[str, Any], views: Sequence[Sequence[Mapping[str, Any]]]
    ) -> None:
        """Evaluate the rules.

        Args:
            known: numbers and flags that are not derived, by the names that rules use.
            columns: those of them that are columns, each along a dimension of its own; all have the same dimensions.
            views: for each structural axis and each of its values, ``known`` with that value.

        Raises:
            ValueError: a name follows from two structural axes.
        """
        self._shape = np.broadcast_shapes(*(column.shape for column in columns.values()))
        self._lengths = tuple(len(axis) for axis in views)
        self._varied = _varied(known, views)
        self._plain = {**known, **columns}
        self._values: dict[tuple[Any, ...], Any] = {}
        #: For each name that was asked for, the structural axes that it follows from.
        self._read: dict[str, Structure] = {}
        #: Of each rule that some point breaks: the axes it reads, and its masks by the places there; None for all kept.
        self._verdicts: list[tuple[Structure, dict[Structure, Mask | None]]] = []
        self.removed: dict[str, int] = {}
        for rule in RULES:
            self._judge(rule)
        self._values.clear()
        self._shared: dict[tuple[int, ...], Cells] = {}

    def blocks(self) -> list[tuple[Structure, Cells]]:
        """The structures that have legal points, in order, each with its cells of the columns.

        Structures that the rules judge alike share their cells.
        """
        read = sorted({axis for axes, _ in self._verdicts for axis in axes})
        alike = {
            places: self._cells(dict(zip(read, places, strict=True)))
            for places in itertools.product(*(range(self._lengths[axis]) for axis in read))
        }
        structures = itertools.product(*map(range, self._lengths))
        found = ((s, alike[tuple(s[axis] for axis in read)]) for s in structures)
        return [(structure, cells) for structure, cells in found if cells is not None]

    def _cells(self, places: Mapping[int, int]) -> Cells | None:
        """What the rules leave of the columns under a structure; None for nothing."""
        masks = []
        for axes, verdicts in self._verdicts:
            mask = verdicts[tuple(places[axis] for axis in axes)]
            if mask is not None:
                if mask.size == 1:  # broken by structure alone: one that is kept is None
                    return None
                masks.append(mask)
        key = tuple(map(id, masks))
        if key not in self._shared:
            self._shared[key] = Cells(masks, self._shape)
        return self._shared[key] if len(self._shared[key]) else None

    def _judge(self, rule: Rule) -> None:
        """Evaluate ``rule`` for every structure that it can tell apart."""
        if not roots_of_all(rule.expr.names) <= self._plain.keys():
            return
        axes = self._axes(roots_of(rule))
        steady = {name: self._value(name, {}) for name in names_read(rule) if not self._axes_of(name)}
        moving = names_read(rule) - steady.keys()
        masks = {}
        for places in itertools.product(*(range(self._lengths[axis]) for axis in axes)):
            structure = dict(zip(axes, places, strict=True))
            masks[places] = self._mask(rule, steady | {name: self._value(name, structure) for name in moving})
        broken = sum(self._broken(mask) for mask in masks.values() if mask is not None)
        if broken:
            self.removed[rule.id] = broken * math.prod(n for i, n in enumerate(self._lengths) if i not in axes)
            self._verdicts.append((axes, masks))

    def _mask(self, rule: Rule, known: Mapping[str, Any]) -> Mask | None:
        """Where ``rule`` is kept, of one structure; None for everywhere."""
        kept = rule.kept(known)
        if kept is True:
            return None
        mask = np.asarray(kept, dtype=np.bool_)
        if mask.all():
            return None
        return mask if mask.any() else np.zeros((1,) * len(self._shape), dtype=np.bool_)

    def _broken(self, mask: Mask) -> int:
        """Points of one structure that ``mask`` rules out."""
        return int(mask.size - np.count_nonzero(mask)) * (math.prod(self._shape) // mask.size)

    def _value(self, name: str, places: Mapping[int, int]) -> Any:
        """A number or flag, or a column of numbers, under a structure of which the axes that it reads are given."""
        if name in self._varied:
            axis, values = self._varied[name]
            return values[places[axis]]
        formula = FORMULAS.get(name)
        if formula is None:
            return self._plain[name]
        key = (name, *(places[axis] for axis in self._axes_of(name)))
        if key not in self._values:
            self._values[key] = formula({part: self._value(part, places) for part in formula.names})
        return self._values[key]

    def _axes_of(self, name: str) -> Structure:
        if name not in self._read:
            self._read[name] = self._axes(roots_of_name(name))
        return self._read[name]

    def _axes(self, roots: frozenset[str]) -> Structure:
        """The structural axes that change any of ``roots``."""
        return tuple(sorted({self._varied[name][0] for name in roots & self._varied.keys()}))


def _varied(known: Mapping[str, Any], views: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, tuple[int, list[Any]]]:
    """Each name that differs between structures: the axis that it follows from, and its value at each place there."""
    found: dict[str, tuple[int, list[Any]]] = {}
    for axis, axis_views in enumerate(views):
        for name, value in known.items():
            values = [view[name] for view in axis_views]
            if any(v != value for v in values):
                if name in found:
                    raise ValueError(f"{name} follows from two axes of structure")
                found[name] = axis, values
    return found
