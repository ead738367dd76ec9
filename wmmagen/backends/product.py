"""A matrix product as it is asked of a library, in numbers and words, and what a library answers.

Pure: nothing here needs the library. Matrices are D = alpha·A·B + beta·C with A m×k, B k×n, C and D m×n. A column-major
library sees a row-major matrix as its transpose, so for a row-major D it is asked for D^T = B^T·A^T: its first operand
is B, its second is A. That is the call that cuBLAS is tuned on, and no layout in it is anything but the library's own
default order. For a column-major D it is asked for D = A·B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from wmmagen.backends import Bytes, Launch, Pointer
from wmmagen.timing import Timing, TimingProtocol

#: What brings the library and its bindings.
INSTALL = "pip install 'wmmagen[cublas]'"
#: Asked of the heuristic; it returns fewer where it knows fewer.
REQUESTED = 16
#: The workspace that cuBLAS's documentation recommends for Hopper; no candidate may ask for more.
WORKSPACE_BYTES = 32 << 20


@dataclass(frozen=True)
class Arithmetic:
    """What cuBLASLt calls a combination of types.

    Attributes:
        compute: member of ``cublasComputeType_t``, without its prefix.
        scale: type of alpha and beta; member of ``cudaDataType_t``.
        operand: type of A and B.
        result: type of C and D.
    """

    compute: str
    scale: str
    operand: str
    result: str


#: The types of alpha and beta.
SCALES: dict[str, type[np.generic]] = {
    "CUDA_R_16F": np.float16,
    "CUDA_R_32F": np.float32,
    "CUDA_R_64F": np.float64,
    "CUDA_R_32I": np.int32,
}

#: By the names of A and B's, the accumulator's, and C and D's type.
#: Source: cuBLAS documentation, cublasLtMatmul(), the table of supported data types.
ARITHMETIC: dict[tuple[str, str, str], Arithmetic] = {
    ("f16", "f16", "f16"): Arithmetic("COMPUTE_16F", "CUDA_R_16F", "CUDA_R_16F", "CUDA_R_16F"),
    ("f16", "f32", "f16"): Arithmetic("COMPUTE_32F", "CUDA_R_32F", "CUDA_R_16F", "CUDA_R_16F"),
    ("f16", "f32", "f32"): Arithmetic("COMPUTE_32F", "CUDA_R_32F", "CUDA_R_16F", "CUDA_R_32F"),
    ("bf16", "f32", "bf16"): Arithmetic("COMPUTE_32F", "CUDA_R_32F", "CUDA_R_16BF", "CUDA_R_16BF"),
    ("bf16", "f32", "f32"): Arithmetic("COMPUTE_32F", "CUDA_R_32F", "CUDA_R_16BF", "CUDA_R_32F"),
    ("tf32", "f32", "f32"): Arithmetic("COMPUTE_32F_FAST_TF32", "CUDA_R_32F", "CUDA_R_32F", "CUDA_R_32F"),
    ("f64", "f64", "f64"): Arithmetic("COMPUTE_64F", "CUDA_R_64F", "CUDA_R_64F", "CUDA_R_64F"),
    ("s8", "s32", "s32"): Arithmetic("COMPUTE_32I", "CUDA_R_32I", "CUDA_R_8I", "CUDA_R_32I"),
    ("s8", "s32", "s8"): Arithmetic("COMPUTE_32I", "CUDA_R_32F", "CUDA_R_8I", "CUDA_R_8I"),
    # Without the FAST_TF32 variant: single precision on the ordinary units.
    ("f32", "f32", "f32"): Arithmetic("COMPUTE_32F", "CUDA_R_32F", "CUDA_R_32F", "CUDA_R_32F"),
}  # fmt: skip


#: The library's own epilogues, members of ``cublasLtEpilogue_t``, by the steps that they are of the product that is
#: asked for. Its bias has an element for each row of D^T, which is a column of ours, and D's type; its GELU is by tanh.
#: Source: cuBLAS documentation, cublasLtEpilogue_t and CUBLASLT_MATMUL_DESC_BIAS_POINTER.
EPILOGUES: dict[tuple[str, ...], str] = {
    ("relu",): "RELU",
    ("gelutanh",): "GELU",
    ("biascol",): "BIAS",
    ("biascol", "relu"): "RELU_BIAS",
    ("biascol", "gelutanh"): "GELU_BIAS",
}


@dataclass(frozen=True)
class Behind:
    """A kernel of ours that works on the buffers of a product behind it, in the same launch."""

    cubin: bytes
    launch: Launch


@dataclass(frozen=True)
class LibraryProduct:
    """D = alpha·A·B + beta·C as a library is asked for it.

    Attributes:
        m, n, k: extents, in elements.
        a_type, acc_type, d_type: names of the types of A and B, of the accumulator, and of C and D.
        a_row_major, b_row_major: whether lines of A, of B are rows.
        lda, ldb, ldd: leading dimensions, in elements.
        a, b, d: where the matrices begin in the buffers that go with the call.
        ldc, c: of C; 0 and None where nothing reads it.
        alpha, beta: the factors.
        batch: products, whose matrices lie ``strides`` apart; ``a`` to ``d`` are those of the first.
        strides: of A, B, C and D, in elements; 0 for a matrix of all products.
        epilogue: of :data:`EPILOGUES`, what the library itself makes of the product; empty for nothing.
        bias: its vector, N elements of D's type; None where the epilogue adds none.
        behind: what follows the product; None for nothing.
        c_row_major, d_row_major: whether lines of C, of D are rows.
    """

    m: int
    n: int
    k: int
    a_type: str
    acc_type: str
    d_type: str
    a_row_major: bool
    b_row_major: bool
    lda: int
    ldb: int
    ldd: int
    a: Pointer
    b: Pointer
    d: Pointer
    ldc: int = 0
    c: Pointer | None = None
    alpha: float = 1.0
    beta: float = 0.0
    batch: int = 1
    strides: tuple[int, int, int, int] = (0, 0, 0, 0)
    epilogue: str = ""
    bias: Pointer | None = None
    behind: Behind | None = None
    c_row_major: bool = True
    d_row_major: bool = True

    def __str__(self) -> str:
        count = f", a batch of {self.batch}" if self.batch != 1 else ""
        own = f" {self.epilogue}" if self.epilogue else ""
        then = " and a kernel behind it" if self.behind else ""
        return f"cuBLASLt {self.a_type} {self.acc_type} {self.d_type}{own} {self.m}x{self.n}x{self.k}{count}{then}"

    @property
    def arithmetic(self) -> Arithmetic:
        """What the library calls its types.

        Raises:
            KeyError: it documents no such combination; see :attr:`refusal`.
        """
        return ARITHMETIC[self.a_type, self.acc_type, self.d_type]

    @property
    def refusal(self) -> str:
        """Why the library cannot be asked; empty where it can."""
        kinds = (self.a_type, self.acc_type, self.d_type)
        if kinds not in ARITHMETIC:
            known = ", ".join("/".join(key) for key in ARITHMETIC)
            return (
                f"cuBLASLt documents no product of {'/'.join(kinds)} (operands/accumulator/result); of these: {known}"
            )
        if self.c is not None and self.c_row_major is not self.d_row_major:
            return "cuBLASLt adds no C whose order is not D's"
        scale = self.arithmetic.scale
        for word, factor in (("alpha", self.alpha), ("beta", self.beta)):
            with np.errstate(over="ignore"):
                held = float(SCALES[scale](factor))
            if held != factor:
                held_in = np.dtype(SCALES[scale])
                kind = f"{held_in.kind}{held_in.itemsize * 8}"
                return f"{word} = {factor} is no {kind}, in which cuBLASLt scales sums of {self.acc_type}"
        return ""

    @property
    def operands(self) -> tuple[Pointer, Pointer]:
        """Where the library's first and second operand begin: B and A, or where D is column-major A and B."""
        return (self.b, self.a) if self.d_row_major else (self.a, self.b)

    @property
    def first(self) -> Stored:
        """The library's first operand: B^T (n×k), or where D is column-major A (m×k)."""
        return self._b if self.d_row_major else self._a

    @property
    def second(self) -> Stored:
        """The library's second operand: A^T (k×m), or where D is column-major B (k×n)."""
        return self._a if self.d_row_major else self._b

    @property
    def _a(self) -> Stored:
        return _stored(self.m, self.k, self.lda, self.a_row_major, self.strides[0], turned=self.d_row_major)

    @property
    def _b(self) -> Stored:
        return _stored(self.k, self.n, self.ldb, self.b_row_major, self.strides[1], turned=self.d_row_major)

    @property
    def added(self) -> Stored:
        """C^T (n×m), or C where D is column-major; the result where nothing reads C."""
        if self.c is None:
            return self.result
        return _stored(self.m, self.n, self.ldc, self.c_row_major, self.strides[2], turned=self.d_row_major)

    @property
    def result(self) -> Stored:
        """D^T (n×m), or D where it is column-major."""
        return _stored(self.m, self.n, self.ldd, self.d_row_major, self.strides[3], turned=self.d_row_major)


@dataclass(frozen=True)
class Stored:
    """A matrix in memory as a column-major library describes it.

    Attributes:
        rows, cols, ld: of what lies in memory, read in columns; in elements.
        transposed: whether the operand is the transpose of that.
        stride: from the matrix of one product of a batch to that of the next, in elements.
    """

    rows: int
    cols: int
    ld: int
    transposed: bool
    stride: int = 0


def _stored(rows: int, cols: int, ld: int, row_major: bool, stride: int, *, turned: bool) -> Stored:
    """A rows×cols matrix, or turned its transpose: what a row-major one already is, read in columns."""
    transposed = row_major is not turned
    return Stored(cols, rows, ld, transposed, stride) if row_major else Stored(rows, cols, ld, transposed, stride)


@dataclass(frozen=True)
class Candidate:
    """One way to compute a product, proposed by the library's heuristic.

    Attributes:
        number: its place in the heuristic's order, from 0.
        algorithm: the library's own description; means something to the same version of it only.
        workspace_bytes: what it needs beside the matrices.
        words: the same description for people: algorithm, tile, stages, split of K.
    """

    number: int
    algorithm: bytes
    workspace_bytes: int
    words: str

    def __str__(self) -> str:
        return f"candidate {self.number} ({self.words})"


@dataclass(frozen=True)
class Candidates:
    """The heuristic's answer.

    Attributes:
        version: of the library, ``13.1.0``.
        found: best first, as the heuristic estimates.
        reason: why there is none; empty where there is one.
    """

    version: str
    found: tuple[Candidate, ...]
    reason: str = ""


class Library(Protocol):
    """A place with a library of matrix products.

    Every method may raise :class:`wmmagen.errors.Fault` and leaves the place usable after it.
    """

    @property
    def device(self) -> str:
        """What it runs on: ``NVIDIA H200 (sm_90)``."""

    def compiled(self, source: str, entry: str) -> bytes:
        """The machine code, for this device, of a kernel that follows a product.

        Raises:
            CompileError: it is refused.
            MissingPiece: there is no compiler here.
        """

    def candidates(self, product: LibraryProduct) -> Candidates:
        """What the library's heuristic proposes for ``product`` in memory that is aligned as its pointers say.

        Raises:
            MissingPiece: the library is not here.
        """

    def run(self, product: LibraryProduct, candidate: Candidate, buffers: Sequence[Bytes]) -> list[Bytes]:
        """Compute the product once over copies of ``buffers`` and return all of them as they were left."""

    def recipe(self, product: LibraryProduct, candidate: Candidate, buffers: Sequence[Bytes]) -> Any:
        """What :meth:`wmmagen.backends.Backend.compare` takes for the product, over copies of ``buffers``."""

    def time(
        self, product: LibraryProduct, candidate: Candidate, buffers: Sequence[Bytes], protocol: TimingProtocol
    ) -> Timing:
        """Time the product over copies of ``buffers`` by ``protocol``."""
