"""The proof of the validator that needs no GPU: every mutant of every configuration on the executor. Writes its record.

    python tests/nvrtc/prove_mutants.py [--archs sm_75,sm_80,sm_90,sm_120] [--jobs N] [--to tests/nvrtc/records]

Exit status 0 where every one is rejected for the right reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from wmmagen import arch as archs
from wmmagen import emit, foundry, mutants, nvrtc, show
from wmmagen.mistakes import HERE, MUTANTS
from wmmagen.mutants import Row


def by_kind(rows: Iterable[Row]) -> list[str]:
    """A line for each kind: how many of it were made and killed, by what, and where the mistake was made."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.case.mutant.kind, []).append(row)
    lines = [f"{'killed':>9}  {'kind':<25} {'by':<48} wrong (made in)"]
    for kind, group in groups.items():
        mutant, reasons = group[0].case.mutant, ", ".join(dict.fromkeys(row.by or "nothing" for row in group))
        killed = f"{sum(row.killed for row in group)}/{len(group)}"
        lines.append(f"{killed:>9}  {kind:<25} {reasons:<48} {mutant.wrong} ({mutant.origin or 'constructed'})")
    return lines


def main() -> int:
    """Judge all, print, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--archs", default="sm_75,sm_80,sm_90,sm_120")
    parser.add_argument("--jobs", type=int, default=foundry.usable_cores())
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    targets = [archs.find(name) for name in asked.archs.split(",")]
    some = list(mutants.cases(MUTANTS, targets))
    start = time.perf_counter()
    rows = mutants.judge_all(
        some, mutants.executor(), jobs=asked.jobs, told=lambda row: print(show.mutant(row), flush=True)
    )
    seconds = time.perf_counter() - start
    made = sum(bool(mutant.origin) for mutant in MUTANTS)
    head = [
        f"{len(rows)} mutants of {len(MUTANTS)} kinds and {len({row.case.text for row in rows})} configurations for "
        f"{', '.join(map(str, targets))}, on the CPU executor; {nvrtc.title()}",
        f"{made} kinds are mistakes really made: {made - sum(m.origin == HERE for m in MUTANTS)} reported of other "
        f"kernels, {sum(m.origin == HERE for m in MUTANTS)} {HERE}",
        show.kill_rate(rows),
        f"{seconds:.0f} s with {asked.jobs} processes that compile what the cache does not have",
    ]
    print("\n".join(head))
    emit.write(asked.to / "mutants.txt", "\n".join([*head, "", *by_kind(rows)]) + "\n")
    emit.write(asked.to / "mutants.jsonl", "".join(json.dumps(brief(row)) + "\n" for row in rows))
    return 1 if any(row.survived for row in rows) else 0


def brief(row: Row) -> dict[str, object]:
    """The row without what the table of kinds says, and its reason shortened: findings can be pages."""
    kept = ("kind", "config", "arch", "killed", "by", "problem")
    return {name: row.as_json()[name] for name in kept} | {"detail": row.detail[: show.REASON]}


if __name__ == "__main__":
    sys.exit(main())
