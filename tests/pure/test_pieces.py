"""Large arrays, piece by piece: every row once, whatever is done at a time, and equal bytes."""

from __future__ import annotations

import numpy as np
import pytest

from wmmagen import pieces


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1000), (1000, 3), (37, 11)])
@pytest.mark.parametrize("alone", [0, 1 << 20])
def test_every_row_is_worked_on_once(shape: tuple[int, int], alone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 64)
    monkeypatch.setattr(pieces, "_ALONE", alone)
    seen, widest = np.zeros(shape[0], np.int32), []

    def work(first: int, end: int) -> None:
        seen[first:end] += 1
        widest.append(end - first)

    pieces.over_rows(*shape, work)
    assert (seen == 1).all()
    assert all(0 < rows <= max(1, 64 // max(shape[1], 1)) for rows in widest)


def test_an_error_of_a_thread_is_the_caller_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 1)
    monkeypatch.setattr(pieces, "_ALONE", 0)

    def work(first: int, end: int) -> None:
        if first == 7:
            raise ValueError("row 7")

    with pytest.raises(ValueError, match="row 7"):
        pieces.over_rows(16, 4, work)


@pytest.mark.parametrize("size", [0, 1, 8, 19])
def test_one_different_byte_is_seen_wherever_it_is(size: int) -> None:
    one = np.arange(size, dtype=np.uint8)
    assert pieces.same_bytes(one, one) and pieces.same_bytes(one, one.copy())
    assert not pieces.same_bytes(one, np.zeros(size + 1, np.uint8))
    for place in range(size):
        other = one.copy()
        other[place] ^= 1
        assert not pieces.same_bytes(one, other)
