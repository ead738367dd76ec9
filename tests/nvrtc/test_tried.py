"""What was tried on sm_90 and is no template: texts that compile, arguments that fit, and a record that tells."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.gpu import measure_tried
from tests.gpu.measure_tried import ROWS, Row
from tests.gpu.tensor_maps import MAP_ALIGNMENT, MAP_BYTES, Boxed, Prepared, TensorMapRecipe
from wmmagen import layout, reference, trial
from wmmagen.backends import Launch, Pointer
from wmmagen.backends.cpu import CpuBackend
from wmmagen.backends.gpu import DeviceInfo
from wmmagen.backends.worker import Run
from wmmagen.config import Operation, Problem
from wmmagen.dtypes import F16, F32
from wmmagen.errors import LaunchFault
from wmmagen.timing import TimingProtocol
from wmmagen.verdict import judge

OPERATION = Operation(F16, F32, F32)
CARD = DeviceInfo(0, "a card of sm_90", 90, 1 << 37, 132, 50 << 20)


def row(words: str) -> Row:
    (found,) = [row for row in ROWS if row.words == words]
    return found


@pytest.mark.parametrize(
    ("words", "instruction"),
    [
        ("tensor maps, cluster 1x2 shares A, cluster scope", "cp.async.bulk.tensor.2d.shared::cluster.global"),
        ("cp.async, mbarriers for the block barrier", "cp.async.mbarrier.arrive.noinc"),
        ("halves of A handed on, cluster scope", "cp.async.bulk.shared::cluster.shared::cta"),
        ("the L2 told to fetch 256 bytes", "cp.async.cg.shared.global.L2::256B"),
    ],
)
def test_texts_compile_and_do_not_spill(words: str, instruction: str) -> None:
    binary = measure_tried.compiled(row(words))
    assert binary.spill_bytes == 0
    assert instruction in binary.ptx
    assert ("arrive.release.cluster" in binary.ptx) == ("cluster scope" in words)


def test_what_is_tried_has_a_name_of_its_own_and_fits_a_multiprocessor() -> None:
    assert len({row.words for row in ROWS}) == len(ROWS)
    arch = measure_tried.ARCH
    for tried in filter(lambda row: row.text, ROWS):
        assert set(tried.numbers) <= set(measure_tried.NUMBERS)
        barriers = 2 * 8 * tried.number("STAGES")
        block = tried.shared_bytes + barriers
        assert block <= arch.shared_block
        assert tried.number("MIN_BLOCKS") * (block + arch.shared_reserved) <= arch.shared_sm


def test_a_block_that_stays_for_two_tiles_is_exact_on_the_executor() -> None:
    tried = row("cp.async, persistent, copies go on across tiles")
    case = trial.exact_case(Problem.packed(OPERATION, 256, 256, 256))
    made = measure_tried.recipe(tried, case.inputs.problem, case.images, case.buffers, 1)
    assert made.launch.grid == (1, 1, 1)
    returned = CpuBackend().run(measure_tried.compiled(tried), made.launch, made.buffers, limit_s=60.0)
    assert judge(case.inputs, case.images[-1], returned[-1], case.want, case.check).exact


class Driver:
    """Records what it is asked for; reads launches as the driver reads them."""

    def __init__(self) -> None:
        self.encoded: list[tuple[Any, ...]] = []
        self.launched: list[tuple[Any, ...]] = []

    def cuTensorMapEncodeTiled(self, place: Any, element: int, rank: int, address: Any, *lists_and_words: Any) -> int:
        assert place.value % MAP_ALIGNMENT == 0
        lists, words = lists_and_words[:4], lists_and_words[4:]
        ctypes.memset(place.value, len(self.encoded) + 1, MAP_BYTES)
        self.encoded.append((element, rank, address.value, *map(list, lists), *words))
        return 0

    def cuLaunchKernel(self, kernel: Any, *rest: Any) -> int:
        *numbers, stream, arguments, _ = rest
        maps = [ctypes.string_at(place, MAP_BYTES) for place in arguments[:2]]
        values = [ctypes.c_void_p.from_address(arguments[2]).value]
        values += [ctypes.c_int.from_address(place).value for place in arguments[3:]]
        self.launched.append((kernel.value, [number.value for number in numbers], stream.value, maps, values))
        return 0


def kernel(*sizes: int) -> Any:
    return SimpleNamespace(handle=0x1234_5678_9ABC, arguments_info=[SimpleNamespace(size=size) for size in sizes])


def test_tensor_maps_and_arguments_reach_the_driver_as_it_wants_them() -> None:
    tried = row("tensor maps, cluster 1x2 shares A, cluster scope")
    problem = Problem.packed(OPERATION, 1024, 512, 256)
    images = layout.images(problem)
    made = measure_tried.recipe(tried, problem, images, (), 132)
    assert isinstance(made, TensorMapRecipe)
    driver, places = Driver(), [0x7000_0000_0000, 0x7100_0000_0000, 0x7200_0000_0000]
    prepared = Prepared(kernel(128, 128, 8, 4, 4, 4, 4), made, places, driver)
    a, b, d = (place + image.offset for place, image in zip(places, images, strict=True))
    # f16 is 6, a fetch of 128 bytes 2: cuda.h.
    assert driver.encoded == [
        (6, 2, a, [256, 1024], [512], [72, 128], [1, 1], 0, 0, 2, 0),
        (6, 2, b, [512, 256], [1024], [136, 64], [1, 1], 0, 0, 2, 0),
    ]
    prepared.enqueue(SimpleNamespace(__cuda_stream__=lambda: (0, 0x5555_0000_1111)))
    ((handle, numbers, stream, maps, values),) = driver.launched
    assert (handle, stream) == (0x1234_5678_9ABC, 0x5555_0000_1111)
    assert numbers == [16, 1, 1, 256, 1, 1, tried.shared_bytes]
    assert maps == [bytes([1]) * MAP_BYTES, bytes([2]) * MAP_BYTES]
    assert values == [d, 1024, 512, 256, 512]


def test_arguments_that_are_not_the_kernels_are_refused() -> None:
    boxed = Boxed(Pointer(0), 64, 64, 64, 64, 72)
    recipe = TensorMapRecipe(b"", Launch("k", (1, 1, 1), (32, 1, 1), 0, (7,)), (boxed,), ())
    with pytest.raises(LaunchFault, match=r"\[128, 8\] bytes, and the launch gives \[128, 4\]"):
        Prepared(kernel(128, 8), recipe, [0x1000], Driver())


def test_a_wrong_result_of_either_kernel_is_told_and_bounds_are_not_judged(compiled_once: object) -> None:
    problem = Problem.packed(OPERATION, 256, 128, 64)
    case = trial.exact_case(problem)
    right = (*case.buffers[:-1], case.images[-1].pack(reference.expected(case.inputs)))
    spoiled = [buffer.copy() for buffer in right]
    spoiled[-1][case.images[-1].offset + 2] ^= 1

    def bench(answers: Iterator[object]) -> measure_tried.Bench:
        made = measure_tried.Bench(CARD, TimingProtocol())

        def ask(request: object, *, limit_s: float, what: str) -> object:
            assert isinstance(request, Run) and limit_s > 0 and what
            return next(answers)

        made.child = SimpleNamespace(ask=ask)  # type: ignore[assignment]
        return made

    tried, bound = row("cp.async, persistent, copies go on across tiles"), row("cp.async, bound: no store")
    assert bench(iter([right, right])).wrong(tried, problem) == ""
    assert "1 of 32768 elements differ" in bench(iter([right, spoiled])).wrong(tried, problem)
    assert bench(iter([spoiled])).wrong(tried, problem).startswith("the tool's kernel: D[0, 0]")
    touched = [np.zeros_like(right[0]), *right[1:]]
    assert "A was written to" in bench(iter([right, touched])).wrong(tried, problem)
    # The second answer would be missed.
    assert bench(iter([right])).wrong(bound, problem) == ""
