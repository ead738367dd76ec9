"""How a proof ends where it cannot begin: in words and with the command line's exit status, without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from wmmagen.backends import gpu
from wmmagen.errors import WmmagenError


def ended(main: Callable[[], int]) -> int:
    """The exit status of a proof, for which a GPU is demanded before anything else is done.

    ``--help`` is answered anywhere, ``--backend cpu`` is the rehearsal of those proofs that have one, and ``--read``
    judges a record.
    """
    try:
        if not {"-h", "--help", "cpu", "--backend=cpu", "--read"} & set(sys.argv[1:]):
            gpu.devices()
        return main()
    except WmmagenError as error:
        print(f"{Path(sys.argv[0]).name}: {error.message}\n  {error.fix}", file=sys.stderr)
        return error.exit_status
