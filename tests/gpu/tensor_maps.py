"""Kernels that take tensor maps by value, as a recipe for the card's process; the product has no such argument.

Maps are encoded and the kernel is launched through ctypes. The bindings' own object for a map lies where the allocator
puts it, on multiples of 16 bytes, and the driver refuses to encode into what is not aligned to 64.

Source: CUDA Driver API, "Tensor Map Object Management".
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wmmagen.backends import Bytes, Launch, Pointer
from wmmagen.errors import LaunchFault

if TYPE_CHECKING:
    from wmmagen.backends.card import Addresses, Card, Enqueued

MAP_BYTES = 128
MAP_ALIGNMENT = 64
_HALF_BYTES = 2


@dataclass(frozen=True)
class Boxed:
    """A row-major matrix of f16 that is copied box by box.

    Attributes:
        pointer: to its first element.
        rows, cols, ld: extents and leading dimension, in elements. Beyond them a box has zeros.
        box_rows, box_cols: of what one instruction copies, 256 at most.
    """

    pointer: Pointer
    rows: int
    cols: int
    ld: int
    box_rows: int
    box_cols: int


@dataclass(frozen=True)
class TensorMapRecipe:
    """A kernel of a cubin whose first arguments are tensor maps; see :class:`wmmagen.backends.card.Recipe`.

    Attributes:
        cubin: machine code.
        launch: its arguments are those behind the maps, pointers and ints.
        maps: in the kernel's order.
        buffers: what the pointers point into.
    """

    cubin: bytes
    launch: Launch
    maps: tuple[Boxed, ...]
    buffers: tuple[Bytes, ...]

    def prepare(self, card: Card, copies: Sequence[Addresses]) -> Sequence[Enqueued]:
        kernel = card._kernel(self.cubin, self.launch.entry)
        card._allow_shared(kernel, self.launch.shared_bytes)
        return [Prepared(kernel, self, addresses) for addresses in copies]


class Prepared:
    """The launch on buffers at ``addresses``, with everything that it points to kept alive.

    Args:
        kernel: of cuda.core, which has to stay loaded as long as this.
        recipe: what is launched.
        addresses: of the buffers.
        library: the driver.
    """

    def __init__(self, kernel: Any, recipe: TensorMapRecipe, addresses: Sequence[int], library: Any = None) -> None:
        self._library = library or _libcuda()
        self._kernel = kernel
        self._launch = recipe.launch
        maps = [encoded(boxed, addresses, self._library) for boxed in recipe.maps]
        values = [_value(addresses, value) for value in recipe.launch.arguments]
        self._held = [*(storage for storage, _ in maps), *values]
        places = [*(place for _, place in maps), *(ctypes.addressof(value) for value in values)]
        self._arguments = (ctypes.c_void_p * len(places))(*places)
        expected = [info.size for info in kernel.arguments_info]
        given = [MAP_BYTES] * len(maps) + [ctypes.sizeof(value) for value in values]
        if given != expected:
            raise LaunchFault(f"the kernel takes arguments of {expected} bytes, and the launch gives {given}")

    def enqueue(self, stream: Any) -> None:
        """Launch on a stream of cuda.core, or into a graph builder of it."""
        _, handle = stream.__cuda_stream__()
        grid, block = (tuple(map(ctypes.c_uint, sizes)) for sizes in (self._launch.grid, self._launch.block))
        _demand(
            self._library.cuLaunchKernel(
                ctypes.c_void_p(int(self._kernel.handle)),
                *grid,
                *block,
                ctypes.c_uint(self._launch.shared_bytes),
                ctypes.c_void_p(int(handle)),
                self._arguments,
                None,
            ),
            "cuLaunchKernel",
        )


def encoded(boxed: Boxed, addresses: Sequence[int], library: Any) -> tuple[Any, int]:
    """A map and its address within the storage that comes first and has to stay alive.

    Raises:
        DriverError: the driver refuses it.
    """
    from cuda.bindings import driver

    storage = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
    place = -(-ctypes.addressof(storage) // MAP_ALIGNMENT) * MAP_ALIGNMENT
    status = library.cuTensorMapEncodeTiled(
        ctypes.c_void_p(place),
        int(driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16),
        2,
        ctypes.c_void_p(addresses[boxed.pointer.buffer] + boxed.pointer.offset),
        (ctypes.c_uint64 * 2)(boxed.cols, boxed.rows),
        (ctypes.c_uint64 * 1)(boxed.ld * _HALF_BYTES),
        (ctypes.c_uint32 * 2)(boxed.box_cols, boxed.box_rows),
        (ctypes.c_uint32 * 2)(1, 1),
        int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE),
        int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
        int(driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )
    _demand(status, "cuTensorMapEncodeTiled")
    return storage, place


def _value(addresses: Sequence[int], value: object) -> Any:
    if not isinstance(value, (Pointer, int, float)):
        raise TypeError(f"no launch with tensor maps has an argument like {value}")
    if isinstance(value, Pointer):
        return ctypes.c_void_p(addresses[value.buffer] + value.offset)
    return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_float(value)


def _demand(status: int, call: str) -> None:
    from cuda.bindings import driver

    from wmmagen.backends.card import DriverError

    if status:
        raise DriverError(driver.CUresult(status), call)


@functools.cache
def _libcuda() -> Any:
    """The driver that the bindings have loaded already."""
    return ctypes.CDLL("libcuda.so.1")
