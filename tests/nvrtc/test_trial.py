"""One candidate's story: every way in which it can end, each on a backend that is told to behave so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.fakes import NumpyBackend
from wmmagen import trial
from wmmagen.arch import ARCHS
from wmmagen.backends.pick import Place
from wmmagen.config import Problem
from wmmagen.defaults import read_config
from wmmagen.errors import CompileError, CrashFault, Fault, IllegalConfig, LaunchFault, TimeoutFault
from wmmagen.records import Outcome
from wmmagen.timing import TimingProtocol

pytestmark = pytest.mark.usefixtures("compiled_once")

SM75 = ARCHS[75]
CONFIG = read_config("warps=2x2,frags=1x1,k_steps=2", SM75)
PROBLEM = Problem.packed(CONFIG.operation, 64, 96, 128)


def story(backend: NumpyBackend | None, **changes: object) -> trial.Record:
    config = replace(CONFIG, **changes)  # type: ignore[arg-type]
    return trial.try_out(config, SM75, PROBLEM, backend, TimingProtocol())


def test_right_and_timed() -> None:
    record = story(NumpyBackend())
    assert record.outcome is Outcome.OK
    assert record.ranks
    assert record.guaranteed
    # The hostile problems, the asked one, the first again, and the asked one again after timing.
    assert record.runs == len(trial.validation_problems(CONFIG)) + 3
    assert record.facts is not None
    assert record.facts.registers > 0


def test_without_a_backend_it_is_unverified_and_never_ranks() -> None:
    record = story(None)
    assert (record.outcome, record.backend, record.ranks, record.runs) == (Outcome.UNVERIFIED, "none", False, 0)


def test_on_a_foreign_card_it_is_verified_and_never_ranks() -> None:
    record = story(NumpyBackend(arch=ARCHS[90]))
    assert record.outcome is Outcome.OK
    assert record.foreign
    assert record.timing is not None
    assert not record.ranks


def test_without_a_clock_it_is_verified_and_never_ranks() -> None:
    record = story(NumpyBackend(clocked=False))
    assert (record.outcome, record.timing, record.ranks) == (Outcome.OK, None, False)


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [(LaunchFault("l"), Outcome.LAUNCH), (TimeoutFault("t"), Outcome.TIMEOUT), (CrashFault("c"), Outcome.CRASH)],
)
def test_a_fault_is_an_outcome(fault: Fault, outcome: Outcome) -> None:
    record = story(NumpyBackend(fault_of=lambda name: fault))
    assert record.outcome is outcome
    assert record.detail == fault.message


def test_one_wrong_element_is_wrong() -> None:
    def spoil(name: str, d: np.ndarray) -> None:
        d[-1, -1] += 1

    record = story(NumpyBackend(spoil=spoil))
    assert record.outcome is Outcome.WRONG
    assert record.timing is None
    assert "row" in record.detail
    assert "block" in record.detail


def test_an_unwritten_tile_is_wrong() -> None:
    def spoil(name: str, d: np.ndarray) -> None:
        d[:16, :16] = np.nan

    assert story(NumpyBackend(spoil=spoil)).outcome is Outcome.WRONG


def test_wrong_after_timing_is_wrong() -> None:
    backend = NumpyBackend()

    def spoil(name: str, d: np.ndarray) -> None:
        if len(backend.runs_done) > len(trial.validation_problems(CONFIG)) + 2:
            d[0, 0] += 1

    backend.spoil = spoil
    record = story(backend)
    assert record.outcome is Outcome.WRONG
    assert record.detail.startswith("after timing")


def test_writing_to_an_operand_is_wrong() -> None:
    class Scribbler(NumpyBackend):
        def run(self, *arguments: object, **more: object) -> list[np.ndarray]:
            back = super().run(*arguments, **more)  # type: ignore[arg-type]
            back[1][-1] ^= 1
            return back

    record = story(Scribbler())
    assert record.outcome is Outcome.WRONG
    assert record.detail.startswith("B was written to")


def test_an_illegal_configuration_is_not_compiled() -> None:
    record = story(NumpyBackend(), pad_a=4)
    assert record.outcome is Outcome.ILLEGAL
    assert record.facts is None
    assert "L201" in record.detail


def test_a_problem_that_is_no_multiple_is_refused() -> None:
    record = trial.try_out(CONFIG, SM75, Problem.packed(CONFIG.operation, 33, 96, 32), NumpyBackend(), TimingProtocol())
    assert record.outcome is Outcome.ILLEGAL
    assert "N801" in record.detail


def test_a_refused_source_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> object:
        raise CompileError("no", log="no")

    monkeypatch.setattr(trial, "build", refuse)
    assert story(NumpyBackend()).outcome is Outcome.COMPILE


def test_a_card_that_cannot_assemble_it_is_an_outcome() -> None:
    class Refuser(NumpyBackend):
        def run(self, *arguments: object, **more: object) -> list[np.ndarray]:
            raise CompileError("the linker refuses it")

    record = story(Refuser(arch=ARCHS[90]))
    assert (record.outcome, record.detail) == (Outcome.COMPILE, "the linker refuses it")
    # The card refused it, not the compiler: elsewhere it is open.
    assert Place(Refuser(arch=ARCHS[90]), SM75).settles(record)
    assert not Place(NumpyBackend(device="another card (sm_75)"), SM75).settles(record)
    assert Place(NumpyBackend(), SM75).settles(replace(record, facts=None))
    assert record.facts is not None


def test_validation_covers_what_it_promises() -> None:
    for text in ("stages=1,copy=ld", "stages=2,copy=ld", "stages=4,copy=cpasync", "feed=global"):
        config = read_config(text, ARCHS[80])
        known = trial.derive.values(config)
        problems = trial.validation_problems(config)
        slices = {p.k // known["BLOCK_K"] for p in problems}
        assert {1, config.stages, config.stages + 1} - {0} <= slices
        assert config.stages - 1 in slices | {0}
        for p in problems:
            assert len({p.m, p.n, p.k}) == 3
            assert p.m >= 2 * known["BLOCK_M"]
            assert p.n >= 2 * known["BLOCK_N"]
        assert any(p.lda > p.k and p.ldb > p.n and p.ldd > p.n for p in problems)


def test_a_run_on_an_impossible_problem_is_refused() -> None:
    _, binary = trial.build(CONFIG, SM75)
    with pytest.raises(IllegalConfig, match="N803"):
        trial.check_run(CONFIG, binary, NumpyBackend(), Problem.packed(CONFIG.operation, 64, 96, 24))


def test_no_element_of_d_launches_nothing() -> None:
    _, binary = trial.build(CONFIG, SM75)
    backend = NumpyBackend()
    run = trial.check_run(CONFIG, binary, backend, Problem.packed(CONFIG.operation, 0, 96, 32))
    assert run.exact
    assert backend.runs_done == []


def test_the_field_pattern_says_what_it_does_not_guarantee() -> None:
    config = read_config("acc=f16,warps=1x1,frags=1x1,k_steps=1", SM75)
    _, binary = trial.build(config, SM75)
    problem = Problem.packed(config.operation, 16, 16, 352)
    run = trial.check_run(config, binary, NumpyBackend(), problem, pattern="field")
    assert not run.guaranteed
