"""The table of who may import whom, enforced; a broken row prints the offending arrow."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "wmmagen"

#: For each room, what it may import of this package (besides itself), and which third parties (besides numpy).
TABLE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "errors": ((), ()),
    "dtypes": ((), ()),
    "arch": (("errors",), ()),
    "expr": ((), ()),
    "instructions": (("dtypes", "arch"), ()),
    "formula": (("errors",), ()),
    "epilogue": (("formula", "errors"), ()),
    "config": (("epilogue", "dtypes", "errors"), ()),
    "batched": (("reference", "verdict", "layout", "pieces", "config", "epilogue", "dtypes", "errors"), ()),
    "derive": (("expr", "config", "epilogue", "arch", "instructions", "dtypes"), ()),
    "rules": (("expr", "derive", "config", "epilogue", "arch", "instructions", "dtypes", "errors"), ()),
    "coverage": (("config", "errors"), ()),
    "mend": (("space", "rules", "coverage", "derive", "config", "arch"), ()),
    "defaults": (
        (
            "mend", "space", "rules", "coverage", "derive", "config", "epilogue", "arch", "instructions", "dtypes",
            "errors",
        ),
        (),
    ),
    "selftest": (("rules", "derive", "config", "epilogue"), ()),
    "render": (
        (
            "selftest", "rules", "derive", "coverage", "config", "epilogue", "formula", "rounding", "arch",
            "instructions", "dtypes", "expr",
        ),
        ("jinja2",),
    ),
    "schemas": (("errors",), ()),
    "documents": (("schemas", "rules", "config", "epilogue", "formula", "dtypes"), ()),
    "nvrtc": (("arch", "errors"), ("cuda",)),
    "cache": (("nvrtc", "arch"), ()),
    "foundry": (("cache", "nvrtc", "supervisor", "arch", "errors"), ()),
    "sass": (("nvrtc", "errors"), ()),
    "lint": (("sass", "instructions", "nvrtc", "derive", "config", "errors"), ()),
    "doctor": (("cache", "nvrtc", "sass", "arch", "errors", "backends.gpu"), ()),
    "pieces": ((), ()),
    "layout": (("pieces", "config", "epilogue", "dtypes", "errors"), ()),
    "rounding": (("dtypes", "layout"), ()),
    "reference": (("layout", "pieces", "rounding", "config", "epilogue", "formula", "dtypes", "errors"), ()),
    "freivalds": (("reference", "layout", "config"), ()),
    "verdict": (("freivalds", "reference", "layout", "config", "epilogue", "dtypes"), ()),
    "timing": (("errors",), ()),
    "chips": (("errors",), ()),
    "backends": (("arch", "nvrtc", "timing"), ()),
    "supervisor": (("errors",), ()),
    "backends.worker": (("backends", "backends.card", "supervisor", "pieces", "errors", "timing"), ()),
    "backends.product": (("backends", "timing"), ()),
    "backends.library": (
        (
            "backends", "backends.product", "backends.card", "backends.cublas", "backends.worker", "errors", "timing",
        ),
        (),
    ),
    "backends.cublas": (("backends", "backends.product", "backends.card", "dtypes", "errors"), ("cuda", "nvmath")),
    "backends.card": (("backends", "backends.sensor", "errors", "timing"), ("cuda",)),
    "backends.sensor": (("timing",), ("cuda",)),
    "backends.gpu": (
        (
            "backends", "supervisor", "backends.library", "backends.worker", "backends.card", "foundry", "nvrtc",
            "arch", "errors",
            "timing",
        ),
        ("cuda",),
    ),
    "backends.cpu": (("backends", "executor", "nvrtc", "timing", "arch", "errors"), ()),
    "backends.pick": (
        ("backends", "backends.product", "backends.cpu", "backends.gpu", "chips", "records", "arch", "errors"),
        (),
    ),
    "executor.numbers": ((), ()),
    "executor.ptx": (("errors",), ()),
    "executor.control": (("executor.ptx", "errors"), ()),
    "executor.findings": ((), ()),
    "executor.counts": ((), ()),
    "executor.handed": (("arch",), ()),
    "executor.clocks": (("arch", "errors"), ()),
    "executor.strong": (("executor.clocks", "arch"), ()),
    "executor.memory": (("executor.clocks", "executor.handed", "executor.strong", "arch"), ()),
    "executor.alu": (("executor.numbers", "executor.ptx"), ()),
    "executor.matrix": (("executor.numbers", "executor.alu", "instructions", "dtypes", "arch"), ()),
    "executor.objects": (("executor.handed", "executor.ptx"), ()),
    "executor.machine": (
        (
            "executor.counts", "executor.findings", "executor.handed", "executor.matrix",
            "executor.memory", "executor.objects", "executor.ptx", "executor.strong",
        ),
        (),
    ),
    "executor.operands": (("executor.numbers", "executor.ptx", "errors"), ()),
    "executor.steps": (
        (
            "executor.alu", "executor.machine", "executor.memory", "executor.numbers", "executor.ptx",
            "executor.strong",
        ),
        (),
    ),
    "executor.fences": (
        (
            "executor.alu", "executor.machine", "executor.operands", "executor.ptx", "executor.steps",
            "executor.strong",
        ),
        (),
    ),
    "executor.fragments": (
        (
            "executor.counts", "executor.machine", "executor.matrix", "executor.memory", "executor.numbers",
            "executor.ptx", "executor.steps",
        ),
        (),
    ),
    "executor.atomics": (
        (
            "executor.alu", "executor.fences", "executor.machine", "executor.memory", "executor.numbers",
            "executor.operands", "executor.ptx", "executor.steps", "executor.strong",
        ),
        (),
    ),
    "executor.warp": (
        (
            "executor.alu", "executor.machine", "executor.memory", "executor.numbers", "executor.operands",
            "executor.ptx", "executor.steps",
        ),
        (),
    ),
    "executor.barriers": (
        (
            "executor.alu", "executor.counts", "executor.handed", "executor.machine", "executor.memory",
            "executor.objects", "executor.operands", "executor.ptx", "executor.steps",
        ),
        (),
    ),
    "executor.mma": (
        (
            "executor.alu", "executor.fragments", "executor.machine", "executor.matrix", "executor.memory",
            "executor.operands", "executor.ptx", "executor.steps",
        ),
        (),
    ),
    "executor.program": (
        (
            "executor.alu", "executor.atomics", "executor.barriers", "executor.control", "executor.fences",
            "executor.fragments", "executor.machine", "executor.matrix", "executor.memory", "executor.mma",
            "executor.numbers", "executor.operands", "executor.ptx", "executor.steps", "executor.strong",
            "executor.warp", "errors",
        ),
        (),
    ),
    "executor.scheduler": (
        (
            "executor.control", "executor.machine", "executor.memory", "executor.program", "executor.ptx", "errors",
        ),
        (),
    ),
    "executor": (
        (
            "executor.clocks", "executor.counts", "executor.findings", "executor.machine", "executor.memory",
            "executor.program", "executor.ptx", "executor.scheduler", "errors",
        ),
        (),
    ),
    "records": (("timing",), ()),
    "work": (("executor.counts", "derive", "config", "epilogue", "arch"), ()),
    "estimate": (("work", "executor.counts", "chips", "records", "derive", "config", "arch", "errors"), ()),
    "trial": (
        (
            "rules", "coverage", "derive", "render", "nvrtc", "foundry", "layout", "reference", "freivalds", "verdict",
            "batched", "backends", "chips", "estimate",
            "records", "timing", "pieces", "config", "arch", "errors",
        ),
        (),
    ),
    "mistakes": (("errors",), ()),
    "mutants": (
        (
            "mistakes", "trial", "render", "rules", "defaults", "config", "foundry", "nvrtc", "backends",
            "backends.cpu", "arch", "errors",
        ),
        (),
    ),
    "denominators": (
        (
            "trial", "batched", "elementwise", "layout", "reference", "backends", "backends.product", "timing",
            "config", "dtypes", "epilogue", "errors",
        ),
        (),
    ),
    "elementwise": (("trial", "render", "layout", "backends", "config"), ()),
    "precise": (("layout",), ()),
    "accuracy": (
        (
            "precise", "trial", "denominators", "defaults", "rules", "coverage", "derive", "reference", "layout",
            "backends.pick", "backends.product", "foundry", "instructions", "config",
            "epilogue", "dtypes", "arch", "errors",
        ),
        (),
    ),
    "padding": (("trial", "coverage", "derive", "layout", "backends", "nvrtc", "timing", "config"), ()),
    "cells": ((), ()),
    "prune": (("cells", "rules"), ()),
    "space": (("prune", "cells", "coverage", "derive", "config", "arch", "instructions", "errors"), ()),
    "seeds": (("space", "config", "dtypes"), ()),
    "tune": (("space", "seeds", "records", "choose", "config", "arch", "errors"), ("optuna", "sqlalchemy")),
    "choose": (("records", "timing", "derive", "config", "arch"), ()),
    "manifest": (("render", "nvrtc", "records", "config", "errors"), ()),
    "emit": (("manifest", "render", "coverage", "config", "arch", "errors"), ()),
    "job": (
        (
            "bench", "space", "tune", "choose", "trial", "emit", "manifest", "render", "nvrtc", "foundry", "records",
            "estimate", "backends.pick",
            "timing", "config", "arch", "errors",
        ),
        (),
    ),
    "profile": (("trial", "work", "derive", "executor", "backends.cpu", "nvrtc", "config"), ()),
    "inspection": (
        ("profile", "trial", "lint", "rules", "derive", "executor.counts", "config", "arch", "errors"),
        (),
    ),
    "loops": (("backends", "coverage", "layout", "render", "instructions", "dtypes", "timing", "arch"), ()),
    "ceilings": (("timing", "errors"), ()),
    "ceiling": (
        (
            "ceilings", "loops", "trial", "chips", "backends", "backends.pick", "foundry", "nvrtc", "instructions",
            "timing", "arch", "errors",
        ),
        (),
    ),
    "bench": (
        (
            "ceiling", "instructions", "padding", "render",
            "denominators", "trial", "rules", "config", "arch", "backends", "backends.pick", "backends.product",
            "foundry", "nvrtc", "records", "timing", "errors",
        ),
        (),
    ),
    "shapes": (("errors",), ()),
    "known": (
        ("job", "seeds", "space", "rules", "coverage", "estimate", "chips", "config", "arch", "errors"),
        (),
    ),
    "series": (
        (
            "bench", "known", "shapes", "instructions", "rules", "coverage", "denominators", "chips", "backends.pick",
            "records", "timing", "config", "arch", "errors",
        ),
        (),
    ),
    "ladder": (
        (
            "bench", "denominators", "trial", "estimate", "ceilings", "defaults", "rules", "coverage", "foundry",
            "chips", "backends.pick", "records", "timing", "config", "arch", "errors",
        ),
        (),
    ),
    "picture": (("ladder", "records"), ()),
    "show": (
        (
            "ladder", "series", "accuracy",
            "job", "bench", "denominators", "inspection", "ceilings", "tune", "trial", "estimate", "mutants", "lint",
            "choose",
            "records", "rules", "mend", "space", "doctor", "timing", "config",
        ),
        ("rich",),
    ),
    "cli": (
        (
            "ceiling", "ceilings", "inspection", "estimate", "chips", "profile", "series", "ladder", "picture", "known",
            "accuracy",
            "job", "bench", "show", "emit", "mutants", "trial", "reference", "lint", "documents", "schemas", "doctor",
            "rules", "mend", "space", "coverage", "defaults", "nvrtc", "foundry", "timing", "backends.pick", "config",
            "arch", "errors",
        ),
        ("typer",),
    ),
    "__main__": (("cli",), ()),
}  # fmt: skip


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__") or "wmmagen"


ROOMS = {room_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def imported_modules(path: Path) -> frozenset[str]:
    """Absolute names of everything that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def target(name: str) -> tuple[str, str]:
    """What a name means: a room of this package, or a third party."""
    parts = name.split(".")
    if parts[0] != "wmmagen":
        return "third", parts[0]
    for end in range(len(parts), 1, -1):
        room = ".".join(parts[1:end])
        if room in ROOMS:
            return "room", room
    return "room", "wmmagen"


def test_every_room_is_in_the_table() -> None:
    assert set(ROOMS) - {"wmmagen"} == set(TABLE)


@pytest.mark.parametrize("room", sorted(TABLE))
def test_a_room_imports_what_it_may(room: str) -> None:
    import sys

    rooms, third_parties = TABLE[room]
    for name in sorted(imported_modules(ROOMS[room])):
        kind, what = target(name)
        if kind == "third":
            allowed = what in third_parties or what in ("numpy", "__future__") or what in sys.stdlib_module_names
        else:
            allowed = what in rooms or what in (room, "wmmagen")
        assert allowed, f"forbidden arrow: {room} -> {what} (imports {name})"


@pytest.mark.parametrize("room", sorted(TABLE))
def test_an_arrow_that_nobody_uses_is_not_in_the_table(room: str) -> None:
    used = {what for kind, what in map(target, imported_modules(ROOMS[room])) if kind == "room"}
    assert set(TABLE[room][0]) - used == set()


def test_the_arrows_run_downward() -> None:
    """No circles: the allowed arrows themselves form no loop, so neither do the real ones."""
    order: list[str] = []

    def visit(room: str, path: tuple[str, ...]) -> None:
        assert room not in path, f"circle: {' -> '.join((*path, room))}"
        if room not in order:
            for below in TABLE[room][0]:
                visit(below, (*path, room))
            order.append(room)

    for room in TABLE:
        visit(room, ())


@pytest.mark.parametrize(
    ("party", "rooms"),
    [("jinja2", ["render"]), ("optuna", ["tune"]), ("typer", ["cli"]), ("nvmath", ["backends.cublas"])],
)
def test_a_third_party_has_one_door(party: str, rooms: list[str]) -> None:
    found = [room for room, path in ROOMS.items() if any(target(n) == ("third", party) for n in imported_modules(path))]
    assert found == rooms


def test_the_driver_has_its_doors_among_the_backends() -> None:
    """The CUDA driver is reached from the GPU backend alone; NVRTC and nvJitLink need none."""

    def doors(*modules: str) -> list[str]:
        return [room for room, path in ROOMS.items() if any(n.startswith(modules) for n in imported_modules(path))]

    assert doors("cuda.core", "cuda.bindings.driver") == ["backends.card", "backends.cublas", "backends.gpu"]
    assert doors("cuda.bindings.nvml") == ["backends.card", "backends.sensor"]
