"""Epilogues: chains of steps and formulas of one's own, as they are typed, named, written in C++ and refused."""

from __future__ import annotations

import itertools
import re

import pytest
from cases_legality import config
from hypothesis import given
from hypothesis import strategies as st

from wmmagen import epilogue, formula, rules
from wmmagen.config import MAX_NAME, Operation, Problem, name, parse, read_pairs
from wmmagen.dtypes import F16, F32
from wmmagen.epilogue import EXPR, STEPS, USER_NAMES, Epilogue, Step
from wmmagen.errors import ConfigError
from wmmagen.formula import OPERATORS, Apply, Name, Node, Number

_INFIX = [op for op, o in OPERATORS.items() if not o.ours and op != "if" and not o.compares]
_COMPARES = [op for op, o in OPERATORS.items() if o.compares]
_LEAVES = st.sampled_from([Name(word) for word in USER_NAMES]) | st.floats(0, 2**20, width=32).map(Number)


def _applied(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    plain = st.sampled_from(_INFIX).flatmap(
        lambda op: st.tuples(*[inner] * OPERATORS[op].arity).map(lambda parts: Apply(op, parts))
    )
    choice = st.tuples(st.sampled_from(_COMPARES), inner, inner, inner, inner).map(
        lambda p: Apply("if", (Apply(p[0], (p[1], p[2])), p[3], p[4]))
    )
    return plain | choice


FORMULAS: st.SearchStrategy[Node] = st.recursive(_LEAVES, _applied, max_leaves=12)


@given(FORMULAS)
def test_a_formula_is_its_text_and_its_word(node: Node) -> None:
    assert formula.parse(formula.text(node), USER_NAMES) == node
    word = formula.word(node)
    assert re.fullmatch(r"[a-z0-9]+", word)
    for behind in ("", *STEPS):
        assert formula.from_word(word + behind, USER_NAMES) == (node, behind)


@given(st.lists(st.sampled_from([*STEPS, EXPR]), min_size=1, max_size=6, unique=True), FORMULAS)
def test_a_chain_is_its_key_and_its_name(words: list[str], node: Node) -> None:
    steps = tuple(Step(EXPR, Apply("add", (Name("acc"), node))) if w == EXPR else STEPS[w] for w in words)
    try:
        chain = Epilogue(steps)
    except ConfigError:
        return
    assert epilogue.read(str(chain)) == epilogue.from_name(chain.in_name) == chain
    assert re.fullmatch(r"[a-z0-9]+", chain.in_name)


def test_all_short_chains_have_names_of_their_own() -> None:
    words = [w for count in (1, 2, 3) for w in itertools.permutations(STEPS, count)]
    assert len({"".join(chain) for chain in words}) == len(words)


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("acc * ( 2 + c )", "acc*(2+c)"),
        ("acc-(c-bias)-1", "acc-(c-bias)-1"),
        ("(acc-c)-bias", "acc-c-bias"),
        ("acc/(c*2)/3", "acc/(c*2)/3"),
        ("- -acc", "-(-acc)"),
        ("-(acc+c)*2", "-(acc+c)*2"),
        ("acc<c?1:row>=col?2:3", "acc<c?1:row>=col?2:3"),
        ("(acc<c?1:2)*acc", "(acc<c?1:2)*acc"),
        ("acc+.5+1e2+1E-3+0.10", "acc+0.5+100+0.001+0.1"),
        ("min(acc,max(c,-6))", "min(acc,max(c,-6))"),
        ("acc*pi", "acc*3.1415927"),
    ],
)
def test_what_is_typed_has_one_spelling(text: str, spelt: str) -> None:
    node = formula.parse(text, USER_NAMES)
    assert formula.text(node) == spelt
    assert formula.parse(spelt, USER_NAMES) == node


def test_formulas_in_cpp() -> None:
    node = formula.parse("acc<6?min(acc,c)*0.5:acc>9?-acc:abs(acc)-exp(acc/2)", USER_NAMES)
    assert formula.cpp(node, {"acc": "value", "c": "c.of[e]"}) == (
        "value < 6.0f ? smaller(value, c.of[e]) * 0.5f : (value > 9.0f ? -value : fabsf(value) - expf(value / 2.0f))"
    )


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("acc+", 5, "it ends here"),
        ("acc+x", 5, "'x' is not known"),
        ("acc $ 2", 5, "'$' means nothing"),
        ("acc 2", 5, "'2' is left over"),
        ("(acc", 5, "')' is missing"),
        ("min(acc)", 8, "',' is missing"),
        ("acc<2", 6, "'?' is missing"),
        ("acc<2<3?1:2", 6, "'?' is missing"),
        ("acc<2?1", 8, "':' is missing"),
        ("acc*1e99", 5, "no finite float"),
        ("acc;system(1)", 4, "';' means nothing"),
        ("cdf(acc)", 1, "'cdf' is not known"),
        ("acc+\u00b2", 5, "means nothing"),
        ("(" * 30 + "acc" + ")" * 30, 25, "nested deeper"),
        ("acc*beta", 5, "'beta' is not known"),
    ],
)
def test_what_is_no_formula_is_refused_with_its_place(text: str, place: int, what: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        epilogue.read(f"expr({text})")
    if text != "(acc":  # the parenthesis of the key closes it
        assert f"character {place}: " in refusal.value.message
        assert what in refusal.value.message
    assert refusal.value.fix


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "'' is no step"),
        ("lineer", "'lineer' is no step"),
        ("relu+", "'' is no step"),
        ("none+relu", "'none' is no step"),
        ("relu+relu", "relu stands there twice"),
        ("expr(-acc)+expr(acc*2)", "expr stands there twice"),
        ("relu+linear", "linear scales the sum itself"),
        ("residual", "linear with alpha = beta = 1"),
        ("residual+relu", "linear with alpha = beta = 1"),
        ("expr(acc)", "makes nothing of acc"),
        ("expr(c+1)", "makes nothing of acc"),
        ("linear+expr(acc+c)", "but expr(acc+c) always"),
        ("expr(" + "acc+" * 120 + "acc)", "too long"),
    ],
)
def test_what_is_no_chain_is_refused(text: str, what: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        epilogue.read(text)
    assert what in refusal.value.message and refusal.value.fix


@pytest.mark.parametrize("text", ["none+relu", "relu+none", "none+none"])
def test_none_is_not_offered_for_none(text: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        epilogue.read(text)
    assert "did you mean" not in refusal.value.fix and "leave it out" in refusal.value.fix


@pytest.mark.parametrize(
    "word", ["relurelu", "Relu", "linearrel", "expr", "expradd", "expraddaccn1e99", "exprcdfacc", "nonerelu"]
)
def test_what_is_no_name_of_a_chain_is_refused(word: str) -> None:
    with pytest.raises(ConfigError):
        parse(name(config("")).replace("_none_", f"_{word}_"))


def test_commas_and_plusses_of_an_expression_are_its_own() -> None:
    values = read_pairs("epilogue=relu+expr(min(acc,c+1)+max(acc, 2)),c=f16 , d=f32")
    assert str(values["epilogue"]) == "relu+expr(min(acc,c+1)+max(acc,2))"
    assert (values["c"], values["d"]) == (F16, F32)


def test_a_name_that_no_file_can_have_is_refused() -> None:
    long = config("epilogue=expr(" + "+".join(["acc*c"] * 20) + "),store=staged")
    with pytest.raises(ConfigError, match=f"may have {MAX_NAME}"):
        name(long)
    assert len(name(config("epilogue=expr(" + "+".join(["acc*c"] * 8) + "),store=staged"))) <= MAX_NAME


def test_c_is_of_ds_type_where_nothing_is_said() -> None:
    plain = Operation(F16, F32, F32)
    assert Operation(F16, F32, F32, c=F32) == plain and plain.c is None and plain.added is F32
    assert Operation(F16, F32, F32, c=F16) != plain
    assert "_f32cf16_" in name(config("epilogue=biascol,c=f16,store=staged"))
    assert "_f32_rr_biascol_" in name(config("epilogue=biascol,c=f32,store=staged"))


def test_a_call_has_the_numbers_of_its_epilogue_and_no_others() -> None:
    operation = Operation(F16, F32, F32, epilogue=epilogue.read("scale+clamp+residual"))
    problem = Problem.packed(operation, 64, 32, 16, scale=0.5, low=-1.0)
    assert (problem.ldr, problem.ldc, problem.scale, problem.low, problem.high) == (32, 0, 0.5, -1.0, 6.0)
    for wrong in ({"alpha": 2.0}, {"ldc": 32}, {"beta": 1.0}):
        with pytest.raises(ConfigError, match="has no"):
            Problem(operation, 64, 32, 16, 16, 32, 32, **wrong)
    plain = problem.doing(Operation(F16, F32, F32))
    assert plain == Problem.packed(Operation(F16, F32, F32), 64, 32, 16)


def test_what_a_chain_reads() -> None:
    chain = epilogue.read("linear+expr(acc*bias+row)+scalerow+residual")
    assert (chain.matrices, chain.vectors, chain.scalars) == (("c", "r"), ("bias_col", "scale_row"), ("alpha", "beta"))
    assert chain.positional and chain.adds and chain.exact and not chain.simple
    assert not epilogue.read("relu+clamp+silu").positional
    assert not epilogue.read("expr(acc*0.1)").exact and epilogue.read("expr(acc*0.375)").exact
    assert not epilogue.read("expr(acc/3)").exact and epilogue.read("expr(acc/4)").exact


@pytest.mark.parametrize(("chain", "names", "scales"), [
    ("relu+biascol", (), False), ("biascol+scalecol+scale", ("scale_col", "scale"), True),
    ("linear+scalerow", ("alpha", "scale_row"), True), ("expr(acc*0.5)", (), True),
])  # fmt: skip
def test_what_makes_sums_smaller(chain: str, names: tuple[str, ...], scales: bool) -> None:
    found = epilogue.read(chain)
    assert (found.scale_names, found.scales) == (names, scales)
    broken = rules.check(config(f"a=s8,acc=s32,d=u8,c=f32,layout=rc,store=staged,epilogue={chain}"))
    assert ("T153" not in {violation.rule.id for violation in broken}) is scales


def test_numbers_of_a_formula_in_doubles() -> None:
    node = formula.parse("acc * 0.1 + 0.5 * 3", ("acc",))
    assert formula.cpp(node, {}, double=True) == "acc * 0.1f + 0.5 * 3.0"
    assert formula.cpp(epilogue.STEPS["gelutanh"].formula, {"acc": "x"}, double=True) == (
        "ratio(x, 1.0 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))"
    )
