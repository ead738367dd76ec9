"""Vectors that end within a matrix, as kernels for all sizes read them: what lies outside is not read, and is zeros."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from wmmagen import lint, nvrtc
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import Launch, Pointer
from wmmagen.backends.gpu import GpuBackend, devices
from wmmagen.defaults import read_config
from wmmagen.errors import MissingPiece
from wmmagen.render import render

pytestmark = pytest.mark.gpu

#: A vector of 16 elements is added, and its helpers stand in front of the kernel.
CONFIG = "a=u8,d=u8,epilogue=scalecol+biascol,residue=predicated,align_d=16"
WIDE = 16
#: Elements that are left of a row, one number for each thread.
LEFT = range(-WIDE, 2 * WIDE)
PROBE = """
extern "C" __global__ void probe(const unsigned char* from, Added* out, int first) {
  out[threadIdx.x] = part_of<Added>(from, inside(0, 1, 0, first + static_cast<int>(threadIdx.x), 16));
}
"""
COMPARED = "if (count >= most) {\n    part.vector"


@pytest.fixture(scope="module")
def gpu() -> Iterator[GpuBackend]:
    try:
        devices()
    except MissingPiece as reason:
        pytest.skip(reason.message)
    backend = GpuBackend()
    yield backend
    backend.close()


def parts(gpu: GpuBackend, arch: Arch, compared: str) -> tuple[bool, bool]:
    """Whether every part is what it should be, and whether the machine code is known to be a mistake."""
    config = read_config(CONFIG, arch)
    helpers = render(config, arch).text.split('extern "C" __global__', 1)[0]
    assert helpers.count(COMPARED) == 1
    binary = nvrtc.compile_source(helpers.replace(COMPARED, compared) + PROBE, "probe", arch)
    given = np.arange(1, WIDE + 1, dtype=np.uint8)
    blank = np.full((len(LEFT), WIDE), 0xFF, np.uint8)
    launch = Launch("probe", (1, 1, 1), (len(LEFT), 1, 1), 0, (Pointer(0), Pointer(1), LEFT[0]))
    got = gpu.run(binary, launch, (given, blank.reshape(-1)))[1].reshape(blank.shape)
    want = np.array([np.where(np.arange(WIDE) < left, given, 0) for left in LEFT], np.uint8)
    mistaken = any("VIMNMX" in sentence for sentence in lint.examine(config, binary).defects)
    return bool(np.array_equal(got, want)), mistaken


@pytest.fixture(scope="module")
def arch(gpu: GpuBackend) -> Arch:
    return ARCHS[devices()[0].sm]


def test_a_part_has_no_more_than_what_is_left(gpu: GpuBackend, arch: Arch) -> None:
    assert parts(gpu, arch, COMPARED) == (True, False)


def test_what_a_compiler_mistakes_is_known(gpu: GpuBackend, arch: Arch) -> None:
    right, mistaken = parts(gpu, arch, COMPARED.replace(">=", "=="))
    assert right or mistaken
