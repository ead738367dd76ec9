"""The proofs that measure what kernels cost, what holds them back and which shapes they win, without a card."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from cases_legality import config

from tests import fake_cublas, ncu
from tests.fake_cublas import FakeCard, FakeLt
from tests.fakes import NumpyBackend, binary_of
from tests.gpu import prove_general, prove_limits, prove_shapes
from tests.gpu.prove_limits import STALLS, Counted, Kernel, stall_metric
from wmmagen import chips, estimate, known, series, trial
from wmmagen.arch import ARCHS
from wmmagen.backends import cublas
from wmmagen.backends.library import CardLibrary
from wmmagen.backends.pick import Place
from wmmagen.backends.worker import KernelRecipe
from wmmagen.config import Copy, Problem, Reduction, Residue, name, parse
from wmmagen.errors import AnswerIsNo, CompileError, RequestError
from wmmagen.records import Facts, Outcome, Record
from wmmagen.shapes import Shape
from wmmagen.space import Space
from wmmagen.timing import Timing, TimingProtocol

SM75 = ARCHS[75]
RECORDS = Path(__file__).resolve().parents[2] / "sweeps" / "records"
ONE = config("warps=1x1,frags=1x1,k_steps=1,copy=ld,stages=1")
OTHER = config("warps=1x1,frags=1x1,k_steps=1,copy=ld,stages=1,pad_a=16")


@pytest.fixture(autouse=True)
def _built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "build", lambda config, arch, *compiler: (None, binary_of(config, arch)))


# ---------------------------------------------------------------------------------------------------------------------
# What generality costs.


def test_general_calls_differ_from_the_special_one_in_what_they_say() -> None:
    special, *general = prove_general.calls_of(ONE, SM75, (32, 48, 64))
    assert special.problem == trial.Problem.packed(ONE.operation, 32, 48, 64)
    for call in general:
        p = call.problem
        assert ("longer" in call.words) is (p.ldb > 48) and (call.config == ONE) is not p.operation.scaled
    least = trial.moved_bytes(special.problem)
    assert [trial.moved_bytes(c.problem) - least for c in general] == [
        4 * 32 * 48 * bool(c.problem.beta) for c in general
    ]
    assert {c.problem.beta for c in general} == {0.0, 2.0} and {c.problem.alpha for c in general} == {1.0, 0.5}


def test_costs_are_told_and_judged() -> None:
    calls = list(prove_general.calls_of(ONE, SM75, (16, 16, 16)))
    lines = prove_general.measure(calls, SM75, NumpyBackend(), TimingProtocol())
    special = lines[0].timing.median_us
    for line in lines:
        assert line.kept.low == special / line.timing.median_us and json.dumps(line.as_json())
        assert line.holds is (line.kept.low >= 0.97) and line.demanded is not bool(line.call.problem.beta)
    text = prove_general.text_of((16, 16, 16), "as asked for", lines)
    assert text.count("\n") == len(lines) + 3 and name(ONE) in text
    slow = dataclasses.replace(lines[1], kept=dataclasses.replace(lines[1].kept, low=0.96))
    assert "DOES NOT HOLD" in str(slow) and "costs more, and moves more" in str(dataclasses.replace(slow, more=0.5))


def test_a_general_kernel_that_is_wrong_has_no_cost() -> None:
    def spoil(entry: str, d: Any) -> None:
        if "_linear_exact" in entry:
            d[0, 0] += 1

    with pytest.raises(AnswerIsNo, match=r"_linear_exact.* is wrong"):
        prove_general.measure(
            list(prove_general.calls_of(ONE, SM75, (16, 16, 16))), SM75, NumpyBackend(spoil=spoil), TimingProtocol()
        )


# ---------------------------------------------------------------------------------------------------------------------
# What holds a kernel back.


def kernel(**timing: Any) -> Kernel:
    facts = Facts(64, 0, 0, 1024, 32, 4, 0.1, "nobody")
    subject = trial.subject_of(ONE, binary_of(ONE, SM75), trial.Problem.packed(ONE.operation, 64, 64, 64))
    recipe = KernelRecipe(b"", subject.launch, subject.buffers)
    return Kernel((64, 64, 64), "as asked for", ONE, Timing(5.0, (4.9, 5.1), 15, 40, **timing), facts, recipe)


def metric(words: str, which: int = 0) -> str:
    return next(figure for figure in prove_limits.FIGURES if figure.words == words).metrics[which]


def row(**values: float) -> ncu.Row:
    return ncu.Row(f"{ONE}_kernel", {stall_metric("barrier"): 1.0} | values)


def test_launches_are_told_by_their_median_without_the_first() -> None:
    rows = [row(**{"sm__a.sum": value}) for value in (99.0, 1.0, 5.0, 3.0)]
    (one,) = prove_limits.counted([kernel()], rows, 4)
    assert one.values["sm__a.sum"] == 3.0
    (single,) = prove_limits.counted([kernel()], rows[:1], 1)
    assert single.values["sm__a.sum"] == 99.0
    with pytest.raises(ncu.Unreadable, match="3 launches"):
        prove_limits.counted([kernel()], rows[:3], 4)


def test_a_figure_takes_the_first_of_its_metrics_that_is_there() -> None:
    first, second = (metric("tensor pipe, %", which) for which in (0, 1))
    assert Counted(kernel(), {first: 50.0, second: 60.0}).figure("tensor pipe, %") == 50.0
    one = Counted(kernel(), {second: 60.0, "gpu__time_duration.sum": 5000.0})
    assert one.figure("tensor pipe, %") == 60.0 and one.figure("time of a launch, us") == 5.0
    assert one.figure("waves") is None and one.as_json()["figures"]["tensor pipe, %"]["metric"] == second
    text = prove_limits.told([one], "a card", "Version 1", ["sm__gone.sum"])
    assert "metrics that are not here: sm__gone.sum" in text and "waves" in text.partition("figures without one")[2]
    assert f"metrics: gpu__time_duration.sum {second}\n" in text


def test_a_paragraph_says_what_is_near_its_limit_and_what_warps_wait_for() -> None:
    values = {
        metric("tensor pipe, %"): 91.0, metric("L2, %"): 85.0, metric("DRAM, %"): 12.0, metric("waves"): 0.97,
        metric("multiprocessors active, %"): 40.0,
    } | {stall_metric(reason): 0.1 * number for number, reason in enumerate(STALLS)}  # fmt: skip
    said = prove_limits.paragraph(Counted(kernel(empty_us=0.5, throttle=("power-cap",)), values))
    assert "Near its limit: tensor pipe (91 %), L2 (85 %). The others: DRAM 12 %." in said
    last = [*STALLS][:-6:-1]
    assert [said.index(STALLS[reason]) for reason in last] == sorted(said.index(STALLS[reason]) for reason in last)
    assert STALLS[[*STALLS][-6]] not in said and "16 blocks, 4 on a multiprocessor at a time, are 0.97 waves" in said
    assert "in 40 % of the cycles only" in said and "takes 0.50 us, 10% of its time" in said and "power-cap" in said
    low = prove_limits.paragraph(Counted(kernel(), {metric("L2, %"): 30.0, metric("DRAM, %"): 12.0}))
    assert "No unit is near its limit; the busiest is the L2 30 %. The others: DRAM 12 %." in low


def test_only_metrics_that_are_listed_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = frozenset(m.partition(".")[0] for m in prove_limits.metrics() if "stalled" not in m and "launch" not in m)
    monkeypatch.setattr(ncu, "known_metrics", lambda tool, chip, counters: listed)
    there, absent = prove_limits.have(Path("ncu"), "gh100")
    assert absent == [stall_metric(reason) for reason in STALLS] and metric("waves") in there
    monkeypatch.setattr(ncu, "known_metrics", lambda tool, chip, counters: frozenset())
    assert prove_limits.have(Path("ncu"), "gh100") == (prove_limits.metrics(), [])


# ---------------------------------------------------------------------------------------------------------------------
# Which shapes are won.


NAMED = Shape("a name", 32, 32, 16)


def candidate(of: Any, us: float | None, outcome: Outcome = Outcome.OK) -> Record:
    timing = Timing(us, (us - 0.1, us + 0.1), 15, 40) if us is not None else None
    return Record(
        name=name(of), arch="sm_75", problem="32x32x16", outcome=outcome, backend="gpu", device="a card", timing=timing
    )


def asked(**more: Any) -> argparse.Namespace:
    given = {"sweep": 1.0, "screen": 0, "seconds": 0.5, "leaders": 2, "mode": "warm", "fp32": False}
    return argparse.Namespace(**given | more)


def proved(
    monkeypatch: pytest.MonkeyPatch,
    records: list[Record],
    shape: Shape = NAMED,
    **card: Any,
) -> prove_shapes.Proved:
    monkeypatch.setattr(cublas, "library", lambda: fake_cublas.library_of(FakeLt(spoils=(lambda d: None,))))
    monkeypatch.setattr(prove_shapes, "sweep", lambda *_: records)
    library = CardLibrary(fake_cublas.asking(FakeCard()), "a card")
    place = Place(NumpyBackend(**card), SM75, library=library)
    return prove_shapes.prove(shape, series.suited(ONE.operation, shape), SM75, place, asked())


def test_a_shape_is_told_with_its_leaders_beside_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [candidate(ONE, 20.0), candidate(OTHER, 10.0), candidate(ONE, None, Outcome.WRONG)]
    one = proved(monkeypatch, records[:2], library_us=200.0)
    assert one.right and one.measured is not None
    assert [row.name for row in one.measured.table.rows] == [name(OTHER), name(ONE)]
    entry = prove_shapes.Entry.of(one, SM75, "a card", asked())
    text = prove_shapes.text_of([entry], [one.shape], "a card", asked())
    assert "beyond the noise: 1 of 1 sizes." in text and "nobody asked for it" in text and "a name" in text
    winner = prove_shapes.winner_of(one.measured)
    assert winner is not None and known.line_of(SM75, (32, 32, 16), parse(winner)) in text.splitlines()
    head, *lines = [json.loads(line) for line in entry.to_lines()]
    assert head["kind"] == "shape" and head["wins"] == [1, 1] and head["shape"]["words"] == "a name"
    assert [line["kind"] for line in lines] == ["row"] * 2 + ["denominator"] * 2 + ["candidate"] * 2
    assert lines[0]["shape"] == "a name" and lines[0]["batch"] == 1 and lines[0]["origin"] == "number 1 of the sweep"


def test_a_single_row_is_proved_by_a_kernel_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    row, kernel = Shape("a row", 1, 64, 48), config("frags=1x1,copy=ld,stages=1,residue=predicated")
    one = proved(monkeypatch, [candidate(kernel, 20.0)], row, library_us=200.0)
    assert one.right and one.measured is not None and one.measured.table.rows[0].problem.m == 1
    spoilt = proved(
        monkeypatch, [candidate(kernel, 20.0)], row, spoil=lambda entry, d: d.__setitem__((0, d.shape[1] - 1), 7)
    )
    assert not spoilt.right


def test_a_shape_without_a_right_kernel_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    one = proved(monkeypatch, [candidate(ONE, None, Outcome.WRONG)])
    text = prove_shapes.text_of([prove_shapes.Entry.of(one, SM75, "a card", asked())], [one.shape], "a card", asked())
    assert not one.right and "No right kernel: a name (32, 32, 16)" in text and "0 right of 1 candidates" in text
    spoilt = proved(monkeypatch, [candidate(ONE, 20.0)], spoil=lambda entry, d: d.__setitem__((0, 0), 7777))
    assert not spoilt.right and spoilt.measured is not None and prove_shapes.winner_of(spoilt.measured) is None


def test_a_record_goes_on_where_it_was_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Shapes that are right and were measured in the same way stay as they are; the others are measured again."""
    wanted = [Shape("first", 32, 32, 16), Shape("second", 32, 32, 16, 8), Shape("last", 64, 32, 16)]
    right = proved(monkeypatch, [candidate(ONE, 20.0)], library_us=200.0)
    wrong = proved(monkeypatch, [candidate(ONE, None, Outcome.WRONG)])
    results = {"first": right, "second": wrong}
    measured: list[str] = []

    def prove(shape: Shape, *_: Any) -> prove_shapes.Proved:
        measured.append(shape.words)
        return dataclasses.replace(results[shape.words], shape=shape, seconds=float(len(measured)))

    monkeypatch.setattr(prove_shapes, "prove", prove)
    monkeypatch.setattr(prove_shapes.pick, "pick", lambda *_: contextlib.nullcontext(Place(NumpyBackend(), SM75)))
    monkeypatch.setitem(prove_shapes.shapes.LISTS, "decode", tuple(wanted))
    stem = tmp_path / "shapes_decode_sm_75_f16_f32_f32_warm_a_card_of_NumPy"

    def run(*arguments: str) -> list[str]:
        """The searches that the record names, in its order."""
        measured.clear()
        monkeypatch.setattr(sys, "argv", ["prove_shapes.py", "--arch", "sm_75", "--to", str(tmp_path), *arguments])
        status = prove_shapes.main()
        text = stem.with_suffix(".txt").read_text(encoding="utf-8")
        assert status == int("No right kernel" in text)
        return re.findall(r"^  (\S+) +\d right .*, (\S+) s$", text, re.MULTILINE)

    with pytest.raises(KeyError):
        run()  # the card goes away before the last shape
    results |= {"second": right, "last": right}
    assert run("--continue") == [("32x32x16", "1.0"), ("32x32x16", "1.0"), ("64x32x16", "2.0")]
    assert measured == ["second", "last"]
    before = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    run("--continue")
    assert not measured and [path.read_bytes() for path in sorted(tmp_path.iterdir())] == before
    run("--continue", "--seconds", "0.5")
    assert measured == ["first", "second", "last"]
    assert [entry.wins for entry in prove_shapes.read(stem.with_suffix(".jsonl"))] == [(1, 1)] * 3
    stem.with_suffix(".jsonl").write_text('{"kind": "shape", "size": 3}\n')
    with pytest.raises(RequestError, match="no record of shapes"):
        run("--continue")


def test_the_record_of_batches_can_go_on() -> None:
    """Its two files say the same."""
    text = (RECORDS / "shapes_batched_sm_90_f16_f32_f32_warm_NVIDIA_H200.txt").read_text(encoding="utf-8")
    entries = prove_shapes.read(RECORDS / "shapes_batched_sm_90_f16_f32_f32_warm_NVIDIA_H200.jsonl")
    how = asked(screen=64, seconds=0.4)
    assert {entry.how for entry in entries} == {prove_shapes.how_of(how)}
    assert prove_shapes.text_of(entries, prove_shapes.shapes.named("batched"), "NVIDIA H200 (sm_90)", how) == text


def test_a_screening_steps_from_the_quickest_and_leaves_out_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The more warps, the quicker, here, and two down do not compile: the search climbs, and proves nothing."""

    class Makers:
        def __init__(self, jobs: int) -> None:
            assert jobs >= 1

        def __enter__(self) -> Makers:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def order(self, text: str, entry: str, arch: object) -> str:
            return entry

        def compile_many(self, orders: list[str]) -> list[object]:
            return [CompileError("no", "") if "_w2x" in entry else entry for entry in orders]

    def timed(config: Any, binary: object, *_: object) -> Timing:
        assert binary == f"{name(config)}_kernel"
        us = 100.0 / (config.warps.m * config.warps.n)
        return Timing(us, (us, us), 5, 1)

    problem = Problem.packed(ONE.operation, 256, 256, 256)
    few = {"copy": Copy.LD, "pad_a": 8, "pad_b": 8, "pad_d": 0, "split_k": 1, "reduction": Reduction.NONE, "warps_k": 1}
    space = Space(ONE.operation, SM75, few, problem=problem)
    monkeypatch.setattr(prove_shapes, "Space", lambda *_, **__: space)
    monkeypatch.setattr(prove_shapes, "Foundry", Makers)
    monkeypatch.setattr(prove_shapes.trial, "time_it", timed)
    place = Place(NumpyBackend(), SM75)
    shape = Shape("a name", 256, 256, 256)
    found = prove_shapes.screen(shape, ONE.operation, SM75, place, asked(screen=60))
    assert 30 <= len(found) == len(set(found)) < 60
    assert found == prove_shapes.screen(shape, ONE.operation, SM75, place, asked(screen=60))
    widths = [config.warps.m * config.warps.n for config in found]
    assert widths == sorted(widths, reverse=True) and all(config.warps.m != 2 for config in found)
    drawn = prove_shapes.screen(shape, ONE.operation, SM75, place, asked(screen=20))
    assert sum(widths[:20]) > sum(config.warps.m * config.warps.n for config in drawn)


def test_a_screening_has_its_share_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """What won, what is promising and what is drawn leave a third to steps, however much has won."""
    problem = Problem.packed(ONE.operation, 16, 4096, 4096)
    space, place = Space(ONE.operation, ARCHS[90], {}, problem=problem), Place(NumpyBackend(), ARCHS[90])
    won, best = space.sample(random.Random(3), 40), space.sample(random.Random(7), 5)
    looked: list[Any] = []

    def glanced(one: Any, *_: object) -> float:
        looked.append(one)
        return 1.0 + len(looked)

    class Makers(contextlib.nullcontext[Any]):
        def order(self, *_: object) -> str:
            return ""

        def compile_many(self, orders: list[str]) -> list[str]:
            return orders

    monkeypatch.setattr(prove_shapes, "won", lambda *_: iter(won))
    monkeypatch.setattr(prove_shapes, "promising", lambda *_: best)
    monkeypatch.setattr(prove_shapes, "Foundry", lambda jobs: contextlib.nullcontext(Makers()))
    monkeypatch.setattr(prove_shapes, "glanced", glanced)
    prove_shapes.screen(Shape("", 16, 4096, 4096), ONE.operation, ARCHS[90], place, asked(screen=30))
    assert len(looked) == len(set(looked)) == 30
    assert looked[:10] == won[:10] and looked[10:15] == best
    first = set(looked[:20])
    steps = {step for one in looked[:6] for step in space.neighbours(one)}
    assert set(looked[20:]) <= steps and not first & set(looked[20:])


def test_what_is_promising_is_the_best_of_many_by_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.packed(ONE.operation, 16, 4096, 4096)
    space, place = Space(ONE.operation, ARCHS[90], {}, problem=problem), Place(NumpyBackend(), ARCHS[90])
    chip = chips.usual(90)

    def us(config: Any) -> float:
        return estimate.estimate(config, ARCHS[90], chip, problem).us

    monkeypatch.setattr(prove_shapes, "_DRAWN_FOR_ONE", 8)
    found = prove_shapes.promising(space, random.Random(1), 4, place)
    drawn = space.sample(random.Random(1), 8 * 4)
    assert len(found) == 4 and set(found) <= set(drawn)
    assert sum(us(one) < us(found[-1]) for one in drawn) == 3
    monkeypatch.setattr(estimate, "priced", lambda *_: False)
    assert prove_shapes.promising(space, random.Random(1), 4, place) == []


def test_a_screening_starts_from_what_won_with_other_rows() -> None:
    predicated = dataclasses.replace(ONE.operation, residue=Residue.PREDICATED)
    exact = {one.config for one in known.winners() if one.config.operation == ONE.operation and one.arch == ARCHS[90]}
    kin = {one.config for one in known.winners() if one.size[1:] == (4096, 4096)} & exact
    own = {one.config for one in known.winners() if one.config.operation == predicated}
    assert len(kin) == 5 and own
    found = set(prove_shapes.won(Shape("", 1, 4096, 4096), predicated, ARCHS[90]))
    assert found == {dataclasses.replace(one, operation=predicated) for one in kin} | own
    assert exact <= set(prove_shapes.won(Shape("", 1, 4096, 4096), ONE.operation, ARCHS[90]))
    assert not list(prove_shapes.won(Shape("", 1, 4096, 4096), predicated, SM75))
