"""The measuring protocol and its statistics. Knows launches and clocks, no GEMM."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TimingProtocol:
    """How a kernel is timed."""


@dataclass(frozen=True)
class Timing:
    """What was measured."""
