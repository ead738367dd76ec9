"""One expression, three readers: Python ints, NumPy columns, and the C++ compiler.

The subset is whole-number arithmetic and logic that means the same in both languages:

- numbers: decimal literals, UPPER_CASE names, ``+ - * // %``, and ``x if flag else y``;
- truths: lower_case names (flags), comparisons of two numbers, ``and or not``.

``//`` and ``%`` agree between the languages for operands that are not negative, so a difference may not stand under
them. Flags are structure: they are known when a file is rendered and never reach C++; :meth:`Expr.cpp` folds them.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, reduce
from typing import Any

import numpy as np

Env = Mapping[str, Any]

_ARITHMETIC: dict[type[ast.operator], tuple[str, str, int, Callable[[Any, Any], Any]]] = {
    # node: (Python, C++, precedence, on values)
    ast.Add: ("+", "+", 5, operator.add),
    ast.Sub: ("-", "-", 5, operator.sub),
    ast.Mult: ("*", "*", 6, operator.mul),
    ast.FloorDiv: ("//", "/", 6, operator.floordiv),
    ast.Mod: ("%", "%", 6, operator.mod),
}
_COMPARISONS: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}
_PRECEDENCE = {"if": 0, "or": 1, "and": 2, "compare": 4, "not": 7, "atom": 8}


class ExprError(ValueError):
    """A text outside the subset. Raised when a table is read, never for a user's input."""


@dataclass(frozen=True)
class Expr:
    """A parsed expression. ``text`` is what was written, ``truth`` whether its value is a truth or a number."""

    text: str
    truth: bool
    _node: ast.expr

    @cached_property
    def names(self) -> frozenset[str]:
        """The names it reads, flags included."""
        return _names(self._node)

    def __call__(self, env: Env) -> Any:
        """Its value where each name is an int (or a bool), or a NumPy column; columns broadcast.

        Raises:
            KeyError: a name that ``env`` does not hold.
        """
        return self._evaluate(env)

    @cached_property
    def _evaluate(self) -> Callable[[Env], Any]:
        return _compiled(self._node)

    def fold(self, known: Env, deciding: Env | None = None) -> Expr | bool | int:
        """The expression that is left when ``known`` names are what they are; a plain value where nothing is left.

        Args:
            deciding: names that are known in conditions of an ``if`` only, of which one side is left.
        """
        return _folded(self, _read(self, known), _read(self, deciding or {}))

    def negated(self) -> Expr:
        """The truth that holds where this one does not, written without a leading ``not`` where that can be."""
        node = _negate(self._node)
        return Expr(ast.unparse(node), True, node)

    def cpp(self, rename: Mapping[str, str] | None = None) -> str:
        """The expression in C++, with as few parentheses as its precedence needs.

        Args:
            rename: names that are spelt differently there; the spelling must bind as tightly as a name.
        """
        return _cpp(self._node, rename or {})[0]


@cache
def parse(text: str) -> Expr:
    """Read ``text`` as an expression of the subset.

    Raises:
        ExprError: it is not one.
    """
    try:
        node = ast.parse(" ".join(text.split()), mode="eval").body
    except SyntaxError as error:
        raise ExprError(f"{text!r}: {error.msg}") from None
    return Expr(" ".join(text.split()), _is_truth(node, text), node)


def _is_truth(node: ast.expr, text: str) -> bool:
    """Check the grammar of ``node`` and say which of the two kinds it is."""

    def demand(child: ast.expr, truth: bool) -> None:
        if _is_truth(child, text) is not truth:
            raise ExprError(f"{text!r}: {ast.unparse(child)!r} should be a {'truth' if truth else 'number'}")

    match node:
        case ast.Constant(value=bool()):
            return True
        case ast.Constant(value=int(value)) if value >= 0:
            return False
        case ast.Name(id=name):
            if name not in (name.lower(), name.upper()):
                raise ExprError(f"{text!r}: {name!r} is neither a NUMBER nor a flag")
            return name == name.lower()
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            demand(left, False)
            demand(right, False)
            if isinstance(op, (ast.FloorDiv, ast.Mod)) and any(isinstance(n, ast.Sub) for n in ast.walk(node)):
                raise ExprError(f"{text!r}: a difference under // or % may be negative, where the languages differ")
            return False
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            demand(left, False)
            demand(right, False)
            return True
        case ast.BoolOp(values=values):
            for part in values:
                demand(part, True)
            return True
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            demand(operand, True)
            return True
        case ast.IfExp(test=test, body=body, orelse=orelse):
            demand(test, True)
            kind = _is_truth(body, text)
            demand(orelse, kind)
            return kind
    raise ExprError(f"{text!r}: {ast.unparse(node)!r} is outside the common subset of Python and C++")


def _compiled(node: ast.expr) -> Callable[[Env], Any]:
    """The evaluation of ``node`` as one code object, made once: a rule is evaluated on far more points than that costs.

    It is made of the checked tree, not of a text, and each of its names is looked up in the environment.
    """
    function = ast.Lambda(ast.arguments([], [ast.arg("env")], None, [], [], None, []), _code(node, 0))
    code = compile(ast.fix_missing_locations(ast.Expression(function)), "<expression>", "eval")
    return eval(code, _CALLED)  # type: ignore[no-any-return]


def _code(node: ast.expr, depth: int) -> ast.expr:
    """Python that evaluates ``node`` on ints and on columns; ``depth`` conditions of an ``if`` are kept around it.

    All parts of ``and`` and ``or`` are evaluated, as for columns, so that a missing name is an error for any value.
    """
    match node:
        case ast.Name(id=name):
            return ast.Subscript(_load("env"), ast.Constant(name), ast.Load())
        case ast.BinOp(left=left, op=op, right=right):
            return ast.BinOp(_code(left, depth), op, _code(right, depth))
        case ast.Compare(left=left, ops=ops, comparators=[right]):
            return ast.Compare(_code(left, depth), ops, [_code(right, depth)])
        case ast.BoolOp(op=op, values=values):
            return _call(_all if isinstance(op, ast.And) else _any, *(_code(value, depth) for value in values))
        case ast.UnaryOp(operand=operand):
            return _call(_opposite, _code(operand, depth))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            # Where the condition is a column both sides are needed, else only the one that it chooses.
            kept = f"condition_{depth}"
            condition = ast.NamedExpr(ast.Name(kept, ast.Store()), _code(test, depth))
            sides = _code(body, depth + 1), _code(orelse, depth + 1)
            return ast.IfExp(
                _call(_is_column, condition), _call(np.where, _load(kept), *sides), ast.IfExp(_load(kept), *sides)
            )
    return node


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _call(function: Callable[..., Any], *arguments: ast.expr) -> ast.Call:
    return ast.Call(_load(function.__name__), list(arguments), [])


def _is_column(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _opposite(value: Any) -> Any:
    return np.logical_not(value) if _is_column(value) else not value


def _all(*values: Any) -> Any:
    for value in values:
        # Most values are truths of Python, which are told quickest by what they are.
        if value is not True and value is not False and _is_column(value):
            return reduce(np.logical_and, values)
    return all(values)


def _any(*values: Any) -> Any:
    for value in values:
        if value is not True and value is not False and _is_column(value):
            return reduce(np.logical_or, values)
    return any(values)


#: What the code of an expression calls.
_CALLED = {function.__name__: function for function in (_all, _any, _opposite, _is_column, np.where)}


#: Structures come back: a file folds each rule of the table by its flags, and the next file often by the same ones.
_FOLDS_KEPT = 1 << 14


Values = tuple[tuple[str, Any], ...]


def _read(expr: Expr, known: Env) -> Values:
    return tuple((name, known[name]) for name in sorted(expr.names & known.keys()))


@lru_cache(maxsize=_FOLDS_KEPT)
def _folded(expr: Expr, known: Values, deciding: Values) -> Expr | bool | int:
    node = _fold(_decided(expr._node, dict(deciding)) if deciding else expr._node, dict(known))
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, bool) else int(node.value)  # type: ignore[arg-type]
    return Expr(ast.unparse(node), expr.truth, node)


def _decided(node: ast.expr, deciding: Env) -> ast.expr:
    """``node`` with the side of each condition that is known."""
    if isinstance(node, ast.IfExp) and _names(node.test) <= deciding.keys():
        condition = _fold(node.test, deciding)
        assert isinstance(condition, ast.Constant)
        return _decided(node.body if condition.value else node.orelse, deciding)
    return node


def _fold(node: ast.expr, known: Env) -> ast.expr:
    if isinstance(node, ast.Name):
        return _constant(node, known) if node.id in known else node
    left = _fold_parts(node, known)
    # What is known can decide between parts, and leave numbers only.
    return _constant(left, {}) if _has_constant_parts(left) else left


def _has_constant_parts(node: ast.expr) -> bool:
    """Whether nothing but constants stands in a node whose parts are folded."""
    match node:
        case ast.BinOp(left=ast.Constant(), right=ast.Constant()):
            return True
        case ast.Compare(left=ast.Constant(), comparators=[ast.Constant()]):
            return True
        case ast.UnaryOp(operand=ast.Constant()):
            return True
    return False


def _names(node: ast.expr) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def _constant(node: ast.expr, known: Env) -> ast.Constant:
    """The value of a name that is known, or of a node between constants."""
    value = _value(node, known)
    return ast.Constant(bool(value) if _stands_for_truth(node) else int(value))


def _value(node: ast.expr, known: Env) -> Any:
    match node:
        case ast.Name(id=name):
            return known[name]
        case ast.BinOp(left=ast.Constant(value=left), op=op, right=ast.Constant(value=right)):
            return _ARITHMETIC[type(op)][3](left, right)
        case ast.Compare(left=ast.Constant(value=left), ops=[op], comparators=[ast.Constant(value=right)]):
            return _COMPARISONS[type(op)][1](left, right)
        case ast.UnaryOp(operand=ast.Constant(value=operand)):
            return not operand
    raise AssertionError(ast.dump(node))


def _stands_for_truth(node: ast.expr) -> bool:
    """The kind of a node of the subset; unlike its grammar, also of one in which a difference has become negative."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, bool)
        case ast.Name(id=name):
            return name == name.lower()
        case ast.IfExp(body=body):
            return _stands_for_truth(body)
    return isinstance(node, (ast.Compare, ast.BoolOp, ast.UnaryOp))


def _fold_parts(node: ast.expr, known: Env) -> ast.expr:
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            return _without_one(ast.BinOp(_fold(left, known), op, _fold(right, known)))
        case ast.Compare(left=left, ops=ops, comparators=[right]):
            return ast.Compare(_fold(left, known), ops, [_fold(right, known)])
        case ast.UnaryOp(op=op, operand=operand):
            return ast.UnaryOp(op, _fold(operand, known))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            condition = _fold(test, known)
            if isinstance(condition, ast.Constant):
                return _fold(body if condition.value else orelse, known)
            return ast.IfExp(condition, _fold(body, known), _fold(orelse, known))
        case ast.BoolOp(op=op, values=values):
            return _fold_logic(op, [_fold(v, known) for v in values])
    return node


def _without_one(node: ast.BinOp) -> ast.expr:
    """A product or a quotient by 1 is its left side, and no rest is left by 1."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult() | ast.FloorDiv(), right=ast.Constant(value=1)):
            return left
        case ast.BinOp(op=ast.Mod(), right=ast.Constant(value=1)):
            return ast.Constant(0)
    return node


def _fold_logic(op: ast.boolop, values: list[ast.expr]) -> ast.expr:
    absorbing = isinstance(op, ast.Or)
    if any(isinstance(v, ast.Constant) and v.value is absorbing for v in values):
        return ast.Constant(absorbing)
    left = [v for v in values if not isinstance(v, ast.Constant)]
    if not left:
        return ast.Constant(not absorbing)
    return left[0] if len(left) == 1 else ast.BoolOp(op, left)


def _negate(node: ast.expr) -> ast.expr:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=right):
            return ast.Compare(left, [_OPPOSITE[type(op)]()], right)
        case ast.BoolOp(op=op, values=values):
            return ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), [_negate(v) for v in values])
        case ast.UnaryOp(operand=operand):
            return operand
    return ast.UnaryOp(ast.Not(), node)


def _cpp(node: ast.expr, rename: Mapping[str, str]) -> tuple[str, int]:
    """C++ text and the precedence of its outermost operator."""

    def child(inner: ast.expr, least: int) -> str:
        text, precedence = _cpp(inner, rename)
        return text if precedence >= least else f"({text})"

    match node:
        case ast.Constant(value=value):
            return (str(value).lower() if isinstance(value, bool) else str(value)), _PRECEDENCE["atom"]
        case ast.Name(id=name):
            return rename.get(name, name), _PRECEDENCE["atom"]
        case ast.BinOp(left=left, op=op, right=right):
            _, symbol, precedence, _ = _ARITHMETIC[type(op)]
            return f"{child(left, precedence)} {symbol} {child(right, precedence + 1)}", precedence
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            precedence = _PRECEDENCE["compare"]
            symbol = _COMPARISONS[type(op)][0]
            return f"{child(left, precedence + 1)} {symbol} {child(right, precedence + 1)}", precedence
        case ast.BoolOp(op=op, values=values):
            # Parentheses around && under || are not needed, but compilers warn without them.
            symbol, precedence = ("&&", _PRECEDENCE["and"]) if isinstance(op, ast.And) else ("||", _PRECEDENCE["or"])
            parts = [child(v, _PRECEDENCE["compare"]) for v in values]
            return f" {symbol} ".join(parts), precedence
        case ast.UnaryOp(operand=operand):
            return f"!{child(operand, _PRECEDENCE['not'])}", _PRECEDENCE["not"]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return f"{child(test, 1)} ? {child(body, 1)} : {child(orelse, 1)}", _PRECEDENCE["if"]
    raise AssertionError(ast.dump(node))
