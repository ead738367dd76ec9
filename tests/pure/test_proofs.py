"""Proofs on a card that is not here: words, and the status for what a machine lacks."""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes import NumpyBackend, binary_of
from tests.gpu import proof, prove_emission, prove_large, prove_layouts, prove_ragged, prove_types_speed
from tests.ragged import VARIANTS
from wmmagen import config as configs
from wmmagen import coverage, defaults, derive, padding, render, rules, trial
from wmmagen.arch import ARCHS
from wmmagen.backends import gpu
from wmmagen.backends.pick import Place
from wmmagen.errors import ConfigError, CrashFault, MissingPiece
from wmmagen.timing import Timing

TESTS = Path(__file__).resolve().parents[1]
FOLDER = TESTS / "gpu"
PROOFS = [*sorted(FOLDER.glob("prove_*.py")), *sorted(FOLDER.glob("measure_*.py"))]


def run(script: Path, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    return ended.value.code


@pytest.mark.parametrize("script", PROOFS, ids=lambda p: p.stem)
def test_without_a_gpu_a_proof_says_so(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> object:
        raise MissingPiece("there is no GPU in this test", "another test")

    monkeypatch.setattr(gpu, "devices", none)
    assert run(script, monkeypatch=monkeypatch) == 3
    said = capsys.readouterr()
    assert said.err == f"{script.name}: there is no GPU in this test\n  another test\n"
    assert said.out == ""
    assert run(script, "--help", monkeypatch=monkeypatch) == 0


def test_make_runs_every_proof() -> None:
    """But that of the library's times, which needs PyTorch, and no list of what wmmagen needs brings that."""
    run = re.findall(r"^(tests/\S+/prove_\w+\.py)", (TESTS.parent / "Makefile").read_text(encoding="utf-8"), re.M)
    there = {path.relative_to(TESTS.parent).as_posix() for path in TESTS.glob("*/prove_*.py")}
    assert set(run) == there - {"tests/gpu/prove_cublas.py"}


def made(target: str, folder: Path, python: str) -> tuple[int, str, list[str]]:
    """The exit status of ``make target`` with a shell script for Python, its output, and the arguments of each call."""
    calls, stamp, script = folder / "calls", folder / "stamp", folder / "python"
    stamp.touch()  # newer than what it is made of: nothing is installed
    script.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{python}\n')
    script.chmod(0o755)
    # This may run below a make, whose flags are not those of the one here.
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--no-print-directory", target, f"BIN={folder}", f"STAMP={stamp}"]
    done = subprocess.run(command, cwd=TESTS.parent, env=clean, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, calls.read_text().splitlines()


@pytest.mark.parametrize("target", ["proof-cpu", "proof-gpu"])
def test_a_proof_that_fails_stops_no_other_and_is_named_in_the_end(target: str, tmp_path: Path) -> None:
    failing = 'case "$1" in *split.py | *layouts.py) cat > /dev/null; exit 3;; esac'
    status, said, calls = made(target, tmp_path, failing)
    assert status and len(calls) > 10
    head, _, failed = said.partition("Failed:\n")
    assert head.splitlines() == [f"{tmp_path}/python {call}" for call in calls]
    wrong = [call for call in calls if "split.py" in call or "layouts.py" in call]
    assert len(wrong) == 2 and failed.splitlines() == [f"  {call} (exit status 3)" for call in wrong]
    assert made(target, tmp_path, "exit 0")[:2] == (0, head)


@pytest.mark.parametrize(
    ("python", "gpu", "status"),
    [
        ("exit 0", True, 0),
        ('[ "$1" != -c ]', False, 0),
        ('[ "$1" != tests/nvrtc/prove_types.py ]', True, 1),
        ('[ "$1" != tests/gpu/prove_types.py ]', True, 1),
    ],
)
def test_all_proofs_are_those_without_a_gpu_and_where_there_is_one_the_others(
    python: str, gpu: bool, status: int, tmp_path: Path
) -> None:
    left, said, calls = made("proof", tmp_path, python)
    assert bool(left) is bool(status) and ("There is no GPU here" in said) is not gpu
    assert "tests/nvrtc/prove_covering.py" in calls and ("tests/gpu/prove_covering.py" in calls) is gpu


def test_a_rehearsal_needs_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "devices", lambda: pytest.fail("asked for a GPU"))
    monkeypatch.setattr(sys, "argv", ["prove_it.py", "--backend", "cpu"])
    assert proof.ended(lambda: 7) == 7


def test_without_the_sanitizer_its_proof_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "devices", lambda: ["a card"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(FOLDER / "prove_sanitizer.py", monkeypatch=monkeypatch) == 3
    assert "compute-sanitizer is not on the PATH" in capsys.readouterr().err


def test_all_sizes_are_tried_while_there_is_time_and_what_is_wrong_is_told() -> None:
    config = defaults.read_config(f"residue=predicated,{VARIANTS[0]}", ARCHS[80])
    sizes = [(33, 7, 65), (1, 100, 8)]

    def outcome(until: float, **backend: Any) -> prove_ragged.Outcome:
        return prove_ragged.tried(config, binary_of(config), NumpyBackend(**backend), sizes, until)

    def spoilt(entry: str, d: np.ndarray) -> None:
        d[0, 0] += 1

    right = outcome(time.time() + 60)
    assert right.right and str(right).startswith("2 of 2 exact, 0 not: wmma_gemm")
    wrong = outcome(time.time() + 60, spoil=spoilt)
    assert not wrong.right and [line.split(":")[0].strip() for line in wrong.wrong] == ["33x7x65", "1x100x8"]
    late = outcome(0.0)
    assert not late.right and str(late).startswith("0 of 2 exact, 0 not, THE OTHERS NOT TRIED")


def test_every_large_problem_is_legal_and_as_large_as_it_says() -> None:
    arch = ARCHS[90]
    tasks = list(prove_large.tasks(arch))
    for task in tasks:
        p = padding.plan(task.config, task.problem).problem if task.padded else task.problem
        assert rules.check(task.config, arch, p) == [] and not coverage.missing(task.config), (task.key, p)
        p, far = task.problem, prove_large.FAR
        if task.key == "workspace":
            work = trial.workspace_of(task.config, p)
            assert work is not None and (work.tiles - 1) * derive.values(task.config)["TILE_WORK"] > far
        elif task.key.startswith("stride_"):
            assert p.batch == 2 and getattr(p, task.key) > far and f" {task.key}=" in prove_large.words(p)
        elif task.key.startswith("ld"):
            assert (prove_large.lines(p, task.key) - 2) * getattr(p, task.key) > far
    assert {task.key for task in tasks} == {
        "m",
        "n",
        "lda",
        "ldb",
        "ldc",
        "ldd",
        "ldr",
        "stride_r",
        "stride_bias_row",
        "workspace",
    }
    assert {t.config.operation.a.name for t in tasks} == {"f16", "bf16", "f64", "s8"}


def test_a_large_problem_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove_large, "FAR", 2**14)
    arch = ARCHS[80]
    monkeypatch.setattr(trial, "build", lambda config, _: (render.render(config, arch), binary_of(config)))
    config = defaults.read_config(prove_large.FAR_CASES[4], arch)
    task = prove_large.Task(config, "ldc", prove_large.far_problem(config, "ldc"))
    assert prove_large.tried(task, arch, NumpyBackend()) == (True, "exact (full)")

    def spoilt(entry: str, d: np.ndarray) -> None:
        d[-1, -1] += 1

    exact, said = prove_large.tried(task, arch, NumpyBackend(spoil=spoilt))
    assert not exact and "D[62, 62]" in said
    lost = prove_large.tried(task, arch, NumpyBackend(fault_of=lambda entry: CrashFault("gone")))
    assert lost == (False, "gone")


def test_a_proof_of_size_that_is_cut_keeps_what_it_saw(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    verdicts = iter([(True, "exact (full)"), (False, "D[0, 0] is wrong")])

    def tried(*_: object) -> tuple[bool, str]:
        for verdict in verdicts:
            return verdict
        raise KeyboardInterrupt

    place = Place(NumpyBackend(), ARCHS[90])
    monkeypatch.setattr(prove_large, "pick", lambda *_: contextlib.nullcontext(place))
    monkeypatch.setattr(prove_large, "tried", tried)
    monkeypatch.setattr(sys, "argv", ["prove_large.py", "--to", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        prove_large.main()
    head, first, second = (tmp_path / "large_sm_90.txt").read_text(encoding="utf-8").splitlines()
    assert head == f"{place.demanded().device}: 2 of {len(list(prove_large.tasks(ARCHS[90])))} problems"
    assert "exact (full): " in first and "D[0, 0] is wrong: " in second


@pytest.mark.parametrize(("us", "right"), [(50.9, True), (51.1, False), (48.9, False)])
def test_a_launcher_is_held_against_its_own_machine_code(
    us: float, right: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of 50 us, by 2 %, whatever another compiler's code takes."""
    config, arch = defaults.read_config("copy=cpasync,stages=4", ARCHS[90]), ARCHS[90]
    made = {b"nvcc": 50.0, binary_of(config).cubin: 40.0}
    timed: list[str] = []

    def time_it(_: object, binary: Any, *rest: object) -> Timing:
        timed.append(binary.entry)
        return Timing(made[binary.cubin], (0.0, 0.0), 5, 1)

    def say(self: prove_emission.Proof, *command: object, status: int = 0) -> str:
        if command[0] == "nvcc":
            (self.folder / "kernel.cubin").write_bytes(b"nvcc")
        return f"microseconds {us}"

    monkeypatch.setattr(trial, "build", lambda *_: (None, binary_of(config)))
    monkeypatch.setattr(trial, "time_it", time_it)
    monkeypatch.setattr(prove_emission.Proof, "say", say)
    found, said = prove_emission.Proof(config, arch, tmp_path).time(NumpyBackend())
    assert found is right and f"{us / 50:.4f} of the same machine code's, {us / 40:.4f} of that of NVRTC" in said
    assert set(timed) == {"my_gemm_kernel", binary_of(config).entry}


#: Tables of parts, as their proofs put them together.
WHOLE = {
    "prove_layouts.ACROSS": [f"{cd},{text}" for *both, text in prove_layouts.ACROSS for cd in both],
    "prove_types_speed.CANDIDATES": [
        f"a={a},copy=cpasync,{text}" for a, texts in prove_types_speed.CANDIDATES.items() for text in texts
    ],
}


def named() -> Iterator[tuple[str, str]]:
    """Every text of a configuration that a module of the GPU's has among its own names, with where."""
    for path in sorted(FOLDER.glob("*.py")):
        module = importlib.import_module(f"tests.gpu.{path.stem}")
        body = ast.parse(path.read_text(encoding="utf-8")).body
        targets = [t for s in body if isinstance(s, ast.Assign) for t in s.targets]
        targets += [s.target for s in body if isinstance(s, ast.AnnAssign)]
        for target in targets:
            if isinstance(target, ast.Name):
                where = f"{path.stem}.{target.id}"
                for text in WHOLE.get(where) or texts_in(getattr(module, target.id)):
                    yield text, where


def texts_in(value: object) -> Iterator[str]:
    """What in a table could be the text of a configuration."""
    if isinstance(value, str):
        with contextlib.suppress(ConfigError):
            if value:
                configs.read_pairs(value)
                yield value
    elif isinstance(value, dict):
        yield from texts_in([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from texts_in(one)


def test_what_runs_on_a_card_names_legal_kernels_that_are_made() -> None:
    """A card is not needed to see that a proof would be refused."""
    arch, found = ARCHS[90], dict(named())
    assert len(found) > 100 and set(WHOLE) <= set(found.values())
    for text, where in found.items():
        config = defaults.read_config(text, arch)
        assert rules.check(config, arch) == [] and not coverage.missing(config), (where, text)
