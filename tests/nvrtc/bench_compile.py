"""The compile benchmark: the same variants by several numbers of processes, cold and warm. Writes its record.

    python tests/nvrtc/bench_compile.py [--arch sm_80] [--jobs 1,2] [--variants 40] [--repeats 3] [--to FILE]

The variants are drawn from the legal space by a fixed seed. "Cold" begins with an empty folder for the cache and
includes the start of the processes; "warm" finds everything in the cache; "here" is one process after another without
a cache, as a tool compiles that has neither. Exit status 0 where every way made the same cubins, whatever the rates.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from wmmagen import arch as archs
from wmmagen import emit, nvrtc
from wmmagen.arch import Arch
from wmmagen.cache import Cache
from wmmagen.config import Operation
from wmmagen.dtypes import F16, F32
from wmmagen.errors import CompileError
from wmmagen.foundry import Foundry, Order, usable_cores
from wmmagen.render import render
from wmmagen.space import Space

SEED = 20_261_130


def draw(arch: Arch, count: int) -> list[Order]:
    """Different legal variants, by the fixed seed."""
    space = Space(Operation(F16, F32, F32), arch)
    sources = [render(config, arch) for config in space.sample(random.Random(SEED), count)]
    return [Order(source.text, source.kernel, arch) for source in sources]


def cubin_of(answer: object) -> bytes:
    """The cubin of an answer.

    Raises:
        CompileError: the answer is one.
    """
    if isinstance(answer, CompileError):
        raise answer
    assert isinstance(answer, nvrtc.Binary)
    return answer.cubin


def here(orders: list[Order]) -> list[bytes]:
    """The cubins, compiled in this process."""
    return [nvrtc.compile_source(order.source, order.entry, order.arch).cubin for order in orders]


def pooled(orders: list[Order], jobs: int, folder: Path, precompiled: bool) -> list[bytes]:
    """The cubins, by ``jobs`` processes and the cache in ``folder``."""
    with Foundry(jobs, Cache(folder), precompiled=precompiled) as foundry:
        return [cubin_of(answer) for answer in foundry.compile_many(orders)]


class Bench:
    """Runs each way several times, and holds the rates and what was made."""

    def __init__(self, orders: list[Order]) -> None:
        self.orders = orders
        self.rates: dict[str, list[float]] = {}
        self.digests: set[str] = set()

    def run(self, label: str, way: Callable[[], list[bytes]]) -> None:
        """Time ``way`` once."""
        begin = time.perf_counter()
        cubins = way()
        self.rates.setdefault(label, []).append(len(self.orders) / (time.perf_counter() - begin))
        digest = hashlib.sha256()
        for cubin in cubins:
            digest.update(hashlib.sha256(cubin).digest())
        self.digests.add(digest.hexdigest())
        print(f"{label:<44} {self.rates[label][-1]:9.2f} variants/s", file=sys.stderr, flush=True)

    def all_ways(self, jobs: list[int]) -> None:
        """Every way once."""
        self.run("here, no cache", lambda: here(self.orders))
        for count in jobs:
            for headers in ("plain", "precompiled"):
                label = f"processes {count:>2}, headers {headers}"
                with tempfile.TemporaryDirectory() as folder:
                    way = partial(pooled, self.orders, count, Path(folder), headers == "precompiled")
                    self.run(f"{label}, cold", way)
                    self.run(f"{label}, warm", way)


def table(bench: Bench) -> str:
    """Medians and extremes of the rates, a line for each way."""
    base = statistics.median(next(iter(bench.rates.values())))
    lines = [f"{'':<44} {'variants/s':>10} {'lowest':>9} {'highest':>9} {'times':>7}"]
    for label, rates in bench.rates.items():
        median = statistics.median(rates)
        lines.append(f"{label:<44} {median:10.2f} {min(rates):9.2f} {max(rates):9.2f} {median / base:7.2f}")
    return "\n".join(lines)


def main() -> int:
    """Draw, compile in every way, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_80")
    parser.add_argument("--jobs", default="1,2", help="numbers of processes, by commas")
    parser.add_argument("--variants", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--to", type=Path)
    asked = parser.parse_args()
    bench = Bench(draw(archs.find(asked.arch), asked.variants))
    for _ in range(asked.repeats):
        bench.all_ways([int(count) for count in asked.jobs.split(",")])
    same = len(bench.digests) == 1
    found = nvrtc.headers()
    text = "\n".join(
        [
            f"{len(bench.orders)} variants for {asked.arch}, {asked.repeats} times; {nvrtc.title()}, headers "
            f"{found.version} ({found.origin}), Python {platform.python_version()}, {usable_cores()} usable cores",
            table(bench),
            "the same cubins every way" if same else f"{len(bench.digests)} different sets of cubins",
            "",
        ]
    )
    print(text, end="")
    if asked.to is not None:
        emit.write(asked.to, text)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
