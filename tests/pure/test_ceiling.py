"""What a device can do, with a backend of NumPy: loops judged, ways compared, records kept and read again."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from test_render import clang_format

from tests.fakes import NumpyBackend, compiled
from wmmagen import ceiling, ceilings, cli, loops, show
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import pick
from wmmagen.backends.pick import Place
from wmmagen.ceilings import Figure, Record
from wmmagen.errors import CompileError, CrashFault, Fault, MissingPiece, RequestError
from wmmagen.loops import MemoryLoop, Products, RegisterLoop, SharedLoop
from wmmagen.nvrtc import Binary
from wmmagen.timing import Data, Timing, TimingProtocol

ROOT = Path(__file__).resolve().parents[2]
SM75 = ARCHS[75]
KINDS = get_args(ceilings.Kind)
MADE = loops.made()


def measured(*kinds: Any, data: Any = ("integers",), compiler: Any = compiled, **card: Any) -> Record:
    place = Place(NumpyBackend(**card), SM75)
    return ceiling.measure(SM75, place, kinds or KINDS, data, TimingProtocol(), compiler)


@pytest.fixture(scope="module")
def whole() -> Record:
    """Every limit, on both kinds of data."""
    return measured(data=get_args(Data))


# ---------------------------------------------------------------------------------------------------------------------
# Loops.


def every_loop() -> list[Products]:
    return [loop for _, loop in ceiling.products_of(SM75, KINDS)]


def test_there_is_a_loop_for_each_instruction_that_is_made() -> None:
    register = [loop.inst for kind, loop in ceiling.products_of(SM75, ("register",)) if kind == "register"]
    assert [f"{i.acc.name} {i.shape}" for i in register] == [
        "f32 16x16x16", "f32 32x8x16", "f32 8x32x16", "f16 16x16x16", "f16 32x8x16", "f16 8x32x16",
    ]  # fmt: skip
    assert len(every_loop()) == 6 * (1 + len(loops.SHARED_TILES))
    assert len({loop.entry for loop in every_loop()}) == len(every_loop())


@pytest.mark.parametrize("loop", every_loop(), ids=lambda loop: loop.entry)
def test_operations_are_those_of_the_tiles(loop: Products) -> None:
    rows, cols = loop.tile if isinstance(loop, SharedLoop) else (64, 64)
    # A step adds one product along K, 16 deep, to a warp's tile.
    steps = loop.turns * (loops.SHARED_K_STEPS if isinstance(loop, SharedLoop) else 64 // min(loop.inst.m, loop.inst.n))
    assert loops.operations(loop, 3) == 2.0 * rows * cols * 16 * steps * loop.warps * 3
    assert 5e8 <= loops.operations(loop, 1) < 5e9
    assert loop.shared_bytes <= SM75.shared_block


@pytest.mark.parametrize("loop", every_loop(), ids=lambda loop: loop.entry)
def test_sums_are_exact_bounded_and_tell_the_number_of_turns(loop: Products) -> None:
    sums = loop.sums(loop.turns)
    assert (sums != 0).all() and (loop.sums(1) * loop.turns == sums).all()
    a, b = (np.abs(x).max() for x in loop.operands("integers"))
    # A turn gathers products in its first half at most, beside what is left over of all turns.
    gathered = a * b * 16 * max(loops.SHARED_K_STEPS, 64 // min(loop.inst.m, loop.inst.n)) // 2
    assert np.abs(sums).max() + gathered <= loop.inst.acc.exact_limit


@pytest.mark.parametrize("loop", every_loop()[:3] + every_loop()[-1:], ids=lambda loop: loop.entry)
def test_normal_sums_stay_small(loop: Products) -> None:
    a, b = (x.astype(np.float16).astype(np.float64) for x in loop.operands("normal"))
    assert abs(a.std() - 1) < 0.05 and abs(b.std() - 1) < 0.05
    if isinstance(loop, RegisterLoop):
        turning = a if loop.rotates_a else b
        assert np.abs(turning.sum(axis=1)).max() == 0
    else:
        assert np.abs(a @ b.T).max() < 1e-9


@pytest.mark.parametrize("loop", [every_loop()[0], every_loop()[-1]], ids=lambda loop: loop.entry)
def test_neighbouring_fragments_differ(loop: Products) -> None:
    a, b = loop.operands("normal")
    if isinstance(loop, RegisterLoop):
        assert all((x[:, 0] != x[:, 1]).mean() > 0.99 for x in (a, b))
    else:
        assert (a[:, :16] != a[:, 16:32]).mean() > 0.99


@pytest.mark.skipif(clang_format() is None, reason="clang-format is not here: pip install clang-format")
def test_their_texts_are_fixed_points_of_clang_format() -> None:
    texts = {loop.entry: loop.text(SM75) for loop in every_loop()[::3]}
    texts |= {access: loops.memory_text(access) for access in get_args(loops.Access)}
    for name, text in texts.items():
        command = [str(clang_format()), f"--style=file:{ROOT / '.clang-format'}", "--assume-filename=loop.cu"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout == text, name
        assert max(map(len, text.splitlines())) <= 120


def test_a_wrong_sum_has_its_place() -> None:
    loop = RegisterLoop(MADE[0])
    backend = NumpyBackend()
    buffers = loops.buffers(loop, 2, "integers")
    returned = backend.run(compiled("", loop.entry, SM75), loops.launch(loop, 2, 3), buffers)
    assert loops.wrong(loop, 2, 3, returned) == ""
    held = returned[-1].view(np.float32)
    held[held.size // 2 + 256 + 16] += 1
    told = loops.wrong(loop, 2, 3, returned)
    assert "1 of 32768 sums are wrong, first block 1, warp 0, fragment 1, row 1, column 0" in told


def test_a_launch_that_did_nothing_is_wrong() -> None:
    for loop in every_loop():
        buffers = loops.buffers(loop, 1, "integers")
        assert "sums are wrong" in loops.wrong(loop, 1, loop.turns, buffers)


# ---------------------------------------------------------------------------------------------------------------------
# Measuring.


def test_every_limit_has_a_figure(whole: Record) -> None:
    record = whole
    assert record.whole and (record.device, record.arch) == ("a card of NumPy (sm_75)", "sm_75")
    assert len(record.figures) == 6 * 2 * (1 + len(loops.SHARED_TILES)) + 6
    assert len({(f.kind, *f.words.values()) for f in record.figures}) == len(record.figures)
    for figure in record.figures:
        assert figure.timing is not None and figure.interval is not None and figure.rate is not None
        assert figure.interval[0] < figure.rate < figure.interval[1]
        assert figure.compiler == "nobody" and figure.registers == 128
        assert figure.timing.data == figure.words.get("data", "normal")


def test_the_best_way_is_taken_and_all_are_told() -> None:
    record = measured("register")
    for figure in record.figures:
        assert [one.warps for one in figure.tried] == [4, 8, 16]
        # The fake's launches take as long whatever their size, so the largest is the fastest.
        assert figure.warps == 16 and figure.rate == max(one.rate for one in figure.tried)


def test_a_rate_is_the_operations_of_all_blocks_over_the_time() -> None:
    figure = measured("register").figures[0]
    assert figure.timing is not None and figure.rate is not None
    assert figure.amount == loops.operations(RegisterLoop(MADE[0]), 2 * 4)
    assert figure.rate == figure.amount / figure.timing.median_us / 1e6


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_has_no_figure(kind: str) -> None:
    def spoil(entry: str, d: np.ndarray) -> None:
        d[0, -1] ^= 1

    record = measured(kind, spoil=spoil)
    assert not record.whole and all(f.timing is None and "are wrong" in f.reason for f in record.figures)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_after_it_was_timed_has_no_figure(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []
    time = NumpyBackend.time

    def times(self: NumpyBackend, binary: Binary, launch: Any, *arguments: Any, **more: Any) -> Timing:
        timed.append(launch.entry)
        return time(self, binary, launch, *arguments, **more)

    def spoil(entry: str, d: np.ndarray) -> None:
        if entry in timed:
            d[0, -1] ^= 1

    monkeypatch.setattr(NumpyBackend, "time", times)
    record = measured(kind, spoil=spoil)
    assert timed and all("are wrong" in f.reason for f in record.figures)


def test_a_fault_costs_its_own_figures() -> None:
    def fails(name: str) -> Fault | None:
        return CrashFault("it broke") if "8x32x16" in name else None

    record = measured("register", fault_of=fails)
    assert [f.reason for f in record.figures] == ["", "", "it broke"] * 2


def test_what_the_compiler_refuses_has_a_reason() -> None:
    def refuses(source: str, entry: str, arch: Arch) -> Binary:
        raise CompileError("it refused", "", "log")

    assert {f.reason for f in measured(compiler=refuses).figures} == {"it refused"}


def test_more_registers_than_a_block_may_have_is_a_reason() -> None:
    def large(source: str, entry: str, arch: Arch) -> Binary:
        return replace(compiled(source, entry, arch), registers=256)

    record = measured(compiler=large)
    assert not any(f.timing for f in record.figures) and all(f.reason for f in record.figures)


def test_a_rate_above_the_published_one_is_a_fault() -> None:
    # The fake's launches take some microseconds, whatever they do; a T4 would need a hundred times as long.
    record = measured("register", "memory", device="Tesla T4 (sm_75)", l2_bytes=8 << 20)
    reasons = {f.words.get("level", "products"): f.reason for f in record.figures}
    assert "below the floor of Tesla T4" in reasons["products"] and "below the floor" in reasons["DRAM"]
    assert reasons["L2"] == ""


def test_who_has_no_clock_or_another_architecture_measures_nothing() -> None:
    with pytest.raises(MissingPiece, match="clock"):
        measured(clocked=False)
    with pytest.raises(RequestError, match="again"):
        measured(arch=ARCHS[80])


# ---------------------------------------------------------------------------------------------------------------------
# Memory.


@pytest.mark.parametrize(("sms", "l2", "blocks"), [(132, 50 << 20, 8), (40, 4 << 20, 4), (82, 6 << 20, 6)])
@pytest.mark.parametrize("access", get_args(loops.Access))
def test_buffers_fit_into_the_l2_or_hold_several_times_of_it(access: Any, sms: int, l2: int, blocks: int) -> None:
    card = NumpyBackend(multiprocessors=sms, l2_bytes=l2)
    sizes = {}
    for level in ("L2", "DRAM"):
        loop = ceiling.memory_loop(level, access, blocks, card)
        sizes[level] = 16 * loop.vectors * (2 if access == "copy" else 1)
        assert loop.threads % sms == 0 and loop.threads <= 256 * blocks * sms
        assert loop.launch.arguments[2:] == (loop.vectors, loop.accesses)
        assert loop.moved_bytes == sizes[level] * loop.passes
    assert l2 // 8 < sizes["L2"] <= l2 // 4
    assert 3.5 * l2 < sizes["DRAM"] <= 4 * l2


def test_an_l2_without_room_for_a_launch_is_said() -> None:
    record = measured("memory", l2_bytes=1 << 12)
    assert "no room for a block" in record.figures[0].reason


def test_accesses_that_do_not_unroll_are_refused() -> None:
    with pytest.raises(ValueError, match="multiples"):
        _ = MemoryLoop("read", 256, 3, 3).launch


# ---------------------------------------------------------------------------------------------------------------------
# Records.


def test_a_record_comes_back_as_it_was(whole: Record) -> None:
    record = whole
    again = ceilings.from_json(json.loads(record.to_text()))
    assert again == replace(record, figures=tuple(replace(f, words=dict(f.words)) for f in record.figures))
    assert again.to_text() == record.to_text()


def test_figures_are_found_by_what_they_are_called(whole: Record) -> None:
    record = whole
    found = record.find("register", acc="f16", shape="32x8x16", data="integers")
    assert found is not None and dict(found.words) == {
        "a": "f16", "acc": "f16", "shape": "32x8x16", "data": "integers",
    }  # fmt: skip
    assert record.find("register", acc="f64") is None
    assert replace(record, figures=(Figure("memory", {"level": "L2"}, reason="no"),)).find("memory") is None


def test_a_new_record_keeps_what_it_did_not_measure(whole: Record) -> None:
    old, new = whole, measured("register")
    both = new.over(old)
    assert both.figures[: len(new.figures)] == new.figures and len(both.figures) == len(old.figures)
    assert new.over(None) is new
    assert new.over(replace(old, device="another")) is new


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("rows"),
        lambda d: d["rows"][0].pop("timing"),
        lambda d: d["rows"][0].update(kind="fast"),
        lambda d: d["rows"][0]["timing"].update(median_us=-1),
        lambda d: d.update(rows=[1]),
        lambda d: d.update(multiprocessors=float("inf")),
        lambda d: d["rows"][0].update(amount=float("nan")),
        lambda d: d["rows"][0].update(amount=-1.0),
        lambda d: d["rows"][0].update(warps=float("inf")),
        lambda d: d["rows"][0]["tried"][0].update(rate=float("nan")),
        lambda d: d["rows"][0]["timing"].update(samples=float("inf")),
    ],
)
def test_what_is_no_record_is_refused(spoil: Callable[[dict[str, Any]], Any], tmp_path: Path) -> None:
    document = measured("register").as_json()
    spoil(document)
    file = tmp_path / "record.json"
    file.write_text(json.dumps(document))
    with pytest.raises(RequestError, match="holds no record"):
        ceilings.read(file)


def test_too_many_brackets_are_no_record(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text("[" * 200_000)
    with pytest.raises(RequestError, match="holds no record"):
        ceilings.read(file)


def test_a_file_has_the_name_of_its_device() -> None:
    assert ceilings.file_name("NVIDIA H200 (sm_90)") == "NVIDIA_H200.json"
    assert ceilings.file_name("../x/y (sm_75)") == "___x_y.json"


def test_the_text_says_rates_ways_and_what_is_missing(whole: Record) -> None:
    record = whole
    text = show.ceilings(replace(record, figures=(*record.figures, Figure("memory", {"level": "L3"}, reason="no L3"))))
    assert text.count("f16 f32 16x16x16 normal") == 1 + len(loops.SHARED_TILES)
    assert "TFLOP/s" in text and "GB/s" in text and "none L3: no L3" in text


# ---------------------------------------------------------------------------------------------------------------------
# The command.


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pick, "pick", lambda kind, arch, **more: Place(NumpyBackend(), arch))
    monkeypatch.setattr("wmmagen.foundry.Foundry.begin", lambda self, order: None)
    monkeypatch.setattr(
        "wmmagen.foundry.Foundry.compile", lambda self, source, entry, arch: compiled(source, entry, arch)
    )


@pytest.mark.usefixtures("card")
def test_the_command_keeps_a_record_and_adds_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["ceiling", "--arch", "sm_75", "--only", "memory"]) == 0
    assert "Record: sweeps/ceilings/a_card_of_NumPy.json" in capsys.readouterr().out
    assert cli.run(["ceiling", "--arch", "sm_75", "--only", "register", "--data", "normal"]) == 0
    record = ceilings.read(Path("sweeps/ceilings/a_card_of_NumPy.json"))
    assert [f.kind for f in record.figures] == ["register"] * 6 + ["memory"] * 6
    assert cli.run(["ceiling", "--arch", "sm_75", "--only", "memory", "--to", "elsewhere/r.json"]) == 0
    assert len(ceilings.read(Path("elsewhere/r.json")).figures) == 6


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "l2"], "register shared memory"),
        (["--data", "ones"], "normal integers both"),
        (["--to", "/proc/none/r.json"], "cannot be written"),
        (["--to", "."], "cannot be written"),
        (["--to", os.devnull], "cannot be written"),
    ],
)
def test_what_cannot_be_asked_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["ceiling", "--arch", "sm_75", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("card")
def test_a_file_that_is_no_record_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.json").write_text("{}")
    assert cli.run(["ceiling", "--arch", "sm_75", "--only", "memory", "--to", "mine.json"]) == 2
    assert Path("mine.json").read_text() == "{}" and "no record" in capsys.readouterr().err
