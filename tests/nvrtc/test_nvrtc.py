"""Compiling, assembling and finding headers, with the real compiler. No GPU and no driver is needed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import wmmagen
from wmmagen import doctor, nvrtc
from wmmagen.arch import ARCHS
from wmmagen.errors import CompileError, MissingPiece

SM75, SM80, SM90 = ARCHS[75], ARCHS[80], ARCHS[90]
WMMA, WMMA_ENTRY = doctor.PROBE_SOURCE, doctor.PROBE_ENTRY

# 96 values live across a barrier do not fit into 32 registers.
SPILLING = """\
extern "C" __global__ void __maxnreg__(32) spilling(float* p, int n)
{
    float x[96];
#pragma unroll
    for (int i = 0; i < 96; i++) x[i] = p[i * n];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 96; i++) p[i * n + 1] = x[i] * x[(i * 7 + 3) % 96];
}
"""

CALLING = """\
__device__ __noinline__ float called(float x)
{
    volatile float a[20];
    for (int i = 0; i < 20; i++) a[i] = x * i;
    return a[(int)x];
}
extern "C" __global__ void calling(float* p) { p[0] = called(p[1]); }
"""


def static_array(size: int) -> str:
    return f"""\
extern "C" __global__ void array(char* p)
{{
    __shared__ char held[{size}];
    held[threadIdx.x] = p[threadIdx.x];
    __syncthreads();
    p[threadIdx.x] = held[p[0] * 7];
}}
"""


@pytest.fixture(scope="module")
def wmma_75() -> nvrtc.Binary:
    return nvrtc.compile_source(WMMA, WMMA_ENTRY, SM75)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing remembered of the libraries, before and after."""
    nvrtc._nvrtc.cache_clear()
    nvrtc._nvjitlink.cache_clear()
    yield
    nvrtc._nvrtc.cache_clear()
    nvrtc._nvjitlink.cache_clear()


@pytest.fixture
def linker() -> None:
    try:
        nvrtc.nvjitlink_version()
    except MissingPiece as error:
        pytest.skip(error.message)


# Compiling -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sm", [75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121])
def test_wmma_compiles_for(sm: int) -> None:
    binary = nvrtc.compile_source(WMMA, WMMA_ENTRY, ARCHS[sm])
    assert binary.cubin.startswith(b"\x7fELF")
    assert WMMA_ENTRY.encode() in binary.cubin
    assert f"\n.target sm_{sm}\n" in binary.ptx
    assert f".visible .entry {WMMA_ENTRY}(" in binary.ptx
    assert "wmma.mma.sync.aligned" in binary.ptx
    assert not binary.ptx.endswith("\0")
    assert f"Compiling entry function '{WMMA_ENTRY}' for 'sm_{sm}'" in binary.log
    assert (binary.entry, binary.arch) == (WMMA_ENTRY, ARCHS[sm])
    assert (binary.spill_bytes, binary.stack_bytes, binary.static_shared_bytes) == (0, 0, 0)
    assert f"Used {binary.registers} registers" in binary.log
    assert binary.registers > 0
    assert binary.seconds > 0
    assert binary.compiler == "NVRTC {}.{}".format(*nvrtc.version())


def test_spills_are_reported() -> None:
    binary = nvrtc.compile_source(SPILLING, "spilling", SM75)
    assert binary.registers == 32
    assert binary.spill_bytes > 0
    assert binary.stack_bytes > 0
    assert f"{binary.stack_bytes} bytes stack frame" in binary.log


def test_the_largest_static_array_is_counted() -> None:
    assert nvrtc.compile_source(static_array(49_152), "array", SM90).static_shared_bytes == 49_152


@pytest.mark.parametrize("sm", [75, 90, 120])
def test_one_byte_more_is_refused_by_the_assembler(sm: int) -> None:
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_source(static_array(49_153), "array", ARCHS[sm])
    assert "uses too much shared data (0xc001 bytes, 0xc000 max)" in caught.value.message
    assert "0xc001" in caught.value.log


def test_a_refused_source_shows_its_first_errors_and_carries_the_log() -> None:
    lines = "".join(f"    p[{i}] = missing_{i};\n" for i in range(9))
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_source(f'extern "C" __global__ void bad(int* p)\n{{\n{lines}}}\n', "bad", SM75)
    message, *shown = caught.value.message.splitlines()
    assert message == "NVRTC {}.{} refused bad for sm_75 (NVRTC_ERROR_COMPILATION)".format(*nvrtc.version())
    assert shown == [f'  bad.cu({3 + i}): error: identifier "missing_{i}" is undefined' for i in range(5)]
    assert 'identifier "missing_8" is undefined' in caught.value.log
    assert "9 errors detected" in caught.value.log
    assert caught.value.exit_status == 1


def test_a_static_assertion_is_shown() -> None:
    source = 'static_assert(1 == 2, "pad_a must be a multiple of 8");\nextern "C" __global__ void asserting() {}\n'
    with pytest.raises(CompileError, match=r"asserting\.cu\(1\): error: .*pad_a must be a multiple of 8"):
        nvrtc.compile_source(source, "asserting", SM75)


def test_a_warning_stays_in_the_log() -> None:
    source = 'extern "C" __global__ void warning(int* p) { int unused = 3; p[0] = 1; }\n'
    assert "warning.cu(1): warning" in nvrtc.compile_source(source, "warning", SM75).log


@pytest.mark.parametrize(
    ("source", "reports"),
    [("__global__ void absent() {}\n", "_Z6absentv"), ("__device__ int x;\n", "none")],
    ids=["mangled", "no kernel"],
)
def test_a_source_without_the_kernel_is_refused(source: str, reports: str) -> None:
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_source(source, "absent", SM75)
    assert caught.value.message.endswith(f"reports no kernel absent; it reports: {reports}")
    assert 'extern "C"' in caught.value.fix


def test_of_two_kernels_the_numbers_are_those_of_the_one_asked_for() -> None:
    both = SPILLING + static_array(1_000)
    spilling = nvrtc.compile_source(both, "spilling", SM75)
    array = nvrtc.compile_source(both, "array", SM75)
    assert (spilling.static_shared_bytes, array.static_shared_bytes) == (0, 1_000)
    assert (spilling.spill_bytes > 0, array.spill_bytes) == (True, 0)


def test_an_architecture_before_this_compiler_is_a_missing_piece() -> None:
    with pytest.raises(MissingPiece) as caught:
        nvrtc.compile_source(WMMA, WMMA_ENTRY, ARCHS[50])
    assert "does not compile for sm_50; it compiles for sm_" in caught.value.message
    assert caught.value.fix == f"use an earlier CUDA toolkit: this one begins at sm_{nvrtc.supported_archs()[0]}"


def test_an_architecture_after_this_compiler_asks_for_a_later_one() -> None:
    with pytest.raises(MissingPiece) as caught:
        nvrtc.compile_source(WMMA, WMMA_ENTRY, replace(SM90, sm=999))
    assert caught.value.fix.startswith("pip install --upgrade ")


def test_line_tables_are_there_when_asked_for_and_only_then(wmma_75: nvrtc.Binary) -> None:
    asked = nvrtc.compile_source(WMMA, WMMA_ENTRY, SM75, line_info=True)
    assert b".debug_line" in asked.cubin
    assert b".debug_line" not in wmma_75.cubin
    assert asked.registers == wmma_75.registers


class Counting:
    """The bindings, with the programs that are alive counted."""

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        self.made = self.alive = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lib, name)

    def nvrtcCreateProgram(self, *arguments: Any) -> Any:
        self.made += 1
        self.alive += 1
        return self.lib.nvrtcCreateProgram(*arguments)

    def nvrtcDestroyProgram(self, program: Any) -> Any:
        self.alive -= 1
        return self.lib.nvrtcDestroyProgram(program)


def test_every_program_is_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    lib, number = nvrtc._nvrtc()
    counting = Counting(lib)
    monkeypatch.setattr(nvrtc, "_nvrtc", lambda: (counting, number))
    nvrtc.compile_source(SPILLING, "spilling", SM75)
    for source in ("this is no C++", "__device__ int x;"):
        with pytest.raises(CompileError):
            nvrtc.compile_source(source, "absent", SM75)
    assert (counting.made, counting.alive) == (3, 0)


# The same bytes ------------------------------------------------------------------------------------------------------

STATEFUL = (
    WMMA
    + "namespace { __constant__ int kept; }\nstatic __device__ int counted;\n"
    + static_array(64).replace("p[0] * 7", "p[0] * 7 + kept + atomicAdd(&counted, 1)")
)


@pytest.mark.parametrize("sm", [75, 90])
@pytest.mark.parametrize("line_info", [False, True])
def test_compiling_twice_gives_the_same_bytes(sm: int, line_info: bool) -> None:
    first, second = (nvrtc.compile_source(STATEFUL, "array", ARCHS[sm], line_info=line_info) for _ in range(2))
    assert first.cubin == second.cubin
    assert first.ptx == second.ptx


@pytest.mark.parametrize("line_info", [False, True])
def test_precompiled_headers_change_neither_bytes_nor_log(tmp_path: Path, line_info: bool) -> None:
    """For two architectures and two sets of options in one folder, the second time from what the first one left."""
    for sm in (75, 90, 75):
        plain = nvrtc.compile_source(WMMA, WMMA_ENTRY, ARCHS[sm])
        other = nvrtc.compile_source(WMMA, WMMA_ENTRY, ARCHS[sm], precompiled=tmp_path)
        timeless = [[line for line in b.log.splitlines() if "Compile time" not in line] for b in (plain, other)]
        assert (other.cubin, other.ptx, timeless[0]) == (plain.cubin, plain.ptx, timeless[1])
        if line_info:
            assert (
                b".debug_line"
                in nvrtc.compile_source(WMMA, WMMA_ENTRY, ARCHS[sm], line_info=True, precompiled=tmp_path).cubin
            )
    assert len(list(tmp_path.glob("*/*.pch"))) == (4 if line_info else 2)


def test_texts_of_other_headers_share_a_folder_without_a_word(tmp_path: Path) -> None:
    other = "#include <cuda_bf16.h>\n" + WMMA
    for text in (WMMA, other, WMMA, other):
        assert "arning" not in nvrtc.compile_source(text, WMMA_ENTRY, SM75, precompiled=tmp_path).log
    assert len(list(tmp_path.glob("*/*.pch"))) == 2


def test_another_process_in_another_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    here = nvrtc.compile_source(STATEFUL, "array", SM75)
    program = (
        "import hashlib, sys; from wmmagen import nvrtc; from wmmagen.arch import ARCHS\n"
        "b = nvrtc.compile_source(sys.stdin.read(), 'array', ARCHS[75])\n"
        "print(hashlib.sha256(b.cubin).hexdigest(), hashlib.sha256(b.ptx.encode()).hexdigest())"
    )
    root = str(Path(wmmagen.__file__).parents[1])
    there = subprocess.run(
        [sys.executable, "-c", program],
        input=STATEFUL,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root, "TZ": "Pacific/Kiritimati", "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert there.stdout.split() == [hashlib.sha256(part).hexdigest() for part in (here.cubin, here.ptx.encode())]


# Headers -------------------------------------------------------------------------------------------------------------


def test_headers_are_complete_and_tell_their_version() -> None:
    found = nvrtc.headers()
    (directory,) = found.directories
    assert all((Path(directory) / name).is_file() for name in nvrtc.REQUIRED_HEADERS)
    number = int("".join(found.version.split(".")))
    text = (Path(directory) / "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
    assert f"CUDART_VERSION  {number // 10 * 1000 + number % 10 * 10}" in text


@pytest.mark.parametrize("linked", [True, False], ids=["symlink", "copy"])
def test_headers_under_a_path_with_spaces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wmma_75: nvrtc.Binary, linked: bool
) -> None:
    (original,) = nvrtc.headers().directories
    toolkit = tmp_path / "tool kit, of 2 words"
    toolkit.mkdir()
    if linked:
        (toolkit / "include").symlink_to(original, target_is_directory=True)
    else:
        shutil.copytree(original, toolkit / "include")
    monkeypatch.setattr(nvrtc, "_wheel_includes", list)
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    assert nvrtc.headers() == replace(nvrtc.headers(), directories=(str(toolkit / "include"),), origin="CUDA_HOME")
    assert nvrtc.compile_source(WMMA, WMMA_ENTRY, SM75).cubin == wmma_75.cubin


def make_toolkit(root: Path, cudart: int, without: str = "") -> Path:
    include = root / "include"
    for name in nvrtc.REQUIRED_HEADERS:
        if name != without:
            (include / name).parent.mkdir(parents=True, exist_ok=True)
            (include / name).touch()
    (include / "cuda_runtime_api.h").write_text(f"// text\n#define CUDART_VERSION  {cudart}\n")
    return include


def test_places_are_tried_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel, home, path = (make_toolkit(tmp_path / n, v) for n, v in (("w", 13_050), ("h", 12_090), ("p", 13_010)))
    monkeypatch.setattr(nvrtc, "_wheel_includes", lambda: [wheel])
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "h"))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "p"))
    assert nvrtc.headers() == nvrtc.Headers((str(wheel),), "13.5", "pip wheels")
    monkeypatch.setattr(nvrtc, "_wheel_includes", list)
    assert nvrtc.headers() == nvrtc.Headers((str(home),), "12.9", "CUDA_HOME")
    monkeypatch.setenv("CUDA_HOME", "")
    assert nvrtc.headers() == nvrtc.Headers((str(path),), "13.1", "CUDA_PATH")
    monkeypatch.delenv("CUDA_PATH")
    assert list(nvrtc._places()) == [("/usr/local/cuda", "/usr/local/cuda/include")]


def test_the_latest_wheel_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("cu9", "cu12", "cu13", "cublas", "cudnn"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(nvrtc, "wheel_roots", lambda: [tmp_path])
    assert nvrtc._wheel_includes() == [tmp_path / name / "include" for name in ("cu13", "cu12", "cu9")]


def test_an_incomplete_place_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    incomplete = make_toolkit(tmp_path / "w", 13_050, without="crt/mma.h")
    complete = make_toolkit(tmp_path / "h", 13_000)
    monkeypatch.setattr(nvrtc, "_places", lambda: [("pip wheels", str(incomplete)), ("CUDA_HOME", str(complete))])
    assert nvrtc.headers() == nvrtc.Headers((str(complete),), "13.0", "CUDA_HOME")


def test_no_complete_place_tells_what_each_one_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    incomplete = make_toolkit(tmp_path / "w", 13_050, without="crt/mma.h")
    nowhere = tmp_path / "nowhere"
    monkeypatch.setattr(nvrtc, "_places", lambda: [("pip wheels", str(incomplete)), ("CUDA_HOME", str(nowhere))])
    with pytest.raises(MissingPiece) as caught:
        nvrtc.headers()
    assert caught.value.message == (
        "no directory holds all headers of a WMMA kernel: "
        f"{incomplete} (pip wheels) lacks crt/mma.h; {nowhere} (CUDA_HOME) does not exist"
    )
    assert "pip install 'cuda-toolkit[nvrtc,cudart,crt]'" in caught.value.fix


def test_a_header_without_a_version_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "cuda_runtime_api.h").write_text("// #define CUDART_VERSION 13050\n")
    assert nvrtc._header_version(tmp_path) == "unknown"


# What is missing -----------------------------------------------------------------------------------------------------


def test_importing_the_module_imports_no_cuda() -> None:
    program = (
        "import sys; before = set(sys.modules); import wmmagen.nvrtc, wmmagen.doctor\n"
        "print(sorted(m for m in set(sys.modules) - before if m.split('.')[0] in ('cuda', 'nvidia', 'numpy')))"
    )
    root = str(Path(wmmagen.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("fresh")
def test_missing_bindings_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvjitlink", None)
    for call in (nvrtc.version, nvrtc.supported_archs, nvrtc.library):
        with pytest.raises(MissingPiece, match="bindings of NVRTC") as caught:
            call()
        assert caught.value.fix == "pip install 'cuda-toolkit[nvrtc,cudart,crt]' cuda-python"
    with pytest.raises(MissingPiece, match="bindings of NVRTC"):
        nvrtc.compile_source(WMMA, WMMA_ENTRY, SM75)
    with pytest.raises(MissingPiece, match="bindings of nvJitLink"):
        nvrtc.nvjitlink_version()


@pytest.mark.usefixtures("fresh")
def test_a_missing_library_names_the_command(monkeypatch: pytest.MonkeyPatch, wmma_75: nvrtc.Binary) -> None:
    def not_found() -> None:
        raise RuntimeError('Failure finding "the library"\n  listdir of everywhere')

    fake = types.SimpleNamespace(nvrtcVersion=not_found, version=not_found)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", fake)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvjitlink", fake)
    with pytest.raises(MissingPiece) as caught:
        nvrtc.version()
    assert caught.value.message == 'the library of NVRTC is not here: Failure finding "the library"'
    assert caught.value.fix == nvrtc.INSTALL
    with pytest.raises(MissingPiece) as caught:
        nvrtc.assemble(wmma_75, SM90)
    assert caught.value.message == 'the library of nvJitLink is not here: Failure finding "the library"'
    assert caught.value.fix == "pip install 'cuda-toolkit[nvjitlink]' cuda-python"


def test_the_version_and_the_architectures_are_those_of_the_library() -> None:
    major, minor = nvrtc.version()
    assert major >= 12
    assert minor >= 0
    archs = nvrtc.supported_archs()
    assert list(archs) == sorted(set(archs))
    assert {75, 80, 86, 89, 90} <= set(archs)
    assert "nvrtc" in Path(nvrtc.library()).name


# The log of ptxas ----------------------------------------------------------------------------------------------------

LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_75'
ptxas info    : Function properties for one
ptxas         .     80 bytes stack frame, 12 bytes spill stores, 30 bytes spill loads
ptxas info    : Used 25 registers, used 1 barriers, 80 bytes cumulative stack size, 4000 bytes smem, 360 bytes cmem[0]
ptxas info    : Function properties for _Z6calledf
ptxas         .     7 bytes stack frame, 8 bytes spill stores, 9 bytes spill loads
ptxas info    : Compiling entry function 'two' for 'sm_75'
ptxas info    : Function properties for two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, 376 bytes cmem[0]
"""

LINKED = """\
info    : Function properties for 'one':
info    : used 45 registers, used 9 barriers, 88 stack, 5024 bytes smem, 536 bytes cmem[0], 0 bytes lmem
"""


@pytest.mark.parametrize(
    ("log", "entry", "usage"),
    [
        (LOG, "one", nvrtc._Usage(25, 42, 80, 4000)),
        (LOG, "two", nvrtc._Usage(40, 0, 0, 0)),
        (LOG + LINKED, "one", nvrtc._Usage(45, 42, 88, 4000)),
        (LOG + LINKED, "two", nvrtc._Usage(40, 0, 0, 0)),
        (LOG, "_Z6calledf", None),
        (LOG, "on", None),
        (LINKED, "one", None),
        ("", "one", None),
    ],
)
def test_what_is_read_from_the_log(log: str, entry: str, usage: nvrtc._Usage | None) -> None:
    assert nvrtc._usage(log, entry) == usage


# Assembling ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("linker")
@pytest.mark.parametrize("sm", [75, 80, 86, 89, 90, 100, 120])
def test_ptx_of_turing_is_assembled_for(sm: int, wmma_75: nvrtc.Binary) -> None:
    made = nvrtc.assemble(wmma_75, ARCHS[sm])
    assert made.cubin.startswith(b"\x7fELF")
    assert (made.entry, made.arch, made.ptx) == (WMMA_ENTRY, ARCHS[sm], wmma_75.ptx)
    assert f"Compiling entry function '{WMMA_ENTRY}' for 'sm_{sm}'" in made.log
    assert f"Used {made.registers} registers" in made.log
    assert (made.spill_bytes, made.stack_bytes, made.static_shared_bytes) == (0, 0, 0)
    assert made.compiler == "nvJitLink {}.{}".format(*nvrtc.nvjitlink_version())
    assert made.cubin == nvrtc.assemble(wmma_75, ARCHS[sm]).cubin


@pytest.mark.usefixtures("linker")
def test_numbers_after_assembling_are_those_of_the_new_card() -> None:
    spilling = nvrtc.assemble(nvrtc.compile_source(SPILLING, "spilling", SM75), SM90)
    assert spilling.registers == 32
    assert spilling.spill_bytes > 0
    array = nvrtc.assemble(nvrtc.compile_source(static_array(49_152), "array", SM75), SM90)
    assert array.static_shared_bytes == 49_152


@pytest.mark.usefixtures("linker")
def test_a_called_function_is_counted_into_the_kernel() -> None:
    made = nvrtc.assemble(nvrtc.compile_source(CALLING, "calling", SM75), SM90)
    assert f"info    : used {made.registers} registers" in made.log
    assert made.stack_bytes >= 80


def test_ptx_of_a_later_architecture_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    hopper = nvrtc.compile_source(WMMA, WMMA_ENTRY, SM90)
    monkeypatch.setattr(nvrtc, "_nvjitlink", lambda: pytest.fail("nothing to link"))
    with pytest.raises(CompileError) as caught:
        nvrtc.assemble(hopper, SM80)
    assert caught.value.message == (
        f"the PTX of {WMMA_ENTRY} is made for sm_90 and cannot run on sm_80, which is earlier"
    )


@pytest.mark.usefixtures("linker")
@pytest.mark.parametrize(
    ("change", "sm", "told"),
    [
        (lambda ptx: ptx.replace(".version ", ".version 9"), 90, "Unsupported .version"),
        (lambda ptx: ptx.replace("wmma.mma.sync", "wmma.nothing.sync"), 90, "error"),
        (lambda ptx: ptx, 999, "UNRECOGNIZED_ARCH"),
    ],
    ids=["a later PTX", "broken PTX", "an unknown card"],
)
def test_what_the_linker_refuses(wmma_75: nvrtc.Binary, change: Any, sm: int, told: str) -> None:
    with pytest.raises(CompileError) as caught:
        nvrtc.assemble(replace(wmma_75, ptx=change(wmma_75.ptx)), replace(SM90, sm=sm))
    assert caught.value.message.startswith("nvJitLink ")
    assert told in caught.value.message


def test_ptx_without_a_target_is_refused(wmma_75: nvrtc.Binary) -> None:
    with pytest.raises(CompileError, match="names no target"):
        nvrtc.assemble(replace(wmma_75, ptx=""), SM90)


# The doctor ----------------------------------------------------------------------------------------------------------


def test_the_doctor_finds_what_compiles_kernels() -> None:
    def no_driver() -> str:
        raise MissingPiece("there is no driver", "install it")

    findings = doctor.examine(tuple, no_driver)
    assert [f.name for f in findings if f.needed and f.state != "missing"] == [
        "Python",
        "NVRTC",
        "CUDA headers",
        "architectures",
        "a WMMA compile for sm_75",
    ]
    assert doctor.ok(findings)
