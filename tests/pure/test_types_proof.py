"""The proof that times each type beside the library and its ceiling, without a card."""

from __future__ import annotations

import json

import pytest
from cases_legality import config

from tests.fakes import NumpyBackend, binary_of, compiled
from tests.gpu import prove_types_speed as proof
from wmmagen import chips, defaults, known, trial
from wmmagen.arch import ARCHS
from wmmagen.backends.library import CardLibrary
from wmmagen.backends.pick import Place
from wmmagen.config import name
from wmmagen.errors import AnswerIsNo
from wmmagen.timing import Ratio, TimingProtocol

SM75, SM90 = ARCHS[75], ARCHS[90]
ONE = config("warps=1x1,frags=1x1,k_steps=1,copy=ld,stages=1")
OTHER = config("warps=1x1,frags=1x1,k_steps=1,copy=ld,stages=1,pad_a=16")
SIZE = (48, 32, 64)


def timed(library: CardLibrary, type_: str = "f16", **card: object) -> proof.Timed:
    place = Place(NumpyBackend(**card), SM75, library=library)  # type: ignore[arg-type]
    (found,) = proof.measure({type_: [ONE, OTHER]}, SM75, SIZE, place, TimingProtocol(), compiled)
    return found


@pytest.mark.parametrize("type_", proof.TYPES)
def test_each_type_has_candidates(type_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    best = defaults.read_config(f"a={type_},warps=2x2,frags=2x2", SM90)
    monkeypatch.setattr(known, "best", lambda *_: known.Known(best, "estimate", "a guess"))
    mine = defaults.read_config(f"a={type_},warps=2x2,frags=4x2", SM90)
    found = proof.candidates(type_, SM90, (4096,) * 3, chips.usual(90), [mine, ONE])
    assert found[:2] == [mine, best] if type_ != "f16" else found[:3] == [mine, ONE, best]
    assert len(found) >= 6 and len(set(found)) == len(found)
    assert {one.operation.a.name for one in found} == {type_}


def test_a_type_is_told_with_both_shares(library: CardLibrary) -> None:
    one = timed(library)
    assert one.best is not None and one.best.of_ceiling is not None
    text = proof.text_of([one], SIZE, "a card", "All is well.")
    for words in (one.best.name, name(OTHER), "cuBLASLt same types", "products of fragments in registers", "All is w"):
        assert words in text
    told = json.loads(json.dumps(one.as_json()))
    assert told["best"] == one.best.name and told["rows"][0]["ratios"]["same types"]["low"] > 0
    assert [baseline["kind"] for baseline in told["denominators"]] == ["same types"] and len(told["ceilings"]) == 1


def test_a_type_without_a_right_kernel_fails(library: CardLibrary) -> None:
    def spoil(entry: str, d: object) -> None:
        if not entry.startswith("ceiling"):
            d[0, 0] += 1  # type: ignore[index]

    one = timed(library, spoil=spoil)
    assert one.best is None and "none right: D[0, 0]" in str(one)
    assert proof.verdict_of([one], None) == ("No right kernel of: f16.", False)


def test_bf16_has_to_keep_its_share(library: CardLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "build", lambda kernel, arch, compiler: (None, binary_of(kernel)))
    both = [timed(library, "bf16"), timed(library)]
    ratio = proof.beside_f16(both, SM75, SIZE, NumpyBackend(), TimingProtocol(), compiled)
    assert ratio == Ratio(1.0, 1.0, 1.0)
    assert proof.beside_f16(both[1:], SM75, SIZE, NumpyBackend(), TimingProtocol(), compiled) is None
    words, holds = proof.verdict_of(both, Ratio(0.98, 0.97, 0.99))
    assert holds and "0.980 [0.970, 0.990] of its speed" in words
    assert not proof.verdict_of(both, Ratio(0.98, 0.96, 0.99))[1] and not proof.verdict_of(both, None)[1]
    assert proof.verdict_of(both[1:], None) == ("", True)

    def spoil(entry: str, d: object) -> None:
        d[0, 0] += 1  # type: ignore[index]

    with pytest.raises(AnswerIsNo, match="after timing"):
        proof.beside_f16(both, SM75, SIZE, NumpyBackend(spoil=spoil), TimingProtocol(), compiled)
