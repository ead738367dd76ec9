"""What the templates make today: known values, and which of them a part exists for.

Not legality: a value that is missing here breaks no rule and carries no rule id. Whoever adds a mechanism widens a row.
"""

from __future__ import annotations

from wmmagen.config import KernelConfig, Residue, spell, values_of
from wmmagen.errors import NotGeneratedYet

#: For each key that is narrower than what is known: the values that are made. Keys that are not here are made in full.
GENERATED: dict[str, tuple[str, ...]] = {
    "a": ("f16",),
    "acc": ("f32", "f16"),
    "d": ("f32", "f16"),
    "c": ("f32", "f16"),
}


def missing(config: KernelConfig) -> list[str]:
    """One sentence for each part of ``config`` that is known but not generated yet; empty where it can be rendered."""
    values = {key: spell(value) for key, value in values_of(config).items()}
    o = config.operation
    several = [
        f"epilogue={o.epilogue} with c={o.added.name} is not generated yet for {what}: made today: none and linear"
        for what, here in (("batches", o.batched), ("residue=predicated", o.residue is Residue.PREDICATED))
        if here and not (o.epilogue.simple and o.c is None)
    ]
    return several + [
        f"{key}={values[key]} is known, but not generated yet; made today: {key}={' '.join(made)}"
        for key, made in GENERATED.items()
        if values.get(key, made[0]) not in made
    ]


def demand(config: KernelConfig) -> None:
    """Return where ``config`` can be rendered.

    Raises:
        NotGeneratedYet: it cannot; the message holds every sentence.
    """
    sentences = missing(config)
    if sentences:
        raise NotGeneratedYet("\n".join(sentences), "choose one of the values that are made today")
