"""A sample of what ``prove_covering.py`` proves, and that its list is what it says: allowed, and all that there is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests import covered, covering
from tests.covered import Case
from tests.draws import draws
from tests.gpu import prove_covering as on_card
from tests.nvrtc import prove_covering
from tests.nvrtc.prove_covering import MOST_WORK, problems, prove, work
from wmmagen import coverage, rules
from wmmagen.arch import ARCHS
from wmmagen.backends import Bytes, Launch
from wmmagen.backends.cpu import CpuBackend
from wmmagen.config import CONFIG_KEYS, OPERATION_KEYS, Batch, Copy, Layout, Residue, name, spell, values_of
from wmmagen.defaults import read_config
from wmmagen.nvrtc import Binary
from wmmagen.space import point_of

pytestmark = pytest.mark.usefixtures("headers_once")

#: Few axes, of which some pairs have no configuration.
FEW = ("acc", "copy", "residue", "batch")


@pytest.fixture(scope="module")
def model() -> covering.Model:
    return covering.Model()


def test_every_slot_is_an_axis_with_all_that_is_made(model: covering.Model) -> None:
    config = read_config("inst=16x16x16", ARCHS[80])
    assert model.axes.keys() == {covering.ARCH, *OPERATION_KEYS, *point_of(config)}
    assert {key.removesuffix("_m").removesuffix("_n") for key in model.axes} == {covering.ARCH, *CONFIG_KEYS}
    for key, kind in (("layout", Layout), ("residue", Residue), ("batch", Batch), ("copy", Copy)):
        assert model.axes[key] == tuple(kind)
    for key, made in coverage.GENERATED.items():
        assert {each.name for each in model.axes[key] if each is not None} == set(made)
    assert set(covering.MAIN) <= set(covering.paired()) <= model.axes.keys()


def test_what_is_found_is_legal_and_made(model: covering.Model) -> None:
    rng = random.Random(1)
    found = 0
    for _ in range(30):
        names = rng.sample(covering.paired(), 3)
        choice = {each: rng.randrange(len(model.axes[each])) for each in names}
        answer = model.find(choice, rng)
        if not isinstance(answer, covering.Refused):
            found += 1
            case = model.case(answer)
            assert choice.items() <= answer.items()
            assert not rules.check(case.config, case.arch) and not coverage.missing(case.config)
    assert 5 < found < 30


@pytest.mark.parametrize("sm", [75, 90])
def test_nothing_is_refused_that_there_is(model: covering.Model, sm: int) -> None:
    for config in draws(ARCHS[sm], 12):
        values = {**values_of(config), covering.ARCH: ARCHS[sm]}
        choice = {key: model.axes[key].index(values[key]) for key in (*covering.MAIN, covering.ARCH)}
        assert not isinstance(model.find(choice), covering.Refused), name(config)


def test_what_is_refused_has_a_reason_that_is_needed(model: covering.Model) -> None:
    place = {
        key: {spell(v): n for n, v in enumerate(model.axes[key])}
        for key in ("copy", "stages", "batch", "reduction", "a", "layout")
    }
    assert model.needed({"copy": place["copy"]["ld"], "stages": place["stages"]["3"]}) == {"C503"}
    both = {"batch": place["batch"]["strided"], "reduction": place["reduction"]["atomic"]}
    assert model.needed(both) == {"X620"}
    for layout, ids in (("rr", {"T123"}), ("cc", {"T122"})):
        assert model.needed({"a": place["a"]["s8"], "layout": place["layout"][layout]}) == ids
    with pytest.raises(ValueError, match="there is a configuration"):
        model.needed({"copy": place["copy"]["ld"]})


def test_an_array_has_every_pair_that_there_is(model: covering.Model) -> None:
    made = covering.array(model, FEW, 2)
    there = {c for row in made.rows for c in covering.combinations(row, made.names, 2)}
    assert there == made.covered
    everything = {
        tuple(zip(pair, places, strict=True))
        for pair in itertools.combinations(made.names, 2)
        for places in itertools.product(*(range(len(model.axes[each])) for each in pair))
    }
    assert made.covered | made.refused.keys() == everything and made.refused
    listed = covering.cases(model, [made, made])
    assert len(made.rows) <= len(listed) == len(set(listed)) <= 2 * len(made.rows)


SAMPLE = tuple(
    Case(read_config(text, ARCHS[sm]), ARCHS[sm])
    for sm, text in (
        (80, "a=bf16,d=f16,epilogue=biascol,warps=1x2,frags=1x1,k_steps=2,copy=ld,stages=2"),
        (75, "a=s8,residue=predicated,batch=strided,warps=1x1,frags=1x2,k_steps=2,copy=ld,stages=1"),
    )
)


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.config.operation.a.name)
def test_a_case_is_exact_on_several_tiles(case: Case) -> None:
    first, *others = problems(case, 1)
    assert all(p.batch and work(p) <= MOST_WORK for p in others)
    assert first.k > 0 and first.ldd > first.n
    told = prove(case, 1)
    assert told.wrong == "" and told.launches == 1 + len(others) and told.case == case


def test_what_an_assembler_makes_slow_is_told_apart() -> None:
    fits = Binary("kernel", ARCHS[89], b"", "", 64, 0, 0, 0, "", 0.0, "")
    for said, of_assembler in (
        ("the loop at 0x8f0 copies by 4 STS.32 (first at 0xab0), where only LDG.128 and STS.128 is promised", True),
        ("the loop at 0x8f0 copies by 2 STS.32 (first at 0xab0), where only LDG.64 and STS.64 is promised", True),
        ("the loop at 0xca0 copies by 2 STS.32 (first at 0xe60), where only STS.128 and STS.64 is promised", True),
        ("the loop at 0x8f0 copies by 3 STS.32 (first at 0xab0), where only LDG.128 and STS.128 is promised", False),
        ("the loop at 0x8f0 copies by 4 STS.32 (first at 0xab0), where only LDG.16 and STS.16 is promised", False),
        ("local memory in the main loop: 2 LDL.32 (first at 0x40); fewer frags", False),
    ):
        assert prove_covering.of_assembler(said, fits) is of_assembler
    spilt = replace(fits, spill_bytes=16)
    assert prove_covering.of_assembler("local memory in the main loop: 2 LDL.32", spilt)
    assert not prove_covering.of_assembler("generic accesses in the main loop: 2 LD.32", spilt)


class Spoiling(CpuBackend):
    """An executor that changes one byte of D."""

    def run(self, binary: Binary, launch: Launch, buffers: Sequence[Bytes], *, limit_s: float = 10.0) -> list[Bytes]:
        *others, d = super().run(binary, launch, buffers, limit_s=limit_s)
        changed = d.copy()
        changed[len(changed) // 2] ^= 1
        return [*others, changed]


def test_the_card_takes_its_configurations_from_the_record(tmp_path: Path) -> None:
    record = tmp_path / "covering.jsonl"
    pointless = replace(SAMPLE[0].config, stages=3)
    told = [prove_line(each) for each in (*SAMPLE, Case(pointless, ARCHS[80]))]
    record.write_text(covered.written([*told, told[0]]), encoding="utf-8")
    assert covered.read(record) == [*told, told[0]]
    assert on_card.wanted(ARCHS[90], "", record) == ([each.config for each in SAMPLE], [pointless])
    assert on_card.wanted(ARCHS[90], "_bf16_", record)[0] == [SAMPLE[0].config]
    assert on_card.wanted(ARCHS[75], "", record)[0] == [SAMPLE[1].config]
    assert on_card.wanted(ARCHS[75], "", tmp_path / "none") == ([], [])


def prove_line(case: Case) -> covered.Told:
    return covered.Told(case.arch.name, name(case.config), 2, "", read=True)


def test_the_proof_on_a_card_tells_right_from_wrong() -> None:
    case = Case(SAMPLE[1].config, ARCHS[75])
    wrong = on_card.judged(Spoiling(), case)
    assert wrong.wrong and wrong.launches == 1
    lines = on_card.summary([prove_line(case), wrong], [], ARCHS[75], "a card", 1.0)
    assert lines[0] == "2 configurations for sm_75 on a card, 3 checked launches: 1 exact, 1 not; 1 s"
    assert sum(line.startswith("WRONG") for line in lines) == 1
