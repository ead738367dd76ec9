"""The committed kernels below ``generated/``: which they are, the table of them in its README, and units of many.

    python -m tests.shipped

writes the table anew, as ``make generated`` does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.nvcc import apart
from wmmagen import arch as archs
from wmmagen import defaults, foundry, nvrtc, rules
from wmmagen.arch import ARCHS, Arch
from wmmagen.config import KernelConfig, Operation, operation_values, parse, spell, values_of
from wmmagen.nvrtc import Binary
from wmmagen.render import render

FOLDER = Path(__file__).resolve().parents[1] / "generated"
README = FOLDER / "README.md"
#: ``sm_80/wmma_gemm_…``; winners of sweeps may lie beside them, made by whatever templates there were.
NAMES = tuple((FOLDER / "shipped.txt").read_text(encoding="utf-8").split())
HEAD = "| for | A and B, sums, D | layout | instruction | warps, fragments, steps | slices of K | and |"
#: Keys that have a column of their own, or that tell a reader nothing.
_IN_COLUMNS = frozenset(
    "a acc d layout inst warps frags k_steps feed copy stages fragment_buffers pad_a pad_b pad_d".split()
)


def file_of(name: str) -> Path:
    """Where a kernel of :data:`NAMES` lies."""
    return FOLDER / f"{name}.cu"


def arch_of(name: str) -> Arch:
    """The architecture that it is committed for."""
    return archs.find(name.partition("/")[0])


def config_of(name: str) -> KernelConfig:
    """Its configuration."""
    return parse(name.partition("/")[2])


# Units ---------------------------------------------------------------------------------------------------------------

#: They come first, so that the same lines within the namespaces bring nothing.
_HEADS = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <mma.h>\n"


def made_for(sm: int) -> tuple[KernelConfig, ...]:
    """The kernels that are committed for an architecture; where none is, of each kind one that is legal there.

    A kind are types and a way to shared memory; all of them are looked at by ``prove_lint.py``.
    """
    own = tuple(config_of(name) for name in NAMES if arch_of(name).sm == sm)
    kinds = {(c.operation.a, c.operation.acc, c.copy): c for c in map(config_of, NAMES) if rules.legal(c, ARCHS[sm])}
    return own or tuple(kinds.values())


def together(texts: Iterable[str]) -> str:
    """One text for NVRTC with each of ``texts`` in a namespace: headers are read once, and so is what comes of it."""
    return _HEADS + "".join(f"namespace number_{n} {{\n{apart(text, n)}\n}}\n" for n, text in enumerate(texts))


@functools.cache
def rendered(cases: tuple[KernelConfig, ...], sm: int, spared: tuple[str, ...] = ()) -> Binary:
    """The kernels of all ``cases`` together, as the binary of the first.

    nvdisasm takes longer to start than to read them all. Of rules whose ids are ``spared`` there is no assertion.
    """
    sources = [render(case, ARCHS[sm]) for case in cases]
    text = together(source.text for source in sources)
    for id in spared:
        text, gone = re.subn(rf'static_assert\([^"]*"{id} [^"]*"\);', "", text)
        assert gone
    return foundry.compile_source(text, sources[0].kernel, ARCHS[sm])


def own(binary: Binary, entry: str) -> Binary:
    """``binary`` as that of one of its kernels."""
    used = nvrtc._usage(binary.log, entry)
    assert used is not None
    return replace(binary, entry=entry, spill_bytes=used.spill_bytes, stack_bytes=used.stack_bytes)


# The table -----------------------------------------------------------------------------------------------------------


def table() -> str:
    """A row for each kernel, in their order: its types and shapes, and the keys that a plain kernel has otherwise."""
    rows = "".join(f"{_row(name)}\n" for name in NAMES)
    return f"{HEAD}\n{'|---' * (HEAD.count('|') - 1)}|\n{rows}"


def _row(name: str) -> str:
    case = config_of(name)
    o, copies = case.operation, "global memory" if case.copy == "none" else f"{case.copy}, {case.stages}"
    cells = [
        f"[{arch_of(name)}]({name}.cu)",
        f"{o.a.name}, {o.acc.name}, {o.d.name}",
        str(o.layout),
        str(case.inst),
        f"{case.warps}, {case.frags}, {case.k_steps}",
        f"{copies}{' ahead' * (case.fragment_buffers - 1)}",
        " ".join(_besides(case)),
    ]
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _besides(case: KernelConfig) -> Iterator[str]:
    o = case.operation
    plain = values_of(defaults.read_config("", ARCHS[80])) | operation_values(Operation(o.a, o.acc, o.d))
    for key, value in values_of(case).items():
        if key not in _IN_COLUMNS and value != plain.get(key):
            yield f"`{key}={spell(value)}`"


def main() -> None:
    """Put the table into the README in the place of the one that is there."""
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(HEAD)
    after = rest.partition("\n\n")[2]
    README.write_text(f"{before}{table()}\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
