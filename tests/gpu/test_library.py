"""CuBLASLt in the GPU's child process, beside kernels: exact, timed in both modes, and in turns with a kernel."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import pytest

from wmmagen import defaults, denominators, trial
from wmmagen.backends.gpu import GpuBackend, devices
from wmmagen.backends.library import LibraryRecipe
from wmmagen.config import Operation, Problem
from wmmagen.dtypes import F16, F32
from wmmagen.errors import LaunchFault, MissingPiece
from wmmagen.layout import images
from wmmagen.timing import TimingProtocol

pytestmark = pytest.mark.gpu

QUICK = TimingProtocol(warmup_max_s=0.5, max_samples=30, max_seconds=2.0)
PROBLEM = Problem.packed(Operation(F16, F32, F32), 512, 256, 1024)


@pytest.fixture(scope="module")
def gpu() -> Iterator[GpuBackend]:
    try:
        devices()
    except MissingPiece as reason:
        pytest.skip(reason.message)
    backend = GpuBackend()
    try:
        backend.library.candidates(denominators.product_of(PROBLEM, images(PROBLEM)))
    except MissingPiece as reason:
        # The extra `cublas` is optional, also where a GPU was demanded.
        backend.close()
        pytest.skip(reason.message)
    yield backend
    backend.close()


@pytest.mark.parametrize("operation", [Operation(F16, F32, F32), Operation(F32, F32, F32)], ids=["f16", "FP32"])
def test_every_hostile_problem_has_an_exact_candidate(operation: Operation, gpu: GpuBackend) -> None:
    checked = list(denominators.prove(operation, gpu.library))
    assert checked and not [c for c in checked if all(one.wrong for one in c.tried)]


@pytest.mark.parametrize("mode", ["warm", "cold"])
def test_both_denominators_have_a_figure(mode: str, gpu: GpuBackend) -> None:
    protocol = TimingProtocol(mode=mode, warmup_max_s=0.5, max_samples=30, max_seconds=2.0)  # type: ignore[arg-type]
    for denominator in denominators.denominators(PROBLEM):
        best = denominators.measure(denominator, gpu.library, protocol).best
        assert best is not None and best.timing is not None
        assert best.timing.mode == mode


def test_a_product_that_cannot_be_has_no_candidate_and_leaves_the_child_alive(gpu: GpuBackend) -> None:
    product = denominators.product_of(PROBLEM, images(PROBLEM))
    assert gpu.library.candidates(product).found
    before = gpu.worker_pid
    # Rows that overlap: an error to some versions of the library, a product without an algorithm to others.
    with contextlib.suppress(LaunchFault):
        assert not gpu.library.candidates(dataclasses.replace(product, lda=product.k - 8)).found
    assert gpu.worker_pid == before


def test_a_kernel_and_the_library_are_timed_in_turns(gpu: GpuBackend) -> None:
    config = defaults.read_config("", gpu.arch)
    _, binary = trial.build(config, gpu.arch)
    denominator = denominators.denominators(PROBLEM)[0]
    product = denominators.product_of(PROBLEM, images(PROBLEM))
    candidate = gpu.library.candidates(product).found[0]
    recipe = LibraryRecipe(product, candidate, denominator.normal_buffers())
    found = gpu.compare([trial.subject_of(config, binary, PROBLEM), recipe], QUICK)
    assert len(found.timings) == 2 and all(timing.possible for timing in found.timings)
    assert len(found.samples[0]) == len(found.samples[1])
