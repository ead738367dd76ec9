"""Denominators of a whole chain: what is asked of the library, what is right for it, and why there is none."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests import fake_cublas
from tests.fake_cublas import FakeBlas, FakeCard, FakeLt
from wmmagen import bench, denominators, elementwise, epilogue, layout, reference
from wmmagen.backends import Pointer, cublas
from wmmagen.backends.library import CardLibrary
from wmmagen.config import Operation, Problem
from wmmagen.denominators import Denominator
from wmmagen.dtypes import F16, F32
from wmmagen.errors import MissingPiece
from wmmagen.timing import TimingProtocol

SIZE = (24, 40, 16)


def problem_of(chain: str, d: Any = F16, **more: Any) -> Problem:
    operation = Operation(F16, F32, d, epilogue=epilogue.read(chain))
    return Problem.packed(operation, *SIZE, 8, **more)


def of_kind(problem: Problem, kind: str) -> Denominator:
    return next(one for one in denominators.denominators(problem) if one.kind == kind)


def library(monkeypatch: pytest.MonkeyPatch, card: FakeCard | None = None, **lt: Any) -> tuple[CardLibrary, FakeLt]:
    told = FakeLt(**lt)
    monkeypatch.setattr(cublas, "library", lambda: fake_cublas.library_of(told))
    compiler: Callable[[str, str], bytes] = lambda source, entry: source.encode()  # noqa: E731
    return CardLibrary(fake_cublas.asking(card or FakeCard()), "a card", compiler), told


@pytest.mark.parametrize(
    ("chain", "asked"),
    [
        ("biascol", "BIAS"),
        ("relu", "RELU"),
        ("biascol+relu", "RELU_BIAS"),
        ("gelutanh", "GELU"),
        ("biascol+gelutanh", "GELU_BIAS"),
        ("linear+biascol+gelutanh", "GELU_BIAS"),
    ],
)
@pytest.mark.parametrize("d", [F16, F32], ids=lambda d: d.name)
def test_the_library_s_own_epilogue_is_the_chain(
    chain: str, asked: str, d: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, lt = library(monkeypatch)
    scaled = {"alpha": 2.0, "beta": -1.0} if "linear" in chain else {}
    problem = problem_of(chain, d, **scaled)
    figure = denominators.measure(of_kind(problem, "own epilogue"), place, TimingProtocol())
    assert figure.best is not None, figure
    assert lt.asked["operation"].attributes[fake_cublas.DescAttribute.EPILOGUE] == fake_cublas.Epilogue[asked]
    aligned = lt.asked["operation"].attributes.get(fake_cublas.DescAttribute.BIAS_POINTER)
    assert aligned == (256 if "biascol" in chain else None)


@pytest.mark.parametrize("chain", ["biascol", "biascol+relu", "biascol+gelutanh"])
def test_a_bias_that_is_not_the_columns_is_seen(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, _ = library(monkeypatch)
    told = Denominator.product

    def shifted(self: Denominator, library: Any) -> Any:
        product = told(self, library)
        assert product.bias is not None
        return replace(product, bias=Pointer(product.bias.buffer, product.bias.offset + 2))

    monkeypatch.setattr(Denominator, "product", shifted)
    figure = denominators.measure(of_kind(problem_of(chain), "own epilogue"), place, TimingProtocol())
    assert figure.best is None and "none of 1 candidates is exact" in figure.reason


def test_a_gelu_that_is_farther_off_than_the_hardware_s_tanh_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    denominator = of_kind(problem_of("gelutanh", F32), "own epilogue")
    case = denominator.case()
    x = reference.product(case.inputs).astype(np.float64)  # type: ignore[union-attr]
    tanh = np.tanh(0.7978845608028654 * (x + 0.044715 * x**3))
    for error, right in ((0.0, True), (0.9 * 2.0**-11, True), (-0.9 * 2.0**-11, True), (1.2 * 2.0**-11, False)):
        d = case.images[-1].pack((x / 2 * (1 + tanh * (1 + error))).astype(np.float32))  # type: ignore[union-attr]
        assert case.judged([*case.buffers[:-1], d]).exact is right, error


@pytest.mark.parametrize(
    ("problem", "own", "behind"),
    [
        (problem_of("biascol+gelu"), "no epilogue that is biascol+gelu", ""),
        (problem_of("biasrow+relu"), "no epilogue that is biasrow+relu", ""),
        (
            Problem.packed(Operation(F16, F32, F16, epilogue=epilogue.read("biascol"), c=F32), *SIZE),
            "in D's type alone",
            "",
        ),
        (
            Problem.packed(Operation(F16, F32, F16, epilogue=epilogue.read("linear+relu"), c=F32), *SIZE, beta=1.0),
            "in D's type alone",
            "C in D's type alone",
        ),
    ],
)
def test_what_is_no_chain_of_the_library_has_a_reason(problem: Problem, own: str, behind: str) -> None:
    for kind, words in (("own epilogue", own), ("kernel behind", behind)):
        found = of_kind(problem, kind)
        assert words in found.reason if words else not found.reason
    figure = denominators.measure(of_kind(problem, "own epilogue"), None, TimingProtocol())  # type: ignore[arg-type]
    assert figure.best is None and figure.reason == of_kind(problem, "own epilogue").reason


def test_plain_products_and_batches_have_the_two_that_they_had() -> None:
    assert (
        len(denominators.denominators(problem_of("none"))) == len(denominators.denominators(problem_of("linear"))) == 2
    )


def steps_of(problem: Problem) -> Callable[[Any, Any], None]:
    """What the kernel behind a product does, as NumPy computes it from the launch's own arguments."""
    rest = problem.doing(elementwise.rest_of(problem.operation))
    images = layout.images(problem)

    def work(launch: Any, addresses: Any) -> None:
        def bits(number: int) -> np.ndarray:
            image = images[number]
            memory = (ctypes.c_ubyte * image.total_bytes).from_address(addresses[number])
            return image.bits(np.frombuffer(memory, np.uint8))

        names = denominators.names_of(problem)
        read = {}
        for name in layout.operand_names(rest.operation)[2:]:
            at = names.index(name)
            assert Pointer(at, images[at].offset) in launch.arguments
            values = layout.decode(bits(at), images[at].element).astype(np.float64)
            if name.lower() in ("c", "r"):
                read[name.lower()] = values
            else:
                read[name] = values[0][:, None] if epilogue.along_row(name) else values[0]
        d = bits(len(images) - 1)
        sums = layout.decode(d, problem.operation.d).astype(np.float64)
        c = read.pop("c", None)
        value = reference.finish(rest, sums, c, read)
        d[:] = layout.encode(reference.round_once(value, problem.operation.d), problem.operation.d)

    return work


@pytest.mark.parametrize(
    "chain", ["biascol+gelu", "linear+biasrow+scalecol+residual+clamp", "silu", "expr(acc*2+c)+relu"]
)
def test_a_kernel_behind_the_product_computes_the_rest(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"alpha": 2.0, "beta": -1.0} if "linear" in chain else {}
    problem = problem_of(chain, **more, **({"low": -40.0, "high": 50.0} if "clamp" in chain else {}))
    place, lt = library(monkeypatch, FakeCard(kernel=steps_of(problem)))
    figure = denominators.measure(of_kind(problem, "kernel behind"), place, TimingProtocol())
    assert figure.best is not None, figure
    assert fake_cublas.DescAttribute.EPILOGUE not in lt.asked["operation"].attributes
    # Without the kernel, the product alone is wrong.
    place, _ = library(monkeypatch)
    assert denominators.measure(of_kind(problem, "kernel behind"), place, TimingProtocol()).best is None


def test_without_a_compiler_the_missing_piece_is_named() -> None:
    with pytest.raises(MissingPiece, match="compiles what would follow"):
        CardLibrary(lambda *_: None, "a card").compiled("", "")


def test_a_baseline_of_a_chain_has_a_time_or_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    place, _ = library(monkeypatch, fails={"matmul": FakeBlas.Status.INVALID_VALUE})
    for one in denominators.denominators(problem_of("biascol+relu")):
        assert bench.baseline(one, place, TimingProtocol()).reason


@pytest.mark.parametrize(("extra", "vector"), [(0, 8), (8, 8), (4, 4), (2, 2), (1, 1)])
def test_lanes_take_as_much_as_every_row_allows(extra: int, vector: int) -> None:
    problem = Problem.packed(Operation(F16, F32, F16, epilogue=epilogue.read("relu+residual")), 16, 40, 16, extra)
    assert elementwise.vector_of(problem) == vector
    places = list(zip(denominators.names_of(problem), layout.images(problem), strict=True))
    launch = elementwise.launch_of(problem, places)
    assert launch.grid == (1, 4, 1) and launch.arguments[-2:] == (problem.ldd, problem.ldr)
