"""What people read: the same facts as --json, in words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes import NumpyBackend
from wmmagen import cli, job, trial
from wmmagen.arch import ARCHS
from wmmagen.backends import pick
from wmmagen.backends.pick import Place
from wmmagen.config import Problem, spell, values_of
from wmmagen.defaults import read_config
from wmmagen.errors import CrashFault, MissingPiece
from wmmagen.records import Outcome
from wmmagen.timing import Timing, TimingProtocol

SWEEP = ["sweep", "--arch", "sm_75", "--problem", "128", "--fix", "warps=2x2,frags=2x2,k_steps=2,copy=ld"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled_once: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[..., NumpyBackend]:
    def put(**more: Any) -> NumpyBackend:
        backend = NumpyBackend(**more)
        monkeypatch.setattr(pick, "pick", lambda kind, arch, **more: Place(backend, arch))
        return backend

    return put


def test_a_sweep_with_a_card(card: Callable[..., NumpyBackend], capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    def crash(name: str) -> CrashFault | None:
        seen.append(name)
        return CrashFault("an illegal address") if name == seen[0] else None

    card(fault_of=crash)
    assert cli.run([*SWEEP, "--trials", "4"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].startswith("backend gpu: a card of NumPy (sm_75) runs sm_75 kernels as they are")
    assert "Ranking for 128x128x128, 3 right and timed" in said.out
    assert "  ok          3" in lines
    assert "  crash       1" in lines
    assert "an illegal address" in said.out
    assert "points are legal for 128x128x128 on sm_75; removed most by" in said.out
    (winner,) = (line for line in lines if line.startswith("Winner: "))
    assert Path(winner.removeprefix("Winner: ")).is_file()
    assert lines[-1] == "Next: wmmagen emit --best sm_75_f16_f32_f32_rr_128x128x128 --to DIR"
    assert said.err.count("[4/4]") == 1
    first, second, *_ = (line for line in said.err.splitlines() if line.startswith("["))
    assert re.match(r"\[1/4\] crash +no best yet  wmma_gemm", first)
    assert re.match(r"\[2/4\] ok +(\d+\.\d\d us, \d+\.\d TFLOP/s); best so far \1  wmma_gemm", second)
    assert said.out.index("The leaders again, [1] the fastest of the ranking above. * is the fastest") > said.out.index(
        "us               interval"
    )


def test_the_printed_command_finds_a_study_that_lies_elsewhere(
    card: Callable[..., NumpyBackend], capsys: pytest.CaptureFixture[str]
) -> None:
    card()
    assert cli.run([*SWEEP, "--trials", "1", "--storage", "my studies/one.db"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Next: wmmagen emit --best 'my studies/one.db' --to DIR"
    assert cli.run(["emit", "--best", "my studies/one.db", "--to", "out"]) == 0


def test_a_sweep_that_only_compiles_repeats_its_own_command_without_that_backend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(*arguments: object) -> object:
        raise MissingPiece("there is no GPU in this test", "another test")

    monkeypatch.setattr(pick, "_best_gpu", none)
    command = [*SWEEP, "--trials", "2", "--backend", "none"]
    assert cli.run(command) == 0
    out = capsys.readouterr().out
    assert "UNVERIFIED" in out
    assert f"or, on a machine with such a GPU: wmmagen {' '.join(command[:-2])}\n" in out


def test_only_what_was_asked_for_is_ranked(
    card: Callable[..., NumpyBackend], capsys: pytest.CaptureFixture[str]
) -> None:
    card()
    assert cli.run([*SWEEP, "--trials", "6"]) == 0
    assert "nothing was new" not in capsys.readouterr().out
    assert cli.run([*SWEEP, "--trials", "6"]) == 0
    assert "nothing was new in this run" in capsys.readouterr().out
    assert cli.run([*SWEEP[:-1], "warps=2x1,k_steps=2,copy=ld", "--trials", "1"]) == 0
    out = capsys.readouterr().out
    assert "Outcomes of 1 candidate:" in out
    assert "1 right and timed" in out
    assert "_w2x1_" in out
    assert "_w2x2_" not in out


def test_a_card_on_which_all_fail_has_no_winner_of_another(
    card: Callable[..., NumpyBackend], capsys: pytest.CaptureFixture[str]
) -> None:
    card(device="card one (sm_75)")
    assert cli.run([*SWEEP, "--trials", "2"]) == 0

    def spoil(name: str, d: np.ndarray) -> None:
        d[0, 0] += 1

    card(device="card two (sm_75)", spoil=spoil)
    assert cli.run([*SWEEP, "--trials", "1"]) == 1
    assert "Winner" not in capsys.readouterr().out.split("card two")[-1]


def test_an_impossible_time_is_a_fault() -> None:
    class Liar(NumpyBackend):
        def time(self, *arguments: object, **more: object) -> Timing:
            return Timing(1e-6, (1e-6, 1e-6), 15, 4096, "warm", "normal", True, ())

    kernel = read_config("warps=2x2,frags=1x1,k_steps=2", ARCHS[75])
    problem = Problem.packed(kernel.operation, 64, 96, 128)
    record = trial.try_out(kernel, ARCHS[75], problem, Liar(), TimingProtocol())
    assert record.outcome is Outcome.LAUNCH
    assert "TFLOP/s" in record.detail
    assert record.timing is None


def test_a_changed_template_is_tried_again(
    card: Callable[..., NumpyBackend], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card()
    assert cli.run([*SWEEP, "--trials", "2"]) == 0
    monkeypatch.setattr(job, "_fingerprint", lambda name, arch: "another text")
    assert cli.run(["emit", "--best", "sm_75_f16_f32_f32_rr_128x128x128", "--to", "out"]) == 2
    assert "other templates" in capsys.readouterr().err
    assert not Path("out").exists()


def test_another_compiler_is_tried_again(
    card: Callable[..., NumpyBackend], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card()
    assert cli.run([*SWEEP, "--trials", "2", "--json"]) == 0
    monkeypatch.setattr(job.nvrtc, "title", lambda: "NVRTC 99.0")
    assert cli.run([*SWEEP, "--trials", "1", "--json"]) in (0, 1)
    assert '"new": 1' in capsys.readouterr().out


def test_the_doctor_says_each_thing_once(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["doctor"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("   ")]
    assert len(lines) == len(set(lines))


def test_where_the_architecture_is_only_the_default_another_is_offered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pick, "default_arch", lambda: ARCHS[75])
    offer = "or, because sm_75 is only the default here, legal as it is with --arch sm_80"
    assert cli.run(["check", "copy=cpasync"]) == 2
    assert capsys.readouterr().out.splitlines()[-2:] == ["legal as a whole with copy=ld,stages=2", offer]
    assert cli.run(["render", "copy=cpasync"]) == 2
    assert offer in capsys.readouterr().err
    for asked in (["copy=cpasync", "--arch", "sm_75"], ["copy=cpasync", "--arch=sm_75"], ["pad_a=4"]):
        assert cli.run(["check", *asked]) == 2
        assert "default" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (["check", "pad_a=-8"], "for example pad_a=8"),
        (["rules", "r402"], "did you mean R402? `wmmagen rules` shows all of them"),
        (["rules", "nonsense"], "`wmmagen rules` shows all of them"),
        (["check", "kernels/mine"], "a file of a configuration is TOML, and its name ends with .toml"),
        (["check", "mine.tml"], "a file of a configuration is TOML, and its name ends with .toml"),
        (["emit", "warps=2x2"], "wmmagen emit warps=2x2 --to DIR, or wmmagen emit --help"),
        (["check", "--nothing"], "wmmagen check --help"),
        (["nothing"], "wmmagen --help"),
    ],
)
def test_a_fix_is_one(arguments: list[str], fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 2
    assert capsys.readouterr().err.splitlines()[-1].strip() == fix


def test_an_interrupt_promises_what_is_true(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial, "build", interrupt)
    assert cli.run(["validate", "warps=2x2", "--arch", "sm_75", "--backend", "cpu"]) == 130
    said = "interrupted; no result is kept. The same command begins anew:"
    assert capsys.readouterr().err.splitlines()[0] == said


def test_an_interrupt_while_it_is_imported_leaves_no_traceback() -> None:
    interrupted = (
        "import sys, runpy\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "runpy.run_module('wmmagen', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted; nothing was begun\n")


def test_a_refusal_says_its_fix_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["render", "pad_a=4", "--arch", "sm_75"]) == 2
    assert capsys.readouterr().err.count("nearest legal") == 1


def test_a_chip_that_stands_for_an_architecture_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    fix = SWEEP[SWEEP.index("--fix") + 1]
    sweep = ["sweep", "--arch", "sm_110", "--problem", "128", "--fix", fix, "--backend", "none", "--trials", "1"]
    assert cli.run(sweep) == 0
    assert capsys.readouterr().out.splitlines()[1] == "No sm_110 chip is in the table: B200 (sm_100) stands for it."
    assert cli.run([*sweep, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stand_in"] == "B200"


def test_where_only_the_clock_ends_a_sweep_it_is_counted_against_the_clock(
    card: Callable[..., NumpyBackend], capsys: pytest.CaptureFixture[str]
) -> None:
    card()
    only = values_of(read_config("warps=2x2,frags=2x2,k_steps=2,copy=ld", ARCHS[75]))
    fixed = ",".join(f"{key}={spell(value)}" for key, value in only.items())
    assert cli.run([*SWEEP[:-1], fixed, "--budget", "60"]) == 0
    said = capsys.readouterr().err
    assert re.search(r"^\[1, \d+ of 60 s\] ok ", said, re.MULTILINE)
    assert cli.run([*SWEEP, "--trials", "1", "--budget", "60", "--study", "another"]) == 0
    assert "[1/1] ok " in capsys.readouterr().err


def test_a_budget_that_ends_before_the_first_candidate_is_told(
    card: Callable[..., NumpyBackend], capsys: pytest.CaptureFixture[str]
) -> None:
    card()
    assert cli.run([*SWEEP, "--budget", "0.000001"]) == 1
    said = capsys.readouterr().out
    assert "The 1e-06 s of --budget were over before the first candidate was finished" in said
    assert "Next: the same command with a longer --budget, or with --trials instead: wmmagen sweep" in said
    assert "look at the outcomes above" not in said


def test_bench_without_a_gpu_says_nothing_but_that(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*arguments: object) -> object:
        raise MissingPiece("there is no GPU in this test", "another test")

    monkeypatch.setattr(pick, "_best_gpu", none)
    for backend in ("auto", "gpu"):
        assert cli.run(["bench", "", "--arch", "sm_75", "--backend", backend]) == 3
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 2
    assert cli.run(["bench", "", "--arch", "sm_75"]) == 3
    assert "and CPU executor is none: there is no GPU in this test" in capsys.readouterr().err


def test_one_rule_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["rules", "L201"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("L201  staged-ldm-a")
    assert "load_matrix_sync" in out
    assert "L202" not in out
    assert cli.run(["rules", "L999"]) == 2


def test_control_characters_are_spelt_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check", "acc=\x1b[31mred", "--arch", "sm_75"]) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--budget", "0"],
        ["--budget", "-1"],
        ["--problem", "0"],
        ["--problem", "0x128x128"],
        ["--storage", "mysql://h:abc/db"],
        ["--storage", "http://[::1"],
        ["--storage", "."],
        ["--study", "my study"],
        ["--generated", "a_file"],
    ],
)
def test_requests_that_cannot_be_leave_nothing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("a_file").write_text("mine")
    assert cli.run(["sweep", "--arch", "sm_75", *arguments]) == 2
    assert capsys.readouterr().err
    assert [p.name for p in Path().iterdir()] == ["a_file"]


def test_a_study_that_is_not_there_is_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["emit", "--best", "sqlite:///typo.db", "--to", "out"]) == 2
    assert capsys.readouterr().err
    assert list(Path().iterdir()) == []
