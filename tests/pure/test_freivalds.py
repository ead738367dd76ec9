"""Freivalds' check: passes what is right, finds what is wrong, and steps back where it proves nothing."""

from __future__ import annotations

import numpy as np
import pytest

from wmmagen import dtypes as t
from wmmagen.config import Epilogue, Operation, Problem
from wmmagen.freivalds import VECTORS, Freivalds, prepare
from wmmagen.layout import images
from wmmagen.reference import Inputs, exact_inputs, expected, given_inputs
from wmmagen.verdict import Verdict, judge

PLAIN = Operation(t.F16, t.F32, t.F32)
LINEAR = Operation(t.F16, t.F32, t.F32, epilogue=Epilogue.LINEAR)
HALF = Operation(t.F16, t.F16, t.F16)
CASES = [
    exact_inputs(Problem.packed(PLAIN, 48, 80, 64, 8)),
    exact_inputs(Problem.packed(HALF, 48, 80, 64, 8)),
    exact_inputs(Problem.packed(Operation(t.S8, t.S32, t.S32), 48, 80, 64, 8)),
    *(
        exact_inputs(Problem.packed(LINEAR, 48, 80, 64, 8, alpha=alpha, beta=beta))
        for alpha, beta in ((2.0, -3.0), (-1.0, 0.5), (1.0, 0.0), (-1.0, 0.0))
    ),
    exact_inputs(Problem.packed(PLAIN, 48, 80, 0, 8)),
    exact_inputs(Problem.packed(LINEAR, 48, 80, 0, 8, alpha=-1.0, beta=0.0)),
]
cases = pytest.mark.parametrize(
    "inputs", CASES, ids=lambda i: f"{i.problem.operation.d.name}-{i.problem.alpha}-{i.problem.beta}"
)


def ready(inputs: Inputs) -> Freivalds:
    check = prepare(inputs)
    assert check is not None
    return check


def both(inputs: Inputs, d: np.ndarray) -> tuple[Verdict, Verdict]:
    """The verdict by the full product and by the check."""
    image = images(inputs.problem)[-1]
    buffer = image.pack(d)
    return judge(inputs, image, buffer), judge(inputs, image, buffer, check=ready(inputs))


@cases
def test_right_is_right(inputs: Inputs) -> None:
    full, quick = both(inputs, expected(inputs))
    assert full.exact
    assert quick == full
    assert ready(inputs).miss_bits >= 8 * VECTORS


@cases
@pytest.mark.parametrize("places", [[(0, 0)], [(47, 79)], [(3, 5), (3, 6), (40, 5)], [(i, 7) for i in range(48)]])
def test_what_is_wrong_is_located_as_by_the_full_product(inputs: Inputs, places: list[tuple[int, int]]) -> None:
    d = expected(inputs)
    for place in places:
        d[place] += 1
    full, quick = both(inputs, d)
    assert quick == full
    assert quick.wrong == len(places)
    assert quick.mismatch is not None
    assert (quick.mismatch.row, quick.mismatch.col) == min(places)
    rows, cols = ready(inputs).suspects(d)
    assert rows.tolist() == sorted({row for row, _ in places})
    assert cols.tolist() == sorted({col for _, col in places})


def test_errors_that_cancel_in_plain_sums_are_seen() -> None:
    """A checksum would miss these: the sums of every row and column stay what they are."""
    inputs = CASES[0]
    d = expected(inputs)
    d[3, 5] += 1
    d[3, 9] -= 1
    d[8, 5] -= 1
    d[8, 9] += 1
    full, quick = both(inputs, d)
    assert quick == full
    assert quick.wrong == 4


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**25, 0.5, -0.0])
@pytest.mark.parametrize("inputs", [CASES[0], CASES[3]])
def test_values_that_no_right_d_holds(inputs: Inputs, value: float) -> None:
    d = expected(inputs)
    d[7, 11] = value
    full, quick = both(inputs, d)
    assert not quick.exact
    assert quick.wrong == full.wrong == 1


@cases
def test_a_zero_of_the_wrong_sign(inputs: Inputs) -> None:
    if inputs.problem.operation.d.integer:
        return
    d = expected(inputs)
    d[d == 0] *= -1
    full, quick = both(inputs, d)
    assert quick == full
    assert quick.wrong == np.count_nonzero(d == 0)


@cases
def test_guards_and_unwritten_elements_are_watched_in_full(inputs: Inputs) -> None:
    image = images(inputs.problem)[-1]
    buffer = image.pack(expected(inputs))
    image.bits(buffer)[2, 3] = image.poison
    buffer[0] ^= 1
    verdict = judge(inputs, image, buffer, check=ready(inputs))
    assert "before the data" in verdict.damage
    assert verdict.wrong == 1
    assert "never written" in verdict.hint


def test_a_failing_sum_is_never_a_pass() -> None:
    """Rows fail and no column does: nothing is located, and the full product decides."""
    inputs = CASES[0]
    check = ready(inputs)
    d = expected(inputs)
    d[3, 5] += 1
    # Left vectors that do not look at row 3 hide the column.
    check.left[:, 3] = 0
    check.left_sums[:] = check.left @ expected(inputs).astype(np.float64)
    image = images(inputs.problem)[-1]
    assert check.suspects(d)[1].size == 0
    verdict = judge(inputs, image, image.pack(d), check=check)
    assert not verdict.exact
    assert verdict.wrong == 1


@pytest.mark.parametrize(
    ("why", "inputs"),
    [
        ("f16 D rounds sums beyond 2^11", exact_inputs(Problem.packed(Operation(t.F16, t.F32, t.F16), 16, 16, 64))),
        ("not guaranteed", exact_inputs(Problem.packed(HALF, 16, 16, 352), pattern="field")),
        ("f64 sums leave no room", exact_inputs(Problem.packed(Operation(t.F64, t.F64, t.F64), 16, 16, 64))),
        ("no product", exact_inputs(Problem.packed(LINEAR, 16, 16, 64, alpha=0.0, beta=2.0))),
        (
            "f16 does not go below 2^-24",
            exact_inputs(
                Problem.packed(
                    Operation(t.F16, t.F16, t.F16, epilogue=Epilogue.LINEAR), 16, 16, 4, alpha=2.0**-25, beta=0.0
                )
            ),
        ),
    ],
)
def test_elsewhere_the_full_product_is_needed(why: str, inputs: Inputs) -> None:
    assert prepare(inputs) is None, why


def test_the_bound_of_the_check_is_proved() -> None:
    """Every partial sum counts below 2^53, at the most that the vectors can make of it."""
    for inputs in CASES:
        check, p = ready(inputs), inputs.problem
        assert max(check.right.max(), check.left.max()) < 2**check.entry_bits
        assert check.largest * max(p.m, p.n) * 2**check.entry_bits <= 2**53
        a, b = np.abs(inputs.a.astype(np.int64)), np.abs(inputs.b.astype(np.int64))
        assert int((b @ check.right.astype(np.int64)).max(initial=0)) < 2**53
        assert int((a @ (b @ check.right.astype(np.int64))).max(initial=0)) < 2**53


def test_small_values_are_checked_with_a_wide_d() -> None:
    inputs = given_inputs(Problem.packed(HALF, 2, 3, 4), np.ones((2, 4), np.int64), np.ones((4, 3), np.int64))
    assert both(inputs, expected(inputs))[1].exact
