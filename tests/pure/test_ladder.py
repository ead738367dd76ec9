"""The ladder: its rungs on each architecture, what becomes of them with and without a clock, its record and picture."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import published
from tests.fakes import NumpyBackend, binary_of, compiled
from wmmagen import chips, cli, known, ladder, picture, show, trial
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import pick
from wmmagen.backends.library import CardLibrary
from wmmagen.backends.pick import Place
from wmmagen.config import KernelConfig, name, read_pairs, spell, values_of
from wmmagen.errors import CompileError, CrashFault, RequestError
from wmmagen.ladder import Record, Step
from wmmagen.nvrtc import Binary
from wmmagen.timing import TimingProtocol

SM75, SM90 = ARCHS[75], ARCHS[90]
SIZE = (64, 64, 64)
H200 = "NVIDIA H200 (sm_90)"


# ---------------------------------------------------------------------------------------------------------------------
# Rungs.


@pytest.mark.parametrize("sm", [sm for sm in ARCHS if sm >= 75])
def test_each_rung_changes_its_keys_of_the_legal_one_below_and_nothing_else(sm: int) -> None:
    below: KernelConfig | None = None
    for step in ladder.climb(ARCHS[sm], (2048, 2048, 2048)):
        keys = read_pairs(step.rung.keys)
        assert {key: values_of(step.config)[key] for key in keys} == keys
        if below is not None:
            changed = read_pairs(ladder.differing(step.config, below))
            assert changed == keys, step.rung.name
        below = below if step.refused else step.config


def test_names_and_words_are_the_rungs_own() -> None:
    for words in ("name", "adds"):
        assert len({getattr(rung, words) for rung in ladder.RUNGS}) == len(ladder.RUNGS)
    assert ladder.BEST not in {rung.name for rung in ladder.RUNGS}


def test_hopper_has_every_rung_and_turing_says_what_it_lacks() -> None:
    assert not any(step.refused for step in ladder.climb(SM90, (4096, 4096, 4096)))
    turing = {step.rung.name: step.refused for step in ladder.climb(SM75, (2048, 2048, 2048)) if step.refused}
    assert set(turing) == {"cp.async", "three stages", "K slice 64"}
    assert "sm_80" in turing["cp.async"] and "shared memory" in turing["K slice 64"]


def test_what_a_small_size_does_not_take_is_said_and_the_next_rung_stands_below() -> None:
    steps = {step.rung.name: step for step in ladder.climb(SM90, SIZE)}
    assert "64" in steps["64x64 warp tiles"].refused and not steps["raster"].refused
    assert spell(values_of(steps["raster"].config)["frags"]) == "2x2"
    with pytest.raises(RequestError, match="no rung takes 65x64x64"):
        ladder.climb(SM90, (65, 64, 64))


def test_the_best_that_is_known_stands_on_top_with_what_it_changes() -> None:
    below = ladder.climb(SM90, SIZE)
    best = below[0].config
    *_, top = ladder.climb(SM90, SIZE, best, "somebody said so")
    assert (top.rung.name, top.rung.adds, top.config) == (ladder.BEST, "somebody said so", best)
    legal = [step.config for step in below if not step.refused]
    assert read_pairs(top.rung.keys).keys() == {
        key for key, value in values_of(best).items() if value != values_of(legal[-1])[key]
    }


def test_only_some_rungs() -> None:
    steps = ladder.climb(SM75, SIZE)
    assert [step.rung.name for step in ladder.chosen(steps, ["pad", "global feed"])] == ["global feed", "pad"]
    assert ladder.chosen(steps, ()) == steps
    with pytest.raises(RequestError, match="no rung is called bad"):
        ladder.chosen(steps, ["bad", "pad"])
    with pytest.raises(RequestError, match=r"cp\.async: C501"):
        ladder.chosen(steps, ["cp.async"])


# ---------------------------------------------------------------------------------------------------------------------
# With a clock, and without.


def few(*, arch: Arch = SM75) -> list[Step]:
    names = ["global feed", "shared memory", "wide copies", "cp.async", "pad"]
    return ladder.chosen(ladder.climb(arch, SIZE), names)


def measured(library: Any = None, steps: Sequence[Step] | None = None, *, above: bool = False, **card: Any) -> Record:
    place = Place(NumpyBackend(**card), SM75, library=library)
    return ladder.measure(steps or few(), SM75, SIZE, place, TimingProtocol(), compiled, above=above)


def test_rungs_are_timed_in_one_comparison_whatever_they_promise(library: CardLibrary) -> None:
    record = measured(library, above=True)
    assert record.timed and record.right
    assert [row["rung"] for row in record.rows] == [step.rung.name for step in few()]
    timed = [row for row in record.rows if row["outcome"] == "ok"]
    assert len(timed) == 4 and len(record.document["denominators"]) == 2 and len(record.document["ceilings"]) == 1
    for row in timed:
        assert row["share"]["cublas_same_types"] == 8.0 / row["median_us"] and row["estimated_us"] is None
        assert row["beside"]["cublas_same_types"].startswith("cuBLASLt same types (f16, f32, f32) 64x64x64: 8.00 us")
        assert row["beside"]["ceiling"].startswith("products of fragments in registers (f16, f32, 16x16x16): ")
    assert timed[0]["gain"] is None
    for below, row in itertools.pairwise(timed):
        assert row["gain"]["low"] == below["median_us"] / row["median_us"]
    (refused,) = (row for row in record.rows if row["outcome"] == "illegal")
    assert refused["rung"] == "cp.async" and refused["median_us"] is None and "C501" in refused["detail"]
    text = show.ladder(record)
    assert text.count("64x64x64") == 5 and "illegal: C501" in text and "FP32, f32, f32, f32" in text
    assert "nothing was measured" not in text


def test_the_best_kernel_that_is_a_rung_is_timed_once() -> None:
    best = few()[1].config
    steps = ladder.climb(SM75, SIZE, best, "it won")
    record = measured(steps=[step for step in steps if step.config == best or step.rung.name == "pad"])
    first, _, last = record.rows
    assert first["median_us"] == last["median_us"] and last["gain"] is None and last["adds"] == "it won"


def test_a_wrong_rung_has_no_time_and_the_answer_is_no() -> None:
    wrong = few()[1].config

    def spoil(entry: str, d: Any) -> None:
        if entry == f"{wrong}_kernel":
            d[0, 0] += 1

    record = measured(spoil=spoil)
    assert not record.right and record.rows[1]["outcome"] == "wrong" and record.rows[1]["median_us"] is None
    assert record.rows[2]["gain"]["low"] == record.rows[0]["median_us"] / record.rows[2]["median_us"]
    assert "wrong: " in show.ladder(record) and "wrong: " in picture.svg(record)


def proved(compiler: Any = compiled, **card: Any) -> Record:
    place = Place(NumpyBackend(clocked=False, name="cpu", **card), SM75)
    return ladder.prove(few(), SM75, SIZE, place, chips.named("t4"), compiler)


def test_without_a_clock_estimates_stand_alone(tmp_path: Path) -> None:
    record = proved()
    (tmp_path / "ladder.json").write_text(record.to_text(), encoding="utf-8")
    assert ladder.read(tmp_path / "ladder.json") == record
    assert record.right and not record.timed and record.document["chip"] == chips.named("t4").name
    for row in record.rows:
        assert row["median_us"] is None and row["gain"] is None and set(row["share"].values()) == {None}
        assert (row["estimated_us"] is None) is (row["outcome"] == "illegal")
    assert "ESTIMATED for" in show.ladder(record) and "nothing was measured" in show.ladder(record)
    drawn = picture.svg(record)
    assert "ESTIMATED for" in drawn and 'class="bar"' not in drawn and drawn.count('class="estimate"') == 4


def test_what_fails_without_a_clock_is_said() -> None:
    one, other, another = (few()[place].config for place in (0, 1, 2))

    def refuses(source: str, entry: str, arch: Arch) -> Binary:
        if entry == f"{another}_kernel":
            raise CompileError("it refused", "read the log", "the log")
        return compiled(source, entry, arch)

    record = proved(
        refuses,
        fault_of=lambda entry: CrashFault("it broke") if entry == f"{one}_kernel" else None,
        spoil=lambda entry, d: d.__setitem__((0, 0), 7777) if entry == f"{other}_kernel" else None,
    )
    assert [row["outcome"] for row in record.rows[:3]] == ["crash", "wrong", "compile"] and not record.right
    assert all(row["estimated_us"] is None for row in record.rows[:3])


# ---------------------------------------------------------------------------------------------------------------------
# Records and pictures.


def synthetic(**changes: Any) -> Record:
    """A record as an H200 would leave it, with round figures."""
    rows: list[dict[str, Any]] = []
    for number, step in enumerate(ladder.climb(SM90, (2048, 2048, 2048))):
        us = 8000.0 / 1.5**number
        rows.append(
            {"rung": step.rung.name, "adds": step.rung.adds, "changes": step.rung.keys, "name": name(step.config)}
            | {"problem": "2048x2048x2048", "outcome": "ok", "detail": "", "median_us": us, "tflops": 17179.869 / us}
            | {"share": {"cublas_same_types": 26.7 / us, "cublas_fp32": 376.0 / us, "ceiling": 30.0 / us}}
            | {"gain": {"median": 1.5, "low": 1.49, "high": 1.51} if number else None, "flags": [], "empty_us": None}
            | {"estimated_us": None, "estimated_tflops": None, "limiting": None}
        )
    rows[7] |= {"outcome": "illegal", "detail": "R402 it needs <more> & more", "median_us": None, "tflops": None}
    denominators = [
        {"kind": kind, "types": [a, "f32", "f32"], "reason": "", "median_us": us, "tflops": 17179.869 / us}
        | {"candidate": "candidate 0", "version": "13.1.0"}
        for kind, a, us in (("same types", "f16", 26.7), ("FP32", "f32", 376.0))
    ]
    document = {
        "arch": "sm_90", "device": H200, "problem": "2048x2048x2048", "mode": "warm", "data": "normal", "chip": None,
        "foreign": False, "rows": rows, "denominators": denominators,
        "ceilings": [{"types": ["f16", "f32"], "shape": "16x16x16", "reason": "", "tflops": 560.0}],
    } | changes  # fmt: skip
    return Record(document)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "ladder.json"
    file.write_text(synthetic().to_text(), encoding="utf-8")
    assert ladder.read(file) == synthetic()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("device"),
        lambda d: d.update(rows=[]),
        lambda d: d.update(ceilings=None),
        lambda d: d["rows"][0].update(median_us="8"),
        lambda d: d["rows"][0].update(median_us=-1.0),
        lambda d: d["rows"][0].update(tflops=True),
        lambda d: d["rows"][1]["gain"].update(low=0),
        lambda d: d["rows"][2].update(share=None),
        lambda d: d["rows"][2]["share"].pop("ceiling"),
        lambda d: d["rows"].append(7),
        lambda d: d["denominators"][0].update(types="f16"),
        lambda d: d["ceilings"][0].pop("shape"),
        lambda d: d.update(foreign="no"),
    ],
)
def test_what_is_no_record_is_refused_with_its_reason(spoil: Callable[[Any], None], tmp_path: Path) -> None:
    document = json.loads(synthetic().to_text())
    spoil(document)
    file = tmp_path / "ladder.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(RequestError, match="holds no record of a ladder: "):
        ladder.read(file)


def test_the_table_beside_a_record_names_it(tmp_path: Path) -> None:
    table, record = tmp_path / "ladder.txt", tmp_path / "ladder.json"
    table.write_text("size path", encoding="utf-8")
    with pytest.raises(RequestError) as alone:
        ladder.read(table)
    record.write_text(synthetic().to_text(), encoding="utf-8")
    with pytest.raises(RequestError) as beside:
        ladder.read(table)
    assert (alone.value.fix, beside.value.fix) == ("wmmagen ladder --to FILE makes one", f"--read {record}")


@pytest.mark.parametrize("text", ["", "{}", "[]", "[" * 100_000, "null"])
def test_what_is_no_document_is_no_record(text: str, tmp_path: Path) -> None:
    file = tmp_path / "ladder.json"
    for made in (False, True):
        if made:
            file.write_text(text, encoding="utf-8")
        with pytest.raises(RequestError, match="holds no record of a ladder: "):
            ladder.read(file)


SVG = {"": "http://www.w3.org/2000/svg"}


def test_bars_are_as_long_as_the_rates_they_stand_for() -> None:
    record = synthetic()
    root = ET.fromstring(picture.svg(record))
    bars = [r for r in root.findall("rect", SVG) if r.get("class") in ("bar", "best")]
    rates = [row["tflops"] for row in record.rows if row["tflops"] is not None]
    assert len(bars) == len(rates) == 13
    longest = float(bars[-1].attrib["width"])
    for bar, rate in zip(bars, rates, strict=True):
        assert float(bar.attrib["width"]) == pytest.approx(max(1.0, longest * rate / rates[-1]), abs=0.1)
    marks = [float(t.attrib["x"]) for t in root.findall("text", SVG) if (t.text or "").isdigit()]
    numbers = [float(t.text or "") for t in root.findall("text", SVG) if (t.text or "").isdigit()]
    # The scale is the bars' own.
    per_unit = (marks[-1] - marks[0]) / numbers[-1]
    assert longest == pytest.approx(rates[-1] * per_unit, abs=0.2) and 4 <= len(numbers) <= 7
    limits = [float(one.attrib["x1"]) for one in root.findall("line", SVG) if one.get("class") == "limit"]
    against = sorted((17179.869 / 376.0, 560.0, 17179.869 / 26.7))
    assert limits == pytest.approx([marks[0] + per_unit * rate for rate in against], abs=0.2)


def test_a_ceiling_far_above_all_else_leaves_the_bars_their_length() -> None:
    record = synthetic()
    far = synthetic(ceilings=[record.document["ceilings"][0] | {"tflops": 9000.0}])
    root = ET.fromstring(picture.svg(far))
    assert len([line for line in root.findall("line", SVG) if line.get("class") == "limit"]) == 2
    words = [text.text or "" for text in root.findall("text", SVG)]
    assert "C" not in words and any(text.endswith("9000.0 TFLOP/s, beyond the scale") for text in words)
    bars = [float(r.attrib["width"]) for r in root.findall("rect", SVG) if r.get("class") in ("bar", "best")]
    assert max(bars) > 200


RECORDS = Path(__file__).resolve().parents[2] / "sweeps" / "records"
DRAWN = sorted(file.with_suffix(".json") for file in RECORDS.glob("ladder_*.svg"))


@pytest.mark.parametrize("file", DRAWN, ids=lambda file: file.stem)
def test_a_committed_picture_is_drawn_from_the_record_beside_it(file: Path) -> None:
    assert file.with_suffix(".svg").read_text(encoding="utf-8") == picture.svg(ladder.read(file))


def test_there_is_a_picture() -> None:
    assert DRAWN


def test_the_picture_tells_in_words_what_it_shows() -> None:
    record = synthetic()
    drawn = picture.svg(record)
    root = ET.fromstring(drawn)
    assert root.get("role") == "img" and root.get("aria-labelledby") == "title description"
    described = root.findtext("desc", namespaces=SVG) or ""
    texts = [text.text or "" for text in root.findall("text", SVG)]
    for row in record.rows:
        assert row["rung"] in texts and row["rung"] in described
    assert "not legal here: R402 it needs <more> & more" in texts
    assert sum(bool(re.match("[ABC]: ", text)) for text in texts) == 3 and set("ABC") <= set(texts)
    assert "prefers-color-scheme: dark" in drawn and H200 in (root.findtext("title", namespaces=SVG) or "")
    sizes = [int(size) for size in re.findall(r"(\d+)px", drawn)]
    assert min(sizes) >= 15 and drawn == picture.svg(record)


def test_nothing_stands_outside_of_the_picture() -> None:
    root = ET.fromstring(picture.svg(synthetic()))
    _, _, wide, high = map(float, root.attrib["viewBox"].split())
    for text in root.findall("text", SVG):
        x, y, length = float(text.attrib["x"]), float(text.attrib["y"]), 8.2 * len(text.text or "")
        begin = {"end": x - length, "middle": x - length / 2}.get(text.get("text-anchor", ""), x)
        assert 0 <= begin and 0 < y < high
        assert begin + (length if text.get("class") != "title" else 0) <= wide, text.text


def test_a_foreign_ladder_says_so() -> None:
    assert "times are foreign" in picture.svg(synthetic(foreign=True))


# ---------------------------------------------------------------------------------------------------------------------
# The command.


@pytest.fixture
def at_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: CardLibrary) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial, "build", lambda config, arch, compiler: (None, binary_of(config, arch)))
    best = ladder.climb(SM75, SIZE)[0].config
    monkeypatch.setattr(known, "best", lambda *_: known.Known(best, "winner", "it won"))
    monkeypatch.setattr(pick, "pick", lambda kind, arch, **more: Place(NumpyBackend(), arch, library=library))


RUN = ["ladder", "--arch", "sm_75", "--problem", "64", "--only", "pad", "--only", "global feed", "--no-ceiling"]


def test_the_same_record_gives_the_same_bytes(at_card: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*RUN, "--svg", "one.svg", "--json"]) == 0
    document = published.read(capsys.readouterr().out)
    published.judge("ladder", document)
    assert document["record"] == "sweeps/ladders/sm_75_64x64x64_a_card_of_NumPy.json" and document["svg"] == "one.svg"
    assert cli.run(["ladder", "--read", document["record"], "--svg", "other.svg"]) == 0
    said = capsys.readouterr().out
    assert "global feed" in said and said.endswith(f"Record: {document['record']}\nPicture: other.svg\n")
    assert Path("one.svg").read_bytes() == Path("other.svg").read_bytes()
    assert cli.run([*RUN, "--to", "elsewhere/r.json", "--seconds", "0.5", "--no-fp32"]) == 0
    denominators = ladder.read(Path("elsewhere/r.json")).document["denominators"]
    assert [one["reason"] for one in denominators] == ["", "nobody asked for it"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--read", "r.json"], "no record of a ladder"),
        (["--read", "r.json", "--only", "pad"], "--read measures nothing"),
        (["--only", "pads"], "no rung is called pads"),
        (["--problem", "0"], "no product"),
        (["--problem", "65"], "65"),
        (["--problem", "64@4"], "64x64x64@4 is a batch"),
        (["--problem", "64@x"], "no count behind"),
        (["--seconds", "0"], "leaves no time"),
        (["--svg", "."], "cannot be written"),
        (["--to", "."], "cannot be written"),
        (["--backend", "none"], "runs nothing"),
    ],
)
def test_bad_requests_end_with_2(
    arguments: list[str], words: str, at_card: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["ladder", "--arch", "sm_75", "--problem", "64", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not Path("sweeps").exists()


def test_a_rung_that_is_wrong_ends_with_1(
    at_card: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(entry: str, d: Any) -> None:
        d[0, 0] += 1

    monkeypatch.setattr(pick, "pick", lambda kind, arch, **more: Place(NumpyBackend(spoil=spoil), arch))
    assert cli.run(RUN) == 1 and "wrong: " in capsys.readouterr().out


def test_a_record_of_estimates_says_so_in_every_place() -> None:
    rows = [
        row | {"tflops": None, "median_us": None, "estimated_us": 8.0, "estimated_tflops": 2147.0, "limiting": "l2"}
        for row in synthetic().rows
    ]
    record = replace(synthetic(), document=synthetic(mode=None, data=None, chip="H200", rows=rows).document)
    assert "ESTIMATED" in picture.svg(record) and "ESTIMATED" in show.ladder(record)
