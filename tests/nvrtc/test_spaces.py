"""Every path may hold spaces: of the environment, the package, the headers, and of what a command reads or writes."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

import wmmagen
from wmmagen import cache, doctor, nvrtc
from wmmagen.arch import ARCHS

SMALL = "warps=1x1,frags=1x1"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The Python of an environment in which every package, the compiler's too, lies below a folder with spaces."""
    folder = tmp_path / "an  environment"
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    for source in dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))):
        for entry in Path(source).iterdir():
            if entry.suffix != ".pth" and not entry.name.startswith("wmmagen"):
                (packages / entry.name).symlink_to(entry)
    (packages / "wmmagen").symlink_to(Path(wmmagen.__file__).parent)
    return folder / "bin" / "python"


def test_a_machine_full_of_spaces(environment: Path, tmp_path: Path) -> None:
    home = tmp_path / "a working folder"
    home.mkdir()
    temporary = tmp_path / "t m p"
    temporary.mkdir()
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CUDA_HOME", "CUDA_PATH")}
    settings = {cache.VARIABLE: str(tmp_path / "c d"), "TMPDIR": str(temporary), "CUDA_VISIBLE_DEVICES": ""}
    commands = [
        ["doctor"],
        ["compile", SMALL, "--arch", "sm_75"],
        ["emit", "a kernel.toml", "--arch", "sm_75", "--to", "e f", "--symbol", "g"],
        ["sweep", "--arch", "sm_75", "--problem", "64", "--fix", SMALL, "--trials", "1", "--jobs", "1",
         "--storage", "g h/the study.db", "--generated", "w i n"],
    ]  # fmt: skip
    (home / "a kernel.toml").write_text('warps = "1x1"\nfrags = "1x1"\n')
    script = (
        f"from wmmagen import cli\nfor c in {commands!r}:\n    assert cli.run([*c, '--json']) == 0, c\n    print('=')"
    )
    done = subprocess.run(
        [str(environment), "-c", script], cwd=home, env=own | settings, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, compiled, emitted, swept = (json.loads(part) for part in done.stdout.split("=\n")[:-1])
    named = {finding["what"]: finding for finding in found["findings"]}
    assert found["ok"] is True
    for what in ("NVRTC", "CUDA headers", "nvJitLink"):
        assert named[what]["state"] == "ok" and "/an  environment/" in named[what]["detail"]
    assert str(temporary) in named["temporary folder"]["detail"] and "c d" in named["cache"]["detail"]
    assert compiled["registers"] > 0 and compiled["sass"] is not None
    assert emitted["files"] == ["e f/g.cu", "e f/g.h", "e f/g_selftest.cu", "e f/manifest.json"]
    assert all((home / file).is_file() for file in emitted["files"])
    assert swept["outcomes"]["ok"] == 1 and (home / "g h" / "the study.db").is_file()
    assert list((tmp_path / "c d").glob("*/*")) and list(temporary.iterdir()) == []


def test_headers_of_a_toolkit_and_precompiled_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (origin,) = nvrtc.headers().directories
    toolkit = tmp_path / "a tool kit"
    toolkit.mkdir()
    (toolkit / "include").symlink_to(origin)
    plain = nvrtc.compile_source(doctor.PROBE_SOURCE, doctor.PROBE_ENTRY, ARCHS[75])
    monkeypatch.setattr(nvrtc, "wheel_roots", list)
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    assert nvrtc.headers().directories == (str(toolkit / "include"),)
    kept = tmp_path / "p c h"
    binary = nvrtc.compile_source(doctor.PROBE_SOURCE, doctor.PROBE_ENTRY, ARCHS[75], precompiled=kept)
    assert binary.cubin == plain.cubin
    assert list(kept.glob("*/*"))
