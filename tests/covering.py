"""Configurations in which every pair of values stands that any configuration has; the same ones every time.

The axes are what the house knows: each slot of an operation and of a configuration with all of its values, and the
architectures. A new type, slot or value is among them without a word here. What is allowed is said by the rules and by
what templates make: :class:`Model` holds both as constraints, and says of any part of a choice either a configuration
that has it or the rules that leave none. So what occurs nowhere is known, with its reason, and all else is covered.

The rows are allpairspy's, whose filter asks the model. It ends with the first row that brings nothing new; what is left
then gets rows from the model.
"""

from __future__ import annotations

import itertools
import random
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from allpairspy import AllPairs

from tests.covered import Case
from wmmagen import coverage, derive, epilogue, instructions, rules, space
from wmmagen.arch import ARCHS, Arch
from wmmagen.config import NEUTRAL, OPERATION_KEYS, WIDEST_BITS, KernelConfig, Operation, spell
from wmmagen.dtypes import ELEMENT_TYPES, RESULTS, ElementType
from wmmagen.epilogue import Epilogue
from wmmagen.errors import ConfigError
from wmmagen.expr import parse

#: What every pair is wanted of, whatever else is an axis.
MAIN = ("a", "acc", "d", "layout", "cd", "inst", "stages", "copy", "residue", "epilogue", "batch")
#: Of these every three values. With the epilogue, which has the most, they would be three times as many rows.
TRIPLES = tuple(name for name in MAIN if name != "epilogue")
ARCH = "arch"
SEED = 20_261_130
#: Larger tiles make larger problems, and no other code: what the executor runs in a moment.
LIMITS = {
    "small-tile": parse("BLOCK_M * BLOCK_N <= 2048 and BLOCK_K <= 64"),
    "few-warps": parse("THREADS <= 128"),
    "few-products": parse("FRAGS_M * FRAGS_N * K_STEPS <= 8"),
    "few-splits": parse("SPLIT_K <= 4"),
}
#: Steps of a user's own, which no list holds: one of values and one of places.
OWN = ("expr(max(acc*2-c,bias))", "expr(row<col?acc:-acc)")
#: Configurations from whose neighbours it is learnt what each axis changes.
_BASES = 60

Value = Any
#: Places on axes: the axis, and which of its values.
Choice = Mapping[str, int]
Combination = tuple[tuple[str, int], ...]


# The axes ------------------------------------------------------------------------------------------------------------


def _chains() -> Iterator[Epilogue]:
    """Nothing, each step alone or behind the factors, and a user's own."""
    yield Epilogue.NONE
    for text in (*epilogue.STEPS, *OWN):
        try:
            yield epilogue.read(text)
        except ConfigError:
            yield epilogue.read(f"linear+{text}")


def _values_of_kind(key: str, kind: Any) -> tuple[Value, ...]:
    """All values of a slot of an operation, by its type.

    Raises:
        TypeError: a slot of a kind that nobody has told yet how to list.
    """
    if typing.get_args(kind):  # a kind, or None
        return tuple(v for part in typing.get_args(kind) for v in _values_of_kind(key, part))
    if kind is type(None):
        return (None,)
    if kind is Epilogue:
        return tuple(_chains())
    if kind is ElementType:
        return tuple(ELEMENT_TYPES[name] for name in coverage.GENERATED[key])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(v for v in kind if spell(v) in coverage.GENERATED.get(key, (spell(v),)))
    if key.startswith("align_"):
        # Up to the widest access, which only single bytes need so many of.
        return tuple(2**power for power in range((WIDEST_BITS // 8).bit_length()))
    raise TypeError(f"{key} is a slot of {kind}, whose values this proof cannot list")


def axes() -> dict[str, tuple[Value, ...]]:
    """Every axis with its values: architectures, slots of an operation, and axes of a search."""
    kinds = typing.get_type_hints(Operation)
    found = {key: _values_of_kind(key, kinds[key]) for key in OPERATION_KEYS}
    found[ARCH] = tuple(arch for arch in ARCHS.values() if _compiled(arch))
    searched: dict[str, dict[Value, None]] = {}
    for row in instructions.INSTRUCTIONS:
        if row.a in found["a"]:
            own = Operation(row.a, row.acc, ELEMENT_TYPES[RESULTS[row.acc.name][0]])
            for name, values in space.axes_of(own).items():
                searched.setdefault(name, {}).update(dict.fromkeys(values))
    found.update({name: tuple(values) for name, values in searched.items()})
    # A slot that no search varies has the value that it had before it was there.
    found.update({key: (value,) for key, value in NEUTRAL.items() if key not in found})
    return found


def _compiled(arch: Arch) -> bool:
    own = derive.of_arch(arch)
    return all(r.kept(own) for r in rules.RULES if r.scope is rules.Scope.TOOLCHAIN)


def paired() -> tuple[str, ...]:
    """The axes of which every two values are covered: all but tiles and their pads, of which values are drawn."""
    limited = frozenset().union(*(rules.roots_of_all(limit.names) for limit in LIMITS.values()))
    return tuple(name for name in axes() if name in MAIN or not (name.upper() in limited or name.startswith("pad_")))


# The constraints -----------------------------------------------------------------------------------------------------


@dataclass
class Constraint:
    """One sentence about some axes.

    Attributes:
        id: of a rule, or a name.
        scope: the axes on whose values its verdict depends.
        kept: the verdict on a case, of which numbers and flags are given, too.
        verdicts: what has been found out, by the places on the axes of its scope.
    """

    id: str
    scope: tuple[str, ...]
    kept: Callable[[KernelConfig, Mapping[str, Any]], bool]
    verdicts: dict[tuple[int, ...], bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """Why nothing has a choice: the ids of the sentences, and the axes of the choice that they speak of."""

    ids: frozenset[str]
    axes: frozenset[str]


class Model:
    """The axes and what is allowed of their product.

    Attributes:
        axes: each with its values.
        order: the axes in the order in which values are looked for.
    """

    def __init__(self) -> None:
        self.axes = axes()
        self.order = tuple(sorted(self.axes, key=lambda name: (name not in MAIN, name not in OPERATION_KEYS)))
        self._constraints = list(self._learnt())
        self._of: dict[str, list[Constraint]] = {name: [] for name in self.axes}
        for constraint in sorted(self._constraints, key=lambda c: len(c.scope)):
            for name in constraint.scope:
                self._of[name].append(constraint)
        self._first = dict.fromkeys(self.axes, 0)

    def case(self, choice: Choice) -> Case:
        """The configuration of a whole choice."""
        values = {name: self.axes[name][place] for name, place in choice.items()}
        arch = values.pop(ARCH)
        operation = Operation(**{key: values.pop(key) for key in OPERATION_KEYS})
        return Case(space.config_of(operation, values), arch)

    def words(self, choice: Choice) -> dict[str, str]:
        """A choice in words."""
        return {name: spell(self.axes[name][place]) for name, place in choice.items()}

    def _known(self, choice: Choice) -> tuple[KernelConfig, dict[str, Any]]:
        case = self.case(choice)
        return case.config, derive.values(case.config, case.arch)

    def _learnt(self) -> Iterator[Constraint]:
        """The constraints, each with the axes that change what it reads.

        What an axis changes is seen on configurations drawn evenly, at every other value of the axis.
        """
        changed: dict[str, set[str]] = {}
        refused: dict[str, set[str]] = {}
        rng = random.Random(SEED)
        for _ in range(_BASES):
            base = {name: rng.randrange(len(values)) for name, values in self.axes.items()}
            config, known = self._known(base)
            words = _unmade(config)
            for name, values in self.axes.items():
                for place in range(len(values)):
                    other, others = self._known({**base, name: place})
                    for number in known.keys() | others.keys():
                        if known.get(number) != others.get(number):
                            changed.setdefault(number, set()).add(name)
                    for word in words ^ _unmade(other):
                        refused.setdefault(word, set()).add(name)
        for rule in rules.LEGALITY:
            roots = rules.roots_of(rule)
            if rule.scope is not rules.Scope.LAUNCH and not rule.strict:
                yield Constraint(rule.id, self._scope(roots, changed), lambda _, known, r=rule: bool(r.kept(known)))
        for name, limit in LIMITS.items():
            roots = rules.roots_of_all(limit.names)
            yield Constraint(name, self._scope(roots, changed), lambda _, known, e=limit: bool(e(known)))
        for word in sorted(refused):
            scope = tuple(name for name in self.order if name in refused[word])
            yield Constraint(f"unmade {word}", scope, lambda config, _, w=word: w not in _unmade(config))

    def _scope(self, roots: frozenset[str], changed: Mapping[str, set[str]]) -> tuple[str, ...]:
        own = set().union(*(changed.get(root, ()) for root in roots))
        return tuple(name for name in self.order if name in own)

    # The search -------------------------------------------------------------------------------------------------------

    def find(
        self, choice: Choice, rng: random.Random | None = None, only: frozenset[str] | None = None
    ) -> dict[str, int] | Refused:
        """A whole choice that is allowed and has ``choice``, or why there is none.

        Args:
            rng: draws the order in which values are tried; as they stand where there is none.
            only: the ids of the constraints that count; all where there is none.
        """
        order = [*choice, *(name for name in self.order if name not in choice)]
        tried = {name: list(range(len(self.axes[name]))) for name in order}
        for places in tried.values() if rng else ():
            rng.shuffle(places)
        tried.update({name: [place] for name, place in choice.items()})
        begun: dict[str, int] = {}
        refused = self._extend(begun, order, 0, tried, only)
        return begun if refused is None else Refused(refused.ids, refused.axes & choice.keys())

    def needed(self, choice: Choice) -> frozenset[str]:
        """The ids of constraints that leave nothing with ``choice``, none of which could be spared.

        Raises:
            ValueError: something has it.
        """
        answer = self.find(choice)
        if not isinstance(answer, Refused):
            raise ValueError(f"there is a configuration with {self.words(choice)}")
        ids = answer.ids
        for spared in sorted(answer.ids):
            if isinstance(self.find(choice, only=ids - {spared}), Refused):
                ids -= {spared}
        return ids

    def _extend(
        self,
        begun: dict[str, int],
        order: Sequence[str],
        depth: int,
        tried: Mapping[str, Sequence[int]],
        only: frozenset[str] | None,
    ) -> Refused | None:
        """Extend ``begun`` by the axes from ``depth`` on; where that cannot be, the axes before that are the cause.

        An axis that has nothing to do with a failure behind it cannot mend it, so none of its other values is tried.
        """
        if depth == len(order):
            return None
        name = order[depth]
        ids: set[str] = set()
        axes: set[str] = set()
        for place in tried[name]:
            begun[name] = place
            broken = self._broken(begun, name, only)
            if broken is not None:
                ids.add(broken.id)
                axes.update(broken.scope)
                continue
            behind = self._extend(begun, order, depth + 1, tried, only)
            if behind is None:
                return None
            if name not in behind.axes:
                del begun[name]
                return behind
            ids |= behind.ids
            axes |= behind.axes
        del begun[name]
        return Refused(frozenset(ids), frozenset(axes))

    def _broken(self, begun: Choice, name: str, only: frozenset[str] | None) -> Constraint | None:
        """The first constraint that ``begun`` decides and that is not kept, of those that read ``name``."""
        known: tuple[KernelConfig, dict[str, Any]] | None = None
        for constraint in self._of[name]:
            if only is not None and constraint.id not in only:
                continue
            try:
                places = tuple([begun[axis] for axis in constraint.scope])
            except KeyError:
                continue
            if places not in constraint.verdicts:
                known = known or self._known({**self._first, **begun})
                constraint.verdicts[places] = constraint.kept(*known)
            if not constraint.verdicts[places]:
                return constraint
        return None


def _unmade(config: KernelConfig) -> frozenset[str]:
    """Of what templates do not make here, the keys that this is said of."""
    return frozenset(sentence.partition("=")[0] for sentence in coverage.missing(config))


# The arrays ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Array:
    """Rows in which every combination of ``strength`` values of some axes stands that any configuration has.

    Attributes:
        names: the axes, those with the most values first.
        strength: how many values a combination has.
        rows: choices on these axes.
        covered: combinations that stand in some row: all that any configuration has.
        refused: why no configuration has them, of all others.
    """

    names: tuple[str, ...]
    strength: int
    rows: tuple[Choice, ...]
    covered: frozenset[Combination]
    refused: Mapping[Combination, Refused]


def possible(
    model: Model, names: Sequence[str], strength: int
) -> tuple[dict[Combination, None], dict[Combination, Refused]]:
    """The combinations of values that some configuration has, and why none has the others."""
    found: dict[Combination, None] = {}
    refused: dict[Combination, Refused] = {}
    for axes_ in itertools.combinations(names, strength):
        for places in itertools.product(*(range(len(model.axes[name])) for name in axes_)):
            combination = tuple(zip(axes_, places, strict=True))
            if combination in found:
                continue
            answer = model.find(dict(combination))
            if isinstance(answer, Refused):
                refused[combination] = answer
            else:
                found.update(dict.fromkeys(combinations(answer, names, strength)))
    return found, refused


def combinations(choice: Choice, names: Sequence[str], strength: int) -> Iterator[Combination]:
    """Those that stand in a whole choice."""
    return itertools.combinations([(name, choice[name]) for name in names], strength)


class _Filter:
    """What allpairspy asks of each beginning of a row: whether a configuration has it and something new.

    So no row repeats what others have, and the library goes on until nothing is left.
    """

    def __init__(self, model: Model, names: Sequence[str], strength: int, left: dict[Combination, None]) -> None:
        self._model, self._names, self._strength, self._left = model, names, strength, left
        pairs = possible(model, names, 2)[0]
        self._together = pairs.keys() | {pair[::-1] for pair in pairs}
        self._apart: list[frozenset[tuple[str, int]]] = []
        self._answers: dict[tuple[int, ...], dict[str, int] | None] = {}

    def __call__(self, begun: Sequence[int]) -> bool:
        key = tuple(begun)
        if key not in self._answers:
            before = self._answers.get(key[:-1])
            same = before is not None and before[self._names[len(key) - 1]] == key[-1]
            self._answers[key] = before if same else self._new(dict(zip(self._names, key, strict=False)))
        return self._answers[key] is not None

    def take(self, row: Choice) -> None:
        """Note that there is a row."""
        for combination in combinations(row, self._names, self._strength):
            self._left.pop(combination, None)
        self._answers.clear()

    def _new(self, begun: dict[str, int]) -> dict[str, int] | None:
        """A whole choice that has ``begun`` and a combination that no row has yet."""
        whole = self._found(begun)
        if whole is None or any(c in self._left for c in combinations(whole, self._names, self._strength)):
            return whole
        for combination in self._left:
            if self._fits(begun, combination):
                whole = self._found(begun | dict(combination))
                if whole is not None:
                    return whole
        return None

    def _fits(self, begun: Choice, combination: Combination) -> bool:
        """Whether nothing speaks against both at first sight."""
        for item in combination:
            name, place = item
            if name in begun:
                if begun[name] != place:
                    return False
            else:
                together = self._together
                for other in begun.items():
                    if (item, other) not in together:
                        return False
        return True

    def _found(self, choice: dict[str, int]) -> dict[str, int] | None:
        items = frozenset(choice.items())
        if any(apart <= items for apart in self._apart):
            return None
        answer = self._model.find(choice)
        if isinstance(answer, Refused):
            self._apart.append(frozenset((name, choice[name]) for name in answer.axes))
            return None
        return answer


def array(model: Model, names: Sequence[str], strength: int) -> Array:
    """A covering array of some axes."""
    ordered = tuple(sorted(names, key=lambda name: -len(model.axes[name])))
    left, refused = possible(model, ordered, strength)
    covered = frozenset(left)
    asked = _Filter(model, ordered, strength, left)
    rows: list[Choice] = []
    places = [list(range(len(model.axes[name]))) for name in ordered]
    for row in AllPairs(places, filter_func=asked, n=strength):
        rows.append(dict(zip(ordered, row, strict=True)))
        asked.take(rows[-1])
    if left:
        raise AssertionError(f"{len(left)} combinations are in no row")
    return Array(ordered, strength, tuple(rows), covered, refused)


def covering(model: Model) -> tuple[Array, ...]:
    """The arrays: every two values of :func:`paired`, and every three of :data:`TRIPLES`."""
    return array(model, paired(), 2), array(model, TRIPLES, 3)


def cases(model: Model, arrays: Sequence[Array]) -> list[Case]:
    """A case for each row, no two of them alike; what a row leaves open is drawn, by a fixed seed.

    Raises:
        IllegalConfig, NotGeneratedYet: the model has not learnt all that the rules or the templates look at.
    """
    found: dict[Case, None] = {}
    for number, row in enumerate(itertools.chain.from_iterable(each.rows for each in arrays)):
        whole = model.find(row, random.Random(SEED + number))
        if isinstance(whole, Refused):
            raise AssertionError(f"a row of the array has no configuration: {model.words(row)}")
        case = model.case(whole)
        rules.demand(case.config, case.arch)
        coverage.demand(case.config)
        found[case] = None
    return list(found)
