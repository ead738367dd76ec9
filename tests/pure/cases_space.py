"""Random points of a raw space, as a table of NumPy columns and as single points."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from wmmagen import derive
from wmmagen.space import Space, config_of

#: For each axis, the place of each point's value.
Places = dict[str, npt.NDArray[np.int64]]


def random_points(space: Space, count: int, seed: int) -> Places:
    """``count`` points of the product of the axes, legal and not."""
    rng = np.random.default_rng(seed)
    return {axis: rng.integers(len(values), size=count) for axis, values in space.axes.items()}


def rows_of(space: Space, places: Places) -> list[dict[str, Any]]:
    """The points one by one."""
    held = ([space.axes[axis][place] for place in column] for axis, column in places.items())
    return [dict(zip(places, row, strict=True)) for row in zip(*held, strict=True)]


def columns_of(space: Space, places: Places) -> dict[str, Any]:
    """The names that rules read, before anything is derived, with a row for each point in what the axes decide.

    Numbers are int64 and flags bool. What the operation and the architecture decide stays one value.
    """
    first = {axis: values[0] for axis, values in space.axes.items()}
    known = {**_names(space, first), **derive.of_arch(space.arch)}
    for axis, column in places.items():
        views = [_names(space, {**first, axis: value}) for value in space.axes[axis]]
        for name in views[0]:
            values = np.array([view[name] for view in views])
            if (values != values[0]).any():
                known[name] = values[column]
    return known


def _names(space: Space, point: dict[str, Any]) -> dict[str, Any]:
    config = config_of(space.operation, point)
    return {**derive.given(config), **derive.flags(config, strict_isa=space.strict_isa)}
