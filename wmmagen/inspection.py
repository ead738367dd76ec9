"""What a kernel moves and executes beside the least that its problem needs: figures that no clock tells.

The counts are those of :mod:`wmmagen.profile`; here they are divided and compared. There are two kinds of minimum:

- *of the problem*: each element of A and B is loaded from global memory once, and of C where it is read; each of D is
  stored once; matrix instructions do these multiply-adds and no more. Shared memory and barriers it needs none of.
- *of the tiles*: whoever loads tiles from global memory (a block to stage them, a warp to feed its fragments) loads
  each element of its own once, whatever its neighbours load; a warp takes each element of its fragments from shared
  memory once, without a conflict. The tiling alone decides this one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wmmagen import derive, lint, profile, rules, trial
from wmmagen.arch import Arch
from wmmagen.config import CONFIG_KEYS, Feed, KernelConfig, Problem, Store, name, spell, values_of
from wmmagen.errors import RequestError
from wmmagen.executor.counts import SECTOR, WAVEFRONT, Counts
from wmmagen.lint import Report

#: Multiply-adds of the largest problem: every launch is executed, a second or so for each 2^25 of them.
MOST_WORK = 2**28
#: The default problem: blocks each way, and slices of K, at least.
BLOCKS = 2
SLICES = 4
#: Extents are multiples of this, so that packed rows are aligned for every way to load them.
_EVEN = 16
#: Figures that differ by less are not worth a sentence: conflicts of wavefronts, ratios to a minimum, and to another.
_TELLING_SHARE = 0.05
_TELLING_RATIO = 1.05
_TELLING_CHANGE = 1.25


@dataclass(frozen=True)
class Least:
    """The minimum of a figure, in the same unit.

    Attributes:
        problem: that any kernel needs for the problem.
        tiles: that a kernel of these tiles needs; None where tiles alone do not tell.
    """

    problem: float
    tiles: float | None


@dataclass(frozen=True)
class Figure:
    """A figure of one launch.

    Attributes:
        key: in ``--json``.
        words: for people.
        total: of the launch; of a quotient, the quotient.
        per_output: for each element of D; None of a quotient.
        per_thousand: for each 1,000 multiply-adds of the problem; None of a quotient.
        least: its minimum; None where there is none to speak of.
    """

    key: str
    words: str
    total: float
    per_output: float | None
    per_thousand: float | None
    least: Least | None = None

    @property
    def ratio_to_problem(self) -> float | None:
        """How often the problem's minimum; None where that is 0 or not known."""
        return _ratio(self.total, self.least.problem if self.least else None)

    @property
    def ratio_to_tiles(self) -> float | None:
        """How often the tiles' minimum; None where that is 0 or not known."""
        return _ratio(self.total, self.least.tiles if self.least else None)

    def ratio_to(self, other: Figure) -> float | None:
        """How often the same figure of another kernel; None where that is 0."""
        return _ratio(self.total, other.total)

    def as_json(self, first: Figure) -> dict[str, Any]:
        """An element of ``figures`` of ``inspect --json``.

        Args:
            first: the same figure of the kernel that it is compared with.
        """
        return {
            "figure": self.key,
            "total": self.total,
            "per_output_element": self.per_output,
            "per_1000_multiply_adds": self.per_thousand,
            "least_of_problem": self.least.problem if self.least else None,
            "least_of_tiles": self.least.tiles if self.least else None,
            "ratio_to_problem": self.ratio_to_problem,
            "ratio_to_tiles": self.ratio_to_tiles,
            "ratio_to_first": self.ratio_to(first),
        }


@dataclass(frozen=True)
class Inspection:
    """One kernel on one problem.

    Attributes:
        config: how it is done.
        problem: packed.
        counts: of its launch.
        report: what the lint says of its machine code.
    """

    config: KernelConfig
    problem: Problem
    counts: Counts
    report: Report

    @property
    def figures(self) -> tuple[Figure, ...]:
        """What is counted of it; of every kernel the same, in the same order."""
        return figures(self.config, self.problem, self.counts)

    @property
    def instructions(self) -> dict[str, float]:
        """Instructions of warps by class, for each matrix instruction; the most frequent first.

        They are PTX's: what the machine makes of them is in :attr:`report`.
        """
        products = self.counts.tensor_instructions
        return {kind: count / products for kind, count in self.counts.instructions.most_common()} if products else {}

    def as_json(self, first: Inspection) -> dict[str, Any]:
        """An element of ``kernels`` of ``inspect --json``."""
        return {
            "name": name(self.config),
            "figures": [figure.as_json(other) for figure, other in zip(self.figures, first.figures, strict=True)],
            "instructions": dict(self.counts.instructions.most_common()),
            **self.report.as_json(),
        }


def examine(config: KernelConfig, arch: Arch, size: tuple[int, int, int], batch: int = 1) -> Inspection:
    """Compile ``config``, run it on the CPU executor on operands of zeros, and read its machine code where that can be.

    Args:
        size: M, N, K; :func:`demand` says which ones can be.
        batch: how many products of that size a launch computes.

    Raises:
        CompileError, MissingPiece: as :func:`wmmagen.trial.build`.
        HazardFault, LaunchFault, PtxError, TimeoutFault: as :func:`wmmagen.profile.count`.
    """
    problem = Problem.packed(config.operation, *size, batch=batch)
    _, binary = trial.build(config, arch)
    return Inspection(config, problem, profile.count(config, binary, problem), lint.examine(config, binary))


# ---------------------------------------------------------------------------------------------------------------------
# The problem.


def default_size(configs: Sequence[KernelConfig]) -> tuple[int, int, int]:
    """M, N, K that all ``configs`` take: the smallest with two blocks each way, four slices of K, and a whole turn of
    the longest pipeline and one slice more.
    """
    known = [derive.values(config) for config in configs]
    m, n = (
        _least_multiple([_EVEN, *(k[block] for k in known)], BLOCKS * max(k[block] for k in known))
        for block in ("BLOCK_M", "BLOCK_N")
    )
    longest = max(max(SLICES, k["STAGES"] + 1) * k["BLOCK_K"] for k in known)
    return m, n, _least_multiple([_EVEN, *(k["BLOCK_K"] for k in known)], longest)


def _least_multiple(units: Sequence[int], least: int) -> int:
    unit = math.lcm(*units)
    return -(-least // unit) * unit


def demand(configs: Sequence[KernelConfig], arch: Arch, size: tuple[int, int, int], batch: int = 1) -> None:
    """Return where all ``configs`` can be inspected on ``batch`` products of ``size``.

    Raises:
        IllegalConfig: one of them does not take it.
        RequestError: nothing is computed on it, or it is more than the executor should be given.
    """
    m, n, k = size
    problems = [Problem.packed(config.operation, m, n, k, batch=batch) for config in configs]
    work = batch * m * n * k
    if not work:
        raise RequestError(f"{problems[0]} has no multiply-add to count", "give sizes of 1 and more")
    for config, problem in zip(configs, problems, strict=True):
        rules.demand(config, arch, problem)
    if work > MOST_WORK:
        fewest = "x".join(map(str, default_size(configs)))
        raise RequestError(
            f"{problems[0]} has {work} multiply-adds, and every launch is executed on the CPU: at most {MOST_WORK}",
            f"a smaller --problem, for example {fewest}"
            if math.prod(default_size(configs)) <= MOST_WORK
            else "configurations with smaller or more similar tiles",
        )


# ---------------------------------------------------------------------------------------------------------------------
# Figures.


def figures(config: KernelConfig, problem: Problem, counts: Counts) -> tuple[Figure, ...]:
    """The figures of ``counts``, which are of a launch of ``config`` on ``problem``."""
    least = minima(config, problem)
    totals = [
        ("global_load_sectors", "sectors loaded", counts.global_load_sectors),
        ("load_bytes_perfect_l2", "bytes, L2 keeps all", counts.load_bytes_perfect_l2),
        ("load_bytes_no_l2", "bytes, L2 keeps none", counts.load_bytes_no_l2),
        ("global_store_sectors", "sectors stored", counts.global_store_sectors),
        ("shared_load_wavefronts", "shared loads", counts.shared_load_wavefronts),
        ("shared_load_conflicts", "  conflicts of them", counts.shared_load_conflicts),
        ("shared_store_wavefronts", "shared stores", counts.shared_store_wavefronts),
        ("shared_store_conflicts", "  conflicts of them", counts.shared_store_conflicts),
        ("tensor_instructions", "matrix instructions", counts.tensor_instructions),
        ("instructions", "instructions", sum(counts.instructions.values())),
        ("block_barriers", "barriers of blocks", counts.block_barriers),
        ("warp_barriers", "barriers of warps", counts.warp_barriers),
    ]
    outputs = problem.batch * problem.m * problem.n
    thousands = outputs * problem.k / 1000
    counted = [Figure(key, words, n, n / outputs, n / thousands, least.get(key)) for key, words, n in totals]
    integer = _ratio(counts.instructions["integer"], counts.tensor_instructions) or 0.0
    return (
        *counted,
        Figure("output_crossings", "crossings of D", counts.output_crossings, None, None, least["output_crossings"]),
        Figure("integer_per_matrix_instruction", "integer per matrix", integer, None, None),
    )


def minima(config: KernelConfig, problem: Problem) -> dict[str, Least]:
    """The minimum of each figure that has one, by its key; a figure of the launch, not of an element."""
    o, p, inst = config.operation, problem, config.inst
    outputs = p.batch * p.m * p.n
    operands = p.batch * (p.m + p.n) * p.k * o.a.bits // 8 if p.alpha else 0
    c = p.added_bits // 8
    products = outputs * p.k / (inst.m * inst.n * inst.k)
    stored = outputs * o.d.bits / 8 / SECTOR
    taken, staged = _shared_bytes(config, problem)
    per_block = _tile_bytes(config, problem, "BLOCK")
    return {
        "global_load_sectors": Least((operands + c) / SECTOR, (_loaded_bytes(config, problem) + c) / SECTOR),
        "load_bytes_perfect_l2": Least(operands + c, operands + c),
        "load_bytes_no_l2": Least(operands + c, per_block + c),
        "global_store_sectors": Least(stored, stored),
        "shared_load_wavefronts": Least(0, taken / WAVEFRONT),
        "shared_load_conflicts": Least(0, 0),
        "shared_store_wavefronts": Least(0, staged / WAVEFRONT),
        "shared_store_conflicts": Least(0, 0),
        "tensor_instructions": Least(products, products),
        "block_barriers": Least(0, None),
        "warp_barriers": Least(0, None),
        "output_crossings": Least(1, 1),
    }


def _tile_bytes(config: KernelConfig, problem: Problem, of: str) -> int:
    """Bytes of A and B, where each tile of D of a ``WARP`` or a ``BLOCK`` takes its own; none where alpha is 0."""
    if not problem.alpha:
        return 0
    known = derive.values(config)
    m, n = known[f"{of}_M"], known[f"{of}_N"]
    tiles = problem.batch * (problem.m // m) * (problem.n // n)
    return int(tiles * (m + n) * problem.k * config.operation.a.bits // 8)


def _loaded_bytes(config: KernelConfig, problem: Problem) -> int:
    """Bytes of A and B from global memory: to stage them by blocks, or to feed the fragments of warps."""
    return _tile_bytes(config, problem, "BLOCK" if config.feed is Feed.SHARED else "WARP")


def _shared_bytes(config: KernelConfig, problem: Problem) -> tuple[int, int]:
    """Bytes loaded from shared memory, and bytes stored there: the operands, and the sums on their way to D."""
    o = config.operation
    sums = problem.batch * problem.m * problem.n * o.acc.bits // 8 if config.store is Store.STAGED else 0
    if config.feed is not Feed.SHARED:
        return sums, sums
    return _tile_bytes(config, problem, "WARP") + sums, _tile_bytes(config, problem, "BLOCK") + sums


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


# ---------------------------------------------------------------------------------------------------------------------
# What is told of several.


def differing(configs: Sequence[KernelConfig]) -> dict[str, list[str]]:
    """The keys whose values differ, each with the value of every configuration."""
    held = [values_of(config) for config in configs]
    columns = {key: [spell(values.get(key, values["d"])) for values in held] for key in CONFIG_KEYS}
    return {key: words for key, words in columns.items() if len(set(words)) > 1}


def remarks(found: Sequence[Inspection]) -> list[str]:
    """What stands out, a sentence each, by the figures alone; kernels are called by their numbers, from 1."""
    first = found[0]
    said = [sentence for number, one in enumerate(found, start=1) for sentence in _remarks_on(number, one)]
    return said + [_against(number, one, first) for number, one in enumerate(found[1:], start=2)]


def _remarks_on(number: int, one: Inspection) -> list[str]:
    held = {figure.key: figure for figure in one.figures}
    config, said = values_of(one.config), []

    def shown(*keys: str) -> str:
        return " ".join(f"{key}={spell(config[key])}" for key in keys)

    for way in ("load", "store"):
        passes, lost = (held[f"shared_{way}_{what}"].total for what in ("wavefronts", "conflicts"))
        if lost > _TELLING_SHARE * passes:
            said.append(
                f"[{number}] {lost} of {passes} wavefronts of shared {way}s are conflicts, {100 * lost / passes:.0f} % "
                f"({shown('pad_a', 'pad_b', 'pad_d')})"
            )
    if (crossings := held["output_crossings"].total) > 1:
        said.append(
            f"[{number}] each byte of D crosses global memory {plain(crossings)} times, and has to once "
            f"({shown('residency')})"
        )
    loaded = held["global_load_sectors"].ratio_to_tiles
    if loaded is not None and loaded > _TELLING_RATIO:
        said.append(
            f"[{number}] it loads {plain(loaded)} times the sectors of its tiles ({shown('feed', 'residency')})"
        )
    return said


def _against(number: int, one: Inspection, first: Inspection) -> str:
    changes = []
    for figure, other in zip(one.figures, first.figures, strict=True):
        ratio = figure.ratio_to(other)
        words = figure.words.strip()
        if figure.key.endswith("conflicts"):
            words = f"conflicts of shared {figure.key.split('_')[1]}s"
        if ratio is None and figure.total:
            changes.append(f"{words} where [1] has none")
        elif ratio == 0:
            changes.append(f"no {words}")
        elif ratio is not None and not 1 / _TELLING_CHANGE < ratio < _TELLING_CHANGE:
            changes.append(f"{plain(ratio)} x {words}")
    return f"[{number}] beside [1]: {', '.join(changes) or 'no figure differs by a quarter or more'}"


def plain(value: float) -> str:
    """A figure in at most eight characters: three digits that count, and all digits of a small whole number."""
    if value == int(value) and abs(value) < 1e8:
        return str(int(value))
    if abs(value) >= 1e7 or abs(value) < 1e-4:
        return f"{value:.1e}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"
