"""``manifest.json``: what each emitted kernel of a folder is, what made it, and why it was handed over.

No date and no path of the machine is in it, so the same request gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wmmagen import __version__, nvrtc, render
from wmmagen.config import name as name_of
from wmmagen.config import spell, values_of
from wmmagen.errors import MissingPiece, RequestError
from wmmagen.records import Record

FILE = "manifest.json"
_KERNELS = "kernels"
_NO_EVIDENCE = "Emitted from a configuration, without a study behind it: build the self-test and run it."


@dataclass(frozen=True)
class Evidence:
    """Why a kernel is handed over.

    Attributes:
        study: the study that it won.
        record: what became of it there.
    """

    study: str
    record: Record

    @property
    def words(self) -> str:
        """The record in a sentence."""
        r = self.record
        said = f"{r.runs} launches on {r.device}, all bit for bit right"
        if not r.guaranteed:
            said += ", some on inputs whose bound does not guarantee it"
        if r.ranks_by_estimate and r.estimate is not None:
            e = r.estimate
            said += (
                f"; no time was measured: at {r.problem} the estimate for {e.chip} is {e.us:.2f} us, the smallest "
                f"of study {self.study}"
            )
        elif r.timing is not None:
            said += f"; then timed at {r.problem}: {r.timing.median_us:.2f} us, the best of study {self.study}"
        return f"{said[0].upper()}{said[1:]}."


def entry(source: render.Source, hashes: Mapping[str, str], evidence: Evidence | None) -> dict[str, Any]:
    """What the manifest says of one kernel.

    Args:
        source: the emitted text.
        hashes: SHA-256 of each file by its name.
        evidence: None for a kernel that was emitted from a configuration.
    """
    return {
        "name": name_of(source.config),
        "architecture": source.arch.name,
        "configuration": {key: spell(value) for key, value in values_of(source.config).items()},
        "versions": {"wmmagen": __version__, "templates": render.templates_fingerprint(), "compiler": _compiler()},
        # What a record keeps of the text that was proved: that of the same kernel under its own name.
        "fingerprint": render.render(source.config, source.arch).fingerprint,
        "evidence": None if evidence is None else {"study": evidence.study, "record": evidence.record.to_json()},
        "evidence_words": _NO_EVIDENCE if evidence is None else evidence.words,
        "sha256": dict(hashes),
    }


def _compiler() -> str | None:
    """The compiler at hand, with which the tool judges such a text; None where there is none."""
    try:
        return nvrtc.title()
    except MissingPiece:
        return None


def joined(path: Path, symbol: str, entry: Mapping[str, Any], *, overwrite: bool) -> str:
    """The manifest at ``path`` with ``entry`` for ``symbol``, other kernels' entries as they are.

    Raises:
        RequestError: the file is no manifest, or says something else of ``symbol``, and ``overwrite`` is not asked for.
    """
    fix = "choose another folder, or say --overwrite"
    try:
        kernels = _read(path)
    except ValueError as error:
        if not overwrite:
            raise RequestError(f"{path} is no manifest of emitted kernels: {error}", fix) from None
        kernels = {}
    if symbol in kernels and kernels[symbol] != entry and not overwrite:
        raise RequestError(f"{path} says something else of {symbol}", fix)
    return json.dumps({_KERNELS: {**kernels, symbol: entry}}, indent=2, sort_keys=True) + "\n"


def _read(path: Path) -> dict[str, Any]:
    """The entries at ``path``; none where no file is.

    Raises:
        RequestError: it cannot be read.
        ValueError: it is something else.
    """
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}", "choose another folder") from None
    try:
        document = json.loads(text) if text else {_KERNELS: {}}
    except RecursionError:  # what Python says of too many brackets
        raise ValueError("it has too many brackets") from None
    if not isinstance(document, dict) or not isinstance(document.get(_KERNELS), dict):
        raise ValueError(f"it has no object {_KERNELS!r}")
    return dict(document[_KERNELS])
