"""The documents say what the tables say, and the committed ones are the tables' of today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import wmmagen
from wmmagen import config, coverage, documents, render, rules
from wmmagen.arch import ARCHS
from wmmagen.config import CONFIG_KEYS, READERS, Shape
from wmmagen.errors import ConfigError

PACKAGE = Path(wmmagen.__file__).parent
NAMES = documents.names_markdown()
TEMPLATES = (render.template_root() / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", documents.DOCUMENTS)
def test_no_drift(file: str) -> None:
    committed = (PACKAGE / file).read_bytes().decode()
    assert committed == documents.DOCUMENTS[file](), "run `python -m wmmagen.documents`"


def test_every_rule_is_there_with_everything_it_has() -> None:
    sections = dict(re.findall(r"^### (\w+) .*?\n\n(.*?)(?=^#|\Z)", documents.rules_markdown(), flags=re.M | re.S))
    assert list(sections) == [r.id for scope in rules.Scope for r in rules.RULES if r.scope is scope]
    for rule in rules.RULES:
        said = sections[rule.id]
        for text in (rule.expr.text, rule.says, rule.message, rule.fix, rule.reason, rule.source):
            assert text in said
        assert ("- where: " in said) is (rule.when is not None) and (rule.when is None or rule.when.text in said)
        assert ("- answers: " in said) is (rule.status is not None)


def rows() -> list[list[str]]:
    lines = [line for line in NAMES.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def test_the_fields_of_a_name_are_all_there_in_their_order() -> None:
    published = [key for _, keys, _, _ in documents._FIELDS for key in keys]
    assert published == re.findall(r"\(\?P<(\w+)>", config._NAME.pattern)
    assert set(published) == set(CONFIG_KEYS)
    assert len(rows()) == len(documents._FIELDS)


def accepts(key: str, text: str) -> bool:
    try:
        READERS[key](key, text)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize(
    ("keys", "values"), [(keys, values) for _, keys, values, _ in documents._FIELDS if " to " in values]
)
def test_the_ranges_are_those_of_the_readers(keys: tuple[str, ...], values: str) -> None:
    low, high = map(int, re.findall(r"\d+", values))
    for key in keys:
        spelt = {"inst": "{0}x1x1", "warps": "{0}x1", "frags": "1x{0}"}.get(key, "{0}")
        assert [accepts(key, spelt.format(n)) for n in (low - 1, low, high, high + 1)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("keys", "values"), [(keys, values) for _, keys, values, _ in documents._FIELDS if "`" in values]
)
def test_the_words_are_those_of_the_readers(keys: tuple[str, ...], values: str) -> None:
    words = re.findall(r"`(\w+)`(?: \((\w+)\))?", values)
    (key,) = keys
    steps = {"residual": "relu+residual", "expr": "expr(-acc)"} if key == "epilogue" else {}
    assert all(accepts(key, steps.get(long or short, long or short)) for short, long in words)
    with pytest.raises(ConfigError) as refusal:
        READERS[key](key, "?")
    # Where none is no step, it is said before the others.
    told = refusal.value.fix.replace("expr(…)", "expr").split(": ")[-1].split()
    assert ["none"] * (key == "epilogue") + told == [long or short for short, long in words]


def test_the_example_is_a_name_and_its_fields_join_to_it() -> None:
    (example,) = re.findall(r"^    (\w+)$", NAMES, flags=re.M)
    case = config.parse(example)
    assert coverage.missing(case) == [] and isinstance(case.inst, Shape)
    held = {"c": case.operation.added.name, **{k: config.spell(v) for k, v in config.values_of(case).items()}}
    for cells in rows():
        keys, here = re.findall(r"`(\w+)`", cells[1]), re.findall(r"`(\w+)`", cells[3])
        assert [held[key] for key in keys] == here


def test_the_contract_of_templates_names_what_there_is() -> None:
    for path in render.template_root().rglob("*.jinja"):
        assert path.name.removesuffix(".jinja") in TEMPLATES, path.name
    context = render._context(
        config.parse(re.findall(r"^    (\w+)$", NAMES, flags=re.M)[0]), ARCHS[80], "s", "k", False
    )
    documented = set(re.findall(r"^\| `(\w+)` \|", TEMPLATES, flags=re.M))
    selftest = {"numbers", "acceptable", "spoilt", "ulps", "tried"}
    assert documented == context.keys() | {"constants", "guards", "launcher", "guard"} | selftest
