"""Products for cuBLASLt: what the library is told, from descriptors that compute, and what becomes of its answers."""

from __future__ import annotations

import dataclasses
import gc
import sys
import types

import numpy as np
import pytest

from tests import fake_cublas
from tests.fake_cublas import CudaDataType, DescAttribute, FakeBlas, FakeCard, FakeLt, FakeStream, PreferenceAttribute
from wmmagen.backends import Pointer, cublas
from wmmagen.backends.cublas import EnqueuedProduct, LibraryError, alignment_of, candidates
from wmmagen.backends.library import Absent, CardLibrary, LibraryCandidates
from wmmagen.backends.product import ARITHMETIC, REQUESTED, WORKSPACE_BYTES, Candidate, LibraryProduct, Stored
from wmmagen.errors import LaunchFault, MissingPiece

PRODUCT = LibraryProduct(
    m=3,
    n=5,
    k=7,
    a_type="f16",
    acc_type="f32",
    d_type="f32",
    a_row_major=True,
    b_row_major=True,
    lda=11,
    ldb=13,
    ldd=17,
    a=Pointer(0, 32),
    b=Pointer(1, 0),
    d=Pointer(2, 4096),
)
BY_HAND = {
    (True, True): (Stored(5, 7, 13, False), Stored(7, 3, 11, False)),
    (True, False): (Stored(7, 5, 13, True), Stored(7, 3, 11, False)),
    (False, True): (Stored(5, 7, 13, False), Stored(3, 7, 11, True)),
    (False, False): (Stored(7, 5, 13, True), Stored(3, 7, 11, True)),
}
WORDS = "algorithm 60, TILE_128x256, STAGES_64xAUTO, cluster 99, split-K 1, reduction NONE, swizzle 0, option 0"


@pytest.mark.parametrize("layout", BY_HAND)
def test_the_product_is_told_as_its_transpose_in_columns(layout: tuple[bool, bool]) -> None:
    lt = FakeLt()
    candidates(fake_cublas.library_of(lt), dataclasses.replace(PRODUCT, a_row_major=layout[0], b_row_major=layout[1]))
    told = lt.asked
    for letter, attribute, stored in zip(
        "ab", (DescAttribute.TRANSA, DescAttribute.TRANSB), BY_HAND[layout], strict=True
    ):
        assert told[letter].what == (CudaDataType.CUDA_R_16F, stored.rows, stored.cols, stored.ld)
        assert told["operation"].attributes[attribute] == int(stored.transposed)
    assert told["c"].what == told["d"].what == (CudaDataType.CUDA_R_32F, 5, 3, 17)
    assert told["operation"].what == (fake_cublas.ComputeType.COMPUTE_32F, CudaDataType.CUDA_R_32F)


def test_a_column_major_d_is_told_as_it_is() -> None:
    lt = FakeLt()
    product = dataclasses.replace(PRODUCT, b_row_major=False, d_row_major=False, a=Pointer(0, 32), b=Pointer(1, 64))
    candidates(fake_cublas.library_of(lt), product)
    assert [lt.asked[letter].what[1:] for letter in "abd"] == [(7, 3, 11), (7, 5, 13), (3, 5, 17)]
    turned = [lt.asked["operation"].attributes[x] for x in (DescAttribute.TRANSA, DescAttribute.TRANSB)]
    assert turned == [1, 0] and product.operands == (product.a, product.b)
    across = dataclasses.replace(product, c=Pointer(3), ldc=19, beta=1.0)
    assert "no C whose order is not D's" in across.refusal
    assert dataclasses.replace(across, c_row_major=False).refusal == ""


def test_c_has_a_layout_of_its_own_where_it_is_read() -> None:
    lt = FakeLt()
    candidates(fake_cublas.library_of(lt), dataclasses.replace(PRODUCT, ldc=19, c=Pointer(3), beta=1.0))
    assert [lt.asked[letter].what for letter in "cd"] == [(CudaDataType.CUDA_R_32F, 5, 3, ld) for ld in (19, 17)]


def test_the_preference_tells_the_workspace_and_how_far_pointers_are_aligned() -> None:
    lt = FakeLt()
    candidates(fake_cublas.library_of(lt), dataclasses.replace(PRODUCT, ldc=19, c=Pointer(3, 8), beta=1.0))
    # The library's A is our B.
    assert lt.asked["preference"].attributes == {
        PreferenceAttribute.MAX_WORKSPACE_BYTES: WORKSPACE_BYTES,
        PreferenceAttribute.MIN_ALIGNMENT_A_BYTES: 256,
        PreferenceAttribute.MIN_ALIGNMENT_B_BYTES: 32,
        PreferenceAttribute.MIN_ALIGNMENT_C_BYTES: 8,
        PreferenceAttribute.MIN_ALIGNMENT_D_BYTES: 256,
    }


@pytest.mark.parametrize(
    ("offset", "aligned"), [(0, 256), (4096, 256), (256, 256), (128, 128), (48, 16), (6, 2), (1, 1)]
)
def test_an_offset_tells_how_far_it_is_aligned(offset: int, aligned: int) -> None:
    assert alignment_of(Pointer(0, offset)) == aligned


def test_candidates_come_in_the_order_of_the_heuristic_and_those_that_failed_do_not() -> None:
    lt = FakeLt(spoils=[lambda d: None] * 3, states=(0, 15, 0))
    answer = candidates(fake_cublas.library_of(lt), PRODUCT)
    assert (answer.version, answer.reason) == ("13.1.2", "")
    assert [(one.number, one.workspace_bytes) for one in answer.found] == [(0, 0), (1, 128)]
    assert [np.frombuffer(one.algorithm, np.uint64)[0] for one in answer.found] == [0, 2]
    assert answer.found[0].words == f"{WORDS}, 0.00 waves"


def test_more_than_are_asked_for_never_come() -> None:
    lt = FakeLt(spoils=[lambda d: None] * REQUESTED)
    assert len(candidates(fake_cublas.library_of(lt), PRODUCT).found) == REQUESTED


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"acc_type": "f16"}, "cuBLASLt documents no product of f16/f16/f32"),
        ({"a_type": "u8"}, "cuBLASLt documents no product of u8/f32/f32"),
        ({"acc_type": "f16", "d_type": "f16", "alpha": 0.1}, "alpha = 0.1 is no f16"),
        ({"acc_type": "f16", "d_type": "f16", "beta": 2.0**20}, "beta = 1048576.0 is no f16"),
    ],
)
def test_what_the_library_does_not_offer_is_said_without_asking_it(changed: dict[str, object], words: str) -> None:
    lt = FakeLt()
    answer = candidates(fake_cublas.library_of(lt), dataclasses.replace(PRODUCT, **changed))
    assert not answer.found and answer.reason.startswith(words)
    assert not lt.calls


def test_no_algorithm_is_an_answer_and_any_other_status_an_error() -> None:
    no = FakeLt(fails={"matmul_algo_get_heuristic": FakeBlas.Status.NOT_SUPPORTED})
    answer = candidates(fake_cublas.library_of(no), PRODUCT)
    assert not answer.found
    assert answer.reason == (
        "cuBLASLt has no algorithm for cuBLASLt f16 f32 f32 3x5x7: CUBLAS_STATUS_NOT_SUPPORTED "
        "(cublasLt: matmul_algo_get_heuristic)"
    )
    bad = FakeLt(fails={"matmul_algo_get_heuristic": FakeBlas.Status.INVALID_VALUE})
    with pytest.raises(LibraryError, match="CUBLAS_STATUS_INVALID_VALUE"):
        candidates(fake_cublas.library_of(bad), PRODUCT)
    assert not no.alive and not bad.alive


def test_a_heuristic_without_a_proposal_is_an_answer() -> None:
    answer = candidates(fake_cublas.library_of(FakeLt(spoils=())), PRODUCT)
    assert answer.reason == "cuBLASLt's heuristic proposes nothing for cuBLASLt f16 f32 f32 3x5x7"


def test_descriptors_are_given_back() -> None:
    lt = FakeLt()
    library = fake_cublas.library_of(lt)
    (one,) = candidates(library, PRODUCT).found
    assert not lt.alive
    first, second = (EnqueuedProduct(library, PRODUCT, one, (0, 0, 0)) for _ in range(2))
    assert len(lt.alive) == 10
    del first
    gc.collect()
    assert len(lt.alive) == 5
    del second
    gc.collect()
    assert not lt.alive
    lt.fails["matrix_layout_create"] = FakeBlas.Status.INVALID_VALUE
    with pytest.raises(LibraryError, match="matrix_layout_create"):
        EnqueuedProduct(library, PRODUCT, one, (0, 0, 0))
    assert not lt.alive


def test_a_product_goes_to_the_stream_that_it_is_given() -> None:
    lt = FakeLt()
    library = fake_cublas.library_of(lt)
    (one,) = candidates(library, PRODUCT).found
    _, addresses = fake_cublas.placed([np.zeros(8192, np.uint8)] * 3)
    product = EnqueuedProduct(library, PRODUCT, one, addresses)
    for handle in (5, 6):
        product.enqueue(FakeStream(handle))
    assert lt.streams == [5, 6]


def test_without_the_bindings_the_missing_piece_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvmath", None)
    cublas.library.cache_clear()
    with pytest.raises(MissingPiece, match="nvmath-python") as missing:
        cublas.library()
    assert missing.value.fix == "pip install 'wmmagen[cublas]'"
    assert LibraryCandidates(PRODUCT).carry_out(FakeCard()) == Absent(missing.value.message, missing.value.fix)  # type: ignore[arg-type]
    with pytest.raises(MissingPiece, match="nvmath-python"):
        CardLibrary(fake_cublas.asking(FakeCard()), "a card").candidates(PRODUCT)


def test_without_the_library_the_missing_piece_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> int:
        raise RuntimeError("libcublasLt.so was not found")

    lt = types.SimpleNamespace(get_version=absent)
    bindings = types.ModuleType("nvmath.bindings")
    nvmath = types.ModuleType("nvmath")
    bindings.cublas, bindings.cublasLt = FakeBlas, lt  # type: ignore[attr-defined]
    nvmath.bindings, nvmath.CudaDataType = bindings, CudaDataType  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvmath", nvmath)
    monkeypatch.setitem(sys.modules, "nvmath.bindings", bindings)
    cublas.library.cache_clear()
    with pytest.raises(MissingPiece, match=r"libcublasLt\.so was not found"):
        cublas.library()


def test_a_refusal_of_the_library_is_a_refused_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    lt = FakeLt(fails={"matmul": FakeBlas.Status.NOT_SUPPORTED})
    monkeypatch.setattr(cublas, "library", lambda: fake_cublas.library_of(lt))
    place = CardLibrary(fake_cublas.asking(FakeCard()), "a card")
    (one,) = place.candidates(PRODUCT).found
    assert isinstance(one, Candidate)
    with pytest.raises(LaunchFault, match="CUBLAS_STATUS_NOT_SUPPORTED"):
        place.run(PRODUCT, one, [np.zeros(8192, np.uint8)] * 3)


def test_the_names_are_those_of_the_real_bindings() -> None:
    reason = "needs the bindings: nvmath-python"
    lt = pytest.importorskip("nvmath.bindings.cublasLt", reason=reason)
    blas = pytest.importorskip("nvmath.bindings.cublas", reason=reason)
    data_type = pytest.importorskip("nvmath", reason=reason).CudaDataType
    for fake, real in (
        (fake_cublas.ComputeType, blas.ComputeType),
        (fake_cublas.Operation, blas.Operation),
        (fake_cublas.Status, blas.Status),
        (fake_cublas.CudaDataType, data_type),
        (fake_cublas.DescAttribute, lt.MatmulDescAttribute),
        (fake_cublas.Epilogue, lt.Epilogue),
        (fake_cublas.PreferenceAttribute, lt.MatmulPreferenceAttribute),
        (fake_cublas.ConfigAttribute, lt.MatmulAlgoConfigAttribute),
        (fake_cublas.LayoutAttribute, lt.MatrixLayoutAttribute),
    ):
        assert {member.name: int(member) for member in fake} == {name: int(real[name]) for name in fake.__members__}
    assert lt.matmul_heuristic_result_dtype == fake_cublas.RESULT
    functions = [
        name for name in vars(FakeLt) if name.startswith(("matmul_", "matrix_")) or name in ("create", "matmul")
    ]
    assert [name for name in functions if not hasattr(lt, name)] == []
    for kind in ARITHMETIC.values():
        assert kind.compute in blas.ComputeType.__members__
        assert {kind.scale, kind.operand, kind.result} <= set(data_type.__members__)
