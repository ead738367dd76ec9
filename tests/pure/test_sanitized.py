"""What compute-sanitizer looks at: every branch of the templates, and problems that end wherever one can end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests import ragged, sanitized
from tests.branches import PARTS_OF_OTHERS, Trace, traced
from tests.covering import axes, paired
from tests.fakes import NumpyBackend, binary_of
from tests.gpu import prove_sanitizer, sanitizer
from wmmagen import coverage, derive, epilogue, render, rules, trial
from wmmagen.arch import ARCHS
from wmmagen.backends.pick import Place
from wmmagen.config import KernelConfig, Problem, Raster, Residue, name, spell, values_of
from wmmagen.errors import RequestError

SM_90 = ARCHS[90]
#: Parts of kernels for multiples, or of those for all sizes, that the others have not.
OF_ONE_RESIDUE = {
    *("edge_exact", "residue_exact", "pipeline_global", "residency_global"),
    *("edge_predicated", "residue_predicated", "store_direct_predicated"),
}


@pytest.fixture(scope="module")
def configs() -> list[KernelConfig]:
    return sanitized.configs(SM_90)


@pytest.fixture(scope="module")
def trace(configs: list[KernelConfig]) -> Trace:
    return traced(configs, SM_90)


def test_each_is_another_kernel_and_is_made(configs: list[KernelConfig]) -> None:
    assert len({name(config) for config in configs}) == len(sanitized.CASES)
    assert [coverage.missing(config) for config in configs] == [[] for _ in configs]


def test_every_branch_of_the_templates_is_in_one(trace: Trace) -> None:
    assert len(trace.branches) > 100
    assert trace.branches - trace.anywhere() == set()


def test_every_part_is_in_one_of_each_residue_that_has_it(trace: Trace) -> None:
    of: dict[Residue, set[str]] = {residue: set() for residue in Residue}
    for config, reached in trace.reached.items():
        of[config.operation.residue] |= {Path(one).stem for one in reached if one.endswith(".jinja")}
    there = {path.stem for path in (render.template_root() / "parts").glob("*.jinja")}
    assert there - set().union(*of.values()) == set(PARTS_OF_OTHERS)
    assert of[Residue.EXACT] ^ of[Residue.PREDICATED] == OF_ONE_RESIDUE


def told(config: KernelConfig) -> set[tuple[str, str]]:
    """The values of a configuration, orders of blocks without their widths; steps one by one, C's type as it is."""
    values = {**values_of(config), "c": config.operation.added}
    found = {(key, spell(value.order if isinstance(value, Raster) else value)) for key, value in values.items()}
    flags = {("epilogue", flag) for flag, held in derive.flags(config).items() if held and flag.startswith("epilogue_")}
    return found | flags | {("epilogue", step.word) for step in config.operation.epilogue.steps}


def test_every_value_of_every_axis_is_in_one(configs: list[KernelConfig]) -> None:
    """The axes are those of the covering array: a new axis or value is among them without a word here."""
    every = axes()
    named = {axis for axis in paired() if axis not in ("arch", "epilogue")}
    wanted = {
        (axis, spell(value.order if isinstance(value, Raster) else value))
        for axis in named
        for value in every[axis]
        if value is not None  # C's type, where it is D's
    }
    wanted |= {("epilogue", word) for word in (*epilogue.STEPS, epilogue.EXPR, "epilogue_none", "epilogue_positional")}
    assert wanted - set().union(*map(told, configs)) == set()
    # Numbers of which the templates know whether there are several.
    assert all(any(getattr(config, axis) > 1 for config in configs) for axis in ("split_k", "warps_k"))


def test_every_type_takes_all_sizes_in_one(configs: list[KernelConfig]) -> None:
    found = {config.operation.a.name for config in configs if config.operation.residue is Residue.PREDICATED}
    assert found == set(coverage.GENERATED["a"])


def test_their_problems_end_wherever_one_can_end(configs: list[KernelConfig]) -> None:
    for config in configs:
        problems = sanitized.problems(config)
        for problem in problems:
            rules.demand(config, SM_90, problem)
        if config.operation.residue is Residue.EXACT:
            continue
        assert [where for where, ends in ends_of(config, problems).items() if not any(ends)] == [], name(config)
        for extents in zip(*((p.m, p.n, p.k) for p in problems), strict=True):
            assert set(extents) >= set(ragged.EXTENTS)


def ends_of(config: KernelConfig, problems: Sequence[Problem]) -> dict[str, list[bool]]:
    """For each place where a matrix can end in a kernel for all sizes, in which of the ``problems`` it does."""
    v = derive.values(config)
    # A line of an operand runs along K or along the other extent, and a copy takes some elements of it.
    lines = {
        "A": [p.k if v["a_row_major"] else p.m for p in problems],
        "B": [p.n if v["b_row_major"] else p.k for p in problems],
    }
    places = {f"in a copy of {o}": [n % v[f"ALIGN_{o}"] > 0 for n in lines[o]] for o in "AB" if v[f"ALIGN_{o}"] > 1}
    for x in "MNK":
        sizes = [getattr(p, x.lower()) for p in problems]
        block, inst = v[f"BLOCK_{x}"], v[f"INST_{x}"]
        places[f"in an instruction, of {x}"] = [n % inst > 0 for n in sizes]
        places[f"in the first block, of {x}"] = [0 < n < block for n in sizes]
        places[f"in a later block, of {x}"] = [n > block and n % block > 0 for n in sizes]
        if block > inst:
            places[f"before a whole tile of a block, of {x}"] = [0 < n % block <= block - inst for n in sizes]
    return places


# The tool -------------------------------------------------------------------------------------------------------------

CLEAN = {
    "memcheck": "========= ERROR SUMMARY: 0 errors",
    "racecheck": "========= RACECHECK SUMMARY: 0 hazards displayed",
}
HAZARD = (
    "========= Error: Race reported between Write access at k+0x5b0 and Read access at k+0x600 [128 hazards]\n"
    "=========\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"
)
RIGHT = "all launches right"


@pytest.mark.parametrize(
    ("text", "status", "held", "words"),
    [
        (f"{RIGHT}\n{CLEAN['memcheck']}", 0, True, "nothing found"),
        (f"{RIGHT}\n{CLEAN['racecheck']} (0 errors, 0 warnings)", 0, True, "nothing found"),
        (f"{RIGHT}\n{CLEAN['memcheck']}\n========= ERROR SUMMARY: 2 errors", 0, False, "2 found"),
        (f"{RIGHT}\n{HAZARD}", 0, False, "1 found, first: Error: Race reported between Write access at k+0x5b0"),
        (f"32x32x8: D[0][0] is wrong\n{CLEAN['memcheck']}", 1, False, "nothing found; not right: 32x32x8: D[0][0] is"),
        (f"{RIGHT}\n{CLEAN['memcheck']}", 139, False, "nothing found; not right: "),
        ("Target application returned an error", 0, False, "no summary; not right: Target application"),
        (RIGHT, 0, False, "no summary"),
    ],
)
def test_a_summary_is_read(text: str, status: int, held: bool, words: str, tool: Callable[[str], str]) -> None:
    said = sanitizer.under("racecheck", ["nothing"], 30, tool(f"cat <<'END'\n{text}\nEND\nexit {status}"))
    right, line = prove_sanitizer.judged(said, 30)
    assert right is held and line.startswith(words)


def test_what_takes_too_long_is_told_with_what_was_found_so_far(tool: Callable[[str], str]) -> None:
    script = tool("echo '========= Invalid __shared__ read of size 4 bytes'; sleep 60 & wait")
    began = time.monotonic()
    said = sanitizer.under("memcheck", ["nothing"], 0.2, script)
    assert time.monotonic() - began < 20, "what it began lives on"
    assert prove_sanitizer.judged(said, 0.2) == (
        False,
        "no summary, first: Invalid __shared__ read of size 4 bytes; not done after 0.2 s",
    )


def test_kernels_are_examined_side_by_side_and_told_in_their_order(
    tool: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one waits for the last one, and finds something."""
    last = tmp_path / "last"
    script = tool(
        f"""case "$*" in
          *memcheck*one_mb3*) i=0; while [ ! -e {last} ] && [ $i -lt 200 ]; do sleep 0.1; i=$((i + 1)); done
            [ -e {last} ] && echo '{HAZARD}' ;;
          *racecheck*_mb2*) touch {last}; echo '{CLEAN["racecheck"]}' ;;
          *) echo '{CLEAN["memcheck"]}' ;;
        esac
        echo {RIGHT}"""
    )
    monkeypatch.setattr(prove_sanitizer.sanitized, "configs", lambda arch: ["one_mb3", "two_mb2", "three_mb1"])
    monkeypatch.setattr(prove_sanitizer.config, "name", str)
    common = ("--backend", "cpu", "--sanitizer", script)
    assert run(monkeypatch, *common, "--only", "_mb", "--jobs", "6", "--to", str(tmp_path)) == 1
    lines = (tmp_path / "sanitizer_sm_90.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "CPU executor, sm_90: 3 kernels under memcheck and racecheck"
    found = [line.split(maxsplit=3) for line in lines[1:]]
    assert [(of, of_tool) for _, of_tool, of, _ in found] == [
        (f"{kernel}:", of_tool)
        for kernel in ("one_mb3", "two_mb2", "three_mb1")
        for of_tool in ("memcheck", "racecheck")
    ]
    assert [held for held, *_ in found] == ["FAILED", *["ok"] * 5]
    (tmp_path / "sanitizer_sm_90.txt").unlink()
    monkeypatch.setattr(prove_sanitizer, "RECORDS", tmp_path)
    assert run(monkeypatch, *common, "--only", "two", "--tool", "racecheck") == 0
    assert capsys.readouterr().out.splitlines()[-1:] == ["ok      racecheck  two_mb2: nothing found"]
    assert not list(tmp_path.glob("*.txt")), "a part of the kernels took the place of the record of all"
    with pytest.raises(RequestError, match="no kernel has 'four' in its name"):
        run(monkeypatch, *common, "--only", "four")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["prove_sanitizer.py", *arguments])
    return prove_sanitizer.main()


@pytest.fixture
def tool(tmp_path: Path) -> Callable[[str], str]:
    """Makes a tool that does what a shell does, and leaves alone the program that it is given."""

    def made(script: str) -> str:
        path = tmp_path / "tool"
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    return made


def test_a_process_ends_with_the_first_wrong_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And where there is none, says what the judge looks for."""
    config = sanitized.configs(SM_90)[0]
    problems = (Problem.packed(config.operation, 64, 64, 32), Problem.packed(config.operation, 128, 64, 64))

    def spoilt(entry: str, d: np.ndarray) -> None:
        d[0, 0] += 1

    monkeypatch.setattr(sanitized, "problems", lambda _: problems)
    monkeypatch.setattr(trial, "build", lambda kernel, arch: (None, binary_of(kernel)))
    for backend, status, begins in ((NumpyBackend(), 0, RIGHT), (NumpyBackend(spoil=spoilt), 1, f"{problems[0]}: ")):
        monkeypatch.setattr(prove_sanitizer, "pick", lambda *_, here=backend: Place(here, SM_90))
        assert prove_sanitizer.run_one(name(config), SM_90, "cpu") == status
        assert capsys.readouterr().out.startswith(begins)
