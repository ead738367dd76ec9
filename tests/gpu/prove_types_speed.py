"""Each type of operands at one size: its best kernel beside cuBLASLt with the same types and beside its own ceiling.

    python tests/gpu/prove_types_speed.py [--arch sm_90] [--problem 4096] [--types f16,bf16,…] [--config NAME …]
                                          [--seconds 1] [--to sweeps/records]

Of each type a few candidates that are built as the best known kernels of f16 are, and the best that is known here, are
proved exact, timed in turns with cuBLASLt's best exact candidate and with products in registers of the same types, on
normal data, and proved again. What the library does not offer is said. Then the fastest kernel of bf16 and that of f16
are timed in turns alone: bf16 has to keep 97 % of f16's speed.

Writes a table and a JSON document. Exit status 0 where each type has a right kernel and bf16 keeps its share; else 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import bench, chips, config, coverage, defaults, emit, known, render, rules, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend
from wmmagen.backends.pick import Place, pick
from wmmagen.bench import Row, Table
from wmmagen.chips import Chip
from wmmagen.config import KernelConfig, Problem, name, parse
from wmmagen.errors import AnswerIsNo
from wmmagen.foundry import Compiler, Foundry, Order, usable_cores
from wmmagen.records import Outcome
from wmmagen.timing import Ratio, TimingProtocol

#: bf16 keeps this share of f16's speed.
KEPT = 0.97
#: What is fixed of the candidates of each type; tiles of a warp and slices of K are those of f16 in bytes.
_WIDE = ("warps=2x4,frags=4x4", "warps=4x2,frags=4x4", "warps=2x2,frags=4x4")
CANDIDATES: dict[str, tuple[str, ...]] = {
    "f16": tuple(
        f"{tiles},k_steps=4,stages=3,fragment_buffers=2,{order}"
        for tiles, order in (
            (_WIDE[0], "raster=grouped8"), (_WIDE[1], "raster=panels8"), (_WIDE[0], "raster=linear"),
            (_WIDE[2], "raster=linear"),
        )
    ),
    "tf32": (
        f"{_WIDE[0]},k_steps=4,stages=3,fragment_buffers=2",
        f"{_WIDE[0]},k_steps=2,stages=4,fragment_buffers=2",
        f"{_WIDE[1]},k_steps=4,stages=3,fragment_buffers=2,raster=panels8",
        f"{_WIDE[2]},k_steps=4,stages=3,fragment_buffers=2",
    ),
    "f64": (
        "warps=2x4,frags=8x4,k_steps=4,stages=3,fragment_buffers=2",
        "warps=2x2,frags=8x4,k_steps=4,stages=3,fragment_buffers=2",
        "warps=2x4,frags=4x4,k_steps=4,stages=4,fragment_buffers=2",
        "warps=2x2,frags=4x4,k_steps=4,stages=4,fragment_buffers=1",
    ),
    "s8": (
        f"{_WIDE[0]},k_steps=4,stages=5,fragment_buffers=2",
        f"{_WIDE[0]},k_steps=2,stages=4,fragment_buffers=2",
        f"{_WIDE[1]},k_steps=4,stages=3,fragment_buffers=2,raster=panels8",
        f"{_WIDE[1]},k_steps=2,stages=4,fragment_buffers=2,raster=panels8",
        f"{_WIDE[2]},k_steps=4,stages=4,fragment_buffers=2",
    ),
}  # fmt: skip
CANDIDATES |= {"bf16": CANDIDATES["f16"], "u8": CANDIDATES["s8"]}
#: In the order of the table.
TYPES = ("f16", "bf16", "tf32", "f64", "s8", "u8")


@dataclass(frozen=True)
class Timed:
    """A type of operands, measured.

    Attributes:
        type: its name.
        table: its candidates, the library and the ceiling.
    """

    type: str
    table: Table

    @property
    def best(self) -> Row | None:
        """The fastest right kernel; None where none is."""
        timed = [row for row in self.table.rows if row.outcome is Outcome.OK and row.timing is not None]
        return min(timed, key=lambda row: row.timing.median_us if row.timing else 0.0, default=None)

    def __str__(self) -> str:
        row = self.best
        if row is None or row.timing is None:
            return f"{self.type:<5} none right: {self.table.rows[0].detail}"
        o = row.problem.operation
        share, of_ceiling = row.ratios.get("same types"), row.of_ceiling
        low, high = row.timing.interval_us
        line = (
            f"{'/'.join((o.a.name, o.acc.name, o.d.name)):<14} {row.timing.median_us:>9.2f} "
            f"{f'[{low:.2f}, {high:.2f}]':>20} {row.tflops or 0:>7.1f} {_share(share):>22} {_share(of_ceiling):>22}  "
            f"{row.name}"
        )
        beside = self.table.beside(row)
        return "\n".join([line, *(f"{'':<15}{beside[key]}" for key in ("cublas_same_types", "ceiling"))])

    def as_json(self) -> dict[str, Any]:
        """An element of the record."""
        return {
            "type": self.type,
            "best": self.best.name if self.best else None,
            "rows": [
                row.as_json()
                | {"beside": self.table.beside(row)}
                | {
                    "ratios": {kind: dataclasses.asdict(ratio) for kind, ratio in row.ratios.items()},
                    "of_ceiling": dataclasses.asdict(row.of_ceiling) if row.of_ceiling else None,
                }
                for row in self.table.rows
            ],
            "denominators": [one.as_json() for one in self.table.baselines if one.denominator.kind == "same types"],
            "ceilings": [one.as_json() for one in self.table.limits],
        }


def _share(ratio: Ratio | None) -> str:
    return "none" if ratio is None else f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def candidates(
    type_: str, arch: Arch, size: tuple[int, int, int], chip: Chip, given: Sequence[KernelConfig] = ()
) -> list[KernelConfig]:
    """The kernels of a type that take the size and can be made: those given, the best known and the list's.

    Raises:
        RequestError: nothing takes the size.
    """
    listed = [defaults.read_config(f"a={type_},copy=cpasync,{text}", arch) for text in CANDIDATES[type_]]
    own = [one for one in given if one.operation.a.name == type_]
    best = known.best(listed[0].operation, arch, size, chip).config
    found = dict.fromkeys([*own, best, *listed])
    return [
        one
        for one in found
        if not rules.check(one, arch, Problem.packed(one.operation, *size)) and not coverage.missing(one)
    ]


def measure(
    wanted: dict[str, list[KernelConfig]], arch: Arch, size: tuple[int, int, int], place: Place,
    protocol: TimingProtocol, compiler: Compiler,
) -> Iterator[Timed]:  # fmt: skip
    """Each type's kernels, one type after another; raises as :func:`wmmagen.bench.measure`."""
    for type_, kernels in wanted.items():
        kinds = bench.KINDS[:1]
        yield Timed(type_, bench.measure(kernels, arch, size, place, protocol, compiler, ceilings=True, kinds=kinds))


def beside_f16(
    found: Sequence[Timed], arch: Arch, size: tuple[int, int, int], backend: Backend, protocol: TimingProtocol,
    compiler: Compiler,
) -> Ratio | None:  # fmt: skip
    """f16's time over bf16's, of the fastest kernel of each, from quotients of rounds; None where one of them has none.

    Raises:
        AnswerIsNo: one of them is wrong behind the timing.
        CompileError, Fault: as for any kernel.
    """
    rows = {one.type: one.best for one in found}
    pair = [parse(row.name) for type_ in ("bf16", "f16") if (row := rows.get(type_)) is not None]
    if len(pair) < 2:
        return None
    problems = [Problem.packed(one.operation, *size) for one in pair]
    built = [trial.build(one, arch, compiler)[1] for one in pair]
    subjects = [
        trial.subject_of(one, binary, problem, protocol.data)
        for one, binary, problem in zip(pair, built, problems, strict=True)
    ]
    ratio = trial.compare(subjects, backend, protocol).ratio(0, 1)
    for one, binary, problem in zip(pair, built, problems, strict=True):
        run = trial.check_run(one, binary, backend, problem)
        if not run.exact:
            raise AnswerIsNo(f"{name(one)} is wrong on {problem} after timing: {run.mismatch}")
    return ratio


def verdict_of(found: Sequence[Timed], ratio: Ratio | None) -> tuple[str, bool]:
    """The last line of the record, and whether what is demanded holds."""
    missing = [one.type for one in found if one.best is None]
    words = [f"No right kernel of: {' '.join(missing)}."] if missing else []
    holds = not missing
    if ratio is not None:
        kept = ratio.low >= KEPT
        word = "holds" if kept else "DOES NOT HOLD"
        words.append(
            f"bf16 beside f16, the fastest kernels in turns: {_share(ratio)} of its speed; at least {KEPT}: {word}."
        )
        holds = holds and kept
    elif {"f16", "bf16"} <= {one.type for one in found}:
        words.append("bf16 was not timed beside f16.")
        holds = False
    return " ".join(words), holds


def text_of(found: Sequence[Timed], size: tuple[int, int, int], device: str, verdict: str) -> str:
    """The record in words."""
    head = f"{'types':<14} {'us':>9} {'interval':>20} {'TFLOP/s':>7} {'of cuBLASLt':>22} {'of the ceiling':>22}  kernel"
    lines = [f"{device}, {'x'.join(map(str, size))}, warm, normal data; shares from quotients of rounds.", "", head]
    lines += map(str, found)
    lines += ["", "All candidates:"]
    for one in found:
        for row in one.table.rows:
            time = f"{row.timing.median_us:.2f} us" if row.timing else f"{row.outcome.value}: {row.detail}"
            flags = f" ({', '.join(row.flags)})" if row.flags else ""
            lines.append(f"  {one.type:<5} {time:>12}  {row.name}{flags}")
    return "\n".join([*lines, "", verdict]) + "\n"


def main() -> int:
    """Prove, time, judge, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--problem", default="4096")
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--config", action="append", default=[], help="a kernel beside the candidates of its type")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for each kernel, at most")
    parser.add_argument("--to", type=Path, default=Path("sweeps/records"))
    asked = parser.parse_args()
    arch, size = archs.find(asked.arch), config.read_size(asked.problem)
    usual = TimingProtocol()
    protocol = dataclasses.replace(usual, max_seconds=asked.seconds, warmup_max_s=min(usual.warmup_max_s, 0.3))
    given = [defaults.read_config(text, arch) for text in asked.config]
    found: list[Timed] = []
    with pick("gpu", arch) as place, Foundry(usable_cores(), gives_way=True) as foundry:
        print(place.first_line, flush=True)
        backend = place.demanded()
        chip = chips.find(backend.device) or chips.usual(arch.sm)
        wanted = {type_: candidates(type_, arch, size, chip, given) for type_ in asked.types.split(",")}
        for kernels in wanted.values():
            for one in kernels:
                source = render.render(one, arch)
                foundry.begin(Order(source.text, source.kernel, arch))
        for one_type in measure(wanted, arch, size, place, protocol, foundry.compile):
            found.append(one_type)
            print(one_type, flush=True)
        ratio = beside_f16(found, arch, size, backend, protocol, foundry.compile)
        device = backend.device
    verdict, holds = verdict_of(found, ratio)
    stem = asked.to / f"types_{arch}_{'x'.join(map(str, size))}_{device.split(' (')[0].replace(' ', '_')}"
    document = {
        "device": device,
        "arch": arch.name,
        "size": list(size),
        "types": [one.as_json() for one in found],
        "bf16_beside_f16": dataclasses.asdict(ratio) if ratio else None,
        "holds": holds,
    }
    emit.write(Path(f"{stem}.json"), json.dumps(document, indent=2) + "\n")
    emit.write(Path(f"{stem}.txt"), text_of(found, size, device, verdict))
    print(verdict)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(ended(main))
