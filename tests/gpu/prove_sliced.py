"""The proof of groups of warps that share the steps of a slice: exact, and what they are worth. Writes its record.

    python tests/gpu/prove_sliced.py [--arch sm_90] [--backend gpu] [--to tests/gpu/records]

Configurations are those of every way to feed and to fill stages, in two, three and four groups, with every way in which
sums leave the meeting: each store, type, epilogue, split of K and batch, and sizes that end within a tile. Each is
validated on its hostile problems and on a long K. On a GPU, further:

- emitted self-tests pass, built by nvcc,
- launches on the same normal data leave the same bits,
- times beside the same tile without groups, on small cubes and on shapes of decoding: told, not judged.

``--backend cpu`` validates those that the CPU executor takes in reasonable time, and needs no GPU. Exit status 0 where
all is so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path

import numpy as np

from tests.gpu.proof import answer, ended, recorded
from tests.gpu.spread import exact_lines
from wmmagen import arch as archs
from wmmagen import config as configurations
from wmmagen import defaults, emit, layout, rules, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend
from wmmagen.backends.pick import pick
from wmmagen.config import KernelConfig, Problem, name
from wmmagen.timing import TimingProtocol

TINY = "warps=2x1,frags=3x2"
#: Every pipeline, each with another layout and number of steps of a group.
FEEDS = (
    ("feed=global,layout=rr", 1),
    ("feed=global,fragment_buffers=2,layout=cr", 2),
    ("copy=ld,stages=1,fragment_buffers=1,layout=rc", 1),
    ("copy=ld,stages=2,fragment_buffers=1,layout=cr,raster=grouped2", 1),
    ("copy=ld,stages=2,fragment_buffers=2,layout=cc", 2),
    ("copy=cpasync,stages=3,fragment_buffers=1,layout=rr,arrange_a=tiles", 2),
    ("copy=cpasync,stages=4,fragment_buffers=2,layout=rc,raster=panels2", 2),
)
#: Every way from the meeting to D.
ENDS = (
    "store=direct",
    "store=direct,epilogue=linear,acc=f16",
    "store=staged,align_d=1",
    "store=staged,d=f16,epilogue=linear+biascol+gelu",
    "store=staged,acc=f16,d=f32",
    "store=direct,split_k=2,reduction=workspace,epilogue=linear",
    "store=staged,split_k=3,reduction=workspace,d=f16",
    "reduction=atomic,split_k=2",
    "store=direct,batch=strided",
    "store=staged,batch=pointers,epilogue=linear,d=f16",
    "store=direct,residue=predicated",
    "store=staged,residue=predicated,d=f16,align_d=2,epilogue=linear",
)
#: Other operands, whose sums have other types.
OTHERS = (
    "a=bf16,copy=cpasync,stages=3,fragment_buffers=2",
    "a=tf32,copy=cpasync,stages=2,fragment_buffers=1,store=staged",
    "a=f64,copy=cpasync,stages=2,fragment_buffers=1",
    "a=s8,copy=ld,stages=2,fragment_buffers=1",
    "a=u8,copy=cpasync,stages=2,fragment_buffers=2,epilogue=linear,d=s8",
)
GROUPS = (2, 3, 4)
LONG = ((96, 192, 12288), (288, 96, 6144))
LAUNCHES = 20

#: What is timed: a tile with its pipeline, and the numbers of groups that share its slices, one among them.
CP = "layout=rr,copy=cpasync,store=direct"
TIMED = {
    (512, 512, 512): (
        (f"{CP},warps=2x2,frags=2x2,k_steps=4,stages=4", (1, 2, 4)),
        (f"{CP},warps=2x1,frags=2x2,k_steps=8,stages=3", (1, 2, 4)),
        (f"{CP},warps=1x1,frags=2x2,k_steps=8,stages=3", (1, 2, 4)),
    ),
    (1024, 1024, 1024): (
        (f"{CP},warps=2x2,frags=4x4,k_steps=4,stages=3", (1, 2)),
        (f"{CP},warps=2x2,frags=4x2,k_steps=4,stages=4", (1, 2)),
        (f"{CP},warps=2x1,frags=4x4,k_steps=4,stages=4", (1, 2, 4)),
        (f"{CP},warps=2x1,frags=4x4,k_steps=8,stages=3", (1, 2, 4)),
    ),
    (2048, 2048, 2048): (
        (f"{CP},warps=2x2,frags=4x4,k_steps=4,stages=3", (1, 2)),
        (f"{CP},warps=2x1,frags=4x4,k_steps=8,stages=3", (1, 2, 4)),
    ),
    (16, 4096, 4096): (
        (f"{CP},warps=1x2,frags=1x2,k_steps=8,stages=4", (1, 2, 4)),
        (f"{CP},warps=1x2,frags=1x2,k_steps=8,stages=4,split_k=4", (1, 2, 4)),
    ),
    (64, 4096, 4096): (
        (f"{CP},warps=2x2,frags=2x1,k_steps=8,stages=4", (1, 2)),
        (f"{CP},warps=2x1,frags=2x2,k_steps=8,stages=4,split_k=2", (1, 2, 4)),
    ),
}
QUICK = TimingProtocol(warmup_min_s=0.3, warmup_max_s=1)


def configs(arch: Arch) -> Iterator[KernelConfig]:
    """What is validated; each legal."""
    number = 0
    for (feed, steps), end in product(FEEDS, ENDS):
        if "feed=global" in feed and "predicated" in end:
            continue  # X616
        groups = GROUPS[number % len(GROUPS)]
        number += 1
        yield defaults.read_config(f"{TINY},{feed},{end},warps_k={groups},k_steps={groups * steps}", arch)
    for number, text in enumerate(OTHERS):
        groups = (2, 4)[number % 2]
        steps = groups * (2 if "fragment_buffers=2" in text else 1)
        yield defaults.read_config(f"warps=1x1,frags=2x2,{text},warps_k={groups},k_steps={steps}", arch)


def problems(config: KernelConfig, *, long: bool) -> list[Problem]:
    """The hostile ones, and where time allows long ones."""
    found = list(trial.validation_problems(config))
    if long:
        asked = [Problem.packed(config.operation, *size) for size in LONG]
        found += [problem for problem in asked if not rules.check(config, problem=problem)]
    return found


def validated(arch: Arch, backend: Backend) -> Iterator[tuple[bool, str]]:
    """A line for each configuration."""
    wanted = [(config, problems(config, long=backend.clocked)) for config in configs(arch)]
    return exact_lines(wanted, arch, backend.name)


def emitted(arch: Arch) -> Iterator[tuple[bool, str]]:
    """What nvcc's own build of the launcher does."""
    for more in ("store=direct,warps_k=2", "store=staged,d=f16,epilogue=linear,residue=predicated,warps_k=4"):
        config = defaults.read_config(f"warps=2x1,frags=2x2,k_steps=8,copy=cpasync,stages=3,{more}", arch)
        with tempfile.TemporaryDirectory() as place:
            kernel, _, selftest, _ = emit.emit(config, arch, Path(place), symbol="my_gemm")
            said = answer(Path(place), arch, "tried", kernel.name, selftest.name)
            yield said == "PASS", f"self-test of {name(config)}: {said}"


def repeated(arch: Arch, backend: Backend, launches: int = LAUNCHES) -> Iterator[tuple[bool, str]]:
    """Whether normal data gives the same bits with every launch."""
    for text, groups in (("warps=2x2,frags=4x4,k_steps=4", 2), ("warps=2x1,frags=2x2,k_steps=8", 4)):
        config = defaults.read_config(f"{CP},{text},stages=3,warps_k={groups}", arch)
        _, binary = trial.build(config, arch)
        problem = Problem.packed(config.operation, 128, 128, 512)
        images, rng = layout.images(problem), np.random.default_rng(5)
        operands = [image.pack(rng.standard_normal((image.rows, image.cols))) for image in images[:-1]]
        launch = trial.launch_of(binary.entry, config, problem, images)
        buffers = (*operands, images[-1].blank())
        results = {backend.run(binary, launch, buffers)[-1].tobytes() for _ in range(launches)}
        yield len(results) == 1, f"{launches} launches on normal data of {name(config)}: {len(results)} different D"


def timed(arch: Arch, backend: Backend) -> Iterator[tuple[bool, str]]:
    """Microseconds of a launch by the number of groups; all are exact first."""
    for size, tiles in TIMED.items():
        for text, counts in tiles:
            told, right = [], True
            for groups in counts:
                config = sliced(text, groups, arch)
                _, binary = trial.build(config, arch)
                problem = Problem.packed(config.operation, *size)
                right = right and all(run.exact for run in trial.validate(config, binary, backend, [problem]))
                us = trial.time_it(config, binary, backend, problem, QUICK).median_us
                told.append(f"{groups} {us:.2f}")
            yield right, f"{'x'.join(map(str, size))}, us a launch by groups of {text}: {', '.join(told)}"


def sliced(text: str, groups: int, arch: Arch) -> KernelConfig:
    """A tile in so many groups, with fragments a step ahead where a group has an even number of steps."""
    steps = configurations.read_pairs(text)["k_steps"] // groups
    return defaults.read_config(f"{text},warps_k={groups},fragment_buffers={1 if steps % 2 else 2}", arch)


def main() -> int:
    """Validate, build, time, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--backend", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    record = asked.to / f"sliced_{'cpu' if asked.backend == 'cpu' else arch}.txt"
    with pick(asked.backend, arch) as place:
        backend = place.demanded()
        parts = [validated(arch, backend), repeated(arch, backend, LAUNCHES if backend.clocked else 2)]
        if backend.clocked:
            parts += [emitted(arch), timed(arch, backend)]
        return recorded(record, backend.device, chain(*parts))


if __name__ == "__main__":
    sys.exit(ended(main))
