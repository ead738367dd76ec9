"""cuBLASLt through nvmath-python's bindings. Imported by the child process alone, and the bindings only when asked for.

Every product is a column-major one on the library's default order; :mod:`wmmagen.backends.product` says why. Factors
are read from the host when the product is enqueued, so a captured graph holds them by value. All products share one
workspace, as those of PyTorch do: they run one after another, on the one stream that a card has.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from wmmagen.backends import Pointer
from wmmagen.backends.card import ALIGNMENT, DriverError, call
from wmmagen.backends.product import (
    INSTALL,
    REQUESTED,
    SCALES,
    WORKSPACE_BYTES,
    Candidate,
    Candidates,
    LibraryProduct,
    Stored,
)
from wmmagen.dtypes import ELEMENT_TYPES
from wmmagen.errors import MissingPiece

_Array = npt.NDArray[Any]


class LibraryError(DriverError):
    """A call of the library returned something other than success."""

    def __init__(self, status: int, text: str, call: str) -> None:
        Exception.__init__(self, f"{text} (cublasLt: {call})")
        self.name = text
        self.status = status


class CublasLt:
    """The library with a handle for the current context.

    Args:
        lt: the module ``nvmath.bindings.cublasLt``, or one that behaves like it.
        blas: ``nvmath.bindings.cublas``, for the enumerations that both libraries share.
        data_type: ``nvmath.CudaDataType``.
        workspace: address of :data:`wmmagen.backends.product.WORKSPACE_BYTES` bytes on the device.
    """

    def __init__(self, lt: Any, blas: Any, data_type: Any, workspace: int) -> None:
        self.lt = lt
        self.blas = blas
        self.data_type = data_type
        self.workspace = workspace
        self.handle: int = self.call(lt.create)

    @property
    def version(self) -> str:
        """``13.1.0``; the library counts 10000 · major + 100 · minor + patch."""
        number = int(self.lt.get_version())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """The value of a call.

        Raises:
            LibraryError: it did not succeed.
        """
        try:
            return function(*arguments)
        except self.lt.cuBLASLtError as error:
            raise LibraryError(error.status, str(error), getattr(function, "__name__", "call")) from error

    def set(self, function: Callable[..., Any], descriptor: int, attribute: int, dtype: type, value: int) -> None:
        """Set an attribute of a descriptor; the call copies the value."""
        held: _Array = np.array([value], dtype)
        self.call(function, descriptor, attribute, held.ctypes.data, held.nbytes)


@functools.cache
def library() -> CublasLt:
    """The library for this process, which has one context; it stays until the process ends.

    Raises:
        MissingPiece: the bindings or the library are not here.
        DriverError: it does not start, or there is no memory for its workspace.
    """
    try:
        from nvmath import CudaDataType
        from nvmath.bindings import cublas, cublasLt
    except ImportError as error:
        raise MissingPiece(f"the bindings of cuBLASLt (nvmath-python) cannot be imported: {error}", INSTALL) from error
    try:
        cublasLt.get_version()
    except RuntimeError as error:
        # What the bindings raise where they find no library to load.
        raise MissingPiece(f"cuBLASLt cannot be loaded: {error}", INSTALL) from error
    return CublasLt(cublasLt, cublas, CudaDataType, int(call(driver.cuMemAlloc, WORKSPACE_BYTES)))


class _Descriptors:
    """A product in the library's descriptors.

    Args:
        library: whose.
        product: which.
        bias: address of its bias; where it is not known yet, any that is aligned like it.
    """

    def __init__(self, library: CublasLt, product: LibraryProduct, bias: int) -> None:
        self._library = library
        lt, kind = library.lt, product.arithmetic
        with contextlib.ExitStack() as self._made:
            compute, scale = library.blas.ComputeType[kind.compute], library.data_type[kind.scale]
            self.operation = self._make(lt.matmul_desc_create, lt.matmul_desc_destroy, compute, scale)
            for attribute, stored in (("TRANSA", product.first), ("TRANSB", product.second)):
                turned = library.blas.Operation["T" if stored.transposed else "N"]
                key = lt.MatmulDescAttribute[attribute]
                library.set(lt.matmul_desc_set_attribute, self.operation, key, np.int32, turned)
            set_one, attributes = functools.partial(library.set, lt.matmul_desc_set_attribute), lt.MatmulDescAttribute
            if product.epilogue:
                set_one(self.operation, attributes.EPILOGUE, np.uint32, lt.Epilogue[product.epilogue])
            if product.bias is not None:
                set_one(self.operation, attributes.BIAS_POINTER, np.uint64, bias)
            self.first = self._layout(product.first, kind.operand, product.batch)
            self.second = self._layout(product.second, kind.operand, product.batch)
            self.added = self._layout(product.added, kind.result, product.batch)
            self.result = self._layout(product.result, kind.result, product.batch)
            # Kept only where all of it could be made.
            self._made = self._made.pop_all()

    def preference(self, product: LibraryProduct) -> int:
        """What candidates may count on: the workspace, and how far pointers are aligned. Lives as long as the rest."""
        lt, attribute = self._library.lt, self._library.lt.MatmulPreferenceAttribute
        made = self._make(lt.matmul_preference_create, lt.matmul_preference_destroy)
        set_one = functools.partial(self._library.set, lt.matmul_preference_set_attribute, made)
        set_one(attribute.MAX_WORKSPACE_BYTES, np.uint64, WORKSPACE_BYTES)
        first, second = product.operands
        pointers = {"A": first, "B": second, "C": product.c or product.d, "D": product.d}
        for letter, pointer in pointers.items():
            set_one(
                attribute[f"MIN_ALIGNMENT_{letter}_BYTES"], np.uint32, _aligned_throughout(product, letter, pointer)
            )
        return made

    def close(self) -> None:
        """Give all descriptors back."""
        self._made.close()

    def _layout(self, stored: Stored, data_type: str, batch: int) -> int:
        lt, kind = self._library.lt, self._library.data_type[data_type]
        made = self._make(lt.matrix_layout_create, lt.matrix_layout_destroy, kind, stored.rows, stored.cols, stored.ld)
        if batch != 1:
            attribute, set_one = lt.MatrixLayoutAttribute, lt.matrix_layout_set_attribute
            self._library.set(set_one, made, attribute.BATCH_COUNT, np.int32, batch)
            self._library.set(set_one, made, attribute.STRIDED_BATCH_OFFSET, np.int64, stored.stride)
        return made

    def _make(self, create: Callable[..., Any], destroy: Callable[..., Any], *arguments: object) -> int:
        made: int = self._library.call(create, *arguments)
        self._made.callback(destroy, made)
        return made


def _aligned_throughout(product: LibraryProduct, letter: str, pointer: Pointer) -> int:
    """How far all matrices of the library's operand ``letter`` are aligned, in bytes: the first, and those behind."""
    stored, kind = {
        "A": (product.first, product.a_type), "B": (product.second, product.a_type),
        "C": (product.added, product.d_type), "D": (product.result, product.d_type),
    }[letter]  # fmt: skip
    apart = stored.stride * ELEMENT_TYPES[kind].bits // 8
    return min(alignment_of(pointer), apart & -apart) if apart else alignment_of(pointer)


def alignment_of(pointer: Pointer) -> int:
    """How far a pointer into device memory is aligned, in bytes; 256 at most, which is what the memory itself is."""
    return min(ALIGNMENT, pointer.offset & -pointer.offset) if pointer.offset else ALIGNMENT


def candidates(library: CublasLt, product: LibraryProduct) -> Candidates:
    """What the heuristic proposes, best first.

    Raises:
        LibraryError: the library failed in another way than by having no algorithm.
    """
    if product.refusal:
        return Candidates(library.version, (), product.refusal)
    results = np.zeros(REQUESTED, library.lt.matmul_heuristic_result_dtype)
    count = np.zeros(1, np.int32)
    descriptors = _Descriptors(library, product, alignment_of(product.bias) if product.bias else 0)
    try:
        library.call(
            library.lt.matmul_algo_get_heuristic,
            library.handle,
            descriptors.operation,
            descriptors.first,
            descriptors.second,
            descriptors.added,
            descriptors.result,
            descriptors.preference(product),
            REQUESTED,
            results.ctypes.data,
            count.ctypes.data,
        )
    except LibraryError as error:
        if error.status != library.blas.Status.NOT_SUPPORTED:
            raise
        return Candidates(library.version, (), f"cuBLASLt has no algorithm for {product}: {error}")
    finally:
        descriptors.close()
    good = [r for r in results[: int(count[0])] if r["state"] == library.blas.Status.SUCCESS]
    found = tuple(_candidate(library, number, result) for number, result in enumerate(good))
    return Candidates(library.version, found, "" if found else f"cuBLASLt's heuristic proposes nothing for {product}")


def _candidate(library: CublasLt, number: int, result: Any) -> Candidate:
    algorithm = np.array([result["algo"]])
    words = f"{_words(library, algorithm)}, {float(result['waves_count']):.2f} waves"
    return Candidate(number, algorithm.tobytes(), int(result["workspace_size"]), words)


def _words(library: CublasLt, algorithm: _Array) -> str:
    """The algorithm's settings; numbers without a name are those of a library newer than its bindings."""
    lt, attribute = library.lt, library.lt.MatmulAlgoConfigAttribute

    def setting(name: str, dtype: type) -> int:
        value: _Array = np.zeros(1, dtype)
        written = np.zeros(1, np.uint64)
        library.call(
            lt.matmul_algo_config_get_attribute,
            algorithm.ctypes.data,
            attribute[name],
            value.ctypes.data,
            value.nbytes,
            written.ctypes.data,
        )
        return int(value[0])

    def named(names: Any, number: int) -> str:
        return str(names(number).name) if number in set(names) else str(number)

    return ", ".join(
        (
            f"algorithm {setting('ID', np.int32)}",
            named(lt.MatmulTile, setting("TILE_ID", np.uint32)),
            named(lt.MatmulStages, setting("STAGES_ID", np.uint32)),
            f"cluster {named(lt.ClusterShape, setting('CLUSTER_SHAPE_ID', np.uint16))}",
            f"split-K {setting('SPLITK_NUM', np.int32)}",
            f"reduction {named(lt.ReductionScheme, setting('REDUCTION_SCHEME', np.uint32))}",
            f"swizzle {setting('CTA_SWIZZLING', np.uint32)}",
            f"option {setting('CUSTOM_OPTION', np.uint32)}",
        )
    )


def _at(addresses: Sequence[int], pointer: Pointer) -> int:
    return addresses[pointer.buffer] + pointer.offset


class EnqueuedProduct:
    """A product by one candidate, on matrices at fixed addresses. Its descriptors are given back with it.

    Args:
        library: who computes it.
        product: what is computed.
        candidate: how; of the same version of the library.
        addresses: of the buffers that the product's pointers count.

    Raises:
        LibraryError: the library refuses a descriptor.
    """

    def __init__(
        self, library: CublasLt, product: LibraryProduct, candidate: Candidate, addresses: Sequence[int]
    ) -> None:
        self._library = library
        made = _Descriptors(library, product, _at(addresses, product.bias) if product.bias else 0)
        weakref.finalize(self, made.close)
        self._factors = np.array([product.alpha, product.beta], SCALES[product.arithmetic.scale])
        self._algorithm = np.frombuffer(candidate.algorithm, np.uint8).copy()
        alpha, at = self._factors.ctypes.data, functools.partial(_at, addresses)
        first, second = product.operands
        self._arguments = (
            library.handle,
            made.operation,
            *(alpha, at(first), made.first, at(second), made.second),
            *(alpha + self._factors.itemsize, at(product.c or product.d), made.added, at(product.d), made.result),
            *(self._algorithm.ctypes.data, library.workspace, WORKSPACE_BYTES),
        )

    def enqueue(self, stream: Any) -> None:
        """Compute once on a stream, or into a graph that is being built: anything with ``__cuda_stream__``.

        Raises:
            LibraryError: the library refuses; the candidate may not take these addresses.
        """
        _, handle = stream.__cuda_stream__()
        self._library.call(self._library.lt.matmul, *self._arguments, handle)
