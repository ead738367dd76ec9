"""What the GPU's backend asks its child process when it times, with a child that a test plays."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from wmmagen import foundry
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import Launch, Pointer, Subject, gpu
from wmmagen.backends.gpu import DeviceInfo, GpuBackend
from wmmagen.backends.worker import Compare, KernelRecipe
from wmmagen.errors import MissingPiece
from wmmagen.nvrtc import Binary
from wmmagen.timing import Comparison, Timing, TimingProtocol

LAUNCH = Launch("f", (4, 1, 1), (32, 1, 1), 0, (Pointer(0), 7))


def binary(entry: str, arch: Arch = ARCHS[90]) -> Binary:
    return Binary(entry, arch, entry.encode(), "", 32, 0, 0, 0, "", 0.1, "a compiler")


@dataclasses.dataclass(frozen=True)
class Library:
    """A recipe that is no kernel of ours."""

    buffers: tuple[Any, ...]

    def prepare(self, card: Any, copies: Any) -> Any:
        raise AssertionError("the child is a fake and prepares nothing")


class Child:
    """Stands for the supervisor: answers every recipe by the time that ``us`` has for it."""

    def __init__(self, us: Callable[[Any], float]) -> None:
        self.us = us
        self.asked: list[Compare] = []

    def ask(self, request: Compare, *, limit_s: float, what: str) -> Comparison:
        self.asked.append(pickle.loads(pickle.dumps(request)))
        times = [self.us(recipe) for recipe in request.recipes]
        timings = tuple(Timing(us, (us, us), 15, 40, request.protocol.mode) for us in times)
        return Comparison(timings, tuple((us,) * 15 for us in times))


def of(times: dict[bytes, float]) -> Callable[[Any], float]:
    return lambda recipe: times[recipe.cubin] if isinstance(recipe, KernelRecipe) else 20.0


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[GpuBackend, Child]]:
    monkeypatch.setattr(gpu, "_chosen", lambda index: DeviceInfo(index, "NVIDIA H200", 90, 141 << 30, 132, 50 << 20))
    monkeypatch.setattr(foundry, "compile_source", lambda text, entry, arch: binary(entry, arch))

    def build(times: dict[bytes, float]) -> tuple[GpuBackend, Child]:
        child = Child(of(times))
        monkeypatch.setattr(gpu, "Supervisor", lambda *arguments, **more: child)
        return GpuBackend(), child

    return build


def test_a_short_time_has_that_of_an_empty_kernel_beside_it(make: Callable[..., tuple[GpuBackend, Child]]) -> None:
    backend, child = make({b"f": 9.99, b"g": 10.0, b"empty": 1.25})
    protocol = TimingProtocol(mode="cold")
    long = backend.time(binary("g"), LAUNCH, [np.zeros(64, np.uint8)], protocol)
    assert (long.empty_us, len(child.asked)) == (None, 1)
    short = [backend.time(binary("f"), LAUNCH, [np.zeros(64, np.uint8)], protocol) for _ in range(2)]
    assert [timing.empty_us for timing in short] == [1.25, 1.25]
    # It was measured once, by the same protocol, and has no data.
    (empty,) = [request for request in child.asked if request.recipes[0].cubin == b"empty"]
    assert (empty.protocol, empty.recipes[0].buffers) == (protocol, ())


def test_without_a_compiler_the_time_stands_alone(
    make: Callable[..., tuple[GpuBackend, Child]], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, _ = make({b"f": 3.0})

    def absent(*arguments: object) -> Binary:
        raise MissingPiece("no compiler")

    monkeypatch.setattr(foundry, "compile_source", absent)
    assert backend.time(binary("f"), LAUNCH, [], TimingProtocol()).empty_us is None


def test_kernels_and_what_is_none_are_compared_in_one_request(make: Callable[..., tuple[GpuBackend, Child]]) -> None:
    backend, child = make({b"f": 40.0, b"g": 5.0, b"empty": 1.25})
    shared = np.arange(100, dtype=np.uint8)
    subjects = [Subject(binary("f"), LAUNCH, (shared,)), Library((shared,)), Subject(binary("g"), LAUNCH, (shared,))]
    result = backend.compare(subjects, TimingProtocol())
    assert [(timing.median_us, timing.empty_us) for timing in result.timings] == [
        (40.0, None),
        (20.0, None),
        (5.0, 1.25),
    ]
    assert [type(recipe) for recipe in child.asked[0].recipes] == [KernelRecipe, Library, KernelRecipe]
    # The buffers that they share arrive as one.
    one, two, three = (recipe.buffers[0] for recipe in child.asked[0].recipes)
    assert one is two is three and np.array_equal(one, shared)
    assert result.ratio(1, 0).median == 2.0
