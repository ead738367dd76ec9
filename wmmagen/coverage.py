"""What the templates make today: known values, and which of them a part exists for.

Not legality: a value that is missing here breaks no rule and carries no rule id. Whoever adds a mechanism widens a row.
"""

from __future__ import annotations

from wmmagen.config import Batch, KernelConfig, Layout, Reduction, Residue, spell, values_of
from wmmagen.errors import NotGeneratedYet

#: For each key that is narrower than what is known: the values that are made. Keys that are not here are made in full.
GENERATED: dict[str, tuple[str, ...]] = {
    "a": ("f16", "bf16", "tf32", "f64", "s8", "u8"),
    "acc": ("f32", "f16", "f64", "s32"),
    "d": ("f32", "f16", "bf16", "f64", "s32", "s8", "u8"),
    "c": ("f32", "f16", "bf16", "f64", "s8", "u8", "s32"),
}
#: Why operand types are not made.
REASONS: dict[str, str] = dict.fromkeys(
    ("s4", "u4", "b1"),
    "it is experimental in nvcuda::wmma, and CUDA may change or remove it: its s4, u4 and xor of b1 are documented as "
    "removed from sm_90 on",
)


def missing(config: KernelConfig) -> list[str]:
    """One sentence for each part of ``config`` that is known but not generated yet; empty where it can be rendered."""
    values = {key: spell(value) for key, value in values_of(config).items()}
    unmade = {key: made for key, made in GENERATED.items() if values.get(key, made[0]) not in made}
    reasons = {key: f" ({REASONS[values[key]]})" for key in unmade if key == "a" and values[key] in REASONS}
    return [
        f"{key}={values[key]} is known, but not generated yet{reasons.get(key, '')}; made today: {key}={' '.join(made)}"
        for key, made in unmade.items()
    ]


def demand(config: KernelConfig) -> None:
    """Return where ``config`` can be rendered.

    Raises:
        NotGeneratedYet: it cannot; the message holds every sentence.
    """
    sentences = missing(config)
    if sentences:
        raise NotGeneratedYet("\n".join(sentences), "choose one of the values that are made today")


def demand_padding(config: KernelConfig) -> None:
    """Return where ``config`` can be called on padded copies.

    Raises:
        NotGeneratedYet: it cannot; the message says why.
    """
    o = config.operation
    reasons = {
        "it takes all sizes itself (residue=predicated)": o.residue is not Residue.EXACT,
        "copies of a batch are not made (batch)": o.batch is not Batch.NONE,
        "its splits have a workspace or zeros of their own (reduction)": config.reduction is not Reduction.NONE,
        "copies of C and D are made in rows (cd)": o.cd is not Layout.RR,
        "what chains of steps add is not copied (epilogue)": not o.epilogue.simple or o.c is not None,
    }
    if broken := [why for why, holds in reasons.items() if holds]:
        raise NotGeneratedYet(
            f"{config} is not called on padded copies: {'; '.join(broken)}",
            "residue=exact,batch=none,split_k=1,reduction=none,cd=rr with epilogue=none or linear",
        )
