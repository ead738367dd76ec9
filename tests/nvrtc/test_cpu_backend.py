"""The CPU backend: verdicts through it, findings in them, and what it does not do."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from wmmagen import cli, nvrtc, trial
from wmmagen.arch import ARCHS
from wmmagen.backends import Double, Launch, Pointer, pick
from wmmagen.backends.cpu import PATIENCE, CpuBackend
from wmmagen.config import Problem
from wmmagen.defaults import read_config
from wmmagen.errors import CrashFault, HazardFault, LaunchFault, MissingPiece, RequestError, TimeoutFault
from wmmagen.nvrtc import Binary
from wmmagen.records import Outcome
from wmmagen.timing import TimingProtocol

SM90 = ARCHS[90]
CONFIG = read_config("warps=2x2,frags=1x1,k_steps=2,copy=cpasync,stages=3,store=staged", SM90)


@pytest.fixture(scope="module")
def binary() -> Binary:
    return trial.build(CONFIG, SM90)[1]


def test_a_right_kernel_is_validated_on_the_small_problems(binary: Binary) -> None:
    runs = trial.validate(CONFIG, binary, CpuBackend(), trial.validation_problems(CONFIG))
    assert len(runs) == len(trial.validation_problems(CONFIG)) + 1
    assert all(run.exact and run.findings == () for run in runs)


def test_a_sweeps_own_problem_is_left_to_cards() -> None:
    problem = Problem.packed(CONFIG.operation, 4096, 4096, 4096)
    record = trial.try_out(CONFIG, SM90, problem, CpuBackend(), TimingProtocol())
    assert (record.outcome, record.timing, record.backend) == (Outcome.OK, None, "cpu")
    assert record.device == "CPU executor"
    assert record.runs == len(trial.validation_problems(CONFIG)) + 1
    assert not record.ranks


def test_findings_are_in_the_verdict_even_where_values_are_right(binary: Binary) -> None:
    source = trial.render(CONFIG, SM90)
    broken = source.text.replace("__syncthreads();", "", 1)
    mutant = nvrtc.compile_source(broken, source.kernel, SM90, line_info=True)
    run = trial.validate(CONFIG, mutant, CpuBackend(), trial.validation_problems(CONFIG))[-1]
    assert not run.exact
    assert "race" in run.mismatch
    first = run.as_json()["findings"][0]  # type: ignore[index]
    assert (first["code"], first["rule"]) == ("race", "")
    assert "wmma::load_matrix_sync(" in broken.split("\n")[first["source_line"] - 1]
    assert set(first) >= {"message", "ptx_line", "source_line", "block", "warp", "lane", "address", "advice", "count"}


def test_accuracy_is_measured_without_a_card(compiled_once: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["accuracy", "--arch", "sm_90", "--backend", "cpu", "--fix", "a=f16,warps=1x1,frags=1x1,copy=ld,stages=1"]
    assert cli.run([*command, "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    single, half = (row["kernel"] for row in document["accumulation"] if row["a"] == "f16")
    assert (document["device"], document["problem"]) == ("CPU executor", "16x16x256")
    # One rounding for each of 16 instructions: of half that is 2^13 times as much.
    assert 2**12 < half["frobenius"] / single["frobenius"] < 2**14
    assert {(row["acc"], row["d"], row["differing"]) for row in document["storage"] if row["a"] == "f16"} >= {
        ("f32", "f16", 0), ("f16", "f32", 0),
    }  # fmt: skip
    assert cli.run(command) == 0
    assert "a model; a card has its own arithmetic" in capfd.readouterr().out


def test_the_strict_reading_is_checked_on_what_runs() -> None:
    """Rows of 24 halves hold whole units of 16 bytes, as the guide asks, and no whole fragments of a thread."""
    config = read_config("warps=1x1,frags=1x1,copy=ld,stages=1,pad_a=8", SM90)
    _, made = trial.build(config, SM90)
    problems = trial.validation_problems(config)[:1]
    assert all(run.exact for run in trial.validate(config, made, CpuBackend(), problems))
    strict = trial.validate(config, made, CpuBackend(strict_isa=True), problems)[-1]
    assert {finding["rule"] for finding in strict.findings} == {"L211", "L212"}
    # A kernel that the strict rules let pass has nothing of it.
    legal = read_config("warps=1x1,frags=1x1,copy=ld,stages=1", SM90, strict_isa=True)
    _, made = trial.build(legal, SM90)
    backend = pick.pick("cpu", SM90, strict_isa=True).demanded()
    runs = trial.validate(legal, made, backend, trial.validation_problems(legal))
    assert all(run.exact for run in runs)


def test_faults(binary: Binary) -> None:
    backend, launch = CpuBackend(), Launch("k", (1, 1, 1), (32, 1, 1), 0, (Pointer(0),))
    text = ".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 b)\n{{\n.reg .b64 %d<9>;\n{}\nret;\n}}\n"
    buffers = [np.zeros(64, np.uint8)]

    def run(body: str, **more: float) -> None:
        backend.run(replace(binary, ptx=text.format(body), entry="k"), launch, buffers, **more)

    run("")
    # The budget would end it, too; the limit has to come first, and be as patient as is promised.
    with pytest.raises(TimeoutFault, match=re.escape(f"within {PATIENCE * 0.001} s")) as late:
        run("$L_a: bra $L_a;", limit_s=0.001)
    assert "on a GPU" in late.value.fix
    with pytest.raises(CrashFault, match="sin"):
        run("sin.approx.f32 %d1, %d2;")
    with pytest.raises(HazardFault, match="poison-stored") as caught:
        run("ld.param.u64 %d0, [b]; st.global.b64 [%d0], %d1;")
    assert len(caught.value.findings) == 2
    with pytest.raises(LaunchFault):
        backend.run(binary, launch, buffers)
    with pytest.raises(RequestError, match="clock"):
        backend.time(binary, launch, buffers, TimingProtocol())


def test_arguments_are_as_wide_as_a_card_asks_for(binary: Binary) -> None:
    text = ".version 8.0\n.target sm_80\n.visible .entry k(.param .f64 a, .param .f32 b)\n{\nret;\n}\n"
    taken, launch = replace(binary, ptx=text, entry="k"), Launch("k", (1, 1, 1), (32, 1, 1), 0, (Double(1.5), 1.5))
    CpuBackend().run(taken, launch, [])
    with pytest.raises(LaunchFault, match=r"\[8, 4\] bytes, and the launch gives \[4, 4\]"):
        CpuBackend().run(taken, replace(launch, arguments=(1.5, 1.5)), [])


def test_who_is_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*arguments: object) -> object:
        raise MissingPiece("there is no GPU in this test", "another test")

    monkeypatch.setattr(pick, "_best_gpu", none)
    assert [pick.pick(kind, SM90).name for kind in ("auto", "cpu", "none")] == ["cpu", "cpu", "none"]
    assert "nothing is timed" in pick.pick("auto", SM90).first_line
    assert not pick.pick("cpu", SM90).ranks
    with pytest.raises(MissingPiece):
        pick.pick("gpu", SM90)
