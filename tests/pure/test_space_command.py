"""`wmmagen space`: what it prints, as a document and as names, and its statuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wmmagen import cli, defaults, rules
from wmmagen.arch import ARCHS
from wmmagen.config import Problem, name, parse, read_pairs
from wmmagen.space import Space

FEW = "inst=16x16x16,warps=2x2,frags=2x4,feed=shared,copy=ld,raster=linear,split_k=1,reduction=none"


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.run(["space", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def space_of(fix: str, sm: int, **more: Any) -> Space:
    return Space(defaults.operation_of(read_pairs(fix)), ARCHS[sm], read_pairs(fix), **more)


@pytest.mark.parametrize("strict", [False, True])
def test_the_document_is_the_space(capsys: pytest.CaptureFixture[str], strict: bool) -> None:
    status, out, _ = asked(capsys, "--arch", "sm_80", "--fix", FEW, "--json", *(["--strict-isa"] if strict else []))
    document, space = json.loads(out), space_of(FEW, 80, strict_isa=strict)
    assert status == 0 and document["arch"] == "sm_80" and document["strict_isa"] is strict
    assert (document["raw"], document["legal"]) == (space.raw, len(space))
    assert {row["id"]: row["count"] for row in document["removed"]} == space.removed
    assert all(row["share"] == 100 * row["count"] / space.raw for row in document["removed"])
    assert list(document["axes"]) == list(space.axes)
    assert document["axes"]["stages"] == {"values": ["1", "2", "3", "4", "5"], "live": ["1", "2"]}
    assert document["operation"]["a"] == "f16" and document["seconds"] > 0


def test_what_people_read(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = asked(capsys, "--arch", "sm_80", "--fix", FEW, "--problem", "128x256x64")
    space = space_of(FEW, 80, problem=Problem.packed(defaults.operation_of(read_pairs(FEW)), 128, 256, 64))
    assert status == 0 and err == ""
    assert "--fix has warps=MxN" in out and "warps_m" in out
    assert "for 128x256x64" in out and f"of {space.raw} points" in out and "1 2 (3) (4) (5)" in out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith("  ") and "%" in line}
    for rule in rules.RULES:
        assert (rule.id in rows) is (rule.id in space.removed)
    assert rows["C503"] == ["C503", "ld-stages", str(space.removed["C503"]), "60.000", "%"]


def test_names_are_drawn_or_streamed(capsys: pytest.CaptureFixture[str]) -> None:
    space = space_of(FEW, 75)
    status, out, _ = asked(capsys, "--arch", "sm_75", "--fix", FEW, "--list", "all")
    assert status == 0 and out.splitlines() == [name(c) for c in space.configs()]
    drawn = asked(capsys, "--arch", "sm_75", "--fix", FEW, "--list", "7")[1].splitlines()
    assert len(set(drawn)) == 7 and all(space.contains(parse(text)) for text in drawn)
    document = json.loads(asked(capsys, "--arch", "sm_75", "--fix", FEW, "--list", "7", "--json")[1])
    assert document["names"] == drawn
    assert len(asked(capsys, "--arch", "sm_75", "--fix", FEW, "--list", "100000")[1].splitlines()) == len(space)


@pytest.mark.parametrize("listed", ["0", "many", "-1", "100001"])
def test_a_bad_count_of_names(capsys: pytest.CaptureFixture[str], listed: str) -> None:
    status, out, err = asked(capsys, "--arch", "sm_75", "--list", listed)
    assert (status, out) == (2, "") and "nor all" in err


def test_all_names_are_no_document(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = asked(capsys, "--arch", "sm_75", "--list", "all", "--json")
    assert status == 2 and "leave out --json" in json.loads(out)["error"]["fix"]


def test_where_no_kernel_takes_the_size_the_nearest_ones_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    fix = f"{FEW},k_steps=2,residue=exact"
    status, _, err = asked(capsys, "--arch", "sm_75", "--fix", fix, "--problem", "100x130x64")
    assert status == 2 and err.splitlines()[-1].endswith("nearest legal: --problem 64x128x64 or 128x256x64")
    for size in ("64x128x64", "128x256x64"):
        assert asked(capsys, "--arch", "sm_75", "--fix", fix, "--problem", size)[0] == 0
    _, _, err = asked(capsys, "--arch", "sm_75", "--fix", fix, "--problem", "10")
    assert err.splitlines()[-1].endswith("nearest legal: --problem 64x128x32")


@pytest.mark.parametrize(
    ("more", "size", "fix"),
    [
        ("align_a=8,align_b=8", "100x36x63", "packed rows of that size keep no more than align_a=1,align_b=4"),
        ("align_a=1,align_b=1,align_d=1", "2147483647", "choose another --problem"),
    ],
)
def test_kernels_of_all_sizes_are_not_told_of_multiples(
    capsys: pytest.CaptureFixture[str], more: str, size: str, fix: str
) -> None:
    fixed = f"{FEW},store=staged,residue=predicated,{more}"
    status, _, err = asked(capsys, "--arch", "sm_75", "--fix", fixed, "--problem", size)
    assert (status, err.splitlines()[-1].strip()) == (2, fix)


def test_a_size_that_is_no_multiple_asks_for_kernels_of_all_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    asked_for = ("--arch", "sm_75", "--fix", f"{FEW},store=staged", "--problem", "100x36x63")
    document = json.loads(asked(capsys, *asked_for, "--json")[1])
    operation = document["operation"]
    assert [operation[key] for key in ("residue", "align_a", "align_b", "align_d")] == ["predicated", "1", "4", "4"]
    assert document["legal"] > 0


def test_where_nothing_is_legal_it_says_what_removes(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--arch", "sm_75", "--fix", f"{FEW.replace('=ld', '=cpasync')}"]
    status, out, err = asked(capsys, *arguments)
    assert status == 2 and "cpasync-needs-architecture" in out and "100.000 %" in out and "none of" in err
    status, out, _ = asked(capsys, *arguments, "--json")
    document = json.loads(out)
    assert status == 2 and document["legal"] == 0 and document["error"]["kind"] == "request"
    assert {row["id"]: row["share"] for row in document["removed"]}["C501"] == 100
