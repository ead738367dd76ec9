"""The common subset: what it is, and that its three readers agree."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from cases_expr import FLAGS, NUMBERS, environment, truth
from hypothesis import given
from hypothesis import strategies as st

from wmmagen.expr import Expr, ExprError, parse

TRUTHS = st.integers(0, 2**32).map(lambda seed: truth(random.Random(seed), 4))
ENVS = st.integers(0, 2**32).map(lambda seed: environment(random.Random(seed)))


# A reader of C++ expressions, by the language's own precedences.

_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|\d+|&&|\|\||[<>=!]=|[-+*/%<>!?:()])")
_BINARY = {"||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, "<=": 4, ">": 4, ">=": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}


class Cpp:
    """Evaluates one C++ expression of ints and bools."""

    def __init__(self, text: str, env: dict[str, Any]) -> None:
        assert _TOKEN.sub("", text).strip() == "", text
        self.tokens = [*_TOKEN.findall(text), ""]
        self.env = {**env, "true": True, "false": False}

    def value(self) -> Any:
        result = self.conditional()
        assert self.tokens == [""]
        return result

    def conditional(self) -> Any:
        condition = self.binary(1)
        if self.tokens[0] != "?":
            return condition
        self.tokens.pop(0)
        chosen = self.conditional()
        assert self.tokens.pop(0) == ":"
        other = self.conditional()
        return chosen if condition else other

    def binary(self, least: int) -> Any:
        left = self.unary()
        while _BINARY.get(self.tokens[0], 0) >= least:
            operator = self.tokens.pop(0)
            left = self.apply(operator, left, self.binary(_BINARY[operator] + 1))
        return left

    def apply(self, operator: str, x: Any, y: Any) -> Any:
        if operator in ("&&", "||"):
            return bool(x and y) if operator == "&&" else bool(x or y)
        if operator in ("/", "%"):
            quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)  # C++ rounds towards zero
            return quotient if operator == "/" else x - quotient * y
        return {
            "==": x == y, "!=": x != y, "<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y,
            "+": x + y, "-": x - y, "*": x * y,
        }[operator]  # fmt: skip

    def unary(self) -> Any:
        token = self.tokens.pop(0)
        if token == "!":
            return not self.unary()
        if token == "-":
            return -self.unary()
        if token == "(":
            inside = self.conditional()
            assert self.tokens.pop(0) == ")"
            return inside
        return int(token) if token.isdigit() else self.env[token]


@pytest.mark.parametrize(
    "text",
    [
        "A",
        "12",
        "A + B * 3",
        "A // B % 4",
        "f",
        "not f",
        "A == 1",
        "f and A < B or g_8",
        "A if f else B",
        "f if g else A > 1",
    ],
)
def test_inside_the_subset(text: str) -> None:
    assert parse(text).text == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A +",
        "A B",
        "1.5",
        "'A'",
        "None",
        "-A",
        "+A",
        "~A",
        "A / B",
        "A ** 2",
        "A << 1",
        "A & B",
        "A < B < C",
        "A in B",
        "A is B",
        "f(A)",
        "A.b",
        "A[0]",
        "(A, B)",
        "[A]",
        "lambda: A",
        "(A := 1)",
        "Abc == 1",
        "A_b == 1",
        "f + 1",
        "f == g",
        "f < 1",
        "(A == B) == True",
        "not A",
        "A and f",
        "f or 1",
        "A if B else C",
        "A if f else g",
        "A if f else B == 1",
        "(A - B) // 2",
        "A % (B - 1)",
        "(A * (B - C) + 1) % 4",
        "(A if f else B - 1) // 2",
    ],
)
def test_outside_the_subset(text: str) -> None:
    with pytest.raises(ExprError) as refusal:
        parse(text)
    assert repr(text) in str(refusal.value)


def test_a_difference_beside_a_division_is_allowed() -> None:
    assert parse("A // 2 - B % 3")({"A": 7, "B": 5}) == 1


def test_kinds_and_names() -> None:
    assert parse("A < B").truth and parse("f").truth and parse("True").truth
    assert not parse("A").truth and not parse("A if f else B").truth
    assert parse("A if f else B + LDS_A").names == {"A", "B", "LDS_A", "f"}


def test_white_space_is_no_difference() -> None:
    assert parse("A  ==\n 1 ").text == parse("A == 1").text == "A == 1"


def test_a_name_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="B"):
        parse("A + B")({"A": 1})


@given(text=TRUTHS, env=ENVS)
def test_values_are_python_s(text: str, env: dict[str, Any]) -> None:
    assert parse(text)(env) == eval(text, {}, dict(env))


@given(text=TRUTHS, envs=st.lists(ENVS, min_size=1, max_size=5))
def test_columns_agree_with_ints(text: str, envs: list[dict[str, Any]]) -> None:
    expr = parse(text)
    columns = {name: np.array([env[name] for env in envs]) for name in envs[0]}
    found = np.broadcast_to(expr(columns), len(envs))
    assert found.tolist() == [expr(env) for env in envs]


@given(text=TRUTHS, env=ENVS)
def test_a_column_broadcasts_over_ints(text: str, env: dict[str, Any]) -> None:
    expr = parse(text)
    column = np.arange(1, 5)
    found = np.broadcast_to(expr({**env, "A": column}), 4)
    assert found.tolist() == [expr({**env, "A": int(a)}) for a in column]


@given(text=TRUTHS, env=ENVS, names=st.sets(st.sampled_from(NUMBERS + FLAGS)))
def test_folding_keeps_the_meaning_and_drops_the_names(text: str, env: dict[str, Any], names: set[str]) -> None:
    expr = parse(text)
    left = expr.fold({name: env[name] for name in names})
    if isinstance(left, Expr):
        assert left.names and left.names <= expr.names - names
        assert left(env) == expr(env)
        assert Cpp(left.cpp(), env).value() == expr(env)
    else:
        assert left is bool(expr(env))


@given(text=TRUTHS, env=ENVS, names=st.sets(st.sampled_from(NUMBERS + FLAGS)))
def test_folding_in_two_steps_is_folding_at_once(text: str, env: dict[str, Any], names: set[str]) -> None:
    expr = parse(text)
    left = expr.fold({name: env[name] for name in names})
    assert (left.fold(env) if isinstance(left, Expr) else left) is bool(expr(env))


def test_folding_a_difference_that_is_negative() -> None:
    left = parse("A - 9 < B if f else f").fold({"A": 1, "f": True})
    assert isinstance(left, Expr) and left({"B": -8}) is False
    assert parse("(A - 9) * 2 < 3 if f else f").fold({"A": 1, "f": True}) is True
    assert parse("((A - 9) if f else (A - 8)) * 2").fold({"A": 1}).fold({"f": True}) == -16  # type: ignore[union-attr]


def test_folding_a_number_gives_an_int() -> None:
    folded = parse("A * 2 if f else B").fold({"f": True, "A": 4})
    assert folded == 8 and type(folded) is int
    assert parse("(1 if f or A == 1 else 2) + 1").fold({"f": True}) == 2
    assert parse("not (f or A == 1)").fold({"f": True}) is False


@given(text=TRUTHS, env=ENVS)
def test_negated_is_the_negation(text: str, env: dict[str, Any]) -> None:
    expr = parse(text)
    assert expr.negated()(env) is (not expr(env))
    assert expr.negated().truth


@pytest.mark.parametrize(
    ("text", "negation"),
    [
        ("A == B", "A != B"),
        ("A < B", "A >= B"),
        ("A <= B", "A > B"),
        ("not f", "f"),
        ("f", "not f"),
        ("A == 1 and B > 2", "A != 1 or B <= 2"),
        ("A == 1 or (B > 2 and f)", "A != 1 and (B <= 2 or not f)"),
    ],
)
def test_a_negation_reads_as_one_would_write_it(text: str, negation: str) -> None:
    assert parse(text).negated().text == negation


@given(text=TRUTHS, env=ENVS)
def test_cpp_means_the_same(text: str, env: dict[str, Any]) -> None:
    expr = parse(text)
    assert Cpp(expr.cpp(), env).value() == expr(env)
    assert Cpp(expr.negated().cpp(), env).value() == (not expr(env))


@pytest.mark.parametrize(
    ("text", "cpp"),
    [
        ("A + B * 3", "A + B * 3"),
        ("(A + B) * 3", "(A + B) * 3"),
        ("A - (B - 1)", "A - (B - 1)"),
        ("(A - B) - 1", "A - B - 1"),
        ("A * (B // 2)", "A * (B / 2)"),
        ("A * B // 2", "A * B / 2"),
        ("A % 8 == 0", "A % 8 == 0"),
        ("A == 1 or B == 1 and LDS_A == 1", "A == 1 || (B == 1 && LDS_A == 1)"),
        ("(A == 1 or f) and g", "(A == 1 || f) && g"),
        ("not A == 1", "!(A == 1)"),
        ("not f", "!f"),
        ("(A if f else B) + 1", "(f ? A : B) + 1"),
        ("A if f else B if g else 1", "f ? A : (g ? B : 1)"),
        ("True", "true"),
    ],
)
def test_cpp_has_as_few_parentheses_as_it_needs(text: str, cpp: str) -> None:
    assert parse(text).cpp() == cpp


def test_cpp_spells_names_as_told() -> None:
    assert parse("LDS_A % 8 == A").cpp({"LDS_A": "lda"}) == "lda % 8 == A"
