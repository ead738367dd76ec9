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

Multiprocessors and sizes of the L2 are those of the same documents. Three columns serve the estimate alone, and no
document of NVIDIA has them:

- ``l2_bytes_per_clock``: T4, "Dissecting the NVIDIA Turing T4 GPU via Microbenchmarking" (Z. Jia and others, 2019):
  1,270 GB/s at 1,590 MHz. H200: the fastest variants of ``sweeps/records`` that move little else took 8.2 TB/s at
  1,980 MHz, which asks for 32; H100 and B200 are taken to be like it. A100: its white paper gives 5,120 bytes per clock
  for the chip, 47 for a multiprocessor; two thirds of that is taken, 32 again. Where nobody measured, it is
  :data:`L2_BYTES_PER_CLOCK`, the T4's.
- ``sustained_mhz``: H200, the clock at which all variants of ``sweeps/records`` ran; H100 SXM has the same limit. T4:
  its 70 W hold it far below the boost. cuBLAS's 0.567 ms for 2048^3 are 30 TFLOP/s, what perfect work does at 740 MHz;
  at seven eighths of it, 850 MHz. All others: the boost.
- ``wmma_share``: of the tensor rate that WMMA reaches. H200: a loop of nothing else reached 566 TFLOP/s with f32
  accumulators, at 1,980 MHz 0.53 of the rate, which only wgmma reaches. H100 is the same chip; B200 is taken to be like
  it. All others: 1, because their libraries are made of the same instructions.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from wmmagen.errors import ConfigError

#: Where the clock is not known, at the time or in a document: cards boost further than it says, GeForce by up to 25 %.
UNKNOWN_CLOCK_FACTOR = 1.3
#: Bytes that the L2 gives each multiprocessor per clock, where nobody has measured it.
L2_BYTES_PER_CLOCK = 20.0
#: Operations of f16 products that a multiprocessor of the B200 does per clock; its rate at this is the missing clock.
_B200_PER_CLOCK = 8192


@dataclass(frozen=True)
class Chip:
    """One GPU.

    Attributes:
        name: without the maker and the line of products.
        f16_tflops: 10^12 operations per second of f16 matrix products, by the type that accumulates.
        dram_gb_per_s: 10^9 bytes per second.
        boost_mhz: the clock at which ``f16_tflops`` holds; None where it is not published.
        l2_gb_per_s: 10^9 bytes per second; None where it is not published.
        multiprocessors: that are enabled.
        l2_mb: 2^20 bytes of L2.
        sm: its compute capability, as in ``sm_75``.
        l2_bytes_per_clock: that the L2 gives each multiprocessor when all ask.
        sustained_mhz: the clock that it holds under load; None for the boost.
        wmma_share: of its tensor rate that WMMA reaches.
    """

    name: str
    f16_tflops: Mapping[str, float]
    dram_gb_per_s: float
    boost_mhz: int | None
    l2_gb_per_s: float | None = None
    multiprocessors: int = 0
    l2_mb: float = 0.0
    sm: int = 0
    l2_bytes_per_clock: float = L2_BYTES_PER_CLOCK
    sustained_mhz: int | None = None
    wmma_share: float = 1.0

    @property
    def key(self) -> str:
        """How the command line calls it: ``t4``, ``2080ti``, ``a100``."""
        return self.name.removeprefix("RTX ").replace(" ", "").lower()

    @property
    def clock_mhz(self) -> float:
        """The clock that an estimate counts with."""
        if self.sustained_mhz is not None:
            return self.sustained_mhz
        if self.boost_mhz is not None:
            return self.boost_mhz
        return self.f16_tflops["f16"] * 1e6 / (self.multiprocessors * _B200_PER_CLOCK)

    def f16_per_clock(self, accumulator: str) -> float | None:
        """Operations of f16 matrix products that one multiprocessor does per clock; None without a published rate."""
        rate = self.f16_tflops.get(accumulator)
        if rate is None:
            return None
        if self.boost_mhz is None:
            return rate / self.f16_tflops["f16"] * _B200_PER_CLOCK
        return rate * 1e6 / (self.multiprocessors * self.boost_mhz)

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


#: What WMMA reaches of the tensor rate of chips whose rate is that of wgmma.
_HOPPER = 0.53

_T4 = Chip("T4", _equal(65.1), 320.0, 1590, None, 40, 4, 75, sustained_mhz=850)
_RTX_2080_TI = Chip("RTX 2080 Ti", _geforce(113.8, 56.9), 616.0, 1635, None, 68, 5.5, 75)
_RTX_3090 = Chip("RTX 3090", _geforce(142.0, 71.0), 936.0, 1695, None, 82, 6, 86)
_A10 = Chip("A10", _equal(125.0), 600.0, 1695, None, 72, 6, 86)
_A100_40 = Chip("A100 40 GB", _equal(312.0), 1555.0, 1410, None, 108, 40, 80, 32.0)
_A100_80_PCIE = Chip("A100 80 GB PCIe", _equal(312.0), 1935.0, 1410, None, 108, 40, 80, 32.0)
_A100_80_SXM = Chip("A100 80 GB SXM", _equal(312.0), 2039.0, 1410, None, 108, 40, 80, 32.0)
_RTX_4090 = Chip("RTX 4090", _geforce(330.3, 165.2), 1008.0, 2520, None, 128, 72, 89)
_L4 = Chip("L4", _equal(121.0), 300.0, 2040, None, 58, 48, 89)
_L40S = Chip("L40S", _equal(366.5), 864.0, 2520, None, 142, 96, 89)
_H100_PCIE = Chip("H100 PCIe", _equal(756.4), 2039.0, 1620, None, 114, 50, 90, 32.0, wmma_share=_HOPPER)
_H100_SXM = Chip("H100 SXM", _equal(989.4), 3352.0, 1830, None, 132, 50, 90, 32.0, 1980, _HOPPER)
_H200 = Chip("H200", _equal(989.4), 4800.0, 1830, None, 132, 50, 90, 32.0, 1980, _HOPPER)
_B200 = Chip("B200", _equal(2250.0), 8000.0, None, None, 148, 126, 100, 32.0, wmma_share=_HOPPER)
_RTX_5090 = Chip("RTX 5090", _geforce(419.0, 209.5), 1792.0, 2407, None, 170, 96, 120)

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


#: By the names of the command line, with the short ones that people use for the usual variant.
BY_KEY: Mapping[str, Chip] = {
    **{chip.key: chip for chip in CHIPS.values()},
    "a100": _A100_80_SXM,
    "h100": _H100_SXM,
}
#: The chip that is meant where an architecture is named and none of its chips; by compute capability.
_USUAL: Mapping[int, Chip] = {
    75: _T4,
    80: _A100_80_SXM,
    86: _RTX_3090,
    89: _RTX_4090,
    90: _H200,
    100: _B200,
    120: _RTX_5090,
}


def usual(sm: int) -> Chip:
    """The chip of the table that stands for an architecture: its own, or that of the nearest one below."""
    return _USUAL[max((known for known in _USUAL if known <= sm), default=min(_USUAL))]


def named(text: str) -> Chip:
    """The chip that the command line calls ``text``.

    Raises:
        ConfigError: none is called so; names the nearest.
    """
    key = text.strip().lower().replace(" ", "").replace("-", "").removeprefix("nvidia").removeprefix("rtx")
    if key in BY_KEY:
        return BY_KEY[key]
    near = difflib.get_close_matches(key, BY_KEY, n=1, cutoff=0.0)
    raise ConfigError(f"--chip {text!r} is not known", f"did you mean {near[0]}? known: {' '.join(BY_KEY)}")


def find(device: str) -> Chip | None:
    """The chip of a device, None where it is not in the table.

    Args:
        device: as the driver names it, or as a backend does, with the architecture in parentheses behind it.
    """
    return CHIPS.get(device.partition(" (sm_")[0])
