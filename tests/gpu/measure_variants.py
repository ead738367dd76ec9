"""Times of variants that are drawn evenly from the space, at several sizes: what the estimate is judged by.

    python tests/gpu/measure_variants.py [--arch sm_90] [--problem 1024 …] [--draws 120] [--seed 1] […]

A sweep crowds around its best; an even draw shows the whole range. The same variants are measured at each size, each
proved right first, as a sweep does it. One file of records for each size.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import emit, trial
from wmmagen.arch import Arch
from wmmagen.backends.pick import Place, pick
from wmmagen.config import KernelConfig, Operation, Problem, read_size
from wmmagen.dtypes import F16, F32
from wmmagen.foundry import Foundry, Order, usable_cores
from wmmagen.records import Record, to_text
from wmmagen.render import render
from wmmagen.space import Space
from wmmagen.timing import TimingProtocol

OPERATION = Operation(F16, F32, F32)


def draws(arch: Arch, problems: list[Problem], count: int, seed: int) -> list[KernelConfig]:
    """``count`` different variants that take all of ``problems``, each point of the space as likely as another."""
    spaces = [Space(OPERATION, arch, {}, problem=problem) for problem in problems]
    rng = random.Random(f"variants/{seed}")
    found: dict[KernelConfig, None] = {}
    while len(found) < count:
        config = spaces[0].at(rng.randrange(len(spaces[0])))
        if all(space.contains(config) for space in spaces):
            found[config] = None
    return list(found)


def measure(configs: list[KernelConfig], problem: Problem, place: Place, foundry: Foundry) -> Iterator[Record]:
    """The record of each variant."""
    for number, config in enumerate(configs, 1):
        record = trial.try_out(
            config, place.arch, problem, place.demanded(), TimingProtocol(), compiler=foundry.compile
        )
        time = f"{record.timing.median_us:10.1f} us" if record.timing else record.outcome.value
        print(f"[{number}/{len(configs)}] {problem} {time:>13}  {record.name}", flush=True)
        yield record


def main() -> int:
    """Draw, compile, measure, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--problem", nargs="+", default=["1024", "2048", "4096"])
    parser.add_argument("--draws", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--to", type=Path, default=Path("sweeps/records"))
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    problems = [Problem.packed(OPERATION, *read_size(text)) for text in asked.problem]
    configs = draws(arch, problems, asked.draws, asked.seed)
    with pick("gpu", arch) as place, Foundry(usable_cores(), gives_way=True) as foundry:
        print(place.first_line)
        device = place.demanded().device.split(" (")[0].replace(" ", "_")
        for config in configs:
            source = render(config, arch)
            foundry.begin(Order(source.text, source.kernel, arch))
        for problem in problems:
            records = list(measure(configs, problem, place, foundry))
            emit.write(asked.to / f"variants_{arch}_{problem.m}_seed{asked.seed}_{device}.jsonl", to_text(records))
    return 0


if __name__ == "__main__":
    sys.exit(ended(main))
