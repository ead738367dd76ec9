"""Small disassemblies, written as nvdisasm writes them."""

from __future__ import annotations

from wmmagen import sass

ENTRY = "k"


def listing(code: str, entry: str = ENTRY) -> str:
    """The text of a kernel: ``code`` has an instruction or a label on each line, without addresses and semicolons."""
    lines = [
        "\t.target\tsm_80",
        "",
        f"//--------------------- .text.{entry} --------------------------",
        f'\t.section\t.text.{entry},"ax",@progbits',
        '\t.sectioninfo\t@"SHI_REGISTERS=24"',
        "\t.align\t128",
        f"        .global         {entry}",
        f"        .type           {entry},@function",
        f"        .size           {entry},(.L_end - {entry})",
        f"{entry}:",
        f".text.{entry}:",
    ]
    address = 0
    for text in filter(None, map(str.strip, code.splitlines())):
        if text.endswith(":"):
            lines.append(text)
        else:
            lines.append(f"        /*{address:04x}*/                   {text} ;")
            address += 16
    return "\n".join([*lines, ".L_end:", ""])


def kernel(code: str) -> sass.Kernel:
    return sass.parse(listing(code), ENTRY)
