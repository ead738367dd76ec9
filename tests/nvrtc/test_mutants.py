"""The validator rejects every kind of broken kernel for the right reason; and what breaks nothing survives.

Here each kind is made of one configuration; `prove_mutants.py` takes all of them, for several architectures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from tests.fakes import NumpyBackend
from wmmagen import cli, mutants, nvrtc, show
from wmmagen.arch import ARCHS
from wmmagen.backends import pick
from wmmagen.backends.pick import Place
from wmmagen.errors import MissingPiece, MutantError
from wmmagen.mistakes import KINDS, MUTANTS, Edit, Mutant
from wmmagen.mutants import Case, Row

pytestmark = pytest.mark.usefixtures("headers_once")

OLD = [ARCHS[75], ARCHS[80]]


def one_of(number: int, mutant: Mutant) -> Case:
    """Configurations take turns, so that all of them occur; the architecture is the oldest that takes it."""
    text = mutant.configs[number % len(mutant.configs)]
    return next(case for case in mutants.cases([mutant], OLD) if case.text == text)


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    some = [one_of(number, mutant) for number, mutant in enumerate(MUTANTS)]
    return {row.case.mutant.kind: row for row in mutants.judge_all(some, mutants.executor(), jobs=2)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_killed_for_its_reason(kind: str, rows: dict[str, Row]) -> None:
    row = rows[kind]
    assert row.counted and row.killed and not row.survived, f"{row.by or 'nothing'}: {row.detail}"
    assert row.by in (*KINDS[kind].codes, "values", "timeout")
    assert "killed by" in show.mutant(row) and show.kill_rate([row]).startswith("killed 1 of 1 mutant of 1 kind (100")


# ---------------------------------------------------------------------------------------------------------------------
# The judge is able to fail.

#: A second barrier is slow and right.
HARMLESS = replace(
    KINDS["read-barrier"],
    kind="harmless",
    edits=(
        Edit("__syncthreads();  // the slice is there", "__syncthreads(); __syncthreads();  // the slice is there"),
    ),
)


def case_of(mutant: Mutant, **more: object) -> Case:
    return Case(replace(mutant, **more), mutant.configs[0], ARCHS[80])  # type: ignore[arg-type]


def test_what_breaks_nothing_survives(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    row = mutants.judge(case_of(HARMLESS), mutants.executor())
    assert (row.killed, row.survived, row.by) == (False, True, "")
    monkeypatch.setattr(mutants, "chosen", lambda kinds: (replace(HARMLESS, configs=HARMLESS.configs[:1]),))
    assert cli.run(["mutants", "--arch", "sm_75", "--backend", "cpu"]) == 1
    said = capfd.readouterr().out
    assert "killed 0 of 1 mutant of 1 kind (0.0%)" in said and "survivor: harmless of " in said


def test_what_is_rejected_for_another_reason_survives() -> None:
    row = mutants.judge(case_of(KINDS["fill-barrier"], codes=("out-of-bounds",), words="D"), mutants.executor())
    assert (row.killed, row.survived, row.by) == (False, True, "race")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (Edit("a text that no template makes", ""), "stands 0 times"),
        (Edit("// 5. Epilogue", "// 5. The epilogue"), "changes nothing"),
        (Edit("// 5. Epilogue", "nonsense"), "does not compile"),
    ],
)
def test_what_is_no_mutant_is_an_error(edit: Edit, words: str) -> None:
    with pytest.raises(MutantError, match=words):
        mutants.judge(case_of(KINDS["fill-barrier"], edits=(edit,)), mutants.executor())


def test_findings_name_the_line_of_the_source() -> None:
    case = case_of(KINDS["read-barrier"])
    row = mutants.judge(case, mutants.executor(), partial(nvrtc.compile_source, line_info=True))
    number = int(row.detail.split("source line ")[1].split(";")[0])
    assert row.killed and 1 <= number <= case.order().source.count("\n")


# ---------------------------------------------------------------------------------------------------------------------
# On a card, which has values and no findings.


def test_on_a_card_what_values_do_not_show_is_not_counted() -> None:
    card = NumpyBackend()  # it computes the product, whatever the kernel says
    hidden, shown = (mutants.judge(case_of(KINDS[kind]), card) for kind in ("fill-barrier", "zeros"))
    assert (hidden.counted, hidden.survived) == (False, False)
    assert (shown.counted, shown.survived) == (True, True)
    assert "not counted" in show.mutant(hidden) and "SURVIVED" in show.mutant(shown)
    assert "not visible in values and not counted: 1, of the kinds fill-barrier" in show.kill_rate([hidden, shown])


def spoil(name: str, d: object) -> None:
    d[...] = 0  # type: ignore[index]


@pytest.mark.parametrize(("kind", "killed"), [("zeros", True), ("nan", False), ("beyond-d", True)])
def test_on_a_card_values_stand_for_findings_but_not_for_words(kind: str, killed: bool) -> None:
    row = mutants.judge(case_of(KINDS[kind]), NumpyBackend(spoil=spoil))
    assert (row.by, row.killed) == ("values", killed)


# ---------------------------------------------------------------------------------------------------------------------
# The command.


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> object:
        raise MissingPiece("there is no GPU in this test", "another test")

    monkeypatch.setattr(pick, "_best_gpu", none)


def test_the_command_prints_the_table_and_the_rate(no_gpu: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["mutants", "--only", "k-0-unwritten", "--arch", "sm_75"]) == 0
    out = capfd.readouterr().out.splitlines()
    assert out[0].startswith("backend cpu")
    assert out[1].startswith("killed by values") and "k-0-unwritten: D keeps" in out[1] and "cutlass #2674" in out[1]
    assert out[-1] == "killed 2 of 2 mutants of 1 kind (100.0%)"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--only", "zeroes"], 2),
        (["--only", "wait-missing", "--arch", "sm_75"], 2),
        (["--backend", "gpu", "--arch", "sm_75"], 3),
        (["--only", "zeros", "--backend", "none"], 2),
    ],
)
def test_what_the_command_refuses(arguments: list[str], status: int, no_gpu: None) -> None:
    assert cli.run(["mutants", *arguments]) == status


def test_a_survivor_on_a_card_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    place: Callable[..., Place] = lambda kind, arch: Place(NumpyBackend(), arch)  # noqa: E731
    monkeypatch.setattr(pick, "pick", place)
    assert cli.run(["mutants", "--only", "nothing", "--arch", "sm_75"]) == 1
