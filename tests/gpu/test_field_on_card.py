"""Cases from the field on a card: results that only one shows to be right, and what it launches and refuses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests import field
from wmmagen import nvrtc, rules, trial
from wmmagen.backends import Launch, Pointer
from wmmagen.backends.gpu import GpuBackend, devices
from wmmagen.errors import LaunchFault, MissingPiece
from wmmagen.nvrtc import Binary

pytestmark = pytest.mark.gpu

#: Reverses bytes through dynamic shared memory, with STATIC bytes beside it that are written and read, too.
REVERSE = """
extern "C" __global__ void reverse(unsigned char* out, int bytes) {
    extern __shared__ unsigned char dynamic[];
#if STATIC
    __shared__ unsigned char beside[STATIC];
    for (int i = threadIdx.x; i < STATIC; i += blockDim.x) beside[i] = static_cast<unsigned char>(200 + i);
#endif
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) dynamic[i] = static_cast<unsigned char>(i % 251);
    __syncthreads();
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = dynamic[bytes - 1 - i];
#if STATIC
    for (int i = threadIdx.x; i < STATIC; i += blockDim.x) out[bytes + i] = beside[STATIC - 1 - i];
#endif
}
"""


@pytest.fixture(scope="module")
def gpu() -> Iterator[GpuBackend]:
    try:
        devices()
    except MissingPiece as reason:
        pytest.skip(reason.message)
    backend = GpuBackend()
    yield backend
    backend.close()


@pytest.mark.parametrize("name", field.CASES)
def test_right_results(gpu: GpuBackend, name: str) -> None:
    case = field.CASES[name]
    config = field.config_of(case.pairs, gpu.arch)
    refused = [v.rule.id for v in rules.check(config, gpu.arch)]
    if "C501" in refused and gpu.arch.sm < 80:
        pytest.skip(f"{gpu.arch} has no cp.async")
    assert refused == []
    _, binary = trial.build(config, gpu.arch)
    assert field.wrong_runs(case, config, binary, gpu) == []


@pytest.mark.parametrize("types", field.OVERFLOWS)
@pytest.mark.parametrize("shape", field.TILES)
@pytest.mark.parametrize("feed", ["shared", "global"])
def test_sums_of_64_times_64_overflow_f16_alone_and_the_verdict_says_which(
    gpu: GpuBackend, types: str, shape: str, feed: str
) -> None:
    config = field.config_of(field.overflowing_pairs(types, shape, feed), gpu.arch)
    rules.demand(config, gpu.arch)
    _, binary = trial.build(config, gpu.arch)
    value, cause = field.OVERFLOWS[types]
    values, verdict = field.sums_of_64(config, binary, gpu)
    assert values == {value}
    assert verdict.exact is (not cause) and cause in verdict.hint


@pytest.mark.parametrize(("a", "pairs"), field.EVERYWHERE_KERNELS)
def test_tf32_is_rounded_and_integers_wrap(gpu: GpuBackend, a: str, pairs: str) -> None:
    config = field.config_of(pairs, gpu.arch)
    if gpu.arch.sm < 80 and {"T131", "C501"} & {v.rule.id for v in rules.check(config, gpu.arch)}:
        pytest.skip(f"{gpu.arch} has no tf32 and no cp.async")
    rules.demand(config, gpu.arch)
    assert field.everywhere(config, trial.build(config, gpu.arch)[1], gpu) == {field.EVERYWHERE[a][-1]}


def reversing(gpu: GpuBackend, static_bytes: int) -> Binary:
    binary = nvrtc.compile_source(f"#define STATIC {static_bytes}\n{REVERSE}", "reverse", gpu.arch)
    # Dynamic bytes begin at the next multiple of 16.
    assert binary.static_shared_bytes == -(-static_bytes // 16) * 16
    return binary


def check_reverse(gpu: GpuBackend, dynamic_bytes: int, static_bytes: int) -> None:
    """Launch with so many bytes, and look at every one of them."""
    launch = Launch("reverse", (1, 1, 1), (256, 1, 1), dynamic_bytes, (Pointer(0), dynamic_bytes))
    # One byte more than is written to, which stays as it was.
    given = np.full(dynamic_bytes + static_bytes + 1, 0xA5, np.uint8)
    (back,) = gpu.run(reversing(gpu, static_bytes), launch, [given])
    want = (np.arange(dynamic_bytes) % 251)[::-1], 200 + np.arange(static_bytes)[::-1], [0xA5]
    assert np.array_equal(back, np.concatenate(want))


@pytest.mark.parametrize("static_bytes", [0, 1])
@pytest.mark.parametrize("dynamic_bytes", [49_151, 49_152, 49_153])
def test_around_48_kb_everything_launches_beside_a_static_byte_or_none(
    gpu: GpuBackend, dynamic_bytes: int, static_bytes: int
) -> None:
    check_reverse(gpu, dynamic_bytes, static_bytes)


def test_dynamic_and_static_bytes_share_one_budget(gpu: GpuBackend) -> None:
    """On sm_90: 232,448 and none, 232,432 and 16; not 232,448 and 16. The worker goes on after a refusal."""
    budget = gpu.arch.shared_block
    check_reverse(gpu, budget, 0)
    check_reverse(gpu, budget - 16, 16)
    pid = gpu.worker_pid
    for dynamic_bytes, static_bytes in ((budget, 16), (budget - 15, 16), (budget + 1, 0)):
        with pytest.raises(LaunchFault):
            check_reverse(gpu, dynamic_bytes, static_bytes)
    check_reverse(gpu, budget - 16, 16)
    assert gpu.worker_pid == pid
