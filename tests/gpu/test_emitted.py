"""Emitted files, built by nvcc alone and called through their launcher: exact, and true to their contract."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from wmmagen import emit, reference, trial
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import Bytes
from wmmagen.config import KernelConfig, Problem
from wmmagen.defaults import demand, read_config
from wmmagen.errors import MissingPiece
from wmmagen.verdict import judge

pytestmark = pytest.mark.gpu

#: One for each pipeline and accumulator; the last needs more than 48 KB of shared memory.
CONFIGS = [
    "feed=global,frags=2x2",
    "copy=ld,stages=1",
    "copy=ld,stages=2,acc=f16",
    "copy=cpasync,stages=3,inst=8x32x16",
    "copy=cpasync,stages=4,warps=4x2,k_steps=4",
]


@pytest.fixture(scope="module")
def arch() -> Arch:
    from wmmagen.backends.gpu import devices

    try:
        return ARCHS[devices()[0].sm]
    except MissingPiece as missing:
        pytest.skip(missing.message)


@pytest.fixture(scope="module")
def nvcc() -> str:
    return shutil.which("nvcc") or pytest.skip("no nvcc on the PATH")


class Library:
    """A launcher in a shared library that nvcc built from one emitted file."""

    def __init__(self, config: KernelConfig, arch: Arch, nvcc: str, folder: Path) -> None:
        (source, _) = emit.emit(config, arch, folder, symbol="my_gemm")
        built = folder / "libmy_gemm.so"
        command = [nvcc, f"-arch={arch}", "-O3", "-shared", "-Xcompiler", "-fPIC,-Wall,-Wextra,-Werror", "-Werror",
                   "all-warnings", "-o", str(built), str(source)]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        self.launch = ctypes.CDLL(str(built)).my_gemm
        self.launch.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int] * 6 + [ctypes.c_void_p]
        self.launch.restype = ctypes.c_int


@pytest.fixture(scope="module", params=CONFIGS)
def built(
    request: pytest.FixtureRequest, arch: Arch, nvcc: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[KernelConfig, Library]:
    config = read_config(request.param, arch)
    demand(config, arch)
    return config, Library(config, arch, nvcc, tmp_path_factory.mktemp("emitted"))


def call(library: Library, case: trial.Case, problem: Problem) -> tuple[int, Bytes]:
    """Copy the case to the device, launch on a stream of our own, and copy D's buffer back."""
    from cuda.bindings import driver
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    queue = device.create_stream()
    places = []
    for buffer in case.buffers:
        code, place = driver.cuMemAlloc(buffer.size)
        assert code == driver.CUresult.CUDA_SUCCESS
        driver.cuMemcpyHtoD(place, buffer.ctypes.data, buffer.size)
        places.append(place)
    a, b, d = (int(place) + image.offset for place, image in zip(places, case.images, strict=True))
    p = problem
    status = library.launch(a, b, d, p.m, p.n, p.k, p.lda, p.ldb, p.ldd, int(queue.handle))
    queue.sync()
    back = np.empty_like(case.buffers[2])
    driver.cuMemcpyDtoH(back.ctypes.data, places[2], back.size)
    for place in places:
        driver.cuMemFree(place)
    return status, back


def test_the_result_is_exact(built: tuple[KernelConfig, Library]) -> None:
    config, library = built
    for problem in trial.validation_problems(config):
        case = trial.exact_case(problem)
        status, back = call(library, case, problem)
        assert status == 0
        assert judge(case.inputs, case.images[2], back, reference.expected(case.inputs)).exact


def test_the_contract_is_checked(built: tuple[KernelConfig, Library]) -> None:
    config, library = built
    known = trial.derive.values(config)
    m, n, k = known["BLOCK_M"], known["BLOCK_N"], known["BLOCK_K"]
    some = 1 << 20  # an address that is aligned and never read: every call here ends before the launch

    def status(
        a: int = some, b: int = some, d: int = some, m: int = m, n: int = n, k: int = k,
        lda: int = k, ldb: int = n, ldd: int = n,
    ) -> int:  # fmt: skip
        return int(library.launch(a, b, d, m, n, k, lda, ldb, ldd, None))

    size, leading, pointer = 1, 2, 3
    assert status(m=-m) == size
    assert status(m=m + 1) == size
    assert status(n=n + 8) == size
    assert status(k=k + 16, lda=k + 16) == size or k == 16
    assert status(lda=k - 8) == leading
    assert status(lda=k + 4) == leading
    assert status(ldb=n - 8) == leading
    assert status(ldd=n - 8) == leading
    assert status(ldd=n + 1) == leading
    assert status(a=some + 8) == pointer
    assert status(b=some + 2) == pointer
    assert status(d=some + 16) == pointer
    assert status(d=0) == pointer
    assert status(a=0) == pointer
    assert status(m=0) == 0
    assert status(n=0, ldb=0, ldd=0) == 0


def test_k_of_nothing_is_zero(built: tuple[KernelConfig, Library]) -> None:
    config, library = built
    known = trial.derive.values(config)
    problem = Problem.packed(config.operation, known["BLOCK_M"], known["BLOCK_N"], 0)
    problem = Problem(config.operation, problem.m, problem.n, 0, 16, problem.ldb, problem.ldd)
    case = trial.exact_case(problem)
    status, back = call(library, case, problem)
    assert status == 0
    assert judge(case.inputs, case.images[2], back).exact
