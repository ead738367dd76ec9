"""Binaries to order, with the real compiler: what is found again, what is made anew, and what is called off."""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from wmmagen import cache, doctor, foundry, nvrtc
from wmmagen.arch import ARCHS, Arch
from wmmagen.cache import Cache
from wmmagen.config import Grid, Operation
from wmmagen.dtypes import F16, F32
from wmmagen.errors import CompileError, MissingPiece, OutOfTime
from wmmagen.foundry import Foundry, Order
from wmmagen.nvrtc import Binary
from wmmagen.render import render
from wmmagen.space import Space
from wmmagen.supervisor import READY, Channel

SM75, SM80 = ARCHS[75], ARCHS[80]
WMMA, WMMA_ENTRY = doctor.PROBE_SOURCE, doctor.PROBE_ENTRY
PROBE = Order(WMMA, WMMA_ENTRY, SM75)
NONE = Cache(None)

#: 2^28 classes.
ENDLESS = """\
template <int D, unsigned I> struct Tree
{ static constexpr unsigned sum = Tree<D - 1, 2 * I>::sum + Tree<D - 1, 2 * I + 1>::sum; };
template <unsigned I> struct Tree<0, I> { static constexpr unsigned sum = I; };
extern "C" __global__ void endless(unsigned* p) { *p = Tree<28, 1>::sum; }
"""


def filling(number: int) -> Order:
    """A source that compiles in no time, under the name of all others."""
    return Order(f'extern "C" __global__ void fill(int* p) {{ *p = {number}; }}\n', "fill", SM75)


def variants(arch: Arch, count: int) -> list[Order]:
    """Of the space, with a tile that is compiled quickly."""
    space = Space(Operation(F16, F32, F32), arch, {"frags": Grid(2, 2)})
    sources = [render(config, arch) for config in space.sample(random.Random(7), count)]
    return [Order(source.text, source.kernel, arch) for source in sources]


@functools.cache
def made_here(order: Order) -> Binary:
    return nvrtc.compile_source(order.source, order.entry, order.arch)


def same(one: Binary | CompileError, other: Binary) -> bool:
    """Whether two binaries differ in times only; ptxas writes its own into the log."""
    assert isinstance(one, Binary)
    logs = [[line for line in b.log.splitlines() if "Compile time" not in line] for b in (one, other)]
    return logs[0] == logs[1] and one == replace(other, seconds=one.seconds, log=one.log)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that the compiler of this process was really given."""
    really = nvrtc.compile_source
    given: list[str] = []

    def counting(source: str, entry: str, arch: Arch, *, line_info: bool = False) -> Binary:
        given.append(source)
        return really(source, entry, arch, line_info=line_info)

    monkeypatch.setattr(nvrtc, "compile_source", counting)
    return given


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


# ---------------------------------------------------------------------------------------------------------------------
# Found again, or made anew.


def probe() -> Binary:
    return foundry.compile_source(WMMA, WMMA_ENTRY, SM75)


def test_nothing_changed_is_a_hit(folder: Path, compiled: list[str]) -> None:
    first, second = probe(), probe()
    assert (first.cached, second.cached) == (False, True)
    assert first == second
    assert len(compiled) == 1
    assert Cache(folder).usage().files == 1


def test_without_a_cache_it_is_compiled_every_time(compiled: list[str]) -> None:
    assert not (probe().cached or probe().cached)
    assert len(compiled) == 2


def test_another_source_entry_or_architecture_is_compiled(folder: Path, compiled: list[str]) -> None:
    probe()
    assert not foundry.compile_source(WMMA + "\n", WMMA_ENTRY, SM75).cached
    assert not foundry.compile_source(WMMA, WMMA_ENTRY, SM80).cached
    assert not foundry.compile_source(WMMA.replace(WMMA_ENTRY, "other"), "other", SM75).cached
    assert Cache(folder).usage().files == len(compiled) == 4


def test_line_tables_are_compiled_beside_the_binary_without(folder: Path, compiled: list[str]) -> None:
    plain = probe()
    lined = foundry.compile_source(WMMA, WMMA_ENTRY, SM75, line_info=True)
    assert not lined.cached
    assert (".loc" in plain.ptx, ".loc" in lined.ptx) == (False, True)
    assert foundry.compile_source(WMMA, WMMA_ENTRY, SM75, line_info=True).cached
    assert probe() == plain
    with Foundry(1, Cache(folder), line_info=True) as made:
        assert made.compile(WMMA, WMMA_ENTRY, SM75) == lined


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a later compiler": lambda patch: patch.setattr(nvrtc, "title", lambda: "NVRTC 99.0"),
    "a patched library": lambda patch: patch.setattr(nvrtc, "library", lambda: __file__),
    "an option": lambda patch: patch.setattr(nvrtc, "_flags", _with_option(nvrtc._flags)),
    "the cache's format": lambda patch: patch.setattr(cache, "_MAGIC", b"wmmagen cache 0\n"),
}


def _with_option(flags: Callable[[Arch, bool], list[str]]) -> Callable[[Arch, bool], list[str]]:
    return lambda arch, line_info: [*flags(arch, line_info), "--use_fast_math"]


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_the_toolkit_is_compiled(
    folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    probe()
    CHANGES[what](monkeypatch)
    assert not probe().cached
    assert len(compiled) == 2


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes another toolkit of the same headers, and makes it the one that is found."""
    (there,) = nvrtc.headers().directories

    def make(name: str) -> Path:
        copy = tmp_path / name / "include"
        shutil.copytree(there, copy)
        monkeypatch.setattr(nvrtc, "_wheel_includes", list)
        monkeypatch.setenv("CUDA_HOME", str(copy.parent))
        return copy

    return make


def test_a_changed_header_is_compiled_and_the_same_one_elsewhere_is_a_hit(
    folder: Path, compiled: list[str], toolkit: Callable[[str], Path]
) -> None:
    probe()
    toolkit("same")
    assert probe().cached
    changed = toolkit("changed")
    # mma.h includes it by way of crt/mma.h; it is none of the headers whose presence is demanded.
    with open(changed / "crt" / "mma.hpp", "a", encoding="utf-8") as file:
        file.write("// another release\n")
    assert not probe().cached
    assert len(compiled) == 2


def test_a_header_that_is_not_included_does_not_matter(folder: Path, toolkit: Callable[[str], Path]) -> None:
    probe()
    (toolkit("more") / "of_another_library.h").write_text("// new\n")
    assert probe().cached


@pytest.mark.parametrize("damage", [b"", b"foreign\n" * 4096])
def test_a_damaged_file_is_compiled_again_and_told_once(
    folder: Path, compiled: list[str], capsys: pytest.CaptureFixture[str], damage: bytes
) -> None:
    first = probe()
    (file,) = (path for path in folder.rglob("*") if path.is_file())
    for _ in range(2):
        file.write_bytes(damage)
        again = probe()
        assert not again.cached and same(again, first)
    assert probe().cached
    assert capsys.readouterr().err.count("\n") == 1
    assert len(compiled) == 3


def test_a_refusal_is_not_kept(folder: Path, compiled: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(CompileError):
            foundry.compile_source("no C++", "absent", SM75)
    assert len(compiled) == 2 and not folder.exists()


def test_what_is_assembled_for_another_card_is_kept_too(folder: Path) -> None:
    try:
        nvrtc.nvjitlink_version()
    except MissingPiece as error:
        pytest.skip(error.message)
    binary = made_here(PROBE)
    first, second = (foundry.assemble(binary, ARCHS[90]) for _ in range(2))
    assert (first.cached, second.cached, first) == (False, True, second)
    assert (second.arch, second.compiler) == (ARCHS[90], first.compiler)
    assert not foundry.assemble(binary, SM80).cached
    assert not foundry.assemble(replace(binary, ptx=binary.ptx + "\n"), ARCHS[90]).cached


# ---------------------------------------------------------------------------------------------------------------------
# Several processes.


@pytest.mark.parametrize("precompiled", [False, True])
def test_processes_make_the_same_bytes_in_the_order_of_the_orders(precompiled: bool) -> None:
    orders = [*variants(SM75, 3), *variants(ARCHS[90], 3)]
    with Foundry(2, NONE, precompiled=precompiled) as made:
        answers = list(made.compile_many(orders))
    assert all(same(answer, made_here(order)) for answer, order in zip(answers, orders, strict=True))


def test_eight_compilers_at_once_with_precompiled_headers(tmp_path: Path) -> None:
    """Under one name each, as a shared file of precompiled headers would be called after it."""
    orders = [Order(WMMA.replace("0.0f", f"{n}.0f"), WMMA_ENTRY, SM75) for n in range(24)]
    kept = Cache(tmp_path)
    with Foundry(8, kept) as made:
        answers = list(made.compile_many(orders))
    assert kept.usage().files == len(orders)
    assert len({a.cubin for a in answers if isinstance(a, Binary)}) == len(orders)
    for number in (0, 11, 23):
        assert same(answers[number], made_here(orders[number]))
    with Foundry(8, kept) as again:
        assert list(again.compile_many(orders)) == answers
        assert all(process.pid is None for process in again._processes)  # every one was a hit


def test_precompiled_headers_that_cannot_be_written_refuse_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = foundry._answer(PROBE, tmp_path / "not there")
    assert isinstance(answer, Binary) and same(answer, made_here(PROBE))
    really = nvrtc.compile_source

    def full(
        source: str, entry: str, arch: Arch, *, line_info: bool = False, precompiled: Path | None = None
    ) -> Binary:
        if precompiled is not None:
            raise CompileError("catastrophic error: cannot write the precompiled headers")
        return really(source, entry, arch, line_info=line_info)

    monkeypatch.setattr(nvrtc, "compile_source", full)
    assert isinstance(foundry._answer(PROBE, tmp_path), Binary)


def dies_of_precompiled_headers(channel: Channel, folder: str | None, nice: int) -> None:
    """:func:`wmmagen.foundry.serve` on a full disk, where NVRTC maps a file that has no room."""
    channel.send(READY)
    while True:
        try:
            order, quick = channel.receive()
        except EOFError:
            return
        if quick:
            os.kill(os.getpid(), signal.SIGBUS)
        channel.send(("ok", foundry._answer(order, None)))


def test_a_compiler_that_dies_of_precompiled_headers_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foundry, "serve", dies_of_precompiled_headers)
    with Foundry(1, NONE) as made:
        answers = list(made.compile_many([filling(5), filling(6)]))
    assert all(same(answer, made_here(filling(number))) for answer, number in zip(answers, (5, 6), strict=True))


def test_a_refusal_stands_in_its_place_with_its_log() -> None:
    bad = Order("this is no C++", "absent", SM75)
    with Foundry(2, NONE) as made:
        answers = list(made.compile_many([filling(0), bad, filling(1)]))
        (again,) = made.compile_many([filling(2)])
    assert [type(answer) for answer in [*answers, again]] == [Binary, CompileError, Binary, Binary]
    refusal = answers[1]
    assert isinstance(refusal, CompileError)
    with pytest.raises(CompileError) as here:
        made_here(bad)
    assert (refusal.message, refusal.fix, refusal.log) == (here.value.message, here.value.fix, here.value.log)


def test_an_architecture_that_the_compiler_does_not_know_is_a_missing_piece() -> None:
    with Foundry(1, NONE) as made, pytest.raises(MissingPiece, match="does not compile for sm_99"):
        made.compile(WMMA, WMMA_ENTRY, replace(SM75, sm=99))


def test_what_was_begun_is_compiled_once(tmp_path: Path) -> None:
    with Foundry(1, Cache(tmp_path)) as made:
        made.begin(PROBE)
        made.begin(PROBE)
        first = made.compile(WMMA, WMMA_ENTRY, SM75)
        second = made.compile(WMMA, WMMA_ENTRY, SM75)
    assert (first.cached, second.cached) == (False, True)
    assert first == second == Cache(tmp_path).get(PROBE.key)


# ---------------------------------------------------------------------------------------------------------------------
# What does not end.


def test_a_compilation_that_does_not_end_is_a_refusal_and_the_next_one_works() -> None:
    with Foundry(1, NONE, limit_s=2.0) as made:
        with pytest.raises(CompileError, match="compiling endless for sm_75 did not end within 2 s"):
            made.compile(ENDLESS, "endless", SM75)
        order = filling(3)
        assert same(made.compile(order.source, order.entry, order.arch), made_here(order))


def test_a_compiler_that_dies_is_a_refusal_and_the_next_one_works() -> None:
    order = filling(4)
    with Foundry(1, NONE, precompiled=False) as made:
        made.compile(order.source, order.entry, order.arch)
        pid = made._processes[0].pid
        assert pid is not None
        threading.Timer(0.5, os.kill, (pid, signal.SIGSEGV)).start()
        with pytest.raises(CompileError, match="ended the compiler: it died of SIGSEGV"):
            made.compile(ENDLESS, "endless", SM75)
        assert isinstance(made.compile(order.source, order.entry, order.arch), Binary)


@pytest.fixture
def busy(request: pytest.FixtureRequest) -> Iterator[tuple[Foundry, list[int]]]:
    """Two processes that compile without end, with more to do; the parameter is after how many seconds it is over."""
    until = None if request.param is None else time.monotonic() + request.param
    with Foundry(2, NONE, until=until) as made:
        for number in range(6):
            made.begin(Order(ENDLESS.replace("1>::sum; }", f"{number + 1}>::sum; }}"), "endless", SM75))
        deadline = time.monotonic() + 30.0
        while not all(process.pid for process in made._processes) and time.monotonic() < deadline:
            time.sleep(0.01)
        yield made, [process.pid for process in made._processes if process.pid]


@pytest.mark.parametrize("busy", [3.0], indirect=True)
def test_the_end_of_the_time_calls_it_off(busy: tuple[Foundry, list[int]]) -> None:
    made, pids = busy
    assert len(pids) == 2
    with pytest.raises(OutOfTime, match="before endless was compiled"):
        made.compile(ENDLESS, "endless", SM75)
    begin = time.monotonic()
    made.close()
    made.close()
    assert time.monotonic() - begin < 20.0
    assert all(gone(pid) for pid in pids)


def interrupt_once_waiting(thread: int) -> None:
    """Interrupt this process as soon as ``thread`` waits for a binary."""
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        frames = [frame.f_code for frame, _ in traceback.walk_stack(sys._current_frames()[thread])]
        if frames[0] is threading.Condition.wait.__code__ and Foundry.compile.__code__ in frames:
            break
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("busy", [None], indirect=True)
def test_an_interrupt_leaves_no_process(busy: tuple[Foundry, list[int]]) -> None:
    made, pids = busy
    threading.Thread(target=interrupt_once_waiting, args=(threading.get_ident(),)).start()
    with pytest.raises(KeyboardInterrupt), made:
        made.compile(ENDLESS, "endless", SM75)
    assert len(pids) == 2 and all(gone(pid) for pid in pids)
    assert made._folder is not None and not Path(made._folder.name).exists()
