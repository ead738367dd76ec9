"""Nsight Compute's command line: which metrics it has, and what it counted of each launch of a program.

Source: Nsight Compute, "CLI" (options, ``--csv --page raw``) and "Profiling Guide", "Metrics Structure".
https://docs.nvidia.com/nsight-compute/NsightComputeCli/index.html
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wmmagen.errors import AnswerIsNo, MissingPiece

INSTALL = "install NVIDIA Nsight Compute, or put ncu on the PATH"
_LIMIT_S = 60.0
_NO_METRIC = re.compile(r"Failed to find metric (?:regex:\^)?([a-z]\w*(?:\.\w+)?)")
_KERNEL = "Kernel Name"


class Refusal(MissingPiece):
    """It is here and counts nothing; says what it said."""


class Unreadable(AnswerIsNo):
    """What it wrote is not what was asked for."""


@dataclass(frozen=True)
class Row:
    """What was counted of one launch.

    Attributes:
        kernel: its symbol.
        values: by metric; without those that it could not count.
    """

    kernel: str
    values: dict[str, float]


@dataclass(frozen=True)
class Profile:
    """What was counted of a program.

    Attributes:
        command: how.
        rows: of its launches, in their order.
        absent: metrics that this version or this chip does not have.
    """

    command: tuple[str, ...]
    rows: tuple[Row, ...]
    absent: tuple[str, ...]


def locate() -> Path:
    """The ncu in use: from the PATH, ``CUDA_HOME``, ``CUDA_PATH``, ``/usr/local/cuda`` or its own folder.

    Raises:
        MissingPiece: there is none.
    """
    for path in _places():
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise MissingPiece("ncu, which reads the hardware's counters, is not here", INSTALL)


def _places() -> Iterator[Path]:
    if on_path := shutil.which("ncu"):
        yield Path(on_path)
    for folder in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if folder:
            yield Path(folder) / "bin/ncu"
    yield from sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)


def version(tool: Path) -> str:
    """The line in which it says its version; empty where it does not."""
    said = _run([str(tool), "--version"], _LIMIT_S).stdout
    return next((line.strip() for line in said.splitlines() if "ersion" in line), "")


def known_metrics(tool: Path, chip: str, *, counters: bool = True) -> frozenset[str]:
    """The names, without ``.sum`` and the like, of the metrics of ``chip``; empty where it does not tell.

    Args:
        counters: leave out what is none. Newer versions say behind the name what each is; of older ones all are named.
    """
    said = _run([str(tool), "--query-metrics", "--chips", chip], _LIMIT_S).stdout
    found = re.findall(r"^([a-z][a-z0-9]*__\w+)\s+(\w*)", said, re.MULTILINE)
    return frozenset(name for name, kind in found if not counters or kind not in ("Ratio", "Throughput"))


def profile(
    tool: Path, metrics: Sequence[str], program: Sequence[str], limit_s: float, options: Sequence[str] = ()
) -> Profile:
    """Run ``program`` and count ``metrics`` of each of its launches. Metrics that it does not know are left out.

    Args:
        options: of ncu, beside its own; it empties the caches before each launch where they do not say otherwise.

    Raises:
        Refusal: it counted nothing, or did not end.
        Unreadable: its table cannot be read.
    """
    wanted, absent = list(metrics), list[str]()
    while wanted:
        command = _command(tool, wanted, program, options)
        said, table = _profiled(command, limit_s)
        unknown = [name for name in wanted if name in _unknown(said, wanted)]
        if not unknown:
            rows = parse(table)
            if not rows:
                raise Refusal(f"ncu counted nothing: {_reason(said)}", "a machine that lends its counters")
            return Profile(tuple(command), rows, tuple(absent))
        absent += unknown
        wanted = [name for name in wanted if name not in unknown]
    raise Refusal("ncu knows none of the metrics", INSTALL)


def _command(tool: Path, metrics: Sequence[str], program: Sequence[str], more: Sequence[str]) -> list[str]:
    options = [*more, "--clock-control", "none", "--target-processes", "all", "--csv", "--page", "raw"]
    return [str(tool), *options, "--print-units", "base", "--metrics", ",".join(metrics), *program]


def _profiled(command: Sequence[str], limit_s: float) -> tuple[str, str]:
    """What it said altogether, and its table."""
    tool, *rest = command
    with tempfile.TemporaryDirectory(prefix="wmmagen-") as folder:
        log = Path(folder) / "log"
        try:
            done = _run([tool, "--log-file", str(log), *rest], limit_s)
        except subprocess.TimeoutExpired as late:
            raise Refusal(f"ncu did not end within {limit_s:g} s", "a longer limit, or fewer metrics") from late
        table = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return "\n".join((table, done.stdout, done.stderr)), table


def _run(command: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", timeout=limit_s, stdin=subprocess.DEVNULL
    )


def _unknown(said: str, wanted: Sequence[str]) -> frozenset[str]:
    """Of the metrics those that it says it does not know, by their whole names or without ``.sum`` and the like."""
    named = set(_NO_METRIC.findall(said))
    return frozenset(name for name in wanted if any(f"{name}.".startswith(f"{one}.") for one in named))


def _reason(said: str) -> str:
    """Its errors and warnings, or the end of what it said."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
    return "; ".join(dict.fromkeys(errors or lines[-3:])) or "it said nothing"


def parse(text: str) -> tuple[Row, ...]:
    """The rows of the table of ``--csv --page raw`` in ``text``, which holds other lines beside it.

    Below the names of the columns stands a line of units.

    Raises:
        Unreadable: there is a table, and a line of it has other columns than its head.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    table = list(csv.reader(lines))
    if not table:
        return ()
    head, *body = table
    if _KERNEL not in head:
        raise Unreadable(f"the table of ncu has no column {_KERNEL!r}", "--csv --page raw")
    rows = []
    for line in body:
        if len(line) != len(head):
            raise Unreadable(f"a line of ncu's table has {len(line)} columns instead of {len(head)}")
        cells = dict(zip(head, line, strict=True))
        if cells[_KERNEL]:
            rows.append(Row(cells[_KERNEL], dict(_numbers(cells))))
    return tuple(rows)


def _numbers(cells: dict[str, str]) -> Iterator[tuple[str, float]]:
    """The metrics among the cells; what could not be counted is written as words."""
    for name, text in cells.items():
        if "__" in name:
            try:
                yield name, float(text.replace(",", ""))
            except ValueError:
                continue
