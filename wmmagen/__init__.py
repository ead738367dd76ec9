"""wmmagen generates, proves, times and hands over tensor-core GEMM kernels."""

__version__ = "0.1.0"
