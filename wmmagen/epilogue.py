"""Epilogues: what becomes of a finished sum on its way to D, as a chain of steps in declared order.

A step is a formula over what an element brings along; :data:`STEPS` holds each of them once. The kernel's text, the
reference, the bound of its error and the self-test of an emitted file are all made of these formulas.

``none`` is no step. A chain is written ``linear+biascol+gelu``, in names ``linearbiascolgelu``; a user's own step is
``expr(…)``, in names ``expr`` and the formula's word (:mod:`wmmagen.formula`).
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar

from wmmagen import formula
from wmmagen.errors import ConfigError
from wmmagen.formula import Node

#: The matrices that a chain may read, by their names in formulas and in calls.
MATRICES: dict[str, str] = {"c": "C", "r": "R"}
#: The vectors: those along the columns of D have N elements, those along its rows M. Biases are added.
BIASES, SCALES = ("bias_row", "bias_col"), ("scale_row", "scale_col")
VECTORS: tuple[str, ...] = (*BIASES, *SCALES)
#: The numbers of a call.
SCALARS: tuple[str, ...] = ("alpha", "beta", "scale", "low", "high")
_PLACE = ("row", "col")
_KNOWN = ("acc", *MATRICES, *VECTORS, *SCALARS, *_PLACE)
#: What a user's formula may read; ``bias`` is the column's.
USER_NAMES = ("acc", "c", "bias", *_PLACE)
EXPR = "expr"


def along_row(vector: str) -> bool:
    """Whether a vector has one element for each row of D, else one for each column."""
    return vector.endswith("_row")


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        word: its name; ``expr`` for a user's own.
        formula: of ``acc``, which is what the steps before have made of the sum.
    """

    word: str
    formula: Node

    def __str__(self) -> str:
        return f"{EXPR}({formula.text(self.formula)})" if self.word == EXPR else self.word

    @property
    def in_name(self) -> str:
        return self.word + (formula.word(self.formula) if self.word == EXPR else "")

    @cached_property
    def names(self) -> frozenset[str]:
        """What it reads, a user's ``bias`` as the vector that it is."""
        return frozenset("bias_col" if name == "bias" else name for name in formula.names(self.formula))


def _step(word: str, text: str) -> tuple[str, Step]:
    return word, Step(word, formula.parse(text, _KNOWN, single=False))


#: Every step but a user's own. Where beta is 0, C is not read. What is NaN stays NaN: a comparison with it is false.
STEPS: dict[str, Step] = dict(
    [
        _step("linear", "beta == 0 ? alpha * acc : alpha * acc + beta * c"),
        _step("biasrow", "acc + bias_row"),
        _step("biascol", "acc + bias_col"),
        _step("scale", "acc * scale"),
        _step("scalerow", "acc * scale_row"),
        _step("scalecol", "acc * scale_col"),
        _step("residual", "acc + r"),
        _step("relu", "acc < 0 ? 0 : acc"),
        _step("clamp", "acc < low ? low : acc > high ? high : acc"),
        # x·Phi(x) with the normal distribution function Phi.
        _step("gelu", "acc * cdf(acc)"),
        # x/2·(1 + tanh(y)) with y = sqrt(2/pi)·(x + 0.044715·x^3) is x/(1 + exp(-2·y)), where nothing cancels.
        _step("gelutanh", "ratio(acc, 1 + exp(-1.5957691216057308 * (acc + 0.044715 * acc * acc * acc)))"),
        _step("silu", "ratio(acc, 1 + exp(-acc))"),
    ]
)
#: The longest word first: none of those that begin with another one is that and the beginning of a third.
_IN_NAME = re.compile("|".join(sorted((*STEPS, EXPR), key=len, reverse=True)))


@dataclass(frozen=True)
class Epilogue:
    """A chain of steps; none for D = A·B.

    Raises:
        ConfigError: two steps of one kind, or an order in which a step would be a second name for another.
    """

    steps: tuple[Step, ...] = ()
    #: Whether it was asked for; what a kernel seems to have computed need not be a chain that one would ask for.
    asked: bool = field(default=True, compare=False)

    NONE: ClassVar[Epilogue]
    LINEAR: ClassVar[Epilogue]

    def __post_init__(self) -> None:
        words = [step.word for step in self.steps]
        if not self.asked:
            return
        for word in words:
            if words.count(word) > 1:
                why = "write one expression" if word == EXPR else "what it takes has one name in a call"
                raise ConfigError(f"epilogue={self}: {word} stands there twice", f"give each step once: {why}")
        if "linear" in words[1:]:
            raise ConfigError(f"epilogue={self}: linear scales the sum itself", "give linear first")
        if words[:1] == ["residual"]:
            raise ConfigError(
                f"epilogue={self}: a residual that is added to the bare product is linear with alpha = beta = 1",
                "give linear in its place",
            )
        for step in self.steps:
            if step.word == EXPR:
                self._check_own(step, words)

    def _check_own(self, step: Step, words: list[str]) -> None:
        if "acc" not in step.names or step.formula == formula.Name("acc"):
            raise ConfigError(f"epilogue={self}: {step} makes nothing of acc", "write an expression that reads acc")
        if "c" in step.names and "linear" in words:
            raise ConfigError(
                f"epilogue={self}: linear reads C, and not at all where beta is 0, but {step} always",
                "write alpha and beta as numbers into the expression, or leave c out of it",
            )

    def __str__(self) -> str:
        return "+".join(map(str, self.steps)) or "none"

    @property
    def in_name(self) -> str:
        """The chain in small letters and digits, one step right behind the other."""
        return "".join(step.in_name for step in self.steps) or "none"

    def with_steps(self, steps: tuple[Step, ...]) -> Epilogue:
        """Another chain, which nobody asked for: what a kernel may have done by mistake."""
        return Epilogue(steps, asked=False)

    @cached_property
    def names(self) -> frozenset[str]:
        """Everything that it reads of an element or a call, ``acc`` left out."""
        return frozenset().union(*(step.names for step in self.steps)) - {"acc"}

    def has(self, name: str) -> bool:
        return name in self.names

    @property
    def scaled(self) -> bool:
        """Whether it begins with alpha and beta."""
        return self.has("alpha")

    @property
    def simple(self) -> bool:
        """Whether it is what the plain product is, or alpha·A·B + beta·C alone."""
        return self in (Epilogue.NONE, Epilogue.LINEAR)

    @property
    def matrices(self) -> tuple[str, ...]:
        """Which of C and R a call has, in its order."""
        return tuple(name for name in MATRICES if self.has(name))

    @property
    def vectors(self) -> tuple[str, ...]:
        """Which vectors a call has, in its order."""
        return tuple(name for name in VECTORS if self.has(name))

    @property
    def scalars(self) -> tuple[str, ...]:
        """Which numbers a call has, in its order."""
        return tuple(name for name in SCALARS if self.has(name))

    @property
    def adds(self) -> bool:
        """Whether anything has the type of C: C itself, R, or a bias."""
        return any(self.has(name) for name in (*MATRICES, *BIASES))

    @property
    def positional(self) -> bool:
        """Whether an element has to know its place: what no fragment tells."""
        return any(self.has(name) for name in (*VECTORS, *_PLACE))

    @property
    def scale_names(self) -> tuple[str, ...]:
        """What sums are multiplied by, in the order of its steps; a user's formula is not looked into."""
        return tuple(name for step in self.steps for name in ("alpha", "scale", *SCALES) if name in step.names)

    @property
    def scales_first(self) -> tuple[str, ...]:
        """The scales in front of the first step that rounds: what they make of whole sums may be fractions to it."""
        exact = itertools.takewhile(lambda step: formula.exact(step.formula), self.steps)
        return self.with_steps(tuple(exact)).scale_names

    @property
    def scales(self) -> bool:
        """Whether sums may come out smaller: there is a scale, or a formula of somebody's own, who knows."""
        return bool(self.scale_names) or any(step.word == EXPR for step in self.steps)

    @property
    def bounds(self) -> bool:
        """Whether a step may make one number of many: a clamp, or a choice or an extreme in a user's formula."""
        own = (step.formula for step in self.steps if step.word == EXPR)
        return self.has("low") or any(formula.operations(each) & {"if", "min", "max"} for each in own)

    @property
    def exact(self) -> bool:
        """Whether f32 computes it without rounding on suitable inputs."""
        return all(formula.exact(step.formula) for step in self.steps)


Epilogue.NONE = Epilogue()
Epilogue.LINEAR = Epilogue((STEPS["linear"],))


def _split(text: str) -> Iterator[str]:
    """The parts of a chain: a plus within parentheses is part of an expression."""
    depth, begin = 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "+" and not depth:
            yield text[begin:at].strip()
            begin = at + 1
    yield text[begin:].strip()


@lru_cache(maxsize=1 << 10)
def read(text: str) -> Epilogue:
    """The chain that ``text`` spells.

    Raises:
        ConfigError: a step that is none, an expression that cannot be read, or an order that is refused.
    """
    if text == "none":
        return Epilogue.NONE
    return _the_one(tuple(_read_step(part, text) for part in _split(text)))


def _the_one(steps: tuple[Step, ...]) -> Epilogue:
    """A chain, the plain ones as the objects by which they are known."""
    return Epilogue.LINEAR if steps == Epilogue.LINEAR.steps else Epilogue(steps)


def _read_step(part: str, text: str) -> Step:
    own = re.fullmatch(rf"{EXPR}\s*\((.*)\)", part, re.DOTALL)
    if own:
        return Step(EXPR, formula.parse(own[1], USER_NAMES))
    if part not in STEPS:
        near = difflib.get_close_matches(part, [*STEPS, "none"], n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        if part == "none":
            hint = "none is no step behind or before others: leave it out. "
        raise ConfigError(
            f"epilogue={text} is not known: {part!r} is no step",
            f"{hint}epilogue is none, or steps joined by +: {' '.join(STEPS)} {EXPR}(…)",
        )
    return STEPS[part]


@lru_cache(maxsize=1 << 10)
def from_name(text: str) -> Epilogue:
    """The chain that ``text`` is within a kernel's name.

    Raises:
        ConfigError: it is none.
    """
    if text == "none":
        return Epilogue.NONE
    steps, rest = [], text
    while rest:
        match = _IN_NAME.match(rest)
        if match is None:
            raise ConfigError(f"{rest!r} is no step of an epilogue in a kernel's name", "the grammar is in NAMES.md")
        word, rest = match[0], rest[match.end() :]
        if word == EXPR:
            node, rest = formula.from_word(rest, USER_NAMES)
            steps.append(Step(EXPR, node))
        else:
            steps.append(STEPS[word])
    return _the_one(tuple(steps))
