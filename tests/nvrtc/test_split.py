"""Splits of K on the executor: what their launch needs beside the kernel, and what is wrong without it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from wmmagen import nvrtc, trial
from wmmagen.arch import ARCHS
from wmmagen.backends.cpu import CpuBackend, execute
from wmmagen.config import KernelConfig, Problem
from wmmagen.defaults import read_config
from wmmagen.errors import HazardFault
from wmmagen.mistakes import ADDED, ADDED_EDGE, MET
from wmmagen.nvrtc import Binary
from wmmagen.render import render
from wmmagen.verdict import judge

pytestmark = pytest.mark.usefixtures("headers_once")

SM80 = ARCHS[80]
#: Every way to feed, copy and store, each with a way to meet.
KERNELS = (
    (75, "layout=rr,warps=1x2,frags=1x1,copy=ld,stages=1,split_k=3,epilogue=linear,d=f16,store=staged"),
    (80, "layout=cr,warps=2x1,frags=1x2,copy=cpasync,stages=3,split_k=2,acc=f16,fragment_buffers=2,raster=panels2"),
    (90, "layout=rc,warps=1x1,frags=1x2,feed=global,split_k=5,epilogue=linear,inst=8x32x16"),
    (90, "warps=1x1,frags=1x2,copy=cpasync,stages=2,split_k=3,epilogue=linear+biascol+residual,d=f16,store=staged"),
    (75, "layout=rc,warps=2x1,frags=1x1,copy=ld,stages=2,split_k=2,reduction=atomic,align_d=1,fragment_buffers=2"),
    (
        80,
        "residue=predicated,batch=pointers,warps=1x1,frags=1x2,copy=cpasync,stages=2,split_k=2,epilogue=biascol,d=f16",
    ),
)


@cache
def made(text: str, sm: int = 80) -> tuple[KernelConfig, Binary]:
    config = read_config(text, ARCHS[sm])
    return config, trial.build(config, ARCHS[sm])[1]


@pytest.mark.parametrize(("sm", "text"), KERNELS)
def test_splits_are_exact_and_nothing_is_found(sm: int, text: str) -> None:
    config, binary = made(text, sm)
    few, _, many, *_ = trial.validation_problems(config)
    runs = [trial.check_run(config, binary, CpuBackend(seed), p) for seed, p in enumerate((few, many))]
    assert [run.mismatch for run in runs if not run.exact] == [] and all(run.guaranteed for run in runs)


@pytest.mark.parametrize("splits", [2, 5])
def test_what_is_checked_leaves_splits_without_a_slice_and_with_a_pipeline(splits: int) -> None:
    config = read_config(f"{MET},split_k={splits}".replace("split_k=3,", ""), SM80)
    slices = {problem.k // 32 for problem in trial.validation_problems(config)}
    assert slices == {0, 1, splits + 1, splits * (config.stages + 1) + 1}


def small(config: KernelConfig, slices: int = 4) -> Problem:
    return Problem.packed(config.operation, 64, 64, slices * 32)


def test_launches_follow_each_other_and_the_order_of_sums_is_one() -> None:
    """Whoever comes last: with odd seeds the blocks come one after another, with even ones together."""
    config, binary = made(MET)
    problem = small(config, 7)
    case = trial.exact_case(problem)
    launch = trial.launch_of(binary.entry, config, problem, case.images)
    rng = np.random.default_rng(3)
    operands = [image.pack(rng.standard_normal((image.rows, image.cols))) for image in case.images[:-1]]
    buffers = trial.launched(config, problem, (*operands, case.images[-1].blank()))
    results = []
    for seed in range(3):
        outputs = execute(binary, launch, buffers, seed=seed).outputs
        results.append(outputs[2].tobytes())
        buffers = (*buffers[:3], outputs[3])  # the next launch finds the workspace as this one left it
    assert len(set(results)) == 1


def test_d_that_is_not_zeroed_is_seen() -> None:
    config, binary = made(ADDED)
    problem = small(config)
    case = trial.exact_case(problem)
    launch = trial.launch_of(binary.entry, config, problem, case.images)
    right, wrong = (execute(binary, one, case.buffers).outputs for one in (launch, replace(launch, zeroed=None)))
    assert judge(case.inputs, case.images[-1], right[-1], case.want, case.check).exact
    verdict = judge(case.inputs, case.images[-1], wrong[-1], case.want, case.check)
    assert verdict.wrong == verdict.total and "NaN" in verdict.hint


@pytest.mark.parametrize("sign", ["+=", "="])
def test_splits_that_add_without_atomics_race(sign: str) -> None:
    config, _ = made(ADDED)
    source = render(config, SM80)
    place = "d_tile + static_cast<long long>(row) * ldd + col + e"
    text = source.text.replace(f"atomicAdd({place}, out.of[e]);", f"*({place}) {sign} out.of[e];")
    assert text != source.text
    binary = nvrtc.compile_source(text, source.kernel, SM80)
    problem = small(config)
    case = trial.exact_case(problem)
    with pytest.raises(HazardFault, match="race-between-blocks"):
        execute(binary, trial.launch_of(binary.entry, config, problem, case.images), case.buffers)


def test_atomics_at_edges_keep_to_d() -> None:
    """What lies behind D would be left as it is by the zeros that are summed there, so it is taken away."""
    config, _ = made(ADDED_EDGE)
    source = render(config, SM80)
    problem = Problem.packed(config.operation, 17, 24, 40, 8)
    case = trial.exact_case(problem)
    d = case.images[-1]
    last = d.offset + ((problem.m - 1) * problem.ldd + problem.n) * d.element_bytes
    for text, right in ((source.text, True), (source.text.replace("if (e < count) atomicAdd", "atomicAdd"), False)):
        binary = nvrtc.compile_source(text, source.kernel, SM80)
        launch = trial.launch_of(binary.entry, config, problem, case.images)
        zeroed = replace(launch, zeroed=None)
        buffers = (*case.buffers[:-1], np.zeros(last, np.uint8))
        if right:
            assert execute(binary, zeroed, buffers).outputs[-1].any()
        else:
            with pytest.raises(HazardFault, match="out-of-bounds"):
                execute(binary, zeroed, buffers)


def test_a_workspace_too_small_is_left_and_one_that_is_used_is_judged() -> None:
    config, binary = made(MET)
    problem = small(config)
    case = trial.exact_case(problem)
    launch = trial.launch_of(binary.entry, config, problem, case.images)
    workspace = trial.workspace_of(config, problem)
    assert workspace is not None
    blank = workspace.blank()
    outputs = execute(binary, launch, (*case.buffers, blank)).outputs
    assert workspace.damage(outputs[-1]) == "" and (outputs[-1] != blank).any()
    with pytest.raises(HazardFault, match="out-of-bounds"):
        execute(binary, launch, (*case.buffers, blank[: workspace.offset + workspace.tile_bytes]))
    for place, words in ((0, "before"), (-1, "behind"), (workspace.offset + workspace.count_offset, "not 0 again")):
        spoilt = outputs[-1].copy()
        spoilt[place] ^= 1
        assert words in workspace.damage(spoilt)
