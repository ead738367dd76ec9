"""The record of a covering array: which configurations there are, and what became of each. Needs no library."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from wmmagen import arch as archs
from wmmagen import config as configs
from wmmagen.arch import Arch
from wmmagen.config import KernelConfig, spell, values_of

#: What ``tests/nvrtc/prove_covering.py`` writes, and ``tests/gpu/prove_covering.py`` takes its configurations from.
RECORD = Path(__file__).parent / "nvrtc" / "records" / "covering.jsonl"
#: What is demanded of the list, so that an axis that is lost is seen.
AT_LEAST = 600


@dataclass(frozen=True)
class Case:
    """A configuration and the architecture that it is compiled for."""

    config: KernelConfig
    arch: Arch


@dataclass(frozen=True)
class Told:
    """What became of one; ``wrong`` is empty where all is right.

    Attributes:
        arch, name: of the case.
        launches: that were checked.
        wrong: wrong results, findings and defects of its machine code.
        read: whether its machine code was read.
        spilled: bytes of each thread that found no register.
        slow: what the assembler made of a text that is as ever, in words; empty where nothing is odd.
    """

    arch: str
    name: str
    launches: int
    wrong: str
    read: bool = False
    spilled: int = 0
    slow: str = ""

    @property
    def case(self) -> Case:
        """What it speaks of."""
        return Case(configs.parse(self.name), archs.find(self.arch))


def read(path: Path) -> list[Told]:
    """A record; nothing where there is none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Told(**json.loads(line)) for line in lines]


def written(told: Iterable[Told]) -> str:
    """The inverse of :func:`read`."""
    return "".join(f"{json.dumps(asdict(one))}\n" for one in told)


def counted(found: Iterable[Case]) -> Iterator[str]:
    """How often each value of each axis is among them."""
    rows = [{"arch": case.arch.name, **{k: spell(v) for k, v in values_of(case.config).items()}} for case in found]
    for key in dict.fromkeys(key for row in rows for key in row):
        counts = Counter(row[key] for row in rows if key in row)
        yield f"  {key}: {', '.join(f'{value} {count}' for value, count in sorted(counts.items()))}"
