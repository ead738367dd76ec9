"""Whole configurations from a few keys: a legal one where there is one, and sentences where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cases_legality import BASE

from wmmagen import coverage, defaults, rules, show
from wmmagen.arch import ARCHS
from wmmagen.config import CONFIG_KEYS, Grid, KernelConfig, Problem, Shape, name, read_pairs, spell, values_of
from wmmagen.dtypes import F16, F32
from wmmagen.errors import ConfigError, IllegalConfig, NotGeneratedYet

#: The first architecture of each kind: what rules read of one is its shared memory, and which side of a limit it is on.
SMS = list({(a.shared_block, a.sm >= 80, a.sm >= 90): sm for sm, a in reversed(ARCHS.items()) if sm >= 75}.values())
SM75, SM80 = ARCHS[75], ARCHS[80]

#: Values of the keys that are made in full; the other keys' come from the table of coverage.
OPEN: dict[str, list[str]] = {
    "inst": ["16x16x16", "32x8x16", "8x32x16"],
    "warps": ["1x1", "1x2", "2x1", "1x3", "3x1", "3x2", "4x2", "2x4", "1x8", "4x4", "5x1"],
    "frags": ["1x1", "1x2", "2x1", "3x3", "1x8", "8x1", "5x2", "4x8"],
    "k_steps": ["1", "2", "3", "4", "5", "8"],
    "feed": ["shared", "global"],
    "copy": ["ld", "cpasync", "none"],
    "stages": ["1", "2", "3", "4"],
    "pad_a": ["0", "8", "16", "24"],
    "pad_b": ["0", "8", "16", "24"],
    "pad_d": ["0", "4", "8"],
    "layout": ["rr", "rc", "cr", "cc"],
    "epilogue": ["none", "linear"],
    "overflow": ["wrap", "saturate"],
    "residue": ["exact", "predicated"],
    "align_a": ["1", "2", "4", "8"],
    "align_b": ["1", "2", "4", "8"],
    "align_d": ["1", "2", "4"],
    "batch": ["none", "strided", "pointers"],
    "cd": ["rr", "cc", "cr"],
    "arrange_a": ["rows", "tiles"],
    "arrange_b": ["rows", "tiles"],
    "fragment_buffers": ["1", "2"],
    "residency": ["fragment", "global"],
    "store": ["direct", "staged"],
    "min_blocks": ["1", "2", "3"],
    "raster": ["linear", "grouped4", "grouped8", "panels4", "panels8"],
    "split_k": ["1", "3", "1024"],
    "reduction": ["none", "workspace", "atomic"],
    "warps_k": ["1", "2", "4"],
}
SINGLES = [f"{key}={value}" for key in CONFIG_KEYS for value in coverage.GENERATED.get(key, OPEN.get(key, []))]


def impossible(pairs: str, sm: int, strict: bool) -> str:
    """The rule for which no configuration has these values; empty where there is one. Reasoned out by hand."""
    if pairs == "copy=cpasync" and sm < 80:
        return "C501"
    if pairs in ("a=bf16", "a=tf32", "a=f64", "acc=f64", "d=f64", "c=f64") and sm < 80:
        return "T131"
    if pairs == "overflow=saturate":
        return "X618"
    # Nothing is added by default, so there is no C to lie in another way than D.
    if pairs == "cd=cr":
        return "X641"
    # Three buffers need copies past the registers.
    if pairs in ("stages=3", "stages=4") and sm < 80:
        return "C503"
    # A slice of A is a whole number of 16 elements, and so must be its padded row; one of B can be 8 wide.
    if strict and pairs in ("pad_a=8", "pad_a=24"):
        return "L211"
    # A staged tile of sums is a whole number of 8 of them wide, and so must be its padded row.
    if strict and pairs == "pad_d=4":
        return "L213"
    return ""


def test_every_key_is_tried() -> None:
    assert {single.split("=")[0] for single in SINGLES} == set(CONFIG_KEYS)


@pytest.mark.parametrize(
    ("pairs", "size", "chosen"),
    [
        # Whole tiles of some kernel, and no size at all, ask for nothing.
        ("", (2048, 2048, 2048), {}),
        ("", (64, 128, 16), {}),
        ("", (0, 7, 7), {}),
        # Rows of 77, 999 and 999 elements are aligned to one element, those of 36 and 100 to four.
        ("", (1000, 999, 77), {"residue": "predicated", "align_a": "1", "align_b": "1", "align_d": "1"}),
        ("", (999, 100, 36), {"residue": "predicated", "align_a": "4", "align_b": "4", "align_d": "4"}),
        ("", (1, 4096, 11008), {"residue": "predicated", "align_a": "8", "align_b": "8", "align_d": "4"}),
        # What was said stays; a promise that the rows break leaves no kernel, so nothing is chosen.
        ("align_a=1,d=f16", (5, 40, 24), {"residue": "predicated", "align_b": "8", "align_d": "8"}),
        ("residue=exact", (5, 40, 24), {}),
        ("residue=predicated", (5, 40, 24), {}),
        # One for all sizes that was asked for has the promises that rows keep, too.
        ("residue=predicated,align_b=4", (5, 10, 23), {"align_a": "1", "align_d": "2"}),
        # C in columns has rows as long as D's columns, and the same promise.
        ("residue=predicated,epilogue=linear,cd=cr", (6, 8, 8), {"align_d": "2"}),
        ("align_a=8", (5, 40, 23), {}),
        ("feed=global", (5, 40, 24), {}),
    ],
)
def test_a_size_says_what_the_operation_has_to_be(
    pairs: str, size: tuple[int, int, int], chosen: dict[str, str]
) -> None:
    # A few points of each space are enough.
    few = "warps=1x2,frags=2x2,k_steps=1,stages=1,min_blocks=1,raster=linear"
    given = read_pairs(f"{few},{pairs}")
    found = defaults.for_size(given, SM80, size)
    assert {key: spell(value) for key, value in found.items() if key not in given} == chosen
    assert {key: found[key] for key in given} == given


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("strict", [False, True])
def test_nothing_given_is_a_kernel(sm: int, strict: bool) -> None:
    defaults.demand(defaults.complete({}, ARCHS[sm], strict_isa=strict), ARCHS[sm], strict_isa=strict)


@pytest.mark.parametrize("pairs", SINGLES)
@pytest.mark.parametrize("strict", [False, True])
def test_one_key_alone_becomes_a_legal_configuration(pairs: str, strict: bool) -> None:
    given = read_pairs(pairs)
    for sm in SMS:
        arch = ARCHS[sm]
        found = defaults.read_config(pairs, arch, strict_isa=strict)
        assert {key: values_of(found).get(key, found.operation.added) for key in given} == given
        broken = [v.rule.id for v in rules.check(found, arch, strict_isa=strict)]
        reason = impossible(pairs, sm, strict)
        assert (reason in broken) if reason else broken == [], f"sm_{sm}: {found}"


@pytest.mark.parametrize("pairs", [s for s in SINGLES if s != "d=f16"])
def test_one_key_alone_becomes_a_kernel_that_is_made(pairs: str) -> None:
    assert coverage.missing(defaults.read_config(pairs, SM80)) == []


@pytest.mark.parametrize(
    "pairs",
    [
        "acc=f16,d=f16",
        "acc=f16,d=f16,inst=8x32x16",
        "acc=f16,d=f16,inst=32x8x16",
        "inst=32x8x16,copy=ld,stages=1",
        "inst=32x8x16,warps=1x1",
        "feed=global,inst=8x32x16",
        "warps=4x2,frags=2x4",
        "warps=1x8,copy=ld",
        "stages=2,pad_a=0",
        "copy=none,acc=f16,d=f16",
        # None of these is reached by the preferences; the space has an answer for each.
        "warps=2x3,k_steps=2",
        "warps=2x6,k_steps=2",
        "warps=5x6",
        "warps=8x2,frags=1x3",
        "warps=3x3,k_steps=1",
        "frags=4x3,k_steps=32",
        "warps=3x8",
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_several_keys_become_a_legal_configuration(pairs: str, strict: bool) -> None:
    for sm in SMS:
        found = defaults.read_config(pairs, ARCHS[sm], strict_isa=strict)
        assert rules.check(found, ARCHS[sm], strict_isa=strict) == []
        assert {key: values_of(found)[key] for key in read_pairs(pairs)} == read_pairs(pairs)


@pytest.mark.parametrize(
    ("pairs", "sm", "id"),
    [
        ("inst=32x16x8", 80, "T101"),
        ("warps=8x8", 90, "R401"),
        ("pad_a=4", 80, "L201"),
        ("feed=global,pad_a=8", 80, "X603"),
        ("feed=global,inst=32x8x16", 80, "P304"),
        ("a=bf16", 75, "T131"),
        ("acc=f16,d=f16,inst=32x8x16,store=direct", 80, "P305"),
        ("k_steps=64,frags=4x4,warps=2x2,feed=shared", 80, "R402"),
    ],
)
def test_what_is_impossible_is_completed_so_that_the_rules_can_speak(pairs: str, sm: int, id: str) -> None:
    arch = ARCHS[sm]
    found = defaults.read_config(pairs, arch)
    assert id in [v.rule.id for v in rules.check(found, arch)]
    assert {key: values_of(found)[key] for key in read_pairs(pairs)} == read_pairs(pairs)
    with pytest.raises(IllegalConfig, match=id):
        defaults.demand(found, arch)


@pytest.mark.parametrize("sm", [75, 90])
@pytest.mark.parametrize("pairs", ["residency=global,d=f16", "store=direct,d=f16", "residency=global,d=f16,layout=cc"])
def test_sums_that_are_stored_as_they_are_have_the_type_of_d(pairs: str, sm: int) -> None:
    case = defaults.complete(read_pairs(pairs), ARCHS[sm])
    assert rules.check(case, ARCHS[sm]) == []
    assert case.operation.acc == case.operation.d == F16
    assert defaults.operation_of(read_pairs(pairs)) == case.operation
    assert defaults.complete(read_pairs("d=f16"), ARCHS[sm]).operation.acc == F32, (
        "elsewhere sums stay as exact as they can"
    )


@pytest.mark.parametrize(
    ("pairs", "ids"),
    [("a=s8,acc=f32", ["T114"]), ("inst=16x16x8", ["T101"]), ("pad_a=4", ["L201"]), ("stages=3,copy=ld", ["C503"])],
)
def test_what_was_chosen_breaks_no_rule_of_its_own(pairs: str, ids: list[str]) -> None:
    case = defaults.complete(read_pairs(pairs), ARCHS[80])
    assert [v.rule.id for v in rules.check(case, ARCHS[80])] == ids


def test_known_and_not_made_is_no_illegality() -> None:
    with pytest.raises(NotGeneratedYet, match="a=b1"):
        defaults.demand(defaults.read_config("a=b1", SM80), SM80)


def test_types_bring_their_own_defaults() -> None:
    found = {a: defaults.read_config(f"a={a}", SM80) for a in ("f16", "bf16", "tf32", "f64", "s8", "s4", "b1")}
    assert {
        a: (c.operation.acc.name, c.operation.d.name, str(c.inst), str(c.operation.layout)) for a, c in found.items()
    } == {
        "f16": ("f32", "f32", "16x16x16", "rr"),
        "bf16": ("f32", "f32", "16x16x16", "rr"),
        "tf32": ("f32", "f32", "16x16x8", "rr"),
        "f64": ("f64", "f64", "8x8x4", "rr"),
        "s8": ("s32", "s32", "16x16x16", "rc"),
        "s4": ("s32", "s32", "8x8x32", "rc"),
        "b1": ("s32", "s32", "8x8x128", "rc"),
    }


def test_the_preferred_choice() -> None:
    assert defaults.complete({}, SM75) == BASE
    assert str(defaults.complete({}, SM80).copy) == "cpasync" and defaults.complete({}, SM80).stages == 3
    assert str(defaults.read_config("stages=1", SM80).copy) == "ld"
    strict = defaults.complete({}, SM75, strict_isa=True)
    assert (strict.pad_a, strict.pad_b) == (16, 16)
    fed = defaults.read_config("feed=global", SM80)
    assert (str(fed.copy), fed.stages, fed.pad_a, fed.pad_b) == ("none", 1, 0, 0)


# What the command line's CONFIG may be.


def test_a_name_is_taken_as_it_is() -> None:
    for text in (name(BASE), f"  {name(BASE)}\n"):
        assert defaults.read_config(text, SM80) == BASE


def test_a_broken_name_is_read_as_a_name() -> None:
    with pytest.raises(ConfigError, match="is no kernel name"):
        defaults.read_config("wmma_gemm_f16", SM80)


def read(path: Path) -> KernelConfig:
    return defaults.read_config(str(path), SM80)


def test_a_toml_file(tmp_path: Path) -> None:
    path = tmp_path / "kernel.toml"
    path.write_text('# a comment\ninst = "8x32x16"\nwarps = "1x2"\nstages = 2\ncopy = "ld"\npad_a = 16\n')
    found = read(path)
    assert (found.inst, found.warps, found.stages, str(found.copy), found.pad_a) == (
        Shape(8, 32, 16), Grid(1, 2), 2, "ld", 16,
    )  # fmt: skip
    assert found == defaults.read_config("inst=8x32x16,warps=1x2,stages=2,copy=ld,pad_a=16", SM80)
    path.write_text("")
    assert read(path) == defaults.complete({}, SM80)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stages = ", "is no TOML"),
        ("stages = 2\nstages = 3", "is no TOML"),
        ("[kernel]\nstages = 2", "[kernel] is a table"),
        ("inst = {m = 16}", "[inst] is a table"),
        ("inst = [16, 16, 16]", "inst is neither"),
        ("stages = 2.0", "stages is neither"),
        ("stages = true", "stages is neither"),
        ("stages = 1979-05-27", "stages is neither"),
        ("stage = 2", "'stage' is no key"),
        ("stages = 0", "stages=0 is not a whole number"),
        ("stages = -1", "stages=-1 is not a whole number"),
        ('copy = "fast"', "copy=fast is not known"),
        ('stages = "two"', "stages=two is not a whole number"),
        ("block_k = 24", "'block_k' is no key"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "kernel.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        read(path)
    assert message in refusal.value.message and refusal.value.fix


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b'inst = "\xff\xfe"')
    for path in (folder, binary, tmp_path / "absent.toml"):
        with pytest.raises(ConfigError) as refusal:
            read(path)
        assert f"{path}: cannot be read" in refusal.value.message and refusal.value.fix


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "closed.toml"
    path.write_text("")
    path.chmod(0)
    with pytest.raises(ConfigError, match="cannot be read"):
        read(path)


def test_what_a_size_makes_of_the_operation_is_told_as_what_it_is() -> None:
    problem = Problem.packed(defaults.operation_of(read_pairs("residue=predicated")), 5, 10, 23)
    assert "no multiple" in show.suited(
        defaults.for_size(read_pairs("warps=1x1,frags=1x1"), SM80, (5, 10, 23)), problem
    )
    given = read_pairs("residue=predicated")
    chosen = {k: v for k, v in defaults.for_size(given, SM80, (5, 10, 23)).items() if k not in given}
    assert (
        show.suited(chosen, problem)
        == "packed rows of 5x10x23 keep no wider promises than align_a=1,align_b=2,align_d=2"
    )
