"""Cases of proofs side by side, here on the executor."""

from __future__ import annotations

import pytest

from tests.gpu.spread import spread
from wmmagen import arch as archs
from wmmagen.backends import Backend


def inverse(backend: Backend, case: int) -> tuple[str, float]:
    """What a case is answered with here; none for 0."""
    return backend.name, 1 / case


def test_cases_are_told_of_in_their_order_up_to_what_one_raised() -> None:
    told = spread(inverse, [2, 4, 0, 8], archs.find("sm_75"), kind="cpu", jobs=2)
    assert [next(told), next(told)] == [("cpu", 0.5), ("cpu", 0.25)]
    with pytest.raises(ZeroDivisionError):
        next(told)
