"""The shape of the table of mistakes, and the exactness of its edits; `tests/nvrtc/test_mutants.py` runs it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from wmmagen import mutants
from wmmagen.arch import ARCHS
from wmmagen.errors import MutantError, RequestError
from wmmagen.executor.findings import ADVICE
from wmmagen.mistakes import KINDS, MUTANTS, Edit, break_source

#: As the proof takes them.
SOME = [ARCHS[sm] for sm in (75, 80, 90, 120)]


def test_there_are_enough_of_them_and_half_were_really_made() -> None:
    assert len(KINDS) == len(MUTANTS) >= 34
    assert sum(bool(mutant.origin) for mutant in MUTANTS) * 2 >= len(MUTANTS)
    assert sum(mutant.visible for mutant in MUTANTS) >= 30


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_says_what_is_wrong_and_why_it_has_to_die(kind: str) -> None:
    mutant = KINDS[kind]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", kind)
    assert mutant.wrong and mutant.edits and len(mutant.configs) >= 2
    assert len(set(mutant.configs)) == len(mutant.configs)
    assert set(mutant.codes) <= set(ADVICE)
    assert mutant.codes or mutant.words
    assert not re.search(mutant.words, "") or not mutant.words
    assert all(edit.old and edit.old != edit.new and edit.times > 0 for edit in mutant.edits)


@pytest.mark.parametrize("kind", KINDS)
def test_the_edits_fit_what_the_templates_make(kind: str) -> None:
    mutant = KINDS[kind]
    made = list(mutants.cases([mutant], SOME))
    # Every configuration is legal somewhere, and cp.async and doubles alone are not legal everywhere.
    assert {case.text for case in made} == set(mutant.configs)
    for case in made:
        needs = "cpasync" in case.text or "a=f64" in case.text
        assert {c.arch.sm for c in made if c.text == case.text} == ({80, 90, 120} if needs else {75, 80, 90, 120})
        assert case.order().source != case.source().text


def test_an_edit_that_does_not_fit_as_often_as_it_says_is_an_error() -> None:
    assert Edit("a", "b", 2).applied("a a") == "b b"
    for text in ("", "a", "a a a"):
        with pytest.raises(MutantError, match=f"stands {text.count('a')} times in the source, not 2"):
            Edit("a", "b", 2).applied(text)
    # An edit sees what those before it have made.
    chain = replace(MUTANTS[0], edits=(Edit("x", "y"), Edit("y", "z")))
    assert break_source("x", chain) == "z"
    with pytest.raises(MutantError, match="no assertions"):
        break_source("x", replace(chain, unguarded=True))
    bare = break_source('static_assert(1 > 2, "no"); x', replace(chain, unguarded=True))
    assert bare == 'static_assert(true || 1 > 2, "no"); z'


def test_kinds_are_chosen_by_name() -> None:
    assert mutants.chosen([]) == MUTANTS
    assert [m.kind for m in mutants.chosen(["zeros", "nan"])] == ["zeros", "nan"]
    with pytest.raises(RequestError, match="zeroes"):
        mutants.chosen(["zeroes"])
