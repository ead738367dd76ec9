"""Formulas of one element: a small grammar of real arithmetic, read into a tree of our own and never pasted.

A formula is text for people (``acc*2+c``), a word for names (``addmulaccn2c``), C++ for kernels, and a value under any
arithmetic that has its operations. All four are made of the one tree, so none can say anything else than the others.

The grammar, operators that bind less first; blanks mean nothing::

    choice:      sum COMPARE sum ? choice : choice  |  sum
    sum:         sum + product  |  sum - product  |  product
    product:     product * factor  |  product / factor  |  factor
    factor:      - factor  |  atom
    atom:        NUMBER  |  NAME  |  FUNCTION ( choice , … )  |  ( choice )
    COMPARE:     < <= > >= == !=

Numbers are decimal, and what a user types is kept as the f32 that a kernel computes with.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wmmagen.errors import ConfigError

#: Texts beyond these are slips, or attacks on the reader's stack.
MAX_TEXT, MAX_NEST = 400, 24
#: Bits of a number that leaves room to what it is multiplied with.
SHORT = 11

Arithmetic = Any


@dataclass(frozen=True)
class Operator:
    """One operation.

    Attributes:
        arity: how many operands it has.
        symbol: as an infix or prefix operator; empty for a function.
        precedence: how tightly its symbol binds; functions bind like atoms.
        exact: whether exact operands within bounds give an exact result.
        cpp: a function's name in C++, of CUDA's or of ours, which a kernel that uses it brings along.
        ours: whether only tables of formulas may use it.
    """

    arity: int
    symbol: str = ""
    precedence: int = 9
    exact: bool = True
    cpp: str = ""
    ours: bool = False

    @property
    def compares(self) -> bool:
        return self.precedence == _COMPARE


_CHOICE, _COMPARE, _SUM, _PRODUCT, _UNARY, _ATOM = 0, 4, 5, 6, 7, 9
#: Each operation by its name, which is also that of the method of an arithmetic and its word in names.
OPERATORS: dict[str, Operator] = {
    "if": Operator(3, "?", _CHOICE),
    "lt": Operator(2, "<", _COMPARE),
    "le": Operator(2, "<=", _COMPARE),
    "gt": Operator(2, ">", _COMPARE),
    "ge": Operator(2, ">=", _COMPARE),
    "eq": Operator(2, "==", _COMPARE),
    "ne": Operator(2, "!=", _COMPARE),
    "add": Operator(2, "+", _SUM),
    "sub": Operator(2, "-", _SUM),
    "mul": Operator(2, "*", _PRODUCT),
    "div": Operator(2, "/", _PRODUCT, exact=False),
    "neg": Operator(1, "-", _UNARY),
    "min": Operator(2, cpp="smaller"),
    "max": Operator(2, cpp="larger"),
    "abs": Operator(1, cpp="fabsf"),
    "exp": Operator(1, cpp="expf", exact=False),
    "tanh": Operator(1, cpp="tanhf", exact=False),
    "erf": Operator(1, cpp="erff", exact=False),
    "sqrt": Operator(1, cpp="sqrtf", exact=False),
    # The normal distribution function, and a division: as accurate as D's type can use.
    "cdf": Operator(1, cpp="normal_cdf", exact=False, ours=True),
    "ratio": Operator(2, cpp="ratio", exact=False, ours=True),
}
#: CUDA's functions of floats, as doubles have them.
_IN_DOUBLES = {"fabsf": "fabs", "expf": "exp", "tanhf": "tanh", "erff": "erf", "sqrtf": "sqrt"}
_INFIX = {o.symbol: name for name, o in OPERATORS.items() if o.arity == 2 and o.symbol}
_ALL_FUNCTIONS = tuple(name for name, o in OPERATORS.items() if o.precedence == _ATOM)
#: Those that anybody may write.
FUNCTIONS = tuple(name for name in _ALL_FUNCTIONS if not OPERATORS[name].ours)
#: Numbers that have a name.
CONSTANTS: dict[str, float] = {"pi": math.pi}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<symbol><=|>=|==|!=|[-+*/<>?:(),]))"
)
#: A number in a word: p is its dot, m the minus of its exponent.
_NUMBER_WORD = r"n[0-9]+(?:p[0-9]+)?(?:em?[0-9]+)?"


@dataclass(frozen=True)
class Number:
    """A number; in a kernel it is rounded to the type of the arithmetic."""

    value: float


@dataclass(frozen=True)
class Name:
    """What an element brings along: ``acc``, ``c``, …"""

    id: str


@dataclass(frozen=True)
class Apply:
    """An operation on operands."""

    op: str
    operands: tuple[Node, ...]


Node = Number | Name | Apply


def parts(node: Node) -> Iterator[Node]:
    """``node`` and everything in it."""
    yield node
    if isinstance(node, Apply):
        for operand in node.operands:
            yield from parts(operand)


def names(node: Node) -> frozenset[str]:
    """The names that ``node`` reads."""
    return frozenset(part.id for part in parts(node) if isinstance(part, Name))


def operations(node: Node) -> frozenset[str]:
    """The operations in ``node``."""
    return frozenset(part.op for part in parts(node) if isinstance(part, Apply))


def exact(node: Node) -> bool:
    """Whether exact operands within bounds give an exact result: no function, and no division but by powers of two.

    Nor a number of more than :data:`SHORT` bits, whose products f32 would round.
    """
    numbers = (abs(p.value).as_integer_ratio()[0] for p in parts(node) if isinstance(p, Number))
    if any((n // (n & -n or 1)).bit_length() > SHORT for n in numbers):
        return False
    divisors = [p.operands[1] for p in parts(node) if isinstance(p, Apply) and p.op == "div"]
    whole = all(isinstance(d, Number) and math.frexp(d.value)[0] == 0.5 for d in divisors)
    return whole and all(OPERATORS[op].exact or op == "div" for op in operations(node))


def _single(digits: str) -> float:
    """Decimal digits as f32; infinite where they are too large."""
    with np.errstate(over="ignore"):
        return float(np.float32(digits))


# ---------------------------------------------------------------------------------------------------------------------
# Reading.


class _Reader:
    """Recursive descent over the tokens of a text."""

    def __init__(self, text: str, known: tuple[str, ...], single: bool) -> None:
        self._text, self._known, self._single = text, known, single
        self._tokens = list(self._scan())
        self._at = 0
        self._nest = 0

    def _scan(self) -> Iterator[tuple[str, str, int]]:
        at = 0
        text = self._text.rstrip()
        if len(text) > MAX_TEXT:
            raise ConfigError(f"an expression of {len(text)} characters is too long", f"at most {MAX_TEXT}")
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                place = at + len(text[at:]) - len(text[at:].lstrip())
                raise self._error(place, f"{text[place]!r} means nothing here")
            kind = str(match.lastgroup)
            yield kind, match[kind], match.start(kind)
            at = match.end()
        yield "end", "", len(text)

    def _error(self, place: int, what: str) -> ConfigError:
        words = (
            f"names: {' '.join((*self._known, *CONSTANTS))}; functions: {' '.join(FUNCTIONS)}; + - * /, x < y ? a : b"
        )
        return ConfigError(f"{self._text!r}, character {place + 1}: {what}", words)

    def _next(self, *symbols: str) -> str:
        """The next symbol where it is one of ``symbols``, which is then read; else nothing."""
        kind, text, _ = self._tokens[self._at]
        if kind == "symbol" and text in symbols:
            self._at += 1
            return text
        return ""

    def _demand(self, symbol: str) -> None:
        if not self._next(symbol):
            _, text, place = self._tokens[self._at]
            raise self._error(place, f"{symbol!r} is missing before {text!r}" if text else f"{symbol!r} is missing")

    def whole(self) -> Node:
        node = self._choice()
        kind, text, place = self._tokens[self._at]
        if kind != "end":
            raise self._error(place, f"{text!r} is left over")
        return node

    def _choice(self) -> Node:
        self._nest += 1
        if self._nest > MAX_NEST:
            raise self._error(self._tokens[self._at][2], f"nested deeper than {MAX_NEST}")
        left = self._sum()
        symbol = self._next("<", "<=", ">", ">=", "==", "!=")
        if symbol:
            condition = Apply(_INFIX[symbol], (left, self._sum()))
            self._demand("?")
            chosen = self._choice()
            self._demand(":")
            left = Apply("if", (condition, chosen, self._choice()))
        self._nest -= 1
        return left

    def _sum(self) -> Node:
        return self._chain(self._product, "+", "-")

    def _product(self) -> Node:
        return self._chain(self._factor, "*", "/")

    def _chain(self, part: Callable[[], Node], *symbols: str) -> Node:
        node = part()
        while symbol := self._next(*symbols):
            node = Apply(_INFIX[symbol], (node, part()))
        return node

    def _factor(self) -> Node:
        signs = 0
        while self._next("-"):
            signs += 1
        node = self._atom()
        for _ in range(min(signs, MAX_NEST)):
            node = Apply("neg", (node,))
        return node

    def _atom(self) -> Node:
        kind, text, place = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            value = _single(text) if self._single else float(text)
            if not math.isfinite(value):
                raise self._error(place, f"{text} is no finite float")
            return Number(value)
        if text == "(":
            node = self._choice()
            self._demand(")")
            return node
        if kind != "name":
            raise self._error(place, f"a number, a name or ( should stand before {text!r}" if text else "it ends here")
        if text in (FUNCTIONS if self._single else _ALL_FUNCTIONS):
            return Apply(text, self._operands(OPERATORS[text].arity))
        if text in CONSTANTS:
            return Number(float(np.float32(CONSTANTS[text])) if self._single else CONSTANTS[text])
        if text not in self._known:
            raise self._error(place, f"{text!r} is not known")
        return Name(text)

    def _operands(self, count: int) -> tuple[Node, ...]:
        self._demand("(")
        found = [self._choice()]
        while len(found) < count:
            self._demand(",")
            found.append(self._choice())
        self._demand(")")
        return tuple(found)


def parse(text: str, known: tuple[str, ...], *, single: bool = True) -> Node:
    """The tree of ``text``.

    Args:
        known: the names that it may read.
        single: whether numbers are kept as f32; else as they stand and with our own functions, which is for tables.

    Raises:
        ConfigError: it is none of the grammar; says where.
    """
    return _Reader(text, known, single).whole()


# ---------------------------------------------------------------------------------------------------------------------
# Writing.


def _digits(value: float) -> str:
    return str(np.float32(value)).removesuffix(".0")


def text(node: Node) -> str:
    """The tree as it is typed, without blanks and with as few parentheses as the grammar needs."""
    return _written(node, _digits, {}, "")[0]


def cpp(node: Node, rename: Mapping[str, str], *, double: bool = False) -> str:
    """The tree in C++ on floats or doubles, the names spelt as ``rename`` says; spellings bind as tightly as names.

    What is a float is the same number among doubles: where its digits would make another double, they stay a float's.
    """

    def number(value: float) -> str:
        digits = _digits(value)
        pointed = digits + ("" if "." in digits or "e" in digits else ".0")
        if not double:
            return f"{pointed}f"
        if float(digits) == value:
            return pointed
        return f"{pointed}f" if float(np.float32(value)) == value else repr(value)

    return _written(node, number, rename, " ", double)[0]


def _written(
    node: Node, number: Callable[[float], str], rename: Mapping[str, str], blank: str, double: bool = False
) -> tuple[str, int]:
    """Text and the precedence of its outermost operator; in C++ where there are blanks."""

    def within(inner: Node, least: int) -> str:
        written, precedence = _written(inner, number, rename, blank, double)
        return written if precedence >= least else f"({written})"

    if isinstance(node, Number):
        return number(node.value), _ATOM
    if isinstance(node, Name):
        return rename.get(node.id, node.id), _ATOM
    operator, operands = OPERATORS[node.op], node.operands
    if node.op == "if":
        # Within a choice the grammar needs no parentheses, but who reads C++ does.
        condition, chosen, other = (within(operand, _COMPARE if blank else _CHOICE) for operand in operands)
        return f"{condition}{blank}?{blank}{chosen}{blank}:{blank}{other}", _CHOICE
    if node.op == "neg":
        return f"-{within(operands[0], _ATOM)}", _UNARY
    if operator.symbol:
        left, right = operator.precedence, operator.precedence + 1
        if operator.compares:
            left = right
        symbol = f"{blank}{operator.symbol}{blank}"
        return f"{within(operands[0], left)}{symbol}{within(operands[1], right)}", operator.precedence
    function = (_IN_DOUBLES.get(operator.cpp, operator.cpp) if double else operator.cpp) if blank else node.op
    return f"{function}({f',{blank}'.join(within(operand, _CHOICE) for operand in operands)})", _ATOM


def calls(node: Node, function: Callable[[str], str], rename: Mapping[str, str]) -> str:
    """The tree in C++ on a type of one's own: every operation, and every number, is a call of ``function(name)``."""
    if isinstance(node, Number):
        return f"{function('number')}({node.value!r})"
    if isinstance(node, Name):
        return rename.get(node.id, node.id)
    return f"{function(node.op)}({', '.join(calls(operand, function, rename) for operand in node.operands)})"


def word(node: Node) -> str:
    """The tree in small letters and digits: operators before their operands, so that no end needs a mark."""
    if isinstance(node, Number):
        # A plus of an exponent is left out.
        return "n" + _digits(node.value).replace(".", "p").replace("-", "m").replace("+", "")
    if isinstance(node, Name):
        return node.id
    return node.op + "".join(word(operand) for operand in node.operands)


def from_word(text: str, known: tuple[str, ...]) -> tuple[Node, str]:
    """The tree at the beginning of ``text``, and what stands behind it.

    Raises:
        ConfigError: no tree stands there.
    """
    # The longest word first: none of those that begin with another one is that and the beginning of an operand.
    words = sorted((*known, *(name for name, o in OPERATORS.items() if not o.ours)), key=len, reverse=True)
    match = re.match(rf"({_NUMBER_WORD})|{'|'.join(words)}", text)
    head, rest = (match[0], text[match.end() :]) if match else ("", text)
    if match and match[1]:
        digits = head[1:].replace("p", ".").replace("m", "-")
        if math.isfinite(_single(digits)):
            return Number(_single(digits)), rest
    elif head in known:
        return Name(head), rest
    elif head:
        operands = []
        for _ in range(OPERATORS[head].arity):
            operand, rest = from_word(rest, known)
            operands.append(operand)
        return Apply(head, tuple(operands)), rest
    raise ConfigError(f"{text!r} is no expression of a kernel name", "the grammar is in NAMES.md")


# ---------------------------------------------------------------------------------------------------------------------
# Values.


def evaluate(node: Node, arithmetic: Arithmetic, values: Mapping[str, Any]) -> Any:
    """The value of ``node`` under an arithmetic: an object with ``number`` and a method ``op_…`` for each operation.

    Args:
        arithmetic: its ``op_if`` is given the value of the comparison and those of both choices.
        values: of each name.
    """
    if isinstance(node, Number):
        return arithmetic.number(node.value)
    if isinstance(node, Name):
        return values[node.id]
    operands = (evaluate(operand, arithmetic, values) for operand in node.operands)
    return getattr(arithmetic, f"op_{node.op}")(*operands)
