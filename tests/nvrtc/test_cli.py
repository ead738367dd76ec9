"""The command line's contract: exit statuses, the documents of --json, and what is left behind."""

from __future__ import annotations

import errno
import functools
import hashlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wmmagen
from tests.fakes import NumpyBackend
from wmmagen import cache, cli, foundry, job, nvrtc, sass, trial, tune
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import pick
from wmmagen.backends.pick import Place
from wmmagen.config import KernelConfig, parse, spell, values_of
from wmmagen.errors import CrashFault, MissingPiece
from wmmagen.foundry import Compiler
from wmmagen.nvrtc import Binary
from wmmagen.records import Record
from wmmagen.render import Source, render, templates_fingerprint

Answer = tuple[int, dict[str, Any], str]
FEW = "warps=2x2,frags=2x2,k_steps=2,copy=ld"
SWEEP = ["sweep", "--arch", "sm_75", "--problem", "128", "--fix", FEW]
#: No file system has such a name; who only asks whether it is there gets an error, too.
TOO_LONG = "a" * 300
#: The same where running is not what is tested.
COMPILES = [*SWEEP, "--backend", "none"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled_once: Path) -> None:
    """A folder of its own for each test, without a disassembler: ``test_gate.py`` is about what that says."""

    def none() -> Path:
        raise MissingPiece("there is no nvdisasm in this test", "another test")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sass, "locate", none)


@pytest.fixture
def no_cache(elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where compiling is what is tested, nothing is found again."""
    monkeypatch.setenv(cache.VARIABLE, "")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*arguments: object) -> object:
        raise MissingPiece("there is no GPU in this test", "another test")

    monkeypatch.setattr(pick, "_best_gpu", none)


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Run a command with --json: its status, its document, and what it said beside."""

    def run(*arguments: str) -> Answer:
        status = cli.run([*arguments, "--json"])
        captured = capsys.readouterr()
        return status, json.loads(captured.out), captured.err

    return run


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[..., NumpyBackend]:
    """Put a card of NumPy into this machine."""

    def put(**more: Any) -> NumpyBackend:
        backend = NumpyBackend(**more)
        monkeypatch.setattr(pick, "pick", lambda kind, arch, **more: Place(backend, arch))
        return backend

    return put


# ---------------------------------------------------------------------------------------------------------------------
# check


def test_pad_4_is_refused_with_everything_one_needs(ask: Callable[..., Answer]) -> None:
    status, document, _ = ask("check", "inst=16x16x16,pad_a=4", "--arch", "sm_75")
    assert status == 2
    assert document["legal"] is False
    (violation,) = document["violations"]
    assert set(violation) == {"id", "rule", "message", "fix", "source"}
    assert violation["id"] == "L201"
    assert "36" in violation["message"]
    assert "pad_a=0 or 8" in violation["fix"]
    assert "Programming Guide" in violation["source"]


def test_pad_8_is_legal_by_the_guide_and_illegal_by_the_strict_reading(ask: Callable[..., Answer]) -> None:
    status, document, _ = ask("check", "pad_a=8", "--arch", "sm_75")
    assert (status, document["legal"], document["violations"]) == (0, True, [])
    status, document, _ = ask("check", "pad_a=8", "--arch", "sm_75", "--strict-isa")
    assert status == 2
    assert [v["id"] for v in document["violations"]] == ["L211"]


def test_a_problem_is_checked_too(ask: Callable[..., Answer]) -> None:
    status, document, _ = ask("check", "", "--arch", "sm_75", "--problem", "100x128x32")
    assert status == 2
    assert [v["id"] for v in document["violations"]] == ["N801"]


@pytest.mark.parametrize(
    ("arguments", "kind", "hint"),
    [
        (["check", "pda_a=8", "--arch", "sm_75"], "config", "pad_a"),
        (["check", "copy=cpasinc", "--arch", "sm_80"], "config", "cpasync"),
        (["check", "pad_a", "--arch", "sm_75"], "config", "inst=16x16x16"),
        (["check", "", "--arch", "sm_76"], "config", "sm_75"),
        (["check", "", "--arch", "sm_88"], "config", "sm_75"),
        (["check", "", "--arch", "sm_75", "--problem", "big"], "config", "2048"),
        (["check", "a=s4,layout=rc", "--arch", "sm_80"], "not-generated-yet", "made today"),
        (["render", "pad_a=4", "--arch", "sm_75"], "illegal", "pad_a=0 or 8"),
        (["check", "missing.toml", "--arch", "sm_75"], "config", "TOML"),
        (["emit", "--best", "no_such_study", "--to", "out"], "study", "sweep"),
        (["emit", "--to", "out"], "request", "--best"),
        (["emit", "", "--to", "out", "--symbol", "return", "--arch", "sm_75"], "config", "letter"),
        (["sweep", "--exhaustive", "--trials", "3", "--arch", "sm_75"], "request", "one of them"),
        (["sweep", "--arch", "sm_75", "--problem", "100", "--fix", "residue=exact"], "request", "fix"),
        (["sweep", "--arch", "sm_75", "--fix", FEW, "--storage", TOO_LONG], "study", "a path that can be written"),
        (["sweep", "--arch", "sm_75", "--fix", FEW, "--generated", "/dev/null/x"], "request", "another folder"),
        (["sweep", "--arch", "sm_75", "--jobs", "1000000"], "usage", "--jobs"),
        (["emit", "--best", TOO_LONG, "--to", "out"], "study", "sweep"),
        (["emit", "", "--arch", "sm_75", "--to", TOO_LONG], "request", "another folder"),
        (["validate", "", "--arch", "sm_75", "--pattern", "x"], "config", "positions"),
        (["validate", "epilogue=linear", "--arch", "sm_75", "--alpha", "0.1"], "config", "powers of two"),
        (["space", "--arch", "sm_75", "--list", "9" * 5000], "request", "whole number"),
        (["sweep", "--arch", "sm_75", "--backend", "tpu"], "config", "auto"),
        (["nonsense"], "usage", "--help"),
        (["check"], "usage", "--help"),
        (["check", "", "--no-such-option"], "usage", "--help"),
    ],
)
def test_bad_requests_end_with_2_and_leave_nothing(
    ask: Callable[..., Answer], arguments: list[str], kind: str, hint: str
) -> None:
    status, document, _ = ask(*arguments)
    assert status == 2
    assert set(document) == {"error"}
    assert document["error"]["kind"] == kind
    assert hint in document["error"]["message"] + document["error"]["fix"]
    assert list(Path().iterdir()) == []


# ---------------------------------------------------------------------------------------------------------------------
# render, compile, validate, emit


def test_render_prints_the_source(ask: Callable[..., Answer], capsys: pytest.CaptureFixture[str]) -> None:
    status, document, _ = ask("render", "", "--arch", "sm_75")
    assert status == 0
    assert set(document) >= {"name", "source"}
    assert cli.run(["render", document["name"], "--arch", "sm_75"]) == 0
    assert capsys.readouterr().out == document["source"]


def test_compile_reports_the_compilers_facts(ask: Callable[..., Answer]) -> None:
    status, document, _ = ask("compile", "", "--arch", "sm_80")
    assert status == 0
    assert {
        "name", "arch", "registers", "spill_bytes", "shared_bytes", "threads", "occupancy", "lint", "compile_seconds",
    } <= set(document)  # fmt: skip
    assert document["threads"] == 128
    assert document["shared_bytes"] == 56832
    assert document["tensor_instructions"] == 32


def test_compile_says_whether_it_was_found_in_the_cache(
    ask: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(cache.VARIABLE, "kept")
    command = ("compile", "warps=1x1,frags=1x1", "--arch", "sm_75")
    first, second, anew = (ask(*command, *more)[1] for more in ([], [], ["--no-cache"]))
    assert [document["cached"] for document in (first, second, anew)] == [False, True, False]
    assert second == {**first, "cached": True}  # the seconds are those of the compilation
    assert {**anew, "compile_seconds": 0} == {**first, "compile_seconds": 0}
    assert cli.run(command) == 0
    assert "found in the cache" in capsys.readouterr().out
    assert cli.run([*command, "--no-cache"]) == 0
    assert "found in the cache" not in capsys.readouterr().out


def test_no_cache_writes_none(ask: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, "kept")
    assert ask("compile", "warps=1x1,frags=1x1", "--arch", "sm_75", "--no-cache")[0] == 0
    assert not Path("kept").exists()


def test_validate_where_nothing_may_run_it_lacks_a_piece(ask: Callable[..., Answer], no_gpu: None) -> None:
    status, document, _ = ask("validate", "", "--arch", "sm_75", "--backend", "gpu")
    assert status == 3
    assert document["error"]["kind"] == "missing"


@pytest.mark.parametrize(
    ("command", "kind", "fix"),
    [
        (["validate", ""], "none", "one of: auto gpu cpu"),
        (["validate", ""], "tpu", "one of: auto gpu cpu"),
        (["mutants"], "none", "one of: auto gpu cpu"),
        (["accuracy"], "none", "one of: auto gpu cpu"),
        (["bench", ""], "none", "one of: auto gpu"),
        (["bench", ""], "cpu", "one of: auto gpu"),
    ],
)
def test_a_backend_that_a_command_cannot_have_is_refused(
    ask: Callable[..., Answer], command: list[str], kind: str, fix: str
) -> None:
    status, document, _ = ask(*command, "--backend", kind)
    assert (status, document["error"]["fix"]) == (2, fix)


def test_validate_says_exact(ask: Callable[..., Answer], card: Callable[..., NumpyBackend]) -> None:
    card()
    status, document, aside = ask("validate", "warps=1x1,frags=1x1", "--arch", "sm_75")
    assert status == 0
    assert document["exact"] is True
    assert {"problem", "exact", "guaranteed", "first_mismatch", "findings"} <= set(document["runs"][0])
    assert aside.startswith("backend gpu: ")


def test_validate_says_wrong_with_1(ask: Callable[..., Answer], card: Callable[..., NumpyBackend]) -> None:
    def spoil(name: str, d: np.ndarray) -> None:
        d[3, 5] += 1

    card(spoil=spoil)
    status, document, _ = ask("validate", "warps=1x1,frags=1x1", "--arch", "sm_75")
    assert status == 1
    assert document["exact"] is False
    assert "D[3, 5]" in document["runs"][-1]["first_mismatch"]


def test_emit_writes_the_files_for_another_project(ask: Callable[..., Answer]) -> None:
    status, document, _ = ask("emit", "acc=f16", "--arch", "sm_80", "--to", "out dir", "--symbol", "my_gemm")
    assert status == 0
    names = ["my_gemm.cu", "my_gemm.h", "my_gemm_selftest.cu", "manifest.json"]
    assert document["files"] == [f"out dir/{name}" for name in names]
    assert document["selftest"] == (
        "nvcc -arch=sm_80 -o './out dir/my_gemm_selftest' 'out dir/my_gemm.cu' 'out dir/my_gemm_selftest.cu' && "
        "'./out dir/my_gemm_selftest'"
    )
    # The rendered text, unchanged.
    rendered = ask("render", document["name"], "--arch", "sm_80", "--symbol", "my_gemm")[1]["source"]
    assert Path("out dir/my_gemm.cu").read_text() == rendered
    assert sorted(p.name for p in Path("out dir").iterdir()) == sorted(names)


def test_the_manifest_says_what_was_emitted_and_why(
    ask: Callable[..., Answer], card: Callable[..., NumpyBackend]
) -> None:
    card()
    study = ask(*SWEEP, "--trials", "2")[1]
    emitted = ask("emit", "--best", study["study"], "--to", "out", "--symbol", "best")[1]
    ask("emit", "acc=f16", "--arch", "sm_80", "--to", "out", "--symbol", "other")
    text = Path("out/manifest.json").read_text()
    kernels = json.loads(text)["kernels"]
    assert set(kernels) == {"best", "other"}
    best, other = kernels["best"], kernels["other"]
    assert (best["name"], best["architecture"]) == (emitted["name"], "sm_75")
    assert best["configuration"] == {k: spell(v) for k, v in values_of(parse(best["name"])).items()}
    assert best["versions"]["wmmagen"] == wmmagen.__version__
    assert best["versions"]["templates"] == templates_fingerprint()
    assert best["versions"]["compiler"] == nvrtc.title()
    assert best["evidence"]["study"] == study["study"]
    record = Record.from_json(best["evidence"]["record"])
    assert (record.name, record.fingerprint, record.outcome.value) == (best["name"], best["fingerprint"], "ok")
    assert record.timing is not None and f"{record.timing.median_us:.2f} us" in best["evidence_words"]
    assert other["evidence"] is None and "self-test" in other["evidence_words"]
    for file in emitted["files"][:-1]:
        assert best["sha256"][Path(file).name] == hashlib.sha256(Path(file).read_bytes()).hexdigest()
    # The same requests give the same bytes, in whatever order.
    ask("emit", "acc=f16", "--arch", "sm_80", "--to", "again", "--symbol", "other")
    ask("emit", "--best", study["study"], "--to", "again", "--symbol", "best")
    assert Path("again/manifest.json").read_text() == text
    assert str(Path.cwd()) not in text
    # What was proved as a kernel of one architecture is no evidence for another.
    status, _, beside = ask("emit", "--best", study["study"], "--to", "out", "--symbol", "g", "--arch", "sm_80")
    assert status == 0 and "won as one for sm_75" in beside
    assert json.loads(Path("out/manifest.json").read_text())["kernels"]["g"]["evidence"] is None


@pytest.mark.parametrize("there", ["no JSON", "[]", "[" * 200_000, '{"kernels": 3}', '{"name": "my package"}'])
def test_a_manifest_of_somebody_else_is_not_replaced(ask: Callable[..., Answer], there: str) -> None:
    Path("out").mkdir()
    Path("out/manifest.json").write_text(there)
    command = ("emit", "", "--arch", "sm_75", "--to", "out", "--symbol", "g")
    status, document, _ = ask(*command)
    assert (status, document["error"]["kind"]) == (2, "request")
    assert [p.name for p in Path("out").iterdir()] == ["manifest.json"]
    assert Path("out/manifest.json").read_text() == there
    assert ask(*command, "--overwrite")[0] == 0
    assert set(json.loads(Path("out/manifest.json").read_text())["kernels"]) == {"g"}


def test_a_manifest_that_says_something_else_of_the_kernel_is_not_replaced(ask: Callable[..., Answer]) -> None:
    command = ("emit", "", "--arch", "sm_75", "--to", "out", "--symbol", "g")
    assert ask(*command)[0] == 0
    manifest = Path("out/manifest.json")
    manifest.write_text(manifest.read_text().replace(wmmagen.__version__, "0.0.1"))
    status, document, _ = ask(*command)
    assert status == 2 and "something else of g" in document["error"]["message"]


def test_emit_replaces_nothing_unasked(ask: Callable[..., Answer]) -> None:
    command = ("emit", "", "--arch", "sm_75", "--to", "out", "--symbol", "g")
    assert ask(*command)[0] == 0
    assert ask(*command)[0] == 0  # the same bytes are no conflict
    Path("out/g.h").write_text("mine")
    Path("out/g.cu").unlink()
    status, document, _ = ask(*command)
    assert status == 2
    assert "--overwrite" in document["error"]["fix"]
    assert Path("out/g.h").read_text() == "mine"
    assert not Path("out/g.cu").exists()
    assert ask(*command, "--overwrite")[0] == 0
    assert Path("out/g.h").read_text() != "mine"


def test_a_toml_file_is_a_configuration(ask: Callable[..., Answer]) -> None:
    Path("my kernel.toml").write_text('acc = "f16"\nk_steps = 1\n')
    status, document, _ = ask("check", "my kernel.toml", "--arch", "sm_75")
    assert status == 0
    assert parse(document["name"]).k_steps == 1


# ---------------------------------------------------------------------------------------------------------------------
# sweep


def test_validate_without_a_gpu_runs_on_the_cpu(ask: Callable[..., Answer], no_gpu: None) -> None:
    status, document, aside = ask("validate", "warps=1x1,frags=1x1", "--arch", "sm_90")
    assert (status, document["backend"], document["exact"]) == (0, "cpu", True)
    assert aside.startswith("backend cpu: CPU executor runs the PTX of sm_90 kernels")
    assert {len(run["findings"]) for run in document["runs"]} == {0}


def test_validate_by_the_strict_reading(ask: Callable[..., Answer], no_gpu: None) -> None:
    text = "warps=1x1,frags=1x1,copy=ld,stages=1,pad_a=8"
    assert ask("validate", text, "--arch", "sm_75")[0] == 0
    status, document, _ = ask("validate", text, "--arch", "sm_75", "--strict-isa")
    assert status != 0
    assert "L211" in json.dumps(document)
    padded = text.replace("pad_a=8", "pad_a=16")
    status, document, _ = ask("validate", padded, "--arch", "sm_75", "--strict-isa", "--problem", "32x32x32")
    assert (status, document["exact"]) == (0, True)


def test_a_sweep_without_a_gpu_is_checked_on_the_cpu_and_ranked_by_estimate(
    ask: Callable[..., Answer], no_gpu: None
) -> None:
    status, document, aside = ask(*SWEEP, "--trials", "2")
    assert (status, document["backend"], document["leading"]) == (0, "cpu", [])
    assert document["outcomes"]["ok"] == 2
    best = document["best"]
    assert aside.splitlines()[0].endswith("nothing is timed. Estimates rank.")
    assert best["estimated_us"] > 0 and "median_us" not in best and Path(best["file"]).exists()
    status, emitted, _ = ask("emit", "--best", document["study"], "--to", "out")
    assert (status, emitted["name"]) == (0, best["name"])


def test_a_sweep_that_only_compiles_calls_nothing_best(ask: Callable[..., Answer], no_gpu: None) -> None:
    status, document, aside = ask(*SWEEP, "--backend", "none", "--trials", "4")
    assert status == 0
    assert document["backend"] == "none"
    assert document["best"] is None
    assert document["outcomes"]["unverified"] == 4
    assert document["outcomes"]["ok"] == 0
    assert document["leading"]
    assert set(document) >= {"study", "arch", "backend", "problem", "outcomes", "best", "seconds"}
    assert aside.startswith("backend none: ")
    assert not Path("generated").exists()
    status, document, _ = ask("emit", "--best", document["study"], "--to", "out")
    assert status == 2
    assert document["error"]["kind"] == "study"


def test_a_sweep_with_a_card_ends_with_a_winner(ask: Callable[..., Answer], card: Callable[..., NumpyBackend]) -> None:
    backend = card()
    status, document, _ = ask(*SWEEP, "--trials", "5")
    assert status == 0
    assert document["outcomes"]["ok"] == 5
    best = document["best"]
    file = Path(best["file"])
    assert file == Path("generated/sm_75") / f"{best['name']}.cu"
    assert best["name"] in file.read_text()
    ran = len(backend.runs_done)
    status, again, _ = ask(*SWEEP, "--trials", "5")
    assert (status, again["best"], again["new"]) == (0, best, 0)
    assert len(backend.runs_done) == ran
    status, further, _ = ask(*SWEEP, "--trials", "7")
    assert (status, further["new"], further["trials"]) == (0, 2, 7)
    status, emitted, _ = ask("emit", "--best", document["study"], "--to", "out")
    assert status == 0
    assert Path(emitted["files"][0]).stem == further["best"]["name"]


def test_the_leaders_are_measured_again_in_turns_and_the_best_is_one_of_them(
    ask: Callable[..., Answer],
    card: Callable[..., NumpyBackend],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    card()
    compare = NumpyBackend.compare

    def turned(self: NumpyBackend, subjects: Any, protocol: Any, **more: Any) -> Any:
        """In turns, whoever was first alone is last."""
        found = compare(self, subjects, protocol, **more)
        times = [100.0 - t.median_us for t in found.timings]
        timings = [replace(t, median_us=us, interval_us=(us, us)) for t, us in zip(found.timings, times, strict=True)]
        return replace(found, timings=tuple(timings))

    monkeypatch.setattr(NumpyBackend, "compare", turned)
    status, document, _ = ask(*SWEEP, "--trials", "5")
    finals = document["finals"]
    assert status == 0 and len(finals) == job.FINALISTS and all(row["outcome"] == "ok" for row in finals)
    assert [row["median_us"] for row in finals] == sorted((row["median_us"] for row in finals), reverse=True)
    assert document["best"]["name"] == finals[-1]["name"] and finals[-1]["share"]["cublas_fp32"] is None
    status, again, _ = ask(*SWEEP, "--trials", "5")
    assert (again["finals"], again["best"]) == (None, document["best"])
    assert cli.run([*SWEEP, "--trials", "5"]) == 0
    out = capsys.readouterr().out
    assert f"in turns, and this one was the fastest: {finals[-1]['name']}\n" in out
    assert "The leaders again" not in out and " tie" not in out
    status, emitted, _ = ask("emit", "--best", document["study"], "--to", "out")
    assert Path(emitted["files"][0]).stem == document["best"]["name"]


def test_a_leader_that_is_wrong_in_the_end_is_none(
    ask: Callable[..., Answer], card: Callable[..., NumpyBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: list[str] = []
    backend = card(spoil=lambda name, d: d.fill(7) if name in wrong else None)
    compare = NumpyBackend.compare

    def breaks(self: NumpyBackend, subjects: Any, protocol: Any, **more: Any) -> Any:
        wrong.append(subjects[0].launch.entry)
        return compare(self, subjects, protocol, **more)

    monkeypatch.setattr(NumpyBackend, "compare", breaks)
    status, document, _ = ask(*SWEEP, "--trials", "5")
    assert status == 0 and backend.runs_done
    assert [row["outcome"] for row in document["finals"]] == ["wrong", "ok", "ok"]
    assert document["outcomes"]["wrong"] == 1 and document["best"]["name"] == document["finals"][1]["name"]
    assert "after timing" in next(r.detail for r in reversed(tune.find_study(document["study"]).records()) if r.detail)


def test_a_bad_kernel_costs_one_candidate(ask: Callable[..., Answer], card: Callable[..., NumpyBackend]) -> None:
    victims: list[str] = []

    def crash(name: str) -> CrashFault | None:
        if len(victims) < 1 or name in victims:
            victims.append(name)
            return CrashFault("an illegal address")
        return None

    card(fault_of=crash)
    status, document, _ = ask(*SWEEP, "--trials", "4")
    assert status == 0
    assert document["outcomes"]["crash"] == 1
    assert document["outcomes"]["ok"] == 3
    assert document["best"]["name"] not in victims[0]


def test_a_sweep_in_which_all_are_wrong_ends_with_1(
    ask: Callable[..., Answer], card: Callable[..., NumpyBackend]
) -> None:
    def spoil(name: str, d: np.ndarray) -> None:
        d[0, 0] += 1

    card(spoil=spoil)
    status, document, _ = ask(*SWEEP, "--trials", "2")
    assert status == 1
    assert document["outcomes"]["wrong"] == 2
    assert document["best"] is None


def test_a_foreign_card_validates_and_estimates_rank(
    ask: Callable[..., Answer], card: Callable[..., NumpyBackend]
) -> None:
    card(arch=ARCHS[90])
    status, document, aside = ask(*SWEEP, "--trials", "2")
    assert status == 0
    assert document["outcomes"]["ok"] == 2
    assert "estimated_us" in document["best"] and "median_us" not in document["best"]
    assert "foreign" in aside


def test_a_study_begun_without_a_gpu_is_tried_again_on_one(
    ask: Callable[..., Answer], no_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, compiled, _ = ask(*COMPILES, "--trials", "3")
    assert (compiled["new"], compiled["best"]) == (3, None)
    monkeypatch.setattr(pick, "pick", lambda kind, arch, **more: Place(NumpyBackend(), arch))
    _, timed, _ = ask(*COMPILES, "--trials", "3")
    assert timed["new"] == 3
    assert timed["outcomes"]["ok"] == 3
    assert timed["outcomes"]["unverified"] == 0  # each candidate counts once, as what is known of it last
    assert timed["best"] is not None
    monkeypatch.setattr(
        pick, "pick", lambda kind, arch, **more: Place(NumpyBackend(device="another card (sm_75)"), arch)
    )
    _, other, _ = ask(*COMPILES, "--trials", "1")
    assert other["new"] == 1


def places(monkeypatch: pytest.MonkeyPatch, *backends: NumpyBackend) -> Iterator[None]:
    """Move to each of ``backends`` in turn."""
    for backend in backends:
        monkeypatch.setattr(pick, "pick", lambda kind, arch, backend=backend, **more: Place(backend, arch))
        yield


def test_a_study_of_a_card_goes_on_without_one_and_back_with_the_same_winner(
    ask: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card, cpu = NumpyBackend(), NumpyBackend(name="cpu", device="a processor", clocked=False)
    other = NumpyBackend(device="another card (sm_75)")
    asked = []
    for _ in places(monkeypatch, card, cpu, card, other, card):
        _, document, _ = ask(*SWEEP, "--trials", "4")
        _, emitted, _ = ask("emit", "--best", document["study"], "--to", "out", "--overwrite")
        asked.append((document, emitted["name"]))
    timed, checked, *_ = (document for document, _ in asked)
    assert {name for _, name in asked} == {timed["best"]["name"]}
    assert checked["best"] is None and checked["new"] == 4
    assert [d["new"] for d, _ in asked] == [4, 4, 0, 4, 0]
    assert [d["trials"] for d, _ in asked] == [4] * 5
    # Who goes on without a card is told of its times.
    for _ in places(monkeypatch, cpu):
        capsys.readouterr()
        assert cli.run([*SWEEP, "--trials", "4"]) == 0
        said = capsys.readouterr().out
    assert "holds times of a card" in said and f"wmmagen emit --best {timed['study']} --to DIR" in said
    # Each card measures its own leaders in turns.
    assert [bool(d["finals"]) for d, _ in asked] == [True, False, False, True, True]


def test_what_the_executor_finds_wrong_does_not_win_on_a_card(
    ask: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    card, cpu = NumpyBackend(), NumpyBackend(name="cpu", device="a processor", clocked=False)
    best = []
    cpu.spoil = lambda name, d: d.fill(7) if name.startswith(best[0]["name"]) else None
    for _ in places(monkeypatch, card, cpu, card):
        _, document, _ = ask(*SWEEP, "--trials", "4")
        best.append(document["best"])
    assert (document["outcomes"]["wrong"], document["outcomes"]["ok"]) == (1, 3)
    assert document["best"]["name"] != best[0]["name"]
    _, emitted, _ = ask("emit", "--best", document["study"], "--to", "out")
    assert emitted["name"] == document["best"]["name"]


@pytest.mark.parametrize("clocked", [True, False])
def test_records_of_other_templates_do_not_keep_todays_winner_away(
    ask: Callable[..., Answer], card: Callable[..., NumpyBackend], clocked: bool
) -> None:
    card(clocked=clocked)
    _, document, _ = ask(*SWEEP, "--trials", "2")
    study = tune.find_study(document["study"])
    known = {record.name: record for record in study.records()}
    _, listed, _ = ask("space", "--arch", "sm_75", "--problem", "128", "--fix", FEW, "--list", "3")
    stranger = next(name for name in listed["names"] if name not in known)
    model = known[document["best"]["name"]]
    timing = model.timing and replace(model.timing, median_us=0.5, interval_us=(0.5, 0.5))
    guess = model.estimate and replace(model.estimate, us=0.5)
    study.add(replace(model, name=stranger, fingerprint="0123456789abcdef", timing=timing, estimate=guess))
    study.keep_finals([replace(record, fingerprint="0123456789abcdef") for record in study.finals()])
    _, again, _ = ask(*SWEEP, "--trials", "2")
    assert again["best"]["name"] == document["best"]["name"] and bool(again["finals"]) == clocked
    status, emitted, _ = ask("emit", "--best", document["study"], "--to", "out")
    assert (status, emitted["name"]) == (0, document["best"]["name"])


def test_an_interrupt_keeps_what_is_finished(
    ask: Callable[..., Answer],
    card: Callable[..., NumpyBackend],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    backend = card()
    asked = len(trial.validation_problems(parse(ask("check", "", "--arch", "sm_75")[1]["name"])))

    def interrupt(name: str) -> None:
        if len(backend.runs_done) > 2 * asked + 8:
            raise KeyboardInterrupt

    backend.fault_of = interrupt
    assert cli.run([*SWEEP, "--trials", "5"]) == 130
    said = capsys.readouterr().err
    assert "goes on:" in said
    backend.fault_of = lambda name: None
    status, document, _ = ask(*SWEEP, "--trials", "5")
    assert status == 0
    assert document["trials"] == 5
    assert 0 < document["new"] < 5


# What a sweep compiles, it compiles in child processes.

ENDLESS = """\
template <int D, unsigned I> struct Tree
{ static constexpr unsigned sum = Tree<D - 1, 2 * I>::sum + Tree<D - 1, 2 * I + 1>::sum; };
template <unsigned I> struct Tree<0, I> { static constexpr unsigned sum = I; };
extern "C" __global__ void endless(unsigned* p) { *p = Tree<28, 1>::sum; }
"""


@pytest.fixture
def the_third_never_ends(ask: Callable[..., Answer], no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third candidate of a sweep has a source that no compiler comes to the end of.

    The others are compiled before, so that short limits are none for them on any machine.
    """
    assert ask(*COMPILES, "--trials", "4", "--study", "before")[0] == 0
    really = trial.build
    built: list[KernelConfig] = []

    def build(config: KernelConfig, arch: Arch, compiler: Compiler) -> tuple[Source, Binary]:
        built.append(config)
        if len(built) == 3:
            return render(config, arch), compiler(ENDLESS, "endless", arch)
        return really(config, arch, compiler)

    monkeypatch.setattr(trial, "build", build)


def records(study: str) -> list[Record]:
    """What a study holds, without the times of the compiler."""
    return [
        replace(r, facts=replace(r.facts, compile_seconds=0.0)) if r.facts else r
        for r in tune.find_study(study).records()
    ]


#: Eight points, all of small tiles.
EIGHT_POINTS = (
    "--fix",
    "inst=16x16x16,warps=2x2,frags=2x1,k_steps=2,copy=ld,pad_a=8,pad_b=8,residency=fragment,store=direct,"
    "raster=linear,fragment_buffers=1,min_blocks=1,split_k=1,reduction=none",
)


@pytest.mark.parametrize("how", [["--trials", "6"], ["--exhaustive"]])
def test_the_records_are_the_same_however_many_processes_compile(
    ask: Callable[..., Answer], no_gpu: None, no_cache: None, how: list[str]
) -> None:
    for jobs in ("1", "3"):
        status, document, _ = ask(
            *SWEEP[:-2], *EIGHT_POINTS, "--backend", "none", *how, "--jobs", jobs, "--study", f"jobs{jobs}"
        )
        assert (status, document["outcomes"]["unverified"]) == (0, document["new"])
    assert document["new"] >= 6
    assert records("jobs1") == records("jobs3")


def test_the_records_of_a_card_are_the_same_however_many_processes_compile(
    ask: Callable[..., Answer], card: Callable[..., NumpyBackend], no_cache: None
) -> None:
    card()
    for jobs in ("1", "3"):
        assert ask(*SWEEP[:-2], *EIGHT_POINTS, "--trials", "5", "--jobs", jobs, "--study", f"jobs{jobs}")[0] == 0
    assert records("jobs1") == records("jobs3")


def test_a_second_sweep_compiles_nothing_anew(
    ask: Callable[..., Answer], no_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.VARIABLE, "kept")
    ask(*COMPILES, "--trials", "4", "--study", "one")
    monkeypatch.setattr(foundry.Foundry, "_ask", lambda *_: pytest.fail("asked a compiler"))
    ask(*COMPILES, "--trials", "4", "--study", "other")
    one, other = (tune.find_study(study).records() for study in ("one", "other"))
    assert one == other  # the seconds of the compiler included


def test_a_compilation_that_does_not_end_costs_one_candidate(
    ask: Callable[..., Answer], no_gpu: None, the_third_never_ends: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "Foundry", functools.partial(foundry.Foundry, limit_s=1.0))
    status, document, _ = ask(*COMPILES, "--trials", "4")
    assert (status, document["outcomes"]["compile"], document["outcomes"]["unverified"]) == (0, 1, 3)
    assert "did not end within 1 s" in records(document["study"])[2].detail


def test_a_budget_ends_a_compilation(ask: Callable[..., Answer], no_gpu: None, the_third_never_ends: None) -> None:
    begin = time.monotonic()
    status, document, _ = ask(*COMPILES, "--trials", "4", "--budget", "3")
    assert (status, document["new"], document["outcomes"]["compile"]) == (0, 2, 0)
    assert 3 <= time.monotonic() - begin < 60


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_as_a_process_a_signal_ends_every_compiler_and_leaves_no_folder(
    tmp_path: Path, no_cache: None, number: signal.Signals, status: int
) -> None:
    places = {"PYTHONPATH": str(Path(wmmagen.__file__).parents[1]), "TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        [sys.executable, "-m", "wmmagen", *COMPILES, "--exhaustive", "--jobs", "2"],
        env=os.environ | places,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    said = ""
    while "[3/" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    os.killpg(process.pid, number)  # as a terminal or a batch system does: everyone gets it
    _, rest = process.communicate(timeout=60)
    assert process.returncode == status
    assert ("goes on:" in rest) is (number == signal.SIGINT)
    assert "Traceback" not in said + rest
    assert not list(tmp_path.glob("wmmagen-*"))
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    (file,) = Path("sweeps").glob("*.db")
    assert len(tune.find_study(str(file)).records()) >= 3


def test_a_study_of_something_else_is_refused(ask: Callable[..., Answer], no_gpu: None) -> None:
    assert ask(*COMPILES, "--trials", "1", "--study", "mine")[0] == 0
    status, document, _ = ask("sweep", "--arch", "sm_80", "--trials", "1", "--study", "mine")
    assert status == 2
    assert document["error"]["kind"] == "study"


def test_a_demanded_gpu_that_is_not_here_is_missing(ask: Callable[..., Answer], no_gpu: None) -> None:
    status, document, _ = ask(*SWEEP, "--backend", "gpu")
    assert status == 3
    assert document["error"]["kind"] == "missing"
    assert list(Path().iterdir()) == []


# ---------------------------------------------------------------------------------------------------------------------
# the rest


def test_doctor_finds_what_compiling_needs(ask: Callable[..., Answer]) -> None:
    status, document, _ = ask("doctor")
    assert status == 0
    assert document["ok"] is True
    assert all({"what", "state", "fix"} <= set(f) for f in document["findings"])


def test_rules_lists_all(ask: Callable[..., Answer], capsys: pytest.CaptureFixture[str]) -> None:
    status, document, _ = ask("rules")
    assert status == 0
    assert [r["id"] for r in document["rules"]] == [r.id for r in cli.rules.RULES]
    assert cli.run(["rules"]) == 0
    text = capsys.readouterr().out
    assert all(r.id in text for r in cli.rules.RULES)


def test_the_arch_defaults_to_the_oldest_without_a_gpu(
    ask: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    default: Callable[[], Arch] = lambda: ARCHS[86]  # noqa: E731
    monkeypatch.setattr(pick, "default_arch", default)
    assert ask("check", "")[1]["arch"] == "sm_86"


def test_as_a_process_a_closed_pipe_is_no_error() -> None:
    command = f"{shlex.quote(sys.executable)} -m wmmagen rules | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "0"
    assert "Traceback" not in done.stderr


def test_as_a_process_what_the_terminal_cannot_show_is_spelt_out() -> None:
    command = [sys.executable, "-m", "wmmagen", "schema", "mutants"]
    shown = {}
    for encoding in ("ascii", "utf-8"):
        environment = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
        done = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        shown[encoding] = done.stdout.decode(encoding)
    assert not shown["utf-8"].isascii()
    assert shown["ascii"] == shown["utf-8"].encode("ascii", "backslashreplace").decode()


def test_json_that_takes_no_value_is_refused_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["rules", "--json=1"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "usage"


def test_nobody_who_listens_beside_the_answer_is_no_error(
    ask: Callable[..., Answer], no_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log on a full disk, or a reader of it that has gone, neither ends a sweep nor changes what it answers."""

    class Full(io.TextIOBase):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    assert ask("check", "a=f17")[0] == 2
    status, document, _ = ask(*SWEEP, "--trials", "2")
    assert status == 0
    assert document["new"] == 2


def test_checking_needs_neither_compiler_nor_optuna() -> None:
    code = (
        "import sys; from wmmagen import cli; status = cli.run(['check', '', '--arch', 'sm_75']);"
        "assert not {'cuda', 'optuna'} & set(sys.modules); sys.exit(status)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
