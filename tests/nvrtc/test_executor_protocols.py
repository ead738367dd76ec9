"""Protocols between blocks as NVRTC compiles them: the last block that sums up, and turns by a semaphore."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from wmmagen import executor, nvrtc
from wmmagen.arch import ARCHS
from wmmagen.executor import Pointer

SMS = (75, 80, 90)
BLOCKS, THREADS = 4, 64
#: With the first seed blocks begin together, with the second one after another.
SEEDS = (0, 1)

LAST = """
extern "C" __global__ void k(unsigned* count, float* partial, const float* x, float* sum)
{
  __shared__ bool last;
  partial[blockIdx.x * blockDim.x + threadIdx.x] = 2.0f * x[blockIdx.x * blockDim.x + threadIdx.x];
  BEFORE
  if (threadIdx.x == 0) {
    unsigned ticket = TAKE;
    last = ticket == gridDim.x - 1;
  }
  __syncthreads();
  if (last) {
    AFTER
    float s = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) s += partial[i * blockDim.x + threadIdx.x];
    sum[threadIdx.x] = s;
    if (threadIdx.x == 0) *count = 0;
  }
}
"""
LAST_RIGHT = {
    "BEFORE": "__threadfence(); __syncthreads();",
    "TAKE": "atomicInc(count, gridDim.x)",
    "AFTER": "__threadfence();",
}

TURNS = """
extern "C" __global__ void k(unsigned* turn, float* tile, const float* x, float* unused)
{
  if (threadIdx.x == 0) { WAIT }
  ENTER
  float before = blockIdx.x ? tile[threadIdx.x] : 0.0f;
  tile[threadIdx.x] = 2.0f * before + x[blockIdx.x * blockDim.x + threadIdx.x];
  LEAVE
  if (threadIdx.x == 0) { PASS }
}
"""
TURNS_RIGHT = {
    "WAIT": "while (*(volatile unsigned*)turn != blockIdx.x) {} __threadfence();",
    "ENTER": "__syncthreads();",
    "LEAVE": "__syncthreads();",
    "PASS": "__threadfence(); *(volatile unsigned*)turn = blockIdx.x + 1;",
}
ATOMIC = {
    "WAIT": "while (atomicAdd(turn, 0u) != blockIdx.x) {} __threadfence();",
    "PASS": "__threadfence(); atomicExch(turn, blockIdx.x + 1);",
}
FENCES = {"ENTER": "__syncthreads(); __threadfence();", "LEAVE": "__threadfence(); __syncthreads();"}
UNFENCED = {**FENCES, "WAIT": "while (*(volatile unsigned*)turn != blockIdx.x) {}", "PASS": "atomicAdd(turn, 1u);"}


@cache
def compiled(source: str, sm: int) -> str:
    return nvrtc.compile_source(source, "k", ARCHS[sm], line_info=True).ptx


def launched(text: str, sm: int, seed: int) -> tuple[executor.Result, list[np.ndarray]]:
    buffers = [
        np.zeros(4, np.uint32),
        np.zeros(BLOCKS * THREADS, np.float32),
        np.arange(BLOCKS * THREADS, dtype=np.float32),
        np.zeros(THREADS, np.float32),
    ]
    args = [Pointer(number) for number in range(4)]
    got = executor.launch(
        compiled(text, sm), "k", (BLOCKS, 1, 1), (THREADS, 1, 1), args, 0, buffers=buffers, seed=seed, budget=4_000_000
    )
    return got, [out.view(buffer.dtype) for out, buffer in zip(got.outputs, buffers, strict=True)]


#: Blocks add to tiles in turn, the sums in fragments; each warp has a tile of its own.
FRAGMENTS = """
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(unsigned* turn, float* tile, const __half* ones, float* unused)
{
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;
  float* mine = tile + threadIdx.x / 32 * 256;
  wmma::load_matrix_sync(a, ones, 16);
  wmma::load_matrix_sync(b, ones, 16);
  if (threadIdx.x == 0) { WAIT }
  ENTER
  if (blockIdx.x == 0) wmma::fill_fragment(sums, 0.0f);
  else wmma::load_matrix_sync(sums, mine, 16, wmma::mem_row_major);
  wmma::mma_sync(sums, a, b, sums);
  wmma::store_matrix_sync(mine, sums, 16, wmma::mem_row_major);
  LEAVE
  if (threadIdx.x == 0) { PASS }
}
"""


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize(
    ("ways", "found"),
    [
        ({}, set()),
        (ATOMIC, set()),
        ({"PASS": "*(volatile unsigned*)turn = blockIdx.x + 1;"}, {"race-between-blocks"}),
        ({"LEAVE": ""}, {"race-between-blocks"}),
        ({"ENTER": ""}, {"race-between-blocks"}),
    ],
)
def test_fragments_of_whole_warps_in_turn(ways: dict[str, str], found: set[str], sm: int) -> None:
    buffers = [np.zeros(4, np.uint32), np.zeros(512, np.float32), np.ones(256, np.float16), np.zeros(1, np.float32)]
    ptx = compiled(filled(FRAGMENTS, {**TURNS_RIGHT, **ways}), sm)
    for seed in SEEDS:
        args = [Pointer(number) for number in range(4)]
        got = executor.launch(ptx, "k", (BLOCKS, 1, 1), (THREADS, 1, 1), args, 0, buffers=buffers, seed=seed)
        assert {finding.code for finding in got.findings} == found
        assert found or (got.outputs[1].view(np.float32) == 16 * BLOCKS).all()


def filled(text: str, ways: dict[str, str]) -> str:
    for name, part in ways.items():
        text = text.replace(name, part)
    return text


def summed(x: np.ndarray, outputs: list[np.ndarray]) -> bool:
    return bool((outputs[3] == 2 * x.sum(axis=0)).all() and outputs[0][0] == 0)


def in_turn(x: np.ndarray, outputs: list[np.ndarray]) -> bool:
    return bool((outputs[1][:THREADS] == x[0] * 8 + x[1] * 4 + x[2] * 2 + x[3]).all() and outputs[0][0] == BLOCKS)


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize(
    ("text", "ways", "right"),
    [
        (LAST, LAST_RIGHT, summed),
        (LAST, {**LAST_RIGHT, "BEFORE": "__syncthreads(); if (threadIdx.x == 0) __threadfence();"}, summed),
        (TURNS, TURNS_RIGHT, in_turn),
        (TURNS, {**TURNS_RIGHT, **ATOMIC}, in_turn),
        (TURNS, {**TURNS_RIGHT, **UNFENCED}, in_turn),
    ],
)
def test_protocols_between_blocks_are_clean(
    text: str, ways: dict[str, str], right: Callable[[np.ndarray, list[np.ndarray]], bool], sm: int
) -> None:
    for seed in SEEDS:
        got, outputs = launched(filled(text, ways), sm, seed)
        assert got.findings == ()
        assert right(outputs[2].reshape(BLOCKS, THREADS), outputs)


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize(
    ("text", "ways"),
    [
        (LAST, {**LAST_RIGHT, "BEFORE": "__syncthreads();"}),
        (LAST, {**LAST_RIGHT, "BEFORE": "__threadfence();"}),
        (LAST, {**LAST_RIGHT, "BEFORE": "if (threadIdx.x == 0) __threadfence();"}),
        (LAST, {**LAST_RIGHT, "BEFORE": "__threadfence_block(); __syncthreads();"}),
        (LAST, {**LAST_RIGHT, "AFTER": ""}),
        (LAST, {**LAST_RIGHT, "AFTER": "__threadfence_block();"}),
        (LAST, {**LAST_RIGHT, "TAKE": "atomicAdd_block(count, 1u)"}),
        (LAST, {**LAST_RIGHT, "TAKE": "(atomicInc(count, gridDim.x), (*count)++)"}),
        (TURNS, {**TURNS_RIGHT, "PASS": "*(volatile unsigned*)turn = blockIdx.x + 1;"}),
        (TURNS, {**TURNS_RIGHT, "PASS": "__threadfence(); *turn = blockIdx.x + 1;"}),
        (TURNS, {**TURNS_RIGHT, "WAIT": "while (*(volatile unsigned*)turn != blockIdx.x) {}"}),
        (TURNS, {**TURNS_RIGHT, "ENTER": ""}),
        (TURNS, {**TURNS_RIGHT, "LEAVE": ""}),
        (TURNS, {**TURNS_RIGHT, "WAIT": ""}),
        (TURNS, {**TURNS_RIGHT, **ATOMIC, "PASS": "atomicExch(turn, blockIdx.x + 1);"}),
        (TURNS, {**TURNS_RIGHT, **UNFENCED, "LEAVE": "__syncthreads();"}),
    ],
)  # fmt: skip
def test_broken_protocols_are_found(text: str, ways: dict[str, str], sm: int) -> None:
    for seed in SEEDS:
        got, _ = launched(filled(text, ways), sm, seed)
        assert "race-between-blocks" in {finding.code for finding in got.findings}


#: The last block told by a vote at a barrier; and what the other votes say.
VOTES = """
extern "C" __global__ void k(unsigned* count, float* partial, const float* x, float* sum)
{
  partial[blockIdx.x * blockDim.x + threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  __threadfence();
  __syncthreads();
  const bool last = threadIdx.x == 0 && atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
  WHO if (!__syncthreads_or(last)) return;
  __threadfence();
  float s = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) s += partial[i * blockDim.x + threadIdx.x];
  const int all = __syncthreads_and(threadIdx.x < blockDim.x) && !__syncthreads_and(threadIdx.x != 5);
  sum[threadIdx.x] = s + 1000 * __syncthreads_count(threadIdx.x % 3 == 0) + 100000 * all;
}
"""


@pytest.mark.parametrize("sm", SMS)
def test_votes_of_a_block(sm: int) -> None:
    for seed in SEEDS:
        got, outputs = launched(filled(VOTES, {"WHO": ""}), sm, seed)
        assert got.findings == () and outputs[0][0] == 0
        wanted = outputs[2].reshape(BLOCKS, THREADS).sum(axis=0) + 1000 * -(-THREADS // 3) + 100000
        assert (outputs[3] == wanted).all()


def test_a_vote_that_a_part_of_the_block_passes_by_is_found() -> None:
    got, _ = launched(filled(VOTES, {"WHO": "if (threadIdx.x < 32)"}), 80, 0)
    assert "barrier-divergence" in {finding.code for finding in got.findings}


@pytest.mark.parametrize("sm", SMS)
def test_a_threadfence_is_a_sequentially_consistent_fence(sm: int) -> None:
    """What the model knows of ``__threadfence()`` hangs on this: with the ISA, ``membar`` is ``fence.sc``."""
    ptx = compiled(filled(LAST, LAST_RIGHT), sm)
    assert "membar.gl;" in ptx or "fence.sc.gpu;" in ptx
