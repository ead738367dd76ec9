"""A whole configuration from the keys that somebody typed.

A key that is left out takes the first value, in the order of preference below, with which the configuration is legal
for the keys that were given and the architecture. So ``inst=8x32x16`` alone is a working kernel.
"""

from __future__ import annotations

import itertools
import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wmmagen import coverage, derive, instructions, mend, rules
from wmmagen.arch import Arch
from wmmagen.config import (
    LINEAR,
    MAX_COUNT,
    OPERATION_KEYS,
    WIDEST_BITS,
    Arrange,
    Batch,
    Copy,
    Feed,
    Grid,
    KernelConfig,
    Layout,
    Operation,
    Overflow,
    Problem,
    Reduction,
    Residency,
    Residue,
    Shape,
    Store,
    build,
    is_name,
    parse,
    read_pairs,
    read_value,
)
from wmmagen.dtypes import F16, RESULTS
from wmmagen.epilogue import Epilogue
from wmmagen.errors import ConfigError, IllegalConfig
from wmmagen.space import Space

#: Keys whose default depends on nothing else.
_PLAIN: dict[str, Any] = {
    "residue": Residue.EXACT,
    "overflow": Overflow.WRAP,
    "cd": Layout.RR,
    "batch": Batch.NONE,
    "residency": Residency.FRAGMENT,
    "min_blocks": 1,
    "raster": LINEAR,
    "warps_k": 1,
}

_ARRANGEMENTS = tuple(itertools.product((Arrange.ROWS, Arrange.TILES), repeat=2))
_WARPS = (Grid(2, 2), Grid(2, 1), Grid(1, 2), Grid(1, 1))
_FRAGS = (Grid(4, 4), Grid(4, 2), Grid(2, 4), Grid(2, 2), Grid(1, 2), Grid(2, 1), Grid(1, 1))
_K_STEPS = (2, 1, 4)
#: Combinations of preferences that are judged, at most; one that breaks a rule rules out all that agree with it in what
#: the rule reads, so few are.
_JUDGED = 48
#: Points of a space that are looked at where the preferences lead nowhere.
_SAMPLED = 1000

#: The choices on an axis of preferences: values for some keys each.
Axis = Sequence[tuple[tuple[str, Any], ...]]
#: For some axes, the places on them that together break a rule.
Broken = dict[tuple[int, ...], set[tuple[int, ...]]]


def complete(given: Mapping[str, Any], arch: Arch, *, strict_isa: bool = False, search: bool = True) -> KernelConfig:
    """The preferred legal configuration that has the ``given`` values.

    Where no legal one exists, of those that break the fewest rules the most preferred one is returned, so that
    :func:`wmmagen.rules.check` says what is wrong with what was given, not with what was chosen.

    Args:
        search: where no preferred value is legal, look through the search space, which takes longer.
    """
    feed = Feed.GLOBAL if given.get("copy") is Copy.NONE else Feed.SHARED
    fixed = {**_PLAIN, **_of_split(given), "feed": feed, **_of_types(given), **given}
    axes = _axes(fixed, arch, strict_isa)
    least: tuple[int, KernelConfig] | None = None
    names = _names_of_axes(fixed, axes)
    broken: Broken = {}
    for places in itertools.islice(_unbroken(axes, broken), _JUDGED):
        config = _config(fixed, axes, places)
        ruled_out = rules.broken(derive.values(config, arch, strict_isa=strict_isa))
        if not ruled_out:
            return config
        if least is None or len(ruled_out) < least[0]:
            least = len(ruled_out), config
        for rule in ruled_out:
            roots = rules.roots_of(rule)
            read = tuple(axis for axis, own in enumerate(names) if own & roots)
            if read:
                broken.setdefault(read, set()).add(tuple(places[axis] for axis in read))
    found = _in_space(given, arch, strict_isa) if search else None
    assert least is not None  # the first combination is always judged
    return found or least[1]


def _config(fixed: Mapping[str, Any], axes: Sequence[Axis], places: Sequence[int]) -> KernelConfig:
    chosen = (axis[place] for axis, place in zip(axes, places, strict=True))
    return build({**fixed, **dict(itertools.chain.from_iterable(chosen))})


def _names_of_axes(fixed: Mapping[str, Any], axes: Sequence[Axis]) -> list[set[str]]:
    """For each axis, the numbers and flags that its values change."""
    first = [0] * len(axes)
    known = _given(_config(fixed, axes, first))
    found: list[set[str]] = []
    for axis, choices in enumerate(axes):
        others = [_given(_config(fixed, axes, [*first[:axis], p, *first[axis + 1 :]])) for p in range(1, len(choices))]
        found.append({name for other in others for name, value in other.items() if value != known[name]})
    return found


def _given(config: KernelConfig) -> dict[str, Any]:
    return {**derive.given(config), **derive.flags(config)}


def _unbroken(axes: Sequence[Axis], broken: Broken, begun: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Places on the axes, the last one varying fastest, without those that are ``broken``, which may grow meanwhile."""
    known = [(read, places) for read, places in broken.items() if not read or read[-1] < len(begun)]
    if any(tuple(begun[axis] for axis in read) in places for read, places in known):
        return
    if len(begun) == len(axes):
        yield begun
        return
    for place in range(len(axes[len(begun)])):
        yield from _unbroken(axes, broken, (*begun, place))


def operation_of(given: Mapping[str, Any]) -> Operation:
    """The operation of :func:`complete`, which depends on the ``given`` values alone."""
    fixed = {**_PLAIN, **_of_types(given), **given}
    return Operation(**{key: fixed[key] for key in OPERATION_KEYS if key in fixed})


def for_size(given: Mapping[str, Any], arch: Arch, size: tuple[int, int, int], batch: int = 1) -> dict[str, Any]:
    """The ``given`` values, with what a packed problem of m, n, k makes of the operation where they leave that open.

    Where no kernel for multiples of its block tile takes the size, and one for all sizes does, that is the latter. Its
    promises are as wide as the rows of the packed matrices allow, also where a kernel for all sizes was asked for.
    """
    operation = operation_of(given)
    problem = Problem.packed(operation, *size, batch=batch)
    aligned = {key: kept for key, kept in problem.alignments.items() if key not in given}
    if operation.residue is Residue.PREDICATED:
        return {**given, **{key: kept for key, kept in aligned.items() if kept != getattr(operation, key)}}
    if "residue" in given or 0 in size or len(Space(operation, arch, given, problem=problem)):
        return dict(given)
    suited = {**given, "residue": Residue.PREDICATED, **aligned}
    problem = Problem.packed(operation_of(suited), *size, batch=batch)
    return suited if len(Space(problem.operation, arch, suited, problem=problem)) else dict(given)


def _in_space(given: Mapping[str, Any], arch: Arch, strict_isa: bool) -> KernelConfig | None:
    """A legal configuration of the search space with the ``given`` values, near the preferred tiles; None for none."""
    operation = operation_of(given)
    plain = {key: value for key, value in _PLAIN.items() if key not in OPERATION_KEYS}
    split = _of_split(given)
    for fixed in ({**plain, **split, "fragment_buffers": 1, **given}, {**split, **given}):
        space = Space(operation, arch, fixed, strict_isa=strict_isa)
        if len(space):
            # An even sample is enough to come near; the whole space can have millions of points.
            return min((space.at(i) for i in range(0, len(space), max(1, len(space) // _SAMPLED))), key=_distance)
    return None


def _distance(config: KernelConfig) -> tuple[float, ...]:
    """How far a configuration is from the preferred tiles, pads and pipeline; the name decides among equals last."""
    tile = config.frags.m * config.inst.m * config.frags.n * config.inst.n
    warp = abs(math.log2(tile / 64**2))
    block = abs(math.log2(tile * config.warps.m * config.warps.n / 128**2))
    unpadded = (config.pad_a == 0) + (config.pad_b == 0)
    odd = (config.feed is Feed.GLOBAL, config.residency is not _PLAIN["residency"])
    return (*odd, unpadded, warp + block, abs(config.k_steps - 2), abs(config.stages - 3))


def _of_types(given: Mapping[str, Any]) -> dict[str, Any]:
    """Types and shape: the first row of the instruction table that agrees with what was given; f16 where none does."""
    rows = instructions.of_operand(given["a"]) if "a" in given else instructions.INSTRUCTIONS
    rows = rows or instructions.of_operand(F16)
    wanted = given.get("acc", _stored_as_it_is(given))
    rows = tuple(r for r in rows if wanted in (None, r.acc)) or rows
    if "c" in given and "a" not in given:
        # Doubles and whole numbers are added to sums of their own kind only.
        c = given["c"]
        rows = tuple(r for r in rows if (r.acc.integer, r.acc.bits == 64) == (c.integer, c.bits == 64)) or rows
    if "d" in given:
        rows = tuple(r for r in rows if given["d"].name in RESULTS.get(r.acc.name, ())) or rows
    row = rows[0]
    a, acc = given.get("a", row.a), given.get("acc", row.acc)
    d = given.get("d", given["c"] if acc.integer and given.get("c", acc).bits == 8 else acc)
    layout = Layout(row.whole_layouts[0])
    # What whole sums become is made by a scale, and a type of what is added asks for something that is.
    scaled = acc.integer and d != acc
    epilogue = Epilogue.LINEAR if scaled or given.get("c", d) != d else Epilogue.NONE
    aligns = {"align_a": WIDEST_BITS // a.bits, "align_b": WIDEST_BITS // a.bits}
    # A store of D stays within a row of one tile.
    aligns["align_d"] = min(WIDEST_BITS // d.bits, given.get("inst", row).n)
    types = {"a": a, "acc": acc, "d": d, "epilogue": epilogue}
    return {**types, "inst": Shape(row.m, row.n, row.k), "layout": layout, **aligns}


def _of_split(given: Mapping[str, Any]) -> dict[str, Any]:
    """Blocks share a tile of D where either key says so; through a workspace, which every other choice can have."""
    split = given.get("split_k", 1 if given.get("reduction", Reduction.NONE) is Reduction.NONE else 2)
    return {"split_k": split, "reduction": Reduction.NONE if split == 1 else Reduction.WORKSPACE}


def _stored_as_it_is(given: Mapping[str, Any]) -> Any:
    """The type that D was given, where the given keys store sums as they are; None where they may be converted."""
    direct = given.get("store") is Store.DIRECT or given.get("residency") is Residency.GLOBAL
    return given.get("d") if direct else None


def _axes(fixed: Mapping[str, Any], arch: Arch, strict_isa: bool) -> list[Axis]:
    """Values for the keys that are still open, the most preferred ones first.

    The axes that vary slowest are those whose first value is worth the most: an unpadded tile costs more than a
    shorter pipeline, and that more than a smaller tile. Rows and direct stores come first because they are simpler;
    the rules send the tiles that cannot have them to the others.
    """
    axes: list[tuple[tuple[str, ...], Sequence[tuple[Any, ...]]]] = [
        (("store", "pad_d"), _stores(fixed)),
        (("pad_a", "pad_b"), _pads(fixed, strict_isa)),
        (("copy", "stages", "fragment_buffers"), _pipelines(fixed, arch)),
        (("warps",), [(w,) for w in _WARPS]),
        (("frags",), [(f,) for f in _FRAGS]),
        (("k_steps",), [(k,) for k in _k_steps(fixed)]),
        (("arrange_a", "arrange_b"), _ARRANGEMENTS if fixed["feed"] is Feed.SHARED else _ARRANGEMENTS[:1]),
    ]
    return [_open(keys, values, fixed) for keys, values in axes]


def _open(keys: tuple[str, ...], values: Sequence[tuple[Any, ...]], fixed: Mapping[str, Any]) -> Axis:
    """The different choices that are left of an axis where some of its keys are fixed."""
    rows = (zip(keys, row, strict=True) for row in values)
    return list(dict.fromkeys(tuple((k, v) for k, v in row if k not in fixed) for row in rows))


def _k_steps(fixed: Mapping[str, Any]) -> Sequence[int]:
    """An odd number of warps shares a slice evenly only where the slice has that factor, too.

    Groups of warps share its steps.
    """
    warps, groups = fixed.get("warps", Grid(1, 1)), fixed["warps_k"]
    odd = warps.m * warps.n
    while odd % 2 == 0:
        odd //= 2
    return (*_K_STEPS, *(k for k in (odd, 2 * odd, 2 * groups, groups) if 1 < k <= MAX_COUNT and k not in _K_STEPS))


def _pipelines(fixed: Mapping[str, Any], arch: Arch) -> Sequence[tuple[Copy, int, int]]:
    """Copies past the registers win where they exist, with more buffers than one, and with fragments a step ahead.

    Through registers, slices on their way and two sets of fragments together seldom fit.
    """
    if fixed["feed"] is Feed.GLOBAL:
        return [(Copy.NONE, 1, 1)]
    past = [(Copy.CPASYNC, stages, sets) for stages in (3, 2) for sets in (2, 1)]
    through = [(Copy.LD, 2, 1), (Copy.LD, 1, 1)]
    rows = past + through if arch.sm >= 80 and fixed.get("stages") != 1 else through + past
    return [row for row in rows if row[0] is fixed.get("copy", row[0])] or rows


def _stores(fixed: Mapping[str, Any]) -> Sequence[tuple[Store, int]]:
    """A staged tile of D is padded by 16 bytes, so that its rows lie on different banks, or by a whole fragment."""
    unit = WIDEST_BITS // fixed["acc"].bits
    direct = [(Store.DIRECT, 0)] if fixed["acc"] == fixed["d"] and not fixed.get("pad_d") else []
    return [*direct, *((Store.STAGED, pad) for pad in (unit, 2 * unit, 0))]


def _pads(fixed: Mapping[str, Any], strict_isa: bool) -> Sequence[tuple[int, int]]:
    """One 16-byte unit makes rows an odd number of units apart, which shared memory reads without conflicts."""
    if fixed["feed"] is Feed.GLOBAL:
        return [(0, 0)]
    unit = 128 // fixed["a"].bits
    if not strict_isa:
        return [(size, size) for size in (unit, 2 * unit, 0)]
    # Narrow rows of one operand may want another pad than the rows of the other.
    sizes = (2 * unit, unit, 0)
    return sorted(itertools.product(sizes, sizes), key=lambda pads: pads[0] != pads[1])


def read_config(text: str, arch: Arch, *, strict_isa: bool = False) -> KernelConfig:
    """The configuration that the command line's ``CONFIG`` stands for.

    Args:
        text: a kernel name, ``key=value,…`` over the defaults, or the path of a TOML file with the same keys.
        arch: the architecture that defaults are chosen for.

    Raises:
        ConfigError: it is none of these, or a key or value in it is unknown.
    """
    text = text.strip()
    if is_name(text) and not text.endswith(".toml"):
        return parse(text)
    if text.endswith(".toml"):
        return complete(read_toml(Path(text)), arch, strict_isa=strict_isa)
    if "=" not in text and ("/" in text or "." in text or os.path.isfile(text)):
        raise ConfigError(
            f"{text!r} is neither a kernel name nor key=value,…",
            "a file of a configuration is TOML, and its name ends with .toml",
        )
    return complete(read_pairs(text), arch, strict_isa=strict_isa)


def read_toml(path: Path) -> dict[str, Any]:
    """The values that a TOML file gives: one ``key = value`` a line, strings or whole numbers.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or has an unknown key or value.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", "give the path of a TOML file, or key=value,…") from None
    except (ValueError, RecursionError) as error:  # a number or a nest beyond what Python reads
        raise ConfigError(f"{path}: is no TOML that can be read: {error}", 'for example: inst = "16x16x16"') from None
    for key, value in table.items():
        if isinstance(value, dict):
            raise ConfigError(f"{path}: [{key}] is a table", "write the keys at the top, without a table")
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise ConfigError(f"{path}: {key} is neither a string nor a whole number", f'for example: {key} = "…"')
    return {key: read_value(key, str(value)) for key, value in table.items()}


def demand(config: KernelConfig, arch: Arch, *, strict_isa: bool = False) -> None:
    """Return where ``config`` is legal on ``arch`` and can be rendered.

    Raises:
        IllegalConfig: a rule is broken.
        NotGeneratedYet: none is, but no template makes it.
    """
    try:
        rules.demand(config, arch, strict_isa=strict_isa)
    except IllegalConfig as error:
        proposal = mend.words(config, arch, strict_isa=strict_isa)
        raise IllegalConfig(f"{error.message}\n{proposal}", error.fix, error.violations) from None
    coverage.demand(config)
