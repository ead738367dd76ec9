"""Emitted files beside nvcc alone: they build as libraries, as C and as C++, and check their contract without a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.libraries import CONFIGS, Launcher, launchers
from tests.nvcc import compile_with, demand_nvcc
from wmmagen import derive, emit, nvrtc, selftest
from wmmagen.arch import ARCHS
from wmmagen.config import KernelConfig
from wmmagen.defaults import read_config
from wmmagen.errors import ConfigError
from wmmagen.rules import Status

SM80 = ARCHS[80]


@pytest.fixture(scope="module")
def all_built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[KernelConfig, Launcher]]:
    configs = [read_config(text, SM80) for text in CONFIGS]
    made = launchers(configs, SM80, demand_nvcc(), tmp_path_factory.mktemp("emitted"))
    return dict(zip(CONFIGS, zip(configs, made, strict=True), strict=True))


@pytest.fixture(params=CONFIGS)
def built(
    request: pytest.FixtureRequest, all_built: dict[str, tuple[KernelConfig, Launcher]]
) -> tuple[KernelConfig, Launcher]:
    return all_built[request.param]


def test_every_bad_call_is_refused_before_anything_is_launched(
    built: tuple[KernelConfig, Launcher],
) -> None:
    config, library = built
    known = derive.values(config)
    m, n, k = known["BLOCK_M"], known["BLOCK_N"], known["BLOCK_K"]
    some = 1 << 20  # an address that is aligned and never read: every call here ends before the launch
    scaled = config.operation.scaled

    def status(
        a: int = some, b: int = some, d: int = some, m: int = m, n: int = n, k: int = k,
        lda: int = k, ldb: int = n, ldd: int = n, workspace: int = some, size: int | None = None,
    ) -> int:  # fmt: skip
        c, ldc, factors = ((2 * some,), (n,), (2.0, -1.0)) if scaled else ((), (), ())
        asked = known["TILE_WORK_BYTES"] if size is None else size
        shared = (workspace, asked) if config.reduction == "workspace" else ()
        call = (a, b, *c, d, m, n, k, lda, ldb, *ldc, ldd, *factors, *shared)
        answer = int(library.launch(*call, None))
        assert library.supports(*call) == answer
        return answer

    size, leading, pointer, memory = 1, 2, 3, 8
    assert status(m=-m) == size
    assert status(m=m + 1) == size
    assert status(n=n + 8) == size
    assert status(k=k + 16, lda=k + 16) == size or k == 16
    assert status(lda=k - 8) == leading
    assert status(lda=k + 4) == leading
    assert status(ldb=n - 8) == leading
    assert status(ldd=n - 8) == leading
    assert status(ldd=n + 1) == leading
    assert status(a=some + 8) == pointer
    assert status(b=some + 2) == pointer
    assert status(d=some + 8) == pointer
    assert status(d=0) == pointer
    assert status(a=0) == pointer
    assert status(m=0) == 0
    assert status(n=0, ldb=0, ldd=0) == 0
    if config.reduction == "workspace":
        assert [status(workspace=0), status(workspace=some + 16), status(workspace=some, size=0)] == [memory] * 3
        assert status(m=2 * m) == status(size=known["TILE_WORK_BYTES"] - 1) == memory
        assert [library.workspace_bytes(*extents) for extents in ((m, n), (3 * m, 2 * n), (0, n), (-m, n))] == [
            known["TILE_WORK_BYTES"], 6 * known["TILE_WORK_BYTES"], 0, 0,
        ]  # fmt: skip
    if config.reduction == "atomic":
        assert status(ldd=2**29) == leading


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="a driver is here")
def test_without_a_driver_a_call_ends_in_a_status(built: tuple[KernelConfig, Launcher]) -> None:
    config, library = built
    call = selftest.acceptable(config).values()
    assert library.supports(*call) == library.launch(*call, None) == list(Status).index(Status.DEVICE)


def test_every_spoilt_call_of_the_self_test_is_refused_as_it_says(built: tuple[KernelConfig, Launcher]) -> None:
    config, library = built
    known = {status: number for number, status in enumerate(Status)}
    for spoilt in selftest.spoilt_calls(config):
        call = {**selftest.acceptable(config), **spoilt.changes}
        assert library.supports(*call.values()) == known[spoilt.status], spoilt.what
        assert library.launch(*call.values(), None) == known[spoilt.status], spoilt.what
    for status, number in known.items():
        if status is Status.WORKSPACE and config.reduction != "workspace":
            continue  # an answer that this launcher does not have
        assert library.status_text(number).decode() == status.says
    assert library.status_text(len(known)).decode() not in [status.says for status in Status]


#: As some frameworks build: no arithmetic and no conversion of halves by operators.
NO_OPERATORS = tuple(
    f"-D__CUDA_NO_{name}__"
    for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
)
TINY = "warps=1x1,frags=1x1,k_steps=1"
#: Two kernels, one of them twice, built for two architectures and by the rules of two programs.
LINKED = {
    "gemm_one": (f"{TINY},copy=ld,stages=1", 75, ()),
    "gemm_two": (f"{TINY},copy=cpasync,stages=2,acc=f16,epilogue=linear", 90, NO_OPERATORS),
    "gemm_one_again": (f"{TINY},copy=ld,stages=1", 75, ("-std=c++17", *NO_OPERATORS)),
}
MAIN = """\
#include "gemm_one.h"
#include "gemm_two.h"
#include "gemm_one.h"
#include "gemm_one_again.h"

static char some[4096];

int main(void) {
  // No element, no launch: nothing here needs a GPU.
  wmmagen_status nothing = gemm_one(0, 0, 0, 0, 16, 16, 16, 16, 16, 0);
  wmmagen_status little = gemm_two_supports(0, 0, 0, 0, 16, 0, 16, 16, 16, 16, 16, 1.0f, 0.0f);
  char* a = some + 256 - (unsigned long long)some % 256;
  wmmagen_status here = gemm_one_again_supports(a, a, a, 16, 16, 16, 16, 16, 16);
  wmmagen_status one = gemm_one_supports(a, a, a, 16, 16, 16, 16, 16, 16);
  if (nothing != WMMAGEN_OK || little != WMMAGEN_OK || here != one) return 1;
  return gemm_two_status_text(here) == 0 || gemm_one_status_text(WMMAGEN_OK)[0] == 0;
}
"""


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """nvcc, and the folder with the emitted kernels of :data:`LINKED`, compiled."""
    nvcc, folder = demand_nvcc(), tmp_path_factory.mktemp("linked")
    for symbol, (pairs, sm, options) in LINKED.items():
        source = emit.emit(read_config(pairs, ARCHS[sm]), ARCHS[sm], folder, symbol=symbol)[0]
        compile_with(nvcc, source, ARCHS[sm], *options, "-c", "-o", str(source.with_suffix(".o")))
    return nvcc, folder


@pytest.mark.parametrize(
    ("compiler", "standard", "ending"), [("gcc", "c11", "c"), ("gcc", "c99", "c"), ("g++", "c++17", "cpp")]
)
def test_kernels_link_into_one_program(linked: tuple[Path, Path], compiler: str, standard: str, ending: str) -> None:
    nvcc, folder = linked
    cc = shutil.which(compiler) or pytest.skip(f"no {compiler}")
    main = folder / f"main_{standard}.{ending}"
    main.write_text(MAIN)
    includes = [f"-isystem{directory}" for directory in nvrtc.headers().directories]
    strict = [f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror", *includes]
    subprocess.run([cc, *strict, "-c", main.name, "-o", f"{standard}.o"], cwd=folder, check=True, timeout=60)
    objects = [f"{standard}.o", *(f"{symbol}.o" for symbol in LINKED)]
    subprocess.run([nvcc, *objects, "-o", standard], cwd=folder, check=True, timeout=120)
    assert subprocess.run([folder / standard], check=False, timeout=60).returncode == 0


def test_two_versions_of_the_status_meet(tmp_path: Path) -> None:
    """A later version knows more values. Its header may be read first; the other order is refused in words."""
    cc = shutil.which("gcc") or pytest.skip("no gcc")
    header = emit.emit(read_config("", SM80), SM80, tmp_path, symbol="g")[1]
    text = header.read_text()
    count = int(re.findall(r"#define WMMAGEN_STATUS ([0-9]+)", text)[0])
    # A kernel with an answer that others do not have knows more values, too.
    emit.emit(read_config("split_k=2", SM80), SM80, tmp_path, symbol="s")
    later = text.replace(f"WMMAGEN_STATUS {count}", f"WMMAGEN_STATUS {count + 1}")
    later = later.replace(f"WMMAGEN_STATUS < {count}", f"WMMAGEN_STATUS < {count + 1}")
    later = later.replace("} wmmagen_status;", f", WMMAGEN_NEW = {count}}} wmmagen_status;")
    (tmp_path / "later.h").write_text(
        later.replace("WMMAGEN_g_H", "WMMAGEN_h_H").replace(" g", " h").replace("*g", "*h")
    )
    includes = [f"-isystem{directory}" for directory in nvrtc.headers().directories]

    def build(*headers: str) -> subprocess.CompletedProcess[str]:
        lines = "".join(f'#include "{name}"\n' for name in headers)
        command = [
            cc,
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{tmp_path}",
            *includes,
            "-fsyntax-only",
            "-xc",
            "-",
        ]
        return subprocess.run(command, input=lines, capture_output=True, text=True, check=False, timeout=60)

    for more in ("later.h", "s.h"):
        assert build(more, "g.h").returncode == 0
        refused = build("g.h", more)
        assert refused.returncode != 0
        assert "include this one first" in refused.stderr


@pytest.mark.parametrize(
    "symbol",
    ["return", "THREADS", "BLOCK_M", "malloc", "cudaMalloc", "int4", "dim3", "wmmagen_status", "WMMAGEN_OK", "A", "",
     "9a", "a b", "acc", "prepare", "half2", "float4", "threadIdx", "printf", "ä", "x" * 201, "Matrix",
     "my_kernel", "my_gemm_supports", "my_workspace_bytes", "my_selftest"],
)  # fmt: skip
def test_names_that_cannot_compile_are_refused(symbol: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot name"):
        emit.emit(read_config("", SM80), SM80, tmp_path / "out", symbol=symbol)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("word", ["whoever", "g"])
def test_words_of_comments_and_of_formats_can_be_names(word: str, tmp_path: Path) -> None:
    paths = emit.emit(read_config("", SM80), SM80, tmp_path, symbol=word)
    texts = "".join(path.read_text() for path in paths)
    assert f'extern "C" wmmagen_status {word}(' in texts
    assert re.search(rf"(//.* |%){word}\b", texts)


def test_the_banner_s_command_makes_the_file(tmp_path: Path) -> None:
    import shlex
    import sys

    path, *_ = emit.emit(read_config("acc=f16", SM80), SM80, tmp_path, symbol="my_gemm")
    text = path.read_text()
    (command,) = re.findall(r"^// `wmmagen (render .*)`\.$", text, flags=re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-m", "wmmagen", *shlex.split(command)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == text


@pytest.mark.parametrize(
    "text",
    [
        # Nothing is added, and what is stored is a byte; a byte is added; nothing is added to a float.
        "a=s8,d=s8,epilogue=scale+clamp",
        "a=u8,d=f32,c=s8,epilogue=linear+gelu+biasrow,residue=predicated,batch=pointers,split_k=2",
        "a=f64,epilogue=expr(row<col?acc:-acc),split_k=2,batch=strided",
        # What functions see is in fractions, and nothing is added; or added, and of bytes with a scale.
        "a=bf16,epilogue=silu",
        "a=s8,d=f16,c=f32,epilogue=scalecol+biascol+gelu+residual,batch=strided",
    ],
)
def test_the_self_test_of_a_chain_is_cpp_without_a_warning(text: str, tmp_path: Path) -> None:
    """Its host part is all of it, so the host's compiler alone tells, in a tenth of the time of a build."""
    cc = shutil.which("g++") or pytest.skip("no g++")
    config = read_config(f"warps=1x1,frags=2x2,{text}", SM80)
    header, selftest = emit.emit(config, SM80, tmp_path, symbol="g")[1:3]
    includes = [f"-isystem{directory}" for directory in nvrtc.headers().directories]
    strict = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{header.parent}", *includes]
    done = subprocess.run(
        [cc, *strict, "-xc++", str(selftest)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
