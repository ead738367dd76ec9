"""Emitted files as nvcc builds them, run on a CUDA runtime of ours: no GPU, but the real launcher and self-test."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.nvcc import compile_with, demand_nvcc
from wmmagen import derive, emit, selftest
from wmmagen.arch import ARCHS
from wmmagen.config import Batch, KernelConfig, Reduction, Residue
from wmmagen.defaults import demand, read_config

FAKE = Path(__file__).resolve().parents[1] / "fake"
SM90 = ARCHS[90]
#: All sizes, more than 64 KB of shared memory, C, sums of one type and D of another, both layouts, and a raster with
#: groups.
PAIRS = (
    "residue=predicated,copy=cpasync,stages=4,warps=2x2,frags=2x2,k_steps=4,epilogue=linear,d=f16,store=staged,"
    "layout=cr,raster=grouped2"
)

#: A chain whose device is right where it does what :data:`STEPS` says, with small tiles, D in columns and C in rows,
#: and splits that meet in a workspace: its self-test is what counts.
CHAIN = (
    "cd=rc,copy=ld,stages=1,warps=1x1,frags=1x1,k_steps=1,epilogue=linear+biascol+gelu+clamp,d=f16,store=staged,"
    "split_k=3"
)
STEPS = {
    "linear+biascol+gelu+clamp": "value += number(call.vectors[0][col]);"
    ' const float seen = does("whole_argument") ? std::nearbyint(value) : value;'
    " value = 0.5f * value * (1.0f + std::erf(seen * 0.70710678f));"
    " value = value < call.scalars[0] ? call.scalars[0] : value > call.scalars[1] ? call.scalars[1] : value;"
    ' if (does("inaccurate") && value > 0.5f) value *= 1.002f;'
}


@dataclass(frozen=True)
class Programs:
    """The self-test, and ``tests/fake/host.cpp``, both with the emitted launcher and the runtime of ours."""

    selftest: Path
    host: Path


def facts(config: KernelConfig) -> str:
    """What ``cudart.cpp`` and ``host.cpp`` have to know of the kernel."""
    known, o = derive.values(config), config.operation
    call = selftest.acceptable(config)
    numbers = {
        "BLOCK_M": known["BLOCK_M"],
        "BLOCK_N": known["BLOCK_N"],
        "SCALED": int(o.scaled),
        "STRIDED": int(o.batch is Batch.STRIDED),
        "POINTERS": int(o.batch is Batch.POINTERS),
        "WORKSPACE": int(config.reduction is Reduction.WORKSPACE),
        "PREDICATED": int(o.residue is Residue.PREDICATED),
        "A_ROW_MAJOR": int(o.a_row_major),
        "B_ROW_MAJOR": int(o.b_row_major),
        "C_ROW_MAJOR": int(o.c_row_major),
        "D_ROW_MAJOR": int(o.d_row_major),
        "OUTPUT": o.d.storage,
        "VECTORS": len(o.epilogue.vectors),
        "SCALARS": len(o.epilogue.scalars) - 2 * o.scaled,
        "STEPS": STEPS.get(str(o.epilogue), ""),
        "ARGUMENTS": ", ".join(f"at({v})" if name in selftest.ADDRESSES else str(v) for name, v in call.items()),
    }
    return "".join(f"#define {name} {value}\n" for name, value in numbers.items())


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    config = read_config(PAIRS, SM90)
    assert derive.values(config)["SHARED_BYTES"] > 64 * 1024
    return built(config, tmp_path_factory.mktemp("emission"))


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(read_config(CHAIN, SM90), tmp_path_factory.mktemp("chain")).selftest


def built(config: KernelConfig, folder: Path) -> Programs:
    nvcc = demand_nvcc()
    demand(config, SM90)
    kernel, _, test, _ = emit.emit(config, SM90, folder, symbol="my_gemm")
    (folder / "facts.h").write_text(facts(config))
    objects = []
    for file in (kernel, test, FAKE / "cudart.cpp", FAKE / "host.cpp"):
        objects.append(folder / f"{file.stem}.o")
        compile_with(nvcc, file, SM90, f"-I{folder}", "-O2", "-c", "-o", str(objects[-1]))
    launcher, tried, fake, host = map(str, objects)
    for name, main in (("selftest", tried), ("host", host)):
        link = [nvcc, "-cudart=none", "-o", str(folder / name), launcher, main, fake]
        subprocess.run(link, check=True, capture_output=True, timeout=120)
    return Programs(folder / "selftest", folder / "host")


def run(program: Path, fake: str = "", *arguments: str) -> tuple[int, str]:
    """The exit status and the output of a program on a device that does what ``fake`` says."""
    done = subprocess.run(
        [program, *arguments], env={**os.environ, "FAKE": fake}, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def test_the_self_test_passes_on_a_device_that_is_right(programs: Programs) -> None:
    status, said = run(programs.selftest)
    assert (status, said.splitlines()[-1]) == (0, "PASS"), said
    lines = said.splitlines()
    assert len([line for line in lines if line.startswith("exact ")]) >= 10
    assert len([line for line in lines if line.startswith("said ")]) == len(
        selftest.spoilt_calls(read_config(PAIRS, SM90))
    )
    # Whole tiles and parts of them, of slices and of copies.
    known = derive.values(read_config(PAIRS, SM90))
    sizes = [tuple(map(int, size)) for size in re.findall(r"^exact (\d+) x (\d+) x (\d+),", said, re.MULTILINE)]
    for place, axis in enumerate("MNK"):
        left = {size[place] % known[f"BLOCK_{axis}"] for size in sizes}
        assert {0, 1} <= left and len(left) >= 4, axis


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        ("one_element", "D["),
        ("one_unwritten", "D[5, "),
        ("last_slice_dropped", "D["),
        ("zeros", "D["),
        ("nothing", "D[0, 0] is nan"),
        ("beta_zero_reads", "is nan"),
        ("alpha_zero_reads", "is nan"),
        ("beside_d", "memory around D"),
        ("behind_d", "memory around D"),
        ("writes_a", "only read"),
        ("launch_fails", "CUDA refused the launch"),
    ],
)
def test_the_self_test_finds_what_is_wrong(programs: Programs, fake: str, words: str) -> None:
    status, said = run(programs.selftest, fake)
    assert (status, said.splitlines()[-1]) == (1, "FAIL"), said
    assert words in said


@pytest.mark.parametrize(
    ("fake", "status", "words"),
    [
        ("", 0, "right 48 x 32 x 16"),
        ("one_element", 1, "D["),
        ("wrong_column", 1, "D["),
        ("inaccurate", 1, "D["),
        ("whole_argument", 1, "D["),
        ("beta_zero_reads", 1, "is nan"),
        ("behind_d", 1, "memory around D"),
        ("before_workspace", 1, "memory around the workspace"),
    ],
)
def test_the_self_test_of_a_chain_knows_its_steps_and_their_errors(
    chain: Path, fake: str, status: int, words: str
) -> None:
    ended, said = run(chain, fake)
    assert (ended, said.splitlines()[-1]) == (status, ("PASS", "FAIL")[status]), said
    assert words in said


@pytest.mark.parametrize("fake", ["no_device", "old_driver", "no_code", "small_device"])
def test_the_self_test_says_that_it_was_not_run(programs: Programs, fake: str) -> None:
    status, said = run(programs.selftest, fake)
    assert (status, said[:9]) == (3, "not run: ")
    assert said.count("\n") == 1


def test_the_launcher_keeps_one_flag_for_each_device_and_nothing_else(programs: Programs) -> None:
    assert run(programs.host) == (0, "")


@pytest.mark.parametrize(
    ("fake", "supported", "launched"),
    [("no_device", 6, 6), ("old_driver", 6, 6), ("no_code", 7, 7), ("small_device", 4, 4), ("launch_fails", 0, 5)],
)
def test_a_failure_is_a_status_and_no_end_of_the_program(
    programs: Programs, fake: str, supported: int, launched: int
) -> None:
    assert run(programs.host, fake, str(supported), str(launched)) == (0, "")
