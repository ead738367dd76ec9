"""What is proposed for an illegal configuration: legal as a whole, and the least that is."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from cases_legality import config, sample

from wmmagen import cli, defaults, mend, rules, space
from wmmagen.arch import ARCHS
from wmmagen.config import KernelConfig, Problem, build, read_pairs, read_value, spell, values_of

SM75, SM80 = ARCHS[75], ARCHS[80]


def mended(case: KernelConfig, found: dict[str, str]) -> KernelConfig:
    return build({**values_of(case), **{key: read_value(key, value) for key, value in found.items()}})


def test_a_proposal_is_legal_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mend, "_JUDGED", 300)  # most are too far from anything legal
    found = 0
    for case in sample(20, seed=1):
        changes = mend.changes(case, SM80)
        if changes is not None:
            assert rules.check(mended(case, changes), SM80) == []
            assert (changes == {}) is rules.legal(case, SM80)
            found += bool(changes)
    assert found


@pytest.mark.parametrize(
    ("pairs", "sm", "proposed"),
    [
        ("", 80, {}),
        ("pad_a=4", 80, {"pad_a": "8"}),
        ("pad_a=4,pad_b=3", 80, {"pad_a": "8", "pad_b": "0"}),
        ("copy=cpasync,stages=3", 75, {"copy": "ld", "stages": "2"}),
        ("inst=16x16x8,k_steps=2,frags=4x4", 80, {"inst": "16x16x16"}),
        ("a=bf16", 75, {"a": "f16"}),
    ],
)
def test_it_is_what_one_would_change(pairs: str, sm: int, proposed: dict[str, str]) -> None:
    assert mend.changes(config(pairs), ARCHS[sm]) == proposed


@pytest.mark.parametrize("pairs", ["pad_a=4,stages=4,copy=ld", "stages=64,k_steps=64", "pad_a=4,pad_b=3"])
def test_no_single_change_does_where_two_are_proposed(pairs: str) -> None:
    case = config(pairs)
    changes = mend.changes(case, SM80)
    assert changes is not None and len(changes) == 2
    point = space.point_of(case)
    for axis, values in space.axes_of(case.operation).items():
        for value in values:
            assert not rules.legal(space.config_of(case.operation, {**point, axis: value}), SM80), (axis, value)


def test_a_call_is_not_changed_but_the_kernel() -> None:
    case = config("frags=4x4")
    asked = Problem.packed(case.operation, 96, 96, 32)
    changes = mend.changes(case, SM80, asked)
    assert changes is not None and rules.check(mended(case, changes), SM80, asked) == []


def test_a_size_that_no_tile_divides_asks_for_a_kernel_of_all_sizes() -> None:
    case = config("frags=4x4")
    asked = replace(Problem.packed(case.operation, 97, 96, 40), lda=48, ldb=104)
    changes = mend.changes(case, SM80, asked)
    assert changes == {"residue": "predicated"}
    other = mended(case, changes)
    assert rules.check(other, SM80, replace(asked, operation=other.operation)) == []
    # A row that keeps no promise is the caller's to change, or the promise.
    assert mend.changes(case, SM80, replace(asked, lda=41)) is None


def test_the_search_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = itertools.count()
    really = mend._Search._known

    def counted(self: mend._Search, point: mend.Point) -> dict[str, object]:
        next(judged)
        return really(self, point)

    monkeypatch.setattr(mend._Search, "_known", counted)
    monkeypatch.setattr(mend, "_JUDGED", 50)
    assert mend.changes(config("frags=4x4"), SM80, Problem.packed(config("").operation, 97, 97, 33)) is None
    assert next(judged) <= 50
    assert "no legal configuration was found within 4 changes" in mend.sentence(None)


def test_check_prints_and_publishes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check", "pad_a=4,pad_b=3", "--arch", "sm_80"]) == 2
    assert capsys.readouterr().out.splitlines()[-1] == "legal as a whole with pad_a=8,pad_b=0"
    assert cli.run(["check", "pad_a=4,pad_b=3", "--arch", "sm_80", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["proposal"] == {"pad_a": "8", "pad_b": "0"}
    assert cli.run(["check", "", "--arch", "sm_80", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["proposal"] is None
    assert cli.run(["render", "pad_a=4,pad_b=3", "--arch", "sm_80"]) == 2
    assert "legal as a whole with pad_a=8,pad_b=0" in capsys.readouterr().err


@pytest.mark.parametrize("asked", [["R402", "L201", "N801"], ["N801", "R402", "N801"]])
def test_rules_come_in_the_order_in_which_they_are_asked_for(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["rules", *asked, "--json"]) == 0
    ids = [rule["id"] for rule in json.loads(capsys.readouterr().out)["rules"]]
    assert ids == list(dict.fromkeys(asked))


def test_what_is_spelt_is_read() -> None:
    case = config("")
    assert mended(case, {key: spell(value) for key, value in values_of(case).items()}) == case


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # What is added follows D's type only where nothing was said of it, so a proposal says it.
        ("a=s8,d=s32,epilogue=biasrow+relu,c=s32,split_k=2", "f32"),
        ("d=f64,epilogue=linear,a=f16,c=f64", "f32"),
        # It is mended where it is what is wrong, and where it means nothing.
        ("a=f16,epilogue=linear,c=s8", "f32"),
        ("a=f64,epilogue=biascol,c=f16", "f64"),
        ("a=f16,d=f16,epilogue=gelu,c=s32", "f16"),
    ],
)
def test_what_is_added_is_proposed_with_the_rest_and_the_typed_text_is_legal_then(text: str, wanted: str) -> None:
    changes = mend.changes(defaults.read_config(text, SM80), SM80)
    assert changes is not None and changes["c"] == wanted
    typed = defaults.complete(read_pairs(text) | {key: read_value(key, value) for key, value in changes.items()}, SM80)
    assert rules.check(typed, SM80) == []
