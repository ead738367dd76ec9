"""What is handed over was looked at: defects are refused or told, and what could not be looked at is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests import published
from tests.fakes import NumpyBackend
from tests.nvrtc import prove_lint
from wmmagen import cli, foundry, job, nvrtc, sass, trial
from wmmagen.arch import ARCHS
from wmmagen.backends import pick
from wmmagen.backends.pick import Place
from wmmagen.defaults import read_config
from wmmagen.errors import CompileError, MissingPiece
from wmmagen.lint import Report

SMALL = "warps=1x1,frags=1x1"
#: Four blocks of eight warps leave a thread 64 registers, fewer than these sums and operands are.
SPILLS = "warps=4x2,frags=2x3,feed=global,min_blocks=4,k_steps=1"
EMIT = ("emit", SPILLS, "--arch", "sm_75", "--to", "out")
SWEEP = ("sweep", "--arch", "sm_75", "--problem", "128x96x32", "--fix", SPILLS, "--trials", "1", "--jobs", "1")
NAMES = ["manifest.json", "my_gemm.cu", "my_gemm.h", "my_gemm_selftest.cu"]
Say = Callable[..., str]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled_once: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Run a command, see that it ends with ``status``, and return what it printed on standard output."""

    def run(*arguments: str, status: int = 0) -> str:
        capfd.readouterr()
        ended = cli.run(list(arguments))
        out, err = capfd.readouterr()
        assert ended == status, err
        return out if status == 0 else out + err

    return run


def document(say: Say, kind: str, *arguments: str, status: int = 0) -> dict[str, Any]:
    text = say(*arguments, "--json", status=status)
    read: dict[str, Any] = published.read(text[: text.rindex("}") + 1])
    published.judge(kind, read)
    return read


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of NumPy: whatever the machine code, its results are right."""
    monkeypatch.setattr(pick, "pick", lambda kind, arch, **more: Place(NumpyBackend(), arch))


def absent() -> Any:
    raise MissingPiece("it is not here", "get it")


def test_a_kernel_with_defects_is_not_handed_over(say: Say) -> None:
    error = document(say, "error", *EMIT, status=1)["error"]
    assert error["kind"] == "lint" and "--with-defects" in error["fix"]
    assert "spilled to local memory" in error["message"] and "local memory in the main loop" in error["message"]
    assert not Path("out").exists()
    said = say(*EMIT, status=1)
    assert "has defects, so nothing was written:\n  " in said and "spilled" in said
    assert not Path("out").exists()


def test_who_asks_for_it_has_it_and_is_told(say: Say) -> None:
    anyway = (*EMIT, "--symbol", "my_gemm", "--with-defects")
    told = document(say, "emit", *anyway)
    assert any("spilled" in defect for defect in told["lint"]) and told["lint_undone"] is None
    assert sorted(path.name for path in Path("out").iterdir()) == NAMES
    lines = say(*anyway).splitlines()
    assert [f"  lint             {defect}" for defect in told["lint"]] == lines[4 : 4 + len(told["lint"])]


def test_a_kernel_without_defects_is_handed_over_and_that_is_said(say: Say) -> None:
    emit = ("emit", SMALL, "--arch", "sm_75", "--to", "out")
    told = document(say, "emit", *emit)
    assert (told["lint"], told["lint_undone"]) == ([], None)
    assert f"  lint             no defect ({sass.title(sass.locate())})\n" in say(*emit)


@pytest.mark.parametrize("room", [sass, nvrtc], ids=["disassembler", "compiler"])
def test_what_cannot_be_looked_at_is_handed_over_and_that_is_said(
    room: Any, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, {sass: "locate", nvrtc: "_nvrtc"}[room], absent)
    emit = ("emit", SMALL, "--arch", "sm_75", "--to", "out", "--symbol", "my_gemm")
    told = document(say, "emit", *emit)
    assert (told["lint"], told["lint_undone"]) == ([], "it is not here: get it")
    assert sorted(path.name for path in Path("out").iterdir()) == NAMES
    assert "  lint             not done: it is not here: get it\n" in say(*emit)


def test_spills_are_told_without_a_disassembler_too(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "locate", absent)
    assert document(say, "error", *EMIT, status=1)["error"]["kind"] == "lint"


def test_a_request_that_cannot_be_is_refused_before_anything_is_compiled(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*arguments: object) -> Any:
        raise AssertionError("this was not to be compiled")

    monkeypatch.setattr(trial, "build", build)
    Path("out").mkdir()
    Path("out/my_gemm.h").write_text("mine")
    assert document(say, "error", *EMIT, "--symbol", "my_gemm", status=2)["error"]["kind"] == "request"
    assert document(say, "error", *EMIT, "--symbol", "return", status=2)["error"]["kind"] == "config"


def test_a_winner_with_defects_is_told_of_and_handed_over_when_asked_for(
    say: Say, card: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = document(say, "sweep", *SWEEP)
    best = found["best"]
    assert any("spilled" in defect for defect in best["lint"]) and best["lint_undone"] is None
    lines = say(*SWEEP).splitlines()
    place = lines.index(f"Winner: {best['file']}")
    told = [f"  lint             {defect}" for defect in best["lint"]]
    again = f"wmmagen emit --best {found['study']} --to DIR --with-defects"
    assert lines[place + 1 :] == [*told, f"Next: {again}"]
    emit = ("emit", "--best", found["study"], "--to", "out")
    assert document(say, "error", *emit, status=1)["error"]["kind"] == "lint"
    assert document(say, "emit", *emit, "--with-defects")["lint"] == best["lint"]
    assert json.loads(Path("out/manifest.json").read_text())["kernels"][best["name"]]["evidence"] is not None
    # What the compiler tells is told without a disassembler, and that there is none.
    monkeypatch.setattr(sass, "locate", absent)
    best = document(say, "sweep", *SWEEP)["best"]
    assert ["spilled" in defect for defect in best["lint"]] == [True]
    assert best["lint_undone"] == "it is not here: get it"
    assert "\n  lint             not done: it is not here: get it\nNext: " in say(*SWEEP)


def test_a_compiler_that_refuses_a_winner_ends_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> NoReturn:
        raise CompileError("it is refused today")

    monkeypatch.setattr(trial, "build", refused)
    report = job._look(read_config("", ARCHS[80]), ARCHS[80], foundry.compile_source)
    assert report.defects == () and report.undone == "it is refused today"


def test_the_proof_tells_what_has_a_defect_or_was_not_looked_at() -> None:
    winner = prove_lint.known_winners()[0]
    for report in (Report(("a defect",), None, ""), Report((), None, "it is not here")):
        assert prove_lint.wrong(report)
        assert prove_lint.line(winner, report).startswith("WRONG sm_90 winner at 256x256x256 ")
    assert prove_lint.line(winner, Report((), None, "")).startswith("ok    sm_90 winner at 256x256x256 ")
