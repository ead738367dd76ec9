"""The study and the search, with trials that are functions: durable, without repetition, and near the best."""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

import wmmagen
from wmmagen import derive, job, rules, seeds
from wmmagen import dtypes as t
from wmmagen.arch import ARCHS, Arch
from wmmagen.choose import choose
from wmmagen.config import Batch, KernelConfig, Operation, Problem, name, parse, read_pairs
from wmmagen.defaults import operation_of
from wmmagen.errors import LaunchFault, MissingPiece, OutOfTime, RequestError, StudyError
from wmmagen.records import Estimated, Outcome, Record
from wmmagen.render import render
from wmmagen.space import Space, point_of
from wmmagen.timing import Timing
from wmmagen.tune import Ahead, Progress, Proposer, Study, find_study, open_study, sweep

F32 = Operation(t.F16, t.F32, t.F32)
F16 = Operation(t.F16, t.F16, t.F16)
SIZE = "2048x2048x2048"
#: One value for each axis that the world below does not tell apart.
PLAIN = (
    "inst=16x16x16,arrange_a=rows,arrange_b=rows,residency=fragment,store=direct,raster=linear,pad_d=0,"
    "fragment_buffers=1,min_blocks=1,split_k=1,reduction=none"
)
#: About 100 points: a sampler that repeats itself does so at once.
FEW = f"{PLAIN},warps=2x2,feed=shared,copy=cpasync,stages=3,pad_a=8,pad_b=8"


@functools.cache
def cost_us(config: KernelConfig, arch: Arch) -> float:
    """Microseconds in a world with the tendencies of a real one: reuse, residency, banks, pipelines, and some noise."""
    k = derive.values(config, arch)
    registers = 32 + k["ACC_REGISTERS"] + 16 * (config.frags.m + config.frags.n)
    by_registers = 65_536 // (min(registers, 255) * k["THREADS"])
    blocks = max(1, min(k["MAX_SHARED_BYTES"] // max(1, k["SHARED_BYTES"]), by_registers))
    banks = {0: 2.2, 8: 1.0, 16: 1.1} if config.pad_a or k["feed_shared"] else {0: 8.0}
    warp = (k["WARP_M"] + k["WARP_N"]) / (128 * k["WARP_M"] * k["WARP_N"]) * banks[config.pad_a] * banks[config.pad_b]
    block = (k["BLOCK_M"] + k["BLOCK_N"]) / (80 * k["BLOCK_M"] * k["BLOCK_N"])
    overlap = {1: 1.6, 2: 1.2, 3: 1.0, 4: 0.98, 5: 1.0}[config.stages] * {1: 1.25, 2: 1.0, 4: 0.96}[config.k_steps]
    idle = max(1.0, 8 / (blocks * config.warps.m * config.warps.n)) ** 0.7
    spilled = 1 + max(0, registers - 255) / 64
    noise = random.Random(name(config)).uniform(0.98, 1.02)
    return float(1e6 * (1 / 4096 + warp + block) * overlap * idle * spilled * noise)


def timed(config: KernelConfig, arch: Arch = ARCHS[80]) -> Record:
    us = cost_us(config, arch)
    return Record(name(config), arch.name, SIZE, Outcome.OK, backend="gpu", timing=Timing(us, (us, us), 20, 100))


def untimed(config: KernelConfig) -> Record:
    return Record(name(config), "sm_80", SIZE, Outcome.UNVERIFIED)


def guessed(config: KernelConfig) -> Record:
    guess = Estimated(cost_us(config, ARCHS[80]), "A100 80 GB SXM", "l2")
    return Record(name(config), "sm_80", SIZE, Outcome.OK, backend="cpu", estimate=guess)


def failed(config: KernelConfig) -> Record:
    return Record(name(config), "sm_80", SIZE, Outcome.WRONG, detail="first mismatch")


@functools.cache
def few() -> Space:
    return Space(F32, ARCHS[80], read_pairs(FEW))


@functools.cache
def many() -> Space:
    return Space(F32, ARCHS[80], read_pairs(f"{PLAIN},feed=shared,copy=cpasync"))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a study of which nothing is known but what it is about."""
    path = tmp_path_factory.mktemp("begun") / "s.db"
    open_at(path)
    return path


@pytest.fixture
def study(tmp_path: Path, begun: Path) -> Study:
    shutil.copyfile(begun, tmp_path / "s.db")
    return open_at(tmp_path / "s.db")


def open_at(path: Path, arch: str = "80", operation: Operation = F32, problem: str = SIZE) -> Study:
    return open_study("s", path, arch=ARCHS[int(arch)], operation=operation, problem=problem)


# ---------------------------------------------------------------------------------------------------------------------
# The study.


def test_records_outlive_the_process_that_kept_them(tmp_path: Path, study: Study) -> None:
    a, b, c = list(few().configs())[:3]
    kept = [timed(a), failed(b), untimed(c)]
    for record in kept:
        study.add(record)
        assert study.records()[-1] == record
    assert open_at(tmp_path / "s.db").records() == kept
    assert find_study("s", tmp_path).records() == kept
    assert find_study(str(tmp_path / "s.db")).records() == kept


def test_other_readers_of_the_storage_see_states_and_values(tmp_path: Path, study: Study) -> None:
    a, b, c = list(few().configs())[:3]
    for record in (timed(a), failed(b), untimed(c)):
        study.add(record)
    trials = optuna.load_study(study_name="s", storage=study.url).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "PRUNED"]
    assert trials[0].value == cost_us(a, ARCHS[80])


def test_a_study_says_what_it_is_about(tmp_path: Path) -> None:
    fixed = read_pairs("warps=2x2,feed=shared")
    made = open_study("s", tmp_path / "s.db", arch=ARCHS[75], operation=F16, problem=SIZE, fixed=fixed)
    found = find_study("s", tmp_path).about
    assert found == made.about
    assert (found.arch, found.problem, found.fixed) == ("sm_75", SIZE, "warps=2x2,feed=shared")
    assert found.operation.startswith("a=f16,acc=f16") and found.version == wmmagen.__version__
    # A study of before there were batches says the same of what has none.
    assert "batch" not in found.operation
    many = replace(F16, batch=Batch.STRIDED)
    other = open_study("m", tmp_path / "m.db", arch=ARCHS[75], operation=many, problem=SIZE)
    assert "batch=strided" in other.about.operation


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arch": "90"}, "arch sm_80 .asked was sm_90"),
        ({"operation": F16}, "operation .*acc=f32"),
        ({"problem": "96x96x96"}, f"problem {SIZE}"),
    ],
)
def test_a_study_about_something_else_is_refused(
    tmp_path: Path, study: Study, change: dict[str, object], words: str
) -> None:
    with pytest.raises(StudyError, match=words) as caught:
        open_at(tmp_path / "s.db", **change)  # type: ignore[arg-type]
    assert "--study" in caught.value.fix


def test_the_default_place_is_below_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_study("sm_80-2048", arch=ARCHS[80], operation=F32, problem=SIZE)
    # Beside the file lie what the database keeps while it is open, and nothing of how it was made.
    assert {p.name for p in (tmp_path / "sweeps").iterdir()} <= {f"sm_80-2048.db{end}" for end in ("", "-wal", "-shm")}
    assert find_study("sm_80-2048").about.problem == SIZE


def test_two_studies_may_share_a_storage(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'both.db'}"
    one = open_study("one", url, arch=ARCHS[80], operation=F32, problem=SIZE)
    two = open_study("two", url, arch=ARCHS[75], operation=F32, problem=SIZE)
    config = few().at(0)
    one.add(timed(config))
    assert len(one.records()) == 1 and two.records() == []
    with pytest.raises(StudyError, match="2 studies: one two"):
        find_study(str(tmp_path / "both.db"))


def test_a_missing_study_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no study 'turing'") as caught:
        find_study("turing", tmp_path / "none")
    assert "wmmagen sweep" in caught.value.fix
    for there in ("turing-2048", "hopper-2048"):
        open_study(there, tmp_path / f"{there}.db", arch=ARCHS[80], operation=F32, problem=SIZE)
    with pytest.raises(StudyError) as caught:
        find_study("turin-2048", tmp_path)
    assert caught.value.fix == "did you mean turing-2048? there: hopper-2048 turing-2048"


@pytest.mark.parametrize("bad", ["", "../s", "a b", ".s", "x" * 101])
def test_a_name_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(StudyError, match="no name of a study"):
        open_study(bad, arch=ARCHS[80], operation=F32, problem=SIZE)


def test_a_place_that_is_none_is_refused(tmp_path: Path) -> None:
    text, foreign, folder = tmp_path / "text.db", tmp_path / "foreign.db", tmp_path / "folder.db"
    text.write_text("no database, but long enough to have a header\n" * 50)
    with sqlite3.connect(foreign) as database:
        database.execute("CREATE TABLE accounts (id)")
    folder.mkdir()
    places: list[str | Path] = [text, foreign, folder, text / "below.db", tmp_path / "a?b.db", "nosuch://host/db"]
    for place in places:
        with pytest.raises(StudyError) as caught:
            open_study("s", place, arch=ARCHS[80], operation=F32, problem=SIZE)
        assert caught.value.fix
    for path in (text, foreign):
        before = path.read_bytes()
        with pytest.raises(StudyError):
            find_study(str(path))
        assert path.read_bytes() == before


def test_a_study_of_another_program_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'other.db'}"
    optuna.create_study(storage=url, study_name="other").add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(StudyError, match="not begun by wmmagen"):
        find_study("other", tmp_path)
    with pytest.raises(StudyError, match="not begun by wmmagen"):
        open_study("other", url, arch=ARCHS[80], operation=F32, problem=SIZE)


def test_a_schema_of_another_version_is_refused_every_time(tmp_path: Path, study: Study) -> None:
    """Also where this process has opened a study of its own version before."""
    assert study.records() == []
    with sqlite3.connect(tmp_path / "s.db") as database:
        database.execute("UPDATE alembic_version SET version_num = 'v99.0.0.a'")
    for _ in range(2):
        with pytest.raises(StudyError, match="no longer compatible"):
            find_study(str(tmp_path / "s.db"))
        with pytest.raises(StudyError, match="no longer compatible"):
            open_at(tmp_path / "s.db")


def test_names_of_another_version_leave_no_winner_and_no_suggestion(tmp_path: Path, study: Study) -> None:
    one = next(few().configs())
    old = replace(untimed(one), name=name(one).replace("exact8x8x4", "exact"))
    for kept, words in (
        (old, "holds no candidate verified and timed"),
        (replace(timed(one), name=old.name, fingerprint="0123456789abcdef"), "proved with other templates"),
    ):
        study.add(kept)
        with pytest.raises(StudyError, match=words) as refused:
            job.best_of(str(tmp_path / "s.db"))
        assert old.name not in refused.value.fix


def test_a_study_without_a_winner_says_of_its_leading_candidate_what_is_known(tmp_path: Path, study: Study) -> None:
    one = next(few().configs())
    right = replace(guessed(one), estimate=None)
    today = render(one, ARCHS[80]).fingerprint
    # What was proved of another text says nothing of the file that is emitted today.
    for fingerprint, words in (("0123456789abcdef", "nobody has verified"), (today, "is verified, but ranks by no")):
        study.add(replace(right, fingerprint=fingerprint))
        with pytest.raises(StudyError) as refused:
            job.best_of(str(tmp_path / "s.db"))
        assert right.name in refused.value.fix and words in refused.value.fix


def test_studies_of_different_operations_have_different_names() -> None:
    pairs = [
        "",
        "acc=f16",
        "cd=cc",
        "epilogue=linear",
        "align_a=2",
        "align_d=2",
        "layout=rc",
        "epilogue=linear,align_a=2",
    ]
    names = [job.Request(operation_of(read_pairs(text)), ARCHS[80], (256, 256, 64)).study_name for text in pairs]
    assert len(set(names)) == len(pairs)
    assert names[0] == "sm_80_f16_f32_f32_rr_256x256x64"


# ---------------------------------------------------------------------------------------------------------------------
# Proposals.


def run(proposer: Proposer, trial: Callable[[KernelConfig], Record], count: int) -> list[KernelConfig]:
    tried = []
    for _ in range(count):
        config = proposer.propose()
        if config is None:
            break
        tried.append(config)
        proposer.tell(trial(config))
    return tried


@pytest.mark.parametrize("trial", [timed, untimed, failed])
def test_every_point_once_and_then_none(trial: Callable[[KernelConfig], Record]) -> None:
    space = few()
    proposer = Proposer(space)
    tried = run(proposer, trial, 10**6)
    assert Counter(tried) == Counter(space.configs())
    assert proposer.propose() is None and proposer.tried == len(space)


def test_exhaustive_goes_in_the_order_of_the_space() -> None:
    space = few()
    assert run(Proposer(space, exhaustive=True), timed, 10**6) == list(space.configs())


def test_seeds_come_first() -> None:
    space = Space(F32, ARCHS[90])
    first = seeds.for_space(space)
    assert run(Proposer(space, seed=5), timed, len(first)) == first
    given = space.sample(random.Random(0), 2)
    assert run(Proposer(space, first=given), timed, 2) == given


def test_only_legal_points_are_proposed() -> None:
    space = Space(F32, ARCHS[75], problem=Problem.packed(F32, 512, 512, 512))
    tried = run(Proposer(space), lambda config: timed(config, ARCHS[75]), 40)
    assert len(set(tried)) == 40
    assert all(rules.check(c, space.arch, space.problem) == [] for c in tried)


def test_a_proposal_depends_on_space_seed_and_history_only() -> None:
    space = many()
    tried = run(Proposer(space, seed=1), timed, 24)
    assert tried == run(Proposer(space, seed=1), timed, 24)
    assert tried != run(Proposer(space, seed=2), timed, 24)
    resumed = Proposer(space, seed=1)
    for config in tried[:16]:
        resumed.tell(timed(config))
    assert run(resumed, timed, 8) == tried[16:]


@pytest.mark.parametrize("exhaustive", [False, True])
@pytest.mark.parametrize("trial", [timed, untimed, failed])
def test_what_is_foreseen_comes(trial: Callable[[KernelConfig], Record], exhaustive: bool) -> None:
    space = few()
    proposer = Proposer(space, seed=3, exhaustive=exhaustive)
    foreseen: list[KernelConfig] = []
    longest = 0
    for _ in range(len(space)):
        # What was foreseen earlier is never taken back.
        now = proposer.foreseen(5, costed=trial is timed)
        assert now[: len(foreseen)] == foreseen[:5]
        longest = max(longest, len(now))
        (came,) = run(proposer, trial, 1)
        assert came == (now or [came])[0]
        foreseen = now[1:]
    assert longest == 5
    assert proposer.foreseen(5, costed=trial is timed) == []


def test_without_times_everything_is_foreseen() -> None:
    space = few()
    for exhaustive in (False, True):
        proposer = Proposer(space, exhaustive=exhaustive)
        run(proposer, untimed, 7)
        assert len(proposer.foreseen(10**6, costed=False)) == len(space) - 7


def test_with_times_the_start_is_foreseen_and_nothing_after_it() -> None:
    space = Space(F32, ARCHS[90])
    begin = len(seeds.for_space(space))
    proposer = Proposer(space)
    start = proposer.foreseen(100, costed=True)
    assert begin <= len(start) < 100
    # Seeds that are timed are among the times that end the start.
    assert len(start) == max(begin, 8)
    assert run(proposer, timed, len(start)) == start
    assert proposer.foreseen(100, costed=True) == []


def test_without_a_clock_the_points_are_spread() -> None:
    # Evenly by points, so that a value which few points have does not come within so few draws.
    space = Space(F32, ARCHS[80], read_pairs(PLAIN))
    tried = run(Proposer(space), untimed, 60)
    assert len(set(tried)) == 60
    # Not copy: feed=global has one point for hundreds of the others, so that so few even draws can miss it.
    for axis in ("warps_m", "frags_n", "stages", "pad_b", "arrange_a", "store", "raster"):
        assert {point_of(c)[axis] for c in tried} == set(space.live[axis])


def likely(config: KernelConfig) -> float:
    return cost_us(config, ARCHS[80])


def test_a_guess_orders_the_first_trials_but_for_some_that_are_drawn_evenly() -> None:
    space = many()
    even = run(Proposer(space, seed=1, first=[]), untimed, 40)
    tried = run(Proposer(space, seed=1, first=[], guess=likely), untimed, 40)
    # Every fourth is drawn evenly; the others are the best of 256, which is better than the best tenth of all.
    best = sorted(likely(config) for config in space.sample(random.Random(9), 400))
    drawn = [likely(config) for place, config in enumerate(tried) if place % 4 == 0]
    pooled = [likely(config) for place, config in enumerate(tried) if place % 4]
    assert pooled == sorted(pooled) and pooled[4] < best[40]
    assert sorted(drawn)[5] > best[40]
    assert tried[0] == even[0]


@pytest.mark.parametrize("trial", [timed, guessed, untimed, failed])
def test_with_a_guess_a_proposal_depends_on_the_history_only(trial: Callable[[KernelConfig], Record]) -> None:
    space = many()
    tried = run(Proposer(space, seed=1, guess=likely), trial, 25)
    resumed = Proposer(space, seed=1, guess=likely)
    for config in tried[:10]:
        resumed.tell(trial(config))
    assert run(resumed, trial, 15) == tried[10:] and len(set(tried)) == 25
    ahead = Proposer(space, seed=1, guess=likely).foreseen(8, costed=trial is not untimed)
    assert ahead == tried[:8]


def test_estimates_lead_the_search_where_there_are_no_times() -> None:
    tried = run(Proposer(many(), seed=4), guessed, 36)
    assert tried == run(Proposer(many(), seed=4), timed, 36)
    assert min(map(likely, tried[18:])) < min(map(likely, tried[:8]))


def test_where_there_are_times_no_estimate_leads() -> None:
    space = few()
    times, both = Proposer(space, seed=2), Proposer(space, seed=2)
    points = space.sample(random.Random(3), 30)
    for config in points[:10]:
        both.tell(replace(guessed(config), estimate=Estimated(0.001, "A100 80 GB SXM", "l2")))
        times.tell(untimed(config))
    for config in points[10:]:
        times.tell(timed(config))
        both.tell(timed(config))
    assert run(both, timed, 10) == run(times, timed, 10)


def test_what_failed_or_is_foreign_is_never_taken_for_good() -> None:
    space = few()
    half = list(space.configs())[::2]
    proposer = Proposer(space, first=half)
    for config in half:
        record = timed(config) if config.k_steps == 2 else failed(config)
        proposer.tell(record)
    proposed = proposer.propose()
    assert proposed is not None and proposed not in half


def test_records_of_another_space_are_passed_over() -> None:
    proposer = Proposer(few())
    proposer.tell(timed(next(iter(Space(F32, ARCHS[80], read_pairs("feed=global")).configs()))))
    proposer.tell(Record("wmma_gemm_of_tomorrow", "sm_80", SIZE, Outcome.OK))
    assert proposer.tried == 0


def test_the_later_record_of_a_point_is_the_one_that_counts() -> None:
    space = few()
    points = list(space.configs())[:40]
    assert len(space) > 80
    proposer = Proposer(space, first=[])
    for config in points:
        proposer.tell(timed(config))
    best = min(points, key=lambda c: cost_us(c, space.arch))
    proposer.tell(failed(best))
    assert proposer.tried == 40
    second = min((c for c in points if c != best), key=lambda c: cost_us(c, space.arch))
    near = [c for c in space.neighbours(second) if c not in points]
    assert not near or proposer.propose() in near


def test_diverged_proposers_part() -> None:
    space = few()
    one, other = Proposer(space, exhaustive=True), Proposer(space, exhaustive=True)
    other.diverge(7)
    assert one.propose() != other.propose()
    assert Counter(run(other, untimed, 10**6)) == Counter(space.configs())


@pytest.mark.parametrize("sm", [75, 90])
def test_the_search_comes_near_the_best(sm: int) -> None:
    arch = ARCHS[sm]
    space = Space(F32, arch, read_pairs(f"{PLAIN},feed=shared,pad_b=8"), problem=Problem.packed(F32, 2048, 2048, 2048))
    best = min(cost_us(config, arch) for config in space.configs())
    tried = run(Proposer(space), lambda config: timed(config, arch), 60)
    assert min(cost_us(config, arch) for config in tried) < 1.1 * best
    drawn = space.sample(random.Random(0), 60)
    assert min(cost_us(c, arch) for c in tried) < min(cost_us(c, arch) for c in drawn)


# ---------------------------------------------------------------------------------------------------------------------
# Sweeps.


def test_a_sweep_tries_each_point_once_and_resumes(tmp_path: Path, study: Study) -> None:
    space = few()
    tried: list[KernelConfig] = []

    def trial(config: KernelConfig) -> Record:
        tried.append(config)
        return timed(config)

    first = sweep(space, trial, study, trials=12)
    assert (first.new, first.stopped, len(first.records)) == (12, "trials", 12)
    assert sweep(space, trial, study, trials=12).new == 0
    second = sweep(space, trial, open_at(tmp_path / "s.db"), trials=25)
    assert second.new == 13 and len(set(tried)) == len(tried) == 25
    rest = sweep(space, trial, study)
    assert rest.stopped == "exhausted" and Counter(tried) == Counter(space.configs())
    assert [r.name for r in rest.records] == [name(c) for c in tried]
    whole: list[KernelConfig] = []
    once = open_at(tmp_path / "once.db")
    sweep(space, lambda c: whole.append(c) or timed(c), once, trials=25)  # type: ignore[func-returns-value]
    assert whole == tried[:25]


def test_exhaustive_covers_exactly_the_space(study: Study) -> None:
    space = few()
    result = sweep(space, failed, study, exhaustive=True)
    assert [r.name for r in result.records] == [name(c) for c in space.configs()]
    assert result.stopped == "exhausted" and choose(result.records) is None


def test_a_budget_ends_it(study: Study) -> None:
    now = [100.0]

    def trial(config: KernelConfig) -> Record:
        now[0] += 4.0
        return timed(config)

    result = sweep(few(), trial, study, trials=100, budget_s=10.0, clock=lambda: now[0])
    assert (result.new, result.stopped, result.seconds) == (3, "budget", 12.0)
    assert sweep(few(), trial, study, budget_s=0.0, clock=lambda: now[0]).new == 0


def test_a_trial_that_is_out_of_time_ends_it_without_a_record(study: Study) -> None:
    tried: list[KernelConfig] = []

    def trial(config: KernelConfig) -> Record:
        tried.append(config)
        if len(tried) == 4:
            raise OutOfTime("the compiler was called off")
        return timed(config)

    result = sweep(few(), trial, study, trials=10, budget_s=60.0)
    assert (result.new, result.stopped) == (3, "budget")
    assert [r.name for r in study.records()] == [name(c) for c in tried[:3]]
    assert sweep(few(), timed, study, trials=4).records[3].name == name(tried[3])


@pytest.mark.parametrize("exhaustive", [False, True])
@pytest.mark.parametrize("trial", [timed, untimed])
def test_what_is_begun_ahead_changes_no_record(
    tmp_path: Path, trial: Callable[[KernelConfig], Record], exhaustive: bool
) -> None:
    plain = open_at(tmp_path / "plain.db")
    sweep(few(), trial, plain, trials=20, exhaustive=exhaustive)
    begun: list[KernelConfig] = []
    tried: list[KernelConfig] = []

    def watched(config: KernelConfig) -> Record:
        # Whatever is begun ahead is begun before its turn, and as many as there is reach for.
        assert config in begun or (trial is timed and not exhaustive)
        tried.append(config)
        if trial is untimed or exhaustive:
            assert len(begun) == min(len(tried) + 5, 20)
        return trial(config)

    ahead = Ahead(begun.append, 6, costed=trial is timed)
    study = open_at(tmp_path / "ahead.db")
    sweep(few(), watched, study, trials=20, exhaustive=exhaustive, ahead=ahead)
    assert study.records() == plain.records()
    assert len(set(begun)) == len(begun) >= 8
    assert set(begun) <= set(tried)


def test_progress_is_told(study: Study) -> None:
    seen: list[tuple[Record, Progress]] = []
    sweep(few(), timed, study, trials=5)
    sweep(few(), timed, study, trials=12, on_record=lambda record, progress: seen.append((record, progress)))
    assert [(p.tried, p.wanted, p.new) for _, p in seen] == [(n, 12, n - 5) for n in range(6, 13)]
    chosen = choose(study.records())
    assert chosen is not None and seen[-1][1].best == chosen.best
    assert [r for r, _ in seen] == study.records()[5:]


def test_a_fault_is_a_record_and_anything_else_goes_up(study: Study) -> None:
    calls: list[KernelConfig] = []

    def trial(config: KernelConfig) -> Record:
        calls.append(config)
        if len(calls) == 3:
            raise LaunchFault("too many resources requested", "a smaller block")
        if len(calls) == 6:
            raise MissingPiece("no compiler", "install one")
        return timed(config)

    with pytest.raises(MissingPiece):
        sweep(few(), trial, study)
    kept = study.records()
    assert [r.name for r in kept] == [name(c) for c in calls[:5]]
    assert (kept[2].outcome, kept[2].detail, kept[2].arch) == (Outcome.LAUNCH, "too many resources requested", "sm_80")


@pytest.mark.parametrize("when", ["trial", "before", "after"])
def test_an_interrupt_loses_nothing_that_is_finished(study: Study, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finished: list[str] = []
    add = study.add

    def trial(config: KernelConfig) -> Record:
        if when == "trial" and len(finished) == 4:
            raise KeyboardInterrupt
        finished.append(name(config))
        return timed(config)

    def interrupted(record: Record) -> None:
        if when == "after" or len(finished) < 4:
            add(record)
        if len(finished) == 4:
            monkeypatch.undo()
            raise KeyboardInterrupt

    if when != "trial":
        monkeypatch.setattr(study, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(few(), trial, study)
    assert [r.name for r in study.records()] == finished and len(finished) == 4


def test_what_cannot_be_swept_is_refused_before_any_trial(study: Study) -> None:
    with pytest.raises(RequestError):
        sweep(Space(F32, ARCHS[75], read_pairs("copy=cpasync")), timed, study)
    assert study.records() == []


# ---------------------------------------------------------------------------------------------------------------------
# Several processes, and one that is killed.

_WORKER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_tune as t
out = open(sys.argv[3], "a", buffering=1)
def trial(config):
    time.sleep(float(sys.argv[4]))
    out.write(t.name(config) + "\\n")
    return t.timed(config)
t.sweep(t.many(), trial, t.open_at(Path(sys.argv[2])), trials=int(sys.argv[5]))
"""


def worker(path: Path, log: Path, pause_s: float, trials: int) -> subprocess.Popen[str]:
    root = Path(wmmagen.__file__).parents[1]
    arguments = [str(Path(__file__).parent), str(path), str(log), str(pause_s), str(trials)]
    return subprocess.Popen(
        [sys.executable, "-c", _WORKER, *arguments],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_killed_sweep_loses_at_most_the_candidate_in_flight(tmp_path: Path) -> None:
    path, log = tmp_path / "s.db", tmp_path / "log"
    process = worker(path, log, 0.02, 10**6)
    deadline = time.monotonic() + 60
    while not (log.exists() and len(log.read_text().splitlines()) >= 8):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finished = log.read_text().splitlines()
    study = open_at(path)
    kept = [r.name for r in study.records()]
    assert kept in (finished, finished[:-1])
    tried: list[str] = []
    sweep(many(), lambda c: tried.append(name(c)) or timed(c), study, trials=20)  # type: ignore[func-returns-value]
    whole: list[str] = []
    other = open_at(tmp_path / "whole.db")
    sweep(many(), lambda c: whole.append(name(c)) or timed(c), other, trials=20)  # type: ignore[func-returns-value]
    assert kept + tried == whole and len(set(whole)) == 20


def test_processes_on_one_study_lose_nothing_and_show_nothing(tmp_path: Path) -> None:
    path, wanted = tmp_path / "s.db", 36
    logs = [tmp_path / f"log{i}" for i in range(3)]
    processes = [worker(path, log, 0.01, wanted) for log in logs]
    said = [process.communicate(timeout=100)[0] for process in processes]
    assert said == [""] * len(logs) and [p.returncode for p in processes] == [0] * len(logs)
    done = Counter(line for log in logs if log.exists() for line in log.read_text().splitlines())
    assert Counter(r.name for r in open_at(path).records()) == done
    # Each of the others may have had one candidate in flight when the last one was kept.
    assert wanted <= len(done) <= wanted + len(logs) - 1
    # Processes that went on in step, as they begin, would try everything three times.
    assert done.total() < 2 * len(done)
    assert all(many().contains(parse(kernel)) for kernel in done)


def test_what_is_drawn_depends_on_what_was_told() -> None:
    """TPE at work: two studies that differ only in which points were fast draw different points."""

    def drawn(best: str) -> list[int | None]:
        space = Space(F32, ARCHS[90], read_pairs(f"{PLAIN},feed=shared"))
        proposer = Proposer(space, seed=1, first=[])
        for place in range(0, len(space), len(space) // 60):
            config = space.at(place)
            median = 10.0 if str(config.warps) == best else 100.0
            told = timed(config)
            assert told.timing is not None
            timing = replace(told.timing, median_us=median, interval_us=(median, median))
            proposer.tell(replace(told, timing=timing))
        return [proposer._draw(random.Random(seed)) for seed in range(12)]

    one, other = drawn("4x2"), drawn("1x1")
    assert None not in one
    assert one != other


def test_a_study_that_cannot_be_written_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = open_at(tmp_path / "s.db")
    kept = timed(few().at(0))
    study.add(kept)
    before = (tmp_path / "s.db").read_bytes()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: str(tmp_path) not in str(path) and access(path, mode))
    found = find_study(str(tmp_path / "s.db"))
    assert found.records() == [kept]
    assert str(tmp_path) not in found.url
    assert (tmp_path / "s.db").read_bytes() == before
