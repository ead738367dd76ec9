"""The loops on a card: exact in every way to fill it, timed, and below what is published of the chip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest

from wmmagen import ceiling, foundry, loops
from wmmagen.backends.gpu import GpuBackend, devices
from wmmagen.backends.pick import Place
from wmmagen.errors import MissingPiece
from wmmagen.loops import Access, RegisterLoop, SharedLoop
from wmmagen.timing import TimingProtocol

pytestmark = pytest.mark.gpu

QUICK = TimingProtocol(warmup_max_s=0.3, max_samples=20, max_seconds=1.0)


@pytest.fixture(scope="module")
def gpu() -> Iterator[GpuBackend]:
    try:
        devices()
    except MissingPiece as reason:
        pytest.skip(reason.message)
    backend = GpuBackend()
    yield backend
    backend.close()


def test_the_device_tells_its_size(gpu: GpuBackend) -> None:
    assert gpu.multiprocessors >= 1 and gpu.l2_bytes >= 1 << 18


@pytest.mark.parametrize("inst", loops.made(), ids=str)
def test_every_way_to_fill_it_is_exact(inst: Any, gpu: GpuBackend) -> None:
    for loop in (RegisterLoop(inst), SharedLoop(inst, (64, 32))):
        binary = foundry.compile_source(loop.text(gpu.arch), loop.entry, gpu.arch)
        for blocks in ceiling.ways(loop, binary, gpu.arch, gpu):
            ceiling.demand_right(loop, binary, blocks, gpu)


def test_the_registers_the_driver_loads_are_those_the_compiler_told(gpu: GpuBackend) -> None:
    loop = RegisterLoop(loops.made()[0])
    binary = foundry.compile_source(loop.text(gpu.arch), loop.entry, gpu.arch)
    held = gpu.attributes(binary)
    assert (held["registers"], held["local_bytes"]) == (binary.registers, 0)


def test_accesses_have_figures(gpu: GpuBackend) -> None:
    record = ceiling.measure(gpu.arch, Place(gpu, gpu.arch), ("memory",), (), QUICK)
    assert record.whole and len(record.figures) == 2 * len(get_args(Access))
    for access in get_args(Access):
        l2, dram = (record.find("memory", level=level, access=access) for level in ("L2", "DRAM"))
        assert l2 is not None and dram is not None and l2.rate is not None and dram.rate is not None
        assert dram.rate < 1.05 * l2.rate


def test_products_have_figures_on_both_kinds_of_data(gpu: GpuBackend) -> None:
    record = ceiling.measure(gpu.arch, Place(gpu, gpu.arch), ("register",), ("normal", "integers"), QUICK)
    assert record.whole and len(record.figures) == 2 * len(loops.made())
    assert all(figure.timing is not None and figure.timing.median_us > 100 for figure in record.figures)
