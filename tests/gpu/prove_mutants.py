"""Who finds which mistake: the executor, values on a GPU, and compute-sanitizer's tools. Writes its record.

    python tests/gpu/prove_mutants.py [--arch sm_90] [--jobs 12] [--to tests/gpu/records]

Every mutant of every configuration is judged by the executor and by its values on the GPU; the first configuration of
each kind also runs under memcheck, racecheck and synccheck, a process for each. Exit status 0 where the executor kills
all of them, the GPU those that values show, and the tools have nothing to say of the right kernels. `--backend cpu` and
a `--sanitizer` of another name try the script where there is no GPU, `--only KIND` takes some kinds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu import sanitizer
from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import emit, foundry, mutants, trial
from wmmagen.arch import Arch
from wmmagen.backends.pick import pick
from wmmagen.defaults import read_config
from wmmagen.mistakes import CP4, GLOBAL_STAGED, KINDS, LD1

TOOLS = ("memcheck", "racecheck", "synccheck")
#: Right kernels, in which no tool may find anything: cp.async, plain copies, no staged operands.
RIGHT = {"right-cpasync": CP4, "right-copies": LD1, "right-global": GLOBAL_STAGED}


@dataclass
class Found:
    """What one tool says of one kernel."""

    words: str
    hit: bool = False
    said: str = ""


@dataclass
class Line:
    """A row of the table: who finds one kind."""

    kind: str
    executor: str = ""
    values: str = ""
    tools: dict[str, Found] = field(default_factory=dict)


def one(kind: str, arch: Arch, backend: str) -> int:
    """Judge the first configuration of ``kind``, or validate a right kernel: what a process under a tool does."""
    with pick(backend, arch) as place:
        here = place.demanded()
        if kind in RIGHT:
            config = read_config(RIGHT[kind], arch)
            binary = trial.build(config, arch)[1]
            runs = trial.validate(config, binary, here, trial.validation_problems(config))
            print(f"{kind}: {'exact' if runs[-1].exact else runs[-1].mismatch}", flush=True)
            return 0
        row = mutants.judge(first_of(kind, arch), here)
        print(f"{kind}: {row.by or 'exact'}", flush=True)
    return 0


def first_of(kind: str, arch: Arch) -> mutants.Case:
    """The first configuration of a kind that is legal on ``arch``."""
    return next(mutants.cases([KINDS[kind]], [arch]))


def under(tool: str, kind: str, asked: argparse.Namespace) -> Found:
    """Run one kind under a tool, and read its summary."""
    program = [sys.executable, __file__, "--one", kind, "--arch", asked.arch, "--backend", asked.backend]
    start = time.monotonic()
    said = sanitizer.under(tool, program, asked.limit, asked.sanitizer)
    if said.count:
        found = Found(f"{said.count}", True, said.first)
    elif said.over:
        found = Found("time over", said=said.first)
    elif said.count is None:
        found = Found("no summary", said=said.text[-300:].replace("\n", " | "))
    else:
        found = Found("-")
    print(f"{tool:<10} {kind:<26} {found.words:<12} {time.monotonic() - start:5.1f} s  {found.said[:100]}", flush=True)
    return found


def begin_executor(asked: argparse.Namespace, folder: Path) -> subprocess.Popen[bytes]:
    """Begin to judge all by the executor, in another process: it needs no GPU."""
    command = [sys.executable, "-m", "wmmagen", "mutants", "--arch", asked.arch, "--backend", "cpu", "--json"]
    command += [word for kind in asked.only for word in ("--only", kind)]
    with (folder / "executor.json").open("wb") as to:
        return subprocess.Popen(command, stdout=to)


def executor_rows(process: subprocess.Popen[bytes], folder: Path) -> list[dict[str, Any]]:
    """What it found."""
    process.wait()
    document = json.loads((folder / "executor.json").read_text(encoding="utf-8"))
    if "rows" not in document:
        raise SystemExit(f"the executor did not come to an end: {document}")
    rows: list[dict[str, Any]] = document["rows"]
    return rows


def judged(asked: argparse.Namespace, arch: Arch) -> tuple[str, list[dict[str, Any]]]:
    """Every mutant by its values on the GPU; the device, and the rows."""
    with pick(asked.backend, arch) as place:
        print(place.first_line, flush=True)
        some = list(mutants.cases(mutants.chosen(asked.only), [arch]))
        rows = mutants.judge_all(some, place.demanded(), jobs=asked.jobs, told=_told)
        return str(place.device), [row.as_json() for row in rows]


def _told(row: mutants.Row) -> None:
    fate = "SURVIVED" if row.survived else "killed" if row.killed else "not shown"
    print(f"values     {row.case.mutant.kind:<26} {fate:<10} {row.by:<12} {row.case.text}", flush=True)


def by_kind(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """``killed/made by what`` of each kind."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["kind"], []).append(row)
    return {
        kind: f"{sum(r['killed'] for r in group)}/{len(group)} "
        + ",".join(dict.fromkeys(r["by"] or "-" for r in group))
        for kind, group in groups.items()
    }


def record(asked: argparse.Namespace, head: Sequence[str], lines: Sequence[Line]) -> str:
    """Write the table as far as it is known, and return it."""
    title = f"{'kind':<26} {'executor':<44} {'values':<36} " + " ".join(f"{tool:<12}" for tool in TOOLS)
    rows = [
        f"{line.kind:<26} {line.executor:<44} {line.values:<36} "
        + " ".join(f"{line.tools[tool].words if tool in line.tools else '':<12}" for tool in TOOLS)
        for line in lines
    ]
    text = "\n".join([*head, "", *(row.rstrip() for row in [title, *rows])]) + "\n"
    emit.write(asked.to / f"mutants_{asked.arch}.txt", text)
    said = [
        {"kind": line.kind, "tool": tool, "found": found.words, "said": found.said}
        for line in lines
        for tool, found in line.tools.items()
    ]
    emit.write(asked.to / f"mutants_{asked.arch}.jsonl", "".join(json.dumps(one) + "\n" for one in said))
    return text


def totals(rows_cpu: Sequence[dict[str, Any]], rows_gpu: Sequence[dict[str, Any]], lines: Sequence[Line]) -> list[str]:
    """How many each one finds, and what nobody but the executor does."""

    def rate(rows: Sequence[dict[str, Any]]) -> str:
        counted = [row for row in rows if row["counted"]]
        return f"{sum(row['killed'] for row in counted)} of {len(counted)}"

    shown = {row["kind"] for row in rows_gpu if row["killed"]}
    hits = {tool: {line.kind for line in lines if tool in line.tools and line.tools[tool].hit} for tool in TOOLS}
    alone = [line.kind for line in lines if line.executor and line.kind not in shown.union(*hits.values())]
    found = [f"{tool} {len(hits[tool] & set(KINDS))}" for tool in TOOLS if any(tool in line.tools for line in lines)]
    return [
        f"executor: killed {rate(rows_cpu)} mutants of {len(by_kind(rows_cpu))} kinds",
        f"values on the GPU: killed {rate(rows_gpu)} of those that values show; rejected some of {len(shown)} kinds",
        *([f"kinds in which a tool finds anything, of {len(by_kind(rows_cpu))}: {', '.join(found)}"] if found else []),
        *([f"kinds that the executor alone finds: {', '.join(alone) or 'none'}"] if found else []),
    ]


def examine(asked: argparse.Namespace, lines: Sequence[Line]) -> list[str]:
    """Run the tools on every line, and say what could not be done."""
    if shutil.which(asked.sanitizer) is None:
        return [f"{asked.sanitizer} is not here: no tool was run"]
    with ThreadPoolExecutor(asked.jobs) as pool:
        first = pool.map(lambda tool: under(tool, lines[0].kind, asked), TOOLS)
        lines[0].tools.update(zip(TOOLS, first, strict=True))
        able = [tool for tool, found in lines[0].tools.items() if found.words == "-"]
        notes = [
            f"{tool} does not run here, or is not clean on a right kernel: {found.words} {found.said}"
            for tool, found in lines[0].tools.items()
            if tool not in able
        ]
        begun = [(line, tool, pool.submit(under, tool, line.kind, asked)) for line in lines[1:] for tool in able]
        for line, tool, future in begun:
            line.tools[tool] = future.result()
    return notes


def main() -> int:
    """Judge, examine, print, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--backend", default="gpu")
    parser.add_argument("--jobs", type=int, default=min(12, foundry.usable_cores()))
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of one process under a tool")
    parser.add_argument("--sanitizer", default=sanitizer.NAME)
    parser.add_argument("--only", action="append", default=[], metavar="KIND")
    parser.add_argument("--one", default="", help="judge the first configuration of this kind, and end")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    if asked.one:
        return one(asked.one, arch, asked.backend)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        executor = begin_executor(asked, Path(folder))
        device, rows_gpu = judged(asked, arch)
        rows_cpu = executor_rows(executor, Path(folder))
    cpu, gpu = by_kind(rows_cpu), by_kind(rows_gpu)
    lines = [Line(kind) for kind in RIGHT] + [Line(kind, cpu[kind], gpu[kind]) for kind in gpu]
    head = [f"{device}, {arch}; tools on the first configuration of each kind, numbers are what they report"]
    record(asked, [*head, *totals(rows_cpu, rows_gpu, lines), "no tool was run yet"], lines)
    print(f"values and executor: {time.perf_counter() - start:.0f} s", flush=True)
    notes = examine(asked, lines)
    seconds = f"{time.perf_counter() - start:.0f} s with {asked.jobs} processes at a time"
    print(record(asked, [*head, *totals(rows_cpu, rows_gpu, lines), *notes, seconds], lines), end="")
    alive = [row for row in (*rows_cpu, *rows_gpu) if row["counted"] and not row["killed"]]
    for row in alive:
        print(f"survivor: {row['kind']} of {row['config']}: {row['by']} {row['detail'][:300]}")
    dirty = [line.kind for line in lines if line.kind in RIGHT and any(f.hit for f in line.tools.values())]
    return 1 if alive or dirty else 0


if __name__ == "__main__":
    sys.exit(ended(main))
