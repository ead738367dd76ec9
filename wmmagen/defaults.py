"""A whole configuration from the keys that somebody typed.

A key that is left out takes the first value, in the order of preference below, with which the configuration is legal
for the keys that were given and the architecture. So ``inst=8x32x16`` alone is a working kernel.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wmmagen import coverage, derive, instructions, rules
from wmmagen.arch import Arch
from wmmagen.config import (
    MAX_COUNT,
    OPERATION_KEYS,
    Arrange,
    Copy,
    Epilogue,
    Feed,
    Grid,
    KernelConfig,
    Layout,
    Operation,
    Raster,
    Residency,
    Residue,
    Shape,
    build,
    is_name,
    parse,
    read_pairs,
    read_value,
)
from wmmagen.dtypes import F16
from wmmagen.errors import ConfigError
from wmmagen.space import Space

#: Keys whose default depends on nothing else.
_PLAIN: dict[str, Any] = {
    "layout": Layout.RR,
    "epilogue": Epilogue.NONE,
    "residue": Residue.EXACT,
    "pad_d": 0,
    "arrange_a": Arrange.ROWS,
    "arrange_b": Arrange.ROWS,
    "fragment_buffers": 1,
    "residency": Residency.FRAGMENT,
    "raster": Raster.LINEAR,
    "split_k": 1,
}

_WARPS = (Grid(2, 2), Grid(2, 1), Grid(1, 2), Grid(1, 1))
_FRAGS = (Grid(4, 4), Grid(4, 2), Grid(2, 4), Grid(2, 2), Grid(1, 2), Grid(2, 1), Grid(1, 1))
_K_STEPS = (2, 1, 4)
#: Points of a space that are looked at where the preferences lead nowhere.
_SAMPLED = 1000


def complete(given: Mapping[str, Any], arch: Arch, *, strict_isa: bool = False) -> KernelConfig:
    """The preferred legal configuration that has the ``given`` values.

    Where no legal one exists, the most preferred one is returned, so that :func:`wmmagen.rules.check` can say what is
    wrong with it.
    """
    feed = Feed.GLOBAL if given.get("copy") is Copy.NONE else Feed.SHARED
    fixed = {**_PLAIN, "feed": feed, **_of_types(given), **given}
    preferred: KernelConfig | None = None
    for choice in _choices(fixed, arch, strict_isa):
        config = build({**fixed, **choice})
        preferred = preferred or config
        if rules.legal(config, arch, strict_isa=strict_isa):
            return config
    assert preferred is not None
    return _in_space(fixed, given, arch, strict_isa) or preferred


def _in_space(fixed: Mapping[str, Any], given: Mapping[str, Any], arch: Arch, strict_isa: bool) -> KernelConfig | None:
    """A legal configuration of the search space with the ``given`` values, near the preferred tiles; None for none."""
    operation = Operation(**{key: fixed[key] for key in OPERATION_KEYS})
    space = Space(operation, arch, given, strict_isa=strict_isa)
    # An even sample is enough to come near; the whole space can have a hundred thousand points.
    points = [space.at(i) for i in range(0, len(space), max(1, len(space) // _SAMPLED))]
    return min(points, key=_distance, default=None)


def _distance(config: KernelConfig) -> tuple[float, ...]:
    """How far a configuration is from the preferred tiles, pads and pipeline; the name decides among equals last."""
    known = derive.values(config)
    warp = abs(math.log2(known["WARP_M"] * known["WARP_N"] / 64**2))
    block = abs(math.log2(known["BLOCK_M"] * known["BLOCK_N"] / 128**2))
    unpadded = (known["PAD_A"] == 0) + (known["PAD_B"] == 0)
    return (config.feed is Feed.GLOBAL, unpadded, warp + block, abs(config.k_steps - 2), abs(config.stages - 3))


def _of_types(given: Mapping[str, Any]) -> dict[str, Any]:
    """Types and shape: the first row of the instruction table that agrees with what was given."""
    a = given.get("a", F16)
    rows = instructions.of_operand(a) or instructions.of_operand(F16)
    rows = tuple(r for r in rows if given.get("acc", r.acc) == r.acc) or rows
    row = rows[0]
    acc = given.get("acc", row.acc)
    layout = Layout(row.layouts[0])
    return {"a": a, "acc": acc, "d": acc, "inst": Shape(row.m, row.n, row.k), "layout": layout}


def _choices(fixed: Mapping[str, Any], arch: Arch, strict_isa: bool) -> Iterator[dict[str, Any]]:
    """Values for the keys that are still open, the most preferred combination first.

    The axes that vary slowest are those whose first value is worth the most: an unpadded tile costs more than a
    shorter pipeline, and that more than a smaller tile.
    """
    axes: list[tuple[tuple[str, ...], Sequence[tuple[Any, ...]]]] = [
        (("pad_a", "pad_b"), _pads(fixed, strict_isa)),
        (("copy", "stages"), _pipelines(fixed, arch)),
        (("warps",), [(w,) for w in _WARPS]),
        (("frags",), [(f,) for f in _FRAGS]),
        (("k_steps",), [(k,) for k in _k_steps(fixed)]),
    ]
    for combination in itertools.product(*(_open(keys, values, fixed) for keys, values in axes)):
        yield dict(itertools.chain.from_iterable(combination))


def _open(
    keys: tuple[str, ...], values: Sequence[tuple[Any, ...]], fixed: Mapping[str, Any]
) -> Sequence[tuple[tuple[str, Any], ...]]:
    """The different choices that are left of an axis where some of its keys are fixed."""
    rows = (zip(keys, row, strict=True) for row in values)
    return list(dict.fromkeys(tuple((k, v) for k, v in row if k not in fixed) for row in rows))


def _k_steps(fixed: Mapping[str, Any]) -> Sequence[int]:
    """An odd number of warps shares a slice evenly only where the slice has that factor, too."""
    warps = fixed.get("warps", Grid(1, 1))
    odd = warps.m * warps.n
    while odd % 2 == 0:
        odd //= 2
    return (*_K_STEPS, *(k for k in (odd, 2 * odd) if 1 < k <= MAX_COUNT and k not in _K_STEPS))


def _pipelines(fixed: Mapping[str, Any], arch: Arch) -> Sequence[tuple[Copy, int]]:
    """Copies past the registers win where they exist, and with more buffers than one."""
    if fixed["feed"] is Feed.GLOBAL:
        return [(Copy.NONE, 1)]
    past, through = [(Copy.CPASYNC, 3), (Copy.CPASYNC, 2)], [(Copy.LD, 2), (Copy.LD, 1)]
    return past + through if arch.sm >= 80 and fixed.get("stages") != 1 else through + past


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
    rules.demand(config, arch, strict_isa=strict_isa)
    coverage.demand(config)
