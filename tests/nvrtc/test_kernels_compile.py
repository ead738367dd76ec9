"""Every kernel that the templates make compiles, without a warning, to tensor instructions."""

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
from wmmagen import derive, nvrtc, render, rules
from wmmagen.arch import ARCHS
from wmmagen.config import KernelConfig
from wmmagen.nvrtc import Binary
from wmmagen.render import Source

PIPELINES = (
    "feed=global,copy=none,stages=1,pad_a=0,pad_b=0",
    "copy=ld,stages=1",
    "copy=ld,stages=2",
    *(f"copy=cpasync,stages={stages}" for stages in (2, 3, 4, 5)),
)
CASES = [
    (sm, f"acc={acc},d={acc},inst={inst},{pipeline}")
    for sm in (75, 80, 90, 120)
    for acc in ("f32", "f16")
    for inst in ("16x16x16", "8x32x16")
    for pipeline in PIPELINES
]
LEGAL = [(sm, pairs) for sm, pairs in CASES if rules.legal(config(pairs), ARCHS[sm])]
#: The narrow shape with row-major B, which is legal for one tile across.
NARROW = "inst=32x8x16,warps=1x1,frags=4x1"


def compiled(pairs: str, sm: int, *, strict: bool = False) -> tuple[KernelConfig, Source, Binary]:
    case = config(pairs)
    source = render.render(case, ARCHS[sm], strict_isa=strict)
    return case, source, nvrtc.compile_source(source.text, source.kernel, ARCHS[sm])


def check(case: KernelConfig, source: Source, binary: Binary) -> None:
    assert "warning" not in binary.log.lower() and "error" not in binary.log.lower()
    assert re.search(rf"\.entry {re.escape(source.kernel)}\(", binary.ptx)
    assert len(re.findall(r"\.entry ", binary.ptx)) == 1
    acc = case.operation.acc.name
    shape = f"m{case.inst.m}n{case.inst.n}k{case.inst.k}"
    products = re.findall(r"wmma\.mma\.sync\.aligned\.row\.row\.(\w+)\.(\w+)\.(\w+)", binary.ptx)
    assert set(products) == {(shape, acc, acc)}
    assert len(products) % (case.frags.m * case.frags.n * case.k_steps) == 0
    assert ("cp.async" in binary.ptx) is (case.copy == "cpasync")
    assert ("bar.sync" in binary.ptx) is (case.feed == "shared")
    assert binary.static_shared_bytes == 0
    threads = derive.values(case)["THREADS"]
    assert re.search(rf"\.maxntid {threads}\b", binary.ptx)


def test_the_cases_are_legal_but_for_what_the_architectures_lack() -> None:
    refused = {(sm, pairs) for sm, pairs in CASES} - set(LEGAL)
    assert all("cpasync" in pairs and (sm == 75 or "inst=8x32x16" in pairs) for sm, pairs in refused)
    assert len(LEGAL) == 12 + 28 + 28 + 26


@pytest.mark.parametrize(("sm", "pairs"), LEGAL)
def test_a_kernel_compiles_to_tensor_instructions(sm: int, pairs: str) -> None:
    check(*compiled(pairs, sm))


@pytest.mark.parametrize("sm", [75, 120])
@pytest.mark.parametrize("pipeline", ["copy=ld,stages=1", "copy=ld,stages=2"])
def test_the_narrow_shape_compiles(sm: int, pipeline: str) -> None:
    check(*compiled(f"{NARROW},{pipeline}", sm))


@pytest.mark.parametrize(
    "pairs", ["pad_a=16,pad_b=16", PIPELINES[0], "acc=f16,d=f16,pad_a=16,pad_b=16,copy=cpasync,stages=3"]
)
def test_the_strict_reading_compiles(pairs: str) -> None:
    check(*compiled(pairs, 80, strict=True))


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
