"""The table of architectures: names that find a row, and how many blocks a multiprocessor holds."""

from __future__ import annotations

import pytest

from wmmagen.arch import ARCHS, UNSOURCED, Arch, find, occupancy
from wmmagen.errors import ConfigError


@pytest.mark.parametrize("text", ["sm_75", "75", "7.5", "compute_75", "SM_75", " sm_75\n"])
def test_every_spelling_finds_the_row(text: str) -> None:
    assert find(text) is ARCHS[75]


@pytest.mark.parametrize("sm", sorted(ARCHS))
def test_every_row_finds_itself(sm: int) -> None:
    row = ARCHS[sm]
    assert find(row.name) is row
    assert find(str(sm)) is row
    assert find(f"{sm // 10}.{sm % 10}") is row
    assert str(row) == row.name == f"sm_{sm}"


@pytest.mark.parametrize("sm", UNSOURCED)
@pytest.mark.parametrize("spelling", ["sm_{}", "{}", "compute_{}"])
def test_an_architecture_without_documented_limits_is_refused_with_that_reason(sm: int, spelling: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find(spelling.format(sm))
    assert caught.value.message == (
        f"sm_{sm} is listed by the compiler, but the guide's table of compute capabilities does not give its limits, "
        "and wmmagen does not guess them"
    )
    assert sm not in ARCHS


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "sm_",
        "sm_76",
        "sm_0",
        "0",
        "-75",
        "+75",
        "75a",
        "sm_90a",
        "sm-75",
        "turing",
        "7,5",
        "7_5",
        "0x4b",
        "75e0",
    ],
)
def test_an_unknown_architecture_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find(text)
    assert caught.value.message == f"--arch {text!r} is no architecture"
    assert "sm_75, sm_80" in caught.value.fix
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("text", ["\u0667\u0665", "\uff17\uff15", "sm_\u096d\u096b", "7\u00b2", "\u2466\u2464"])
def test_digits_of_other_scripts_are_no_architecture(text: str) -> None:
    with pytest.raises(ConfigError, match="is no architecture"):
        find(text)


@pytest.mark.parametrize("text", ["9" * 5, "7" * 5_000, "sm_" + "9" * 100_000])
def test_a_huge_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no architecture"):
        find(text)


def test_a_near_miss_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        find("sm_7x5")
    assert caught.value.fix.startswith("did you mean sm_75? ")


@pytest.mark.parametrize(
    ("block_kb", "sm_kb", "warps"),
    [(65, 64, 32), (64, 64, 31)],
    ids=["a block larger than its multiprocessor", "no room for 1024 threads"],
)
def test_a_wrong_row_cannot_be_made(block_kb: int, sm_kb: int, warps: int) -> None:
    with pytest.raises(ValueError, match=r"^sm_75: "):
        Arch(75, block_kb * 1024, sm_kb * 1024, 0, warps, 16, "wrong")


# (architecture, threads, registers, shared bytes, blocks). Every expected value was computed with the functions of
# the toolkit's cuda_occupancy.h, with the carveout at its largest.
OCCUPANCY = [
    # Registers: 128 per thread fill the file with 16 warps.
    (80, 128, 128, 0, 4),
    (80, 256, 128, 0, 2),
    (80, 512, 128, 0, 1),
    (80, 1024, 64, 0, 1),
    (80, 256, 255, 0, 1),
    (90, 256, 255, 0, 1),
    (90, 128, 255, 0, 2),
    (90, 128, 168, 0, 3),
    (90, 384, 168, 0, 1),
    # One register more than a whole unit of 8 costs the unit.
    (80, 128, 64, 0, 8),
    (80, 128, 65, 0, 7),
    # Registers that do not fit at all. The warps of a block count as whole rows of four: five warps of 255 registers
    # still fit as eight, and nine do not fit as twelve.
    (80, 1024, 65, 0, 0),
    (80, 512, 129, 0, 0),
    (90, 160, 255, 0, 1),
    (90, 288, 255, 0, 0),
    # Threads and blocks.
    (75, 1024, 32, 0, 1),
    (75, 128, 32, 0, 8),
    (75, 32, 16, 0, 16),
    (75, 256, 64, 0, 4),
    (75, 256, 96, 0, 2),
    (80, 1024, 32, 0, 2),
    (80, 32, 16, 0, 32),
    (86, 1024, 32, 0, 1),
    (86, 512, 32, 0, 3),
    (86, 32, 16, 0, 16),
    (89, 32, 16, 0, 24),
    (120, 128, 32, 0, 12),
    # Shared memory: sm_75 has 64 KB and no reserve, the others pay 1 KB per block.
    (75, 128, 32, 32_768, 2),
    (75, 128, 32, 32_769, 1),
    (75, 128, 32, 65_536, 1),
    (75, 128, 32, 65_537, 0),
    (80, 128, 32, 49_152, 3),
    (80, 128, 32, 80 * 1024, 2),
    (80, 128, 32, 81 * 1024, 2),
    (80, 128, 32, 81 * 1024 + 1, 1),
    (80, 128, 32, 163 * 1024, 1),
    (80, 128, 32, 163 * 1024 + 1, 0),
    (86, 128, 32, 49 * 1024, 2),
    (86, 128, 32, 49 * 1024 + 1, 1),
    (86, 128, 32, 99 * 1024, 1),
    (86, 128, 32, 99 * 1024 + 1, 0),
    (90, 128, 32, 227 * 1024, 1),
    (90, 128, 32, 227 * 1024 + 1, 0),
    (120, 128, 32, 99 * 1024, 1),
    (120, 128, 32, 99 * 1024 + 1, 0),
    # The kernel that uses no register and no shared memory.
    (75, 64, 0, 0, 16),
]

# The header divides the resident warps by the warps of a block as they are, and rounds these up to whole rows of
# schedulers only to ask whether one block fits. The rows tell both readings apart.
OCCUPANCY_OF_ODD_WARPS = [
    (75, 32, 33, 0, 16),
    (75, 64, 64, 0, 16),
    (80, 32, 24, 0, 32),
    (80, 32, 128, 0, 16),
    (80, 64, 128, 0, 8),
    (80, 96, 128, 0, 5),
    (86, 64, 64, 0, 16),
    (90, 64, 128, 0, 8),
    (90, 160, 96, 0, 4),
    (90, 320, 96, 0, 2),
    (90, 32, 24, 8192, 25),
    (120, 32, 32, 0, 24),
]


@pytest.mark.parametrize(("sm", "threads", "registers", "shared", "blocks"), OCCUPANCY)
def test_occupancy(sm: int, threads: int, registers: int, shared: int, blocks: int) -> None:
    assert occupancy(ARCHS[sm], threads, registers, shared) == blocks


@pytest.mark.parametrize(("sm", "threads", "registers", "shared", "blocks"), OCCUPANCY_OF_ODD_WARPS)
def test_occupancy_of_blocks_that_do_not_fill_every_scheduler(
    sm: int, threads: int, registers: int, shared: int, blocks: int
) -> None:
    assert occupancy(ARCHS[sm], threads, registers, shared) == blocks


@pytest.mark.parametrize("arch", ARCHS.values(), ids=str)
def test_limits_of_every_row(arch: Arch) -> None:
    assert occupancy(arch, 1024, 64, 0) == 1
    assert occupancy(arch, 1025, 32, 0) == 0
    assert occupancy(arch, 32, 256, 0) == 0
    assert occupancy(arch, 32, 32, arch.shared_block) == arch.shared_sm // (arch.shared_block + arch.shared_reserved)
    assert occupancy(arch, 32, 32, arch.shared_block + 1) == 0
