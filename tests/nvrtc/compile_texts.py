"""Compiles texts with an NVRTC that is given, in a process that has loaded no other: JSON from stdin to stdout.

    {"library": "…/libnvrtc.so.12", "options": ["-I…"], "texts": [["sm_70", "the source"], …]}

The answer is ``{"version": [12, 9], "results": [[cubin bytes or 0, log], …]}``.
"""

from __future__ import annotations

import ctypes
import json
import sys

NVRTC_SUCCESS = 0


def version(lib: ctypes.CDLL) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def log_of(lib: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, text)
    return text.value.decode()


def compile_text(lib: ctypes.CDLL, text: str, options: list[str]) -> tuple[int, str]:
    """Size of the machine code, 0 where the text was refused, and what NVRTC said."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    if lib.nvrtcCompileProgram(program, len(options), given) == NVRTC_SUCCESS:
        lib.nvrtcGetCUBINSize(program, ctypes.byref(size))
    log = log_of(lib, program)
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    return size.value, log


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    nvrtc = ctypes.CDLL(asked["library"])
    results = [
        compile_text(nvrtc, text, [f"--gpu-architecture={arch}", "--std=c++17", *asked["options"]])
        for arch, text in asked["texts"]
    ]
    json.dump({"version": version(nvrtc), "results": results}, sys.stdout)
