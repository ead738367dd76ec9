"""What each slot gives, without a card: which kernels are asked for, and what is told of them."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import NumpyBackend, binary_of
from tests.gpu import measure_slots as slots
from tests.gpu.measure_slots import EDITS, MECHANISMS, Bench, Cell, Change, Column, Kernel
from wmmagen import chips, defaults, known, trial
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends.pick import Place
from wmmagen.config import Problem, name, read_pairs, values_of
from wmmagen.errors import CrashFault, Fault
from wmmagen.nvrtc import Binary
from wmmagen.timing import TimingProtocol

SM90 = ARCHS[90]
SMALL = defaults.read_config("warps=1x2,frags=1x1,k_steps=4,stages=3,fragment_buffers=2", SM90)
COLUMN = Column("64", Problem.packed(SMALL.operation, 64, 64, 64), known.Known(SMALL, "winner", "what won"))
CELLS = list(slots.cells_of(COLUMN, SM90))
ALL_AT_ONCE, SERPENTINE = EDITS


def cell(words: str) -> Cell:
    (found,) = [one for one in CELLS if one.change.words == words]
    return found


def made(kernels: Iterable[Kernel], arch: Arch = SM90) -> tuple[dict[Kernel, Binary], dict[Kernel, str]]:
    return {one: binary_of(one.config, arch) for one in kernels}, {}


def bench(wrong: dict[Kernel, str] | None = None, **card: Any) -> Bench:
    kernels = [one.kernel for one in CELLS if one.kernel] + [COLUMN.base]
    binaries = {one: binary for one, binary in made(kernels)[0].items() if one not in (wrong or {})}
    told = dict.fromkeys(kernels, "") | (wrong or {})
    return Bench(NumpyBackend(arch=SM90, **card), SM90, TimingProtocol(), binaries, told)


def test_each_cell_changes_what_it_says_and_no_more() -> None:
    words = [change.words for changes in MECHANISMS.values() for change in changes]
    assert [one.change.words for one in CELLS] == words and len(set(words)) == len(words)
    base = values_of(SMALL)
    for one in CELLS:
        if one.kernel is None or one.change.edit:
            continue
        named = read_pairs(one.change.words) | read_pairs(one.along)
        assert values_of(one.kernel.config) == base | named
        assert all(base[key] != value for key, value in read_pairs(one.along).items())
        assert one.of_base is (one.kernel.config == SMALL)
    assert cell("fragment_buffers=2").of_base and not cell("fragment_buffers=1").of_base
    assert cell("copy=ld").along == "stages=2" and cell("stages=2").along == ""
    assert all(bool(one.refused) is (one.kernel is None) for one in CELLS) and "C521" in cell("k_steps=1").refused


@pytest.mark.parametrize("title", slots.PROBLEMS)
def test_what_is_known_of_the_h200_has_a_value_of_every_mechanism(title: str) -> None:
    column = slots.column_of(title, SM90, chips.usual(90))
    cells = list(slots.cells_of(column, SM90))
    assert column.best.origin == "winner"
    for mechanism in MECHANISMS:
        assert any(one.kernel and not one.of_base for one in cells if one.mechanism == mechanism), mechanism
    assert slots.subjects_of(cells) <= 70


def test_edits_change_the_text_where_they_say() -> None:
    text = COLUMN.base.source(SM90).text
    at_once, turned = (cell(words).kernel for words in EDITS)
    assert at_once and turned
    lines = [
        (old.strip(), new.strip())
        for edited in (at_once, turned)
        for old, new in zip(text.splitlines(), edited.source(SM90).text.splitlines(), strict=True)
        if old != new
    ]
    assert lines == [
        ("if (i * (K_STEPS - 1) / A_COPIES == part) {", "if (part == 0) {"),
        ("if (i * (K_STEPS - 1) / B_COPIES == part) {", "if (part == 0) {"),
        (
            "wmma::mma_sync(acc[i][j], a[k % 2][i], b[k % 2][j], acc[i][j]);",
            "const int turn = i % 2 ? FRAGS_N - 1 - j : j; "
            "wmma::mma_sync(acc[i][turn], a[k % 2][i], b[k % 2][turn], acc[i][turn]);",
        ),
    ]
    through_registers = known.Known(
        defaults.read_config("warps=1x2,frags=1x1,k_steps=4,copy=ld,stages=2", SM90), "winner", "what won"
    )
    others = slots.cells_of(Column("64", COLUMN.problem, through_registers), SM90)
    assert [one.refused for one in others if one.change.words == ALL_AT_ONCE] == ["its text has no such place"]


def test_values_are_told_beside_the_base() -> None:
    found = bench().measure([cell(f"fragment_buffers={n}") for n in (1, 2)])
    one, base = found
    assert one.timing and one.beside and one.ratio and base.ratio is None and str(base) == "base"
    assert one.ratio.low == one.beside.median_us / one.timing.median_us and str(one) == f"{one.ratio.low:.3f}"
    assert one.facts and json.loads(json.dumps(one.to_json()))["facts"]["occupancy"] == one.facts.occupancy
    (along,) = bench().measure([cell("copy=ld")])
    assert str(along).endswith("*")
    (refused,) = bench().measure([Cell(COLUMN, "stages", Change("stages=8"), refused="R402 too much")])
    assert str(refused) == "-" and not refused.reason


def test_sums_that_meet_in_a_workspace_are_judged_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [one for one in CELLS if one.mechanism == "splits of K"]
    assert not any(one.reason for one in bench().measure(asked))
    monkeypatch.setattr(trial.Workspace, "damage", lambda self, left: "the workspace's counts are not as they were")
    wrong = {one.cell.change.words for one in bench().measure(asked) if one.reason}
    assert wrong and all("workspace" in words for words in wrong)


def test_what_is_wrong_has_no_time() -> None:
    asked = [cell(f"stages={n}") for n in (2, 3, 4)]
    two = asked[0].kernel
    assert two is not None

    def spoil(entry: str, d: Any) -> None:
        if "cpasync4" in entry:
            d[0, 0] += 1

    found = bench({two: "48x48x48: D[0, 0]"}, spoil=spoil).measure(asked)
    assert [str(one) for one in found] == ["FAILED", "base", "FAILED"]
    assert found[0].reason == "48x48x48: D[0, 0]" and "D[0, 0]" in found[2].reason
    # Beside a base that is wrong nothing has a time.
    base = bench({COLUMN.base: "1 of 9 elements differ"}).measure(asked)
    assert [one.reason for one in base] == ["1 of 9 elements differ", "", "1 of 9 elements differ"]

    def fault(entry: str) -> Fault | None:
        return CrashFault("an illegal address", "") if "cpasync4" in entry else None

    crashed = bench(fault_of=fault).measure(asked)
    assert [bool(one.reason) for one in crashed] == [False, False, True] and crashed[0].ratio


def test_of_a_fault_in_turns_nobody_knows_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(*_: Any, **__: Any) -> None:
        raise CrashFault("an illegal address", "")

    monkeypatch.setattr(NumpyBackend, "compare", compare)
    found = bench().measure([cell(f"stages={n}") for n in (2, 3, 4)])
    assert [one.reason for one in found] == ["an illegal address", "", "an illegal address"]


def test_what_does_not_fit_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "occupancy", lambda *numbers: 0)
    (one,) = bench().measure([cell("stages=2")])
    assert str(one) == "-" and "do not fit" in one.cell.refused and not one.reason


@pytest.mark.parametrize("broken", [False, True])
def test_a_whole_run(
    broken: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def pick(kind: str, arch: Arch) -> Iterator[Place]:
        yield Place(NumpyBackend(arch=SM90), arch)

    def proved(kernels: list[Kernel], arch: Arch) -> dict[Kernel, str]:
        return {one: "wrong" if broken and one.edit == SERPENTINE else "" for one in kernels}

    monkeypatch.setattr(slots, "pick", pick)
    monkeypatch.setattr(slots, "compiled", made)
    monkeypatch.setattr(slots, "proved", proved)
    monkeypatch.setattr(known, "best", lambda *_: COLUMN.best)
    monkeypatch.setattr(sys, "argv", ["measure_slots.py", "--problem", "64", "128x64x64", "--to", str(tmp_path)])
    assert slots.main() == int(broken)
    text = (tmp_path / "slots_sm_90_a_card_of_NumPy.txt").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out and name(SMALL) in text
    assert ("FAILED 128x64x64, products in serpentine order: wrong" in text) is broken
    rows = {line[:48].strip(): line[48:].split() for line in text.splitlines()}
    assert rows["fragment_buffers=2"] == ["base", "base"] and "64: copy=ld with stages=2" in text
    document = json.loads((tmp_path / "slots_sm_90_a_card_of_NumPy.json").read_text(encoding="utf-8"))
    assert len(document["measurements"]) == 2 * len(CELLS) and document["arch"] == "sm_90"


def test_a_kernel_is_hostile_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots.foundry, "compile_source", lambda text, entry, arch: binary_of(SMALL, arch))
    kernel = COLUMN.base
    assert slots.hostile(NumpyBackend(arch=SM90), (kernel, SM90)) == ""
    spoilt = NumpyBackend(arch=SM90, spoil=lambda entry, d: d.__setitem__((0, 0), 7777))
    assert "D[0, 0]" in slots.hostile(spoilt, (kernel, SM90))
    dead = NumpyBackend(arch=SM90, fault_of=lambda entry: CrashFault("an illegal address", ""))
    assert slots.hostile(dead, (kernel, SM90)) == "crash: an illegal address"
    assert slots.protocol_of(10.0, 20).max_seconds == 0.5


def test_what_the_compiler_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    one = cell("stages=2")
    assert one.kernel is not None
    (found,) = bench({one.kernel: "no"}).measure([one])
    assert found.reason == "no" and found.facts is None
