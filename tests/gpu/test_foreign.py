"""Kernels of earlier architectures on the card at hand: assembled again for it, exact, and never ranked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import published
from wmmagen import cli, tune
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends.gpu import DeviceInfo, devices
from wmmagen.errors import MissingPiece

pytestmark = pytest.mark.gpu

OLDEST = ARCHS[75]
Ask = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture(scope="module")
def card() -> DeviceInfo:
    """The card that `--backend gpu` takes for a kernel of the oldest architecture."""
    try:
        found = devices()
    except MissingPiece as missing:
        pytest.skip(missing.message)
    known = [info for info in found if info.sm in ARCHS]
    if not known or any(info.sm == OLDEST.sm for info in known):
        pytest.skip(f"no card here is foreign to {OLDEST}: {', '.join(map(str, found))}")
    return known[0]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Ask:
    """Run a command in an empty folder: the document that it prints, of ``kind``, and what it says beside."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, kind: str, status: int = 0) -> tuple[dict[str, Any], str]:
        capfd.readouterr()
        ended = cli.run([*arguments, "--json"])
        out, err = capfd.readouterr()
        assert ended == status, err
        document = published.read(out)
        published.judge(kind, document)
        return document, err

    return run


def first_line(card: DeviceInfo, arch: Arch) -> str:
    here = f"backend gpu: {card} runs {arch} kernels assembled again for it"
    return f"{here}: verdicts hold, times are foreign and never rank."


def test_the_default_kernel_of_the_oldest_architecture_is_exact(card: DeviceInfo, ask: Ask) -> None:
    document, said = ask("validate", "", "--arch", "sm_75", "--backend", "gpu", kind="validate")
    assert said.splitlines()[0] == first_line(card, OLDEST)
    assert (document["arch"], document["device"], document["foreign"]) == ("sm_75", str(card), True)
    assert document["exact"] is True and all(run["exact"] for run in document["runs"])


@pytest.mark.parametrize("arch", [arch for arch in ARCHS.values() if arch.sm >= OLDEST.sm], ids=str)
def test_the_default_kernel_of_every_earlier_architecture_is_exact(card: DeviceInfo, arch: Arch, ask: Ask) -> None:
    if arch.sm >= card.sm or any(info.sm == arch.sm for info in devices()):
        pytest.skip(f"{arch} kernels are not assembled again here: {card}")
    document, said = ask("validate", "", "--arch", arch.name, "--problem", "256", kind="validate")
    assert said.splitlines()[0] == first_line(card, arch)
    assert document["foreign"] is True and document["exact"] is True


def test_its_times_never_rank(card: DeviceInfo, ask: Ask) -> None:
    sweep = ["sweep", "--arch", "sm_75", "--problem", "512", "--trials", "3"]
    document, said = ask(*sweep, kind="sweep")
    assert said.splitlines()[0] == f"{first_line(card, OLDEST)} Estimates rank."
    assert (document["arch"], document["device"], document["foreign"]) == ("sm_75", str(card), True)
    assert (document["outcomes"]["ok"], document["leading"]) == (3, [])
    assert "estimated_us" in document["best"] and "median_us" not in document["best"]
    for record in tune.find_study(document["study"]).records():
        assert (record.foreign, record.ranks, record.device) == (True, False, str(card))
        assert record.timing is not None and record.timing.median_us > 0
    emitted, _ = ask("emit", "--best", document["study"], "--to", "out", kind="emit")
    assert emitted["name"] == document["best"]["name"]


def test_the_doctor_compiles_for_the_card_at_hand(card: DeviceInfo, ask: Ask) -> None:
    document, _ = ask("doctor", kind="doctor")
    named = {finding["what"]: finding for finding in document["findings"]}
    assert named[f"a WMMA compile for sm_{card.sm}"]["state"] == "ok"
    assert named[f"GPU {card.index}"]["detail"].startswith(f"{card.name}, sm_{card.sm}, ")
    assert named["GPU driver"]["state"] in ("ok", "warning") and "CUDA " in named["GPU driver"]["detail"]
