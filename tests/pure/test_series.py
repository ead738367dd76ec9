"""Benches of several sizes: the best kernels that are known, lists of shapes, and the count of wins."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases_legality import config

from tests import published
from tests.fakes import NumpyBackend, binary_of
from wmmagen import chips, cli, coverage, defaults, estimate, job, known, rules, seeds, series, shapes, show, trial
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import pick
from wmmagen.backends.library import CardLibrary
from wmmagen.backends.pick import Place
from wmmagen.config import KernelConfig, Operation, Problem, name, read_pairs, read_sizes
from wmmagen.denominators import Kind
from wmmagen.dtypes import F16, F32
from wmmagen.errors import ConfigError, IllegalConfig, RequestError, StudyError
from wmmagen.space import Space
from wmmagen.timing import TimingProtocol

SM75, SM90 = ARCHS[75], ARCHS[90]
PLAIN, HALF = Operation(F16, F32, F32), Operation(F16, F16, F16)
H200 = chips.named("h200")
SMALL = "warps=1x1,frags=1x1,k_steps=1,copy=ld,stages=1"
EIGHT = "warps=1x1,frags=2x1,k_steps=1,copy=ld,stages=1,inst=8x32x16"
ONE, OTHER, WIDE = config(SMALL), config(f"{SMALL},pad_a=16"), config(EIGHT)


# ---------------------------------------------------------------------------------------------------------------------
# What is known.


def test_every_winner_is_legal_for_what_it_won_and_none_is_there_twice() -> None:
    found = known.winners()
    assert len({(one.arch, one.size, one.config.operation) for one in found}) == len(found)
    for one in found:
        problem = Problem.packed(one.config.operation, *one.size)
        assert not rules.check(one.config, one.arch, problem) and not coverage.missing(one.config)
    lines = known.FILE.read_text(encoding="utf-8").splitlines()
    assert [known.line_of(one.arch, one.size, one.config) for one in found] == [x for x in lines if x[:1] != "#"]


@pytest.mark.parametrize("line", ["sm_90 2048", "sm_90 2048 wmma_gemm_x", "sm_1 64 x", "sm_90 2048xx wmma"])
def test_a_line_that_is_no_winner_is_refused(line: str, tmp_path: Path) -> None:
    file = tmp_path / "winners.txt"
    file.write_text(f"# a comment\n\n{line}\n", encoding="utf-8")
    with pytest.raises(RequestError):
        known.winners(file)


def no_study(study: str) -> Any:
    raise StudyError("there is none", "sweep")


def test_a_winner_stands_in_for_sizes_near_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "best_of", no_study)
    at = {one.size: one.config for one in known.winners() if one.arch == SM90}
    for size, won in (((2048,) * 3, 2048), ((4096,) * 3, 4096), ((8192,) * 3, 4096), ((4096, 2048, 4096), 2048)):
        found = known.best(PLAIN, SM90, size, H200)
        assert found == known.Known(at[won, won, won], "winner", f"what won at {won}x{won}x{won}")


@pytest.mark.parametrize(
    ("operation", "arch", "size"),
    [(PLAIN, SM90, (16384, 2048, 2048)), (HALF, SM90, (2048,) * 3), (PLAIN, ARCHS[80], (2048,) * 3)],
    ids=["a size far off", "another operation", "another architecture"],
)
def test_what_nobody_measured_has_no_winner(
    operation: Operation, arch: Arch, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    guessed = known.Known(ONE, "estimate", "a guess")
    monkeypatch.setattr(job, "best_of", no_study)
    monkeypatch.setattr(known, "_of_estimate", lambda *_: guessed)
    assert known.best(operation, arch, size, chips.usual(arch.sm)) is guessed


def test_the_estimate_climbs_from_the_seeds_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a kernel that no single step makes faster, by estimate."""
    monkeypatch.setattr(job, "best_of", no_study)
    monkeypatch.setattr(known, "_DRAWN", 1)
    size = (2048, 2048, 2048)
    problem = Problem.packed(PLAIN, *size)
    space, chip = Space(PLAIN, SM75, {}, problem=problem), chips.named("t4")
    found = known.best(PLAIN, SM75, size, chip)
    assert found.origin == "estimate" and not rules.check(found.config, SM75, problem)
    assert re.fullmatch(r"the best of \d+ by estimate", found.words)
    least, *others = (
        estimate.estimate(one, SM75, chip, problem).us
        for one in (found.config, *seeds.for_space(space), *space.neighbours(found.config))
    )
    assert least <= min(others)


def test_a_study_that_is_here_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def best_of(study: str) -> tuple[KernelConfig, Arch, Any]:
        asked.append(study)
        return ONE, SM75, None

    monkeypatch.setattr(job, "best_of", best_of)
    found = known.best(PLAIN, SM75, (64, 64, 64), chips.named("t4"))
    assert (found.config, found.origin) == (ONE, "study") and asked == ["sm_75_f16_f32_f32_rr_64x64x64"]
    # Another architecture's winner is none of this one's.
    assert known.best(PLAIN, SM90, (2048,) * 3, H200).origin == "winner"


# ---------------------------------------------------------------------------------------------------------------------
# Shapes.


def test_the_shapes_of_decoding_were_chosen_before() -> None:
    found = shapes.named("decode")
    assert len(found) >= 10 and len({one.size for one in found}) == len(found) == len({one.words for one in found})
    skinny = config("inst=8x32x16,warps=1x2,frags=1x1,k_steps=4,copy=ld,stages=2")
    for one in found:
        assert one.m in (8, 16, 32, 64) and one.batch == 1 and min(one.n, one.k) > 1000
        assert not rules.check(skinny, SM75, Problem.packed(skinny.operation, *one.size))
    with pytest.raises(RequestError, match="no list of shapes is called 'encode'"):
        shapes.named("encode")


def test_fewer_rows_than_instructions_have_are_for_kernels_of_all_sizes() -> None:
    found = shapes.named("rows")
    assert len(found) >= 8 and len({one.size for one in found}) == len(found) == len({one.words for one in found})
    assert {one.size[1:] for one in found} == {one.size[1:] for one in shapes.named("decode")}
    skinny = config("inst=8x32x16,warps=1x2,frags=1x1,k_steps=4,copy=ld,stages=2,residue=predicated")
    for one in found:
        assert 1 <= one.m < 8 and one.batch == 1
        assert not rules.check(skinny, SM75, Problem.packed(skinny.operation, *one.size))
        suited = series.suited(PLAIN, one)
        assert suited == skinny.operation and series.suited(suited, one) == suited


@pytest.mark.parametrize(
    ("shape", "keys", "found"),
    [
        (shapes.Shape("", 8, 32, 16), "", ""),
        (shapes.Shape("", 8, 16, 16), "", "residue=predicated"),
        (shapes.Shape("", 8, 32, 8), "", "residue=predicated"),
        (shapes.Shape("", 8, 32, 16, 8), "", "batch=strided"),
        (shapes.Shape("", 8, 32, 16, 8), "batch=pointers", "batch=pointers"),
        (shapes.Shape("", 1, 32, 16, 8), "acc=f16,d=f16", "acc=f16,d=f16,batch=strided,residue=predicated"),
    ],
)
def test_a_shape_is_asked_of_an_operation_that_takes_it(shape: shapes.Shape, keys: str, found: str) -> None:
    assert series.suited(defaults.operation_of(read_pairs(keys)), shape) == defaults.operation_of(read_pairs(found))


def test_the_best_kernel_of_a_listed_shape_suits_it_and_of_a_typed_one_is_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Operation, int]] = []

    def best(operation: Operation, arch: object, size: object, chip: object, batch: int) -> known.Known:
        asked.append((operation, batch))
        return known.Known(ONE, "winner", "")

    monkeypatch.setattr(known, "best", best)
    wanted = [shapes.Shape("a name", 1, 32, 16), shapes.Shape("more", 64, 64, 64, 8), shapes.Shape("", 1, 32, 16)]
    series.plan(wanted, [], SM75, PLAIN, chips.named("t4"))
    found = [series.suited(PLAIN, shape) for shape in wanted[:2]]
    assert asked == [(found[0], 1), (found[1], 8), (PLAIN, 1)] and PLAIN not in found


def test_a_list_of_sizes() -> None:
    assert read_sizes("256,512x64x128,256") == [(256, 256, 256), (512, 64, 128)]
    for text in ("", "256,", "256;512"):
        with pytest.raises(ConfigError):
            read_sizes(text)


# ---------------------------------------------------------------------------------------------------------------------
# Plans and what comes of them.


def test_of_several_sizes_each_kernel_is_measured_where_it_can_be() -> None:
    sizes = series.unnamed([(16, 16, 16), (16, 32, 16), (64, 64, 64)])
    plans = series.plan(sizes, [ONE, WIDE], SM75, None, H200)
    assert [list(plan.kernels) for plan in plans] == [[ONE], [ONE, WIDE], [ONE, WIDE]]
    (refused,) = plans[0].refused
    assert refused.name == name(WIDE) and refused.outcome == "illegal" and "16" in refused.detail
    with pytest.raises(RequestError, match="none of the kernels takes 40x40x40"):
        series.plan(series.unnamed([(64, 64, 64), (40, 40, 40)]), [ONE, WIDE], SM75, None, H200)
    with pytest.raises(IllegalConfig):
        series.plan(series.unnamed([(16, 16, 16)]), [ONE, WIDE], SM75, None, H200)
    with pytest.raises(RequestError, match="no product"):
        series.plan(series.unnamed([(0, 16, 16)]), [ONE], SM75, None, H200)


@pytest.fixture
def at_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: CardLibrary) -> dict[str, Any]:
    """A card of NumPy in this machine; what it does is set in the dictionary."""
    card: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial, "build", lambda config, arch, compiler: (None, binary_of(config, arch)))
    monkeypatch.setattr(pick, "pick", lambda kind, arch, **more: Place(NumpyBackend(**card), arch, library=library))
    monkeypatch.setattr(known, "best", lambda *_: known.Known(OTHER, "winner", "the winner"))
    return card


RUN = ["bench", "--arch", "sm_75", "--no-ceiling"]


def test_a_bench_of_several_sizes_and_the_best_that_is_known(
    at_card: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*RUN, SMALL, EIGHT, "--problem", "16,32x32x16", "--best", "--to", "kept.json"]
    assert cli.run([*arguments, "--json"]) == 0
    text = capsys.readouterr().out
    document = published.read(text)
    published.judge("bench", document)
    assert Path("kept.json").read_text(encoding="utf-8") == text
    rows = [(row["problem"], row["name"], row["outcome"], row["origin"]) for row in document["rows"]]
    assert rows == [
        ("16x16x16", name(ONE), "ok", ""),
        ("16x16x16", name(OTHER), "ok", "the winner"),
        ("16x16x16", name(WIDE), "illegal", ""),
        ("32x32x16", name(ONE), "ok", ""),
        ("32x32x16", name(WIDE), "ok", ""),
        ("32x32x16", name(OTHER), "ok", "the winner"),
    ]
    first = document["rows"][0]
    moved = 2 * 2 * 16 * 16 + 4 * 16 * 16
    assert first["gb_per_s"] == moved / first["median_us"] / 1e3
    assert first["beside"]["cublas_fp32"].startswith("cuBLASLt FP32 (f32, f32, f32) 16x16x16: 8.00 us")
    assert first["beside"]["ceiling"] is None and document["wins"] == {"won": 0, "of": 2}
    assert [one["problem"] for one in document["denominators"]] == ["16x16x16"] * 2 + ["32x32x16"] * 2
    assert cli.run(arguments) == 0
    said = capsys.readouterr().out
    assert "[2] is the winner." in said and f"Not legal for 16x16x16: {name(WIDE)}: " in said
    assert said.endswith("Faster than cuBLASLt with the same types, beyond the noise: 0 of 2 sizes.\n")


def test_a_series_that_is_cut_keeps_the_sizes_before(
    at_card: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = series.measure

    def cut(plan: series.Plan, *rest: Any, **more: Any) -> series.Measured:
        if plan.shape.m == 32:
            raise KeyboardInterrupt
        return measure(plan, *rest, **more)

    monkeypatch.setattr(series, "measure", cut)
    bench = [*RUN, SMALL, "--problem", "16,32", "--to", "kept.json"]
    Path("kept.json").write_text("whole", encoding="utf-8")
    assert cli.run(bench) == 130
    part = Path("kept.json.part")
    document = published.read(part.read_text(encoding="utf-8"))
    published.judge("bench", document)
    assert [row["problem"] for row in document["rows"]] == ["16x16x16"]
    assert Path("kept.json").read_text(encoding="utf-8") == "whole"
    assert "sizes that were measured are in FILE.part" in capsys.readouterr().err
    monkeypatch.setattr(series, "measure", measure)
    assert cli.run(bench) == 0 and not part.exists()
    whole = published.read(Path("kept.json").read_text(encoding="utf-8"))
    assert [row["problem"] for row in whole["rows"]] == ["16x16x16", "32x32x32"]


def test_wins_are_beyond_the_noise(at_card: dict[str, Any], library: CardLibrary) -> None:
    def won(us: float) -> tuple[int, int]:
        place = Place(NumpyBackend(library_us=us), SM75, library=library)
        plans = series.plan(series.unnamed([(32, 32, 16)]), [ONE, WIDE], SM75, None, H200)
        tables = [series.measure(one, SM75, place, TimingProtocol(), ceilings=False) for one in plans]
        return series.wins(tables)

    own = [10.0 + sum(f"{one}_kernel".encode()) % 97 for one in (ONE, WIDE)]
    assert [won(min(own) - 0.5), won(min(own)), won(min(own) + 0.5)] == [(0, 1), (0, 1), (1, 1)]


def test_a_denominator_that_nobody_asked_for_says_so(at_card: dict[str, Any], library: CardLibrary) -> None:
    place = Place(NumpyBackend(), SM75, library=library)
    (plan,) = series.plan(series.unnamed([(16, 16, 16)]), [ONE], SM75, None, H200)
    kinds: tuple[Kind, ...] = ("same types",)
    one = series.measure(plan, SM75, place, TimingProtocol(), ceilings=False, kinds=kinds)
    same, single = one.table.baselines
    assert same.timing is not None and (single.timing, single.reason) == (None, "nobody asked for it")
    assert one.table.rows[0].ratios.keys() == {"same types"}
    without = Place(NumpyBackend(), SM75)
    assert series.wins([series.measure(plan, SM75, without, TimingProtocol(), ceilings=False)]) == (0, 0)


def test_a_list_of_shapes_is_measured_with_the_best_that_is_known(
    at_card: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(shapes.LISTS, "decode", (shapes.Shape("a name", 16, 32, 16), shapes.Shape("more", 32, 16, 16)))
    assert cli.run([*RUN, "--shapes", "decode", "--no-fp32", "--seconds", "0.5"]) == 0
    said = capsys.readouterr().out
    assert said.count(f"a name; {name(OTHER)}") == 2 and said.count("nobody asked for it") == 2
    table = said.rpartition("The fastest right kernel of each size.")[2]
    assert "16x32x16               1 " in table and "32x16x16               1 " in table
    at_card["spoil"] = lambda entry, d: d.__setitem__((0, 0), 7777)
    assert cli.run([*RUN, "--shapes", "decode"]) == 1
    assert f"wrong: {name(OTHER)}: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "bench takes a CONFIG, or --best"),
        (["--shapes", "encode"], "no list of shapes"),
        (["--shapes", "decode", "--problem", "64"], "contradict"),
        ([SMALL, "--fix", "acc=f16"], "is not the operation of --best"),
        (["--best", "--fix", "stages=2"], "is not the operation of --best: stages"),
        ([SMALL, "--problem", "64,"], "no problem size"),
        ([SMALL, "--seconds", "-1"], "leaves no time"),
        ([SMALL, "--to", "."], "cannot be written"),
    ],
)
def test_bad_requests_end_with_2(
    arguments: list[str], words: str, at_card: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*RUN, *arguments]) == 2
    assert words in capsys.readouterr().err


def test_the_operation_of_the_best_can_be_another(
    at_card: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Operation] = []
    half = config(f"{SMALL},acc=f16,d=f16")

    def best(operation: Operation, *_: object) -> known.Known:
        asked.append(operation)
        return known.Known(half, "winner", "the winner")

    monkeypatch.setattr(known, "best", best)
    assert cli.run([*RUN, "--best", "--fix", "acc=f16,d=f16", "--problem", "32"]) == 0
    assert asked == [HALF] and "same types (f16, f16, f16)" in capsys.readouterr().out


@pytest.mark.parametrize("seconds", [0.05, 0.5, 3.0, 60.0])
def test_fewer_seconds_leave_time_for_samples(seconds: float) -> None:
    protocol, usual = cli._protocol("warm", "normal", seconds), TimingProtocol()
    assert protocol.max_seconds == seconds
    assert protocol.warmup_min_s <= protocol.warmup_max_s <= min(seconds / 2, usual.warmup_max_s)
    assert cli._protocol("cold", "integers", None) == TimingProtocol(mode="cold", data="integers")


def test_the_empty_kernel_is_told_whichever_kernel_is_short(at_card: dict[str, Any]) -> None:
    place = Place(NumpyBackend(), SM75)
    (plan,) = series.plan(series.unnamed([(16, 16, 16)]), [ONE, OTHER], SM75, None, H200)
    one = series.measure(plan, SM75, place, TimingProtocol(), ceilings=False)
    long, short = one.table.rows
    assert short.timing is not None
    table = replace(one.table, rows=(long, replace(short, timing=replace(short.timing, empty_us=0.5))))
    assert "an empty kernel takes 0.50 us" in show.bench(table, TimingProtocol())
