"""`wmmagen estimate` without a compiler: its words, its JSON, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from tests import published
from wmmagen import cli, foundry, trial
from wmmagen.arch import ARCHS
from wmmagen.backends import gpu, pick
from wmmagen.backends.gpu import DeviceInfo
from wmmagen.errors import MissingPiece

SMALL = "warps=2x2,frags=2x2"
LARGE = "warps=2x2,frags=4x4"


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> NoReturn:
        raise MissingPiece("there is no NVRTC here", "pip install it")

    monkeypatch.setattr(trial, "build", missing)
    monkeypatch.setattr(foundry, "compile_source", missing)


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        capfd.readouterr()
        status = cli.run(["estimate", *arguments, "--json"])
        document = published.read(capfd.readouterr().out)
        published.judge("error" if status else "estimate", document)
        return status, document

    return run


Ask = Callable[..., tuple[int, dict[str, Any]]]


def test_one_kernel_is_told_in_full(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["estimate", LARGE, "--chip", "t4", "--problem", "2048"]) == 0
    out = capfd.readouterr().out
    first, name, *rest = out.splitlines()
    assert first.startswith("ESTIMATED for T4, sm_75, 2048x2048x2048") and "nothing was measured" in first
    assert "predicted, nothing was compiled" in first and name.startswith("wmma_gemm_")
    said = {line[2:18].strip(): line[19:] for line in rest}
    assert said["estimated time"].endswith("TFLOP/s")
    limiting = said["limited by"]
    assert said["each alone"].startswith(f"{limiting} ")
    assert {"tensor", "shared", "issue", "l2", "dram", "latency"} <= set(said["each alone"].replace(",", "").split())


def test_several_kernels_are_in_order(ask: Ask, capfd: pytest.CaptureFixture[str]) -> None:
    status, document = ask(SMALL, LARGE, "residency=global", "--chip", "h200", "--problem", "4096")
    times = [row["estimated_us"] for row in document["rows"]]
    assert status == 0 and times == sorted(times) and len(times) == 3
    assert (document["chip"], document["arch"]) == ("H200", "sm_90")
    assert not any(row["compiled"] for row in document["rows"])
    assert cli.run(["estimate", SMALL, LARGE, "--chip", "h200", "--problem", "4096"]) == 0
    assert "est. us" in capfd.readouterr().out


def test_a_chip_that_is_not_known_names_the_nearest(ask: Ask) -> None:
    status, document = ask(SMALL, "--chip", "h20")
    assert status == 2 and "did you mean h200?" in document["error"]["fix"]


def test_a_kernel_of_a_later_architecture_does_not_run_on_it(ask: Ask) -> None:
    status, document = ask(SMALL, "--chip", "t4", "--arch", "sm_90")
    assert status == 2 and "sm_75" in document["error"]["message"]
    status, document = ask(SMALL, "--chip", "h200", "--arch", "sm_75")
    assert (status, document["arch"], document["chip"]) == (0, "sm_75", "H200")


def test_the_chip_is_that_of_the_architecture_or_of_the_card(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> NoReturn:
        raise MissingPiece("no driver", "none")

    monkeypatch.setattr(gpu, "devices", absent)
    assert ask(SMALL, "--arch", "sm_89")[1]["chip"] == "RTX 4090"
    assert ask(SMALL, "--arch", "sm_121")[1]["chip"] == "RTX 5090"
    assert [ask(SMALL, "--arch", f"sm_{sm}")[1]["stand_in"] for sm in (87, 89, 110)] == [True, False, True]
    assert ask(SMALL, "--arch", "sm_87", "--chip", "l4")[1]["stand_in"] is False
    card = DeviceInfo(0, "NVIDIA L4", 89, memory_bytes=2**34, multiprocessors=58, l2_bytes=2**25)
    monkeypatch.setattr(gpu, "devices", lambda: [card])
    assert pick.chip(ARCHS[89]).name == "L4" and pick.chip(ARCHS[80]).name.startswith("A100")
    assert ask(SMALL)[1]["chip"] == "L4"


def test_what_cannot_be_is_refused(ask: Ask) -> None:
    assert ask("warps=2x2,frags=4x4,pad_a=3", "--chip", "t4")[0] == 2
    assert ask(LARGE, "--chip", "t4", "--problem", "100")[0] == 2
    assert ask(SMALL, "--chip", "t4", "--count", "--no-compile")[0] == 2
    assert ask(SMALL, "--chip", "t4", "--count")[0] == 3
