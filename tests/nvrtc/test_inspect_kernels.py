"""What `inspect` tells of real kernels: which way padding, residency and the feed move each figure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wmmagen import cli, config, inspection
from wmmagen.arch import ARCHS
from wmmagen.defaults import read_config
from wmmagen.inspection import Inspection

SM80 = ARCHS[80]
BASE = "layout=rc,warps=2x2,frags=2x2,k_steps=2,store=direct"
STAGED = f"{BASE},copy=cpasync,stages=3"
TEXTS = {
    "padded": f"{STAGED},pad_a=8,pad_b=8,residency=fragment",
    "plain": f"{STAGED},pad_a=0,pad_b=0,residency=fragment",
    "parked": f"{STAGED},pad_a=8,pad_b=8,residency=global",
    "fed": f"{BASE},feed=global,residency=fragment",
}
Total = Callable[[str, str], float]


@pytest.fixture(scope="module")
def kernels() -> dict[str, Inspection]:
    configs = {word: read_config(text, SM80) for word, text in TEXTS.items()}
    size = inspection.default_size(list(configs.values()))
    return {word: inspection.examine(config, SM80, size) for word, config in configs.items()}


@pytest.fixture
def total(kernels: dict[str, Inspection]) -> Total:
    return lambda word, key: next(f.total for f in kernels[word].figures if f.key == key)


def test_what_every_right_kernel_does(kernels: dict[str, Inspection], total: Total) -> None:
    for word, one in kernels.items():
        least = inspection.minima(one.config, one.problem)
        assert total(word, "tensor_instructions") == least["tensor_instructions"].problem
        assert total(word, "global_load_sectors") >= least["global_load_sectors"].problem
        assert total(word, "global_store_sectors") >= least["global_store_sectors"].problem
        # Packed rows of whole sectors: where nothing is lost, memory gives each element once.
        assert total(word, "load_bytes_perfect_l2") >= least["load_bytes_perfect_l2"].problem
        assert total(word, "load_bytes_no_l2") >= least["load_bytes_no_l2"].problem
        if word != "parked":
            assert total(word, "load_bytes_perfect_l2") == least["load_bytes_perfect_l2"].problem
            assert total(word, "load_bytes_no_l2") == least["load_bytes_no_l2"].tiles
        assert one.counts.multiply_adds == one.problem.m * one.problem.n * one.problem.k
        assert one.report.defects == ()
        assert one.report.figures is not None and one.report.figures.matrix > 0


def test_padding_saves_conflicts_and_nothing_else(kernels: dict[str, Inspection], total: Total) -> None:
    assert total("padded", "shared_load_conflicts") == 0
    assert total("plain", "shared_load_conflicts") > 0
    assert total("plain", "shared_load_wavefronts") > total("padded", "shared_load_wavefronts")
    for key in ("global_load_sectors", "global_store_sectors", "tensor_instructions", "block_barriers"):
        assert total("plain", key) == total("padded", key)
    both = [kernels["plain"], kernels["padded"]]
    assert inspection.differing([one.config for one in both]) == {"pad_a": ["0", "8"], "pad_b": ["0", "8"]}
    said = inspection.remarks(both)
    assert any(line.startswith("[1] ") and "shared loads are conflicts" in line for line in said)
    assert not any(line.startswith("[2] ") and "shared loads are conflicts" in line for line in said)
    assert "no conflicts of shared loads" in said[-1]


def test_sums_in_global_memory_cross_it_at_every_slice(kernels: dict[str, Inspection], total: Total) -> None:
    slices = kernels["parked"].problem.k // 32
    assert total("padded", "output_crossings") == 1
    # Each slice stores them, and each but the first loads them.
    assert total("parked", "output_crossings") == 2 * slices - 1
    for key in ("global_load_sectors", "global_store_sectors", "instructions"):
        assert total("parked", key) > total("padded", key)
    assert total("parked", "global_store_sectors") == slices * total("padded", "global_store_sectors")
    said = inspection.remarks([kernels["padded"], kernels["parked"]])
    assert any(line.startswith("[2] each byte of D crosses global memory") for line in said)


def test_fragments_that_are_fed_from_global_memory_load_more_of_it(
    kernels: dict[str, Inspection], total: Total
) -> None:
    assert total("fed", "global_load_sectors") > total("padded", "global_load_sectors")
    assert total("fed", "shared_load_wavefronts") == total("fed", "shared_store_wavefronts") == 0
    assert total("fed", "block_barriers") == 0 < total("padded", "block_barriers")
    assert "x sectors loaded" in inspection.remarks([kernels["padded"], kernels["fed"]])[-1]


def test_the_command_line(
    kernels: dict[str, Inspection], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {config.name(one.config): one for one in kernels.values()}
    monkeypatch.setattr(inspection, "examine", lambda kernel, arch, size, batch: known[config.name(kernel)])
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run(["inspect", TEXTS["plain"], TEXTS["padded"], "--arch", "sm_80"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"[1] {config.name(kernels['plain'].config)}"
    assert "differ in pad_a 0 | 8; pad_b 0 | 8" in lines
    # Both main loops, as `compile` prints them.
    assert sum(line.startswith("  main loop  ") for line in lines) == 2
    assert "What stands out:" in lines
    assert all(len(line) <= 80 for line in lines if "wmma_gemm" not in line)
