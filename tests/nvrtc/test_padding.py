"""Any size by a kernel for multiples: what copies is exact on the executor, and what calls it keeps its contract."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.nvcc import compile_with, demand_nvcc
from tests.ragged import EXTENTS
from wmmagen import chips, coverage, derive, emit, padding, reference, series, trial
from wmmagen.arch import ARCHS
from wmmagen.backends import Series
from wmmagen.backends.cpu import CpuBackend
from wmmagen.backends.pick import Place
from wmmagen.config import KernelConfig, Problem
from wmmagen.defaults import read_config
from wmmagen.errors import ConfigError, Fault, NotGeneratedYet, RequestError
from wmmagen.foundry import compile_source
from wmmagen.nvrtc import Binary
from wmmagen.records import Outcome
from wmmagen.reference import Units
from wmmagen.render import padding_entry, render_padding
from wmmagen.timing import Comparison, Timing, TimingProtocol

pytestmark = pytest.mark.usefixtures("headers_once")

FAKE = Path(__file__).resolve().parents[1] / "fake"
SM80 = ARCHS[80]
#: Both orders of lines, C, and bytes, which lie along K.
CALLED = (
    "layout=cr,d=f16,warps=2x2,frags=1x1,k_steps=2,copy=ld,stages=2,store=staged,epilogue=linear",
    "a=s8,layout=rc,warps=2x1,frags=1x2,k_steps=2,copy=ld,stages=1,store=direct",
)
SIZES = ((33, 7, 65), (1, 100, 8), (17, 64, 0))


def spaced(config: KernelConfig, m: int, n: int, k: int) -> Problem:
    """Leading dimensions that promise nothing."""
    return reference.spaced_problem(config.operation, m, n, k, Units(1, 1, 1))


def copiers(config: KernelConfig, text: str) -> Binary:
    return compile_source(text, padding_entry("my_gemm"), SM80)


@pytest.fixture(scope="module")
def kernels() -> dict[str, Binary]:
    return {text: trial.build(read_config(text, SM80), SM80)[1] for text in CALLED}


@pytest.mark.parametrize("text", CALLED)
def test_a_kernel_for_multiples_is_exact_with_any_size_on_padded_copies(text: str, kernels: dict[str, Binary]) -> None:
    config, kernel = read_config(text, SM80), kernels[text]
    copying = copiers(config, render_padding(config, SM80, symbol="my_gemm"))
    for size in SIZES:
        assert padding.check(config, kernel, copying, CpuBackend(), spaced(config, *size)) == "", size


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        # What lies behind A and B is NaN; C's buffer ends with it.
        (("i < there ?", "true ?"), "out-of-bounds.* outside of buffer 2"),
        (("line < lines ? length : 0", "length"), "out-of-bounds.* outside of buffer 2"),
        (("to_line[i] = i < there ? from_line[i] : Element{};", "if (i < there) to_line[i] = from_line[i];"), r"D\["),
        (("i < length_to;", "i <= length_to;"), "race|memory around|guard"),
    ],
)
def test_what_is_copied_wrongly_is_found(edit: tuple[str, str], words: str, kernels: dict[str, Binary]) -> None:
    config, kernel = read_config(CALLED[0], SM80), kernels[CALLED[0]]
    right = render_padding(config, SM80, symbol="my_gemm")
    assert right.count(edit[0]) == 1
    try:
        said = padding.check(
            config, kernel, copiers(config, right.replace(*edit)), CpuBackend(), spaced(config, 33, 7, 65)
        )
    except Fault as fault:
        said = fault.message
    assert re.search(words, said), said


def test_copies_are_whole_tiles_and_begin_on_256_bytes() -> None:
    config = read_config(CALLED[0], SM80)
    known = derive.values(config)
    for m, n, k in zip(EXTENTS, EXTENTS[5:], EXTENTS[2:], strict=False):
        found = padding.plan(config, spaced(config, m, n, k))
        inner, end = found.problem, 0
        for asked, extent, axis in ((m, inner.m, "M"), (n, inner.n, "N"), (k, inner.k, "K")):
            assert extent % known[f"BLOCK_{axis}"] == 0 and 0 <= extent - asked < known[f"BLOCK_{axis}"]
        for copy in found.copies:
            assert copy.begin >= end and copy.begin % 256 == 0
            end = copy.begin + copy.lines_to * copy.length_to * 2
        assert end <= found.total_bytes < end + 256


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("residue=predicated", "takes all sizes itself"),
        ("batch=strided", "copies of a batch"),
        ("split_k=2,reduction=workspace", "a workspace or zeros of their own"),
        ("epilogue=linear+relu", "chains of steps"),
    ],
)
def test_what_is_not_called_on_padded_copies_says_why(text: str, words: str) -> None:
    with pytest.raises(NotGeneratedYet, match=words):
        coverage.demand_padding(read_config(text, SM80))


def test_what_is_emitted_keeps_its_contract(tmp_path: Path) -> None:
    config = read_config("a=f64,layout=cr,warps=1x2,frags=1x2,copy=ld,stages=1,store=staged,epilogue=linear", SM80)
    nvcc = demand_nvcc()
    files = emit.emit(config, SM80, tmp_path, symbol="my_gemm", padded=True)
    assert [file.name for file in files][3:5] == ["my_gemm_padded.cu", "my_gemm_padded.h"]
    known = derive.values(config)
    (tmp_path / "facts.h").write_text("".join(f"#define BLOCK_{x} {known[f'BLOCK_{x}']}\n" for x in "MNK"))
    objects = [tmp_path / "padded.o", tmp_path / "calls.o"]
    compile_with(nvcc, files[3], SM80, "-c", "-o", str(objects[0]))
    compile_with(nvcc, FAKE / "padding.cpp", SM80, f"-I{tmp_path}", "-c", "-o", str(objects[1]))
    program = tmp_path / "calls"
    link = [nvcc, "-cudart=none", "-o", str(program), *map(str, objects)]
    subprocess.run(link, check=True, capture_output=True, timeout=120)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("symbol", ["COPY_THREADS", "workspace", "Plan", "p", "filled", "length_to", "PADDED"])
def test_a_name_that_the_further_launcher_uses_itself_is_refused(tmp_path: Path, symbol: str) -> None:
    config = read_config("warps=1x1,frags=1x1", SM80)
    if re.search(rf"\b{symbol}\b", render_padding(config, SM80)) is None:
        emit.emit(config, SM80, tmp_path, symbol=symbol, padded=True)
        return
    with pytest.raises(ConfigError, match="the files use that name themselves"):
        emit.emit(config, SM80, tmp_path, symbol=symbol, padded=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("other", ["layout=cr", "layout=cr,split_k=2"])
def test_no_launcher_of_another_kernel_is_left_behind(tmp_path: Path, other: str) -> None:
    one, two = (read_config(f"warps=1x1,frags=1x1,{text}", SM80) for text in ("layout=rr", other))
    emit.emit(one, SM80, tmp_path, symbol="my_gemm", padded=True)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(RequestError, match=r"my_gemm_padded\.cu is there, and calls another kernel"):
        emit.emit(two, SM80, tmp_path, symbol="my_gemm", overwrite=True)
    assert before == {file: file.read_bytes() for file in tmp_path.iterdir()}
    emit.emit(one, SM80, tmp_path, symbol="my_gemm", overwrite=True)  # its own is no harm
    for file in tmp_path.glob("my_gemm_padded.*"):
        file.unlink()
    emit.emit(two, SM80, tmp_path, symbol="my_gemm", overwrite=True)


def test_the_command_of_the_self_test_takes_a_folder_for_no_option() -> None:
    files = [Path("-out") / name for name in ("g.cu", "g.h", "g_selftest.cu", "manifest.json")]
    words = shlex.split(emit.selftest_command(files, SM80))
    assert [word for word in words if word.startswith("-")] == [f"-arch={SM80}", "-o"]
    assert emit.selftest_command([Path("/d") / file for file in files], SM80).count("./") == 0


class Clocked(CpuBackend):
    """The executor with a clock that counts launches."""

    clocked = True

    def compare(self, subjects: Sequence[Any], protocol: TimingProtocol, *, limit_s: float = 60.0) -> Comparison:
        steps = [len(one.steps) if isinstance(one, Series) else 1 for one in subjects]
        timings = tuple(
            Timing(us, (us, us), 15, 40, protocol.mode, protocol.data, True, ()) for us in map(float, steps)
        )
        return Comparison(timings, tuple((timing.median_us,) * 15 for timing in timings))


def test_a_bench_times_calls_that_pad_and_calls_whose_operands_were_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = trial.validation_problems
    monkeypatch.setattr(trial, "validation_problems", lambda config: hostile(config)[-2:-1])
    small = "warps=1x1,frags=1x1,k_steps=1,copy=ld,stages=1"
    exact, every = (
        read_config(small, SM80),
        read_config(f"residue=predicated,align_a=1,align_b=1,align_d=1,store=staged,{small}", SM80),
    )
    (planned,) = series.plan(series.unnamed([(7, 9, 11)]), [exact, every], SM80, None, chips.named("a100"), padded=True)
    assert (list(planned.kernels), planned.padded) == ([every], (exact,))
    place = Place(Clocked(), SM80)
    rows = series.measure(planned, SM80, place, TimingProtocol(), ceilings=False).table.rows
    assert [(row.outcome, row.padded, row.timing and row.timing.median_us) for row in rows] == [
        (Outcome.OK, "", 1.0), (Outcome.OK, "padded with each call", 4.0), (Outcome.OK, "padded before", 2.0),
    ]  # fmt: skip
    assert "padded before" in rows[2].as_json()["flags"]
    batch = read_config(f"batch=strided,{small}", SM80)
    with pytest.raises(NotGeneratedYet):
        series.plan(series.unnamed([(7, 9, 11)]), [batch], SM80, None, chips.named("a100"), padded=True)
