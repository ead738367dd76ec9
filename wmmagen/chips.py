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

Rates of tf32, f64 and 8-bit integers are those of the same documents, again without sparsity; of the B200 half and
twice its f16 rate. Each is a power of two for each multiprocessor and clock, which a test demands. The f64 rates of the
H100 and H200 are published at a higher clock than their others, 66.9 at 1,980 MHz and the PCIe card's 51.2 at 1,755,
and stand here at the clock beside them. bf16 products run as f16 ones that accumulate in f32. Turing has neither tf32
nor f64, and GeForce chips and those of their kind have no f64 in their tensor cores.

Multiprocessors and sizes of the L2 are those of the same documents; beside them:

- H200: 132 multiprocessors and 60 MiB of L2, as its driver says (``sweeps/records/ceiling_sm_90_NVIDIA_H200.txt``).
  The full chip has as much, the H100 50 MB of it ("Nvidia's H100: Funny L2, and Tons of Bandwidth", Chips and Cheese).
- B200: 148 multiprocessors and 126 MB of L2 ("Nvidia's B200: Keeping the CUDA Juggernaut Rolling", Chips and Cheese,
  and a summary of it, "Why Nvidia's Blackwell B200 Could Redefine AI GPU Performance"); no document of NVIDIA was at
  hand.

Four columns serve the estimate alone, and no document of NVIDIA has them. What nobody measured is an assumption:

- ``l2_bytes_per_clock``: H200, 8,415 GB/s at 1,980 MHz (the record above). A100, 5,400 GB/s at 1,410 MHz, where its
  white paper has room for 5,120 bytes per clock; L40, 5,200 GB/s at 2,490 MHz with 142 multiprocessors ("gpu-benches",
  te42kyfo, files of gpu-l2-cache). T4, 1,270 GB/s at 1,590 MHz ("Dissecting the NVIDIA Turing T4 GPU via
  Microbenchmarking", Z. Jia and others, 2019). Assumed: H100 and B200 are like the H200 (of an H100 PCIe "gpu-benches"
  has 6,900 GB/s, 34 at its highest clock), RTX 4090, L4 and L40S like the L40, all others like the T4.
- ``sustained_mhz``: H200, the clock at which all variants of ``sweeps/records`` ran; the best kernels at 4096 ran at
  1,575 to 1,740 MHz, held by its 700 W. Assumed of the H100 SXM, which has the same limit. T4: its 70 W hold it far
  below the boost. cuBLAS's 0.567 ms for 2048^3 are 30 TFLOP/s, what perfect work does at 740 MHz, and 24 TFLOP/s for
  4096^3 ("About GPU peak performance", NVIDIA Developer Forums) are 590; 850 MHz is assumed of what is no library.
  A100 SXM: the boost, which it holds ("Nvidia's H100: Funny L2, and Tons of Bandwidth"; an H100 PCIe was seen at
  1,395 MHz there). All others: the boost is assumed, which a card of 72 W like the L4 will not hold.
- ``wmma_share``: of the tensor rate that WMMA reaches. H200: a loop of nothing else reached 648 TFLOP/s at 1,965 MHz,
  0.61 of the rate, which only wgmma reaches (the record above; 0.60 to 0.61 with every shape and accumulator).
  Assumed: the H100, the same chip, and the B200 are like it, and all others reach the rate, because their libraries are
  made of the same instructions. Other operands are taken to reach the same share, but f64 all of its rate, because
  wgmma has none.
- ``dram_read_gb_per_s``: H200, the record above. Assumed of all others: what is published.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

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
        tflops: the same of products of other operands, by their type: tf32, f64 and s8, which is also that of u8.
        dram_gb_per_s: 10^9 bytes per second.
        boost_mhz: the clock at which these rates hold; None where it is not published.
        l2_gb_per_s: 10^9 bytes per second; None where it is not published.
        multiprocessors: that are enabled.
        l2_mb: 2^20 bytes of L2.
        sm: its compute capability, as in ``sm_75``.
        l2_bytes_per_clock: that the L2 gives each multiprocessor when all ask.
        sustained_mhz: the clock that it holds under load; None for the boost.
        wmma_share: of its tensor rate that WMMA reaches.
        dram_read_gb_per_s: 10^9 bytes per second that were measured; None for ``dram_gb_per_s``.
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
    dram_read_gb_per_s: float | None = None
    tflops: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """How the command line calls it: ``t4``, ``2080ti``, ``a100``."""
        return self.name.removeprefix("RTX ").replace(" ", "").lower()

    @property
    def dram_read(self) -> float:
        """10^9 bytes per second that an estimate counts with."""
        return self.dram_gb_per_s if self.dram_read_gb_per_s is None else self.dram_read_gb_per_s

    @property
    def clock_mhz(self) -> float:
        """The clock that an estimate counts with."""
        if self.sustained_mhz is not None:
            return self.sustained_mhz
        if self.boost_mhz is not None:
            return self.boost_mhz
        return self.f16_tflops["f16"] * 1e6 / (self.multiprocessors * _B200_PER_CLOCK)

    def rate(self, operand: str, accumulator: str) -> float | None:
        """10^12 operations per second of matrix products, by the names of their types; None where none is published."""
        if operand in ("f16", "bf16"):
            return self.f16_tflops.get(accumulator)
        return self.tflops.get("s8" if operand == "u8" else operand)

    def share(self, operand: str) -> float:
        """Of the rate of an operand's products that WMMA reaches."""
        return 1.0 if operand == "f64" else self.wmma_share

    def per_clock(self, operand: str, accumulator: str) -> float | None:
        """Operations of matrix products that one multiprocessor does per clock; None without a published rate."""
        rate = self.rate(operand, accumulator)
        if rate is None:
            return None
        if self.boost_mhz is None:
            return rate / self.f16_tflops["f16"] * _B200_PER_CLOCK
        return rate * 1e6 / (self.multiprocessors * self.boost_mhz)

    def per_s(self, operand: str, accumulator: str, clock_mhz: float | None) -> float | None:
        """Operations per second of matrix products at a clock, and never fewer than at the published boost.

        Args:
            operand, accumulator: the names of their types.
            clock_mhz: the highest clock that was seen; None where none was.

        Returns:
            None where these types have no published rate.
        """
        rate = self.rate(operand, accumulator)
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
_HOPPER = 0.61
#: Bytes of the L2 for each multiprocessor and clock, where it was measured, and on chips that are taken to be alike.
_A100_L2, _ADA_L2, _HOPPER_L2 = 35.5, 14.7, 32.2

#: Of products of other operands than f16 and bf16, of chips that are sold in several forms.
_A100_RATES = {"tf32": 156.0, "f64": 19.5, "s8": 624.0}
_H100_RATES = {"tf32": 494.7, "f64": 61.8, "s8": 1978.9}

_T4 = Chip("T4", _equal(65.1), 320.0, 1590, None, 40, 4, 75, sustained_mhz=850, tflops={"s8": 130.0})
_RTX_2080_TI = Chip("RTX 2080 Ti", _geforce(113.8, 56.9), 616.0, 1635, None, 68, 5.5, 75, tflops={"s8": 227.7})
_RTX_3090 = Chip("RTX 3090", _geforce(142.0, 71.0), 936.0, 1695, None, 82, 6, 86, tflops={"tf32": 35.6, "s8": 284.0})
_A10 = Chip("A10", _equal(125.0), 600.0, 1695, None, 72, 6, 86, tflops={"tf32": 62.5, "s8": 250.0})
_A100_40 = Chip("A100 40 GB", _equal(312.0), 1555.0, 1410, None, 108, 40, 80, _A100_L2, tflops=_A100_RATES)
_A100_80_PCIE = Chip("A100 80 GB PCIe", _equal(312.0), 1935.0, 1410, None, 108, 40, 80, _A100_L2, tflops=_A100_RATES)
_A100_80_SXM = Chip("A100 80 GB SXM", _equal(312.0), 2039.0, 1410, None, 108, 40, 80, _A100_L2, tflops=_A100_RATES)
_RTX_4090 = Chip(
    "RTX 4090", _geforce(330.3, 165.2), 1008.0, 2520, None, 128, 72, 89, _ADA_L2, tflops={"tf32": 82.6, "s8": 660.6}
)
_L4 = Chip("L4", _equal(121.0), 300.0, 2040, None, 58, 48, 89, _ADA_L2, tflops={"tf32": 60.0, "s8": 242.0})
_L40S = Chip("L40S", _equal(366.5), 864.0, 2520, None, 142, 96, 89, _ADA_L2, tflops={"tf32": 183.0, "s8": 733.0})
_H100_PCIE = Chip(
    "H100 PCIe",
    _equal(756.4),
    2039.0,
    1620,
    None,
    114,
    50,
    90,
    _HOPPER_L2,
    wmma_share=_HOPPER,
    tflops={"tf32": 378.2, "f64": 47.3, "s8": 1513.0},
)
_H100_SXM = Chip(
    "H100 SXM", _equal(989.4), 3352.0, 1830, None, 132, 50, 90, _HOPPER_L2, 1980, _HOPPER, tflops=_H100_RATES
)
_H200 = Chip(
    "H200", _equal(989.4), 4800.0, 1830, None, 132, 60, 90, _HOPPER_L2, 1980, _HOPPER, 4449.0, tflops=_H100_RATES
)
_B200 = Chip(
    "B200",
    _equal(2250.0),
    8000.0,
    None,
    None,
    148,
    126,
    100,
    _HOPPER_L2,
    wmma_share=_HOPPER,
    tflops={"tf32": 1125.0, "s8": 4500.0},
)
_RTX_5090 = Chip(
    "RTX 5090", _geforce(419.0, 209.5), 1792.0, 2407, None, 170, 96, 120, tflops={"tf32": 104.8, "s8": 838.0}
)

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


def stand_in(sm: int) -> Chip | None:
    """The chip of another architecture that :func:`usual` takes; None where the table has one of this architecture."""
    chip = usual(sm)
    return None if chip.sm == sm else chip


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
