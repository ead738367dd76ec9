"""What ``--json`` prints, published: files of JSON Schema (draft 2020-12), one for each command, and ``error``.

A schema demands what is promised, describes every field that is printed, and lets a reader meet fields that a later
version adds. Each file is whole: it refers to no other one.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from wmmagen.errors import RequestError

_FOLDER = Path(__file__).parent


@cache
def names() -> tuple[str, ...]:
    """The commands whose documents are described, and ``error``, in the order of the alphabet."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def read(name: str) -> dict[str, Any]:
    """The schema of the document that the command ``name`` prints, or of ``error``.

    Raises:
        RequestError: there is none of that name.
    """
    if name not in names():
        raise RequestError(f"there is no schema of {name!r}", f"one of: {' '.join(names())}")
    schema: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return schema
