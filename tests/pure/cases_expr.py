"""Random expressions of the common subset; shared by Python's and the compiler's tests."""

from __future__ import annotations

import random
from typing import Any

NUMBERS = ("A", "B", "LDS_A")
FLAGS = ("f", "g_8")


def number(draw: random.Random, depth: int, *, differences: bool = True) -> str:
    """A number that is never negative where ``differences`` are not wanted, as under ``//`` and ``%``."""
    if depth == 0 or draw.random() < 0.2:
        return draw.choice([*NUMBERS, str(draw.randrange(40))])
    operator = draw.choice(["+", "*", "//", "%", "if", *(["-"] if differences else [])])
    if operator in ("//", "%"):
        return f"({number(draw, depth - 1, differences=False)}) {operator} ({positive(draw, depth - 1)})"
    left, right = (number(draw, depth - 1, differences=differences) for _ in "lr")
    if operator == "if":
        return f"({left}) if ({truth(draw, 1, differences=differences)}) else ({right})"
    return f"({left}) {operator} ({right})"


def positive(draw: random.Random, depth: int) -> str:
    """A number that can divide."""
    if depth == 0 or draw.random() < 0.6:
        return draw.choice([*NUMBERS, str(draw.randrange(1, 40))])
    return f"({positive(draw, depth - 1)}) {draw.choice('+*')} ({positive(draw, depth - 1)})"


def truth(draw: random.Random, depth: int, *, differences: bool = True) -> str:
    if depth == 0 or draw.random() < 0.2:
        return draw.choice([*FLAGS, "True", "False"])
    kind = draw.choice(["compare", "compare", "and", "or", "not", "if"])
    if kind == "compare":
        left, right = (number(draw, depth - 1, differences=differences) for _ in "lr")
        return f"({left}) {draw.choice(['==', '!=', '<', '<=', '>', '>='])} ({right})"
    inner = [f"({truth(draw, depth - 1, differences=differences)})" for _ in range(3)]
    if kind == "not":
        return f"not {inner[0]}"
    if kind == "if":
        return f"{inner[0]} if {inner[1]} else {inner[2]}"
    return f" {kind} ".join(inner[: draw.choice([2, 3])])


def environment(draw: random.Random) -> dict[str, Any]:
    """A value for every name; numbers are positive, because any of them may divide."""
    return {**{n: draw.randrange(1, 60) for n in NUMBERS}, **{f: draw.random() < 0.5 for f in FLAGS}}
