"""Emitted files, built by nvcc alone and called through their launcher: exact, and true to their contract."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.libraries import CONFIGS, Library
from tests.nvcc import compile_with, demand_nvcc
from wmmagen import derive, emit, reference, trial
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import Bytes
from wmmagen.config import KernelConfig, Problem, Reduction
from wmmagen.defaults import demand, read_config
from wmmagen.errors import MissingPiece
from wmmagen.rules import Status
from wmmagen.verdict import judge

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def arch() -> Arch:
    from wmmagen.backends.gpu import devices

    try:
        return ARCHS[devices()[0].sm]
    except MissingPiece as missing:
        pytest.skip(missing.message)


@pytest.fixture(scope="module")
def nvcc() -> Path:
    return demand_nvcc()


@pytest.fixture(scope="module", params=CONFIGS)
def built(
    request: pytest.FixtureRequest, arch: Arch, nvcc: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[KernelConfig, Library]:
    config = read_config(request.param, arch)
    demand(config, arch)
    return config, Library(config, arch, nvcc, tmp_path_factory.mktemp("emitted"))


def workspace(config: KernelConfig, library: Library, m: int, n: int) -> tuple[Any, ...]:
    """A zeroed workspace and its size, where the launcher takes one."""
    from cuda.bindings import driver

    if config.reduction is not Reduction.WORKSPACE:
        return ()
    size = library.workspace_bytes(m, n)
    code, place = driver.cuMemAlloc(size)
    assert code == driver.CUresult.CUDA_SUCCESS
    driver.cuMemsetD8(place, 0, size)
    return int(place), size


def call(config: KernelConfig, library: Library, case: trial.Case, problem: Problem) -> tuple[int, Bytes]:
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
    pointers = (int(place) + image.offset for place, image in zip(places, case.images, strict=True))
    p = problem
    c, factors = ((p.ldc,), (p.alpha, p.beta)) if p.operation.scaled else ((), ())
    shared = workspace(config, library, p.m, p.n)
    arguments = (*pointers, p.m, p.n, p.k, p.lda, p.ldb, *c, p.ldd, *factors, *shared)
    assert library.supports(*arguments) == 0
    status = library.launch(*arguments, int(queue.handle))
    queue.sync()
    back = np.empty_like(case.buffers[-1])
    driver.cuMemcpyDtoH(back.ctypes.data, places[-1], back.size)
    for place in (*places, *shared[:1]):
        driver.cuMemFree(place)
    return status, back


def test_the_result_is_exact(built: tuple[KernelConfig, Library]) -> None:
    config, library = built
    for problem in trial.validation_problems(config):
        case = trial.exact_case(problem)
        status, back = call(config, library, case, problem)
        assert status == 0
        assert judge(case.inputs, case.images[-1], back, reference.expected(case.inputs)).exact


def test_k_of_nothing_is_zero(built: tuple[KernelConfig, Library]) -> None:
    config, library = built
    known = derive.values(config)
    problem = replace(Problem.packed(config.operation, known["BLOCK_M"], known["BLOCK_N"], 0), lda=16)
    case = trial.exact_case(problem)
    status, back = call(config, library, case, problem)
    assert status == 0
    assert judge(case.inputs, case.images[-1], back).exact


def test_the_launch_goes_to_the_stream(built: tuple[KernelConfig, Library]) -> None:
    """A capturing stream records what is launched on it, and nothing else: one kernel, and what zeroes D before it."""
    from cuda.bindings import driver
    from cuda.core import Device

    config, library = built
    known = derive.values(config)
    m, n, k = known["BLOCK_M"], known["BLOCK_N"], known["BLOCK_K"]
    device = Device(0)
    device.set_current()
    queue = device.create_stream()
    code, place = driver.cuMemAlloc(4 * (m * k + k * n + m * n))
    assert code == driver.CUresult.CUDA_SUCCESS
    shared = workspace(config, library, m, n)
    handle = driver.CUstream(int(queue.handle))
    driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    base = int(place)
    c, factors = ((n,), (1.0, 0.0)) if config.operation.scaled else ((), ())
    matrices = (base,) * (3 + config.operation.scaled)
    status = library.launch(*matrices, m, n, k, k, n, *c, n, *factors, *shared, int(queue.handle))
    code, graph = driver.cuStreamEndCapture(handle)
    assert code == driver.CUresult.CUDA_SUCCESS
    assert status == 0
    code, _, count = driver.cuGraphGetNodes(graph)
    assert (code, count) == (driver.CUresult.CUDA_SUCCESS, 2 if config.reduction is Reduction.ATOMIC else 1)
    driver.cuGraphDestroy(graph)
    for memory in (place, *shared[:1]):
        driver.cuMemFree(memory)


def test_the_self_test_passes(built: tuple[KernelConfig, Library], arch: Arch, nvcc: Path, tmp_path: Path) -> None:
    _, library = built
    program = tmp_path / "selftest"
    compile_with(nvcc, library.selftest, arch, str(library.path), "-o", str(program))
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "PASS"), done.stdout


def test_machine_code_of_another_architecture_is_a_status_and_not_zeros(arch: Arch, nvcc: Path, tmp_path: Path) -> None:
    other = next(a for sm, a in ARCHS.items() if sm >= 80 and sm // 10 != arch.sm // 10)
    kernel, _, selftest, _ = emit.emit(read_config("copy=ld,stages=2", other), other, tmp_path, symbol="my_gemm")
    code = f"-gencode=arch=compute_{other.sm},code=sm_{other.sm}"
    subprocess.run([nvcc, code, "-o", "selftest", kernel, selftest], cwd=tmp_path, check=True, timeout=300)
    done = subprocess.run([tmp_path / "selftest"], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (3, f"not run: {Status.CODE.says}\n")
