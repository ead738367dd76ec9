"""Mutants on a real card: what values show is killed, a crash and a kernel that never ends are contained."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wmmagen import mutants
from wmmagen.arch import ARCHS
from wmmagen.backends import Backend
from wmmagen.backends.pick import pick
from wmmagen.errors import MissingPiece
from wmmagen.mistakes import KINDS

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def card() -> Iterator[Backend]:
    try:
        place = pick("gpu", ARCHS[75])
    except MissingPiece as missing:
        pytest.skip(missing.message)
    with place:
        yield place.demanded()


@pytest.mark.parametrize(
    "kind", ["drain-dropped", "c-read-for-beta-0", "beyond-d", "packed-d", "tile-dropped", "zeros"]
)
def test_what_values_show_is_killed(kind: str, card: Backend) -> None:
    row = mutants.judge(next(mutants.cases([KINDS[kind]], [ARCHS[75]])), card)
    assert row.counted and row.killed, row.detail


def test_a_missing_barrier_is_not_counted(card: Backend) -> None:
    row = mutants.judge(next(mutants.cases([KINDS["fill-barrier"]], [ARCHS[75]])), card)
    assert not row.counted and not row.survived
