"""The GPU backend on a real device: what works, what breaks, and that the one does not disturb the other."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from wmmagen import nvrtc, timing
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import Backend, Bytes, Launch, Pointer, Subject
from wmmagen.backends.gpu import GpuBackend, devices, driver_version
from wmmagen.errors import CrashFault, LaunchFault, MissingPiece, RequestError, TimeoutFault
from wmmagen.nvrtc import Binary
from wmmagen.timing import Timing, TimingProtocol

pytestmark = pytest.mark.gpu

GUARD = 256
GUARD_BYTE = 0xA5
BLOCK = 128
COUNT = 1000
QUICK = TimingProtocol(warmup_max_s=1.0, max_samples=60, max_seconds=5.0)

ADD = """
extern "C" __global__ void add(const int* a, const int* b, int* c, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
"""
FAR = """
extern "C" __global__ void far(int* c) { c[(1LL << 40) + threadIdx.x] = 1; }
"""
MISALIGNED = """
extern "C" __global__ void misaligned(char* c) { *reinterpret_cast<volatile int*>(c + 1) = 1; }
"""
TRAP = """
extern "C" __global__ void trap() { asm volatile("trap;"); }
"""
ENDLESS = """
extern "C" __global__ void endless(volatile int* flag) { while (*flag == 0) {} flag[1] = 1; }
"""
SHARED = """
extern "C" __global__ void shared(int* c, int words) {
    extern __shared__ int tile[];
    for (int i = threadIdx.x; i < words; i += blockDim.x) tile[i] = i;
    __syncthreads();
    for (int i = threadIdx.x; i < words; i += blockDim.x) c[i] = tile[words - 1 - i];
}
"""
SPIN = """
extern "C" __global__ void spin(int* c, int rounds) {
    int x = threadIdx.x;
    for (int i = 0; i < rounds; ++i) x = x * 1664525 + 1013904223;
    if (x == 42) c[threadIdx.x] = x;
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


@functools.lru_cache(maxsize=64)
def build(source: str, entry: str, arch: Arch) -> Binary:
    return nvrtc.compile_source(source, entry, arch)


def guarded(data: npt.NDArray[np.int32]) -> Bytes:
    """The data between two guard bands."""
    band = np.full(GUARD, GUARD_BYTE, np.uint8)
    return np.concatenate([band, data.view(np.uint8), band])


def opened(buffer: Bytes) -> npt.NDArray[np.int32]:
    assert np.all(buffer[:GUARD] == GUARD_BYTE) and np.all(buffer[-GUARD:] == GUARD_BYTE), "a guard band was touched"
    return buffer[GUARD:-GUARD].view(np.int32)


def check_add(gpu: GpuBackend, arch: Arch | None = None) -> None:
    """A vector addition, exact, with its inputs and all guards as they were."""
    a = np.arange(COUNT, dtype=np.int32) * 7
    b = np.arange(COUNT, dtype=np.int32)[::-1].copy() - 500
    buffers = [guarded(a), guarded(b), guarded(np.full(COUNT, -1, np.int32))]
    given = [buffer.copy() for buffer in buffers]
    grid = (-(-COUNT // BLOCK), 1, 1)
    arguments = (Pointer(0, GUARD), Pointer(1, GUARD), Pointer(2, GUARD), COUNT)
    result = gpu.run(build(ADD, "add", arch or gpu.arch), Launch("add", grid, (BLOCK, 1, 1), 0, arguments), buffers)
    assert [r.dtype for r in result] == [np.dtype(np.uint8)] * 3
    assert np.array_equal(opened(result[2]), a + b)
    assert np.array_equal(result[0], given[0]) and np.array_equal(result[1], given[1])
    assert all(np.array_equal(now, then) for now, then in zip(buffers, given, strict=True))


def run_shared(gpu: GpuBackend, shared_bytes: int, block: int = 128) -> None:
    words = shared_bytes // 4
    launch = Launch("shared", (1, 1, 1), (block, 1, 1), shared_bytes, (Pointer(0, GUARD), words))
    (result,) = gpu.run(build(SHARED, "shared", gpu.arch), launch, [guarded(np.zeros(words, np.int32))])
    assert np.array_equal(opened(result), np.arange(words, dtype=np.int32)[::-1])


def time_spin(gpu: GpuBackend, rounds: int) -> Timing:
    launch = Launch("spin", (1, 1, 1), (32, 1, 1), 0, (Pointer(0), rounds))
    return gpu.time(build(SPIN, "spin", gpu.arch), launch, [np.zeros(128, np.uint8)], QUICK)


def empty_launch(entry: str, *arguments: Pointer | int) -> Launch:
    return Launch(entry, (1, 1, 1), (32, 1, 1), 0, arguments)


def test_the_backend_says_what_it_is(gpu: GpuBackend) -> None:
    backend: Backend = gpu
    assert backend.name == "gpu" and backend.clocked
    assert backend.device == str(devices()[0]) and f"(sm_{gpu.arch.sm})" in backend.device
    assert backend.runs(gpu.arch) and not backend.foreign(gpu.arch)
    major, minor = driver_version().split(".")
    assert int(major) >= 12 and int(minor) >= 0


def test_a_device_that_is_not_there(gpu: GpuBackend) -> None:
    with pytest.raises(RequestError, match="no GPU number 99"):
        GpuBackend(99)


def test_vector_add_is_exact_and_touches_no_guard(gpu: GpuBackend) -> None:
    check_add(gpu)


def test_attributes(gpu: GpuBackend) -> None:
    found = gpu.attributes(build(ADD, "add", gpu.arch))
    assert 0 < found["registers"] <= 255 and found["sm"] == gpu.arch.sm and found["max_threads"] == 1024


@pytest.mark.parametrize(("source", "entry"), [(FAR, "far"), (MISALIGNED, "misaligned")])
def test_a_bad_address_is_a_crash_and_the_next_kernel_is_right(gpu: GpuBackend, source: str, entry: str) -> None:
    check_add(gpu)
    pid = gpu.worker_pid
    with pytest.raises(CrashFault):
        gpu.run(build(source, entry, gpu.arch), empty_launch(entry, Pointer(0)), [np.zeros(1024, np.uint8)])
    check_add(gpu)
    assert gpu.worker_pid != pid


def test_a_trap_is_a_crash(gpu: GpuBackend) -> None:
    with pytest.raises(CrashFault):
        gpu.run(build(TRAP, "trap", gpu.arch), empty_launch("trap"), [])
    check_add(gpu)


def test_a_crash_while_timing_is_a_crash(gpu: GpuBackend) -> None:
    with pytest.raises(CrashFault):
        gpu.time(build(FAR, "far", gpu.arch), empty_launch("far", Pointer(0)), [np.zeros(1024, np.uint8)], QUICK)
    check_add(gpu)


def test_an_endless_kernel_is_killed_and_the_next_time_is_undisturbed(gpu: GpuBackend) -> None:
    before = time_spin(gpu, 100_000)
    begin = time.monotonic()
    with pytest.raises(TimeoutFault):
        gpu.run(
            build(ENDLESS, "endless", gpu.arch),
            empty_launch("endless", Pointer(0)),
            [np.zeros(8, np.uint8)],
            limit_s=3.0,
        )
    assert 3.0 <= time.monotonic() - begin < 60.0
    check_add(gpu)
    after = time_spin(gpu, 100_000)
    # The card's clock moves; a worker still busy with the killed kernel would be off by far more.
    assert 0.75 < after.median_us / before.median_us < 1.25


def test_dynamic_shared_memory_beyond_48_kb(gpu: GpuBackend) -> None:
    run_shared(gpu, min(gpu.arch.shared_block, 60 * 1024 + 512))
    run_shared(gpu, gpu.arch.shared_block)


def test_launches_of_one_module_keep_their_own_settings(gpu: GpuBackend) -> None:
    for shared_bytes, block in ((gpu.arch.shared_block, 256), (1024, 32), (60 * 1024, 1024), (0, 64), (4096, 128)):
        run_shared(gpu, shared_bytes, block)


def test_too_much_shared_memory_is_refused_and_the_worker_goes_on(gpu: GpuBackend) -> None:
    check_add(gpu)
    pid = gpu.worker_pid
    with pytest.raises(LaunchFault):
        run_shared(gpu, gpu.arch.shared_block + 1024)
    check_add(gpu)
    assert gpu.worker_pid == pid


@pytest.mark.parametrize(
    "launch",
    [
        Launch("add", (1, 1, 1), (2048, 1, 1), 0, (Pointer(0), Pointer(0), Pointer(0), 0)),
        Launch("add", (0, 1, 1), (32, 1, 1), 0, (Pointer(0), Pointer(0), Pointer(0), 0)),
        Launch("add", (1, 1, 70_000), (32, 1, 1), 0, (Pointer(0), Pointer(0), Pointer(0), 0)),
        Launch("add", (1, 1, 1), (32, 1, 1), 0, (Pointer(0), Pointer(0), Pointer(0))),
        Launch("add", (1, 1, 1), (32, 1, 1), 0, (Pointer(0), Pointer(0), 0, Pointer(0))),
        Launch("add", (1, 1, 1), (32, 1, 1), 0, (Pointer(0), Pointer(0), Pointer(5), 0)),
        Launch("add", (1, 1, 1), (32, 1, 1), 0, (Pointer(0), Pointer(0), Pointer(0), 2**31)),
        Launch("no_such_kernel", (1, 1, 1), (32, 1, 1), 0, ()),
    ],
    ids=["threads", "empty-grid", "grid-z", "too-few", "wrong-order", "no-buffer", "wide-int", "missing-symbol"],
)
def test_what_cannot_be_launched_is_refused_and_the_worker_goes_on(gpu: GpuBackend, launch: Launch) -> None:
    check_add(gpu)
    pid = gpu.worker_pid
    with pytest.raises(LaunchFault):
        gpu.run(build(ADD, "add", gpu.arch), launch, [np.zeros(64, np.uint8)])
    with pytest.raises(LaunchFault):
        gpu.time(build(ADD, "add", gpu.arch), launch, [np.zeros(64, np.uint8)], QUICK)
    check_add(gpu)
    assert gpu.worker_pid == pid


def test_timing_is_positive_and_its_interval_holds_the_median(gpu: GpuBackend) -> None:
    result = time_spin(gpu, 100_000)
    low, high = result.interval_us
    assert 0 < low <= result.median_us <= high
    assert result.launches * result.median_us >= 0.8 * QUICK.min_replay_us
    assert result.samples >= QUICK.min_samples


def test_twice_the_work_takes_twice_the_time(gpu: GpuBackend) -> None:
    single, double = time_spin(gpu, 200_000), time_spin(gpu, 400_000)
    # Spinning is counted in clock cycles, and the clock moves.
    assert 1.7 < double.median_us / single.median_us < 2.3


def test_a_kernel_longer_than_a_replay_is_launched_once(gpu: GpuBackend) -> None:
    assert time_spin(gpu, 50_000_000).launches == 1


def add_subject(gpu: GpuBackend, count: int) -> Subject:
    """An addition of ``count`` elements, whose launch is as long as its data are far."""
    launch = Launch("add", (-(-count // BLOCK), 1, 1), (BLOCK, 1, 1), 0, (Pointer(0), Pointer(1), Pointer(2), count))
    return Subject(build(ADD, "add", gpu.arch), launch, tuple(np.zeros(4 * count, np.uint8) for _ in range(3)))


def test_cold_data_take_longer_and_the_card_is_whole_afterwards(gpu: GpuBackend) -> None:
    # 3 MiB, which every L2 holds.
    subject = add_subject(gpu, 1 << 18)
    warm, cold = (
        gpu.time(subject.binary, subject.launch, subject.buffers, dataclasses.replace(QUICK, mode=mode))
        for mode in ("warm", "cold")
    )
    assert (warm.mode, cold.mode) == ("warm", "cold")
    assert timing.PARTLY_COLD not in cold.flags
    assert cold.launches > 1 and warm.median_us < cold.median_us
    check_add(gpu)


def test_kernels_are_compared_in_turns(gpu: GpuBackend) -> None:
    def spin(rounds: int) -> Subject:
        launch = Launch("spin", (1, 1, 1), (32, 1, 1), 0, (Pointer(0), rounds))
        return Subject(build(SPIN, "spin", gpu.arch), launch, (np.zeros(128, np.uint8),))

    pid = gpu.worker_pid
    result = gpu.compare([spin(200_000), spin(300_000), spin(200_000)], QUICK)
    assert len({len(samples) for samples in result.samples}) == 1
    assert not result.ratio(0, 1).tie and result.ratio(0, 1).low > 1.3
    # The same kernel in the same rounds: apart by less than the protocol asks an interval to be.
    same = result.ratio(2, 0)
    assert same.low <= 1 + QUICK.target_half_width and same.high >= 1 - QUICK.target_half_width
    assert gpu.worker_pid == pid
    check_add(gpu)


def test_one_bad_subject_is_a_fault_of_the_comparison(gpu: GpuBackend) -> None:
    good = add_subject(gpu, 1000)
    bad = dataclasses.replace(good, launch=dataclasses.replace(good.launch, block=(2048, 1, 1)))
    with pytest.raises(LaunchFault):
        gpu.compare([good, bad], QUICK)
    far = Subject(build(FAR, "far", gpu.arch), empty_launch("far", Pointer(0)), (np.zeros(1024, np.uint8),))
    with pytest.raises(CrashFault):
        gpu.compare([good, far], QUICK)
    check_add(gpu)


def test_a_time_says_what_the_sensors_saw(gpu: GpuBackend) -> None:
    result = time_spin(gpu, 100_000)
    if timing.NO_SENSOR in result.flags:
        pytest.skip(f"NVML tells nothing about {gpu.device} here")
    assert result.clock_mhz is not None and result.clock_range_mhz is not None
    assert 100 < result.clock_range_mhz[0] <= result.clock_mhz <= result.clock_range_mhz[1] < 5000


def test_an_empty_kernel_is_measured_beside_a_short_one(gpu: GpuBackend) -> None:
    subject = add_subject(gpu, 128)
    result = gpu.time(subject.binary, subject.launch, subject.buffers, QUICK)
    assert result.median_us < timing.SHORT_LAUNCH_US
    assert result.empty_us is not None and 0 < result.empty_us < timing.SHORT_LAUNCH_US
    assert time_spin(gpu, 100_000).empty_us is None


def test_a_foreign_binary_gives_the_same_result(gpu: GpuBackend) -> None:
    if gpu.arch.sm <= 75:
        pytest.skip(f"{gpu.device} is not newer than sm_75")
    assert gpu.runs(ARCHS[75]) and gpu.foreign(ARCHS[75])
    try:
        check_add(gpu, ARCHS[75])
    except MissingPiece as reason:
        pytest.skip(reason.message)


def test_a_binary_for_a_newer_card_is_refused(gpu: GpuBackend) -> None:
    newer = [arch for arch in ARCHS.values() if arch.sm > gpu.arch.sm]
    if not newer:
        pytest.skip(f"no architecture is newer than {gpu.device}")
    assert not gpu.runs(newer[-1])
    with pytest.raises(RequestError, match="newer"):
        gpu.run(build(ADD, "add", newer[-1]), empty_launch("add"), [])


def test_closing_ends_the_worker_and_is_idempotent(gpu: GpuBackend) -> None:
    other = GpuBackend()
    check_add(other)
    other.close()
    other.close()
    assert other.worker_pid is None
    check_add(gpu)


def test_a_second_compilation_beside_a_driver_knows_its_registers(gpu: GpuBackend) -> None:
    """Where a driver is, NVRTC may keep what it compiled and then has no log; it is told not to."""
    first, second = (nvrtc.compile_source(ADD, "add", gpu.arch) for _ in range(2))
    assert first.registers > 0
    assert (first.registers, first.cubin) == (second.registers, second.cubin)


def test_a_second_assembly_beside_a_driver_knows_its_registers(gpu: GpuBackend) -> None:
    """The same of nvJitLink, which keeps what it assembled from one process to the next."""
    binary = nvrtc.compile_source(ADD, "add", ARCHS[75])
    first, second = (nvrtc.assemble(binary, gpu.arch) for _ in range(2))
    assert first.registers > 0
    assert (first.registers, first.cubin) == (second.registers, second.cubin)
