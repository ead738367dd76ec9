"""`--json` of every command, right, wrong and interrupted: one document on standard output, as it is published."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from tests import published
from tests.fakes import NumpyBackend
from wmmagen import cli, doctor, errors, nvrtc, records, sass, schemas, trial, tune
from wmmagen.arch import ARCHS
from wmmagen.backends import pick
from wmmagen.backends.pick import Place
from wmmagen.errors import CompileError, CrashFault, MissingPiece, OutOfTime, WmmagenError
from wmmagen.render import render

SMALL = "warps=1x1,frags=1x1"
SWEEP = ["sweep", "--arch", "sm_75", "--problem", "64", "--fix", f"{SMALL},k_steps=2,copy=ld,stages=1", "--jobs", "1"]
#: A quick and right command line of each command.
RIGHT: dict[str, list[str]] = {
    "doctor": ["doctor"],
    "rules": ["rules"],
    "schema": ["schema", "sweep"],
    "check": ["check", "", "--arch", "sm_75"],
    "render": ["render", SMALL, "--arch", "sm_75"],
    "compile": ["compile", SMALL, "--arch", "sm_75"],
    "inspect": ["inspect", SMALL, f"{SMALL},copy=ld,stages=1,pad_a=0", "--arch", "sm_75"],
    "validate": ["validate", SMALL, "--arch", "sm_75", "--problem", "32"],
    "space": ["space", "--arch", "sm_75", "--fix", "inst=16x16x16,warps=2x2,frags=2x4", "--list", "2"],
    "mutants": ["mutants", "--only", "fill-barrier", "--arch", "sm_75"],
    "accuracy": ["accuracy", "--arch", "sm_75", "--problem", "64", "--fix", f"{SMALL},acc=f16"],
    "bench": ["bench", SMALL, "--arch", "sm_75", "--problem", "64"],
    "ladder": ["ladder", "--arch", "sm_75", "--problem", "64", "--only", "global feed", "--only", "cp.async"],
    "ceiling": ["ceiling", "--arch", "sm_75", "--only", "register", "--data", "normal"],
    "estimate": ["estimate", SMALL, "k_steps=4", "--chip", "t4"],
    "sweep": [*SWEEP, "--trials", "1"],
    "emit": ["emit", SMALL, "--arch", "sm_75", "--to", "a folder"],
}
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled_once: Path) -> None:
    """A folder of its own for each test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    """Run a command, see that it ends with ``status`` and prints one document of ``kind``, and return that."""

    def run(*arguments: str, kind: str, status: int = 0) -> dict[str, Any]:
        capfd.readouterr()
        ended = cli.run([*arguments, "--json"])
        out, err = capfd.readouterr()
        assert ended == status, err
        document: dict[str, Any] = published.read(out)
        published.judge(kind, document)
        return document

    return run


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[..., NumpyBackend]:
    """Put a card of NumPy into this machine."""

    def put(**more: Any) -> NumpyBackend:
        backend = NumpyBackend(**more)
        monkeypatch.setattr(pick, "pick", lambda kind, arch, **more: Place(backend, arch))
        return backend

    return put


def raises(error: BaseException) -> Callable[..., Any]:
    def function(*_: object, **__: object) -> None:
        raise error

    return function


NOT_HERE = MissingPiece("it is not here", "get it")


def commands() -> list[str]:
    return [str(c.name or (c.callback and c.callback.__name__)) for c in cli.app.registered_commands]


# ---------------------------------------------------------------------------------------------------------------------
# The schemas themselves.


def test_every_command_has_its_schema_and_is_asked_below() -> None:
    assert sorted([*commands(), "error"]) == list(schemas.names())
    assert sorted(commands()) == sorted(RIGHT)


@pytest.mark.parametrize("name", schemas.names())
def test_a_schema_is_one_and_describes_each_of_its_fields(name: str, ask: Ask) -> None:
    document = ask("schema", name, kind="schema")
    assert document == schemas.read(name)
    assert document["$id"] == f"urn:wmmagen:schema:{name}"

    def look(schema: dict[str, Any]) -> None:
        assert set(schema.get("required", ())) <= set(schema.get("properties", ()))
        for field in schema.get("properties", {}).values():
            assert field["description"]
            look(field)
        for inner in (schema.get("items"), schema.get("additionalProperties")):
            if inner is not None:
                look(inner)

    look(document)


def test_no_schema_of_that_name(ask: Ask) -> None:
    assert "sweep" in ask("schema", "sweeep", kind="error", status=2)["error"]["fix"]


#: What the contract of the command line promises.
PROMISED = {
    "check": {"legal", "violations"},
    "render": {"name", "source"},
    "compile": {
        "name", "arch", "registers", "spill_bytes", "shared_bytes", "threads", "occupancy", "lint", "compile_seconds",
    },
    "validate": {"name", "arch", "backend", "exact", "runs"},
    "sweep": {"study", "arch", "backend", "problem", "outcomes", "best", "seconds"},
    "mutants": {"total", "killed", "survivors"},
    "bench": {"device", "rows"},
    "ladder": {"device", "rows", "record"},
    "emit": {"name", "files", "lint"},
    "doctor": {"ok", "findings"},
    "error": {"error"},
}  # fmt: skip
PROMISED_INSIDE = {
    ("check", "violations"): {"id", "rule", "message", "fix", "source"},
    ("validate", "runs"): {"problem", "exact", "guaranteed", "first_mismatch", "findings"},
    ("sweep", "best"): {"name", "file", "lint"},
    ("sweep", "outcomes"): {outcome.value for outcome in records.Outcome},
    ("doctor", "findings"): {"what", "state", "fix"},
    ("error", "error"): {"kind", "message", "fix"},
}


def test_what_is_promised_is_demanded() -> None:
    for command, fields in PROMISED.items():
        assert fields <= set(schemas.read(command)["required"])
    for (command, field), fields in PROMISED_INSIDE.items():
        inside = schemas.read(command)["properties"][field]
        assert fields <= set(inside.get("items", inside)["required"])


def test_the_kinds_of_errors_are_those_there_are() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, WmmagenError)]
    kinds = schemas.read("error")["properties"]["error"]["properties"]["kind"]["examples"]
    assert kinds == sorted({c.kind for c in classes} | {"usage", "interrupted"})


def test_an_error_inside_a_document_is_the_published_one() -> None:
    def bare(schema: Any) -> Any:
        dropped = ("description", "examples")
        return {k: bare(v) for k, v in schema.items() if k not in dropped} if isinstance(schema, dict) else schema

    assert bare(schemas.read("space")["properties"]["error"]) == bare(schemas.read("error")["properties"]["error"])


EMITTED: dict[str, Any] = {
    "name": "k",
    "arch": "sm_75",
    "files": ["k.cu"],
    "selftest": "nvcc k.cu",
    "lint": [],
    "lint_undone": None,
}


@pytest.mark.parametrize(
    "document",
    [
        {"name": "k", "arch": "sm_75"},
        {**EMITTED, "more": 1},
        {**EMITTED, "files": "k.cu"},
        {**EMITTED, "arch": "75"},
        {**EMITTED, "files": []},
    ],
    ids=["lacking", "undescribed", "another type", "another pattern", "too few"],
)
def test_a_document_that_is_not_the_published_one_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        published.judge("emit", document)


def test_a_reader_may_meet_a_further_field() -> None:
    published.judge("emit", EMITTED)
    document = {**EMITTED, "more": 1}
    jsonschema.Draft202012Validator(schemas.read("emit")).validate(document)


@pytest.mark.parametrize("text", ["", "{}\n{}", "said\n{}", '{"a": NaN}', '{"a": -Infinity}'])
def test_what_is_not_one_document_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        published.read(text)


# ---------------------------------------------------------------------------------------------------------------------
# Answers.


@pytest.mark.parametrize("command", RIGHT)
def test_a_right_answer(command: str, ask: Ask, card: Callable[..., NumpyBackend]) -> None:
    card()
    ask(*RIGHT[command], kind=command)


def test_a_kernel_that_is_not_legal(ask: Ask) -> None:
    assert ask("check", "pad_a=4", "--arch", "sm_75", kind="check", status=2)["violations"]


def test_one_rule(ask: Ask) -> None:
    assert len(ask("rules", "L201", kind="rules")["rules"]) == 1


def test_machine_code_that_nobody_can_read(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "locate", raises(NOT_HERE))
    document = ask(*RIGHT["compile"], kind="compile")
    assert document["sass"] is None and document["lint_undone"] == "it is not here: get it"


def spoil(name: str, d: np.ndarray) -> None:
    d[0, 0] += 1


def test_verdicts(ask: Ask, card: Callable[..., NumpyBackend]) -> None:
    card()
    command = ["validate", f"{SMALL},epilogue=linear", "--arch", "sm_75", "--problem", "32", "--alpha", "0.5"]
    run = ask(*command, "--freivalds-above", "16", kind="validate")["runs"][0]
    assert (run["method"], len(run["leading_dimensions"]), run["alpha"]) == ("freivalds", 4, 0.5)
    card(spoil=spoil)
    run = ask(*RIGHT["validate"], kind="validate", status=1)["runs"][0]
    assert "D[0, 0]" in run["first_mismatch"]


def test_a_space_with_nothing_in_it(ask: Ask) -> None:
    document = ask("space", "--arch", "sm_75", "--fix", f"{SMALL},copy=cpasync", kind="space", status=2)
    assert document["error"]["kind"] == "request" and document["legal"] == 0


def test_a_space_for_a_problem(ask: Ask) -> None:
    document = ask(*RIGHT["space"], "--problem", "128", "--strict-isa", kind="space")
    assert document["problem"] == "128x128x128" and len(document["names"]) == 2


def test_sweeps(ask: Ask, card: Callable[..., NumpyBackend], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pick, "_best_gpu", raises(NOT_HERE))
    compiled = ask(*SWEEP, "--trials", "1", kind="sweep")
    assert (compiled["backend"], compiled["device"], compiled["leading"]) == ("cpu", "CPU executor", [])
    assert "estimated_us" in compiled["best"] and "median_us" not in compiled["best"]
    bare = ask(*SWEEP, "--trials", "1", "--backend", "none", "--study", "bare", kind="sweep")
    assert (bare["backend"], bare["device"], bare["leading"]) == ("none", None, [compiled["best"]["name"]])
    assert bare["best"] is None
    card()
    document = ask(*SWEEP, "--trials", "1", kind="sweep")
    assert document["best"]["name"] == compiled["best"]["name"] and document["leading"] == []
    assert "median_us" in document["best"] and "estimated_us" not in document["best"]
    ask("emit", "--best", document["study"], "--to", "out", kind="emit")
    card(spoil=spoil, device="another card (sm_75)")
    document = ask(*SWEEP, "--trials", "1", kind="sweep", status=1)
    assert (document["best"], document["outcomes"]["wrong"]) == (None, 1)


def test_a_doctor_without_a_compiler(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_nvrtc", raises(NOT_HERE))
    document = ask("doctor", kind="doctor", status=3)
    assert document["ok"] is False
    assert all(f["adds"] and f["fix"] for f in document["findings"] if f["state"] == "missing")


# ---------------------------------------------------------------------------------------------------------------------
# Errors.


@pytest.mark.parametrize("command", RIGHT)
def test_every_command_refuses_an_unknown_option_with_2(command: str, ask: Ask) -> None:
    assert ask(*RIGHT[command], "--no-such", kind="error", status=2)["error"]["kind"] == "usage"


@pytest.mark.parametrize("command", RIGHT)
def test_every_command_can_be_interrupted(
    command: str, ask: Ask, card: Callable[..., NumpyBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    card()
    monkeypatch.setattr(doctor, "examine", lambda: ())
    monkeypatch.setattr(trial, "build", raises(KeyboardInterrupt()))
    monkeypatch.setattr(cli, "_answer", raises(KeyboardInterrupt()))
    error = ask(*RIGHT[command], kind="error", status=130)["error"]
    assert error["kind"] == "interrupted" and command in error["fix"] and "--json" in error["fix"]


@pytest.mark.parametrize("command", ["compile", "validate", "sweep"])
def test_a_compiler_that_is_not_here_ends_with_3(
    command: str, ask: Ask, card: Callable[..., NumpyBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    card()
    monkeypatch.setattr(trial, "build", raises(NOT_HERE))
    document = ask(*RIGHT[command], kind="error", status=3)
    assert document == {"error": {"kind": "missing", "message": "it is not here", "fix": "get it"}}


@pytest.mark.parametrize("command", ["validate", "sweep"])
def test_a_demanded_card_that_is_not_here_ends_with_3(command: str, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pick, "_best_gpu", raises(NOT_HERE))
    ask(*RIGHT[command], "--backend", "gpu", kind="error", status=3)


def test_a_source_that_is_refused_ends_with_1(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(config: Any, arch: Any, compiler: Any) -> Any:
        return render(config, arch), compiler("no C++", "k", arch)

    monkeypatch.setattr(trial, "build", build)
    assert ask(*RIGHT["compile"], kind="error", status=1)["error"]["kind"] == "compile"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CrashFault("an illegal address"), "fault"),
        (OutOfTime("late"), "time"),
        (CompileError("no", "", "log"), "compile"),
    ],
)
def test_a_kernel_that_cannot_be_run_ends_with_1(
    error: WmmagenError, kind: str, ask: Ask, card: Callable[..., NumpyBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card(), "run", raises(error))
    assert ask(*RIGHT["validate"], kind="error", status=1)["error"]["kind"] == kind


def test_more_memory_than_there_is_ends_with_3(
    ask: Ask, card: Callable[..., NumpyBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card(), "run", raises(MemoryError()))
    assert ask(*RIGHT["validate"], kind="error", status=3)["error"]["kind"] == "missing"


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["rules", "Z999"], "request"),
        (["check", "pda_a=8", "--arch", "sm_75"], "config"),
        (["check", "a=s4,layout=rc", "--arch", "sm_80"], "not-generated-yet"),
        (["render", "pad_a=4", "--arch", "sm_75"], "illegal"),
        (["compile", "pad_a=4", "--arch", "sm_75"], "illegal"),
        (["validate", "", "--arch", "sm_75", "--alpha", "2"], "request"),
        (["space", "--list", "all"], "request"),
        (["inspect", "", "--arch", "sm_75", "--problem", "100"], "illegal"),
        (["inspect", "", "--arch", "sm_75", "--problem", "2048"], "request"),
        (["inspect", "", "pad_a=4", "--arch", "sm_75"], "illegal"),
        (["inspect", "--arch", "sm_75"], "usage"),
        (["sweep", "--arch", "sm_75", "--problem", "100", "--fix", "residue=exact"], "request"),
        (["emit", "--best", "none", "--to", "out"], "study"),
        ([], "usage"),
        (["nonsense"], "usage"),
        (["emit"], "usage"),
    ],
)
def test_bad_requests_end_with_2(arguments: list[str], kind: str, ask: Ask) -> None:
    assert ask(*arguments, kind="error", status=2)["error"]["kind"] == kind


@pytest.mark.parametrize(("option", "value"), [("--alpha", "nan"), ("--beta", "inf")])
def test_a_factor_that_json_cannot_write_is_refused(
    option: str, value: str, ask: Ask, card: Callable[..., NumpyBackend]
) -> None:
    card()
    command = ["validate", f"{SMALL},epilogue=linear", "--arch", "sm_75", option, value]
    assert ask(*command, kind="error", status=2)["error"]["kind"] == "config"


# ---------------------------------------------------------------------------------------------------------------------
# Foreign architectures: a kernel of sm_75 on whatever card is at hand.

FOREIGN = {"arch": ARCHS[90], "device": "a card of NumPy (sm_90)"}
FOREIGN_LINE = (
    "backend gpu: a card of NumPy (sm_90) runs sm_75 kernels assembled again for it: verdicts hold, times are foreign "
    "and never rank."
)


@pytest.mark.parametrize("command", ["validate", "sweep"])
def test_the_first_line_says_what_runs_where(
    command: str, card: Callable[..., NumpyBackend], capfd: pytest.CaptureFixture[str]
) -> None:
    card(**FOREIGN)
    line = FOREIGN_LINE + (" Estimates rank." if command == "sweep" else "")
    assert cli.run(RIGHT[command]) == 0
    assert capfd.readouterr().out.splitlines()[0] == line
    assert cli.run([*RIGHT[command], "--json"]) == 0
    assert capfd.readouterr().err.splitlines()[0] == line


def test_a_foreign_verdict_holds(ask: Ask, card: Callable[..., NumpyBackend]) -> None:
    card(**FOREIGN)
    document = ask(*RIGHT["validate"], kind="validate")
    assert (document["arch"], document["device"], document["foreign"]) == ("sm_75", FOREIGN["device"], True)
    assert document["exact"] is True
    card(**FOREIGN, spoil=spoil)
    assert ask(*RIGHT["validate"], kind="validate", status=1)["foreign"] is True
    card()
    assert ask(*RIGHT["validate"], kind="validate")["foreign"] is False


def test_foreign_times_never_rank_and_estimates_do(
    ask: Ask, card: Callable[..., NumpyBackend], capfd: pytest.CaptureFixture[str]
) -> None:
    card(**FOREIGN)
    document = ask(*SWEEP, "--trials", "2", kind="sweep")
    assert (document["arch"], document["device"], document["foreign"]) == ("sm_75", FOREIGN["device"], True)
    assert (document["outcomes"]["ok"], document["leading"]) == (2, [])
    best = document["best"]
    assert best["chip"] == "T4" and "median_us" not in best
    kept = tune.find_study(document["study"]).records()
    assert [(r.arch, r.foreign, r.ranks, r.device) for r in kept] == [("sm_75", True, False, FOREIGN["device"])] * 2
    assert all(record.timing is not None for record in kept)
    assert min((r.estimate.us, r.name) for r in kept if r.estimate) == (best["estimated_us"], best["name"])
    assert Path(best["file"]).exists()
    emitted = ask("emit", "--best", document["study"], "--to", "out", kind="emit")
    assert emitted["name"] == best["name"]
    words = json.loads(Path("out", "manifest.json").read_text())["kernels"][best["name"]]["evidence_words"]
    assert "no time was measured" in words and "estimate for T4" in words and "timed at" not in words
    assert cli.run([*SWEEP, "--trials", "2"]) == 0
    said = capfd.readouterr().out
    assert "by ESTIMATE" in said and "the fastest by estimate" in said
    assert said.count("foreign time") == said.count("limited by") == 2


def test_a_time_of_its_own_card_wins_over_faster_foreign_ones(ask: Ask, card: Callable[..., NumpyBackend]) -> None:
    card(**FOREIGN)
    foreign = ask(*SWEEP, "--trials", "3", kind="sweep")
    card()
    own = ask(*SWEEP, "--trials", "1", kind="sweep")
    assert "estimated_us" in foreign["best"] and "median_us" in own["best"]
    emitted = ask("emit", "--best", own["study"], "--to", "out", kind="emit")
    assert emitted["name"] == own["best"]["name"]
    assert [r.ranks for r in tune.find_study(own["study"]).records()] == [False, False, False, True]
