"""The ladder: from a first kernel to the best one that is known, a mechanism at a time.

A ladder is a bench of named configurations. Each rung changes a few keys of the rung below it. One that is not legal
on an architecture or for a problem is said with its reason, and the next rung stands on the last legal one; so one
table serves cards with and without asynchronous copies.

Where there is no clock, each rung is proved on small problems and estimated for the one that was asked for; estimates
never stand among times.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wmmagen import bench, ceilings, coverage, defaults, estimate, foundry, rules, trial
from wmmagen.arch import Arch
from wmmagen.backends.pick import Place
from wmmagen.bench import Row, Table
from wmmagen.chips import Chip
from wmmagen.config import KernelConfig, Problem, name, read_pairs, spell, values_of
from wmmagen.denominators import Kind
from wmmagen.errors import CompileError, Fault, RequestError
from wmmagen.foundry import Compiler
from wmmagen.records import Outcome
from wmmagen.timing import Ratio, TimingProtocol

FOLDER = Path("sweeps", "ladders")


@dataclass(frozen=True)
class Rung:
    """A mechanism.

    Attributes:
        name: in a word or two.
        adds: what it is, in a sentence's part.
        keys: what it changes, as ``key=value,…``.
    """

    name: str
    adds: str
    keys: str


#: From the bottom. The first one says all keys that a rung may change, so that no default stands between two rungs.
RUNGS = (
    Rung(
        "sums in D",
        "fragments come from global memory, and each slice of K loads the sums from D and stores them again",
        "layout=rr,acc=f32,d=f32,inst=16x16x16,warps=4x4,frags=1x1,k_steps=1,feed=global,copy=none,stages=1,"
        "pad_a=0,pad_b=0,pad_d=0,arrange_a=rows,arrange_b=rows,fragment_buffers=1,residency=global,store=direct,"
        "min_blocks=1,raster=linear",
    ),
    Rung("global feed", "the sums stay in fragments", "residency=fragment"),
    Rung(
        "shared memory",
        "slices are staged in shared memory, an element at a time",
        "feed=shared,copy=ld,k_steps=2,align_a=1,align_b=1",
    ),
    Rung("several fragments", "each warp multiplies 2x2 fragments of what it loads", "warps=2x2,frags=2x2"),
    Rung("wide copies", "a thread copies 16 bytes at a time", "align_a=8,align_b=8"),
    Rung("two stages", "a slice is on its way while the one before is multiplied", "stages=2"),
    Rung("cp.async", "copies go past the registers", "copy=cpasync"),
    Rung("pad", "rows are padded, so that fragments are loaded without bank conflicts", "pad_a=8,pad_b=8"),
    Rung("three stages", "two slices are on their way", "stages=3"),
    Rung("two sets", "fragments are loaded a step ahead, across slices, too", "fragment_buffers=2"),
    Rung("64x64 warp tiles", "each warp multiplies 4x4 fragments", "frags=4x4"),
    Rung("K slice 64", "a slice has four steps: half as many barriers", "k_steps=4"),
    Rung("raster", "blocks that run together share rows of A and columns of B", "raster=grouped8"),
    Rung("256x128 blocks", "twice the warps share a slice: less traffic from the L2", "warps=4x2"),
)
BEST = "best known"


@dataclass(frozen=True)
class Step:
    """A rung as a configuration.

    Attributes:
        rung: which one; its keys are those that differ from the legal rung below.
        config: the kernel.
        refused: why it is none here; empty where it is legal.
    """

    rung: Rung
    config: KernelConfig
    refused: str = ""


def of_one(size: tuple[int, int, int], batch: int) -> tuple[int, int, int]:
    """``size``, M, N and K, for a ladder, whose rungs are kernels of one product.

    Raises:
        RequestError: ``batch`` products are asked for, and that is not one.
    """
    if batch != 1:
        shape = "x".join(map(str, size))
        raise RequestError(
            f"{shape}@{batch} is a batch, and the rungs of a ladder are kernels of one product",
            f"--problem {shape}, or wmmagen bench --problem {shape}@{batch}",
        )
    return size


def climb(arch: Arch, size: tuple[int, int, int], best: KernelConfig | None = None, words: str = "") -> list[Step]:
    """The rungs on ``arch`` for ``size``, and behind them the best kernel that is known.

    Args:
        best: that kernel, legal; None where there is none.
        words: how it is known.

    Raises:
        RequestError: no rung takes ``size``.
    """
    steps: list[Step] = []
    held: dict[str, Any] = {}
    for rung in RUNGS:
        given = held | read_pairs(rung.keys)
        config = defaults.complete(given, arch, search=False)
        refused = _refused(config, arch, size)
        steps.append(Step(rung, config, refused))
        held = held if refused else given
    legal = [step for step in steps if not step.refused]
    if not legal:
        raise RequestError(
            f"no rung takes {'x'.join(map(str, size))} on {arch}: {steps[0].refused}", "a --problem of multiples of 64"
        )
    if best is not None:
        steps.append(Step(Rung(BEST, words, differing(best, legal[-1].config)), best))
    return steps


def chosen(steps: Sequence[Step], only: Sequence[str]) -> list[Step]:
    """The steps of these rungs, all where none is named.

    Raises:
        RequestError: no rung has one of the names.
    """
    names = [step.rung.name for step in steps]
    if unknown := [one for one in only if one not in names]:
        raise RequestError(f"no rung is called {' or '.join(unknown)}", f"one of: {', '.join(names)}")
    found = [step for step in steps if not only or step.rung.name in only]
    if all(step.refused for step in found):
        raise RequestError(f"{found[0].rung.name}: {found[0].refused}", "another --only, --problem or --arch")
    return found


def differing(config: KernelConfig, below: KernelConfig) -> str:
    """The keys of ``config`` with other values than ``below`` has, as they are typed."""
    held = values_of(below)
    return ",".join(f"{key}={spell(value)}" for key, value in values_of(config).items() if value != held[key])


def _refused(config: KernelConfig, arch: Arch, size: tuple[int, int, int]) -> str:
    found = rules.check(config, arch, Problem.packed(config.operation, *size))
    return "; ".join([*(f"{one.rule.id} {one.message}" for one in found), *coverage.missing(config)])


# ---------------------------------------------------------------------------------------------------------------------
# What a ladder is, measured or estimated.


@dataclass(frozen=True)
class Record:
    """A ladder, as it is printed, kept and drawn: the document of ``ladder --json``."""

    document: Mapping[str, Any]

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        rows: Sequence[Mapping[str, Any]] = self.document["rows"]
        return rows

    @property
    def timed(self) -> bool:
        """Whether it holds times; without a clock it holds estimates."""
        return self.document["mode"] is not None

    @property
    def right(self) -> bool:
        """Whether every legal rung was right."""
        return all(row["outcome"] in (Outcome.OK, Outcome.ILLEGAL) for row in self.rows)

    def to_text(self) -> str:
        """As a file."""
        return json.dumps(self.document, indent=2) + "\n"


def file_of(arch: Arch, size: tuple[int, int, int], device: str) -> Path:
    """Where the record of a ladder is kept, below the current folder."""
    return FOLDER / f"{arch}_{'x'.join(map(str, size))}_{ceilings.file_name(device)}"


def measure(
    steps: Sequence[Step],
    arch: Arch,
    size: tuple[int, int, int],
    place: Place,
    protocol: TimingProtocol,
    compiler: Compiler = foundry.compile_source,
    *,
    above: bool = True,
    kinds: Collection[Kind] = bench.KINDS,
) -> Record:
    """Check every legal rung, then time all that are right in turns with each other and with their denominators.

    Args:
        above: whether the ceilings of their instructions are measured, too.
        kinds: the denominators that are measured.

    Raises:
        MissingPiece: nothing here can run or time them.
        RequestError: ``size`` has nothing to multiply.
        ConfigError: no exact inputs can be made for ``size``.
    """
    legal = [step.config for step in steps if not step.refused]
    table = bench.measure(legal, arch, size, place, protocol, compiler, ceilings=above, kinds=kinds)
    timed = dict(zip(legal, table.rows, strict=True))
    seen: set[KernelConfig] = set()
    rows = []
    for step in steps:
        row = _unmeasured(step, size) if step.refused else timed[step.config]
        # The best kernel may be a rung; it was timed once, behind what stood below it there.
        gain = None if step.config in seen else row.gain
        seen.add(step.config)
        rows.append(_said(step) | row.as_json() | {"beside": table.beside(row), "gain": _ratio(gain)} | _UNESTIMATED)
    return Record(
        _head(arch, size, place)
        | {"mode": protocol.mode, "data": protocol.data, "chip": None}
        | {"rows": rows, **_against(table)}
    )


def prove(
    steps: Sequence[Step],
    arch: Arch,
    size: tuple[int, int, int],
    place: Place,
    chip: Chip,
    compiler: Compiler = foundry.compile_source,
    told: Callable[[Step], None] = lambda step: None,
) -> Record:
    """Check every legal rung on small problems, where there is no clock, and estimate it for ``size``.

    Args:
        chip: that is estimated for.
        told: is told each rung before it is checked.

    Raises:
        MissingPiece: nothing here can run them, or there is no compiler.
        RequestError: ``size`` has nothing to multiply.
    """
    bench.demand_product(size)
    rows = []
    for step in steps:
        told(step)
        row, guess = _proved(step, arch, size, place, chip, compiler)
        rows.append(_said(step) | row.as_json() | {"beside": bench.NOTHING_BESIDE, "gain": None} | guess)
    return Record(
        _head(arch, size, place)
        | {"mode": None, "data": None, "chip": chip.name}
        | {"rows": rows, "denominators": [], "ceilings": []}
    )


_UNESTIMATED = {"estimated_us": None, "estimated_tflops": None, "limiting": None}


def _proved(
    step: Step, arch: Arch, size: tuple[int, int, int], place: Place, chip: Chip, compiler: Compiler
) -> tuple[Row, dict[str, Any]]:
    """The row of a rung without a clock, and its estimate where it is right."""
    row, config = _unmeasured(step, size), step.config
    if step.refused:
        return row, _UNESTIMATED
    backend = place.demanded()
    try:
        _, binary = trial.build(config, arch, compiler)
        runs = trial.validate(config, binary, backend, trial.validation_problems(config))
    except CompileError as error:
        return Row(row.name, row.problem, Outcome.COMPILE, error.message), _UNESTIMATED
    except Fault as fault:
        return Row(row.name, row.problem, Outcome(fault.outcome), fault.message), _UNESTIMATED
    if not runs[-1].exact:
        return Row(row.name, row.problem, Outcome.WRONG, runs[-1].mismatch), _UNESTIMATED
    footprint = estimate.compiled(trial.facts_of(config, arch, binary))
    made = estimate.estimate(config, arch, chip, row.problem, footprint=footprint)
    guess = {"estimated_us": made.us, "estimated_tflops": made.tflops, "limiting": made.limiting}
    return Row(row.name, row.problem, Outcome.OK), guess


def _unmeasured(step: Step, size: tuple[int, int, int]) -> Row:
    return Row(name(step.config), Problem.packed(step.config.operation, *size), Outcome.ILLEGAL, step.refused)


def _said(step: Step) -> dict[str, Any]:
    return {"rung": step.rung.name, "adds": step.rung.adds, "changes": step.rung.keys}


def _ratio(ratio: Ratio | None) -> dict[str, float] | None:
    return None if ratio is None else {"median": ratio.median, "low": ratio.low, "high": ratio.high}


def _head(arch: Arch, size: tuple[int, int, int], place: Place) -> dict[str, Any]:
    return {
        "arch": arch.name,
        "backend": place.name,
        "device": place.device,
        "foreign": place.foreign,
        "problem": "x".join(map(str, size)),
    }


def _against(table: Table) -> dict[str, Any]:
    return {
        "denominators": [one.as_json() for one in table.baselines],
        "ceilings": [one.as_json() for one in table.limits],
    }


# ---------------------------------------------------------------------------------------------------------------------
# Reading one.

#: What a record and its parts must hold, for the table and the picture: fields with their kinds.
_WORD, _MAYBE_WORD, _AMOUNT, _FLAGS, _TRUTH = "word", "word or nothing", "amount or nothing", "words", "truth value"
_DOCUMENT = (
    dict.fromkeys(("arch", "device", "problem"), _WORD)
    | dict.fromkeys(("mode", "data", "chip"), _MAYBE_WORD)
    | {"foreign": _TRUTH}
)
_ROW = (
    dict.fromkeys(("rung", "adds", "changes", "name", "problem", "outcome", "detail"), _WORD)
    | dict.fromkeys(("median_us", "tflops", "estimated_us", "estimated_tflops", "empty_us"), _AMOUNT)
    | {"limiting": _MAYBE_WORD, "flags": _FLAGS}
)
_SHARE = dict.fromkeys((*bench.SHARES.values(), "ceiling"), _AMOUNT)
_DENOMINATOR = {"kind": _WORD, "reason": _WORD, "types": _FLAGS, "median_us": _AMOUNT, "tflops": _AMOUNT}
_CEILING = {"shape": _WORD, "reason": _WORD, "types": _FLAGS, "tflops": _AMOUNT}
_GAIN = {"low": _AMOUNT}


def read(path: Path) -> Record:
    """The record in a file.

    Raises:
        RequestError: it cannot be read, or holds none.
    """
    try:
        return Record(_checked(json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, RecursionError) as error:  # the last is what Python says of too many brackets
        beside = path.with_suffix(".json")
        fix = f"--read {beside}" if beside != path and beside.is_file() else "wmmagen ladder --to FILE makes one"
        raise RequestError(f"{path} holds no record of a ladder: {error}", fix) from None


def _checked(document: Any) -> Mapping[str, Any]:
    _demand(document, _DOCUMENT)
    for key in ("rows", "denominators", "ceilings"):
        if not isinstance(document.get(key), list):
            raise ValueError(f"{key} is no list")
    if not document["rows"]:
        raise ValueError("it has no rung")
    for row in document["rows"]:
        _demand(row, _ROW)
        _demand(row.get("share"), _SHARE)
        if row.get("gain") is not None:
            _demand(row["gain"], _GAIN)
    for one in document["denominators"]:
        _demand(one, _DENOMINATOR)
    for one in document["ceilings"]:
        _demand(one, _CEILING)
    held: Mapping[str, Any] = document
    return held


def _demand(part: Any, fields: Mapping[str, str]) -> None:
    """Return where ``part`` has all of ``fields``, of their kinds.

    Raises:
        ValueError: it has not.
    """
    if not isinstance(part, dict):
        raise ValueError(f"{part!r} has no fields")
    for key, kind in fields.items():
        if key not in part or not _KINDS[kind](part[key]):
            raise ValueError(f"{key} is no {kind}: {part.get(key)!r}")


def _amount(value: Any) -> bool:
    # Truth values are numbers to Python.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


_KINDS: dict[str, Callable[[Any], bool]] = {
    _WORD: lambda value: isinstance(value, str),
    _MAYBE_WORD: lambda value: value is None or isinstance(value, str),
    _AMOUNT: lambda value: value is None or _amount(value),
    _TRUTH: lambda value: isinstance(value, bool),
    _FLAGS: lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
}
