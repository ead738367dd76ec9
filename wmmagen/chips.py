"""Peaks of GPUs by the name that the driver gives them. What no document of NVIDIA says is None.

Rates are dense, in 10^12 operations per second (a multiply-add is two), at the boost clock beside them. f16 matrix
products that accumulate in f32 run at half the rate of those that accumulate in f16 on GeForce cards, and at the same
rate on the others. Where a document gives only the rate with sparsity, half of it stands here. Bandwidths are of DRAM;
NVIDIA publishes none of the L2 of any of these chips.

Sources, by title (all NVIDIA):

- T4, RTX 2080 Ti: "Turing GPU Architecture" white paper, tables of TU104 and TU102 (Founders Edition's clock).
- RTX 3090: "Ampere GA102 GPU Architecture" white paper, table of GA102. A10: "A10 Tensor Core GPU" data sheet and
  product brief.
- RTX 4090: "Ada GPU Architecture" white paper, table of AD102. L4, L40S: their data sheets; of the two dense rates that
  follow from the L40S's (362.05, and half of 733) the higher one.
- A100: "A100 Tensor Core GPU" data sheet and "A100 Tensor Core GPU Architecture" white paper.
- H100: "H100 Tensor Core GPU Architecture" white paper. H200: "H200 Tensor Core GPU" data sheet; the same chip as the
  H100 SXM5, with other memory.
- B200: "Blackwell Architecture Technical Brief"; no clock is published.
- RTX 5090: "RTX Blackwell GPU Architecture" white paper, table of GB202.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Where the clock is not known, at the time or in a document: cards boost further than it says, GeForce by up to 25 %.
UNKNOWN_CLOCK_FACTOR = 1.3


@dataclass(frozen=True)
class Chip:
    """One GPU.

    Attributes:
        name: without the maker and the line of products.
        f16_tflops: 10^12 operations per second of f16 matrix products, by the type that accumulates.
        dram_gb_per_s: 10^9 bytes per second.
        boost_mhz: the clock at which ``f16_tflops`` holds; None where it is not published.
        l2_gb_per_s: 10^9 bytes per second; None where it is not published.
    """

    name: str
    f16_tflops: Mapping[str, float]
    dram_gb_per_s: float
    boost_mhz: int | None
    l2_gb_per_s: float | None = None

    def f16_per_s(self, accumulator: str, clock_mhz: float | None) -> float | None:
        """Operations per second of f16 matrix products at a clock, and never fewer than at the published boost.

        Args:
            accumulator: the name of the accumulator's type.
            clock_mhz: the highest clock that was seen; None where none was.

        Returns:
            None where ``accumulator`` has no published rate.
        """
        rate = self.f16_tflops.get(accumulator)
        if rate is None:
            return None
        if clock_mhz is None or self.boost_mhz is None:
            return rate * 1e12 * UNKNOWN_CLOCK_FACTOR
        return rate * 1e12 * max(1.0, clock_mhz / self.boost_mhz)


def _equal(rate: float) -> dict[str, float]:
    return {"f16": rate, "f32": rate}


def _geforce(f16: float, f32: float) -> dict[str, float]:
    return {"f16": f16, "f32": f32}


_T4 = Chip("T4", _equal(65.1), 320.0, 1590)
_RTX_2080_TI = Chip("RTX 2080 Ti", _geforce(113.8, 56.9), 616.0, 1635)
_RTX_3090 = Chip("RTX 3090", _geforce(142.0, 71.0), 936.0, 1695)
_A10 = Chip("A10", _equal(125.0), 600.0, 1695)
_A100_40 = Chip("A100 40 GB", _equal(312.0), 1555.0, 1410)
_A100_80_PCIE = Chip("A100 80 GB PCIe", _equal(312.0), 1935.0, 1410)
_A100_80_SXM = Chip("A100 80 GB SXM", _equal(312.0), 2039.0, 1410)
_RTX_4090 = Chip("RTX 4090", _geforce(330.3, 165.2), 1008.0, 2520)
_L4 = Chip("L4", _equal(121.0), 300.0, 2040)
_L40S = Chip("L40S", _equal(366.5), 864.0, 2520)
_H100_PCIE = Chip("H100 PCIe", _equal(756.4), 2039.0, 1620)
_H100_SXM = Chip("H100 SXM", _equal(989.4), 3352.0, 1830)
_H200 = Chip("H200", _equal(989.4), 4800.0, 1830)
_B200 = Chip("B200", _equal(2250.0), 8000.0, None)
_RTX_5090 = Chip("RTX 5090", _geforce(419.0, 209.5), 1792.0, 2407)

#: By the driver's name. Whole names only: a 4090 D, an A10G or a laptop's chip is another chip.
CHIPS: Mapping[str, Chip] = {
    "Tesla T4": _T4,
    "NVIDIA T4": _T4,
    "NVIDIA GeForce RTX 2080 Ti": _RTX_2080_TI,
    "GeForce RTX 2080 Ti": _RTX_2080_TI,
    "NVIDIA GeForce RTX 3090": _RTX_3090,
    "GeForce RTX 3090": _RTX_3090,
    "NVIDIA A10": _A10,
    "NVIDIA A100-SXM4-40GB": _A100_40,
    "NVIDIA A100-PCIE-40GB": _A100_40,
    "A100-SXM4-40GB": _A100_40,
    "A100-PCIE-40GB": _A100_40,
    "NVIDIA A100-SXM4-80GB": _A100_80_SXM,
    "NVIDIA A100 80GB PCIe": _A100_80_PCIE,
    "NVIDIA GeForce RTX 4090": _RTX_4090,
    "NVIDIA L4": _L4,
    "NVIDIA L40S": _L40S,
    "NVIDIA H100 PCIe": _H100_PCIE,
    "NVIDIA H100 80GB HBM3": _H100_SXM,
    "NVIDIA H200": _H200,
    "NVIDIA B200": _B200,
    "NVIDIA GeForce RTX 5090": _RTX_5090,
}


def find(device: str) -> Chip | None:
    """The chip of a device, None where it is not in the table.

    Args:
        device: as the driver names it, or as a backend does, with the architecture in parentheses behind it.
    """
    return CHIPS.get(device.partition(" (sm_")[0])
