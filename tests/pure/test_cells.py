"""Cells of a grid against the same masks written out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmmagen.cells import Cells


def masks_of(shape: tuple[int, ...], count: int, share: float, seed: int) -> list[np.ndarray]:
    """Masks that each speak of some dimensions of ``shape``."""
    rng = np.random.default_rng(seed)
    spoken = [tuple(n if rng.random() < 0.5 else 1 for n in shape) for _ in range(count)]
    return [rng.random(s) < share for s in spoken]


@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple),
    count=st.integers(0, 4),
    share=st.sampled_from([0.3, 0.8, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_cells_are_those_where_every_mask_holds(shape: tuple[int, ...], count: int, share: float, seed: int) -> None:
    # The second grid can have more cells than are unpacked at a time.
    for grid in (shape, (3, *shape, 17, 9)):
        masks = masks_of(grid, count, share, seed)
        whole = np.ones(grid, dtype=np.bool_)
        for mask in masks:
            whole = whole & mask
        expected = [tuple(map(int, cell)) for cell in np.argwhere(whole)]
        cells = Cells(masks, grid)
        assert len(cells) == len(expected) and list(cells) == expected
        assert [set(line) for line in cells.occurring()] == [{c[d] for c in expected} for d in range(len(grid))]
        for place in {0, len(expected) // 3, len(expected) - 1} & set(range(len(expected))):
            assert cells.at(place) == expected[place] and cells.place(expected[place]) == place
        for cell in itertools.islice(np.argwhere(~whole), 20):
            assert cells.place(tuple(map(int, cell))) is None


@pytest.mark.parametrize("lead", [False, True])
def test_what_no_mask_speaks_of_takes_no_bits(lead: bool) -> None:
    free, spoken = 10_000, 1000
    shape, mask = ((free, spoken), np.ones((1, spoken), bool)) if lead else ((spoken, free), np.ones((spoken, 1), bool))
    mask.reshape(-1)[1::2] = False
    cells = Cells([mask], shape)
    assert len(cells) == free * spoken // 2
    assert cells.at(1) == ((0, 2) if lead else (0, 1))
    assert cells.place((6, 8)) == (6 * spoken // 2 + 4 if lead else 3 * free + 8)
    assert cells.place((7, 7)) is None
