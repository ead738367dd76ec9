"""The rules: each alone, all together, in their words, and the same on ints and on columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from cases_legality import BASE, BREAKS, Break, broken_ids, config, sample
from hypothesis import given, settings
from hypothesis import strategies as st

from wmmagen import derive, rules
from wmmagen.arch import ARCHS
from wmmagen.config import MAX_SIZE, OPERATION_KEYS, KernelConfig, Problem, build, read_value, values_of
from wmmagen.epilogue import VECTORS
from wmmagen.errors import ConfigError, IllegalConfig
from wmmagen.instructions import INSTRUCTIONS
from wmmagen.rules import RULES, Scope
from wmmagen.space import Space

BY_ID = {rule.id: rule for rule in RULES}
SM75, SM80 = ARCHS[75], ARCHS[80]
GLOBAL = "feed=global,copy=none,stages=1,pad_a=0,pad_b=0"
STRICT = "pad_a=16,pad_b=16"


def violations(pairs: str, sm: int = 80, *, strict: bool = False) -> list[rules.Violation]:
    return rules.check(config(pairs), ARCHS[sm], strict_isa=strict)


# Each rule alone.


def test_ids_are_unique_and_of_one_form() -> None:
    ids = [rule.id for rule in RULES]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[A-Z][0-9]{3}", id) for id in ids)


def test_every_rule_has_its_words() -> None:
    for rule in RULES:
        for text in (rule.name, rule.says, rule.message, rule.fix, rule.reason, rule.source):
            assert text and text == text.strip(), rule.id
        assert not any(mark in rule.says for mark in '{}"\\\n'), f"{rule.id}: says stands in a C string"


def test_every_rule_has_a_case() -> None:
    scopes: dict[Scope, Mapping[str, object]] = {
        Scope.STATIC: BREAKS,
        Scope.ARCH: BREAKS,
        Scope.LAUNCH: LAUNCHES,
        Scope.TOOLCHAIN: TOOLCHAIN,
        Scope.SEARCH: SEARCHES,
    }
    assert [r.id for r in RULES if r.id not in scopes[r.scope]] == []
    assert not {*BREAKS, *LAUNCHES, *TOOLCHAIN, *SEARCHES} - BY_ID.keys()


@pytest.mark.parametrize("id", BREAKS)
def test_a_configuration_that_breaks_one_rule(id: str) -> None:
    case = BREAKS[id]
    assert broken_ids(config(case.breaks), case.where, strict_isa=case.strict) == [*case.beside, id]
    assert not rules.legal(config(case.breaks), case.where, strict_isa=case.strict)


@pytest.mark.parametrize("id", BREAKS)
def test_its_neighbour_breaks_none(id: str) -> None:
    case = BREAKS[id]
    assert broken_ids(config(case.keeps), case.where_kept, strict_isa=case.strict) == []
    assert rules.legal(config(case.keeps), case.where_kept, strict_isa=case.strict)
    known = derive.values(config(case.keeps), case.where_kept, strict_isa=case.strict)
    if BY_ID[id].expr.names & set(derive.ARCH_NAMES) or BY_ID[id].when is None:
        assert BY_ID[id].applies(known), "the neighbour must be one of which the rule speaks"


@pytest.mark.parametrize("id", [id for id, case in BREAKS.items() if case.strict])
def test_strict_rules_speak_only_when_asked(id: str) -> None:
    assert broken_ids(config(BREAKS[id].breaks), BREAKS[id].where) == []


@pytest.mark.parametrize("id", [r.id for r in RULES if r.scope is Scope.ARCH])
def test_rules_of_an_architecture_are_silent_without_one(id: str) -> None:
    assert broken_ids(config(BREAKS[id].breaks), None, strict_isa=BREAKS[id].strict) == []


TOOLCHAIN = {"K701": 62, "K702": 72}


@pytest.mark.parametrize("id", TOOLCHAIN)
def test_toolchain_rules(id: str) -> None:
    assert broken_ids(BASE, ARCHS[TOOLCHAIN[id]]) == [id]


def test_toolchain_rules_at_their_ends() -> None:
    found = {sm: broken_ids(BASE, arch) for sm, arch in ARCHS.items()}
    assert {sm for sm, ids in found.items() if ids == ["K701"]} == {50, 52, 53, 60, 61, 62}
    assert {sm for sm, ids in found.items() if ids == ["K702"]} == {70, 72}
    assert all(ids == [] for sm, ids in found.items() if sm >= 75)


# Launch rules: a call that breaks one, and its neighbour that breaks none.


@dataclass(frozen=True)
class Call:
    """``m n k lda ldb ldd``, and ``ldc alpha beta``, of a call that breaks a rule and of one that just keeps it."""

    breaks: tuple[float, ...]
    keeps: tuple[float, ...]
    pairs: str = ""
    strict: bool = False


@dataclass(frozen=True)
class Addresses:
    """A rule that no :class:`Problem` can break: numbers that do, and numbers that just do not."""

    breaks: dict[str, int]
    keeps: dict[str, int]
    pairs: str = ""


_WIDEST = 128 * 65536
LINEAR = "epilogue=linear"
SPLIT = "split_k=2,reduction=workspace"
RESIDUAL = "epilogue=relu+residual"
#: Two elements of D at a time, beside which two of f16 are added.
HALVES = "c=f16,store=staged,align_d=2"
_SAME = {"C_ADDRESS": 4096, "D_ADDRESS": 4096, "BETA": 1}
_R_IS_D = {"R_ADDRESS": 4096, "D_ADDRESS": 4096}
#: What a call without factors and with C anywhere is.
_PLAIN = {"ALPHA": 1, "BETA": 0, "C_ADDRESS": 8192}
#: A batch of 3 products of 128x128.
_THREE = {"M": 128, "N": 128, "LDD": 128, "BATCH": 3}
STRIDED, POINTERS = "batch=strided", "batch=pointers"


def _negative_stride(vector: str, more: str = "") -> Addresses:
    """Of a vector with an element for each line of D, which are read one by one: only its sign counts."""
    step = vector.lower().replace("_", "")
    stride = f"STRIDE_{vector}"
    return Addresses({"BATCH": 2, stride: -1}, {"BATCH": 2, stride: 1}, f"{STRIDED},epilogue={step},store=staged{more}")


LAUNCHES: dict[str, Call | Addresses] = {
    "N800": Addresses({"M": -128, "N": 0, "K": 0}, {"M": 0, "N": 0, "K": 0}),
    "N801": Call((64, 128, 32, 32, 128, 128), (256, 128, 32, 32, 128, 128)),
    "N802": Call((128, 192, 32, 32, 192, 192), (128, 256, 32, 32, 256, 256)),
    "N803": Call((128, 128, 16, 32, 128, 128), (128, 128, 0, 8, 128, 128)),
    "N804": Call((128 * 32768, _WIDEST, 32, 32, _WIDEST, _WIDEST), (128 * 32767, _WIDEST, 32, 32, _WIDEST, _WIDEST)),
    "N805": Call(
        (128 * 32767 + 1, _WIDEST - 4, 32, 32, _WIDEST, _WIDEST),
        (128 * 32767, _WIDEST - 4, 32, 32, _WIDEST, _WIDEST),
        "residue=predicated",
    ),
    "L221": Call((128, 128, 32, 36, 128, 128), (128, 128, 32, 40, 128, 128)),
    "L222": Call((128, 128, 32, 32, 132, 128), (128, 128, 32, 32, 136, 128)),
    "L223": Call((128, 128, 32, 32, 128, 130), (128, 128, 32, 32, 128, 132)),
    "L231": Call((128, 128, 32, 40, 128, 128), (128, 128, 32, 48, 128, 128), GLOBAL, strict=True),
    "L232": Call((128, 128, 32, 32, 136, 128), (128, 128, 32, 32, 144, 128), GLOBAL, strict=True),
    "L233": Call((128, 128, 32, 32, 128, 132), (128, 128, 32, 32, 128, 136), STRICT, strict=True),
    "L241": Call((128, 128, 32, 24, 128, 128), (128, 128, 32, 32, 128, 128)),
    "L242": Call((128, 128, 32, 32, 120, 128), (128, 128, 32, 32, 128, 128)),
    "L243": Call((128, 128, 32, 32, 128, 124), (128, 128, 32, 32, 128, 128)),
    "L224": Call((128, 128, 32, 32, 128, 128, 130, 1, 1), (128, 128, 32, 32, 128, 128, 130, 1, 0), LINEAR),
    "L234": Call(
        (128, 128, 32, 32, 128, 128, 132, 1, 1),
        (128, 128, 32, 32, 128, 128, 136, 1, 1),
        f"{LINEAR},{STRICT}",
        strict=True,
    ),
    "L244": Call((128, 128, 32, 32, 128, 128, 124, 1, 1), (128, 128, 32, 32, 128, 128, 124, 1, 0), LINEAR),
    "L247": Call((256, 128, 32, 32, 128, 252), (256, 128, 32, 32, 128, 256), "cd=cc"),
    "L248": Call((256, 128, 32, 32, 128, 128, 252, 1, 1), (256, 128, 32, 32, 128, 128, 252, 1, 0), f"{LINEAR},cd=cr"),
    "L249": Addresses({"M": 256, "N": 128, "LDR": 252}, {"M": 256, "N": 128, "LDR": 256}, f"{RESIDUAL},cd=cr"),
    "L272": Call(
        (128, 128, 32, 32, 128, 2**29),
        (128, 128, 32, 32, 128, 2**29 - 4),
        "store=staged,split_k=2,reduction=atomic,cd=cc",
    ),
    "L271": Call(
        (128, 128, 32, 32, 128, 2**29), (128, 128, 32, 32, 128, 2**29 - 4), "store=staged,split_k=2,reduction=atomic"
    ),
    "P321": Addresses({"A_ADDRESS": 4096 + 8}, {"A_ADDRESS": 4096 + 16}),
    "P322": Addresses({"B_ADDRESS": 4096 + 8}, {"B_ADDRESS": 4096 + 16}),
    "P323": Addresses({"A_ADDRESS": 4096 + 16}, {"A_ADDRESS": 4096 + 32}, GLOBAL),
    "P324": Addresses({"B_ADDRESS": 4096 + 16}, {"B_ADDRESS": 4096 + 32}, GLOBAL),
    "P325": Addresses({"D_ADDRESS": 4096 + 16}, {"D_ADDRESS": 4096 + 32}),
    "P326": Addresses(
        {"K": 32, "A_ADDRESS": 0, "B_ADDRESS": 256, "D_ADDRESS": 256},
        {"K": 0, "A_ADDRESS": 0, "B_ADDRESS": 0, "D_ADDRESS": 256},
    ),
    "P327": Addresses({**_SAME, "LDC": 128, "LDD": 132}, {**_SAME, "LDC": 128, "LDD": 128}, LINEAR),
    "P328": Addresses(_SAME, {**_SAME, "C_ADDRESS": 512}, f"{LINEAR},residency=global"),
    "P331": Addresses({"D_ADDRESS": 4096 + 8}, {"D_ADDRESS": 4096 + 16}, "store=staged"),
    "P332": Addresses({"C_ADDRESS": 4096 + 16, "BETA": 1}, {"C_ADDRESS": 4096 + 32, "BETA": 1}, LINEAR),
    "P333": Addresses(
        {"C_ADDRESS": 4096 + 4, "BETA": 1}, {"C_ADDRESS": 4096 + 8, "BETA": 1}, f"{LINEAR},store=staged,align_d=2"
    ),
    "L226": Addresses({"LDR": 130}, {"LDR": 132}, RESIDUAL),
    "L236": Addresses({"LDR": 132, "strict_isa": True}, {"LDR": 136, "strict_isa": True}, f"{RESIDUAL},{STRICT}"),
    "L246": Addresses({"N": 128, "LDR": 124}, {"N": 128, "LDR": 128}, RESIDUAL),
    "P371": Addresses({"R_ADDRESS": 4096 + 16}, {"R_ADDRESS": 4096 + 32}, RESIDUAL),
    "P372": Addresses({"R_ADDRESS": 4096 + 4}, {"R_ADDRESS": 4096 + 8}, f"{RESIDUAL},store=staged,align_d=2"),
    "P373": Addresses({"C_ADDRESS": 4096 + 2, "BETA": 1}, {"C_ADDRESS": 4096 + 4, "BETA": 1}, f"{LINEAR},{HALVES}"),
    "P374": Addresses({"R_ADDRESS": 4096 + 2}, {"R_ADDRESS": 4096 + 4}, f"{RESIDUAL},{HALVES}"),
    "P375": Addresses({"BIAS_ROW_ADDRESS": 4096 + 1}, {"BIAS_ROW_ADDRESS": 4096 + 2}, f"epilogue=biasrow,{HALVES}"),
    "P376": Addresses({"BIAS_COL_ADDRESS": 4096 + 2}, {"BIAS_COL_ADDRESS": 4096 + 4}, f"epilogue=biascol,{HALVES}"),
    "P377": Addresses(
        {"SCALE_ROW_ADDRESS": 4096 + 2}, {"SCALE_ROW_ADDRESS": 4096 + 4}, "epilogue=scalerow,store=staged"
    ),
    "P378": Addresses(
        {"SCALE_COL_ADDRESS": 4096 + 8}, {"SCALE_COL_ADDRESS": 4096 + 16}, "epilogue=scalecol,store=staged"
    ),
    "P381": Addresses({**_R_IS_D, "LDR": 128, "LDD": 132}, {**_R_IS_D, "LDR": 128, "LDD": 128}, RESIDUAL),
    "P382": Addresses(_R_IS_D, {**_R_IS_D, "R_ADDRESS": 512}, f"{RESIDUAL},residency=global"),
    "P383": Addresses(
        {**_SAME, "LDC": 128, "LDD": 128}, {**_SAME, "LDC": 128, "LDD": 128, "C_ADDRESS": 512}, f"{LINEAR},{HALVES}"
    ),
    "P384": Addresses(
        {**_R_IS_D, "LDR": 128, "LDD": 128},
        {**_R_IS_D, "LDR": 128, "LDD": 128, "R_ADDRESS": 512},
        f"{RESIDUAL},{HALVES}",
    ),
    "P385": Addresses(
        {**_SAME, "LDC": 128, "LDD": 128},
        {**_SAME, "LDC": 128, "LDD": 128, "C_ADDRESS": 512},
        f"{LINEAR},cd=rc",
    ),
    "P386": Addresses(
        {**_R_IS_D, "LDR": 128, "LDD": 128}, {**_R_IS_D, "LDR": 128, "LDD": 128, "R_ADDRESS": 512}, f"{RESIDUAL},cd=cr"
    ),
    "P355": Addresses(
        {"BIAS_ROW_ADDRESS": 4096 + 2}, {"BIAS_ROW_ADDRESS": 4096 + 4}, f"epilogue=biasrow,{HALVES},cd=cc"
    ),
    "P356": Addresses(
        {"BIAS_COL_ADDRESS": 4096 + 1}, {"BIAS_COL_ADDRESS": 4096 + 2}, f"epilogue=biascol,{HALVES},cd=cc"
    ),
    "P357": Addresses(
        {"SCALE_ROW_ADDRESS": 4096 + 8}, {"SCALE_ROW_ADDRESS": 4096 + 16}, "epilogue=scalerow,store=staged,cd=cc"
    ),
    "P358": Addresses(
        {"SCALE_COL_ADDRESS": 4096 + 2}, {"SCALE_COL_ADDRESS": 4096 + 4}, "epilogue=scalecol,store=staged,cd=cc"
    ),
    "P391": Addresses({"R_ADDRESS": 0}, {"R_ADDRESS": 512}, RESIDUAL),
    "P392": Addresses({"BIAS_ROW_ADDRESS": 0}, {"BIAS_ROW_ADDRESS": 512}, "epilogue=biasrow,store=staged"),
    "P393": Addresses({"BIAS_COL_ADDRESS": 0}, {"BIAS_COL_ADDRESS": 512}, "epilogue=biascol,store=staged"),
    "P394": Addresses({"SCALE_ROW_ADDRESS": 0}, {"SCALE_ROW_ADDRESS": 512}, "epilogue=scalerow,store=staged"),
    "P395": Addresses({"SCALE_COL_ADDRESS": 0}, {"SCALE_COL_ADDRESS": 512}, "epilogue=scalecol,store=staged"),
    "N811": Addresses({"BATCH": 65536}, {"BATCH": 65535}, POINTERS),
    "L251": Addresses({"BATCH": 2, "STRIDE_A": 4}, {"BATCH": 2, "STRIDE_A": 8}, STRIDED),
    "L252": Addresses({"BATCH": 2, "STRIDE_B": 8}, {"BATCH": 2, "STRIDE_B": 16}, f"{STRIDED},{GLOBAL}"),
    "L253": Addresses({"BATCH": 2, "STRIDE_D": 4}, {"BATCH": 2, "STRIDE_D": 8}, STRIDED),
    "L254": Addresses(
        {"BATCH": 2, "STRIDE_C": -8, "BETA": 1}, {"BATCH": 2, "STRIDE_C": -8, "BETA": 0}, f"{STRIDED},{LINEAR}"
    ),
    "L261": Addresses({**_THREE, "STRIDE_D": 128 * 128 - 8}, {**_THREE, "STRIDE_D": 128 * 128}, STRIDED),
    "L262": Addresses(
        {**_THREE, "M": 256, "LDD": 256, "STRIDE_D": 128 * 256 - 8},
        {**_THREE, "M": 256, "LDD": 256, "STRIDE_D": 128 * 256},
        f"{STRIDED},cd=cc",
    ),
    "P329": Addresses(
        {**_SAME, "BATCH": 2, "STRIDE_C": 0, "STRIDE_D": 256},
        {**_SAME, "BATCH": 1, "STRIDE_C": 0, "STRIDE_D": 256},
        f"{STRIDED},{LINEAR}",
    ),
    "P341": Addresses({"A_ADDRESS": 4096 + 4}, {"A_ADDRESS": 4096 + 8}, POINTERS),
    "P342": Addresses({"B_ADDRESS": 4096 + 4}, {"B_ADDRESS": 4096 + 8}, POINTERS),
    "P343": Addresses({"D_ADDRESS": 4096 + 4}, {"D_ADDRESS": 4096 + 8}, POINTERS),
    "P344": Addresses({"C_ADDRESS": 4, "BETA": 1}, {"C_ADDRESS": 4, "BETA": 0}, f"{POINTERS},{LINEAR}"),
    "L255": Addresses({"BATCH": 2, "STRIDE_R": 4}, {"BATCH": 2, "STRIDE_R": 8}, f"{STRIDED},{RESIDUAL}"),
    "L256": _negative_stride("BIAS_ROW"),
    "L257": Addresses(
        {"BATCH": 2, "STRIDE_BIAS_COL": 2},
        {"BATCH": 2, "STRIDE_BIAS_COL": 4},
        f"{STRIDED},epilogue=biascol,store=staged",
    ),
    "L258": _negative_stride("SCALE_ROW"),
    "L259": Addresses(
        {"BATCH": 2, "STRIDE_SCALE_COL": -4},
        {"BATCH": 1, "STRIDE_SCALE_COL": -4},
        f"{STRIDED},epilogue=scalecol,store=staged",
    ),
    "L263": Addresses(
        {"BATCH": 2, "STRIDE_BIAS_ROW": 2},
        {"BATCH": 2, "STRIDE_BIAS_ROW": 4},
        f"{STRIDED},epilogue=biasrow,store=staged,cd=cc",
    ),
    "L264": _negative_stride("BIAS_COL", ",cd=cc"),
    "L265": Addresses(
        {"BATCH": 2, "STRIDE_SCALE_ROW": 2},
        {"BATCH": 2, "STRIDE_SCALE_ROW": 4},
        f"{STRIDED},epilogue=scalerow,store=staged,cd=cc",
    ),
    "L266": _negative_stride("SCALE_COL", ",cd=cc"),
    "P330": Addresses(
        {**_R_IS_D, "LDR": 128, "LDD": 128, "BATCH": 2, "STRIDE_R": 0, "STRIDE_D": 256},
        {**_R_IS_D, "LDR": 128, "LDD": 128, "BATCH": 2, "STRIDE_R": 256, "STRIDE_D": 256},
        f"{STRIDED},{RESIDUAL}",
    ),
    **{
        f"P34{number}": Addresses(
            {f"{name}_ADDRESS": 4096 + 4},
            {f"{name}_ADDRESS": 4096 + 8},
            f"{POINTERS},store=staged,epilogue=relu+{step}",
        )
        for number, (name, step) in enumerate(
            zip(
                ("R", *map(str.upper, VECTORS)), ("residual", "biasrow", "biascol", "scalerow", "scalecol"), strict=True
            ),
            start=5,
        )
    },
    "P334": Addresses({"WORKSPACE_ADDRESS": 4096 + 16}, {"WORKSPACE_ADDRESS": 4096 + 32}, SPLIT),
    # Two blocks of 128x128 sums and their count, for each of six tiles.
    "P335": Addresses(
        {"M": 256, "N": 384, "WORKSPACE_BYTES": 6 * (2 * 128 * 128 * 4 + 32) - 1},
        {"M": 256, "N": 384, "WORKSPACE_BYTES": 6 * (2 * 128 * 128 * 4 + 32)},
        SPLIT,
    ),
    # Parts of tiles have a place as whole ones have.
    "P336": Addresses(
        {"M": 129, "N": 384, "WORKSPACE_BYTES": 6 * (2 * 128 * 128 * 4 + 32) - 1},
        {"M": 129, "N": 384, "WORKSPACE_BYTES": 6 * (2 * 128 * 128 * 4 + 32)},
        f"{SPLIT},residue=predicated",
    ),
    "P337": Addresses(
        {"M": 128, "N": 384, "BATCH": 2, "WORKSPACE_BYTES": 6 * (2 * 128 * 128 * 4 + 32) - 1},
        {"M": 128, "N": 384, "BATCH": 2, "WORKSPACE_BYTES": 6 * (2 * 128 * 128 * 4 + 32)},
        f"{SPLIT},{STRIDED}",
    ),
    "P338": Addresses(
        {"M": 1, "N": 383, "BATCH": 2, "WORKSPACE_BYTES": 6 * (2 * 128 * 128 * 4 + 32) - 1},
        {"M": 1, "N": 383, "BATCH": 2, "WORKSPACE_BYTES": 6 * (2 * 128 * 128 * 4 + 32)},
        f"{SPLIT},{POINTERS},residue=predicated",
    ),
}
#: What is pruned from a search for a problem, though it is legal: sizes, and splits that are too many and just enough.
SEARCHES: dict[str, tuple[tuple[int, int, int], int, int]] = {
    "S901": ((128, 128, 3 * 32), 4, 3),
    "S902": ((128 * 16, 128 * 16, 64 * 32), 5, 4),
}


@pytest.mark.parametrize("id", SEARCHES)
def test_what_is_legal_and_of_no_use(id: str) -> None:
    size, useless, useful = SEARCHES[id]
    for splits, kept in ((useless, False), (useful, True)):
        case = config(f"split_k={splits},reduction=workspace")
        problem = Problem.packed(case.operation, *size)
        known = derive.values(case, SM80, problem)
        assert [r.id for r in RULES if not r.kept(known)] == ([] if kept else [id])
        assert rules.broken(known) == rules.check(case, SM80, problem) == []
        fixed = {key: value for key, value in values_of(case).items() if key not in OPERATION_KEYS}
        assert len(Space(case.operation, SM80, fixed, problem=problem)) == kept
        assert rules.legal(case, SM80)


def problem_of(case: KernelConfig, numbers: tuple[int, ...]) -> Problem:
    return Problem(case.operation, *numbers)


@pytest.mark.parametrize("id", [id for id, case in LAUNCHES.items() if isinstance(case, Call)])
def test_a_call_that_breaks_one_rule_and_its_neighbour(id: str) -> None:
    case = LAUNCHES[id]
    assert isinstance(case, Call)
    kernel = config(case.pairs)
    broken = rules.check(kernel, SM80, problem_of(kernel, case.breaks), strict_isa=case.strict)
    assert [v.rule.id for v in broken] == [id]
    assert rules.check(kernel, SM80, problem_of(kernel, case.keeps), strict_isa=case.strict) == []
    if case.strict:
        assert rules.check(kernel, SM80, problem_of(kernel, case.breaks)) == []


@pytest.mark.parametrize("id", [id for id, case in LAUNCHES.items() if isinstance(case, Addresses)])
def test_numbers_of_a_launcher_that_break_one_rule(id: str) -> None:
    case = LAUNCHES[id]
    assert isinstance(case, Addresses)
    known = {**derive.values(config(case.pairs), SM80), **_PLAIN}
    assert [r.id for r in rules.broken({**known, **case.breaks})] == [id]
    assert rules.broken({**known, **case.keeps}) == []


ADDRESSES = {name: 256 * number for number, name in enumerate(derive.ADDRESS_NAMES, 1)}


@pytest.mark.parametrize("null", ["A_ADDRESS", "B_ADDRESS", "D_ADDRESS"])
def test_no_matrix_that_is_used_is_null(null: str) -> None:
    known = {**derive.values(BASE, SM80), **_PLAIN, **ADDRESSES}
    assert [r.id for r in rules.broken({**known, "K": 32, null: 0})] == ["P326"]


@pytest.mark.parametrize(("null", "factor"), [("A_ADDRESS", "ALPHA"), ("B_ADDRESS", "ALPHA"), ("C_ADDRESS", "BETA")])
def test_a_matrix_whose_factor_is_0_may_be_null(null: str, factor: str) -> None:
    known = {**derive.values(config(LINEAR), SM80), **ADDRESSES, "K": 32, "ALPHA": 1.0, "BETA": 1.0, null: 0}
    assert [r.id for r in rules.broken(known)] == ["P326"]
    assert rules.broken({**known, factor: 0.0}) == []


@pytest.mark.parametrize("layout", ["rr", "rc", "cr", "cc"])
def test_least_leading_dimensions_follow_the_layout(layout: str) -> None:
    kernel = config(f"layout={layout},feed=global,copy=none,stages=1,pad_a=0,pad_b=0")
    packed = Problem.packed(kernel.operation, 128, 256, 64)
    assert (packed.lda, packed.ldb) == (64 if layout[0] == "r" else 128, 256 if layout[1] == "r" else 64)
    assert rules.check(kernel, SM80, packed) == []
    for field, id in (("lda", "L241"), ("ldb", "L242"), ("ldd", "L243")):
        short = {**vars(packed), field: getattr(packed, field) - 16}
        assert [v.rule.id for v in rules.check(kernel, SM80, Problem(**short))] == [id]


def test_the_grid_is_counted_without_overflow() -> None:
    size = MAX_SIZE // 128 * 128
    problem = Problem(BASE.operation, size, size, 0, 8, size, size)
    assert [v.rule.id for v in rules.check(BASE, SM80, problem)] == ["N804"]


@pytest.mark.parametrize(
    ("stride", "ldd", "apart"),
    [
        (0, 128, False),
        (64 * 128, 128, False),
        (127 * 256 + 128, 256, True),  # from the last row's end on
        (127 * 256 + 120, 256, False),
        (128, 384, True),  # side by side
        (128, 376, False),
        (136, 400, True),  # the last of them ends with the row
        (120, 384, False),
    ],
)
def test_the_outputs_of_a_batch_do_not_overlap(stride: int, ldd: int, apart: bool) -> None:
    kernel = config(STRIDED)
    packed = Problem.packed(kernel.operation, 128, 128, 32, batch=3)
    broken = rules.check(kernel, SM80, replace(packed, stride_d=stride, ldd=ldd))
    assert [v.rule.id for v in broken] == ([] if apart else ["L261"])
    places = np.add.outer(np.arange(3) * stride, np.add.outer(np.arange(128) * ldd, np.arange(128)))
    assert apart is (len(np.unique(places)) == places.size)


def test_a_batch_of_one_or_none_has_any_stride() -> None:
    kernel = config(STRIDED)
    for batch in (0, 1):
        assert rules.check(kernel, SM80, replace(Problem.packed(kernel.operation, 128, 128, 32), batch=batch)) == []


def test_an_empty_call_is_legal() -> None:
    assert rules.check(BASE, SM80, Problem(BASE.operation, 0, 0, 0, 0, 0, 0)) == []


PREDICATED = config("residue=predicated,align_a=1,align_b=1,align_d=1,store=staged")


@pytest.mark.parametrize(
    "size", [(0, 0, 0), (0, 7, 3), (7, 0, 3), (7, 3, 0), (1, 1, 1), (1, 4096, 11008), (129, 100, 65)]
)
def test_every_size_is_legal_where_edges_are_looked_at(size: tuple[int, int, int]) -> None:
    problem = Problem.packed(PREDICATED.operation, *size, extra=1)
    assert rules.check(PREDICATED, SM80, problem) == []
    m, n, _ = size
    assert derive.values(PREDICATED, problem=problem)["BLOCKS"] == -(-m // 128) * -(-n // 128)


def test_the_grid_of_parts_is_counted_without_overflow() -> None:
    problem = Problem(PREDICATED.operation, MAX_SIZE, MAX_SIZE, 0, 0, MAX_SIZE, MAX_SIZE)
    assert [v.rule.id for v in rules.check(PREDICATED, SM80, problem)] == ["N805"]
    line = Problem(PREDICATED.operation, MAX_SIZE, 1, 1, 1, 1, 1)
    assert rules.check(PREDICATED, SM80, line) == []


# All of them, and their words.


def test_every_violation_is_reported_in_the_order_of_the_table() -> None:
    found = violations("a=s8,acc=f32,inst=32x16x8,pad_a=3,pad_b=5,pad_d=1,copy=cpasync,stages=1,warps=8x8", 75)
    ids = [v.rule.id for v in found]
    assert {"T101", "T114", "L201", "L202", "P306", "R401", "C501", "C502", "X607"} <= set(ids)
    assert ids == [r.id for r in RULES if r.id in ids]


def test_demand_raises_with_every_violation() -> None:
    with pytest.raises(IllegalConfig) as refusal:
        rules.demand(config("pad_a=4,pad_d=8"), SM75)
    assert [v.rule.id for v in refusal.value.violations] == ["L201", "X607"]  # type: ignore[attr-defined]
    assert "L201" in refusal.value.message and "X607" in refusal.value.message and "sm_75" in refusal.value.message
    rules.demand(BASE, SM75)


def said_of(id: str) -> rules.Violation:
    """What is said of a rule where its case breaks it, behind the rules that are broken beside it."""
    case = BREAKS[id]
    *others, found = rules.check(config(case.breaks), case.where, strict_isa=case.strict)
    assert [*(other.rule.id for other in others), found.rule.id] == [*case.beside, id]
    return found


@pytest.mark.parametrize("id", BREAKS)
def test_messages_are_filled_in(id: str) -> None:
    case = BREAKS[id]
    found = said_of(id)
    for text in (found.message, found.fix):
        assert text and "{" not in text and "}" not in text
    # A message names what decides: the numbers of the rule, or the values of the keys that it compares.
    numbers = [str(derive.values(config(case.breaks), case.where)[n]) for n in found.rule.expr.names if n.isupper()]
    assert not numbers or any(re.search(rf"(?<!\d){n}(?!\d)", found.message) for n in numbers)
    assert found.as_json() == {
        "id": id, "rule": found.rule.name, "message": found.message, "fix": found.fix, "source": found.rule.source,
    }  # fmt: skip
    assert str(found).startswith(f"{id} {found.rule.name}: ")


def nearest(fix: str) -> dict[str, list[int]]:
    """``{'pad_a': [0, 8]}`` of ``… (nearest legal: pad_a=0 or 8)``."""
    found = re.search(r"\(nearest legal: (.*)\)$", fix)
    pairs = re.findall(r"(\w+)=([0-9 or]+)", found[1]) if found else []
    return {key: [int(n) for n in values.split(" or ")] for key, values in pairs}


@pytest.mark.parametrize("id", BREAKS)
def test_nearest_values_keep_the_rule_and_none_is_nearer(id: str) -> None:
    case = BREAKS[id]
    broken = config(case.breaks)
    found = said_of(id)
    for key, values in nearest(found.fix).items():
        present = getattr(broken, key)
        kept = [n for n in range(max(0, present - 600), present + 600) if keeps(id, case, key, n)]
        below, above = [n for n in kept if n < present], [n for n in kept if n > present]
        assert values == [*below[-1:], *above[:1]]
        assert all(read_value(key, str(n)) == n for n in values)


def keeps(id: str, case: Break, key: str, value: int) -> bool:
    if key in ("stages", "k_steps", "warps_k") and value == 0:
        return False
    changed = build({**values_of(config(case.breaks)), key: value})
    return id not in broken_ids(changed, case.where, strict_isa=case.strict)


@pytest.mark.parametrize(
    ("pairs", "sm", "strict", "said"),
    [
        ("pad_a=4", 80, False, "(nearest legal: pad_a=0 or 8)"),
        ("pad_b=12", 80, False, "(nearest legal: pad_b=8 or 16)"),
        ("pad_a=8,pad_b=16", 80, True, "(nearest legal: pad_a=0 or 16)"),
        ("k_steps=4,pad_b=0", 75, False, "(nearest legal: stages=1; k_steps=3)"),
        ("copy=cpasync,stages=1", 80, False, "(nearest legal: stages=2)"),
        ("stages=4", 80, False, "(nearest legal: stages=2)"),
        ("k_steps=1,frags=1x4", 80, False, "(nearest legal: k_steps=2)"),
    ],
)
def test_the_nearest_legal_values_are_named(pairs: str, sm: int, strict: bool, said: str) -> None:
    (found,) = violations(pairs, sm, strict=strict)
    assert found.fix.endswith(said)


def test_the_nearest_legal_sizes_are_named() -> None:
    problem = Problem(BASE.operation, 200, 128, 32, 36, 128, 128)
    size, leading = rules.check(BASE, SM80, problem)
    assert "M = 200" in size.message and "BLOCK_M = 128" in size.message
    assert size.fix.endswith("(nearest, once the others are mended: M=128 or 256)")
    assert "lda = 36" in leading.message
    assert leading.fix.endswith("(nearest, once the others are mended: lda=32 or 40)")


def test_packed_matrices_follow_the_size_that_is_proposed() -> None:
    (size,) = rules.check(BASE, SM80, Problem.packed(BASE.operation, 128, 96, 32))
    assert size.fix.endswith("(nearest legal: N=128)")


@pytest.mark.parametrize("seed", range(3))
def test_what_is_proposed_alone_is_legal_as_a_whole(seed: int) -> None:
    seen = 0
    for case in sample(500, seed=seed):
        found = rules.check(case, SM80)
        for key, values in nearest(found[0].fix).items() if len(found) == 1 else ():
            for value in values:
                assert rules.check(build({**values_of(case), key: value}), SM80) == [], (case, key, value)
                seen += 1
    assert seen > 5


@pytest.mark.parametrize(
    ("pairs", "ids"),
    [
        # No shape is 16x16x8, so nobody can say how its tiles lie; a pad of 4 is none with any shape.
        ("inst=16x16x8,k_steps=2,frags=4x4,copy=ld", ["T101"]),
        ("inst=16x16x8,k_steps=2,frags=4x4,copy=ld,pad_a=4", ["T101", "L201"]),
    ],
)
def test_what_only_follows_from_a_missing_instruction_is_left_out(pairs: str, ids: list[str]) -> None:
    case = config(pairs)
    assert [v.rule.id for v in rules.check(case, SM80)] == ids
    assert set(ids) < set(broken_ids(case, SM80)), "there is something that follows"


@pytest.mark.parametrize("id", BREAKS)
def test_a_fix_that_names_one_value_names_a_known_one(id: str) -> None:
    found = said_of(id)
    for key, value in re.findall(r"\b([a-z_]+)=([a-z0-9_]+)", found.fix.split("(nearest")[0]):
        read_value(key, value)


# Ints and columns.


def columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32), sm=st.sampled_from([75, 80, 86, 90, 121]), strict=st.booleans())
def test_columns_agree_with_ints(seed: int, sm: int, strict: bool) -> None:
    configs = sample(20, seed)
    rows = [{**derive.given(c), **derive.flags(c, strict_isa=strict), **derive.of_arch(ARCHS[sm])} for c in configs]
    known = derive.extend(columns(rows))
    singles = [derive.values(c, ARCHS[sm], strict_isa=strict) for c in configs]
    for name, column in known.items():
        assert np.broadcast_to(column, len(rows)).tolist() == [single[name] for single in singles], name
    for rule in RULES:
        kept = np.broadcast_to(rule.kept(known), len(rows))
        assert kept.tolist() == [bool(rule.kept(single)) for single in singles], rule.id


def test_the_sample_breaks_every_rule_and_keeps_all_of_them() -> None:
    broken = [set(broken_ids(c, ARCHS[sm], strict_isa=True)) for sm in (75, 90) for c in sample(1500, 7)]
    assert set().union(*broken) == BREAKS.keys()
    assert broken.count(set()) > 20


# Types.


@pytest.mark.parametrize("a", ["s8", "u8"])
@pytest.mark.parametrize(("layout", "ids"), [("rr", ["T123"]), ("rc", []), ("cr", ["T122", "T123"]), ("cc", ["T122"])])
@pytest.mark.parametrize("cd", ["rr", "cc"])
def test_each_operand_of_bytes_lies_along_k(a: str, layout: str, ids: list[str], cd: str) -> None:
    """Whichever way C and D lie: where D^T is computed, operands change places and not their memory."""
    case = config(f"a={a},acc=s32,d=s32,layout={layout},cd={cd},pad_a=16,pad_b=16")
    found = {v.rule.id: v for v in rules.check(case, SM75)}
    assert [id for id in found if id in ("T122", "T123")] == ids
    for id, operand in (("T122", "A"), ("T123", "B")):
        assert id not in found or f"transpose {operand} once" in found[id].fix


def test_other_types_lie_as_they_like() -> None:
    """What a load of single bytes is asked of is no list of types, but a column of the table of instructions."""
    assert {row.a.name for row in INSTRUCTIONS if row.bytewise} == {"s8", "u8"}
    for row in INSTRUCTIONS:
        for layout in row.layouts:
            case = config(f"a={row.a.name},acc={row.acc.name},d={row.acc.name},inst={row.shape},layout={layout}")
            refused = {v.rule.id for v in rules.check(case, SM75)} & {"T122", "T123"}
            assert bool(refused) == (layout not in row.whole_layouts), (str(row), layout)


# Cases from the field.


@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize("pad", [1, 2, 4, 12])
@pytest.mark.parametrize("inst", ["16x16x16", "8x32x16"])
@pytest.mark.parametrize("acc", ["f32", "f16"])
@pytest.mark.parametrize("strict", [False, True])
def test_pads_that_are_no_16_bytes_are_refused(operand: str, pad: int, inst: str, acc: str, strict: bool) -> None:
    pads = {"a": 16, "b": 16, operand: pad}
    found = violations(f"inst={inst},acc={acc},d={acc},pad_a={pads['a']},pad_b={pads['b']}", strict=strict)
    ids = [v.rule.id for v in found]
    assert ("L201" if operand == "a" else "L202") in ids
    below, above = pad // 8 * 8, pad // 8 * 8 + 8
    assert f"pad_{operand}={below} or {above}" in found[0].fix
    assert f"pad_{operand} {pad} " in found[0].message


@pytest.mark.parametrize(("pads", "lds"), [((8, 16), "L211"), ((16, 8), "L212"), ((8, 8), "L211 L212")])
def test_pad_8_is_the_guide_s_and_not_the_strict_reading_s(pads: tuple[int, int], lds: str) -> None:
    pairs = f"pad_a={pads[0]},pad_b={pads[1]}"
    assert violations(pairs) == []
    assert [v.rule.id for v in violations(pairs, strict=True)] == lds.split()


def test_the_rule_is_about_the_leading_dimension_and_not_about_the_pad() -> None:
    # A row of 8 with a pad of 8 is 16: whole fragments.
    narrow = "inst=32x8x16,layout=rr,warps=1x1,frags=4x3,arrange_b=tiles,pad_a=16,pad_b=8,k_steps=4"
    known = derive.values(config(narrow), SM80, strict_isa=True)
    assert known["B_TILE_COLS"] == 8 and known["LDS_B"] == 16
    assert violations(narrow, strict=True) == []
    assert "L212" in [v.rule.id for v in violations(narrow.replace("pad_b=8", "pad_b=16"), strict=True)]


@pytest.mark.parametrize("frags", ["1x1", "4x1", "4x2", "4x4"])
@pytest.mark.parametrize("acc", ["f32"])
def test_narrow_b_from_global_memory_is_refused(frags: str, acc: str) -> None:
    (found,) = violations(f"{GLOBAL},inst=32x8x16,frags={frags},acc={acc}")
    assert found.rule.id == "P304"
    assert "8 elements of 16 bits" in found.message and "feed=shared" in found.fix


def test_narrow_tiles_from_global_memory_by_layout() -> None:
    refused = {
        (inst, layout): broken_ids(config(f"{GLOBAL},inst={inst},layout={layout}"), SM80)
        for inst in ("16x16x16", "32x8x16", "8x32x16")
        for layout in ("rr", "rc", "cr", "cc")
    }
    assert {case: ids for case, ids in refused.items() if ids} == {
        ("32x8x16", "rr"): ["P304"],
        ("32x8x16", "cr"): ["P304"],
        ("8x32x16", "cr"): ["P303"],
        ("8x32x16", "cc"): ["P303"],
    }


@pytest.mark.parametrize(
    ("warps", "frags", "legal"), [("1x1", "4x1", True), ("1x1", "4x2", False), ("1x2", "4x2", False)]
)
def test_narrow_b_staged_in_rows_is_legal_for_one_tile_across(warps: str, frags: str, legal: bool) -> None:
    found = violations(f"inst=32x8x16,warps={warps},frags={frags}")
    assert ("P302" in [v.rule.id for v in found]) is not legal
    if not legal:
        assert "arrange_b=tiles" in found[0].fix
        assert violations(f"inst=32x8x16,warps={warps},frags={frags},arrange_b=tiles") == []


@pytest.mark.parametrize(
    ("id", "step"), [("P301", "A_STEP_M"), ("P302", "B_STEP_N"), ("P306", "A_STEP_K"), ("P307", "B_STEP_K")]
)
def test_each_way_of_an_operand_s_tiles_is_judged(id: str, step: str) -> None:
    known = derive.values(BASE)
    assert BY_ID[id].kept(known)
    assert not BY_ID[id].kept({**known, step: known[step] + 8})
    assert BY_ID[id].kept({**known, step: known[step] + 16})


def test_stages_and_their_base_start_on_256_bits_where_rows_are_whole_units() -> None:
    """What spares them a rule: the leading-dimension rules and at least four rows."""
    for c in sample(2000, 11):
        known = derive.values(c)
        if known["feed_shared"] and BY_ID["L201"].kept(known) and BY_ID["L202"].kept(known):
            for name in ("A_STAGE", "B_STAGE", "B_BASE"):
                assert known[name] * known["A_BITS"] % 256 == 0, (str(c), name)


@pytest.mark.parametrize("inst", ["32x16x8", "8x16x32", "16x16x8", "16x8x32", "32x32x16"])
@pytest.mark.parametrize("a", ["f16", "bf16"])
def test_shapes_in_another_order_are_refused_with_the_legal_ones(inst: str, a: str) -> None:
    found = violations(f"a={a},inst={inst}")[0]
    assert found.rule.id == "T101"
    assert a in found.message and inst in found.message
    assert found.fix.endswith("16x16x16 32x8x16 8x32x16")


@pytest.mark.parametrize(("a", "more"), [("bf16", ""), ("tf32", ",inst=16x16x8"), ("f64", ",acc=f64,d=f64,inst=8x8x4")])
def test_types_that_begin_with_sm_80(a: str, more: str) -> None:
    (found,) = violations(f"a={a}{more}", 75)
    assert found.rule.id == "T131"
    assert "sm_75" in found.message and f" {a}" in found.message and "sm_80" in found.message
    assert violations(f"a={a}{more}", 80) == []


@pytest.mark.parametrize("text", ["fp8", "e4m3", "e5m2", "char"])
@pytest.mark.parametrize("key", ["a", "acc", "d"])
def test_types_that_wmma_does_not_have_are_refused_by_name(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        config(f"{key}={text}")
    assert f"{key}={text}: " in refusal.value.message and "f16" in refusal.value.fix


def test_architectures_without_wmma_and_without_a_compiler() -> None:
    (none,) = violations("", 60)
    assert none.rule.id == "K701" and "sm_60" in none.message and "sm_70" in none.message
    for sm in (70, 72):
        (old,) = violations("", sm)
        assert old.rule.id == "K702" and f"sm_{sm}" in old.message and "CUDA 12" in old.message


def test_68_kb_of_shared_memory() -> None:
    kernel = "k_steps=4,pad_b=0"
    assert derive.values(config(kernel))["SHARED_BYTES"] == 68 * 1024
    (found,) = violations(kernel, 75)
    assert found.rule.id == "R402"
    assert "69632" in found.message and "65536" in found.message and "sm_75" in found.message
    assert all(violations(kernel, sm) == [] for sm in ARCHS if sm >= 80)


@pytest.mark.parametrize("sm", [sm for sm in ARCHS if sm >= 75])
def test_shared_memory_to_the_byte(sm: int) -> None:
    known = {**derive.values(BASE), **derive.of_arch(ARCHS[sm])}
    limit = ARCHS[sm].shared_block
    assert BY_ID["R402"].kept({**known, "SHARED_BYTES": limit})
    assert not BY_ID["R402"].kept({**known, "SHARED_BYTES": limit + 1})


def test_a_slice_of_24_can_only_be_asked_for_in_counts() -> None:
    with pytest.raises(ConfigError) as refusal:
        config("block_k=24")
    assert "block_k" in refusal.value.message
    assert "BLOCK_K = k_steps x inst k" in refusal.value.fix
    assert all(derive.values(config(f"k_steps={k}"))["BLOCK_K"] % 16 == 0 for k in range(1, 65))
