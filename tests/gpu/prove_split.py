"""The proof of splits of K: exact whatever the way in which sums meet, and the same bits again. Writes its record.

    python tests/gpu/prove_split.py [--arch sm_90] [--backend gpu] [--to tests/gpu/records]

Configurations are those of every way to feed, copy and store, with few and with many splits, in both ways to meet, with
every epilogue that they take. Each is validated on its hostile problems and on long K. On a GPU, further:

- each emitted self-test passes; without the launcher's zeroing of D that of an atomic kernel fails,
- launches in one CUDA graph leave the same bits: on normal data where sums meet in a workspace, on integers where they
  meet by atomics (on normal data those may differ, which is told),
- times beside the same tiles without splits, on problems of few tiles and a long K.

``--backend cpu`` validates those that the CPU executor takes in reasonable time, and needs no GPU. Exit status 0 where
all is so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, product
from pathlib import Path

from tests.gpu.proof import answer, ended, recorded
from tests.gpu.spread import exact_lines
from wmmagen import arch as archs
from wmmagen import defaults, derive, emit, rules, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend
from wmmagen.backends.pick import pick
from wmmagen.config import KernelConfig, Problem, Reduction, name
from wmmagen.timing import TimingProtocol

TINY = "warps=2x1,frags=1x2,k_steps=2"
#: Every pipeline, each with another layout.
FEEDS = (
    f"{TINY},feed=global,layout=rr",
    f"{TINY},copy=ld,stages=1,layout=rc",
    f"{TINY},copy=ld,stages=2,layout=cr,raster=grouped2",
    f"{TINY},copy=ld,stages=2,fragment_buffers=2,layout=cc",
    f"{TINY},copy=cpasync,stages=3,fragment_buffers=1,layout=rr,arrange_a=tiles",
    f"{TINY},copy=cpasync,stages=4,fragment_buffers=2,layout=rc,raster=panels2",
)
#: Every way in which sums meet, with every type, store and epilogue.
MEETINGS = (
    "reduction=workspace,store=direct",
    "reduction=workspace,store=direct,epilogue=linear",
    "reduction=workspace,store=direct,acc=f16",
    "reduction=workspace,store=staged,align_d=1",
    "reduction=workspace,store=staged,d=f16,epilogue=linear",
    "reduction=workspace,store=staged,acc=f16,d=f32",
    "reduction=atomic",
    "reduction=atomic,align_d=1",
)
#: Splits beside what else a kernel can be: all sizes, batches, and sums that are added as they are.
BESIDE = (
    f"{TINY},residue=predicated,copy=cpasync,stages=3,fragment_buffers=1,layout=cr,split_k=2",
    f"{TINY},residue=predicated,copy=ld,stages=2,layout=rc,store=staged,d=f16,epilogue=linear+biascol+residual,split_k=3",
    f"{TINY},residue=predicated,copy=cpasync,stages=2,fragment_buffers=2,layout=rr,align_a=2,reduction=atomic,split_k=2",
    f"{TINY},batch=strided,copy=ld,stages=1,layout=cc,epilogue=linear,split_k=3",
    f"{TINY},batch=pointers,copy=cpasync,stages=3,fragment_buffers=1,layout=rc,epilogue=biasrow+gelu,d=f16,split_k=2",
    "warps=1x1,frags=1x1,batch=strided,residue=predicated,k_steps=2,copy=ld,stages=1,layout=rr,raster=grouped2,split_k=2",
    "a=bf16,warps=2x1,frags=1x2,k_steps=2,residue=predicated,copy=cpasync,stages=2,fragment_buffers=1,split_k=3",
    "a=tf32,warps=2x1,frags=1x2,k_steps=4,copy=cpasync,stages=2,fragment_buffers=1,reduction=atomic,split_k=2",
    "a=f64,warps=1x2,frags=2x2,k_steps=4,copy=ld,stages=2,epilogue=linear+biascol,store=staged,split_k=2",
    "a=f64,warps=1x2,frags=2x2,k_steps=4,copy=ld,stages=1,residue=predicated,reduction=atomic,split_k=3",
    "a=s8,warps=2x1,frags=1x2,k_steps=4,copy=ld,stages=2,store=direct,split_k=3",
    "a=s8,d=s8,c=f32,warps=2x1,frags=1x2,k_steps=4,copy=ld,stages=2,epilogue=scalecol+biascol+relu,split_k=2",
    "a=u8,warps=2x1,frags=1x2,k_steps=4,copy=cpasync,stages=2,fragment_buffers=1,reduction=atomic,split_k=2",
)
FEW = (2, 3, 5)
#: The tiles that are known to be good for few tiles of D, and how far K is split there; on a GPU only.
GOOD = "warps=2x2,frags=2x2,k_steps=4,copy=cpasync,stages=4,fragment_buffers=2"
MANY = (4, 16, 64, 256, 1024)
LONG = ((64, 64, 65536), (128, 192, 8192), (256, 64, 4160))
LAUNCHES, TURNS = 100, 3
QUICK = TimingProtocol(warmup_min_s=0.3, warmup_max_s=1)


def configs(arch: Arch, *, many: bool) -> Iterator[KernelConfig]:
    """What is validated; each legal."""
    for number, (feed, meeting) in enumerate(product(FEEDS, MEETINGS)):
        yield defaults.read_config(f"{feed},{meeting},split_k={FEW[number % len(FEW)]}", arch)
    yield from (config for config in (defaults.read_config(text, arch) for text in BESIDE) if rules.legal(config, arch))
    if many:
        for splits, reduction in product(MANY, ("workspace", "atomic")):
            yield defaults.read_config(f"{GOOD},split_k={splits},reduction={reduction}", arch)


def problems(config: KernelConfig, *, long: bool) -> list[Problem]:
    """The hostile ones, and where time allows long ones."""
    found = list(trial.validation_problems(config))
    if long:
        sizes = [size for size in LONG if not rules.check(config, problem=Problem.packed(config.operation, *size))]
        found += [Problem.packed(config.operation, *size) for size in sizes]
        if config.operation.scaled:
            found[-1] = replace(found[-1], alpha=-2.0, beta=0.5)
    return found


def validated(arch: Arch, backend: Backend) -> Iterator[tuple[bool, str]]:
    """A line for each configuration."""
    wanted = [(config, problems(config, long=backend.clocked)) for config in configs(arch, many=backend.clocked)]
    return exact_lines(wanted, arch, backend.name)


def emitted(arch: Arch) -> Iterator[tuple[bool, str]]:
    """What nvcc's own build of the launcher does, kernels side by side, since nvcc takes far longer than they do."""
    kernels = list(product((3, 16), ("workspace", "atomic")))
    with ThreadPoolExecutor(len(kernels)) as pool:
        for told in pool.map(lambda kernel: list(built(arch, *kernel)), kernels):
            yield from told


def built(arch: Arch, splits: int, reduction: str) -> Iterator[tuple[bool, str]]:
    """The self-test of a kernel, and launches in a graph."""
    config = defaults.read_config(f"{GOOD},split_k={splits},reduction={reduction}", arch)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        kernel, _, selftest, _ = emit.emit(config, arch, folder, symbol="my_gemm")
        said = answer(folder, arch, "tried", kernel.name, selftest.name)
        yield said == "PASS", f"self-test of {name(config)}: {said}"
        if config.reduction is Reduction.ATOMIC:
            text = kernel.read_text()
            whole = "static_cast<std::size_t>(M), stream)"
            assert text.count(whole) == 1
            (folder / "broken.cu").write_text(text.replace(whole, "0, stream)"))
            said = answer(folder, arch, "broken", "broken.cu", selftest.name)
            yield said.startswith("FAIL"), f"the same without zeroing D has to fail: {said}"
        for integers in (True, False):
            facts = {
                "M": 128, "N": 192, "K": 8192, "OUTPUT": config.operation.d.storage,
                "INTEGERS": str(integers).lower(), "WORKSPACE": int(config.reduction is Reduction.WORKSPACE),
                "LAUNCHES": LAUNCHES, "TURNS": TURNS,
            }  # fmt: skip
            (folder / "facts.h").write_text("".join(f"#define {key} {value}\n" for key, value in facts.items()))
            program = Path(__file__).with_name("split.cu").resolve()
            said = answer(folder, arch, "graph", kernel.name, str(program))
            same = said == f"0 of {LAUNCHES * TURNS}"
            data = "integers" if integers else "normal data"
            must = integers or config.reduction is Reduction.WORKSPACE
            yield (
                same if must else said.endswith(f"of {LAUNCHES * TURNS}"),
                f"{LAUNCHES} launches in a graph, {TURNS} times, on {data}, D unlike the first: {said}",
            )


def timed(arch: Arch, backend: Backend) -> Iterator[tuple[bool, str]]:
    """Microseconds of a launch with splits beside those without."""
    for size in LONG[:2]:
        found = []
        for splits, reduction in ((1, "none"), *product(MANY, ("workspace", "atomic"))):
            config = defaults.read_config(f"{GOOD},split_k={splits},reduction={reduction}", arch)
            if splits > size[2] // derive.values(config)["BLOCK_K"]:
                continue
            _, binary = trial.build(config, arch)
            problem = Problem.packed(config.operation, *size)
            found.append((trial.time_it(config, binary, backend, problem, QUICK).median_us, f"{splits} {reduction}"))
        told = ", ".join(f"{words} {us:.2f}" for us, words in found)
        yield min(found)[0] < found[0][0], f"{'x'.join(map(str, size))}, us a launch by splits: {told}"


def main() -> int:
    """Validate, build, time, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--backend", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    record = asked.to / f"split_{'cpu' if asked.backend == 'cpu' else arch}.txt"
    with pick(asked.backend, arch) as place:
        backend = place.demanded()
        parts = [validated(arch, backend)]
        if backend.clocked:
            parts += [emitted(arch), timed(arch, backend)]
        return recorded(record, backend.device, chain(*parts))


if __name__ == "__main__":
    sys.exit(ended(main))
