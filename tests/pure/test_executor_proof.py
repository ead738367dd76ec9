"""What the executor's proofs compare: bytes anywhere, numbers that are apart, counters that are missing."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.gpu import prove_counts, prove_executor
from tests.gpu.prove_executor import EXACT, NORMAL, Run
from wmmagen import layout
from wmmagen.backends import Bytes, Launch
from wmmagen.config import Operation, Problem
from wmmagen.dtypes import F16, F32
from wmmagen.executor import Counts
from wmmagen.nvrtc import Binary

OPERATION = Operation(F16, F32, F32)
PROBLEM = dataclasses.replace(Problem.packed(OPERATION, 16, 16, 16), ldd=24)


class Other:
    """A backend that gives back what it was told to."""

    name = "gpu"

    def __init__(self, returned: list[Bytes]) -> None:
        self._returned = returned

    def run(self, binary: Binary, launch: Launch, buffers: Any) -> list[Bytes]:
        return self._returned


def run_of(data: str) -> Run:
    images = layout.images(PROBLEM)
    values = np.arange(256.0).reshape(16, 16)
    buffers = tuple(image.pack(values) for image in images)
    launch = Launch("k", (1, 1, 1), (32, 1, 1), 0, ())
    return Run(PROBLEM, data, launch, buffers, images[-1], buffers, "", data == EXACT or None)


def compared(run: Run, returned: list[Bytes]) -> prove_executor.Compared:
    return prove_executor.compare(run, SimpleNamespace(entry="k"), Other(returned))  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [EXACT, NORMAL])
def test_equal_bytes_are_right(data: str) -> None:
    run = run_of(data)
    found = compared(run, [buffer.copy() for buffer in run.outputs])
    assert found.right and found.equal and found.outside_equal and found.different == found.ulp == 0


@pytest.mark.parametrize("data", [EXACT, NORMAL])
@pytest.mark.parametrize("buffer", [0, 1, 2])
@pytest.mark.parametrize("where", ["first", "last", "gap"])
def test_a_byte_outside_of_d_is_wrong_whatever_the_inputs(data: str, buffer: int, where: str) -> None:
    run = run_of(data)
    got = [one.copy() for one in run.outputs]
    gap = run.image.offset + 16 * 4  # behind the first row of D; in A and B an element like any other
    got[buffer][{"first": 0, "last": -1, "gap": gap}[where]] ^= 1
    found = compared(run, got)
    assert not found.right and not found.outside_equal and found.different == 0


def test_an_element_of_d_is_wrong_for_exact_inputs_alone() -> None:
    exact, normal = run_of(EXACT), run_of(NORMAL)
    got = [one.copy() for one in exact.outputs]
    exact.image.bits(got[-1])[3, 5] += 2  # 53 and two units in its last place
    wrong, apart = compared(exact, got), compared(normal, got)
    assert not wrong.right
    assert apart.right and not apart.equal and (apart.different, apart.ulp) == (1, 2)
    assert apart.ulp_of_largest == 0.5  # 255 has a unit four times as large


def test_what_the_executor_found_is_wrong() -> None:
    run = dataclasses.replace(run_of(EXACT), outputs=(), fault="cpu: a race", exact=False)
    found = compared(run, list(run.buffers))
    assert not found.right and found.fault == "cpu: a race"


def test_both_zeros_and_neighbours_across_them() -> None:
    values = np.array([-1e-45, -0.0, 0.0, 1e-45], np.float32).view(np.uint32)
    assert prove_executor.ordered(values).tolist() == [-1, 0, 0, 1]
    halves = np.array([-2.0, -1.0, 1.0, 2.0], np.float16).view(np.uint16)
    assert np.all(np.diff(prove_executor.ordered(halves)) > 0)


def line(executor: float | None, hardware: float | None, *, demanded: bool = True) -> prove_counts.Line:
    figure = prove_counts.Figure("figure", lambda _: executor, (), demanded=demanded)
    return prove_counts.Line(figure, executor, hardware)


@pytest.mark.parametrize(
    ("executor", "hardware", "within"),
    [(100, 105, True), (105, 100, True), (94, 100, False), (106, 100, False), (0, 0, True), (1, 0, False),
     (0, 1, False), (None, 1, False), (1, None, False)],
)  # fmt: skip
def test_what_is_within_the_limit(executor: float | None, hardware: float | None, within: bool) -> None:
    assert line(executor, hardware).within == within
    assert prove_counts.agrees([line(executor, hardware)]) == within
    assert prove_counts.agrees([line(executor, hardware, demanded=False)])


def test_the_first_alternative_that_is_there_is_summed() -> None:
    figure = prove_counts.Figure("sectors", lambda _: 0, (("a", "b"), ("c",)))
    assert figure.counted({"a": 2, "b": 1, "c": 10}) == 3
    assert figure.counted({"a": 2, "c": 10}) == 10
    assert figure.counted({"a": 2}) is None


def test_tensor_instructions_are_not_said_without_a_disassembler() -> None:
    figure = prove_counts.FIGURES[0]
    run = SimpleNamespace(counts=Counts(multiply_adds=8192), volume=2048)
    assert figure.executor(run) == 4  # type: ignore[arg-type]
    run.volume = None
    assert figure.executor(run) is None  # type: ignore[arg-type]
