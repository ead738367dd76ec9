"""Records: their text, and how they are counted."""

from __future__ import annotations

import dataclasses
import json

import pytest

from wmmagen.records import Estimated, Facts, Outcome, Record, tally, to_text
from wmmagen.timing import Timing

FACTS = Facts(128, 0, 16, 37_888, 128, 4, 0.25, "nvrtc 13.0")
TIMING = Timing(49.5, (49.0, 50.25), 30, 80, flags=("wide",))
PLAIN = Record("k", "sm_75", "2048x2048x2048", Outcome.OK, "", "gpu", "Tesla T4", facts=FACTS, timing=TIMING)


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("timing", [None, TIMING])
@pytest.mark.parametrize("facts", [None, FACTS])
def test_a_record_survives_its_json(outcome: Outcome, timing: Timing | None, facts: Facts | None) -> None:
    record = dataclasses.replace(PLAIN, outcome=outcome, timing=timing, facts=facts, detail='a "quoted"\nµ line')
    assert Record.from_json(json.loads(json.dumps(record.to_json()))) == record


@pytest.mark.parametrize("change", [{"outcome": "splendid"}, {"facts": {"registers": 3}}, {"colour": "red"}])
def test_what_is_no_record_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Record.from_json({**PLAIN.to_json(), **change})
    with pytest.raises(ValueError):
        Record.from_json({})


def test_only_a_right_timed_record_of_its_own_card_ranks() -> None:
    assert PLAIN.ranks
    assert not dataclasses.replace(PLAIN, timing=None).ranks
    assert not dataclasses.replace(PLAIN, foreign=True).ranks
    assert not any(dataclasses.replace(PLAIN, outcome=o).ranks for o in Outcome if o is not Outcome.OK)


def test_a_record_survives_with_its_estimate_and_an_old_one_without() -> None:
    guess = Estimated(931.25, "T4", "tensor")
    record = dataclasses.replace(PLAIN, backend="cpu", timing=None, estimate=guess)
    plain = json.loads(json.dumps(record.to_json()))
    assert Record.from_json(plain) == record
    old = {key: value for key, value in plain.items() if key != "estimate"}
    assert Record.from_json(old) == dataclasses.replace(record, estimate=None)
    with pytest.raises(ValueError, match="not a record"):
        Record.from_json({**plain, "estimate": {"seconds": 3}})


@pytest.mark.parametrize("us", [float("nan"), float("inf"), -1.0, 0, 0.0, True, "931", None])
def test_an_estimate_that_is_no_time_is_refused(us: object) -> None:
    plain = dataclasses.replace(PLAIN, timing=None, estimate=Estimated(931.25, "T4", "tensor")).to_json()
    with pytest.raises(ValueError, match="no estimate"):
        Record.from_json({**plain, "estimate": {**plain["estimate"], "us": us}})


def test_an_estimate_ranks_where_it_is_right_and_no_time_does() -> None:
    guess = Estimated(931.25, "T4", "tensor")
    right = dataclasses.replace(PLAIN, timing=None, estimate=guess)
    assert right.ranks_by_estimate and not right.ranks
    assert dataclasses.replace(right, timing=TIMING, foreign=True).ranks_by_estimate
    assert not dataclasses.replace(right, timing=TIMING).ranks_by_estimate
    others = [o for o in Outcome if o is not Outcome.OK]
    assert not any(dataclasses.replace(right, outcome=o).ranks_by_estimate for o in others)


def test_text_is_one_object_a_line_in_a_fixed_order_of_keys() -> None:
    records = [PLAIN, dataclasses.replace(PLAIN, name="l", facts=None)]
    lines = to_text(records).splitlines()
    assert [Record.from_json(json.loads(line)) for line in lines] == records
    assert all(list(json.loads(line)) == sorted(json.loads(line)) for line in lines)
    assert to_text([]) == ""


def test_the_tally_counts_every_outcome_and_keeps_a_first_reason() -> None:
    wrong = dataclasses.replace(PLAIN, outcome=Outcome.WRONG, detail="first")
    counted = tally([PLAIN, wrong, dataclasses.replace(wrong, detail="second")])
    assert counted.counts == {**dict.fromkeys((o.value for o in Outcome), 0), "ok": 1, "wrong": 2}
    assert counted.examples == {"wrong": "k: first"}
