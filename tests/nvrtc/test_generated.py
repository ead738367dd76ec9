"""The committed kernels are what the templates give now, and compile."""

from __future__ import annotations

from pathlib import Path

import pytest

from wmmagen import arch, foundry, rules
from wmmagen.config import parse
from wmmagen.render import render

FOLDER = Path(__file__).resolve().parents[2] / "generated"
#: Winners of sweeps may lie beside them, made by whatever templates there were.
FILES = [FOLDER / f"{name}.cu" for name in (FOLDER / "shipped.txt").read_text(encoding="utf-8").split()]
each = pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}/{f.stem[10:]}")


def test_they_show_what_there_is() -> None:
    configs = [parse(f.stem) for f in FILES]
    assert len(configs) >= 8
    assert {f.parent.name for f in FILES} >= {"sm_75", "sm_80", "sm_90"}
    assert {str(c.inst) for c in configs} == {"16x16x16", "8x32x16", "32x8x16"}
    assert {c.operation.acc.name for c in configs} == {"f16", "f32"}
    assert {(c.feed.value, c.copy.value) for c in configs} == {
        ("global", "none"),
        ("shared", "ld"),
        ("shared", "cpasync"),
    }


@each
def test_they_do_not_drift(file: Path) -> None:
    target = arch.find(file.parent.name)
    assert rules.check(parse(file.stem), target) == []
    assert render(parse(file.stem), target).text == file.read_text(encoding="utf-8"), "make generated"


@each
@pytest.mark.usefixtures("compiled_once")
def test_they_compile_without_a_warning(file: Path) -> None:
    text, target = file.read_text(encoding="utf-8"), arch.find(file.parent.name)
    binary = foundry.compile_source(text, f"{file.stem}_kernel", target)
    assert "warning" not in binary.log
    assert binary.spill_bytes == 0
