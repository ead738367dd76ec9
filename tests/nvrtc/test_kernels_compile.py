"""Every kernel that the templates make compiles, without a warning, to tensor instructions.

Each pipeline for sm_75 with the tiles that are the defaults, all else with small ones: a tile's size decides how often
loops are unrolled, nothing of the text in them, and small ones are compiled in a third of the time. The proof of
the executor (`prove_executor.py`) and the lint's test of the committed kernels compile large ones for later ones.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cases_legality import config

import wmmagen
from wmmagen import coverage, defaults, derive, nvrtc, render, rules
from wmmagen.arch import ARCHS
from wmmagen.config import (
    Arrange,
    Copy,
    Feed,
    KernelConfig,
    Order,
    Residency,
    Store,
    read_pairs,
    values_of,
)
from wmmagen.errors import CompileError
from wmmagen.nvrtc import Binary
from wmmagen.render import Source

pytestmark = pytest.mark.usefixtures("headers_once")

PIPELINES = (
    "feed=global,copy=none,stages=1,pad_a=0,pad_b=0",
    "copy=ld,stages=1",
    "copy=ld,stages=2",
    *(f"copy=cpasync,stages={stages}" for stages in (2, 3, 4, 5)),
)
#: A tile that is compiled quickly, and in which every count of fragments is still told from the other.
SMALL = "frags=2x1"
CASES = [
    (sm, f"acc={acc},d={acc},inst={inst},{pipeline}{tile}")
    for sm, tile in ((75, ""), (90, f",{SMALL}"))
    for acc in ("f32", "f16")
    for inst in ("16x16x16", "8x32x16")
    for pipeline in PIPELINES
]
LEGAL = [(sm, pairs) for sm, pairs in CASES if rules.legal(config(pairs), ARCHS[sm])]
#: Every shape, layout pair and accumulator.
COMBINATIONS = [
    f"inst={inst},layout={layout},acc={acc}"
    for inst in ("16x16x16", "32x8x16", "8x32x16")
    for layout in ("rr", "rc", "cr", "cc")
    for acc in ("f32", "f16")
]
#: Each part of the templates that the combinations above do not reach.
PARTS = (
    "d=f16",
    "acc=f16,d=f32",
    "store=staged",
    "d=f16,feed=global",
    "epilogue=linear",
    "epilogue=linear,acc=f16",
    "epilogue=linear,d=f16",
    "epilogue=linear,acc=f16,d=f32",
    "epilogue=linear+biascol+relu,store=staged",
    "residency=global",
    "residency=global,copy=ld,stages=1",
    "residency=global,feed=global",
    "fragment_buffers=2",
    "fragment_buffers=2,feed=global",
    "raster=grouped8",
    "raster=panels8",
    "arrange_a=tiles,arrange_b=tiles",
    "arrange_a=tiles,arrange_b=tiles,layout=cc",
    "align_a=4,align_b=4",
    "align_a=2,align_b=2",
    "align_a=1,align_b=1",
    "align_a=8,align_b=2",
    "align_d=2,store=staged",
    "align_d=1,store=staged",
    "min_blocks=2,frags=2x2",
)
#: The narrow shape with row-major B, which is legal for one tile across.
NARROW = "inst=32x8x16,warps=1x1,frags=4x1"


def compiled(pairs: str, sm: int, *, strict: bool = False) -> tuple[KernelConfig, Source, Binary]:
    case = config(pairs)
    source = render.render(case, ARCHS[sm], strict_isa=strict)
    return case, source, nvrtc.compile_source(source.text, source.kernel, ARCHS[sm])


def completed(pairs: str, sm: int, *, strict: bool = False) -> tuple[KernelConfig, Source, Binary]:
    """The kernel that the command line makes of ``pairs``."""
    given = read_pairs(pairs)
    case = defaults.complete(given, ARCHS[sm], strict_isa=strict)
    assert rules.check(case, ARCHS[sm], strict_isa=strict) == [] and coverage.missing(case) == []
    source = render.render(case, ARCHS[sm], strict_isa=strict)
    return case, source, nvrtc.compile_source(source.text, source.kernel, ARCHS[sm])


def found(call: str, binary: Binary) -> list[tuple[str, ...]]:
    """What follows ``wmma.CALL.sync.aligned.`` in the PTX, word by word."""
    texts: list[str] = re.findall(rf"\bwmma\.{re.escape(call)}\.sync\.aligned\.([\w.]+)", binary.ptx)
    return [tuple(text.split(".")) for text in texts]


def check(case: KernelConfig, source: Source, binary: Binary) -> None:
    assert "warning" not in binary.log.lower() and "error" not in binary.log.lower()
    assert re.search(rf"\.entry {re.escape(source.kernel)}\(", binary.ptx)
    assert len(re.findall(r"\.entry ", binary.ptx)) == 1
    o, known = case.operation, derive.values(case)
    shape = f"m{case.inst.m}n{case.inst.n}k{case.inst.k}"
    order_a, order_b = ({"r": "row", "c": "col"}[letter] for letter in o.layout)
    products = found("mma", binary)
    assert set(products) == {(order_a, order_b, shape, o.acc.name, o.acc.name)}
    assert len(products) % (case.frags.m * case.frags.n * case.k_steps) == 0
    assert set(found("load.a", binary)) == {(order_a, shape, case.feed.value, o.a.name)}
    assert set(found("load.b", binary)) == {(order_b, shape, case.feed.value, o.a.name)}
    # Sums are stored where the tile of D is, and come back only where they live there or C is read as a fragment.
    parked = case.residency is Residency.GLOBAL
    direct = case.store is Store.DIRECT
    stores = {"global" if direct else "shared", *(["global"] if parked else [])}
    assert set(found("store.d", binary)) == {("row", shape, place, o.acc.name) for place in stores}
    reads_c = {("row", shape, "global", o.acc.name)} if parked or (direct and o.scaled) else set()
    assert set(found("load.c", binary)) == reads_c
    copied = set(re.findall(r"cp\.async\.(c[ag])\.shared\.global \[[^]]*\], \[[^]]*\], (\d+);", binary.ptx))
    widths = {align * o.a.bits // 8 for align in (o.align_a, o.align_b)} if case.copy is Copy.CPASYNC else set()
    assert copied == {("cg" if width == 16 else "ca", str(width)) for width in widths}
    assert ("cp.async" in binary.ptx) is (case.copy is Copy.CPASYNC)
    assert ("bar.sync" in binary.ptx) is (case.feed is Feed.SHARED)
    assert binary.static_shared_bytes == 0
    assert re.search(rf"\.maxntid {known['THREADS']}\b", binary.ptx)
    assert re.search(rf"\.minnctapersm {case.min_blocks}\b", binary.ptx)


def test_the_cases_are_legal_but_for_what_the_architectures_lack() -> None:
    refused = {(sm, pairs) for sm, pairs in CASES} - set(LEGAL)
    assert all("cpasync" in pairs and (sm == 75 or "inst=8x32x16" in pairs) for sm, pairs in refused)
    assert len(LEGAL) == 12 + 28


@pytest.mark.parametrize(("sm", "pairs"), LEGAL)
def test_a_kernel_compiles_to_tensor_instructions(sm: int, pairs: str) -> None:
    check(*compiled(pairs, sm))


#: Pipelines differ between sm_75 and the others, whose text is one but for their limits (a test below). So each
#: combination is compiled for sm_75 and for one of the others, in turns: every shape, every layout pair and every
#: accumulator meets each of them.
LATER = (80, 90, 120)
#: The declaration of a limit of an architecture, up to its value.
LIMIT = re.compile(r"^(constexpr int (?:MAX_SHARED_BYTES|MULTIPROCESSOR_\w+) = ).*")
TARGETS = [
    (sm, f"inst={inst},layout={layout},acc={acc}")
    for i, inst in enumerate(("16x16x16", "32x8x16", "8x32x16"))
    for j, layout in enumerate(("rr", "rc", "cr", "cc"))
    for k, acc in enumerate(("f32", "f16"))
    for sm in (75, LATER[(i + j + k) % len(LATER)])
]


def preferred(pairs: str) -> str:
    """Direct stores of narrow tiles of f16 are illegal; to say so at once spares thousands of preferences."""
    return f"{pairs},store=staged" if "inst=32x8x16" in pairs and "acc=f16" in pairs else pairs


def small(pairs: str) -> str:
    """``pairs`` with a small tile where none is given."""
    return pairs if "frags=" in pairs else f"{pairs},{SMALL}"


def test_every_value_of_a_combination_meets_every_architecture() -> None:
    assert {pairs for sm, pairs in TARGETS if sm == 75} == set(COMBINATIONS)
    assert {pairs for sm, pairs in TARGETS if sm != 75} == set(COMBINATIONS)
    met = {(sm, pair) for sm, pairs in TARGETS for pair in pairs.split(",")}
    assert len(met) == (1 + len(LATER)) * (3 + 4 + 2)


@pytest.mark.parametrize("pairs", COMBINATIONS)
def test_the_later_architectures_differ_in_limits_only(pairs: str) -> None:
    """The banner names the architecture, and the assertions its limits; the kernel between them is one text."""
    kernels = set()
    for sm in LATER:
        text = render.render(defaults.complete(read_pairs(preferred(pairs)), ARCHS[sm]), ARCHS[sm]).text
        lines = re.sub(rf"(\barch[ =])sm_{sm}\b|(__CUDA_ARCH__ == ){sm * 10}\b", r"\1\2", text).splitlines()
        kernels.add(tuple(re.sub(LIMIT, r"\1", line) for line in lines))
    assert len(kernels) == 1


@pytest.mark.parametrize(("sm", "pairs"), TARGETS)
def test_every_shape_with_every_layout_and_accumulator_compiles(sm: int, pairs: str) -> None:
    case, source, binary = completed(small(preferred(pairs)), sm)
    assert f"inst={case.inst},layout={case.operation.layout},acc={case.operation.acc.name}" == pairs
    check(case, source, binary)


@pytest.mark.parametrize("pairs", COMBINATIONS)
def test_every_shape_with_every_layout_and_accumulator_compiles_in_the_strict_reading(pairs: str) -> None:
    case, source, binary = completed(small(f"feed=shared,{pairs}"), 80, strict=True)
    assert f"inst={case.inst},layout={case.operation.layout},acc={case.operation.acc.name}" == pairs
    check(case, source, binary)


@pytest.mark.parametrize("sm", [75, 90])
@pytest.mark.parametrize("pairs", PARTS)
def test_every_part_of_the_templates_compiles(pairs: str, sm: int) -> None:
    case, source, binary = completed(small(pairs), sm)
    held = values_of(case)
    assert {key: held[key] for key in read_pairs(pairs)} == read_pairs(pairs)
    check(case, source, binary)


def test_no_part_of_the_templates_is_left_out() -> None:
    cases = [*(config(pairs) for _, pairs in LEGAL), *(defaults.complete(read_pairs(p), ARCHS[90]) for p in PARTS)]
    made = {key: {str(values_of(case)[key]) for case in cases} for key in ("residency", "store", "copy")}
    assert made == {
        "residency": set(Residency),
        "store": set(Store),
        "copy": set(Copy),
    }
    parts = {part.stem for part in render.template_root().glob("parts/epilogue_*.jinja")}
    assert {f"epilogue_{render.epilogue_part(case.operation)}" for case in cases} == parts
    assert {case.raster.order for case in cases} == set(Order)
    assert {arrange for case in cases for arrange in (case.arrange_a, case.arrange_b)} == set(Arrange)
    assert {case.fragment_buffers for case in cases} == {1, 2}


@pytest.mark.parametrize("sm", [75, 120])
@pytest.mark.parametrize("pipeline", ["copy=ld,stages=1", "copy=ld,stages=2"])
def test_the_narrow_shape_compiles(sm: int, pipeline: str) -> None:
    check(*compiled(f"{NARROW},{pipeline}", sm))


@pytest.mark.parametrize(
    "pairs", ["pad_a=16,pad_b=16", PIPELINES[0], "acc=f16,d=f16,pad_a=16,pad_b=16,copy=cpasync,stages=3"]
)
def test_the_strict_reading_compiles(pairs: str) -> None:
    check(*compiled(pairs, 80, strict=True))


@pytest.mark.parametrize(
    ("pairs", "line", "edited", "says"),
    [
        ("copy=ld,stages=2", "STAGES = 2;", "STAGES = 1;", "fills one stage while it reads the other"),
        ("copy=ld,stages=1", "ALIGN_B = 8;", "ALIGN_B = 4;", "a copy of B is 16 bytes"),
        ("copy=cpasync,stages=3", "ALIGN_A = 8;", "ALIGN_A = 4;", "a copy of A is 16 bytes"),
    ],
)
def test_a_number_that_the_text_was_written_for_cannot_be_edited(pairs: str, line: str, edited: str, says: str) -> None:
    source = render.render(config(pairs), ARCHS[80])
    assert source.text.count(line) == 1
    with pytest.raises(CompileError, match=says):
        nvrtc.compile_source(source.text.replace(line, edited), source.kernel, ARCHS[80])


@pytest.mark.parametrize("acc", ["f32", "f16"])
def test_the_prelude_of_an_f16_kernel_mentions_no_bf16(acc: str) -> None:
    text = render.render(config(f"acc={acc},d={acc}"), ARCHS[75]).text
    assert "bf16" not in text and "bfloat" not in text
    assert re.findall(r"#include <(.*)>", text.split("#ifndef")[0]) == ["cuda_fp16.h", "mma.h"]


AGAIN = """
import hashlib, sys
from wmmagen import config, nvrtc, render
from wmmagen.arch import ARCHS
source = render.render(config.parse(sys.argv[1]), ARCHS[75])
binary = nvrtc.compile_source(source.text, source.kernel, ARCHS[75])
print(hashlib.sha256(binary.cubin).hexdigest(), hashlib.sha256(binary.ptx.encode()).hexdigest())
"""


def test_one_request_is_one_binary_everywhere(tmp_path: Path) -> None:
    case, _, first = compiled("", 75)
    _, _, second = compiled("", 75)
    assert (first.cubin, first.ptx) == (second.cubin, second.ptx)
    place = os.pathsep.join(
        [str(Path(wmmagen.__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    elsewhere = subprocess.run(
        [sys.executable, "-c", AGAIN, str(case)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": place, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.split() == [
        hashlib.sha256(first.cubin).hexdigest(),
        hashlib.sha256(first.ptx.encode()).hexdigest(),
    ]
